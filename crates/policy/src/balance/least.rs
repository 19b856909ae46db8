//! The least loaded endpoint, idle ones in turn: shared by the balancers that
//! compare all endpoints by load.
//!
//! Invariant: idle endpoints tie, whatever their observations are. Ties are
//! broken by smooth weighted round-robin over the shares. So weights hold when
//! nothing is in flight, and an endpoint that seems slow is seen again.

use super::View;
use super::cursor::Cursor;
use super::turns::Turns;
use crate::endpoint::EndpointState;
use crate::members::Moved;

/// Per-worker state.
#[derive(Debug, Clone)]
pub(super) struct Least {
    cursor: Cursor,
    turns: Turns,
}

/// The load by which busy endpoints are compared.
#[derive(Debug, Clone, Copy)]
pub(super) enum Compared {
    /// Exchanges in flight.
    Load,
    /// Exchanges in flight, and the one to be placed.
    LoadWithThis,
}

/// The share of an endpoint relative to the others; both parts are positive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Share of the turns of idle endpoints.
    pub idle: f64,
    /// Share of the exchanges in flight.
    pub busy: f64,
}

impl Share {
    /// The endpoint's weight as it is now.
    #[inline(always)]
    pub(super) fn of_weight(state: &EndpointState) -> Self {
        let weight = f64::from(View::weight_of(state));
        Share {
            idle: weight,
            busy: weight,
        }
    }
}

impl Least {
    /// Workers begin at different endpoints.
    pub(super) fn new(seed: u64) -> Self {
        Least {
            cursor: Cursor::new(seed),
            turns: Turns::new(seed),
        }
    }

    /// Takes over other members. The state of an endpoint moves with it.
    pub(super) fn follow(&mut self, moved: &Moved) {
        self.cursor.follow(moved);
        self.turns.follow(moved);
    }

    /// The idle endpoint whose turn it is.
    ///
    /// If none is idle, the one with the least load by share, searching from
    /// the one after the last picked.
    #[inline(always)]
    pub(super) fn pick(
        &mut self,
        view: &View<'_>,
        compared: Compared,
        share: impl Fn(usize, &EndpointState) -> Share,
    ) -> Option<usize> {
        // The commonest upstream, and there is nothing to compare.
        if let [state] = view.endpoints {
            return view.admits(state).then_some(0);
        }
        let with_this = match compared {
            Compared::Load => 0.0,
            Compared::LoadWithThis => 1.0,
        };
        let start = self.cursor.next(view.len());
        let mut idle = self.turns.begin(view.len());
        let mut all = 0.0;
        let mut least = (f64::INFINITY, 1.0);
        let mut busy = None;
        for (first, part) in view.parts_from(start) {
            for (index, state) in (first..).zip(part) {
                if !view.admits(state) {
                    continue;
                }
                let share = share(index, state);
                all += share.idle;
                let load = state.load();
                if load == 0 {
                    idle.offer(index, share.idle);
                    continue;
                }
                let load = f64::from(load) + with_this;
                // Products cost less than quotients.
                if load * least.1 < least.0 * share.busy {
                    least = (load, share.busy);
                    busy = Some(index);
                }
            }
        }
        let index = idle.end(all).or(busy)?;
        self.cursor.set(index);
        Some(index)
    }
}
