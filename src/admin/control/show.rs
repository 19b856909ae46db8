//! What `show` and `rates` answer: tables, or the same as JSON.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::answer::{Answer, Format, with_names};
use super::table::Table;
use crate::admin::operate::Unknown;
use crate::config::Config;
use crate::files::DiskFigures;
use crate::metrics::histogram::{Distribution, micros};
use crate::metrics::quantity::{bytes, rate, span, time};
use crate::net::clock;
use crate::observe::calendar::{Moment, unix_time};
use crate::observe::failures::FailedExchange;
use crate::observe::figures::{
    EndpointFigures, ExchangeFigures, Figures, FileFigures, ListenerFigures, RouteFigures, Sources,
    UpstreamFigures,
};
use crate::observe::inquiry::{Answers, Question, ask};
use crate::observe::rates::{Rates, Traffic};
use crate::observe::sessions::{Session, SessionList};

/// Stands for what is not there.
const NOTHING: &str = "-";

fn or_nothing(text: Option<String>) -> String {
    text.unwrap_or_else(|| NOTHING.to_owned())
}

/// `12/100`, or `12` where there is no limit.
fn of_limit(count: impl ToString, limit: Option<impl ToString>) -> String {
    match limit {
        Some(limit) => format!("{}/{}", count.to_string(), limit.to_string()),
        None => count.to_string(),
    }
}

fn quantile(distribution: &Distribution, part: f64) -> String {
    or_nothing((distribution.count() > 0).then(|| time(distribution.quantile(part))))
}

pub(super) fn upstreams(figures: &Figures, format: Format) -> Answer {
    format.show(&figures.upstreams, |upstreams| {
        let texts: Vec<_> = upstreams.iter().map(upstream_text).collect();
        if texts.is_empty() {
            "no upstream is configured\n".to_owned()
        } else {
            texts.join("\n")
        }
    })
}

pub(super) fn upstream(figures: &Figures, name: &str, format: Format) -> Answer {
    let found = figures.upstreams.iter().find(|it| it.name == name);
    let Some(found) = found else {
        let error = Unknown::Upstream(name.escape_debug().to_string());
        return Err(with_names(
            &error,
            figures.upstreams.iter().map(|it| &it.name),
        ));
    };
    format.show(found, upstream_text)
}

fn upstream_text(upstream: &UpstreamFigures) -> String {
    let UpstreamFigures {
        name,
        balance,
        in_flight,
        waiting,
        queue_max,
        eligible,
        retries,
        exchanges,
        ..
    } = upstream;
    let mut text = format!(
        "upstream {name}: balance {balance}, {eligible} of {} endpoints take requests, \
         {in_flight} in flight, {waiting} of {queue_max} waiting\n\
         requests {}, errors {}, retries {retries}, queued {}; p50 {}, p99 {}\n",
        upstream.endpoints.len(),
        exchanges.requests,
        exchanges.errors,
        upstream.queued,
        quantile(&exchanges.phases.total_us, 0.5),
        quantile(&exchanges.phases.total_us, 0.99),
    );
    for lane in &upstream.lanes {
        text += &format!(
            "lane {}: {}/{} in flight\n",
            lane.name, lane.in_flight, lane.max_in_flight
        );
    }
    let mut table = Table::new(&[
        "ENDPOINT",
        "STATE",
        ">WEIGHT",
        ">IN FLIGHT",
        ">IDLE",
        ">ATTEMPTS",
        ">FAILURES",
        ">5XX",
        ">RECEIVED",
        ">FIRST BYTE P50",
        ">P99",
    ]);
    for endpoint in &upstream.endpoints {
        table.row(endpoint_row(endpoint));
    }
    text + &table.text(2)
}

fn endpoint_row(endpoint: &EndpointFigures) -> [String; 11] {
    let weight = if endpoint.effective_weight < f64::from(endpoint.weight) {
        format!("{:.2}/{}", endpoint.effective_weight, endpoint.weight)
    } else {
        endpoint.weight.to_string()
    };
    [
        endpoint.name.clone(),
        endpoint.state.word().to_owned(),
        weight,
        of_limit(endpoint.in_flight, endpoint.max_in_flight),
        endpoint.idle.to_string(),
        endpoint.attempts.to_string(),
        endpoint.failures.to_string(),
        endpoint.status.0[5].to_string(),
        bytes(endpoint.bytes_in as f64),
        quantile(&endpoint.phases.first_byte_us, 0.5),
        quantile(&endpoint.phases.first_byte_us, 0.99),
    ]
}

