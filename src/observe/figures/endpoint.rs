//! Figures of an endpoint: its state, its load and its counters.

use evenkeel_metrics::family::Reading;
use evenkeel_metrics::{Detail, StatusFigures, figures};
use evenkeel_policy::endpoint::{Admin, EndpointState, Flag};
use serde::{Serialize, Serializer};

use super::Sources;
use super::exchanges::Phases;
use crate::observe::probes::LastProbe;

figures! {
    /// Figures of an endpoint.
    figures EndpointFigures;
    /// Counters of an endpoint.
    cells EndpointCounters;
    /// Further facts of an endpoint.
    given EndpointGiven;

    /// Its name: the address as written.
    given name: String;
    /// 1 for the state that the endpoint is in, 0 for the others.
    given state: EndpointStatus => gauge "state",
        |it| Reading::State { all: &STATE_WORDS, is: it.state.word() };
    /// Whether it is down, unreachable or ejected, whatever the operator wants.
    #[serde(skip)]
    given is_lost: bool;
    /// 1 while the endpoint gets exchanges: up, starting or on trial, with a weight above 0.
    given eligible: bool => gauge "up";
    /// The state that the operator wants.
    given admin: AdminWord;
    /// Weight set.
    given weight: u32 => gauge "weight";
    /// Weight in use: less than the weight set during slow start.
    given effective_weight: f64 => gauge "effective_weight";
    /// Its tier: it gets exchanges only while no endpoint of a lower tier takes any.
    given tier: u16;
    /// Exchanges at it now.
    given in_flight: u32 => gauge "in_flight";
    /// Most exchanges at once; absent where there is no limit.
    given max_in_flight: Option<u32> => gauge "in_flight_limit";
    /// Failed exchanges since the last success.
    given errors_in_row: u16 => gauge "errors_in_row";
    /// The result of its last probe; `null` before the first, or without probes.
    given last_probe: Option<LastProbe>;
    /// Probes that failed.
    given probes_failed: u64 => counter "probe_failures_total" after "up";
    /// Times that it was ejected for errors in a row.
    given ejections: u32 => counter "ejections_total" after "up";
    /// Times that it went down because its probes failed.
    given downs: u32 => counter "downs_total" after "ejections_total";
    /// Times that it became unreachable because connections failed.
    given unreachables: u32 => counter "unreachables_total" after "probe_failures_total";
    /// Connections in the idle pools of all workers.
    gauge idle => "idle_connections";
    /// Idle connections that each belong to one client: they authenticate or name it.
    gauge pinned => "pinned_connections";
    /// Connections of HTTP/2, with and without exchanges.
    gauge http2 => "http2_connections";
    /// Attempts made here.
    counter attempts => "attempts_total";
    /// Connections opened.
    counter connects => "connects_total";
    /// Connections that could not be opened.
    counter connect_failures => "connect_failures_total";
    /// Attempts on an open connection: from the idle pool, or of HTTP/2.
    counter reuses => "reuses_total";
    /// Idle connections found closed.
    counter stale => "stale_total";
    /// Idle connections closed to make room for others.
    counter displaced => "displaced_total";
    /// Attempts without a complete, valid response, by its fault.
    counter failures => "failures_total" after "attempts_total";
    /// Responses by class of status.
    classes status => "responses_total", |it| Reading::Classes {
        label: "class",
        names: &StatusFigures::ANSWERED,
        status: &it.status,
    };
    /// Bytes sent to it.
    counter bytes_out => "request_bytes_total";
    /// Bytes received from it.
    counter bytes_in => "response_bytes_total";
    /// Durations and sizes of exchanges whose last attempt was here.
    nested phases: Phases;
}

/// Whether an endpoint gets new exchanges, or why not: the first that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointStatus {
    /// The operator stopped it.
    Stopped,
    /// The operator drains it.
    Draining,
    /// Its probes fail.
    Down,
    /// It has not been probed yet.
    Unprobed,
    /// Connections to it fail.
    Unreachable,
    /// It is ejected for a while, after errors in a row.
    Ejected,
    /// It gets one exchange as a trial.
    Trial,
    /// Its weight rises after its return.
    Starting,
    /// It takes exchanges.
    Up,
}

