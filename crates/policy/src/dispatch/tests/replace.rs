//! Replacing the members of an upstream.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::health::ChangeKind;
use crate::observation::{Answer, Observed};

const SUCCESS: Observed = Observed::Head(Answer {
    first_byte: None,
    is_error: false,
});

fn settings(name: &str, max_in_flight: Option<u32>) -> EndpointSettings<'_> {
    EndpointSettings {
        name,
        fingerprint: 0,
        weight: 1,
        max_in_flight,
        tier: 0,
    }
}

fn replace(site: &Site, names: &[&str], limit: Option<u32>) {
    let members = names.iter().map(|name| settings(name, limit));
    site.dispatcher.replace_members(members, site.now);
}

fn named(site: &Site, name: &str) -> Arc<EndpointState> {
    let members = site.dispatcher.members();
    let found = members.endpoints().iter().find(|it| it.name() == name);
    found.expect("it is a member").clone()
}

fn names(site: &Site) -> Vec<String> {
    let members = site.dispatcher.members();
    members
        .endpoints()
        .iter()
        .map(|it| it.name().to_owned())
        .collect()
}

/// A slot, and its endpoint.
fn slot(site: &mut Site) -> (Reservation, Arc<EndpointState>) {
    match site.acquire(&[]) {
        Acquired::Reserved { reservation, .. } => {
            let endpoint = site.dispatcher.endpoint(reservation.endpoint());
            (reservation, endpoint.expect("it is in use"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_endpoint_that_stays_keeps_what_is_known_of_it() {
    let mut site = Site::new(Balance::First, &[(1, Some(4)); 3], no_queue());
    let (down, drained, busy) = (named(&site, "0"), named(&site, "1"), named(&site, "2"));
    for _ in 0..3 {
        let _ = site.dispatcher.probed(&down, false, site.now);
    }
    let _ = site.dispatcher.set_admin(&drained, Admin::Drain, site.now);
    site.dispatcher.set_weight(&busy, 7, site.now);
    for _ in 0..5 {
        let slot = busy.reservation();
        let (chooser, failed) = (&mut site.chooser, Observed::Failed);
        let _ = site
            .dispatcher
            .report(chooser, &busy, slot, failed, site.now);
    }
    assert!(busy.has(Flag::Ejected));
    replace(&site, &["new", "2", "1", "0"], None);
    assert_eq!(names(&site), ["new", "2", "1", "0"]);
    for (endpoint, name) in [(&down, "0"), (&drained, "1"), (&busy, "2")] {
        assert!(Arc::ptr_eq(endpoint, &named(&site, name)), "{name}");
    }
    assert!(down.has(Flag::Down) && drained.has(Flag::Drain) && busy.has(Flag::Ejected));
    assert_eq!((busy.weight(), busy.max_in_flight()), (7, Some(4)));
    assert_eq!(site.dispatcher.admin(&drained), Admin::Drain);
    let new = named(&site, "new");
    assert_eq!(
        (new.weight(), new.max_in_flight(), new.load()),
        (1, None, 0)
    );
    assert!(new.is_eligible());
    // Its ejection ends as any other, and its trial brings it back.
    site.pass(1_000);
    site.dispatcher.tick(site.now);
    let (trial, endpoint) = slot(&mut site);
    assert!(Arc::ptr_eq(&endpoint, &busy));
    let (chooser, well) = (&mut site.chooser, SUCCESS);
    let change = site
        .dispatcher
        .report(chooser, &busy, trial, well, site.now);
    let change = change.map(|it| (it.kind, it.up, it.count));
    assert_eq!(change, Some((ChangeKind::Readmitted, 2, 4)));
}

#[test]
fn an_endpoint_elsewhere_is_another_whatever_its_name() {
    let mut site = Site::new(Balance::First, &[(1, Some(1)); 2], no_queue());
    let (held, old) = slot(&mut site);
    let elsewhere = |fingerprint| {
        ["0", "1"].map(|name| EndpointSettings {
            fingerprint,
            ..settings(name, Some(1))
        })
    };
    site.dispatcher.replace_members(elsewhere(7), site.now);
    let new = named(&site, "0");
    assert!(old.has(Flag::Removed) && new.id() != old.id());
    assert_eq!((old.in_flight(), new.in_flight()), (1, 0));
    // Back at its address, it has its exchanges in flight.
    site.dispatcher.replace_members(elsewhere(0), site.now);
    assert!(Arc::ptr_eq(&named(&site, "0"), &old));
    assert_eq!(old.in_flight(), 1);
    site.dispatcher.release(&old, held, None, || site.now);
}

#[test]
fn one_that_left_finishes_what_it_has_and_gets_nothing_new() {
    let mut site = Site::new(Balance::First, &[(1, Some(1)); 2], QueueSettings::default());
    let (first, left) = slot(&mut site);
    assert_eq!(site.reserved(&[]), Some(1));
    let waiter = site.queued(&[]);
    replace(&site, &["1"], Some(1));
    assert!(left.has(Flag::Removed) && !left.is_eligible());
    // Nothing that it is observed to do is news of a member.
    for _ in 0..5 {
        let change = site.dispatcher.note_unreachable(&left, site.now);
        assert_eq!(change, None);
        let (chooser, failed) = (&mut site.chooser, Observed::Failed);
        let change = site
            .dispatcher
            .report(chooser, &left, first, failed, site.now);
        assert_eq!(change, None);
    }
    assert_eq!(site.dispatcher.probed(&left, false, site.now), None);
    assert_eq!(
        site.dispatcher.set_admin(&left, Admin::Stop, site.now),
        None
    );
    assert_eq!(left.in_flight(), 1);
    site.dispatcher.release(&left, first, None, || site.now);
    assert_eq!(left.in_flight(), 0);
    assert_eq!(site.granted(&waiter), None, "its slot goes to nobody");
    site.release(0);
    assert_eq!(site.granted(&waiter), Some(1));
}

#[test]
fn who_waits_for_one_that_left_is_judged_anew() {
    // Kept to the endpoint of its key.
    let limits = [(1, Some(1)), (1, Some(2))];
    let mut site = Site::new(Balance::Carp, &limits, QueueSettings::default());
    let mut key = 0;
    let (waiter, own) = loop {
        key += 1;
        let asking = SlotRequest {
            key,
            ..site.asking(&[])
        };
        match site.acquire_with(&asking) {
            Acquired::Queued(waiter) => break (waiter, "0"),
            Acquired::Reserved { reservation, .. } if reservation.endpoint().index() == 1 => {
                site.release(1);
            }
            Acquired::Reserved { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let left = named(&site, own);
    replace(&site, &["1"], Some(2));
    assert_eq!(site.granted(&waiter), Some(1));
    site.dispatcher
        .release(&left, left.reservation(), None, || site.now);
    assert_eq!(left.in_flight(), 0);

    // For the last one there is.
    let mut site = Site::with_slots(1, QueueSettings::default());
    let (held, left) = slot(&mut site);
    let waiter = site.queued(&[]);
    replace(&site, &[], None);
    let refused = Some(Left::Refused(Refusal::NoEndpoint));
    assert_eq!(site.left(&waiter), refused);
    let refused = site.acquire(&[]);
    assert!(matches!(refused, Acquired::Refused(Refusal::NoEndpoint)));
    site.dispatcher.release(&left, held, None, || site.now);
    assert_eq!((left.in_flight(), site.dispatcher.waiting()), (0, 0));
}

#[test]
fn a_waiter_may_go_again_where_another_endpoint_of_its_was() {
    let limits = [(1, Some(1)), (1, Some(1))];
    let mut site = Site::new(Balance::First, &limits, QueueSettings::default());
    assert_eq!(site.reserved(&[sent(0)]), Some(1));
    let waiter = site.queued(&[sent(0)]);
    replace(&site, &["1", "2"], Some(1));
    // It was at neither.
    let granted = site.left(&waiter);
    let Some(Left::Granted(reservation)) = granted else {
        panic!("{granted:?}");
    };
    let endpoint = site.dispatcher.endpoint(reservation.endpoint());
    assert_eq!(endpoint.map(|it| it.name().to_owned()), Some("2".into()));
}

#[test]
fn a_worker_with_older_members_takes_the_new_ones_over() {
    for queue in [no_queue(), QueueSettings::default()] {
        let mut site = Site::new(Balance::First, &[(1, Some(1)); 2], queue);
        replace(&site, &["a"], Some(1));
        let (_, endpoint) = slot(&mut site);
        assert_eq!(endpoint.name(), "a");
    }
}

#[test]
fn one_that_returns_while_it_is_in_use_counts_what_it_has() {
    let mut site = Site::new(Balance::First, &[(1, Some(2)); 2], no_queue());
    let (held, first) = slot(&mut site);
    for _ in 0..3 {
        let _ = site.dispatcher.probed(&first, false, site.now);
    }
    let _ = site.dispatcher.set_admin(&first, Admin::Drain, site.now);
    replace(&site, &["1"], Some(2));
    replace(&site, &["0", "1"], Some(2));
    assert!(Arc::ptr_eq(&first, &named(&site, "0")));
    assert!(first.is_eligible(), "it begins again");
    assert_eq!(site.dispatcher.admin(&first), Admin::Ready);
    assert_eq!(first.outages().downs, 1, "that goes on");
    assert_eq!((site.reserved(&[]), site.reserved(&[])), (Some(0), Some(1)));
    site.dispatcher.release(&first, held, None, || site.now);
    assert_eq!(first.in_flight(), 1);
}

#[test]
fn an_id_is_free_once_nothing_is_in_flight_or_pooled_under_it() {
    let mut site = Site::new(Balance::First, &[(1, None); 2], no_queue());
    let (held, pooled) = slot(&mut site);
    let id = pooled.id();
    replace(&site, &["1", "a"], None);
    assert_eq!(named(&site, "a").id().index(), 2);
    assert_eq!(site.dispatcher.endpoint(id).map(|it| it.id()), Some(id));
    site.dispatcher.release(&pooled, held, None, || site.now);
    // Its connections are, and a worker chooses from the members before.
    replace(&site, &["1", "a", "b"], None);
    assert_eq!(named(&site, "b").id().index(), 3);
    drop(pooled);
    site.chooser = Chooser::new(site.dispatcher.members(), Balance::First, 7);
    replace(&site, &["1", "a", "b", "c"], None);
    assert_eq!(named(&site, "c").id(), id);
    // The state of another endpoint is not taken over.
    assert!(named(&site, "c").is_eligible());
}

#[test]
fn the_guard_compares_with_those_that_are_there() {
    let mut site = Site::new(Balance::First, &[(1, None); 3], no_queue());
    // Two of three fail, so that errors single nobody out.
    for _ in 0..100 {
        for name in ["1", "2"] {
            let endpoint = named(&site, name);
            for observed in [Observed::Failed, Observed::Failed, SUCCESS] {
                let slot = endpoint.reservation();
                let chooser = &mut site.chooser;
                let _ = site
                    .dispatcher
                    .report(chooser, &endpoint, slot, observed, site.now);
            }
        }
    }
    replace(&site, &["a", "0", "b"], None);
    site.reserved(&[]);
    let endpoint = named(&site, "0");
    let kinds = (0..5).map(|_| {
        let slot = endpoint.reservation();
        let (chooser, failed) = (&mut site.chooser, Observed::Failed);
        let change = site
            .dispatcher
            .report(chooser, &endpoint, slot, failed, site.now);
        change.map(|it| it.kind)
    });
    let last = kinds.last().flatten();
    assert!(matches!(last, Some(ChangeKind::Ejected { errors: 5, .. })));
}

#[test]
fn what_a_balancer_has_learned_goes_with_the_endpoint() {
    for balance in [Balance::Adaptive, Balance::PeakEwma] {
        let mut site = Site::new(balance, &[(1, None); 3], no_queue());
        for (name, milliseconds) in [("0", 5), ("1", 50), ("2", 500)] {
            let id = named(&site, name).id();
            for _ in 0..50 {
                let answer = Answer {
                    first_byte: Some(Duration::from_millis(milliseconds)),
                    is_error: false,
                };
                site.chooser.observe(id, site.now, Observed::Head(answer));
            }
        }
        let learned = |site: &Site, name: &str| {
            let id = named(site, name).id();
            site.chooser.learned(id, site.now)
        };
        let before = ["0", "1", "2"].map(|name| learned(&site, name));
        assert!(before[0] != before[1] && before[1] != before[2]);
        replace(&site, &["2", "new", "0", "1"], None);
        site.reserved(&[]);
        let after = ["0", "1", "2"].map(|name| learned(&site, name));
        assert_eq!(before, after, "{balance:?}");
        assert_eq!(learned(&site, "new"), None);
    }
}

#[test]
fn turns_go_on_where_they_were() {
    let mut site = Site::new(Balance::RoundRobin, &[(1, None); 4], no_queue());
    let mut turns = Vec::new();
    for round in [
        ["0", "1", "2", "3"],
        ["3", "1", "0", "2"],
        ["2", "3", "1", "0"],
    ] {
        replace(&site, &round, None);
        for _ in 0..2 {
            let (reservation, endpoint) = slot(&mut site);
            turns.push(endpoint.name().to_owned());
            site.dispatcher
                .release(&endpoint, reservation, None, || site.now);
        }
    }
    let (first, second) = (&turns[..4], &turns[4..]);
    assert_eq!(second, &first[..2], "each has its turn: {turns:?}");
}

/// An event at an upstream with two workers.
#[derive(Debug, Clone)]
enum Step {
    Acquire { worker: usize },
    Release { which: usize },
    Replace { names: Vec<u8> },
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let all = (0..6u8).collect::<Vec<_>>();
    let names = proptest::sample::subsequence(all, 0..=6).prop_shuffle();
    prop_oneof![
        6 => (0..2usize).prop_map(|worker| Step::Acquire { worker }),
        4 => (0..64usize).prop_map(|which| Step::Release { which }),
        2 => names.prop_map(|names| Step::Replace { names }),
        1 => Just(Step::Tick),
    ]
}

proptest! {
    /// Slots in flight are counted by name, whatever becomes of the members.
    ///
    /// Limits hold when endpoints leave and return, and nothing is left over.
    #[test]
    fn load_goes_with_the_endpoint(
        balance in proptest::sample::select(Balance::ALL),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        const LIMIT: u32 = 2;
        let names: Vec<String> = (0..6).map(|it| it.to_string()).collect();
        let mut site = Site::new(balance, &[(1, Some(LIMIT)); 6], QueueSettings::default());
        let mut workers = [7, 8].map(|seed| Chooser::new(site.dispatcher.members(), balance, seed));
        let mut held: Vec<(Reservation, String)> = Vec::new();
        let mut tickets = Vec::new();
        for step in steps {
            site.pass(10);
            match step {
                Step::Acquire { worker } => {
                    let asking = site.asking(&[]);
                    let chooser = &mut workers[worker];
                    match site.dispatcher.acquire(chooser, &asking, Waker::noop()) {
                        Acquired::Reserved { reservation, .. } => {
                            let state = chooser.members().get(reservation.endpoint());
                            let state = state.expect("it chose from them");
                            prop_assert!(site.dispatcher.members().has(state), "it left");
                            held.push((reservation, state.name().to_owned()));
                        }
                        Acquired::Queued(ticket) => tickets.push(ticket),
                        Acquired::Refused(_) => {}
                    }
                }
                Step::Release { which } => {
                    if !held.is_empty() {
                        let (slot, _) = held.swap_remove(which % held.len());
                        let state = site.dispatcher.endpoint(slot.endpoint());
                        let state = state.expect("it is in use");
                        site.dispatcher.release(&state, slot, None, || site.now);
                    }
                }
                Step::Replace { names: chosen } => {
                    let members = chosen.iter().map(|&it| &*names[it as usize]);
                    let members = members.map(|name| settings(name, Some(LIMIT)));
                    site.dispatcher.replace_members(members, site.now);
                }
                Step::Tick => site.dispatcher.tick(site.now),
            }
            tickets.retain(|ticket| match site.left(ticket) {
                Some(Left::Granted(slot)) => {
                    let state = site.dispatcher.endpoint(slot.endpoint());
                    held.push((slot, state.expect("it is in use").name().to_owned()));
                    false
                }
                left => left.is_none(),
            });
            let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
            for (slot, name) in &held {
                *counts.entry(name).or_default() += 1;
                let state = site.dispatcher.endpoint(slot.endpoint());
                let state = state.expect("it is in use");
                prop_assert_eq!(state.name(), name);
            }
            for endpoint in site.dispatcher.members().endpoints() {
                let count = counts.get(endpoint.name()).copied().unwrap_or(0);
                prop_assert_eq!(endpoint.in_flight(), count, "at {}", endpoint.name());
                prop_assert!(count <= LIMIT);
            }
            prop_assert_eq!(site.dispatcher.waiting(), tickets.len());
        }
        for (slot, _) in held {
            let state = site.dispatcher.endpoint(slot.endpoint()).expect("it is in use");
            site.dispatcher.release(&state, slot, None, || site.now);
        }
        while let Some(ticket) = tickets.pop() {
            if let Some(Left::Granted(slot)) = site.left(&ticket) {
                let state = site.dispatcher.endpoint(slot.endpoint()).expect("it is in use");
                site.dispatcher.release(&state, slot, None, || site.now);
            } else {
                prop_assert!(site.dispatcher.leave(ticket).is_none());
            }
        }
        let members = site.dispatcher.members();
        prop_assert!(members.endpoints().iter().all(|it| it.in_flight() == 0));
        prop_assert_eq!(site.dispatcher.waiting(), 0);
    }
}
