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

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{EndpointState, Flag};
use evenkeel_policy::health::Change;
use evenkeel_policy::members::Members;
use tokio::task::{JoinHandle, spawn_local};
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
    /// Ticks for ever, and has a task for each endpoint with a probe.
    async fn watch(self: &Rc<Self>) {
        let upstreams = &self.watched.upstreams;
        let mut watches: Vec<_> = upstreams.iter().map(|_| UpstreamWatch::default()).collect();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = clock::now();
            for (index, watch) in watches.iter_mut().enumerate() {
                upstreams[index].dispatcher().tick(now);
                watch.follow(self, index);
                watch.endpoints.iter_mut().for_each(EndpointWatch::look);
            }
        }
    }
}

/// The endpoints of one upstream, watched.
#[derive(Default)]
struct UpstreamWatch {
    /// Those that `endpoints` are of.
    members: Option<Arc<Members>>,
    endpoints: Vec<EndpointWatch>,
}

impl UpstreamWatch {
    /// Begins to watch endpoints that joined, and gives those up that left.
    fn follow(&mut self, health: &Rc<Health>, upstream: usize) {
        let shared = &health.watched.upstreams[upstream];
        let members = shared.dispatcher().members();
        if self
            .members
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, &members))
        {
            return;
        }
        self.members = Some(members);
        let before = std::mem::take(&mut self.endpoints).into_iter();
        let before = before.map(|it| (Arc::as_ptr(&it.watch.endpoint), it));
        let mut before: HashMap<_, _> = before.collect();
        let endpoints = shared.members().into_iter().map(|endpoint| {
            let known = before.remove(&Arc::as_ptr(&endpoint));
            let known = known.filter(|it| !it.watch.has_returned());
            known.unwrap_or_else(|| EndpointWatch::begin(health, upstream, endpoint))
        });
        self.endpoints.extend(endpoints);
    }
}

/// One endpoint, and the tasks that watch it. They end with this.
struct EndpointWatch {
    watch: Watch,
    probing: Option<JoinHandle<()>>,
    trying: Option<JoinHandle<()>>,
}

impl EndpointWatch {
    fn begin(health: &Rc<Health>, upstream: usize, endpoint: Arc<SharedEndpoint>) -> Self {
        health.watched.probes.begin(upstream, endpoint.state.id());
        let watch = Watch {
            health: health.clone(),
            upstream,
            endpoint,
        };
        let is_probed = watch.upstream().probe.is_some();
        EndpointWatch {
            probing: is_probed.then(|| spawn_local(watch.clone().probe_for_ever())),
            trying: None,
            watch,
        }
    }

    /// Has it tried whether the endpoint is back, where that is wanted.
    fn look(&mut self) {
        let is_trying = self.trying.as_ref().is_some_and(|it| !it.is_finished());
        if self.watch.wants_connection() && !is_trying {
            self.trying = Some(spawn_local(self.watch.clone().try_until_reached()));
        }
    }
}

impl Drop for EndpointWatch {
    fn drop(&mut self) {
        let tasks = [&self.probing, &self.trying].into_iter().flatten();
        tasks.for_each(JoinHandle::abort);
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

    /// Whether the endpoint left and came back since its last probe.
    fn has_returned(&self) -> bool {
        let is_probed = || {
            let probed = self
                .health
                .watched
                .probes
                .of(self.upstream, self.state().id());
            probed.last.is_some()
        };
        self.state().has(Flag::Unprobed) && is_probed()
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
