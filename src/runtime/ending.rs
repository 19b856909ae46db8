//! The end of the process: paths that are freed for a successor, waits, and the last lines of the
//! event log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::start::{Process, Writing};
use crate::config::Config;
use crate::lifecycle::{DrainMode, Phase};
use crate::metrics::end::End;
use crate::metrics::quantity::counted;
use crate::net::listen::SocketFile;
use crate::observe::counters::Counters;

/// Longer than any process lives.
pub(super) const NO_DEADLINE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Longest wait for the access logs, and for spans, once the workers have ended.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

impl Process {
    /// Has the workers drain until this moment.
    ///
    /// Invariant: every address is free for a successor as soon as draining begins.
    /// Files of Unix sockets go first, then workers and the status page close their
    /// listening sockets.
    pub fn drain(&mut self, deadline: Instant) {
        self.sources().is_draining.store(true, Ordering::Relaxed);
        self.discovery.leave_state_file();
        self.listeners.remove_files();
        self.status_copies = None;
        drop(self.status_file.take());
        if let Some(file) = self.control_file.take() {
            self.moved_control_file = move_aside(file);
        }
        self.drain_until(deadline);
    }

    /// Changes the moment up to which the workers drain.
    pub fn drain_until(&self, deadline: Instant) {
        self.phase.send_replace(Phase::Drain {
            deadline,
            manner: DrainMode::Ending,
        });
    }

    /// Has the workers drain, as another process has all addresses.
    ///
    /// Invariant: files of Unix sockets stay, and so do the sockets: the other process
    /// has both.
    pub fn hand_over(&mut self, idle_until: Instant, tunnels_until: Instant) {
        self.sources().is_draining.store(true, Ordering::Relaxed);
        self.discovery.leave_state_file();
        self.listeners.leave_files();
        self.status_copies = None;
        if let Some(file) = self.status_file.take() {
            file.leave();
        }
        // If the control socket is still here, the other process wants another path, or none.
        drop(self.control_file.take());
        self.sources().caches.iter().for_each(|it| it.close());
        self.phase.send_replace(Phase::Drain {
            deadline: Instant::now() + NO_DEADLINE,
            manner: DrainMode::HandedOver {
                idle_until,
                tunnels_until,
            },
        });
    }

    /// Gives the control socket another path, over which the drain can be watched
    /// still. Another process may put its own file at its path.
    pub fn lend_control_path(&mut self) {
        let Some(file) = &self.control_file else {
            return;
        };
        match file.link_aside() {
            Ok(Some(file)) => {
                let path = file.path().display();
                tracing::info!("control socket: at {path} while this process drains");
                self.moved_control_file = Some(file);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("control socket: none while this process drains: {error}");
            }
        }
    }

    /// Moves the control socket back to its own path. The other process is gone, and may have
    /// left its file there.
    pub fn take_back_control_path(&mut self) {
        // A drain has taken it.
        let Some(file) = self.control_file.take() else {
            return;
        };
        self.control_file = match self.moved_control_file.take() {
            Some(mut moved) if !file.is_there() => {
                if let Err(error) = moved.move_to(file.path()) {
                    let (at, path) = (moved.path().display(), file.path().display());
                    tracing::warn!(
                        "control socket: at {at}, because it can't be moved to {path}: {error}"
                    );
                }
                // The moved path leads to the same file now, which a drop of `file` would remove.
                file.leave();
                Some(moved)
            }
            _ => Some(file),
        };
    }
}

/// Waits for workers that have said that they end.
pub(super) fn join_workers(workers: Vec<JoinHandle<io::Result<()>>>) {
    for worker in workers {
        match worker.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("a worker failed: {error}"),
            Err(_) => tracing::error!("a worker panicked"),
        }
    }
}

impl Writing {
    /// Waits until all is written, a few seconds at most. Gives the lines that are
    /// lost. Blocks.
    pub fn finish(self) -> u64 {
        self.exporters.finish(LOG_TIMEOUT);
        self.log_writer.finish(LOG_TIMEOUT)
    }
}

/// Frees the path of the control socket, over which the drain can be watched still.
fn move_aside(file: SocketFile) -> Option<SocketFile> {
    match file.move_aside() {
        Ok(Some(file)) => {
            let path = file.path().display();
            tracing::info!("control socket: at {path} while this process drains");
            Some(file)
        }
        Ok(None) => None,
        Err(error) => {
            tracing::warn!("control socket: closed, because it can't be moved: {error}");
            None
        }
    }
}

/// Says in the event log what every listener and upstream has done.
pub(super) fn summarise(config: &Config, counters: &[Arc<Counters>], unwritten: u64) {
    for (index, listener) in config.listeners.iter().enumerate() {
        let sum = |count: &dyn Fn(&Counters) -> u64| -> u64 {
            counters.iter().map(|counters| count(counters)).sum()
        };
        let requests = sum(&|c| c.listeners[index].exchanges.requests.value());
        let connections = sum(&|c| c.listeners[index].connections.value());
        let ends: Vec<_> = End::all()
            .map(|end| {
                let count = sum(&|c| c.listeners[index].exchanges.ends[end.index()].value());
                (end.word(), count)
            })
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{word} {count}"))
            .collect();
        tracing::info!(
            "listener {}: {}, {}{}",
            listener.name,
            counted(connections, "connection"),
            counted(requests, "request"),
            match ends.join(", ") {
                ends if ends.is_empty() => ends,
                ends => format!(" ({ends})"),
            }
        );
    }
    let dropped: u64 = counters
        .iter()
        .map(|c| c.worker.own.log_lines_dropped.value())
        .sum();
    if dropped + unwritten > 0 {
        let lost = counted(dropped + unwritten, "line");
        tracing::warn!("access log: {lost} lost");
    }
    tracing::info!("stopped");
}
