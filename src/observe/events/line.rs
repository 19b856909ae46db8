//! One event as a line: text for people, JSON for programs.

use std::fmt::Write;
use std::time::SystemTime;

use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use tracing::field::{Field, Visit};

use crate::observe::calendar::{Moment, unix_time};

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// `2026-11-21T09:05:01.000000Z  INFO stopped`.
    Text,
    /// The same with the level in colour.
    ColouredText,
    /// A JSON object.
    Json,
}

/// The content of an event.
#[derive(Debug, Default)]
pub(super) struct EventContent {
    /// The sentence.
    pub message: String,
    /// Names and numbers in the sentence, as fields.
    pub fields: Vec<(&'static str, Value)>,
}

impl EventContent {
    pub(super) fn of(event: &tracing::Event<'_>) -> Self {
        let mut said = EventContent::default();
        event.record(&mut said);
        said
    }

    fn field(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.push((field.name(), value.into()));
    }
}

impl Visit for EventContent {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.field(field, format!("{value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            _ => self.field(field, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, value);
    }
}

/// The word for a level.
pub(super) fn level_word(level: tracing::Level) -> &'static str {
    match level {
        tracing::Level::ERROR => "error",
        tracing::Level::WARN => "warn",
        tracing::Level::INFO => "info",
        tracing::Level::DEBUG => "debug",
        tracing::Level::TRACE => "trace",
    }
}

/// Now, in microseconds since 1970.
pub(super) fn unix_us() -> u64 {
    unix_time(SystemTime::now()).as_micros() as u64
}

/// One line with its end.
pub(super) fn line(look: Look, unix_us: u64, level: tracing::Level, said: &EventContent) -> String {
    let (unix_s, micros) = (unix_us / 1_000_000, unix_us % 1_000_000);
    let mut out = Moment::from_unix(unix_s).rfc3339();
    // Writing to a string can't fail, here and below.
    let _ = write!(out, ".{micros:06}Z");
    if look == Look::Json {
        return json(out, level, said);
    }
    let word = level_word(level).to_ascii_uppercase();
    let _ = match look {
        Look::ColouredText => write!(out, " \x1b[{}m{word:>5}\x1b[0m ", colour(level)),
        _ => write!(out, " {word:>5} "),
    };
    push_plain(&mut out, &said.message);
    out.push('\n');
    out
}

fn json(time: String, level: tracing::Level, said: &EventContent) -> String {
    let mut bytes = Vec::with_capacity(256);
    let mut object = serde_json::Serializer::new(&mut bytes);
    let written = object.serialize_map(None).and_then(|mut object| {
        object.serialize_entry("time", &time)?;
        object.serialize_entry("level", level_word(level))?;
        object.serialize_entry("message", &said.message)?;
        for (name, value) in &said.fields {
            object.serialize_entry(name, value)?;
        }
        object.end()
    });
    debug_assert!(written.is_ok(), "text and numbers are JSON");
    bytes.push(b'\n');
    String::from_utf8(bytes).unwrap_or_default()
}

fn colour(level: tracing::Level) -> u8 {
    match level {
        tracing::Level::ERROR => 31,
        tracing::Level::WARN => 33,
        tracing::Level::INFO => 32,
        _ => 34,
    }
}

/// Text in which no name and no error can begin a line of its own, move the
/// cursor or turn the direction of writing: such characters become `\u{…}`.
pub(super) fn push_plain(out: &mut String, text: &str) {
    for letter in text.chars() {
        let is_odd = letter.is_control()
            || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}'
                | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        if is_odd {
            out.extend(letter.escape_default())
        } else {
            out.push(letter)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> EventContent {
        EventContent {
            message: message.into(),
            fields: [("upstream", "a\"b\n".into()), ("up", 2.into())]
                .into_iter()
                .collect(),
        }
    }

    const AT: u64 = 1_795_251_901_000_042;

    #[test]
    fn text_lines() {
        let info = tracing::Level::INFO;
        assert_eq!(
            line(Look::Text, AT, info, &said("stopped")),
            "2026-11-21T09:05:01.000042Z  INFO stopped\n"
        );
        assert_eq!(
            line(Look::ColouredText, AT, tracing::Level::ERROR, &said("x")),
            "2026-11-21T09:05:01.000042Z \u{1b}[31mERROR\u{1b}[0m x\n"
        );
    }

    #[test]
    fn no_character_can_forge_a_line_of_text() {
        let all = (0..=0x10_ffff).filter_map(char::from_u32);
        let text: String = all.collect();
        let written = line(Look::Text, AT, tracing::Level::INFO, &said(&text));
        let written = written.strip_suffix('\n').expect("an end");
        assert!(!written.chars().any(char::is_control));
        assert!(!written.contains(['\u{2028}', '\u{202e}']));
        // Letters of every script stay readable.
        assert!(written.contains('ä') && written.contains('水'));
    }

    #[test]
    fn json_stays_json() {
        let all: String = (0..=0x10_ffff).filter_map(char::from_u32).collect();
        let written = line(Look::Json, AT, tracing::Level::WARN, &said(&all));
        assert_eq!(written.matches('\n').count(), 1);
        let object: Value = serde_json::from_str(&written).expect("JSON");
        assert_eq!(object["message"], all.as_str());
        assert_eq!(object["level"], "warn");
        assert_eq!(object["upstream"], "a\"b\n");
        assert_eq!(object["up"], 2);
        let start = r#"{"time":"2026-11-21T09:05:01.000042Z","level":"warn","message":""#;
        assert!(written.starts_with(start), "{}", &written[..80]);
    }
}
