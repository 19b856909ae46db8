//! The real program as a cache, with many responses on its disk.
//!
//! * [`pages`]: the pages of the origin. A page's path determines every byte of its response.
//! * [`origin`]: an origin that counts its requests.
//! * [`client`]: a client that checks every byte, and the source of each answer.
//! * [`crash`]: whether the store survives `kill -9` under load. `tests/it/cache_crash.rs` runs
//!   a small part, `evenkeel-lab cache-crash` the whole.

pub mod client;
pub mod crash;
pub mod origin;
pub mod pages;
