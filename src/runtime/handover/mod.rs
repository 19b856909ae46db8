//! The hand-over from one process to the next: sockets, state of endpoints, counts.
//!
//! `message` has the messages between the two. `predecessor` is the side of the process that
//! takes over. `counts_before` has the counts of earlier processes while they finish. `state` is
//! the state of upstreams. The other side is `upgrade`.

mod counts_before;
pub(super) mod message;
mod predecessor;
mod state;

pub(super) use counts_before::{CountingPredecessor, CountsBefore};
pub(super) use predecessor::Inheritance;
pub(super) use state::{Known, LearnedByUpstream};
