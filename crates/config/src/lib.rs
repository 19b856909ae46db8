//! The resolved configuration: what the program runs on.
//!
//! Immutable once built and shared by every worker as one snapshot. The file
//! as a person wrote it, and every mistake in it, is the loader's business:
//! [`load()`] reads all layers into a tree of values with their places, `written`
//! says what may stand there, and `resolve` makes the [`Config`] of it.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_net::Address;
use evenkeel_net::listen::Accepting;
use evenkeel_policy::health::HealthSettings;
use evenkeel_policy::queue::QueueSettings;
use evenkeel_policy::route::{Network, PathPattern, RouteTable};
use evenkeel_proto::coding::Coding;
use evenkeel_proto::http1::write::{Forward, Via};

pub mod access_log;
mod candidate;
mod check;
pub mod diagnostics;
mod docs;
mod document;
mod file_value;
mod form;
mod input;
mod layers;
mod level;
mod load;
mod location;
mod log_value;
pub mod machine;
mod not_toml;
mod peers;
mod print;
mod quantity;
mod regex_like;
mod resolve;
mod schema;
mod secret;
mod setting;
mod shape;
mod template;
mod tree;
mod twice;
mod unknown;
mod value;
mod written;

pub use access_log::{AccessLog, AccessLogFormat, AccessLogs, LogDestination};
pub use candidate::Candidate;
pub use diagnostics::{Colour, Report};
pub use docs::reference;
pub use evenkeel_policy::route::BalanceKey;
pub use level::Level;
pub use load::{LOCAL_FILE, Loaded, load, load_text};
pub use location::{Location, LocationPart, Variable};
pub use resolve::NameLookup;
pub use schema::schema;
pub use secret::without_passwords;
pub use written::{ClientTimeouts, Drain, Interim, Log, Pool, UpstreamTimeouts};

/// Everything the process runs on, checked and with every default filled in.
#[derive(Debug)]
pub struct Config {
    /// Process-wide settings.
    pub server: Server,
    /// Where clients connect, in the order written.
    pub listeners: Vec<Listener>,
    /// The compiled matcher; the index it finds is one into `routes`.
    pub route_table: RouteTable,
    /// What to do for each route, in the order written.
    pub routes: Vec<Route>,
    /// Named groups of endpoints, in order of their names.
    pub upstreams: Vec<Upstream>,
    /// How much is asked of disks at once.
    pub disk: Disk,
    /// The status page; `None` for none.
    pub status: Option<Status>,
    /// The event log.
    pub log: Log,
    /// Where spans are sent; `None` for nowhere.
    pub otlp: Option<Otlp>,
    /// Hash of all layers with every default, as they are printed: tells
    /// whether two processes run on the same configuration.
    pub hash: u64,
    /// Where requests are logged, and how.
    pub access_logs: AccessLogs,
    /// What holds in place of `access_logs` where somebody reads standard output;
    /// `None` where an access log is written, or switched off.
    default_access_logs: Option<AccessLogs>,
}

impl Config {
    /// Logs requests on standard output, unless something else is written. Whether
    /// it does.
    pub fn log_by_default(&mut self) -> bool {
        match self.default_access_logs.take() {
            Some(logs) => {
                self.access_logs = logs;
                true
            }
            None => false,
        }
    }

    /// The hash as it is shown.
    pub fn hash_text(&self) -> String {
        format!("{:016x}", self.hash)
    }
}

impl Default for Log {
    fn default() -> Self {
        Log {
            level: Level::default(),
            format: EventFormat::Text,
        }
    }
}

/// What a line of the event log looks like, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFormat {
    /// For people, on standard error.
    Text,
    /// One JSON object a line, on standard error.
    Json,
    /// The systemd journal.
    Journald,
}

/// A collector of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otlp {
    /// Host and port.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Value of `service.name`.
    pub service: String,
    /// Further fields of its requests.
    pub headers: Vec<(String, String)>,
    /// Longest time that it may take for a request.
    pub timeout: Duration,
}

