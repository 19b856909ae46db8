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
    /// Room for the next ones.
    events: Vec<epoll::Event>,
}

#[derive(Debug)]
struct Table {
    epoll: OwnedFd,
    entries: RefCell<Slab<Entry>>,
    /// Of the descriptor that came last.
    generation: Cell<u32>,
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
        let over = EventFlags::HUP | EventFlags::ERR;
        match self {
            Side::Read => self.passing() | EventFlags::RDHUP | over,
            Side::Write => self.passing() | over,
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
        let table = Rc::new(Table {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            entries: RefCell::default(),
            generation: Cell::new(0),
        });
        let before = TABLE.replace(Some(table.clone()));
        assert!(before.is_none(), "a thread has one poller");
        Ok(Poller {
            table,
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
        match epoll::wait(&self.table.epoll, room, timeout) {
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
        self.epoll.as_raw_fd()
    }
}

impl Table {
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
    key: u32,
}

impl<T: AsFd> Source<T> {
    /// Has this thread's poller watch a descriptor, which does not block.
    ///
    /// # Errors
    /// The kernel has no memory for it, or the user watches as many as he may.
    ///
    /// # Panics
    /// The thread has no poller.
    pub fn new(descriptor: T, interest: Interest) -> io::Result<Self> {
        let table = TABLE.with_borrow(Clone::clone);
        let table = table.expect("the thread has a poller");
        let generation = table.generation.get().wrapping_add(1);
        table.generation.set(generation);
        let key = table.entries.borrow_mut().insert(Entry {
            generation,
            ready: EventFlags::empty(),
            reader: None,
            writer: None,
        });
        let key = u32::try_from(key).expect("there are fewer descriptors");
        let data = EventData::new_u64(u64::from(generation) << 32 | u64::from(key));
        let place = Place { table, key };
        epoll::add(&place.table.epoll, &descriptor, data, interest.flags())?;
        Ok(Source { descriptor, place })
    }

    /// What is watched.
    pub fn get(&self) -> &T {
        &self.descriptor
    }

    /// Waits until there is something on a side, as far as is known. One task
    /// waits for each side: the one that polled last.
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
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
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

impl Place {
    fn with_entry<R>(&self, look: impl FnOnce(&mut Entry) -> R) -> R {
        look(&mut self.table.entries.borrow_mut()[self.key as usize])
    }
}

impl Drop for Place {
    /// The kernel forgets a descriptor that is closed; one that has copies
    /// elsewhere may have further events, which are nobody's.
    fn drop(&mut self) {
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
    fn says_whether_there_may_be_more() {
        let mut poller = poller();
        let watched: Vec<_> = (0..BATCH).map(|_| watched()).collect();
        assert!(poller.look(true).expect("a look"));
        assert!(!poller.look(true).expect("a look"));
        let all = watched.iter().all(|(it, _)| it.is_ready(Side::Write));
        assert!(all);
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
