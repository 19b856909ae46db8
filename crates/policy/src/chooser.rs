//! One worker's side of a dispatcher.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Instant;
use crate::balance::{Balance, Balancer, BalancerSnapshot, Evidence, Learned};
use crate::endpoint::EndpointId;
use crate::health::Guard;
use crate::members::{Members, Moved};
use crate::observation::{Observation, Observed};

/// One worker's side of a dispatcher.
///
/// It has the members that it chooses from, its balancer, and answers that the other workers do
/// not know of yet.
#[derive(Debug, Clone)]
pub struct Chooser {
    pub(crate) members: Arc<Members>,
    pub(crate) balancer: Balancer,
    pub(crate) guard: Guard,
}

impl Chooser {
    /// One that has learned nothing; `seed` makes the workers differ.
    pub fn new(members: Arc<Members>, balance: Balance, seed: u64) -> Self {
        Chooser {
            members,
            balancer: Balancer::new(balance, seed),
            guard: Guard::default(),
        }
    }

    /// The members that it chooses from.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Chooses from these members from now on. The learned values of an endpoint stay with it,
    /// wherever it stands.
    pub(crate) fn follow(&mut self, members: &Arc<Members>) {
        if self.members.version() == members.version() {
            return;
        }
        let moved = Moved::between(&self.members, members);
        self.balancer.follow(&moved);
        self.guard.forget(|id| members.get(id).is_none());
        self.members = members.clone();
    }

    /// Whether its balancer needs an observation of the end of responses.
    pub fn learns_from_end(&self) -> bool {
        self.balancer.learns_from_end()
    }

    /// Learns from an observation of an attempt.
    pub fn observe(&mut self, endpoint: EndpointId, now: Instant, observed: Observed) {
        // An endpoint that left is not chosen any more.
        if let Some(position) = self.members.position(endpoint) {
            self.balancer.observe(&Observation {
                endpoint: position,
                now,
                observed,
            });
        }
    }

    /// The value that its balancer has learned of a member: see [`Balancer::learned`].
    pub fn learned(&self, endpoint: EndpointId, now: Instant) -> Option<Learned> {
        let position = self.members.position(endpoint)?;
        self.balancer.learned(position, now)
    }

    /// The learned state of its balancer, by the names of endpoints; `None` if there is none.
    pub fn keep(&self, now: Instant) -> Option<ChooserSnapshot> {
        let BalancerSnapshot { mean, endpoints } = self.balancer.keep(now)?;
        let members = self.members.endpoints().iter().zip(endpoints);
        let known = members.filter_map(|(it, evidence)| Some((it.name().to_owned(), evidence?)));
        Some(ChooserSnapshot {
            mean,
            endpoints: known.collect(),
        })
    }

    /// Goes on from the state of a balancer of the same kind in another process. Endpoints that
    /// no longer exist are forgotten.
    pub fn restore(&mut self, kept: &ChooserSnapshot, now: Instant) {
        let members = self.members.endpoints().iter();
        let endpoints = members.map(|it| kept.endpoints.get(it.name()).copied());
        let kept = BalancerSnapshot {
            mean: kept.mean,
            endpoints: endpoints.collect(),
        };
        self.balancer.restore(&kept, now);
    }
}

/// The learned state of a chooser's balancer, as one process leaves it to the next.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChooserSnapshot {
    /// The mean of the upstream, in the balancer's own measure.
    pub mean: Option<f64>,
    /// By the name of an endpoint.
    pub endpoints: HashMap<String, Evidence>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::endpoint::EndpointSettings;
    use crate::health::{HealthSettings, Records};
    use crate::observation::Answer;

    fn members(names: &[&str]) -> Arc<Members> {
        let settings: Vec<_> = names
            .iter()
            .map(|name| EndpointSettings {
                name,
                fingerprint: 1,
                weight: 1,
                max_in_flight: None,
                tier: 0,
            })
            .collect();
        let mut records = Records::new(HealthSettings::default());
        Arc::new(Members::new(0, records.endpoints_for(&settings)))
    }

    fn chooser(balance: Balance, names: &[&str]) -> Chooser {
        Chooser::new(members(names), balance, 0)
    }

    fn learned(chooser: &Chooser, name: &str, now: Instant) -> Option<Learned> {
        chooser.learned(chooser.members.named(name)?.id(), now)
    }

    #[test]
    fn another_process_goes_on_from_what_was_learned() {
        let mut now = Instant::from_nanos(5_000_000_000);
        for balance in Balance::variants() {
            let mut before = chooser(balance, &["slow", "fast", "gone", "unknown"]);
            let ids: Vec<_> = before
                .members
                .endpoints()
                .iter()
                .map(|it| it.id())
                .collect();
            for _ in 0..500 {
                for (id, millis) in ids.iter().zip([40, 10, 20]) {
                    now += Duration::from_millis(1);
                    let first_byte = Some(Duration::from_millis(millis));
                    let answer = Answer {
                        first_byte,
                        is_error: false,
                    };
                    before.observe(*id, now, Observed::Head(answer));
                }
            }
            let kept = before.keep(now);
            let learns = learned(&before, "slow", now).is_some();
            assert_eq!(kept.is_some(), learns, "{balance:?}");
            // In another order, and with one that is new.
            let mut after = chooser(balance, &["new", "fast", "slow", "unknown"]);
            assert_eq!(after.keep(now), None, "{balance:?}");
            let Some(kept) = kept else { continue };
            after.restore(&kept, now);
            for name in ["slow", "fast", "unknown", "new"] {
                let [before, after] = [&before, &after].map(|it| learned(it, name, now));
                let same = match (before, after) {
                    (Some(Learned::Slowness(before)), Some(Learned::Slowness(after))) => {
                        (before / after - 1.0).abs() < 0.02
                    }
                    (before, after) => before == after,
                };
                assert!(same, "{balance:?}: {name}: {before:?}, {after:?}");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_not_learned() {
        let now = Instant::from_nanos(5_000_000_000);
        for balance in Balance::variants() {
            let mut chooser = chooser(balance, &["a", "b", "c"]);
            let odd = |sum, answers| Evidence { sum, answers };
            chooser.restore(
                &ChooserSnapshot {
                    mean: Some(f64::NAN),
                    endpoints: HashMap::from([
                        ("a".to_owned(), odd(f64::INFINITY, 1.0)),
                        ("b".to_owned(), odd(1e300, 1e300)),
                        ("c".to_owned(), odd(-1.0, -11.0)),
                    ]),
                },
                now,
            );
            for name in ["a", "b", "c"] {
                match learned(&chooser, name, now) {
                    Some(Learned::Slowness(times)) => assert!(times.is_finite() && times > 0.0),
                    Some(Learned::Time(_)) | None => {}
                }
            }
        }
    }
}
