//! From the configuration as written to the one the program runs on.
//!
//! First everything that takes more than one option to see is checked, for
//! all of the configuration; only one without a mistake is then built.

mod access;
mod access_log;
mod acme;
mod auth;
mod cache;
mod captures;
mod edits;
mod errors;
mod mirror;
mod networks;
mod shared_store;
mod sticky;
mod tickets;
mod tls;
mod upstream;

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use evenkeel_policy::route::{Condition, Covered, RouteTable, Rule};

use super::action::{ActionContext, WrittenAction};
use super::check;
use super::diagnostics::{Finding, Report};
use super::diff::Written;
use super::setting::Resolve;
use super::surroundings::{NameLookup, Surroundings, read_file};
use super::tree::SourcePlace;
use super::value::Peer;
use super::written::{
    self, DiskParts, File, ListenerParts, ListenerTls, Names, OtlpParts, actions,
};
use super::{
    Action, ClientProtocol, Config, Disk, HeaderPresence, Identity, Listener, Otlp, Peers, Preread,
    ProxySenders, Route, Status, Upstream,
};
use evenkeel_net::listen::Accepting;
use evenkeel_tls::Fault;

pub use sticky::own_sticky_key;

/// Checks `file` as a whole and builds what to run on; `None` where there is
/// a mistake in it or was one before.
pub(super) fn resolve(
    file: &File,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Config> {
    let mut names = Names::collect(file);
    check::check(file, &names, report);
    let network_files = networks::read_files(file, &mut names, surroundings, report);
    let user_files = auth::read_files(file, &mut names, surroundings, report);
    if surroundings.lookup != NameLookup::Skip {
        check::surroundings::check(file, report);
    }
    if surroundings.lookup == NameLookup::System {
        check::surroundings::look_up_names(file, report);
    }
    let upstreams = upstreams(file, surroundings, report);
    let caches = cache::stores(file, &names, surroundings, report);
    let routes = routes(file, &names, surroundings, report);
    sticky::warn_of_own_key(file, surroundings, report);
    let tls = tls::listeners(file, surroundings, report);
    let tickets = tickets::resolve(file, surroundings, report);
    let acme = acme::acme(file, surroundings, report);
    let status = status(file.status.value.as_ref(), surroundings.folder, report);
    if report.has_mistakes() {
        return None;
    }
    let rules = file.route.value.as_ref()?.iter();
    let rules: Vec<_> = rules
        .map(|route| rule(route, &names))
        .collect::<Option<_>>()?;
    let https_port = tls::https_port(file);
    let acme = acme?;
    let mut tls = tls?;
    let listeners = file.listener.value.as_ref()?;
    for (index, (it, tls)) in listeners.iter().zip(&mut tls).enumerate() {
        if let Some(tls) = tls {
            tls.ordered = acme::names(it, index, &rules, acme.as_ref(), report);
            tls.is_on_demand = acme::is_on_demand(it, acme.as_ref());
        }
    }
    if report.has_mistakes() {
        return None;
    }
    let listeners = listeners.iter().zip(tls).enumerate();
    let server = file.server.value.as_ref()?;
    let trusted = server.trusted_proxies.value.as_ref()?;
    let trusted = peers(trusted.iter().map(|it| it.value));
    let (access_logs, default_access_logs) = access_log::resolve(file)?;
    let listeners: Vec<_> = listeners
        .map(|(i, (it, tls))| listener(it, i, tls, https_port, &trusted, &rules))
        .collect::<Option<_>>()?;
    let route_table = RouteTable::new(rules);
    warn_of_covered(file, &route_table, listeners.len(), report);
    Some(Config {
        server: server.resolve()?,
        state_file: (server.state_file.value.as_ref()).map(|it| surroundings.folder.join(&it.0)),
        listeners,
        route_table,
        network_files,
        user_files,
        routes: routes?,
        upstreams: upstreams?,
        caches: caches?,
        tickets: tickets?,
        disk: disk(file.disk.value.as_ref()?)?,
        status: status?,
        log: file.log.value.as_ref()?.resolve()?,
        acme,
        otlp: otlp(file.otlp.value.as_ref())?,
        // Filled in by the loader, which has the text.
        hash: 0,
        written: Written::default(),
        access_logs,
        default_access_logs,
    })
}

/// Warns of routes that no request can take.
fn warn_of_covered(file: &File, table: &RouteTable, listeners: usize, report: &mut Report) {
    let routes = file.route.value.as_deref().unwrap_or_default();
    let first_for_all = routes.iter().position(|it| {
        let wanted = it.r#match.value.as_ref();
        wanted.is_some_and(|it| it.takes_everything())
    });
    for Covered { rule, by } in table.covered(listeners) {
        // The check of routes has already reported this.
        if first_for_all.is_some_and(|it| it < rule) {
            continue;
        }
        report
            .warning(&routes[rule].place, "this route is never reached")
            .related(&routes[by].place, "this route matches all of its requests");
    }
}

/// Shortest token that is not guessed by trying, in bytes.
const MIN_TOKEN_LEN: usize = 16;

fn status(
    written: Option<&written::Status>,
    folder: &Path,
    report: &mut Report,
) -> Option<Option<Status>> {
    let table = match written {
        None | Some(written::Status::Off) => return Some(None),
        Some(written::Status::On(table)) => table,
    };
    let token = match &table.token_file.value {
        None => None,
        Some(file) => {
            let path = folder.join(&file.0);
            warn_of_readers(&path, &table.token_file.place, "the token", report);
            let bytes = match read_file(&path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    let found = report_unreadable(&path, &table.token_file.place, &error, report);
                    if error.kind() == ErrorKind::NotFound {
                        let path = path.display();
                        found.help(format!(
                            "create it: `(umask 077; openssl rand -hex 16 > {path})`"
                        ));
                    }
                    return None;
                }
            };
            let text = String::from_utf8(bytes).unwrap_or_default();
            let token = text.trim();
            let is_token =
                token.len() >= MIN_TOKEN_LEN && token.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_token {
                report
                    .mistake(
                        &table.token_file.place,
                        format!("{} contains no token", path.display()),
                    )
                    .help(
                        "a token is one line of at least 16 letters and digits, as from `openssl \
                        rand -hex 16`",
                    );
                return None;
            }
            Some(token.to_owned())
        }
    };
    let bind = table.bind.value.as_ref()?.0.clone();
    Some(Some(Status { bind, token }))
}

