//! Everything that is counted, read at one moment: what the metrics, the
//! status page, its CSV and JSON and the control socket show.
//!
//! They all show this and nothing else, so that they agree. The names here are
//! those of `/status.json`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{Admin, EndpointState, Flag};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::calendar::unix_time;
use super::counters::{self, Counters, ExchangeCounters};
use super::inquiry::Inquiry;
use super::otlp::SpanCounts;
use super::probes::{LastProbe, Probes};
use super::process::ProcessFigures;
use super::stalls::WorkerStalls;
use crate::config::{self, Action, Config};
use crate::files::{Disk, Disks};
use crate::metrics::histogram::{Distribution, Histogram};
use crate::metrics::{BufferMemory, Counter, End, Failure, Gauge, Lazy};

/// Where the figures come from: what workers write and share.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The configuration that the indices of all the others are of.
    pub config: Arc<Config>,
    /// Of each worker.
    pub counters: Vec<Arc<Counters>>,
    /// Of each upstream.
    pub dispatchers: Vec<Arc<Dispatcher>>,
    /// Access log lines that could not be written.
    pub log_lines_lost: Arc<AtomicU64>,
    /// What became of spans.
    pub spans: Arc<SpanCounts>,
    /// The last probe of each endpoint.
    pub probes: Arc<Probes>,
    /// Requests to the status listener that were refused for their token.
    pub status_tokens_refused: Arc<AtomicU64>,
    /// Workers that do not come round.
    pub worker_stalls: Arc<WorkerStalls>,
    /// Whether no new connections are taken any more.
    pub is_draining: Arc<AtomicBool>,
    /// When the process began to serve.
    pub started: Started,
    /// The disks that files are served from.
    pub disks: Arc<Disks>,
    /// The memory in which bodies are held for slow clients.
    pub buffer_memory: Arc<BufferMemory>,
    /// Where each worker is asked for what only it knows.
    pub inquiries: Vec<Inquiry>,
}

/// Which distributions are read of what exchanges took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phases {
    /// All of them.
    All,
    /// `total_us` and `queue_us`, which cost a fifth where nothing waits: the
    /// others are left empty.
    Page,
}

/// A moment by both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// For durations.
    pub instant: Instant,
    /// For people.
    pub wall: SystemTime,
}

impl Started {
    /// This moment.
    pub fn now() -> Self {
        Started {
            instant: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

/// All figures at one moment. Counts are since the start.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Version of the program.
    pub version: &'static str,
    /// Process id.
    pub pid: u32,
    /// Worker threads.
    pub workers: usize,
    /// When it began to serve, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// For how long it has.
    pub uptime_ms: u64,
    /// Whether it only finishes what is open, and then ends.
    pub draining: bool,
    /// By how much the event loops' ticks came late, in microseconds.
    pub loop_lag_us: Distribution,
    /// Access log lines for which the writer had no room.
    pub log_lines_dropped: u64,
    /// Access log lines that could not be written.
    pub log_lines_lost: u64,
    /// Spans that the collector took.
    pub spans_sent: u64,
    /// Spans for which the exporter had no room, or that could not be sent.
    pub spans_lost: u64,
    /// Requests to the status listener that were refused for their token.
    pub status_tokens_refused: u64,
    /// Workers that do not come round now.
    pub workers_stalled: u64,
    /// Times that a worker did not come round within a second.
    pub worker_stalls: u64,
    /// What the process takes of the machine.
    pub process: ProcessFigures,
    /// Which configuration it runs on.
    pub config: ConfigFigures,
    /// In the order of the configuration.
    pub listeners: Vec<ListenerFigures>,
    /// In the order of the configuration.
    pub routes: Vec<RouteFigures>,
    /// In order of their names.
    pub upstreams: Vec<UpstreamFigures>,
    /// Files that are kept open.
    pub open_files: u64,
    /// Memory of answers that clients have not taken yet.
    pub answer_memory: AnswerMemoryFigures,
    /// Bytes that are held for slow clients now.
    pub buffer_bytes: u64,
    /// Most bytes that may be held for slow clients.
    pub buffer_limit_bytes: u64,
    /// In the order in which routes first have a folder on them.
    pub disks: Vec<DiskFigures>,
}

/// Memory of answers that clients have not taken yet, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct AnswerMemoryFigures {
    /// What they hold now.
    pub held: u64,
    /// The most that they may.
    pub limit: u64,
    /// How often something was not made for want of room.
    pub refused: u64,
}

/// Which configuration a process runs on.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigFigures {
    /// Hash of the effective configuration, in hexadecimal digits.
    pub hash: String,
    /// When it came into force, in milliseconds since 1970.
    pub loaded_unix_ms: u64,
}

