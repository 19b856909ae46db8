//! The tasks of a worker: its event loop, which polls them in the order in which
//! they are woken. Those of which it is known that they wait long anyway, such as
//! for a disk, come after the others ([`come_last`]).
//!
//! Where there are many, those that go on come before those that begin
//! ([`begin_next`]): what is finished sooner is still in the caches then, and
//! fewer exchanges are under way at once, here and at the endpoints.
//!
//! With hundreds of exchanges in flight, what one of them left behind when it
//! began to wait is in no near cache any more, and each piece that it looks at is
//! a wait of its own. Here a task names such pieces, and where there are many
//! tasks they are fetched while the one before it runs.
//!
//! A waker is a number: to clone one, to drop it, and to wake its task from the
//! same thread takes no atomic operation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;

use crate::poller::{Interest, Poller, Side, Source};
use crate::prefetch::Lines;

/// Pieces of memory that a task can name.
pub const PIECES: usize = 7;

/// Tasks polled in a row before the event loop looks for news.
const TURN: usize = 64;

/// Of those that begin something, so many are polled before the event loop looks
/// for others that go on.
const BEGINNING: usize = 32;

/// Of those that come last, so many are polled before the event loop looks for
/// others that come before them.
const LAST: usize = 1;

/// Where the others do not rest, one that comes last has its turn for so many of
/// theirs.
const LAST_SHARE: usize = 4;

/// Up to so many tasks leave what they look at in the nearest caches, and
/// nothing is fetched.
const FEW: usize = 32;

/// Above so many, those that begin something come after those that go on. With
/// fewer, what they look at stays near in any order, and that of their wakes is
/// the better one by 1 to 3 %.
const MANY: usize = 192;

/// Operations on streams that one poll of a task may make: more than any exchange
/// needs at a time, and less than 10 ms of work.
const OPERATIONS: u32 = 128;

/// What is fetched of a task itself, in bytes.
const TASK_LEN: usize = 512;

/// The tasks of one thread. Each thread has one set at most.
#[derive(Debug)]
pub struct Tasks {
    set: Rc<Set>,
    /// Has news when other threads have woken tasks. Never read: each signal is
    /// an event of its own.
    calls: Source<Arc<Elsewhere>>,
    poller: Poller,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Debug)]
struct Set {
    number: u16,
    entries: RefCell<Slab<Entry>>,
    /// Of the task that was spawned last.
    generation: Cell<u32>,
    /// Woken and not polled since, in order.
    ready: Queue,
    /// Of those the ones that begin something, where there are many tasks.
    beginning: Queue,
    /// Of those the ones that come last.
    last: Queue,
    /// Turns that others had while some that come last were waiting.
    before_last: Cell<usize>,
    /// The one being polled.
    present: Cell<Option<Id>>,
}

/// Tasks that are to be polled, in order.
type Queue = RefCell<VecDeque<Id>>;

struct Entry {
    generation: u32,
    is_ready: bool,
    /// Whether it begins something when it is woken next.
    begins_next: Cell<bool>,
    /// How often yet it comes last when it is woken.
    last_wakes: Cell<u8>,
    /// `None` while it is polled.
    task: Option<Task>,
    pieces: Pieces,
}

/// What a task looks at when it goes on.
type Pieces = [Lines; PIECES];

/// What other threads wake.
#[derive(Debug)]
struct Elsewhere {
    woken: Mutex<Vec<Id>>,
    /// By which the thread of the tasks learns of it.
    event: OwnedFd,
}

thread_local! {
    static SET: RefCell<Option<Rc<Set>>> = const { RefCell::new(None) };
    /// Operations on streams that are left in this poll.
    static OPERATIONS_LEFT: Cell<u32> = const { Cell::new(OPERATIONS) };
    /// Those of the task that is being polled.
    static PIECES_OF_PRESENT: Cell<Pieces> = const { Cell::new([Lines::NONE; PIECES]) };
}

/// Where the wakers of other threads find a set: its number is its index.
static SETS: RwLock<Vec<Weak<Elsewhere>>> = RwLock::new(Vec::new());

