use super::*;
use crate::balance::Balance;
use crate::dispatch::Acquired;
use crate::dispatch::tests::newcomer;
use crate::endpoint::{EndpointId, EndpointSettings, Tried};
use crate::health::{HealthSettings, Initial};
use crate::queue::QueueSettings;
use std::task::Waker;

const SUCCESS: Observed = Observed::Head(Answer {
    first_byte: None,
    is_error: false,
});

struct Site {
    dispatcher: Dispatcher,
    chooser: Chooser,
    now: Instant,
}

impl Site {
    fn new(count: usize, settings: HealthSettings) -> Self {
        let names: Vec<_> = (0..count).map(|index| index.to_string()).collect();
        let endpoints = names.iter().map(|name| EndpointSettings {
            name,
            fingerprint: 0,
            weight: 1,
            max_in_flight: None,
            tier: 0,
        });
        let now = Instant::from_nanos(1_000_000_000);
        let queue = QueueSettings::default();
        let dispatcher = Dispatcher::new(endpoints, &[], queue, settings, now);
        Site {
            chooser: Chooser::new(dispatcher.members(), Balance::First, 1),
            dispatcher,
            now,
        }
    }

    fn state(&self, endpoint: usize) -> &EndpointState {
        &self.chooser.members.endpoints()[endpoint]
    }

    /// An exchange that begins and ends now.
    fn report(&mut self, endpoint: usize, outcome: Observed) -> Option<ChangeKind> {
        let slot = self.state(endpoint).reservation();
        self.report_of(slot, outcome)
    }

    fn report_of(&mut self, slot: Reservation, outcome: Observed) -> Option<ChangeKind> {
        let endpoint = self.chooser.members.get(slot.endpoint()).cloned();
        let endpoint = endpoint.expect("it is a member");
        let change = self
            .dispatcher
            .report(&mut self.chooser, &endpoint, slot, outcome, self.now);
        change.map(|change| change.kind)
    }

    fn acquire(&self, tried: &[Tried]) -> Acquired {
        let asking = newcomer(tried, self.now);
        let mut chooser = self.chooser.clone();
        self.dispatcher
            .acquire(&mut chooser, &asking, Waker::noop())
    }

    /// The slot of a newcomer.
    fn reserve(&self) -> Reservation {
        match self.acquire(&[]) {
            Acquired::Reserved { reservation, .. } => reservation,
            other => panic!("{other:?}"),
        }
    }

    fn release(&self, slot: Reservation) {
        let endpoint = self.state(slot.endpoint().index());
        self.dispatcher.release(endpoint, slot, None, || self.now);
    }

    /// Errors until something changes.
    fn errors_until_change(&mut self, endpoint: usize) -> (u16, Option<ChangeKind>) {
        for count in 1..=20 {
            if let Some(kind) = self.report(endpoint, Observed::Failed) {
                return (count, Some(kind));
            }
        }
        (20, None)
    }

    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 100 {
            self.now += Duration::from_millis(100);
            self.dispatcher.tick(self.now);
        }
    }

    fn shares(&self) -> Vec<u32> {
        let states = self.chooser.members.endpoints().iter();
        states.map(|it| it.effective_weight()).collect()
    }
}

/// Something was sent there.
fn sent(endpoint: u32) -> Tried {
    Tried::Sent {
        endpoint: EndpointId::new(endpoint),
    }
}

fn ejected(errors: u16, seconds: u64) -> Option<ChangeKind> {
    Some(ChangeKind::Ejected {
        errors,
        duration: Duration::from_secs(seconds),
    })
}