/// What is counted of exchanges, wherever they are counted.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ExchangeFigures {
    /// Exchanges.
    pub requests: u64,
    /// Those that failed: answered with 5xx (but for configured answers), or not
    /// whole by the endpoint's fault.
    pub errors: u64,
    /// Bytes of request heads and bodies.
    pub bytes_in: u64,
    /// Bytes of response heads and bodies.
    pub bytes_out: u64,
    /// Responses to clients by class.
    pub status: StatusFigures,
    /// How exchanges ended: those words that occurred.
    pub ends: Ends,
    /// What they took.
    #[serde(flatten)]
    pub phases: PhaseFigures,
}

/// Responses by class; those without a status are exchanges without an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatusFigures(pub [u64; 6]);

/// Number of exchanges by how they ended, in the order of [`End::index`];
/// empty where none ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends(Vec<u64>);

/// What exchanges took: times in microseconds, sizes in bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PhaseFigures {
    /// In the upstream's queue.
    pub queue_us: Distribution,
    /// Opening a connection.
    pub connect_us: Distribution,
    /// From the request sent to the response's head received.
    pub first_byte_us: Distribution,
    /// From the head's first byte to the exchange's end.
    pub total_us: Distribution,
    /// The response, head and body.
    pub response_bytes: Distribution,
}

/// Figures of a listener.
#[derive(Debug, Clone, Serialize)]
pub struct ListenerFigures {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub bind: String,
    /// Whether it takes new connections: until the process drains.
    pub accepting: bool,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// Most connections at once; `null` for no limit.
    pub connections_limit: Option<u32>,
    /// Connections refused because of that limit.
    pub connections_refused: u64,
    /// Connections refused for want of file descriptors.
    pub connections_no_descriptor: u64,
    /// Connections without a request that were closed to make room.
    pub connections_displaced: u64,
    /// Times that accepting paused for want of file descriptors.
    pub accept_pauses: u64,
    /// Requests whose body was read on after their answer.
    pub drains: u64,
    /// Of those the ones whose connection was closed before the body's end.
    pub drains_cut: u64,
    /// Its exchanges, refused ones included.
    #[serde(flatten)]
    pub exchanges: ExchangeFigures,
}

/// Figures of a route.
#[derive(Debug, Clone, Serialize)]
pub struct RouteFigures {
    /// Its name.
    pub name: String,
    /// Name of the upstream that it goes to, if it goes to one.
    pub upstream: Option<String>,
    /// Its files, if it serves any.
    pub files: Option<FileFigures>,
    /// Its exchanges.
    #[serde(flatten)]
    pub exchanges: ExchangeFigures,
}

/// Figures of a route's files.
#[derive(Debug, Clone, Serialize)]
pub struct FileFigures {
    /// The folder.
    pub root: String,
    /// Answers for which all that was needed was in memory.
    pub hot: u64,
    /// Answers for which a disk was asked.
    pub cold: u64,
    /// Those that the disk's queue refused.
    pub refused: u64,
}

