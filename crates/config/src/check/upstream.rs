//! The checks of upstreams.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evenkeel_net::Address;
use evenkeel_policy::balance::{Balance, WeightMode};
use evenkeel_policy::queue::Discipline;

use super::super::diagnostics::Report;
use super::super::machine;
use super::super::queue_answer;
use super::super::setting::{Bounded, Map, Named, Placed};
use super::super::shape::alternatives;
use super::super::tree::SourcePlace;
use super::super::value::{Destination, EndpointAddress, Name};
use super::super::written::{
    self, File, Names, QueueTable, RequestKey, RequestKeyText, ShortEndpoint, Switch, UpstreamTable,
};
use super::health;
use crate::{EndpointProtocol, ResolveTo};

/// Reports contradictions and doubts in the upstreams of `file`.
pub(super) fn check(file: &File, names: &Names<'_>, report: &mut Report) {
    for upstream in file.upstream.value.iter().flat_map(|map| &map.0) {
        let Some(value) = &upstream.value else {
            continue;
        };
        let name = &upstream.name;
        let mut routes = file.route.value.iter().flatten();
        let asks = |it: &written::Route| it.auth_upstream().is_some_and(|it| it.value.0 == *name);
        let shows = |it: &written::Route| it.page_upstreams().any(|it| it.value.0 == *name);
        let copies =
            |it: &written::Route| it.mirror_upstream().is_some_and(|it| it.value.0 == *name);
        if !routes.any(|it| it.may_use(name) || asks(it) || copies(it) || shows(it))
            && names.upstream(name).is_some()
            && !report.is_syntax_broken()
        {
            report.warning(
                &upstream.place,
                format!("no route uses the upstream `{name}`"),
            );
        }
        check_lane_use(upstream, file, report);
        check_balance(value, report);
        check_queue(value, report);
        check_protocol(value, report);
        if let Some(health) = &value.health.value {
            health::check(health, report);
        }
        let Some(endpoints) = &value.endpoints.value else {
            continue;
        };
        if endpoints.is_empty() && value.endpoints_file.written {
            continue;
        }
        if endpoints.is_empty() {
            // An item that is itself mistaken has been left out of the list.
            if !report.has_mistakes() {
                report.warning(
                    &upstream.place,
                    format!("the upstream `{name}` has no endpoint: every request is answered 503"),
                );
            }
            continue;
        }
        check_weights(name, value, endpoints, report);
        check_endpoints(name, endpoints, report);
        check_tiers(endpoints, report);
        check_names(endpoints, report);
        check_loops(endpoints, file, report);
        check_lanes(value, endpoints, report);
        check_probed_port(value, endpoints, report);
    }
}

/// Reports options that contradict the protocol of the endpoints.
fn check_protocol(upstream: &UpstreamTable, report: &mut Report) {
    let place = &upstream.protocol.place;
    match upstream.protocol.value {
        Some(EndpointProtocol::Http2 | EndpointProtocol::Either)
            if upstream.proxy_protocol.written =>
        {
            report
                .mistake(
                    &upstream.proxy_protocol.place,
                    "a PROXY header names one client, but an HTTP/2 connection carries many",
                )
                .related(place, "HTTP/2 is chosen here")
                .help("leave out one of them; the headers of `forward` also name the client");
        }
        Some(EndpointProtocol::Either) if !matches!(upstream.tls.value, Some(Switch::On(_))) => {
            report
                .mistake(
                    place,
                    "`auto` negotiates in the TLS handshake, but this upstream has no `tls`",
                )
                .help(
                    "add `tls = true`, or write \"h2\" for endpoints that speak HTTP/2 without TLS",
                );
        }
        _ => {}
    }
}

