//! Work that waits for a disk.
//!
//! Each device has one queue, which bounds the work in flight at the device. The queue's threads
//! do blocking work. Other work is started by the thread that grants its turn, and reports its
//! end by [`StartedWork::finish`]. Requests for work that is already under way share its result:
//! one read serves many waiters. The queue is bounded in length and in expected wait
//! ([`Admission`]); beyond these bounds it refuses work at once.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use evenkeel_policy::admission::{Admission, Bounds};
use tokio::sync::oneshot;

use super::figures::IoCounters;
use crate::scheduling::{ask_for_short_slices_in_turn, step_back};

/// A queue, and its threads; they end when it is dropped.
#[derive(Debug)]
pub struct IoQueue<K: Key, T: Product> {
    shared: Arc<Shared<K, T>>,
}

/// Identifies a piece of work: equal keys share one result.
pub trait Key: Hash + Eq + Clone + Send + 'static {}

impl<K: Hash + Eq + Clone + Send + 'static> Key for K {}

/// The result of a piece of work. Each waiter gets a clone.
pub trait Product: Clone + Send + 'static {}

impl<T: Clone + Send + 'static> Product for T {}

/// How full a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Pieces of work in the queue.
    pub waiting: usize,
    /// Pieces of work that have started and not ended.
    pub in_flight: usize,
}

/// How a full queue treats new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Refuse it.
    Refuse,
    /// Admit it: it belongs to an answer that has begun.
    Admit,
}

/// The queue did not admit the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// How a piece of work starts when its turn comes. It ends with [`StartedWork::finish`], which any
/// thread may call.
pub enum Work<K: Key, T: Product> {
    /// A thread of the queue runs it.
    Blocking(Begin<K, T>),
    /// The thread that grants the turn starts it, and does not block. Work that can't start this
    /// way is returned, and goes to a thread of the queue.
    Prompt(TryBegin<K, T>),
}

impl<K: Key, T: Product> Work<K, T> {
    /// Work that a thread of the queue does from start to end.
    pub fn blocking(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Work::Blocking(Box::new(|begun| begun.finish(&work())))
    }
}

type Begin<K, T> = Box<dyn FnOnce(StartedWork<K, T>) + Send>;
type TryBegin<K, T> = Box<dyn FnOnce(StartedWork<K, T>) -> Result<(), ForThread<K, T>> + Send>;

/// Work that has its turn, and the function by which a thread does it.
type ForThread<K, T> = (StartedWork<K, T>, Begin<K, T>);

/// Work whose turn has come: it holds one of the places in flight.
///
/// Dropped without a result, the work has failed, and its waiters are refused.
#[derive(Debug)]
pub struct StartedWork<K: Key, T: Product> {
    queue: Arc<Shared<K, T>>,
    /// `None` once it is done.
    turn: Option<Turn<K>>,
}

/// The waiters of work that is done. Dropped, it refuses them.
#[derive(Debug)]
pub struct Waiters<T>(Vec<oneshot::Sender<T>>);

/// A place in flight, and the work that holds it.
#[derive(Debug)]
struct Turn<K> {
    key: K,
    place: usize,
    since: Instant,
}

#[derive(Debug)]
struct Shared<K: Key, T: Product> {
    state: Mutex<QueueState<K, T>>,
    /// There is work for a thread, or the queue is closed.
    changed: Condvar,
    /// The name of the queue's threads.
    name: &'static str,
    /// Written with the lock held.
    counters: IoCounters,
}

struct QueueState<K: Key, T: Product> {
    waiting: VecDeque<Job<K, T>>,
    /// Blocking work that has its turn.
    for_threads: VecDeque<(Turn<K>, Begin<K, T>)>,
    /// Number of threads: as many as were ever needed at once.
    threads: usize,
    /// Threads that are at work.
    busy_threads: usize,
    /// The waiters of each piece of work, queued or in flight.
    waiters: HashMap<K, Vec<oneshot::Sender<T>>>,
    /// Since when each place is taken; `None` for a free place.
    busy_since: Vec<Option<Instant>>,
    admission: Admission,
    /// Waiters that have given up since the last sweep of the queue.
    gone: usize,
    is_closed: bool,
}

/// A full queue is swept once at least one in this many of its entries may be abandoned. A sweep
/// takes a while and holds the lock.
const GONE_SHARE: usize = 8;

/// A waiter for a result.
struct Waiting<'a, K: Key, T: Product> {
    receiver: oneshot::Receiver<T>,
    queue: &'a Shared<K, T>,
}

struct Job<K: Key, T: Product> {
    key: K,
    work: Work<K, T>,
    since: Instant,
}

