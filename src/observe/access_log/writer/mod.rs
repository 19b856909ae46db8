//! Threads that format and write the lines of access logs, so that no worker waits for a disk, a
//! pipe or a syslog daemon. Each destination has its own thread, so that none waits for another.
//!
//! Workers hand over whole buffers of exchanges through a bounded queue. While a thread is
//! behind, its queue is full; the worker then drops lines and counts them. After a failed write,
//! the thread drops lines and counts them.
//!
//! A later configuration keeps the destinations that it shares with the one before
//! ([`LogWriter::follow`]). A destination that left is finished once no generation writes to it
//! any more ([`LogWriter::finish_left`]).

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

/// Longest time for which lines are held for a larger write.
const HOLD_TIME: Duration = Duration::from_millis(100);

/// Hands exchanges of one configuration over to the threads.
#[derive(Clone, Debug)]
pub struct LogSender {
    /// In the order of the configuration.
    destinations: Arc<[Destination]>,
}

/// A destination, as a worker hands exchanges over to it.
///
/// Invariant: each holder may still hand over exchanges. Meanwhile the thread runs, and no other
/// destination has its slot.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// Index in the tables of workers.
    slot: usize,
    queue: Arc<Queue>,
}

/// The writing threads. They end with [`finish`](LogWriter::finish).
#[derive(Debug)]
pub struct LogWriter {
    /// By slot.
    threads: Vec<Option<Thread>>,
    lost: Arc<AtomicU64>,
}

/// The thread of one destination.
#[derive(Debug)]
struct Thread {
    target: LogDestination,
    queue: Arc<Queue>,
    handle: JoinHandle<()>,
    state: ThreadState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// The newest configuration has the destination.
    Current,
    /// Only older generations may have it.
    Left,
    /// The thread writes the queued lines, and ends.
    Finishing,
}

/// Opened destinations that have no thread yet.
#[derive(Debug)]
pub struct Opened(Vec<(LogDestination, Sink)>);

/// The target of lines.
#[derive(Debug)]
enum Sink {
    File(FileSink),
    Syslog(SyslogSink),
}

/// The result of writing lines.
#[derive(Debug, Default)]
struct Written {
    /// Lines that are lost.
    lost: u64,
    /// The error, if there was one.
    error: Option<io::Error>,
}

/// Opens every destination and starts the threads.
///
/// # Errors
/// A file that can't be opened, named in the error's text.
pub fn start(destinations: &[LogDestination]) -> io::Result<(LogSender, LogWriter)> {
    let mut writer = LogWriter {
        threads: Vec::new(),
        lost: Arc::default(),
    };
    let sender = writer.follow(destinations, open(destinations)?)?;
    Ok((sender, writer))
}

/// Opens these destinations. It may have to wait for a disk.
///
/// # Errors
/// A file that can't be opened, named in the error's text.
pub fn open(destinations: &[LogDestination]) -> io::Result<Opened> {
    let opened = destinations.iter().map(|destination| {
        let sink = Sink::open(destination).map_err(|error| {
            let obstacle = match destination {
                LogDestination::File(path) => Obstacle::of_file(path),
                LogDestination::Stdout | LogDestination::Syslog(_) => None,
            };
            machine::explained(&name_of(destination), &error, obstacle)
        })?;
        Ok((destination.clone(), sink))
    });
    opened.collect::<io::Result<_>>().map(Opened)
}

fn name_of(destination: &LogDestination) -> String {
    format!("access log {destination}")
}

impl Sink {
    fn open(destination: &LogDestination) -> io::Result<Self> {
        Ok(match destination {
            LogDestination::Stdout => Sink::File(FileSink::stdout()?),
            LogDestination::File(path) => Sink::File(FileSink::open(path)?),
            LogDestination::Syslog(syslog) => Sink::Syslog(SyslogSink::new(syslog)),
        })
    }

