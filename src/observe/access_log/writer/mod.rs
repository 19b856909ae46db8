//! The threads that make and write the lines of access logs, so that no worker
//! waits for a disk, a pipe or a syslog daemon: one for each destination, so
//! that none waits for another.
//!
//! Workers hand over whole buffers of exchanges through a bounded queue. When a
//! thread can't keep up its queue is full, and the worker drops the exchanges'
//! lines and counts them; when a write fails, they are dropped and counted here.

mod file;
mod queue;
mod syslog;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Batch, Entries, LineMaker};
use crate::config::LogDestination;
use crate::config::machine::{self, Obstacle};
use file::FileSink;
use queue::{Message, Queue};
use syslog::SyslogSink;

/// How long lines are held for a larger write.
const HOLD_TIME: Duration = Duration::from_millis(100);

/// Where workers hand their exchanges over.
#[derive(Clone, Debug)]
pub struct LogSender {
    destinations: Vec<Arc<Queue>>,
}

/// The threads; they end when they are told to [`finish`](LogWriter::finish).
#[derive(Debug)]
pub struct LogWriter {
    threads: Vec<(JoinHandle<()>, Arc<Queue>)>,
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
        let sink = Sink::open(destination).map_err(|error| {
            let obstacle = match destination {
                LogDestination::File(path) => Obstacle::of_file(path),
                LogDestination::Stdout | LogDestination::Syslog(_) => None,
            };
            machine::explained(&name, &error, obstacle)
        })?;
        let queue = Arc::new(Queue::default());
        let writing = Writing {
            name,
            sink,
            lost: lost.clone(),
            queue: queue.clone(),
            line_maker: LineMaker::default(),
            held_since: None,
            lost_in_row: 0,
            is_failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || writing.run())?;
        threads.push((thread, queue));
    }
    let destinations = threads.iter().map(|(_, queue)| queue.clone());
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

    /// Where lines are to be put.
    fn lines(&mut self) -> &mut Vec<u8> {
        match self {
            Sink::File(file) => file.lines(),
            Sink::Syslog(syslog) => syslog.lines(),
        }
    }

    /// Writes what was put there, so many lines, or holds it for a larger
    /// write. `are_many`: they filled a buffer; `waiting`: what waits behind
    /// them, in bytes.
    fn write(&mut self, count: u64, are_many: bool, waiting: usize) -> Written {
        match self {
            Sink::File(file) => file.write(count, are_many, waiting),
            Sink::Syslog(syslog) => syslog.write(count),
        }
    }

    /// Writes what is held.
    fn flush(&mut self) -> Written {
        match self {
            Sink::File(file) => file.flush(),
            Sink::Syslog(_) => Written::default(),
        }
    }

    /// Lines that are held.
    fn held(&self) -> u64 {
        match self {
            Sink::File(file) => file.held(),
            Sink::Syslog(_) => 0,
        }
    }
}

/// What a thread works with.
struct Writing {
    name: String,
    sink: Sink,
    lost: Arc<AtomicU64>,
    queue: Arc<Queue>,
    line_maker: LineMaker,
    /// Since when lines are held.
    held_since: Option<Instant>,
    /// Lines lost since the last that was written.
    lost_in_row: u64,
    is_failing: bool,
}

impl Writing {
    fn run(mut self) {
        while let Some(message) = self.queue.next(self.held_since.map(|it| it + HOLD_TIME)) {
            match message {
                Message::Write(batch, waiting) => {
                    let entries = &batch.entries;
                    let (held, count) = (self.sink.held(), entries.len());
                    self.line_maker.write(&batch, self.sink.lines());
                    let written = self.sink.write(count, entries.is_full(), waiting);
                    self.settle(held + count, written);
                    self.queue.give_back(batch.entries);
                }
                Message::Quiet => self.flush(),
                Message::Reopen => {
                    self.flush();
                    self.reopen();
                }
            }
        }
        self.flush();
        if let Sink::File(file) = &mut self.sink {
            let lost = file.finish_line();
            self.count(lost);
        }
    }

    fn flush(&mut self) {
        let held = self.sink.held();
        if held > 0 {
            let written = self.sink.flush();
            self.settle(held, written);
        }
    }

    /// Notes what became of `lines` that were there to be written.
    fn settle(&mut self, lines: u64, written: Written) {
        let held = self.sink.held();
        // What is held says nothing of how writing goes.
        if held < lines || written.error.is_some() {
            self.note(written);
        }
        self.queue.settle(lines - held);
        self.held_since = match self.held_since {
            _ if held == 0 => None,
            Some(since) if held == lines => Some(since),
            _ => Some(Instant::now()),
        };
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
    /// Hands exchanges over without waiting, and gives an empty buffer for the
    /// next.
    ///
    /// # Errors
    /// Gives them back when the thread is behind.
    pub fn send(&self, destination: usize, batch: Batch) -> Result<Entries, Batch> {
        self.destinations[destination].send(batch)
    }

    /// Opens every file anew, for one that was renamed. Does not wait for it.
    pub fn reopen(&self) {
        for queue in &self.destinations {
            queue.reopen();
        }
    }
}

impl LogWriter {
    /// Lines that could not be written; goes on counting.
    pub fn lost(&self) -> Arc<AtomicU64> {
        self.lost.clone()
    }

    /// Waits until everything handed over is written, or `timeout` is over;
    /// nothing can be handed over any more. Gives the number of lines that are
    /// known to be lost.
    pub fn finish(self, timeout: Duration) -> u64 {
        let deadline = Instant::now() + timeout;
        // All of them at once: one that is stuck takes no time from the others.
        for (_, queue) in &self.threads {
            queue.close();
        }
        for (thread, queue) in self.threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                // A pipe that nobody reads must not keep the process.
                tracing::error!("access log: what waits to be written is lost");
                self.lost.fetch_add(queue.unsettled(), Ordering::Relaxed);
            } else if thread.join().is_err() {
                tracing::error!("the access log's writer panicked");
            }
        }
        self.lost.load(Ordering::Relaxed)
    }
}
