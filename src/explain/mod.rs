//! `evenkeel explain`: the fate of a request, and the reasons, step by step.
//!
//! Owns how the steps ([`Explanation`]) are found. The decisions come from the code that serves
//! requests. [`asked`] makes a request from a command line, [`text`] shows the steps, and
//! [`live`] has the running process find them.

pub mod asked;
pub mod live;
mod presence;
mod steps;
pub mod text;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_cache::Usable;
use evenkeel_cache::freshness::OnError;
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Dispatcher, Outlook, Pin, SlotRequest};
use evenkeel_policy::limit::Quota;
use evenkeel_policy::route::{Access, BalanceKey, Check, Condition, Facts, Trial};
use evenkeel_proto::client_hello::ClientHello;
use evenkeel_proto::http1::edit::EditKind;
use evenkeel_proto::http1::write::{self, ClientInfo, Relayed};
use evenkeel_proto::http1::{Parsed, parse_request};
use evenkeel_proto::proxy_protocol::Version;
use evenkeel_proto::{FieldKind, LoopId, RequestError, RequestHead, Scheme};

use crate::cache::Cache;
use crate::client::http1::check_limits;
use crate::config::{
    self, Action, Caching, Candidate, ClientProtocol, CodedRequests, Config, ErrorPage, Errors,
    FieldEdit, LimitBound, Mirror, Proxying, ResponseCompression, Split, Sticky, without_passwords,
};
use crate::exchange::answer::refusal_status;
use crate::exchange::bandwidth::bandwidth_text;
use crate::exchange::compression::{is_coded, wanted_coding};
use crate::exchange::edits::{changed_target, edit_request, set_request_fields};
use crate::exchange::identity::{IdSource, Identity, ROOM, loop_id};
use crate::exchange::limits::standing_of;
use crate::exchange::remote::{RelayedClient, Remote};
use crate::exchange::request_key::{Keyed, hash_of, key_text, key_text_or_client};
use crate::exchange::sticky;
use crate::exchange::variables::Values;
use crate::exchange::{Moment, SetField, TlsClient, refused_end};
use crate::handler::cache::{self, CacheNow};
use crate::handler::files::{FilesPlan, Try, WantedFile, fallback};
use crate::handler::redirect;
use crate::handler::split::weighted_part;
use crate::handler::{self, ConnectionFacts, Plan, RequestFacts};
use crate::limits::{RouteLimit, RouteLimits};
use crate::maintenance::Maintenance;
use crate::metrics::end::{End, Failure};
use crate::net::Address;
use crate::net::clock;
use crate::observe::calendar::unix_time;
use crate::observe::figures::{EndpointStatus, effective_weight};
use crate::upstream::{SharedUpstream, explained_endpoint};
use asked::ExplainedRequest;
pub use steps::{
    AbsentStep, AccessStep, ActionStep, AnswerStep, AskedEndpointStep, CacheStep, CandidateStep,
    ConditionStep, EndpointStep, Explanation, FairStep, FilesStep, KeyStep, LaneStep, LearnedStep,
    ListenerStep, NowStep, QueueStep, ReadingStep, RedirectStep, Refused, RelayedStep, RouteStep,
    SourceStep, StickyStep, TimeoutsStep, Unexplained, UpstreamStep, WorkerStep,
};

impl Refused {
    fn new(end: End, upstream: Option<&config::Upstream>) -> Self {
        Refused {
            status: refusal_status(end, upstream),
            word: end.word().to_owned(),
            text: end.text().to_owned(),
        }
    }
}

/// Says what `asked` gets on this configuration.
///
/// # Errors
/// It asks for something that the configuration does not have.
pub fn explain(config: &Config, asked: &ExplainedRequest) -> Result<Explanation, Unexplained> {
    explain_on(config, None, RuntimeState::default(), asked).map(|(explanation, _)| explanation)
}

/// State of the running process between requests; empty without one.
#[derive(Clone, Copy, Default)]
struct RuntimeState<'a> {
    caches: &'a [Arc<Cache>],
    limits: Option<&'a RouteLimits>,
    maintenance: Option<&'a Maintenance>,
}

