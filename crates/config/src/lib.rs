//! The resolved configuration: what the program runs on.
//!
//! Immutable once built and shared by every worker as one snapshot. The file
//! as a person wrote it, and every mistake in it, is the loader's business:
//! [`load()`] reads all layers into a tree of values with their places, `written`
//! says what may stand there, and `resolve` makes the [`Config`] of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_net::Address;
use evenkeel_passwords::UserFile;
use evenkeel_policy::route::{AccessList, Facts, Network, NetworkFile, RegexPattern, RouteTable};
use evenkeel_tls::policy::PolicyError;
use evenkeel_tls::{Pin, Policy, Source};

pub mod access_log;
mod acme_value;
mod action;
mod cache_value;
mod candidate;
mod chance;
mod check;
pub mod diagnostics;
mod diff;
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
pub mod network_file;
mod not_toml;
mod peers;
mod print;
mod quantity;
mod queue_answer;
mod regex_like;
mod reserved;
mod resolve;
mod schema;
mod secret;
mod setting;
mod shape;
mod source_files;
mod surroundings;
mod template;
mod tls_value;
mod tree;
mod twice;
mod unknown;
pub mod user_file;
mod value;
mod variable;
mod written;

pub use access_log::{AccessLog, AccessLogFormat, AccessLogs, LogDestination};
pub use action::Action;
pub use candidate::Candidate;
pub use diagnostics::{Colour, Report};
pub use diff::{Change, ChangeKind, Subject, diff};
pub use docs::reference;
pub use evenkeel_policy::route::BalanceKey;
pub use input::read_regular_file;
pub use level::Level;
pub use load::{LOCAL_FILE, Loaded, control_socket, load, load_again, load_text};
pub use location::{Location, LocationPart, Variable as LocationVariable};
pub use quantity::duration;
pub use resolve::own_sticky_key;
pub use schema::schema;
pub use secret::without_passwords;
pub use surroundings::NameLookup;
pub use variable::{Expression, ExpressionPart, Known, Variable};
pub use written::{
    Acme, Bandwidth, Buffer, CacheStore, Caching, ClientCertificates, ClientTimeouts, Compression,
    Disk, Drain, Endpoint, EndpointSource, ErrorPage, Errors, ExternalAccount, FieldEdit, Files,
    FixedAnswer, Interim, Issuer, Limit, LimitBound, Limits, Listener, ListenerTls, Log, Mirror,
    NameSource, Otlp, PageSource, Pool, Probe, Queue, QueueAnswer, Rate, RequestKey,
    ResponseCompression, RouteTimeouts, Server, ServiceSource, Split, SplitPart, Sticky, Tickets,
    Upstream, UpstreamTimeouts,
};

/// Everything the process runs on, checked and with every default filled in.
#[derive(Debug, Clone)]
pub struct Config {
    /// Process-wide settings.
    pub server: Server,
    /// Where changes of endpoints are saved.
    pub state_file: Option<PathBuf>,
    /// Where clients connect, in the order written.
    pub listeners: Vec<Listener>,
    /// The compiled matcher; the index it finds is one into `routes`.
    pub route_table: RouteTable,
    /// Files of networks that routes name.
    pub network_files: Vec<WatchedNetworks>,
    /// Files of users that routes name.
    pub user_files: Vec<WatchedUsers>,
    /// What to do for each route, in the order written.
    pub routes: Vec<Route>,
    /// Named groups of endpoints, in order of their names.
    pub upstreams: Vec<Upstream>,
    /// Stores of responses, in order of their names: those that are written, and one that
    /// routes use without writing it.
    pub caches: Vec<CacheStore>,
    /// How clients resume their TLS sessions.
    pub tickets: Tickets,
    /// How much is asked of disks at once.
    pub disk: Disk,
    /// The status page; `None` for none.
    pub status: Option<Status>,
    /// The event log.
    pub log: Log,
    /// Of whom certificates are ordered; `None` where no listener has any of them.
    pub acme: Option<Acme>,
    /// Where spans are sent; `None` for nowhere.
    pub otlp: Option<Otlp>,
    /// Hash of all layers with every default, as they are printed: tells
    /// whether two processes run on the same configuration.
    pub hash: u64,
    /// What is compared with another configuration.
    written: diff::Written,
    /// Where requests are logged, and how.
    pub access_logs: AccessLogs,
    /// What holds in place of `access_logs` where somebody reads standard output;
    /// `None` where an access log is written, or switched off.
    default_access_logs: Option<AccessLogs>,
}

