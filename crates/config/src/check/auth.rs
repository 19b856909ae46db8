//! The checks of how clients show who they are.

use evenkeel_net::Address;

use super::tcp::may_meet;
use crate::ClientProtocol;
use crate::diagnostics::Report;
use crate::setting::Placed;
use crate::value::{Bind, Peer};
use crate::written::{File, ListenerTable, Route};

/// Warns of what is doubtful about the authentication of routes.
pub(super) fn check(file: &File, report: &mut Report) {
    for route in file.route.value.iter().flatten() {
        if route.auth.value.is_some() {
            check_encryption(route, file, report);
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
                    format!("passwords come to the listener `{name}` unencrypted"),
                )
                .related(&listener.bind.place, "this has no `tls`")
                .help("add `tls` to the listener, or name the proxies in front that end TLS in its `trusted_proxies`");
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
