//! The checks that take more than one option to see.
//!
//! All checks run over the whole configuration, whatever an earlier one found, so that every
//! mistake is reported at once.

mod access;
mod access_log;
mod auth;
mod cache;
mod compression;
mod edits;
mod errors;
mod health;
mod limits;
mod mirror;
mod nested;
mod paths;
mod sticky;
pub(super) mod surroundings;
mod tcp;
mod upstream;

use std::collections::HashMap;
use std::net::IpAddr;

use evenkeel_policy::route::Network;
use evenkeel_proto::Scheme;

use super::action::WrittenAction;
use super::diagnostics::Report;
use super::setting::{FromText, OneOrMore, Placed};
use super::tree::SourcePlace;
use super::value::{Bind, EndpointAddress, Name, Peer, Text};
use super::written::{self, File, Names, actions};
use super::{Adopt, ClientProtocol};
use evenkeel_net::Address;

/// Largest limit on the length of a head, in bytes.
const MAX_HEAD_LIMIT: usize = 128 * 1024;

/// Reports contradictions and doubts between the options of `file`.
pub(super) fn check(file: &File, names: &Names<'_>, report: &mut Report) {
    check_names(file, report);
    check_listeners(file, report);
    check_addresses(file, report);
    check_status(file, report);
    check_routes(file, names, report);
    tcp::check(file, report);
    access_log::check(file, report);
    check_otlp(file, report);
    upstream::check(file, names, report);
    cache::check(file, names, report);
    edits::check(file, report);
    sticky::check(file, report);
    limits::check(file, report);
    errors::check(file, names, report);
    access::check(file, report);
    auth::check(file, names, report);
    mirror::check(file, names, report);
    compression::check(file, report);
}

fn check_names(file: &File, report: &mut Report) {
    let listeners = file.listener.value.iter().flatten().enumerate();
    let listeners = listeners.map(|(index, it)| (it.name_at(index), &it.name.place));
    check_unique("listener", listeners, report);
    let routes = file.route.value.iter().flatten().enumerate();
    let routes = routes.map(|(index, it)| (it.name_at(index), &it.name.place));
    check_unique("route", routes, report);
}

fn check_unique<'a>(
    what: &str,
    names: impl Iterator<Item = (String, &'a SourcePlace)>,
    report: &mut Report,
) {
    let mut first_places: HashMap<String, &SourcePlace> = HashMap::new();
    for (name, place) in names {
        if let Some(first) = first_places.get(&name) {
            report
                .mistake(place, format!("a second {what} named `{name}`"))
                .related(first, "the first one");
        } else {
            first_places.insert(name, place);
        }
    }
}

fn check_listeners(file: &File, report: &mut Report) {
    let Some(listeners) = &file.listener.value else {
        return;
    };
    let left_out = !file.listener.written || !report.has_mistakes();
    if listeners.is_empty() && left_out && !report.is_syntax_broken() {
        report
            .mistake_without_place("there is no listener, so no client could connect")
            .help("add one:\n[[listener]]\nbind = \":8080\"");
    }
    for listener in listeners {
        check_head_limit(listener, report);
        check_proxies(listener, report);
        check_http2(listener, report);
    }
    let server = file.server.value.as_ref();
    if let Some(trusted) = server.and_then(|it| it.trusted_proxies.value.as_ref()) {
        check_trusted(trusted, report);
    }
}

