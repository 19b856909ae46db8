//! Which metrics there are: a table for each kind of object.

use super::endpoint_labels;
use super::family::Kind::{Bytes, Counter, Gauge, Seconds};
use super::family::{Labels, Metric, Reading, Value, Writer, each, maybe, metric, whole};
use crate::observe::figures::{
    DiskFigures, EndpointFigures, ExchangeFigures, Figures, FileFigures, LaneFigures,
    ListenerFigures, PhaseFigures, RouteFigures, State, StatusFigures, UpstreamFigures,
};

/// Of the process, by the names that every exporter has for them.
const PROCESS: &[Metric<Figures>] = &[
    metric(
        "cpu_seconds_total",
        Counter,
        "Processor time of all threads.",
        |it| Reading::One(Value::Micros(it.process.cpu_us)),
    ),
    metric("resident_memory_bytes", Gauge, "Memory in RAM.", |it| {
        maybe(it.process.resident_bytes)
    }),
    metric("virtual_memory_bytes", Gauge, "Memory mapped.", |it| {
        maybe(it.process.virtual_bytes)
    }),
    metric("open_fds", Gauge, "Open file descriptors.", |it| {
        maybe(it.process.open_fds)
    }),
    metric(
        "max_fds",
        Gauge,
        "Most file descriptors that may be open.",
        |it| maybe(it.process.max_fds),
    ),
    metric(
        "start_time_seconds",
        Gauge,
        "When it began to serve, in seconds since 1970.",
        |it| Reading::One(Value::Millis(it.started_unix_ms)),
    ),
];

/// Of the whole.
const WHOLE: &[Metric<Figures>] = &[
    metric("workers", Gauge, "Worker threads.", |it| {
        whole(it.workers as u64)
    }),
    metric(
        "config_load_timestamp_seconds",
        Gauge,
        "When the configuration came into force, in seconds since 1970.",
        |it| Reading::One(Value::Millis(it.config.loaded_unix_ms)),
    ),
    metric(
        "log_lines_dropped_total",
        Counter,
        "Access log lines for which the writer had no room.",
        |it| whole(it.log_lines_dropped),
    ),
    metric(
        "log_lines_lost_total",
        Counter,
        "Access log lines that could not be written.",
        |it| whole(it.log_lines_lost),
    ),
    metric(
        "spans_sent_total",
        Counter,
        "Spans that the collector took.",
        |it| whole(it.spans_sent),
    ),
    metric(
        "spans_lost_total",
        Counter,
        "Spans for which there was no room, or that could not be sent.",
        |it| whole(it.spans_lost),
    ),
    metric(
        "status_tokens_refused_total",
        Counter,
        "Requests to the status listener that were refused for their token.",
        |it| whole(it.status_tokens_refused),
    ),
    metric(
        "open_files",
        Gauge,
        "Files to serve that are kept open.",
        |it| whole(it.open_files),
    ),
    metric(
        "workers_stalled",
        Gauge,
        "Workers that have not come round for a second.",
        |it| whole(it.workers_stalled),
    ),
    metric(
        "worker_stalls_total",
        Counter,
        "Times that a worker did not come round within a second.",
        |it| whole(it.worker_stalls),
    ),
    metric(
        "answer_memory_bytes",
        Gauge,
        "Memory of answers that clients have not taken yet.",
        |it| whole(it.answer_memory.held),
    ),
    metric(
        "answer_memory_limit_bytes",
        Gauge,
        "Most memory of answers that clients have not taken yet.",
        |it| whole(it.answer_memory.limit),
    ),
    metric(
        "answer_memory_refused_total",
        Counter,
        "Listings and compressed files not made for want of that memory.",
        |it| whole(it.answer_memory.refused),
    ),
    metric(
        "buffer_bytes",
        Gauge,
        "Memory in which bodies are held for slow clients.",
        |it| whole(it.buffer_bytes),
    ),
    metric(
        "buffer_limit_bytes",
        Gauge,
        "Most memory in which bodies may be held for slow clients.",
        |it| whole(it.buffer_limit_bytes),
    ),
    metric(
        "worker_loop_lag_seconds",
        Seconds,
        "By how much the ticks of the workers' event loops came late.",
        |it| Reading::Distribution(&it.loop_lag_us),
    ),
];

