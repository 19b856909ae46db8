//! Upgrades as the control thread sees them: one at a time, and how each ends.

use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Invocation;
use super::successor::{CountsTeller, Failed, Starting, Successor, Teller};
use crate::admin::{Outcome, STATUS_PAGE};
use crate::runtime::listeners::Lent;
use crate::runtime::service::ServiceManager;
use crate::runtime::start::Process;

/// The upgrade that is under way, if any.
#[derive(Debug)]
pub(in crate::runtime) struct Upgrading {
    invocation: Invocation,
    starting: Option<Starting>,
    asker: Option<oneshot::Sender<Outcome>>,
    counts: Option<CountsTeller>,
}

/// The first process of a container: its end is the container's.
const FIRST_PROCESS: u32 = 1;

impl Upgrading {
    /// None yet. To be called at the start of the process.
    pub fn new() -> Self {
        Upgrading {
            invocation: Invocation::of_this_process(),
            starting: None,
            asker: None,
            counts: None,
        }
    }

    /// Starts a program that is to take over, if that is allowed. Where that can't be, the
    /// process goes on.
    pub fn begin(
        &mut self,
        process: &Process,
        allowed: Result<(), Failed>,
        binary: Option<PathBuf>,
        asker: Option<oneshot::Sender<Outcome>>,
    ) {
        let refused = |why: &str| Failed::NotStarted {
            why: why.to_owned(),
        };
        let begun = if let Err(failed) = allowed {
            Err(failed)
        } else if self.starting.is_some() {
            Err(refused("an upgrade is under way"))
        } else if std::process::id() == FIRST_PROCESS {
            Err(refused(
                "this is process 1, with whose end a container ends: start another container",
            ))
        } else {
            start(&self.invocation, process, binary).map_err(|error| refused(&error.to_string()))
        };
        match begun {
            Ok(starting) => {
                self.starting = Some(starting);
                self.asker = asker;
            }
            Err(failed) => fail(process, &failed, asker),
        }
    }

    /// What became of the program that was started.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    pub async fn outcome(&mut self) -> Result<Successor, Failed> {
        match &mut self.starting {
            Some(starting) => starting.outcome().await,
            None => std::future::pending().await,
        }
    }

    /// Hands over to a program that is ready. Whether it has taken over.
    pub fn end(
        &mut self,
        process: &mut Process,
        is_draining: bool,
        outcome: Result<Successor, Failed>,
        service: &mut ServiceManager,
    ) -> bool {
        let asker = self.asker.take();
        let starting = self.starting.take();
        let successor = match outcome {
            Ok(_) if is_draining => Err(Failed::Stopping),
            outcome => outcome,
        };
        let handed_over = successor.and_then(|successor| {
            process.lend_control_path();
            service.succeeded_by(successor.pid);
            match successor.serve() {
                Ok(()) => Ok(successor),
                Err(error) => {
                    service.goes_on();
                    Err(Failed::Ended {
                        how: error.to_string(),
                    })
                }
            }
        });
        let successor = match handed_over {
            Ok(successor) => successor,
            Err(failed) => {
                starting.iter().for_each(Starting::give_up);
                fail(process, &failed, asker);
                return false;
            }
        };
        let pid = successor.pid;
        process.sources().upgrades.note_done();
        let server = &process.sources().config.server;
        let now = Instant::now();
        process.hand_over(now + server.drain_timeout, now + server.tunnel_timeout);
        tracing::info!(
            pid,
            "upgrade: process {pid} has taken over; this one finishes what it has"
        );
        match successor.tell_counts(process.current.clone()) {
            Ok(counts) => self.counts = Some(counts),
            Err(error) => tracing::warn!("upgrade: counters begin anew there: {error}"),
        }
        if let Some(asker) = asker {
            let old = std::process::id();
            let told = format!("process {pid} has taken over from process {old}");
            // Who asked may have given up meanwhile.
            let _ = asker.send(Ok(told));
        }
        true
    }

    /// Whether a program is being started.
    pub fn is_under_way(&self) -> bool {
        self.starting.is_some()
    }

    /// Ends a program that is being started: the process is to stop.
    pub fn give_up(&self) {
        self.starting.iter().for_each(Starting::give_up);
    }

    /// Tells the process that has taken over what was counted to the end.
    pub fn tell_last_counts(&mut self) {
        self.counts
            .take()
            .into_iter()
            .for_each(CountsTeller::finish);
    }
}

fn start(
    invocation: &Invocation,
    process: &Process,
    binary: Option<PathBuf>,
) -> std::io::Result<Starting> {
    let config = process.sources().config.clone();
    let mut lent: Vec<Lent<'_>> = process.listeners.lend().collect();
    if let (Some(status), Some(copies)) = (&config.status, &process.status_copies) {
        lent.push(Lent {
            name: STATUS_PAGE,
            wanted: &status.bind,
            copies,
            file: process.status_file.as_ref(),
        });
    }
    let timeout = config.server.upgrade_timeout;
    let plan = invocation.plan(binary, &lent, &config, &process.discovery, timeout)?;
    for lost in process.listeners.lost_paths() {
        tracing::warn!("upgrade: {lost}");
    }
    tracing::info!("upgrade: starting {}", plan.program.display());
    let teller = Teller {
        sources: process.sources(),
        upstreams: process.upstreams.clone(),
        discovery: process.discovery.clone(),
    };
    Starting::begin(plan, teller)
}

/// The process goes on, and says why.
fn fail(process: &Process, failed: &Failed, asker: Option<oneshot::Sender<Outcome>>) {
    let reason = failed.word();
    process.sources().upgrades.note_failed(reason);
    tracing::error!(
        reason,
        "upgrade failed ({reason}): {failed}; this process goes on"
    );
    if let Some(asker) = asker {
        // Who asked may have given up meanwhile.
        let _ = asker.send(Err(format!("upgrade failed ({reason}): {failed}")));
    }
}
