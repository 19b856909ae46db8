//! The steps of an explanation. The command shows them, and the control socket answers with them.

use serde::{Deserialize, Serialize};

pub use crate::handler::{AnswerStep, RedirectStep};

/// An explanation: the fate of a request, and the reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Method, host and target, as sent.
    pub request: String,
    /// Whether this is a TCP connection, and not a request.
    #[serde(default)]
    pub is_connection: bool,
    /// Address of the client.
    pub client: String,
    /// The client that a trusted proxy names, where the request comes through one.
    #[serde(default)]
    pub relayed: Option<RelayedStep>,
    /// Fields about the client that are not believed, as their sender is not trusted; and `https`
    /// where only the URL says so.
    #[serde(default)]
    pub not_believed: Vec<String>,
    /// Whether the explanation is of the running process.
    pub live: bool,
    /// Whether the running process drains.
    #[serde(default)]
    pub draining: bool,
    /// The listener of the request.
    pub listener: ListenerStep,
    /// The routes that were tried, in order.
    pub routes: Vec<RouteStep>,
    /// The routes after the matching one.
    pub not_reached: Vec<String>,
    /// The ways in which servers may read an ambiguous path, where a route looks at the path. The
    /// first is the normal form.
    #[serde(default)]
    pub readings: Vec<ReadingStep>,
    /// The verdict of the route's `allow` and `deny`, where it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessStep>,
    /// How the client has to authenticate, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<String>,
    /// Bounds on bytes of the response in a second, each in a few words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bandwidth: Vec<String>,
    /// The limits of the route that count the request, each in a few words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// The action of the route's cache, where it has one.
    #[serde(default)]
    pub cache: Option<CacheStep>,
    /// The coding of a response, where the route compresses, in half a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// The route's error pages, each in half a sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub error_pages: Vec<String>,
    /// The target of the request's copy, in half a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Whether the listener redirects the request, whatever its route.
    #[serde(default)]
    pub is_redirected_to_https: bool,
    /// The action of the route; `None` where the request is refused before.
    pub action: Option<ActionStep>,
    /// The changes of the route to the response's fields, each in half a sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_edits: Vec<String>,
    /// Why the request is refused whatever the endpoints do.
    pub refused: Option<Refused>,
}

/// The access list of a route, and its verdict.
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
    /// The parts of the cache key: the URL, and the route's additions.
    pub key: Vec<String>,
    /// Why the cache is not asked, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bypass: Option<String>,
    /// The state of the stored response, or why the cache is not asked, in half a sentence.
    /// `None` where only the running process knows.
    pub finding: Option<String>,
}

/// The client that a trusted proxy names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayedStep {
    /// Its address; the proxy's where the proxy names none.
    pub client: String,
    /// The scheme of the client's request.
    pub scheme: String,
}

/// The listener of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStep {
    /// Its name.
    pub name: String,
    /// Its address.
    pub bind: String,
    /// Why the request belongs to this listener.
    pub why: String,
}

/// A route that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStep {
    /// Its name.
    pub name: String,
    /// Whether it matches.
    pub matches: bool,
    /// Its conditions, in the order of evaluation.
    pub conditions: Vec<ConditionStep>,
}

/// One way in which servers may read a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingStep {
    /// The path, read this way.
    pub path: String,
    /// The route of this path, if one matches.
    pub route: Option<String>,
}

/// A condition of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionStep {
    /// The part of the request that it tests: `host`, `header x-user`.
    pub subject: String,
    /// The accepted values.
    pub wanted: Vec<String>,
    /// The values in the request.
    pub found: Vec<String>,
    /// Whether it holds.
    pub holds: bool,
    /// For `any` and `not`: each inner table, with its conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Vec<ConditionStep>>,
}

/// The action that answers.
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
    /// Prefix that is stripped from the request's path; may be empty.
    pub strip: String,
    /// The files that are tried, in order.
    pub candidates: Vec<CandidateStep>,
    /// The names of index files, in order.
    pub index: Vec<String>,
    /// Whether a folder without an index file is answered with a listing.
    pub is_listed: bool,
    /// Path of the file that is sent with a 404.
    pub not_found: Option<String>,
    /// The upstream that gets the request if no file is found; `None` is a 404.
    pub upstream: Option<UpstreamStep>,
}

/// A file that is tried in a folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateStep {
    /// As configured: `$path` stands for the request's path.
    pub candidate: String,
    /// The path in the folder; `None` where no file can have it.
    pub path: Option<String>,
    /// Whether the path is skipped, as a name in it is hidden.
    pub is_hidden: bool,
}