/// What is called what in the requests of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// What becomes of `X-Request-ID`.
    pub request_id: Adopt,
    /// Whether the client is told the id.
    pub respond: bool,
    /// What becomes of `traceparent`.
    pub trace: Adopt,
    /// Of the traces that begin here, the part that is sampled, in millionths.
    pub sample_ppm: u32,
}

impl Identity {
    /// Whether there is anything to do for a request.
    pub fn is_on(&self) -> bool {
        self.request_id != Adopt::Off || self.trace != Adopt::Off
    }
}

/// What becomes of a name that a client gives its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopt {
    /// It is passed on like any field.
    Off,
    /// It holds where it is well-formed; else there is a new one.
    Keep,
    /// There is always a new one.
    New,
}

/// What is made of a client that closes its sending side before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfClose {
    /// It has left if its connection was to go on, else if it did so late.
    Auto,
    /// It waits for the answer.
    Serve,
    /// It has left.
    Abort,
}

/// Largest weight of an endpoint.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// The status page, with the metrics.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where it listens.
    pub bind: Address,
    /// What a request must carry that is to change something; `None` where
    /// none may.
    pub token: Option<String>,
}

/// Process-wide settings.
#[derive(Debug, Clone)]
pub struct Server {
    /// Number of worker threads, at least one.
    pub workers: usize,
    /// How long TERM and INT wait for exchanges in flight.
    pub drain_timeout: Duration,
    /// Most memory for answers that clients have not taken yet, in bytes.
    pub answer_memory: u64,
    /// The Unix socket for commands; `None` for none.
    pub control: Option<Address>,
    /// Most memory for bodies that are held for slow clients, in bytes.
    pub buffer_memory: u64,
    /// Descriptors that clients never take; `None` for the default.
    pub reserved_descriptors: Option<u32>,
}

/// One place where clients connect.
#[derive(Debug, Clone)]
pub struct Listener {
    /// The name that logs, counters and routes use.
    pub name: String,
    /// Where it listens.
    pub bind: Address,
    /// How the kernel takes connections in.
    pub accepting: Accepting,
    /// Who must begin each connection with a header of the PROXY protocol.
    pub proxy_protocol: Peers,
    /// Whose word on the client is believed.
    pub trusted_proxies: Peers,
    /// Bounds on what a client may send.
    pub limits: Limits,
    /// Bounds on how long a client may take.
    pub timeouts: ClientTimeouts,
    /// Bounds on what is read of a body after its answer.
    pub drain: Drain,
    /// What a client's FIN says before its answer.
    pub half_close: HalfClose,
    /// What its requests are called.
    pub identity: Identity,
}

/// A set of peers, by their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers {
    /// Networks of those that have an address.
    pub networks: Vec<Network>,
    /// Whether it has those on Unix sockets.
    pub has_unix: bool,
}

impl Peers {
    /// Whether a peer is one of them; it has no address over a Unix socket.
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            Some(address) => self.networks.iter().any(|it| it.contains(address)),
            None => self.has_unix,
        }
    }
}

/// Bounds on what a client may send.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Request line and fields together, in bytes (431 above it).
    pub head_bytes: usize,
    /// Request target, in bytes (414 above it).
    pub target_bytes: usize,
    /// Request body, in bytes (413 above it); `None` for no limit.
    pub body_bytes: Option<u64>,
    /// Connections of this listener at once, over all workers.
    pub connections: Option<u32>,
}

impl Limits {
    /// Whether a request's body may have this length.
    pub fn allow_body(&self, len: u64) -> bool {
        self.body_bytes.is_none_or(|limit| len <= limit)
    }
}

/// A route's name and what it does; how it matches is in the route table.
#[derive(Debug, Clone)]
pub struct Route {
    /// The name that logs use: as written, or `route-N` counted from 1.
    pub name: String,
    /// What answers.
    pub action: Action,
}