#[test]
fn five_errors_in_a_row_put_it_out_and_one_trial_brings_it_back() {
    let mut site = Site::new(4, HealthSettings::default());
    assert_eq!(site.errors_until_change(0), (5, ejected(5, 1)));
    assert!(!site.state(0).is_eligible());
    assert_eq!(site.state(0).load(), 1, "a phantom");
    site.pass(900);
    assert_eq!(site.reserve().endpoint().index(), 1);
    site.pass(100);
    for (errors, seconds) in [(6, 2), (7, 4), (8, 8), (9, 16), (10, 16)] {
        let trial = site.reserve();
        assert_eq!(
            trial.endpoint().index(),
            0,
            "the next exchange, phantom or not"
        );
        assert_eq!(site.reserve().endpoint().index(), 1, "one trial at a time");
        assert_eq!(
            site.report_of(trial, Observed::Failed),
            ejected(errors, seconds)
        );
        site.release(trial);
        site.pass(seconds * 1_000);
    }
    let trial = site.reserve();
    assert_eq!(site.report_of(trial, SUCCESS), Some(ChangeKind::Readmitted));
    assert_eq!(site.state(0).load(), 1, "its trial, and no phantom");
    assert!(site.state(0).is_eligible());
    assert_eq!(site.errors_until_change(0), (5, ejected(5, 1)));
    assert_eq!(site.state(0).outages().ejections, 7);
}

#[test]
fn only_the_outcome_of_the_trial_counts() {
    let mut site = Site::new(2, HealthSettings::default());
    let older: Vec<_> = (0..40).map(|_| site.reserve()).collect();
    assert_eq!(site.errors_until_change(0), (5, ejected(5, 1)));
    site.pass(1_000);
    for &slot in &older[..10] {
        assert_eq!(site.report_of(slot, SUCCESS), None);
        assert_eq!(site.report_of(slot, Observed::Failed), None);
    }
    let trial = site.reserve();
    assert_eq!(site.report_of(trial, SUCCESS), Some(ChangeKind::Readmitted));
    // Earlier exchanges say nothing of the endpoint now either.
    for &slot in &older {
        assert_eq!(site.report_of(slot, Observed::Failed), None);
    }
    assert!(site.state(0).is_eligible());
}

#[test]
fn a_trial_is_nobodys_to_hold() {
    let mut site = Site::new(2, HealthSettings::default());
    assert_eq!(site.errors_until_change(0), (5, ejected(5, 1)));
    site.pass(1_000);
    let long = site.reserve();
    assert_eq!(long.endpoint().index(), 0);
    site.pass(900);
    assert_eq!(site.reserve().endpoint().index(), 1);
    site.pass(200);
    let second = site.reserve();
    assert_eq!(second.endpoint().index(), 0);
    // The end of the first one frees no place for a third.
    site.release(long);
    assert_eq!(site.reserve().endpoint().index(), 1);
    assert_eq!(site.report_of(second, Observed::Failed), ejected(6, 2));
    // The trial of the first ejection does not decide about the second.
    assert_eq!(site.report_of(long, SUCCESS), None);
    site.pass(2_000);
    let left = site.reserve();
    assert_eq!(left.endpoint().index(), 0);
    // Its client left without an outcome: another may try at once.
    site.release(left);
    assert_eq!(site.reserve().endpoint().index(), 0);
}

#[test]
fn an_ejection_is_void_where_nothing_else_is_eligible() {
    let settings = HealthSettings {
        fall: 1,
        ..HealthSettings::default()
    };
    let mut site = Site::new(2, settings);
    assert_eq!(site.errors_until_change(0), (5, ejected(5, 1)));
    let refused = Tried::Refused {
        endpoint: EndpointId::new(1),
        until: site.now + Duration::from_millis(100),
        openings: 0,
    };
    for tried in [refused, sent(1)] {
        let Acquired::Reserved { reservation, .. } = site.acquire(&[tried]) else {
            panic!("it goes nowhere");
        };
        assert_eq!(reservation.endpoint().index(), 0);
        site.release(reservation);
    }
    assert_eq!(site.reserve().endpoint().index(), 1);
    site.dispatcher.probed(site.state(1), false, site.now);
    let first = site.reserve();
    assert_eq!(first.endpoint().index(), 0);
    let second = site.reserve();
    assert_eq!(second.endpoint().index(), 0);
    assert_eq!(site.report_of(second, Observed::Failed), None);
    assert_eq!(
        site.report_of(first, SUCCESS),
        Some(ChangeKind::Readmitted),
        "the first one there is its trial"
    );
}

