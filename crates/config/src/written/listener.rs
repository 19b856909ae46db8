//! Listeners: where clients connect.

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
    /// Where clients connect.
    pub struct ListenerTable as "a listener"
    for #[derive(Debug, Clone)] Listener with ListenerParts {
        /// The name that logs, counters and routes use.
        name: String,
        /// How the kernel takes connections in.
        accepting: Accepting,
        /// Who begins each connection with a header of the PROXY protocol.
        proxy_protocol: ProxySenders,
        /// Whose word on the client is believed.
        trusted_proxies: Peers,
        /// What its requests are called.
        identity: Identity,
        /// What has to be read of a connection of TCP before its route is chosen.
        preread: Preread,
        /// TLS with its clients; `None` for plain text.
        tls: Option<ListenerTls>,
        /// Where every request is redirected that did not come by HTTPS; `None` for
        /// nowhere.
        redirect_to_https: Option<Redirect>,
    } {
        /// The name that logs, counters and routes use.
        name: Name = Optional("`listener-N`, counted from 1") => by_hand,
        /// Where it listens. Without an address in front of the port it
        /// listens on every IPv4 address; `[::]` is for IPv6.
        bind: Bind = Required,
        /// What its clients speak.
        protocol: ClientProtocol = Default("'http'"),
        /// TLS with its clients: where the certificates are.
        tls: ListenerTlsTable = Optional("plain text") => by_hand,
        /// Whether clients with TLS may speak HTTP/2, beside HTTP/1.1: the handshake says
        /// which (ALPN).
        http2: bool = Depends(http2_default, "`true` with `tls`"),
        /// Whether clients without TLS may speak HTTP/2, beside HTTP/1: those that begin with
        /// its preface (prior knowledge). An upgrade from HTTP/1 is not offered.
        h2c: bool = Default("false"),
        /// Whether every request is redirected to `https://` (308), before routes are
        /// looked at: to the port of a listener with `tls`. Requests that a trusted proxy
        /// got by HTTPS are served, and so are those below `/.well-known/acme-challenge/`
        /// that have a route. Challenges of orders by `acme` are answered before that.
        redirect_to_https: bool = Default("false") => by_hand,
        /// Length of the kernel's queue of connections not yet accepted; the
        /// kernel may cap it lower.
        backlog: Bounded<u32, 1, 1_000_000> = Default("4096") => by_hand,
        /// Whether the kernel keeps a connection to itself until its client
        /// has sent something, for a second at most (`TCP_DEFER_ACCEPT`): that
        /// saves one wake-up for each. A client that is silent is no open
        /// connection for so long, and is reset if the program stops
        /// meanwhile. Over TCP the server may be the one that begins.
        defer_accept: bool = Depends(defer_accept_default, "`true`; `false` with `protocol = \"tcp\"`") => by_hand,
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
        /// Whether their connections may begin without the header too, for the time in
        /// which proxies change over to it. A client that can connect from one of these
        /// addresses may then send a header of its own. A malformed header is refused as
        /// without this.
        optional: bool = Default("false"),
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
        /// Connections at once of one client's address, or of one network of 64 bits with
        /// IPv6; the answer is 503 to a further one. Those of `trusted_proxies` and of
        /// `proxy_protocol` are not counted.
        connections_per_client: Bounded<u32, 1, 1_000_000> = Optional("no limit"),
    }
}

options! {
    /// Bounds on how long a client may take.
    pub struct ClientTimeoutsTable as "the timeouts of a listener"
    for #[derive(Debug, Clone)] ClientTimeouts {
        /// From the first byte of a TLS handshake to its end; the connection is closed
        /// beyond it. As long as for its first byte.
        handshake: Timeout = Default("'10s'"),
        /// From the first byte of a request's head to its last; the answer is
        /// 408 beyond it.
        head: Timeout = Default("'10s'"),
        /// Longest silence within the body of a request (the answer is 408
        /// beyond it), and longest time during which a client takes nothing
        /// of its response.
        body: Timeout = Default("'30s'"),
        /// Longest time that a connection waits for its next request.
        idle: Timeout = Default("'60s'"),
        /// Longest time that a connection of TCP has for the bytes that its route
        /// depends on. One that has sent nothing by then takes a route that does not
        /// ask for them; one that has sent a part is closed.
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

short_for!(
    /// What becomes of `X-Request-ID`.
    RequestId, RequestIdTable, "mode", Adopt
);

short_for!(
    /// What becomes of `traceparent`.
    Trace, TraceTable, "mode", Adopt
);

impl ListenerTable {
    /// Its name, written or by its index.
    pub(crate) fn name_at(&self, index: usize) -> String {
        match &self.name.value {
            Some(name) => name.0.clone(),
            None => format!("listener-{}", index + 1),
        }
    }
}