/// Figures of a disk and its queue; times in microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct DiskFigures {
    /// The first folder that is on it.
    pub name: String,
    /// Reads that wait now.
    pub waiting: usize,
    /// Most reads that may wait.
    pub queue_max: usize,
    /// Reads at it now.
    pub in_flight: usize,
    /// Most reads at it.
    pub max_in_flight: usize,
    /// Reads done, with what else is done there: files opened, folders listed.
    pub reads: u64,
    /// Requests that were given what another had asked for.
    pub shared: u64,
    /// Reads that went past the page cache.
    pub direct: u64,
    /// Reads that were refused.
    pub refused: u64,
    /// Time in the queue.
    pub wait_us: Distribution,
    /// Time at the disk.
    pub service_us: Distribution,
}

/// Figures of an upstream.
#[derive(Debug, Clone, Serialize)]
pub struct UpstreamFigures {
    /// Its name.
    pub name: String,
    /// Its balancer.
    pub balance: &'static str,
    /// Exchanges at its endpoints now.
    pub in_flight: u64,
    /// Exchanges in its queue now.
    pub waiting: u64,
    /// Most exchanges that its queue takes.
    pub queue_max: u64,
    /// Endpoints that take exchanges now.
    pub eligible: usize,
    /// Exchanges that waited in the queue.
    pub queued: u64,
    /// Attempts after the first of an exchange.
    pub retries: u64,
    /// Retries that the budget did not allow.
    pub retries_refused: u64,
    /// Bodies that streamed because the memory for buffers was used up.
    pub buffers_refused: u64,
    /// Its exchanges.
    #[serde(flatten)]
    pub exchanges: ExchangeFigures,
    /// Its lanes.
    pub lanes: Vec<LaneFigures>,
    /// In the order of the configuration.
    pub endpoints: Vec<EndpointFigures>,
}

/// Figures of a lane.
#[derive(Debug, Clone, Serialize)]
pub struct LaneFigures {
    /// Its name.
    pub name: String,
    /// Exchanges in it now.
    pub in_flight: u32,
    /// Most of them.
    pub max_in_flight: u32,
}

/// Figures of an endpoint.
#[derive(Debug, Clone, Serialize)]
pub struct EndpointFigures {
    /// Its name: the address as written.
    pub name: String,
    /// How it is, or who took it out.
    pub state: State,
    /// Whether it is down, unreachable or ejected, whatever the operator wants.
    #[serde(skip)]
    pub is_lost: bool,
    /// Whether it gets new exchanges: its state allows it, and its weight is
    /// not 0.
    pub eligible: bool,
    /// What the operator wants.
    pub admin: AdminWord,
    /// Its configured weight, or what the operator made of it.
    pub weight: u32,
    /// What it counts for now: less while it starts slowly.
    pub effective_weight: f64,
    /// Exchanges at it now.
    pub in_flight: u32,
    /// Most of them; `null` for no limit.
    pub max_in_flight: Option<u32>,
    /// Failed exchanges in a row.
    pub errors_in_row: u16,
    /// What came of its last probe; `null` before the first, or without any.
    pub last_probe: Option<LastProbe>,
    /// Probes that failed.
    pub probes_failed: u64,
    /// Times that it was put out for errors in a row.
    pub ejections: u32,
    /// Times that it went down because its probes failed.
    pub downs: u32,
    /// Times that it became unreachable because connections failed.
    pub unreachables: u32,
    /// Connections in the idle pools of all workers.
    pub idle: u64,
    /// Idle connections that belong to one client each.
    pub pinned: u64,
    /// Attempts made here.
    pub attempts: u64,
    /// Connections opened.
    pub connects: u64,
    /// Connections that could not be opened.
    pub connect_failures: u64,
    /// Attempts on a connection from the idle pool.
    pub reuses: u64,
    /// Idle connections found closed.
    pub stale: u64,
    /// Idle connections closed to make room.
    pub displaced: u64,
    /// Attempts that brought no whole, valid response, by its fault.
    pub failures: u64,
    /// Responses by class.
    pub status: StatusFigures,
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Bytes received from it.
    pub bytes_in: u64,
    /// What exchanges took whose last attempt was here.
    #[serde(flatten)]
    pub phases: PhaseFigures,
}