#[test]
fn errors_are_compared_with_those_of_the_rest() {
    // (the rest: answers, and every how many-th is an error; errors in a row
    // until something happens)
    for (answers, every, due) in [
        (0, 1, Some(5)),
        (10, 11, Some(5)),
        (1_000, 1_001, Some(5)),
        (1_000, 50, Some(5)),
        (1_000, 10, Some(5)),
        (1_000, 4, Some(9)),
        (1_000, 2, Some(17)),
        (1_000, 1, None),
    ] {
        let mut site = Site::new(4, HealthSettings::default());
        for index in 1..=answers {
            site.now += Duration::from_millis(5);
            let outcome = match index % every {
                0 => Observed::Failed,
                _ => SUCCESS,
            };
            // Never two in a row at one endpoint.
            for endpoint in 1..4 {
                site.report(endpoint, outcome);
                if every > 1 {
                    site.report(endpoint, SUCCESS);
                }
            }
        }
        let seen = site.errors_until_change(0);
        let rate = format!("every {every} of {answers}: {seen:?}");
        match due {
            // With the successes in between the rate is half of that.
            Some(due) => assert!(seen.0 <= due && seen.1.is_some(), "{rate}"),
            None => assert_eq!(seen, (20, None), "{rate}"),
        }
    }
}

#[test]
fn a_success_in_between_starts_the_count_again() {
    let mut site = Site::new(4, HealthSettings::default());
    for _ in 0..10 {
        for _ in 0..4 {
            assert_eq!(site.report(0, Observed::Failed), None);
        }
        assert_eq!(site.report(0, SUCCESS), None);
    }
    assert!(site.state(0).is_eligible());
}

#[test]
fn never_more_than_half_are_out() {
    for (count, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (10, 5)] {
        let mut site = Site::new(count, HealthSettings::default());
        for endpoint in 0..count {
            site.errors_until_change(endpoint);
        }
        let states = site.chooser.members.endpoints().iter();
        let out = states.filter(|state| !state.is_eligible()).count();
        assert_eq!(out, most, "of {count}");
    }
}

#[test]
fn failing_endpoints_look_busier_while_the_rest_is_well() {
    let mut site = Site::new(3, HealthSettings::default());
    site.report(0, Observed::Failed);
    site.report(0, Observed::Failed);
    assert_eq!(site.state(0).load(), 0);
    site.report(0, Observed::Failed);
    assert_eq!(site.state(0).load(), 1);
    site.pass(900);
    assert_eq!(site.state(0).load(), 1);
    site.pass(200);
    assert_eq!(site.state(0).load(), 0);
    site.report(0, Observed::Failed);
    site.pass(1_900);
    assert_eq!(site.state(0).load(), 1, "the fourth counts for two seconds");
    site.pass(200);
    assert_eq!(site.state(0).load(), 0);

    // If everything fails, no endpoint is singled out.
    let mut site = Site::new(3, HealthSettings::default());
    for _ in 0..20 {
        for endpoint in [1, 2] {
            site.report(endpoint, Observed::Failed);
            site.report(endpoint, Observed::Failed);
            site.report(endpoint, SUCCESS);
        }
    }
    for _ in 0..4 {
        site.report(0, Observed::Failed);
    }
    assert_eq!(site.state(0).load(), 0);
}

#[test]
fn without_the_guard_errors_change_nothing() {
    let settings = HealthSettings {
        guard: false,
        ..HealthSettings::default()
    };
    let mut site = Site::new(3, settings);
    assert_eq!(site.errors_until_change(0), (20, None));
    assert_eq!(site.state(0).load(), 0);
}

