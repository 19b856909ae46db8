//! Descriptors that a thread's poller watches, and those on their way from one thread
//! to another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Interest, KernelSet, OVER, Side, Table, Watched};

/// A descriptor that a thread waits for.
#[derive(Debug)]
pub struct Source<T: AsFd> {
    descriptor: T,
    pub(super) slot: TableSlot,
}

/// A descriptor's place in the table.
#[derive(Debug)]
pub(super) struct TableSlot {
    table: Rc<Table>,
    /// `NOWHERE` where another has taken the place over.
    pub(super) key: u32,
}

/// No place.
const NOWHERE: u32 = u32::MAX;

impl<T: AsFd> Source<T> {
    /// Makes this thread's poller watch a non-blocking descriptor.
    ///
    /// # Errors
    /// The kernel has no memory for it, or the user's limit of watches is reached.
    ///
    /// # Panics
    /// The thread has no poller.
    pub fn new(descriptor: T, interest: Interest) -> io::Result<Self> {
        let table = Table::of_this_thread().expect("the thread has a poller");
        table.free_orphans();
        let generation = table.generation.get().wrapping_add(1);
        table.generation.set(generation);
        let key = table.entries.borrow_mut().insert(Watched {
            generation,
            ready: EventFlags::empty(),
            reader: None,
            writer: None,
        });
        let key = u32::try_from(key).expect("there are fewer descriptors");
        assert_ne!(key, NOWHERE, "there are fewer descriptors");
        let data = EventData::new_u64(u64::from(generation) << 32 | u64::from(key));
        let slot = TableSlot { table, key };
        epoll::add(
            &slot.table.kernel.epoll,
            &descriptor,
            data,
            interest.flags(),
        )?;
        Ok(Source { descriptor, slot })
    }

    /// Makes the kernel forget the descriptor. Otherwise open copies of it would keep waking
    /// this thread.
    pub fn unwatch(&self) {
        // The descriptor is closed next in any case.
        let _ = epoll::delete(&self.slot.table.kernel.epoll, &self.descriptor);
    }

    /// Detaches the descriptor without a system call. This thread still watches it, and any
    /// thread may attach it. Tasks that wait for it are not woken any more.
    pub fn detach(self) -> Detached<T> {
        self.forget_waiters();
        let TableSlot { table, key } = &self.slot;
        let left = LeftSlot {
            kernel: table.kernel.clone(),
            key: *key,
        };
        let Source {
            descriptor,
            mut slot,
        } = self;
        slot.key = NOWHERE;
        Detached { descriptor, left }
    }

    /// The watched descriptor.
    pub fn get(&self) -> &T {
        &self.descriptor
    }

    /// Has another task wait for it from now on. A task that waits for it is not
    /// woken any more.
    pub fn forget_waiters(&self) {
        self.slot.with_entry(|entry| {
            entry.reader = None;
            entry.writer = None;
        });
    }