    /// The buffer for new lines.
    fn lines(&mut self) -> &mut Vec<u8> {
        match self {
            Sink::File(file) => file.lines(),
            Sink::Syslog(syslog) => syslog.lines(),
        }
    }

    /// Writes `count` lines of the buffer, or holds them for a larger write. `are_many`: they
    /// filled a buffer; `waiting`: bytes in the queue after them.
    fn write(&mut self, count: u64, are_many: bool, waiting: usize) -> Written {
        match self {
            Sink::File(file) => file.write(count, are_many, waiting),
            Sink::Syslog(syslog) => syslog.write(count),
        }
    }

    /// Writes the held lines.
    fn flush(&mut self) -> Written {
        match self {
            Sink::File(file) => file.flush(),
            Sink::Syslog(_) => Written::default(),
        }
    }

    /// Number of held lines.
    fn held(&self) -> u64 {
        match self {
            Sink::File(file) => file.held(),
            Sink::Syslog(_) => 0,
        }
    }
}

/// The state of a writing thread.
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

    /// Notes the result of writing `lines` lines.
    fn settle(&mut self, lines: u64, written: Written) {
        let held = self.sink.held();
        // Held lines do not show whether writing works.
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

    /// Counts lost lines, and reports the start and the end of a loss.
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
                tracing::info!("{name}: reopened");
                self.count(lost);
            }
            Some(Err(error)) => {
                tracing::error!("{name}: can't be reopened, so the old file is used: {error}");
            }
        }
    }
}

impl LogSender {
    /// The destination with this index in the configuration.
    pub(super) fn destination(&self, index: usize) -> &Destination {
        &self.destinations[index]
    }
}

impl Destination {
    /// Index in the tables of workers.
    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Hands exchanges over without waiting. Returns an empty buffer for the next ones.
    ///
    /// # Errors
    /// Returns the exchanges while the thread is behind.
    pub(super) fn send(&self, batch: Batch) -> Result<Entries, Batch> {
        self.queue.send(batch)
    }

    /// Whether the newest configuration no longer has the destination.
    pub(super) fn has_left(&self) -> bool {
        self.queue.has_left()
    }
}

impl LogWriter {
    /// Lines that could not be written; goes on counting.
    pub fn lost(&self) -> Arc<AtomicU64> {
        self.lost.clone()
    }

    /// Takes the destinations of another configuration, in its order. Destinations that are in
    /// use go on; those that were `opened` get a thread.
    ///
    /// # Errors
    /// A thread can't be started, or a missing destination was not opened. The destinations of
    /// before and their sender go on.
    pub fn follow(
        &mut self,
        destinations: &[LogDestination],
        opened: Opened,
    ) -> io::Result<LogSender> {
        for (target, sink) in opened.0 {
            if self.slot_of(&target).is_none() {
                self.begin(target, sink)?;
            }
        }
        let slots = destinations.iter().map(|it| self.slot_of(it));
        let slots = slots.collect::<Option<Vec<_>>>();
        let slots = slots.ok_or_else(|| io::Error::other("an access log was not opened"))?;
        for (slot, thread) in self.threads.iter_mut().enumerate() {
            if let Some(thread) = thread.as_mut().filter(|it| it.is_open()) {
                let is_current = slots.contains(&slot);
                thread.state = if is_current {
                    ThreadState::Current
                } else {
                    ThreadState::Left
                };
                thread.queue.set_left(!is_current);
            }
        }
        let destinations = slots.into_iter().filter_map(|slot| {
            let queue = self.threads[slot].as_ref()?.queue.clone();
            Some(Destination { slot, queue })
        });
        Ok(LogSender {
            destinations: destinations.collect(),
        })
    }

    /// The slot of the thread that writes to this destination, or will.
    fn slot_of(&self, target: &LogDestination) -> Option<usize> {
        let is_it = |it: &Thread| it.is_open() && it.target == *target;
        let mut threads = self.threads.iter();
        threads.position(|it| it.as_ref().is_some_and(is_it))
    }

