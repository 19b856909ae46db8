//! The last probe of each endpoint. The control thread writes it, and the figures read it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use evenkeel_policy::endpoint::EndpointId;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::observe::calendar::unix_time;

/// Longest answer that is kept, in bytes.
const MAX_ANSWER_LEN: usize = 200;

/// How a probe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeEnd {
    /// The connection opened, and that was all to check.
    Connected,
    /// The answer was as expected.
    Answered,
    /// No probe was made, as all slots were busy, but an exchange was answered.
    Exchange,
    /// The cause is on this side, such as a lack of descriptors.
    Local,
    /// No connection could be opened.
    ConnectFailed,
    /// The connection did not open in time.
    ConnectTimeout,
    /// The TLS handshake failed.
    TlsFailed,
    /// The answer did not arrive in time.
    AnswerTimeout,
    /// The connection broke, or the answer does not follow the protocol.
    Malformed,
    /// The server speaks the protocol, and reports that it serves no requests.
    Refused,
    /// The answer has an unexpected status.
    Status,
    /// The answer lacks the expected text.
    Content,
}

impl ProbeEnd {
    /// Whether it shows that the endpoint is well.
    pub fn is_pass(self) -> bool {
        matches!(
            self,
            ProbeEnd::Connected | ProbeEnd::Answered | ProbeEnd::Exchange
        )
    }
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastProbe {
    /// End of the probe, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Whether it passed.
    pub passed: bool,
    /// How it ended.
    pub end: ProbeEnd,
    /// Status of the answer, if there was one.
    pub status: Option<u16>,
    /// Duration in microseconds.
    pub took_us: u64,
    /// The answer in words, such as `status 503` or `connection refused`.
    pub answer: String,
}

/// The record of an endpoint's probes.
#[derive(Debug, Clone, Default)]
pub struct Probed {
    /// The last one; `None` before the first.
    pub last: Option<LastProbe>,
    /// Number of failed probes.
    pub failures: u64,
    /// Whether it was inherited from the process before, and the endpoint's own probes have not
    /// begun.
    is_inherited: bool,
}

/// The probes of every endpoint of every upstream, in the order of a configuration.
#[derive(Debug)]
pub struct Probes(Vec<Arc<UpstreamProbes>>);

/// The probes of the endpoints of one upstream.
#[derive(Debug, Default)]
pub struct UpstreamProbes(Mutex<BTreeMap<EndpointId, Probed>>);

impl Probes {
    /// No probes yet, for all upstreams of `config`.
    pub fn new(config: &Config) -> Self {
        Probes(config.upstreams.iter().map(|_| Arc::default()).collect())
    }

    /// The probes under the next configuration; `before` is the one of `self`. An upstream that
    /// keeps its name keeps its probes.
    pub fn following(&self, before: &Config, config: &Config) -> Self {
        let known = before.upstreams.iter().zip(&self.0);
        let known: HashMap<&str, _> = known.map(|(it, probes)| (&*it.name, probes)).collect();
        let upstreams = config.upstreams.iter();
        let probes = upstreams.map(|it| known.get(&*it.name).copied().cloned());
        Probes(probes.map(Option::unwrap_or_default).collect())
    }

    /// The probes of an upstream.
    pub fn of_upstream(&self, upstream: usize) -> &Arc<UpstreamProbes> {
        &self.0[upstream]
    }

    /// The record of an endpoint.
    pub fn of(&self, upstream: usize, endpoint: EndpointId) -> Probed {
        self.0[upstream].of(endpoint)
    }
}

impl UpstreamProbes {
    /// Notes that the probes of an endpoint begin. Clears its record, except an inherited one.
    pub fn begin(&self, endpoint: EndpointId) {
        let mut probed = self.probed();
        let probed = probed.entry(endpoint).or_default();
        if !std::mem::take(&mut probed.is_inherited) {
            *probed = Probed::default();
        }
    }

    /// Inherits the last probe of the process before, for an endpoint whose own probes have not
    /// begun.
    pub fn inherit(&self, endpoint: EndpointId, last: Option<LastProbe>) {
        let mut probed = self.probed();
        let probed = probed.entry(endpoint).or_default();
        (probed.last, probed.is_inherited) = (last, true);
    }

    /// Notes a probe that has just ended, with its end, and the status and words of the answer.
    pub fn note(
        &self,
        endpoint: EndpointId,
        end: ProbeEnd,
        took: Duration,
        status: Option<u16>,
        mut answer: String,
    ) {
        answer.truncate(answer.floor_char_boundary(MAX_ANSWER_LEN));
        let mut probed = self.probed();
        let probed = probed.entry(endpoint).or_default();
        // A local failure says nothing about the endpoint.
        probed.failures += u64::from(!end.is_pass() && end != ProbeEnd::Local);
        probed.last = Some(LastProbe {
            unix_ms: unix_time(SystemTime::now()).as_millis() as u64,
            passed: end.is_pass(),
            end,
            status,
            took_us: took.as_micros() as u64,
            answer,
        });
    }

    /// Adds failures counted by the process before an upgrade.
    pub fn add_failures(&self, endpoint: EndpointId, failures: u64) {
        if failures > 0 {
            self.probed().entry(endpoint).or_default().failures += failures;
        }
    }

    /// The record of an endpoint.
    pub fn of(&self, endpoint: EndpointId) -> Probed {
        self.probed().get(&endpoint).cloned().unwrap_or_default()
    }

    fn probed(&self) -> MutexGuard<'_, BTreeMap<EndpointId, Probed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
