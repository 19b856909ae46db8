//! What the program says of its work: ends, counters, access log.

pub mod access_log;
pub mod calendar;
pub mod counters;
pub mod end;
pub mod events;
pub mod figures;
pub mod histogram;
pub mod probes;
pub mod process;
pub mod writer;