/// Whether an endpoint gets new exchanges, or why not: the first that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The operator stopped it.
    Stopped,
    /// The operator drains it.
    Draining,
    /// Its probes fail.
    Down,
    /// It was not probed yet.
    Unprobed,
    /// Connections to it fail.
    Unreachable,
    /// It is out for a while, for errors in a row.
    Ejected,
    /// It may have one exchange to show that it is well again.
    Trial,
    /// Its weight rises after its return.
    Starting,
    /// It takes part.
    Up,
}

/// What the operator wants of an endpoint, as a word.
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

impl State {
    /// Every state, in the order in which they are looked for.
    pub const ALL: [State; 9] = [
        State::Stopped,
        State::Draining,
        State::Down,
        State::Unprobed,
        State::Unreachable,
        State::Ejected,
        State::Trial,
        State::Starting,
        State::Up,
    ];

    /// The state that an endpoint's flags come to.
    pub fn of(endpoint: &EndpointState) -> Self {
        let flags = [
            (Flag::Stop, State::Stopped),
            (Flag::Drain, State::Draining),
            (Flag::Down, State::Down),
            (Flag::Unprobed, State::Unprobed),
            (Flag::Unreachable, State::Unreachable),
            (Flag::Ejected, State::Ejected),
            (Flag::Trial, State::Trial),
        ];
        let set = flags.into_iter().find(|(flag, _)| endpoint.has(*flag));
        match set {
            Some((_, state)) => state,
            None if effective_weight(endpoint) < f64::from(endpoint.weight()) => State::Starting,
            None => State::Up,
        }
    }

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            State::Stopped => "stopped",
            State::Draining => "draining",
            State::Down => "down",
            State::Unprobed => "unprobed",
            State::Unreachable => "unreachable",
            State::Ejected => "ejected",
            State::Trial => "trial",
            State::Starting => "starting",
            State::Up => "up",
        }
    }
}

/// What an endpoint counts for now, in units of its weight.
pub(crate) fn effective_weight(endpoint: &EndpointState) -> f64 {
    f64::from(endpoint.effective_weight()) / f64::from(evenkeel_policy::endpoint::WEIGHT_ONE)
}

impl Sources {
    /// Reads everything. Counts that belong together may differ by exchanges
    /// that end meanwhile.
    pub fn read(&self) -> Figures {
        self.read_with(Phases::All)
    }

    /// As [`read`](Self::read), with some distributions left out.
    pub(crate) fn read_with(&self, which: Phases) -> Figures {
        let config = &*self.config;
        let workers = self.workers();
        Figures {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            workers: self.counters.len(),
            started_unix_ms: unix_time(self.started.wall).as_millis() as u64,
            uptime_ms: self.started.instant.elapsed().as_millis() as u64,
            draining: self.is_draining.load(Ordering::Relaxed),
            loop_lag_us: distribution(&workers, |it| &it.loop_lag_us),
            log_lines_dropped: sum(&workers, |it| &it.log_lines_dropped),
            log_lines_lost: self.log_lines_lost.load(Ordering::Relaxed),
            spans_sent: self.spans.sent.load(Ordering::Relaxed),
            spans_lost: self.spans_lost(),
            status_tokens_refused: self.status_tokens_refused.load(Ordering::Relaxed),
            workers_stalled: self.worker_stalls.now(),
            worker_stalls: self.worker_stalls.so_far(),
            process: ProcessFigures::read(),
            config: ConfigFigures {
                hash: config.hash_text(),
                loaded_unix_ms: unix_time(self.started.wall).as_millis() as u64,
            },
            listeners: (0..config.listeners.len())
                .map(|index| self.listener(index, which))
                .collect(),
            routes: (0..config.routes.len())
                .map(|index| self.route(index, which))
                .collect(),
            upstreams: (0..config.upstreams.len())
                .map(|index| self.upstream(index, which))
                .collect(),
            open_files: level(&workers, |it| &it.open_files),
            answer_memory: AnswerMemoryFigures {
                held: self.disks.answer_memory.held(),
                limit: config.server.answer_memory,
                refused: self.disks.answer_memory.refused(),
            },
            buffer_bytes: self.buffer_memory.held(),
            buffer_limit_bytes: self.buffer_memory.limit(),
            disks: self.disks.all().iter().map(|it| self.disk(it)).collect(),
        }
    }

