//! Settings that are one of a few words.

use super::{choice, read_word};
use crate::diagnostics::Report;
use crate::setting::Setting;
use crate::shape::{Choice, Shape};
use crate::tree::Node;
use crate::{
    Adopt, BalanceKey, Challenge, ClientAuthMode, ClientProtocol, CodedRequests, EndpointProtocol,
    EventFormat, Family, HalfClose, Level, ProbeProtocol, ResolveTo, UntilIssued,
};
use evenkeel_policy::balance::{Balance, WeightMode};
use evenkeel_policy::health::Initial;
use evenkeel_policy::queue::Discipline;
use evenkeel_proto::Scheme;
use evenkeel_proto::proxy_protocol::Version as HeaderVersion;
use evenkeel_tls::{Preset, UnknownName};

impl Setting for Balance {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        read_word(node, report, Balance::from_word)
    }

    fn shape() -> Shape {
        let choice = |it: &Balance| Choice {
            word: it.word(),
            help: it.help(),
        };
        Shape::Choice(Balance::ALL.iter().map(choice).collect())
    }
}

choice!(WeightMode {
    "default" => WeightMode::Default, "the endpoint's share of the traffic while none is idle";
    "idle" => WeightMode::Idle, "the number of exchanges below which the endpoint counts as idle";
    "peak" => WeightMode::Peak, "the most exchanges that the endpoint takes; when all endpoints \
        are full, requests are refused";
});

choice!(BalanceKey {
    "uri" => BalanceKey::Uri, "the path and the query of the request";
    "client" => BalanceKey::Client, "the address of the client";
});

choice!(Discipline {
    "fifo" => Discipline::Fifo, "the oldest request first";
    "adaptive-lifo" => Discipline::AdaptiveLifo, "the oldest request first; the newest first \
        while waits exceed the target";
    "codel" => Discipline::Codel, "the oldest request first; while waits exceed the target, \
        requests that waited longer than the target are refused at once";
});

choice!(ResolveTo {
    "each" => ResolveTo::Each, "each of its addresses is an endpoint, named by the address; \
        `localhost` is a single endpoint";
    "one" => ResolveTo::One, "one endpoint, at the first of its addresses";
});

choice!(Family {
    "4" => Family::Ipv4, "IPv4 addresses";
    "6" => Family::Ipv6, "IPv6 addresses";
    "both" => Family::Both, "both";
});

choice!(Initial {
    "down" => Initial::Down, "it gets no requests until the first probe, which decides alone, \
        whatever `rise` and `fall` are";
    "up" => Initial::Up, "it gets requests; the first probe counts like any other";
});

choice!(ProbeProtocol {
    "tcp" => ProbeProtocol::Tcp, "a connection that opens, or `send` and `receive`";
    "http" => ProbeProtocol::Http, "a request with `path`";
    "grpc" => ProbeProtocol::Grpc, "a call of `grpc.health.v1.Health/Check`, over HTTP/2; `SERVING` passes";
    "postgres" => ProbeProtocol::Postgres, "a login to PostgreSQL; a server that asks for a password passes, one that is starting up or full fails";
    "mysql" => ProbeProtocol::Mysql, "a login to MySQL or MariaDB; a server that refuses the login passes, one that is full or has blocked the host fails";
    "redis" => ProbeProtocol::Redis, "`PING`; a server that wants a password passes, one that is loading its data or has lost its master fails";
    "smtp" => ProbeProtocol::Smtp, "the greeting, `EHLO` and `QUIT`; a reply of 4xx or 5xx fails";
    "tls" => ProbeProtocol::Tls, "a ClientHello; a ServerHello passes, an alert fails";
});

choice!(Adopt {
    "off" => Adopt::Off, "the client's is passed on like any header, and otherwise ignored";
    "keep" => Adopt::Keep, "the client's if it is well-formed, else a new one";
    "new" => Adopt::New, "always a new one; the client's is not passed on";
});

choice!(ClientProtocol {
    "http" => ClientProtocol::Http, "HTTP/1.0, 1.1 and HTTP/2";
    "tcp" => ClientProtocol::Tcp, "any protocol: a route is chosen for each connection, and its \
        bytes are copied both ways";
});

choice!(EndpointProtocol {
    "http/1.1" => EndpointProtocol::Http1, "HTTP/1.1";
    "h2" => EndpointProtocol::Http2, "HTTP/2: over TLS by ALPN, without TLS by prior knowledge (h2c)";
    "auto" => EndpointProtocol::Either, "HTTP/2 where the endpoint chooses it by ALPN, else HTTP/1.1; for endpoints with TLS";
});

/// A status of gRPC that a call is tried again for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcCode(pub u32);