/// A file of networks, and what routes know of it.
#[derive(Debug, Clone)]
pub struct WatchedNetworks {
    /// Where it is.
    pub path: PathBuf,
    /// What routes look at.
    pub file: Arc<NetworkFile>,
}

/// A file of users, and what routes know of it.
#[derive(Debug, Clone)]
pub struct WatchedUsers {
    /// Where it is.
    pub path: PathBuf,
    /// What routes look at.
    pub file: Arc<UserFile>,
}

/// How clients of a route show who they are.
#[derive(Debug, Clone)]
pub enum Auth {
    /// By a password (RFC 7617).
    Basic(BasicAuth),
    /// As another server says.
    Forward(ForwardAuth),
}

/// The server that says who may use a route.
#[derive(Debug, Clone)]
pub struct ForwardAuth {
    /// How it is asked.
    pub proxying: Proxying,
    /// The path that is asked for.
    pub path: String,
    /// Fields of its answer that endpoints get, in place of the client's.
    pub copy: Box<[String]>,
    /// The field of its answer that names the user.
    pub user: String,
    /// How long its answer may take.
    pub timeout: Duration,
}

/// Who has a password.
#[derive(Debug, Clone)]
pub struct BasicAuth {
    /// The users.
    pub users: Arc<UserFile>,
    /// Value of `WWW-Authenticate`.
    pub challenge: String,
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

/// How many endpoints a name with several addresses is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResolveTo {
    /// Each address is one.
    Each,
    /// One, at the first of them.
    One,
}

/// Which addresses of a name count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Those of IPv4.
    Ipv4,
    /// Those of IPv6.
    Ipv6,
    /// All.
    Both,
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

/// What the clients of a listener speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientProtocol {
    /// HTTP/1: each request takes a route.
    Http,
    /// Anything: each connection takes a route.
    Tcp,
}

/// What the endpoints of an upstream speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2 where the endpoint chooses it in the TLS handshake (ALPN), else HTTP/1.1.
    Either,
}

/// What has to be read of a connection before its route can be chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preread {
    /// Whether a route asks about the ClientHello of TLS.
    pub client_hello: bool,
    /// The beginnings that routes ask about.
    pub beginnings: Vec<Vec<u8>>,
}

impl Preread {
    /// Whether a route is chosen before the client has sent anything.
    pub fn is_nothing(&self) -> bool {
        !self.client_hello && self.beginnings.is_empty()
    }

    /// Whether further bytes may decide about one of the beginnings.
    pub fn is_undecided(&self, first: &[u8]) -> bool {
        let is_longer = |it: &&Vec<u8>| it.len() > first.len();
        let mut longer = self.beginnings.iter().filter(is_longer);
        longer.any(|it| it.starts_with(first))
    }
}

/// Whether clients of TLS show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// A client without one is refused.
    Required,
    /// A client may have none. Routes may ask for one.
    Optional,
}

/// How it is shown to an issuer that a name is ours (RFC 8555 §8, RFC 8737).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Challenge {
    /// By a response over plain HTTP.
    Http01,
    /// By a certificate in a TLS handshake.
    TlsAlpn01,
    /// By a record in the DNS.
    Dns01,
}

/// The answer to clients of a name whose certificate is not issued yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntilIssued {
    /// No connection.
    Refuse,
    /// A certificate that nobody vouches for.
    SelfSigned,
}

/// The writer of the records of `dns-01`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsUpdates {
    /// A name server that takes updates (RFC 2136).
    Server {
        /// Its address.
        address: SocketAddr,
        /// A file with the key that updates are signed with.
        key_file: PathBuf,
    },
    /// A program.
    Hook(PathBuf),
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Where it listens.
    pub bind: Address,
    /// What a request must carry that is to change something; `None` where
    /// none may.
    pub token: Option<String>,
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

