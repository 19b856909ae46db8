//! Evenkeel: an HTTP load balancer, reverse proxy and file server.
//!
//! A request's way, and the only one: client → route → handler → exchange →
//! upstream → net. Each module may call the next and never back; see
//! `docs/architecture.md`.

use evenkeel_net as net;

pub mod admin;
pub mod cache;
pub mod certificates;
pub mod client;
pub mod discovery;
pub mod exchange;
pub mod explain;
pub mod files;
pub mod handler;
pub mod http2;
pub mod lifecycle;
pub mod limits;
pub mod maintenance;
pub mod observe;
pub mod passwords;
pub mod runtime;
pub mod scheduling;
pub mod shared_server;
#[cfg(test)]
mod simulation;
pub mod upstream;
pub mod watching;

pub use evenkeel_config as config;
use evenkeel_metrics as metrics;
