//! All figures, read at one moment, for the metrics, the status page, its CSV and JSON, and the
//! control socket.
//!
//! All of these show the same figures, so that they agree. Each kind of object has a table
//! ([`figures!`]) with a row for each figure. The rows have the names of `/status.json`, and the
//! families of `/metrics`.

pub mod counters;
mod endpoint;
mod exchanges;
mod kept;
mod listener;
mod route;
mod upstream;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use evenkeel_metrics::family::{Reading, Value, maybe, whole};
use evenkeel_metrics::{BufferMemory, Detail, ReasonCounts, Reasons, figures, sum};
use evenkeel_policy::dispatch::Dispatcher;
use serde::Serialize;

use super::calendar::unix_time;
use super::discovered::Discovered;
use super::inquiry::Inquiry;
use super::otlp::SpanCounts;
use super::probes::Probes;
use super::process::ProcessFigures;
use super::reloads::Reloads;
use super::stalls::WorkerStalls;
use super::upgrades::Upgrades;
use crate::cache::{Cache, CacheFigures};
use crate::certificates::{AcmeServerFigures, ServedTls, TicketFigures, Tickets};
use crate::config::Config;
use crate::files::{DiskFigures, Disks};
use crate::limits::RouteLimits;
use crate::maintenance::Maintenance;
use crate::passwords::Passwords;

pub use super::generation::{GenerationFigures, LoadedConfig};
use counters::Counters;
pub(crate) use endpoint::effective_weight;
pub use endpoint::{AdminWord, EndpointFigures, EndpointGiven, EndpointStatus};
pub use exchanges::{ExchangeFigures, PhaseFigures};
pub use listener::{ListenerFigures, ListenerGiven};
pub use route::{
    CachingFigures, CompressionFigures, FileFigures, FileGiven, LimitFigures, MirrorFigures,
    RouteFigures, RouteGiven,
};
pub use upstream::{LaneFigures, UpstreamFigures, UpstreamGiven};

/// The sources of figures: all state that workers write and share.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The number of this generation: how often another configuration was loaded.
    pub generation: u32,
    /// When its configuration came into force.
    pub loaded: Started,
    /// The configuration that all indices refer to.
    pub config: Arc<Config>,
    /// The counters of each worker, followed by those of the process before an upgrade.
    pub counters: Vec<Arc<Counters>>,
    /// The state of each upstream.
    pub dispatchers: Vec<Arc<Dispatcher>>,
    /// The caches of its routes.
    pub caches: Vec<Arc<Cache>>,
    /// The limits of its routes.
    pub limits: RouteLimits,
    /// The routes and upstreams under maintenance.
    pub maintenance: Arc<Maintenance>,
    /// Verifies passwords; lives as long as the process.
    pub passwords: Arc<Passwords>,
    /// The TLS of its listeners, in order; `None` for plain text.
    pub tls: Vec<Option<Arc<ServedTls>>>,
    /// The ticket keys of all listeners; they live as long as the process.
    pub tickets: Arc<Tickets>,
    /// Access log lines that could not be written.
    pub log_lines_lost: Arc<AtomicU64>,
    /// The fate of spans.
    pub spans: Arc<SpanCounts>,
    /// The last probe of each endpoint.
    pub probes: Arc<Probes>,
    /// The sources of endpoints.
    pub discovered: Arc<Discovered>,
    /// Requests to the status listener that were refused for their token.
    pub status_tokens_refused: Arc<AtomicU64>,
    /// Workers whose event loop does not come round.
    pub worker_stalls: Arc<WorkerStalls>,
    /// Paths of Unix listeners that no longer lead to them.
    pub paths_lost: Arc<ReasonCounts>,
    /// Reloads so far.
    pub reloads: Arc<Reloads>,
    /// Upgrades so far.
    pub upgrades: Arc<Upgrades>,
    /// Whether the process drains.
    pub is_draining: Arc<AtomicBool>,
    /// When the process began to serve.
    pub started: Started,
    /// The disks that files are served from.
    pub disks: Arc<Disks>,
    /// The memory in which bodies are held for slow clients.
    pub buffer_memory: Arc<BufferMemory>,
    /// Asks each worker for facts that only it knows.
    pub inquiries: Vec<Inquiry>,
}

