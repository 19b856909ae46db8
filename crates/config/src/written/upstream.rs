//! Upstreams: groups of endpoints, the queue in front of them, and their probes.

mod source;

use std::path::PathBuf;

use super::RequestKeyText;
use super::forms::{Switch, short_for, table_of};
use super::tls::UpstreamTlsTable;
use crate::diagnostics::Report;
use crate::quantity::{DurationValue, Length, Size, Timeout};
use crate::reserved::ProbeField;
use crate::setting::{
    Bounded, Map, OneOrMore, Placed, Secret, Setting, options, sibling, wrong_type,
};
use crate::shape::Shape;
use crate::tree::{Node, Value};
use crate::value::{
    EndpointAddress, FieldName, FieldValue, FilePath, Forwarding, GrpcCode, HexBytes, LoginName,
    Method, Name, ProbePath, ServiceName, StatusRange, Text,
};
use crate::{
    BalanceKey, Check, EndpointProtocol, Family, Lane, MAX_WEIGHT, ProbeProtocol, ResolveTo,
    UpstreamTls,
};

use evenkeel_net::Address;
use evenkeel_policy::balance::{Balance, WeightMode};
use evenkeel_policy::health::{HealthSettings, Initial};
use evenkeel_policy::queue::{Discipline, QueueSettings};
use evenkeel_proto::http1::write::{Forward, Via};
use evenkeel_proto::proxy_protocol::Version as HeaderVersion;
pub(crate) use source::listed;
pub use source::{EndpointSource, NameSource, ServiceSource};

