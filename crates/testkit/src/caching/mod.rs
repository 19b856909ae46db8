//! The real program as a cache, with many responses on its disk.
//!
//! * [`pages`]: what the origin has. A page's path says every byte of its response.
//! * [`origin`]: an origin that counts how often it was asked.
//! * [`client`]: a client that checks every byte, and where each answer came from.
//! * [`crash`]: whether the store survives `kill -9` under load. `tests/it/cache_crash.rs`
//!   runs a small part, `evenkeel-lab cache-crash` the whole.

pub mod client;
pub mod crash;
pub mod origin;
pub mod pages;
