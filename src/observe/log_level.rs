//! The event log's level, which an operator may change while the process runs.
//!
//! The program that sets the event log up says here how it is changed.

use std::sync::OnceLock;

use crate::config::Level;

/// Changes the level.
type Setter = Box<dyn Fn(Level) -> Result<(), String> + Send + Sync>;

static SETTER: OnceLock<Setter> = OnceLock::new();

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
