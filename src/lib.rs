//! Evenkeel: an HTTP load balancer, reverse proxy, cache and small-file origin.

pub mod config;
pub mod runtime;
