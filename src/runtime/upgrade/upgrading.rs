//! Upgrades as the control thread sees them: one at a time, and how each ends.

use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Invocation;
use super::successor::{CountsSender, Failed, StartProgress, Starting, StateSender};
use crate::admin::{Outcome, STATUS_PAGE};
use crate::runtime::handover::CountsBefore;
use crate::runtime::listeners::Lent;
use crate::runtime::service::ServiceManager;
use crate::runtime::start::Process;

/// The upgrade that is under way, if any.
#[derive(Debug)]
pub(in crate::runtime) struct Upgrading {
    invocation: Invocation,
    starting: Option<Starting>,
    asker: Option<oneshot::Sender<Outcome>>,
    counts: Option<CountsSender>,
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

    /// Starts a program that is to take over, if that is allowed. If the start fails, the process
    /// goes on.
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
            Err(refused("an upgrade is in progress"))
        } else if std::process::id() == FIRST_PROCESS {
            Err(refused(
                "this is process 1, and the container would stop with it: start another container",
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

    /// How far the program has come that was started.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    pub async fn heard(&mut self) -> Result<StartProgress, Failed> {
        match &mut self.starting {
            Some(starting) => starting.heard().await,
            None => std::future::pending().await,
        }
    }

    /// Has a ready program serve, or hands over to one that serves. Whether it has taken over.
    pub fn follow(
        &mut self,
        process: &mut Process,
        heard: Result<StartProgress, Failed>,
        service: &mut ServiceManager,
    ) -> bool {
        let successor = match heard {
            Ok(StartProgress::Ready(successor)) => {
                process.lend_control_path();
                service.succeeded_by(successor.pid);
                if let Some(starting) = &mut self.starting {
                    starting.have_serve(successor);
                }
                return false;
            }
            Ok(StartProgress::Serving(successor)) => successor,
            Err(failed) => {
                self.end(process, service, &failed);
                return false;
            }
        };
        successor.release();
        self.starting = None;
        service.leave();
        let pid = successor.pid;
        process.sources().upgrades.note_done();
        let server = &process.sources().config.server;
        let now = Instant::now();
        let mut counts = successor.counts_teller(process.current.clone());
        process.hand_over(now + server.drain_timeout, now + server.tunnel_timeout);
        tracing::info!(
            pid,
            "upgrade: process {pid} has taken over; this one finishes its connections"
        );
        if let Err(error) = counts.begin() {
            tracing::warn!("upgrade: counters of the new process start from 0: {error}");
        }
        self.counts = Some(counts);
        if let Some(asker) = self.asker.take() {
            let old = std::process::id();
            let told = format!("process {pid} has taken over from process {old}");
            // The asker may have given up meanwhile.
            let _ = asker.send(Ok(told));
        }
        true
    }

    /// Whether a program is being started.
    pub fn is_under_way(&self) -> bool {
        self.starting.is_some()
    }

    /// Ends a program that is being started: the process is to stop.
    pub fn give_up(&mut self, process: &mut Process, service: &mut ServiceManager) {
        self.end(process, service, &Failed::Stopping);
    }

    /// Ends a program that is being started, takes back its loans, and logs why.
    fn end(&mut self, process: &mut Process, service: &mut ServiceManager, failed: &Failed) {
        let Some(starting) = self.starting.take() else {
            return;
        };
        starting.give_up();
        process.take_back_control_path();
        service.goes_on();
        fail(process, failed, self.asker.take());
    }

    /// Tells the successor the last counts, and has it hear of the process before this one, if
    /// that still counts. May block for a moment.
    pub fn tell_last_counts(&mut self, before: Option<CountsBefore>) {
        if let Some(counts) = self.counts.take() {
            // First, so that the last counts have all that was heard of.
            let unheard = before.and_then(CountsBefore::leave);
            counts.finish(unheard);
        }
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
    tracing::info!("upgrade: starting {}", plan.program.display());
    let teller = StateSender {
        sources: process.sources(),
        upstreams: process.upstreams.clone(),
        discovery: process.discovery.clone(),
    };
    Starting::begin(plan, teller)
}

/// Nobody takes over, and the process says why.
fn fail(process: &Process, failed: &Failed, asker: Option<oneshot::Sender<Outcome>>) {
    let reason = failed.word();
    process.sources().upgrades.note_failed(reason);
    let then = match failed {
        Failed::Stopping => "",
        _ => "; this process goes on",
    };
    tracing::error!(reason, "upgrade failed ({reason}): {failed}{then}");
    if let Some(asker) = asker {
        // The asker may have given up meanwhile.
        let _ = asker.send(Err(format!("upgrade failed ({reason}): {failed}")));
    }
}
