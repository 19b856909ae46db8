//! The configuration as written: every option, defined once.
//!
//! Users read the doc comments here, in the reference page and in the JSON Schema. After
//! changing one, write both again with `make docs`.

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
    /// All keys of the file.
    pub struct File as "the configuration" {
        /// Further files of this configuration: paths, and patterns with `*`, `?`, `**` and
        /// `[a-z]`, from the folder of the file that names them. See [several
        /// files](#several-files).
        include: Vec<IncludePattern> = Optional("this file alone"),
        /// Settings of the whole process.
        server: ServerTable = Default("{}"),
        /// The event log: what the program says of its own state.
        log: LogTable = Default("{}"),
        /// The collector that gets the spans of sampled traces.
        otlp: OtlpTable = Optional("nowhere"),
        /// The access log: a table, `true` for one with its defaults, or `false` for no log. It
        /// holds for every listener and route without a setting of its own; see [access
        /// logs](access-log.md). Without any access log in the configuration, combined lines go
        /// to standard output in three cases: standard output is a terminal, the process is PID
        /// 1, or its environment has `container`.
        access_log: AccessLog = Optional("standard output, in these cases"),
        /// The status page, with the metrics: a table, or `true` for one with
        /// its defaults.
        status: Status = Optional("no status page"),
        /// How clients of listeners with `tls` may resume their sessions.
        tickets: TicketsTable = Default("{}"),
        /// Settings of certificates by ACME, where the defaults are not enough. Listeners with
        /// `acme` in their `tls` use them; see [TLS](tls.md#certificates-by-acme).
        acme: AcmeTable = Default("{}"),
        /// Limits on the reads from the disks that files are on.
        disk: DiskTable = Default("{}"),
        /// The addresses at which clients connect; at least one.
        listener: Vec<ListenerTable> = Default("[]"),
        /// Conditions on requests, with what to do with them: one of `upstream`, `split`,
        /// `answer`, `redirect` and `files`. The first route that matches decides. Without a
        /// match the answer is 404.
        route: Vec<Route> = Default("[]"),
        /// Groups of endpoints, by name.
        upstream: Map<Name, UpstreamTable> = Default("{}"),
        /// Stores of responses, by name. Routes use them by `cache`.
        cache: Map<Name, CacheTable> = Default("{}"),
        /// Sets of edits of requests and responses, by name. Routes use them by `edits`.
        edits: Map<Name, EditsTable> = Default("{}"),
    }
}

options! {
    /// Settings of the whole process.
    pub struct ServerTable as "the server"
    for #[derive(Debug, Clone)] Server {
        /// Number of worker threads.
        workers: Workers = Default("'auto'"),
        /// How long the process waits for exchanges in flight, after TERM or INT, before it
        /// ends.
        drain_timeout: DurationValue = Default("'30s'"),
        /// How long the new program of an upgrade may take until it is ready to take over.
        upgrade_timeout: DurationValue = Default("'30s'"),
        /// How long tunnels, such as WebSockets, may go on in a process after another one has
        /// taken over.
        tunnel_timeout: DurationValue = Default("'1h'"),
        /// How long exchanges may go on with a configuration that has been replaced. After that
        /// they end as `generation-timeout`.
        generation_timeout: DurationValue = Optional("until they end"),
        /// Most memory for folder listings, compressed files and slices of files that wait for
        /// clients. Beyond it, listings are answered 503, and files are sent uncompressed and
        /// in short slices.
        answer_memory: Size = Default("'64MiB'"),
        /// Path of the Unix socket on which `evenkeel ctl` and `evenkeel top` reach the
        /// process: absolute, or from the folder that each of them runs in. The user and the
        /// group that the process runs as may connect, and so may change endpoints.
        control: SocketPath = Optional("no control socket"),
        /// The name servers to ask for names of endpoints. Search domains and `/etc/hosts` are
        /// always the system's.
        resolvers: Vec<Placed<ResolverAddress>> = Optional("the system's"),
        /// The file that `--save` of `evenkeel ctl endpoint add` writes, and that the next start reads:
        /// an absolute path, or one from the folder of the configuration file. See
        /// [discovery](discovery.md).
        state_file: FilePath = Optional("nothing can be saved") => by_hand,
        /// Proxies that are trusted to name the client, on all listeners without
        /// `trusted_proxies` of their own.
        trusted_proxies: Vec<Placed<Peer>> = Default("[]") => by_hand,
        /// Most memory for bodies that are held for slow clients, over all workers. Above it
        /// bodies are streamed (see `buffer` of an upstream).
        buffer_memory: Length = Default("'256MiB'"),
        /// File descriptors (of `ulimit -n`) that clients' connections never take. They are
        /// kept for operators, connections to endpoints and files. When only these are left, a
        /// new client gets the place of an idle connection, or is refused.
        reserved_descriptors: Bounded<u32, 0, 1_000_000> = Optional("16 for operators, 1,024 for endpoints and files; each at most a quarter of what is free at the start"),
    }
}

options! {
    /// The status page, with the metrics, on a listener of its own.
    pub struct StatusTable as "the status page" {
        /// The address to listen on.
        bind: Bind = Default("'127.0.0.1:8404'"),
        /// The file with the token that a request must carry to change something: an absolute
        /// path, or one from the folder of the configuration file. The file is read when the
        /// configuration is loaded.
        token_file: FilePath = Optional("nothing can be changed over HTTP"),
    }
}

/// The status page.
pub type Status = Switch<StatusTable>;
