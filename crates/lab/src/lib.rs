//! How Evenkeel's speed is measured.
//!
//! The bare relay that is the floor, an origin and a load generator that are
//! cheap enough not to be the bottleneck, and the comparison of Evenkeel with
//! the relay, nginx and HAProxy in one run on one machine. Beside it, how the
//! balancers, queues and guards fare: before shaped origins on real sockets,
//! and in a simulation under virtual time. And what a change of the running program
//! costs: nothing may be lost.

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
