//! The configuration as a tree of values, each with the place it came from.
//!
//! Every layer (file, variable, `--set`) is read into this tree before the meaning of its keys
//! is looked at. A mistake found later can thus still show the text that a person wrote.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A stretch of one of the report's sources, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePlace {
    /// Index of the source in the report.
    pub source: usize,
    /// Bytes of that source's text.
    pub range: Range<usize>,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// The place of the value.
    pub place: SourcePlace,
    /// The value itself.
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
    Table(Vec<TableEntry>),
}

/// One key of a table.
#[derive(Debug, Clone)]
pub struct TableEntry {
    /// The key.
    pub key: String,
    /// The place of the key.
    pub key_place: SourcePlace,
    /// Its value.
    pub node: Node,
}

impl Node {
    /// The entry of this key, if the value is a table with this key.
    pub fn entry(&self, key: &str) -> Option<&TableEntry> {
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

    /// The kind of the value, for a mistake that says what was found.
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

/// The first byte of the line that contains byte `at`.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    let before = &text[..at.min(text.len())];
    before.rfind('\n').map_or(0, |end| end + 1)
}

/// The index in a text at which a part of that text begins.
pub(super) fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Reads one TOML value; `None` where `text` is not one. `at` turns a range
/// of `text` into a place.
pub(super) fn read_value(text: &str, at: &dyn Fn(Range<usize>) -> SourcePlace) -> Option<Node> {
    Some(node(DeValue::parse(text).ok()?, at))
}

fn node(value: Spanned<DeValue<'_>>, at: &dyn Fn(Range<usize>) -> SourcePlace) -> Node {
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

/// The entries of a table.
pub(super) fn table_value(table: DeTable<'_>, at: &dyn Fn(Range<usize>) -> SourcePlace) -> Value {
    let entries = table.into_iter().map(|(key, value)| TableEntry {
        key_place: at(key.span()),
        key: key.into_inner().into_owned(),
        node: node(value, at),
    });
    Value::Table(entries.collect())
}
