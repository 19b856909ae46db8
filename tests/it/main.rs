//! The real program between real sockets.
//!
//! Every test starts its own program and origins on free ports, waits on conditions and has a
//! deadline. `words.rs` has the words that logs and answers must use; `setup.rs` has the shared
//! configuration.

// Integration tests are tests throughout; the lint's exception for tests does
// not see that.
#![allow(clippy::unwrap_used, missing_docs)]

mod limits_by_key;
mod setup;
#[path = "../snippets/mod.rs"]
mod snippets;
mod words;

mod access;
mod access_log;
mod auth;
mod bad_input;
mod balance;
mod bandwidth;
mod bodies;
mod buffering;
mod cache;
mod cache_suite;
mod changes;
mod compression;
mod control;
mod counters;
mod demo;
mod disciplines;
mod discovery;
mod early_answers;
mod edits;
mod error_pages;
mod events;
mod explain;
mod fields;
mod figures;
mod files;
mod files_more;
mod fixed_answers;
mod foreign_clients;
mod foreign_origins;
mod forward_auth;
mod guard;
mod half_close;
mod halog;
mod handover;
mod health;
mod health_protocols;
mod help;
mod honest_peers;
mod http2;
mod in_flight;
mod limits;
mod many_hosts;
mod matching;
mod messages;
mod metrics;
mod mirror;
mod packages;
mod pinned;
mod process;
mod proxy_protocol;
mod proxy_protocol_peers;
mod proxy_protocol_upstream;
mod queue;
mod recipes;
mod reload;
mod reload_options;
mod room;
mod route_waits;
mod rules;
mod secrets;
mod service_manager;
mod sockets;
mod split;
mod stale;
mod status;
mod status_page;
mod sticky;
mod tcp;
mod tls;
mod top;
mod tracing;
mod trusted;
mod tunnels;
mod unix_endpoints;
mod upgrade;
mod upgrade_counts;
mod upstream_faults;
mod watch;
