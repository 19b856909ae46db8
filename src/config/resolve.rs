//! From the configuration as written to the one the program runs on.
//!
//! First everything that takes more than one option to see is checked, for
//! all of the configuration; only one without a mistake is then built.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use evenkeel_policy::route::{Condition, RouteTable, Rule};

use super::diagnostics::Report;
use super::setting::{Field, Map, OneOrMore, Placed};
use super::tree::Place;
use super::value::{Destination, Text, Wanted, Workers};
use super::written::{self, AccessLog as WrittenLog, Endpoint as WrittenEndpoint, File};
use super::{
    AccessLog, AccessLogFormat, Action, Address, ClientTimeouts, Config, Endpoint, Limits,
    Listener, Pool, Route, Server, Upstream, UpstreamTimeouts,
};

/// Whether the names of endpoints are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameLookup {
    /// With the system's resolver; blocks.
    System,
    /// Not at all: such an endpoint gets the address 0.0.0.0. For checks.
    Skip,
}

/// Checks `file` as a whole and builds what to run on; `None` where there is
/// a mistake in it or was one before.
pub(super) fn resolve(file: &File, lookup: NameLookup, report: &mut Report) -> Option<Config> {
    let names = Names::collect(file, report);
    check_listeners(file, report);
    check_routes(file, &names, report);
    check_upstreams(file, &names, report);
    let upstreams = upstreams(file, lookup, report);
    if report.has_mistakes() {
        return None;
    }
    let log = file.access_log.value.as_ref();
    let routes = file.route.value.as_ref()?;
    let rules = routes.iter().map(|route| rule(route, &names)).collect::<Option<_>>()?;
    let routes = routes.iter().enumerate().map(|(index, it)| self::route(it, index, &names));
    let listeners = file.listener.value.as_ref()?.iter().enumerate();
    Some(Config {
        server: server(file.server.value.as_ref()?)?,
        listeners: listeners.map(|(i, it)| listener(it, i, log)).collect::<Option<_>>()?,
        route_table: RouteTable::new(rules),
        routes: routes.collect::<Option<_>>()?,
        upstreams: upstreams?,
    })
}

/// What can be referred to by name.
struct Names<'a> {
    listeners: Vec<String>,
    upstreams: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn collect(file: &'a File, report: &mut Report) -> Self {
        let listeners = file.listener.value.iter().flatten().enumerate();
        let routes = file.route.value.iter().flatten();
        check_unique("listener", file.listener.value.iter().flatten().map(|it| &it.name), report);
        check_unique("route", routes.map(|it| &it.name), report);
        let mut upstreams: Vec<_> = file.upstream.value.iter().flat_map(|map| &map.0).collect();
        for upstream in &upstreams {
            super::setting::read_text::<super::value::Name>(&upstream.name, &upstream.place, report);
        }
        upstreams.sort_by_key(|it| &it.name);
        Self {
            listeners: listeners.map(|(index, it)| listener_name(it, index)).collect(),
            upstreams: upstreams.into_iter().map(|it| it.name.as_str()).collect(),
        }
    }

    fn listener(&self, name: &str) -> Option<usize> {
        self.listeners.iter().position(|it| it == name)
    }

    fn upstream(&self, name: &str) -> Option<usize> {
        self.upstreams.binary_search(&name).ok()
    }
}

fn listener_name(listener: &written::Listener, index: usize) -> String {
    match &listener.name.value {
        Some(name) => name.0.clone(),
        None => format!("listener-{}", index + 1),
    }
}

fn check_unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a Field<super::value::Name>>,
    report: &mut Report,
) {
    let mut first_places: HashMap<&str, &Place> = HashMap::new();
    for field in names {
        let Some(name) = &field.value else { continue };
        if let Some(first) = first_places.get(name.0.as_str()) {
            report
                .mistake(&field.place, format!("a second {what} named `{}`", name.0))
                .related(first, "the first one");
        } else {
            first_places.insert(&name.0, &field.place);
        }
    }
}

fn check_listeners(file: &File, report: &mut Report) {
    let Some(listeners) = &file.listener.value else { return };
    if listeners.is_empty() && !file.listener.written && !report.is_syntax_broken() {
        report
            .mistake_without_place("there is no listener, so no client could connect")
            .help("add one:\n[[listener]]\nbind = \":8080\"");
    }
    let mut first_places: HashMap<&Address, &Place> = HashMap::new();
    for listener in listeners {
        let Some(bind) = &listener.bind.value else { continue };
        let any_port = matches!(&bind.0, Address::Tcp(address) if address.port() == 0);
        if let Some(first) = first_places.get(&bind.0).filter(|_| !any_port) {
            report
                .mistake(&listener.bind.place, "a second listener at the same address")
                .related(first, "the first one");
        } else {
            first_places.insert(&bind.0, &listener.bind.place);
        }
    }
}

