//! The event log: changes of state, limits reached, start and end, in
//! sentences; and the last of them, for the status page.
//!
//! Owns where an event goes and what it looks like there: text or JSON on
//! standard error, or the journal. What is said is up to who says it, through
//! `tracing`. Shared by the process. Nobody waits for a slow reader: a thread
//! writes the lines, and where it is behind they are dropped, counted and
//! reported.

mod journal;
mod line;
mod recent;
mod sink;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use super::log_level;
use crate::config::{Colour, Level, Log};
pub use recent::{Event, Recent, recent};
pub use sink::EventLog;

/// Starts the event log, in colour where that is standard error. Whoever gets
/// the [`EventLog`] drops it last: that waits, for a moment, until everything
/// is written.
pub fn start(settings: Log, colour: Colour) -> EventLog {
    let (filter, handle) = reload::Layer::new(filter(settings.level));
    let (log, layer) = sink::start(settings.format, colour);
    let subscriber = Registry::default()
        .with(layer.with_filter(filter))
        .with(recent::Layer.with_filter(self::filter(Level::Info)));
    // In tests of the library one may be there already: that one stays.
    if subscriber.try_init().is_ok() {
        log_level::install(move |level| {
            let reloaded = handle.reload(self::filter(level));
            reloaded.map_err(|error| error.to_string())
        });
        log_level::install_format(log.format_setter());
    }
    log
}

/// What is written at a level. Of libraries that is what may be wrong, and what they say
/// of their work at the last level alone.
fn filter(level: Level) -> Targets {
    let own = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let of_libraries = match level {
        Level::Trace => own,
        _ => own.min(LevelFilter::WARN),
    };
    Targets::new()
        .with_default(of_libraries)
        // It warns of each folder that is gone, which is watched for.
        .with_target("notify", of_libraries.min(LevelFilter::ERROR))
        .with_target(OWN_TARGETS, own)
}

/// What the names of our crates begin with.
const OWN_TARGETS: &str = "evenkeel";