/// The cells that listeners and routes have in common, under these titles.
const EXCHANGE_TITLES: [&str; 6] = [">REQUESTS", ">ERRORS", ">IN", ">OUT", ">P50", ">P99"];

fn exchange_cells(exchanges: &ExchangeFigures) -> [String; 6] {
    [
        exchanges.requests.to_string(),
        exchanges.errors.to_string(),
        bytes(exchanges.bytes_in as f64),
        bytes(exchanges.bytes_out as f64),
        quantile(&exchanges.phases.total_us, 0.5),
        quantile(&exchanges.phases.total_us, 0.99),
    ]
}

fn with_exchange_titles(titles: &[&'static str]) -> Table {
    Table::new(&[titles, &EXCHANGE_TITLES].concat())
}

pub(super) fn listeners(figures: &Figures, format: Format) -> Answer {
    format.show(&figures.listeners, |listeners| {
        let titles = ["LISTENER", "BIND", ">OPEN", ">CONNECTIONS", ">REFUSED"];
        let mut table = with_exchange_titles(&titles);
        for listener in listeners {
            table.row(
                listener_cells(listener)
                    .into_iter()
                    .chain(exchange_cells(&listener.exchanges)),
            );
        }
        table.text(0)
    })
}

fn listener_cells(listener: &ListenerFigures) -> [String; 5] {
    [
        listener.name.clone(),
        listener.bind.clone(),
        of_limit(listener.open, listener.connections_limit),
        listener.connections.to_string(),
        listener.connections_refused.to_string(),
    ]
}

pub(super) fn routes(figures: &Figures, format: Format) -> Answer {
    format.show(&figures.routes, |routes| {
        let mut table = with_exchange_titles(&["ROUTE", "UPSTREAM"]);
        for route in routes {
            table.row(
                route_cells(route)
                    .into_iter()
                    .chain(exchange_cells(&route.exchanges)),
            );
        }
        table.text(0)
    })
}

fn route_cells(route: &RouteFigures) -> [String; 2] {
    [route.name.clone(), or_nothing(route.upstream.clone())]
}

/// Routes that serve files, and the disks that these are on.
#[derive(Debug, Serialize)]
struct FilesView<'a> {
    routes: Vec<FilesOfRoute<'a>>,
    disks: &'a [DiskFigures],
}

#[derive(Debug, Serialize)]
struct FilesOfRoute<'a> {
    route: &'a str,
    #[serde(flatten)]
    files: &'a FileFigures,
}

pub(super) fn files(figures: &Figures, format: Format) -> Answer {
    let routes = figures.routes.iter().filter_map(|it| {
        Some(FilesOfRoute {
            route: &it.name,
            files: it.files.as_ref()?,
        })
    });
    let view = FilesView {
        routes: routes.collect(),
        disks: &figures.disks,
    };
    format.show(&view, files_text)
}

fn files_text(view: &FilesView<'_>) -> String {
    if view.routes.is_empty() {
        return "no route serves files\n".to_owned();
    }
    let mut routes = Table::new(&["ROUTE", "ROOT", ">HOT", ">COLD", ">REFUSED"]);
    for it in &view.routes {
        routes.row([
            it.route.to_owned(),
            it.files.root.clone(),
            it.files.hot.to_string(),
            it.files.cold.to_string(),
            it.files.refused.to_string(),
        ]);
    }
    let mut disks = Table::new(&[
        "DISK",
        ">IN-FLIGHT",
        ">WAITING",
        ">READS",
        ">DIRECT",
        ">SHARED",
        ">REFUSED",
        ">WAIT-P50",
        ">WAIT-P99",
        ">READ-P50",
        ">READ-P99",
    ]);
    for disk in view.disks {
        disks.row([
            disk.name.clone(),
            of_limit(disk.in_flight, Some(disk.max_in_flight)),
            of_limit(disk.waiting, Some(disk.queue_max)),
            disk.reads.to_string(),
            disk.direct.to_string(),
            disk.shared.to_string(),
            disk.refused.to_string(),
            quantile(&disk.wait_us, 0.5),
            quantile(&disk.wait_us, 0.99),
            quantile(&disk.service_us, 0.5),
            quantile(&disk.service_us, 0.99),
        ]);
    }
    format!("{}\n{}", routes.text(0), disks.text(0))
}