const LISTENER: &[Metric<ListenerFigures>] = &[
    metric(
        "connections_total",
        Counter,
        "Connections accepted.",
        |it| whole(it.connections),
    ),
    metric("connections_open", Gauge, "Connections open now.", |it| {
        whole(it.open)
    }),
    metric(
        "connections_limit",
        Gauge,
        "Most connections at once; absent where there is no limit.",
        |it| maybe(it.connections_limit),
    ),
    metric(
        "connections_refused_total",
        Counter,
        "Connections refused because of that limit (`connections`).",
        |it| whole(it.connections_refused),
    ),
    metric(
        "connections_no_descriptor_total",
        Counter,
        "Connections refused for want of file descriptors (`no-descriptor`).",
        |it| whole(it.connections_no_descriptor),
    ),
    metric(
        "connections_displaced_total",
        Counter,
        "Connections closed to make room, whose clients had no request on the way.",
        |it| whole(it.connections_displaced),
    ),
    metric(
        "accept_pauses_total",
        Counter,
        "Times that accepting paused for want of file descriptors.",
        |it| whole(it.accept_pauses),
    ),
    metric(
        "drains_total",
        Counter,
        "Requests whose body was read on after their answer.",
        |it| whole(it.drains),
    ),
    metric(
        "drains_cut_total",
        Counter,
        "Of those the ones whose connection was closed before the body's end.",
        |it| whole(it.drains_cut),
    ),
];

/// Of listeners, routes and upstreams alike.
const EXCHANGES: &[Metric<ExchangeFigures>] = &[
    metric(
        "requests_total",
        Counter,
        "Exchanges that ended, however they did.",
        |it| whole(it.requests),
    ),
    metric(
        "errors_total",
        Counter,
        "Exchanges answered with 5xx (but for configured answers), or not whole by the endpoint's or this server's fault.",
        |it| whole(it.errors),
    ),
    metric(
        "responses_total",
        Counter,
        "Responses by class of status; none where no response had begun.",
        |it| Reading::Classes {
            label: "class",
            names: &StatusFigures::CLASSES,
            status: &it.status,
        },
    ),
    metric(
        "ends_total",
        Counter,
        "Exchanges by how they ended: the word that the access log has; those that occurred.",
        |it| Reading::Ends(&it.ends),
    ),
    metric(
        "request_bytes_total",
        Counter,
        "Bytes of request heads and bodies, from clients.",
        |it| whole(it.bytes_in),
    ),
    metric(
        "response_bytes_total",
        Counter,
        "Bytes of response heads and bodies, to clients.",
        |it| whole(it.bytes_out),
    ),
];

/// Of whatever has exchanges.
const PHASES: &[Metric<PhaseFigures>] = &[
    metric(
        "queue_seconds",
        Seconds,
        "Time in the upstream's queue, of exchanges that waited there.",
        |it| Reading::Distribution(&it.queue_us),
    ),
    metric(
        "connect_seconds",
        Seconds,
        "Time spent opening connections, of exchanges that needed one.",
        |it| Reading::Distribution(&it.connect_us),
    ),
    metric(
        "first_byte_seconds",
        Seconds,
        "Time from the request sent to the response's head received.",
        |it| Reading::Distribution(&it.first_byte_us),
    ),
    metric(
        "duration_seconds",
        Seconds,
        "Time from the first byte of the request's head to the exchange's end.",
        |it| Reading::Distribution(&it.total_us),
    ),
    metric(
        "response_size_bytes",
        Bytes,
        "Size of the response, head and body.",
        |it| Reading::Distribution(&it.response_bytes),
    ),
];

