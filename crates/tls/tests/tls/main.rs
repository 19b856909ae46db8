//! Certificates from files, and handshakes in memory.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod certificates;
mod choice;
mod clients;
mod ends;
mod handshakes;
mod issuing;
mod policies;
mod sealed;
mod tickets;