    /// Spans for which there was no room, or that could not be sent.
    pub fn spans_lost(&self) -> u64 {
        self.spans.lost.load(Ordering::Relaxed) + sum(&self.workers(), |it| &it.spans_dropped)
    }

    fn workers(&self) -> Vec<&Counters> {
        self.counters.iter().map(|it| &**it).collect()
    }

    /// The cells of each worker that uses them.
    fn used<'a, T: Default + 'a>(&'a self, of: impl Fn(&'a Counters) -> &'a Lazy<T>) -> Vec<&'a T> {
        self.counters.iter().filter_map(|it| of(it).get()).collect()
    }

    fn listener(&self, index: usize, which: Phases) -> ListenerFigures {
        let settings = &self.config.listeners[index];
        let cells: Vec<_> = self
            .counters
            .iter()
            .map(|it| &it.listeners[index])
            .collect();
        let exchanges: Vec<_> = cells.iter().map(|it| &it.exchanges).collect();
        ListenerFigures {
            name: settings.name.clone(),
            bind: settings.bind.to_string(),
            accepting: !self.is_draining.load(Ordering::Relaxed),
            connections: sum(&cells, |it| &it.connections),
            open: level(&cells, |it| &it.open),
            connections_limit: settings.limits.connections,
            connections_refused: sum(&cells, |it| &it.connections_refused),
            connections_no_descriptor: sum(&cells, |it| &it.connections_no_descriptor),
            connections_displaced: sum(&cells, |it| &it.connections_displaced),
            accept_pauses: sum(&cells, |it| &it.accept_pauses),
            drains: sum(&cells, |it| &it.drains),
            drains_cut: sum(&cells, |it| &it.drains_cut),
            exchanges: exchange_figures(which, &exchanges),
        }
    }

    fn route(&self, index: usize, which: Phases) -> RouteFigures {
        let settings = &self.config.routes[index];
        let proxying = settings.action.proxying();
        let workers = self.workers();
        let exchanges = exchange_figures(which, &self.used(|it| &it.routes[index]));
        RouteFigures {
            name: settings.name.clone(),
            upstream: proxying.map(|it| self.config.upstreams[it.upstream].name.clone()),
            files: match &settings.action {
                Action::Files(files) => Some(FileFigures {
                    root: files.root.display().to_string(),
                    hot: sum(&workers, |it| &it.files[index].hot),
                    cold: sum(&workers, |it| &it.files[index].cold),
                    refused: exchanges.ends.count(End::Failure(Failure::DiskBusy)),
                }),
                _ => None,
            },
            exchanges,
        }
    }

    fn disk(&self, disk: &Disk) -> DiskFigures {
        let (load, counters) = (disk.queue.load(), disk.queue.counters());
        let distribution = |histogram| {
            let mut distribution = Distribution::default();
            distribution.add(histogram);
            distribution
        };
        DiskFigures {
            name: disk.name.clone(),
            waiting: load.waiting,
            queue_max: self.config.disk.queue_max,
            in_flight: load.in_flight,
            max_in_flight: self.config.disk.in_flight,
            reads: counters.done.value(),
            shared: counters.shared.value(),
            direct: disk.direct_reads.count(),
            refused: counters.refused.value(),
            wait_us: distribution(&counters.wait_us),
            service_us: distribution(&counters.service_us),
        }
    }

