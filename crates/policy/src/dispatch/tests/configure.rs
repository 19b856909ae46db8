//! Other settings of an upstream that goes on.

use super::*;
use crate::health::{ChangeKind, Initial};
use crate::observation::Observed;

fn configure(site: &Site, lanes: &[LaneSettings<'_>], queue: QueueSettings) {
    let health = HealthSettings::default();
    site.dispatcher.configure(lanes, queue, health, site.now);
}

fn configure_health(site: &Site, health: HealthSettings) {
    let queue = QueueSettings::default();
    site.dispatcher.configure(&[], queue, health, site.now);
}

fn queue_of(max: usize) -> QueueSettings {
    QueueSettings {
        max,
        ..QueueSettings::default()
    }
}

#[test]
fn a_queue_that_becomes_shorter_sends_nobody_away() {
    for max in [1, 0] {
        let mut site = Site::with_slots(1, QueueSettings::default());
        assert_eq!(site.reserved(&[]), Some(0));
        let waiting: Vec<_> = (0..3).map(|_| site.queued(&[])).collect();
        configure(&site, &[], queue_of(max));
        site.dispatcher.tick(site.now);
        assert_eq!(site.dispatcher.waiting(), 3);
        let refused = match max {
            0 => Refusal::Saturated,
            _ => Refusal::QueueFull,
        };
        let newcomer = site.acquire(&[]);
        assert!(
            matches!(newcomer, Acquired::Refused(why) if why == refused),
            "{newcomer:?}"
        );
        for ticket in waiting {
            assert_eq!(site.left(&ticket), None);
            site.release(0);
            assert_eq!(site.granted(&ticket), Some(0));
        }
        // Longer again: a newcomer waits.
        configure(&site, &[], queue_of(2));
        let [first, second] = [(); 2].map(|()| site.queued(&[]));
        assert!(matches!(site.acquire(&[]), Acquired::Refused(_)));
        assert!(site.dispatcher.leave(first).is_none());
        assert!(site.dispatcher.leave(second).is_none());
    }
}

#[test]
fn whoever_waits_for_an_endpoint_to_come_back_follows_hold() {
    let mut site = Site::with_slots(1, QueueSettings::default());
    site.state(0).set(Flag::Down, true);
    let ticket = site.queued(&[]);
    let hold = false;
    let queue = QueueSettings {
        hold,
        ..QueueSettings::default()
    };
    configure(&site, &[], queue);
    let refused = Some(Left::Refused(Refusal::NoEndpoint));
    assert_eq!(site.left(&ticket), refused);
    assert_eq!(site.dispatcher.waiting(), 0);
}

#[test]
fn the_order_of_service_changes_at_once() {
    let mut site = Site::with_slots(1, QueueSettings::default());
    assert_eq!(site.reserved(&[]), Some(0));
    let older = site.queued(&[]);
    site.pass(200);
    let newer = site.queued(&[]);
    configure(&site, &[], discipline(Discipline::AdaptiveLifo));
    site.release(0);
    assert_eq!(site.granted(&older), None);
    assert_eq!(site.granted(&newer), Some(0));
    assert!(site.dispatcher.leave(older).is_none());
}

#[test]
fn a_lane_goes_on_by_its_name() {
    let limits = [(1, Some(4))];
    let queue = QueueSettings::default();
    let mut site = Site::with_lanes(Balance::RoundRobin, &limits, &[1], queue);
    let in_lane = |site: &Site, lane| SlotRequest {
        lane: Some(lane),
        ..site.asking(&[])
    };
    let of_a = in_lane(&site, 0);
    assert!(matches!(
        site.acquire_with(&of_a),
        Acquired::Reserved { .. }
    ));
    let waiting = site.queued_with(&of_a);
    // Another lane stands before it, and it is wider: the waiter goes on.
    let mut lanes = named_lanes(&[2, 3]);
    lanes.reverse();
    configure(&site, &lanes, queue);
    assert_eq!(site.granted(&waiting), Some(0));
    let dispatcher = &site.dispatcher;
    assert_eq!(dispatcher.lane_named("a"), Some(0));
    assert_eq!(dispatcher.lane_named("b"), Some(1));
    assert_eq!(dispatcher.lane_name(1), "b");
    assert_eq!(dispatcher.lane_named("c"), None);
    let of_b = in_lane(&site, 1);
    assert!(matches!(
        site.acquire_with(&of_b),
        Acquired::Reserved { .. }
    ));
    // The lane has another name: exchanges that have the old one keep it.
    configure(&site, &named_lanes(&[2, 3, 1])[1..], queue);
    assert_eq!(site.dispatcher.lane_named("c"), Some(2));
    let of_c = in_lane(&site, 2);
    assert!(matches!(
        site.acquire_with(&of_c),
        Acquired::Reserved { .. }
    ));
    let of_c = site.queued_with(&of_c);
    let in_flight = |site: &Site| [0, 1, 2].map(|lane| site.dispatcher.lane_in_flight(lane));
    assert_eq!(in_flight(&site), [2, 1, 1]);
    for lane in [0, 0, 1] {
        site.release_lane(0, Some(lane));
    }
    assert_eq!(in_flight(&site), [0, 0, 1]);
    site.release_lane(0, Some(2));
    assert_eq!(site.granted(&of_c), Some(0));
}

#[test]
fn whoever_waits_gets_what_a_higher_limit_gives() {
    let mut site = Site::with_slots(1, QueueSettings::default());
    assert_eq!(site.reserved(&[]), Some(0));
    let [first, second, third] = [(); 3].map(|()| site.queued(&[]));
    let state = site.state(0);
    site.dispatcher.set_max_in_flight(&state, Some(2), site.now);
    assert_eq!(site.granted(&first), Some(0));
    assert_eq!(site.granted(&second), None);
    site.dispatcher.set_max_in_flight(&state, None, site.now);
    assert_eq!(site.granted(&second), Some(0));
    assert_eq!(site.granted(&third), Some(0));
    // Exchanges above a lower limit go on, and nobody follows them.
    site.dispatcher.set_max_in_flight(&state, Some(1), site.now);
    let fourth = site.queued(&[]);
    for in_flight in [3, 2, 1] {
        site.release(0);
        assert_eq!(state.in_flight(), in_flight);
    }
    assert_eq!(site.granted(&fourth), None);
    site.release(0);
    assert_eq!(site.granted(&fourth), Some(0));
}

#[test]
fn without_the_guard_nobody_is_out_for_errors() {
    let mut site = Site::new(Balance::First, &[(1, None); 3], no_queue());
    let bad = site.state(0);
    for _ in 0..5 {
        let slot = bad.reservation();
        let (chooser, now) = (&mut site.chooser, site.now);
        let _ = site
            .dispatcher
            .report(chooser, &bad, slot, Observed::Failed, now);
    }
    assert!(bad.has(Flag::Ejected) && bad.load() > 0);
    // It stays out where the guard goes on.
    configure_health(&site, HealthSettings::default());
    assert!(bad.has(Flag::Ejected));
    let guard = false;
    configure_health(
        &site,
        HealthSettings {
            guard,
            ..HealthSettings::default()
        },
    );
    assert!(bad.is_eligible());
    assert_eq!((bad.load(), bad.errors_in_row()), (0, 0));
}

#[test]
fn probes_in_a_row_are_compared_with_the_new_thresholds() {
    let site = Site::with_slots(1, QueueSettings::default());
    let state = site.state(0);
    let thresholds = |rise, fall| HealthSettings {
        rise,
        fall,
        // Only of endpoints that join.
        initial: Initial::Down,
        ..HealthSettings::default()
    };
    configure_health(&site, thresholds(2, 9));
    for _ in 0..4 {
        assert_eq!(site.dispatcher.probed(&state, false, site.now), None);
    }
    configure_health(&site, thresholds(1, 5));
    let change = site.dispatcher.probed(&state, false, site.now);
    assert_eq!(change.map(|it| it.kind), Some(ChangeKind::Down));
    let change = site.dispatcher.probed(&state, true, site.now);
    assert_eq!(change.map(|it| it.kind), Some(ChangeKind::Up));
}

#[test]
fn without_probes_nobody_is_down() {
    let health = HealthSettings {
        initial: Initial::Down,
        ..HealthSettings::default()
    };
    let mut site = Site::new(Balance::First, &[(1, None); 2], QueueSettings::default());
    configure_health(&site, health);
    let new = ["0", "1", "2"].map(|name| EndpointSettings {
        name,
        fingerprint: 0,
        weight: 1,
        max_in_flight: None,
        tier: 0,
    });
    site.dispatcher.replace_members(new, site.now);
    let down = site.state(0);
    for _ in 0..3 {
        let _ = site.dispatcher.probed(&down, false, site.now);
    }
    site.state(1).set(Flag::Drain, true);
    assert!(site.state(2).has(Flag::Unprobed));
    let waiting = site.queued(&[]);
    let changes = site.dispatcher.forget_probes(site.now);
    let changes: Vec<_> = changes
        .iter()
        .map(|(state, change)| (state.name(), change.kind, change.up))
        .collect();
    assert_eq!(changes, [("0", ChangeKind::Up, 2)]);
    assert!(down.is_eligible() && site.state(2).is_eligible());
    assert!(site.state(1).has(Flag::Drain));
    assert!(site.granted(&waiting).is_some());
}

#[test]
fn a_slow_start_that_is_abolished_or_begun() {
    let slow = |seconds| HealthSettings {
        slow_start: Some(Duration::from_secs(seconds)),
        ..HealthSettings::default()
    };
    let mut site = Site::new(Balance::First, &[(1, None); 2], no_queue());
    let state = site.state(0);
    let warmth = || state.effective_weight();
    let come_back = |site: &Site| {
        for admin in [Admin::Drain, Admin::Ready] {
            let _ = site.dispatcher.set_admin(&state, admin, site.now);
        }
    };
    // It had its weight at once: it is not slowed down afterwards.
    come_back(&site);
    configure_health(&site, slow(60));
    site.dispatcher.tick(site.now);
    assert_eq!(warmth(), 256);
    come_back(&site);
    assert!(warmth() < 16);
    site.pass(30_000);
    site.dispatcher.tick(site.now);
    assert_eq!(warmth(), 128);
    // Twice as long: it has come half as far.
    configure_health(&site, slow(120));
    assert_eq!(warmth(), 64);
    configure_health(&site, HealthSettings::default());
    assert_eq!(warmth(), 256);
}
