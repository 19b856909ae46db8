//! Listeners: the addresses at which clients connect.

use super::OwnAccessLog;
use super::forms::short_for;
use super::tls::{ListenerTls, ListenerTlsTable};
use crate::quantity::{Length, Part, Size, Timeout};
use crate::setting::{Bounded, OneOrMore, Placed, options};
use crate::tree::{Node, Value};
use crate::value::{Bind, Name, Peer};
use crate::{Adopt, ClientProtocol, HalfClose, Identity, Peers, Preread, ProxySenders, Redirect};
use evenkeel_net::listen::Accepting;

options! {
    /// An address at which clients connect.
    pub struct ListenerTable as "a listener"
    for #[derive(Debug, Clone)] Listener with ListenerParts {
        /// The name that logs, counters and routes use.
        name: String,
        /// How the kernel accepts connections.
        accepting: Accepting,
        /// The proxies that begin each connection with a header of the PROXY protocol.
        proxy_protocol: ProxySenders,
        /// The proxies that are trusted to name the client.
        trusted_proxies: Peers,
        /// How its requests get their ids and traces.
        identity: Identity,
        /// The bytes to read from a TCP connection before its route is chosen.
        preread: Preread,
        /// TLS with its clients; `None` for plain text.
        tls: Option<ListenerTls>,
        /// The target to redirect requests to that did not come by HTTPS; `None` for no
        /// redirect.
        redirect_to_https: Option<Redirect>,
    } {
        /// The name that logs, counters and routes use.
        name: Name = Optional("`listener-N`, counted from 1") => by_hand,
        /// The address to listen on. Without an address in front of the port, it is every IPv4
        /// address; `[::]` is for IPv6.
        bind: Bind = Required,
        /// The protocol of its clients.
        protocol: ClientProtocol = Default("'http'"),
        /// TLS with its clients: the certificates, and the versions and suites.
        tls: ListenerTlsTable = Optional("plain text") => by_hand,
        /// Whether clients with TLS may speak HTTP/2, beside HTTP/1.1. The handshake chooses
        /// (ALPN).
        http2: bool = Depends(http2_default, "`true` with `tls`"),
        /// Whether clients without TLS may speak HTTP/2, beside HTTP/1, if they begin with its
        /// preface (prior knowledge). The upgrade from HTTP/1 is not offered.
        h2c: bool = Default("false"),
        /// Whether to redirect every request to `https://` (308) before routes are looked at,
        /// to the port of a listener with `tls`. Requests that a trusted proxy got by HTTPS are
        /// served. So are requests below `/.well-known/acme-challenge/` that have a route.
        /// Challenges of orders by `acme` are answered before the redirect.
        redirect_to_https: bool = Default("false") => by_hand,
        /// Length of the kernel's queue of connections that are not yet accepted. The kernel
        /// may cap it lower.
        backlog: Bounded<u32, 1, 1_000_000> = Default("4096") => by_hand,
        /// Whether the kernel holds back a new connection until its client has sent something,
        /// for at most a second (`TCP_DEFER_ACCEPT`). That saves one wake-up for each
        /// connection. A silent client does not count as an open connection in that time, and
        /// is reset if the program stops. With `protocol = "tcp"` the server may be the side
        /// that sends first.
        defer_accept: bool = Depends(defer_accept_default, "`true`; `false` with `protocol = \"tcp\"`") => by_hand,
        /// Proxies in front that name their client in a header of the PROXY protocol, version 1
        /// or 2. That client is then the client everywhere: in conditions, keys, logs and
        /// `X-Forwarded-For`.
        proxy_protocol: ProxyProtocol = Optional("no peer may send the header") => by_hand,
        /// Proxies that are trusted to name the client: addresses, networks, and
        /// `"unix"` for every peer on a Unix socket. In a request from one of them,
        /// `X-Forwarded-For` (else `Forwarded`) is read from the right up to the first address
        /// that is not trusted. That address is the client for routes, keys, logs and
        /// endpoints. `X-Forwarded-Proto`, `-Host` and `-Port` are believed too: the proxy must
        /// set or drop each of them. In requests from other peers, these fields are replaced,
        /// and `X-Real-IP`, `X-Forwarded-Prefix`, `True-Client-IP` and similar ones are left
        /// out.
        trusted_proxies: Vec<Placed<Peer>> = Optional("as in `server`") => by_hand,
        /// Limits on what a client may send.
        limits: LimitsTable = Default("{}"),
        /// Limits on how long a client may take.
        timeouts: ClientTimeoutsTable = Default("{}"),
        /// How far to read the body of a request after its answer, so that the connection can
        /// carry the next request.
        drain: DrainTable = Default("{}"),
        /// How to treat a client that closes its sending side (a FIN) before its answer. A
        /// client that has left gives its slot back at once.
        half_close: HalfClose = Default("'auto'"),
        /// How `X-Request-ID` is kept or created: a word, or a table.
        request_id: RequestId = Default("'off'") => by_hand,
        /// How `traceparent` (W3C Trace Context) is kept or created: a word, or a table.
        trace: Trace = Default("'off'") => by_hand,
        /// The access log of this listener: a table, `true` for one with the global settings or
        /// the defaults, `false` for no log.
        access_log: OwnAccessLog = Optional("as in the global `access_log`") => by_hand,
    }
}

