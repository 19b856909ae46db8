//! How severe an event is.

use std::fmt;
use std::str::FromStr;

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