/// Explains with the present state of a running process: its dispatchers, and what it keeps.
/// Returns also what its workers need to add their part.
fn explain_on(
    config: &Config,
    running: Option<&[Arc<Dispatcher>]>,
    kept: RuntimeState<'_>,
    asked: &ExplainedRequest,
) -> Result<(Explanation, Option<Prospect>), Unexplained> {
    let (listener, why) = find_listener(config, asked)?;
    let settings = &config.listeners[listener];
    let protocol = match asked.connection {
        None => ClientProtocol::Http,
        Some(_) => ClientProtocol::Tcp,
    };
    if settings.protocol != protocol {
        let name = settings.name.clone();
        return Err(match settings.protocol {
            ClientProtocol::Tcp => Unexplained::Tcp { name },
            ClientProtocol::Http => Unexplained::Http { name },
        });
    }
    // As an accepted connection has it.
    let client = match asked.client {
        Some(address) => Some(address.to_canonical()),
        None if settings.bind.is_unix() => None,
        None => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    let peer = Remote::new(client, 0);
    let mut explanation = Explanation {
        request: asked.title.clone(),
        is_connection: asked.connection.is_some(),
        client: peer.to_string(),
        relayed: None,
        not_believed: Vec::new(),
        live: running.is_some(),
        draining: false,
        listener: ListenerStep {
            name: settings.name.clone(),
            bind: settings.bind.to_string(),
            why,
        },
        routes: Vec::new(),
        not_reached: Vec::new(),
        readings: Vec::new(),
        cache: None,
        compression: None,
        mirror: None,
        error_pages: Vec::new(),
        is_redirected_to_https: false,
        action: None,
        access: None,
        auth: None,
        limits: Vec::new(),
        bandwidth: Vec::new(),
        response_edits: Vec::new(),
        refused: None,
    };
    let prospect = match &asked.connection {
        None => {
            let of_process = (running, kept);
            explain_request(config, of_process, asked, &peer, listener, &mut explanation)
        }
        Some(connection) => {
            let hello = ClientHello::new(&connection.server_name, &connection.protocols);
            let facts = ConnectionFacts {
                listener,
                client: peer.address,
                first: connection.first_bytes.as_bytes(),
                hello: hello.as_ref(),
                tls: None,
                moment: Moment::default(),
            };
            explain_connection(config, running, &facts, &mut explanation)
        }
    };
    Ok((explanation, prospect))
}

/// Explains what becomes of a connection of TCP; what an upstream is asked with, if it
/// comes to one.
fn explain_connection(
    config: &Config,
    running: Option<&[Arc<Dispatcher>]>,
    facts: &ConnectionFacts<'_>,
    explanation: &mut Explanation,
) -> Option<Prospect> {
    explain_routes(config, facts, explanation);
    let Ok((route, proxying)) = facts.find_route(config) else {
        explanation.refused = Some(Refused::new(Failure::NoRoute.into(), None));
        return None;
    };
    explanation.access = access_step(&config.routes[route], facts.client);
    if explanation.access.as_ref().is_some_and(|it| !it.is_allowed) {
        explanation.refused = Some(Refused::new(Failure::Denied.into(), None));
        return None;
    }
    let key = BalanceKey::Client;
    let prospect = prospect_of(proxying, key.hash(facts));
    let settings = &config.upstreams[proxying.upstream];
    let takes_key = settings.balance.takes_key();
    let key = takes_key.then(|| key_step(&key, prospect.asking.key, facts, facts.client));
    let header = settings.proxy_protocol.map(|version| {
        let version = match version {
            Version::V1 => 1,
            Version::V2 => 2,
        };
        format!("a PROXY protocol header, version {version}, then the client's bytes")
    });
    let gets = header.into_iter().collect();
    let mut step = upstream_step(config, running, &prospect, key, gets);
    if let Some(fair) = &mut step.queue.fair_by {
        fair.key = Remote::new(facts.client, 0).to_string();
    }
    step.timeouts.first_byte_ms = None;
    step.timeouts.idle_ms = millis(settings.timeouts.tcp_idle);
    explanation.action = Some(ActionStep::Upstream(Box::new(step)));
    Some(prospect)
}

/// Explains what becomes of the request; what an upstream is asked with, if it comes
/// to one.
fn explain_request(
    config: &Config,
    (running, kept): (Option<&[Arc<Dispatcher>]>, RuntimeState<'_>),
    asked: &ExplainedRequest,
    peer: &Remote,
    listener: usize,
    explanation: &mut Explanation,
) -> Option<Prospect> {
    let settings = &config.listeners[listener];
    let bytes = asked.request.as_bytes();
    let mut head = RequestHead::default();
    let parsed = parse_request(bytes, &mut head).and_then(|parsed| match parsed {
        Parsed::Complete => check_limits(&settings.limits, &head),
        // Every line of it is there, so that only a limit is left.
        Parsed::Partial => Err(RequestError::HeadTooLarge),
    });
    if let Err(error) = parsed {
        explanation.refused = Some(Refused::new(error.into(), None));
        return None;
    }
    let trusted = &settings.trusted_proxies;
    let relayed = trusted.contains(peer.address).then(|| {
        let mut relayed = RelayedClient::new(peer);
        relayed.read(peer, trusted, bytes, &head);
        relayed
    });
    let remote = relayed.as_ref().map_or(*peer, |it| it.remote);
    let scheme = relayed.as_ref().and_then(RelayedClient::scheme);
    let tls = settings.tls.as_ref().map(|_| TlsClient {
        // A client names the host by TLS too (SNI).
        server_name: String::from_utf8_lossy(head.host_name(bytes)).into(),
        identities: Vec::new(),
        certificate_field: None,
        is_early: false,
        handshake_deadline: u64::MAX,
    });
    let facts = RequestFacts {
        bytes,
        head: &head,
        listener,
        client: remote.address,
        scheme: scheme.unwrap_or(match settings.tls {
            Some(_) => Scheme::Https,
            None => Scheme::Http,
        }),
        tls: tls.as_ref(),
        moment: Moment::default(),
    };
    let relayed = relayed.as_ref().map(RelayedClient::relayed);
    explanation.not_believed = not_believed(asked, &facts, relayed);
    explanation.relayed = relayed.is_some().then(|| RelayedStep {
        client: remote.to_string(),
        scheme: facts.scheme.as_str().to_owned(),
    });
    let found = handler::find_route(&config.route_table, &name_of(running), &facts);
    let of_listener = &config.listeners[facts.listener];
    if let Some(to) = handler::redirect_to_https(of_listener, &facts, &found) {
        let remote = Remote::new(facts.client, 0);
        let values = values(config, &facts, None, &remote, &Identity::NONE);
        explanation.is_redirected_to_https = true;
        explanation.action = Some(ActionStep::Redirect(redirect::step(to, &values)));
        return None;
    }
    if let Ok(_) | Err(Failure::NoRoute | Failure::AmbiguousPath) = found {
        explain_routes(config, &facts, explanation);
    }
    match found {
        Ok(route) => {
            let routed = Routed {
                config,
                running,
                facts: &facts,
                relayed,
                route: &config.routes[route],
            };
            let config::Route {
                action,
                cache,
                compression,
                mirror,
                coded_requests,
                ..
            } = routed.route;
            explanation.access = access_step(routed.route, facts.client);
            if explanation.access.as_ref().is_some_and(|it| !it.is_allowed) {
                explanation.refused = Some(Refused::new(Failure::Denied.into(), None));
                return None;
            }
            if routed.is_ambiguous() {
                explanation.refused = Some(Refused::new(Failure::AmbiguousPath.into(), None));
                return None;
            }
            if kept.maintenance.is_some_and(|it| it.has_route(route)) {
                explanation.refused = Some(Refused::new(Failure::Maintenance.into(), None));
                return None;
            }
            if *coded_requests == CodedRequests::Refuse && is_coded(facts.head, facts.bytes) {
                explanation.refused = Some(Refused::new(Failure::CodedRequest.into(), None));
                return None;
            }
            let pages = routed.route.error_pages.iter();
            explanation.error_pages = pages.map(|it| error_page_text(config, it)).collect();
            explanation.limits = routed.limits(kept.limits.and_then(|it| it.get(route)));
            explanation.bandwidth = routed.bandwidth(kept.limits, route);
            explanation.auth = (routed.route.auth.as_deref()).map(|it| auth_text(config, it));
            let edits = routed.route.edits.iter().flat_map(|it| &it.response);
            explanation.response_edits = edits.map(edit_text).collect();
            let caches = kept.caches;
            explanation.cache = (cache.as_ref()).map(|it| cache_step(config, it, caches, &facts));
            let compression = compression.as_deref();
            explanation.compression = compression.map(|it| compression_text(it, &facts));
            explanation.mirror = (mirror.as_deref()).map(|it| mirror_text(config, it, &facts));
            let (step, prospect) = routed.action_step(action, &mut explanation.refused);
            explanation.action = Some(step);
            let upstream = prospect.as_ref().map(|it| it.upstream);
            let is_closed = |it: &Maintenance| upstream.is_some_and(|at| it.has_upstream(at));
            if kept.maintenance.is_some_and(is_closed) {
                explanation.refused = Some(Refused::new(Failure::Maintenance.into(), None));
            }
            prospect
        }
        Err(failure) => {
            explanation.refused = Some(Refused::new(failure.into(), None));
            None
        }
    }
}

/// The credentials that a client needs, in a few words.
fn auth_text(config: &Config, auth: &config::Auth) -> String {
    match auth {
        config::Auth::Basic(basic) => {
            let (name, len) = (basic.users.name(), basic.users.users().len());
            let mistake = match basic.users.mistake() {
                Some(mistake) => format!(" (the previous ones: {mistake})"),
                None => String::new(),
            };
            format!(
                "a password of one of {len} users in {name}{mistake}; without one the answer is 401 unauthorized"
            )
        }
        config::Auth::Forward(forward) => {
            let upstream = &config.upstreams[forward.proxying.upstream].name;
            let copied = match &forward.copy[..] {
                [] => String::new(),
                copy => format!(" with its {}", copy.join(", ")),
            };
            format!(
                "upstream {upstream} would be asked with GET {}; after 2xx the request \
                 continues{copied}, any other answer goes to the client",
                forward.path
            )
        }
    }
}

/// The verdict of the route's access list on a client, if it has one.
fn access_step(route: &config::Route, client: Option<IpAddr>) -> Option<AccessStep> {
    let list = route.access.as_deref()?;
    let access = handler::access_of(route, client);
    let why = match access {
        Access::Allowed if list.allowed().is_some() => "it is in `allow`, and not in `deny`",
        Access::Allowed => "it is not in `deny`",
        Access::Denied => "it is in `deny`",
        Access::NotAllowed => "it is not in `allow`",
    };
    Some(AccessStep {
        allow: list.allowed(),
        deny: list.denied(),
        is_allowed: access == Access::Allowed,
        why: why.to_owned(),
    })
}

/// The cache's action on a request; `caches` are those of a running process.
fn cache_step(
    config: &Config,
    caching: &Caching,
    caches: &[Arc<Cache>],
    facts: &RequestFacts<'_>,
) -> CacheStep {
    let cache = caches.get(caching.store).map(|it| &**it);
    let plan = cache::plan(caching, cache, facts, clock::now());
    let finding = match (plan.bypassed, plan.now) {
        (Some(reason), _) => Some(reason.text().to_owned()),
        (None, None) => None,
        (None, Some(now)) => Some(finding(&now)),
    };
    let parts = plan.key.split(|&byte| byte == b'\0');
    CacheStep {
        store: config.caches[caching.store].name.clone(),
        key: parts
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect(),
        bypass: plan.bypassed.map(|it| it.word().to_owned()),
        finding,
    }
}

/// The coding that a response would get, in half a sentence.
fn compression_text(settings: &ResponseCompression, facts: &RequestFacts<'_>) -> String {
    let names: Vec<_> = settings.codings.iter().map(|it| it.name()).collect();
    match wanted_coding(settings, facts.head, facts.bytes) {
        Some(coding) => format!(
            "{}, for responses of these types with {} bytes or more",
            coding.name(),
            settings.min_bytes
        ),
        None => format!(
            "none, because the request accepts none of {}",
            names.join(", ")
        ),
    }
}

/// The source of an error page, in half a sentence.
fn error_page_text(config: &Config, page: &ErrorPage) -> String {
    let errors = match &page.errors {
        Errors::Reason(word) => (*word).to_owned(),
        Errors::Statuses(it) if it.start() == it.end() => it.start().to_string(),
        Errors::Statuses(it) => format!("{} to {}", it.start(), it.end()),
    };
    match &page.source {
        Some(source) => {
            let upstream = &config.upstreams[source.proxying.upstream].name;
            format!("{errors}: GET {} of upstream {upstream}", source.path)
        }
        None => format!(
            "{errors}: {} bytes of {}",
            page.body.len(),
            page.content_type
        ),
    }
}

/// The target of a request's copy, in half a sentence.
fn mirror_text(config: &Config, mirror: &Mirror, facts: &RequestFacts<'_>) -> String {
    let upstream = &config.upstreams[mirror.proxying.upstream].name;
    if facts.head.wire.upgrade.is_some() {
        return format!("none for upstream {upstream}, because the request asks for an upgrade");
    }
    let chance = match mirror.share_ppm {
        1_000_000.. => String::new(),
        ppm => format!(" with a chance of {} %", f64::from(ppm) / 1e4),
    };
    format!("a copy goes to upstream {upstream}{chance}; its response is discarded")
}

/// The state of a stored response, in half a sentence.
fn finding(now: &CacheNow) -> String {
    match now {
        CacheNow::Nothing => "miss: nothing is stored".to_owned(),
        CacheNow::OnDisk => {
            "a response on the disk, which is not read here: its age is not known".to_owned()
        }
        CacheNow::NotStored(reason) => {
            format!("miss: the last response was not stored: {}", reason.text())
        }
        CacheNow::Stored { age, ttl_s, usable } => {
            let age = age.as_secs();
            match usable {
                Usable::Fresh => format!("hit: {age} s old, fresh for {ttl_s} s more"),
                Usable::Accepted => {
                    format!(
                        "stale for {} s: served, because the client accepts that",
                        -ttl_s
                    )
                }
                Usable::WhileRevalidating => {
                    format!(
                        "stale for {} s: served, and fetched again in the background",
                        -ttl_s
                    )
                }
                Usable::AfterValidation { on_error } => {
                    let else_served = match on_error {
                        OnError::Serve => "; if that fails, it is served stale",
                        OnError::Refuse => "",
                    };
                    format!("{age} s old: validated at an endpoint{else_served}")
                }
            }
        }
    }
}

/// Fields of the request that describe its client and are not believed.
fn not_believed(
    asked: &ExplainedRequest,
    facts: &RequestFacts<'_>,
    relayed: Option<Relayed<'_>>,
) -> Vec<String> {
    let claims = facts.head.fields.iter();
    let claims = claims.filter(|it| relayed.is_none() && it.kind == FieldKind::Forwarded);
    let names = claims.map(|it| String::from_utf8_lossy(it.name.of(facts.bytes)).into_owned());
    let is_denied = asked.is_https && facts.scheme == Scheme::Http;
    names.chain(is_denied.then(|| "https".to_owned())).collect()
}

/// Values of variables for a request that may have a route.
fn values<'v>(
    config: &'v Config,
    facts: &'v RequestFacts<'_>,
    route: Option<&'v config::Route>,
    remote: &'v Remote,
    identity: &'v Identity,
) -> Values<'v> {
    Values {
        bytes: facts.bytes,
        head: facts.head,
        client: remote.told().unwrap_or_default(),
        client_port: 0,
        scheme: facts.scheme,
        server_name: b"",
        listener: &config.listeners[facts.listener].name,
        route: route.map_or("", |it| &it.name),
        regexes: route.map_or(&[], |it| &it.path_regexes),
        identity,
        exchange: None,
    }
}

