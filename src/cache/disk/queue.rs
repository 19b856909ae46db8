//! The queue of a store's writer: objects, bounded in bytes, and removals.
//!
//! Removals come first. A removal drops the objects of its key from the queue: none of them
//! is written after it. An object that is being written is not added to the index.
//!
//! Invariant: the index changes for a key that is removed, or was written, only under the
//! lock of this queue.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as StdInstant};

use evenkeel_cache::disk::Position;
use evenkeel_cache::disk::index::Index;
use evenkeel_cache::incoming::Spooled;
use evenkeel_cache::{Key, Object};

use super::figures::{NotWritten, Phase};

/// Most bytes of objects that wait, unless the store is small.
const MAX_BYTES: usize = 64 << 20;

/// Most removals that wait, where the disk can't be written. If there are more, everything is
/// removed.
const MAX_REMOVALS: usize = 1 << 20;

/// An object that waits to be written.
#[derive(Debug)]
pub(super) struct Job {
    /// Hash of its key.
    pub key: u128,
    pub object: Object,
    /// The spool with its body, if that is too long for memory.
    pub spooled: Option<Spooled>,
}

impl Job {
    /// Of a response whose body was written to a file of its own.
    pub fn spooled(spooled: Spooled) -> Self {
        Job {
            key: spooled.key().hash,
            object: spooled.object.clone(),
            spooled: Some(spooled),
        }
    }
}

/// The writer's next task.
#[derive(Debug)]
pub(super) enum Next {
    /// Write an object, and call [`Queue::written`].
    Object(Job),
    /// Write the removal of a key, and call [`Queue::written`].
    Removal(u64),
    /// Remove all segments.
    RemoveAll,
    /// Other files of the store have got longer: there has to be room for them.
    MakeRoom,
    /// The disk fails.
    Pause(io::Error),
    /// Nothing waits, or nothing may be written.
    Nothing,
    /// Nothing waits, and nothing will: give up the folder.
    Stop,
}

#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Something waits, or the phase is another one.
    changed: Condvar,
    max_bytes: usize,
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    phase: Phase,
    objects: VecDeque<Job>,
    removals: VecDeque<u64>,
    /// There were too many removals.
    removes_all: bool,
    /// Of the objects.
    bytes: usize,
    needs_room: bool,
    failed: Option<io::Error>,
    writing: Option<Writing>,
    /// Position of the next frame.
    next: Position,
}

#[derive(Debug, Clone, Copy)]
struct Writing {
    /// Hash of the key; `None` for a record that is moved and for a removal.
    key: Option<u64>,
    is_cancelled: bool,
}

impl State {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn is_idle(&self) -> bool {
        self.objects.is_empty() && self.removals.is_empty() && self.writing.is_none()
    }
}