/// Reports a file that cannot be read, with advice where another user may read it.
fn report_unreadable<'a>(
    path: &Path,
    place: &SourcePlace,
    error: &io::Error,
    report: &'a mut Report,
) -> &'a mut Finding {
    let path = path.display();
    let found = report.mistake(place, format!("read {path}: {error}"));
    if error.kind() == ErrorKind::PermissionDenied {
        found.help(may_read(path));
    }
    found
}

/// Advice on a file that this user may not read.
fn may_read(path: impl Display) -> String {
    let user = super::machine::user();
    format!("let user {user} read it: `chown {user} {path}`")
}

/// Reports a key file that cannot be used. The advice makes one of `random_bytes`.
fn report_key(
    path: &Path,
    place: &SourcePlace,
    error: &evenkeel_tls::Error,
    random_bytes: u32,
    report: &mut Report,
) {
    let shown = path.display();
    let help = match &error.fault {
        Fault::Unreadable(error) if error.kind() == ErrorKind::PermissionDenied => may_read(shown),
        Fault::NotRegular => "name a file".to_owned(),
        _ => format!(
            "create it, and copy it to each machine: `(umask 077; openssl rand {random_bytes} > \
             {shown})`"
        ),
    };
    report.mistake(place, error.to_string()).help(help);
}

/// Warns of a file with a secret that other users may read.
fn warn_of_readers(path: &Path, place: &SourcePlace, secret: &str, report: &mut Report) {
    if others_may_read(path) {
        warn_of_secret(secret, path, place, report);
    }
}

fn others_may_read(path: &Path) -> bool {
    /// Reading, for everybody (chmod(1)).
    const OTHERS_READ: u32 = 0o004;
    let found = std::fs::metadata(path);
    found.is_ok_and(|it| it.is_file() && it.mode() & OTHERS_READ != 0)
}

/// Warns that other users may read a secret, which is in the file `path`.
fn warn_of_secret(secret: &str, path: &Path, place: &SourcePlace, report: &mut Report) {
    report
        .warning(
            place,
            format!("every user of this machine can read {secret}"),
        )
        .help(format!("chmod 600 {}", path.display()));
}

/// `default` is the server's `trusted_proxies`.
fn listener(
    it: &written::ListenerTable,
    index: usize,
    tls: Option<ListenerTls>,
    https_port: u16,
    default: &Peers,
    rules: &[Rule],
) -> Option<Listener> {
    it.resolve_with(ListenerParts {
        name: it.name_at(index),
        accepting: Accepting {
            backlog: it.backlog.value?.get(),
            is_deferred: it.defer_accept.value?,
        },
        proxy_protocol: match &it.proxy_protocol.value {
            None => ProxySenders::default(),
            Some(table) => ProxySenders {
                from: peers(table.from.value.as_ref()?.0.iter().map(|it| it.value)),
                presence: if table.optional.value? {
                    HeaderPresence::Optional
                } else {
                    HeaderPresence::Required
                },
            },
        },
        trusted_proxies: match &it.trusted_proxies.value {
            None => default.clone(),
            Some(own) => peers(own.iter().map(|it| it.value)),
        },
        identity: identity(it)?,
        preread: match it.protocol.value? {
            ClientProtocol::Http => Preread::default(),
            // The name that a client asks for is known from the handshake.
            ClientProtocol::Tcp => Preread {
                client_hello: tls.is_none() && preread(index, rules).client_hello,
                ..preread(index, rules)
            },
        },
        tls,
        redirect_to_https: it
            .redirect_to_https
            .value?
            .then(|| tls::redirect(https_port)),
    })
}

