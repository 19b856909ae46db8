//! Work that waits for a disk.
//!
//! One queue for each device, of which no more is begun than the device may
//! have at once. Blocking work is done by the queue's threads; other work is
//! told when its turn has come, and says when it is done ([`Begun`]). Who asks
//! for what is being read already gets what that brings: one read for many
//! waiters. The queue is bounded in length and in expected wait ([`Admission`]);
//! beyond it work is refused at once.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use evenkeel_policy::admission::{Admission, Bounds};
use tokio::sync::oneshot;

use crate::metrics::Counter;
use crate::metrics::histogram::Histogram;
use crate::scheduling::{ask_for_short_slices_in_turn, step_back};

/// A queue, and its threads; they end when it is dropped.
#[derive(Debug)]
pub struct IoQueue<K: Key, T: Product> {
    shared: Arc<Shared<K, T>>,
}

/// What tells one piece of work from another.
pub trait Key: Hash + Eq + Clone + Send + 'static {}

impl<K: Hash + Eq + Clone + Send + 'static> Key for K {}

/// What comes of a piece of work, for each who waits for it.
pub trait Product: Clone + Send + 'static {}

impl<T: Clone + Send + 'static> Product for T {}

/// What a queue has done since it began; times in microseconds.
#[derive(Debug, Default)]
pub struct IoCounters {
    /// Pieces of work done.
    pub done: Counter,
    /// Those that were given what another had asked for.
    pub shared: Counter,
    /// Those that were refused.
    pub refused: Counter,
    /// In the queue.
    pub wait_us: Histogram,
    /// From the beginning of the work to its end.
    pub service_us: Histogram,
}

/// How full a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Pieces of work that wait.
    pub waiting: usize,
    /// Pieces of work that were begun and are not done.
    pub in_flight: usize,
}

/// What becomes of work for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// It is refused.
    IfRoom,
    /// It is let in: it belongs to an answer that has begun.
    Always,
}

/// Work was not let into the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// How a piece of work is begun when its turn has come. It is done when
/// [`Begun::finish`] is called, by whom ever.
pub enum Work<K: Key, T: Product> {
    /// By a thread of the queue.
    Blocking(Begin<K, T>),
    /// By whoever gives it its turn, without blocking; what comes back can't be
    /// begun so, and is for a thread of the queue.
    Prompt(TryBegin<K, T>),
}

impl<K: Key, T: Product> Work<K, T> {
    /// What a thread of the queue does from its beginning to its end.
    pub fn blocking(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Work::Blocking(Box::new(|begun| begun.finish(&work())))
    }
}

type Begin<K, T> = Box<dyn FnOnce(Begun<K, T>) + Send>;
type TryBegin<K, T> = Box<dyn FnOnce(Begun<K, T>) -> Result<(), ForThread<K, T>> + Send>;

/// Work that has its turn, and how a thread does it.
type ForThread<K, T> = (Begun<K, T>, Begin<K, T>);

/// Work whose turn has come: it has one of the places of what is in flight.
///
/// Dropped without a result it has failed: who waits for it is refused.
#[derive(Debug)]
pub struct Begun<K: Key, T: Product> {
    queue: Arc<Shared<K, T>>,
    /// `None` once it is done.
    turn: Option<Turn<K>>,
}

/// Those who wait for work that is done; dropped they are refused.
#[derive(Debug)]
pub struct Waiters<T>(Vec<oneshot::Sender<T>>);

/// A place among what is in flight, and what has it.
#[derive(Debug)]
struct Turn<K> {
    key: K,
    place: usize,
    since: Instant,
}

#[derive(Debug)]
struct Shared<K: Key, T: Product> {
    state: Mutex<State<K, T>>,
    /// There is work for a thread, or the queue is closed.
    changed: Condvar,
    /// What its threads are called.
    name: &'static str,
    /// Written with the lock held.
    counters: IoCounters,
}

