//! Decisions without I/O: which route, which endpoint, now or later.
//!
//! Nothing here opens a socket, reads a clock or knows an async runtime: state
//! and the present time go in, a decision comes out.
#![forbid(unsafe_code)]

pub mod admission;
pub mod balance;
pub mod bandwidth;
pub mod budget;
mod candidates;
pub mod chooser;
pub mod dispatch;
pub mod endpoint;
pub mod hash;
pub mod health;
pub mod in_flight;
mod instant;
pub mod limit;
pub mod members;
pub mod observation;
pub mod pool;
pub mod queue;
pub mod reuse;
pub mod route;
pub mod split;
mod sync;

pub use instant::Instant;
