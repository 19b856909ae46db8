//! `first`: the first endpoint with room, in the order of the configuration.
//!
//! HAProxy's first. It fills one endpoint to its `max_in_flight` before it uses
//! the next. So the last ones can be switched off: for endpoints that cost
//! money by the hour. Without limits the first one gets everything. The order
//! of work checks for room; the rule is no more than the order.

use super::{Basis, Promises, Ranking, Split, View};

/// It has no state.
#[derive(Debug, Clone)]
pub struct First;

impl First {
    /// It has nothing to start from.
    pub fn new(_seed: u64) -> Self {
        First
    }
}

impl Ranking for First {
    const BASIS: Basis = Basis::Order;

    /// The first eligible endpoint.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        view.eligible().map(|(index, ..)| index).next()
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::Otherwise,
            idle: Split::Otherwise,
        }
    }
}
