//! The values of variables.

use std::time::Duration;

use evenkeel_policy::route::condition::{cookies, parameters};
use evenkeel_policy::route::{RegexPattern, path};
use evenkeel_proto::http1::edit::{SameName, is_same};
use evenkeel_proto::identity::hex;

use evenkeel_proto::{RequestHead, Scheme};

use super::identity::{Identity, ROOM};
use super::{Exchange, SetField};
use crate::config::{
    Expression, ExpressionPart, Location, LocationPart, LocationVariable, Variable,
};

/// The values of variables for a request.
pub(crate) struct Values<'a> {
    /// The buffer of the head's spans.
    pub bytes: &'a [u8],
    /// The request's head.
    pub head: &'a RequestHead,
    /// Address of the client; empty over a Unix socket.
    pub client: &'a [u8],
    /// Its port; 0 if unknown.
    pub client_port: u16,
    /// The scheme of the client's request.
    pub scheme: Scheme,
    /// The TLS server name from the client (SNI); may be empty.
    pub server_name: &'a [u8],
    /// Name of the listener.
    pub listener: &'a str,
    /// Name of the route.
    pub route: &'a str,
    /// The regular expressions of the route's paths.
    pub regexes: &'a [RegexPattern],
    /// The identity of the request.
    pub identity: &'a Identity,
    /// The exchange so far; `None` for `explain`.
    pub exchange: Option<&'a Exchange<'a>>,
}

impl<'a> Values<'a> {
    /// The values for an exchange with a route.
    pub fn of(exchange: &'a Exchange<'_>) -> Self {
        let client = exchange.client;
        let route = exchange.route();
        Values {
            bytes: exchange.bytes,
            head: exchange.head,
            client: client.remote().told().unwrap_or_default(),
            client_port: client.remote().port,
            scheme: client.scheme(),
            server_name: client.server_name(None),
            listener: &exchange.listener().name,
            route: route.map_or("", |it| &it.name),
            regexes: route.map_or(&[], |it| &it.path_regexes),
            identity: exchange.progress.identity,
            exchange: Some(exchange),
        }
    }
}

/// Appends the value of an expression, without control characters, so that no client's text ends
/// a line. `head` begins with the status line if the expression is for a response.
pub(super) fn expand(out: &mut Vec<u8>, expression: &Expression, values: &Values<'_>, head: &[u8]) {
    for part in &expression.parts {
        let start = out.len();
        match part {
            ExpressionPart::Text(text) => out.extend_from_slice(text.as_bytes()),
            ExpressionPart::Variable(Variable::Status) => {
                // `HTTP/1.1 200 `.
                out.extend_from_slice(head.get(9..12).unwrap_or_default());
            }
            part => push_part(out, part, values),
        }
        remove_controls(out, start);
    }
}

/// The path and query that an expression makes from a path, percent-encoded. `rest` is the value
/// of `{path}`: the rest of that path.
pub(super) fn expand_target(
    expression: &Expression,
    values: &Values<'_>,
    path: &[u8],
    rest: &[u8],
) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut out = Vec::with_capacity(64);
    let mut query_start = None;
    let mut value = Vec::new();
    for part in &expression.parts {
        match part {
            ExpressionPart::Text(text) => {
                if let (None, Some(mark)) = (query_start, text.find('?')) {
                    query_start = Some(out.len() + mark);
                }
                out.extend_from_slice(text.as_bytes());
            }
            ExpressionPart::Variable(Variable::Path) => {
                push_of_path(&mut out, rest, query_start.is_some());
            }
            ExpressionPart::Capture(name) => {
                value.clear();
                push_capture(&mut value, values.regexes, name, path);
                push_of_path(&mut out, &value, query_start.is_some());
            }
            // This part is already encoded.
            ExpressionPart::Variable(Variable::Query) if query_start.is_some() => {
                push_part(&mut out, part, values);
            }
            part => {
                value.clear();
                push_part(&mut value, part, values);
                push_encoded(&mut out, &value, query_start.is_some());
            }
        }
    }
    let query = query_start.map(|at| {
        let query = out.split_off(at);
        query[1..].to_vec()
    });
    (out, query)
}