/// How an upstream answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpstreamStep {
    /// Its name.
    pub name: String,
    /// How a split chose this upstream, in a few words, where the route has a split.
    #[serde(default)]
    pub split: Option<String>,
    /// Its balancer.
    pub balance: String,
    /// How the balancer ranks endpoints, in a few words.
    pub ranking: String,
    /// The balancer's key, where it balances by a part of the request.
    pub key: Option<KeyStep>,
    /// The cookie that keeps a client at an endpoint, where the route has one.
    #[serde(default)]
    pub sticky: Option<StickyStep>,
    /// The endpoint, where the balancer leaves no choice: by key, or in order.
    pub endpoint: Option<String>,
    /// The choice of each worker now; only of the running process.
    #[serde(default)]
    pub workers: Vec<WorkerStep>,
    /// Workers that have ended, or did not answer in time.
    #[serde(default)]
    pub silent_workers: usize,
    /// All endpoints.
    pub endpoints: Vec<EndpointStep>,
    /// The sources of endpoints, apart from addresses in the configuration.
    #[serde(default)]
    pub sources: Vec<SourceStep>,
    /// Endpoints that left, the latest first; only of the running process.
    #[serde(default)]
    pub absent: Vec<AbsentStep>,
    /// The endpoint that the command names; only of the running process.
    #[serde(default)]
    pub asked: Option<AskedEndpointStep>,
    /// The lane of the route.
    pub lane: Option<LaneStep>,
    /// The priority of the route: higher ones leave the queue first.
    pub priority: u8,
    /// The queue for requests without a slot.
    pub queue: QueueStep,
    /// Further attempts after the first.
    pub retries: u32,
    /// How long an attempt may take.
    pub timeouts: TimeoutsStep,
    /// The fate of the request if it came now; only of the running process.
    pub now: Option<NowStep>,
    /// The head that the endpoint gets, as lines.
    pub head: Vec<String>,
}

/// A cookie that keeps a client at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickyStep {
    /// Its name.
    pub cookie: String,
    /// The state of the request's cookie, in a few words.
    pub found: String,
    /// The endpoint that the cookie names, if there is one.
    pub endpoint: Option<String>,
}

/// A worker's choice, if the request were its next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStep {
    /// Its index.
    pub worker: usize,
    /// The endpoint; `None` where there is no slot now.
    pub endpoint: Option<String>,
}

/// The range of what the workers' balancers have learned of an endpoint: lowest, highest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnedStep {
    /// Time to the first byte, relative to the mean of the upstream.
    Slowness([f64; 2]),
    /// Time to the first byte.
    FirstByteUs([f64; 2]),
}

/// The key of a balancer by key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStep {
    /// The part of the request: `cookie sid`.
    pub of: String,
    /// The value in the request; `None` where the URI stands in for it.
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
    /// Its weight now: less during a slow start.
    pub effective_weight: f64,
    /// Its tier: it gets exchanges only while no endpoint of a lower tier takes any.
    #[serde(default)]
    pub tier: u16,
    /// Exchanges in flight.
    pub in_flight: u32,
    /// Most exchanges in flight.
    pub max_in_flight: Option<u32>,
    /// Why it is in the list; only of the running process.
    #[serde(default)]
    pub reason: Option<String>,
    /// Measurements of its speed; only of the running process.
    #[serde(default)]
    pub learned: Option<LearnedStep>,
}

/// A source of endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStep {
    /// The name or file, as configured.
    pub source: String,
    /// `name`, `service`, `file` or `operator`.
    pub kind: String,
    /// Number of endpoints from it; only of the running process.
    pub endpoints: Option<usize>,
    /// Age of the last valid reading.
    pub age_ms: Option<u64>,
    /// Lifetime of the last reading.
    pub ttl_s: Option<u64>,
    /// Why the latest reading failed.
    pub failing: Option<String>,
}

/// An endpoint that has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsentStep {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
    /// Since when.
    pub age_ms: u64,
}

/// The endpoint that the command names, and whether it is in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedEndpointStep {
    /// Its name.
    pub name: String,
    /// Whether it is in the list.
    pub is_there: bool,
    /// Why, or why not.
    pub why: String,
}

/// A part of the upstream's slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStep {
    /// Its name.
    pub name: String,
    /// Exchanges in flight.
    pub in_flight: u32,
    /// Most exchanges in flight.
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
    /// Number of waiters now.
    pub waiting: usize,
    /// How keys share the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_by: Option<FairStep>,
}

/// A queue that keys share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FairStep {
    /// The source of the key, as configured.
    pub by: String,
    /// The key of the request.
    pub key: String,
    /// Keys with waiters now.
    pub lines: usize,
    /// Waiters of the key with the most.
    pub longest: usize,
}

/// How long an attempt may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeoutsStep {
    /// Opening a connection.
    pub connect_ms: u64,
    /// Up to the first byte of the response; absent for a TCP connection.
    pub first_byte_ms: Option<u64>,
    /// Longest silence after that.
    pub idle_ms: u64,
    /// The whole exchange.
    pub total_ms: Option<u64>,
}

/// The fate of a request that came now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "now", rename_all = "kebab-case")]
pub enum NowStep {
    /// It would get a slot at once.
    Served,
    /// It would wait in the queue.
    Waits {
        /// Number of requests before it.
        behind: usize,
    },
    /// It would be refused.
    Refused(Refused),
}

/// Why a request is refused, as the answer, the log and the counters say it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Status of the answer.
    pub status: u16,
    /// The word for it in the log.
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
    /// The listener takes TCP connections, and no requests.
    Tcp {
        /// Its name.
        name: String,
    },
    /// The listener takes HTTP requests.
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
                write!(
                    out,
                    "there is no listener {name:?}; known listeners: {known}"
                )
            }
            Unexplained::Tcp { name } => write!(
                out,
                "the listener {name:?} takes TCP connections, not requests: use `evenkeel explain \
                 TCP :PORT`"
            ),
            Unexplained::Http { name } => write!(
                out,
                "the listener {name:?} takes HTTP requests: use a method and a URL"
            ),
        }
    }
}
