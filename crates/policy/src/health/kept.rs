//! The state of an endpoint, as one process leaves it to the next.

use std::time::Duration;

use super::guard::{WINDOW, Window};
use super::{Ejection, Record, Records};
use crate::Instant;
use crate::endpoint::{Admin, EndpointState, Flag, Outages};

/// The state of an endpoint for another process. Times are relative: clocks differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointSnapshot {
    /// The operator's wish.
    pub admin: Admin,
    /// Whether its probes fail.
    pub is_down: bool,
    /// Whether no probe has said yet whether it is well.
    pub is_unprobed: bool,
    /// Whether connections to it fail.
    pub is_unreachable: bool,
    /// Probes in a row that passed.
    pub probes_passed: u32,
    /// Probes in a row that failed.
    pub probes_failed: u32,
    /// For how long it is still out, for errors in a row; zero where its trial is due.
    pub ejected_for: Option<Duration>,
    /// Ejections without a success in between.
    pub ejections_in_row: u32,
    /// Since when its weight rises after a return.
    pub returned_ago: Option<Duration>,
    /// How often it was put out.
    pub outages: Outages,
    /// Errors since the last success.
    pub errors_in_row: u16,
    /// Connections in a row that could not be opened.
    pub unreachable_in_row: u16,
    /// Phantom exchanges that stand for its errors, and for how long they do.
    pub phantoms: Option<(u32, Duration)>,
    /// Its answers of the last seconds, this one first, and the errors among them.
    pub answers: [[u32; 2]; WINDOW],
}

impl EndpointSnapshot {
    /// The same without the results of probes.
    pub fn without_probes(self) -> Self {
        EndpointSnapshot {
            is_down: false,
            is_unprobed: false,
            probes_passed: 0,
            probes_failed: 0,
            ..self
        }
    }
}

impl Records {
    /// The state of a member, for another process.
    pub fn keep(&mut self, endpoint: &EndpointState, now: Instant) -> EndpointSnapshot {
        let outages = endpoint.outages();
        let mut record = self.of(endpoint).map(|it| it.clone()).unwrap_or_default();
        let is_out = endpoint.has(Flag::Ejected) || endpoint.has(Flag::Trial);
        let until = record.ejected.filter(|_| is_out).map(|it| it.until);
        EndpointSnapshot {
            admin: record.admin,
            is_down: endpoint.has(Flag::Down),
            is_unprobed: endpoint.has(Flag::Unprobed),
            is_unreachable: endpoint.has(Flag::Unreachable),
            probes_passed: record.probes_passed,
            probes_failed: record.probes_failed,
            ejected_for: until.map(|it| it.duration_since(now)),
            ejections_in_row: record.ejections,
            returned_ago: record.returned.map(|it| now.duration_since(it)),
            outages,
            errors_in_row: endpoint.errors_in_row(),
            unreachable_in_row: endpoint.unreachable_in_row(),
            phantoms: (record.phantom_until)
                .map(|until| (endpoint.phantoms(), until.duration_since(now))),
            answers: record.answers.keep(now),
        }
    }

    /// Has a new member go on from its state in another process. Weights are for
    /// [`ramp_up`](Self::ramp_up).
    pub fn restore(&mut self, endpoint: &EndpointState, kept: &EndpointSnapshot, now: Instant) {
        let has_guard = self.settings.guard;
        let Some(record) = self.of(endpoint) else {
            return;
        };
        let ejected = kept.ejected_for.filter(|_| has_guard);
        let phantoms = kept.phantoms.filter(|_| has_guard);
        *record = Record {
            admin: kept.admin,
            probes_passed: kept.probes_passed,
            probes_failed: kept.probes_failed,
            ejections: kept.ejections_in_row,
            ejected: ejected.map(|left| Ejection {
                at: now,
                until: now + left,
            }),
            phantom_until: phantoms.map(|(_, left)| now + left),
            returned: kept.returned_ago.map(|it| now - it),
            answers: Window::restored(&kept.answers, now),
        };
        endpoint.set_phantoms(phantoms.map_or(0, |(count, _)| count));
        endpoint.set_errors(kept.errors_in_row, kept.unreachable_in_row);
        for (flag, on) in [
            (Flag::Down, kept.is_down),
            (Flag::Unprobed, kept.is_unprobed),
            (Flag::Unreachable, kept.is_unreachable),
            (Flag::Drain, kept.admin == Admin::Drain),
            (Flag::Stop, kept.admin == Admin::Stop),
            (Flag::Ejected, ejected.is_some()),
        ] {
            endpoint.set(flag, on);
        }
        endpoint.raise_outages(kept.outages);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::balance::Balance;
    use crate::chooser::Chooser;
    use crate::dispatch::Dispatcher;
    use crate::endpoint::EndpointSettings;
    use crate::health::HealthSettings;
    use crate::observation::Observed;
    use crate::queue::QueueSettings;

    fn dispatcher(now: Instant) -> Dispatcher {
        let settings = ["a", "b"].map(|name| EndpointSettings {
            name,
            fingerprint: 1,
            weight: 1,
            max_in_flight: None,
            tier: 0,
        });
        let queue = QueueSettings::default();
        Dispatcher::new(settings, &[], queue, HealthSettings::default(), now)
    }

    /// Has so many exchanges fail there.
    fn fail(dispatcher: &Dispatcher, endpoint: &EndpointState, count: u32, now: Instant) {
        let mut chooser = Chooser::new(dispatcher.members(), Balance::ALL[0], 0);
        for _ in 0..count {
            let slot = endpoint.try_reserve(u32::MAX).expect("it has no limit");
            dispatcher.report(&mut chooser, endpoint, slot, Observed::Failed, now);
            endpoint.release();
        }
    }

    #[test]
    fn another_process_goes_on_from_what_was_known() {
        let now = Instant::from_nanos(5_000_000_000);
        let before = dispatcher(now);
        let members = before.members();
        let [down, drained] = [0, 1].map(|it| members.endpoints()[it].clone());
        for _ in 0..3 {
            before.probed(&down, false, now);
        }
        before.set_admin(&drained, Admin::Drain, now);
        fail(&before, &drained, 3, now);
        let kept = before.keep(&drained, now);
        assert_eq!(kept.errors_in_row, 3);
        assert_eq!(kept.answers[0], [3, 3]);
        assert!(
            kept.phantoms.is_some_and(|(count, _)| count == 1),
            "{kept:?}"
        );
        // Its clock has begun somewhere else.
        let now_there = Instant::from_nanos(7);
        let after = dispatcher(now_there);
        let both = members.endpoints().iter();
        let there = after.members();
        let both: Vec<_> = both.zip(there.endpoints()).collect();
        let kept = both
            .iter()
            .map(|(old, new)| (&***new, before.keep(old, now)));
        after.restore(kept, now_there);
        for (old, new) in both {
            assert_eq!(after.keep(new, now_there), before.keep(old, now));
            assert_eq!(new.is_eligible(), old.is_eligible());
            assert_eq!(new.outages(), old.outages());
        }
        let members = after.members();
        assert!(members.endpoints()[0].has(Flag::Down));
        assert_eq!(after.admin(&members.endpoints()[1]), Admin::Drain);
        // The probes there go on counting.
        after.probed(&members.endpoints()[0], true, now_there);
        assert!(members.endpoints()[0].has(Flag::Down));
        after.probed(&members.endpoints()[0], true, now_there);
        assert!(!members.endpoints()[0].has(Flag::Down));
    }
}
