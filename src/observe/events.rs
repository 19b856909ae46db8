//! The event log: changes of state, limits reached, start and end, in
//! sentences; and the last of them, for the status page.
//!
//! Owns where an event goes and what it looks like there: text or JSON on
//! standard error, or the journal. What is said is up to who says it, through
//! `tracing`. Shared by the process. Nobody waits for a slow reader: a thread
//! writes the lines, and where it is behind they are dropped, counted and
//! reported.

mod line;
mod recent;
mod sink;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

pub use line::Look;
pub use recent::{Event, Recent, recent};
pub use sink::EventLog;

/// Which events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Only what keeps the program from its work.
    Error,
    /// What an operator should look at, too.
    Warn,
    /// Changes of state, too.
    #[default]
    Info,
    /// Single probes and the like, too.
    Debug,
}

impl Level {
    /// Every level, the quietest first.
    pub const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    fn filter(self) -> LevelFilter {
        match self {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// A word that is no level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoLevel {
    word: String,
}

impl fmt::Display for NoLevel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Level::ALL.map(Level::word).join(", ");
        write!(out, "there is no level {:?}; there are {words}", self.word)
    }
}

impl std::error::Error for NoLevel {}

impl FromStr for Level {
    type Err = NoLevel;

    fn from_str(word: &str) -> Result<Self, NoLevel> {
        let found = Level::ALL.into_iter().find(|level| level.word() == word);
        found.ok_or_else(|| NoLevel { word: word.into() })
    }
}

/// The level in force, once the log was started.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts the event log on standard error. Whoever gets the [`EventLog`] drops
/// it last: that waits, for a moment, until everything is written.
pub fn start(level: Level, look: Look) -> EventLog {
    let (filter, handle) = reload::Layer::new(level.filter());
    let (log, layer) = sink::start(look);
    let subscriber = Registry::default()
        .with(layer.with_filter(filter))
        .with(recent::Layer.with_filter(LevelFilter::INFO));
    // In tests of the library one may be there already: that one stays.
    if subscriber.try_init().is_ok() {
        let _ = LEVEL.set(handle);
    }
    log
}

/// Changes the level at run time; the new one is given back.
///
/// # Errors
/// The word is no level.
pub fn set_level(word: &str) -> Result<Level, NoLevel> {
    let level: Level = word.parse()?;
    if let Some(handle) = LEVEL.get() {
        // It fails only where the log has gone, at the program's very end.
        let _ = handle.reload(level.filter());
    }
    Ok(level)
}