/// The value of `Location` for a request.
///
/// Safety: a location with a path on the same host stays on that host for each request. At the
/// start of a target, two slashes would lead to another host, and browsers take a backslash for a
/// slash.
pub(crate) fn expand_location(location: &Location, values: &Values<'_>) -> String {
    let mut out = Vec::with_capacity(128);
    for part in location.parts() {
        match part {
            LocationPart::Text(text) => out.extend_from_slice(text.as_bytes()),
            LocationPart::Variable(variable) => push_of_request(&mut out, *variable, values),
            LocationPart::Value(value) => push_in_place(&mut out, value, values),
        }
    }
    if location.is_path() {
        let slashes = out.iter().take_while(|it| b"/\\".contains(it)).count();
        out.splice(..slashes, *b"/");
    }
    // The parser accepts only ASCII in targets and hosts.
    String::from_utf8_lossy(&out).into_owned()
}

fn push_of_request(out: &mut Vec<u8>, variable: LocationVariable, values: &Values<'_>) {
    let Values { bytes, head, .. } = *values;
    match variable {
        LocationVariable::Scheme => out.extend_from_slice(values.scheme.as_str().as_bytes()),
        LocationVariable::Host => out.extend_from_slice(head.host_name(bytes)),
        LocationVariable::Path => out.extend_from_slice(head.path(bytes)),
        LocationVariable::Query if head.query.is_empty() => {}
        LocationVariable::Query => {
            out.push(b'?');
            out.extend_from_slice(head.query.of(bytes));
        }
    }
}

/// Appends a value to a location, encoded for its position.
fn push_in_place(out: &mut Vec<u8>, part: &ExpressionPart, values: &Values<'_>) {
    let mut value = Vec::new();
    push_part(&mut value, part, values);
    let is_in_query = out.contains(&b'?');
    let authority = out.windows(3).position(|it| it == b"://").map(|at| at + 3);
    let is_in_authority = authority.is_some_and(|at| !out[at..].contains(&b'/')) && !is_in_query;
    let is_scheme_or_host = matches!(
        part,
        ExpressionPart::Variable(Variable::Scheme | Variable::Host | Variable::ServerName)
    );
    let is_of_path = matches!(
        part,
        ExpressionPart::Capture(_) | ExpressionPart::Variable(Variable::Path | Variable::Target)
    );
    match part {
        _ if is_scheme_or_host && !is_in_query => out.extend_from_slice(&value),
        ExpressionPart::Variable(Variable::Query) if is_in_query => {
            out.extend_from_slice(&value);
        }
        ExpressionPart::Variable(Variable::Path | Variable::Target) if value.starts_with(b"/") => {
            push_of_path(out, &value, is_in_query);
        }
        // A client's value can't end the host or be a scheme.
        _ if is_in_authority => push_encoded(out, &value, true),
        _ if is_of_path => push_of_path(out, &value, is_in_query),
        _ => push_encoded(out, &value, is_in_query || out.is_empty()),
    }
}

/// Appends a part of a path, percent-encoded. In a query, separators are encoded too.
fn push_of_path(out: &mut Vec<u8>, part: &[u8], is_in_query: bool) {
    for &byte in part {
        if is_in_query && b"&+=;".contains(&byte) {
            push_percent(out, byte);
        } else {
            out.push(byte);
        }
    }
}

fn push_percent(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let (high, low) = (byte >> 4, byte & 0xf);
    out.extend_from_slice(&[b'%', DIGITS[high as usize], DIGITS[low as usize]]);
}

fn push_encoded(out: &mut Vec<u8>, value: &[u8], is_in_query: bool) {
    // RFC 3986 §2.3; in a path also `sub-delims` (§3.3), but for `;`, behind which some
    // servers look for parameters. In a query they separate.
    let stay: &[u8] = if is_in_query {
        b"-._~"
    } else {
        b"-._~!$&'()*+,=:@"
    };
    for &byte in value {
        if byte.is_ascii_alphanumeric() || stay.contains(&byte) {
            out.push(byte);
        } else {
            push_percent(out, byte);
        }
    }
}

fn remove_controls(out: &mut Vec<u8>, start: usize) {
    if out[start..].iter().any(u8::is_ascii_control) {
        let tail = out.split_off(start);
        out.extend(tail.into_iter().filter(|it| !it.is_ascii_control()));
    }
}

