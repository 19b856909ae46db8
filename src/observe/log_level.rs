//! The event log's level and format, which change while the process runs. An operator can change
//! the level; a reload can change both.
//!
//! The program that starts the event log installs the setters here.

use std::sync::OnceLock;

use crate::config::{EventFormat, Level, Log};

/// Changes a setting of the event log.
type Setter<T> = Box<dyn Fn(T) -> Result<(), String> + Send + Sync>;

static SETTER: OnceLock<Setter<Level>> = OnceLock::new();
static FORMAT_SETTER: OnceLock<Setter<EventFormat>> = OnceLock::new();

/// Every level with its word, the quietest first.
pub const LEVELS: [(&str, Level); 5] = [
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

/// The level with this word.
pub fn of_word(word: &str) -> Option<Level> {
    let mut all = LEVELS.into_iter();
    all.find(|(of, _)| *of == word).map(|(_, level)| level)
}

/// Installs the setter of the level. Only the first one counts.
pub fn install(setter: impl Fn(Level) -> Result<(), String> + Send + Sync + 'static) {
    // A second caller has no event log of its own.
    let _ = SETTER.set(Box::new(setter));
}

/// Installs the setter of the format. Only the first one counts.
pub fn install_format(setter: impl Fn(EventFormat) -> Result<(), String> + Send + Sync + 'static) {
    let _ = FORMAT_SETTER.set(Box::new(setter));
}

/// Applies another configuration of the event log. An operator's level stays, unless the
/// configuration's level has changed.
///
/// # Errors
/// The event log of this process can't be changed, or is behind.
pub fn follow(before: &Log, now: &Log) -> Result<(), String> {
    if before.level != now.level {
        set(now.level)?;
    }
    if before.format != now.format {
        let setter = FORMAT_SETTER.get();
        let setter = setter.ok_or("the event log's format can't be changed in this process")?;
        setter(now.format)?;
    }
    Ok(())
}

/// Changes the level.
///
/// # Errors
/// The event log of this process has no level that can be changed, or it has ended.
pub fn set(level: Level) -> Result<(), String> {
    match SETTER.get() {
        Some(setter) => setter(level),
        None => Err("the event log's level can't be changed in this process".to_owned()),
    }
}