/// A request that has a route.
struct Routed<'a> {
    config: &'a Config,
    running: Option<&'a [Arc<Dispatcher>]>,
    facts: &'a RequestFacts<'a>,
    relayed: Option<Relayed<'a>>,
    route: &'a config::Route,
}

impl Routed<'_> {
    /// Whether a server might read the path that is sent on as another one.
    fn is_ambiguous(&self) -> bool {
        let remote = Remote::new(self.facts.client, 0);
        let values = self.values(&remote, &Identity::NONE);
        let edits = self.route.edits.as_ref();
        edits.is_some_and(|it| changed_target(&values, it).is_err())
    }

    /// The limits that count the request, each with its key. In a running process also with what
    /// the key has left.
    fn limits(&self, kept: Option<&Vec<Arc<RouteLimit>>>) -> Vec<String> {
        let client = self.facts.client;
        let remote = Remote::new(client, 0);
        let values = self.values(&remote, &Identity::NONE);
        let now = clock::now();
        let limits = self.route.limits.iter().enumerate();
        let texts = limits.map(|(index, limit)| {
            let mut text = limit_text(limit, &key_text(Keyed::of(limit), &values, client));
            let kept = kept.and_then(|it| it.get(index));
            if let Some(Quota { remaining, .. }) =
                kept.and_then(|it| standing_of(it, &values, client, now))
            {
                let _ = write!(text, "; {remaining} left");
            }
            text
        });
        texts.collect()
    }

    /// How many bytes of the response are sent in a second.
    fn bandwidth(&self, kept: Option<&RouteLimits>, route: usize) -> Vec<String> {
        let client = self.facts.client;
        let remote = Remote::new(client, 0);
        let values = self.values(&remote, &Identity::NONE);
        let kept = kept.map_or(&[][..], |it| it.bandwidth_of(route));
        let bounds = self.route.bandwidth.iter().enumerate();
        let texts = bounds.map(|(index, of)| {
            let running = kept.get(index).map(|it| &**it);
            bandwidth_text(of, running, &values, client)
        });
        texts.collect()
    }

    /// Values of variables for the request.
    fn values<'v>(&'v self, remote: &'v Remote, identity: &'v Identity) -> Values<'v> {
        values(self.config, self.facts, Some(self.route), remote, identity)
    }

    /// The action of the route, and the prospect of the request at an upstream. Sets `refused`
    /// where the request fails whatever the endpoints do.
    fn action_step(
        &self,
        action: &Action,
        refused: &mut Option<Refused>,
    ) -> (ActionStep, Option<Prospect>) {
        match handler::plan(action, self.facts) {
            Plan::Answer(step) => (ActionStep::Answer(step), None),
            Plan::Redirect(step) => (ActionStep::Redirect(step), None),
            Plan::RedirectTo(to) => {
                let remote = Remote::new(self.facts.client, 0);
                let step = redirect::step(to, &self.values(&remote, &Identity::NONE));
                (ActionStep::Redirect(step), None)
            }
            Plan::Files(plan) => self.files_step(&plan, refused),
            Plan::Forward(proxying) => {
                *refused = refused_body(self.listener(), self.facts.head);
                let (step, prospect) = self.upstream_step(proxying);
                (ActionStep::Upstream(Box::new(step)), Some(prospect))
            }
            Plan::Split(split) => {
                *refused = refused_body(self.listener(), self.facts.head);
                let (step, prospect) = self.split_step(split);
                (ActionStep::Upstream(Box::new(step)), Some(prospect))
            }
        }
    }

    fn listener(&self) -> &config::Listener {
        &self.config.listeners[self.facts.listener]
    }

    fn upstream_step(&self, proxying: Proxying) -> (UpstreamStep, Prospect) {
        let (config, facts) = (self.config, self.facts);
        let settings = &config.upstreams[proxying.upstream];
        let mut prospect = prospect_of(proxying, handler::balance_key(settings, facts));
        let sticky = self.route.sticky.as_deref();
        let sticky = sticky.map(|it| self.sticky_step(it, &mut prospect));
        let takes_key = settings.balance.takes_key();
        let hash = prospect.asking.key;
        let key = takes_key.then(|| key_step(&settings.key, hash, facts, facts.client));
        let name = name_of(self.running);
        let head = self.head_lines(settings, &name);
        let mut step = UpstreamStep {
            sticky,
            ..upstream_step(config, self.running, &prospect, key, head)
        };
        if let (Some(fair), Some(by)) = (&mut step.queue.fair_by, &settings.queue.fair_by) {
            let remote = Remote::new(facts.client, 0);
            let values = self.values(&remote, &Identity::NONE);
            fair.key = key_text_or_client(Keyed::by_network(by), &values, facts.client);
        }
        (step, prospect)
    }

    /// The upstream of a split: that of the client's session, or else that of its key.
    fn split_step(&self, split: &Split) -> (UpstreamStep, Prospect) {
        let mut parts = split.parts.iter();
        let session = parts.find_map(|it| {
            let (step, prospect) = self.upstream_step(it.proxying);
            prospect
                .asking
                .pinned_to
                .is_some()
                .then_some((step, prospect))
        });
        let sum: u64 = split
            .parts
            .iter()
            .map(|it| u64::from(it.share.weight()))
            .sum();
        let name = |it: Proxying| &*self.config.upstreams[it.upstream].name;
        let weights = split.parts.iter();
        let weights = weights.map(|it| format!("{} {}", name(it.proxying), it.share.weight()));
        let weights = weights.collect::<Vec<_>>().join(", ");
        let (why, (step, prospect)) = match session {
            Some(found) => ("the client's sticky cookie names".to_owned(), found),
            None => {
                let remote = Remote::new(self.facts.client, 0);
                let values = self.values(&remote, &Identity::NONE);
                let room = &mut Vec::new();
                let hash = hash_of(&split.by, &values, self.facts.client, room);
                let part = split.parts[weighted_part(split, hash)];
                let why = format!("by {} (hash {hash:016x}) the request goes to", split.by);
                (why, self.upstream_step(part.proxying))
            }
        };
        let split = Some(format!("split {weights} of {sum}: {why} {}", step.name));
        (UpstreamStep { split, ..step }, prospect)
    }

    /// The state of a client's sticky cookie. Pins the prospect to the cookie's endpoint.
    fn sticky_step(&self, sticky: &Sticky, prospect: &mut Prospect) -> StickyStep {
        let (facts, index) = (self.facts, prospect.upstream);
        let mut values = sticky::values(facts.head, facts.bytes, &sticky.cookie).peekable();
        let is_sent = values.peek().is_some();
        let dispatcher = self.running.map(|it| &it[index]);
        let found = dispatcher.map(|it| {
            let name = &self.config.upstreams[index].name;
            let endpoint = explained_endpoint(sticky, name, &it.members(), values)?;
            prospect.asking.pinned_to = Some(Pin::Session(endpoint));
            Some(it.endpoint(endpoint)?.name().to_owned())
        });
        let words = match &found {
            _ if !is_sent => "not in the request; the response sets it",
            None => "only the running process knows its endpoint: use --live",
            Some(None) => "it names no endpoint; the response sets a new one",
            Some(Some(_)) => "it names",
        };
        StickyStep {
            cookie: sticky.cookie.clone(),
            found: words.to_owned(),
            endpoint: found.flatten(),
        }
    }

    /// The head that an endpoint gets; ids that are made are made for it.
    fn head_lines(&self, upstream: &config::Upstream, loop_id: &LoopId) -> Vec<String> {
        let facts = self.facts;
        let remote = Remote::new(facts.client, 0);
        let (settings, ids) = (&self.listener().identity, IdSource::default());
        let records = self.config.otlp.is_some();
        let identity = Identity::of(settings, &ids, unix_ms, records, facts.bytes, facts.head);
        let mut room = ROOM;
        let endpoint = upstream.endpoints.first();
        let default_host = endpoint.map_or("", config::Endpoint::authority);
        let info = ClientInfo {
            address: remote.told(),
            scheme: facts.scheme,
            relayed: self.relayed,
            forward: upstream.forward,
            default_host: default_host.as_bytes(),
            certificate: None,
            is_early: false,
            marks: identity.marks(&mut room),
            loop_id,
            via: upstream.via,
        };
        let mut out = Vec::new();
        write::request_head(&mut out, facts.bytes, facts.head, info);
        if let Some(config::Auth::Forward(auth)) = self.route.auth.as_deref() {
            let fields = auth.copy.iter().map(|name| SetField {
                name: name.as_str().into(),
                values: vec![b"(of the answer)".to_vec()],
            });
            let fields: Vec<_> = fields.collect();
            set_request_fields(&mut out, 0, &mut Vec::new(), &fields);
        }
        if let Some(edits) = self.route.edits.as_ref().filter(|it| it.change_requests()) {
            edit_request(
                &mut out,
                0,
                &mut Vec::new(),
                &self.values(&remote, &identity),
                edits,
            );
        }
        let text = String::from_utf8_lossy(&out);
        text.trim_end().lines().map(str::to_owned).collect()
    }

    fn files_step(
        &self,
        plan: &FilesPlan<'_>,
        refused: &mut Option<Refused>,
    ) -> (ActionStep, Option<Prospect>) {
        let files = plan.settings;
        if let WantedFile::Refused(failure) = plan.wanted {
            *refused = match fallback(failure, files) {
                None => Some(Refused::new(failure.into(), None)),
                Some(_) => refused_body(self.listener(), self.facts.head),
            };
        }
        let proxying = files.fallback.filter(|_| refused.is_none());
        let upstream = proxying.map(|it| self.upstream_step(it));
        let (upstream, prospect) = upstream.unzip();
        let step = FilesStep {
            root: files.root.display().to_string(),
            strip: files.strip.clone(),
            candidates: candidate_steps(files, &plan.wanted),
            index: files.index.clone(),
            is_listed: files.is_listed,
            not_found: files.not_found.clone(),
            upstream,
        };
        (ActionStep::Files(Box::new(step)), prospect)
    }
}