/// Who waits in an upstream's queue.
#[derive(Debug, Serialize)]
struct QueueView<'a> {
    upstream: &'a str,
    waiting: usize,
    max: usize,
    timeout_ms: u64,
    longest_wait_ms: u64,
    by: Vec<WaitingView<'a>>,
}

#[derive(Debug, Serialize)]
struct WaitingView<'a> {
    lane: Option<&'a str>,
    priority: u8,
    waiting: usize,
    longest_wait_ms: u64,
}

pub(super) fn queue(sources: &Sources, format: Format) -> Answer {
    let now = clock::now();
    let upstreams = sources.config.upstreams.iter();
    let views: Vec<_> = upstreams
        .zip(&sources.dispatchers)
        .map(|(upstream, dispatcher)| {
            let groups = dispatcher.waiting_groups(now);
            let longest = groups.iter().map(|it| it.longest).max();
            QueueView {
                upstream: &upstream.name,
                waiting: groups.iter().map(|it| it.waiting).sum(),
                max: upstream.queue.settings.max,
                timeout_ms: upstream.queue.timeout.as_millis() as u64,
                longest_wait_ms: longest.unwrap_or_default().as_millis() as u64,
                by: groups
                    .iter()
                    .map(|group| WaitingView {
                        lane: group.lane.map(|lane| upstream.lanes[lane].name.as_str()),
                        priority: group.priority,
                        waiting: group.waiting,
                        longest_wait_ms: group.longest.as_millis() as u64,
                    })
                    .collect(),
            }
        })
        .collect();
    format.show(&views, |views| queue_text(views))
}

fn queue_text(views: &[QueueView<'_>]) -> String {
    let wait = |waiting: usize, ms: u64| {
        or_nothing((waiting > 0).then(|| span(Duration::from_millis(ms))))
    };
    let mut table = Table::new(&[
        "UPSTREAM",
        "LANE",
        ">PRIORITY",
        ">WAITING",
        ">LONGEST WAIT",
        ">LIMIT",
    ]);
    for view in views {
        table.row([
            view.upstream.to_owned(),
            "(all)".to_owned(),
            NOTHING.to_owned(),
            of_limit(view.waiting, Some(view.max)),
            wait(view.waiting, view.longest_wait_ms),
            span(Duration::from_millis(view.timeout_ms)),
        ]);
        // One that is all of them says nothing new.
        for group in view.by.iter().filter(|_| view.by.len() > 1) {
            table.row([
                String::new(),
                group.lane.unwrap_or(NOTHING).to_owned(),
                group.priority.to_string(),
                group.waiting.to_string(),
                wait(group.waiting, group.longest_wait_ms),
                String::new(),
            ]);
        }
    }
    table.text(0)
}

/// Open connections, and how many are left out.
#[derive(Debug, Serialize)]
struct SessionsView<'a> {
    open: usize,
    left_out: usize,
    workers_silent: usize,
    sessions: Vec<SessionView<'a>>,
}

#[derive(Debug, Serialize)]
struct SessionView<'a> {
    listener: &'a str,
    client: String,
    age_ms: u64,
    requests: u32,
    exchange: Option<ExchangeView<'a>>,
}

#[derive(Debug, Serialize)]
struct ExchangeView<'a> {
    phase: &'static str,
    elapsed_ms: f64,
    request: String,
    route: Option<&'a str>,
    upstream: Option<&'a str>,
    endpoint: Option<&'a str>,
    attempts: u32,
    bytes_in: u64,
    bytes_out: u64,
}

/// Asks every worker for its foremost sessions.
pub(super) async fn ask_sessions(sources: &Sources, count: usize) -> Answers<SessionList> {
    ask(&sources.inquiries, |reply| Question::Sessions(count, reply)).await
}

pub(super) fn sessions(
    sources: &Sources,
    asked: Answers<SessionList>,
    count: usize,
    format: Format,
) -> Answer {
    let mut list = SessionList::default();
    for answer in asked.answers {
        list.merge(answer);
    }
    list.keep_foremost(count);
    let view = SessionsView {
        open: list.open,
        left_out: list.open - list.rows.len(),
        workers_silent: asked.silent,
        sessions: list
            .rows
            .iter()
            .map(|row| session_view(&sources.config, row))
            .collect(),
    };
    format.show(&view, sessions_text)
}

