//! How long the machine itself let a thread wait that wanted to run.
//!
//! A longest wait counts for much in a scenario, and on a machine that others
//! use, one of 50 ms may be theirs. A thread on either core sleeps and looks
//! how late it wakes; a stall as long as the longest wait explains it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::bench::process::{LOAD_CORE, PROXY_CORE, stay_on};

/// Period of the checks: long enough to cost nothing beside a load.
const PERIOD: Duration = Duration::from_millis(2);

/// Two threads that look, until asked.
#[derive(Debug)]
pub struct StallWatch {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Duration>>,
}

impl StallWatch {
    /// Begins to look.
    #[must_use]
    pub fn start() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let threads = [PROXY_CORE, LOAD_CORE].map(|core| {
            let ends = Arc::clone(&ends);
            thread::spawn(move || look(core, &ends))
        });
        Self {
            ends,
            threads: threads.into(),
        }
    }

    /// Ends, and returns the longest stall, in milliseconds.
    #[must_use]
    pub fn finish(self) -> f64 {
        self.ends.store(true, Ordering::Relaxed);
        let stalls = self.threads.into_iter().filter_map(|at| at.join().ok());
        stalls.max().unwrap_or_default().as_secs_f64() * 1e3
    }
}

fn look(core: usize, ends: &AtomicBool) -> Duration {
    // On a machine with one core it looks wherever it runs.
    let _ = stay_on(&[core]);
    let mut longest = Duration::ZERO;
    while !ends.load(Ordering::Relaxed) {
        let due = Instant::now() + PERIOD;
        thread::sleep(PERIOD);
        longest = longest.max(due.elapsed());
    }
    longest
}
