//! Probes of an endpoint, as often as its upstream says.

use std::time::{Duration, Instant};

use evenkeel_policy::endpoint::Flag;
use evenkeel_proto::probe::Fault;
use tokio::time::sleep_until;

use super::admission::Admission;
use super::{LONGEST_TRY, Watch};
use crate::certificates::EndpointTls;
use crate::config::{Endpoint, Probe};
use crate::metrics::quantity::counted;
use crate::net::clock;
use crate::observe::inquiry::{Inquiry, make_room};
use crate::observe::probes::ProbeEnd;
use crate::upstream::probe::{Answer, Awaited, Passed, ProbeFailure, probe, probed_address};

/// Part of the interval by which a probe comes earlier or later.
const JITTER: f64 = 0.1;

/// The result of a look at an endpoint.
enum Seen {
    /// A probe was made.
    Probe(Result<Passed, ProbeFailure>),
    /// It had no slot for a probe, but answered an exchange.
    Exchange,
}

impl Watch {
    /// The first probe comes at once, or anywhere within the interval where the endpoint takes
    /// part without one. Later probes come an interval apart, with jitter: the probes of many
    /// endpoints are spread out, and stay so.
    pub(super) async fn probe_for_ever(self, settings: Probe) {
        let mut due = Instant::now();
        let mut spread = Some(settings.interval.mul_f64(fastrand::f64()));
        if !self.state().has(Flag::Unprobed) {
            due += spread.take().unwrap_or_default();
        }
        // Said once, until a probe could be made again.
        let mut is_lack_known = false;
        loop {
            sleep_until(due.into()).await;
            match self.look(&settings).await {
                Seen::Probe(Err(failure)) if failure.is_local() => {
                    if !std::mem::replace(&mut is_lack_known, true) {
                        let (upstream, name) = (self.upstream_name(), &self.config().name);
                        tracing::error!(
                            "upstream {upstream}: endpoint {name} can't be probed: {failure}"
                        );
                    }
                }
                seen => {
                    is_lack_known = false;
                    self.note(seen);
                }
            }
            let jittered = || {
                let jitter = 1.0 - JITTER + 2.0 * JITTER * fastrand::f64();
                settings.interval.mul_f64(jitter)
            };
            let pause = if self.state().has(Flag::Unprobed) {
                // None could be made, and nothing goes there before one was.
                settings.interval.min(LONGEST_TRY)
            } else {
                spread.take().unwrap_or_else(jittered)
            };
            // Probes that come too late are not made up for.
            due = (due + pause).max(Instant::now());
        }
    }

    /// Probes the endpoint, unless all its slots are busy and its exchanges show
    /// that it is well.
    async fn look(&self, settings: &Probe) -> Seen {
        let (permits, share) = (
            &self.upstream.common.probe_permits,
            &self.upstream.probe_share,
        );
        let _permit = permits.acquire(share).await;
        let endpoint = self.config();
        let admission = if probed_address(&endpoint.address, settings) == endpoint.address {
            self.admit(settings.interval).await
        } else {
            // A port that takes no exchanges.
            Admission::Unlimited
        };
        if matches!(admission, Admission::Answered) {
            let answer = "no slot was free, but an exchange was answered".to_owned();
            let (end, took) = (ProbeEnd::Exchange, Duration::ZERO);
            let probes = self.upstream.probes();
            probes.note(self.state().id(), end, took, None, answer);
            return Seen::Exchange;
        }
        let begun = Instant::now();
        let (tls, inquiries) = (self.endpoint.tls.as_ref(), &self.upstream.common.inquiries);
        let outcome = probe_once(endpoint, settings, tls, inquiries).await;
        let (took, answer) = match &outcome {
            Ok(passed) => (passed.elapsed, passed.answer.to_string()),
            Err(failure) => (begun.elapsed(), failure.to_string()),
        };
        let (end, status) = end_of(&outcome);
        let probes = self.upstream.probes();
        probes.note(self.state().id(), end, took, status, answer);
        Seen::Probe(outcome)
    }

