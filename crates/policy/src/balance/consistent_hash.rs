//! `consistent-hash`: the same key to the same endpoint, with bounded load.
//!
//! As `carp`, with a bound: an endpoint with more than 1.25 times the mean in
//! flight, by weight, is passed over for the key's next one. So a popular key
//! spreads over as many endpoints as it needs. HAProxy's hash-balance-factor of
//! 125, after Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with
//! bounded loads", 2016.
//!
//! Deviation: the bound is at least the mean plus one exchange. With a lower
//! bound, parallel requests of one key leave its endpoint while every endpoint
//! is idle: 1.25 times a mean below one is no whole exchange.

use super::rendezvous::{Rendezvous, draw};
use super::{Basis, Promises, Ranking, Split, View};

/// The share of the mean that an endpoint may have in flight above it.
const EXCESS: f64 = 0.25;

/// The endpoints of the present pick, kept to reuse the memory alone.
#[derive(Debug, Clone, Default)]
pub struct ConsistentHash {
    found: Vec<Found>,
}

/// One endpoint.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Its draw for the key.
    number: f64,
    load: u32,
    weight: u32,
}

impl Found {
    /// One that is not eligible: nothing loses to this number.
    const NONE: Found = Found {
        number: f64::INFINITY,
        load: 0,
        weight: 1,
    };
}

impl ConsistentHash {
    /// It has nothing to start from.
    pub fn new(_seed: u64) -> Self {
        Self::default()
    }
}

impl Ranking for ConsistentHash {
    const BASIS: Basis = Basis::Key;

    /// The first of the key's endpoints that is not above the bound.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        self.found.resize(view.len(), Found::NONE);
        // The mean is taken with this exchange, as in the paper. That and the
        // comparison below are the paper's ceiling, and leave room at one
        // endpoint at least: the bounds add up to more than the loads.
        let mut in_flight = 1_u64;
        let mut weights = 0_u64;
        let endpoints = view.endpoints.iter().zip(view.identities);
        for ((state, &identity), found) in endpoints.zip(&mut self.found) {
            if !view.admits(state) {
                *found = Found::NONE;
                continue;
            }
            *found = Found {
                number: draw(view.key, identity),
                load: state.load(),
                weight: View::weight_of(state),
            };
            in_flight += u64::from(found.load);
            weights += u64::from(found.weight);
        }
        let mean = in_flight as f64 / weights as f64;
        let mut meeting = Rendezvous::new();
        for (index, found) in self.found.iter().enumerate() {
            let weight = f64::from(found.weight);
            // A whole number that is not below a bound is not below the next
            // whole number either.
            let is_above = || f64::from(found.load) >= bound(mean * weight);
            meeting.meet(index, found.number, weight, is_above);
        }
        meeting.best()
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::Otherwise,
            idle: Split::Otherwise,
        }
    }
}

/// The most exchanges of an endpoint whose share of them is `mean`.
fn bound(mean: f64) -> f64 {
    mean + (mean * EXCESS).max(1.0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::carp::Carp;
    use super::super::tests::{Site, keys};
    use super::super::{Balance, Balancer};
    use super::*;

    #[test]
    fn every_endpoint_has_its_share_of_keys() {
        keys::are_shared_by_weight(Balance::ConsistentHash);
    }

    #[test]
    fn one_that_leaves_moves_its_keys_alone() {
        keys::stay_when_one_leaves(Balance::ConsistentHash);
    }

    #[test]
    fn a_weight_moves_keys_to_and_from_its_endpoint_alone() {
        keys::move_with_a_weight(Balance::ConsistentHash);
    }

    #[test]
    fn a_popular_key_stays_within_the_bound() {
        for weights in [vec![1; 5], vec![1; 40], vec![1, 4, 2, 9]] {
            let site = Site::new(&weights);
            let mut balancer = Balancer::new(Balance::ConsistentHash, 0);
            let total: u32 = weights.iter().sum();
            for count in 1..=400_u32 {
                let index = site.reserve(&mut balancer).expect("it can always place");
                let due = f64::from(count) * f64::from(weights[index]) / f64::from(total);
                let load = site.state(index).load();
                assert!(f64::from(load) <= bound(due).ceil(), "{load} of {due}");
            }
        }
    }

    /// A browser sends six requests of one session at once.
    #[test]
    fn six_parallel_exchanges_of_a_key_stay_at_two_endpoints() {
        for key in 0..200 {
            let site = Site::new(&[1; 4]);
            let mut balancer = ConsistentHash::new(0);
            for _ in 0..6 {
                let index = balancer.pick(&site.view_of(crate::hash::mix(key)));
                let state = site.state(index.expect("all are up"));
                assert!(state.try_reserve(u32::MAX).is_some());
            }
            let loads = (0..4).map(|index| site.state(index).load());
            assert_eq!(loads.filter(|&load| load > 0).count(), 2, "key {key}");
        }
    }

    #[test]
    fn what_has_room_keeps_its_key() {
        let mut site = Site::new(&[1; 6]);
        site.load(&[4; 6]);
        let mut balancer = ConsistentHash::new(0);
        for key in 0..500 {
            let view = site.view_of(crate::hash::mix(key));
            assert_eq!(balancer.pick(&view), Carp.pick(&view));
        }
    }
}