fn check_routes(file: &File, names: &Names<'_>, report: &mut Report) {
    let Some(routes) = &file.route.value else { return };
    if routes.is_empty() && !file.route.written && !report.is_syntax_broken() {
        report
            .warning_without_place("there is no route, so every request is answered 404")
            .help("add one that matches everything:\n[[route]]\nupstream = \"NAME\"");
    }
    let mut catch_all: Option<&Place> = None;
    for route in routes {
        check_action(route, report);
        check_references(route, names, report);
        check_redirect(route, report);
        if let Some(earlier) = catch_all {
            report
                .warning(route.place(), "this route is never reached")
                .related(earlier, "this one matches everything");
        } else if !route.r#match.written {
            catch_all = Some(route.place());
        }
    }
}

impl written::Route {
    /// Where it stands: the place of an option that is not written is that
    /// of the table.
    fn place(&self) -> &Place {
        let fields = [
            (self.upstream.written, &self.upstream.place),
            (self.answer.written, &self.answer.place),
        ];
        let table = fields.into_iter().find(|(written, _)| !written);
        table.map_or(&self.redirect.place, |(_, place)| place)
    }
}

fn check_action(route: &written::Route, report: &mut Report) {
    let actions = [
        ("upstream", route.upstream.written, &route.upstream.place),
        ("answer", route.answer.written, &route.answer.place),
        ("redirect", route.redirect.written, &route.redirect.place),
    ];
    let mut written = actions.iter().filter(|(_, written, _)| *written);
    match (written.next(), written.next()) {
        (None, _) if !report.is_syntax_broken() => {
            report
                .mistake(&route.upstream.place, "a route without an action")
                .help("add one of `upstream`, `answer` and `redirect`");
        }
        (Some((first, _, first_place)), Some((second, _, second_place))) => {
            report
                .mistake(second_place, format!("a route with two actions: `{first}` and `{second}`"))
                .related(first_place, "the other one")
                .help("a route has one of `upstream`, `answer` and `redirect`");
        }
        _ => {}
    }
}

fn check_references(route: &written::Route, names: &Names<'_>, report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    if let Some(Placed { value: Text(name), place }) = &route.upstream.value
        && names.upstream(name).is_none()
    {
        let found = report.mistake(place, format!("there is no upstream named `{name}`"));
        if names.upstreams.is_empty() {
            found.help(format!("add it:\n[upstream.{name}]\nendpoints = [\"10.0.0.1:8080\"]"));
        } else {
            found.help(format!("there are {}", names.upstreams.join(", ")));
            found.propose(name, names.upstreams.iter().copied());
        }
    }
    let wanted = route.r#match.value.as_ref().and_then(|it| it.listener.value.as_ref());
    for Placed { value: Text(name), place } in wanted.iter().flat_map(|it| &it.0) {
        if names.listener(name).is_none() {
            report
                .mistake(place, format!("there is no listener named `{name}`"))
                .help(format!("there are {}", names.listeners.join(", ")))
                .propose(name, names.listeners.iter().map(String::as_str));
        }
    }
}

fn check_redirect(route: &written::Route, report: &mut Report) {
    let Some(redirect) = route.redirect.value.as_ref().map(|it| &it.0) else { return };
    if let Some(status) = &redirect.status.value
        && let Some(code @ (304..=306)) = status.value.to::<u16>()
    {
        report
            .mistake(&status.place, format!("{code} is no status of a redirect"))
            .help("use 301, 302, 303, 307 or 308");
    }
    let Some(to) = &redirect.to.value else { return };
    for part in to.value.0.split('$').skip(1) {
        let len = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let word = &part[..len];
        let known = ["host", "path", "query"];
        if !word.is_empty() && !known.iter().any(|it| word.starts_with(it)) {
            report
                .warning(&to.place, format!("`${word}` stands for nothing and is sent as it is"))
                .help("there are `$host`, `$path` and `$query`");
        }
    }
}