const UPSTREAM: &[Metric<UpstreamFigures>] = &[
    metric(
        "in_flight",
        Gauge,
        "Exchanges at the endpoints now.",
        |it| whole(it.in_flight),
    ),
    metric("queue_length", Gauge, "Exchanges that wait now.", |it| {
        whole(it.waiting)
    }),
    metric(
        "queue_limit",
        Gauge,
        "Most exchanges that may wait.",
        |it| whole(it.queue_max),
    ),
    metric("queued_total", Counter, "Exchanges that waited.", |it| {
        whole(it.queued)
    }),
    metric("endpoints", Gauge, "Endpoints.", |it| {
        whole(it.endpoints.len() as u64)
    }),
    metric(
        "endpoints_eligible",
        Gauge,
        "Endpoints that take exchanges now.",
        |it| whole(it.eligible as u64),
    ),
    metric(
        "retries_total",
        Counter,
        "Attempts after the first of an exchange.",
        |it| whole(it.retries),
    ),
    metric(
        "retries_refused_total",
        Counter,
        "Retries that the budget did not allow.",
        |it| whole(it.retries_refused),
    ),
    metric(
        "buffers_refused_total",
        Counter,
        "Bodies that streamed because the memory for buffers was used up.",
        |it| whole(it.buffers_refused),
    ),
];

const FILES: &[Metric<FileFigures>] = &[
    metric(
        "hot_total",
        Counter,
        "Answers with files for which all that was needed was in memory.",
        |it| whole(it.hot),
    ),
    metric(
        "cold_total",
        Counter,
        "Answers with files for which a disk was asked.",
        |it| whole(it.cold),
    ),
    metric(
        "refused_total",
        Counter,
        "Requests for files that the queue of the disk refused.",
        |it| whole(it.refused),
    ),
];

const DISK: &[Metric<DiskFigures>] = &[
    metric("queue_length", Gauge, "Reads that wait now.", |it| {
        whole(it.waiting as u64)
    }),
    metric("queue_limit", Gauge, "Most reads that may wait.", |it| {
        whole(it.queue_max as u64)
    }),
    metric("in_flight", Gauge, "Reads at the disk now.", |it| {
        whole(it.in_flight as u64)
    }),
    metric("in_flight_limit", Gauge, "Most reads at the disk.", |it| {
        whole(it.max_in_flight as u64)
    }),
    metric(
        "reads_total",
        Counter,
        "Reads done, with what else is done there: files opened, folders listed.",
        |it| whole(it.reads),
    ),
    metric(
        "shared_total",
        Counter,
        "Requests that were given what another had asked for.",
        |it| whole(it.shared),
    ),
    metric(
        "direct_total",
        Counter,
        "Reads that went past the page cache.",
        |it| whole(it.direct),
    ),
    metric("refused_total", Counter, "Reads that were refused.", |it| {
        whole(it.refused)
    }),
    metric(
        "wait_seconds",
        Seconds,
        "Time of reads in the queue of the disk.",
        |it| Reading::Distribution(&it.wait_us),
    ),
    metric(
        "service_seconds",
        Seconds,
        "Time of reads at the disk.",
        |it| Reading::Distribution(&it.service_us),
    ),
];

const LANE: &[Metric<LaneFigures>] = &[
    metric("in_flight", Gauge, "Exchanges in the lane now.", |it| {
        whole(it.in_flight)
    }),
    metric(
        "in_flight_limit",
        Gauge,
        "Most exchanges in the lane.",
        |it| whole(it.max_in_flight),
    ),
];

/// The words for the states of an endpoint.
const STATES: [&str; State::ALL.len()] = {
    let mut words = [""; State::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = State::ALL[at].word();
        at += 1;
    }
    words
};

