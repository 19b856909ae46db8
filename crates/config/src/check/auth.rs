//! The checks of how clients show who they are.

use evenkeel_net::Address;
use evenkeel_proto::http1::edit::{SameName, is_same};

use super::check_upstream_name;
use super::tcp::may_meet;
use crate::ClientProtocol;
use crate::diagnostics::Report;
use crate::setting::Placed;
use crate::value::{Bind, Peer};
use crate::written::{AuthTable, File, ListenerTable, Names, Route};

/// Warns of doubtful authentication of routes.
pub(super) fn check(file: &File, names: &Names<'_>, report: &mut Report) {
    for route in file.route.value.iter().flatten() {
        let Some(auth) = &route.auth.value else {
            continue;
        };
        check_kind(auth, report);
        if let Some(upstream) = &auth.forward.value
            && !report.is_syntax_broken()
        {
            check_upstream_name("forward", upstream, names, report);
        }
        check_encryption(route, file, report);
        check_cache_key(route, report);
    }
}

/// Reports keys that have no meaning beside each other.
fn check_kind(auth: &AuthTable, report: &mut Report) {
    if auth.basic.written && auth.forward.written {
        report
            .mistake(
                &auth.forward.place,
                "`forward` and `basic` cannot be combined",
            )
            .related(&auth.basic.place, "the other one")
            .help("write one of them, or two routes");
        return;
    }
    let (of, others) = if auth.forward.written {
        (
            "basic",
            vec![("realm", auth.realm.written, &auth.realm.place)],
        )
    } else {
        let others = vec![
            ("path", auth.path.written, &auth.path.place),
            ("copy", auth.copy.written, &auth.copy.place),
            ("user", auth.user.written, &auth.user.place),
            ("timeout", auth.timeout.written, &auth.timeout.place),
        ];
        ("forward", others)
    };
    for (key, is_written, place) in others {
        if is_written {
            report
                .mistake(place, format!("`{key}` needs `{of}`"))
                .help("leave it out");
        }
    }
    if auth.forward.written && !auth.path.written && !report.is_syntax_broken() {
        report
            .mistake(&auth.forward.place, "`forward` without `path`")
            .help(
                "write the path of the check, such as path = \"/api/authz/forward-auth\" for \
                Authelia or \"/oauth2/auth\" for oauth2-proxy",
            );
    }
}

/// A field that the other server sets can't be a part of a cache's key: that is made of the
/// client's request.
fn check_cache_key(route: &Route, report: &mut Report) {
    let key = route.caching().and_then(|it| it.key.value.as_ref());
    let headers = key.and_then(|it| it.headers.value.as_ref());
    for header in headers.into_iter().flatten() {
        let is_same = |it: &str| is_same(it.as_bytes(), header.0.as_bytes(), SameName::AsVariable);
        if route.copied_fields().any(is_same) {
            let title = format!(
                "`auth` sets the header `{}`, but a cache key uses the header that the client sent",
                header.0
            );
            report.mistake(&route.cache.place, title).help(
                "leave it out of `key.headers`: a client could send it to get responses stored \
                 for other users",
            );
        }
    }
}

/// Warns of passwords that others on the way can read.
fn check_encryption(route: &Route, file: &File, report: &mut Report) {
    let listeners = file.listener.value.iter().flatten().enumerate();
    for (index, listener) in listeners {
        let name = listener.name_at(index);
        if may_meet(route, &name) && is_in_the_clear(listener, file) {
            report
                .warning(
                    &route.auth.place,
                    format!("the listener `{name}` accepts passwords unencrypted"),
                )
                .related(&listener.bind.place, "this listener has no `tls`")
                .help(
                    "add `tls` to the listener, or list the proxies that terminate TLS in its \
                    `trusted_proxies`",
                );
        }
    }
}

/// Whether clients elsewhere come to a listener without TLS, here or at a proxy in front.
fn is_in_the_clear(listener: &ListenerTable, file: &File) -> bool {
    let trusts = |it: &Vec<Placed<Peer>>| !it.is_empty();
    let own = &listener.trusted_proxies;
    let has_proxy = if own.written {
        own.value.as_ref().is_none_or(trusts)
    } else {
        let server = file.server.value.as_ref();
        server.is_none_or(|it| it.trusted_proxies.value.as_ref().is_none_or(trusts))
    };
    let is_elsewhere = match &listener.bind.value {
        Some(Bind(Address::Tcp(address))) => !address.ip().to_canonical().is_loopback(),
        _ => false,
    };
    let is_http = listener.protocol.value == Some(ClientProtocol::Http);
    let redirects = listener.redirect_to_https.value != Some(false);
    is_http
        && is_elsewhere
        && !listener.tls.written
        && !redirects
        && !has_proxy
        && !listener.proxy_protocol.written
}
