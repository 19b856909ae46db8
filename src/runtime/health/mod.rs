//! Health of endpoints: a duty of the control thread, one for the process whatever
//! the number of workers.
//!
//! It probes endpoints, tries whether unreachable ones are back, and lets time pass for every
//! upstream. The results go to the dispatchers, which all workers share. Every change is a line
//! of the event log.
//!
//! A probe or a try of an endpoint with a limit takes one of its slots, as an
//! exchange does: see [`Watch::admit`].

mod admission;
mod probing;
mod required;
mod trying;

pub(super) use required::{NewUpstream, require_healthy};

use std::cell::{Ref, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{EndpointState, Flag};
use evenkeel_policy::health::Change;
use evenkeel_policy::members::Members;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval};

use super::permits::{Permits, Share};
use crate::config::{Config, Endpoint, Upstream};
use crate::net::clock;
use crate::net::timer::TICK;
use crate::observe::counters::Counters;
use crate::observe::inquiry::Inquiry;
use crate::observe::probes::{Probes, UpstreamProbes};
use crate::upstream::change::log_change;
use crate::upstream::{SharedEndpoint, SharedUpstream};

/// Probes at once of one upstream; of all together twice as many. As many tries
/// beside them.
const MOST_AT_ONCE: usize = 256;
/// Longest time between two tries, or between probes of an endpoint that had none yet.
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// The configuration and upstreams to watch, and where results are noted.
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

/// Watches upstreams for ever, in local tasks beside this one.
///
/// An upstream that stays goes on as it is: nothing is forgotten of its endpoints. If its probes
/// are others, the next ones come within their interval.
pub(super) async fn watch(mut watched: watch::Receiver<Arc<Watched>>) {
    let mut health = Health::new(&watched.borrow_and_update());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            Ok(()) = watched.changed() => {
                let now = watched.borrow_and_update().clone();
                health.follow(&now);
            }
            _ = ticks.tick() => health.tick(),
        }
    }
}

/// Every upstream, watched.
struct Health {
    common: Rc<Common>,
    upstreams: Vec<UpstreamWatch>,
}

/// State that the tasks of all upstreams share.
struct Common {
    probe_permits: Permits,
    try_permits: Permits,
    /// Per worker.
    inquiries: Vec<Inquiry>,
}

impl Health {
    fn new(watched: &Arc<Watched>) -> Self {
        let common = Rc::new(Common {
            probe_permits: Permits::new(MOST_AT_ONCE),
            try_permits: Permits::new(MOST_AT_ONCE),
            inquiries: watched.inquiries.clone(),
        });
        let mut health = Health {
            common,
            upstreams: Vec::new(),
        };
        health.follow(watched);
        health
    }

    /// Watches the upstreams of another configuration from now on.
    fn follow(&mut self, watched: &Arc<Watched>) {
        let before = std::mem::take(&mut self.upstreams).into_iter();
        let before = before.map(|it| (Arc::as_ptr(&it.of.shared), it));
        let mut before: HashMap<_, _> = before.collect();
        let upstreams = watched.upstreams.iter().enumerate();
        self.upstreams.extend(upstreams.map(|(index, shared)| {
            let current = Current {
                watched: watched.clone(),
                index,
            };
            match before.remove(&Arc::as_ptr(shared)) {
                Some(mut known) => {
                    known.follow_settings(current);
                    known
                }
                None => UpstreamWatch::new(UpstreamContext::new(&self.common, shared, current)),
            }
        }));
    }

    /// Lets time pass for every upstream, and has a task for each endpoint with a probe.
    fn tick(&mut self) {
        let now = clock::now();
        for upstream in &mut self.upstreams {
            upstream.of.shared.dispatcher().tick(now);
            upstream.follow_members();
            upstream.endpoints.iter_mut().for_each(EndpointWatch::look);
        }
    }
}

/// The configuration of an upstream, as it is now.
#[derive(Clone)]
struct Current {
    watched: Arc<Watched>,
    /// Its place there.
    index: usize,
}

impl Current {
    fn config(&self) -> &Upstream {
        &self.watched.config.upstreams[self.index]
    }
}

/// State that the tasks of one upstream share.
struct UpstreamContext {
    common: Rc<Common>,
    shared: Arc<SharedUpstream>,
    probe_share: Rc<Share>,
    try_share: Rc<Share>,
    current: RefCell<Current>,
}

