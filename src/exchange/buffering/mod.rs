//! Keeps slow clients from holding slots (`buffer` of an upstream).
//!
//! Three means: a request's body is read before the request takes a slot (here). A response is
//! taken off the endpoint ahead of its client (`relay`). A client that a slot waits for must keep
//! a least rate (`pace`). Per worker; the memory is counted over all workers (`reserved`).
//!
//! Invariant: a slot waits for its client only if the body is longer than the buffer, or if the
//! memory is used up. It then waits only while the client keeps `min_rate`.

mod request;

pub(super) use request::{ReadAhead, reads_ahead};