impl Tasks {
    /// The set of the current thread, without a task.
    ///
    /// # Errors
    /// The process is out of descriptors.
    ///
    /// # Panics
    /// The thread has one already, or a poller.
    pub fn of_this_thread() -> io::Result<Self> {
        let poller = Poller::of_this_thread()?;
        let elsewhere = Arc::new(Elsewhere {
            woken: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let calls = Source::new(elsewhere.clone(), Interest::Read)?;
        let set = Rc::new(Set {
            number: register(&elsewhere),
            entries: RefCell::default(),
            generation: Cell::new(0),
            ready: Queue::default(),
            beginning: Queue::default(),
            last: Queue::default(),
            before_last: Cell::new(0),
            present: Cell::new(None),
        });
        let before = SET.replace(Some(set.clone()));
        assert!(before.is_none(), "a thread has one set of tasks");
        Ok(Tasks { set, calls, poller })
    }

    /// Runs `main` to its end as one of the tasks, and the others meanwhile.
    /// Those that are left then are dropped.
    ///
    /// # Errors
    /// The kernel lacks memory to say what there is.
    ///
    /// # Panics
    /// `main` does.
    pub fn run_until<T: 'static>(
        mut self,
        main: impl Future<Output = T> + 'static,
    ) -> io::Result<T> {
        let outcome = Rc::new(Cell::new(None));
        let of_main = outcome.clone();
        self.set.spawn(Box::pin(async move {
            of_main.set(Some(main.await));
        }));
        loop {
            self.set.turn();
            // Its task holds the other one.
            if Rc::strong_count(&outcome) == 1 {
                return Ok(outcome.take().expect("the main task did not panic"));
            }
            self.poller.look(self.set.is_busy())?;
            if self.calls.is_ready(Side::Read) {
                self.calls.note_blocked(Side::Read);
                self.calls.get().take().for_each(|id| self.set.wake(id));
            }
        }
    }
}

/// Gives a set its number.
fn register(elsewhere: &Arc<Elsewhere>) -> u16 {
    let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
    let free = sets.iter().position(|it| it.strong_count() == 0);
    let number = free.unwrap_or(sets.len());
    if number == sets.len() {
        sets.push(Weak::new());
    }
    sets[number] = Arc::downgrade(elsewhere);
    u16::try_from(number).expect("there are fewer threads")
}

impl Drop for Tasks {
    fn drop(&mut self) {
        SET.take();
        // They may wake each other meanwhile.
        let entries = std::mem::take(&mut *self.set.entries.borrow_mut());
        drop(entries);
    }
}

/// Begins a task of this thread's set. One that panics ends, and no other. Gives
/// the task's place, which others have once the task has ended.
///
/// # Panics
/// The thread has no set.
pub fn spawn(task: impl Future<Output = ()> + 'static) -> Place {
    SET.with_borrow(|set| {
        let set = set.as_ref().expect("the thread has a set of tasks");
        set.spawn(Box::pin(task))
    })
}

/// Where a task is in this thread's set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// No task's.
    pub const NONE: Place = Place(u32::MAX);

    /// Wakes the task that has this place of the present thread's set, if there
    /// is one.
    pub fn wake(self) {
        SET.with_borrow(|set| {
            let Some(set) = set else { return };
            let id = match set.entries.borrow().get(self.0 as usize) {
                Some(entry) => Id::new(set.number, entry.generation, self.0 as usize),
                None => return,
            };
            set.wake(id);
        });
    }
}

/// Says that this task will look at `value`, at no more than its first `most`
/// bytes, whenever it goes on; until it says something else of this `piece`,
/// which is below [`PIECES`]. Nothing comes of it in tasks of other kinds.
pub fn will_look_at<T: ?Sized>(piece: usize, value: &T, most: usize) {
    PIECES_OF_PRESENT.with(|pieces| {
        pieces.as_array_of_cells()[piece].set(Lines::of(value, most));
    });
}

/// Says that this task will look at none of its pieces from `first` on, until it
/// says something of them again.
pub fn will_look_at_none_from(first: usize) {
    PIECES_OF_PRESENT.with(|pieces| {
        for piece in &pieces.as_array_of_cells()[first..] {
            piece.set(Lines::NONE);
        }
    });
}

/// To be asked before each operation on a stream: pending, with the task woken,
/// once this poll of it has made `OPERATIONS` of them.
///
/// Invariant: a loop over streams ends its poll within a bounded amount of work,
/// also between peers that never have it wait, so that other tasks have their turn
/// and its own deadline is looked at.
pub fn poll_operation(cx: &Context<'_>) -> Poll<()> {
    match OPERATIONS_LEFT.get().checked_sub(1) {
        Some(left) => {
            OPERATIONS_LEFT.set(left);
            Poll::Ready(())
        }
        None => yield_now(cx),
    }
}

