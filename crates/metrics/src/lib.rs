//! What is counted and measured, below everything that counts: cells that one
//! thread writes and anybody reads, distributions, ends and their words, and
//! quantities as people read them.
//!
//! Owns no registry: who counts keeps the cells, and who reads adds them up.
#![forbid(unsafe_code)]

mod cache_result;
mod cells;
pub mod end;
pub mod family;
pub mod frequent;
pub mod histogram;
mod levels;
pub mod quantity;
mod reasons;
mod saved;
mod sums;
mod table;

pub use cache_result::CacheResult;
pub use cells::{Counter, EndCounters, Gauge, GrpcCounters, Lazy};
pub use end::{End, Failure};
pub use family::Shown;
pub use levels::{BufferMemory, OpenCount};
pub use reasons::{ReasonCounts, Reasons};
pub use saved::Saved;
pub use sums::{Cell, Detail, Ends, GrpcStatuses, StatusFigures, sum};

/// What [`figures!`] writes into the crate that calls it.
#[doc(hidden)]
pub mod export {
    pub use serde::Serialize;
}