fn session_view<'a>(config: &'a Config, session: &'a Session) -> SessionView<'a> {
    let client = match session.address {
        Some(address) => std::net::SocketAddr::new(address, session.port).to_string(),
        None => "unix".to_owned(),
    };
    let exchange = session.exchange.as_ref().map(|exchange| {
        let names = exchange.names.as_ref();
        ExchangeView {
            phase: exchange.phase.word(),
            elapsed_ms: micros(exchange.elapsed) as f64 / 1e3,
            request: exchange.line.escape_ascii().to_string(),
            route: names.map(|it| it.route.as_str()),
            upstream: names.and_then(|it| it.upstream.as_deref()),
            endpoint: names.and_then(|it| it.endpoint.as_deref()),
            attempts: exchange.attempts,
            bytes_in: exchange.bytes_in,
            bytes_out: exchange.bytes_out,
        }
    });
    SessionView {
        listener: &config.listeners[session.listener].name,
        client,
        age_ms: session.age.as_millis() as u64,
        requests: session.requests,
        exchange,
    }
}

fn sessions_text(view: &SessionsView<'_>) -> String {
    let mut table = Table::new(&[
        "LISTENER",
        "CLIENT",
        ">AGE",
        ">REQUESTS",
        "PHASE",
        ">FOR",
        "ROUTE",
        "ENDPOINT",
        ">TRIES",
        ">IN",
        ">OUT",
        "REQUEST",
    ]);
    for session in &view.sessions {
        let start = [
            session.listener.to_owned(),
            session.client.clone(),
            span(Duration::from_millis(session.age_ms)),
            session.requests.to_string(),
        ];
        let exchange = match &session.exchange {
            Some(exchange) => exchange_view_cells(exchange),
            None => ["idle", "", "", "", "", "", "", ""].map(str::to_owned),
        };
        table.row(start.into_iter().chain(exchange));
    }
    let mut text = if view.sessions.is_empty() {
        String::new()
    } else {
        table.text(0)
    };
    text += &match view.left_out {
        0 => format!("{} open\n", view.open),
        more => format!("{} open, {more} of them not shown\n", view.open),
    };
    text + &silence(view.workers_silent)
}

fn exchange_view_cells(exchange: &ExchangeView<'_>) -> [String; 8] {
    let endpoint = exchange.upstream.map(|upstream| match exchange.endpoint {
        Some(endpoint) => format!("{upstream}/{endpoint}"),
        None => format!("{upstream}/{NOTHING}"),
    });
    [
        exchange.phase.to_owned(),
        time(exchange.elapsed_ms * 1e3),
        exchange.route.unwrap_or(NOTHING).to_owned(),
        or_nothing(endpoint),
        exchange.attempts.to_string(),
        bytes(exchange.bytes_in as f64),
        bytes(exchange.bytes_out as f64),
        exchange.request.clone(),
    ]
}

fn silence(workers: usize) -> String {
    match workers {
        0 => String::new(),
        1 => "1 worker did not answer in time: its part is missing\n".to_owned(),
        count => format!("{count} workers did not answer in time: their part is missing\n"),
    }
}

/// An exchange that failed.
#[derive(Debug, Serialize)]
struct FailureView<'a> {
    time: String,
    client: &'a str,
    listener: &'a str,
    route: Option<&'a str>,
    upstream: Option<&'a str>,
    endpoint: Option<&'a str>,
    request: Option<String>,
    end: &'static str,
    text: Cow<'static, str>,
    status: u16,
    attempts: u32,
    head_us: u64,
    queue_us: Option<u64>,
    connect_us: Option<u64>,
    first_byte_us: Option<u64>,
    total_us: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    received: String,
}

pub(super) async fn errors(sources: &Sources, count: usize, format: Format) -> Answer {
    let asked = ask(&sources.inquiries, Question::Failures).await;
    let mut failures: Vec<_> = asked.answers.into_iter().flatten().collect();
    failures.sort_by_key(|it| std::cmp::Reverse(it.at));
    failures.truncate(count);
    let views: Vec<_> = failures.iter().map(failure_view).collect();
    let silent = asked.silent;
    format.show(&views, |views| errors_text(views) + &silence(silent))
}