/// Says which routes are tried, and what other readings of the path find.
fn explain_routes(config: &Config, facts: &impl Facts, explanation: &mut Explanation) {
    let trials = config.route_table.explain(facts);
    let behind = config.routes.iter().skip(trials.len());
    explanation.not_reached = behind.map(|it| it.name.clone()).collect();
    explanation.routes = trials.iter().map(|it| route_step(config, it)).collect();
    let readings = config.route_table.readings(facts).into_iter();
    explanation.readings = readings
        .map(|reading| ReadingStep {
            path: String::from_utf8_lossy(&reading.path).into_owned(),
            route: reading.rule.map(|rule| config.routes[rule].name.clone()),
        })
        .collect();
}

/// Why no endpoint gets the request, for the length of its body.
fn refused_body(listener: &config::Listener, head: &RequestHead) -> Option<Refused> {
    let is_allowed = listener.limits.allow_body(head.announced_len()?);
    (!is_allowed).then(|| Refused::new(Failure::BodyTooLarge.into(), None))
}

/// The files that are tried; none where the request line alone decides.
fn candidate_steps(files: &config::Files, wanted: &WantedFile<'_>) -> Vec<CandidateStep> {
    let WantedFile::Path(path) = wanted else {
        return Vec::new();
    };
    let step = |candidate: &Candidate| {
        let (path, is_hidden) = match Try::of(candidate, path.as_ref(), files) {
            Try::Path(path) => (Some(path), false),
            Try::Hidden(path) => (Some(path), true),
            Try::NoFile => (None, false),
        };
        CandidateStep {
            candidate: candidate.to_string(),
            path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
            is_hidden,
        }
    };
    files.candidates.iter().map(step).collect()
}