/// The sources of the newest configuration at any moment.
#[derive(Debug, Clone)]
pub struct CurrentSources(Arc<Mutex<Arc<Sources>>>);

impl CurrentSources {
    /// The sources of the first configuration.
    pub fn new(sources: Sources) -> Self {
        CurrentSources(Arc::new(Mutex::new(Arc::new(sources))))
    }

    /// The sources of the newest configuration. Take them once for each question, as the indices
    /// of two configurations do not agree.
    pub fn get(&self) -> Arc<Sources> {
        self.lock().clone()
    }

    /// Replaces the sources after a reload. Returns the former ones.
    pub fn replace(&self, sources: Arc<Sources>) -> Arc<Sources> {
        std::mem::replace(&mut *self.lock(), sources)
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Sources>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

figures! {
    /// All figures at one moment. Counts are since the start.
    figures Figures;
    /// The counters of a worker as a whole.
    cells OwnCounters;
    /// Further facts of the process.
    given ProcessGiven;

    /// Version of the program.
    given version: &'static str;
    /// Process id.
    given pid: u32;
    /// Worker threads.
    given workers: usize => gauge "workers";
    /// When it began to serve, in milliseconds since 1970.
    given started_unix_ms: u64;
    /// For how long it has.
    given uptime_ms: u64;
    /// Whether it only finishes what is open, and then ends.
    given draining: bool;
    /// How late the ticks of the workers' event loops were.
    seconds loop_lag_us => "worker_loop_lag_seconds" after "buffer_limit_bytes";
    /// When the configuration came into force, in seconds since 1970.
    family gauge "config_load_timestamp_seconds",
        |it| Reading::One(Value::Millis(it.config.loaded_unix_ms));
    /// How often a new configuration came into force since the start.
    given generation: u32 => gauge "generation";
    /// Configurations that came into force after the first.
    given reloads: u64 => counter "reloads_total";
    /// Configurations that were refused: the one before stayed in force.
    given reloads_refused: u64;
    /// Configurations that were refused, by reason.
    given reloads_refused_by_reason: Reasons => counter "reloads_refused_total";
    /// Configurations that were reverted because they were not confirmed in time.
    given reloads_reverted: u64 => counter "reloads_reverted_total";
    /// Times that another process has taken over.
    given upgrades: u64 => counter "upgrades_total";
    /// Upgrades in which no other process took over.
    given upgrades_failed: u64;
    /// Upgrades in which no other process took over, by reason.
    given upgrades_failed_by_reason: Reasons => counter "upgrades_failed_total";
    /// Access log lines for which the writer had no room.
    counter log_lines_dropped => "log_lines_dropped_total";
    /// Errors answered without their page, because no upstream could serve it.
    counter error_pages_missed => "error_pages_missed_total";
    /// Access log lines that could not be written.
    given log_lines_lost: u64 => counter "log_lines_lost_total";
    /// Spans that the collector accepted.
    given spans_sent: u64 => counter "spans_sent_total";
    /// Spans for which there was no room, or that could not be sent.
    given spans_lost: u64 => counter "spans_lost_total";
    /// Requests to the status listener that were refused for their token.
    given status_tokens_refused: u64 => counter "status_tokens_refused_total";
    /// Times that the state file could not be read or written.
    given state_file_failures: u64;
    /// Times that the state file could not be read or written, by reason.
    given state_file_failures_by_reason: Reasons => counter "state_file_failures_total"
        after "status_tokens_refused_total";
    /// Files of networks with a mistake: their previous contents stay in force.
    given network_files_mistaken: u64 => gauge "network_files_mistaken";
    /// Files of users with a mistake: their previous contents stay in force.
    given user_files_mistaken: u64 => gauge "user_files_mistaken";
    /// Workers that have been stuck for a second or longer.
    given workers_stalled: u64 => gauge "workers_stalled";
    /// Times that a worker was stuck for a second or longer.
    given worker_stalls: u64 => counter "worker_stalls_total";
    /// Times that the path of a Unix listener no longer led to it, by reason.
    given listener_paths_lost: Reasons => counter "listener_paths_lost_total";
    /// The keys of TLS tickets.
    given tickets: TicketFigures;
    /// Keys that open TLS tickets.
    family gauge "ticket_keys", |it| whole(it.tickets.keys);
    /// Times that a new key of TLS tickets was made on schedule.
    family counter "ticket_key_rotations_total", |it| whole(it.tickets.rotations);
    /// TLS tickets of clients with an unknown key: their sessions are not resumed.
    family counter "tickets_unknown_total", |it| whole(it.tickets.unknown);
    /// Keys of TLS tickets received from other machines through the shared server.
    family counter "ticket_keys_learned_total", |it| whole(it.tickets.learned);
    /// 1 while keys of TLS tickets are exchanged with the shared server.
    family gauge "ticket_server_up",
        |it| maybe(it.tickets.server.as_ref().map(|it| it.up));
    /// Times that the server for keys of TLS tickets went down.
    family counter "ticket_server_downs_total", |it| whole(it.tickets.server_downs);
    /// The server by which machines share certificates by ACME.
    given acme_server: Option<AcmeServerFigures>;
    /// 1 while ACME certificates are stored at the shared server.
    family gauge "acme_server_up",
        |it| maybe(it.acme_server.as_ref().map(|it| it.standing.up));
    /// 1 while machines with different `encrypt_with` keys use the server for ACME.
    family gauge "acme_server_keys_differ",
        |it| maybe(it.acme_server.as_ref().map(|it| it.keys_differ));
    /// The use of the machine's resources.
    given process: ProcessFigures;
    /// The configuration in force.
    given config: ConfigFigures;
    /// Configurations that are in use, the newest first.
    given generations: Vec<GenerationFigures>;
    /// In the order of the configuration.
    given listeners: Vec<ListenerFigures>;
    /// In the order of the configuration.
    given routes: Vec<RouteFigures>;
    /// In order of their names.
    given upstreams: Vec<UpstreamFigures>;
    /// Files to serve that are kept open.
    gauge open_files => "open_files" after "status_tokens_refused_total";
    /// Memory of answers that clients have not read yet.
    given answer_memory: AnswerMemoryFigures;
    /// Memory of answers that clients have not read yet.
    family gauge "answer_memory_bytes", |it| whole(it.answer_memory.held);
    /// Most memory of answers that clients have not read yet.
    family gauge "answer_memory_limit_bytes", |it| whole(it.answer_memory.limit);
    /// Listings and compressed files refused because that memory was full.
    family counter "answer_memory_refused_total", |it| whole(it.answer_memory.refused);
    /// Memory in which bodies are held for slow clients.
    given buffer_bytes: u64 => gauge "buffer_bytes";
    /// Most memory in which bodies may be held for slow clients.
    given buffer_limit_bytes: u64 => gauge "buffer_limit_bytes";
    /// In the order in which routes first have a folder on them.
    given disks: Vec<DiskFigures>;
    /// In order of their names.
    given caches: Vec<CacheFigures>;
}

/// Memory of answers that clients have not taken yet, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct AnswerMemoryFigures {
    /// Bytes held now.
    pub held: u64,
    /// Most bytes that may be held.
    pub limit: u64,
    /// Answers that were refused for want of this memory.
    pub refused: u64,
}

/// The configuration of a process.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigFigures {
    /// Hash of the effective configuration, in hexadecimal digits.
    pub hash: String,
    /// When it came into force, in milliseconds since 1970.
    pub loaded_unix_ms: u64,
}

