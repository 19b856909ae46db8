//! `carp`: the same key to the same endpoint, by weighted rendezvous.
//!
//! The idea of the Cache Array Routing Protocol, as in lighttpd, with a hash
//! that shares evenly: for caches, and for sessions that an endpoint holds in
//! memory. Every worker and every proxy with the same endpoints agrees. When
//! one endpoint leaves, its keys alone move; when it slowly starts, its keys
//! return to it little by little.
//!
//! It does not look at load: one popular key is the load of one endpoint. See
//! `consistent-hash`.

use super::rendezvous::{Rendezvous, draw};
use super::{Basis, Promises, Ranking, Split, View};

/// It has no state.
#[derive(Debug, Clone)]
pub struct Carp;

impl Carp {
    /// It has nothing to start from.
    pub fn new(_seed: u64) -> Self {
        Carp
    }
}

impl Ranking for Carp {
    const BASIS: Basis = Basis::Key;

    /// The eligible endpoint that the key belongs to.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let mut meeting = Rendezvous::new();
        view.eligible().for_each(|(index, state, identity)| {
            let number = draw(view.key, identity);
            let weight = f64::from(View::weight_of(state));
            meeting.meet(index, number, weight, || false);
        });
        meeting.best()
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::Otherwise,
            idle: Split::Otherwise,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Balance;
    use super::super::tests::keys;
    use super::*;

    #[test]
    fn every_endpoint_has_its_share_of_keys() {
        keys::are_shared_by_weight(Balance::Carp);
    }

    #[test]
    fn one_that_leaves_moves_its_keys_alone() {
        keys::stay_when_one_leaves(Balance::Carp);
    }

    #[test]
    fn a_weight_moves_keys_to_and_from_its_endpoint_alone() {
        keys::move_with_a_weight(Balance::Carp);
    }

    #[test]
    fn agrees_with_the_formula() {
        use crate::hash::mix;
        let site = super::super::tests::Site::new(&[3, 1, 7, 2]);
        for key in 0..20_000 {
            let view = site.view_of(mix(key));
            let score = |index: usize| {
                let bits = mix(view.key ^ view.identity(index)) >> 11;
                let u = 1.0 - bits as f64 / (1_u64 << 53) as f64;
                -f64::from(view.weight(index)) / u.ln()
            };
            let best = (0..4).max_by(|&a, &b| score(a).total_cmp(&score(b)));
            assert_eq!(Carp.pick(&view), best);
        }
    }
}