options! {
    /// A named group of endpoints.
    pub struct UpstreamTable as "an upstream"
    for #[derive(Debug, Clone)] Upstream with UpstreamParts {
        /// The name that routes, logs and counters use.
        name: String,
        /// The balancer that chooses an endpoint.
        balance: Balance,
        /// The status of the answer when the balancer refuses rather than overload.
        busy_status: u16,
        /// The part of a request that balancers by key use.
        key: BalanceKey,
        /// The endpoints known when the configuration comes into force. May be empty.
        endpoints: Vec<Endpoint>,
        /// The sources of endpoints, in the order written.
        sources: Vec<EndpointSource>,
        /// The file that lists further endpoints.
        endpoints_file: Option<PathBuf>,
        /// The list of endpoints as a text: a different list has a different text. It is the
        /// same in every process, wherever the configuration file lies.
        listed: String,
        /// The queue of requests that wait for a slot.
        queue: Queue,
        /// Parts of the slots, to which some routes are limited.
        lanes: Vec<Lane>,
        /// How failures of exchanges and probes count.
        health: HealthSettings,
        /// How the endpoints are probed; `None` for not at all.
        probe: Option<Probe>,
        /// Whether requests name the proxy in `Via`.
        via: Via,
        /// The fields that name the client to endpoints.
        forward: Forward,
        /// TLS to its endpoints; `None` for plain text.
        tls: Option<UpstreamTls>,
        /// Statuses of gRPC for which a call is tried at another endpoint.
        grpc_retry_on: Vec<u32>,
    } {
        /// The balancer: how an endpoint is chosen.
        balance: Balance = Default("'adaptive'") => by_hand,
        /// Options of the balancer `fair`.
        fair: Fair = Optional("") => by_hand,
        /// The key of the balancers `carp` and `consistent-hash`: requests with the same key go
        /// to the same endpoint.
        key: Key = Depends(key_default, "`\"uri\"`, for the balancers that take a key") => by_hand,
        /// The endpoints. Without any, the answer is 503.
        endpoints: Vec<Placed<ShortEndpoint>> = Default("[]") => by_hand,
        /// A JSON file that lists further endpoints: an absolute path, or one from the folder
        /// of the configuration file. It is read again whenever it is replaced. See
        /// [discovery](discovery.md).
        endpoints_file: FilePath = Optional("no file") => by_hand,
        /// The queue of requests, which wait while every endpoint is at its `max_in_flight`, or
        /// none is up.
        queue: QueueTable = Depends(queue_default, "a queue; none with `weight_mode = \"peak\"`") => by_hand,
        /// Parts of the slots, to which some routes are limited, so that slow pages leave room
        /// for fast ones. By name, the most exchanges in flight over all endpoints. Every
        /// endpoint must then have a `max_in_flight`.
        lanes: Map<Name, Placed<Width>> = Default("{}") => by_hand,
        /// Buffers that keep slow clients from holding slots: a table, `true` for one with its
        /// defaults, or `false` for no buffers.
        buffer: BufferSwitch = Depends(buffer_default, "`true` where an endpoint has a `max_in_flight`, else `false`"),
        /// How the endpoints are probed.
        health: HealthTable = Optional("no probes") => by_hand,
        /// Whether errors of exchanges count: after 3 in a row an endpoint gets fewer requests,
        /// after 5 it gets none for a while.
        guard: bool = Default("true") => by_hand,
        /// How long the weight of an endpoint rises after its return. With 0 it has its full
        /// weight at once.
        slow_start: DurationValue = Default("'0s'") => by_hand,
        /// Idle connections to keep for later exchanges.
        pool: PoolTable = Default("{}"),
        /// Limits on how long an attempt may take.
        timeouts: UpstreamTimeoutsTable = Default("{}"),
        /// Limits on the interim responses (1xx) that come before a response. Beyond them the
        /// answer is 502.
        interim: InterimTable = Default("{}"),
        /// Most attempts after the first, where HTTP allows them. With `queue.hold`,
        /// connections that can't be opened do not count.
        retries: Bounded<u32, 0, 100> = Default("2"),
        /// Statuses of gRPC after which a call is tried at another endpoint, as often as
        /// `retries` allows. The endpoint must have answered with nothing but the status, and
        /// the whole request must still be there. See [gRPC](grpc.md#retries).
        grpc_retry_on: Vec<Placed<GrpcCode>> = Default("[]") => by_hand,
        /// Whether requests name the proxy in `Via`. nginx and IIS do not compress responses to
        /// requests with `Via`.
        via: bool = Default("false") => by_hand,
        /// The fields that name the client to endpoints: `X-Forwarded-For`, `-Proto` and
        /// `-Host`; `Forwarded` (RFC 7239); `X-Real-IP`.
        forward: Vec<Placed<Forwarding>> = Default("['x-forwarded']") => by_hand,
        /// Names the client to endpoints in a header of the PROXY protocol, in front of each
        /// connection. A connection then carries the requests of only one client. See [PROXY
        /// protocol](proxy-protocol.md).
        proxy_protocol: HeaderVersion = Optional("no header"),
        /// TLS to its endpoints: a table, `true` for one with its defaults, `false` for
        /// plain text. See [TLS](tls.md#to-endpoints).
        tls: Switch<UpstreamTlsTable> = Default("false") => by_hand,
        /// The protocol of its endpoints. A connection of HTTP/2 carries many exchanges at
        /// once: see [HTTP/2](http2.md#to-endpoints).
        protocol: EndpointProtocol = Default("'http/1.1'"),
    }
}

options! {
    /// Options of the balancer `fair`.
    pub struct Fair as "the options of fair" {
        /// Whether the search for an idle endpoint starts at the first one, rather than at the
        /// one chosen last.
        no_rr: bool = Default("false"),
        /// The meaning of an endpoint's weight.
        weight_mode: WeightMode = Default("'default'"),
        /// The status of the answer when every endpoint is busy, with `weight_mode = "peak"`.
        status: Bounded<u16, 400, 599> = Depends(fair_status_default, "`502`, with `weight_mode = \"peak\"`"),
    }
}

options! {
    /// The key of a balancer: one of `by`, `header`, `cookie` and `query`.
    pub struct KeyTable as "a key" {
        /// The address of the client, or the path and the query.
        by: BalanceKey = Optional(""),
        /// The header field of this name; `X_User` counts as `X-User`.
        header: FieldName = Optional(""),
        /// The cookie of this name.
        cookie: FieldName = Optional(""),
        /// The query parameter of this name.
        query: FieldValue = Optional(""),
        /// How long a request waits for the endpoint of its key, if that one is at its limit
        /// and others are not. `"0s"` sends it to another endpoint at once.
        wait: DurationValue = Default("'1s'"),
    }
}

