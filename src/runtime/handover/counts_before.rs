//! Counts of older processes that still finish their exchanges.
//!
//! A process that takes over hears the counts of the one before, until that one ends. If
//! it ends earlier itself, its successor goes on hearing them:
//!
//! ```text
//!        counts         counts                    counts
//!   A ──────────▶ B ──────────▶ C        A ─────────────────▶ C
//!                 B ends: it gives C its end of A's channel
//! ```
//!
//! Invariant: a count is in the sum of one process alone, whenever another one ends.

use std::io::{self, PipeWriter};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_metrics::Saved;
use tokio::sync::oneshot;

use super::message::{Answer, Word, read, say};
use crate::net::handover::Channel;
use crate::observe::figures::CurrentSources;

/// How long the rest of a message may take, and an answer.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Goes on counting from what the processes before have counted, as long as they do.
#[derive(Debug)]
pub(in crate::runtime) struct CountsBefore {
    /// Dropped, it ends the thread.
    stop: PipeWriter,
    thread: JoinHandle<Option<CountingPredecessor>>,
}

/// A process before this one that goes on counting, and nobody hears of it any more.
#[derive(Debug)]
pub(in crate::runtime) struct CountingPredecessor {
    pub channel: Channel,
    /// Its counts, as far as this process has heard of them.
    pub counted: Saved,
}

impl CountsBefore {
    /// Receives them on a thread of its own. `first` fires with the first counts.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn hear(
        channel: Channel,
        current: CurrentSources,
        first: oneshot::Sender<()>,
    ) -> io::Result<Self> {
        channel.set_timeout(Some(MESSAGE_TIMEOUT))?;
        let (stopped, stop) = io::pipe()?;
        let mut hearing = CountsReceiver {
            before: CountingPredecessor {
                channel,
                counted: Saved::Nothing,
            },
            rest: Saved::Nothing,
            told: Saved::Nothing,
            current,
        };
        let thread = std::thread::Builder::new().name("upgrade".to_owned());
        let thread = thread.spawn(move || {
            let mut first = Some(first);
            while hearing.before.channel.wait_unless(&stopped).ok()? {
                hearing.hear()?;
                // The receiver may have given up.
                first.take().map(|it| it.send(()));
            }
            Some(hearing.before)
        })?;
        Ok(CountsBefore { stop, thread })
    }

    /// Hears of them no more. Gives the process that goes on counting, if one does. May
    /// block for a moment.
    pub fn leave(self) -> Option<CountingPredecessor> {
        drop(self.stop);
        // It panicked: nobody knows how far it came.
        self.thread.join().ok().flatten()
    }
}

/// The counts that were heard so far.
struct CountsReceiver {
    /// The process that is heard of.
    before: CountingPredecessor,
    /// Counts of processes that have ended, which it does not have.
    rest: Saved,
    /// The sum of both, as it was taken over last.
    told: Saved,
    current: CurrentSources,
}

impl CountsReceiver {
    /// Hears of further counts; `None` where the process has ended.
    fn hear(&mut self) -> Option<()> {
        let (bytes, descriptors) = self.before.channel.receive().ok()??;
        match read(&bytes) {
            Ok(Word::Counts(counts)) => {
                let mut sum = self.rest.clone();
                sum.add(counts.clone());
                self.current.get().inherit(&sum, &self.told);
                (self.told, self.before.counted) = (sum, counts);
                // An error means that nobody waits for the answer.
                let _ = say(&self.before.channel, &Answer::Counted);
            }
            Ok(Word::Before { counted }) => {
                let channel = descriptors.into_iter().next()?;
                let channel = Channel::inherited(channel).ok()?;
                channel.set_timeout(Some(MESSAGE_TIMEOUT)).ok()?;
                // The one that ends has told all that it counts.
                self.rest = self.told.since(&counted);
                self.before = CountingPredecessor { channel, counted };
            }
            Ok(Word::Known(_) | Word::Serve) | Err(_) => {}
        }
        Some(())
    }
}
