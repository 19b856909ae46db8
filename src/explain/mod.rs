//! `evenkeel explain`: what a request would get, and why, step by step.
//!
//! Owns the steps ([`Explanation`]) and how they are found; what is decided is
//! decided by the code that serves requests. [`asked`] makes a request of a
//! command line, [`text`] shows the steps, [`live`] has the running process
//! find them.

pub mod asked;
pub mod live;
pub mod text;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_policy::dispatch::{Asking, Dispatcher, Outlook};
use evenkeel_policy::members::Chooser;
use evenkeel_policy::route::{BalanceKey, Condition, Trial};
use evenkeel_proto::http1::write::{self, ClientInfo, Relayed};
use evenkeel_proto::http1::{Parsed, parse_request};
use evenkeel_proto::{BodyFraming, FieldKind, LoopId, RequestError, RequestHead, Scheme};
use serde::{Deserialize, Serialize};

use crate::client::http1::check_limits;
use crate::config::{self, Action, Config, Proxying, without_passwords};
use crate::exchange::answer::refusal_status;
use crate::exchange::identity::{IdSource, Identity, ROOM, loop_id};
use crate::exchange::refused_end;
use crate::exchange::remote::{RelayedClient, Remote};
use crate::handler::files::{Try, Wanted, fallback, folder_location};
use crate::handler::last_hop::LastHop;
use crate::handler::{self, RequestFacts};
use crate::metrics::end::{End, Failure};
use crate::net::Address;
use crate::net::clock;
use crate::observe::calendar::unix_time;
use crate::observe::figures::{State, effective_weight};
use crate::observe::inquiry::Prospect;
use crate::upstream;
use asked::Asked;

/// What a request would get, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Method, host and target, as sent.
    pub request: String,
    /// Address of the client.
    pub client: String,
    /// Whom a trusted proxy names as the client, where the request is from one.
    #[serde(default)]
    pub relayed: Option<RelayedStep>,
    /// Fields on the client that are not believed, for the request is from nobody
    /// who is trusted; and `https` where only the URL says so.
    #[serde(default)]
    pub not_believed: Vec<String>,
    /// Whether this is of the running process.
    pub live: bool,
    /// Whether that takes no new connections any more.
    #[serde(default)]
    pub draining: bool,
    /// The listener that it comes by.
    pub listener: ListenerStep,
    /// The routes that were tried, in order.
    pub routes: Vec<RouteStep>,
    /// The routes behind the one that matched.
    pub not_reached: Vec<String>,
    /// How servers may read the path, where they may in several ways and a route
    /// looks at it; the first is the normal form.
    #[serde(default)]
    pub readings: Vec<ReadingStep>,
    /// What the route does; `None` where the request is refused before.
    pub action: Option<ActionStep>,
    /// Why the request is refused whatever the endpoints do.
    pub refused: Option<Refused>,
}

/// The client that a trusted proxy names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayedStep {
    /// Its address; that of the proxy where it names none.
    pub client: String,
    /// The scheme that it asked by.
    pub scheme: String,
}

/// The listener that a request comes by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStep {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub bind: String,
    /// Why it is this one.
    pub why: String,
}

/// A route that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStep {
    /// Its name.
    pub name: String,
    /// Whether it matches.
    pub matches: bool,
    /// Its conditions, in the order in which they are asked.
    pub conditions: Vec<ConditionStep>,
}

/// A way in which servers may read a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingStep {
    /// The path, as they have it.
    pub path: String,
    /// The route that it finds, if one matches.
    pub route: Option<String>,
}

/// A condition of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionStep {
    /// What it looks at: `host`, `header x-user`.
    pub subject: String,
    /// What it asks for: one of these.
    pub wanted: Vec<String>,
    /// What the request has there.
    pub found: Vec<String>,
    /// Whether it holds.
    pub holds: bool,
}

