//! Work that waits for a disk, done by threads that may.
//!
//! One queue for each device, with as many threads as it may have reads in
//! flight. Who asks for what is being read already gets what that brings: one
//! read for many waiters. The queue is bounded in length and in expected wait
//! ([`Admission`]); beyond it work is refused at once.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_policy::admission::{Admission, Bounds};
use tokio::sync::oneshot;

use crate::observe::counters::Counter;
use crate::observe::histogram::Histogram;

/// A queue, and the threads that work it off; they end when it is dropped.
#[derive(Debug)]
pub struct IoQueue<K, T> {
    shared: Arc<Shared<K, T>>,
    threads: Vec<JoinHandle<()>>,
}

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
    /// In a thread.
    pub service_us: Histogram,
}

/// How full a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Pieces of work that wait.
    pub waiting: usize,
    /// Pieces of work that a thread is at.
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

#[derive(Debug)]
struct Shared<K, T> {
    state: Mutex<State<K, T>>,
    changed: Condvar,
    /// Written with the lock held.
    counters: IoCounters,
}

struct State<K, T> {
    waiting: VecDeque<Job<K, T>>,
    /// Who waits for what, in the queue or in a thread.
    waiters: HashMap<K, Vec<oneshot::Sender<T>>>,
    /// Since when each thread is at work; `None` for one that is not.
    busy_since: Box<[Option<Instant>]>,
    admission: Admission,
    /// When work that nobody waits for was last dropped.
    swept: Instant,
    is_closed: bool,
}

/// Time between two looks at all that waits, in a queue that is full.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

struct Job<K, T> {
    key: K,
    work: Box<dyn FnOnce() -> T + Send>,
    since: Instant,
}

impl<K, T> std::fmt::Debug for State<K, T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<K, T> IoQueue<K, T>
where
    K: Hash + Eq + Clone + Send + 'static,
    T: Clone + Send + 'static,
{
    /// A queue within these bounds, with its threads.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(bounds: Bounds) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                waiters: HashMap::new(),
                busy_since: vec![None; bounds.in_flight].into(),
                admission: Admission::new(bounds),
                swept: Instant::now(),
                is_closed: false,
            }),
            changed: Condvar::new(),
            counters: IoCounters::default(),
        });
        let mut queue = IoQueue {
            shared,
            threads: Vec::new(),
        };
        for index in 0..bounds.in_flight {
            let shared = queue.shared.clone();
            let thread = std::thread::Builder::new().name(format!("disk-{index}"));
            queue.threads.push(thread.spawn(move || shared.run(index))?);
        }
        Ok(queue)
    }

    /// Has `work` done by a thread, or waits for one that was asked for under
    /// the same key and is not done yet.
    ///
    /// # Errors
    /// [`Refused`], at once, unless `entry` says that it must be let in.
    ///
    /// # Cancellation
    /// What nobody waits for any more is not begun.
    pub async fn run(
        &self,
        key: K,
        entry: Entry,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let receiver = self.shared.submit(key, entry, Box::new(work))?;
        // Work that panicked gives no result.
        receiver.await.map_err(|_| Refused)
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

impl<K, T> Drop for IoQueue<K, T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.waiting.clear();
        drop(state);
        self.shared.changed.notify_all();
        // The threads are not waited for: one may hang in a read of a disk
        // that never answers, and end with the process.
        self.threads.clear();
    }
}

