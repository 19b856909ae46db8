//! The configuration as written: every option, defined once.
//!
//! The doc comments here are what users read, in the reference page and in
//! the JSON Schema; after changing one, write both anew with `make docs`.

use std::path::PathBuf;

use evenkeel_net::Address;
use evenkeel_net::listen::Accepting;
use evenkeel_policy::balance::{Balance, WeightMode};
use evenkeel_policy::health::{HealthSettings, Initial};
use evenkeel_policy::queue::{Discipline, QueueSettings};
use evenkeel_proto::http1::write::{Forward, Via};

use super::access_log::SyslogTarget;
use super::diagnostics::Report;
use super::file_value::FolderPath;
use super::log_value::{AppName, Facility, LogPath, Only, Severity};
use super::quantity::{Length, Part, Size, Span, Timeout};
use super::setting::{
    Bounded, Boxed, FromText, Map, OneOrMore, Placed, Resolve, Secret, Setting, options, wrong_type,
};
use super::shape::Shape;
use super::template::Template;
use super::tree::{Entry, Node, Value};
use super::value::{
    Bind, CollectorUrl, EndpointAddress, FieldName, FieldValue, FilePath, Forwarding, Method, Name,
    Peer, ProbePath, SocketPath, StatusRange, Text, Workers,
};
use super::{
    AccessLogFormat, Adopt, BalanceKey, EventFormat, HalfClose, Identity, Lane, Level, MAX_WEIGHT,
    Peers, ProbeRequest,
};

mod conditions;
mod files;
mod names;

pub use conditions::Match;
pub use files::{CompressTable, Compression, Disk, DiskTable, Files, FilesTable};
pub(super) use files::{DiskParts, FilesParts};
pub(super) use names::Names;

