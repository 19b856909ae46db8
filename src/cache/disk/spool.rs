//! Bodies that are too long for memory, on their way to a store.
//!
//! A thread writes each body to a file of its own while it arrives, so that followers can read
//! its beginning there. When all of it is written, the store's writer copies it to a segment. The
//! file has no name: a process that ends leaves nothing of it.
//!
//! Invariant: these files and the segments together are no longer than the store may be.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use evenkeel_cache::disk::ring::longest_bytes;
use evenkeel_cache::incoming::{Spool, Spooled};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::figures::{NotWritten, Phase};
use super::queue::Job;
use super::{DiskStore, Shared};

/// A body whose length is not known takes room of the store in such steps, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// How long a body waits for a disk that takes nothing, before it is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// All spools of a store.
#[derive(Debug)]
pub(super) struct Spools {
    tasks: Sender<Task>,
    /// Spools that may be open.
    files: Mutex<Vec<Weak<SpoolFile>>>,
    /// The longest body, in bytes.
    longest_bytes: u64,
}

enum Task {
    /// Write these bytes next.
    Write(Arc<SpoolFile>, Arc<[u8]>),
    /// All was written: have it stored.
    Store(Spooled),
}

/// A body that is being written.
#[derive(Debug)]
pub(super) struct SpoolFile {
    me: Weak<SpoolFile>,
    shared: Arc<Shared>,
    folder: PathBuf,
    tasks: Sender<Task>,
    longest_bytes: u64,
    file: OnceLock<Arc<File>>,
    /// How many bytes of it are there.
    written: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    is_open: bool,
    /// Of all bytes that it was given.
    len: u64,
    /// Room of the store that it has.
    reserved: u64,
    /// Since when the oldest bytes wait that are not written.
    waiting_since: Option<Instant>,
    wakers: Vec<Waker>,
}

impl DiskStore {
    /// Takes a body that is too long for memory, of a length that may be known.
    ///
    /// # Errors
    /// If it can't be stored.
    pub fn spool(&self, announced: Option<u64>) -> Result<Arc<dyn Spool>, NotWritten> {
        let made = self.try_spool(announced);
        made.inspect_err(|reason| self.shared.counters.not_written(*reason))
    }

    fn try_spool(&self, announced: Option<u64>) -> Result<Arc<dyn Spool>, NotWritten> {
        let longest_bytes = self.spools.longest_bytes;
        match self.shared.queue.phase() {
            Phase::Waiting | Phase::Stopping | Phase::Closed => return Err(NotWritten::NoFolder),
            Phase::Paused => return Err(NotWritten::Paused),
            Phase::Working => {}
        }
        let reserved = announced.unwrap_or(STEP_BYTES.min(longest_bytes));
        if reserved > longest_bytes {
            return Err(NotWritten::TooLong);
        }
        if !self.shared.reserve(reserved) {
            return Err(NotWritten::QueueFull);
        }
        let spool = Arc::new_cyclic(|me| SpoolFile {
            me: me.clone(),
            shared: self.shared.clone(),
            folder: self.folder.clone(),
            tasks: self.spools.tasks.clone(),
            longest_bytes,
            file: OnceLock::new(),
            written: AtomicU64::new(0),
            state: Mutex::new(State {
                is_open: true,
                len: 0,
                reserved,
                waiting_since: None,
                wakers: Vec::new(),
            }),
        });
        let mut files = self.spools.files();
        files.retain(|it| it.strong_count() > 0);
        files.push(Arc::downgrade(&spool));
        Ok(spool)
    }

    /// The longest body that it takes, in bytes.
    pub fn longest_bytes(&self) -> u64 {
        self.spools.longest_bytes
    }

    /// Whether it is written now.
    pub fn is_written(&self) -> bool {
        self.shared.queue.phase() == Phase::Working
    }

    /// Has a response stored whose body lies in a spool.
    pub fn insert_spooled(&self, spooled: Spooled) {
        // The thread ends after the store.
        let _ = self.spools.tasks.send(Task::Store(spooled));
    }

    /// Gives up bodies that have waited for the disk for long. To be called about once a
    /// second.
    pub fn give_up_stuck(&self) {
        let files: Vec<_> = self
            .spools
            .files()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for file in files {
            let since = file.lock().waiting_since;
            if since.is_some_and(|since| since.elapsed() >= PATIENCE) {
                file.close(Some(NotWritten::QueueFull));
            }
        }
    }
}