impl UpstreamContext {
    fn new(common: &Rc<Common>, shared: &Arc<SharedUpstream>, current: Current) -> Rc<Self> {
        Rc::new(UpstreamContext {
            probe_share: common.probe_permits.share(),
            try_share: common.try_permits.share(),
            common: common.clone(),
            shared: shared.clone(),
            current: RefCell::new(current),
        })
    }

    /// Its configuration as it is now; not to be held over a wait.
    fn current(&self) -> Ref<'_, Current> {
        self.current.borrow()
    }
}

/// One upstream and its endpoints, watched.
struct UpstreamWatch {
    of: Rc<UpstreamContext>,
    /// The list that `endpoints` was made from.
    members: Option<Arc<Members>>,
    endpoints: Vec<EndpointWatch>,
}

impl UpstreamWatch {
    fn new(of: Rc<UpstreamContext>) -> Self {
        UpstreamWatch {
            of,
            members: None,
            endpoints: Vec::new(),
        }
    }

    /// Goes on with this configuration. Changed probes start again.
    fn follow_settings(&mut self, current: Current) {
        let before = self.of.current.replace(current);
        if before.config().tls != self.of.current().config().tls {
            // The members are the same, and their connections are not.
            self.members = None;
        }
        let are_others = before.config().probe != self.of.current().config().probe;
        if are_others {
            self.endpoints.iter_mut().for_each(EndpointWatch::probe);
        }
    }

    /// Begins to watch endpoints that joined, and gives up endpoints that left.
    fn follow_members(&mut self) {
        let members = self.of.shared.dispatcher().members();
        if self
            .members
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, &members))
        {
            return;
        }
        self.members = Some(members);
        let before = std::mem::take(&mut self.endpoints).into_iter();
        let before = before.map(|it| (Arc::as_ptr(&it.watch.endpoint.state), it));
        let mut before: HashMap<_, _> = before.collect();
        let endpoints = self.of.shared.members().into_iter().map(|endpoint| {
            let known = before.remove(&Arc::as_ptr(&endpoint.state));
            match known.filter(|it| !it.watch.has_returned()) {
                Some(known) if Arc::ptr_eq(&known.watch.endpoint, &endpoint) => known,
                // The same one, with another kind of pool or another TLS.
                Some(_) => EndpointWatch::new(&self.of, endpoint),
                None => {
                    self.of.probes().begin(endpoint.state.id());
                    EndpointWatch::new(&self.of, endpoint)
                }
            }
        });
        self.endpoints.extend(endpoints);
    }
}

impl UpstreamContext {
    /// The shown probes of its endpoints.
    fn probes(&self) -> Arc<UpstreamProbes> {
        let current = self.current();
        current.watched.probes.of_upstream(current.index).clone()
    }
}

/// One endpoint, and the tasks that watch it. They end with this.
struct EndpointWatch {
    watch: Watch,
    probing: Option<JoinHandle<()>>,
    trying: Option<JoinHandle<()>>,
}

impl EndpointWatch {
    fn new(of: &Rc<UpstreamContext>, endpoint: Arc<SharedEndpoint>) -> Self {
        let mut watch = EndpointWatch {
            watch: Watch {
                upstream: of.clone(),
                endpoint,
            },
            probing: None,
            trying: None,
        };
        watch.probe();
        watch
    }

    /// Probes it as its upstream says now.
    fn probe(&mut self) {
        let settings = self.watch.upstream.current().config().probe.clone();
        let probing = settings.map(|it| spawn_local(self.watch.clone().probe_for_ever(it)));
        if let Some(before) = std::mem::replace(&mut self.probing, probing) {
            before.abort();
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
    upstream: Rc<UpstreamContext>,
    endpoint: Arc<SharedEndpoint>,
}

impl Watch {
    /// Its upstream's name.
    fn upstream_name(&self) -> String {
        self.upstream.current().config().name.clone()
    }

    fn config(&self) -> &Endpoint {
        &self.endpoint.settings
    }

    fn dispatcher(&self) -> &Dispatcher {
        self.upstream.shared.dispatcher()
    }

    fn state(&self) -> &EndpointState {
        &self.endpoint.state
    }

    /// Whether the endpoint left and came back since its last probe.
    fn has_returned(&self) -> bool {
        let is_probed = || self.upstream.probes().of(self.state().id()).last.is_some();
        self.state().has(Flag::Unprobed) && is_probed()
    }

    fn wants_connection(&self) -> bool {
        self.dispatcher().wants_connection(self.state())
    }

    fn log(&self, change: Option<Change>, detail: Option<&str>) {
        if let Some(change) = change {
            log_change(&self.upstream_name(), &self.config().name, &change, detail);
        }
    }
}

#[cfg(test)]
mod tests;