/// What answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum ActionStep {
    /// A fixed answer.
    Answer {
        /// Status code.
        status: u16,
        /// Value of `Content-Type`.
        content_type: String,
        /// Length of the body, in bytes.
        body_bytes: usize,
        /// Where the body was read from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        /// Further fields: names and values.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<(String, String)>,
    },
    /// A redirect.
    Redirect {
        /// Status code.
        status: u16,
        /// Value of `Location` for this request.
        location: String,
    },
    /// Files of a folder.
    Files(Box<FilesStep>),
    /// An upstream's endpoint.
    Upstream(Box<UpstreamStep>),
}

/// How files of a folder answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FilesStep {
    /// The folder.
    pub root: String,
    /// What is taken off the front of the request's path; may be empty.
    pub strip: String,
    /// What is looked for, in order.
    pub candidates: Vec<CandidateStep>,
    /// What stands for a folder, in order.
    pub index: Vec<String>,
    /// Whether a folder without one is answered with a list.
    pub is_listed: bool,
    /// Path of the file that goes with a 404.
    pub not_found: Option<String>,
    /// Where the request goes if nothing is found; `None` is a 404.
    pub upstream: Option<UpstreamStep>,
}

/// What is looked for in a folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateStep {
    /// As configured: `$path` stands for the request's path.
    pub candidate: String,
    /// The path in the folder; `None` where it can be no file's.
    pub path: Option<String>,
    /// Whether it is passed over, since a name in it is hidden.
    pub is_hidden: bool,
}

/// How an upstream answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpstreamStep {
    /// Its name.
    pub name: String,
    /// Its balancer.
    pub balance: String,
    /// How that ranks, in a few words.
    pub ranking: String,
    /// What the balancer goes by, where it goes by a part of the request.
    pub key: Option<KeyStep>,
    /// The endpoint, where the balancer leaves no choice: by key, or the first.
    pub endpoint: Option<String>,
    /// Where each worker would send it now; only of the running process.
    #[serde(default)]
    pub workers: Vec<WorkerStep>,
    /// Workers that have ended, or did not say so in time.
    #[serde(default)]
    pub silent_workers: usize,
    /// All of them.
    pub endpoints: Vec<EndpointStep>,
    /// The lane that the route is kept to.
    pub lane: Option<LaneStep>,
    /// Of the route: higher ones leave the queue first.
    pub priority: u8,
    /// Where it waits if there is no slot.
    pub queue: QueueStep,
    /// Further attempts after the first.
    pub retries: u32,
    /// How long an attempt may take.
    pub timeouts: TimeoutsStep,
    /// What would become of the request now; only of the running process.
    pub now: Option<NowStep>,
    /// The head that the endpoint gets, line by line.
    pub head: Vec<String>,
}

/// What a worker would do with a request, were it its next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStep {
    /// Its index.
    pub worker: usize,
    /// The endpoint; `None` where there is no slot now.
    pub endpoint: Option<String>,
}

/// What the workers' balancers have learned of an endpoint, from the least to
/// the most of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnedStep {
    /// Times as long as the upstream's mean to the first byte.
    Slowness([f64; 2]),
    /// To the first byte.
    FirstByteUs([f64; 2]),
}

/// What a balancer by key goes by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStep {
    /// The part of the request: `cookie sid`.
    pub of: String,
    /// What the request has there; `None` where its URI stands in.
    pub found: Option<String>,
    /// Its hash, in hexadecimal.
    pub hash: String,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointStep {
    /// Its name.
    pub name: String,
    /// Whether it gets new exchanges, or why not: a word of `/status.json`.
    pub state: String,
    /// Whether the balancer may choose it.
    pub eligible: bool,
    /// Its share relative to the others.
    pub weight: u32,
    /// What it counts for now: less while it starts slowly.
    pub effective_weight: f64,
    /// Exchanges at it now.
    pub in_flight: u32,
    /// Most of them.
    pub max_in_flight: Option<u32>,
    /// What has been learned of it; only of the running process.
    #[serde(default)]
    pub learned: Option<LearnedStep>,
}

