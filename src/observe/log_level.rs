//! The event log's level, which an operator may change while the process runs.
//!
//! The program that sets the event log up says here how it is changed.

use std::sync::OnceLock;

/// How much the event log tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Only what keeps requests from being served.
    Error,
    /// Also what may lead to that.
    Warn,
    /// Also what changed.
    Info,
    /// Also what helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

/// Changes the level.
type Setter = Box<dyn Fn(LogLevel) -> Result<(), String> + Send + Sync>;

static SETTER: OnceLock<Setter> = OnceLock::new();

impl LogLevel {
    /// Every level with its word, the quietest first.
    pub const ALL: [(&'static str, LogLevel); 5] = [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];

    /// The level that a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(of, _)| *of == word).map(|(_, level)| level)
    }
}

/// Says how the level is changed; the first to say so is believed.
pub fn install(setter: impl Fn(LogLevel) -> Result<(), String> + Send + Sync + 'static) {
    // A second one has no event log of its own either.
    let _ = SETTER.set(Box::new(setter));
}

/// Changes the level.
///
/// # Errors
/// This process has no event log whose level can be changed, or it has ended.
pub fn set(level: LogLevel) -> Result<(), String> {
    match SETTER.get() {
        Some(setter) => setter(level),
        None => Err("the event log's level can't be changed in this process".to_owned()),
    }
}