impl<K, T> Shared<K, T> {
    fn lock(&self) -> MutexGuard<'_, State<K, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, T: Clone> Shared<K, T> {
    fn submit(
        &self,
        key: K,
        entry: Entry,
        work: Box<dyn FnOnce() -> T + Send>,
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
        if !is_admitted && now.duration_since(state.swept) > SWEEP_INTERVAL {
            state.sweep(now);
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
        drop(state);
        self.changed.notify_one();
        Ok(receiver)
    }

    /// Works until the queue is closed.
    fn run(&self, index: usize) {
        let mut state = self.lock();
        while !state.is_closed {
            let Some(job) = state.next() else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let begun = Instant::now();
            state.busy_since[index] = Some(begun);
            self.counters.wait_us.record_time(begun - job.since);
            drop(state);
            // The thread goes on, and who waits is not left to wait.
            let result = catch_unwind(AssertUnwindSafe(job.work));
            let took = begun.elapsed();
            state = self.lock();
            state.busy_since[index] = None;
            state.admission.learn(took);
            self.counters.done.add(1);
            self.counters.service_us.record_time(took);
            let waiters = state.waiters.remove(&job.key).unwrap_or_default();
            drop(state);
            for waiter in waiters {
                // It may have given up.
                let Ok(result) = &result else { break };
                let _ = waiter.send(result.clone());
            }
            state = self.lock();
        }
    }
}

impl<K: Hash + Eq, T> State<K, T> {
    /// For how long the thread has been at work that began first; `None` where
    /// one is free.
    fn oldest(&self, now: Instant) -> Option<Duration> {
        if self.waiting.len() < self.busy_since.iter().filter(|it| it.is_none()).count() {
            return None;
        }
        let first = self.busy_since.iter().flatten().min();
        Some(first.map_or(Duration::ZERO, |&since| {
            now.saturating_duration_since(since)
        }))
    }

    /// Whether one more may wait.
    fn admits(&self, now: Instant) -> bool {
        let oldest = self.oldest(now);
        self.admission.admit(self.waiting.len(), oldest).is_ok()
    }

    /// Drops the work that nobody waits for any more.
    fn sweep(&mut self, now: Instant) {
        self.swept = now;
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

    use super::*;

    fn queue(in_flight: usize, waiting: usize, wait: Duration) -> IoQueue<usize, usize> {
        IoQueue::start(Bounds {
            in_flight,
            waiting,
            wait,
        })
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
            let blocked = queue.run(0, Entry::IfRoom, move || gate.recv().map_or(1, |()| 0));
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
                        Box::new(move || done.fetch_add(1, Ordering::Relaxed) + 70),
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
            let mut first =
                std::pin::pin!(queue.run(0, Entry::IfRoom, move || gate.recv().map_or(1, |()| 0)));
            assert!(futures_pending(&mut first).await);
            while queue.load().waiting > 0 {
                tokio::task::yield_now().await;
            }
            let waiting: Vec<_> = (1..3)
                .map(|key| {
                    queue
                        .shared
                        .submit(key, Entry::IfRoom, Box::new(move || key))
                })
                .collect();
            assert_eq!(queue.run(3, Entry::IfRoom, || 3).await, Err(Refused));
            assert_eq!(queue.counters().refused.value(), 1);
            open.send(()).expect("the work waits for it");
            for (receiver, key) in waiting.into_iter().zip(1..) {
                assert_eq!(receiver.expect("room").await, Ok(key));
            }
            assert_eq!(queue.run(4, Entry::IfRoom, || 4).await, Ok(4));
        });
    }

    #[test]
    fn work_that_panics_leaves_nobody_waiting() {
        let queue = queue(1, 10, Duration::MAX);
        block_on(async {
            let failed = queue.run(1, Entry::IfRoom, || panic!("as the test wants it"));
            assert_eq!(failed.await, Err(Refused));
            assert_eq!(queue.run(1, Entry::IfRoom, || 2).await, Ok(2));
            assert_eq!(queue.load().waiting, 0);
        });
    }

    #[test]
    fn what_nobody_waits_for_is_not_begun() {
        let queue = queue(1, 10, Duration::MAX);
        let (open, gate) = mpsc::channel::<()>();
        let begun = Arc::new(AtomicUsize::new(0));
        block_on(async {
            let mut first =
                std::pin::pin!(queue.run(0, Entry::IfRoom, move || gate.recv().map_or(1, |()| 0)));
            assert!(futures_pending(&mut first).await);
            let counted = begun.clone();
            drop(queue.shared.submit(
                1,
                Entry::IfRoom,
                Box::new(move || counted.fetch_add(1, Ordering::Relaxed)),
            ));
            open.send(()).expect("the work waits for it");
            assert_eq!(queue.run(2, Entry::IfRoom, || 2).await, Ok(2));
        });
        assert_eq!(begun.load(Ordering::Relaxed), 0);
    }

    /// Polls once; whether there is nothing yet.
    async fn futures_pending<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }
}