options! {
    /// The queue of requests that wait for a slot.
    pub struct QueueTable as "a queue"
    for #[derive(Debug, Clone)] Queue with QueueParts {
        /// Its limits and its order.
        settings: QueueSettings,
        /// The answer when the queue is full or the wait too long.
        answer: QueueAnswer,
    } {
        /// Most requests that wait; 0 for no queue.
        max: Bounded<usize, 0, 1_000_000> = Default("1000") => by_hand,
        /// Longest wait of a request.
        timeout: Timeout = Default("'10s'"),
        /// Whether requests wait while no endpoint is up. With `false` they are answered at
        /// once: 503 if it is known that no endpoint is up, else 502 or 504 after failed
        /// attempts. Requests never wait when the operator has stopped every endpoint.
        hold: bool = Default("true") => by_hand,
        /// Which request leaves the queue next.
        discipline: Discipline = Default("'fifo'") => by_hand,
        /// The key by which requests share the queue fairly. `client` stands for one client's
        /// address (or one IPv6 network of 64 bits); a text with variables, such as
        /// `{header:X-Api-Key}`, makes the key. If the text comes out empty, the client's
        /// address is the key. Keys are served in turn, one request each. In a full queue, a
        /// new request replaces the newest request of the key that has the most.
        fair_by: RequestKeyText = Optional("all requests share one line"),
        /// How long the queue may exist before the discipline changes its order.
        target: DurationValue = Depends(target_default, "`\"100ms\"`; `fifo` has none") => by_hand,
        /// The answer when the queue is full or the wait too long.
        answer: QueueAnswerTable = Default("{}") => by_hand,
    }
}

options! {
    /// Buffers that keep slow clients from holding slots. Event streams and upgraded
    /// connections are not buffered.
    pub struct BufferTable as "a buffer"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] Buffer {
        /// Most bytes of a request's body to read before the request takes a slot; 0 for none.
        /// A request with `Expect: 100-continue` takes its slot with the head.
        request as request_bytes: Length<usize> = Default("'64KiB'"),
        /// Most bytes of a response to read from the endpoint ahead of a client that is slower;
        /// 0 for none.
        response as response_bytes: Length<usize> = Default("'256KiB'"),
        /// Least rate of a client, in bytes a second, over 10 s: a slower client is cut off.
        /// The rate counts only while the request holds a slot and waits for the client; 0 for
        /// no least rate.
        min_rate: Length = Default("'1KiB'"),
    }
}