/// The state that the operator wants for an endpoint, as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminWord(pub Admin);

impl AdminWord {
    /// The word.
    pub fn word(self) -> &'static str {
        match self.0 {
            Admin::Ready => "ready",
            Admin::Drain => "drain",
            Admin::Stop => "stop",
        }
    }
}

impl EndpointStatus {
    /// Every state, in the order of the checks.
    pub const ALL: [EndpointStatus; 9] = [
        EndpointStatus::Stopped,
        EndpointStatus::Draining,
        EndpointStatus::Down,
        EndpointStatus::Unprobed,
        EndpointStatus::Unreachable,
        EndpointStatus::Ejected,
        EndpointStatus::Trial,
        EndpointStatus::Starting,
        EndpointStatus::Up,
    ];

    /// The state for an endpoint's flags.
    pub fn of(endpoint: &EndpointState) -> Self {
        let flags = [
            (Flag::Stop, EndpointStatus::Stopped),
            (Flag::Drain, EndpointStatus::Draining),
            (Flag::Down, EndpointStatus::Down),
            (Flag::Unprobed, EndpointStatus::Unprobed),
            (Flag::Unreachable, EndpointStatus::Unreachable),
            (Flag::Ejected, EndpointStatus::Ejected),
            (Flag::Trial, EndpointStatus::Trial),
        ];
        let set = flags.into_iter().find(|(flag, _)| endpoint.has(*flag));
        match set {
            Some((_, state)) => state,
            None if effective_weight(endpoint) < f64::from(endpoint.weight()) => {
                EndpointStatus::Starting
            }
            None => EndpointStatus::Up,
        }
    }

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            EndpointStatus::Stopped => "stopped",
            EndpointStatus::Draining => "draining",
            EndpointStatus::Down => "down",
            EndpointStatus::Unprobed => "unprobed",
            EndpointStatus::Unreachable => "unreachable",
            EndpointStatus::Ejected => "ejected",
            EndpointStatus::Trial => "trial",
            EndpointStatus::Starting => "starting",
            EndpointStatus::Up => "up",
        }
    }
}

/// An endpoint's weight now, in units of its weight.
pub(crate) fn effective_weight(endpoint: &EndpointState) -> f64 {
    f64::from(endpoint.effective_weight()) / f64::from(evenkeel_policy::endpoint::WEIGHT_ONE)
}

/// The words for the states.
const STATE_WORDS: [&str; EndpointStatus::ALL.len()] = {
    let mut words = [""; EndpointStatus::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = EndpointStatus::ALL[at].word();
        at += 1;
    }
    words
};

impl Serialize for AdminWord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl Sources {
    /// Reads one endpoint.
    pub(crate) fn endpoint(
        &self,
        upstream: usize,
        state: &EndpointState,
        detail: Detail,
    ) -> EndpointFigures {
        let dispatcher = &self.dispatchers[upstream];
        let outages = state.outages();
        let probed = self.probes.of(upstream, state.id());
        let given = EndpointGiven {
            name: state.name().to_owned(),
            state: EndpointStatus::of(state),
            is_lost: state.is_lost(),
            eligible: state.is_eligible(),
            admin: AdminWord(dispatcher.admin(state)),
            weight: state.weight(),
            effective_weight: effective_weight(state),
            tier: state.tier(),
            in_flight: state.in_flight(),
            max_in_flight: state.max_in_flight(),
            errors_in_row: state.errors_in_row(),
            last_probe: probed.last,
            probes_failed: probed.failures,
            ejections: outages.ejections,
            downs: outages.downs,
            unreachables: outages.unreachables,
        };
        let cells = self.counters.iter();
        let cells = cells.filter_map(|it| it.endpoints[upstream].get(state));
        let cells: Vec<_> = cells.collect();
        given.with(cells.iter().map(|it| &**it), detail)
    }
}
