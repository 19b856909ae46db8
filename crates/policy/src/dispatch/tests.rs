use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use super::*;
use crate::balance::Balance;
use crate::endpoint::{Admin, EndpointId, Flag};
use crate::queue::Discipline;

const BALANCES: [Balance; 3] = [Balance::Random, Balance::RoundRobin, Balance::ShortestQueue];

/// The asking of an exchange that comes now, without a key and a lane.
pub(super) fn newcomer(tried: &[Tried], now: Instant) -> SlotRequest<'_> {
    SlotRequest {
        tried,
        key: 0,
        pinned_to: None,
        lane: None,
        priority: 0,
        arrived: now,
        now,
    }
}

/// Lanes with so many slots, called `a`, `b` and so on.
pub(super) fn named_lanes(widths: &[u32]) -> Vec<LaneSettings<'static>> {
    let names = ["a", "b", "c"];
    let lanes = names.into_iter().zip(widths);
    let lanes = lanes.map(|(name, &max_in_flight)| LaneSettings {
        name,
        max_in_flight,
    });
    lanes.collect()
}

/// An upstream, a worker's chooser for it, and a clock.
struct Site {
    dispatcher: Dispatcher,
    chooser: Chooser,
    epoch: Instant,
    now: Instant,
}

impl Site {
    fn new(balance: Balance, limits: &[(u32, Option<u32>)], queue: QueueSettings) -> Self {
        Self::with_lanes(balance, limits, &[], queue)
    }

    /// One endpoint with so many slots.
    fn with_slots(count: u32, queue: QueueSettings) -> Self {
        Self::new(Balance::RoundRobin, &[(1, Some(count))], queue)
    }

    fn with_lanes(
        balance: Balance,
        limits: &[(u32, Option<u32>)],
        lanes: &[u32],
        queue: QueueSettings,
    ) -> Self {
        let names: Vec<_> = (0..limits.len()).map(|index| index.to_string()).collect();
        let endpoints = names
            .iter()
            .zip(limits)
            .map(|(name, limits)| EndpointSettings {
                name,
                fingerprint: 0,
                weight: limits.0,
                max_in_flight: limits.1,
                tier: 0,
            });
        let epoch = Instant::from_nanos(1_000_000_000);
        let health = HealthSettings::default();
        let dispatcher = Dispatcher::new(endpoints, &named_lanes(lanes), queue, health, epoch);
        Site {
            chooser: Chooser::new(dispatcher.members(), balance, 7),
            dispatcher,
            epoch,
            now: epoch,
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    fn asking<'a>(&self, tried: &'a [Tried]) -> SlotRequest<'a> {
        newcomer(tried, self.now)
    }

    fn acquire(&mut self, tried: &[Tried]) -> Acquired {
        let asking = self.asking(tried);
        self.acquire_with(&asking)
    }

    fn acquire_with(&mut self, asking: &SlotRequest<'_>) -> Acquired {
        self.dispatcher
            .acquire(&mut self.chooser, asking, Waker::noop())
    }

    /// The member at this position.
    fn state(&self, index: usize) -> Arc<EndpointState> {
        at(&self.dispatcher, index)
    }

    fn reserved(&mut self, tried: &[Tried]) -> Option<usize> {
        match self.acquire(tried) {
            Acquired::Reserved { reservation, .. } => Some(reservation.endpoint().index()),
            _ => None,
        }
    }

    fn queued(&mut self, tried: &[Tried]) -> Ticket {
        let asking = self.asking(tried);
        self.queued_with(&asking)
    }

