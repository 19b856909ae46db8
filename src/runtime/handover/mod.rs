//! What one process leaves to the next: sockets, what is known of endpoints, counts.
//!
//! `message` has what the two say to each other, `predecessor` the side of the process
//! that takes over, `state` what is known of endpoints. The other side is `upgrade`.

pub(super) mod message;
mod predecessor;
pub(super) mod state;

pub(super) use predecessor::Inheritance;
