//! The tasks of a worker, and its event loop, which polls them in the order in which they are
//! woken. Tasks that wait on slow I/O, such as a disk, are polled after the others
//! ([`deprioritise`]).
//!
//! Among many tasks, in-flight exchanges are polled before new ones ([`begin_next`]). An
//! exchange that ends sooner is still in the caches, and fewer are in flight at once, here and
//! at the endpoints.
//!
//! With hundreds of exchanges in flight, a task's memory has left the near caches when the task
//! is polled again, and each access is a cache miss. So a task names the memory that it will
//! use ([`hint_prefetch`]). Among many tasks, that memory is prefetched while the task before
//! it runs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use slab::Slab;

use self::waker::{Id, RemoteWakes, register};
use crate::poller::{Interest, Poller, Side, Source};
use crate::prefetch::PrefetchHint;

mod waker;

/// Prefetch hints that a task can give.
pub const HINTS: usize = 7;

/// Tasks polled in a row before the event loop asks the kernel for events.
const POLLS_PER_TURN: usize = 64;

/// Most new exchanges that begin in a turn.
const BEGINNERS_PER_TURN: usize = 32;

/// Deprioritised tasks polled in a turn while no other task is ready, at least.
const DEPRIORITISED_PER_TURN: usize = 1;

/// While other tasks are always ready, one deprioritised task is polled for every so many
/// others.
const POLLS_PER_DEPRIORITISED: usize = 4;

/// Number of tasks above which memory is prefetched. With fewer tasks, their memory stays in
/// the nearest caches.
const PREFETCH_ABOVE: usize = 32;

/// Number of tasks above which in-flight exchanges come before new ones. With fewer, their
/// memory stays near in any order, and the order of their wakes is better by 1 to 3 %.
const PRIORITISE_ABOVE: usize = 192;

/// Operations on streams that one poll of a task may make: more than any exchange
/// needs at a time, and less than 10 ms of work.
const OPERATIONS: u32 = 128;

/// Bytes that are prefetched of a task itself.
const TASK_LEN: usize = 512;

/// The tasks of one thread. Each thread has one set at most.
#[derive(Debug)]
pub struct Tasks {
    set: Rc<Set>,
    /// Becomes readable when other threads have woken tasks. It is never read: each signal is
    /// an event of its own.
    calls: Source<Arc<RemoteWakes>>,
    poller: Poller,
}

/// A boxed and pinned task.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Debug)]
struct Set {
    number: u16,
    entries: RefCell<Slab<TaskEntry>>,
    /// Of the task that was spawned last.
    generation: Cell<u32>,
    /// Woken and not polled since, in order.
    ready: Queue,
    /// Ids of tasks that begin an exchange, among many tasks.
    beginning: Queue,
    /// Ids of tasks that wait on slow I/O.
    deprioritised: Queue,
    /// Polls of other tasks while deprioritised ones were ready.
    polls_before: Cell<usize>,
    /// The one being polled.
    present: Cell<Option<Id>>,
}

/// Ids of the tasks to poll, in order.
type Queue = RefCell<VecDeque<Id>>;

struct TaskEntry {
    generation: u32,
    is_ready: bool,
    next_queue: Cell<NextQueue>,
    /// `None` while it is polled.
    task: Option<Task>,
    /// The task's own memory. The hint is made before the first poll: from then on the task may
    /// refer to itself, so nothing else may refer to its contents.
    whole: PrefetchHint,
    hints: Hints,
}

/// The memory that a task uses when it goes on.
type Hints = [PrefetchHint; HINTS];

/// The queue that a task joins when it is woken next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum NextQueue {
    #[default]
    Ready,
    /// New exchanges, when there are many tasks.
    Beginning,
    /// The queue of deprioritised tasks, for the next `wakes` wakes; at least one.
    Deprioritised { wakes: u8 },
}

