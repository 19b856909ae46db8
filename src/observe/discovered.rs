//! The sources of endpoints. Discovery writes them; figures and explanations read them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use crate::metrics::ReasonCounts;
use crate::observe::calendar::unix_time;

/// A source of endpoints, and its state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceFigures {
    /// The name or file, as configured.
    pub source: String,
    /// Its kind: `name`, `service`, `file` or `operator`.
    pub kind: &'static str,
    /// Number of endpoints from it.
    pub endpoints: usize,
    /// Last reading without a mistake, in milliseconds since 1970; `null` before the first.
    pub read_unix_ms: Option<u64>,
    /// Age of that reading, in milliseconds.
    pub age_ms: Option<u64>,
    /// Lifetime of that reading in seconds, where it has one.
    pub ttl_s: Option<u64>,
    /// Number of failed readings.
    pub failures: u64,
    /// Why the latest reading failed: the word of the event log.
    pub failing: Option<&'static str>,
    /// The same as text.
    pub error: Option<String>,
}

impl SourceFigures {
    /// The same, with the age of the last reading.
    #[must_use]
    pub fn aged(mut self, now: SystemTime) -> Self {
        let now = unix_time(now).as_millis() as u64;
        self.age_ms = self.read_unix_ms.map(|it| now.saturating_sub(it));
        self
    }

    /// Notes a successful reading at this moment.
    pub fn note_read(&mut self, at: SystemTime) {
        self.read_unix_ms = Some(unix_time(at).as_millis() as u64);
        (self.failing, self.error) = (None, None);
    }
}

/// An endpoint that is not in the list, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentEndpoint {
    /// Its name.
    pub endpoint: String,
    /// Why, in words.
    pub why: String,
    /// Since when.
    pub since: SystemTime,
}

/// Endpoints that left an upstream and are kept with the reason.
const MOST_ABSENT: usize = 64;

/// The record of an upstream.
#[derive(Debug, Clone, Default)]
struct Known {
    sources: Vec<SourceFigures>,
    /// Why each endpoint is in the list, by name.
    reasons: HashMap<String, String>,
    /// Number of failed readings, including sources that are gone.
    failures: SourceFailures,
    /// The last endpoints that left, the newest last.
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
    /// Replaces the record of an upstream: its sources, and why each endpoint is in the list.
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

    /// Notes why endpoints of an upstream are not in the list, unless it was noted before.
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

    /// The endpoints that left an upstream last, the newest first.
    pub fn absent(&self, upstream: &str) -> Vec<AbsentEndpoint> {
        let known = self.known();
        let absent = known.get(upstream).into_iter().flat_map(|it| &it.absent);
        absent.rev().cloned().collect()
    }

    /// Forgets upstreams that no longer exist.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.known().retain(|name, _| is_there(name));
    }

    /// The sources of an upstream, apart from addresses in the configuration.
    pub fn sources(&self, upstream: &str) -> Vec<SourceFigures> {
        let known = self.known();
        known
            .get(upstream)
            .map_or(Vec::new(), |it| it.sources.clone())
    }

    /// Number of failed readings of an upstream's sources. Never decreases, whichever sources go.
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