/// A part of the upstream's slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStep {
    /// Its name.
    pub name: String,
    /// Exchanges in it now.
    pub in_flight: u32,
    /// Most of them.
    pub max_in_flight: u32,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStep {
    /// Most requests in it; 0 is no queue.
    pub max: usize,
    /// Longest wait.
    pub timeout_ms: u64,
    /// Whether requests wait in it while no endpoint is up.
    pub hold: bool,
    /// Who waits now.
    pub waiting: usize,
}

/// How long an attempt may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeoutsStep {
    /// Opening a connection.
    pub connect_ms: u64,
    /// To the first byte of the response.
    pub first_byte_ms: u64,
    /// Longest silence after that.
    pub idle_ms: u64,
    /// The whole exchange.
    pub total_ms: Option<u64>,
}

/// What would become of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "now", rename_all = "kebab-case")]
pub enum NowStep {
    /// It would get a slot at once.
    Served,
    /// It would wait behind so many others.
    Waits {
        /// Who waits already.
        behind: usize,
    },
    /// It would get nothing.
    Refused(Refused),
}

/// Why a request is refused, as the answer, the log and the counters say it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Status of the answer.
    pub status: u16,
    /// The log's word.
    pub word: String,
    /// A sentence.
    pub text: String,
}

impl Refused {
    fn new(end: End, upstream: Option<&config::Upstream>) -> Self {
        Refused {
            status: refusal_status(end, upstream),
            word: end.word().to_owned(),
            text: end.text().to_owned(),
        }
    }
}

/// Why nothing can be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unexplained {
    /// There is no listener of this name.
    NoListener {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
}

impl std::fmt::Display for Unexplained {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unexplained::NoListener { name, known } = self;
        let known = known.join(", ");
        write!(out, "there is no listener {name:?}; there are {known}")
    }
}

/// Says what `asked` gets on this configuration.
///
/// # Errors
/// It asks for something that the configuration does not have.
pub fn explain(config: &Config, asked: &Asked) -> Result<Explanation, Unexplained> {
    explain_on(config, None, asked).map(|(explanation, _)| explanation)
}

