//! Certificates from Pebble, with real answers to its challenges.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod failing;
mod front;
mod obtaining;
mod renewing;
mod support;