/// Reports two uses of one address: the second one would fail to listen.
fn check_addresses(file: &File, report: &mut Report) {
    let listeners = file.listener.value.iter().flatten().filter_map(|it| {
        let bind = &it.bind;
        Some(("listener", &bind.value.as_ref()?.0, &bind.place))
    });
    let status = file.status.value.iter().filter_map(|it| match it {
        written::Status::Off => None,
        written::Status::On(it) => {
            Some(("status page", &it.bind.value.as_ref()?.0, &it.bind.place))
        }
    });
    let control = file.server.value.iter().filter_map(|it| {
        let path = &it.control;
        Some(("control socket", &path.value.as_ref()?.0, &path.place))
    });
    let mut taken: Vec<(&str, &Address, &SourcePlace)> = Vec::new();
    for (what, address, place) in listeners.chain(status).chain(control) {
        let first = taken.iter().find(|(_, it, _)| collide(it, address));
        match first {
            None => taken.push((what, address, place)),
            Some((first, _, at)) if *first == what => {
                report
                    .mistake(place, format!("a second {what} at the same address"))
                    .related(at, "the first one");
            }
            Some((first, _, at)) => {
                report
                    .mistake(
                        place,
                        format!("the {what} has the same address as a {first}"),
                    )
                    .related(at, format!("the {first}"));
            }
        }
    }
}

/// Warns of a status page that others can reach: anyone who can connect sees its content.
fn check_status(file: &File, report: &mut Report) {
    let Some(written::Status::On(status)) = &file.status.value else {
        return;
    };
    let bind = &status.bind;
    if let Some(Bind(Address::Tcp(address))) = &bind.value
        && is_public(address.ip())
    {
        report
            .warning(&bind.place, "the status page listens at a public address")
            .help(
                "anyone who can connect sees names, addresses and metrics: use a loopback or \
                private address, or protect the port with a firewall",
            );
    }
}

/// Whether strangers may reach an address. The unspecified address may include a public one.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // RFC 6598: behind a carrier's translation.
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            !(ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_shared)
        }
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()),
    }
}

/// Whether one address can't be listened on while the other one is in use. The unspecified
/// address of IPv6 covers all addresses of IPv4 too (ipv6(7)).
fn collide(one: &Address, other: &Address) -> bool {
    match (one, other) {
        (Address::Tcp(one), Address::Tcp(other)) => {
            let covers = |all: IpAddr, it: IpAddr| {
                all == it || all.is_unspecified() && (all.is_ipv6() || it.is_ipv4())
            };
            let (ip, other_ip) = (one.ip(), other.ip());
            let is_same_port = one.port() == other.port() && one.port() != 0;
            is_same_port && (covers(ip, other_ip) || covers(other_ip, ip))
        }
        _ => one == other,
    }
}

/// A head is read into one buffer, which must have room for it.
fn check_head_limit(listener: &written::ListenerTable, report: &mut Report) {
    let Some(head) = listener.limits.value.as_ref().map(|limits| &limits.head) else {
        return;
    };
    if head.value.is_some_and(|limit| limit.0 > MAX_HEAD_LIMIT) {
        report
            .mistake(
                &head.place,
                "the limit for request heads is above the maximum of 128 KiB",
            )
            .help("write 128KiB or less; larger data belongs in a body");
    }
}

/// HTTP/2 is negotiated in a TLS handshake; without TLS it needs prior knowledge.
fn check_http2(listener: &written::ListenerTable, report: &mut Report) {
    let (http2, h2c) = (&listener.http2, &listener.h2c);
    let is_tcp = listener.protocol.value == Some(ClientProtocol::Tcp);
    let has_tls = listener.tls.written;
    for (key, value, place) in [
        ("http2", http2.value, &http2.place),
        ("h2c", h2c.value, &h2c.place),
    ] {
        if is_tcp && value == Some(true) {
            let title = format!("`{key}` is for HTTP listeners, but this one is a TCP listener");
            report.mistake(place, title).help("leave it out");
        }
    }
    if is_tcp {
        return;
    }
    if http2.value == Some(true) && !has_tls {
        report
            .mistake(
                &http2.place,
                "`http2` is negotiated in the TLS handshake, but this listener has no `tls`",
            )
            .help("for HTTP/2 without TLS write `h2c = true`");
    }
    if h2c.value == Some(true) && has_tls {
        report
            .mistake(
                &h2c.place,
                "`h2c` is HTTP/2 without TLS, but this listener has `tls`",
            )
            .help("leave it out: over TLS, clients can use HTTP/2 without it");
    }
}

