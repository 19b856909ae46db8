//! Threads of the kernel's own that would run on the servers' core.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::process::LOAD_CORE;

/// DAMON's, which look through all memory for what nobody uses: a millisecond
/// and more at a time, several times a second, in which a core without a
/// preemptible kernel does nothing else. One percentile of the requests is not
/// to tell on which core that was.
const MEMORY_WATCHER: &str = "kdamond.";

/// Kernel threads that run on the load's core as long as this is there.
pub struct SentAway(Vec<(Pid, CpuSet)>);

impl SentAway {
    /// Sends those away that look through memory, if there are any, and says so;
    /// where that is not allowed they stay.
    #[must_use]
    pub fn memory_watchers() -> Self {
        let mut load_core = CpuSet::new();
        load_core.set(LOAD_CORE);
        let mut sent = Vec::new();
        for pid in kernel_threads(MEMORY_WATCHER) {
            if let Ok(before) = sched_getaffinity(Some(pid))
                && sched_setaffinity(Some(pid), &load_core).is_ok()
            {
                sent.push((pid, before));
            }
        }
        if !sent.is_empty() {
            println!("the kernel looks for unused memory here (kdamond): on the load's core");
        }
        Self(sent)
    }
}

impl Drop for SentAway {
    fn drop(&mut self) {
        for (pid, before) in &self.0 {
            // It may have ended.
            let _ = sched_setaffinity(Some(*pid), before);
        }
    }
}

/// Those of which the name begins so.
fn kernel_threads(prefix: &str) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &i32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.starts_with(prefix))
        })
        .filter_map(Pid::from_raw)
        .collect()
}
