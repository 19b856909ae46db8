//! A request between its arrival and its end.

use std::time::Duration;

use evenkeel_policy::endpoint::{Reservation, Tried};
use evenkeel_policy::queue::Ticket;

use super::workload::Work;

/// One request.
#[derive(Debug)]
pub(super) struct SimulatedRequest {
    pub client: Option<u32>,
    pub worker: usize,
    pub arrived: Duration,
    pub is_measured: bool,
    pub work: Work,
    pub tried: Vec<Tried>,
    pub retries_left: u32,
    pub waited: Duration,
    /// Serial number of the current attempt or wait.
    pub serial: u64,
    pub stage: Stage,
}

/// The stage of a request.
#[derive(Debug)]
pub(super) enum Stage {
    Asking,
    Waiting {
        ticket: Ticket,
        since: Duration,
    },
    At {
        reservation: Reservation,
        since: Duration,
    },
}