    fn upstream(&self, index: usize, which: Phases) -> UpstreamFigures {
        let settings = &self.config.upstreams[index];
        let dispatcher = &self.dispatchers[index];
        let endpoints: Vec<_> = (0..settings.endpoints.len())
            .map(|endpoint| self.endpoint(index, endpoint, which))
            .collect();
        let cells: Vec<_> = self
            .counters
            .iter()
            .map(|it| &it.upstreams[index])
            .collect();
        let used: Vec<_> = cells.iter().filter_map(|it| it.exchanges.get()).collect();
        let mut exchanges = exchange_figures(which, &used);
        let phases = &mut exchanges.phases;
        endpoints.iter().for_each(|it| phases.merge(&it.phases));
        let members = dispatcher.members();
        let states = members.endpoints();
        UpstreamFigures {
            name: settings.name.clone(),
            balance: settings.balance.word(),
            in_flight: endpoints.iter().map(|it| u64::from(it.in_flight)).sum(),
            waiting: dispatcher.waiting() as u64,
            queue_max: settings.queue.settings.max as u64,
            eligible: states.iter().filter(|it| it.is_eligible()).count(),
            queued: sum(&cells, |it| &it.queued),
            retries: sum(&cells, |it| &it.retries),
            retries_refused: sum(&cells, |it| &it.retries_refused),
            buffers_refused: sum(&cells, |it| &it.buffers_refused),
            exchanges,
            lanes: lanes(settings, dispatcher),
            endpoints,
        }
    }

    /// Reads one endpoint.
    pub(crate) fn endpoint(&self, upstream: usize, index: usize, which: Phases) -> EndpointFigures {
        let settings = &self.config.upstreams[upstream].endpoints[index];
        let dispatcher = &self.dispatchers[upstream];
        let members = dispatcher.members();
        let state = &members.endpoints()[index];
        let cells = self.used(|it| &it.upstreams[upstream].endpoints[index]);
        let phases: Vec<_> = cells.iter().map(|it| &it.phases).collect();
        let outages = state.outages();
        let probed = self.probes.of(upstream, index);
        EndpointFigures {
            name: settings.name.clone(),
            state: State::of(state),
            is_lost: state.is_lost(),
            eligible: state.is_eligible(),
            admin: AdminWord(dispatcher.admin(state)),
            weight: state.weight(),
            effective_weight: effective_weight(state),
            in_flight: state.in_flight(),
            max_in_flight: state.max_in_flight(),
            errors_in_row: state.errors_in_row(),
            last_probe: probed.last,
            probes_failed: probed.failures,
            ejections: outages.ejections,
            downs: outages.downs,
            unreachables: outages.unreachables,
            idle: level(&cells, |it| &it.idle),
            pinned: level(&cells, |it| &it.pinned),
            attempts: sum(&cells, |it| &it.attempts),
            connects: sum(&cells, |it| &it.connects),
            connect_failures: sum(&cells, |it| &it.connect_failures),
            reuses: sum(&cells, |it| &it.reuses),
            stale: sum(&cells, |it| &it.stale),
            displaced: sum(&cells, |it| &it.displaced),
            failures: sum(&cells, |it| &it.failures),
            status: status(&cells, |it| &it.status),
            bytes_out: sum(&cells, |it| &it.bytes_out),
            bytes_in: sum(&cells, |it| &it.bytes_in),
            phases: phase_figures(which, &phases),
        }
    }
}

fn sum<T>(cells: &[&T], counter: impl Fn(&T) -> &Counter) -> u64 {
    cells.iter().map(|it| counter(it).value()).sum()
}

fn level<T>(cells: &[&T], gauge: impl Fn(&T) -> &Gauge) -> u64 {
    cells.iter().map(|it| gauge(it).value()).sum()
}

