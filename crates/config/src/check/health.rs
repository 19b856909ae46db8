//! The checks of health checks.

use std::net::IpAddr;
use std::time::Duration;

use evenkeel_proto::probe::MAX_LOOKED_AT;

use super::super::diagnostics::Report;
use super::super::setting::Field;
use super::super::shape::alternatives;
use super::super::tree::SourcePlace;
use super::super::value::Text;
use super::super::written::HealthTable;
use crate::ProbeProtocol::{self, Grpc, Http, Mysql, Postgres, Tcp, Tls};

/// Probes that follow each other faster than this would be a load.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Reports contradictions and doubts in a health check.
pub(super) fn check(health: &HealthTable, report: &mut Report) {
    // A key that is lacking may stand where the syntax is broken.
    if !report.is_syntax_broken() {
        check_keys(health, report);
        check_bytes(health, report);
    }
    check_request(health, report);
    check_server_name(health, report);
    check_probe_times(health, report);
}

/// A key that only some protocols have.
struct Key<'a> {
    name: &'static str,
    written: bool,
    place: &'a SourcePlace,
    of: &'static [ProbeProtocol],
}

impl<'a> Key<'a> {
    fn new<T>(name: &'static str, field: &'a Field<T>, of: &'static [ProbeProtocol]) -> Self {
        Key {
            name,
            written: field.written,
            place: &field.place,
            of,
        }
    }
}

/// Every key must be one of the protocol.
fn check_keys(health: &HealthTable, report: &mut Report) {
    let Some(protocol) = health.protocol.value else {
        return;
    };
    let keys = [
        Key::new("path", &health.path, &[Http]),
        Key::new("method", &health.method, &[Http]),
        Key::new("host", &health.host, &[Http, Grpc, Tls]),
        Key::new("service", &health.service, &[Grpc]),
        Key::new("headers", &health.headers, &[Http]),
        Key::new("expect", &health.expect, &[Http]),
        Key::new("body", &health.body, &[Http]),
        Key::new("send", &health.send, &[Tcp]),
        Key::new("send_hex", &health.send_hex, &[Tcp]),
        Key::new("receive", &health.receive, &[Tcp]),
        Key::new("receive_hex", &health.receive_hex, &[Tcp]),
        Key::new("user", &health.user, &[Postgres, Mysql]),
    ];
    for key in keys.iter().filter(|it| it.written) {
        if !key.of.contains(&protocol) {
            report_key(key, protocol, health, report);
        }
    }
}

/// Reports a key that the protocol does not have.
fn report_key(key: &Key<'_>, protocol: ProbeProtocol, health: &HealthTable, report: &mut Report) {
    let name = key.name;
    let of: Vec<_> = key
        .of
        .iter()
        .map(|it| format!("protocol = \"{}\"", word(*it)))
        .collect();
    let of = alternatives(&of);
    if health.protocol.written {
        let what = format!(
            "`{name}` does not apply to `protocol = \"{}\"`",
            word(protocol)
        );
        let found = report.mistake(key.place, what);
        found.related(&health.protocol.place, "written here");
        found.help(format!("leave it out, or write {of}"));
    } else if health.path.written && key.of == [Tcp] {
        let what = format!("`{name}` and `path` cannot be combined");
        let found = report.mistake(key.place, what);
        found.related(&health.path.place, "the other is here");
        found.help(
            "`path` makes an HTTP probe, `send` and `receive` make a TCP probe: leave out one of \
             them",
        );
    } else if key.of == [Grpc] {
        let found = report.mistake(key.place, format!("`{name}` needs `protocol = \"grpc\"`"));
        found.help("add protocol = \"grpc\", or leave it out");
    } else if key.of == [Postgres, Mysql] {
        let found = report.mistake(key.place, format!("`{name}` without `protocol`"));
        found.help(format!("add the protocol to log in by: {of}"));
    } else if name == "expect" && (health.send.written || health.send_hex.written) {
        let found = report.mistake(key.place, "`expect` is for HTTP statuses");
        found.help("write what the answer must contain as `receive`");
    } else {
        let found = report.mistake(key.place, format!("`{name}` without `path`"));
        found.help(
            "without a path a probe only opens a connection; add one, such as path = \"/healthz\"",
        );
    }
}

fn word(protocol: ProbeProtocol) -> &'static str {
    match protocol {
        ProbeProtocol::Tcp => "tcp",
        ProbeProtocol::Http => "http",
        ProbeProtocol::Grpc => "grpc",
        ProbeProtocol::Postgres => "postgres",
        ProbeProtocol::Mysql => "mysql",
        ProbeProtocol::Redis => "redis",
        ProbeProtocol::Smtp => "smtp",
        ProbeProtocol::Tls => "tls",
    }
}