#[test]
fn probes_rise_and_fall() {
    let site = Site::new(2, HealthSettings::default());
    let mut probe = |passed: bool| {
        let change = site.dispatcher.probed(site.state(0), passed, site.now);
        change.map(|change| (change.kind, change.up))
    };
    assert_eq!([false, false, true].map(&mut probe), [None; 3]);
    assert_eq!([false, false].map(&mut probe), [None; 2]);
    assert_eq!(probe(false), Some((ChangeKind::Down, 1)));
    assert_eq!([false, true, false, true].map(&mut probe), [None; 4]);
    assert_eq!(probe(true), Some((ChangeKind::Up, 2)));
    assert_eq!(probe(true), None);
}

#[test]
fn what_cannot_be_reached_is_out_until_it_can() {
    let mut site = Site::new(1, HealthSettings::default());
    assert_eq!(site.report(0, Observed::Unreachable), None);
    assert_eq!(site.report(0, Observed::Unreachable), None);
    let change = site.report(0, Observed::Unreachable);
    assert_eq!(change, Some(ChangeKind::Unreachable));
    assert_eq!(site.report(0, Observed::Unreachable), None);
    let acquired = site.acquire(&[]);
    let Acquired::Queued(ticket) = acquired else {
        panic!("{acquired:?}");
    };
    let change = site.dispatcher.reached(site.state(0), site.now);
    assert_eq!(change.map(|it| it.kind), Some(ChangeKind::Reachable));
    assert!(site.dispatcher.leave(ticket).is_some(), "it was granted");
}

#[test]
fn weights_rise_relative_to_the_warmest() {
    let settings = HealthSettings {
        slow_start: Some(Duration::from_secs(10)),
        rise: 1,
        fall: 1,
        ..HealthSettings::default()
    };
    let mut site = Site::new(2, settings);
    assert_eq!(site.shares(), [256, 256]);
    site.dispatcher.probed(site.state(0), false, site.now);
    site.dispatcher.probed(site.state(0), true, site.now);
    assert_eq!(site.shares(), [5, 256]);
    site.pass(5_000);
    assert_eq!(site.shares(), [128, 256]);
    site.pass(5_000);
    assert_eq!(site.shares(), [256, 256]);
    // All at once: nobody is throttled.
    for endpoint in [0, 1] {
        site.dispatcher
            .probed(site.state(endpoint), false, site.now);
    }
    for endpoint in [0, 1] {
        site.dispatcher.probed(site.state(endpoint), true, site.now);
    }
    assert_eq!(site.shares(), [256, 256]);
}

#[test]
fn a_return_by_the_operator_is_slow_too() {
    let settings = HealthSettings {
        slow_start: Some(Duration::from_secs(10)),
        ..HealthSettings::default()
    };
    for how in ["drain", "stop", "weight"] {
        let mut site = Site::new(2, settings);
        let now = site.now;
        let operate = |admin| site.dispatcher.set_admin(site.state(0), admin, now);
        match how {
            "weight" => {
                site.dispatcher.set_weight(site.state(0), 0, now);
                site.dispatcher.set_weight(site.state(0), 1, now);
            }
            _ => {
                let _ = operate(if how == "drain" {
                    Admin::Drain
                } else {
                    Admin::Stop
                });
                let _ = operate(Admin::Ready);
            }
        }
        assert_eq!(site.shares(), [5, 256], "{how}");
        site.pass(5_000);
        assert_eq!(site.shares(), [128, 256], "{how}");
        // A weight that was not 0 is no return.
        site.pass(10_000);
        site.dispatcher.set_weight(site.state(0), 2, site.now);
        assert_eq!(site.shares(), [512, 256], "{how}");
    }
}

fn with_slots(max_in_flight: u32) -> EndpointSettings<'static> {
    EndpointSettings {
        name: "a",
        fingerprint: 0,
        weight: 1,
        max_in_flight: Some(max_in_flight),
        tier: 0,
    }
}

