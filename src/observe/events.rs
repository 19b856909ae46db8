//! The event log: changes of state, limits reached, start and end, in sentences. Also keeps the
//! last events for the status page.
//!
//! Owns the target and the format of events: text or JSON on standard error, or the journal. The
//! text comes from the callers, through `tracing`. Shared by the process. Nobody waits for a slow
//! reader: a thread writes the lines. While it is behind, lines are dropped, counted and
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

/// Starts the event log, in colour where `colour` permits it. The caller drops the [`EventLog`]
/// last: the drop waits for a moment until everything is written.
pub fn start(settings: Log, colour: Colour) -> EventLog {
    let (filter, handle) = reload::Layer::new(filter(settings.level));
    let (log, layer) = sink::start(settings.format, colour);
    let subscriber = Registry::default()
        .with(layer.with_filter(filter))
        .with(recent::Layer.with_filter(self::filter(Level::Info)));
    // Tests of the library may have started one already, which stays.
    if subscriber.try_init().is_ok() {
        log_level::install(move |level| {
            let reloaded = handle.reload(self::filter(level));
            reloaded.map_err(|error| error.to_string())
        });
        log_level::install_format(log.format_setter());
    }
    log
}

/// The filter for a level. Libraries report only warnings and errors; their normal work appears
/// at the last level alone.
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
        // It warns of each removed folder, and we watch for that.
        .with_target("notify", of_libraries.min(LevelFilter::ERROR))
        .with_target(OWN_TARGETS, own)
}

/// The prefix of the names of our crates.
const OWN_TARGETS: &str = "evenkeel";
