//! Wakers that are numbers: to clone one, to drop it, and to wake its task from the
//! same thread takes no atomic operation.
//!
//! Shared by all threads: the list of sets, and of each set the tasks that other
//! threads woke.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::task::{RawWaker, RawWakerVTable, Waker};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::SET;

/// The part of a set that other threads use to wake its tasks.
#[derive(Debug)]
pub(super) struct RemoteWakes {
    woken: Mutex<Vec<Id>>,
    /// Wakes the thread of the tasks.
    event: OwnedFd,
}

/// All sets, for the wakers of other threads. The number of a set is its index.
static SETS: RwLock<Vec<Weak<RemoteWakes>>> = RwLock::new(Vec::new());

/// Registers a set; returns its number.
pub(super) fn register(elsewhere: &Arc<RemoteWakes>) -> u16 {
    let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
    let free = sets.iter().position(|it| it.strong_count() == 0);
    let number = free.unwrap_or(sets.len());
    if number == sets.len() {
        sets.push(Weak::new());
    }
    sets[number] = Arc::downgrade(elsewhere);
    u16::try_from(number).expect("there are fewer threads")
}

impl RemoteWakes {
    /// Nothing was woken.
    pub fn new() -> Result<Self, Errno> {
        Ok(RemoteWakes {
            woken: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn wake(&self, id: Id) {
        let is_first = {
            let mut woken = self.lock();
            woken.push(id);
            woken.len() == 1
        };
        // The thread may take the core at once, and would wait for the lock.
        if is_first {
            // It can't fail: the counter would have to overflow.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Takes the ids of woken tasks.
    pub fn take(&self) -> impl Iterator<Item = Id> + use<> {
        std::mem::take(&mut *self.lock()).into_iter()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Id>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for RemoteWakes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// The id of a task: the number of its set, its index there, and a generation, which
/// distinguishes it from earlier tasks at that index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(pub(super) usize);

impl Id {
    const INDEX_BITS: u32 = 24;
    const GENERATION_BITS: u32 = 24;
    pub const INDEX: usize = (1 << Self::INDEX_BITS) - 1;
    const GENERATION: usize = (1 << Self::GENERATION_BITS) - 1;

    pub fn new(set: u16, generation: u32, index: usize) -> Self {
        // Invariant: no index is cut off. A wake would be another task's.
        assert!(index <= Self::INDEX, "there are fewer descriptors");
        let generation = generation as usize & Self::GENERATION;
        let high = usize::from(set) << Self::GENERATION_BITS | generation;
        Id(high << Self::INDEX_BITS | index & Self::INDEX)
    }

    pub fn set(self) -> usize {
        self.0 >> (Self::GENERATION_BITS + Self::INDEX_BITS)
    }

    pub fn generation(self) -> u32 {
        (self.0 >> Self::INDEX_BITS & Self::GENERATION) as u32
    }

    pub fn index(self) -> usize {
        self.0 & Self::INDEX
    }

    /// A waker of the task. It holds nothing that needs a drop.
    pub fn waker(self) -> ManuallyDrop<Waker> {
        let data = std::ptr::without_provenance(self.0);
        // SAFETY: the functions of the table take `data` for the number that it
        // is; there is nothing to be kept or freed, and any thread may wake.
        ManuallyDrop::new(unsafe { Waker::new(data, &WAKER) })
    }

    pub fn wake(self) {
        // A thread that is ending has no set any more.
        let is_here = SET.try_with(|set| match &*set.borrow() {
            Some(set) if usize::from(set.number) == self.set() => {
                set.wake(self);
                true
            }
            _ => false,
        });
        if is_here != Ok(true) {
            self.wake_elsewhere();
        }
    }

    #[cold]
    fn wake_elsewhere(self) {
        let elsewhere = {
            let sets = SETS.read().unwrap_or_else(PoisonError::into_inner);
            sets.get(self.set()).and_then(Weak::upgrade)
        };
        // The tasks of a set that is gone are gone.
        if let Some(elsewhere) = elsewhere {
            elsewhere.wake(self);
        }
    }
}

/// A set's number and the two of its tasks fit into a pointer.
const _: () = assert!(usize::BITS >= u16::BITS + Id::GENERATION_BITS + Id::INDEX_BITS);

static WAKER: RawWakerVTable = RawWakerVTable::new(
    |data| RawWaker::new(data, &WAKER),
    |data| Id(data.addr()).wake(),
    |data| Id(data.addr()).wake(),
    |_| {},
);