thread_local! {
    static SET: RefCell<Option<Rc<Set>>> = const { RefCell::new(None) };
    /// Operations on streams that are left in this poll.
    static OPERATIONS_LEFT: Cell<u32> = const { Cell::new(OPERATIONS) };
    /// The hints of the task being polled.
    static HINTS_OF_PRESENT: Cell<Hints> = const { Cell::new([PrefetchHint::NONE; HINTS]) };
}

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
        let elsewhere = Arc::new(RemoteWakes::new()?);
        let calls = Source::new(elsewhere.clone(), Interest::Read)?;
        let set = Rc::new(Set {
            number: register(&elsewhere),
            entries: RefCell::default(),
            generation: Cell::new(0),
            ready: Queue::default(),
            beginning: Queue::default(),
            deprioritised: Queue::default(),
            polls_before: Cell::new(0),
            present: Cell::new(None),
        });
        let before = SET.replace(Some(set.clone()));
        assert!(before.is_none(), "a thread has one set of tasks");
        Ok(Tasks { set, calls, poller })
    }

    /// Runs `main` to its end as one of the tasks, together with the others. Tasks that are
    /// left then are dropped.
    ///
    /// # Errors
    /// The kernel lacks memory for events.
    ///
    /// # Panics
    /// `main` panics.
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

impl Drop for Tasks {
    fn drop(&mut self) {
        SET.take();
        // They may wake each other meanwhile.
        let entries = std::mem::take(&mut *self.set.entries.borrow_mut());
        drop(entries);
    }
}

/// Spawns a task in this thread's set. A panic ends only that task. Returns the task's slot,
/// which another task may get after the task has ended.
///
/// # Panics
/// The thread has no set.
pub fn spawn(task: impl Future<Output = ()> + 'static) -> TaskSlot {
    spawn_boxed(Box::pin(task))
}

/// The same for a task that is already boxed.
///
/// # Panics
/// The thread has no set.
pub fn spawn_boxed(task: Task) -> TaskSlot {
    SET.with_borrow(|set| {
        let set = set.as_ref().expect("the thread has a set of tasks");
        set.spawn(task)
    })
}

/// The place of a task in this thread's set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskSlot(u32);

impl TaskSlot {
    /// No task's.
    pub const NONE: TaskSlot = TaskSlot(u32::MAX);