fn check_upstreams(file: &File, names: &Names<'_>, report: &mut Report) {
    let routes = || file.route.value.iter().flatten();
    let used = |name: &str| {
        routes().any(|it| it.upstream.value.as_ref().is_some_and(|it| it.value.0 == name))
    };
    for upstream in file.upstream.value.iter().flat_map(|map| &map.0) {
        let Some(value) = &upstream.value else { continue };
        let name = &upstream.name;
        if !used(name) && names.upstream(name).is_some() && !report.is_syntax_broken() {
            report.warning(&upstream.place, format!("no route uses the upstream `{name}`"));
        }
        let Some(endpoints) = &value.endpoints.value else { continue };
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
        let weightless = |it: &Placed<WrittenEndpoint>| {
            it.value.0.weight.value.and_then(|weight| weight.to::<u32>()) == Some(0)
        };
        if endpoints.iter().all(weightless) {
            report.warning(
                &value.endpoints.place,
                format!("every endpoint of `{name}` has weight 0: every request is answered 503"),
            );
        }
        check_endpoints(name, endpoints, report);
    }
}

fn check_endpoints(upstream: &str, endpoints: &[Placed<WrittenEndpoint>], report: &mut Report) {
    let mut first_places: HashMap<&str, &Place> = HashMap::new();
    for endpoint in endpoints {
        let Some(address) = &endpoint.value.0.address.value else { continue };
        if let Some(first) = first_places.get(address.value.text.as_str()) {
            let text = &address.value.text;
            report
                .mistake(&address.place, format!("`{text}` is in the upstream `{upstream}` twice"))
                .related(first, "the first time")
                .help("give it a larger `weight` to send it more");
        } else {
            first_places.insert(&address.value.text, &address.place);
        }
    }
}

fn server(server: &written::Server) -> Option<Server> {
    let workers = match server.workers.value? {
        Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
        Workers::Count(count) => count,
    };
    Some(Server { workers, drain_timeout: server.drain_timeout.value?.0 })
}

fn listener(it: &written::Listener, index: usize, log: Option<&WrittenLog>) -> Option<Listener> {
    let limits = it.limits.value.as_ref()?;
    let timeouts = it.timeouts.value.as_ref()?;
    Some(Listener {
        name: listener_name(it, index),
        bind: it.bind.value.as_ref()?.0.clone(),
        backlog: it.backlog.value?.to()?,
        limits: Limits {
            head_bytes: usize::try_from(limits.head.value?.0).unwrap_or(usize::MAX),
            target_bytes: usize::try_from(limits.target.value?.0).unwrap_or(usize::MAX),
            body_bytes: limits.body.value.map(|size| size.0),
            connections: limits.connections.value.and_then(|count| count.to()),
        },
        timeouts: ClientTimeouts {
            head: timeouts.head.value?.0,
            body: timeouts.body.value?.0,
            idle: timeouts.idle.value?.0,
        },
        access_log: access_log(it.access_log.value.as_ref(), log),
    })
}

fn access_log(
    own: Option<&written::ListenerAccessLog>,
    global: Option<&WrittenLog>,
) -> Option<AccessLog> {
    let global = match global {
        Some(WrittenLog::On(table)) => Some(AccessLog {
            path: table.path.value.as_ref()?.0.clone(),
            format: table.format.value?,
        }),
        Some(WrittenLog::Off) | None => None,
    };
    let own = match own {
        None => return global,
        Some(written::ListenerAccessLog::Off) => return None,
        Some(written::ListenerAccessLog::On(table)) => table,
    };
    let base = global.unwrap_or_else(|| AccessLog {
        path: PathBuf::from("-"),
        format: AccessLogFormat::Combined,
    });
    Some(AccessLog {
        path: own.path.value.as_ref().map_or(base.path, |path| path.0.clone()),
        format: own.format.value.unwrap_or(base.format),
    })
}

fn rule(route: &written::Route, names: &Names<'_>) -> Option<Rule> {
    let wanted = route.r#match.value.as_ref()?;
    let mut conditions = Vec::new();
    if let Some(OneOrMore(listeners)) = &wanted.listener.value {
        let indexes = listeners.iter().map(|it| names.listener(&it.value.0));
        conditions.push(Condition::Listener(indexes.collect::<Option<_>>()?));
    }
    if let Some(OneOrMore(hosts)) = &wanted.host.value {
        conditions.push(Condition::Host(hosts.iter().map(|it| it.0.clone()).collect()));
    }
    if let Some(OneOrMore(paths)) = &wanted.path.value {
        conditions.push(Condition::Path(paths.iter().map(|it| it.0.clone()).collect()));
    }
    if let Some(OneOrMore(methods)) = &wanted.method.value {
        conditions.push(Condition::Method(methods.iter().map(|it| it.0.clone()).collect()));
    }
    if let Some(OneOrMore(networks)) = &wanted.client.value {
        conditions.push(Condition::Client(networks.iter().map(|it| it.0).collect()));
    }
    let named = |field: &Field<Map<Wanted>>| -> Option<Vec<_>> {
        let pairs = field.value.as_ref()?.0.iter();
        pairs.map(|it| Some((it.name.clone(), it.value.as_ref()?.0.clone()))).collect()
    };
    let header = |(name, value)| Condition::Header { name, value };
    let query = |(name, value)| Condition::Query { name, value };
    let cookie = |(name, value)| Condition::Cookie { name, value };
    conditions.extend(named(&wanted.header)?.into_iter().map(header));
    conditions.extend(named(&wanted.query)?.into_iter().map(query));
    conditions.extend(named(&wanted.cookie)?.into_iter().map(cookie));
    Some(Rule::new(conditions))
}