/// The listener that is named, else the one on the URL's port, else the first.
fn find_listener(
    config: &Config,
    asked: &ExplainedRequest,
) -> Result<(usize, String), Unexplained> {
    let listeners = &config.listeners;
    if let Some(name) = &asked.listener {
        let found = listeners.iter().position(|it| it.name == *name);
        let found = found.ok_or_else(|| Unexplained::NoListener {
            name: name.clone(),
            known: listeners.iter().map(|it| it.name.clone()).collect(),
        });
        return found.map(|index| (index, "as requested".into()));
    }
    let is_on = |it: &config::Listener| match (&it.bind, asked.port) {
        (Address::Tcp(address), Some(port)) => address.port() == port,
        _ => false,
    };
    let why = |index: Option<usize>| match (index, asked.port) {
        (Some(_), Some(port)) => format!("it listens on port {port}"),
        _ if listeners.len() == 1 => "the only one".into(),
        (_, Some(port)) => {
            format!("the first; none listens on port {port}, use --listener to choose")
        }
        _ => "the first; use --listener to choose".into(),
    };
    let found = listeners.iter().position(is_on);
    Ok((found.unwrap_or(0), why(found)))
}

fn route_step(config: &Config, trial: &Trial<'_>) -> RouteStep {
    RouteStep {
        name: config.routes[trial.rule].name.clone(),
        matches: trial.matches(),
        conditions: condition_steps(config, &trial.checks),
    }
}