    /// Wakes the task at this slot of the current thread's set, if there is one.
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

/// Prefetches the first `most` bytes of `value` before this task is next polled. `hint` is
/// below [`HINTS`]; the next value under the same hint replaces it. No effect in tasks of other
/// runtimes.
pub fn hint_prefetch<T: ?Sized>(hint: usize, value: &T, most: usize) {
    HINTS_OF_PRESENT.with(|hints| {
        hints.as_array_of_cells()[hint].set(PrefetchHint::of(value, most));
    });
}

/// Takes back this task's prefetch hints from `first` on.
pub fn clear_prefetch_from(first: usize) {
    HINTS_OF_PRESENT.with(|hints| {
        for hint in &hints.as_array_of_cells()[first..] {
            hint.set(PrefetchHint::NONE);
        }
    });
}

/// To be polled before each operation on a stream. After `OPERATIONS` of them in one poll of
/// the task it is pending, with the task woken.
///
/// Invariant: a loop over streams ends its poll within a bounded amount of work, even between
/// peers that never block it. Other tasks then get their turn, and its own deadline is checked.
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
    // In a task of another runtime, only this starts the count of its next poll.
    if !is_of_a_set {
        OPERATIONS_LEFT.set(OPERATIONS);
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Says that this task begins an exchange when it is woken next. Of no effect in tasks
/// of other kinds, and while it is deprioritised.
pub fn begin_next() {
    tell_present(|entry| {
        if entry.next_queue.get() == NextQueue::Ready {
            entry.next_queue.set(NextQueue::Beginning);
        }
    });
}

/// Polls this task after the others, the next `wakes` times that it is woken. No effect in
/// tasks of other runtimes.
pub fn deprioritise(wakes: u8) {
    tell_present(|entry| {
        entry.next_queue.set(match wakes {
            0 => NextQueue::Ready,
            wakes => NextQueue::Deprioritised { wakes },
        });
    });
}

/// Notes something of the task that is being polled, if this thread has one.
fn tell_present(note: impl FnOnce(&TaskEntry)) {
    SET.with_borrow(|set| {
        if let Some(set) = set
            && let Some(present) = set.present.get()
        {
            note(&set.entries.borrow()[present.index()]);
        }
    });
}

impl Set {
    fn spawn(&self, task: Task) -> TaskSlot {
        let generation = self.generation.get().wrapping_add(1);
        self.generation.set(generation);
        let id = {
            let mut entries = self.entries.borrow_mut();
            let slot = entries.vacant_entry();
            let id = Id::new(self.number, generation, slot.key());
            slot.insert(TaskEntry {
                generation: id.generation(),
                is_ready: false,
                next_queue: Cell::default(),
                whole: PrefetchHint::of(&*task, TASK_LEN),
                task: Some(task),
                hints: [PrefetchHint::NONE; HINTS],
            });
            id
        };
        self.wake(id);
        TaskSlot(id.index() as u32)
    }

    /// To be called in the set's thread.
    fn wake(&self, id: Id) {
        let mut entries = self.entries.borrow_mut();
        let are_many = entries.len() > PRIORITISE_ABOVE;
        let queue = match entries.get_mut(id.index()) {
            Some(entry) if entry.generation == id.generation() && !entry.is_ready => {
                entry.is_ready = true;
                match entry.next_queue.take() {
                    NextQueue::Deprioritised { wakes } => {
                        if wakes > 1 {
                            let wakes = wakes - 1;
                            entry.next_queue.set(NextQueue::Deprioritised { wakes });
                        }
                        &self.deprioritised
                    }
                    NextQueue::Beginning if are_many => &self.beginning,
                    NextQueue::Beginning | NextQueue::Ready => &self.ready,
                }
            }
            // The task is already in the queue, or has ended.
            _ => return,
        };
        queue.borrow_mut().push_back(id);
    }

    fn is_busy(&self) -> bool {
        let queues = [&self.ready, &self.beginning, &self.deprioritised];
        queues.iter().any(|queue| !queue.borrow().is_empty())
    }

    /// Polls tasks that are ready, each once at most; then some that begin an
    /// exchange, and some that are deprioritised.
    fn turn(&self) {
        let mut polled = self.poll_first(&self.ready, POLLS_PER_TURN);
        polled += self.poll_first(&self.beginning, BEGINNERS_PER_TURN);
        if self.deprioritised.borrow().is_empty() {
            return;
        }
        let before = self.polls_before.get() + polled;
        let share = before / POLLS_PER_DEPRIORITISED;
        let others_rest = self.ready.borrow().is_empty() && self.beginning.borrow().is_empty();
        let most = if others_rest {
            share.max(DEPRIORITISED_PER_TURN)
        } else {
            share
        };
        let polled = self.poll_first(&self.deprioritised, most);
        let are_all_polled = self.deprioritised.borrow().is_empty();
        self.polls_before.set(if are_all_polled {
            0
        } else {
            before.saturating_sub(polled * POLLS_PER_DEPRIORITISED)
        });
    }

    /// Polls the first tasks of a queue: at most `most`, and each at most once. Returns how
    /// many.
    fn poll_first(&self, queue: &Queue, most: usize) -> usize {
        let count = queue.borrow().len().min(most);
        let are_many = self.entries.borrow().len() > PREFETCH_ABOVE;
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
                HINTS_OF_PRESENT.set(entry.hints);
                entry.task.take()
            }
            // It was ready and ended all the same.
            _ => None,
        };
        let Some(mut task) = task else { return };
        self.present.set(Some(id));
        OPERATIONS_LEFT.set(OPERATIONS);
        let waker = id.waker();
        let cx = &mut Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx)));
        self.present.set(None);
        if let Ok(Poll::Pending) = polled {
            let entry = &mut self.entries.borrow_mut()[id.index()];
            entry.task = Some(task);
            entry.hints = HINTS_OF_PRESENT.get();
        } else {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            self.entries.borrow_mut().remove(id.index());
        }
    }
}

impl TaskEntry {
    fn fetch(&self) {
        self.whole.fetch();
        for hint in self.hints {
            hint.fetch();
        }
    }
}

impl std::fmt::Debug for TaskEntry {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("TaskEntry")
            .field("is_ready", &self.is_ready)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
