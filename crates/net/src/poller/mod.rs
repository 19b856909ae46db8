//! Readiness of the descriptors that a thread waits for (epoll(7), edge-triggered).
//!
//! The readiness of a descriptor is a few words in one table of the thread. A runtime made for
//! many threads would keep each on cache lines of its own, which are cold when the next event
//! comes.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use slab::Slab;
use tokio::io::Interest as TokioInterest;
use tokio::io::unix::AsyncFd;

mod source;

pub use source::{Detached, Source};

/// Events taken from the kernel with one call.
const BATCH: usize = 256;

/// The descriptors of one thread. Each thread has one set at most.
pub struct Poller {
    table: Rc<Table>,
    /// The table's.
    kernel: Arc<KernelSet>,
    /// Room for the next ones.
    events: Vec<epoll::Event>,
}

#[derive(Debug)]
struct Table {
    kernel: Arc<KernelSet>,
    entries: RefCell<Slab<Watched>>,
    /// Of the descriptor that came last.
    generation: Cell<u32>,
}

/// The part of a thread's set that other threads touch: they take descriptors
/// out.
#[derive(Debug)]
struct KernelSet {
    epoll: OwnedFd,
    /// Entries of descriptors that another thread took out: the owner frees them
    /// before its table grows.
    ///
    /// Invariant: an entry is here once at most, and its descriptor is not watched
    /// any more.
    orphans: Mutex<Vec<u32>>,
    orphan_count: AtomicUsize,
}

impl KernelSet {
    fn leave_behind(&self, key: u32) {
        let mut orphans = self.orphans();
        orphans.push(key);
        self.orphan_count.store(orphans.len(), Ordering::Relaxed);
    }

    fn orphans(&self) -> MutexGuard<'_, Vec<u32>> {
        // A push or a take is whole or has not been.
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Watched {
    /// Distinguishes it from earlier descriptors at its place, whose events may still arrive.
    generation: u32,
    ready: EventFlags,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The directions that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// To read or to accept.
    Read,
    /// To read and to write.
    ReadWrite,
}

impl Interest {
    fn flags(self) -> EventFlags {
        let read = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        match self {
            Interest::Read => read,
            Interest::ReadWrite => read | EventFlags::OUT,
        }
    }
}

/// Nothing more comes or goes.
const OVER: EventFlags = EventFlags::HUP.union(EventFlags::ERR);

/// A side of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Reading or accepting.
    Read,
    /// Writing.
    Write,
}

impl Side {
    /// The flag that comes and goes.
    fn passing(self) -> EventFlags {
        match self {
            Side::Read => EventFlags::IN,
            Side::Write => EventFlags::OUT,
        }
    }

    /// With what stays: the peer has ended, or all is over.
    fn all(self) -> EventFlags {
        match self {
            Side::Read => self.passing() | EventFlags::RDHUP | OVER,
            Side::Write => self.passing() | OVER,
        }
    }
}

thread_local! {
    static TABLE: RefCell<Option<Rc<Table>>> = const { RefCell::new(None) };
}

impl Poller {
    /// The set of the current thread, without a descriptor.
    ///
    /// # Errors
    /// The process is out of descriptors.
    ///
    /// # Panics
    /// The thread has one already.
    pub fn of_this_thread() -> io::Result<Self> {
        let kernel = Arc::new(KernelSet {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            orphans: Mutex::default(),
            orphan_count: AtomicUsize::new(0),
        });
        let table = Rc::new(Table {
            kernel: kernel.clone(),
            entries: RefCell::default(),
            generation: Cell::new(0),
        });
        let before = TABLE.replace(Some(table.clone()));
        assert!(before.is_none(), "a thread has one poller");
        Ok(Poller {
            table,
            kernel,
            events: Vec::with_capacity(BATCH),
        })
    }

    /// Takes events from the kernel, and wakes the waiting tasks. Without events it blocks,
    /// unless `is_busy`. Returns whether there may be more.
    ///
    /// # Errors
    /// The kernel lacks memory.
    pub fn look(&mut self, is_busy: bool) -> io::Result<bool> {
        self.events.clear();
        let now = Timespec::default();
        let timeout = is_busy.then_some(&now);
        let room = spare_capacity(&mut self.events);
        match epoll::wait(&self.kernel.epoll, room, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            self.table.heed(event.data.u64(), event.flags);
        }
        Ok(self.events.len() == self.events.capacity())
    }

    /// Takes events for ever, whenever there are some. For threads whose tasks are polled by
    /// another runtime.
    ///
    /// # Errors
    /// As [`look`](Self::look), or the runtime can't register the poller.
    ///
    /// # Cancellation
    /// Dropping it stops the polling.
    pub async fn serve(mut self) -> io::Result<()> {
        let table = self.table.clone();
        // SAFETY: the table keeps the same descriptor as long as it exists.
        let epoll = unsafe { AsyncFd::register_with_interest(table, TokioInterest::READABLE)? };
        loop {
            epoll.readable().await?.clear_ready();
            while self.look(true)? {}
        }
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Poller")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        TABLE.take();
    }
}

impl AsRawFd for Table {
    fn as_raw_fd(&self) -> RawFd {
        self.kernel.epoll.as_raw_fd()
    }
}

impl Table {
    /// The table of this thread, while it has a poller.
    fn of_this_thread() -> Option<Rc<Table>> {
        TABLE.try_with(|table| table.borrow().clone()).ok()?
    }

    /// Frees the entries of descriptors that other threads took out.
    fn free_orphans(&self) {
        if self.kernel.orphan_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let orphans = {
            let mut orphans = self.kernel.orphans();
            self.kernel.orphan_count.store(0, Ordering::Relaxed);
            std::mem::take(&mut *orphans)
        };
        for key in orphans {
            self.entries.borrow_mut().remove(key as usize);
        }
    }

    fn heed(&self, data: u64, flags: EventFlags) {
        let (generation, key) = ((data >> 32) as u32, data as u32 as usize);
        let (reader, writer) = match self.entries.borrow_mut().get_mut(key) {
            Some(entry) if entry.generation == generation => {
                entry.ready |= flags;
                let is_for = |side: Side| flags.intersects(side.all());
                (
                    entry.reader.take_if(|_| is_for(Side::Read)),
                    entry.writer.take_if(|_| is_for(Side::Write)),
                )
            }
            // It was closed meanwhile.
            _ => return,
        };
        reader.into_iter().for_each(Waker::wake);
        writer.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests;
