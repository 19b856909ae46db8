//! Slots of endpoints that the guard has put out: one exchange at a time is the trial.

use super::{Dispatcher, Ordering};
use crate::Instant;
use crate::candidates::CandidateClass;
use crate::endpoint::{EndpointId, EndpointState, Flag, Reservation, Tried};
use crate::members::Members;

impl Dispatcher {
    /// The slot of a trial that is due, if there is one for this exchange.
    pub(super) fn reserve_trial(
        &self,
        members: &Members,
        tried: &[Tried],
        now: Instant,
    ) -> Option<Reservation> {
        self.on_trial(members, tried, now).find_map(|state| {
            let trial = state.begin_trial(now)?;
            let reservation = state.try_reserve(u32::MAX);
            if reservation.is_none() {
                state.end_trial(trial);
            }
            reservation.map(|it| it.as_trial(Some(trial)))
        })
    }

    /// The endpoint that this exchange would be the trial of.
    pub(super) fn trial_due(
        &self,
        members: &Members,
        tried: &[Tried],
        now: Instant,
    ) -> Option<EndpointId> {
        let mut on_trial = self.on_trial(members, tried, now);
        let due = on_trial.find(|it| it.has_room() && !it.is_tried_now(now))?;
        Some(due.id())
    }

    /// Endpoints on trial that this exchange has not tried.
    fn on_trial<'a>(
        &self,
        members: &'a Members,
        tried: &[Tried],
        now: Instant,
    ) -> impl Iterator<Item = &'a EndpointState> {
        let states = match self.trials.load(Ordering::Relaxed) {
            0 => &[][..],
            _ => members.endpoints(),
        };
        let states = states.iter().map(|it| &**it);
        states.filter(move |state| {
            let is_due = state.has(Flag::Trial) && CandidateClass::Ejected.has(state, tried, now);
            is_due && members.is_in_turn(state, now)
        })
    }
}

/// Takes a slot at this endpoint for an exchange of this standing, if there is one below its
/// limit and below `cap`. The first exchange at an endpoint that is out is its trial.
pub(super) fn reserve_at(
    state: &EndpointState,
    cap: u32,
    standing: CandidateClass,
    now: Instant,
) -> Option<Reservation> {
    let reservation = state.try_reserve(cap)?;
    let is_out = standing != CandidateClass::Untried && state.is_guessed_out();
    Some(if is_out {
        reservation.as_trial(state.begin_trial(now))
    } else {
        reservation
    })
}
