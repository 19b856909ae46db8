//! Measurements of Evenkeel's speed.
//!
//! - Load: the bare relay as the floor, with an origin and a load generator that are cheap
//!   enough not to be the bottleneck. Evenkeel is compared with the relay, nginx and HAProxy in
//!   one run on one machine.
//! - Policies: balancers, queues and guards before shaped origins on real sockets, and in a
//!   simulation under virtual time.
//! - Changes: the cost of changes to the running program, which must not lose requests.

pub mod bench;
pub mod bench_files;
pub mod cache_crash;
pub mod cache_pauses;
pub mod cache_scale;
pub mod changes;
pub mod files;
pub mod load;
pub mod many_hosts;
pub mod origin;
pub mod pinned;
pub mod relay;
pub mod scenarios;
pub mod simulate;
pub mod slow_disk;
pub mod socket;
