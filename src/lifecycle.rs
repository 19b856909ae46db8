//! The life of the process as its threads see it: its phases, a start together,
//! threads that end, and the signals to stop.
//!
//! Shared by all threads. A leaf module: it uses nothing of ours.

use std::convert::Infallible;
use std::io;
use std::time::Instant;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// The phase that the threads are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Open everything that is needed for good, and wait until all threads
    /// have.
    Start,
    /// Accept and serve.
    Serve,
    /// Accept nothing more, finish open connections until this moment.
    Drain {
        /// When to stop waiting.
        deadline: Instant,
        manner: DrainMode,
    },
}

/// The treatment of connections of a draining process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainMode {
    /// Idle ones are closed at once.
    Ending,
    /// Another process has the addresses.
    HandedOver {
        /// Until then idle connections may bring one more request.
        idle_until: Instant,
        /// Until then tunnels go on.
        tunnels_until: Instant,
    },
}

/// The signal by which a thread takes part in a start. No client is let in
/// before all threads have their descriptors: clients could take the last ones.
#[derive(Debug, Clone)]
pub(crate) struct Starting {
    /// Lives until the thread has them, or has failed.
    lacking: std::sync::mpsc::Sender<Infallible>,
    phase: watch::Receiver<Phase>,
}

/// Knows when all threads have their descriptors.
#[derive(Debug)]
pub(crate) struct NoneLacking(std::sync::mpsc::Receiver<Infallible>);

impl Starting {
    /// For threads that start together: each gets a clone.
    pub fn together(phase: watch::Receiver<Phase>) -> (Self, NoneLacking) {
        let (lacking, none_lacking) = std::sync::mpsc::channel();
        (Starting { lacking, phase }, NoneLacking(none_lacking))
    }

    /// This thread has its descriptors. Waits until the others have theirs.
    /// Whether the process serves then: otherwise its start has failed.
    pub async fn finish(mut self) -> bool {
        drop(self.lacking);
        let begun = self.phase.wait_for(|phase| *phase != Phase::Start).await;
        begun.is_ok()
    }
}

impl NoneLacking {
    /// Waits until every clone of [`Starting`] was finished or dropped.
    pub fn wait(self) {
        // Nothing is ever sent: the channel closes with the last sender.
        let _ = self.0.recv();
    }
}

/// Says that a thread ended, however it did.
#[derive(Debug)]
pub(crate) struct ThreadEnded;

/// Reports the ends of threads.
#[derive(Debug)]
pub(crate) struct ThreadEnds {
    ending: mpsc::UnboundedSender<ThreadEnded>,
}

/// Lives as long as a thread, and reports its end when dropped.
#[derive(Debug)]
pub(crate) struct WhileRunning {
    ending: mpsc::UnboundedSender<ThreadEnded>,
}

impl ThreadEnds {
    /// Beside it, the receiver of these reports.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ThreadEnded>) {
        let (ending, ended) = mpsc::unbounded_channel();
        (ThreadEnds { ending }, ended)
    }

    /// For one thread, which keeps it until it ends.
    pub fn of_one(&self) -> WhileRunning {
        WhileRunning {
            ending: self.ending.clone(),
        }
    }
}

impl Drop for WhileRunning {
    fn drop(&mut self) {
        // No receiver is left when all of them are stopped.
        let _ = self.ending.send(ThreadEnded);
    }
}

/// TERM, INT and QUIT, taken over from their default.
#[derive(Debug)]
pub struct StopSignals {
    term: Signal,
    int: Signal,
    quit: Signal,
}

impl StopSignals {
    /// Takes them over at once. To be called within a runtime.
    ///
    /// # Errors
    /// They can't be taken over.
    pub fn new() -> io::Result<Self> {
        Ok(StopSignals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The name of the next one.
    ///
    /// # Cancellation
    /// No signal is lost by dropping the future.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "TERM",
            _ = self.int.recv() => "INT",
            _ = self.quit.recv() => "QUIT",
        }
    }
}