impl<K: Key, T: Product> std::fmt::Debug for QueueState<K, T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("QueueState")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<K: Key, T: Product> IoQueue<K, T> {
    /// Starts a queue with these bounds and its first thread. `name` is the name of the threads.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(name: &'static str, bounds: Bounds) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(QueueState {
                waiting: VecDeque::new(),
                for_threads: VecDeque::new(),
                waiters: HashMap::new(),
                threads: 1,
                busy_threads: 0,
                busy_since: vec![None; bounds.in_flight],
                admission: Admission::new(bounds),
                gone: 0,
                is_closed: false,
            }),
            changed: Condvar::new(),
            name,
            counters: IoCounters::default(),
        });
        shared.start_thread(0)?;
        Ok(IoQueue { shared })
    }

    /// Does the work, or waits for work with the same key that is not done yet.
    ///
    /// # Errors
    /// [`Refused`], at once, unless `when_full` admits the work.
    ///
    /// # Cancellation
    /// Work without a waiter never starts.
    pub async fn run(&self, key: K, when_full: WhenFull, work: Work<K, T>) -> Result<T, Refused> {
        let mut waiting = Waiting {
            receiver: self.shared.submit(key, when_full, work)?,
            queue: &self.shared,
        };
        // Failed work gives no result.
        (&mut waiting.receiver).await.map_err(|_| Refused)
    }

    /// Keeps within these bounds from now on. Work in flight beyond them ends normally, and
    /// queued work stays queued.
    pub fn set_bounds(&self, bounds: Bounds) {
        let mut state = self.shared.lock();
        state.admission.set_bounds(bounds);
        let places = state.busy_since.len().max(bounds.in_flight);
        state.busy_since.resize(places, None);
        state.give_up_places();
        self.shared.advance(state, Instant::now());
    }

    /// How full it is.
    pub fn load(&self) -> Load {
        let state = self.shared.lock();
        Load {
            waiting: state.waiting.len(),
            in_flight: state.busy_since.iter().flatten().count(),
        }
    }

    /// Counters of the queue's work.
    pub fn counters(&self) -> &IoCounters {
        &self.shared.counters
    }
}

impl<K: Key, T: Product> Drop for Waiting<'_, K, T> {
    fn drop(&mut self) {
        if !self.receiver.is_terminated() {
            self.receiver.close();
            self.queue.lock().gone += 1;
        }
    }
}

impl<K: Key, T: Product> Drop for IoQueue<K, T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.waiting.clear();
        state.for_threads.clear();
        state.waiters.clear();
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl<K: Key, T: Product> StartedWork<K, T> {
    /// Ends the work: frees its place, and returns the waiters of the result.
    pub fn end(mut self) -> Waiters<T> {
        let waiters = self.turn.take().map(|turn| self.queue.end(&turn));
        Waiters(waiters.unwrap_or_default())
    }

    /// Ends the work, and gives the result to all waiters.
    pub fn finish(self, result: &T) {
        self.end().give(result);
    }
}

impl<K: Key, T: Product> Drop for StartedWork<K, T> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.queue.end(&turn);
        }
    }
}

impl<T: Product> Waiters<T> {
    /// Gives the result to the waiters.
    pub fn give(self, result: &T) {
        for waiter in self.0 {
            // The waiter may have given up.
            let _ = waiter.send(result.clone());
        }
    }
}