fn route(route: &written::Route, index: usize, names: &Names<'_>) -> Option<Route> {
    let name = match &route.name.value {
        Some(name) => name.0.clone(),
        None => format!("route-{}", index + 1),
    };
    Some(Route { name, action: action(route, names)? })
}

fn action(route: &written::Route, names: &Names<'_>) -> Option<Action> {
    if let Some(upstream) = &route.upstream.value {
        return names.upstream(&upstream.value.0).map(Action::Upstream);
    }
    if let Some(answer) = &route.answer.value {
        return Some(Action::Answer {
            status: answer.status.value?.to()?,
            content_type: answer.content_type.value.as_ref()?.0.clone(),
            body: answer.body.value.as_ref()?.0.clone().into_bytes(),
        });
    }
    let redirect = &route.redirect.value.as_ref()?.0;
    Some(Action::Redirect {
        status: redirect.status.value.as_ref()?.value.to()?,
        location: redirect.to.value.as_ref()?.value.0.clone(),
    })
}

/// Builds the upstreams in the order of their names, looking up names on the
/// way; goes on after a mistake, so that every one is reported.
fn upstreams(file: &File, lookup: NameLookup, report: &mut Report) -> Option<Vec<Upstream>> {
    let mut named: Vec<_> = file.upstream.value.as_ref()?.0.iter().collect();
    named.sort_by_key(|it| &it.name);
    let built: Vec<_> = named
        .into_iter()
        .map(|it| upstream(&it.name, it.value.as_ref()?, lookup, report))
        .collect();
    built.into_iter().collect()
}

fn upstream(
    name: &str,
    it: &written::Upstream,
    lookup: NameLookup,
    report: &mut Report,
) -> Option<Upstream> {
    let endpoints = it.endpoints.value.as_ref()?.iter();
    let endpoints: Vec<_> = endpoints.map(|it| endpoint(&it.value, lookup, report)).collect();
    let pool = it.pool.value.as_ref()?;
    let timeouts = it.timeouts.value.as_ref()?;
    Some(Upstream {
        name: name.to_owned(),
        balance: it.balance.value?,
        endpoints: endpoints.into_iter().collect::<Option<_>>()?,
        pool: Pool {
            max_idle: pool.max_idle.value?.to()?,
            idle_timeout: pool.idle_timeout.value?.0,
        },
        timeouts: UpstreamTimeouts {
            connect: timeouts.connect.value?.0,
            first_byte: timeouts.first_byte.value?.0,
            idle: timeouts.idle.value?.0,
            total: timeouts.total.value.map(|timeout| timeout.0),
        },
        retries: it.retries.value?.to()?,
    })
}

fn endpoint(it: &WrittenEndpoint, lookup: NameLookup, report: &mut Report) -> Option<Endpoint> {
    let written = it.0.address.value.as_ref()?;
    let address = match &written.value.destination {
        Destination::Address(address) => address.clone(),
        Destination::Host { port, .. } if lookup == NameLookup::Skip => {
            Address::Tcp(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *port))
        }
        Destination::Host { name, port } => match look_up(name, *port) {
            Ok(address) => Address::Tcp(address),
            Err(error) => {
                report
                    .mistake(&written.place, format!("look up `{name}`: {error}"))
                    .help("a name is looked up when the configuration is loaded");
                return None;
            }
        },
    };
    Some(Endpoint {
        name: written.value.text.clone(),
        address,
        weight: it.0.weight.value?.to()?,
        max_in_flight: it.0.max_in_flight.value.and_then(|count| count.to()),
    })
}

fn look_up(name: &str, port: u16) -> std::io::Result<SocketAddr> {
    let first = (name, port).to_socket_addrs()?.next();
    first.ok_or_else(|| std::io::Error::other("it has no address"))
}
