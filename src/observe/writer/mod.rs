//! The threads that write access logs, so that no worker waits for a disk, a
//! pipe or a syslog daemon: one for each destination, so that none waits for
//! another.
//!
//! Workers hand over whole buffers of lines through a bounded channel. When a
//! thread can't keep up its channel is full, and the worker drops the lines
//! and counts them; when a write fails, they are dropped and counted here.

mod file;
mod syslog;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::LogDestination;
use file::FileSink;
use syslog::SyslogSink;

/// Buffers that may wait for a thread before lines are dropped.
const BUFFERS_WAITING: usize = 64;

/// A buffer of whole lines.
#[derive(Debug, Default)]
pub struct Lines {
    /// The lines, each with its end.
    pub bytes: Vec<u8>,
    /// How many they are.
    pub count: u64,
}

/// What a thread is handed.
enum Message {
    Lines(Lines),
    /// There may be something else to do.
    Wake,
}

/// Where workers hand their lines over.
#[derive(Clone, Debug)]
pub struct LogSender {
    destinations: Vec<Handing>,
}

#[derive(Clone, Debug)]
struct Handing {
    messages: SyncSender<Message>,
    shared: Arc<Shared>,
}

/// What a thread shares with those who hand it lines.
#[derive(Debug, Default)]
struct Shared {
    /// Lines handed over and not yet dealt with.
    waiting: AtomicU64,
    /// Whether the destination is to be opened anew.
    is_to_reopen: AtomicBool,
}

/// The threads; each ends when every sender is gone.
#[derive(Debug)]
pub struct LogWriter {
    threads: Vec<(JoinHandle<()>, Handing)>,
    lost: Arc<AtomicU64>,
}

/// Where lines end up.
enum Sink {
    File(FileSink),
    Syslog(SyslogSink),
}

/// What came of writing lines.
#[derive(Debug, Default)]
struct Written {
    /// Lines that are lost.
    lost: u64,
    /// Why, if something went wrong.
    error: Option<io::Error>,
}

/// Opens every destination and starts the threads.
///
/// # Errors
/// A file that can't be opened, named in the error's text.
pub fn start(destinations: &[LogDestination]) -> io::Result<(LogSender, LogWriter)> {
    let lost = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for destination in destinations {
        let name = format!("access log {destination}");
        let sink = Sink::open(destination)
            .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        let (sender, receiver) = sync_channel(BUFFERS_WAITING);
        let shared = Arc::new(Shared::default());
        let writing = Writing {
            name,
            sink,
            lost: lost.clone(),
            shared: shared.clone(),
            lost_in_row: 0,
            is_failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || writing.run(receiver))?;
        let handing = Handing {
            messages: sender,
            shared,
        };
        threads.push((thread, handing));
    }
    let destinations = threads.iter().map(|(_, handing)| handing.clone());
    let sender = LogSender {
        destinations: destinations.collect(),
    };
    Ok((sender, LogWriter { threads, lost }))
}

impl Sink {
    fn open(destination: &LogDestination) -> io::Result<Self> {
        Ok(match destination {
            LogDestination::Stdout => Sink::File(FileSink::stdout()?),
            LogDestination::File(path) => Sink::File(FileSink::open(path)?),
            LogDestination::Syslog(syslog) => Sink::Syslog(SyslogSink::new(syslog)),
        })
    }

    fn write(&mut self, lines: &Lines) -> Written {
        match self {
            Sink::File(file) => file.write(lines),
            Sink::Syslog(syslog) => syslog.write(lines),
        }
    }
}

/// What a thread works with.
struct Writing {
    name: String,
    sink: Sink,
    lost: Arc<AtomicU64>,
    shared: Arc<Shared>,
    /// Lines lost since the last that was written.
    lost_in_row: u64,
    is_failing: bool,
}

