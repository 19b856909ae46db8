//! Where the endpoints of upstreams come from: whoever finds them writes it, figures and
//! explanations read it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

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
    /// Notes that it was read at this moment.
    pub fn note_read(&mut self, at: SystemTime) {
        self.read_unix_ms = Some(unix_time(at).as_millis() as u64);
        (self.failing, self.error) = (None, None);
    }
}

/// What is known of an upstream.
#[derive(Debug, Clone, Default)]
struct Known {
    sources: Vec<SourceFigures>,
    /// By the name of an endpoint, why it is there.
    reasons: HashMap<String, String>,
    /// Times that a source could not be read, those that are gone included.
    failures: u64,
}

/// The sources of every upstream, by its name.
#[derive(Debug, Default)]
pub struct Discovered {
    upstreams: Mutex<BTreeMap<String, Known>>,
    state_failures: AtomicU64,
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
        for source in &sources {
            let mut before = known.sources.iter();
            let before = before.find(|it| it.source == source.source);
            let before = before.map_or(0, |it| it.failures);
            known.failures += source.failures.saturating_sub(before);
        }
        (known.sources, known.reasons) = (sources, reasons);
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

    /// Times that a source of an upstream could not be read: it never decreases,
    /// whichever sources go.
    pub fn source_failures(&self, upstream: &str) -> u64 {
        self.known().get(upstream).map_or(0, |it| it.failures)
    }

    /// Adds what the process before an upgrade has counted.
    pub fn add_source_failures(&self, upstream: &str, failures: u64) {
        if let Some(known) = self.known().get_mut(upstream) {
            known.failures += failures;
        }
    }

    /// Why the upstream has this endpoint.
    pub fn reason(&self, upstream: &str, endpoint: &str) -> Option<String> {
        self.known().get(upstream)?.reasons.get(endpoint).cloned()
    }

    /// Counts a state file that could not be read or written.
    pub fn count_state_failure(&self) {
        self.state_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what the process before an upgrade has counted.
    pub fn add_state_failures(&self, count: u64) {
        self.state_failures.fetch_add(count, Ordering::Relaxed);
    }

    /// Times that the state file could not be read or written.
    pub fn state_failures(&self) -> u64 {
        self.state_failures.load(Ordering::Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.upstreams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