fn distribution<T>(cells: &[&T], histogram: impl Fn(&T) -> &Histogram) -> Distribution {
    let mut sum = Distribution::default();
    cells.iter().for_each(|it| sum.add(histogram(it)));
    sum
}

fn status<T>(cells: &[&T], status: impl Fn(&T) -> &[Counter; 6]) -> StatusFigures {
    StatusFigures(std::array::from_fn(|class| {
        sum(cells, |it| &status(it)[class])
    }))
}

fn ends(cells: &[&ExchangeCounters]) -> Ends {
    if cells.is_empty() {
        return Ends::default();
    }
    let count = |index: usize| sum(cells, |it| &it.ends[index]);
    Ends((0..End::COUNT).map(count).collect())
}

fn phase_figures(which: Phases, cells: &[&counters::Phases]) -> PhaseFigures {
    let total_us = distribution(cells, |it| &it.total_us);
    let queue_us = distribution(cells, |it| &it.queue_us);
    match which {
        Phases::Page => PhaseFigures {
            queue_us,
            total_us,
            ..PhaseFigures::default()
        },
        Phases::All => PhaseFigures {
            queue_us,
            connect_us: distribution(cells, |it| &it.connect_us),
            first_byte_us: distribution(cells, |it| &it.first_byte_us),
            total_us,
            response_bytes: distribution(cells, |it| &it.response_bytes),
        },
    }
}

fn exchange_figures(which: Phases, cells: &[&ExchangeCounters]) -> ExchangeFigures {
    let phases: Vec<_> = cells.iter().map(|it| &it.phases).collect();
    ExchangeFigures {
        requests: sum(cells, |it| &it.requests),
        errors: sum(cells, |it| &it.errors),
        bytes_in: sum(cells, |it| &it.bytes_in),
        bytes_out: sum(cells, |it| &it.bytes_out),
        status: status(cells, |it| &it.status),
        ends: ends(cells),
        phases: phase_figures(which, &phases),
    }
}

fn lanes(settings: &config::Upstream, dispatcher: &Dispatcher) -> Vec<LaneFigures> {
    let lanes = settings.lanes.iter().enumerate();
    lanes
        .map(|(index, lane)| LaneFigures {
            name: lane.name.clone(),
            in_flight: dispatcher.lane_in_flight(index),
            max_in_flight: lane.max_in_flight,
        })
        .collect()
}

impl PhaseFigures {
    fn merge(&mut self, other: &PhaseFigures) {
        self.queue_us.merge(&other.queue_us);
        self.connect_us.merge(&other.connect_us);
        self.first_byte_us.merge(&other.first_byte_us);
        self.total_us.merge(&other.total_us);
        self.response_bytes.merge(&other.response_bytes);
    }
}

impl Ends {
    /// Number of exchanges whose end is one of some.
    pub fn sum(&self, is_one: impl Fn(End) -> bool) -> u64 {
        let counted = self.iter().filter(|(end, _)| is_one(*end));
        counted.map(|(_, count)| count).sum()
    }

    /// Number of exchanges that ended like this.
    pub fn count(&self, end: End) -> u64 {
        self.0.get(end.index()).copied().unwrap_or(0)
    }

    /// Every end that occurred, with how often.
    pub fn iter(&self) -> impl Iterator<Item = (End, u64)> {
        End::all()
            .zip(&self.0)
            .map(|(end, count)| (end, *count))
            .filter(|(_, count)| *count > 0)
    }
}

impl Serialize for Ends {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(end, count)| (end.word(), count)))
    }
}

impl StatusFigures {
    /// The names of the classes, in order.
    pub const CLASSES: [&'static str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];
}

impl Serialize for StatusFigures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (class, count) in Self::CLASSES.iter().zip(self.0) {
            map.serialize_entry(class, &count)?;
        }
        map.end()
    }
}

impl Serialize for AdminWord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}
