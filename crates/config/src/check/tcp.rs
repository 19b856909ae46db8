//! Routes of listeners of TCP: a connection shows less than a request.

use crate::ClientProtocol;
use crate::diagnostics::Report;
use crate::setting::Field;
use crate::tree::SourcePlace;
use crate::written::{File, ListenerTable, Match, Route};

/// Reports routes that no connection or no request can take.
pub(super) fn check(file: &File, report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    let listeners = file.listener.value.iter().flatten().enumerate();
    let listeners: Vec<_> = listeners
        .map(|(index, it)| (it.name_at(index), it))
        .collect();
    let routes = file.route.value.iter().flatten();
    for route in routes {
        check_route(route, &listeners, report);
    }
    for (name, listener) in &listeners {
        if listener.protocol.value == Some(ClientProtocol::Tcp) {
            check_listener(name, listener, file, report);
        }
    }
}

/// Warns of a listener whose connections find no upstream.
fn check_listener(name: &str, listener: &ListenerTable, file: &File, report: &mut Report) {
    let routes = file.route.value.iter().flatten();
    let mut taking = routes.filter(|it| it.upstream.written && may_meet(it, name));
    if taking.next().is_none() {
        report
            .warning(
                &listener.protocol.place,
                format!("no route matches the connections of `{name}`, so they are closed"),
            )
            .help(format!(
                "add one:\n[[route]]\nmatch = {{ listener = \"{name}\" }}\nupstream = \"NAME\""
            ));
    }
}

/// Whether requests or connections of the listener of this name may take a route.
pub(super) fn may_meet(route: &Route, listener: &str) -> bool {
    let wanted = route.r#match.value.as_ref();
    let wanted = wanted.and_then(|it| it.listener.value.as_ref());
    wanted.is_none_or(|it| it.0.iter().any(|it| it.value.0 == listener))
}

fn check_route(route: &Route, listeners: &[(String, &ListenerTable)], report: &mut Report) {
    let Some(wanted) = &route.r#match.value else {
        return;
    };
    let met = listeners.iter().filter(|(name, _)| may_meet(route, name));
    let protocols: Vec<_> = met.map(|(_, it)| it.protocol.value).collect();
    let all_speak =
        |protocol| !protocols.is_empty() && protocols.iter().all(|it| *it == Some(protocol));
    if all_speak(ClientProtocol::Tcp) && !route.upstream.written {
        let others = route.actions();
        if let Some(action) = others.iter().find(|it| it.is_written) {
            report
                .mistake(
                    action.place,
                    format!(
                        "`{}` answers HTTP requests, but this route takes TCP connections",
                        action.key
                    ),
                )
                .help("send them to an upstream: upstream = \"NAME\"");
        }
    }
    if route.caching().is_some() && all_speak(ClientProtocol::Tcp) {
        report
            .mistake(
                &route.cache.place,
                "`cache` stores HTTP responses, but this route takes TCP connections",
            )
            .help("leave it out");
    }
    if route.auth.written && all_speak(ClientProtocol::Tcp) {
        report
            .mistake(
                &route.auth.place,
                "`auth` checks HTTP requests, but this route takes TCP connections",
            )
            .help("for TCP, use `allow` and `deny` with client addresses");
    }
    if route.mirror.written && all_speak(ClientProtocol::Tcp) {
        report
            .mistake(
                &route.mirror.place,
                "`mirror` copies HTTP requests, but this route takes TCP connections",
            )
            .help("leave it out");
    }
    if route.limit.written && all_speak(ClientProtocol::Tcp) {
        report
            .mistake(
                &route.limit.place,
                "`limit` counts HTTP requests, but this route takes TCP connections",
            )
            .help("to limit connections, write `limits = { connections = N }` in the listener");
    }
    if route.bandwidth.written && all_speak(ClientProtocol::Tcp) {
        report
            .mistake(
                &route.bandwidth.place,
                "`bandwidth` paces HTTP responses, but this route takes TCP connections",
            )
            .help("leave it out");
    }
    if route.compression().is_some() && all_speak(ClientProtocol::Tcp) {
        report
            .mistake(
                &route.compress.place,
                "`compress` is for HTTP responses, but this route takes TCP connections",
            )
            .help("leave it out");
    }
    for (key, is_written, place) in edits(route) {
        if is_written && all_speak(ClientProtocol::Tcp) {
            report
                .mistake(
                    place,
                    format!("`{key}` changes HTTP requests, but this route takes TCP connections"),
                )
                .help("leave it out");
        }
    }
    let each = wanted.each();
    for (key, is_written, place) in each.iter().flat_map(|it| of_requests(it)) {
        if is_written && all_speak(ClientProtocol::Tcp) {
            report
                .mistake(
                    place,
                    format!("`{key}` is for HTTP requests, but this route takes TCP connections"),
                )
                .help("TCP routes can match `listener`, `client`, `sni`, `alpn` and `first_bytes`");
        }
    }
    // The name that a client asks for is known too where its TLS ends.
    let has_tls = listeners
        .iter()
        .any(|(name, it)| may_meet(route, name) && it.tls.written);
    if !has_tls && all_speak(ClientProtocol::Http) {
        for sni in each.iter().map(|it| &it.sni).filter(|it| it.written) {
            report
                .mistake(
                    &sni.place,
                    "no listener of this route has TLS, so no client sends a server name",
                )
                .help("add `tls` to the listener, or match the `host` of the request");
        }
    }
    for (key, is_written, place) in each.iter().flat_map(|it| of_connections(it)) {
        if is_written && all_speak(ClientProtocol::Http) {
            report
                .mistake(
                    place,
                    format!("`{key}` is for TCP connections, but this route takes HTTP requests"),
                )
                .help("it needs a listener with `protocol = \"tcp\"`");
        }
    }
}

type Written<'a> = (&'static str, bool, &'a SourcePlace);

fn written<'a, T>(key: &'static str, field: &'a Field<T>) -> Written<'a> {
    (key, field.written, &field.place)
}

/// The keys of a route that change requests and responses.
fn edits(route: &Route) -> [Written<'_>; 6] {
    [
        written("edits", &route.edits),
        written("strip_prefix", &route.strip_prefix),
        written("rewrite", &route.rewrite),
        written("request_headers", &route.request_headers),
        written("response_headers", &route.response_headers),
        written("sticky", &route.sticky),
    ]
}

/// The keys of `match` that do not apply to a TCP connection.
fn of_requests(wanted: &Match) -> [Written<'_>; 7] {
    [
        written("host", &wanted.host),
        written("path", &wanted.path),
        written("method", &wanted.method),
        written("header", &wanted.header),
        written("query", &wanted.query),
        written("cookie", &wanted.cookie),
        written("scheme", &wanted.scheme),
    ]
}

/// The keys of `match` that are read of a connection alone.
fn of_connections(wanted: &Match) -> [Written<'_>; 2] {
    [
        written("alpn", &wanted.alpn),
        written("first_bytes", &wanted.first_bytes),
    ]
}
