//! The order of work, the same for every balancer: eligible, rank, reserve.
//!
//! 1. eligible: up, ready, of some weight, not yet tried by this exchange;
//! 2. the balancer ranks, without reading limits;
//! 3. compare-and-swap below `max_in_flight`; if that fails, rank again among
//!    the endpoints with room;
//! 4. none has room: the caller hears so, and queues or refuses.

use crate::balance::{Balancer, View};
use crate::endpoint::EndpointState;

/// The endpoints of one upstream: shared between workers.
#[derive(Debug)]
pub struct Endpoints {
    states: Box<[EndpointState]>,
}

/// What came of asking for an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// A place at this endpoint is taken and must be released.
    Reserved {
        /// Index in the upstream.
        endpoint: usize,
    },
    /// Every eligible endpoint is at its limit.
    Saturated,
    /// No endpoint is eligible.
    NoneEligible,
}

impl Endpoints {
    /// The endpoints in the order of the configuration.
    pub fn new(states: impl IntoIterator<Item = EndpointState>) -> Self {
        Endpoints {
            states: states.into_iter().collect(),
        }
    }

    /// Shared state of every endpoint.
    pub fn states(&self) -> &[EndpointState] {
        &self.states
    }

    /// Picks an endpoint and takes a place there. `tried` are the endpoints
    /// that this exchange will not go to again.
    pub fn acquire(&self, balancer: &mut Balancer, tried: &[u32]) -> Acquired {
        let mut view = View {
            endpoints: &self.states,
            tried,
            only_with_room: false,
        };
        loop {
            let Some(endpoint) = balancer.pick(&view) else {
                return match view.only_with_room {
                    true => Acquired::Saturated,
                    false => Acquired::NoneEligible,
                };
            };
            if self.states[endpoint].try_reserve() {
                return Acquired::Reserved { endpoint };
            }
            // Others may fill what has room while we rank: each turn of this
            // loop means that some other exchange got a place.
            view.only_with_room = true;
        }
    }

    /// Gives a place back.
    pub fn release(&self, endpoint: usize) {
        self.states[endpoint].release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::Balance;

    fn endpoints(limits: &[(u32, Option<u32>)]) -> Endpoints {
        Endpoints::new(limits.iter().map(|&(w, max)| EndpointState::new(w, max)))
    }

    fn shares(balance: Balance, weights: &[u32], picks: usize) -> Vec<usize> {
        let endpoints = endpoints(&weights.iter().map(|&w| (w, None)).collect::<Vec<_>>());
        let mut balancer = Balancer::new(balance, 7);
        let mut counts = vec![0; weights.len()];
        for _ in 0..picks {
            let Acquired::Reserved { endpoint } = endpoints.acquire(&mut balancer, &[]) else {
                panic!("nothing reserved");
            };
            counts[endpoint] += 1;
            if balance != Balance::ShortestQueue {
                endpoints.release(endpoint);
            }
        }
        counts
    }

    #[test]
    fn weights_decide_shares() {
        assert_eq!(
            shares(Balance::RoundRobin, &[5, 1, 0, 2], 80),
            [50, 10, 0, 20]
        );
        assert_eq!(
            shares(Balance::ShortestQueue, &[5, 1, 0, 2], 80),
            [50, 10, 0, 20]
        );
        let random = shares(Balance::Random, &[5, 1, 0, 2], 80_000);
        for (count, due) in random.iter().zip([50_000, 10_000, 0, 20_000]) {
            assert!(count.abs_diff(due) <= 1_000, "{random:?}");
        }
    }

    #[test]
    fn limits_hold_and_then_it_is_saturated() {
        for balance in [Balance::Random, Balance::RoundRobin, Balance::ShortestQueue] {
            let endpoints = endpoints(&[(1, Some(2)), (3, Some(1)), (1, Some(0))]);
            let mut balancer = Balancer::new(balance, 3);
            let mut taken = vec![0; 3];
            while let Acquired::Reserved { endpoint } = endpoints.acquire(&mut balancer, &[]) {
                taken[endpoint] += 1;
            }
            assert_eq!(taken, [2, 1, 0], "{balance:?}");
            assert_eq!(endpoints.acquire(&mut balancer, &[]), Acquired::Saturated);
            endpoints.release(1);
            assert_eq!(
                endpoints.acquire(&mut balancer, &[]),
                Acquired::Reserved { endpoint: 1 }
            );
        }
    }

    #[test]
    fn tried_down_drained_and_stopped_are_left_out() {
        use crate::endpoint::{Admin, Health};
        for balance in [Balance::Random, Balance::RoundRobin, Balance::ShortestQueue] {
            let endpoints = endpoints(&[(1, None); 5]);
            endpoints.states()[0].set_health(Health::Down);
            endpoints.states()[1].set_admin(Admin::Drain);
            endpoints.states()[2].set_admin(Admin::Stop);
            let mut balancer = Balancer::new(balance, 3);
            for _ in 0..20 {
                assert_eq!(
                    endpoints.acquire(&mut balancer, &[3]),
                    Acquired::Reserved { endpoint: 4 }
                );
            }
            assert_eq!(
                endpoints.acquire(&mut balancer, &[3, 4]),
                Acquired::NoneEligible
            );
            endpoints.states()[0].set_health(Health::Up);
            assert_eq!(
                endpoints.acquire(&mut balancer, &[3, 4]),
                Acquired::Reserved { endpoint: 0 }
            );
        }
        let none = Endpoints::new([]);
        assert_eq!(
            none.acquire(&mut Balancer::new(Balance::Random, 1), &[]),
            Acquired::NoneEligible
        );
    }
}