/// Warns of proxies that can't connect to the listener, and of proxy addresses that anyone can
/// have.
fn check_proxies(listener: &written::ListenerTable, report: &mut Report) {
    let header = listener.proxy_protocol.value.as_ref().map(|it| &it.from);
    if let Some(from) = header
        && let Some(OneOrMore(peers)) = &from.value
    {
        check_trusted(peers, report);
        let what = "no peer in `from` can connect to this listener";
        check_peers(listener, peers, &from.place, what, report);
    }
    if let Some(table) = &listener.proxy_protocol.value
        && table.optional.value == Some(true)
    {
        report
            .warning(
                &table.optional.place,
                "any client that connects from these addresses can claim another address",
            )
            .help("leave `optional` out once every proxy in `from` sends the header");
    }
    let trusted = &listener.trusted_proxies;
    if let Some(peers) = &trusted.value {
        check_trusted(peers, report);
        // A header names an address on a Unix socket too.
        if !listener.proxy_protocol.written {
            let what = "none of these proxies can connect to this listener";
            check_peers(listener, peers, &trusted.place, what, report);
        }
    }
}

/// Warns where peers of the listener are of the other kind.
fn check_peers(
    listener: &written::ListenerTable,
    peers: &[Placed<Peer>],
    place: &SourcePlace,
    title: &str,
    report: &mut Report,
) {
    let Some(bind) = &listener.bind.value else {
        return;
    };
    let is_unix = bind.0.is_unix();
    if peers.is_empty() || peers.iter().any(|it| (it.value == Peer::Unix) == is_unix) {
        return;
    }
    let (what, help) = if is_unix {
        (
            "the listener is a Unix socket, where peers have no IP address",
            "write [\"unix\"]",
        )
    } else {
        (
            "the listener has an IP address, where no peer comes by a Unix socket",
            "write the addresses or networks of the proxies, as in [\"10.0.0.0/8\"]",
        )
    };
    report
        .warning(place, title)
        .related(&listener.bind.place, what)
        .help(help);
}

/// Warns of trust in every address.
fn check_trusted(peers: &[Placed<Peer>], report: &mut Report) {
    for (network, place) in everybody(peers) {
        report
            .warning(
                place,
                format!("`{network}` trusts every address: any client can claim to be another"),
            )
            .help("write only the addresses or networks of the proxies in front");
    }
}

/// The networks of these that have every address of a family in them.
fn everybody(peers: &[Placed<Peer>]) -> impl Iterator<Item = (Network, &SourcePlace)> {
    peers.iter().filter_map(|it| match it.value {
        Peer::In(network) if network.is_everybody() => Some((network, &it.place)),
        _ => None,
    })
}

fn check_routes(file: &File, names: &Names<'_>, report: &mut Report) {
    let Some(routes) = &file.route.value else {
        return;
    };
    if routes.is_empty() && !file.route.written && !report.is_syntax_broken() {
        report
            .warning_without_place("there is no route, so every request is answered 404")
            .help("add one that matches everything:\n[[route]]\nupstream = \"NAME\"");
    }
    paths::check_prefixes(routes, report);
    let mut catch_all: Option<&SourcePlace> = None;
    for route in routes {
        check_action(route, report);
        check_options_of_action(route, report);
        check_references(route, names, report);
        check_lane(route, names, report);
        paths::check(route, report);
        nested::check(route, report);
        check_scheme(route, file, report);
        if let Some(earlier) = catch_all {
            report
                .warning(&route.place, "this route is never reached")
                .related(earlier, "this one matches everything");
        } else if route
            .r#match
            .value
            .as_ref()
            .is_some_and(|it| it.takes_everything())
        {
            catch_all = Some(&route.place);
        }
    }
}

