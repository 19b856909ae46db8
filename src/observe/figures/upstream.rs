//! Figures of an upstream and its lanes.

use std::time::SystemTime;

use evenkeel_metrics::family::whole;
use evenkeel_metrics::{Detail, Lazy, Reasons, figures};
use evenkeel_policy::dispatch::Dispatcher;

use super::Sources;
use super::endpoint::EndpointFigures;
use super::exchanges::ExchangeCounters;
use crate::config;
use crate::observe::discovered::SourceFigures;

figures! {
    /// Figures of an upstream.
    figures UpstreamFigures;
    /// Counters of an upstream.
    cells UpstreamCounters;
    /// Further facts of an upstream.
    given UpstreamGiven;

    /// Its name.
    given name: String;
    /// Its balancer.
    given balance: &'static str;
    /// Exchanges at the endpoints now.
    given in_flight: u64 => gauge "in_flight";
    /// Exchanges that wait now.
    given waiting: u64 => gauge "queue_length";
    /// Most exchanges that may wait.
    given queue_max: u64 => gauge "queue_limit";
    /// Whether it is under maintenance.
    given maintenance: bool => gauge "maintenance";
    /// Endpoints that take exchanges now.
    given eligible: usize => gauge "endpoints_eligible" after "queued_total";
    /// Exchanges that waited.
    counter queued => "queued_total";
    /// Attempts after the first of an exchange.
    counter retries => "retries_total";
    /// Retries that the budget did not allow.
    counter retries_refused => "retries_refused_total";
    /// Bodies that streamed because the memory for buffers was used up.
    counter buffers_refused => "buffers_refused_total";
    /// The exchanges routed here.
    nested exchanges: Lazy<ExchangeCounters>;
    /// Times that a name, service or file of its endpoints could not be read.
    given source_failures: u64;
    /// The same by reason: those that occurred.
    given source_failures_by_reason: Reasons => counter "source_failures_total"
        after "buffers_refused_total";
    /// Sources of its endpoints, apart from addresses in the configuration.
    given sources: Vec<SourceFigures>;
    /// Its lanes.
    given lanes: Vec<LaneFigures>;
    /// Endpoints.
    given endpoints: Vec<EndpointFigures> => gauge "endpoints" after "queued_total",
        |it| whole(it.endpoints.len() as u64);
}

figures! {
    /// Figures of a lane.
    figures LaneFigures;

    /// Its name.
    given name: String;
    /// Exchanges in the lane now.
    given in_flight: u32 => gauge "in_flight";
    /// Most exchanges in the lane.
    given max_in_flight: u32 => gauge "in_flight_limit";
}

impl Sources {
    pub(super) fn upstream(&self, index: usize, detail: Detail) -> UpstreamFigures {
        let settings = &self.config.upstreams[index];
        let dispatcher = &self.dispatchers[index];
        let members = dispatcher.members();
        let endpoints = members.endpoints().iter();
        let endpoints: Vec<_> = endpoints
            .map(|endpoint| self.endpoint(index, endpoint, detail))
            .collect();
        let eligible = members.endpoints().iter().filter(|it| it.is_eligible());
        let now = SystemTime::now();
        let sources = self.discovered.sources(&settings.name).into_iter();
        let sources: Vec<_> = sources.map(|it| it.aged(now)).collect();
        let failures = self.discovered.source_failures(&settings.name).read();
        let given = UpstreamGiven {
            name: settings.name.clone(),
            balance: settings.balance.word(),
            in_flight: endpoints.iter().map(|it| u64::from(it.in_flight)).sum(),
            waiting: dispatcher.waiting() as u64,
            queue_max: settings.queue.settings.max as u64,
            maintenance: self.maintenance.has_upstream(index),
            eligible: eligible.count(),
            source_failures: failures.total(),
            source_failures_by_reason: failures.occurred(),
            sources,
            lanes: lanes(settings, dispatcher),
            endpoints,
        };
        let cells = self.counters.iter().map(|it| &*it.upstreams[index]);
        let mut upstream = given.with(cells, detail);
        let phases = &mut upstream.exchanges.phases;
        let endpoints = upstream.endpoints.iter();
        endpoints.for_each(|it| phases.merge(&it.phases));
        let workers = self.counters.iter().map(|it| &it.endpoints[index]);
        workers.for_each(|it| it.add_phases_of_left(&members, phases, detail));
        upstream
    }
}

fn lanes(settings: &config::Upstream, dispatcher: &Dispatcher) -> Vec<LaneFigures> {
    let in_flight = |lane| dispatcher.lane_in_flight(lane);
    let lanes = settings.lanes.iter();
    lanes
        .map(|lane| LaneFigures {
            name: lane.name.clone(),
            in_flight: dispatcher.lane_named(&lane.name).map_or(0, in_flight),
            max_in_flight: lane.max_in_flight,
        })
        .collect()
}