#[cold]
fn yield_now(cx: &Context<'_>) -> Poll<()> {
    let is_of_a_set = SET.with_borrow(|set| {
        let present = set.as_ref().and_then(|set| set.present.get());
        present.is_some()
    });
    // Nobody else begins the next poll of a task that is of no set.
    if !is_of_a_set {
        OPERATIONS_LEFT.set(OPERATIONS);
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Says that this task begins something when it is woken next. Nothing comes of it
/// in tasks of other kinds.
pub fn begin_next() {
    tell_present(|entry| entry.begins_next.set(true));
}

/// Has this task come after the others the next `wakes` times that it is woken.
/// Nothing comes of it in tasks of other kinds.
pub fn come_last(wakes: u8) {
    tell_present(|entry| entry.last_wakes.set(wakes));
}

/// Notes something of the task that is being polled, if this thread has one.
fn tell_present(note: impl FnOnce(&Entry)) {
    SET.with_borrow(|set| {
        if let Some(set) = set
            && let Some(present) = set.present.get()
        {
            note(&set.entries.borrow()[present.index()]);
        }
    });
}

impl Set {
    fn spawn(&self, task: Task) -> Place {
        let generation = self.generation.get().wrapping_add(1);
        self.generation.set(generation);
        let id = {
            let mut entries = self.entries.borrow_mut();
            let place = entries.vacant_entry();
            let id = Id::new(self.number, generation, place.key());
            place.insert(Entry {
                generation: id.generation(),
                is_ready: false,
                begins_next: Cell::new(false),
                last_wakes: Cell::new(0),
                task: Some(task),
                pieces: [Lines::NONE; PIECES],
            });
            id
        };
        self.wake(id);
        Place(id.index() as u32)
    }

    /// To be called in the set's thread.
    fn wake(&self, id: Id) {
        let mut entries = self.entries.borrow_mut();
        let are_many = entries.len() > MANY;
        let queue = match entries.get_mut(id.index()) {
            Some(entry) if entry.generation == id.generation() && !entry.is_ready => {
                entry.is_ready = true;
                let begins = entry.begins_next.take();
                match entry.last_wakes.get().checked_sub(1) {
                    Some(left) => {
                        entry.last_wakes.set(left);
                        &self.last
                    }
                    None if begins && are_many => &self.beginning,
                    None => &self.ready,
                }
            }
            // It is ready already, or has ended.
            _ => return,
        };
        queue.borrow_mut().push_back(id);
    }

    fn is_busy(&self) -> bool {
        let queues = [&self.ready, &self.beginning, &self.last];
        queues.iter().any(|queue| !queue.borrow().is_empty())
    }

    /// Polls those that are ready, each once at most, and some of those that
    /// begin something, and of those that come last.
    fn turn(&self) {
        let mut polled = self.poll_first(&self.ready, TURN);
        polled += self.poll_first(&self.beginning, BEGINNING);
        if self.last.borrow().is_empty() {
            return;
        }
        let before = self.before_last.get() + polled;
        let share = before / LAST_SHARE;
        let others_rest = self.ready.borrow().is_empty() && self.beginning.borrow().is_empty();
        let most = match others_rest {
            true => share.max(LAST),
            false => share,
        };
        let polled = self.poll_first(&self.last, most);
        let left = before.saturating_sub(polled * LAST_SHARE);
        self.before_last.set(match self.last.borrow().is_empty() {
            true => 0,
            false => left,
        });
    }

    /// Polls the first of a queue, at most so many and each once at most; how
    /// many.
    fn poll_first(&self, queue: &Queue, most: usize) -> usize {
        let count = queue.borrow().len().min(most);
        let are_many = self.entries.borrow().len() > FEW;
        let next = || {
            let next = queue.borrow().front().copied();
            if let Some(next) = next
                && are_many
            {
                self.fetch(next);
            }
            next
        };
        let mut following = next();
        for polled in 0..count {
            let Some(id) = following else { return polled };
            queue.borrow_mut().pop_front();
            following = next();
            self.poll(id);
        }
        count
    }

    fn fetch(&self, id: Id) {
        if let Some(entry) = self.entries.borrow().get(id.index()) {
            entry.fetch();
        }
    }

    fn poll(&self, id: Id) {
        let task = match self.entries.borrow_mut().get_mut(id.index()) {
            Some(entry) if entry.generation == id.generation() => {
                entry.is_ready = false;
                PIECES_OF_PRESENT.set(entry.pieces);
                entry.task.take()
            }
            // It was ready and ended all the same.
            _ => None,
        };
        let Some(mut task) = task else { return };
        self.present.set(Some(id));
        OPERATIONS_LEFT.set(OPERATIONS);
        // There is nothing in it to be dropped.
        let waker = ManuallyDrop::new(id.waker());
        let cx = &mut Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx)));
        self.present.set(None);
        if let Ok(Poll::Pending) = polled {
            let entry = &mut self.entries.borrow_mut()[id.index()];
            entry.task = Some(task);
            entry.pieces = PIECES_OF_PRESENT.get();
        } else {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            self.entries.borrow_mut().remove(id.index());
        }
    }
}