options! {
    /// Everything in the file.
    pub struct File as "the configuration" {
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
        /// How much is asked of the disks that files are read from.
        disk: DiskTable = Default("{}"),
        /// Where clients connect; at least one.
        listener: Vec<ListenerTable> = Default("[]"),
        /// What is done with which request, by one of `upstream`, `answer`,
        /// `redirect` and `files`. The first route that matches decides; where none does,
        /// the answer is 404.
        route: Vec<Route> = Default("[]"),
        /// Groups of endpoints, by name.
        upstream: Map<UpstreamTable> = Default("{}"),
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
        drain_timeout: Span = Default("'30s'"),
        /// Most memory for listings of folders, compressed files and slices of
        /// files until clients have taken them. Beyond it listings are answered
        /// 503, and files are sent uncompressed and in short slices.
        answer_memory: Size = Default("'64MiB'"),
        /// Path of the Unix socket on which `evenkeel ctl` and `evenkeel top`
        /// reach the process, absolute or from the folder that each runs in. The
        /// user and the group that it runs as may
        /// connect, and so may change endpoints.
        control: SocketPath = Optional("no control socket"),
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

options! {
    /// Where and how requests are logged, one line each.
    pub struct AccessLogTable as "the access log" {
        /// The file that lines are appended to, an absolute path or one from the
        /// folder that the program runs in; `"-"` is standard output. USR1 opens
        /// it anew.
        path: LogPath = Depends(log_path_default, "`\"-\"`, unless `syslog` is written"),
        /// A syslog daemon that gets each line as a message: its place, or a
        /// table.
        syslog: Syslog = Optional("no syslog"),
        /// Layout of a line.
        format: AccessLogFormat = Depends(log_format_default, "`\"combined\"`, unless `template` is written"),
        /// A layout of one's own: text with fields in braces, such as
        /// `{client_ip} {request} {status}`.
        template: Template = Optional("`format` says"),
        /// Which requests are always logged; where this or `slower_than` is
        /// written, of the others only `sample` are.
        only: Only = Default("'all'"),
        /// Requests that take longer than this are always logged; of the others
        /// only `sample` are.
        slower_than: Span = Optional("no such condition"),
        /// Part of the requests that is logged of those that no condition holds
        /// for, from 0 to 1.
        sample: Part = Depends(sample_default, "`1`; `0` with `only = \"errors\"` or `slower_than`"),
    }
}

options! {
    /// How the requests of this listener or route are logged. What is left out
    /// is as in the `access_log` above it: for a route that of the listener,
    /// for a listener the global one.
    pub struct OwnAccessLogTable as "the access log" {
        /// The file that lines are appended to; `"-"` is standard output. USR1
        /// opens it anew.
        path: LogPath = Optional("as above"),
        /// A syslog daemon that gets each line as a message: its place, or a
        /// table.
        syslog: Syslog = Optional("as above"),
        /// Layout of a line.
        format: AccessLogFormat = Optional("as above"),
        /// A layout of one's own: text with fields in braces, such as
        /// `{client_ip} {request} {status}`.
        template: Template = Optional("as above"),
        /// Which requests are always logged; where this or `slower_than` is
        /// written, of the others only `sample` are.
        only: Only = Optional("as above"),
        /// Requests that take longer than this are always logged; of the others
        /// only `sample` are.
        slower_than: Span = Optional("as above"),
        /// Part of the requests that is logged of those that no condition holds
        /// for, from 0 to 1.
        sample: Part = Optional("as above; where the conditions are not, as with the global one"),
    }
}

options! {
    /// A syslog daemon, and what the messages (RFC 5424) say beside the line.
    pub struct SyslogTable as "the syslog daemon" {
        /// Where it listens: `udp://HOST:PORT`, or the path of a Unix datagram
        /// socket. A name is looked up when the first line is sent.
        to: SyslogTarget = Required,
        /// Facility of the messages.
        facility: Facility = Default("'local0'"),
        /// Severity of the messages.
        severity: Severity = Default("'info'"),
        /// The name of the program in them.
        app_name: AppName = Default("'evenkeel'"),
    }
}

options! {
    /// Where clients connect.
    pub struct ListenerTable as "a listener"
    for #[derive(Debug, Clone)] Listener with ListenerParts {
        /// The name that logs, counters and routes use.
        name: String,
        /// How the kernel takes connections in.
        accepting: Accepting,
        /// Who must begin each connection with a header of the PROXY protocol.
        proxy_protocol: Peers,
        /// Whose word on the client is believed.
        trusted_proxies: Peers,
        /// What its requests are called.
        identity: Identity,
    } {
        /// The name that logs, counters and routes use.
        name: Name = Optional("`listener-N`, counted from 1") => by_hand,
        /// Where it listens. Without an address in front of the port it
        /// listens on every IPv4 address; `[::]` is for IPv6.
        bind: Bind = Required,
        /// Length of the kernel's queue of connections not yet accepted; the
        /// kernel may cap it lower.
        backlog: Bounded<u32, 1, 1_000_000> = Default("4096") => by_hand,
        /// Whether the kernel keeps a connection to itself until its client
        /// has sent something, for a second at most (`TCP_DEFER_ACCEPT`): that
        /// saves one wake-up for each. A client that is silent is no open
        /// connection for so long, and is reset if the program stops
        /// meanwhile.
        defer_accept: bool = Default("true") => by_hand,
        /// Proxies in front that say who their client is in a header of the PROXY
        /// protocol, version 1 or 2. That client is then the client everywhere:
        /// in conditions, keys, logs and `X-Forwarded-For`.
        proxy_protocol: ProxyProtocol = Optional("the header is taken from nobody") => by_hand,
        /// Proxies whose word on the client is believed: addresses, networks, and
        /// `"unix"` for every peer on a Unix socket. Of a request from one of them,
        /// `X-Forwarded-For` (else `Forwarded`) is read from the right up to the
        /// first address that is not trusted: that is the client, to routes, keys,
        /// logs and endpoints. `X-Forwarded-Proto`, `-Host` and `-Port` are believed
        /// too: the proxy must set or drop each of them. From anybody else, these fields are replaced, and `X-Real-IP`,
        /// `X-Forwarded-Prefix`, `True-Client-IP` and the like are left out.
        trusted_proxies: Vec<Placed<Peer>> = Optional("as in `server`") => by_hand,
        /// Bounds on what a client may send.
        limits: LimitsTable = Default("{}"),
        /// Bounds on how long a client may take.
        timeouts: ClientTimeoutsTable = Default("{}"),
        /// How far the body of a request is read after its answer, so that the
        /// connection can carry the next request.
        drain: DrainTable = Default("{}"),
        /// What is made of a client that closes its sending side (a FIN) before
        /// its answer. One that has left gives its slot back at once.
        half_close: HalfClose = Default("'auto'"),
        /// What becomes of `X-Request-ID`: a word, or a table.
        request_id: RequestId = Default("'off'") => by_hand,
        /// What becomes of `traceparent` (W3C Trace Context): a word, or a table.
        trace: Trace = Default("'off'") => by_hand,
        /// Where its requests are logged: a table, `true` for one with the
        /// global settings or the defaults, `false` for nowhere.
        access_log: OwnAccessLog = Optional("as in the global `access_log`") => by_hand,
    }
}

options! {
    /// Proxies in front that send the PROXY protocol.
    pub struct ProxyProtocol as "the PROXY protocol of a listener" {
        /// Their addresses and networks; `"unix"` is every peer on a Unix socket.
        /// Each of their connections must begin with the header, within
        /// `timeouts.head`: otherwise it is answered 400 or 408, and closed.
        /// Connections from other addresses are served without a header.
        from: OneOrMore<Placed<Peer>> = Required,
    }
}

options! {
    /// What becomes of `X-Request-ID`.
    pub struct RequestIdTable as "the request ids of a listener" {
        /// Whose id a request has.
        mode: Adopt = Default("'keep'"),
        /// Whether the client is told the id, in its response.
        respond: bool = Default("false"),
    }
}

options! {
    /// What becomes of `traceparent`.
    pub struct TraceTable as "the traces of a listener" {
        /// Whose trace a request is part of.
        mode: Adopt = Default("'keep'"),
        /// Of the traces that begin here, the part that is sampled: the spans
        /// of the others are recorded nowhere.
        sample: Part = Default("1"),
    }
}

options! {
    /// Where the event log goes.
    pub struct LogTable as "the event log"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] Log {
        /// What is written: this and what is more severe.
        level: Level = Default("'info'"),
        /// What a line looks like, and where it goes.
        format: EventFormat = Default("'text'"),
    }
}

