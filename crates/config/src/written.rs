//! The configuration as written: every option, defined once.
//!
//! The doc comments here are what users read, in the reference page and in
//! the JSON Schema; after changing one, write both anew with `make docs`.

use super::quantity::{DurationValue, Length, Size};
use super::setting::{Bounded, Map, Placed, options};
use super::value::{
    Bind, FilePath, IncludePattern, Name, Peer, ResolverAddress, SocketPath, Workers,
};

mod acme;
mod auth;
mod bandwidth;
mod cache;
mod compression;
mod conditions;
mod edits;
mod errors;
mod files;
mod forms;
mod limit;
mod listener;
mod logs;
mod mirror;
mod names;
mod request_key;
mod route;
mod shared_store;
mod split;
mod sticky;
mod tickets;
mod tls;
mod upstream;

pub use acme::{Acme, ExternalAccount, Issuer, OnDemand};
pub(super) use acme::{
    AcmeParts, AcmeTable, DnsTable, ExternalAccountTable, ListenerAcmeTable, OnDemandTable,
};
pub use auth::AuthTable;
pub use bandwidth::Bandwidth;
pub(super) use bandwidth::ShortBandwidth;
pub use cache::{CacheStore, CacheTable, Caching, CachingTable, RouteCache};
pub(super) use cache::{CacheStoreParts, CachingParts};
pub use compression::{ResponseCompression, ResponseCompressionTable, RouteCompression};
pub(crate) use conditions::clients;
pub use conditions::{Bypass, Match};
pub(super) use edits::WrittenEdits;
pub use edits::{EditsTable, FieldEdit, RequestHeaders, ResponseHeaders};
pub use errors::{ErrorPage, Errors, PageSource};
pub(super) use errors::{ErrorPageParts, ErrorPageTable, ShortErrorPage};
pub use files::{CompressTable, Compression, Disk, DiskTable, Files, FilesTable};
pub(super) use files::{DiskParts, FilesParts};
pub use forms::Switch;
pub use limit::{Limit, LimitBound, LimitTable, Rate};
pub(super) use listener::ListenerParts;
pub use listener::{ClientTimeouts, Drain, Limits, Listener, ListenerTable};
pub(super) use logs::OtlpParts;
pub use logs::{
    AccessLog, Log, LogTable, Otlp, OtlpTable, OwnAccessLog, OwnAccessLogTable, Syslog,
};
pub use mirror::Mirror;
pub(super) use mirror::{MirrorParts, MirrorTable, ShortMirror};
pub(super) use names::Names;
pub use request_key::RequestKey;
pub(super) use request_key::RequestKeyText;
pub use route::{Answer, FixedAnswer, Redirect, RedirectTable, Route, ShortFiles};
pub(super) use route::{AnswerParts, actions};
pub(super) use shared_store::Shared;
pub(super) use split::SplitTable;
pub use split::{Split, SplitPart};
pub use sticky::Sticky;
pub(super) use sticky::{ShortSticky, StickyParts, StickyTable};
pub use tickets::Tickets;
pub(super) use tickets::{TicketsParts, TicketsTable};
pub(super) use tls::{
    CertificateTable, ClientCertificatesTable, ListenerTlsParts, UpstreamTlsTable, paths,
};
pub use tls::{ClientCertificates, ListenerTls};
pub use upstream::{
    Buffer, Endpoint, EndpointSource, EndpointTable, HealthTable, Interim, NameSource, Pool, Probe,
    Queue, QueueAnswer, QueueAnswerTable, QueueTable, RouteTimeouts, ServiceSource, ShortEndpoint,
    Upstream, UpstreamTable, UpstreamTimeouts,
};
pub(super) use upstream::{
    BufferSwitch, EndpointParts, ProbeParts, QueueAnswerParts, QueueParts, RouteTimeoutsTable,
    UpstreamParts, listed,
};

