//! The caches that routes have: their tiers, and what the workers share of each.
//!
//! What may be stored and served is decided in `evenkeel_cache`. Exchanges ask
//! and fill a cache by way of `exchange::store_side` and `handler::cache`.

pub mod disk;
mod figures;
pub mod shared;
mod store;

pub use figures::CacheFigures;
pub use store::{Cache, caches, go_on_counting};