    /// Waits until a side is ready, as far as is known.
    ///
    /// Invariant: one task waits for each side. A second task would replace the waker of the
    /// first one, which would then wait for ever.
    ///
    /// # Panics
    /// Another task waits for the side.
    pub fn poll_ready(&self, cx: &Context<'_>, side: Side) -> Poll<()> {
        self.slot.with_entry(|entry| {
            if entry.ready.intersects(side.all()) {
                return Poll::Ready(());
            }
            let waker = match side {
                Side::Read => &mut entry.reader,
                Side::Write => &mut entry.writer,
            };
            match waker {
                Some(waker) => {
                    // `will_wake` may say no for one task: a vtable has several places.
                    let is_same = waker.data() == cx.waker().data();
                    assert!(is_same, "another task waits for this side");
                }
                None => *waker = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
    }

    /// Waits until all is over: the peer has reset the connection, or both sides have
    /// ended. Wakes the task that waits to read at whatever comes, and takes its
    /// place.
    pub fn poll_over(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll_any(cx, OVER)
    }

    /// Waits until the peer sends nothing more; wakes as
    /// [`poll_over`](Self::poll_over) does.
    pub fn poll_ended(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll_any(cx, EventFlags::RDHUP | OVER)
    }

    fn poll_any(&self, cx: &Context<'_>, flags: EventFlags) -> Poll<()> {
        self.slot.with_entry(|entry| {
            if entry.ready.intersects(flags) {
                return Poll::Ready(());
            }
            match &mut entry.reader {
                Some(waker) => waker.clone_from(cx.waker()),
                reader => *reader = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
    }

    /// Whether both directions have ended, or the connection failed to open, as far as is
    /// known.
    pub fn is_over(&self) -> bool {
        self.slot.with_entry(|entry| entry.ready.intersects(OVER))
    }

    /// Whether a side is ready, as far as is known.
    pub fn is_ready(&self, side: Side) -> bool {
        self.slot
            .with_entry(|entry| entry.ready.intersects(side.all()))
    }

    /// Notes that a side is drained for now. An end of the peer, or of the connection, stays
    /// known: the kernel reports it only once.
    pub fn note_drained(&self, side: Side) {
        self.slot
            .with_entry(|entry| entry.ready.remove(side.passing()));
    }

    /// The kernel has said that there is nothing.
    pub fn note_blocked(&self, side: Side) {
        self.slot.with_entry(|entry| entry.ready.remove(side.all()));
    }
}

impl<T: AsFd> AsFd for Source<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A descriptor that no task waits for, on its way from one to another, perhaps
/// on another thread.
#[derive(Debug)]
pub struct Detached<T: AsFd> {
    // Closed before its entry is freed, so that no event refers to it afterwards.
    descriptor: T,
    left: LeftSlot,
}

/// A place in the table of a thread, perhaps of another.
#[derive(Debug)]
struct LeftSlot {
    kernel: Arc<KernelSet>,
    /// `NOWHERE` where another has taken the place over.
    pub(super) key: u32,
}

impl<T: AsFd> Detached<T> {
    /// Whether this thread watches it.
    pub fn is_of_this_thread(&self) -> bool {
        self.left.own_table().is_some()
    }

    /// Whether there is something to read, as far as this thread knows.
    pub fn is_known_ready(&self) -> bool {
        self.has_known(Side::Read.all())
    }

    /// Whether the peer sends nothing more, as far as this thread knows.
    pub fn is_known_ended(&self) -> bool {
        self.has_known(EventFlags::RDHUP | OVER)
    }

    fn has_known(&self, flags: EventFlags) -> bool {
        let table = self.left.own_table();
        table.is_some_and(|table| {
            let entry = &table.entries.borrow()[self.left.key as usize];
            entry.ready.intersects(flags)
        })
    }

    /// Attaches the descriptor to this thread's poller. If it was attached here before, that
    /// needs no system call, and its readiness stays known. Otherwise it counts as readable
    /// until a read shows the opposite.
    ///
    /// # Errors
    /// As [`Source::new`]; the descriptor is closed.
    pub fn attach(self) -> io::Result<Source<T>> {
        let Detached {
            descriptor,
            mut left,
        } = self;
        if let Some(table) = left.own_table() {
            let key = std::mem::replace(&mut left.key, NOWHERE);
            let slot = TableSlot { table, key };
            return Ok(Source { descriptor, slot });
        }
        epoll::delete(&left.kernel.epoll, &descriptor)?;
        drop(left);
        let source = Source::new(descriptor, Interest::ReadWrite)?;
        source
            .slot
            .with_entry(|entry| entry.ready |= Side::Read.passing());
        Ok(source)
    }
}

impl<T: AsFd> AsFd for Detached<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl LeftSlot {
    /// The table, if it is this thread's.
    fn own_table(&self) -> Option<Rc<Table>> {
        let table = Table::of_this_thread()?;
        Arc::ptr_eq(&table.kernel, &self.kernel).then_some(table)
    }
}

impl Drop for LeftSlot {
    fn drop(&mut self) {
        let key = self.key;
        match self.own_table() {
            _ if key == NOWHERE => {}
            Some(table) => drop(TableSlot { table, key }),
            None => self.kernel.leave_behind(key),
        }
    }
}

impl TableSlot {
    fn with_entry<R>(&self, look: impl FnOnce(&mut Watched) -> R) -> R {
        look(&mut self.table.entries.borrow_mut()[self.key as usize])
    }
}

impl Drop for TableSlot {
    /// The kernel forgets a descriptor when it is closed. If copies of it exist elsewhere,
    /// further events may come; they are ignored.
    fn drop(&mut self) {
        if self.key == NOWHERE {
            return;
        }
        let entry = self.table.entries.borrow_mut().remove(self.key as usize);
        // Only now: with its wakers may go others of the table.
        drop(entry);
    }
}