fn push_part(out: &mut Vec<u8>, part: &ExpressionPart, values: &Values<'_>) {
    let Values { bytes, head, .. } = *values;
    match part {
        ExpressionPart::Text(text) => out.extend_from_slice(text.as_bytes()),
        ExpressionPart::Variable(variable) => push_variable(out, *variable, values),
        ExpressionPart::Header(name) => out.extend_from_slice(field(values, name)),
        ExpressionPart::Cookie(name) => {
            let lines = head
                .fields
                .iter()
                .filter(|it| it.is_named(b"cookie", bytes));
            let found = lines.map(|it| cookies(it.value.of(bytes), name).next());
            out.extend(found.flatten().next().into_iter().flatten());
        }
        ExpressionPart::Capture(name) => {
            let path = path::normalise(head.path(bytes));
            push_capture(out, values.regexes, name, &path);
        }
        ExpressionPart::Query(name) => {
            out.extend(
                parameters(head.query.of(bytes), name)
                    .next()
                    .into_iter()
                    .flatten(),
            );
        }
    }
}

/// Appends a group of the first of these expressions that matches a path, if the group is there.
fn push_capture(out: &mut Vec<u8>, regexes: &[RegexPattern], name: &str, path: &[u8]) {
    let found = regexes.iter().find_map(|it| it.captures(path));
    let group = found.as_ref().and_then(|it| match name.parse() {
        Ok(number) => it.numbered(number),
        Err(_) => it.named(name),
    });
    out.extend_from_slice(group.unwrap_or_default());
}

/// The value of the first field of this name in the request; may be empty.
fn field<'a>(values: &Values<'a>, name: &str) -> &'a [u8] {
    let Values { bytes, head, .. } = *values;
    let set = values.exchange.and_then(Exchange::set_fields);
    let is_same =
        |it: &&SetField| is_same(it.name.as_bytes(), name.as_bytes(), SameName::AsVariable);
    if let Some(set) = set.and_then(|it| it.iter().find(is_same)) {
        return set.values.first().map_or(&[], |it| it);
    }
    let mut fields = head.fields.iter();
    let found = fields.find(|it| it.name.of(bytes).eq_ignore_ascii_case(name.as_bytes()));
    found.map_or(&[], |it| it.value.of(bytes))
}

fn push_variable(out: &mut Vec<u8>, variable: Variable, values: &Values<'_>) {
    let Values { bytes, head, .. } = *values;
    let mut room = ROOM;
    let id;
    let text: &[u8] = match variable {
        Variable::ClientIp => values.client,
        Variable::ClientPort => return push_number(out, values.client_port.into()),
        Variable::Scheme => values.scheme.as_str().as_bytes(),
        Variable::Listener => values.listener.as_bytes(),
        Variable::Route => values.route.as_bytes(),
        Variable::Method => head.method_span.of(bytes),
        Variable::Host => head.host.of(bytes),
        Variable::Target => head.path_and_query.of(bytes),
        Variable::Path => head.path(bytes),
        Variable::Query => head.query.of(bytes),
        Variable::Version => head.version.as_str().as_bytes(),
        Variable::Referer => field(values, "referer"),
        Variable::UserAgent => field(values, "user-agent"),
        Variable::ServerName => values.server_name,
        Variable::User => values
            .exchange
            .and_then(|it| it.user())
            .unwrap_or_default()
            .as_bytes(),
        Variable::RequestId => {
            let id = values.identity.request_id(bytes, &mut room);
            id.unwrap_or_default()
        }
        Variable::TraceId => {
            id = values.identity.trace.map(|it| hex::<32>(it.sent.trace_id));
            id.as_ref().map_or(&[], |it| it)
        }
        _ => {
            return values
                .exchange
                .map_or((), |it| push_result(out, variable, it));
        }
    };
    out.extend_from_slice(text);
}