options! {
    /// Proxies in front that send the PROXY protocol.
    pub struct ProxyProtocol as "the PROXY protocol of a listener" {
        /// The addresses and networks of these proxies; `"unix"` is every peer on a Unix
        /// socket. Each of their connections must begin with the header, within
        /// `timeouts.head`. Otherwise it is answered 400 or 408, and closed. Connections from
        /// other addresses are served without a header.
        from: OneOrMore<Placed<Peer>> = Required,
        /// Whether their connections may also begin without the header, while proxies are being
        /// changed over to it. A client that can connect from one of these addresses may then
        /// send a header of its own. A malformed header is refused in any case.
        optional: bool = Default("false"),
    }
}

options! {
    /// How a listener treats `X-Request-ID`.
    pub struct RequestIdTable as "the request ids of a listener" {
        /// Whether a request keeps the id that it came with.
        mode: Adopt = Default("'keep'"),
        /// Whether the response tells the client the id.
        respond: bool = Default("false"),
    }
}

options! {
    /// How a listener treats `traceparent`.
    pub struct TraceTable as "the traces of a listener" {
        /// Whether a request keeps the trace that it came with.
        mode: Adopt = Default("'keep'"),
        /// The part of the traces begun here that is sampled. The spans of the other traces are
        /// not recorded.
        sample: Part = Default("1"),
    }
}

options! {
    /// Limits on what a client may send.
    pub struct LimitsTable as "the limits of a listener"
    for #[derive(Debug, Clone)] Limits {
        /// Most bytes of request line and header fields together, at most 128 KiB. Above it the
        /// answer is 431.
        head as head_bytes: Size<usize> = Default("'32KiB'"),
        /// Most bytes of the target of a request (path and query). Above it the answer is 414.
        target as target_bytes: Size<usize> = Default("'8KiB'"),
        /// Most bytes of the body of a request. Above it the answer is 413.
        body as body_bytes: Size = Optional("no limit"),
        /// Most connections at once, over all workers. For a further client, a connection
        /// without a request is closed; if there is none, the answer is 503.
        connections: Bounded<u32, 1, 0xFFFF_FFFF> = Optional("no limit"),
        /// Most connections at once from one client's address, or from one IPv6 network of 64
        /// bits. A further connection is answered 503. Connections of `trusted_proxies` and of
        /// `proxy_protocol` do not count.
        connections_per_client: Bounded<u32, 1, 1_000_000> = Optional("no limit"),
    }
}

options! {
    /// Limits on how long a client may take.
    pub struct ClientTimeoutsTable as "the timeouts of a listener"
    for #[derive(Debug, Clone)] ClientTimeouts {
        /// Longest TLS handshake, from its first byte to its end. Beyond it the connection is
        /// closed. The first byte may take as long again.
        handshake: Timeout = Default("'10s'"),
        /// Longest time from the first byte of a request's head to its last. Beyond it the
        /// answer is 408.
        head: Timeout = Default("'10s'"),
        /// Longest silence within the body of a request; beyond it the answer is 408. Also the
        /// longest time in which a client takes nothing of its response.
        body: Timeout = Default("'30s'"),
        /// Longest time that a connection waits for its next request.
        idle: Timeout = Default("'60s'"),
        /// Longest time that a TCP connection has for the bytes that its route depends on. A
        /// connection that has sent nothing by then takes a route that does not ask for them. A
        /// connection that has sent only a part is closed.
        first_bytes: Timeout = Default("'3s'"),
    }
}

fn is_tcp(listener: &Node) -> bool {
    let protocol = listener.entry("protocol").map(|it| &it.node.value);
    matches!(protocol, Some(Value::Text(word)) if word == "tcp")
}

fn defer_accept_default(listener: &Node) -> Option<String> {
    Some((!is_tcp(listener)).to_string())
}

fn http2_default(listener: &Node) -> Option<String> {
    let has_tls = listener.entry("tls").is_some();
    Some((has_tls && !is_tcp(listener)).to_string())
}

options! {
    /// How far to read the body of a request after its answer. An endpoint or the proxy may
    /// answer before the whole body has come. Beyond one of these limits the connection is
    /// closed.
    pub struct DrainTable as "the drain of a listener"
    for #[derive(Debug, Clone, Copy)] Drain {
        /// Longest silence of the client.
        silence: Timeout = Default("'5s'"),
        /// Longest time in all.
        total: Timeout = Default("'30s'"),
        /// Most bytes to read. If `Content-Length` announces more, or this is 0, the answer
        /// says that the connection is closed.
        bytes: Length = Default("'16MiB'"),
    }
}

short_for!(
    /// How a listener treats `X-Request-ID`: a word, or a table.
    RequestId, RequestIdTable, "mode", Adopt
);

short_for!(
    /// How a listener treats `traceparent`: a word, or a table.
    Trace, TraceTable, "mode", Adopt
);

impl ListenerTable {
    /// The listener's name as written, or one made from its index.
    pub(crate) fn name_at(&self, index: usize) -> String {
        match &self.name.value {
            Some(name) => name.0.clone(),
            None => format!("listener-{}", index + 1),
        }
    }
}