/// Proxies that say in a header of the PROXY protocol who their client is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxySenders {
    /// The proxies.
    pub from: Peers,
    /// Whether each of their connections begins with a header.
    pub presence: HeaderPresence,
}

/// Whether a connection of a proxy begins with a header of the PROXY protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HeaderPresence {
    /// It does, or is refused.
    #[default]
    Required,
    /// It may.
    Optional,
}

impl ProxySenders {
    /// Whether a connection of this peer begins with a header; `None` where it is no
    /// proxy: no header is believed then.
    pub fn header_from(&self, peer: Option<IpAddr>) -> Option<HeaderPresence> {
        self.from.contains(peer).then_some(self.presence)
    }
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
    /// Where responses of its upstream are stored; `None` for nowhere.
    pub cache: Option<Arc<Caching>>,
    /// The regular expressions of its paths, where their groups are used as variables.
    pub path_regexes: Box<[RegexPattern]>,
    /// What is changed of its requests and responses; `None` for nothing.
    pub edits: Option<Box<Edits>>,
    /// The cookie that keeps a client at an endpoint; `None` for none.
    pub sticky: Option<Box<Sticky>>,
    /// The clients that it serves; `None` for everybody.
    pub access: Option<Box<AccessList>>,
    /// How clients show who they are; `None` for not at all.
    pub auth: Option<Box<Auth>>,
    /// The upstream that gets copies of its requests; `None` for none.
    pub mirror: Option<Box<Mirror>>,
    /// How often its requests may come. A request has to pass all of them.
    pub limits: Box<[Limit]>,
    /// How many bytes of its responses are sent in a second. A response keeps to all of
    /// them.
    pub bandwidth: Box<[Bandwidth]>,
    /// Its timeouts; `None` where all are those of the upstream.
    pub timeouts: Option<Box<RouteTimeouts>>,
    /// Its buffer, which may be none; `None` where it is that of the upstream.
    pub buffer: Option<Option<Buffer>>,
    /// Its error pages: the first one that is for an error is taken.
    pub error_pages: Box<[ErrorPage]>,
    /// How responses of its upstream are compressed; `None` for not at all.
    pub compression: Option<Box<ResponseCompression>>,
    /// What becomes of requests whose body has a content coding.
    pub coded_requests: CodedRequests,
}

/// What becomes of requests whose body has a content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodedRequests {
    /// They go on.
    #[default]
    Pass,
    /// They are refused.
    Refuse,
}

/// What a route changes of its requests and responses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edits {
    /// Taken off the front of a request's path: in normal form, without a slash at its
    /// end, and empty for nothing.
    pub strip_prefix: Vec<u8>,
    /// The path that is sent on, after that; `None` for the request's own.
    pub rewrite: Option<Expression>,
    /// What is changed of the header fields of a request to an endpoint.
    pub request: Vec<FieldEdit>,
    /// What is changed of the header fields of a response to the client.
    pub response: Vec<FieldEdit>,
}

impl Edits {
    /// Whether a request goes on with another head.
    pub fn change_requests(&self) -> bool {
        self.change_path() || !self.request.is_empty()
    }

    /// Whether a request goes on with another path.
    pub fn change_path(&self) -> bool {
        !self.strip_prefix.is_empty() || self.rewrite.is_some()
    }
}

impl ListenerTls {
    /// Versions, cipher suites and groups.
    ///
    /// # Errors
    /// The lists do not go with the preset.
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        let mut policy = Policy::preset(self.preset);
        if !self.ciphers.is_empty() {
            policy = policy.with_cipher_suites(&self.ciphers)?;
        }
        if !self.groups.is_empty() {
            policy = policy.with_groups(&self.groups)?;
        }
        Ok(policy)
    }
}

/// How connections to the endpoints of an upstream are secured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Who vouches for their certificates.
    pub trust: Trust,
    /// The name or the IP address that certificates must be for; `None` for the host of
    /// each endpoint.
    pub name: Option<String>,
    /// The certificate that endpoints are shown.
    pub certificate: Option<Source>,
    /// The keys that endpoints may have; any where there are none.
    pub pins: Vec<Pin>,
}

