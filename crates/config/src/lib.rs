//! The resolved configuration, which the program runs on.
//!
//! A [`Config`] is immutable once built; all workers share it as one snapshot. The loader deals
//! with the file as a person wrote it, and with every mistake in it. [`load()`] reads all
//! layers into a tree of values with their places, `written` defines the keys and values that
//! are allowed, and `resolve` makes the [`Config`] from the tree.

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
pub mod format;
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
pub use input::{read_at_most, read_regular_file};
pub use level::Level;
pub use load::{LOCAL_FILE, Loaded, control_socket, load, load_again, load_text};
pub use location::{Location, LocationPart, Variable as LocationVariable};
pub use quantity::duration;
pub use resolve::own_sticky_key;
pub use schema::schema;
pub use secret::without_passwords;
pub use source_files::MAX_FILE_BYTES;
pub use surroundings::NameLookup;
pub use value::MAX_SOCKET_PATH;
pub use variable::{Expression, ExpressionPart, Known, Variable};
pub use written::{
    Acme, Bandwidth, Buffer, CacheStore, Caching, ClientCertificates, ClientTimeouts, Compression,
    Disk, Drain, Endpoint, EndpointSource, ErrorPage, Errors, ExternalAccount, FieldEdit, Files,
    FixedAnswer, Interim, Issuer, Limit, LimitBound, Limits, Listener, ListenerTls, Log, Mirror,
    NameSource, Otlp, PageSource, Pool, Probe, Queue, QueueAnswer, Rate, RequestKey,
    ResponseCompression, RouteTimeouts, Server, ServiceSource, Split, SplitPart, Sticky, Tickets,
    Upstream, UpstreamTimeouts,
};

/// Everything that the process runs on, checked, with every default filled in.
#[derive(Debug, Clone)]
pub struct Config {
    /// Process-wide settings.
    pub server: Server,
    /// The file to save changes of endpoints in.
    pub state_file: Option<PathBuf>,
    /// The listeners, in the order written.
    pub listeners: Vec<Listener>,
    /// The compiled matcher. It finds an index in `routes`.
    pub route_table: RouteTable,
    /// Files of networks that routes name.
    pub network_files: Vec<WatchedNetworks>,
    /// Files of users that routes name.
    pub user_files: Vec<WatchedUsers>,
    /// The action and settings of each route, in the order written.
    pub routes: Vec<Route>,
    /// Named groups of endpoints, in order of their names.
    pub upstreams: Vec<Upstream>,
    /// Stores of responses, in order of their names: the written ones, and the default one if
    /// routes use it.
    pub caches: Vec<CacheStore>,
    /// How clients resume their TLS sessions.
    pub tickets: Tickets,
    /// Limits on reads from the disks.
    pub disk: Disk,
    /// The status page; `None` for none.
    pub status: Option<Status>,
    /// The event log.
    pub log: Log,
    /// The orders of certificates by ACME; `None` if no listener uses them.
    pub acme: Option<Acme>,
    /// The collector of spans; `None` for none.
    pub otlp: Option<Otlp>,
    /// Hash of all layers with every default, as they are printed. It shows whether two
    /// processes run on the same configuration.
    pub hash: u64,
    /// The text that is compared with another configuration.
    written: diff::Written,
    /// The access logs, and how they are written.
    pub access_logs: AccessLogs,
    /// The access logs that replace `access_logs` if standard output is read by somebody;
    /// `None` if an access log is written, or switched off.
    default_access_logs: Option<AccessLogs>,
}

/// A file of networks, and its content for routes.
#[derive(Debug, Clone)]
pub struct WatchedNetworks {
    /// The path of the file.
    pub path: PathBuf,
    /// The content that routes look at.
    pub file: Arc<NetworkFile>,
}

/// A file of users, and its content for routes.
#[derive(Debug, Clone)]
pub struct WatchedUsers {
    /// The path of the file.
    pub path: PathBuf,
    /// The content that routes look at.
    pub file: Arc<UserFile>,
}