choice!(GrpcCode {
    "CANCELLED" => GrpcCode(1), "the caller cancelled";
    "UNKNOWN" => GrpcCode(2), "unknown error; many servers send it when their code fails";
    "INVALID_ARGUMENT" => GrpcCode(3), "the request is invalid";
    "DEADLINE_EXCEEDED" => GrpcCode(4), "the call took too long";
    "NOT_FOUND" => GrpcCode(5), "the requested entity does not exist";
    "ALREADY_EXISTS" => GrpcCode(6), "the entity to create already exists";
    "PERMISSION_DENIED" => GrpcCode(7), "the caller is not allowed to";
    "RESOURCE_EXHAUSTED" => GrpcCode(8), "a resource is exhausted";
    "FAILED_PRECONDITION" => GrpcCode(9), "the system is not in the required state";
    "ABORTED" => GrpcCode(10), "the call conflicted with another one";
    "OUT_OF_RANGE" => GrpcCode(11), "the call went past the valid range";
    "UNIMPLEMENTED" => GrpcCode(12), "the server does not have this method";
    "INTERNAL" => GrpcCode(13), "an internal error";
    "UNAVAILABLE" => GrpcCode(14), "the server is currently unavailable";
    "DATA_LOSS" => GrpcCode(15), "data is lost";
    "UNAUTHENTICATED" => GrpcCode(16), "the caller is not authenticated";
});

choice!(UnknownName {
    "default" => UnknownName::Default, "the first certificate";
    "refuse" => UnknownName::Refuse, "the connection is refused with the alert `unrecognized_name`";
});

choice!(ClientAuthMode {
    "required" => ClientAuthMode::Required, "a client without a certificate is refused";
    "optional" => ClientAuthMode::Optional, "a client may have none; a route can require one with \
        `client_certificate`";
});

choice!(CodedRequests {
    "pass" => CodedRequests::Pass, "they are passed on";
    "refuse" => CodedRequests::Refuse, "they are refused (415), for upstreams that take only \
        uncompressed bodies";
});

choice!(Challenge {
    "http-01" => Challenge::Http01, "by plain HTTP on port 80";
    "tls-alpn-01" => Challenge::TlsAlpn01, "by a TLS handshake on port 443";
    "dns-01" => Challenge::Dns01, "by a DNS record: see `dns`";
});

choice!(UntilIssued {
    "refuse" => UntilIssued::Refuse, "the connection is refused with the alert `unrecognized_name`";
    "self-signed" => UntilIssued::SelfSigned, "a self-signed certificate";
});

choice!(Preset {
    "modern" => Preset::Modern, "TLS 1.3 alone";
    "intermediate" => Preset::Intermediate, "TLS 1.3, and 1.2 with forward secrecy: all current \
        clients support it";
});

choice!(HalfClose {
    "auto" => HalfClose::Auto, "an HTTP/1.1 client that keeps its connection has left; with HTTP/1.0 or `Connection: close` it has left if it closes later than 100 ms after its request, else it is served";
    "serve" => HalfClose::Serve, "it is served; if it has left, it holds its slot until its \
        answer comes";
    "abort" => HalfClose::Abort, "it has left";
});

choice!(HeaderVersion {
    "v1" => HeaderVersion::V1, "a line of text with the addresses";
    "v2" => HeaderVersion::V2, "binary; also carries the host of the first request (authority), \
        its id if it has one (unique id), and a checksum (CRC32C)";
});

choice!(Scheme {
    "http" => Scheme::Http, "a plain connection";
    "https" => Scheme::Https, "TLS that a trusted proxy terminated";
});

/// A family of fields that tell of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarding {
    XForwarded,
    Forwarded,
    XRealIp,
}

choice!(Forwarding {
    "x-forwarded" => Forwarding::XForwarded, "`X-Forwarded-For`, `-Proto` and `-Host`, and `-Port` where a trusted proxy sent it";
    "forwarded" => Forwarding::Forwarded, "`Forwarded` (RFC 7239)";
    "x-real-ip" => Forwarding::XRealIp, "`X-Real-IP`";
});

choice!(Level {
    "error" => Level::Error, "failures that stop the program from working";
    "warn" => Level::Warn, "problems that an operator should look at";
    "info" => Level::Info, "changes of state";
    "debug" => Level::Debug, "single probes and the like";
    "trace" => Level::Trace, "details from libraries";
});

choice!(EventFormat {
    "text" => EventFormat::Text, "a line for people, on standard error";
    "json" => EventFormat::Json, "one JSON object a line, on standard error";
    "journald" => EventFormat::Journald, "entries of the systemd journal, with priority and fields";
});
