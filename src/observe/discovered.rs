//! Where the endpoints of upstreams come from: whoever finds them writes it, figures and
//! explanations read it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use crate::metrics::ReasonCounts;
use crate::observe::calendar::unix_time;

/// A source of endpoints, and how it has been doing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceFigures {
    /// What is looked up or read, as written.
    pub source: String,
    /// What it is: `name`, `service`, `file` or `operator`.
    pub kind: &'static str,
    /// Endpoints that it has given.
    pub endpoints: usize,
    /// When it was last read without a mistake, in milliseconds since 1970; `null`
    /// where it never was.
    pub read_unix_ms: Option<u64>,
    /// How long ago that was, in milliseconds.
    pub age_ms: Option<u64>,
    /// For how long what it said holds, in seconds, where it says that.
    pub ttl_s: Option<u64>,
    /// Times that it could not be read.
    pub failures: u64,
    /// Why it could not be read when it was tried last: the word of the event log.
    pub failing: Option<&'static str>,
    /// The same in words.
    pub error: Option<String>,
}

impl SourceFigures {
    /// The same, with how long ago it was read.
    #[must_use]
    pub fn aged(mut self, now: SystemTime) -> Self {
        let now = unix_time(now).as_millis() as u64;
        self.age_ms = self.read_unix_ms.map(|it| now.saturating_sub(it));
        self
    }

    /// Notes that it was read at this moment.
    pub fn note_read(&mut self, at: SystemTime) {
        self.read_unix_ms = Some(unix_time(at).as_millis() as u64);
        (self.failing, self.error) = (None, None);
    }
}

/// An endpoint that is not there, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentEndpoint {
    /// Its name.
    pub endpoint: String,
    /// Why, in words.
    pub why: String,
    /// Since when.
    pub since: SystemTime,
}

/// Endpoints that left an upstream, of which it is kept why.
const MOST_ABSENT: usize = 64;

/// What is known of an upstream.
#[derive(Debug, Clone, Default)]
struct Known {
    sources: Vec<SourceFigures>,
    /// By the name of an endpoint, why it is there.
    reasons: HashMap<String, String>,
    /// Times that a source could not be read, those that are gone included.
    failures: SourceFailures,
    /// The last that left, the newest last.
    absent: VecDeque<AbsentEndpoint>,
}

/// The words for why a source could not be read.
pub const SOURCE_FAILURES: [&str; 8] = [
    "dns-not-found",
    "dns-timeout",
    "dns-failed",
    "dns-too-many",
    "file-unreadable",
    "file-malformed",
    "file-version",
    "file-too-large",
];

/// The words for why the state file could not be read, or was not written.
pub const STATE_FAILURES: [&str; 5] = [
    "state-unreadable",
    "state-malformed",
    "state-version",
    "state-unwritable",
    "draining",
];

#[derive(Debug, Clone)]
struct SourceFailures(Arc<ReasonCounts>);

impl Default for SourceFailures {
    fn default() -> Self {
        SourceFailures(Arc::new(ReasonCounts::new(&SOURCE_FAILURES)))
    }
}

/// The sources of every upstream, by its name.
#[derive(Debug)]
pub struct Discovered {
    upstreams: Mutex<BTreeMap<String, Known>>,
    state_failures: ReasonCounts,
}

impl Default for Discovered {
    fn default() -> Self {
        Discovered {
            upstreams: Mutex::default(),
            state_failures: ReasonCounts::new(&STATE_FAILURES),
        }
    }
}

impl Discovered {
    /// Replaces what is known of an upstream: its sources, and why each endpoint is
    /// there.
    pub fn note(
        &self,
        upstream: &str,
        sources: Vec<SourceFigures>,
        reasons: HashMap<String, String>,
    ) {
        let mut all = self.known();
        let known = all.entry(upstream.to_owned()).or_default();
        known
            .absent
            .retain(|it| !reasons.contains_key(&it.endpoint));
        (known.sources, known.reasons) = (sources, reasons);
    }

    /// Notes why endpoints of an upstream are not there, unless that was noted before.
    pub fn note_absent(&self, upstream: &str, absent: impl IntoIterator<Item = (String, String)>) {
        let mut all = self.known();
        let known = all.entry(upstream.to_owned()).or_default();
        let since = SystemTime::now();
        for (endpoint, why) in absent {
            if known.absent.iter().any(|it| it.endpoint == endpoint) {
                continue;
            }
            if known.absent.len() == MOST_ABSENT {
                known.absent.pop_front();
            }
            known.absent.push_back(AbsentEndpoint {
                endpoint,
                why,
                since,
            });
        }
    }

    /// The endpoints of an upstream that left last, the newest first.
    pub fn absent(&self, upstream: &str) -> Vec<AbsentEndpoint> {
        let known = self.known();
        let absent = known.get(upstream).into_iter().flat_map(|it| &it.absent);
        absent.rev().cloned().collect()
    }

    /// Forgets upstreams that are no more.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.known().retain(|name, _| is_there(name));
    }

    /// The sources of an upstream beyond the addresses that are written.
    pub fn sources(&self, upstream: &str) -> Vec<SourceFigures> {
        let known = self.known();
        known
            .get(upstream)
            .map_or(Vec::new(), |it| it.sources.clone())
    }

    /// Times that a source of an upstream could not be read. They never decrease,
    /// whichever sources go.
    pub fn source_failures(&self, upstream: &str) -> Arc<ReasonCounts> {
        let mut all = self.known();
        let known = all.entry(upstream.to_owned()).or_default();
        known.failures.0.clone()
    }

    /// Why the upstream has this endpoint.
    pub fn reason(&self, upstream: &str, endpoint: &str) -> Option<String> {
        self.known().get(upstream)?.reasons.get(endpoint).cloned()
    }

    /// Times that the state file could not be read or written.
    pub fn state_failures(&self) -> &ReasonCounts {
        &self.state_failures
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.upstreams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