options! {
    /// How the endpoints are probed. An endpoint whose probes fail gets no
    /// requests until they pass again.
    pub struct HealthTable as "a health check"
    for #[derive(Debug, Clone, PartialEq, Eq)] Probe with ProbeParts {
        /// The check that a probe makes on its connection.
        check: Check,
        /// The header of the PROXY protocol that each probe begins with.
        proxy_protocol: Option<HeaderVersion>,
        /// Whether it uses the TLS of its upstream, if the upstream has TLS.
        takes_tls: bool,
        /// The version of HTTP for probes by HTTP.
        http: EndpointProtocol,
    } {
        /// The check that a probe makes on the connection that it opens.
        protocol: ProbeProtocol = Depends(protocol_default, "`\"http\"` with `path`, else `\"tcp\"`") => by_hand,
        /// The path to request, over HTTP.
        path: ProbePath = Depends(path_default, "`\"/\"` with `protocol = \"http\"`; else nothing is asked") => by_hand,
        /// Method of the request.
        method: Method = Depends(method_default, "`\"GET\"`") => by_hand,
        /// Value of `Host`; with `protocol = "tls"` the server name (SNI).
        host: FieldValue = Optional("the endpoint's address, as written; no SNI") => by_hand,
        /// The service to ask for, with `protocol = "grpc"`.
        service: Text = Optional("the server as a whole") => by_hand,
        /// Further header fields: name to value. No output shows the values.
        headers: Map<ProbeField, Secret<FieldValue>> = Default("{}") => by_hand,
        /// Statuses that pass.
        expect: OneOrMore<StatusRange> = Depends(expect_default, "`\"200-399\"`") => by_hand,
        /// Text that the first 64 KiB of the body must contain.
        body: Text = Optional("any body") => by_hand,
        /// Text to send. Outputs show it, so it must not contain a password.
        send: Text = Optional("nothing is sent") => by_hand,
        /// Bytes to send, in hex.
        send_hex: HexBytes = Optional("nothing is sent") => by_hand,
        /// Text that the first 4096 bytes of the answer must contain.
        receive: Text = Optional("no answer is waited for") => by_hand,
        /// Bytes that the first 4096 bytes of the answer must contain, in hex.
        receive_hex: HexBytes = Optional("no answer is waited for") => by_hand,
        /// The user name with which a probe of PostgreSQL, MySQL or MariaDB logs in, without a
        /// password. The user need not exist.
        user: LoginName = Depends(user_default, "`\"evenkeel\"`") => by_hand,
        /// The port to probe. With a port of its own, a probe uses neither the TLS nor the
        /// PROXY header of the upstream.
        port: Bounded<u16, 1, 65535> = Optional("the endpoint's own"),
        /// Time between two probes of an endpoint.
        interval: DurationValue = Default("'2s'"),
        /// Longest time that a probe may take.
        timeout: Timeout = Depends(probe_timeout_default, "`\"1s\"`, or the interval if that is shorter"),
        /// Probes in a row that must pass before an endpoint that is down is up again.
        rise: Bounded<u32, 1, 1000> = Default("2") => by_hand,
        /// Probes in a row that must fail before an endpoint is down.
        fall: Bounded<u32, 1, 1000> = Default("3") => by_hand,
        /// The state of an endpoint until its first probe, which is sent at the start.
        initial: Initial = Default("'down'") => by_hand,
    }
}

options! {
    /// An endpoint of an upstream, or a name that stands for several.
    pub struct EndpointTable as "an endpoint"
    for #[derive(Debug, Clone, PartialEq, Eq)] Endpoint with EndpointParts {
        /// The name that logs and counters use: as written, or the address.
        name: String,
        /// The address to connect to.
        address: Address,
        /// The value of `Host` that names the endpoint.
        host: String,
    } {
        /// The address to connect to. A name is looked up again for as long as the program
        /// runs: see [discovery](discovery.md).
        address: Placed<EndpointAddress> = RequiredWithout("srv") => by_hand,
        /// A service whose SRV records name the endpoints, with their ports, weights and
        /// priorities. Each priority is a tier; the lowest number goes first.
        srv: Placed<ServiceName> = Optional("no service") => by_hand,
        /// How many endpoints a name with several addresses makes.
        resolve: ResolveTo = Default("'each'") => by_hand,
        /// The family of addresses to use of a name.
        family: Family = Optional("IPv4 addresses, or IPv6 addresses if there are none") => by_hand,
        /// Share of the traffic relative to the other endpoints; 0 gets no traffic.
        weight: Bounded<u32, 0, { MAX_WEIGHT as i64 }> = Default("1"),
        /// The endpoint gets requests only while no endpoint of a lower tier takes any, or
        /// after a request has tried all of those. If the endpoints of a tier are only full,
        /// requests wait for them.
        tier: Bounded<u16, 0, 65535> = Depends(tier_default, "`0`, or `1` with `backup = true`"),
        /// The short form of `tier = 1`.
        backup: bool = Default("false") => by_hand,
        /// Most exchanges in flight, over all workers, and most connections, idle
        /// ones included.
        max_in_flight: Bounded<u32, 1, 0xFFFF_FFFF> = Optional("no limit"),
    }
}