#[test]
fn the_limit_rises_with_the_weight() {
    let state = EndpointState::new(EndpointId::new(0), &with_slots(8));
    let room = |ramp: u16| {
        state.set_ramp(ramp);
        let mut taken = 0;
        while state.try_reserve(u32::MAX).is_some() {
            taken += 1;
        }
        (0..taken).for_each(|_| state.release());
        taken
    };
    let seen = [1, 32, 33, 128, 255, 256].map(room);
    assert_eq!(seen, [1, 1, 2, 4, 8, 8]);
}

#[test]
fn the_operators_wish_is_kept_apart_from_what_is_observed() {
    let settings = HealthSettings {
        rise: 1,
        fall: 1,
        ..HealthSettings::default()
    };
    let site = Site::new(2, settings);
    let change = site
        .dispatcher
        .set_admin(site.state(0), Admin::Drain, site.now);
    assert_eq!(
        change.map(|it| it.kind),
        Some(ChangeKind::Admin(Admin::Drain))
    );
    assert_eq!(
        site.dispatcher
            .set_admin(site.state(0), Admin::Drain, site.now),
        None
    );
    site.dispatcher.probed(site.state(0), false, site.now);
    site.dispatcher.probed(site.state(0), true, site.now);
    assert!(!site.state(0).is_eligible());
    site.dispatcher.probed(site.state(0), false, site.now);
    site.dispatcher
        .set_admin(site.state(0), Admin::Ready, site.now);
    assert!(!site.state(0).is_eligible());
    site.dispatcher.probed(site.state(0), true, site.now);
    assert!(site.state(0).is_eligible());
}

#[test]
fn the_first_probe_decides_alone_and_nothing_comes_before_it() {
    let settings = HealthSettings {
        rise: 3,
        fall: 3,
        initial: Initial::Down,
        ..HealthSettings::default()
    };
    let site = Site::new(3, settings);
    assert!(!site.state(0).is_eligible() && !site.state(1).is_eligible());
    // Passing is no change: nobody had heard otherwise.
    assert_eq!(site.dispatcher.probed(site.state(0), true, site.now), None);
    assert!(site.state(0).is_eligible() && !site.state(1).is_eligible());
    let change = site.dispatcher.probed(site.state(1), false, site.now);
    let change = change.map(|it| (it.kind, it.up));
    assert_eq!(change, Some((ChangeKind::Down, 2)), "one is not probed yet");
    assert!(site.state(1).has(Flag::Down) && !site.state(1).has(Flag::Unprobed));
    let outages = [0, 1].map(|endpoint| site.state(endpoint).outages().downs);
    assert_eq!(outages, [0, 1]);
    // From then on rise and fall count.
    assert_eq!(site.dispatcher.probed(site.state(0), false, site.now), None);
    assert_eq!(site.dispatcher.probed(site.state(1), true, site.now), None);
    assert!(site.state(0).is_eligible() && !site.state(1).is_eligible());
}

#[test]
fn who_came_before_the_first_probe_is_served_after_it() {
    let settings = HealthSettings {
        initial: Initial::Down,
        ..HealthSettings::default()
    };
    let site = Site::new(1, settings);
    let acquired = site.acquire(&[]);
    let Acquired::Queued(ticket) = acquired else {
        panic!("{acquired:?}");
    };
    site.dispatcher.probed(site.state(0), true, site.now);
    assert!(site.dispatcher.leave(ticket).is_some());
}

#[test]
fn a_slot_that_is_set_aside_is_for_a_probe() {
    let dispatcher = Dispatcher::new(
        [with_slots(1)],
        &[],
        QueueSettings::default(),
        HealthSettings::default(),
        Instant::from_nanos(1_000_000_000),
    );
    let state = dispatcher.members().endpoints()[0].clone();
    let probe = || state.try_reserve_for_probe();
    assert!(probe().is_some() && probe().is_none());
    state.set_aside();
    assert!(!state.may_hand_over());
    state.release();
    let exchange = || state.try_reserve(u32::MAX);
    assert!(!state.has_room() && exchange().is_none());
    assert!(probe().is_some());
    state.release();
    state.put_back();
    assert!(state.has_room() && exchange().is_some());
}
