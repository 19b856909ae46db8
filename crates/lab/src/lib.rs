//! How Evenkeel's speed is measured.
//!
//! The bare relay that is the floor, an origin and a load generator that are
//! cheap enough not to be the bottleneck, and the comparison of Evenkeel with
//! the relay, nginx and HAProxy in one run on one machine. And how its policy
//! fares: a simulation of it under virtual time.

pub mod bench;
pub mod load;
pub mod origin;
pub mod pinned;
pub mod relay;
pub mod simulate;
pub mod socket;