/// How clients of a route authenticate.
#[derive(Debug, Clone)]
pub enum Auth {
    /// With a password (RFC 7617).
    Basic(BasicAuth),
    /// At another server.
    Forward(ForwardAuth),
}

/// The server that authenticates the clients of a route.
#[derive(Debug, Clone)]
pub struct ForwardAuth {
    /// How requests to it are forwarded.
    pub proxying: Proxying,
    /// The path to request.
    pub path: String,
    /// Fields of its answer for the endpoint. They replace the client's.
    pub copy: Box<[String]>,
    /// The field of its answer that names the user.
    pub user: String,
    /// Longest wait for its answer.
    pub timeout: Duration,
}

/// Authentication with a password.
#[derive(Debug, Clone)]
pub struct BasicAuth {
    /// The users.
    pub users: Arc<UserFile>,
    /// Value of `WWW-Authenticate`.
    pub challenge: String,
}

impl Config {
    /// Logs requests on standard output, unless an access log is configured. Returns whether it
    /// does.
    pub fn log_by_default(&mut self) -> bool {
        match self.default_access_logs.take() {
            Some(logs) => {
                self.access_logs = logs;
                true
            }
            None => false,
        }
    }

    /// The hash as it is shown to people.
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

/// The layout of the event log's lines, and where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFormat {
    /// For people, on standard error.
    Text,
    /// One JSON object a line, on standard error.
    Json,
    /// The systemd journal.
    Journald,
}

/// How many endpoints a name with several addresses makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResolveTo {
    /// One endpoint for each address.
    Each,
    /// One endpoint, at the first address.
    One,
}

/// Which addresses of a name to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 addresses.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
    /// Addresses of both families.
    Both,
}

/// How requests of a listener get their ids and traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// How `X-Request-ID` is treated.
    pub request_id: Adopt,
    /// Whether the response tells the client the id.
    pub respond: bool,
    /// How `traceparent` is treated.
    pub trace: Adopt,
    /// The part of the traces begun here that is sampled, in millionths.
    pub sample_ppm: u32,
}

impl Identity {
    /// Whether requests have any id or trace to handle.
    pub fn is_on(&self) -> bool {
        self.request_id != Adopt::Off || self.trace != Adopt::Off
    }
}

/// How to treat an id that a client gives its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopt {
    /// The field is passed on like any other.
    Off,
    /// A well-formed id is kept; otherwise a new one is made.
    Keep,
    /// A new id is always made.
    New,
}

/// The protocol of a listener's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientProtocol {
    /// HTTP: each request takes a route.
    Http,
    /// Any bytes: each connection takes a route.
    Tcp,
}

/// The protocol of an upstream's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2 if the endpoint chooses it in the TLS handshake (ALPN), else HTTP/1.1.
    Either,
}

/// The bytes to read from a connection before its route can be chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preread {
    /// Whether a route has a condition on the ClientHello of TLS.
    pub client_hello: bool,
    /// The first bytes that routes have conditions on.
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

/// Whether TLS clients have to show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// A client without a certificate is refused.
    Required,
    /// A client may have no certificate. Routes may still ask for one.
    Optional,
}

/// The type of challenge that proves control of a name (RFC 8555 §8, RFC 8737).
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
    /// A self-signed certificate, which no authority vouches for.
    SelfSigned,
}

/// The writer of the DNS records for `dns-01`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsUpdates {
    /// A name server that takes updates (RFC 2136).
    Server {
        /// Its address.
        address: SocketAddr,
        /// A file with the key that signs updates.
        key_file: PathBuf,
    },
    /// A program.
    Hook(PathBuf),
}

/// How to treat a client that closes its sending side before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfClose {
    /// The client has left if its connection was meant to go on, or if it closed late.
    Auto,
    /// The client waits for the answer.
    Serve,
    /// The client has left.
    Abort,
}

/// Largest weight of an endpoint.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// The status page, with the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The address to listen on.
    pub bind: Address,
    /// The token that a request must carry to change something; `None` if no request may.
    pub token: Option<String>,
}