options! {
    /// Where the spans of sampled traces are sent: a collector that takes
    /// OTLP over HTTP, as JSON.
    pub struct OtlpTable as "the collector of spans"
    for #[derive(Debug, Clone, PartialEq, Eq)] Otlp with OtlpParts {
        /// Host and port.
        authority: String,
        /// Path and query.
        path: String,
    } {
        /// Its URL; without a path that is `/v1/traces`.
        url: CollectorUrl = Required => by_hand,
        /// Value of `service.name`.
        service: Text = Default("'evenkeel'"),
        /// Further fields of its requests, such as a token: name to value. No
        /// output shows the values.
        headers: Map<Secret<FieldValue>> = Default("{}"),
        /// Longest time that it may take for a request.
        timeout: Timeout = Default("'5s'"),
    }
}

options! {
    /// Bounds on what a client may send.
    pub struct LimitsTable as "the limits of a listener"
    for #[derive(Debug, Clone)] Limits {
        /// Request line and header fields together, at most 128 KiB; the
        /// answer is 431 above it.
        head as head_bytes: Size<usize> = Default("'32KiB'"),
        /// The target of the request (path and query); the answer is 414
        /// above it.
        target as target_bytes: Size<usize> = Default("'8KiB'"),
        /// The body of a request; the answer is 413 above it.
        body as body_bytes: Size = Optional("no limit"),
        /// Connections at once, over all workers. For a further one, a
        /// connection without a request is closed; where there is none, the
        /// answer is 503.
        connections: Bounded<u32, 1, 0xFFFF_FFFF> = Optional("no limit"),
    }
}

options! {
    /// Bounds on how long a client may take.
    pub struct ClientTimeoutsTable as "the timeouts of a listener"
    for #[derive(Debug, Clone)] ClientTimeouts {
        /// From the first byte of a request's head to its last; the answer is
        /// 408 beyond it.
        head: Timeout = Default("'10s'"),
        /// Longest silence within the body of a request (the answer is 408
        /// beyond it), and longest time during which a client takes nothing
        /// of its response.
        body: Timeout = Default("'30s'"),
        /// Longest time that a connection waits for its next request.
        idle: Timeout = Default("'60s'"),
    }
}

options! {
    /// How far the body of a request is read after its answer: an endpoint or
    /// the proxy may answer before the body has come. Beyond one of these bounds
    /// the connection is closed.
    pub struct DrainTable as "the drain of a listener"
    for #[derive(Debug, Clone, Copy)] Drain {
        /// Longest silence of the client.
        silence: Timeout = Default("'5s'"),
        /// Longest time in all.
        total: Timeout = Default("'30s'"),
        /// Most bytes. Where `Content-Length` announces more, or this is 0, the
        /// answer says that the connection is closed.
        bytes: Length = Default("'16MiB'"),
    }
}

options! {
    /// Which requests, and what answers them.
    pub struct Route as "a route" {
        /// The name that logs use.
        name: Name = Optional("`route-N`, counted from 1"),
        /// What a request must show, all of it; everything where this is left
        /// out.
        r#match: Match = Default("{}"),
        /// Proxy to the upstream of this name.
        upstream: Placed<Text> = Optional(""),
        /// Answer with this, without an upstream.
        answer: Boxed<Answer> = Optional(""),
        /// Redirect there: a URL, or a table.
        redirect: Redirect = Optional(""),
        /// Answer with files of a folder: its path, or a table.
        files: ShortFiles = Optional(""),
        /// Of the upstream's `lanes`, the one that these requests are kept to.
        lane: Text = Optional("all of the upstream's slots"),
        /// Who leaves the upstream's queue first: requests of a higher
        /// priority go before those of a lower one.
        priority: Bounded<u8, 0, 9> = Depends(priority_default, "`0`"),
        /// Where its requests are logged: a table, `true` for one with the
        /// listener's settings or the defaults, `false` for nowhere.
        access_log: OwnAccessLog = Optional("as in the listener's `access_log`"),
    }
}