/// Bytes to send and to receive may each be written only once, and not be empty.
fn check_bytes(health: &HealthTable, report: &mut Report) {
    let HealthTable {
        send,
        send_hex,
        receive,
        receive_hex,
        ..
    } = health;
    for (name, text, hex) in [("send", send, send_hex), ("receive", receive, receive_hex)] {
        if text.written && hex.written {
            let what = format!("`{name}` and `{name}_hex` cannot be combined");
            let found = report.mistake(&hex.place, what);
            found.related(&text.place, "the other is here");
            found.help("leave out one of them");
        }
        if let Some(Text(text)) = text.value.as_ref().filter(|_| text.written)
            && (text.contains("\\r") || text.contains("\\n"))
        {
            let place = if name == "send" {
                &send.place
            } else {
                &receive.place
            };
            let found = report.warning(place, "this text contains a backslash, but no line break");
            found.help("escapes work only in double quotes: \"PING\\r\\n\"");
        }
    }
    let is_for_tcp = health.protocol.value == Some(Tcp);
    let sends = [
        send.written.then_some(&send.place),
        send_hex.written.then_some(&send_hex.place),
    ];
    if let Some(place) = sends.into_iter().flatten().next()
        && is_for_tcp
        && !receive.written
        && !receive_hex.written
    {
        report
            .mistake(place, "the answer to this is not checked")
            .help("add what the answer must contain, such as receive = \"+PONG\"");
    }
    for (len, field_place, name) in lengths(health) {
        match (len, name) {
            (0, "send") => {
                let found =
                    report.mistake(field_place, "`send` is empty, so nothing would be sent");
                found.help("if the server speaks first, write only `receive`");
            }
            (0, _) => {
                let found = report.mistake(field_place, "every answer contains an empty text");
                found.help("write what the answer must contain");
            }
            (len, "receive") if len > MAX_LOOKED_AT => {
                let what = format!("only the first {MAX_LOOKED_AT} bytes of an answer are checked");
                report
                    .mistake(field_place, what)
                    .label(format!("this has {len} bytes"));
            }
            _ => {}
        }
    }
}

/// The length of each value in bytes, with its place and its purpose.
fn lengths(health: &HealthTable) -> Vec<(usize, &SourcePlace, &'static str)> {
    let text = |field: &Field<Text>| field.value.as_ref().map(|it| it.0.len());
    let mut lengths = Vec::new();
    let mut add =
        |len: Option<usize>, place, name| lengths.extend(len.map(|len| (len, place, name)));
    add(text(&health.send), &health.send.place, "send");
    add(text(&health.receive), &health.receive.place, "receive");
    let hex = health.send_hex.value.as_ref();
    add(hex.map(|it| it.0.len()), &health.send_hex.place, "send");
    let hex = health.receive_hex.value.as_ref();
    add(
        hex.map(|it| it.0.len()),
        &health.receive_hex.place,
        "receive",
    );
    lengths
}

/// A probe by HTTP needs an answer that can pass.
fn check_request(health: &HealthTable, report: &mut Report) {
    let method = health.method.value.as_ref();
    if method.is_some_and(|it| it.0 == "HEAD") && health.body.written {
        report
            .mistake(&health.body.place, "an answer to HEAD has no body")
            .related(&health.method.place, "HEAD is chosen here");
    }
    if let Some(Text(body)) = &health.body.value
        && body.is_empty()
    {
        report
            .mistake(&health.body.place, "every body contains an empty text")
            .help("leave out `body`");
    }
}

/// The server name of TLS is a name of DNS (RFC 6066 §3).
fn check_server_name(health: &HealthTable, report: &mut Report) {
    let Some(host) = health
        .host
        .value
        .as_ref()
        .filter(|_| health.protocol.value == Some(Tls))
    else {
        return;
    };
    let host = &host.0;
    let is_of_name = |it: u8| it.is_ascii_alphanumeric() || b"-_.".contains(&it);
    let is_name =
        host.len() <= 253 && host.bytes().all(is_of_name) && host.parse::<IpAddr>().is_err();
    if !is_name {
        report
            .mistake(
                &health.host.place,
                format!("`{host}` is not a valid server name for TLS"),
            )
            .help("write a name without a port, such as host = \"db.example.com\"");
    }
}

fn check_probe_times(health: &HealthTable, report: &mut Report) {
    let (Some(interval), Some(timeout)) = (health.interval.value, health.timeout.value) else {
        return;
    };
    if interval.0 < SHORTEST_INTERVAL {
        report
            .mistake(
                &health.interval.place,
                "probes this frequent would load the endpoints",
            )
            .help("write 10ms or more");
    } else if timeout.0 > interval.0 {
        let found = report.mistake(
            &health.timeout.place,
            "the timeout of a probe is longer than the interval",
        );
        found.help(format!(
            "write {:?} or less, or a longer `interval`",
            interval.0
        ));
        if health.interval.written {
            found.related(&health.interval.place, "the interval is here");
        }
    }
}