fn check_lane_use(upstream: &Named<Name, UpstreamTable>, file: &File, report: &mut Report) {
    let lanes = upstream.value.iter().flat_map(|it| &it.lanes.value);
    for lane in lanes.flat_map(|map| &map.0) {
        let uses = |route: &written::Route| {
            let wanted = route.lane.value.as_ref();
            route.may_use(&upstream.name) && wanted.is_some_and(|it| it.0 == lane.name)
        };
        if !file.route.value.iter().flatten().any(uses) && !report.is_syntax_broken() {
            report.warning(
                &lane.place,
                format!("no route uses the lane `{}`", lane.name),
            );
        }
    }
}

/// Options of one balancer are not written for another.
fn check_balance(upstream: &UpstreamTable, report: &mut Report) {
    if let Some(balance) = upstream.balance.value {
        let word = balance.word();
        if upstream.fair.written && !matches!(balance, Balance::Fair(_)) {
            report
                .mistake(
                    &upstream.fair.place,
                    format!("the balancer `{word}` has no `fair` options"),
                )
                .help("leave out `fair`, or write balance = \"fair\"");
        }
        if upstream.key.written && !balance.takes_key() {
            let with_key = Balance::ALL.iter().filter(|it| it.takes_key());
            let with_key: Vec<_> = with_key.map(|it| format!("\"{}\"", it.word())).collect();
            let with_key = alternatives(&with_key);
            report
                .mistake(
                    &upstream.key.place,
                    format!("the balancer `{word}` uses no key"),
                )
                .help(format!("leave out `key`, or set `balance` to {with_key}"));
        }
    }
    let Some(fair) = &upstream.fair.value else {
        return;
    };
    let mode = fair.weight_mode.value;
    if fair.status.written && mode.is_some_and(|it| it != WeightMode::Peak) {
        report
            .mistake(&fair.status.place, "this status is never sent")
            .help("`fair` refuses requests only with weight_mode = \"peak\"");
    }
}

fn check_queue(upstream: &UpstreamTable, report: &mut Report) {
    let Some(queue) = upstream.queue.value.as_ref() else {
        return;
    };
    let is_none = queue.max.value.map(Bounded::get) == Some(0);
    if upstream.is_peak() && upstream.queue.written && !is_none {
        let mode = upstream.fair.value.as_ref().map(|it| &it.weight_mode.place);
        let found = report.mistake(
            &upstream.queue.place,
            "weight_mode = \"peak\" refuses requests, so a queue is never used",
        );
        found.help("leave out `queue`, or choose another `weight_mode`");
        if let Some(mode) = mode {
            found.related(mode, "`peak` is chosen here");
        }
    }
    let is_fifo = queue.discipline.value == Some(Discipline::Fifo);
    if queue.target.written && is_fifo {
        report
            .mistake(&queue.target.place, "the discipline `fifo` has no target")
            .help("leave out `target`, or write discipline = \"adaptive-lifo\" or \"codel\"");
    } else if queue.target.value.is_some_and(|it| it.0.is_zero()) {
        report
            .mistake(&queue.target.place, "a `target` of 0 is always exceeded")
            .help("write the longest wait that is normal, such as \"100ms\"");
    }
    check_sharing(queue, report);
    if let Some(answer) = &queue.answer.value {
        queue_answer::check(answer, report);
    }
}

fn check_sharing(queue: &QueueTable, report: &mut Report) {
    let Some(RequestKeyText(key)) = &queue.fair_by.value else {
        return;
    };
    let place = &queue.fair_by.place;
    if queue.max.value.map(Bounded::get) == Some(0) {
        let found = report.mistake(place, "`fair_by` needs a queue, but `max` is 0");
        found
            .help("leave out `fair_by`, or allow requests to wait, as in max = 1000")
            .related(&queue.max.place, "no queue");
    }
    if queue.discipline.value == Some(Discipline::AdaptiveLifo) {
        let found = report.mistake(
            place,
            "`fair_by` serves keys in turn, but this discipline serves the newest request first",
        );
        found
            .help("leave out `discipline`, or write discipline = \"codel\"")
            .related(&queue.discipline.place, "the newest first");
    }
    if let RequestKey::Text(text) = key
        && let Some(name) = text.captures().next()
    {
        let what = format!(
            "`{{capture:{name}}}` belongs to the path of one route, but all routes share the queue"
        );
        report.mistake(place, what).help(
            "write \"client\", or a text that works for every route, such as \
             \"{header:X-Api-Key}\"",
        );
    }
}