options! {
    /// A fixed answer, such as a page that says that the site is under
    /// maintenance.
    pub struct Answer as "an answer"
    for #[derive(Debug, Clone)] FixedAnswer with AnswerParts {
        /// The body, as sent.
        body: Vec<u8>,
        /// Where the body was read from.
        file: Option<PathBuf>,
    } {
        /// Status code.
        status: Bounded<u16, 200, 599> = Default("200"),
        /// The body, as sent.
        body: Text = Depends(answer_body_default, "`\"\"`, unless `file` is written") => by_hand,
        /// The file with the body, at most 1 MiB: an absolute path, or one
        /// from the folder of the configuration file. It is read when the
        /// configuration is loaded.
        file: FilePath = Optional("`body` says") => by_hand,
        /// Value of `Content-Type`.
        content_type: FieldValue = Depends(answer_type_default, "by the end of the file's name; `\"text/plain; charset=utf-8\"` without `file`"),
        /// Further header fields: name to value, such as `Retry-After`.
        headers: Map<FieldValue> = Default("{}"),
    }
}

options! {
    /// A redirect.
    pub struct RedirectTable as "a redirect" {
        /// Value of `Location`. `$scheme`, `$host`, `$path` and `$query` in it
        /// stand for the request's scheme, its host without port, its path, and its
        /// query with a leading `?` where there is one.
        to: Placed<FieldValue> = Required,
        /// 301, 302, 303, 307 or 308.
        status: Placed<Bounded<u16, 301, 308>> = Default("302"),
    }
}

options! {
    /// A named group of endpoints.
    pub struct UpstreamTable as "an upstream"
    for #[derive(Debug, Clone)] Upstream with UpstreamParts {
        /// The name that routes, logs and counters use.
        name: String,
        /// How an endpoint is chosen.
        balance: Balance,
        /// The status where the balancer refuses rather than overload.
        busy_status: u16,
        /// What the balancers by key go by.
        key: BalanceKey,
        /// The addresses in it; may be empty (every request is answered 503).
        endpoints: Vec<Endpoint>,
        /// Where requests wait for a slot.
        queue: Queue,
        /// Parts of the slots that some routes are kept to.
        lanes: Vec<Lane>,
        /// How failures of exchanges and probes count.
        health: HealthSettings,
        /// How the endpoints are probed; `None` for not at all.
        probe: Option<Probe>,
        /// What becomes of `Via` in requests.
        via: Via,
        /// Which fields tell endpoints of the client.
        forward: Forward,
    } {
        /// How an endpoint is chosen.
        balance: Balance = Default("'adaptive'") => by_hand,
        /// Options of the balancer `fair`.
        fair: Fair = Optional("") => by_hand,
        /// What the balancers `carp` and `consistent-hash` go by: requests with
        /// the same key go to the same endpoint.
        key: Key = Depends(key_default, "`\"uri\"`, for the balancers that take a key") => by_hand,
        /// The endpoints; where there is none, the answer is 503.
        endpoints: Vec<Placed<ShortEndpoint>> = Default("[]") => by_hand,
        /// Where requests wait while every endpoint is at its `max_in_flight`,
        /// or none is up.
        queue: QueueTable = Depends(queue_default, "a queue; none with `weight_mode = \"peak\"`") => by_hand,
        /// Parts of the slots that some routes are kept to, so that slow pages
        /// leave room for fast ones: by name the most exchanges in flight, over
        /// all endpoints. Every endpoint must have a `max_in_flight` then.
        lanes: Map<Placed<Width>> = Default("{}") => by_hand,
        /// What keeps slow clients from holding slots: a table, `true` for one
        /// with its defaults, `false` for nothing.
        buffer: BufferSwitch = Depends(buffer_default, "`true` where an endpoint has a `max_in_flight`, else `false`"),
        /// How the endpoints are probed.
        health: HealthTable = Optional("no probes") => by_hand,
        /// Whether errors of exchanges count: after 3 in a row an endpoint gets
        /// less, after 5 it is out for a while.
        guard: bool = Default("true") => by_hand,
        /// How long the weight of an endpoint rises when it comes back; 0 gives
        /// it all of it at once.
        slow_start: Span = Default("'0s'") => by_hand,
        /// Idle connections kept for later exchanges.
        pool: PoolTable = Default("{}"),
        /// Bounds on how long an attempt may take.
        timeouts: UpstreamTimeoutsTable = Default("{}"),
        /// Bounds on the interim responses (1xx) that come before a response;
        /// beyond them the answer is 502.
        interim: InterimTable = Default("{}"),
        /// Further attempts after the first, where HTTP allows them. With
        /// `queue.hold`, connections that can't be opened do not count.
        retries: Bounded<u32, 0, 100> = Default("2"),
        /// Whether requests name the proxy in `Via`. nginx and IIS answer a
        /// request with `Via` uncompressed.
        via: bool = Default("false") => by_hand,
        /// Which fields tell endpoints of the client: `X-Forwarded-For`, `-Proto`
        /// and `-Host`; `Forwarded` (RFC 7239); `X-Real-IP`.
        forward: Vec<Placed<Forwarding>> = Default("['x-forwarded']") => by_hand,
    }
}

