//! Deadlines for tests: nothing waits for ever, and nothing sleeps for luck.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Longest time for one step of a test: a read, a condition, a start.
pub const STEP: Duration = Duration::from_secs(10);

/// The processes that each thread has started and that still run.
static STARTED: Mutex<Option<HashMap<ThreadId, Vec<Pid>>>> = Mutex::new(None);

fn started() -> MutexGuard<'static, Option<HashMap<ThreadId, Vec<Pid>>>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a process that the current thread has started, to be killed when the
/// thread overruns its deadline.
pub(crate) fn note_started(pid: Pid) {
    let thread = std::thread::current().id();
    started()
        .get_or_insert_default()
        .entry(thread)
        .or_default()
        .push(pid);
}

/// Forgets a process that has been waited for.
pub(crate) fn note_ended(pid: Pid) {
    for pids in started().get_or_insert_default().values_mut() {
        pids.retain(|&noted| noted != pid);
    }
}

/// Runs a test's body, and fails when it takes longer than `limit`. Processes that it has
/// started are then killed.
///
/// # Panics
/// As `body` does, and when the deadline passes.
pub fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, finished) = channel();
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let thread = std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            body();
            let _ = done.send(());
        })
        .expect("a test can start a thread");
    let id = thread.thread().id();
    if finished.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        let overdue = started()
            .get_or_insert_default()
            .remove(&id)
            .unwrap_or_default();
        for pid in overdue {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        panic!("the test was not done within {limit:?}");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits until a condition holds, at most [`STEP`].
///
/// # Panics
/// When it does not hold by then; `what` names the condition.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(STEP, condition), "not within {STEP:?}: {what}");
}

/// Whether a condition becomes true within a time.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    const POLL_EVERY: Duration = Duration::from_millis(2);
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        // Conditions outside this process give no notice: they are polled.
        std::thread::park_timeout(POLL_EVERY);
    }
}