/// A set of peers, by their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers {
    /// Networks of the peers with an address.
    pub networks: Vec<Network>,
    /// Whether the set has peers on Unix sockets.
    pub has_unix: bool,
}

impl Peers {
    /// Whether a peer is in the set. A peer on a Unix socket has no address.
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            Some(address) => self.networks.iter().any(|it| it.contains(address)),
            None => self.has_unix,
        }
    }
}

/// Proxies that name their client in a header of the PROXY protocol.
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
    /// Yes, or it is refused.
    #[default]
    Required,
    /// Either way.
    Optional,
}

impl ProxySenders {
    /// Whether a connection of this peer begins with a header; `None` if the peer is no such
    /// proxy, whose header is not believed.
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

/// A route's name and action. Its conditions are in the route table.
#[derive(Debug, Clone)]
pub struct Route {
    /// The name that logs use: as written, or `route-N` counted from 1.
    pub name: String,
    /// The action that answers requests.
    pub action: Action,
    /// The cache for responses of its upstream; `None` for none.
    pub cache: Option<Arc<Caching>>,
    /// The regular expressions of its paths whose groups are used as variables.
    pub path_regexes: Box<[RegexPattern]>,
    /// Edits of its requests and responses; `None` for none.
    pub edits: Option<Box<Edits>>,
    /// The cookie that keeps a client at an endpoint; `None` for none.
    pub sticky: Option<Box<Sticky>>,
    /// The clients that it serves; `None` for everybody.
    pub access: Option<Box<AccessList>>,
    /// How clients authenticate; `None` for not at all.
    pub auth: Option<Box<Auth>>,
    /// The upstream that gets copies of its requests; `None` for none.
    pub mirror: Option<Box<Mirror>>,
    /// Limits on how often its requests may come. A request has to pass all of them.
    pub limits: Box<[Limit]>,
    /// Limits on the bytes of its responses in a second. A response keeps to all of them.
    pub bandwidth: Box<[Bandwidth]>,
    /// Its timeouts; `None` if all are the upstream's.
    pub timeouts: Option<Box<RouteTimeouts>>,
    /// Its buffer, which may be none; `None` for the upstream's buffer.
    pub buffer: Option<Option<Buffer>>,
    /// Its error pages. The first one that covers an error is used.
    pub error_pages: Box<[ErrorPage]>,
    /// How responses of its upstream are compressed; `None` for not at all.
    pub compression: Option<Box<ResponseCompression>>,
    /// How to treat requests whose body has a content coding.
    pub coded_requests: CodedRequests,
}

/// How to treat requests whose body has a content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodedRequests {
    /// They are passed on.
    #[default]
    Pass,
    /// They are refused.
    Refuse,
}

/// The edits of a route's requests and responses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edits {
    /// The prefix to remove from the request's path: in normal form, without a slash at its
    /// end, and empty for none.
    pub strip_prefix: Vec<u8>,
    /// The path to send on after that; `None` for the request's own.
    pub rewrite: Option<Expression>,
    /// Edits of the header fields of a request to an endpoint.
    pub request: Vec<FieldEdit>,
    /// Edits of the header fields of a response to the client.
    pub response: Vec<FieldEdit>,
}

impl Edits {
    /// Whether a request is sent on with a changed head.
    pub fn change_requests(&self) -> bool {
        self.change_path() || !self.request.is_empty()
    }

    /// Whether a request is sent on with a changed path.
    pub fn change_path(&self) -> bool {
        !self.strip_prefix.is_empty() || self.rewrite.is_some()
    }
}

impl ListenerTls {
    /// The versions, cipher suites and groups.
    ///
    /// # Errors
    /// The lists do not fit the preset.
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

/// TLS on connections to the endpoints of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// How their certificates are verified.
    pub trust: Trust,
    /// The name or the IP address that certificates must be for; `None` for the host of
    /// each endpoint.
    pub name: Option<String>,
    /// The certificate to show to endpoints.
    pub certificate: Option<Source>,
    /// The keys that endpoints may have; empty for any key.
    pub pins: Vec<Pin>,
}

