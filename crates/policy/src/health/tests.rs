use super::*;
use crate::balance::{Balance, Balancer};
use crate::dispatch::{Acquired, Asking, EndpointSettings};
use crate::queue::QueueSettings;
use std::task::Waker;

struct Site {
    dispatcher: Dispatcher,
    guard: Guard,
    now: Instant,
}

impl Site {
    fn new(count: usize, settings: HealthSettings) -> Self {
        let names: Vec<_> = (0..count).map(|index| index.to_string()).collect();
        let endpoints = names.iter().map(|name| EndpointSettings {
            name,
            weight: 1,
            max_in_flight: None,
        });
        let now = Instant::from_nanos(1_000_000_000);
        let queue = QueueSettings::default();
        Site {
            dispatcher: Dispatcher::new(endpoints, &[], queue, settings, now),
            guard: Guard::default(),
            now,
        }
    }

    fn state(&self, endpoint: usize) -> &EndpointState {
        &self.dispatcher.states()[endpoint]
    }

    fn report(&mut self, endpoint: usize, outcome: Observed) -> Option<ChangeKind> {
        let change = self
            .dispatcher
            .report(&mut self.guard, endpoint, outcome, self.now);
        change.map(|change| change.kind)
    }

    /// Errors until something changes.
    fn errors_until_change(&mut self, endpoint: usize) -> (u16, Option<ChangeKind>) {
        for count in 1..=20 {
            if let Some(kind) = self.report(endpoint, Observed::Error) {
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
        let states = self.dispatcher.states().iter();
        states.map(EndpointState::effective_weight).collect()
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
    assert_eq!(site.errors_until_change(2), (5, ejected(5, 1)));
    assert!(!site.state(2).is_eligible());
    site.pass(900);
    assert!(!site.state(2).is_eligible());
    site.pass(100);
    assert!(site.state(2).is_eligible());
    assert!(site.state(2).try_reserve(u32::MAX));
    assert!(!site.state(2).try_reserve(u32::MAX), "one trial at a time");
    assert_eq!(site.report(2, Observed::Error), ejected(6, 2));
    site.state(2).release();
    for (errors, seconds) in [(7, 4), (8, 8), (9, 16), (10, 16)] {
        site.pass(20_000);
        assert_eq!(site.report(2, Observed::Error), ejected(errors, seconds));
    }
    site.pass(16_000);
    assert_eq!(
        site.report(2, Observed::Success),
        Some(ChangeKind::Readmitted)
    );
    assert!(site.state(2).try_reserve(u32::MAX));
    assert!(site.state(2).try_reserve(u32::MAX));
    assert_eq!(site.errors_until_change(2), (5, ejected(5, 1)));
    assert_eq!(site.state(2).outages().ejections, 7);
}

#[test]
fn a_trial_does_not_wait_for_what_is_left_from_before() {
    let mut site = Site::new(4, HealthSettings::default());
    for _ in 0..3 {
        assert!(site.state(1).try_reserve(u32::MAX));
    }
    assert_eq!(site.errors_until_change(1), (5, ejected(5, 1)));
    site.pass(1_000);
    assert!(site.state(1).has_room());
    assert!(site.state(1).try_reserve(u32::MAX));
    assert!(!site.state(1).has_room());
    assert!(!site.state(1).try_reserve(u32::MAX), "one at a time");
    // Its client left: another one may try.
    site.state(1).release();
    assert!(site.state(1).try_reserve(u32::MAX));
    assert_eq!(
        site.report(1, Observed::Success),
        Some(ChangeKind::Readmitted)
    );
    assert!(site.state(1).try_reserve(u32::MAX));
    assert!(site.state(1).try_reserve(u32::MAX));
    assert_eq!(site.state(1).in_flight(), 6);
}

#[test]
fn a_success_in_between_starts_the_count_again() {
    let mut site = Site::new(4, HealthSettings::default());
    for _ in 0..10 {
        for _ in 0..4 {
            assert_eq!(site.report(0, Observed::Error), None);
        }
        assert_eq!(site.report(0, Observed::Success), None);
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
        let states = site.dispatcher.states().iter();
        let out = states.filter(|state| !state.is_eligible()).count();
        assert_eq!(out, most, "of {count}");
    }
}

#[test]
fn failing_endpoints_look_busier_while_the_rest_is_well() {
    let mut site = Site::new(3, HealthSettings::default());
    site.report(0, Observed::Error);
    site.report(0, Observed::Error);
    assert_eq!(site.state(0).load(), 0);
    site.report(0, Observed::Error);
    assert_eq!(site.state(0).load(), 1);
    site.pass(900);
    assert_eq!(site.state(0).load(), 1);
    site.pass(200);
    assert_eq!(site.state(0).load(), 0);
    site.report(0, Observed::Error);
    site.pass(1_900);
    assert_eq!(site.state(0).load(), 1, "the fourth counts for two seconds");
    site.pass(200);
    assert_eq!(site.state(0).load(), 0);

    // Where everything fails nobody is singled out.
    let mut site = Site::new(3, HealthSettings::default());
    for _ in 0..20 {
        for endpoint in [1, 2] {
            site.report(endpoint, Observed::Error);
            site.report(endpoint, Observed::Error);
            site.report(endpoint, Observed::Success);
        }
    }
    for _ in 0..4 {
        site.report(0, Observed::Error);
    }
    assert_eq!(site.state(0).load(), 0);
}

#[test]
fn a_rate_of_success_far_under_the_rest_counts_too() {
    let mut site = Site::new(3, HealthSettings::default());
    for _ in 0..30 {
        site.report(0, Observed::Error);
        site.report(0, Observed::Success);
    }
    assert_eq!(site.state(0).load(), 1);
    assert!(site.state(0).is_eligible());
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
        let change = site.dispatcher.probed(0, passed, site.now);
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
    let mut balancer = Balancer::new(Balance::Random, 1);
    let asking = Asking {
        tried: &[],
        key: 0,
        lane: None,
        priority: 0,
        arrived: site.now,
        now: site.now,
    };
    let acquired = site
        .dispatcher
        .acquire(&mut balancer, &asking, Waker::noop());
    let Acquired::Queued(ticket) = acquired else {
        panic!("{acquired:?}");
    };
    let change = site.dispatcher.reached(0, site.now);
    assert_eq!(change.map(|it| it.kind), Some(ChangeKind::Reachable));
    assert_eq!(site.dispatcher.leave(ticket), Some(0), "it was granted");
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
    site.dispatcher.probed(0, false, site.now);
    site.dispatcher.probed(0, true, site.now);
    assert_eq!(site.shares(), [5, 256]);
    site.pass(5_000);
    assert_eq!(site.shares(), [128, 256]);
    site.pass(5_000);
    assert_eq!(site.shares(), [256, 256]);
    // All at once: nobody is throttled.
    for endpoint in [0, 1] {
        site.dispatcher.probed(endpoint, false, site.now);
    }
    for endpoint in [0, 1] {
        site.dispatcher.probed(endpoint, true, site.now);
    }
    assert_eq!(site.shares(), [256, 256]);
}

#[test]
fn the_operators_wish_is_kept_apart_from_what_is_observed() {
    let settings = HealthSettings {
        rise: 1,
        fall: 1,
        ..HealthSettings::default()
    };
    let site = Site::new(2, settings);
    let change = site.dispatcher.set_admin(0, Admin::Drain, site.now);
    assert_eq!(
        change.map(|it| it.kind),
        Some(ChangeKind::Admin(Admin::Drain))
    );
    assert_eq!(site.dispatcher.set_admin(0, Admin::Drain, site.now), None);
    site.dispatcher.probed(0, false, site.now);
    site.dispatcher.probed(0, true, site.now);
    assert!(!site.state(0).is_eligible());
    site.dispatcher.probed(0, false, site.now);
    site.dispatcher.set_admin(0, Admin::Ready, site.now);
    assert!(!site.state(0).is_eligible());
    site.dispatcher.probed(0, true, site.now);
    assert!(site.state(0).is_eligible());
}