options! {
    /// Options of the balancer `fair`.
    pub struct Fair as "the options of fair" {
        /// Looks for an idle endpoint from the first one on, rather than from
        /// the one chosen last.
        no_rr: bool = Default("false"),
        /// What the weight of an endpoint means.
        weight_mode: WeightMode = Default("'default'"),
        /// The status of the answer where `weight_mode = "peak"` finds every
        /// endpoint busy.
        status: Bounded<u16, 400, 599> = Depends(fair_status_default, "`502`, with `weight_mode = \"peak\"`"),
    }
}

options! {
    /// What a balancer goes by: one of `by`, `header`, `cookie` and `query`.
    pub struct KeyTable as "a key" {
        /// The address of the client, or the path and the query.
        by: BalanceKey = Optional(""),
        /// The header field of this name; `X_User` counts as `X-User`.
        header: FieldName = Optional(""),
        /// The cookie of this name.
        cookie: FieldName = Optional(""),
        /// The query parameter of this name.
        query: FieldValue = Optional(""),
        /// How long a request waits for the endpoint of its key, where that one
        /// is at its limit and others are not; `"0s"` sends it to another at
        /// once.
        wait: Span = Default("'1s'"),
    }
}

options! {
    /// Where requests wait for a slot.
    pub struct QueueTable as "a queue"
    for #[derive(Debug, Clone)] Queue with QueueParts {
        /// Its bounds and its order.
        settings: QueueSettings,
        /// What is answered where the queue is full, or the wait too long.
        answer: QueueAnswer,
    } {
        /// Most requests that wait; 0 is no queue.
        max: Bounded<usize, 0, 1_000_000> = Default("1000") => by_hand,
        /// Longest wait.
        timeout: Timeout = Default("'10s'"),
        /// Whether requests wait while no endpoint is up; without it they are
        /// answered at once: 503 where that is known, else 502 or 504, by what
        /// came of the attempts. They never wait where the operator has
        /// stopped every endpoint.
        hold: bool = Default("true") => by_hand,
        /// Who is served next.
        discipline: Discipline = Default("'fifo'") => by_hand,
        /// How long a queue may stand before the discipline changes its order.
        target: Span = Depends(target_default, "`\"100ms\"`; `fifo` has none") => by_hand,
        /// What is answered where the queue is full, or the wait too long.
        answer: QueueAnswerTable = Default("{}") => by_hand,
    }
}

options! {
    /// What is answered where the queue is full, or the wait too long.
    pub struct QueueAnswerTable as "the answer of a queue"
    for #[derive(Debug, Clone, PartialEq, Eq)] QueueAnswer with QueueAnswerParts {
        /// Value of `Retry-After`, in seconds.
        retry_after_s: u32,
        /// Type and bytes of the body; `None` for a short text that says why.
        body: Option<(String, Vec<u8>)>,
    } {
        /// Status code.
        status: Bounded<u16, 400, 599> = Default("503"),
        /// Value of `Retry-After`, in whole seconds.
        retry_after: Span = Default("'1s'") => by_hand,
        /// The file with the body, at most 1 MiB: an absolute path, or one
        /// from the folder of the configuration file. It is read when the
        /// configuration is loaded.
        file: FilePath = Optional("a short text that says why") => by_hand,
        /// Value of `Content-Type`.
        content_type: FieldValue = Depends(content_type_default, "by the end of the file's name") => by_hand,
    }
}

