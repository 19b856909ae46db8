//! Counts and measures, used by everything that counts: cells with one writer and any number of
//! readers, distributions, ends and their words, and quantities for people.
//!
//! There is no registry: the counting code keeps the cells, and readers add them up.
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

/// Names that [`figures!`] uses in the calling crate.
#[doc(hidden)]
pub mod export {
    pub use serde::Serialize;
}
