//! Threads of the kernel's own that would run on the servers' core.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::process::{LOAD_CORE, set_of};

/// Kernel threads of DAMON, which scan all memory for unused pages.
///
/// A scan takes a millisecond or more, several times a second, and without a preemptible kernel
/// its core does nothing else. The 99th percentile must not depend on which core that was.
const MEMORY_WATCHER: &str = "kdamond.";

/// Kernel threads that run on the load's core as long as this is there.
pub struct SentAway(Vec<(Pid, CpuSet)>);

impl SentAway {
    /// Moves kernel threads that scan memory to the load's core, if there are any, and reports it.
    /// Without the permission they stay.
    #[must_use]
    pub fn memory_watchers() -> Self {
        let load_core = set_of(&[LOAD_CORE]);
        let send = |pid| {
            let before = sched_getaffinity(Some(pid)).ok()?;
            sched_setaffinity(Some(pid), &load_core).ok()?;
            Some((pid, before))
        };
        let watchers = kernel_threads(MEMORY_WATCHER).into_iter();
        let sent: Vec<_> = watchers.filter_map(send).collect();
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

/// The kernel threads whose names begin with `prefix`.
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