    /// Starts a thread. It counts as one that left until a configuration has it.
    fn begin(&mut self, target: LogDestination, sink: Sink) -> io::Result<()> {
        let queue = Arc::new(Queue::default());
        let writing = Writing {
            name: name_of(&target),
            sink,
            lost: self.lost.clone(),
            queue: queue.clone(),
            line_maker: LineMaker::default(),
            held_since: None,
            lost_in_row: 0,
            is_failing: false,
        };
        let handle = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || writing.run())?;
        let thread = Some(Thread {
            target,
            queue,
            handle,
            state: ThreadState::Left,
        });
        match self.threads.iter_mut().find(|it| it.is_none()) {
            Some(free) => *free = thread,
            None => self.threads.push(thread),
        }
        Ok(())
    }

    /// Reopens every file, for log rotation, also files that only older generations have. Does
    /// not wait.
    pub fn reopen(&self) {
        let threads = self.threads.iter().flatten();
        for thread in threads.filter(|it| it.is_open()) {
            thread.queue.reopen();
        }
    }

    /// Finishes destinations that left and that nobody holds any more. To be called regularly.
    /// Does not wait.
    pub fn finish_left(&mut self) {
        for slot in &mut self.threads {
            let Some(thread) = slot else { continue };
            // The remaining reference is the thread's.
            let is_unused = Arc::strong_count(&thread.queue) <= 2;
            if thread.state == ThreadState::Left && is_unused {
                thread.queue.close();
                thread.state = ThreadState::Finishing;
            }
            let is_over = thread.state == ThreadState::Finishing && thread.handle.is_finished();
            if is_over && let Some(thread) = slot.take() {
                thread.join();
            }
        }
    }

    /// Waits until everything in the queues is written, or `timeout` is over. No more can be
    /// handed over. Returns the number of lines that are known to be lost.
    pub fn finish(self, timeout: Duration) -> u64 {
        let deadline = Instant::now() + timeout;
        let threads: Vec<_> = self.threads.into_iter().flatten().collect();
        // All threads at once, so that a stuck one takes no time from the others.
        for thread in &threads {
            thread.queue.close();
        }
        for thread in threads {
            while !thread.handle.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.handle.is_finished() {
                thread.join();
            } else {
                // A pipe without a reader must not keep the process alive.
                tracing::error!("access log: waiting lines are lost");
                let unsettled = thread.queue.unsettled();
                self.lost.fetch_add(unsettled, Ordering::Relaxed);
            }
        }
        self.lost.load(Ordering::Relaxed)
    }
}

impl Thread {
    /// Whether the queue still takes exchanges.
    fn is_open(&self) -> bool {
        self.state != ThreadState::Finishing
    }