fn check_weights(
    name: &str,
    upstream: &UpstreamTable,
    endpoints: &[Placed<ShortEndpoint>],
    report: &mut Report,
) {
    let is_weightless =
        |it: &Placed<ShortEndpoint>| it.value.0.weight.value.map(Bounded::get) == Some(0);
    if !upstream.endpoints_file.written && endpoints.iter().all(is_weightless) {
        report
            .mistake(
                &upstream.endpoints.place,
                format!("every endpoint of `{name}` has weight 0, so none gets a request"),
            )
            .help("give one of them a larger `weight`");
    }
}

fn check_endpoints(upstream: &str, endpoints: &[Placed<ShortEndpoint>], report: &mut Report) {
    let mut first_places: HashMap<&str, &SourcePlace> = HashMap::new();
    for endpoint in endpoints {
        let Some(address) = &endpoint.value.0.address.value else {
            continue;
        };
        if let Some(first) = first_places.get(address.value.text.as_str()) {
            let text = &address.value.text;
            report
                .mistake(
                    &address.place,
                    format!("`{text}` is in the upstream `{upstream}` twice"),
                )
                .related(first, "the first time")
                .help("give it a larger `weight` to send it more");
        } else {
            first_places.insert(&address.value.text, &address.place);
        }
    }
}

/// Reports options for names on endpoints that have an address.
fn check_names(endpoints: &[Placed<ShortEndpoint>], report: &mut Report) {
    for Placed {
        value: ShortEndpoint(it),
        ..
    } in endpoints
    {
        if it.srv.written && it.address.written {
            report
                .mistake(
                    &it.address.place,
                    "an endpoint with an address and a service",
                )
                .related(&it.srv.place, "the service")
                .help("the DNS records of the service give the addresses: leave out `address`");
        }
        // The effective configuration may write the default.
        let weight = it.weight.value.map(Bounded::get);
        if it.srv.written && weight.is_some_and(|it| it != 1) {
            report
                .mistake(
                    &it.weight.place,
                    "the DNS records of a service give the weights",
                )
                .help("leave out `weight`");
        }
        let address = it.address.value.as_ref();
        let is_fixed =
            |it: &Placed<EndpointAddress>| matches!(it.value.destination, Destination::Address(_));
        if !address.is_some_and(is_fixed) || it.srv.written {
            continue;
        }
        let of_names = [
            (
                "resolve",
                it.resolve.value == Some(ResolveTo::One),
                &it.resolve.place,
            ),
            ("family", it.family.written, &it.family.place),
        ];
        for (key, _, place) in of_names.into_iter().filter(|(_, is_said, _)| *is_said) {
            report
                .mistake(
                    place,
                    format!("`{key}` applies only to names that are looked up"),
                )
                .help(format!("leave out `{key}`"));
        }
    }
}

fn check_tiers(endpoints: &[Placed<ShortEndpoint>], report: &mut Report) {
    for endpoint in endpoints {
        let ShortEndpoint(it) = &endpoint.value;
        let tier = it.tier.value.map(Bounded::get);
        if it.backup.value == Some(true) && it.tier.written && tier == Some(0) {
            report
                .mistake(&it.tier.place, "a backup has tier 1 or higher")
                .related(&it.backup.place, "`backup` is here")
                .help("leave out `tier` or `backup`");
        }
    }
}

