//! What one process leaves to the next: sockets, what is known of endpoints, counts.
//!
//! `message` has what the two say to each other, `predecessor` the side of the process
//! that takes over, `counts_before` what processes before count while they finish, `state` what is known of upstreams. The other side is `upgrade`.

mod counts_before;
pub(super) mod message;
mod predecessor;
mod state;

pub(super) use counts_before::{CountsBefore, Unheard};
pub(super) use predecessor::Inheritance;
pub(super) use state::{Known, LearnedByUpstream};