    fn join(self) {
        if self.handle.join().is_err() {
            tracing::error!("the access log's writer panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use evenkeel_testkit::TempDir;
    use evenkeel_testkit::deadline::until;

    use super::*;

    fn files(folder: &TempDir, names: &[&str]) -> Vec<LogDestination> {
        let path = |name: &&str| folder.path().join(name);
        names
            .iter()
            .map(|it| LogDestination::File(path(it)))
            .collect()
    }

    /// Destinations without a thread.
    fn missing(writer: &LogWriter, destinations: &[LogDestination]) -> Vec<LogDestination> {
        let missing = destinations
            .iter()
            .filter(|it| writer.slot_of(it).is_none());
        missing.cloned().collect()
    }

    fn follow(writer: &mut LogWriter, destinations: &[LogDestination]) -> LogSender {
        let opened = open(&missing(writer, destinations)).unwrap();
        writer.follow(destinations, opened).unwrap()
    }

    fn slots(sender: &LogSender) -> Vec<usize> {
        sender.destinations.iter().map(Destination::slot).collect()
    }

    fn send(sender: &LogSender, index: usize, lines: usize) {
        let sent = sender.destination(index).send(Batch::of_nothing(lines));
        assert!(sent.is_ok());
    }

    fn lines(destination: &LogDestination) -> usize {
        let LogDestination::File(path) = destination else {
            return 0;
        };
        let path: &PathBuf = path;
        let written = std::fs::read_to_string(path).unwrap();
        written.lines().count()
    }

    #[test]
    fn destinations_that_stay_go_on_and_others_are_finished() {
        let folder = TempDir::new().unwrap();
        let (ab, bc) = (files(&folder, &["a", "b"]), files(&folder, &["b", "c"]));
        let (first, mut writer) = start(&ab).unwrap();
        assert_eq!(slots(&first), [0, 1]);
        let second = follow(&mut writer, &bc);
        assert_eq!(slots(&second), [1, 2]);
        assert!(first.destination(0).has_left() && !first.destination(1).has_left());
        // An earlier generation still writes to it.
        writer.finish_left();
        send(&first, 0, 3);
        send(&first, 1, 1);
        send(&second, 0, 1);
        drop(first);
        until("its thread is gone", || {
            writer.finish_left();
            writer.threads[0].is_none()
        });
        assert_eq!(lines(&ab[0]), 3);
        // It comes back as a new destination, in the free slot.
        let third = follow(&mut writer, &ab);
        assert_eq!(slots(&third), [0, 1]);
        send(&third, 0, 2);
        assert_eq!(writer.finish(Duration::from_secs(5)), 0);
        let counts = [&ab[0], &ab[1], &bc[1]].map(lines);
        assert_eq!(counts, [5, 2, 0]);
    }

    #[test]
    fn one_that_left_is_opened_anew_as_well() {
        let folder = TempDir::new().unwrap();
        let (a, b) = (files(&folder, &["a"]), files(&folder, &["b"]));
        let (first, mut writer) = start(&a).unwrap();
        let second = follow(&mut writer, &b);
        for name in ["a", "b"] {
            let path = folder.join(name);
            std::fs::rename(&path, path.with_extension("old")).unwrap();
        }
        writer.reopen();
        send(&first, 0, 2);
        send(&second, 0, 3);
        drop((first, second));
        assert_eq!(writer.finish(Duration::from_secs(5)), 0);
        assert_eq!([&a[0], &b[0]].map(lines), [2, 3]);
    }

    #[test]
    fn one_that_comes_back_before_it_was_finished_goes_on() {
        let folder = TempDir::new().unwrap();
        let all = files(&folder, &["a"]);
        let (first, mut writer) = start(&all).unwrap();
        let none = follow(&mut writer, &[]);
        assert!(slots(&none).is_empty() && first.destination(0).has_left());
        writer.finish_left();
        assert!(missing(&writer, &all).is_empty());
        let again = follow(&mut writer, &all);
        assert!(!first.destination(0).has_left());
        drop(first);
        writer.finish_left();
        send(&again, 0, 1);
        assert_eq!(writer.finish(Duration::from_secs(5)), 0);
        assert_eq!(lines(&all[0]), 1);
    }

    #[test]
    fn a_destination_that_cannot_be_opened_leaves_the_others_alone() {
        let folder = TempDir::new().unwrap();
        let all = files(&folder, &["a"]);
        let (first, mut writer) = start(&all).unwrap();
        let bad = files(&folder, &["a", "nowhere/b"]);
        let error = open(&missing(&writer, &bad)).unwrap_err();
        assert!(error.to_string().contains("nowhere/b"), "{error}");
        assert!(writer.follow(&bad, Opened(Vec::new())).is_err());
        assert!(!first.destination(0).has_left());
        send(&first, 0, 1);
        assert_eq!(writer.finish(Duration::from_secs(5)), 0);
        assert_eq!(lines(&all[0]), 1);
    }
}