/// What answers a request.
#[derive(Debug, Clone)]
pub enum Action {
    /// Proxy to an upstream.
    Upstream(Proxying),
    /// A fixed answer.
    Answer(Box<FixedAnswer>),
    /// A redirect.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// Value of `Location`.
        location: Location,
    },
    /// Files of a folder.
    Files(Box<Files>),
}

impl Action {
    /// How its requests go to an upstream: all, or those that no file is found
    /// for; `None` where none does.
    pub fn proxying(&self) -> Option<Proxying> {
        match self {
            Action::Upstream(proxying) => Some(*proxying),
            Action::Files(files) => files.fallback,
            Action::Answer(_) | Action::Redirect { .. } => None,
        }
    }
}

/// An answer that is the same for every request.
#[derive(Debug, Clone)]
pub struct FixedAnswer {
    /// Status code, 200 to 599.
    pub status: u16,
    /// Value of `Content-Type`.
    pub content_type: String,
    /// Further fields: names and values.
    pub headers: Vec<(String, String)>,
    /// The body, as sent.
    pub body: Vec<u8>,
    /// Where the body was read from.
    pub file: Option<PathBuf>,
}

/// Files of a folder, and how they are answered with.
#[derive(Debug, Clone)]
pub struct Files {
    /// The folder, as an absolute path.
    pub root: PathBuf,
    /// What is taken off the front of a request's path before it is looked for
    /// in the folder, such as `/img`; without a slash at its end, and empty for
    /// nothing.
    pub strip: String,
    /// Paths that are tried one after the other; of the request's, what is stripped
    /// is left out.
    pub candidates: Vec<Candidate>,
    /// Names of the files that stand for the folder that they are in.
    pub index: Vec<String>,
    /// Where a request goes that no file is found for; `None` is a 404.
    pub fallback: Option<Proxying>,
    /// The file in the folder that is the body of a 404, as a path that begins
    /// with a slash.
    pub not_found: Option<String>,
    /// Whether a folder without index file is listed.
    pub is_listed: bool,
    /// Whether names that begin with a dot are served.
    pub shows_hidden: bool,
    /// Endings of names without dot, in lower case, and their `Content-Type`,
    /// where it is not the usual one.
    pub types: Vec<(String, String)>,
    /// `Content-Type` of what has no known ending.
    pub default_type: String,
    /// Patterns of paths and the `Cache-Control` of what they match: the first
    /// that does.
    pub cache_control: Vec<(PathPattern, String)>,
    /// Codings whose files stand beside the others (`a.css.br`), in order of
    /// preference.
    pub precompressed: Vec<Coding>,
    /// What is compressed here; `None` for nothing.
    pub compression: Option<Compression>,
    /// What is answered where the disk can take no more.
    pub overload: QueueAnswer,
}

impl Files {
    /// Whether something may answer a request whose path can be no file's.
    pub fn stands_for_others(&self) -> bool {
        let mut candidates = self.candidates.iter();
        self.fallback.is_some() || candidates.any(|it| it.fixed().is_some())
    }
}

/// Which files are compressed when they are asked for.
#[derive(Debug, Clone)]
pub struct Compression {
    /// Codings, in order of preference.
    pub codings: Vec<Coding>,
    /// Beginnings of the `Content-Type`s that gain by it, such as `text/`.
    pub types: Vec<String>,
    /// Smallest file, in bytes.
    pub min_bytes: u64,
    /// Largest file, in bytes.
    pub max_bytes: u64,
}

/// How much is asked of disks at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Reads in flight, for each device.
    pub in_flight: usize,
    /// Reads that may wait, for each device.
    pub queue_max: usize,
    /// Longest wait that is expected of a read which is let into the queue.
    pub queue_timeout: Duration,
    /// Files kept open, over all workers.
    pub open_files: usize,
    /// How long an open file is believed to be the one that its path leads to.
    pub check_interval: Duration,
}

/// How a route's requests go to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proxying {
    /// Index in `Config::upstreams`.
    pub upstream: usize,
    /// Index in that upstream's lanes, for routes that are kept to one.
    pub lane: Option<usize>,
    /// Higher ones leave the queue first.
    pub priority: u8,
}

