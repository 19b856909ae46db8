//! The names of HAProxy's own exporter (version 2.6) for our metrics, so that its dashboards and
//! alerts keep working.
//!
//! HAProxy's metrics that we do not count are absent, and not 0: rates, maxima, averages over the
//! last 1024 sessions, TLS, compression.

use evenkeel_metrics::StatusFigures;
use evenkeel_metrics::family::Kind::{Counter, Gauge};
use evenkeel_metrics::family::{Metric, Reading, Value, maybe, metric, whole};

use super::endpoint_labels;
use super::family::{Labels, Writer, each};
use crate::admin::haproxy::{
    SERVER_STATES, active_weight, backend_state, client_aborts, connection_attempts,
    request_errors, response_errors, server_aborts, server_state, sum, throttle, went_down,
};
use crate::observe::figures::{EndpointFigures, Figures, ListenerFigures, UpstreamFigures};

const PROXY_STATES: [&str; 2] = ["DOWN", "UP"];
const RESPONSES: &str = "http_responses_total";
const RESPONSES_HELP: &str = "Responses by class of status.";

const PROCESS: &[Metric<Figures>] = &[
    metric("nbthread", Gauge, "Worker threads.", |it| {
        whole(it.workers as u64)
    }),
    metric("uptime_seconds", Gauge, "Time since the start.", |it| {
        whole(it.uptime_ms / 1000)
    }),
    metric(
        "start_time_seconds",
        Gauge,
        "Start time, in seconds since 1970.",
        |it| whole(it.started_unix_ms / 1000),
    ),
    metric(
        "max_fds",
        Gauge,
        "Most file descriptors that may be open.",
        |it| maybe(it.process.max_fds),
    ),
    metric(
        "current_connections",
        Gauge,
        "Connections of clients open now.",
        |it| whole(it.listeners.iter().map(|it| it.open).sum::<u64>()),
    ),
    metric(
        "connections_total",
        Counter,
        "Connections of clients accepted.",
        |it| whole(it.listeners.iter().map(|it| it.connections).sum::<u64>()),
    ),
    metric("requests_total", Counter, "Requests.", |it| {
        let requests = it.listeners.iter().map(|it| it.exchanges.requests);
        whole(requests.sum::<u64>())
    }),
    metric(
        "bytes_out_total",
        Counter,
        "Bytes of responses to clients.",
        |it| {
            let bytes = it.listeners.iter().map(|it| it.exchanges.bytes_out);
            whole(bytes.sum::<u64>())
        },
    ),
    metric("listeners", Gauge, "Listeners.", |it| {
        whole(it.listeners.len() as u64)
    }),
    metric(
        "dropped_logs_total",
        Counter,
        "Access log lines dropped.",
        |it| whole(it.log_lines_dropped + it.log_lines_lost),
    ),
];

const BUILD: &[Metric<Figures>] = &[metric("build_info", Gauge, "Build info.", |_| whole(1_u64))];

const FRONTEND: &[Metric<ListenerFigures>] = &[
    metric("current_sessions", Gauge, "Connections open now.", |it| {
        whole(it.open)
    }),
    metric("limit_sessions", Gauge, "Most connections at once.", |it| {
        maybe(it.connections_limit)
    }),
    metric("sessions_total", Counter, "Connections accepted.", |it| {
        whole(it.connections)
    }),
    metric(
        "connections_total",
        Counter,
        "Connections accepted.",
        |it| whole(it.connections),
    ),
    metric("bytes_in_total", Counter, "Bytes of requests.", |it| {
        whole(it.exchanges.bytes_in)
    }),
    metric("bytes_out_total", Counter, "Bytes of responses.", |it| {
        whole(it.exchanges.bytes_out)
    }),
    metric(
        "request_errors_total",
        Counter,
        "Requests refused because they were malformed or late.",
        |it| whole(request_errors(&it.exchanges)),
    ),
    metric("status", Gauge, "Current status, per state.", |it| {
        Reading::State {
            all: &PROXY_STATES,
            is: if it.accepting { "UP" } else { "DOWN" },
        }
    }),
    metric("http_requests_total", Counter, "Requests.", |it| {
        whole(it.exchanges.requests)
    }),
    metric(RESPONSES, Counter, RESPONSES_HELP, |it| {
        responses(&it.exchanges.status)
    }),
];