/// The same; with the dispatchers of a running process, at this moment, and
/// with what its workers can say more of.
fn explain_on(
    config: &Config,
    running: Option<&[Arc<Dispatcher>]>,
    asked: &Asked,
) -> Result<(Explanation, Option<Prospect>), Unexplained> {
    let (listener, why) = find_listener(config, asked)?;
    let settings = &config.listeners[listener];
    // As an accepted connection has it.
    let client = match asked.client {
        Some(address) => Some(address.to_canonical()),
        None if settings.bind.is_unix() => None,
        None => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    let peer = Remote::new(client, 0);
    let mut explanation = Explanation {
        request: asked.title.clone(),
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
        action: None,
        refused: None,
    };
    let bytes = asked.request.as_bytes();
    let mut head = RequestHead::default();
    let parsed = parse_request(bytes, &mut head).and_then(|parsed| match parsed {
        Parsed::Complete => check_limits(&settings.limits, &head),
        // Every line of it is there, so that only a limit is left.
        Parsed::Partial => Err(RequestError::HeadTooLarge),
    });
    if let Err(error) = parsed {
        explanation.refused = Some(Refused::new(error.into(), None));
        return Ok((explanation, None));
    }
    let trusted = &settings.trusted_proxies;
    let relayed = trusted.contains(peer.address).then(|| {
        let mut relayed = RelayedClient::new(&peer);
        relayed.read(&peer, trusted, bytes, &head);
        relayed
    });
    let remote = relayed.as_ref().map_or(peer, |it| it.remote);
    let facts = RequestFacts {
        bytes,
        head: &head,
        listener,
        client: remote.address,
        scheme: relayed
            .as_ref()
            .and_then(RelayedClient::scheme)
            .unwrap_or(Scheme::Http),
    };
    let relayed = relayed.as_ref().map(RelayedClient::relayed);
    if relayed.is_none() {
        let claims = head.fields.iter();
        let claims = claims.filter(|it| it.kind == FieldKind::Forwarded);
        let names = claims.map(|it| String::from_utf8_lossy(it.name.of(bytes)).into_owned());
        explanation.not_believed = names.collect();
    }
    if asked.is_https && facts.scheme == Scheme::Http {
        explanation.not_believed.push("https".to_owned());
    }
    explanation.relayed = relayed.is_some().then(|| RelayedStep {
        client: remote.to_string(),
        scheme: facts.scheme.as_str().to_owned(),
    });
    let found = handler::find_route(&config.route_table, &name_of(running), &facts);
    if let Ok(_) | Err(Failure::NoRoute | Failure::AmbiguousPath) = found {
        explain_routes(config, &facts, &mut explanation);
    }
    let route = match found {
        Ok(route) => route,
        Err(failure) => {
            explanation.refused = Some(Refused::new(failure.into(), None));
            return Ok((explanation, None));
        }
    };
    let action = &config.routes[route].action;
    if let Some(last) = LastHop::of(action, &head, bytes) {
        explanation.action = Some(ActionStep::Answer {
            status: last.status,
            content_type: LastHop::CONTENT_TYPE.to_owned(),
            body_bytes: last.body.len(),
            file: None,
            headers: Vec::new(),
        });
        return Ok((explanation, None));
    }
    let mut prospect = None;
    explanation.action = Some(match action {
        Action::Answer(fixed) => ActionStep::Answer {
            status: fixed.status,
            content_type: fixed.content_type.clone(),
            body_bytes: fixed.body.len(),
            file: (fixed.file.as_ref()).map(|path| path.display().to_string()),
            headers: fixed.headers.clone(),
        },
        Action::Redirect { status, location } => ActionStep::Redirect {
            status: *status,
            location: handler::expand(&without_passwords(location), facts.scheme, bytes, &head),
        },
        Action::Files(files) => {
            let wanted = Wanted::by(&head, bytes, files);
            if let Wanted::Refused(failure) = wanted
                && fallback(failure, files).is_none()
            {
                explanation.refused = Some(Refused::new(failure.into(), None));
            } else if let Wanted::Refused(_) = wanted {
                explanation.refused = refused_body(settings, &head);
            }
            match wanted {
                Wanted::ToFolder => ActionStep::Redirect {
                    status: 301,
                    location: folder_location(&head, bytes),
                },
                wanted => ActionStep::Files(Box::new(FilesStep {
                    root: files.root.display().to_string(),
                    strip: files.strip.clone(),
                    candidates: candidate_steps(files, &wanted),
                    index: files.index.clone(),
                    is_listed: files.is_listed,
                    not_found: files.not_found.clone(),
                    upstream: files
                        .fallback
                        .filter(|_| explanation.refused.is_none())
                        .map(|proxying| {
                            let own = prospect.insert(prospect_of(config, proxying, &facts));
                            upstream_step(config, running, own, &facts, relayed)
                        }),
                })),
            }
        }
        Action::Upstream(proxying) => {
            explanation.refused = refused_body(settings, &head);
            let own = prospect.insert(prospect_of(config, *proxying, &facts));
            ActionStep::Upstream(Box::new(upstream_step(
                config, running, own, &facts, relayed,
            )))
        }
    });
    Ok((explanation, prospect))
}

/// Says which routes are tried, and what other readings of the path find.
fn explain_routes(config: &Config, facts: &RequestFacts<'_>, explanation: &mut Explanation) {
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
    let BodyFraming::Length { bytes } = head.framing else {
        return None;
    };
    let is_allowed = listener.limits.allow_body(bytes);
    (!is_allowed).then(|| Refused::new(Failure::BodyTooLarge.into(), None))
}

/// What is looked for; nothing where the request's line alone decides.
fn candidate_steps(files: &config::Files, wanted: &Wanted<'_>) -> Vec<CandidateStep> {
    let Wanted::Path(path) = wanted else {
        return Vec::new();
    };
    let step = |candidate: &String| {
        let (path, is_hidden) = match Try::of(candidate, path.as_ref(), files) {
            Try::Path(path) => (Some(path), false),
            Try::Hidden(path) => (Some(path), true),
            Try::NoFile => (None, false),
        };
        CandidateStep {
            candidate: candidate.clone(),
            path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
            is_hidden,
        }
    };
    files.candidates.iter().map(step).collect()
}

/// The listener that is named, else the one on the URL's port, else the first.
fn find_listener(config: &Config, asked: &Asked) -> Result<(usize, String), Unexplained> {
    let listeners = &config.listeners;
    if let Some(name) = &asked.listener {
        let found = listeners.iter().position(|it| it.name == *name);
        let found = found.ok_or_else(|| Unexplained::NoListener {
            name: name.clone(),
            known: listeners.iter().map(|it| it.name.clone()).collect(),
        });
        return found.map(|index| (index, "as asked for".into()));
    }
    let is_on = |it: &config::Listener| match (&it.bind, asked.port) {
        (Address::Tcp(address), Some(port)) => address.port() == port,
        _ => false,
    };
    let why = |index: Option<usize>| match (index, asked.port) {
        (Some(_), Some(port)) => format!("it listens on port {port}"),
        _ if listeners.len() == 1 => "there is no other".into(),
        (_, Some(port)) => format!("the first; none listens on port {port}, see --listener"),
        _ => "the first; see --listener".into(),
    };
    let found = listeners.iter().position(is_on);
    Ok((found.unwrap_or(0), why(found)))
}

fn route_step(config: &Config, trial: &Trial<'_>) -> RouteStep {
    let listener = |index: &usize| config.listeners[*index].name.clone();
    let checks = trial.checks.iter();
    RouteStep {
        name: config.routes[trial.rule].name.clone(),
        matches: trial.matches(),
        conditions: checks
            .map(|check| {
                let texts = check.found.iter();
                let found: Vec<_> = texts
                    .map(|it| String::from_utf8_lossy(it).into_owned())
                    .collect();
                let (wanted, found) = match check.condition {
                    Condition::Listener(wanted) => {
                        let found = found.iter().filter_map(|it| it.parse().ok());
                        let found = found.map(|index: usize| listener(&index));
                        (wanted.iter().map(listener).collect(), found.collect())
                    }
                    condition => {
                        let wanted = condition.wanted().into_iter();
                        (wanted.map(|it| without_passwords(&it)).collect(), found)
                    }
                };
                ConditionStep {
                    subject: check.condition.subject(),
                    wanted,
                    found,
                    holds: check.holds,
                }
            })
            .collect(),
    }
}

/// What the request asks the upstream with.
fn prospect_of(config: &Config, proxying: Proxying, facts: &RequestFacts<'_>) -> Prospect {
    let settings = &config.upstreams[proxying.upstream];
    let now = clock::now();
    Prospect {
        upstream: proxying.upstream,
        asking: Asking {
            tried: &[],
            key: handler::balance_key(settings, facts),
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
    facts: &RequestFacts<'_>,
    relayed: Option<Relayed<'_>>,
) -> UpstreamStep {
    let Prospect { upstream, asking } = prospect;
    let settings = &config.upstreams[*upstream];
    let own;
    let dispatcher = match running {
        Some(dispatchers) => &*dispatchers[*upstream],
        None => {
            own = upstream::dispatcher(settings);
            // As they are once they were probed.
            for endpoint in own.members().endpoints() {
                let _ = own.probed(endpoint, true, asking.now);
            }
            &own
        }
    };
    let balance = settings.balance;
    let takes_key = balance.takes_key();
    let mut chooser = Chooser::new(dispatcher, balance, 0);
    let outlook = dispatcher.outlook(&chooser, asking);
    // Where it goes now, and else where it would like to go.
    let endpoint = balance.is_fixed().then(|| match outlook {
        Outlook::Served { endpoint } => Some(endpoint),
        Outlook::Waits { .. } | Outlook::Refused(_) => dispatcher.pick(&mut chooser, asking),
    });
    let queue = &settings.queue;
    let timeouts = &settings.timeouts;
    UpstreamStep {
        name: settings.name.clone(),
        balance: balance.word().to_owned(),
        ranking: balance.help().replace('`', ""),
        key: takes_key.then(|| key_step(&settings.key, asking.key, facts)),
        endpoint: endpoint
            .flatten()
            .map(|id| settings.endpoints[id.index()].name.clone()),
        workers: Vec::new(),
        silent_workers: 0,
        endpoints: endpoint_steps(settings, dispatcher),
        lane: asking.lane.map(|index| LaneStep {
            name: settings.lanes[index].name.clone(),
            in_flight: dispatcher.lane_in_flight(index),
            max_in_flight: settings.lanes[index].max_in_flight,
        }),
        priority: asking.priority,
        queue: QueueStep {
            max: queue.settings.max,
            timeout_ms: millis(queue.timeout),
            hold: queue.settings.hold,
            waiting: dispatcher.waiting(),
        },
        retries: settings.retries,
        timeouts: TimeoutsStep {
            connect_ms: millis(timeouts.connect),
            first_byte_ms: millis(timeouts.first_byte),
            idle_ms: millis(timeouts.idle),
            total_ms: timeouts.total.map(millis),
        },
        now: running.map(|_| now_step(outlook, settings)),
        head: head_lines(config, settings, &name_of(running), facts, relayed),
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

fn key_step(key: &BalanceKey, hash: u64, facts: &RequestFacts<'_>) -> KeyStep {
    let (of, found) = match key {
        BalanceKey::Uri => ("path and query".into(), None),
        BalanceKey::Header(name) => (format!("header {name}"), key.part(facts)),
        BalanceKey::Cookie(name) => (format!("cookie {name}"), key.part(facts)),
        BalanceKey::Query(name) => (format!("query {name}"), key.part(facts)),
        BalanceKey::Client => {
            let client = facts.client.map(|it| it.to_string().into_bytes());
            ("client".into(), client)
        }
    };
    KeyStep {
        of,
        found: found.map(|it| String::from_utf8_lossy(&it).into_owned()),
        hash: format!("{hash:016x}"),
    }
}

fn endpoint_steps(settings: &config::Upstream, dispatcher: &Dispatcher) -> Vec<EndpointStep> {
    let members = dispatcher.members();
    let endpoints = settings.endpoints.iter().zip(members.endpoints());
    endpoints
        .map(|(endpoint, state)| EndpointStep {
            name: endpoint.name.clone(),
            state: State::of(state).word().to_owned(),
            eligible: state.is_eligible(),
            weight: state.weight(),
            effective_weight: effective_weight(state),
            in_flight: state.in_flight(),
            max_in_flight: state.max_in_flight(),
            learned: None,
        })
        .collect()
}

fn unix_ms() -> u64 {
    unix_time(SystemTime::now()).as_millis() as u64
}

/// What the running process calls itself; without one, the name of none.
fn name_of(running: Option<&[Arc<Dispatcher>]>) -> LoopId {
    running.map_or(LoopId::ZERO, |_| loop_id())
}

/// The head that an endpoint gets; ids that are made are made for it.
fn head_lines(
    config: &Config,
    upstream: &config::Upstream,
    loop_id: &LoopId,
    facts: &RequestFacts<'_>,
    relayed: Option<Relayed<'_>>,
) -> Vec<String> {
    let remote = Remote::new(facts.client, 0);
    let (settings, ids) = (
        &config.listeners[facts.listener].identity,
        IdSource::default(),
    );
    let records = config.otlp.is_some();
    let identity = Identity::of(settings, &ids, unix_ms, records, facts.bytes, facts.head);
    let mut room = ROOM;
    let endpoint = upstream.endpoints.first();
    let default_host = endpoint.map_or("", config::Endpoint::authority);
    let info = ClientInfo {
        address: remote.told(),
        scheme: facts.scheme,
        relayed,
        forward: upstream.forward,
        default_host: default_host.as_bytes(),
        marks: identity.marks(&mut room),
        loop_id,
        via: upstream.via,
    };
    let mut out = Vec::new();
    write::request_head(&mut out, facts.bytes, facts.head, info);
    let text = String::from_utf8_lossy(&out);
    text.trim_end().lines().map(str::to_owned).collect()
}