options! {
    /// Idle connections to keep for later exchanges.
    pub struct PoolTable as "a pool"
    for #[derive(Debug, Clone)] Pool {
        /// Most idle connections per endpoint and worker; 0 for none. For an endpoint with
        /// `max_in_flight` it counts over all workers, and idle and busy connections together
        /// never exceed `max_in_flight`.
        max_idle: Bounded<usize, 0, 1_000_000> = Default("1024"),
        /// How long an idle connection is kept. If an endpoint says `Keep-Alive: timeout=N`,
        /// the connection is closed after N - 1 seconds, if that is sooner.
        idle_timeout: Timeout = Default("'60s'"),
        /// Whether to close a client's connection without an answer, so that the client repeats
        /// its request. It applies if the endpoint closed an idle connection just as the
        /// request was sent, and the request can't be repeated here (a POST, or a body that is
        /// gone). Only a connection that has carried a request before is closed; otherwise the
        /// answer is 502.
        close_on_stale: bool = Default("true"),
    }
}

options! {
    /// Limits on how long an attempt may take.
    pub struct UpstreamTimeoutsTable as "the timeouts of an upstream"
    for #[derive(Debug, Clone)] UpstreamTimeouts {
        /// Longest time to establish a connection, with its TLS handshake. After it another
        /// endpoint is tried; if none is left, the answer is 504.
        connect: Timeout = Default("'1s'"),
        /// Longest time from the last byte of the request to the first byte of the response.
        /// Beyond it the answer is 504. Each interim response (1xx) restarts it.
        first_byte: Timeout = Default("'60s'"),
        /// Longest silence within a response, or within a tunnel after a change of protocols (a
        /// WebSocket).
        idle: Timeout = Default("'60s'"),
        /// Longest silence of a TCP connection, in both directions.
        tcp_idle: Timeout = Default("'10m'"),
        /// Of a TCP connection: how long its client or its endpoint may acknowledge nothing, or
        /// take none of the bytes that wait for it (`TCP_USER_TIMEOUT`). The kernel asks a
        /// silent peer (`SO_KEEPALIVE`) before half of that time is over. A shorter time finds
        /// dead peers earlier, but cuts off peers that pause.
        dead_peer: Timeout = Default("'10m'"),
        /// Longest time of the whole exchange, retries included. Over TCP that is the whole
        /// connection.
        total: Timeout = Optional("no limit"),
    }
}

options! {
    /// Timeouts of a route, each instead of its upstream's.
    pub struct RouteTimeoutsTable as "the timeouts of a route"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] RouteTimeouts {
        /// Longest time from the last byte of the request to the first byte of the response.
        first_byte: Timeout = Optional("that of the upstream"),
        /// Longest silence within a response, or within a tunnel after a change of protocols (a
        /// WebSocket).
        idle: Timeout = Optional("that of the upstream"),
        /// Longest time of the whole exchange, retries included.
        total: Timeout = Optional("that of the upstream"),
    }
}

options! {
    /// Limits on the interim responses (1xx) that come before a response.
    pub struct InterimTable as "the bounds on interim responses"
    for #[derive(Debug, Clone, Copy)] Interim {
        /// Most interim responses.
        count: Bounded<u32, 1, 1_000_000> = Default("1000"),
        /// Most bytes of interim responses in all.
        bytes: Size = Default("'256KiB'"),
    }
}

/// Most exchanges in a lane.
pub type Width = Bounded<u32, 1, 0xFFFF_FFFF>;

/// The key of a balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The part of the request that makes the key.
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
                        .help("write a table with the header, as in { header = \"X-User\" }")
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
    /// Whether the balancer refuses rather than lets requests wait.
    pub(crate) fn is_peak(&self) -> bool {
        let mode = self
            .fair
            .value
            .as_ref()
            .and_then(|fair| fair.weight_mode.value);
        mode == Some(WeightMode::Peak)
    }
}

fn key_default(upstream: &Node) -> Option<String> {
    let balance: Option<Balance> = sibling(upstream, "balance");
    balance
        .is_some_and(Balance::takes_key)
        .then(|| "'uri'".into())
}

fn queue_default(upstream: &Node) -> Option<String> {
    let fair = upstream.entry("fair");
    let default = if fair.is_some_and(|it| is_peak(&it.node)) {
        "{ max = 0, hold = false }"
    } else {
        "{}"
    };
    Some(default.into())
}