    fn queued_with(&mut self, asking: &SlotRequest<'_>) -> Ticket {
        match self.acquire_with(asking) {
            Acquired::Queued(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn release(&self, endpoint: usize) {
        self.release_lane(endpoint, None);
    }

    fn release_lane(&self, endpoint: usize, lane: Option<usize>) {
        let state = self.state(endpoint);
        let reservation = state.reservation();
        self.dispatcher
            .release(&state, reservation, lane, || self.now);
    }

    fn left(&self, ticket: &Ticket) -> Option<Left> {
        self.dispatcher.poll(ticket, Waker::noop())
    }

    fn granted(&self, ticket: &Ticket) -> Option<usize> {
        match self.left(ticket)? {
            Left::Granted(reservation) => Some(reservation.endpoint().index()),
            left => panic!("{left:?}"),
        }
    }
}

/// The member at this position.
fn at(dispatcher: &Dispatcher, index: usize) -> Arc<EndpointState> {
    dispatcher.members().endpoints()[index].clone()
}

/// Something was sent there.
fn sent(endpoint: u32) -> Tried {
    Tried::Sent {
        endpoint: EndpointId::new(endpoint),
    }
}

fn no_queue() -> QueueSettings {
    QueueSettings {
        max: 0,
        ..QueueSettings::default()
    }
}

fn discipline(discipline: Discipline) -> QueueSettings {
    QueueSettings {
        discipline,
        ..QueueSettings::default()
    }
}

fn shares(balance: Balance, weights: &[u32], picks: usize) -> Vec<usize> {
    let limits: Vec<_> = weights.iter().map(|&weight| (weight, None)).collect();
    let mut site = Site::new(balance, &limits, no_queue());
    let mut counts = vec![0; weights.len()];
    for _ in 0..picks {
        let endpoint = site.reserved(&[]).expect("there is room");
        counts[endpoint] += 1;
        if balance != Balance::ShortestQueue {
            site.release(endpoint);
        }
    }
    counts
}

#[test]
fn weights_decide_shares() {
    let exact = [50, 10, 0, 20];
    assert_eq!(shares(Balance::RoundRobin, &[5, 1, 0, 2], 80), exact);
    assert_eq!(shares(Balance::ShortestQueue, &[5, 1, 0, 2], 80), exact);
    let random = shares(Balance::Random, &[5, 1, 0, 2], 80_000);
    for (count, due) in random.iter().zip([50_000, 10_000, 0, 20_000]) {
        assert!(count.abs_diff(due) <= 1_000, "{random:?}");
    }
}

#[test]
fn limits_hold_and_then_it_is_saturated() {
    for balance in BALANCES {
        let limits = [(1, Some(2)), (3, Some(1)), (1, Some(0))];
        let mut site = Site::new(balance, &limits, no_queue());
        let mut taken = vec![0; 3];
        while let Some(endpoint) = site.reserved(&[]) {
            taken[endpoint] += 1;
        }
        assert_eq!(taken, [2, 1, 0], "{balance:?}");
        let refused = site.acquire(&[]);
        assert!(matches!(refused, Acquired::Refused(Refusal::Saturated)));
        site.release(1);
        assert_eq!(site.reserved(&[]), Some(1));
    }
}

#[test]
fn tried_down_drained_and_stopped_are_left_out() {
    for balance in BALANCES {
        let mut site = Site::new(balance, &[(1, None); 5], no_queue());
        site.state(0).set(Flag::Down, true);
        site.state(1).set(Flag::Drain, true);
        site.state(2).set(Flag::Stop, true);
        for _ in 0..20 {
            assert_eq!(site.reserved(&[sent(3)]), Some(4));
        }
        let again = site.reserved(&[sent(3), sent(4)]);
        assert!(matches!(again, Some(3 | 4)), "there is no other: {again:?}");
        site.state(0).set(Flag::Down, false);
        assert_eq!(site.reserved(&[sent(3), sent(4)]), Some(0));
    }
    let mut none = Site::new(Balance::Random, &[], QueueSettings::default());
    let refused = none.acquire(&[]);
    assert!(matches!(refused, Acquired::Refused(Refusal::NoEndpoint)));
}

#[test]
fn a_slot_goes_to_who_came_first_and_to_no_newcomer() {
    let limits = [(1, Some(1)), (1, Some(1))];
    let mut site = Site::new(Balance::RoundRobin, &limits, QueueSettings::default());
    let held = [site.reserved(&[]), site.reserved(&[])].map(|it| it.expect("there is room"));
    let first = site.queued(&[]);
    site.pass(1);
    let second = site.queued(&[]);
    site.pass(1);
    assert_eq!(site.dispatcher.waiting(), 2);
    site.release(held[1]);
    assert_eq!(site.state(held[1]).in_flight(), 1, "never free");
    let third = site.queued(&[]);
    assert_eq!(site.granted(&first), Some(held[1]));
    assert_eq!(site.granted(&second), None);
    site.release(held[0]);
    site.release(held[1]);
    assert_eq!(site.granted(&second), Some(held[0]));
    assert_eq!(site.granted(&third), Some(held[1]));
    assert_eq!(site.dispatcher.waiting(), 0);
    held.iter().for_each(|&endpoint| site.release(endpoint));
    assert!(
        site.dispatcher
            .members()
            .endpoints()
            .iter()
            .all(|it| it.in_flight() == 0)
    );
}

#[test]
fn who_tries_again_keeps_its_place_and_goes_elsewhere() {
    let limits = [(1, Some(1)), (1, Some(1))];
    let mut site = Site::new(Balance::RoundRobin, &limits, QueueSettings::default());
    let held = [site.reserved(&[]), site.reserved(&[])].map(|it| it.expect("there is room"));
    let early = site.epoch;
    site.pass(5);
    let newer = site.queued(&[]);
    let tried = [sent(held[0] as u32)];
    let retried = SlotRequest {
        arrived: early,
        ..site.asking(&tried)
    };
    let retried = site.queued_with(&retried);
    // It came first, but will not go there again.
    site.release(held[0]);
    assert_eq!(site.granted(&newer), Some(held[0]));
    let newest = site.queued(&[]);
    site.release(held[1]);
    assert_eq!(site.granted(&retried), Some(held[1]));
    assert_eq!(site.granted(&newest), None);
    assert_eq!(site.dispatcher.leave(newest), None);
}

#[test]
fn who_leaves_frees_its_place_and_its_slot() {
    let queue = QueueSettings {
        max: 1,
        ..QueueSettings::default()
    };
    let mut site = Site::with_slots(1, queue);
    assert_eq!(site.reserved(&[]), Some(0));
    let first = site.queued(&[]);
    let full = site.acquire(&[]);
    assert!(matches!(full, Acquired::Refused(Refusal::QueueFull)));
    assert_eq!(site.dispatcher.leave(first), None);
    let second = site.queued(&[]);
    site.release(0);
    // Granted, but it has not heard of it: the slot is its to give back.
    assert_eq!(
        site.dispatcher
            .leave(second)
            .map(|it| it.endpoint().index()),
        Some(0)
    );
    site.release(0);
    assert_eq!(site.reserved(&[]), Some(0));
}

#[test]
fn waiters_are_held_while_nothing_is_up_and_released_through_the_limits() {
    let mut site = Site::with_slots(2, QueueSettings::default());
    site.state(0).set(Flag::Down, true);
    let waiters: Vec<_> = (0..5).map(|_| site.queued(&[])).collect();
    site.dispatcher.serve(site.now);
    assert_eq!(site.granted(&waiters[0]), None);
    site.state(0).set(Flag::Down, false);
    site.dispatcher.serve(site.now);
    let granted = |site: &Site, from: usize| {
        let waiters = waiters[from..].iter();
        waiters.filter(|it| site.granted(it).is_some()).count()
    };
    assert_eq!(granted(&site, 0), 2);
    site.release(0);
    assert_eq!(granted(&site, 2), 1);
    assert_eq!(site.state(0).in_flight(), 2);

    let without_hold = QueueSettings {
        hold: false,
        ..QueueSettings::default()
    };
    let mut site = Site::with_slots(2, without_hold);
    site.state(0).set(Flag::Down, true);
    let refused = site.acquire(&[]);
    assert!(matches!(refused, Acquired::Refused(Refusal::NoEndpoint)));
}

#[test]
fn an_operators_stop_is_not_waited_out() {
    let mut site = Site::new(Balance::RoundRobin, &[(1, None)], QueueSettings::default());
    site.state(0).set(Flag::Stop, true);
    let refused = site.acquire(&[]);
    assert!(matches!(refused, Acquired::Refused(Refusal::NoEndpoint)));
}

#[test]
fn lanes_leave_slots_to_the_others() {
    let limits = [(1, Some(3))];
    let mut site = Site::with_lanes(Balance::RoundRobin, &limits, &[1], QueueSettings::default());
    let slow = SlotRequest {
        lane: Some(0),
        ..site.asking(&[])
    };
    assert!(matches!(
        site.acquire_with(&slow),
        Acquired::Reserved { .. }
    ));
    let second = site.queued_with(&slow);
    // The others pass it: it is its lane that is full.
    assert_eq!(site.reserved(&[]), Some(0));
    assert_eq!(site.reserved(&[]), Some(0));
    let fast = site.queued(&[]);
    site.release(0);
    assert_eq!(site.granted(&second), None);
    assert_eq!(site.granted(&fast), Some(0));
    site.release_lane(0, Some(0));
    assert_eq!(site.granted(&second), Some(0));
    assert_eq!(site.dispatcher.lane_in_flight(0), 1);
    site.release_lane(0, Some(0));
    assert_eq!(site.dispatcher.lane_in_flight(0), 0);
    assert_eq!(site.state(0).in_flight(), 2);
}

#[test]
fn a_lane_leaves_places_in_the_queue_to_the_others() {
    // Two of four slots are the lane's: half of the queue.
    let queue = QueueSettings {
        max: 5,
        ..QueueSettings::default()
    };
    let mut site = Site::with_lanes(Balance::RoundRobin, &[(1, Some(4))], &[2], queue);
    let slow = SlotRequest {
        lane: Some(0),
        ..site.asking(&[])
    };
    for _ in 0..2 {
        let taken = site.acquire_with(&slow);
        assert!(matches!(taken, Acquired::Reserved { .. }));
    }
    let mut waiters: Vec<_> = (0..3).map(|_| site.queued_with(&slow)).collect();
    let full = site.acquire_with(&slow);
    assert!(matches!(full, Acquired::Refused(Refusal::QueueFull)));
    for _ in 0..2 {
        assert_eq!(site.reserved(&[]), Some(0));
    }
    waiters.extend([site.queued(&[]), site.queued(&[])]);
    let full = site.acquire(&[]);
    assert!(matches!(full, Acquired::Refused(Refusal::QueueFull)));
    waiters.truncate(3);
    // Exchanges without a lane may use the places that lanes have not taken.
    site.dispatcher.leave(waiters.pop().expect("it is there"));
    waiters.push(site.queued(&[]));
}

#[test]
fn a_higher_priority_takes_the_place_of_the_newest_of_the_lowest() {
    let queue = QueueSettings {
        max: 3,
        ..QueueSettings::default()
    };
    let mut site = Site::with_slots(1, queue);
    assert_eq!(site.reserved(&[]), Some(0));
    let mut waiters = Vec::new();
    for priority in [2, 0, 0] {
        let asking = SlotRequest {
            priority,
            ..site.asking(&[])
        };
        waiters.push(site.queued_with(&asking));
        site.pass(1);
    }
    let urgent = SlotRequest {
        priority: 9,
        ..site.asking(&[])
    };
    let displaced = Some(Left::Refused(Refusal::QueueFull));
    let mut urgents = vec![site.queued_with(&urgent)];
    assert_eq!(site.left(&waiters[2]), displaced);
    assert_eq!(site.dispatcher.waiting(), 3);
    urgents.push(site.queued_with(&urgent));
    assert_eq!(site.left(&waiters[1]), displaced);
    urgents.push(site.queued_with(&urgent));
    assert_eq!(site.left(&waiters[0]), displaced);
    let full = site.acquire_with(&urgent);
    assert!(matches!(full, Acquired::Refused(Refusal::QueueFull)));
    for ticket in urgents {
        site.release(0);
        assert_eq!(site.granted(&ticket), Some(0));
    }
}

#[test]
fn a_waiter_is_judged_anew_when_its_endpoint_goes() {
    type Change = fn(&Dispatcher, Instant);
    let changes: [Change; 4] = [
        |it, now| _ = it.set_admin(&at(it, 1), Admin::Stop, now),
        |it, now| _ = it.set_admin(&at(it, 1), Admin::Drain, now),
        |it, now| it.set_weight(&at(it, 1), 0, now),
        |it, now| {
            for _ in 0..3 {
                let _ = it.probed(&at(it, 1), false, now);
            }
        },
    ];
    for change in changes {
        let limits = [(1, Some(2)), (1, Some(1))];
        let mut site = Site::new(Balance::First, &limits, QueueSettings::default());
        assert_eq!(site.reserved(&[sent(0)]), Some(1));
        let waiter = site.queued(&[sent(0)]);
        change(&site.dispatcher, site.now);
        assert_eq!(site.granted(&waiter), Some(0), "as a newcomer would");
    }
}

#[test]
fn who_waits_is_refused_where_a_newcomer_would_be() {
    for hold in [false, true] {
        let queue = QueueSettings {
            hold,
            ..QueueSettings::default()
        };
        let mut site = Site::with_slots(1, queue);
        assert_eq!(site.reserved(&[]), Some(0));
        let waiter = site.queued(&[]);
        for _ in 0..3 {
            let _ = site.dispatcher.probed(&site.state(0), false, site.now);
        }
        let refused = Some(Left::Refused(Refusal::NoEndpoint));
        if hold {
            assert_eq!(site.left(&waiter), None, "it may come back");
            let _ = site
                .dispatcher
                .set_admin(&site.state(0), Admin::Stop, site.now);
            assert_eq!(site.left(&waiter), refused);
        } else {
            assert_eq!(site.left(&waiter), refused);
        }
        assert_eq!(site.dispatcher.waiting(), 0);
    }
}

#[test]
fn an_endpoint_that_refused_is_asked_again_in_time_or_once_a_connection_opens() {
    let limits = [(1, Some(1)), (1, Some(1))];
    let mut site = Site::new(Balance::First, &limits, QueueSettings::default());
    assert_eq!(site.reserved(&[sent(0)]), Some(1));
    let refused = |site: &Site, milliseconds: u64| Tried::Refused {
        endpoint: EndpointId::new(0),
        until: site.now + Duration::from_millis(milliseconds),
        openings: site.state(0).openings(),
    };
    let tried = refused(&site, 100);
    let waiter = site.queued(&[tried]);
    site.pass(99);
    site.dispatcher.tick(site.now);
    assert_eq!(site.granted(&waiter), None);
    site.pass(1);
    site.dispatcher.tick(site.now);
    assert_eq!(site.granted(&waiter), Some(0));
    site.release(0);
    // The connection of somebody else opens, after one that was refused.
    let tried = refused(&site, 1_000_000);
    let state = site.state(0);
    let observed = crate::observation::Observed::Unreachable;
    let (chooser, slot) = (&mut site.chooser, state.reservation());
    let _ = site
        .dispatcher
        .report(chooser, &state, slot, observed, site.now);
    assert!(
        !site.dispatcher.wants_connection(&site.state(0)),
        "nobody waits"
    );
    let waiter = site.queued(&[tried]);
    assert!(
        site.dispatcher.wants_connection(&site.state(0)),
        "after one refusal"
    );
    let _ = site.dispatcher.reached(&site.state(0), site.now);
    assert_eq!(site.granted(&waiter), Some(0));
}

#[test]
fn a_key_waits_for_its_endpoint_for_a_while() {
    let limits = [(1, Some(1)), (1, Some(1))];
    let mut site = Site::new(Balance::Carp, &limits, QueueSettings::default());
    let key = |site: &Site, key| SlotRequest {
        key,
        ..site.asking(&[])
    };
    let asking = key(&site, 7);
    let Acquired::Reserved { reservation, .. } = site.acquire_with(&asking) else {
        panic!("there is room");
    };
    let (own, other) = (
        reservation.endpoint().index(),
        1 - reservation.endpoint().index(),
    );
    // The other one is idle all the while.
    let patient = site.queued_with(&asking);
    site.release(own);
    assert_eq!(site.granted(&patient), Some(own));
    let late = site.queued_with(&asking);
    site.pass(900);
    site.dispatcher.tick(site.now);
    assert_eq!(site.granted(&late), None);
    site.pass(100);
    site.dispatcher.tick(site.now);
    assert_eq!(site.granted(&late), Some(other));
    site.release(other);
    // An endpoint that goes is not waited for.
    let asking = key(&site, 7);
    let waiter = site.queued_with(&asking);
    let _ = site
        .dispatcher
        .set_admin(&site.state(own), Admin::Drain, site.now);
    assert_eq!(site.granted(&waiter), Some(other));

    let without_wait = QueueSettings {
        key_wait: Duration::ZERO,
        ..QueueSettings::default()
    };
    let mut site = Site::new(Balance::Carp, &limits, without_wait);
    let asking = key(&site, 7);
    for _ in 0..2 {
        let acquired = site.acquire_with(&asking);
        assert!(matches!(acquired, Acquired::Reserved { .. }));
    }
}

/// The endpoint whose slot this one takes, and how it was chosen.
fn reserved(site: &mut Site, asking: &SlotRequest<'_>) -> (usize, Choice) {
    match site.acquire_with(asking) {
        Acquired::Reserved {
            reservation,
            choice,
        } => (reservation.endpoint().index(), choice),
        _ => panic!("there is room"),
    }
}

#[test]
fn a_pinned_connection_leads_to_its_endpoint_past_the_balancer() {
    let limits = [(1, Some(1)), (1000, Some(1))];
    let mut site = Site::new(Balance::ShortestQueue, &limits, QueueSettings::default());
    let pinned_to_first = |site: &Site| SlotRequest {
        pinned_to: Some(Pin::Connection(EndpointId::new(0))),
        ..site.asking(&[])
    };
    let asking = pinned_to_first(&site);
    assert_eq!(reserved(&mut site, &asking), (0, Choice::Pinned));
    // The other one is idle all the while.
    let patient = site.queued_with(&asking);
    site.release(0);
    assert_eq!(site.granted(&patient), Some(0));
    let late = site.queued_with(&asking);
    site.pass(1000);
    site.dispatcher.tick(site.now);
    assert_eq!(site.granted(&late), Some(1));
    site.release(1);
    // One that is not eligible is not waited for.
    let _ = site
        .dispatcher
        .set_admin(&site.state(0), Admin::Drain, site.now);
    let asking = pinned_to_first(&site);
    assert_eq!(reserved(&mut site, &asking), (1, Choice::First));
}

#[test]
fn higher_priority_is_served_first() {
    let mut site = Site::with_slots(1, QueueSettings::default());
    assert_eq!(site.reserved(&[]), Some(0));
    let normal = site.queued(&[]);
    site.pass(1);
    let urgent = SlotRequest {
        priority: 5,
        ..site.asking(&[])
    };
    let urgent = site.queued_with(&urgent);
    site.release(0);
    assert_eq!(site.granted(&normal), None);
    assert_eq!(site.granted(&urgent), Some(0));
    site.release(0);
    assert_eq!(site.granted(&normal), Some(0));
}

#[test]
fn adaptive_lifo_serves_the_newest_once_the_queue_stands() {
    let settings = discipline(Discipline::AdaptiveLifo);
    let mut site = Site::with_slots(1, settings);
    assert_eq!(site.reserved(&[]), Some(0));
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(site.queued(&[]));
        site.pass(10);
    }
    site.release(0);
    assert_eq!(site.granted(&waiters[0]), Some(0), "it does not stand yet");
    site.pass(200);
    waiters.push(site.queued(&[]));
    for newest in [4, 3, 2, 1] {
        site.release(0);
        assert_eq!(site.granted(&waiters[newest]), Some(0));
    }
    // It was empty in between, so the time starts again.
    let older = site.queued(&[]);
    site.pass(1);
    let newer = site.queued(&[]);
    site.release(0);
    assert_eq!(site.granted(&older), Some(0));
    assert_eq!(site.granted(&newer), None);
    assert_eq!(site.dispatcher.leave(newer), None);
}

#[test]
fn codel_sends_away_who_waited_beyond_the_target_but_not_while_nothing_is_up() {
    let settings = discipline(Discipline::Codel);
    let mut site = Site::with_slots(1, settings);
    assert_eq!(site.reserved(&[]), Some(0));
    let late = [site.queued(&[]), site.queued(&[])];
    site.pass(150);
    let fresh = site.queued(&[]);
    site.release(0);
    assert_eq!(site.granted(&fresh), Some(0));
    for ticket in &late {
        assert_eq!(site.left(ticket), Some(Left::TimedOut));
    }
    assert_eq!(site.dispatcher.waiting(), 0);
    site.state(0).set(Flag::Down, true);
    site.release(0);
    let held = [site.queued(&[]), site.queued(&[])];
    site.pass(5_000);
    site.state(0).set(Flag::Down, false);
    site.dispatcher.serve(site.now);
    assert_eq!(site.granted(&held[0]), Some(0));
    site.pass(50);
    site.release(0);
    assert_eq!(
        site.granted(&held[1]),
        Some(0),
        "its time counts from the return"
    );
}

#[test]
fn codel_sees_the_late_ones_of_every_priority() {
    let settings = discipline(Discipline::Codel);
    let mut site = Site::with_slots(1, settings);
    assert_eq!(site.reserved(&[]), Some(0));
    let late = site.queued(&[]);
    site.pass(150);
    let urgent = SlotRequest {
        priority: 9,
        ..site.asking(&[])
    };
    let urgent = site.queued_with(&urgent);
    site.release(0);
    assert_eq!(site.granted(&urgent), Some(0));
    assert_eq!(site.left(&late), Some(Left::TimedOut));
}

#[test]
fn nobody_waits_for_another_endpoint_while_one_that_was_tried_is_up() {
    let limits = [(1, None), (1, None)];
    let mut site = Site::new(Balance::RoundRobin, &limits, QueueSettings::default());
    site.state(1).set(Flag::Down, true);
    assert!(!site.chooser.members().has_untried(&[sent(0)], site.now));
    assert_eq!(site.reserved(&[sent(0)]), Some(0), "there is no other");
    site.state(0).set(Flag::Down, true);
    let ticket = site.queued(&[sent(0)]);
    assert_eq!(site.dispatcher.leave(ticket), None);
}

#[test]
fn waiters_are_woken_once_and_slots_are_lost_by_nobody() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut site = Site::with_slots(2, QueueSettings::default());
    site.reserved(&[]).expect("there is room");
    site.reserved(&[]).expect("there is room");
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let asking = site.asking(&[]);
    let waker = Waker::from(woken.clone());
    let Acquired::Queued(ticket) = site.dispatcher.acquire(&mut site.chooser, &asking, &waker)
    else {
        panic!("it is not queued");
    };
    site.release(0);
    site.release(0);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(site.granted(&ticket), Some(0));
    assert_eq!(site.state(0).in_flight(), 1);
}

#[test]
fn a_lowered_limit_and_a_drained_endpoint_take_no_waiter() {
    let mut site = Site::with_slots(2, QueueSettings::default());
    site.reserved(&[]).expect("there is room");
    site.reserved(&[]).expect("there is room");
    let ticket = site.queued(&[]);
    site.state(0).set_max_in_flight(Some(1));
    site.release(0);
    assert_eq!(site.granted(&ticket), None);
    assert_eq!(site.state(0).in_flight(), 1);
    site.state(0).set(Flag::Drain, true);
    site.release(0);
    assert_eq!(site.granted(&ticket), None);
    site.state(0).set(Flag::Drain, false);
    site.dispatcher.serve(site.now);
    assert_eq!(site.granted(&ticket), Some(0));
}

mod configure;
mod replace;
mod sharing;
mod tiers;

mod outlook {
    use super::*;
    use proptest::prelude::*;