fn condition_steps(config: &Config, checks: &[Check<'_>]) -> Vec<ConditionStep> {
    let listener = |index: &usize| config.listeners[*index].name.clone();
    let step = |check: &Check<'_>| {
        let texts = check.found.iter();
        let found: Vec<_> = texts
            .map(|it| String::from_utf8_lossy(it).into_owned())
            .collect();
        let (wanted, found) = match check.condition {
            Condition::Listener(wanted) => {
                let found = found.iter().filter_map(|it| it.parse().ok());
                let found = found.map(|index: usize| listener(&index));
                (wanted.0.iter().map(listener).collect(), found.collect())
            }
            condition => {
                let wanted = condition.wanted().into_iter();
                (wanted.map(|it| without_passwords(&it)).collect(), found)
            }
        };
        let alternatives = check.alternatives.iter();
        ConditionStep {
            subject: check.condition.subject(),
            wanted,
            found,
            holds: check.holds,
            alternatives: alternatives.map(|it| condition_steps(config, it)).collect(),
        }
    };
    checks.iter().map(step).collect()
}

/// An exchange that might come.
#[derive(Debug, Clone, Copy)]
struct Prospect {
    /// Index of the upstream in the configuration.
    upstream: usize,
    /// The request's terms to the upstream. Its lane is the one of the configuration.
    asking: SlotRequest<'static>,
}

