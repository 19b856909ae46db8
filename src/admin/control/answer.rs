//! Answers to commands: text, JSON, or an error.

use std::fmt::Display;

use serde::Serialize;

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

impl Format {
    /// An answer: as JSON, or as text from the same data.
    pub fn show<T: Serialize>(self, data: &T, text: impl FnOnce(&T) -> String) -> Answer {
        match self {
            Format::Text => Ok(text(data)),
            Format::Json => serde_json::to_string(data).map_err(|error| error.to_string()),
        }
    }
}

/// An answer without its end mark, or an error.
pub(super) type Answer = Result<String, String>;

/// An error with the valid names.
pub(super) fn with_names<'a>(error: &impl Display, names: impl Iterator<Item = &'a str>) -> String {
    /// Most names in the list.
    const MOST: usize = 10;
    let mut names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    match (names.len(), more) {
        (0, _) => format!("{error}: it has none"),
        (_, 0) => format!("{error}; there is {}", names.join(", ")),
        _ => format!("{error}; there is {} and {more} more", names.join(", ")),
    }
}