/// A named group of endpoints.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The name that routes, logs and counters use.
    pub name: String,
    /// How an endpoint is chosen.
    pub balance: evenkeel_policy::balance::Balance,
    /// The addresses in it; may be empty (every request is answered 503).
    pub endpoints: Vec<Endpoint>,
    /// Idle connections kept.
    pub pool: Pool,
    /// Bounds on how long an attempt may take.
    pub timeouts: UpstreamTimeouts,
    /// Bounds on the interim responses before a response.
    pub interim: Interim,
    /// Further attempts after the first, where HTTP allows them.
    pub retries: u32,
    /// What becomes of `Via` in requests.
    pub via: Via,
    /// Which fields tell endpoints of the client.
    pub forward: Forward,
    /// What the balancers by key go by.
    pub key: BalanceKey,
    /// The status where the balancer refuses rather than overload.
    pub busy_status: u16,
    /// Where requests wait for a slot.
    pub queue: Queue,
    /// What keeps slow clients from holding slots; `None` for nothing.
    pub buffer: Option<Buffer>,
    /// Parts of the slots that some routes are kept to.
    pub lanes: Vec<Lane>,
    /// How failures of exchanges and probes count.
    pub health: HealthSettings,
    /// How the endpoints are probed; `None` for not at all.
    pub probe: Option<Probe>,
}

/// What keeps slow clients from holding slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Bytes of a request's body that are read before it takes a slot.
    pub request_bytes: usize,
    /// Bytes of a response that are taken off the endpoint ahead of its client.
    pub response_bytes: usize,
    /// Least rate of a client that a slot waits for, in bytes a second; 0 for
    /// none.
    pub min_rate: u64,
}

/// Where requests wait for a slot.
#[derive(Debug, Clone)]
pub struct Queue {
    /// Its bounds and its order.
    pub settings: QueueSettings,
    /// Longest wait.
    pub timeout: Duration,
    /// What is answered where the queue is full, or the wait too long.
    pub answer: QueueAnswer,
}

/// The answer to who does not get a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueAnswer {
    /// Status code.
    pub status: u16,
    /// Value of `Retry-After`, in seconds.
    pub retry_after_s: u32,
    /// Type and bytes of the body; `None` for a short text that says why.
    pub body: Option<(String, Vec<u8>)>,
}

/// A part of an upstream's slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The name that routes use.
    pub name: String,
    /// Most exchanges in it, over all endpoints and workers.
    pub max_in_flight: u32,
}

/// How endpoints are probed.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Time between two probes of an endpoint.
    pub interval: Duration,
    /// Longest time that a probe may take.
    pub timeout: Duration,
    /// The port to probe, where it is not the endpoint's own.
    pub port: Option<u16>,
    /// What is asked; `None` is a connection that opens.
    pub request: Option<ProbeRequest>,
}

/// An HTTP request that shows whether an endpoint is well.
#[derive(Debug, Clone)]
pub struct ProbeRequest {
    /// Method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Value of `Host`; `None` is the endpoint's name.
    pub host: Option<String>,
    /// Further fields.
    pub headers: Vec<(String, String)>,
    /// Statuses that are well.
    pub expect: Vec<RangeInclusive<u16>>,
    /// What the body must contain.
    pub body: Option<String>,
}

/// One address of an upstream.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// As written: the name that logs and counters use.
    pub name: String,
    /// Where to connect.
    pub address: Address,
    /// Share of the traffic relative to the other endpoints; 0 gets none.
    pub weight: u32,
    /// Most exchanges in flight over all workers; `None` for no limit.
    pub max_in_flight: Option<u32>,
}

impl Endpoint {
    /// What stands in a `Host` that names this endpoint: a Unix socket has no name
    /// that could.
    pub fn authority(&self) -> &str {
        match self.address.is_unix() {
            true => "localhost",
            false => &self.name,
        }
    }
}