options! {
    /// What keeps slow clients from holding slots. Event streams and upgraded
    /// connections are excepted.
    pub struct BufferTable as "a buffer"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] Buffer {
        /// How much of a request's body is read before the request takes a
        /// slot; 0 is none. A request with `Expect: 100-continue` takes its
        /// slot with the head.
        request as request_bytes: Length<usize> = Default("'64KiB'"),
        /// How much of a response is taken off the endpoint ahead of a client
        /// that does not take it at once; 0 is none.
        response as response_bytes: Length<usize> = Default("'256KiB'"),
        /// Least rate of a client, in bytes a second, over 10 s: a slower one
        /// is cut off. It counts only while its request holds a slot, and the
        /// client is what the request waits for; 0 is none.
        min_rate: Length = Default("'1KiB'"),
    }
}

options! {
    /// How the endpoints are probed. An endpoint whose probes fail gets no
    /// requests until they pass again.
    pub struct HealthTable as "a health check"
    for #[derive(Debug, Clone)] Probe with ProbeParts {
        /// What is asked; `None` is a connection that opens.
        request: Option<ProbeRequest>,
    } {
        /// The path that is asked for.
        path: ProbePath = Optional("a connection that opens is enough") => by_hand,
        /// Method of the request.
        method: Method = Depends(method_default, "`\"GET\"`") => by_hand,
        /// Value of `Host`.
        host: FieldValue = Optional("the endpoint's address, as written") => by_hand,
        /// Further header fields: name to value. No output shows the values.
        headers: Map<Secret<FieldValue>> = Default("{}") => by_hand,
        /// Statuses that pass.
        expect: OneOrMore<StatusRange> = Depends(expect_default, "`\"200-399\"`") => by_hand,
        /// Text that the first 64 KiB of the body must contain.
        body: Text = Optional("any body") => by_hand,
        /// The port to probe.
        port: Bounded<u16, 1, 65535> = Optional("the endpoint's own"),
        /// Time between two probes of an endpoint.
        interval: Span = Default("'2s'"),
        /// Longest time that a probe may take.
        timeout: Timeout = Depends(probe_timeout_default, "`\"1s\"`, or the interval if that is shorter"),
        /// Probes in a row that must pass before an endpoint is up again.
        rise: Bounded<u32, 1, 1000> = Default("2") => by_hand,
        /// Probes in a row that must fail before it is down.
        fall: Bounded<u32, 1, 1000> = Default("3") => by_hand,
        /// What an endpoint is until its first probe, which goes out at the
        /// start.
        initial: Initial = Default("'down'") => by_hand,
    }
}

options! {
    /// One address of an upstream.
    pub struct EndpointTable as "an endpoint"
    for #[derive(Debug, Clone)] Endpoint with EndpointParts {
        /// As written: the name that logs and counters use.
        name: String,
        /// Where to connect.
        address: Address,
    } {
        /// Where to connect. A name is looked up once, when the configuration
        /// is loaded.
        address: Placed<EndpointAddress> = Required => by_hand,
        /// Share of the traffic relative to the other endpoints; 0 gets none.
        weight: Bounded<u32, 0, { MAX_WEIGHT as i64 }> = Default("1"),
        /// Most exchanges in flight, over all workers, and most connections, idle
        /// ones included.
        max_in_flight: Bounded<u32, 1, 0xFFFF_FFFF> = Optional("no limit"),
    }
}

options! {
    /// Idle connections kept for later exchanges.
    pub struct PoolTable as "a pool"
    for #[derive(Debug, Clone)] Pool {
        /// Most idle connections per endpoint and worker; 0 keeps none. To an
        /// endpoint with `max_in_flight` over all workers, and together with
        /// those in use never more than that.
        max_idle: Bounded<usize, 0, 1_000_000> = Default("1024"),
        /// How long an idle connection is kept. An endpoint that says
        /// `Keep-Alive: timeout=N` has it closed after N - 1 seconds, if that is
        /// sooner.
        idle_timeout: Timeout = Default("'60s'"),
        /// Whether a client's connection is closed without an answer, so that
        /// the client repeats its request, where the endpoint closed an idle
        /// connection just as the request was sent, and the request can't be
        /// repeated here (a POST, or a body that is gone). Only a connection that
        /// has carried a request before is closed so; otherwise the answer is 502.
        close_on_stale: bool = Default("true"),
    }
}

options! {
    /// Bounds on how long an attempt may take.
    pub struct UpstreamTimeoutsTable as "the timeouts of an upstream"
    for #[derive(Debug, Clone)] UpstreamTimeouts {
        /// Establishing a connection; another endpoint is tried then, and the
        /// answer is 504 where none is left.
        connect: Timeout = Default("'1s'"),
        /// From the last byte of the request to the first of the response; the
        /// answer is 504 beyond it. Each interim response (1xx) begins it anew.
        first_byte: Timeout = Default("'60s'"),
        /// Longest silence within a response or a tunnel.
        idle: Timeout = Default("'60s'"),
        /// The whole exchange, retries included.
        total: Timeout = Optional("no limit"),
    }
}