    /// An event between two looks.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Ask { lane: Option<usize> },
        Release,
        Down(usize, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let lane = prop_oneof![Just(None), Just(Some(0))];
        prop_oneof![
            4 => lane.prop_map(|lane| Step::Ask { lane }),
            2 => Just(Step::Release),
            1 => (0..3usize, any::<bool>()).prop_map(|(at, down)| Step::Down(at, down)),
        ]
    }

    proptest! {
        /// The outlook is what happens.
        #[test]
        fn agrees_with_what_is_acquired(
            max in 0..3usize,
            hold in any::<bool>(),
            steps in proptest::collection::vec(step(), 1..40),
        ) {
            let queue = QueueSettings { max, hold, ..QueueSettings::default() };
            let limits = [(1, Some(1)), (1, Some(2)), (0, Some(1))];
            let mut site = Site::with_lanes(Balance::First, &limits, &[1], queue);
            let mut held: Vec<(Reservation, _)> = Vec::new();
            let mut tickets = Vec::new();
            for step in steps {
                match step {
                    Step::Down(at, down) => {
                        site.state(at).set(Flag::Down, down);
                        site.dispatcher.serve(site.now);
                    }
                    Step::Release => {
                        if let Some((reservation, lane)) = held.pop() {
                            let state = site.state(reservation.endpoint().index());
                            site.dispatcher.release(&state, reservation, lane, || site.now);
                        }
                    }
                    Step::Ask { lane } => {
                        let asking = SlotRequest { lane, ..site.asking(&[]) };
                        let outlook = site.dispatcher.outlook(&mut site.chooser.clone(), &asking);
                        let behind = site.dispatcher.waiting();
                        let acquired = match site.acquire_with(&asking) {
                            Acquired::Reserved { reservation, .. } => {
                                held.push((reservation, lane));
                                Outlook::Served { endpoint: reservation.endpoint() }
                            }
                            Acquired::Queued(ticket) => {
                                tickets.push((ticket, lane));
                                Outlook::Waits { behind }
                            }
                            Acquired::Refused(refusal) => Outlook::Refused(refusal),
                        };
                        prop_assert_eq!(outlook, acquired);
                    }
                }
                tickets.retain(|(ticket, lane)| {
                    match site.dispatcher.poll(ticket, Waker::noop()) {
                        Some(Left::Granted(reservation)) => {
                            held.push((reservation, *lane));
                            false
                        }
                        Some(_) => false,
                        None => true,
                    }
                });
            }
        }
    }
}

#[test]
fn who_waits_is_told_by_lane_and_priority() {
    let limits = [(1, Some(1))];
    let mut site = Site::with_lanes(Balance::RoundRobin, &limits, &[1], QueueSettings::default());
    assert!(site.dispatcher.waiting_groups(site.now).is_empty());
    assert_eq!(site.reserved(&[]), Some(0));
    let mut tickets = Vec::new();
    for (lane, priority) in [(None, 0), (Some(0), 2), (None, 5), (None, 0)] {
        let asking = SlotRequest {
            lane,
            priority,
            ..site.asking(&[])
        };
        tickets.push(site.queued_with(&asking));
        site.pass(10);
    }
    let groups = site.dispatcher.waiting_groups(site.now);
    let told: Vec<_> = groups
        .iter()
        .map(|it| (it.lane, it.priority, it.waiting, it.longest.as_millis()))
        .collect();
    assert_eq!(
        told,
        [(None, 5, 1, 20), (None, 0, 2, 40), (Some(0), 2, 1, 30)]
    );
    for ticket in tickets {
        site.dispatcher.leave(ticket);
    }
    assert!(site.dispatcher.waiting_groups(site.now).is_empty());
}
