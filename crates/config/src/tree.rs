//! The configuration as a tree of values, each with the place it came from.
//!
//! Every layer (file, variable, `--set`) is read into this tree before
//! anything knows what the keys mean, so that a mistake found later can still
//! show the text that a person wrote.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::Report;
use super::form;
use super::not_toml;
use super::twice::{self, Twice};

/// A stretch of one of the report's sources, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Index of the source in its [`Report`].
    pub source: usize,
    /// Bytes of that source's text.
    pub range: Range<usize>,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it stands.
    pub place: Place,
    /// What stands there.
    pub value: Value,
}

/// A TOML value.
#[derive(Debug, Clone)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A float, date or time, as written: no option takes one.
    Other(String),
    /// `true` or `false`.
    Boolean(bool),
    /// An array.
    List(Vec<Node>),
    /// A table, in the order written.
    Table(Vec<Entry>),
}

/// One key of a table.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub key_place: Place,
    /// Its value.
    pub node: Node,
}

impl Node {
    /// The entry of this key, where it is a table that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Table(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The text under this key, where it is a table that has one.
    pub fn text_of(&self, key: &str) -> Option<&str> {
        match &self.entry(key)?.node.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What it is, for a mistake that says what was found.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "text",
            Value::Integer(_) => "an integer",
            Value::Other(_) => "a float or a date",
            Value::Boolean(_) => "a boolean",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

/// Reads a whole document; syntax errors go to `report`, and what could be
/// read around them is returned.
pub(super) fn read_document(source: usize, report: &mut Report) -> Node {
    let text = report.source_text(source).to_owned();
    let (table, errors) = DeTable::parse_recoverable(&text);
    let at = |range| Place { source, range };
    let root = Node {
        place: at(0..0),
        value: table_value(table.into_inner(), &at),
    };
    let look = (!errors.is_empty()).then(|| not_toml::language(&text));
    if let Some((language, range)) = look.flatten() {
        report.no_toml(&at(range), language);
        return Node {
            place: at(0..0),
            value: Value::Table(Vec::new()),
        };
    }
    // Up to where the keys belong to a table that is written twice.
    let mut twice_end = 0;
    let mut lines = None;
    // A known mistake says more of its line than all that the parser says.
    let mut explained = Vec::new();
    let errors: Vec<_> = errors.into_iter().collect();
    let line_of =
        |error: &toml::de::Error| line_start(&text, error.span().map_or(0, |it| it.start));
    // A text that is not closed takes the bracket behind it along.
    let unclosed = errors.iter().filter(|it| is_unclosed_text(it.message()));
    let unclosed: Vec<_> = unclosed.map(line_of).collect();
    let follows = |error: &toml::de::Error| {
        error.message().starts_with("unclosed") && unclosed.contains(&line_of(error))
    };
    for error in errors.iter().filter(|it| !follows(it)) {
        let range = error.span().unwrap_or(0..0);
        if error.message() != DUPLICATE {
            let line = line_start(&text, range.start);
            let is_new = !explained.contains(&line);
            if is_new && report_syntax(&text, at(range), error.message(), report) == Said::Known {
                explained.push(line);
            }
        } else if range.start >= twice_end {
            let text = lines.get_or_insert_with(|| twice::without_long_texts(&text));
            let first = twice::first(&root, text, &range).map(at);
            let what = twice::what(text, &range);
            if matches!(what, Twice::Table { .. }) {
                twice_end = twice::table_end(text, range.start);
            }
            report.twice(at(range), first, &what);
        }
    }
    root
}

/// Where the line begins that a byte is in.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    let before = &text[..at.min(text.len())];
    before.rfind('\n').map_or(0, |end| end + 1)
}

/// Where a part of a text begins in it.
pub(super) fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// How the parser calls a text without a quote at its end.
const UNCLOSED_TEXT: [&str; 2] = [
    "invalid basic string, expected `\"`",
    "invalid literal string",
];

fn is_unclosed_text(said: &str) -> bool {
    UNCLOSED_TEXT.iter().any(|it| said.starts_with(it))
}

/// How the parser calls a key that is written twice.
const DUPLICATE: &str = "duplicate key";

/// Whose words say what is wrong with a line.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// The line is a known mistake.
    Known,
    /// Those of the parser alone.
    Parser,
}

/// Reports what the parser could not read, in words that say more than its own
/// where the line is a known mistake.
fn report_syntax(text: &str, place: Place, said: &str, report: &mut Report) -> Said {
    let start = line_start(text, place.range.start);
    let line = text[start..].lines().next().unwrap_or_default();
    if let Some((offset, what)) = not_toml::lookalike(line) {
        let letter = text[start + offset..].chars().next().unwrap_or_default();
        let range = start + offset..start + offset + letter.len_utf8();
        let shown = letter.escape_debug();
        let place = Place { range, ..place };
        report.syntax_mistake(place, &format!("`{shown}` is {what}"));
        return Said::Known;
    }
    let value = text.get(place.range.clone()).and_then(form::boolean);
    let is_semicolon = text[place.range.start.min(text.len())..].starts_with(';');
    let found = report.syntax_mistake(place, said);
    if let Some(value) = value {
        found.help(format!("write `{value}`"));
        return Said::Known;
    }
    if is_semicolon {
        found.help("TOML has no `;` at the end of a line: leave it out");
        return Said::Known;
    }
    if is_unclosed_text(said) {
        found.help("a text ends on its line, with the quote that it begins with");
        return Said::Parser;
    }
    if !not_toml::is_assignment(line) {
        return Said::Parser;
    }
    found.help("a key and its value have `=` between them");
    Said::Known
}

/// Reads one TOML value; `None` where `text` is not one. `at` turns a range
/// of `text` into a place.
pub(super) fn read_value(text: &str, at: &dyn Fn(Range<usize>) -> Place) -> Option<Node> {
    Some(node(DeValue::parse(text).ok()?, at))
}

fn node(value: Spanned<DeValue<'_>>, at: &dyn Fn(Range<usize>) -> Place) -> Node {
    let place = at(value.span());
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(integer) => Value::Integer(integer),
            Err(_) => Value::Other(integer.as_str().to_owned()),
        },
        DeValue::Float(float) => Value::Other(float.as_str().to_owned()),
        DeValue::Boolean(boolean) => Value::Boolean(boolean),
        DeValue::Datetime(datetime) => Value::Other(datetime.to_string()),
        DeValue::Array(items) => Value::List(items.into_iter().map(|it| node(it, at)).collect()),
        DeValue::Table(table) => table_value(table, at),
    };
    Node { place, value }
}

fn table_value(table: DeTable<'_>, at: &dyn Fn(Range<usize>) -> Place) -> Value {
    let entries = table.into_iter().map(|(key, value)| Entry {
        key_place: at(key.span()),
        key: key.into_inner().into_owned(),
        node: node(value, at),
    });
    Value::Table(entries.collect())
}