options! {
    /// Everything in the file.
    pub struct File as "the configuration" {
        /// Further files that belong to this one: paths, and patterns with `*`, `?`,
        /// `**` and `[a-z]`, from the folder of the file that names them. See
        /// [several files](#several-files).
        include: Vec<IncludePattern> = Optional("this file alone"),
        /// Process-wide settings.
        server: ServerTable = Default("{}"),
        /// What the program says of itself.
        log: LogTable = Default("{}"),
        /// Where the spans of sampled traces are sent.
        otlp: OtlpTable = Optional("nowhere"),
        /// Where requests are logged: a table, `true` for one with its
        /// defaults, or `false` for nowhere. It holds for every listener and
        /// route that does not say otherwise; see [access logs](access-log.md).
        /// Without it, and without a log of a listener or route, combined lines
        /// go to standard output where that is a terminal, where the process is
        /// PID 1, and where its environment has `container`.
        access_log: AccessLog = Optional("standard output where somebody reads it"),
        /// The status page, with the metrics: a table, or `true` for one with
        /// its defaults.
        status: Status = Optional("no status page"),
        /// How clients of listeners with `tls` resume their sessions.
        tickets: TicketsTable = Default("{}"),
        /// Of whom certificates are ordered by ACME, where the defaults don't do. Listeners
        /// with `acme` in their `tls` have them; see [TLS](tls.md#certificates-by-acme).
        acme: AcmeTable = Default("{}"),
        /// How much is asked of the disks that files are read from.
        disk: DiskTable = Default("{}"),
        /// Where clients connect; at least one.
        listener: Vec<ListenerTable> = Default("[]"),
        /// What is done with which request, by one of `upstream`, `answer`,
        /// `redirect` and `files`. The first route that matches decides; where none does,
        /// the answer is 404.
        route: Vec<Route> = Default("[]"),
        /// Groups of endpoints, by name.
        upstream: Map<Name, UpstreamTable> = Default("{}"),
        /// Stores of responses, by name, which routes with `cache` use.
        cache: Map<Name, CacheTable> = Default("{}"),
        /// Changes of requests and responses, by name, which routes use by `edits`.
        edits: Map<Name, EditsTable> = Default("{}"),
    }
}

options! {
    /// Process-wide settings.
    pub struct ServerTable as "the server"
    for #[derive(Debug, Clone)] Server {
        /// Number of worker threads.
        workers: Workers = Default("'auto'"),
        /// How long TERM and INT wait for exchanges in flight before the
        /// process ends.
        drain_timeout: DurationValue = Default("'30s'"),
        /// How long the program of an upgrade may take until it is ready to take over.
        upgrade_timeout: DurationValue = Default("'30s'"),
        /// How long tunnels, such as WebSockets, may go on in a process from which
        /// another one has taken over.
        tunnel_timeout: DurationValue = Default("'1h'"),
        /// How long exchanges may go on with a configuration that another one has
        /// replaced. Then they end as `generation-timeout`.
        generation_timeout: DurationValue = Optional("until they are over"),
        /// Most memory for listings of folders, compressed files and slices of
        /// files until clients have taken them. Beyond it listings are answered
        /// 503, and files are sent uncompressed and in short slices.
        answer_memory: Size = Default("'64MiB'"),
        /// Path of the Unix socket on which `evenkeel ctl` and `evenkeel top`
        /// reach the process, absolute or from the folder that each runs in. The
        /// user and the group that it runs as may
        /// connect, and so may change endpoints.
        control: SocketPath = Optional("no control socket"),
        /// The name servers that names of endpoints are asked of. Search domains
        /// and `/etc/hosts` are the system's in any case.
        resolvers: Vec<Placed<ResolverAddress>> = Optional("the system's"),
        /// The file that `--save` of `evenkeel ctl endpoint` writes, and that the next start
        /// reads: an absolute path, or one from the folder of the configuration file. See
        /// [discovery](discovery.md).
        state_file: FilePath = Optional("nothing can be saved") => by_hand,
        /// Proxies whose word on the client is believed, on all listeners without
        /// `trusted_proxies` of their own.
        trusted_proxies: Vec<Placed<Peer>> = Default("[]") => by_hand,
        /// Most memory that bodies take which are held for slow clients, over
        /// all workers; above it bodies stream (see `buffer` of an upstream).
        buffer_memory: Length = Default("'256MiB'"),
        /// File descriptors that clients' connections never take (of `ulimit
        /// -n`): operators, connections to endpoints and files have them. Where
        /// only these are left, connections that are idle are closed for a new
        /// client, or the client is refused.
        reserved_descriptors: Bounded<u32, 0, 1_000_000> = Optional("16 for operators, 1,024 for endpoints and files; each at most a quarter of what is free at the start"),
    }
}

options! {
    /// The status page, with the metrics, on a listener of its own.
    pub struct StatusTable as "the status page" {
        /// Where it listens.
        bind: Bind = Default("'127.0.0.1:8404'"),
        /// The file that holds the token which a request must carry to change
        /// something: an absolute path, or one from the folder of the
        /// configuration file. It is read when the configuration is loaded.
        token_file: FilePath = Optional("nothing can be changed from there"),
    }
}

/// The status page.
pub type Status = Switch<StatusTable>;
