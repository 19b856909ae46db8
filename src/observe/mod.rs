//! Reports on the program's work: counters, access log, events, spans.

pub mod access_log;
pub mod calendar;
pub mod discovered;
pub mod events;
pub mod failures;
pub mod figures;
mod generation;
pub mod inquiry;
pub mod limits;
pub mod log_level;
pub mod misses;
pub mod otlp;
pub mod outlets;
pub mod paths;
pub mod probes;
pub mod process;
pub mod rates;
pub mod reloads;
pub mod sessions;
pub mod stalls;
pub mod upgrades;

pub use figures::counters;