impl Writing {
    fn run(mut self, messages: Receiver<Message>) {
        for message in messages {
            // What came before is for the old file.
            if let Message::Lines(lines) = message {
                let written = self.sink.write(&lines);
                self.note(written);
                self.shared
                    .waiting
                    .fetch_sub(lines.count, Ordering::Relaxed);
            }
            if self.shared.is_to_reopen.swap(false, Ordering::Relaxed) {
                self.reopen();
            }
        }
        if let Sink::File(file) = &mut self.sink {
            let lost = file.finish_line();
            self.count(lost);
        }
    }

    fn count(&mut self, lost: u64) {
        self.lost.fetch_add(lost, Ordering::Relaxed);
        self.lost_in_row += lost;
    }

    /// Counts what was lost, and says when that begins and when it ends.
    fn note(&mut self, written: Written) {
        self.count(written.lost);
        let name = &self.name;
        match written.error {
            Some(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::error!("{name}: lines are lost: {error}");
            }
            Some(_) => {}
            None if self.is_failing => {
                self.is_failing = false;
                let lost = std::mem::take(&mut self.lost_in_row);
                tracing::info!("{name}: writing again; {lost} lines were lost");
            }
            None => {}
        }
    }

    fn reopen(&mut self) {
        let name = &self.name;
        let reopened = match &mut self.sink {
            Sink::Syslog(syslog) => return syslog.reconnect(),
            Sink::File(file) => file.reopen(),
        };
        match reopened {
            // Standard output.
            None => {}
            Some(Ok(lost)) => {
                tracing::info!("{name}: opened anew");
                self.count(lost);
            }
            Some(Err(error)) => {
                tracing::error!(
                    "{name}: it can't be opened anew, so the old file goes on: {error}"
                );
            }
        }
    }
}

impl LogSender {
    /// Hands lines over without waiting.
    ///
    /// # Errors
    /// Gives them back when the thread is behind.
    pub fn send(&self, destination: usize, lines: Lines) -> Result<(), Lines> {
        let Handing { messages, shared } = &self.destinations[destination];
        let count = lines.count;
        shared.waiting.fetch_add(count, Ordering::Relaxed);
        let sent = messages.try_send(Message::Lines(lines));
        sent.map_err(|error| {
            shared.waiting.fetch_sub(count, Ordering::Relaxed);
            let (TrySendError::Full(message) | TrySendError::Disconnected(message)) = error;
            match message {
                Message::Lines(lines) => lines,
                Message::Wake => Lines::default(),
            }
        })
    }
}

impl LogWriter {
    /// Lines that could not be written; goes on counting.
    pub fn lost(&self) -> Arc<AtomicU64> {
        self.lost.clone()
    }

    /// Opens every file anew, for one that was renamed. Does not wait for it.
    pub fn reopen(&self) {
        for (_, Handing { messages, shared }) in &self.threads {
            shared.is_to_reopen.store(true, Ordering::Relaxed);
            // Where there is no room, the thread is busy and will look.
            let _ = messages.try_send(Message::Wake);
        }
    }

    /// Waits until everything handed over is written, or `timeout` is over;
    /// every sender must be gone. Gives the number of lines that are known to
    /// be lost.
    pub fn finish(self, timeout: Duration) -> u64 {
        let deadline = Instant::now() + timeout;
        // All of them at once: one that is stuck takes no time from the others.
        let end = |(thread, Handing { messages, shared })| {
            drop(messages);
            (thread, shared)
        };
        let threads: Vec<(JoinHandle<()>, Arc<Shared>)> =
            self.threads.into_iter().map(end).collect();
        for (thread, shared) in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                // A pipe that nobody reads must not keep the process.
                let waiting = shared.waiting.load(Ordering::Relaxed);
                tracing::error!("access log: what waits to be written is lost");
                self.lost.fetch_add(waiting, Ordering::Relaxed);
            } else if thread.join().is_err() {
                tracing::error!("the access log's writer panicked");
            }
        }
        self.lost.load(Ordering::Relaxed)
    }
}
