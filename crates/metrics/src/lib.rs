//! What is counted and measured, below everything that counts: cells that one
//! thread writes and anybody reads, distributions, ends and their words, and
//! quantities as people read them.
//!
//! Owns no registry: who counts keeps the cells, and who reads adds them up.
#![forbid(unsafe_code)]

mod cells;
pub mod end;
pub mod histogram;
mod levels;
pub mod quantity;

pub use cells::{Counter, EndCounters, Gauge, Lazy};
pub use end::{End, Failure};
pub use levels::{BufferMemory, OpenCount};
