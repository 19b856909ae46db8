//! The event log's level and format, which change while the process runs: the level for
//! an operator, both with another configuration.
//!
//! The program that sets the event log up says here how they are changed.

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

/// The level that a word stands for.
pub fn of_word(word: &str) -> Option<Level> {
    let mut all = LEVELS.into_iter();
    all.find(|(of, _)| *of == word).map(|(_, level)| level)
}

/// Says how the level is changed; the first to say so is believed.
pub fn install(setter: impl Fn(Level) -> Result<(), String> + Send + Sync + 'static) {
    // A second one has no event log of its own either.
    let _ = SETTER.set(Box::new(setter));
}

/// Says how the format is changed; the first to say so is believed.
pub fn install_format(setter: impl Fn(EventFormat) -> Result<(), String> + Send + Sync + 'static) {
    let _ = FORMAT_SETTER.set(Box::new(setter));
}

/// Follows another configuration of the event log. A level that an operator has set
/// stays where the configuration's is as before.
///
/// # Errors
/// This process has no event log that can be changed, or that is behind.
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
/// This process has no event log whose level can be changed, or it has ended.
pub fn set(level: Level) -> Result<(), String> {
    match SETTER.get() {
        Some(setter) => setter(level),
        None => Err("the event log's level can't be changed in this process".to_owned()),
    }
}
