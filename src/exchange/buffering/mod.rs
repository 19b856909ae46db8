//! Keeps slow clients from holding slots (`buffer` of an upstream).
//!
//! There are three means. A request's body is read before the request takes a slot
//! (here). A response is taken off the endpoint ahead of its client (`relay`). A
//! client that a slot waits for must keep up a least rate (`pace`). Per worker; the
//! memory is counted over all workers (`reserved`).
//!
//! Invariant: a slot waits for its client only where the body is longer than
//! the buffer or the memory is used up, and then at `min_rate` or faster.

mod request;

pub(super) use request::{ReadAhead, reads_ahead};