/// Warns of a condition on the scheme where no proxy can say that it is https.
fn check_scheme(route: &written::Route, file: &File, report: &mut Report) {
    let Some(wanted) = &route.r#match.value else {
        return;
    };
    let Some(scheme) = wanted.scheme.value else {
        return;
    };
    let trusts = |it: &Vec<Placed<Peer>>| !it.is_empty();
    let server = file.server.value.as_ref();
    // Proxies that can't be read may be trusted ones.
    let by_default = server.is_none_or(|it| it.trusted_proxies.value.as_ref().is_none_or(trusts));
    let names = wanted.listener.value.as_ref();
    let is_wanted = |name: &str| names.is_none_or(|it| it.0.iter().any(|it| it.value.0 == name));
    let listeners = file.listener.value.iter().flatten().enumerate();
    let listeners: Vec<_> = listeners
        .filter(|(at, it)| is_wanted(&it.name_at(*at)))
        .collect();
    let has_trusted = listeners.iter().any(|(_, it)| {
        if it.trusted_proxies.written {
            it.trusted_proxies.value.as_ref().is_none_or(trusts)
        } else {
            by_default
        }
    });
    let is_mistaken = listeners.is_empty() || wanted.listener.written && names.is_none();
    if has_trusted || is_mistaken || report.is_syntax_broken() {
        return;
    }
    let title = match scheme {
        Scheme::Http => {
            "no listener of this route has `trusted_proxies`, so every request is `http`"
        }
        Scheme::Https => {
            "no listener of this route has `trusted_proxies`, so no request is `https`"
        }
    };
    report.warning(&wanted.scheme.place, title).help(
        "list the proxies that terminate TLS in the listener: trusted_proxies = [\"10.0.0.0/8\"]",
    );
}