impl Queue {
    /// Of a store of this size.
    pub fn new(capacity_bytes: u64) -> Self {
        let part = usize::try_from(capacity_bytes / 8).unwrap_or(usize::MAX);
        Queue {
            state: Mutex::default(),
            changed: Condvar::new(),
            max_bytes: part.min(MAX_BYTES),
            is_closed: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn phase(&self) -> Phase {
        self.lock().phase
    }

    /// Whether the folder was given up. Takes no lock.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// How many objects wait, and their bytes.
    pub fn load(&self) -> (usize, usize) {
        let state = self.lock();
        (state.objects.len(), state.bytes)
    }

    pub fn push(&self, job: Job) -> Result<(), NotWritten> {
        let mut state = self.lock();
        match state.phase {
            Phase::Waiting | Phase::Stopping | Phase::Closed => return Err(NotWritten::NoFolder),
            Phase::Paused => return Err(NotWritten::Paused),
            Phase::Working => {}
        }
        let cost = job.object.cost();
        if state.bytes + cost > self.max_bytes && !state.objects.is_empty() {
            return Err(NotWritten::QueueFull);
        }
        state.bytes += cost;
        state.objects.push_back(job);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Has room made for other files of the store.
    pub fn make_room(&self) {
        self.lock().needs_room = true;
        self.changed.notify_all();
    }

    /// Has the store pause, for the disk fails.
    pub fn fail(&self, error: io::Error) {
        self.lock().failed = Some(error);
        self.changed.notify_all();
    }

    pub fn remove(&self, index: &Index, key: &Key) {
        let hash = key.hash as u64;
        let mut state = self.lock();
        if state.phase == Phase::Closed {
            return;
        }
        let State {
            objects,
            bytes,
            writing,
            ..
        } = &mut *state;
        // Objects are dropped once the lock is free: others may follow the fetch of one.
        let mut removed = Vec::new();
        while let Some(at) = objects.iter().position(|job| job.key == key.hash) {
            removed.extend(objects.remove(at));
        }
        *bytes -= removed.iter().map(|job| job.object.cost()).sum::<usize>();
        // Its record lies on the disk already, or will.
        let writing = writing.as_mut().filter(|it| it.key == Some(hash));
        let is_writing = writing.map(|it| it.is_cancelled = true).is_some();
        if index.remove(hash, state.next) || is_writing {
            if state.removals.len() == MAX_REMOVALS {
                state.removals.clear();
                state.removes_all = true;
            }
            state.removals.push_back(hash);
            self.changed.notify_all();
        }
        drop(state);
    }

    /// Waits for the next thing to do, at most so long, or as long as it takes.
    pub fn next(&self, most: Option<Duration>) -> Next {
        let until = most.map(|most| StdInstant::now() + most);
        let mut state = self.lock();
        loop {
            if let Some(error) = state.failed.take() {
                return Next::Pause(error);
            }
            let is_writable = matches!(state.phase, Phase::Working | Phase::Stopping);
            if is_writable && std::mem::take(&mut state.needs_room) {
                return Next::MakeRoom;
            }
            if is_writable && std::mem::take(&mut state.removes_all) {
                return Next::RemoveAll;
            }
            if is_writable && let Some(key) = state.removals.pop_front() {
                state.writing = Some(Writing {
                    key: None,
                    is_cancelled: false,
                });
                return Next::Removal(key);
            }
            if is_writable && let Some(job) = state.objects.pop_front() {
                state.bytes -= job.object.cost();
                state.writing = Some(Writing {
                    key: Some(job.key as u64),
                    is_cancelled: false,
                });
                return Next::Object(job);
            }
            if state.phase == Phase::Stopping {
                return Next::Stop;
            }
            state = match until {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let rest = until.saturating_duration_since(StdInstant::now());
                    if rest.is_zero() {
                        return Next::Nothing;
                    }
                    let waited = self.changed.wait_timeout(state, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The record that was being written lies on the disk: unless its key was removed
    /// meanwhile, `add` makes it findable. The next one will lie at `next`. Says whether
    /// it was added.
    pub fn written(&self, next: Position, add: impl FnOnce()) -> bool {
        let mut state = self.lock();
        state.next = next;
        let is_cancelled = state.writing.take().is_some_and(|it| it.is_cancelled);
        if !is_cancelled {
            add();
        }
        drop(state);
        self.changed.notify_all();
        !is_cancelled
    }

    /// The object that was being written was dropped.
    pub fn not_written(&self) {
        self.lock().writing = None;
        self.changed.notify_all();
    }

    /// A removal could not be written: it is the next again.
    pub fn put_back(&self, key: u64) {
        let mut state = self.lock();
        state.writing = None;
        state.removals.push_front(key);
    }

    /// The next frame will lie here. `change` happens under the lock.
    pub fn set_next(&self, next: Position, change: impl FnOnce()) {
        let mut state = self.lock();
        state.next = next;
        change();
    }

    /// The store has its folder, and the next frame will lie here. Keys that were removed
    /// before are not loaded. `change` happens first.
    pub fn begin(&self, index: &Index, next: Position, change: impl FnOnce()) {
        let mut state = self.lock();
        state.next = next;
        change();
        for key in &state.removals {
            index.remove(*key, next);
        }
    }

    /// Has the store be written from now on, or not. A store that is to stop, stops. Waiting
    /// objects are dropped where they can't be written; gives their number.
    pub fn set_phase(&self, phase: Phase) -> usize {
        let mut state = self.lock();
        let mut gone = VecDeque::new();
        self.is_closed.store(phase == Phase::Closed, Relaxed);
        if phase == Phase::Closed || state.phase != Phase::Stopping {
            state.phase = phase;
        }
        if matches!(phase, Phase::Paused | Phase::Closed) {
            gone = std::mem::take(&mut state.objects);
            state.bytes = 0;
        }
        drop(state);
        self.changed.notify_all();
        gone.len()
    }

    /// Has the writer give up the folder.
    pub fn stop(&self) {
        let mut state = self.lock();
        if state.phase != Phase::Closed {
            state.phase = Phase::Stopping;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until something is so; whether it is.
    pub fn wait_for(&self, most: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let until = StdInstant::now() + most;
        let mut state = self.lock();
        while !is_so(&state) {
            let rest = until.saturating_duration_since(StdInstant::now());
            if rest.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The index is loaded, which somebody may wait for.
    pub fn notify(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }
}