struct State<K: Key, T: Product> {
    waiting: VecDeque<Job<K, T>>,
    /// Blocking work that has its turn.
    for_threads: VecDeque<(Turn<K>, Begin<K, T>)>,
    /// How many threads there are: as many as were ever needed at once.
    threads: usize,
    /// How many of them are at work.
    busy_threads: usize,
    /// Who waits for what, in the queue or in flight.
    waiters: HashMap<K, Vec<oneshot::Sender<T>>>,
    /// Since when each place is taken; `None` for one that is not.
    busy_since: Box<[Option<Instant>]>,
    admission: Admission,
    /// Of those who waited, how many have gone since all that waits was last
    /// looked at.
    gone: usize,
    is_closed: bool,
}

/// All that waits in a full queue is looked at when so many times those who have
/// gone may be as many: it takes a while, and nothing else is done meanwhile.
const GONE_SHARE: usize = 8;

/// Somebody who waits for work.
struct Waiting<'a, K: Key, T: Product> {
    receiver: oneshot::Receiver<T>,
    queue: &'a Shared<K, T>,
}

struct Job<K: Key, T: Product> {
    key: K,
    work: Work<K, T>,
    since: Instant,
}

impl<K: Key, T: Product> std::fmt::Debug for State<K, T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<K: Key, T: Product> IoQueue<K, T> {
    /// A queue within these bounds, with its first thread. `name` is what its
    /// threads are called.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(name: &'static str, bounds: Bounds) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                for_threads: VecDeque::new(),
                waiters: HashMap::new(),
                threads: 1,
                busy_threads: 0,
                busy_since: vec![None; bounds.in_flight].into(),
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

    /// Has work done, or waits for what was asked for under the same key and is
    /// not done yet.
    ///
    /// # Errors
    /// [`Refused`], at once, unless `entry` says that it must be let in.
    ///
    /// # Cancellation
    /// What nobody waits for any more is not begun.
    pub async fn run(&self, key: K, entry: Entry, work: Work<K, T>) -> Result<T, Refused> {
        let mut waiting = Waiting {
            receiver: self.shared.submit(key, entry, work)?,
            queue: &self.shared,
        };
        // Work that failed gives no result.
        (&mut waiting.receiver).await.map_err(|_| Refused)
    }

    /// How full it is.
    pub fn load(&self) -> Load {
        let state = self.shared.lock();
        Load {
            waiting: state.waiting.len(),
            in_flight: state.busy_since.iter().flatten().count(),
        }
    }

    /// What it has done.
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

impl<K: Key, T: Product> Begun<K, T> {
    /// It is done: makes place for other work, and gives those who wait for the
    /// result.
    pub fn end(mut self) -> Waiters<T> {
        let waiters = self.turn.take().map(|turn| self.queue.end(&turn));
        Waiters(waiters.unwrap_or_default())
    }

    /// It is done: gives the result to all who wait for it.
    pub fn finish(self, result: &T) {
        self.end().give(result);
    }
}

impl<K: Key, T: Product> Drop for Begun<K, T> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.queue.end(&turn);
        }
    }
}

impl<T: Product> Waiters<T> {
    /// Gives them what they wait for.
    pub fn give(self, result: &T) {
        for waiter in self.0 {
            // It may have given up.
            let _ = waiter.send(result.clone());
        }
    }
}