impl<K: Key, T: Product> Shared<K, T> {
    fn lock(&self) -> MutexGuard<'_, QueueState<K, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(
        self: &Arc<Self>,
        key: K,
        when_full: WhenFull,
        work: Work<K, T>,
    ) -> Result<oneshot::Receiver<T>, Refused> {
        let (sender, receiver) = oneshot::channel();
        let now = Instant::now();
        let mut state = self.lock();
        if let Some(waiters) = state.waiters.get_mut(&key) {
            waiters.push(sender);
            self.counters.shared.add(1);
            return Ok(receiver);
        }
        let mut is_admitted = state.admits(now);
        if !is_admitted && state.gone > 0 && state.gone * GONE_SHARE >= state.waiting.len() {
            state.sweep();
            is_admitted = state.admits(now);
        }
        if !is_admitted && when_full == WhenFull::Refuse {
            self.counters.refused.add(1);
            return Err(Refused);
        }
        state.waiters.insert(key.clone(), vec![sender]);
        state.waiting.push_back(Job {
            key,
            work,
            since: now,
        });
        self.advance(state, now);
        Ok(receiver)
    }

    /// Grants turns to queued work while there are free places.
    fn advance(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState<K, T>>, now: Instant) {
        let mut prompt = Vec::new();
        let mut blocking = 0;
        while let Some(place) = state.free_place()
            && let Some(Job { key, work, since }) = state.next()
        {
            state.busy_since[place] = Some(now);
            self.counters
                .wait_us
                .record_time(now.saturating_duration_since(since));
            let turn = Turn {
                key,
                place,
                since: now,
            };
            match work {
                Work::Blocking(begin) => {
                    state.for_threads.push_back((turn, begin));
                    blocking += 1;
                }
                Work::Prompt(begin) => prompt.push((turn, begin)),
            }
        }
        self.call_threads(state, blocking);
        for (turn, begin) in prompt {
            if let Err((mut begun, begin)) = begin(self.begun(turn))
                && let Some(turn) = begun.turn.take()
            {
                let mut state = self.lock();
                state.for_threads.push_back((turn, begin));
                self.call_threads(state, 1);
            }
        }
    }

    /// Has threads run `count` pieces of blocking work that have their turns.
    fn call_threads(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState<K, T>>, count: usize) {
        let thread = state.next_thread();
        drop(state);
        if let Some(index) = thread
            && let Err(error) = self.start_thread(index)
        {
            // The existing threads do the work later.
            tracing::warn!("files: start a thread for a disk: {error}");
            self.lock().threads -= 1;
        }
        // A woken thread may take the core at once, so the lock is released first.
        for _ in 0..count {
            self.changed.notify_one();
        }
    }

    fn begun(self: &Arc<Self>, turn: Turn<K>) -> StartedWork<K, T> {
        StartedWork {
            queue: self.clone(),
            turn: Some(turn),
        }
    }

    /// Ends a turn, and returns the waiters of its work.
    fn end(self: &Arc<Self>, turn: &Turn<K>) -> Vec<oneshot::Sender<T>> {
        let now = Instant::now();
        let mut state = self.lock();
        let waiters = self.leave(&mut state, turn, now);
        self.advance(state, now);
        waiters
    }

    /// Frees a place, and returns the waiters of its work.
    fn leave(
        &self,
        state: &mut QueueState<K, T>,
        turn: &Turn<K>,
        now: Instant,
    ) -> Vec<oneshot::Sender<T>> {
        let took = now.saturating_duration_since(turn.since);
        state.busy_since[turn.place] = None;
        state.give_up_places();
        state.admission.learn(took);
        self.counters.reads.add(1);
        self.counters.service_us.record_time(took);
        state.waiters.remove(&turn.key).unwrap_or_default()
    }

    fn start_thread(self: &Arc<Self>, index: usize) -> io::Result<()> {
        let shared = self.clone();
        let thread = std::thread::Builder::new().name(format!("{}-{index}", self.name));
        // Nobody joins the thread. It may hang in a read of a disk that never answers, and then
        // ends with the process.
        thread.spawn(move || {
            // Workers come first: requests that need no disk do not wait for disk threads. A disk
            // thread with a result that a worker waits for gets short slices, so that it does not
            // wait long for the other threads.
            step_back();
            ask_for_short_slices_in_turn();
            shared.work();
        })?;
        Ok(())
    }

    /// Does blocking work until the queue is closed.
    fn work(self: &Arc<Self>) {
        let mut state = self.lock();
        while !state.is_closed {
            let Some((turn, begin)) = state.for_threads.pop_front() else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.busy_threads += 1;
            drop(state);
            let begun = self.begun(turn);
            // The thread survives its work: work that panics has failed.
            let _ = catch_unwind(AssertUnwindSafe(|| begin(begun)));
            state = self.lock();
            state.busy_threads -= 1;
        }
    }
}

impl<K: Key, T: Product> QueueState<K, T> {
    /// A free place for one more piece of work.
    fn free_place(&self) -> Option<usize> {
        let most = self.admission.bounds().in_flight;
        // Lowered bounds leave more places than may be taken.
        if self.busy_since.len() > most && self.busy_since.iter().flatten().count() >= most {
            return None;
        }
        self.busy_since.iter().position(Option::is_none)
    }

    /// Drops places beyond the bound, from the end, as far as they are free.
    fn give_up_places(&mut self) {
        let most = self.admission.bounds().in_flight;
        while self.busy_since.len() > most && self.busy_since.last() == Some(&None) {
            self.busy_since.pop();
        }
    }

    /// The number of the thread to start, where work needs one more.
    fn next_thread(&mut self) -> Option<usize> {
        let is_lacking = self.for_threads.len() + self.busy_threads > self.threads;
        if !is_lacking || self.threads == self.busy_since.len() {
            return None;
        }
        self.threads += 1;
        Some(self.threads - 1)
    }

    /// Whether one more piece of work may wait.
    fn admits(&self, now: Instant) -> bool {
        let begun = self.busy_since.iter().flatten();
        let ages = begun.map(|since| now.saturating_duration_since(*since));
        self.admission.admit(self.waiting.len(), ages).is_ok()
    }

    /// Drops queued work whose waiters have all given up.
    fn sweep(&mut self) {
        self.gone = 0;
        let QueueState {
            waiting, waiters, ..
        } = self;
        waiting.retain(|job| {
            let is_awaited = waiters.get(&job.key).is_some_and(|it| is_awaited(it));
            if !is_awaited {
                waiters.remove(&job.key);
            }
            is_awaited
        });
    }

    /// The next piece of work that still has a waiter.
    fn next(&mut self) -> Option<Job<K, T>> {
        loop {
            let job = self.waiting.pop_front()?;
            if self.waiters.get(&job.key).is_some_and(|it| is_awaited(it)) {
                return Some(job);
            }
            self.waiters.remove(&job.key);
            self.gone = self.gone.saturating_sub(1);
        }
    }
}

fn is_awaited<T>(waiters: &[oneshot::Sender<T>]) -> bool {
    waiters.iter().any(|waiter| !waiter.is_closed())
}

#[cfg(test)]
mod tests;
