//! Endpoints of several tiers.

use proptest::prelude::*;

use super::*;

/// The endpoints of these tiers, named by their place, with a limit each.
fn site_of(balance: Balance, tiers: &[u16], limit: Option<u32>, queue: QueueSettings) -> Site {
    let mut site = Site::new(balance, &[], queue);
    replace(&mut site, tiers, limit);
    site
}

fn replace(site: &mut Site, tiers: &[u16], limit: Option<u32>) {
    let names: Vec<_> = (0..tiers.len()).map(|index| index.to_string()).collect();
    let members = names
        .iter()
        .zip(tiers)
        .map(|(name, &tier)| EndpointSettings {
            name,
            fingerprint: 0,
            weight: 1,
            max_in_flight: limit,
            tier,
        });
    site.dispatcher.replace_members(members, site.now);
}

fn set_admin(site: &Site, endpoint: usize, admin: Admin) {
    let state = site.state(endpoint);
    let _ = site.dispatcher.set_admin(&state, admin, site.now);
}

#[test]
fn a_tier_is_used_while_the_ones_before_it_have_nothing_eligible() {
    for balance in Balance::variants() {
        let mut site = site_of(balance, &[1, 0, 2, 0], None, no_queue());
        let seen = |site: &mut Site| {
            let mut seen = Vec::new();
            for _ in 0..40 {
                let endpoint = site.reserved(&[]).expect("one is idle");
                site.release(endpoint);
                seen.push(endpoint);
            }
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert!(
            seen(&mut site).iter().all(|it| [1, 3].contains(it)),
            "{balance:?}"
        );
        set_admin(&site, 1, Admin::Stop);
        assert_eq!(seen(&mut site), [3], "{balance:?}");
        set_admin(&site, 3, Admin::Drain);
        assert_eq!(seen(&mut site), [0], "{balance:?}");
        set_admin(&site, 0, Admin::Stop);
        assert_eq!(seen(&mut site), [2], "{balance:?}");
        set_admin(&site, 3, Admin::Ready);
        assert_eq!(seen(&mut site), [3], "{balance:?}");
    }
}

#[test]
fn a_retry_that_tried_all_of_a_tier_goes_to_the_next() {
    let mut site = site_of(Balance::First, &[0, 0, 1], None, no_queue());
    let sent = |endpoint| Tried::Sent {
        endpoint: EndpointId::new(endpoint),
    };
    assert_eq!(site.reserved(&[sent(0)]), Some(1));
    assert_eq!(site.reserved(&[sent(0), sent(1)]), Some(2));
    // Nothing is left that it has not tried: the tiers count again.
    assert_eq!(site.reserved(&[sent(0), sent(1), sent(2)]), Some(0));
}

#[test]
fn exchanges_wait_for_a_full_tier_rather_than_go_to_its_backup() {
    let queue = QueueSettings::default();
    let mut site = site_of(Balance::First, &[0, 1], Some(1), queue);
    assert_eq!(site.reserved(&[]), Some(0));
    let waiter = site.queued(&[]);
    set_admin(&site, 0, Admin::Drain);
    // Now the backup is all that there is.
    assert_eq!(site.granted(&waiter), Some(1));
    let (first, second) = (site.queued(&[]), site.queued(&[]));
    set_admin(&site, 0, Admin::Ready);
    assert_eq!(site.granted(&first), None);
    // A slot that the backup gives back goes to nobody, whose turn is over.
    site.release(1);
    assert_eq!(site.granted(&first), None);
    assert_eq!(site.state(1).in_flight(), 0);
    site.release(0);
    assert_eq!(site.granted(&first), Some(0));
    assert_eq!(site.granted(&second), None);
}

#[test]
fn an_endpoint_that_stays_may_change_its_tier() {
    let mut site = site_of(Balance::First, &[0, 0], None, no_queue());
    let before = site.state(0);
    assert_eq!(site.reserved(&[]), Some(0));
    replace(&mut site, &[1, 0], None);
    assert!(Arc::ptr_eq(&before, &site.state(0)));
    assert_eq!(site.reserved(&[]), Some(1));
    replace(&mut site, &[3, 3], None);
    assert_eq!(site.reserved(&[]), Some(0));
}

/// The fate of an endpoint of the property.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Well,
    Stopped,
    Ejected,
    Tried,
}

fn any_fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Well),
        2 => Just(Fate::Stopped),
        1 => Just(Fate::Ejected),
        1 => Just(Fate::Tried),
    ]
}

proptest! {
    /// With any balancer: the lowest tier of the best standing.
    #[test]
    fn the_lowest_tier_of_the_best_standing_gets_it(
        endpoints in proptest::collection::vec((0u16..4, any_fate()), 1..9),
        balance in 0..Balance::variants().count(),
    ) {
        let balance = Balance::variants().nth(balance).expect("it is counted");
        let tiers: Vec<_> = endpoints.iter().map(|it| it.0).collect();
        let mut site = site_of(balance, &tiers, None, no_queue());
        let mut tried = Vec::new();
        for (index, (_, fate)) in endpoints.iter().enumerate() {
            let state = site.state(index);
            match fate {
                Fate::Well => {}
                Fate::Stopped => set_admin(&site, index, Admin::Stop),
                Fate::Ejected => _ = state.set(Flag::Ejected, true),
                Fate::Tried => tried.push(Tried::Sent { endpoint: state.id() }),
            }
        }
        let lowest = |wanted: fn(&Fate) -> bool| {
            let found = endpoints.iter().filter(|(_, fate)| wanted(fate));
            found.map(|it| it.0).min()
        };
        let expected = lowest(|it| matches!(it, Fate::Well));
        let expected = expected.or_else(|| lowest(|it| matches!(it, Fate::Ejected)));
        let expected = expected.or_else(|| lowest(|it| matches!(it, Fate::Tried)));
        let got = site.reserved(&tried).map(|at| tiers[at]);
        prop_assert_eq!(got, expected);
    }
}