/// Appends a value that exists only once there is a response.
fn push_result(out: &mut Vec<u8>, variable: Variable, exchange: &Exchange<'_>) {
    let progress = &exchange.progress;
    let figures = &progress.figures;
    let text = match variable {
        Variable::Upstream => match progress.upstream() {
            Some(upstream) => &exchange.context.config().upstreams[upstream].name,
            None => "",
        },
        Variable::Endpoint => match &progress.endpoint {
            Some(endpoint) => &endpoint.config().name,
            None => "",
        },
        Variable::Reason => figures.reason.map_or("", |it| it.word()),
        Variable::Cache => figures.cache.map_or("", |it| it.word()),
        Variable::Attempts => return push_number(out, figures.attempts.into()),
        Variable::QueueMs => return push_millis(out, figures.times.queue),
        Variable::ConnectMs => return push_millis(out, figures.times.connect),
        Variable::FirstByteMs => return push_millis(out, figures.times.first_byte),
        _ => "",
    };
    out.extend_from_slice(text.as_bytes());
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn push_millis(out: &mut Vec<u8>, time: Option<Duration>) {
    if let Some(time) = time {
        push_number(out, time.as_millis() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::route::Case;
    use evenkeel_proto::http1::{Parsed, parse_request};

    /// The location that a template makes of a request for this target.
    fn location(template: &str, target: &str) -> String {
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: a.example:80\r\nX-To: //evil.example/\r\nX-Host: evil.example/?\r\n\r\n"
        );
        let mut head = RequestHead::default();
        let parsed = parse_request(request.as_bytes(), &mut head);
        assert_eq!(parsed, Ok(Parsed::Complete));
        let regexes = [RegexPattern::new("^/go/(?<to>.*)$", Case::Sensitive).unwrap()];
        let values = Values {
            bytes: request.as_bytes(),
            head: &head,
            client: b"192.0.2.1",
            client_port: 0,
            scheme: Scheme::Https,
            server_name: b"",
            listener: "web",
            route: "app",
            regexes: &regexes,
            identity: &Identity::NONE,
            exchange: None,
        };
        expand_location(&Location::new(template), &values)
    }

    #[test]
    fn locations() {
        for (template, target, expected) in [
            (
                "https://$host$path$query",
                "/a/b?c=d",
                "https://a.example/a/b?c=d",
            ),
            ("https://$host$path$query", "/a", "https://a.example/a"),
            ("$scheme://$host/", "/a", "https://a.example/"),
            ("$path", "/a", "/a"),
            ("/x$path", "//b", "/x//b"),
            ("/$hostname/$/$uri", "/", "/$hostname/$/$uri"),
            ("/fixed", "/a?b", "/fixed"),
            ("{scheme}://{host}{path}", "/a", "https://a.example:80/a"),
            ("/p/{query:page}", "/a?page=1", "/p/1"),
            (
                "/p?of={query:page}&{query}",
                "/a?page=1%262",
                "/p?of=1%262&page=1%262",
            ),
            ("/by/{client_ip}/{uri}", "/", "/by/192.0.2.1/{uri}"),
            ("/to/{capture:to}", "/go/a/b", "/to/a/b"),
        ] {
            assert_eq!(location(template, target), expected, "{template}");
        }
    }

    #[test]
    fn no_client_is_sent_to_another_host_by_what_it_sends() {
        for (template, target, expected) in [
            ("$path", "//evil.example/", "/evil.example/"),
            ("$path", "/\\evil.example/", "/evil.example/"),
            ("/$path", "/evil.example/", "/evil.example/"),
            ("{path}", "//evil.example/", "/evil.example/"),
            ("{capture:to}", "/go///evil.example/", "/evil.example/"),
            (
                "{capture:to}",
                "/go/https://evil.example/",
                "/https:/evil.example/",
            ),
            ("/{capture:to}", "/go//evil.example", "/evil.example"),
            ("{header:X-To}", "/", "%2F%2Fevil.example%2F"),
            ("/{header:X-To}", "/", "/%2F%2Fevil.example%2F"),
            (
                "{query:to}",
                "/?to=https://evil.example",
                "https%3A%2F%2Fevil.example",
            ),
            (
                "https://{header:X-Host}.example.com/",
                "/",
                "https://evil.example%2F%3F.example.com/",
            ),
            (
                "https://example.com{query:to}",
                "/?to=.evil.example/",
                "https://example.com.evil.example%2F",
            ),
        ] {
            assert_eq!(location(template, target), expected, "{template}");
        }
    }
}