impl Prospect {
    /// The request's terms to this dispatcher of its upstream.
    fn asking_of(
        &self,
        settings: &config::Upstream,
        dispatcher: &Dispatcher,
    ) -> SlotRequest<'static> {
        let lane = self.asking.lane.map(|lane| &*settings.lanes[lane].name);
        SlotRequest {
            lane: lane.and_then(|lane| dispatcher.lane_named(lane)),
            ..self.asking
        }
    }
}

/// The request's prospect at an upstream.
fn prospect_of(proxying: Proxying, key: u64) -> Prospect {
    let now = clock::now();
    Prospect {
        upstream: proxying.upstream,
        asking: SlotRequest {
            tried: &[],
            key,
            pinned_to: None,
            lane: proxying.lane,
            priority: proxying.priority,
            arrived: now,
            now,
        },
    }
}

fn upstream_step(
    config: &Config,
    running: Option<&[Arc<Dispatcher>]>,
    prospect: &Prospect,
    key: Option<KeyStep>,
    head: Vec<String>,
) -> UpstreamStep {
    let Prospect { upstream, asking } = prospect;
    let settings = &config.upstreams[*upstream];
    let own;
    let dispatcher = match running {
        Some(dispatchers) => &*dispatchers[*upstream],
        None => {
            own = SharedUpstream::new(settings);
            let dispatcher = own.dispatcher();
            // As they are once they were probed.
            for endpoint in dispatcher.members().endpoints() {
                let _ = dispatcher.probed(endpoint, true, asking.now);
            }
            dispatcher
        }
    };
    let balance = settings.balance;
    let mut chooser = Chooser::new(dispatcher.members(), balance, 0);
    let asked = prospect.asking_of(settings, dispatcher);
    let outlook = dispatcher.outlook(&mut chooser.clone(), &asked);
    // Its endpoint now; while it waits, the endpoint that it prefers.
    let endpoint = balance.is_fixed().then(|| match outlook {
        Outlook::Served { endpoint } => Some(endpoint),
        Outlook::Waits { .. } | Outlook::Refused(_) => dispatcher.pick(&mut chooser, &asked),
    });
    let queue = &settings.queue;
    let timeouts = &settings.timeouts;
    UpstreamStep {
        name: settings.name.clone(),
        balance: balance.word().to_owned(),
        ranking: balance.help().replace('`', ""),
        key,
        split: None,
        sticky: None,
        endpoint: endpoint
            .flatten()
            .and_then(|id| dispatcher.endpoint(id))
            .map(|it| it.name().to_owned()),
        workers: Vec::new(),
        silent_workers: 0,
        endpoints: endpoint_steps(dispatcher),
        sources: presence::written(settings),
        absent: Vec::new(),
        asked: None,
        lane: asking.lane.map(|index| LaneStep {
            name: settings.lanes[index].name.clone(),
            in_flight: asked.lane.map_or(0, |lane| dispatcher.lane_in_flight(lane)),
            max_in_flight: settings.lanes[index].max_in_flight,
        }),
        priority: asking.priority,
        queue: QueueStep {
            max: queue.settings.max,
            timeout_ms: millis(queue.timeout),
            hold: queue.settings.hold,
            waiting: dispatcher.waiting(),
            fair_by: queue.fair_by.as_ref().map(|by| {
                let lines = dispatcher.waiting_lines();
                FairStep {
                    by: by.to_string(),
                    key: String::new(),
                    lines: lines.map_or(0, |it| it.lines),
                    longest: lines.map_or(0, |it| it.longest),
                }
            }),
        },
        retries: settings.retries,
        timeouts: TimeoutsStep {
            connect_ms: millis(timeouts.connect),
            first_byte_ms: Some(millis(timeouts.first_byte)),
            idle_ms: millis(timeouts.idle),
            total_ms: timeouts.total.map(millis),
        },
        now: running.map(|_| now_step(outlook, settings)),
        head,
    }
}