options! {
    /// Bounds on the interim responses (1xx) that come before a response.
    pub struct InterimTable as "the bounds on interim responses"
    for #[derive(Debug, Clone, Copy)] Interim {
        /// Most of them.
        count: Bounded<u32, 1, 1_000_000> = Default("1000"),
        /// Most bytes in all.
        bytes: Size = Default("'256KiB'"),
    }
}

/// Most exchanges in a lane.
pub type Width = Bounded<u32, 1, 0xFFFF_FFFF>;

/// What a balancer goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The part of the request.
    pub by: BalanceKey,
    /// How long a request waits for the endpoint of its key.
    pub wait: std::time::Duration,
}

impl Setting for Key {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let table = match &node.value {
            Value::Text(text) => {
                let Shape::Choice(words) = BalanceKey::shape() else {
                    return None;
                };
                if words.iter().all(|it| it.word != text) {
                    report
                        .mistake(&node.place, format!("unknown word `{text}`"))
                        .label(format!("expected {}", Self::shape().words()))
                        .help("a table names what to go by, as in { header = \"X-User\" }")
                        .propose_word(text, &words.iter().map(|it| it.word).collect::<Vec<_>>());
                    return None;
                }
                KeyTable::read(&table_of("by", node), report)?
            }
            Value::Table(_) => KeyTable::read(node, report)?,
            _ => return wrong_type(node, report),
        };
        let written = [
            table.by.written,
            table.header.written,
            table.cookie.written,
            table.query.written,
        ];
        let count = written.into_iter().filter(|it| *it).count();
        if count != 1 {
            report
                .mistake(
                    &node.place,
                    "a key is one of `by`, `header`, `cookie` and `query`",
                )
                .label(format!(
                    "this has {}",
                    if count == 0 { "none" } else { "several" }
                ));
            return None;
        }
        let header = |it: FieldName| BalanceKey::Header(it.0);
        let cookie = |it: FieldName| BalanceKey::Cookie(it.0);
        let query = |it: FieldValue| BalanceKey::Query(it.0);
        let by = table.by.value;
        let by = by.or_else(|| table.header.value.map(header));
        let by = by.or_else(|| table.cookie.value.map(cookie));
        Some(Self {
            by: by.or_else(|| table.query.value.map(query))?,
            wait: table.wait.value?.0,
        })
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![BalanceKey::shape(), KeyTable::shape()])
    }
}

impl UpstreamTable {
    /// Whether it refuses rather than let requests wait.
    pub(super) fn is_peak(&self) -> bool {
        let mode = self
            .fair
            .value
            .as_ref()
            .and_then(|fair| fair.weight_mode.value);
        mode == Some(WeightMode::Peak)
    }
}

fn log_path_default(log: &Node) -> Option<String> {
    log.entry("syslog").is_none().then(|| "'-'".into())
}

fn log_format_default(log: &Node) -> Option<String> {
    log.entry("template").is_none().then(|| "'combined'".into())
}

fn sample_default(log: &Node) -> Option<String> {
    let slower_than = log.text_of("slower_than").map(Span::from_text);
    let is_slow = slower_than.is_some_and(|it| it.is_ok_and(|it| !it.0.is_zero()));
    let has_condition = is_slow || log.text_of("only") == Some("errors");
    Some(if has_condition { "0" } else { "1" }.into())
}

fn priority_default(route: &Node) -> Option<String> {
    let files = route.entry("files").map(|it| &it.node);
    let mut tables = [Some(route), files].into_iter().flatten();
    let has_upstream = tables.any(|it| it.entry("upstream").is_some());
    has_upstream.then(|| "0".into())
}

fn key_default(upstream: &Node) -> Option<String> {
    let takes_key = upstream
        .text_of("balance")
        .and_then(Balance::from_word)
        .is_some_and(Balance::takes_key);
    takes_key.then(|| "'uri'".into())
}

fn queue_default(upstream: &Node) -> Option<String> {
    let fair = upstream.entry("fair");
    let is_peak = fair.is_some_and(|it| it.node.text_of("weight_mode") == Some("peak"));
    let default = if is_peak {
        "{ max = 0, hold = false }"
    } else {
        "{}"
    };
    Some(default.into())
}

/// Slots are worth keeping free where there is a limit on them.
fn buffer_default(upstream: &Node) -> Option<String> {
    let endpoints = upstream.entry("endpoints").map(|it| &it.node.value);
    let has_limit = match endpoints {
        Some(Value::List(items)) => items.iter().any(|it| it.entry("max_in_flight").is_some()),
        _ => false,
    };
    Some(if has_limit { "{}" } else { "false" }.into())
}

