//! The steps of an explanation: what the command shows, and what the control socket
//! answers with.

use serde::{Deserialize, Serialize};

pub use crate::handler::{AnswerStep, RedirectStep};

/// What a request would get, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Method, host and target, as sent.
    pub request: String,
    /// Whether it is a connection of TCP, and no request.
    #[serde(default)]
    pub is_connection: bool,
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
    /// What the route's `allow` and `deny` say of the client, where it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessStep>,
    /// How the client would have to show who it is, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<String>,
    /// How many bytes of the response are sent in a second, each bound in a few words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bandwidth: Vec<String>,
    /// The limits of the route that the request is counted by, each in a few words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// What the route's cache does, where it has one.
    #[serde(default)]
    pub cache: Option<CacheStep>,
    /// The coding that a response would get, where the route compresses, in half a
    /// sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// The route's error pages, each in half a sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub error_pages: Vec<String>,
    /// Where a copy of the request would go, in half a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Whether the listener redirects it, whatever its route.
    #[serde(default)]
    pub is_redirected_to_https: bool,
    /// What the route does; `None` where the request is refused before.
    pub action: Option<ActionStep>,
    /// What the route changes of the response's fields, each in half a sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_edits: Vec<String>,
    /// Why the request is refused whatever the endpoints do.
    pub refused: Option<Refused>,
}

/// Who may use a route, by address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessStep {
    /// The networks and files of `allow`; `None` without it.
    pub allow: Option<Vec<String>>,
    /// The networks and files of `deny`; `None` without it.
    pub deny: Option<Vec<String>>,
    /// Whether the client is served.
    pub is_allowed: bool,
    /// Why, or why not, in half a sentence.
    pub why: String,
}

/// The cache of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStep {
    /// Its name.
    pub store: String,
    /// What the answer is stored under: the URL, and what the route adds.
    pub key: Vec<String>,
    /// Why the cache is not asked: a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bypass: Option<String>,
    /// What it has, or why it is not asked, in half a sentence; `None` where only the
    /// running process knows.
    pub finding: Option<String>,
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
    /// Where it is `any` or `not`: each table in it, with its conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Vec<ConditionStep>>,
}

/// What answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum ActionStep {
    /// An answer from memory.
    Answer(AnswerStep),
    /// A redirect.
    Redirect(RedirectStep),
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
    /// How a split came to it, in a few words, where the route has one.
    #[serde(default)]
    pub split: Option<String>,
    /// Its balancer.
    pub balance: String,
    /// How that ranks, in a few words.
    pub ranking: String,
    /// What the balancer goes by, where it goes by a part of the request.
    pub key: Option<KeyStep>,
    /// The cookie that keeps a client at an endpoint, where the route has one.
    #[serde(default)]
    pub sticky: Option<StickyStep>,
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
    /// Where they come from, but for addresses that are written.
    #[serde(default)]
    pub sources: Vec<SourceStep>,
    /// Endpoints that left, the last first; only of the running process.
    #[serde(default)]
    pub absent: Vec<AbsentStep>,
    /// The endpoint that was asked for; only of the running process.
    #[serde(default)]
    pub asked: Option<AskedEndpointStep>,
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

/// A cookie that keeps a client at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickyStep {
    /// Its name.
    pub cookie: String,
    /// What the request's cookie says, in a few words.
    pub found: String,
    /// The endpoint that it stands for, if there is one.
    pub endpoint: Option<String>,
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
    /// It gets exchanges only while no endpoint of a lower tier takes any.
    #[serde(default)]
    pub tier: u16,
    /// Exchanges at it now.
    pub in_flight: u32,
    /// Most of them.
    pub max_in_flight: Option<u32>,
    /// Why it is there; only of the running process.
    #[serde(default)]
    pub reason: Option<String>,
    /// What has been learned of it; only of the running process.
    #[serde(default)]
    pub learned: Option<LearnedStep>,
}

/// Where endpoints come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStep {
    /// What is looked up or read, as written.
    pub source: String,
    /// `name`, `service`, `file` or `operator`.
    pub kind: String,
    /// Endpoints that it gives; only of the running process.
    pub endpoints: Option<usize>,
    /// How long ago it was last read without a mistake.
    pub age_ms: Option<u64>,
    /// For how long what it said holds.
    pub ttl_s: Option<u64>,
    /// Why it could not be read when it was tried last.
    pub failing: Option<String>,
}

/// An endpoint that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsentStep {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
    /// Since when.
    pub age_ms: u64,
}

/// Whether the endpoint that was asked for is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedEndpointStep {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub is_there: bool,
    /// Why, or why not.
    pub why: String,
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
    /// Whose requests share it alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_by: Option<FairStep>,
}

/// A queue that keys share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FairStep {
    /// What the key is made of, as written.
    pub by: String,
    /// That of the request.
    pub key: String,
    /// Keys that wait now.
    pub lines: usize,
    /// How many wait of the one that has most.
    pub longest: usize,
}

/// How long an attempt may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeoutsStep {
    /// Opening a connection.
    pub connect_ms: u64,
    /// To the first byte of the response; of a connection of TCP there is no such bound.
    pub first_byte_ms: Option<u64>,
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
    /// The listener takes connections of TCP, and no requests.
    Tcp {
        /// Its name.
        name: String,
    },
    /// The listener takes requests of HTTP.
    Http {
        /// Its name.
        name: String,
    },
}

impl std::fmt::Display for Unexplained {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unexplained::NoListener { name, known } => {
                let known = known.join(", ");
                write!(out, "there is no listener {name:?}; there are {known}")
            }
            Unexplained::Tcp { name } => write!(
                out,
                "the listener {name:?} has connections of TCP, and no requests: ask with \
                 `evenkeel explain TCP :PORT`"
            ),
            Unexplained::Http { name } => write!(
                out,
                "the listener {name:?} has requests of HTTP: ask with a method and a URL"
            ),
        }
    }
}