macro_rules! check_actions {
    ($($(#[doc = $help:literal])* $key:ident: $type:ty => $variant:ident($resolved:ty);)*) => {
        fn check_options_of_action(route: &written::Route, report: &mut Report) {
            $(
                if let Some(it) = &route.$key.value {
                    WrittenAction::check(it, route, report);
                }
            )*
        }
    };
}
actions!(check_actions);

fn check_action(route: &written::Route, report: &mut Report) {
    let actions = route.actions();
    let words = actions.iter().map(|it| format!("`{}`", it.key));
    let words: Vec<_> = words.collect();
    let words = match &words[..] {
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
        [] => String::new(),
    };
    let mut written = actions.iter().filter(|it| it.is_written);
    match (written.next(), written.next()) {
        (None, _) if !report.is_syntax_broken() => {
            report
                .mistake(&route.place, "a route without an action")
                .help(format!("add one of {words}"));
        }
        (Some(first), Some(second)) => {
            let (one, other) = (first.key, second.key);
            report
                .mistake(
                    second.place,
                    format!("a route with two actions: `{one}` and `{other}`"),
                )
                .related(first.place, "the other one")
                .help(format!("a route has one of {words}"));
        }
        _ => {}
    }
}

fn check_references(route: &written::Route, names: &Names<'_>, report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    for upstream in route.upstreams() {
        check_upstream_name("upstream", upstream, names, report);
    }
    let matches = route.r#match.value.iter().flat_map(|it| it.each());
    let wanted = matches.filter_map(|it| it.listener.value.as_ref());
    for Placed {
        value: Text(name),
        place,
    } in wanted.flat_map(|it| &it.0)
    {
        if names.listener(name).is_none() {
            report
                .mistake(place, format!("there is no listener named `{name}`"))
                .help(format!("known listeners: {}", names.listeners.join(", ")))
                .propose(name, names.listeners.iter().map(String::as_str));
        }
    }
}

/// Reports a name that no upstream has; `key` is the key with the name.
fn check_upstream_name(key: &str, upstream: &Placed<Text>, names: &Names<'_>, report: &mut Report) {
    let Placed {
        value: Text(name),
        place,
    } = upstream;
    if names.upstream(name).is_some() {
        return;
    }
    let found = report.mistake(place, format!("there is no upstream named `{name}`"));
    if let Some(address) = endpoint_in(name) {
        let own = names.upstreams.first().copied().unwrap_or("app");
        found.help(format!(
            "name an upstream, and list its endpoints there:\n{key} = \
             \"{own}\"\n\n[upstream.{own}]\nendpoints = [\"{address}\"]"
        ));
    } else if Name::from_text(name).is_err() {
        found.help(format!(
            "write the name of an upstream, as in {key} = \"app\" for `[upstream.app]`"
        ));
    } else if names.upstreams.is_empty() {
        found.help(format!(
            "add it:\n[upstream.{name}]\nendpoints = [\"10.0.0.1:8080\"]"
        ));
    } else {
        found.help(format!("known upstreams: {}", names.upstreams.join(", ")));
        found.propose(name, names.upstreams.iter().copied());
    }
}

/// The address of an endpoint that stands in the place of an upstream's name.
fn endpoint_in(name: &str) -> Option<String> {
    let address = name.strip_prefix("http://").unwrap_or(name);
    let address = address.trim_end_matches('/');
    let is_address = address.contains(':') && EndpointAddress::from_text(address).is_ok();
    is_address.then(|| address.to_owned())
}

/// Lane, priority, timeouts and buffer are of an upstream, and the lane is one that it has.
fn check_lane(route: &written::Route, names: &Names<'_>, report: &mut Report) {
    let fields = [
        ("lane", route.lane.written, &route.lane.place),
        ("priority", route.priority.written, &route.priority.place),
        ("timeouts", route.timeouts.written, &route.timeouts.place),
        ("buffer", route.buffer.written, &route.buffer.place),
    ];
    // Files that can't be read may be meant to have one.
    let of_files = match (route.files.written, route.upstream_of_files()) {
        (true, upstream) => upstream.is_none_or(|it| it.written),
        (false, _) => false,
    };
    let has_upstream = route.upstream.written || route.split.written || of_files;
    for (key, _, place) in fields.into_iter().filter(|(_, written, _)| *written) {
        if !has_upstream && !report.is_syntax_broken() {
            report
                .mistake(place, format!("`{key}` without `upstream`"))
                .help(format!(
                    "`{key}` says how a request waits for an endpoint, but this route has no \
                     upstream"
                ));
        }
    }
    for upstream in route.upstreams() {
        check_lane_of(upstream, route, names, report);
    }
}

fn check_lane_of(
    upstream: &Placed<Text>,
    route: &written::Route,
    names: &Names<'_>,
    report: &mut Report,
) {
    let Some(Text(lane)) = &route.lane.value else {
        return;
    };
    let Some(index) = names.upstream(&upstream.value.0) else {
        return;
    };
    let Some(lanes) = names.lanes[index].as_ref() else {
        return;
    };
    if lanes.contains(&lane.as_str()) || report.is_syntax_broken() {
        return;
    }
    let upstream = &upstream.value.0;
    let found = report.mistake(
        &route.lane.place,
        format!("the upstream `{upstream}` has no lane named `{lane}`"),
    );
    if lanes.is_empty() {
        found.help(format!(
            "add it:\n[upstream.{upstream}]\nlanes = {{ {lane} = 2 }}"
        ))
    } else {
        found
            .help(format!("known lanes: {}", lanes.join(", ")))
            .propose(lane, lanes.iter().copied())
    };
}

/// A collector gets spans of traces, which a listener must look at.
fn check_otlp(file: &File, report: &mut Report) {
    if file.otlp.value.is_none() {
        return;
    }
    let listeners = file.listener.value.iter().flatten();
    let mut modes = listeners.map(|it| it.trace.value.as_ref().and_then(|it| it.0.mode.value));
    // A mode that can't be read may switch traces on.
    if !modes.any(|mode| mode != Some(Adopt::Off)) && !report.is_syntax_broken() {
        report
            .warning(
                &file.otlp.place,
                "no listener has `trace`, so no spans are sent",
            )
            .help(
                "add `trace = \"keep\"` to a listener, or `\"new\"` where clients are not trusted",
            );
    }
}