const BACKEND: &[Metric<UpstreamFigures>] = &[
    metric("current_queue", Gauge, "Requests in the queue.", |it| {
        whole(it.waiting)
    }),
    metric(
        "current_sessions",
        Gauge,
        "Requests at the servers now.",
        |it| whole(it.in_flight),
    ),
    metric("sessions_total", Counter, "Requests.", |it| {
        whole(it.exchanges.requests)
    }),
    metric("http_requests_total", Counter, "Requests.", |it| {
        whole(it.exchanges.requests)
    }),
    metric("bytes_in_total", Counter, "Bytes of requests.", |it| {
        whole(it.exchanges.bytes_in)
    }),
    metric("bytes_out_total", Counter, "Bytes of responses.", |it| {
        whole(it.exchanges.bytes_out)
    }),
    metric(
        "connection_errors_total",
        Counter,
        "Connections that could not be opened.",
        |it| whole(sum(it, |it| it.connect_failures)),
    ),
    metric(
        "response_errors_total",
        Counter,
        "Attempts that failed once connected.",
        |it| whole(sum(it, response_errors)),
    ),
    metric("retry_warnings_total", Counter, "Retries.", |it| {
        whole(it.retries)
    }),
    metric("status", Gauge, "Current status, per state.", |it| {
        Reading::State {
            all: &PROXY_STATES,
            is: backend_state(it),
        }
    }),
    metric("agg_server_status", Gauge, "Servers, per state.", |it| {
        let count = |state| sum(it, |it| u64::from(server_state(it) == state));
        Reading::States(SERVER_STATES.map(|state| (state, count(state))).to_vec())
    }),
    metric(RESPONSES, Counter, RESPONSES_HELP, |it| {
        responses(&it.exchanges.status)
    }),
    metric(
        "weight",
        Gauge,
        "Sum of the effective weights of active servers.",
        |it| Reading::One(Value::Real(active_weight(it))),
    ),
    metric(
        "uweight",
        Gauge,
        "Sum of the weights set of active servers.",
        |it| whole(sum(it, |it| u64::from(it.weight) * u64::from(it.eligible))),
    ),
    metric(
        "active_servers",
        Gauge,
        "Servers that get requests.",
        |it| whole(it.eligible as u64),
    ),
    metric(
        "check_up_down_total",
        Counter,
        "Times that a server went down.",
        |it| whole(sum(it, went_down)),
    ),
    metric(
        "loadbalanced_total",
        Counter,
        "Attempts at servers.",
        |it| whole(sum(it, |it| it.attempts)),
    ),
    metric(
        "client_aborts_total",
        Counter,
        "Requests that the client aborted.",
        |it| whole(client_aborts(&it.exchanges)),
    ),
    metric(
        "server_aborts_total",
        Counter,
        "Responses that a server cut off.",
        |it| whole(server_aborts(&it.exchanges)),
    ),
    metric(
        "connection_attempts_total",
        Counter,
        "Connection attempts.",
        |it| whole(sum(it, connection_attempts)),
    ),
    metric(
        "connection_reuses_total",
        Counter,
        "Connections reused.",
        |it| whole(sum(it, |it| it.reuses)),
    ),
];

const SERVER: &[Metric<EndpointFigures>] = &[
    metric("current_sessions", Gauge, "Requests at it now.", |it| {
        whole(it.in_flight)
    }),
    metric("limit_sessions", Gauge, "Most requests at once.", |it| {
        maybe(it.max_in_flight)
    }),
    metric("sessions_total", Counter, "Attempts at it.", |it| {
        whole(it.attempts)
    }),
    metric("loadbalanced_total", Counter, "Attempts at it.", |it| {
        whole(it.attempts)
    }),
    metric("bytes_in_total", Counter, "Bytes sent to it.", |it| {
        whole(it.bytes_out)
    }),
    metric(
        "bytes_out_total",
        Counter,
        "Bytes received from it.",
        |it| whole(it.bytes_in),
    ),
    metric(
        "connection_errors_total",
        Counter,
        "Connections that could not be opened.",
        |it| whole(it.connect_failures),
    ),
    metric(
        "response_errors_total",
        Counter,
        "Attempts that failed once connected.",
        |it| whole(response_errors(it)),
    ),
    metric("weight", Gauge, "Effective weight.", |it| {
        Reading::One(Value::Real(it.effective_weight))
    }),
    metric("uweight", Gauge, "Weight set.", |it| whole(it.weight)),
    metric(
        "current_throttle",
        Gauge,
        "Share of its weight while it starts slowly, in percent.",
        |it| maybe(throttle(it)),
    ),
    metric(
        "check_up_down_total",
        Counter,
        "Times that it went down.",
        |it| whole(went_down(it)),
    ),
    metric(
        "connection_attempts_total",
        Counter,
        "Connection attempts.",
        |it| whole(connection_attempts(it)),
    ),
    metric(
        "connection_reuses_total",
        Counter,
        "Connections reused.",
        |it| whole(it.reuses),
    ),
    metric(
        "idle_connections_current",
        Gauge,
        "Idle connections.",
        |it| whole(it.idle),
    ),
    metric(
        "used_connections_current",
        Gauge,
        "Connections in use.",
        |it| whole(it.in_flight),
    ),
    metric("status", Gauge, "Current status, per state.", |it| {
        Reading::State {
            all: &SERVER_STATES,
            is: server_state(it),
        }
    }),
    metric(RESPONSES, Counter, RESPONSES_HELP, |it| {
        responses(&it.status)
    }),
];

/// Writes all families.
pub(super) async fn write(figures: &Figures, out: &mut impl Writer) {
    let none = Labels::default();
    let version = Labels::new(&[("version", figures.version)]);
    each(PROCESS, "haproxy_process_", &[(&none, figures)], out).await;
    each(BUILD, "haproxy_process_", &[(&version, figures)], out).await;

    let label = |it: &ListenerFigures| Labels::new(&[("proxy", it.name.as_str())]);
    let labels: Vec<_> = figures.listeners.iter().map(label).collect();
    let frontends: Vec<_> = labels.iter().zip(&figures.listeners).collect();
    each(FRONTEND, "haproxy_frontend_", &frontends, out).await;

    let label = |it: &UpstreamFigures| Labels::new(&[("proxy", it.name.as_str())]);
    let labels: Vec<_> = figures.upstreams.iter().map(label).collect();
    let backends: Vec<_> = labels.iter().zip(&figures.upstreams).collect();
    each(BACKEND, "haproxy_backend_", &backends, out).await;

    let labels = figures.upstreams.iter();
    let labels: Vec<_> = labels
        .flat_map(|it| endpoint_labels(it, "proxy", "server"))
        .collect();
    let servers = figures.upstreams.iter().flat_map(|it| &it.endpoints);
    let servers: Vec<_> = labels.iter().zip(servers).collect();
    each(SERVER, "haproxy_server_", &servers, out).await;
}

/// Responses by class; exchanges without a response are `other`, as in HAProxy.
fn responses(status: &StatusFigures) -> Reading<'_> {
    Reading::Classes {
        label: "code",
        names: &["other", "1xx", "2xx", "3xx", "4xx", "5xx"],
        status,
    }
}