/// How certificates of endpoints are verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// By the authorities that the system trusts.
    System,
    /// By the authorities in PEM files.
    Files {
        /// The files with the authorities' certificates.
        ca: Vec<PathBuf>,
        /// The files with the certificates that they have revoked (CRLs).
        crl: Vec<PathBuf>,
    },
    /// Not at all.
    Unverified,
}

impl Listener {
    /// The value of `Strict-Transport-Security` in responses; `None` for no field.
    pub fn strict_transport(&self) -> Option<&[u8]> {
        let tls = self.tls.as_ref()?;
        Some(tls.strict_transport.as_deref()?.as_bytes())
    }
}

impl Caching {
    /// Whether a request bypasses the cache.
    pub fn is_bypassed_by(&self, request: &impl Facts) -> bool {
        self.bypass.iter().any(|it| it.is_met_by(request))
    }
}

/// The files behind the memory of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDisk {
    /// The folder of the files, as an absolute path.
    pub path: PathBuf,
    /// Most bytes that the files take.
    pub size_bytes: u64,
}

/// A Redis or Valkey server that several processes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedStore {
    /// The address of the server.
    pub place: SharedPlace,
    /// The name to log in with; `None` for the server's default user.
    pub user: Option<String>,
    /// The password to log in with; `None` to not log in.
    pub password: Option<Password>,
    /// Number of the database.
    pub database: u32,
    /// How its certificate is verified; `None` for plain text.
    pub tls: Option<Trust>,
}

/// A shared server, and the key that encrypts records there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptedStore {
    /// The server.
    pub server: SharedStore,
    /// The file with the key that encrypts records at the server.
    pub encrypt_with: PathBuf,
}

/// The address of a shared server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedPlace {
    /// A TCP port.
    Tcp {
        /// A host name, or an address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A password. No output shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(secret::HIDDEN)
    }
}

/// The target of a redirect.
#[derive(Debug, Clone)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// Value of `Location`.
    pub location: Location,
}

impl Files {
    /// Whether a request whose path can't name a file may still get an answer.
    pub fn stands_for_others(&self) -> bool {
        let mut candidates = self.candidates.iter();
        self.fallback.is_some() || candidates.any(|it| it.fixed().is_some())
    }
}

/// How a route's requests are forwarded to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proxying {
    /// Index in `Config::upstreams`.
    pub upstream: usize,
    /// Index in that upstream's lanes; `None` for routes without a lane.
    pub lane: Option<usize>,
    /// A higher priority leaves the queue first.
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

/// The check that a probe makes on the connection that it opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// The connection opens.
    Connect,
    /// An HTTP request gets an expected answer.
    Http(ProbeRequest),
    /// `grpc.health.v1.Health` reports that a service is well.
    Grpc {
        /// The name of the service; empty for the server as a whole.
        service: String,
        /// Value of `:authority`, if it is not the endpoint's.
        host: Option<String>,
    },
    /// The answer to some bytes contains others.
    Bytes {
        /// Bytes to send; may be empty.
        send: Vec<u8>,
        /// Bytes that the answer must contain.
        receive: Vec<u8>,
    },
    /// PostgreSQL answers the start of a login.
    Postgres {
        /// The name of the login.
        user: String,
    },
    /// MySQL or MariaDB answers a login without a password.
    Mysql {
        /// The name of the login.
        user: String,
    },
    /// Redis answers `PING`.
    Redis,
    /// A mail server answers a greeting.
    Smtp,
    /// The endpoint answers a ClientHello.
    Tls {
        /// The server name to ask for.
        server_name: Option<String>,
    },
}

/// The protocol that a probe speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeProtocol {
    /// No protocol, or bytes that the operator has written.
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

/// An HTTP request that checks an endpoint.
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
    /// Statuses that pass.
    pub expect: Vec<RangeInclusive<u16>>,
    /// Text that the body must contain.
    pub body: Option<String>,
}

impl Endpoint {
    /// The value of `Host` that names this endpoint. A Unix socket has no name that could stand
    /// there.
    pub fn authority(&self) -> &str {
        &self.host
    }
}
