//! The caches that routes have: their tiers, and what the workers share of each.
//!
//! `evenkeel_cache` decides what may be stored and served. Exchanges ask and
//! fill a cache through `exchange::store_side` and `handler::cache`.

pub mod disk;
mod figures;
pub mod shared;
mod store;

pub use figures::CacheFigures;
pub use store::{Cache, caches, go_on_counting};