fn fair_status_default(fair: &Node) -> Option<String> {
    (fair.text_of("weight_mode") == Some("peak")).then(|| "502".into())
}

fn target_default(queue: &Node) -> Option<String> {
    let discipline = queue.text_of("discipline").unwrap_or("fifo");
    (discipline != "fifo").then(|| "'100ms'".into())
}

fn content_type_default(answer: &Node) -> Option<String> {
    let file = answer.text_of("file")?;
    Some(format!("'{}'", super::value::content_type_of(file)))
}

fn answer_body_default(answer: &Node) -> Option<String> {
    answer.entry("file").is_none().then(|| "''".into())
}

fn answer_type_default(answer: &Node) -> Option<String> {
    content_type_default(answer).or_else(|| Some("'text/plain; charset=utf-8'".into()))
}

fn method_default(health: &Node) -> Option<String> {
    health.entry("path").map(|_| "'GET'".into())
}

fn expect_default(health: &Node) -> Option<String> {
    health.entry("path").map(|_| "'200-399'".into())
}

fn probe_timeout_default(health: &Node) -> Option<String> {
    let interval = health.text_of("interval").unwrap_or_default();
    let is_shorter = |it: &Timeout| it.0 < std::time::Duration::from_secs(1);
    let shorter = Timeout::from_text(interval).ok().filter(is_shorter);
    Some(format!("'{}'", shorter.map_or("1s", |_| interval)))
}

/// What can be switched on and off: a table, `true` for one with its defaults,
/// or `false`.
#[derive(Debug)]
pub enum Switch<T> {
    /// None.
    Off,
    /// This.
    On(Box<T>),
}

impl<T: Setting> Setting for Switch<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let on = |table| Self::On(Box::new(table));
        match node.value {
            Value::Boolean(false) => Some(Self::Off),
            Value::Boolean(true) => T::read(&empty_table(node), report).map(on),
            Value::Table(_) => T::read(node, report).map(on),
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![T::shape(), Shape::Boolean])
    }
}

impl<T: Resolve> Resolve for Switch<T> {
    type Resolved = Option<T::Resolved>;

    fn resolve(&self) -> Option<Self::Resolved> {
        Some(match self {
            Self::Off => None,
            Self::On(table) => Some(table.resolve()?),
        })
    }
}

/// The status page.
pub type Status = Switch<StatusTable>;
/// What keeps slow clients from holding slots.
pub type BufferSwitch = Switch<BufferTable>;
/// The global access log.
pub type AccessLog = Switch<AccessLogTable>;
/// The access log of a listener or a route, over the one above it.
pub type OwnAccessLog = Switch<OwnAccessLogTable>;

fn empty_table(node: &Node) -> Node {
    Node {
        place: node.place.clone(),
        value: Value::Table(Vec::new()),
    }
}

/// Defines a value written as a table, or as the text of one key of it.
macro_rules! short_for {
    ($(#[doc = $about:literal])* $name:ident, $table:ty, $key:literal, $text:ty) => {
        $(#[doc = $about])*
        #[derive(Debug)]
        pub struct $name(pub $table);

        impl Setting for $name {
            fn read(node: &Node, report: &mut Report) -> Option<Self> {
                match node.value {
                    Value::Text(_) => <$table>::read(&table_of($key, node), report).map(Self),
                    Value::Table(_) => <$table>::read(node, report).map(Self),
                    _ => wrong_type(node, report),
                }
            }

            fn shape() -> Shape {
                Shape::AnyOf(vec![<$text>::shape(), <$table>::shape()])
            }
        }
    };
}

short_for!(
    /// What becomes of `X-Request-ID`.
    RequestId, RequestIdTable, "mode", Adopt
);
short_for!(
    /// What becomes of `traceparent`.
    Trace, TraceTable, "mode", Adopt
);
short_for!(
    /// Where a redirect leads.
    Redirect, Boxed<RedirectTable>, "to", FieldValue
);
short_for!(
    /// Files of a folder.
    ShortFiles, Boxed<FilesTable>, "root", FolderPath
);
short_for!(
    /// A syslog daemon.
    Syslog, SyslogTable, "to", SyslogTarget
);
short_for!(
    /// An endpoint of an upstream.
    ShortEndpoint, EndpointTable, "address", EndpointAddress
);

/// The table that has only this key, with the value at `node`.
fn table_of(key: &str, node: &Node) -> Node {
    let place = node.place.clone();
    let entry = Entry {
        key: key.to_owned(),
        key_place: place.clone(),
        node: node.clone(),
    };
    Node {
        place,
        value: Value::Table(vec![entry]),
    }
}
