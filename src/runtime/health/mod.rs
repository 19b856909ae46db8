//! Health of endpoints: a duty of the control thread, one for the process whatever
//! the number of workers.
//!
//! It probes endpoints, tries whether those are back that could not be
//! connected to, and lets time pass for every upstream. What it learns goes to
//! the dispatchers, which all workers share; every change is a line of the
//! event log.
//!
//! A probe or a try of an endpoint with a limit takes one of its slots, as an
//! exchange does: see [`Watch::admit`].

mod admission;
mod probing;
mod trying;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::EndpointState;
use evenkeel_policy::health::Change;
use tokio::time::{MissedTickBehavior, interval};

use super::permits::Permits;
use crate::config::{Config, Endpoint, Upstream};
use crate::net::clock;
use crate::net::timer::TICK;
use crate::observe::counters::Counters;
use crate::observe::inquiry::Inquiry;
use crate::observe::probes::Probes;
use crate::upstream::change::log_change;
use crate::upstream::{SharedEndpoint, SharedUpstream};

/// Probes at once of one upstream; of all together twice as many. As many tries
/// beside them.
const MOST_AT_ONCE: usize = 256;
/// Longest time between two tries, or between probes of an endpoint that had none yet.
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// What is watched, and where it is noted what was seen.
#[derive(Debug)]
pub(super) struct Watched {
    pub config: Arc<Config>,
    pub upstreams: Vec<Arc<SharedUpstream>>,
    /// Per worker.
    pub counters: Vec<Arc<Counters>>,
    /// Per worker.
    pub inquiries: Vec<Inquiry>,
    pub probes: Arc<Probes>,
}

/// Watches for ever, in local tasks beside this one.
pub(super) async fn watch(watched: Watched) {
    let upstreams = watched.config.upstreams.len();
    let health = Rc::new(Health {
        watched,
        probe_permits: Permits::new(MOST_AT_ONCE, upstreams),
        try_permits: Permits::new(MOST_AT_ONCE, upstreams),
    });
    health.watch().await;
}

/// What the tasks share.
struct Health {
    watched: Watched,
    probe_permits: Permits,
    try_permits: Permits,
}

impl Health {
    /// Starts a task for each endpoint with a probe, then ticks for ever.
    async fn watch(self: &Rc<Self>) {
        let mut watched = Vec::new();
        for (index, upstream) in self.watched.config.upstreams.iter().enumerate() {
            for endpoint in self.watched.upstreams[index].members() {
                self.watched.probes.begin(index, endpoint.state.id());
                let watch = self.endpoint(index, endpoint);
                if upstream.probe.is_some() {
                    tokio::task::spawn_local(watch.clone().probe_for_ever());
                }
                watched.push((watch, None::<tokio::task::JoinHandle<()>>));
            }
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = clock::now();
            let upstreams = &self.watched.upstreams;
            upstreams.iter().for_each(|it| it.dispatcher().tick(now));
            for (watch, trying) in &mut watched {
                let is_trying = trying.as_ref().is_some_and(|task| !task.is_finished());
                if watch.wants_connection() && !is_trying {
                    *trying = Some(tokio::task::spawn_local(watch.clone().try_until_reached()));
                }
            }
        }
    }

    fn endpoint(self: &Rc<Self>, upstream: usize, endpoint: Arc<SharedEndpoint>) -> Watch {
        Watch {
            health: self.clone(),
            upstream,
            endpoint,
        }
    }
}

/// One endpoint, watched.
#[derive(Clone)]
struct Watch {
    health: Rc<Health>,
    upstream: usize,
    endpoint: Arc<SharedEndpoint>,
}

impl Watch {
    fn upstream(&self) -> &Upstream {
        &self.health.watched.config.upstreams[self.upstream]
    }

    fn config(&self) -> &Endpoint {
        &self.endpoint.settings
    }

    fn dispatcher(&self) -> &Dispatcher {
        self.health.watched.upstreams[self.upstream].dispatcher()
    }

    fn state(&self) -> &EndpointState {
        &self.endpoint.state
    }

    fn wants_connection(&self) -> bool {
        self.dispatcher().wants_connection(self.state())
    }

    fn log(&self, change: Option<Change>, detail: Option<&str>) {
        if let Some(change) = change {
            log_change(&self.upstream().name, &self.config().name, &change, detail);
        }
    }
}

#[cfg(test)]
mod tests;