fn now_step(outlook: Outlook, settings: &config::Upstream) -> NowStep {
    match outlook {
        Outlook::Served { .. } => NowStep::Served,
        Outlook::Waits { behind } => NowStep::Waits { behind },
        Outlook::Refused(refusal) => {
            NowStep::Refused(Refused::new(refused_end(refusal), Some(settings)))
        }
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

fn key_step(key: &BalanceKey, hash: u64, facts: &impl Facts, client: Option<IpAddr>) -> KeyStep {
    let (of, found) = match key {
        BalanceKey::Uri => ("path and query".into(), None),
        BalanceKey::Header(name) => (format!("header {name}"), key.part(facts)),
        BalanceKey::Cookie(name) => (format!("cookie {name}"), key.part(facts)),
        BalanceKey::Query(name) => (format!("query {name}"), key.part(facts)),
        BalanceKey::Client => {
            let client = client.map(|it| it.to_string().into_bytes());
            ("client".into(), client)
        }
    };
    KeyStep {
        of,
        found: found.map(|it| String::from_utf8_lossy(&it).into_owned()),
        hash: format!("{hash:016x}"),
    }
}

fn endpoint_steps(dispatcher: &Dispatcher) -> Vec<EndpointStep> {
    let members = dispatcher.members();
    let endpoints = members.endpoints().iter();
    endpoints
        .map(|state| EndpointStep {
            name: state.name().to_owned(),
            state: EndpointStatus::of(state).word().to_owned(),
            eligible: state.is_eligible(),
            weight: state.weight(),
            effective_weight: effective_weight(state),
            tier: state.tier(),
            in_flight: state.in_flight(),
            max_in_flight: state.max_in_flight(),
            reason: None,
            learned: None,
        })
        .collect()
}

fn unix_ms() -> u64 {
    unix_time(SystemTime::now()).as_millis() as u64
}

/// The id of the running process; zero without one.
fn name_of(running: Option<&[Arc<Dispatcher>]>) -> LoopId {
    running.map_or(LoopId::ZERO, |_| loop_id())
}

/// An edit of a response, as half a sentence.
fn edit_text(edit: &FieldEdit) -> String {
    let FieldEdit { kind, name, value } = edit;
    match kind {
        EditKind::Set => format!("{name} is set to {value}"),
        EditKind::Add => format!("{name} is added: {value}"),
        EditKind::Append => format!("{value} is appended to {name}"),
        EditKind::Remove => format!("{name} is removed"),
    }
}

/// A limit that a request with this key is counted by, in a few words.
fn limit_text(limit: &config::Limit, key: &str) -> String {
    let bound = match limit.bound {
        LimitBound::Rate { rate, .. } => rate.to_string(),
        LimitBound::InFlight(most) => format!("{most} in flight"),
    };
    if key.is_empty() {
        return format!("{bound} by {}, which is empty: not limited", limit.key);
    }
    let mut text = format!("{bound} by {}: {key}", limit.key);
    if let LimitBound::Rate { burst, .. } = limit.bound {
        let _ = write!(text, "; {burst} at once");
    }
    if !limit.delay.is_zero() {
        let _ = write!(text, ", waits up to {:?}", limit.delay);
    }
    if limit.dry_run {
        text.push_str(", a dry run");
    }
    text
}