impl Entry {
    fn fetch(&self) {
        if let Some(task) = &self.task {
            Lines::of(&**task, TASK_LEN).fetch();
        }
        for lines in self.pieces {
            lines.fetch();
        }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Entry")
            .field("is_ready", &self.is_ready)
            .finish_non_exhaustive()
    }
}

impl Elsewhere {
    fn wake(&self, id: Id) {
        let is_first = {
            let mut woken = self.lock();
            woken.push(id);
            woken.len() == 1
        };
        // The thread may take the core at once, and would wait for the lock.
        if is_first {
            // It can't fail: nobody can count as far as it does.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Takes what was woken.
    fn take(&self) -> impl Iterator<Item = Id> + use<> {
        std::mem::take(&mut *self.lock()).into_iter()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Id>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Elsewhere {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What a task is known by: the number of its set, its index there, and what
/// tells it from those that had the index before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id(usize);

impl Id {
    const INDEX_BITS: u32 = 24;
    const GENERATION_BITS: u32 = 24;
    const INDEX: usize = (1 << Self::INDEX_BITS) - 1;
    const GENERATION: usize = (1 << Self::GENERATION_BITS) - 1;

    fn new(set: u16, generation: u32, index: usize) -> Self {
        // Invariant: no index is cut off. A wake would be another task's.
        assert!(index <= Self::INDEX, "there are fewer descriptors");
        let generation = generation as usize & Self::GENERATION;
        let high = usize::from(set) << Self::GENERATION_BITS | generation;
        Id(high << Self::INDEX_BITS | index & Self::INDEX)
    }

    fn set(self) -> usize {
        self.0 >> (Self::GENERATION_BITS + Self::INDEX_BITS)
    }

    fn generation(self) -> u32 {
        (self.0 >> Self::INDEX_BITS & Self::GENERATION) as u32
    }

    fn index(self) -> usize {
        self.0 & Self::INDEX
    }

    fn waker(self) -> Waker {
        let data = std::ptr::without_provenance(self.0);
        // SAFETY: the functions of the table take `data` for the number that it
        // is; there is nothing to be kept or freed, and any thread may wake.
        unsafe { Waker::new(data, &WAKER) }
    }

    fn wake(self) {
        // A thread that ends has no set any more.
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::sync::{mpsc, oneshot};
    use tokio::task::yield_now;

    use super::*;
    use crate::timer_fd::TimerFd;

    /// Runs `test` as the main task of a set.
    fn with_tasks(test: impl Future<Output = ()> + 'static) {
        let tasks = Tasks::of_this_thread().expect("a set of tasks");
        let limited = tasks.run_until(async {
            let limit = TimerFd::new().expect("a timer");
            let time = Duration::from_secs(10);
            limit.set(time, Duration::ZERO).expect("it is set");
            tokio::select! {
                () = test => {}
                () = limit.expired() => panic!("it takes too long"),
            }
        });
        limited.expect("the event loop runs");
    }

    #[test]
    fn an_id_holds_every_index_whole() {
        let id = Id::new(u16::MAX, 0, Id::INDEX);
        assert_eq!(
            (id.index(), id.generation(), id.set()),
            (Id::INDEX, 0, 0xffff)
        );
        let beyond = std::panic::catch_unwind(|| Id::new(0, 0, Id::INDEX + 1));
        assert!(beyond.is_err());
    }

    #[test]
    fn a_loop_that_never_waits_gives_others_their_turn() {
        with_tasks(async {
            let is_over = Rc::new(Cell::new(false));
            let seen = is_over.clone();
            let mut operations = 0;
            let endless = poll_fn(move |cx| {
                let mut in_this_poll = 0;
                while !seen.get() {
                    if poll_operation(cx).is_pending() {
                        assert_eq!(in_this_poll, OPERATIONS);
                        return Poll::Pending;
                    }
                    in_this_poll += 1;
                    operations += 1;
                }
                Poll::Ready(operations)
            });
            spawn(async move {
                for _ in 0..10 {
                    yield_now().await;
                }
                is_over.set(true);
            });
            let operations = endless.await;
            assert!((OPERATIONS..=20 * OPERATIONS).contains(&operations));
        });
    }

    #[test]
    fn a_task_of_no_set_goes_on_after_its_turn() {
        let (wakes, waker) = evenkeel_testkit::wakes::Wakes::of_new_waker();
        let cx = &Context::from_waker(&waker);
        let made = (0..3 * OPERATIONS).filter(|_| poll_operation(cx).is_ready());
        assert!(made.count() > 2 * OPERATIONS as usize);
        assert_eq!(wakes.count(), 2);
    }

    /// Begins tasks that say their number each time they are polled, and are
    /// ready at the third. Gives what they say and their wakers.
    fn speakers(count: usize) -> (mpsc::UnboundedReceiver<usize>, Rc<RefCell<Vec<Waker>>>) {
        let (said, heard) = mpsc::unbounded_channel();
        let wakers = Rc::<RefCell<Vec<Waker>>>::default();
        for number in 0..count {
            let (said, wakers) = (said.clone(), wakers.clone());
            let mut polls = 0;
            spawn(poll_fn(move |cx| {
                said.send(number).expect("somebody listens");
                polls += 1;
                if polls == 1 {
                    wakers.borrow_mut().push(cx.waker().clone());
                }
                match polls {
                    3 => Poll::Ready(()),
                    _ => Poll::Pending,
                }
            }));
        }
        (heard, wakers)
    }

    /// Begins many tasks, more than have a turn between two looks, which are ready
    /// again whenever they were polled.
    fn spawn_restless() {
        const { assert!(MANY > TURN) };
        for _ in 0..MANY {
            spawn(poll_fn(|cx| {
                cx.waker().wake_by_ref();
                Poll::Pending
            }));
        }
    }

    async fn next(heard: &mut mpsc::UnboundedReceiver<usize>, count: usize) -> Vec<usize> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(heard.recv().await.expect("it is said"));
        }
        yield_now().await;
        assert!(heard.try_recv().is_err(), "no more than {all:?}");
        all
    }

    #[test]
    fn polls_in_the_order_of_wakes_and_once_for_several() {
        with_tasks(async {
            let (mut heard, wakers) = speakers(3);
            assert_eq!(next(&mut heard, 3).await, [0, 1, 2]);
            for task in [2, 0, 2, 0] {
                wakers.borrow()[task].wake_by_ref();
            }
            assert_eq!(next(&mut heard, 2).await, [2, 0]);
        });
    }

    /// Begins two tasks of which the first, once it is polled, does `at_first`.
    /// Gives in which order they are polled whenever both are woken, it first,
    /// between two turns.
    async fn orders<const COUNT: usize>(at_first: fn()) -> [[usize; 2]; COUNT] {
        let (said, mut heard) = mpsc::unbounded_channel();
        let wakers = Rc::<RefCell<Vec<Waker>>>::default();
        for number in 0..2 {
            let (said, wakers) = (said.clone(), wakers.clone());
            spawn(poll_fn(move |cx| {
                said.send(number).expect("somebody listens");
                if wakers.borrow().len() == number {
                    wakers.borrow_mut().push(cx.waker().clone());
                    if number == 0 {
                        at_first();
                    }
                }
                Poll::Pending
            }));
        }
        next(&mut heard, 2).await;
        let mut orders = [[0; 2]; COUNT];
        for order in &mut orders {
            let both = wakers.borrow().clone();
            let thread = std::thread::spawn(move || both.into_iter().for_each(Waker::wake));
            thread.join().expect("it wakes");
            order.copy_from_slice(&next(&mut heard, 2).await);
        }
        orders
    }

    #[test]
    fn who_comes_last_does_so_as_often_as_was_said() {
        with_tasks(async {
            assert_eq!(orders(|| come_last(2)).await, [[1, 0], [1, 0], [0, 1]]);
        });
    }

    #[test]
    fn among_many_who_begins_comes_once_after_who_goes_on() {
        with_tasks(async {
            assert_eq!(orders(begin_next).await, [[0, 1]]);
            for _ in 0..MANY {
                spawn(std::future::pending());
            }
            assert_eq!(orders(begin_next).await, [[1, 0], [0, 1]]);
        });
    }

    #[test]
    fn who_begins_has_a_turn_where_others_never_rest() {
        with_tasks(async {
            spawn_restless();
            for _ in 0..10 {
                begin_next();
                yield_now().await;
            }
        });
    }

    #[test]
    fn who_comes_last_has_a_turn_where_others_never_rest() {
        with_tasks(async {
            spawn_restless();
            for _ in 0..10 {
                come_last(1);
                yield_now().await;
            }
        });
    }

    #[test]
    fn wakes_from_other_threads() {
        with_tasks(async {
            let (mut heard, wakers) = speakers(2);
            assert_eq!(next(&mut heard, 2).await, [0, 1]);
            let theirs = wakers.borrow().clone();
            let thread =
                std::thread::spawn(move || theirs.iter().rev().for_each(Waker::wake_by_ref));
            assert_eq!(next(&mut heard, 2).await, [1, 0]);
            thread.join().expect("it wakes");
        });
    }

    #[test]
    fn a_waker_of_a_task_that_ended_wakes_none() {
        with_tasks(async {
            let (mut heard, wakers) = speakers(1);
            for _ in 0..2 {
                assert_eq!(next(&mut heard, 1).await, [0]);
                wakers.borrow()[0].wake_by_ref();
            }
            assert_eq!(next(&mut heard, 1).await, [0]);
            let old = wakers.borrow()[0].clone();
            // It gets the index of the one that ended.
            let (mut heard, wakers) = speakers(1);
            assert_eq!(next(&mut heard, 1).await, [0]);
            let index = |waker: &Waker| Id(waker.data().addr()).index();
            assert_eq!(index(&old), index(&wakers.borrow()[0]));
            old.wake_by_ref();
            let thread = std::thread::spawn(move || old.wake());
            thread.join().expect("it wakes none");
            next(&mut heard, 0).await;
        });
    }

    #[test]
    fn a_panic_ends_its_task_only() {
        with_tasks(async {
            let (reply, answer) = oneshot::channel();
            spawn(async { panic!("as the test wants it") });
            spawn(async { reply.send(7).expect("somebody listens") });
            assert_eq!(answer.await, Ok(7));
        });
    }

    #[test]
    fn tasks_that_never_rest_leave_room_for_others() {
        with_tasks(async {
            spawn_restless();
            // There is a look for news, and this task has its turn.
            let timer = TimerFd::new().expect("a timer");
            let time = Duration::from_millis(1);
            timer.set(time, Duration::ZERO).expect("it is set");
            timer.expired().await;
        });
    }

    #[test]
    fn what_is_left_is_dropped_with_the_set() {
        let held = Rc::new(());
        let waker = Rc::<RefCell<Option<Waker>>>::default();
        let (theirs, its_waker) = (held.clone(), waker.clone());
        with_tasks(async {
            let (reply, answer) = oneshot::channel();
            let (held, waker) = (theirs, its_waker);
            let mut reply = Some(reply);
            spawn(poll_fn(move |cx| {
                let _still_there = &held;
                *waker.borrow_mut() = Some(cx.waker().clone());
                reply.take().map(|it| it.send(()));
                Poll::Pending
            }));
            answer.await.expect("it was polled");
        });
        assert_eq!(Rc::strong_count(&held), 1);
        waker.take().expect("it was polled").wake();
    }

    #[test]
    fn pieces_are_named_in_any_task() {
        let value = [0_u8; 1000];
        will_look_at(0, &value, 64);
        with_tasks(async move {
            let (reply, answer) = oneshot::channel();
            spawn(async move {
                for piece in 0..PIECES {
                    will_look_at(piece, &value, usize::MAX);
                }
                yield_now().await;
                reply.send(value[0]).expect("somebody listens");
            });
            assert_eq!(answer.await, Ok(0));
        });
    }
}