const ENDPOINT: &[Metric<EndpointFigures>] = &[
    metric(
        "state",
        Gauge,
        "1 for the state that the endpoint is in, 0 for the others.",
        |it| Reading::State {
            all: &STATES,
            is: it.state.word(),
        },
    ),
    metric(
        "up",
        Gauge,
        "1 while the endpoint gets exchanges: up, starting or on trial, and of a weight.",
        |it| whole(it.eligible),
    ),
    metric(
        "ejections_total",
        Counter,
        "Times that it was put out for errors in a row.",
        |it| whole(it.ejections),
    ),
    metric(
        "downs_total",
        Counter,
        "Times that it went down because its probes failed.",
        |it| whole(it.downs),
    ),
    metric(
        "probe_failures_total",
        Counter,
        "Probes that failed.",
        |it| whole(it.probes_failed),
    ),
    metric(
        "unreachables_total",
        Counter,
        "Times that it became unreachable because connections failed.",
        |it| whole(it.unreachables),
    ),
    metric("weight", Gauge, "Weight set.", |it| whole(it.weight)),
    metric(
        "effective_weight",
        Gauge,
        "What it counts for now: less than its weight while it starts slowly.",
        |it| Reading::One(Value::Real(it.effective_weight)),
    ),
    metric("in_flight", Gauge, "Exchanges at it now.", |it| {
        whole(it.in_flight)
    }),
    metric(
        "in_flight_limit",
        Gauge,
        "Most exchanges at once; absent where there is no limit.",
        |it| maybe(it.max_in_flight),
    ),
    metric(
        "errors_in_row",
        Gauge,
        "Failed exchanges since the last success.",
        |it| whole(it.errors_in_row),
    ),
    metric(
        "idle_connections",
        Gauge,
        "Connections in the idle pools of all workers.",
        |it| whole(it.idle),
    ),
    metric(
        "pinned_connections",
        Gauge,
        "Idle connections that belong to one client each, who authenticated them.",
        |it| whole(it.pinned),
    ),
    metric("attempts_total", Counter, "Attempts made here.", |it| {
        whole(it.attempts)
    }),
    metric(
        "failures_total",
        Counter,
        "Attempts that brought no whole, valid response, by its fault.",
        |it| whole(it.failures),
    ),
    metric("connects_total", Counter, "Connections opened.", |it| {
        whole(it.connects)
    }),
    metric(
        "connect_failures_total",
        Counter,
        "Connections that could not be opened.",
        |it| whole(it.connect_failures),
    ),
    metric(
        "reuses_total",
        Counter,
        "Attempts on a connection from the idle pool.",
        |it| whole(it.reuses),
    ),
    metric(
        "stale_total",
        Counter,
        "Idle connections found closed.",
        |it| whole(it.stale),
    ),
    metric(
        "displaced_total",
        Counter,
        "Idle connections closed to make room for others.",
        |it| whole(it.displaced),
    ),
    metric(
        "responses_total",
        Counter,
        "Responses by class of status.",
        |it| Reading::Classes {
            label: "class",
            names: &["", "1xx", "2xx", "3xx", "4xx", "5xx"],
            status: &it.status,
        },
    ),
    metric("request_bytes_total", Counter, "Bytes sent to it.", |it| {
        whole(it.bytes_out)
    }),
    metric(
        "response_bytes_total",
        Counter,
        "Bytes received from it.",
        |it| whole(it.bytes_in),
    ),
];