fn failure_view(failed: &FailedExchange) -> FailureView<'_> {
    let phase = |time: Option<Duration>| time.map(micros);
    FailureView {
        time: moment(failed.at),
        client: &failed.client,
        listener: &failed.listener,
        route: failed.route.as_deref(),
        upstream: failed.upstream.as_deref(),
        endpoint: failed.endpoint.as_deref(),
        request: failed.line.as_ref().map(|it| it.escape_ascii().to_string()),
        end: failed.end.word(),
        text: match failed.end.text() {
            // It went as it should; what was said is the failure.
            "" => "the endpoint answered with an error".into(),
            text => text.into(),
        },
        status: failed.status,
        attempts: failed.attempts,
        head_us: micros(failed.times.head),
        queue_us: phase(failed.times.queue),
        connect_us: phase(failed.times.connect),
        first_byte_us: phase(failed.times.first_byte),
        total_us: micros(failed.times.total),
        received: failed.evidence.escape_ascii().to_string(),
    }
}

/// `2026-11-21T09:05:01.250Z`.
fn moment(at: SystemTime) -> String {
    let unix = unix_time(at);
    let second = Moment::from_unix(unix.as_secs()).rfc3339();
    format!("{second}.{:03}Z", unix.subsec_millis())
}

fn errors_text(views: &[FailureView<'_>]) -> String {
    if views.is_empty() {
        return "no exchange has failed or was refused\n".to_owned();
    }
    let mut text = String::new();
    for view in views {
        let status = match view.status {
            0 => "no answer".to_owned(),
            status => format!("status {status}"),
        };
        text += &format!(
            "{}  {}  {status}  {}: {}\n",
            view.time, view.client, view.end, view.text
        );
        let place = match (view.upstream, view.endpoint) {
            (Some(upstream), Some(endpoint)) => format!(", endpoint {upstream}/{endpoint}"),
            (Some(upstream), None) => format!(", upstream {upstream}, no endpoint"),
            (None, _) => String::new(),
        };
        let route = view.route.map(|route| format!(", route {route}"));
        text += &format!(
            "    listener {}{}{place}, attempts {}\n",
            view.listener,
            route.unwrap_or_default(),
            view.attempts
        );
        if let Some(request) = &view.request {
            text += &format!("    {request}\n");
        }
        let phases = [
            ("head", Some(view.head_us)),
            ("queue", view.queue_us),
            ("connect", view.connect_us),
            ("first byte", view.first_byte_us),
            ("total", Some(view.total_us)),
        ];
        let phases: Vec<_> = phases
            .iter()
            .filter_map(|(name, us)| Some(format!("{name} {}", time((*us)? as f64))))
            .collect();
        text += &format!("    {}\n", phases.join(", "));
        if !view.received.is_empty() {
            text += &format!("    received: \"{}\"\n", view.received);
        }
    }
    text
}

/// One table of everything, as `evenkeel top` has it.
pub(super) fn rates(rates: &Rates) -> String {
    let mut table = Table::new(&[
        "NAME",
        "STATE",
        ">WEIGHT",
        ">IN FLIGHT",
        ">WAITING",
        ">REQ/S",
        ">ERR/S",
        ">P50",
        ">P99",
        ">IN/S",
        ">OUT/S",
    ]);
    let traffic = |it: &Traffic| {
        [
            rate(it.requests_per_s),
            rate(it.errors_per_s),
            or_nothing(it.p50_us.map(time)),
            or_nothing(it.p99_us.map(time)),
            bytes(it.bytes_in_per_s),
            bytes(it.bytes_out_per_s),
        ]
    };
    for listener in &rates.listeners {
        let start = [
            format!("listener {}", listener.name),
            format!("{} open", listener.open),
            String::new(),
            String::new(),
            String::new(),
        ];
        table.row(start.into_iter().chain(traffic(&listener.traffic)));
    }
    for upstream in &rates.upstreams {
        let start = [
            format!("upstream {}", upstream.name),
            format!("{}/{} up", upstream.eligible, upstream.endpoints.len()),
            String::new(),
            upstream.in_flight.to_string(),
            of_limit(upstream.waiting, Some(upstream.queue_max)),
        ];
        table.row(start.into_iter().chain(traffic(&upstream.traffic)));
        for endpoint in &upstream.endpoints {
            let start = [
                format!("  {}", endpoint.name),
                endpoint.state.clone(),
                endpoint.weight.to_string(),
                of_limit(endpoint.in_flight, endpoint.max_in_flight),
                String::new(),
            ];
            table.row(start.into_iter().chain(traffic(&endpoint.traffic)));
        }
    }
    format!(
        "evenkeel {}, process {}, up {}; the last {}\n{}",
        rates.version,
        rates.pid,
        span(Duration::from_millis(rates.uptime_ms)),
        span(Duration::from_millis(rates.window_ms)),
        table.text(0)
    )
}