/// An endpoint that is one of the listeners gets its own requests back.
fn check_loops(endpoints: &[Placed<ShortEndpoint>], file: &File, report: &mut Report) {
    let binds = || {
        let listeners = file.listener.value.iter().flatten();
        listeners.filter_map(|it| Some((&it.bind.value.as_ref()?.0, &it.bind.place)))
    };
    for endpoint in endpoints {
        let Some(address) = &endpoint.value.0.address.value else {
            continue;
        };
        let leads_to = |bind: &Address| leads_to(&address.value.destination, bind);
        if let Some((_, bind)) = binds().find(|(bind, _)| leads_to(bind)) {
            report
                .warning(&address.place, "this endpoint is the proxy itself")
                .related(bind, "requests sent there come back to this listener")
                .help("name the server behind the proxy; requests that loop are answered 508");
        }
    }
}

/// Whether a connection to an endpoint is one to the listener at `bind`. Names are
/// not looked up.
fn leads_to(endpoint: &Destination, bind: &Address) -> bool {
    let (ip, port) = match (endpoint, bind) {
        (Destination::Address(Address::Unix(path)), Address::Unix(bind)) => return path == bind,
        (Destination::Address(Address::Tcp(address)), _) => {
            (address.ip().to_canonical(), address.port())
        }
        (Destination::Host { name, port }, _) if name.eq_ignore_ascii_case("localhost") => {
            (Ipv4Addr::LOCALHOST.into(), *port)
        }
        _ => return false,
    };
    // The kernel takes a connection to no address as one to this machine.
    let ip = match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let Address::Tcp(bind) = bind else {
        return false;
    };
    let covers_all = bind.ip().is_unspecified() && (bind.is_ipv6() || ip.is_ipv4());
    let is_own = || ip.is_loopback() || machine::has_address(ip);
    bind.port() == port && (bind.ip() == ip || covers_all && is_own())
}

/// A lane is a part of the slots: there must be a number of them.
fn check_lanes(upstream: &UpstreamTable, endpoints: &[Placed<ShortEndpoint>], report: &mut Report) {
    let Some(Map(lanes)) = &upstream.lanes.value else {
        return;
    };
    let limits = endpoints.iter().map(|it| &it.value.0.max_in_flight);
    let unlimited = endpoints
        .iter()
        .find(|it| !it.value.0.max_in_flight.written);
    if let (false, Some(endpoint)) = (lanes.is_empty(), unlimited) {
        report
            .mistake(
                &upstream.lanes.place,
                "`lanes` divides the slots of an upstream, but an endpoint has no limit of slots",
            )
            .related(&endpoint.place, "this endpoint has no `max_in_flight`")
            .help("give every endpoint a `max_in_flight`, or leave out `lanes`");
        return;
    }
    let Some(slots) = limits
        .map(|it| it.value.map(|it| u64::from(it.get())))
        .sum::<Option<u64>>()
    else {
        return;
    };
    for lane in lanes {
        let Some(Placed { value, place }) = &lane.value else {
            continue;
        };
        let width = u64::from(value.get());
        if width > slots {
            report
                .mistake(
                    place,
                    format!("the lane `{}` has more slots than its upstream", lane.name),
                )
                .label(format!("{width}, but the upstream has {slots} slots"))
                .help(format!(
                    "write at most {slots}, which is the sum of `max_in_flight` of all endpoints"
                ));
        }
    }
}

fn check_probed_port(
    upstream: &UpstreamTable,
    endpoints: &[Placed<ShortEndpoint>],
    report: &mut Report,
) {
    let Some(health) = upstream.health.value.as_ref().filter(|it| it.port.written) else {
        return;
    };
    let is_unix = |it: &&Placed<ShortEndpoint>| {
        let address = it.value.0.address.value.as_ref();
        address.is_some_and(|it| {
            matches!(it.value.destination, Destination::Address(Address::Unix(_)))
        })
    };
    if let Some(endpoint) = endpoints.iter().find(is_unix) {
        report
            .mistake(&health.port.place, "a Unix socket has no port")
            .related(&endpoint.place, "this endpoint is a Unix socket")
            .help("leave out `port`");
    }
}