    fn note(&self, seen: Seen) {
        let is_probed = self.upstream.shared.is_probed();
        if !is_probed {
            // Another configuration has come into force in this moment.
            return;
        }
        let health = self.upstream.current().config().health;
        let is_first = self.state().has(Flag::Unprobed);
        let passed = !matches!(seen, Seen::Probe(Err(_)));
        let change = self.dispatcher().probed(self.state(), passed, clock::now());
        let count = |in_row: u32, what| {
            if is_first {
                counted(1, what)
            } else {
                counted(u64::from(in_row), what)
            }
        };
        let (upstream, name) = (self.upstream_name(), &self.config().name);
        let detail = match seen {
            Seen::Probe(Ok(passed)) => {
                if is_first {
                    tracing::debug!("upstream {upstream}: endpoint {name}: the first probe passed");
                }
                let took = shown(passed.elapsed);
                format!("{}, {took}", count(health.rise, "probe"))
            }
            Seen::Probe(Err(failure)) => {
                tracing::debug!("upstream {upstream}: endpoint {name}: probe failed: {failure}");
                format!("{}: {failure}", count(health.fall, "failed probe"))
            }
            Seen::Exchange => {
                let probes = count(health.rise, "probe");
                format!("{probes}, the last of them an exchange")
            }
        };
        self.log(change, Some(&detail));
    }
}

/// Probes an endpoint. If no descriptor is left for a probe, idle connections give way.
pub(super) async fn probe_once(
    endpoint: &Endpoint,
    settings: &Probe,
    tls: Option<&EndpointTls>,
    inquiries: &[Inquiry],
) -> Result<Passed, ProbeFailure> {
    let outcome = probe(&endpoint.address, settings, endpoint.authority(), tls).await;
    let is_lacking = outcome
        .as_ref()
        .is_err_and(ProbeFailure::is_out_of_descriptors);
    if is_lacking && make_room(inquiries).await {
        return probe(&endpoint.address, settings, endpoint.authority(), tls).await;
    }
    outcome
}

/// In milliseconds: whole ones from 10 on.
fn shown(elapsed: Duration) -> String {
    let ms = elapsed.as_secs_f64() * 1000.0;
    format!("{ms:.*} ms", usize::from(ms < 10.0))
}

/// How a probe ended, and the status of the answer.
fn end_of(outcome: &Result<Passed, ProbeFailure>) -> (ProbeEnd, Option<u16>) {
    let failure = match outcome {
        Ok(Passed { answer, .. }) => {
            let end = match answer {
                Answer::Opened => ProbeEnd::Connected,
                Answer::Status(_) | Answer::Words(_) => ProbeEnd::Answered,
            };
            return (end, answer.status());
        }
        Err(failure) if failure.is_local() => return (ProbeEnd::Local, None),
        Err(failure) => failure,
    };
    match failure {
        ProbeFailure::Connect(_) => (ProbeEnd::ConnectFailed, None),
        ProbeFailure::Timeout { awaited, .. } => match awaited {
            Awaited::Connection => (ProbeEnd::ConnectTimeout, None),
            Awaited::Answer | Awaited::Words(_) => (ProbeEnd::AnswerTimeout, None),
        },
        ProbeFailure::Tls(_) => (ProbeEnd::TlsFailed, None),
        ProbeFailure::Fault(Fault::Refused { .. })
        | ProbeFailure::Grpc { .. }
        | ProbeFailure::NotServing { .. } => (ProbeEnd::Refused, None),
        ProbeFailure::Fault(Fault::Missing { .. }) => (ProbeEnd::Content, None),
        ProbeFailure::Broken(_)
        | ProbeFailure::Closed { .. }
        | ProbeFailure::Fault(Fault::Unexpected { .. })
        | ProbeFailure::Http2(_)
        | ProbeFailure::Malformed(_)
        | ProbeFailure::Head(_)
        | ProbeFailure::Body(_) => (ProbeEnd::Malformed, None),
        ProbeFailure::Status(status) => (ProbeEnd::Status, Some(*status)),
        ProbeFailure::Content { .. } => (ProbeEnd::Content, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_times() {
        for (us, expected) in [(400, "0.4 ms"), (9_940, "9.9 ms"), (12_340, "12 ms")] {
            assert_eq!(shown(Duration::from_micros(us)), expected);
        }
    }
}