impl<K: Key, T: Product> Shared<K, T> {
    fn lock(&self) -> MutexGuard<'_, State<K, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(
        self: &Arc<Self>,
        key: K,
        entry: Entry,
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
        if !is_admitted && entry == Entry::IfRoom {
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

    /// Gives what waits its turn, as far as there are places.
    fn advance(self: &Arc<Self>, mut state: MutexGuard<'_, State<K, T>>, now: Instant) {
        let mut prompt = Vec::new();
        let mut blocking = 0;
        while let Some(place) = state.busy_since.iter().position(Option::is_none)
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

    /// Has threads do as many pieces of blocking work, which have their turns.
    fn call_threads(self: &Arc<Self>, mut state: MutexGuard<'_, State<K, T>>, count: usize) {
        let thread = state.next_thread();
        drop(state);
        if let Some(index) = thread
            && let Err(error) = self.start_thread(index)
        {
            // Those that there are do it later.
            tracing::warn!("files: start a thread for a disk: {error}");
            self.lock().threads -= 1;
        }
        // A thread that wakes may take the core at once: not with our lock held.
        for _ in 0..count {
            self.changed.notify_one();
        }
    }

    fn begun(self: &Arc<Self>, turn: Turn<K>) -> Begun<K, T> {
        Begun {
            queue: self.clone(),
            turn: Some(turn),
        }
    }

    /// Ends a turn, and gives those who wait for what had it.
    fn end(self: &Arc<Self>, turn: &Turn<K>) -> Vec<oneshot::Sender<T>> {
        let now = Instant::now();
        let mut state = self.lock();
        let waiters = self.leave(&mut state, turn, now);
        self.advance(state, now);
        waiters
    }

    /// Frees a place, and gives those who wait for what had it.
    fn leave(
        &self,
        state: &mut State<K, T>,
        turn: &Turn<K>,
        now: Instant,
    ) -> Vec<oneshot::Sender<T>> {
        let took = now.saturating_duration_since(turn.since);
        state.busy_since[turn.place] = None;
        state.admission.learn(took);
        self.counters.done.add(1);
        self.counters.service_us.record_time(took);
        state.waiters.remove(&turn.key).unwrap_or_default()
    }

    fn start_thread(self: &Arc<Self>, index: usize) -> io::Result<()> {
        let shared = self.clone();
        let thread = std::thread::Builder::new().name(format!("{}-{index}", self.name));
        // It is not waited for: it may hang in a read of a disk that never
        // answers, and ends with the process.
        thread.spawn(move || {
            // What is in memory does not wait for what is not; and where one of
            // these threads has what a worker waits for, it does not wait long
            // for the others.
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
            // The thread goes on whatever comes of it: work that panics has failed.
            let _ = catch_unwind(AssertUnwindSafe(|| begin(begun)));
            state = self.lock();
            state.busy_threads -= 1;
        }
    }
}

impl<K: Key, T: Product> State<K, T> {
    /// The number of a thread that is to be started: there is work for one more.
    fn next_thread(&mut self) -> Option<usize> {
        let is_lacking = self.for_threads.len() + self.busy_threads > self.threads;
        if !is_lacking || self.threads == self.busy_since.len() {
            return None;
        }
        self.threads += 1;
        Some(self.threads - 1)
    }

    /// Whether one more may wait.
    fn admits(&self, now: Instant) -> bool {
        let begun = self.busy_since.iter().flatten();
        let ages = begun.map(|since| now.saturating_duration_since(*since));
        self.admission.admit(self.waiting.len(), ages).is_ok()
    }

    /// Drops the work that nobody waits for any more.
    fn sweep(&mut self) {
        self.gone = 0;
        let State {
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

    /// The next piece of work that somebody still waits for.
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn queue(in_flight: usize, waiting: usize, wait: Duration) -> IoQueue<usize, usize> {
        IoQueue::start(
            "test",
            Bounds {
                in_flight,
                waiting,
                wait,
            },
        )
        .expect("threads start")
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn one_piece_of_work_serves_all_who_ask_for_it() {
        let queue = queue(1, 10, Duration::MAX);
        let done = Arc::new(AtomicUsize::new(0));
        let (open, gate) = mpsc::channel::<()>();
        let results = block_on(async {
            let blocked = queue.run(
                0,
                Entry::IfRoom,
                Work::blocking(move || gate.recv().map_or(1, |()| 0)),
            );
            let mut blocked = std::pin::pin!(blocked);
            assert!(futures_pending(&mut blocked).await);
            while queue.load().waiting > 0 {
                tokio::task::yield_now().await;
            }
            let asked: Vec<_> = (0..20)
                .map(|_| {
                    let done = done.clone();
                    queue.shared.submit(
                        7,
                        Entry::IfRoom,
                        Work::blocking(move || done.fetch_add(1, Ordering::Relaxed) + 70),
                    )
                })
                .collect();
            while queue.load().in_flight == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(queue.load().waiting, 1, "the others wait for the same");
            open.send(()).expect("the work waits for it");
            assert_eq!(blocked.await, Ok(0));
            let mut results = Vec::new();
            for receiver in asked {
                results.push(receiver.expect("room").await.expect("a result"));
            }
            results
        });
        assert_eq!(results, [70; 20]);
        assert_eq!(done.load(Ordering::Relaxed), 1);
        assert_eq!(queue.counters().shared.value(), 19);
    }

    #[test]
    fn beyond_its_length_work_is_refused_and_then_taken_again() {
        let queue = queue(1, 2, Duration::MAX);
        let (open, gate) = mpsc::channel::<()>();
        block_on(async {
            let mut first = std::pin::pin!(queue.run(
                0,
                Entry::IfRoom,
                Work::blocking(move || gate.recv().map_or(1, |()| 0))
            ));
            assert!(futures_pending(&mut first).await);
            while queue.load().waiting > 0 {
                tokio::task::yield_now().await;
            }
            let waiting: Vec<_> = (1..3)
                .map(|key| {
                    queue
                        .shared
                        .submit(key, Entry::IfRoom, Work::blocking(move || key))
                })
                .collect();
            assert_eq!(
                queue.run(3, Entry::IfRoom, Work::blocking(|| 3)).await,
                Err(Refused)
            );
            assert_eq!(queue.counters().refused.value(), 1);
            open.send(()).expect("the work waits for it");
            for (receiver, key) in waiting.into_iter().zip(1..) {
                assert_eq!(receiver.expect("room").await, Ok(key));
            }
            assert_eq!(
                queue.run(4, Entry::IfRoom, Work::blocking(|| 4)).await,
                Ok(4)
            );
        });
    }

    #[test]
    fn who_has_gone_makes_room_once_they_are_many() {
        let queue = queue(1, 80, Duration::MAX);
        let (open, gate) = mpsc::channel::<()>();
        let blocked = queue.shared.submit(
            0,
            Entry::IfRoom,
            Work::blocking(move || gate.recv().map_or(1, |()| 0)),
        );
        block_on(async {
            let run = |key| Box::pin(queue.run(key, Entry::IfRoom, Work::blocking(move || key)));
            let mut waiting: Vec<_> = (1..=80).map(run).collect();
            for one in &mut waiting {
                assert!(futures_pending(&mut one.as_mut()).await);
            }
            waiting.truncate(71);
            assert_eq!(run(81).await, Err(Refused));
            assert_eq!(queue.load().waiting, 80);
            waiting.truncate(70);
            let mut admitted = run(82);
            assert!(futures_pending(&mut admitted.as_mut()).await);
            assert_eq!(queue.load().waiting, 71);
            open.send(()).expect("the work waits for it");
            assert_eq!(blocked.expect("room").await, Ok(0));
            assert_eq!(admitted.await, Ok(82));
        });
    }

    #[test]
    fn work_that_panics_leaves_nobody_waiting() {
        let queue = queue(1, 10, Duration::MAX);
        block_on(async {
            let failed = queue.run(
                1,
                Entry::IfRoom,
                Work::blocking(|| panic!("as the test wants it")),
            );
            assert_eq!(failed.await, Err(Refused));
            assert_eq!(
                queue.run(1, Entry::IfRoom, Work::blocking(|| 2)).await,
                Ok(2)
            );
            assert_eq!(queue.load().waiting, 0);
        });
    }

    #[test]
    fn work_that_is_told_of_its_turn_ends_when_it_says_so() {
        let queue = queue(1, 10, Duration::MAX);
        let (tell, told) = mpsc::channel();
        let prompt = |tell: &mpsc::Sender<Begun<usize, usize>>| {
            let tell = tell.clone();
            Work::Prompt(Box::new(move |begun| {
                tell.send(begun).expect("the test listens");
                Ok(())
            }))
        };
        let first = queue.shared.submit(1, Entry::IfRoom, prompt(&tell));
        let second = queue.shared.submit(2, Entry::IfRoom, prompt(&tell));
        let third = queue.shared.submit(3, Entry::IfRoom, Work::blocking(|| 30));
        let begun = told.try_recv().expect("a place is free");
        assert!(told.try_recv().is_err(), "there is one place");
        begun.finish(&10);
        // Without a result.
        drop(told.try_recv().expect("the place is free again"));
        block_on(async {
            assert_eq!(first.expect("room").await, Ok(10));
            assert!(second.expect("room").await.is_err());
            assert_eq!(third.expect("room").await, Ok(30));
        });
        assert_eq!(queue.load().in_flight, 0);
        assert_eq!(queue.counters().done.value(), 3);
    }

    #[test]
    fn what_can_not_be_begun_at_once_is_done_by_threads() {
        // As many as overflow a stack if each ends within the one before.
        const MANY: usize = 100_000;
        let queue = queue(2, MANY, Duration::MAX);
        let ask = |key: usize| {
            let by_thread = move |begun: Begun<usize, usize>| {
                let name = std::thread::current().name().map(str::to_owned);
                assert!(name.is_some_and(|it| it.starts_with("test-")));
                begun.finish(&(key * 10));
            };
            let work = Work::Prompt(Box::new(move |begun| Err((begun, Box::new(by_thread)))));
            let submitted = queue.shared.submit(key, Entry::IfRoom, work);
            submitted.expect("there is room")
        };
        let results: Vec<_> = (1..=MANY).map(ask).collect();
        block_on(async {
            for (result, key) in results.into_iter().zip(1..) {
                assert_eq!(result.await, Ok(key * 10));
            }
        });
        assert_eq!((queue.load().waiting, queue.load().in_flight), (0, 0));
    }

    #[test]
    fn threads_are_started_as_they_are_needed() {
        let queue = queue(3, 10, Duration::MAX);
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let held = |key: usize| {
            let gate = gate.clone();
            let work = move || gate.lock().expect("held").recv().map_or(0, |()| key);
            queue
                .shared
                .submit(key, Entry::IfRoom, Work::blocking(work))
        };
        let first = [held(1)];
        assert_eq!(queue.shared.lock().threads, 1);
        let more = [held(2), held(3), held(4)];
        assert_eq!(queue.shared.lock().threads, 3, "as many as places");
        for _ in 0..4 {
            open.send(()).expect("the work waits for it");
        }
        block_on(async {
            for (receiver, key) in first.into_iter().chain(more).zip(1..) {
                assert_eq!(receiver.expect("room").await, Ok(key));
            }
        });
    }

    #[test]
    fn what_nobody_waits_for_is_not_begun() {
        let queue = queue(1, 10, Duration::MAX);
        let (open, gate) = mpsc::channel::<()>();
        let begun = Arc::new(AtomicUsize::new(0));
        block_on(async {
            let mut first = std::pin::pin!(queue.run(
                0,
                Entry::IfRoom,
                Work::blocking(move || gate.recv().map_or(1, |()| 0))
            ));
            assert!(futures_pending(&mut first).await);
            let counted = begun.clone();
            drop(queue.shared.submit(
                1,
                Entry::IfRoom,
                Work::blocking(move || counted.fetch_add(1, Ordering::Relaxed)),
            ));
            open.send(()).expect("the work waits for it");
            assert_eq!(
                queue.run(2, Entry::IfRoom, Work::blocking(|| 2)).await,
                Ok(2)
            );
        });
        assert_eq!(begun.load(Ordering::Relaxed), 0);
    }

    /// Polls once; whether there is nothing yet.
    async fn futures_pending<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }
}
