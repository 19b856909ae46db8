//! What the kernel says of the descriptors that a thread waits for (epoll(7),
//! edge-triggered).
//!
//! What is known of a descriptor is a few words in a table, beside those of the
//! others: a runtime that is made for many threads keeps each on cache lines of
//! its own, which are no longer near when the next event comes.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use slab::Slab;
use tokio::io::Interest as TokioInterest;
use tokio::io::unix::AsyncFd;

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
    entries: RefCell<Slab<Entry>>,
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
struct Entry {
    /// Tells it from those that had its place before: events of theirs may be
    /// under way.
    generation: u32,
    ready: EventFlags,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What is waited for.
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
    /// What can be read, or accepted.
    Read,
    /// Room for what is written.
    Write,
}

impl Side {
    /// What comes and goes.
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

    /// Takes news from the kernel, and wakes who waits for them. Where there are
    /// none, it waits, unless `is_busy`. Whether there may be more.
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

    /// Looks for news whenever there are some, for ever: in threads of which
    /// another runtime polls the tasks.
    ///
    /// # Errors
    /// As [`look`](Self::look), or the runtime can't take it.
    ///
    /// # Cancellation
    /// Nothing is looked for any more.
    pub async fn serve(mut self) -> io::Result<()> {
        let table = self.table.clone();
        // SAFETY: the table's descriptor is the same as long as it is owned.
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

/// A descriptor that a thread waits for.
#[derive(Debug)]
pub struct Source<T: AsFd> {
    descriptor: T,
    place: Place,
}

/// A descriptor's place in the table.
#[derive(Debug)]
struct Place {
    table: Rc<Table>,
    /// `NOWHERE` where another has taken the place over.
    key: u32,
}

/// No place.
const NOWHERE: u32 = u32::MAX;

impl<T: AsFd> Source<T> {
    /// Has this thread's poller watch a descriptor, which does not block.
    ///
    /// # Errors
    /// The kernel has no memory for it, or the user watches as many as he may.
    ///
    /// # Panics
    /// The thread has no poller.
    pub fn new(descriptor: T, interest: Interest) -> io::Result<Self> {
        let table = Table::of_this_thread().expect("the thread has a poller");
        table.free_orphans();
        let generation = table.generation.get().wrapping_add(1);
        table.generation.set(generation);
        let key = table.entries.borrow_mut().insert(Entry {
            generation,
            ready: EventFlags::empty(),
            reader: None,
            writer: None,
        });
        let key = u32::try_from(key).expect("there are fewer descriptors");
        assert_ne!(key, NOWHERE, "there are fewer descriptors");
        let data = EventData::new_u64(u64::from(generation) << 32 | u64::from(key));
        let place = Place { table, key };
        epoll::add(
            &place.table.kernel.epoll,
            &descriptor,
            data,
            interest.flags(),
        )?;
        Ok(Source { descriptor, place })
    }

    /// Lets go of it without a system call: it stays watched by this thread, and
    /// any thread may take it on. Whoever waits for it is not woken any more.
    pub fn detach(self) -> Detached<T> {
        self.forget_waiters();
        let Place { table, key } = &self.place;
        let left = LeftPlace {
            kernel: table.kernel.clone(),
            key: *key,
        };
        let Source {
            descriptor,
            mut place,
        } = self;
        place.key = NOWHERE;
        Detached { descriptor, left }
    }

    /// What is watched.
    pub fn get(&self) -> &T {
        &self.descriptor
    }

    /// Has another task wait for it from now on. A task that waits for it is not
    /// woken any more.
    pub fn forget_waiters(&self) {
        self.place.with_entry(|entry| {
            entry.reader = None;
            entry.writer = None;
        });
    }

    /// Waits until there is something on a side, as far as is known.
    ///
    /// Invariant: one task waits for each side. A second one would take the first
    /// one's wake, which then waits for ever.
    ///
    /// # Panics
    /// Another task waits for the side.
    pub fn poll_ready(&self, cx: &Context<'_>, side: Side) -> Poll<()> {
        self.place.with_entry(|entry| {
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
        self.place.with_entry(|entry| {
            if entry.ready.intersects(OVER) {
                return Poll::Ready(());
            }
            match &mut entry.reader {
                Some(waker) => waker.clone_from(cx.waker()),
                reader => *reader = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
    }

    /// Whether there is something on a side, as far as is known.
    pub fn is_ready(&self, side: Side) -> bool {
        self.place
            .with_entry(|entry| entry.ready.intersects(side.all()))
    }

    /// All was taken that is there now. That the peer has ended, or all is over,
    /// is known still: it is said once.
    pub fn note_drained(&self, side: Side) {
        self.place
            .with_entry(|entry| entry.ready.remove(side.passing()));
    }

    /// The kernel has said that there is nothing.
    pub fn note_blocked(&self, side: Side) {
        self.place
            .with_entry(|entry| entry.ready.remove(side.all()));
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
    // Closed before its entry is free, so that nothing is said of it after that.
    descriptor: T,
    left: LeftPlace,
}

/// A place in the table of a thread, perhaps of another.
#[derive(Debug)]
struct LeftPlace {
    kernel: Arc<KernelSet>,
    /// `NOWHERE` where another has taken the place over.
    key: u32,
}

impl<T: AsFd> Detached<T> {
    /// Whether this thread watches it.
    pub fn is_of_this_thread(&self) -> bool {
        self.left.own_table().is_some()
    }

    /// Whether there is something to read, as far as this thread knows.
    pub fn is_known_ready(&self) -> bool {
        let table = self.left.own_table();
        table.is_some_and(|table| {
            let entry = &table.entries.borrow()[self.left.key as usize];
            entry.ready.intersects(Side::Read.all())
        })
    }

    /// Has this thread's poller watch it. Where it did so before, no system call
    /// is made, and what is known of it stays known. Else something may be there
    /// to read, until a look shows otherwise.
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
            let place = Place { table, key };
            return Ok(Source { descriptor, place });
        }
        epoll::delete(&left.kernel.epoll, &descriptor)?;
        drop(left);
        let source = Source::new(descriptor, Interest::ReadWrite)?;
        source
            .place
            .with_entry(|entry| entry.ready |= Side::Read.passing());
        Ok(source)
    }
}

impl<T: AsFd> AsFd for Detached<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl LeftPlace {
    /// The table, if it is this thread's.
    fn own_table(&self) -> Option<Rc<Table>> {
        let table = Table::of_this_thread()?;
        Arc::ptr_eq(&table.kernel, &self.kernel).then_some(table)
    }
}

impl Drop for LeftPlace {
    fn drop(&mut self) {
        let key = self.key;
        match self.own_table() {
            _ if key == NOWHERE => {}
            Some(table) => drop(Place { table, key }),
            None => self.kernel.leave_behind(key),
        }
    }
}

impl Place {
    fn with_entry<R>(&self, look: impl FnOnce(&mut Entry) -> R) -> R {
        look(&mut self.table.entries.borrow_mut()[self.key as usize])
    }
}

impl Drop for Place {
    /// The kernel forgets a descriptor that is closed; one that has copies
    /// elsewhere may have further events, which are nobody's.
    fn drop(&mut self) {
        if self.key == NOWHERE {
            return;
        }
        let entry = self.table.entries.borrow_mut().remove(self.key as usize);
        // Only now: with its wakers may go others of the table.
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use evenkeel_testkit::Wakes;

    use super::*;

    /// A socket that is watched, and its peer.
    fn watched() -> (Source<UnixStream>, UnixStream) {
        let (own, peer) = UnixStream::pair().expect("a pair of sockets");
        let source = Source::new(own, Interest::ReadWrite);
        (source.expect("there is room"), peer)
    }

    fn poller() -> Poller {
        Poller::of_this_thread().expect("there are descriptors")
    }

    fn is_ready<T: AsFd>(source: &Source<T>) -> [bool; 2] {
        [Side::Read, Side::Write].map(|side| source.is_ready(side))
    }

    #[test]
    fn knows_what_the_kernel_said_until_it_is_taken() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        assert_eq!(is_ready(&source), [false, false], "nobody has looked");
        poller.look(true).expect("a look");
        assert_eq!(is_ready(&source), [false, true]);
        peer.write_all(b"a").expect("it is sent");
        poller.look(false).expect("a look");
        assert_eq!(is_ready(&source), [true, true]);
        source.note_drained(Side::Read);
        source.note_drained(Side::Write);
        poller.look(true).expect("a look");
        assert_eq!(is_ready(&source), [false, false], "each is said once");
        peer.write_all(b"b").expect("it is sent");
        poller.look(false).expect("a look");
        assert!(source.is_ready(Side::Read));
    }

    #[test]
    fn an_end_outlasts_what_came_with_it() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        peer.write_all(b"a").expect("it is sent");
        let end = peer.shutdown(std::net::Shutdown::Write);
        end.expect("it ends");
        poller.look(false).expect("a look");
        source.note_drained(Side::Read);
        assert!(source.is_ready(Side::Read));
        source.note_blocked(Side::Read);
        assert!(!source.is_ready(Side::Read));
    }

    #[test]
    fn events_of_a_socket_that_went_are_nobody_s() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        // The kernel goes on watching what has a copy.
        let _copy = source.get().try_clone().expect("a copy");
        drop(source);
        let (next, _its_peer) = watched();
        peer.write_all(b"a").expect("it is sent");
        poller.look(true).expect("a look");
        assert_eq!(next.place.key, 0, "it has the place");
        assert_eq!(is_ready(&next), [false, true]);
    }

    #[test]
    fn a_detached_one_stays_known_to_its_thread() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        poller.look(true).expect("a look");
        let detached = source.detach();
        assert!(detached.is_of_this_thread() && !detached.is_known_ready());
        peer.write_all(b"a").expect("it is sent");
        poller.look(false).expect("a look");
        assert!(detached.is_known_ready());
        let source = detached.attach().expect("it stays where it is");
        assert_eq!(source.place.key, 0);
        assert_eq!(is_ready(&source), [true, true]);
        drop(source.detach());
        assert!(poller.table.entries.borrow().is_empty());
    }

    #[test]
    fn a_detached_one_goes_to_another_thread_and_leaves_nothing() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        let (other, _its_peer) = watched();
        poller.look(true).expect("a look");
        let [moving, closing] = [source, other].map(Source::detach);
        let moved = std::thread::spawn(move || {
            let mut poller = self::poller();
            assert!(!moving.is_of_this_thread() && !moving.is_known_ready());
            let source = moving.attach().expect("there is room");
            assert!(source.is_ready(Side::Read), "until a look shows otherwise");
            source.note_blocked(Side::Read);
            peer.write_all(b"a").expect("it is sent");
            poller.look(false).expect("a look");
            assert_eq!(is_ready(&source), [true, true]);
            // Without a poller there is nobody to tell.
            drop(closing);
            let detached = source.detach();
            drop(poller);
            (detached, peer)
        });
        let (back, mut peer) = moved.join().expect("it succeeds");
        // Nothing is said here of what moved away, and both places are free.
        assert!(!poller.look(true).expect("a look") && poller.events.is_empty());
        let (next, _its_peer) = watched();
        assert_eq!(poller.table.entries.borrow().len(), 1);
        // The thread that it comes from has ended.
        let back = back.attach().expect("there is room");
        back.note_blocked(Side::Read);
        peer.write_all(b"b").expect("it is sent");
        poller.look(false).expect("a look");
        assert_eq!(is_ready(&back), [true, true]);
        assert_eq!(is_ready(&next), [false, true]);
    }

    #[test]
    fn an_end_of_both_sides_is_told_from_that_of_one() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        peer.write_all(b"a").expect("it is sent");
        let end = peer.shutdown(std::net::Shutdown::Write);
        end.expect("it ends");
        poller.look(false).expect("a look");
        let (wakes, waker) = Wakes::of_new_waker();
        let cx = Context::from_waker(&waker);
        assert!(source.poll_over(&cx).is_pending());
        drop(peer);
        poller.look(false).expect("a look");
        assert_eq!(wakes.count(), 1);
        assert!(source.poll_over(&cx).is_ready());
        assert!(source.is_ready(Side::Read), "what came before can be read");
    }

    #[test]
    fn says_whether_there_may_be_more() {
        let mut poller = poller();
        let watched: Vec<_> = (0..BATCH).map(|_| watched()).collect();
        assert!(poller.look(true).expect("a look"));
        assert!(!poller.look(true).expect("a look"));
        let all = watched.iter().all(|(it, _)| it.is_ready(Side::Write));
        assert!(all);
    }

    #[test]
    fn a_second_waiter_does_not_take_the_place_of_the_first() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        let wakers = [Wakes::of_new_waker(), Wakes::of_new_waker()];
        let [(first, first_waker), (second, second_waker)] = wakers;
        let wait = |waker: &Waker, side| {
            let cx = Context::from_waker(waker);
            assert!(source.poll_ready(&cx, side).is_pending());
        };
        let is_refused = |waker: &Waker, side| {
            let wait = std::panic::AssertUnwindSafe(|| wait(waker, side));
            std::panic::catch_unwind(wait).is_err()
        };
        wait(&first_waker, Side::Read);
        wait(&second_waker, Side::Write);
        assert!(is_refused(&second_waker, Side::Read) && is_refused(&first_waker, Side::Write));
        source.forget_waiters();
        wait(&second_waker, Side::Read);
        assert!(is_refused(&first_waker, Side::Read));
        peer.write_all(b"a").expect("it is sent");
        poller.look(false).expect("a look");
        assert_eq!((first.count(), second.count()), (0, 1));
    }

    #[test]
    fn wakes_who_waits_for_the_side() {
        let mut poller = poller();
        let (source, mut peer) = watched();
        poller.look(true).expect("a look");
        let (wakes, waker) = Wakes::of_new_waker();
        let cx = Context::from_waker(&waker);
        assert!(source.poll_ready(&cx, Side::Write).is_ready());
        for _ in 0..2 {
            assert!(source.poll_ready(&cx, Side::Read).is_pending());
        }
        peer.write_all(b"a").expect("it is sent");
        poller.look(false).expect("a look");
        assert_eq!(wakes.count(), 1);
        assert!(source.poll_ready(&cx, Side::Read).is_ready());
    }
}
