//! Spans as the JSON of OTLP (opentelemetry-proto, "JSON Protobuf Encoding"): ids in hexadecimal,
//! 64-bit integers as strings. Attributes have the names of the semantic conventions for HTTP;
//! our own begin with `evenkeel.`.

use std::time::Duration;

use evenkeel_proto::Version;
use evenkeel_proto::identity::hex;
use serde_json::{Value, json};

use super::Span;
use crate::config::Otlp;

/// The kind of a span that serves a request.
const SERVER: u8 = 2;
/// The status of a failed span.
const ERROR: u8 = 2;

/// A request to the collector.
pub(super) fn request(settings: &Otlp, spans: &[Span]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [
        text("service.name", &settings.service),
        text("service.version", version),
        number("process.pid", u64::from(std::process::id())),
    ];
    let spans: Vec<_> = spans.iter().map(span).collect();
    let request = json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{
            "scope": { "name": "evenkeel", "version": version },
            "spans": spans,
        }],
    }] });
    request.to_string().into_bytes()
}

fn span(span: &Span) -> Value {
    let started_ns = span.started_unix_us * 1_000;
    let ended_ns = started_ns + span.times.total.as_nanos() as u64;
    let method = if span.is_known_method {
        span.method.as_str()
    } else {
        "HTTP"
    };
    let name = match &span.route {
        Some(route) => format!("{method} {route}"),
        None => method.to_owned(),
    };
    let mut encoded = json!({
        "traceId": id::<32>(span.place.trace_id),
        "spanId": id::<16>(span.place.parent_id.into()),
        "flags": span.place.flags,
        "name": name,
        "kind": SERVER,
        "startTimeUnixNano": started_ns.to_string(),
        "endTimeUnixNano": ended_ns.to_string(),
        "attributes": attributes(span),
    });
    if let Some(parent) = span.parent_id {
        encoded["parentSpanId"] = id::<16>(parent.into());
    }
    if span.is_error {
        encoded["status"] = json!({ "code": ERROR, "message": span.end.text() });
    }
    encoded
}

fn id<const LEN: usize>(number: u128) -> Value {
    String::from_utf8_lossy(&hex::<LEN>(number)).into()
}

fn attributes(span: &Span) -> Vec<Value> {
    let version = match span.version {
        Version::Http2 => "2",
        version => version.as_str().trim_start_matches("HTTP/"),
    };
    // Without the query, which may have secrets.
    let mut all = vec![
        text("url.path", &span.path),
        text("url.scheme", span.scheme.as_str()),
        text("network.protocol.version", version),
        text("client.address", &span.client),
        text("evenkeel.listener", &span.listener),
        text("evenkeel.end", span.end.word()),
        number("evenkeel.attempts", span.attempts.into()),
    ];
    if span.is_known_method {
        all.push(text("http.request.method", &span.method))
    } else {
        all.extend([
            text("http.request.method", "_OTHER"),
            text("http.request.method_original", &span.method),
        ])
    }
    let after_host = span.host.rfind(']').unwrap_or(0);
    let (address, port) = match span.host[after_host..].rfind(':') {
        Some(colon) => {
            let (address, port) = span.host.split_at(after_host + colon);
            (address, port[1..].parse().ok())
        }
        None => (span.host.as_str(), None),
    };
    if !address.is_empty() {
        all.push(text("server.address", address));
    }
    all.extend(port.map(|port: u16| number("server.port", port.into())));
    if span.status > 0 {
        all.push(number("http.response.status_code", span.status.into()));
    }
    if span.is_error {
        all.push(match span.end.status() {
            // An error response of the endpoint.
            200 => text("error.type", &span.status.to_string()),
            _ => text("error.type", span.end.word()),
        });
    }
    let optional = [
        ("user_agent.original", &span.user_agent),
        ("evenkeel.request_id", &span.request_id),
        ("evenkeel.route", &span.route),
        ("evenkeel.upstream", &span.upstream),
        ("evenkeel.endpoint", &span.endpoint),
    ];
    let present = optional.into_iter();
    all.extend(present.filter_map(|(key, value)| Some(text(key, value.as_ref()?))));
    all.extend(span.reason.map(|it| text("evenkeel.reason", it.word())));
    let times = [
        ("evenkeel.queue_us", span.times.queue),
        ("evenkeel.connect_us", span.times.connect),
        ("evenkeel.first_byte_us", span.times.first_byte),
    ];
    all.extend(
        times
            .into_iter()
            .filter_map(|(key, time)| Some(micros(key, time?))),
    );
    all
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

fn micros(key: &str, time: Duration) -> Value {
    number(key, time.as_micros() as u64)
}