/// How many of these there are.
fn count_of<T>(all: &[T], is_one: impl Fn(&T) -> bool) -> u64 {
    all.iter().filter(|it| is_one(it)).count() as u64
}

impl Sources {
    /// The configuration that these are of, as it came into force.
    pub fn loaded_config(&self) -> LoadedConfig {
        LoadedConfig {
            generation: self.generation,
            hash: self.config.hash_text(),
            since: self.loaded.instant,
            counters: (self.counters.iter())
                .map(|it| it.generation.clone())
                .collect(),
        }
    }

    /// Reads everything. Counts that belong together may differ by exchanges
    /// that end meanwhile.
    pub fn read(&self) -> Figures {
        self.read_with(Detail::Full)
    }

    /// As [`read`](Self::read), with some distributions left out.
    pub(crate) fn read_with(&self, detail: Detail) -> Figures {
        let config = &*self.config;
        let failed = self.upgrades.failed();
        let refused = self.reloads.refused().read();
        let state_failures = self.discovered.state_failures().read();
        let given = ProcessGiven {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            workers: config.server.workers,
            started_unix_ms: unix_time(self.started.wall).as_millis() as u64,
            uptime_ms: self.started.instant.elapsed().as_millis() as u64,
            generation: self.generation,
            reloads: self.reloads.done(),
            reloads_refused: refused.total(),
            reloads_refused_by_reason: refused,
            reloads_reverted: self.reloads.reverted(),
            upgrades: self.upgrades.done(),
            upgrades_failed: failed.total(),
            upgrades_failed_by_reason: failed,
            draining: self.is_draining.load(Ordering::Relaxed),
            log_lines_lost: self.log_lines_lost.load(Ordering::Relaxed),
            spans_sent: self.spans.sent.load(Ordering::Relaxed),
            spans_lost: self.spans_lost(),
            status_tokens_refused: self.status_tokens_refused.load(Ordering::Relaxed),
            state_file_failures: state_failures.total(),
            state_file_failures_by_reason: state_failures,
            network_files_mistaken: count_of(&config.network_files, |it| {
                it.file.mistake().is_some()
            }),
            user_files_mistaken: count_of(&config.user_files, |it| it.file.mistake().is_some()),
            workers_stalled: self.worker_stalls.now(),
            worker_stalls: self.worker_stalls.so_far(),
            listener_paths_lost: self.paths_lost.read(),
            tickets: self.tickets.figures(),
            acme_server: (self.tls.iter().flatten())
                .find_map(|it| it.acme())
                .and_then(|it| it.server()),
            process: self.process(),
            config: ConfigFigures {
                hash: config.hash_text(),
                loaded_unix_ms: unix_time(self.loaded.wall).as_millis() as u64,
            },
            generations: self.reloads.alive(),
            listeners: (0..config.listeners.len())
                .map(|index| self.listener(index, detail))
                .collect(),
            routes: (0..config.routes.len())
                .map(|index| self.route(index, detail))
                .collect(),
            upstreams: (0..config.upstreams.len())
                .map(|index| self.upstream(index, detail))
                .collect(),
            answer_memory: AnswerMemoryFigures {
                held: self.disks.answer_memory.held(),
                limit: config.server.answer_memory,
                refused: self.disks.answer_memory.refused(),
            },
            buffer_bytes: self.buffer_memory.held(),
            buffer_limit_bytes: self.buffer_memory.limit(),
            disks: (self.disks.all().iter())
                .map(|it| it.figures(&config.disk))
                .collect(),
            caches: self.caches.iter().map(|it| it.figures()).collect(),
        };
        let figures = given.with(self.counters.iter().map(|it| &it.worker.own), detail);
        self.upgrades.tell();
        figures
    }

    fn process(&self) -> ProcessFigures {
        let mut process = ProcessFigures::read();
        process.cpu_us += self.upgrades.cpu_us_before();
        process
    }

    /// Spans for which there was no room, or that could not be sent.
    pub fn spans_lost(&self) -> u64 {
        let dropped = self.counters.iter().map(|it| &it.worker.spans_dropped);
        self.spans.lost.load(Ordering::Relaxed) + sum(dropped)
    }
}
