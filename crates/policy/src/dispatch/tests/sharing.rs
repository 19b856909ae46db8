//! A queue that keys share.

use super::*;
use crate::queue::{LineCount, Sharing};

fn shared(max: usize) -> QueueSettings {
    QueueSettings {
        max,
        sharing: Sharing::ByKey,
        ..QueueSettings::default()
    }
}

fn acquire_in(site: &mut Site, line: u64, asking: &SlotRequest<'_>) -> Acquired {
    site.dispatcher
        .acquire_in_line(&mut site.chooser, asking, Waker::noop(), || line)
}

fn queued_in(site: &mut Site, line: u64) -> Ticket {
    let asking = site.asking(&[]);
    match acquire_in(site, line, &asking) {
        Acquired::Queued(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

/// One slot, which is taken.
fn saturated(queue: QueueSettings) -> Site {
    let mut site = Site::with_slots(1, queue);
    assert_eq!(site.reserved(&[]), Some(0));
    site
}

/// Releases the slot so many times: the tickets that get it, by their index.
fn served(site: &mut Site, tickets: &[Ticket], times: usize) -> Vec<usize> {
    let mut order = Vec::new();
    for _ in 0..times {
        site.pass(1);
        site.release(0);
        let mut granted = (0..tickets.len()).filter(|&it| !order.contains(&it));
        let granted = granted.find(|&it| site.left(&tickets[it]).is_some());
        order.push(granted.expect("somebody gets it"));
    }
    order
}

#[test]
fn each_of_the_others_is_served_within_one_round() {
    let mut site = saturated(shared(1000));
    let mut tickets = Vec::new();
    for _ in 0..100 {
        tickets.push(queued_in(&mut site, 7));
        site.pass(1);
    }
    for line in 100..110 {
        tickets.push(queued_in(&mut site, line));
        site.pass(1);
    }
    let lines = site.dispatcher.waiting_lines();
    let expected = LineCount {
        lines: 11,
        longest: 100,
    };
    assert_eq!(lines, Some(expected));
    let order = served(&mut site, &tickets, 13);
    assert_eq!(order[0], 0);
    assert_eq!(order[1..11], (100..110).collect::<Vec<_>>());
    assert_eq!(order[11..], [1, 2]);
}

#[test]
fn without_sharing_nobody_is_asked_for_a_key_and_the_first_comes_first() {
    let mut site = saturated(QueueSettings::default());
    let asking = site.asking(&[]);
    let mut tickets = Vec::new();
    for _ in 0..3 {
        let acquired =
            site.dispatcher
                .acquire_in_line(&mut site.chooser, &asking, Waker::noop(), || {
                    panic!("no key counts")
                });
        let Acquired::Queued(ticket) = acquired else {
            panic!("{acquired:?}");
        };
        tickets.push(ticket);
    }
    assert_eq!(site.dispatcher.waiting_lines(), None);
    assert_eq!(served(&mut site, &tickets, 3), [0, 1, 2]);
}

#[test]
fn nobody_is_asked_for_a_key_who_gets_a_slot() {
    let mut site = Site::with_slots(1, shared(10));
    let asking = site.asking(&[]);
    let acquired =
        site.dispatcher
            .acquire_in_line(&mut site.chooser, &asking, Waker::noop(), || {
                panic!("it does not wait")
            });
    assert!(matches!(acquired, Acquired::Reserved { .. }));
}

#[test]
fn the_newest_of_the_longest_line_leaves_a_full_queue() {
    let mut site = saturated(shared(4));
    let hog: Vec<_> = (0..4).map(|_| queued_in(&mut site, 7)).collect();
    let asking = site.asking(&[]);
    let refused = acquire_in(&mut site, 7, &asking);
    assert!(matches!(refused, Acquired::Refused(Refusal::QueueFull)));
    let displaced = Some(Left::Refused(Refusal::QueueFull));
    let first = queued_in(&mut site, 8);
    assert_eq!(site.left(&hog[3]), displaced);
    let second = queued_in(&mut site, 9);
    assert_eq!(site.left(&hog[2]), displaced);
    assert_eq!(site.dispatcher.waiting(), 4);
    // Two, one and one: nobody's line would be shorter than that of the newcomer.
    for line in [7, 8, 9] {
        let refused = acquire_in(&mut site, line, &asking);
        assert!(matches!(refused, Acquired::Refused(_)), "{line}");
    }
    let third = queued_in(&mut site, 10);
    assert_eq!(site.left(&hog[1]), displaced);
    let mut tickets: Vec<_> = hog.into_iter().take(1).collect();
    tickets.extend([first, second, third]);
    assert_eq!(served(&mut site, &tickets, 4), [0, 1, 2, 3]);
    assert_eq!(site.dispatcher.waiting(), 0);
}

#[test]
fn a_higher_priority_takes_a_place_of_the_longest_line_of_the_lowest() {
    let mut site = saturated(shared(4));
    let patient = queued_in(&mut site, 1);
    let hog: Vec<_> = (0..2).map(|_| queued_in(&mut site, 2)).collect();
    let last = queued_in(&mut site, 3);
    let urgent = SlotRequest {
        priority: 9,
        ..site.asking(&[])
    };
    let Acquired::Queued(urgent) = acquire_in(&mut site, 2, &urgent) else {
        panic!("it takes a place");
    };
    let displaced = Some(Left::Refused(Refusal::QueueFull));
    assert_eq!(site.left(&hog[1]), displaced);
    let tickets: Vec<_> = [urgent, patient]
        .into_iter()
        .chain(hog.into_iter().take(1))
        .chain([last])
        .collect();
    assert_eq!(served(&mut site, &tickets, 4), [0, 1, 2, 3]);
}

#[test]
fn lanes_are_full_and_share_by_themselves() {
    let limits = [(1, Some(2))];
    let mut site = Site::with_lanes(Balance::RoundRobin, &limits, &[1], shared(4));
    let slow = SlotRequest {
        lane: Some(0),
        ..site.asking(&[])
    };
    assert!(matches!(
        acquire_in(&mut site, 1, &slow),
        Acquired::Reserved { .. }
    ));
    // The lane has half of four places.
    let mut hog = Vec::new();
    for _ in 0..2 {
        match acquire_in(&mut site, 1, &slow) {
            Acquired::Queued(ticket) => hog.push(ticket),
            other => panic!("{other:?}"),
        }
    }
    let refused = acquire_in(&mut site, 1, &slow);
    assert!(matches!(refused, Acquired::Refused(Refusal::QueueFull)));
    // With one of another key the lines were equal.
    let refused = acquire_in(&mut site, 2, &slow);
    assert!(matches!(refused, Acquired::Queued(_)), "{refused:?}");
    let displaced = Some(Left::Refused(Refusal::QueueFull));
    assert_eq!(site.left(&hog[1]), displaced);
    // The other slot is for others: the lane is full, and its waiters are passed over.
    assert_eq!(site.reserved(&[]), Some(0));
    let other = queued_in(&mut site, 3);
    site.release(0);
    assert_eq!(site.granted(&other), Some(0));
    site.release_lane(0, Some(0));
    assert_eq!(site.granted(&hog[0]), Some(0));
}

#[test]
fn codel_sends_the_late_away_whose_turn_did_not_come() {
    let queue = QueueSettings {
        discipline: Discipline::Codel,
        ..shared(1000)
    };
    let mut site = saturated(queue);
    let hog: Vec<_> = (0..3).map(|_| queued_in(&mut site, 7)).collect();
    site.pass(90);
    let other = queued_in(&mut site, 8);
    site.pass(20);
    site.release(0);
    for ticket in &hog {
        assert_eq!(site.left(ticket), Some(Left::TimedOut));
    }
    assert_eq!(site.granted(&other), Some(0));
}

#[test]
fn those_who_wait_keep_their_places_when_sharing_begins_and_ends() {
    let mut site = saturated(QueueSettings::default());
    let mut tickets: Vec<_> = (0..3).map(|_| queued_in(&mut site, 7)).collect();
    let configure = |site: &Site, queue| {
        let health = HealthSettings::default();
        site.dispatcher.configure(&[], queue, health, site.now);
    };
    configure(&site, shared(1000));
    site.pass(1);
    tickets.push(queued_in(&mut site, 8));
    tickets.push(queued_in(&mut site, 9));
    assert_eq!(served(&mut site, &tickets, 3), [0, 3, 4]);
    tickets.push(queued_in(&mut site, 8));
    configure(&site, QueueSettings::default());
    assert_eq!(site.dispatcher.waiting_lines(), None);
    for index in [1, 2, 5] {
        site.release(0);
        assert_eq!(site.granted(&tickets[index]), Some(0), "{index}");
    }
    assert_eq!(site.dispatcher.waiting(), 0);
}

#[test]
fn a_waiter_that_can_use_no_slot_is_passed_over() {
    let limits = [(1, Some(1)), (1, Some(1))];
    let mut site = Site::new(Balance::RoundRobin, &limits, shared(10));
    assert!(site.reserved(&[]).is_some());
    assert!(site.reserved(&[]).is_some());
    let tried = [sent(0)];
    let asking = site.asking(&tried);
    let Acquired::Queued(particular) = acquire_in(&mut site, 7, &asking) else {
        panic!("it waits");
    };
    let second = queued_in(&mut site, 7);
    let other = queued_in(&mut site, 8);
    site.release(0);
    assert_eq!(site.granted(&other), Some(0));
    site.release(0);
    assert_eq!(site.granted(&second), Some(0));
    site.release(1);
    assert_eq!(site.granted(&particular), Some(1));
}