/// The bytes that the rules of this listener's connections have conditions on.
fn preread(listener: usize, rules: &[Rule]) -> Preread {
    let mut preread = Preread::default();
    let rules = rules.iter().filter(|it| it.may_meet(listener));
    for condition in rules.flat_map(Rule::every_condition) {
        match condition {
            Condition::Sni(_) | Condition::Alpn(_) => preread.client_hello = true,
            Condition::FirstBytes(wanted) => preread.beginnings.extend(wanted.0.iter().cloned()),
            _ => {}
        }
    }
    preread.beginnings.sort();
    preread.beginnings.dedup();
    preread
}

fn peers(written: impl Iterator<Item = Peer>) -> Peers {
    let mut peers = Peers::default();
    for peer in written {
        match peer {
            Peer::In(network) => peers.networks.push(network),
            Peer::Unix => peers.has_unix = true,
        }
    }
    peers
}

fn identity(it: &written::ListenerTable) -> Option<Identity> {
    let request_id = &it.request_id.value.as_ref()?.0;
    let trace = &it.trace.value.as_ref()?.0;
    Some(Identity {
        request_id: request_id.mode.value?,
        respond: request_id.respond.value?,
        trace: trace.mode.value?,
        sample_ppm: (trace.sample.value?.0 * 1e6).round() as u32,
    })
}

/// `None` is a mistake, `Some(None)` no collector.
fn otlp(written: Option<&written::OtlpTable>) -> Option<Option<Otlp>> {
    let Some(it) = written else {
        return Some(None);
    };
    let url = it.url.value.as_ref()?;
    let parts = OtlpParts {
        authority: url.authority.clone(),
        path: url.path.clone(),
    };
    it.resolve_with(parts).map(Some)
}

fn rule(route: &written::Route, names: &Names<'_>) -> Option<Rule> {
    let wanted = route.r#match.value.as_ref()?;
    wanted.conditions(names).map(Rule::new)
}

/// Builds the routes, reading files on the way. It goes on after a mistake, so that every one
/// is reported.
fn routes(
    file: &File,
    names: &Names<'_>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Vec<Route>> {
    let routes = file.route.value.as_ref()?.iter().enumerate();
    let built: Vec<_> = routes
        .map(|(index, it)| {
            let edits = edits::edits(it, file)?;
            let path_regexes = captures::path_regexes(it, file, || rule(it, names), report);
            let sticky = sticky::sticky(it, surroundings, report);
            let error_pages = errors::pages(it, names, surroundings, report);
            Some(Route {
                name: it.name_at(index),
                action: action(it, names, surroundings, report)?,
                cache: cache::caching(it, edits.as_deref(), names)?,
                path_regexes: path_regexes?,
                edits,
                sticky: sticky?,
                error_pages: error_pages?,
                timeouts: match &it.timeouts.value {
                    Some(table) => Some(Box::new(table.resolve()?)),
                    None => None,
                },
                buffer: match &it.buffer.value {
                    Some(switch) => Some(switch.resolve()?),
                    None => None,
                },
                access: access::access(it, names)?,
                auth: auth::auth(it, names)?,
                mirror: mirror::mirror(it, names)?,
                limits: match &it.limit.value {
                    Some(limits) => limits.resolve()?.into(),
                    None => Box::default(),
                },
                bandwidth: match &it.bandwidth.value {
                    Some(bounds) => bounds.resolve()?.into(),
                    None => Box::default(),
                },
                compression: match it.compression() {
                    Some(compression) => Some(Box::new(compression.resolve()?)),
                    None => None,
                },
                coded_requests: it.coded_requests.value?,
            })
        })
        .collect();
    built.into_iter().collect()
}

/// The action of the route, from the first written one. A second action has been reported as a
/// mistake.
macro_rules! resolve_action {
    ($($(#[doc = $help:literal])* $key:ident: $type:ty => $variant:ident($resolved:ty);)*) => {
        fn action(
            route: &written::Route,
            names: &Names<'_>,
            surroundings: Surroundings<'_>,
            report: &mut Report,
        ) -> Option<Action> {
            let around = ActionContext { route, names, surroundings };
            let actions = [$(
                route.$key.value.as_ref().map(|it| {
                    WrittenAction::resolve(it, around, report).map(Action::$variant)
                }),
            )*];
            actions.into_iter().flatten().next()?
        }
    };
}
actions!(resolve_action);

/// Builds the upstreams in the order of their names, with name lookups and reads of files. It
/// goes on after a mistake, so that every one is reported.
fn upstreams(
    file: &File,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Vec<Upstream>> {
    let mut named: Vec<_> = file.upstream.value.as_ref()?.0.iter().collect();
    named.sort_by_key(|it| &it.name);
    let built: Vec<_> = named
        .into_iter()
        .map(|it| upstream::resolve(&it.name, it.value.as_ref()?, surroundings, report))
        .collect();
    built.into_iter().collect()
}

fn disk(it: &written::DiskTable) -> Option<Disk> {
    let queue = it.queue.value.as_ref()?;
    it.resolve_with(DiskParts {
        queue_max: queue.max.value?.get(),
        queue_timeout: queue.timeout.value?.0,
    })
}
