//! Watching the workers: each counts the turns of its tick, and the control
//! thread looks whether the counts move.
//!
//! A worker that does not come round serves none of its clients, and nothing
//! else tells: its own measure of lag comes with its next tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::observe::stalls::WorkerStalls;

/// Time between two looks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A look that comes later than this after the last one says nothing. The whole process stood
/// still, or had no core.
const LATE_LOOK: Duration = Duration::from_millis(1_500);

/// The turns of one worker; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Heartbeat {
    turns: AtomicU64,
    has_ended: AtomicBool,
}

impl Heartbeat {
    /// The worker has come round; only the worker itself may say so.
    pub fn beat(&self) {
        let turns = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.turns.store(turns, Ordering::Relaxed);
    }
}

/// Lives as long as a worker does: one that has ended is not late.
#[derive(Debug)]
pub(super) struct Beating(pub Arc<Heartbeat>);

impl Drop for Beating {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
    }
}

/// The control thread's view of the workers.
#[derive(Debug)]
pub(super) struct Watch {
    workers: Vec<Watched>,
    looked: Option<Instant>,
    stalls: Arc<WorkerStalls>,
}

#[derive(Debug)]
struct Watched {
    heartbeat: Arc<Heartbeat>,
    turns: u64,
    state: WorkerState,
}

/// A worker, as seen at the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    ComesRound,
    /// It has not since this look.
    Stalled {
        since: Instant,
    },
}

/// A worker that stopped coming round, or does again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Stalled { worker: usize, silent: Duration },
    Back { worker: usize, silent: Duration },
}

impl Watch {
    /// Nothing was seen yet.
    pub fn new(heartbeats: &[Arc<Heartbeat>], stalls: Arc<WorkerStalls>) -> Self {
        let watched = |heartbeat: &Arc<Heartbeat>| Watched {
            heartbeat: heartbeat.clone(),
            turns: 0,
            state: WorkerState::ComesRound,
        };
        Watch {
            workers: heartbeats.iter().map(watched).collect(),
            looked: None,
            stalls,
        }
    }

    /// Looks at every worker, counts the stalled ones and logs changes. To be called
    /// every [`LOOK_INTERVAL`]. Whether all workers come round.
    pub fn look(&mut self, now: Instant) -> bool {
        for change in self.changes(now) {
            match change {
                Change::Stalled { worker, silent } => tracing::error!(
                    "worker {worker} has been stuck for {:.1} s: its clients wait",
                    silent.as_secs_f64()
                ),
                Change::Back { worker, silent } => tracing::warn!(
                    "worker {worker} runs again, after {:.1} s",
                    silent.as_secs_f64()
                ),
            }
        }
        self.stalls.now() == 0
    }

    fn changes(&mut self, now: Instant) -> Vec<Change> {
        let looked = self.looked.replace(now);
        let last_in_time = looked.filter(|&at| now.duration_since(at) <= LATE_LOOK);
        let mut changes = Vec::new();
        for (worker, watched) in self.workers.iter_mut().enumerate() {
            let turns = watched.heartbeat.turns.load(Ordering::Relaxed);
            let has_ended = watched.heartbeat.has_ended.load(Ordering::Relaxed);
            let has_moved = std::mem::replace(&mut watched.turns, turns) != turns || has_ended;
            match (watched.state, last_in_time) {
                (WorkerState::ComesRound, Some(since)) if !has_moved => {
                    watched.state = WorkerState::Stalled { since };
                    let silent = now.duration_since(since);
                    changes.push(Change::Stalled { worker, silent });
                }
                (WorkerState::Stalled { since }, _) if has_moved => {
                    watched.state = WorkerState::ComesRound;
                    let silent = now.duration_since(since);
                    changes.push(Change::Back { worker, silent });
                }
                _ => {}
            }
        }
        self.count(&changes);
        changes
    }

    fn count(&self, changes: &[Change]) {
        let is_stalled = |it: &&Watched| it.state != WorkerState::ComesRound;
        let now = self.workers.iter().filter(is_stalled).count();
        let more = changes
            .iter()
            .filter(|it| matches!(it, Change::Stalled { .. }));
        self.stalls.note(now as u64, more.count() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Site {
        heartbeats: [Arc<Heartbeat>; 2],
        stalls: Arc<WorkerStalls>,
        watch: Watch,
        now: Instant,
    }

    impl Site {
        fn new() -> Self {
            let heartbeats = <[Arc<Heartbeat>; 2]>::default();
            let stalls = Arc::<WorkerStalls>::default();
            Site {
                watch: Watch::new(&heartbeats, stalls.clone()),
                stalls,
                heartbeats,
                now: Instant::now(),
            }
        }

        /// A look after so long, before which these workers came round.
        fn look(&mut self, after: Duration, workers: &[usize]) -> Vec<Change> {
            self.now += after;
            workers.iter().for_each(|&it| self.heartbeats[it].beat());
            self.watch.changes(self.now)
        }
    }

    const SECOND: Duration = LOOK_INTERVAL;

    #[test]
    fn one_that_does_not_come_round_is_said_once_and_once_more_when_it_is_back() {
        let mut site = Site::new();
        assert_eq!(site.look(SECOND, &[0, 1]), []);
        assert_eq!(site.look(SECOND, &[0, 1]), []);
        let stalled = Change::Stalled {
            worker: 1,
            silent: SECOND,
        };
        assert_eq!(site.look(SECOND, &[0]), [stalled]);
        assert_eq!((site.stalls.now(), site.stalls.so_far()), (1, 1));
        assert_eq!(site.look(SECOND, &[0]), []);
        let back = Change::Back {
            worker: 1,
            silent: 3 * SECOND,
        };
        assert_eq!(site.look(SECOND, &[0, 1]), [back]);
        assert_eq!((site.stalls.now(), site.stalls.so_far()), (0, 1));
    }

    /// After a stop of the whole process (SIGSTOP, a suspended machine) the
    /// control thread may be the first to run.
    #[test]
    fn a_late_look_accuses_nobody() {
        let mut site = Site::new();
        site.look(SECOND, &[0, 1]);
        assert_eq!(site.look(60 * SECOND, &[]), []);
        assert_eq!(site.look(SECOND, &[0, 1]), []);
        assert_eq!(site.stalls.so_far(), 0);
        // One that stays behind is seen with the next look.
        assert_eq!(site.look(60 * SECOND, &[]), []);
        assert_eq!(site.look(SECOND, &[0]).len(), 1);
    }

    #[test]
    fn one_that_has_ended_is_not_late() {
        let mut site = Site::new();
        site.look(SECOND, &[0, 1]);
        assert_eq!(site.look(SECOND, &[1]).len(), 1);
        drop(Beating(site.heartbeats[0].clone()));
        drop(Beating(site.heartbeats[1].clone()));
        assert!(matches!(
            site.look(SECOND, &[])[..],
            [Change::Back { worker: 0, .. }]
        ));
        assert_eq!(site.look(SECOND, &[]), []);
        assert_eq!((site.stalls.now(), site.stalls.so_far()), (0, 1));
    }
}