impl Spools {
    /// Of a store.
    ///
    /// # Errors
    /// If its thread can't be started.
    pub fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (tasks, given) = channel();
        let longest = longest_bytes(shared.capacity_bytes);
        let thread = std::thread::Builder::new().name("cache-spool".into());
        thread.spawn(move || run(&given, &shared))?;
        Ok(Spools {
            tasks,
            files: Mutex::default(),
            // The rest is for the head.
            longest_bytes: longest - longest / 1024,
        })
    }

    pub fn files(&self) -> MutexGuard<'_, Vec<Weak<SpoolFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Works until the store and all its spools are dropped.
fn run(tasks: &Receiver<Task>, shared: &Shared) {
    for task in tasks {
        match task {
            Task::Write(spool, bytes) => {
                if spool.is_open()
                    && let Err(error) = spool.write(&bytes)
                {
                    spool.close(Some(NotWritten::Paused));
                    shared.queue.fail(error);
                }
            }
            Task::Store(spooled) => {
                let written = spooled.spool.written().map_or(0, |(_, len)| len);
                // Else it was counted when it was given up.
                if spooled.spool.is_open() && written == spooled.body_len {
                    let pushed = shared.queue.push(Job::spooled(spooled));
                    if let Err(reason) = pushed {
                        shared.counters.not_written(reason);
                    }
                }
            }
        }
    }
}

impl SpoolFile {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let file = Arc::new(make_unnamed(&self.folder)?);
                self.file.get_or_init(|| file)
            }
        };
        let at = self.written.load(Relaxed);
        file.write_all_at(bytes, at)?;
        let mut state = self.lock();
        let written = at + bytes.len() as u64;
        self.written.store(written, Relaxed);
        state.waiting_since = (written < state.len).then(Instant::now);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// No more is written. `reason` is the store's.
    fn close(&self, reason: Option<NotWritten>) {
        let mut state = self.lock();
        if !std::mem::take(&mut state.is_open) {
            return;
        }
        state.waiting_since = None;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        if let Some(reason) = reason {
            self.shared.counters.not_written(reason);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Has bytes wait since this moment.
    #[cfg(test)]
    pub fn since(&self, at: Instant) {
        self.lock().waiting_since = Some(at);
    }

    /// Counts bytes that are to be written, for which there has to be room.
    fn count(&self, len: u64) -> Result<(), NotWritten> {
        let mut state = self.lock();
        state.len += len;
        if state.len > self.longest_bytes {
            return Err(NotWritten::TooLong);
        }
        if state.len > state.reserved {
            if !self.shared.reserve(STEP_BYTES) {
                return Err(NotWritten::QueueFull);
            }
            state.reserved += STEP_BYTES;
        }
        state.waiting_since.get_or_insert_with(Instant::now);
        Ok(())
    }
}

impl Spool for SpoolFile {
    fn push(&self, bytes: Arc<[u8]>) {
        match self.count(bytes.len() as u64) {
            Err(reason) => self.close(Some(reason)),
            Ok(()) => {
                if let Some(me) = self.me.upgrade() {
                    // The thread is there for as long as this is.
                    let _ = self.tasks.send(Task::Write(me, bytes));
                }
            }
        }
    }

    fn written(&self) -> Option<(Arc<File>, u64)> {
        let file = self.file.get()?.clone();
        Some((file, self.written.load(Relaxed)))
    }

    fn is_open(&self) -> bool {
        self.lock().is_open
    }

    fn give_up(&self) {
        self.close(None);
    }

    fn wait(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.wakers.iter().any(|it| it.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        self.shared.release(self.lock().reserved);
    }
}

impl Shared {
    /// Takes room of the store for a file that is no segment; whether there is some.
    fn reserve(&self, bytes: u64) -> bool {
        let most = self.capacity_bytes / 4;
        let add = |reserved: u64| Some(reserved + bytes).filter(|it| *it <= most);
        let is_reserved = self.reserved.fetch_update(Relaxed, Relaxed, add).is_ok();
        if is_reserved {
            self.queue.make_room();
        }
        is_reserved
    }

    fn release(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Relaxed);
    }
}

/// A file in a folder that goes when it is closed.
fn make_unnamed(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        Ok(file) => return Ok(file.into()),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    // Some file systems have no such files.
    let path = folder.join("spool.new");
    let made = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::TRUNC, mode)?;
    rustix::fs::unlink(&path)?;
    Ok(made.into())
}