fn is_peak(fair: &Node) -> bool {
    sibling(fair, "weight_mode") == Some(WeightMode::Peak)
}

/// Buffers pay off where slots are limited.
fn buffer_default(upstream: &Node) -> Option<String> {
    let endpoints = upstream.entry("endpoints").map(|it| &it.node.value);
    let has_limit = match endpoints {
        Some(Value::List(items)) => items.iter().any(|it| it.entry("max_in_flight").is_some()),
        _ => false,
    };
    Some(if has_limit { "{}" } else { "false" }.into())
}

fn tier_default(endpoint: &Node) -> Option<String> {
    let is_backup = sibling(endpoint, "backup") == Some(true);
    Some(if is_backup { "1" } else { "0" }.into())
}

fn fair_status_default(fair: &Node) -> Option<String> {
    is_peak(fair).then(|| "502".into())
}

fn target_default(queue: &Node) -> Option<String> {
    let discipline = sibling(queue, "discipline").unwrap_or(Discipline::Fifo);
    (discipline != Discipline::Fifo).then(|| "'100ms'".into())
}

/// The check of a probe without a written protocol.
fn protocol_default(health: &Node) -> Option<String> {
    let has_path = health.entry("path").is_some();
    Some(if has_path { "'http'" } else { "'tcp'" }.into())
}

fn asks_by_http(health: &Node) -> bool {
    match health.entry("protocol") {
        Some(_) => sibling(health, "protocol") == Some(ProbeProtocol::Http),
        None => health.entry("path").is_some(),
    }
}

fn path_default(health: &Node) -> Option<String> {
    asks_by_http(health).then(|| "'/'".into())
}

fn method_default(health: &Node) -> Option<String> {
    asks_by_http(health).then(|| "'GET'".into())
}

fn expect_default(health: &Node) -> Option<String> {
    asks_by_http(health).then(|| "'200-399'".into())
}

fn user_default(health: &Node) -> Option<String> {
    let protocol = sibling(health, "protocol")?;
    let logs_in = matches!(protocol, ProbeProtocol::Postgres | ProbeProtocol::Mysql);
    logs_in.then(|| "'evenkeel'".into())
}

fn probe_timeout_default(health: &Node) -> Option<String> {
    let is_shorter = |it: Timeout| it.0 < std::time::Duration::from_secs(1);
    let shorter = sibling(health, "interval").is_some_and(is_shorter);
    let interval = health.text_of("interval").filter(|_| shorter);
    Some(format!("'{}'", interval.unwrap_or("1s")))
}

/// Buffers that keep slow clients from holding slots.
pub type BufferSwitch = Switch<BufferTable>;

short_for!(
    /// An endpoint of an upstream.
    ShortEndpoint, EndpointTable, "address", EndpointAddress
);

options! {
    /// The answer when the queue is full or the wait too long.
    pub struct QueueAnswerTable as "the answer of a queue"
    for #[derive(Debug, Clone, PartialEq, Eq)] QueueAnswer with QueueAnswerParts {
        /// Value of `Retry-After`, in seconds.
        retry_after_s: u32,
        /// Type and bytes of the body; `None` for the short text with the reason.
        body: Option<(String, Vec<u8>)>,
    } {
        /// Status code.
        status: Bounded<u16, 400, 599> = Default("503"),
        /// Value of `Retry-After`, in whole seconds.
        retry_after: DurationValue = Default("'1s'") => by_hand,
        /// The file with the body, at most 1 MiB: an absolute path, or one from the folder of
        /// the configuration file. The file is read when the configuration is loaded.
        file: FilePath = Optional("a short text that says why") => by_hand,
        /// Value of `Content-Type`.
        content_type: FieldValue = Depends(content_type_default, "by the file's extension") => by_hand,
    }
}

pub(super) fn content_type_default(answer: &Node) -> Option<String> {
    let file = answer.text_of("file")?;
    Some(format!("'{}'", crate::value::content_type_of(file)))
}