/// Writes all of them.
pub(super) async fn write(figures: &Figures, out: &mut impl Writer) {
    let none = Labels::default();
    each(PROCESS, "process_", &[(&none, figures)], out).await;
    each(WHOLE, "evenkeel_", &[(&none, figures)], out).await;
    let version = Labels::new(&[("version", figures.version)]);
    each(&[BUILD], "evenkeel_", &[(&version, figures)], out).await;
    let hash = Labels::new(&[("hash", figures.config.hash.as_str())]);
    each(&[CONFIG], "evenkeel_", &[(&hash, figures)], out).await;

    let label = |it: &ListenerFigures| Labels::new(&[("listener", it.name.as_str())]);
    let labels: Vec<_> = figures.listeners.iter().map(label).collect();
    let listeners: Vec<_> = labels.iter().zip(&figures.listeners).collect();
    each(LISTENER, "evenkeel_listener_", &listeners, out).await;
    exchanges("evenkeel_listener_", &listeners, |it| &it.exchanges, out).await;

    let label = |it: &RouteFigures| Labels::new(&[("route", it.name.as_str())]);
    let labels: Vec<_> = figures.routes.iter().map(label).collect();
    let routes: Vec<_> = labels.iter().zip(&figures.routes).collect();
    exchanges("evenkeel_route_", &routes, |it| &it.exchanges, out).await;
    let files = routes.iter();
    let files: Vec<_> = files
        .filter_map(|(labels, route)| Some((*labels, route.files.as_ref()?)))
        .collect();
    each(FILES, "evenkeel_route_files_", &files, out).await;

    let label = |it: &DiskFigures| Labels::new(&[("disk", it.name.as_str())]);
    let labels: Vec<_> = figures.disks.iter().map(label).collect();
    let disks: Vec<_> = labels.iter().zip(&figures.disks).collect();
    each(DISK, "evenkeel_disk_", &disks, out).await;

    let label = |it: &UpstreamFigures| Labels::new(&[("upstream", it.name.as_str())]);
    let labels: Vec<_> = figures.upstreams.iter().map(label).collect();
    let upstreams: Vec<_> = labels.iter().zip(&figures.upstreams).collect();
    each(UPSTREAM, "evenkeel_upstream_", &upstreams, out).await;
    exchanges("evenkeel_upstream_", &upstreams, |it| &it.exchanges, out).await;

    let lanes = figures.upstreams.iter().flat_map(|upstream| {
        upstream.lanes.iter().map(|lane| {
            let names = [("upstream", upstream.name.as_str()), ("lane", &lane.name)];
            (Labels::new(&names), lane)
        })
    });
    let lanes: Vec<_> = lanes.collect();
    let lanes: Vec<_> = lanes.iter().map(|(labels, lane)| (labels, *lane)).collect();
    each(LANE, "evenkeel_lane_", &lanes, out).await;

    let labels = figures.upstreams.iter();
    let labels: Vec<_> = labels
        .flat_map(|it| endpoint_labels(it, "upstream", "endpoint"))
        .collect();
    let endpoints = figures.upstreams.iter().flat_map(|it| &it.endpoints);
    let endpoints: Vec<_> = labels.iter().zip(endpoints).collect();
    each(ENDPOINT, "evenkeel_endpoint_", &endpoints, out).await;
    let phases: Vec<_> = endpoints.iter().map(|(it, of)| (*it, &of.phases)).collect();
    each(PHASES, "evenkeel_endpoint_", &phases, out).await;
}

const BUILD: Metric<Figures> = metric("build_info", Gauge, "Always 1.", |_| whole(1_u64));
const CONFIG: Metric<Figures> = metric(
    "config_info",
    Gauge,
    "Always 1; the hash is that of the effective configuration.",
    |_| whole(1_u64),
);

/// What listeners, routes and upstreams have in common.
async fn exchanges<T>(
    scope: &'static str,
    objects: &[(&Labels, &T)],
    of: impl Fn(&T) -> &ExchangeFigures,
    out: &mut impl Writer,
) {
    let exchanges: Vec<_> = objects
        .iter()
        .map(|(labels, it)| (*labels, of(it)))
        .collect();
    each(EXCHANGES, scope, &exchanges, out).await;
    let phases: Vec<_> = exchanges.iter().map(|(it, of)| (*it, &of.phases)).collect();
    each(PHASES, scope, &phases, out).await;
}