/// Who vouches for the certificates of endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The authorities that the system trusts.
    System,
    /// Those in PEM files.
    Files {
        /// The files with their certificates.
        ca: Vec<PathBuf>,
        /// The files with the certificates that they have revoked.
        crl: Vec<PathBuf>,
    },
    /// Nobody has to: certificates are not verified.
    Unverified,
}

impl Listener {
    /// What browsers are told by `Strict-Transport-Security`; `None` for nothing.
    pub fn strict_transport(&self) -> Option<&[u8]> {
        let tls = self.tls.as_ref()?;
        Some(tls.strict_transport.as_deref()?.as_bytes())
    }
}

impl Caching {
    /// Whether a request goes past the cache.
    pub fn is_bypassed_by(&self, request: &impl Facts) -> bool {
        self.bypass.iter().any(|it| it.is_met_by(request))
    }
}

/// The files behind the memory of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDisk {
    /// Their folder, as an absolute path.
    pub path: PathBuf,
    /// Most bytes that they take.
    pub size_bytes: u64,
}

/// A server of Redis or Valkey by which several processes share something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedStore {
    /// Where it is.
    pub place: SharedPlace,
    /// The name to log in with; `None` for the server's default user.
    pub user: Option<String>,
    /// The password to log in with; `None` to not log in.
    pub password: Option<Password>,
    /// Number of the database.
    pub database: u32,
    /// Who vouches for its certificate; `None` for plain text.
    pub tls: Option<Trust>,
}

/// A server that machines share, and what encrypts records there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptedStore {
    /// The server.
    pub server: SharedStore,
    /// The file with the key that encrypts what is stored there.
    pub encrypt_with: PathBuf,
}

/// Where a shared store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedPlace {
    /// At a port.
    Tcp {
        /// A name, or an address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// At a Unix socket.
    Unix(PathBuf),
}

/// A password: no output shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(secret::HIDDEN)
    }
}

/// Where a client is sent.
#[derive(Debug, Clone)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// Value of `Location`.
    pub location: Location,
}

impl Files {
    /// Whether something may answer a request whose path can be no file's.
    pub fn stands_for_others(&self) -> bool {
        let mut candidates = self.candidates.iter();
        self.fallback.is_some() || candidates.any(|it| it.fixed().is_some())
    }
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

/// A part of an upstream's slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The name that routes use.
    pub name: String,
    /// Most exchanges in it, over all endpoints and workers.
    pub max_in_flight: u32,
}

/// What a probe does with the connection that it opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// Nothing: that it opens is enough.
    Connect,
    /// An HTTP request must have the answer that is expected.
    Http(ProbeRequest),
    /// `grpc.health.v1.Health` is asked how a service is.
    Grpc {
        /// The service; the server as a whole where it is empty.
        service: String,
        /// Value of `:authority`, where it is not the endpoint's.
        host: Option<String>,
    },
    /// Bytes are sent, and others must come back.
    Bytes {
        /// What is sent; may be empty.
        send: Vec<u8>,
        /// What the answer must contain.
        receive: Vec<u8>,
    },
    /// A login to PostgreSQL is begun.
    Postgres {
        /// The name of the login.
        user: String,
    },
    /// A login to MySQL or MariaDB is made without a password.
    Mysql {
        /// The name of the login.
        user: String,
    },
    /// `PING` is sent to Redis.
    Redis,
    /// A mail server is greeted.
    Smtp,
    /// A ClientHello is sent.
    Tls {
        /// The server name that it asks for.
        server_name: Option<String>,
    },
}

/// The protocol that a probe speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeProtocol {
    /// None, or bytes of the operator's.
    Tcp,
    /// HTTP, of the version that the endpoint speaks.
    Http,
    /// The health service of gRPC.
    Grpc,
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    Mysql,
    /// Redis.
    Redis,
    /// SMTP.
    Smtp,
    /// TLS.
    Tls,
}

/// An HTTP request that shows whether an endpoint is well.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl Endpoint {
    /// What stands in a `Host` that names this endpoint: a Unix socket has no name
    /// that could.
    pub fn authority(&self) -> &str {
        &self.host
    }
}
