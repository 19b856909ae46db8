//! Certificates from Pebble, with real answers to its challenges.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod dns;
mod failing;
mod front;
mod obtaining;
mod renewing;
mod server;
mod sharing;
mod support;
