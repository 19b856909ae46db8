//! The effective configuration as a TOML document.

use std::fmt::Write;

use super::secret;
use super::shape::{KeyShape, Shape, TableShape};
use super::tree::{self, Node, TableEntry, Value};

/// Adds every unwritten option with a default, and removes tables that have no effect. An empty
/// table has an effect if the table is missing by default.
pub(super) fn fill_defaults(node: &mut Node, shape: &Shape) {
    if let Shape::Recursive(again) = shape {
        return fill_defaults(node, &(again.shape)());
    }
    let missing = match shape {
        Shape::Table(table) => missing_entries(node, table),
        _ => Vec::new(),
    };
    match (&mut node.value, shape) {
        (Value::Table(entries), Shape::Table(table)) => {
            entries.extend(missing);
            for entry in entries.iter_mut() {
                if let Some(key) = table.keys.iter().find(|it| it.key == entry.key) {
                    fill_defaults(&mut entry.node, &key.shape);
                }
            }
            entries.retain(|entry| {
                let key = table.keys.iter().find(|it| it.key == entry.key);
                !(is_empty(&entry.node) && key.is_some_and(|it| it.presence.is_empty_table()))
            });
            let order = |entry: &TableEntry| table.keys.iter().position(|it| it.key == entry.key);
            entries.sort_by_key(order);
        }
        (Value::Table(entries), Shape::Map(item)) => {
            entries
                .iter_mut()
                .for_each(|entry| fill_defaults(&mut entry.node, item));
        }
        (Value::List(items), Shape::List(item)) => {
            items.iter_mut().for_each(|it| fill_defaults(it, item));
        }
        (_, Shape::AnyOf(shapes)) => {
            let fits = |shape: &&Shape| match node.value {
                Value::Table(_) => matches!(shape, Shape::Table(_) | Shape::Recursive(_)),
                Value::List(_) => matches!(shape, Shape::List(_)),
                _ => false,
            };
            if let Some(shape) = shapes.iter().find(fits) {
                fill_defaults(node, shape);
            }
        }
        _ => {}
    }
}

/// The defaults of the keys that the table at `node` lacks.
fn missing_entries(node: &Node, table: &TableShape) -> Vec<TableEntry> {
    let missing = table.keys.iter().filter(|it| node.entry(it.key).is_none());
    let entry = |key: &KeyShape| {
        let at = |_| node.place.clone();
        Some(TableEntry {
            key: key.key.into(),
            key_place: node.place.clone(),
            node: tree::read_value(&key.presence.default_in(node)?, &at)?,
        })
    };
    missing.filter_map(entry).collect()
}

/// Separates the shown part of a secret from the mark that tells it from others: a character
/// that no text has.
const SEAL: char = '\u{10FFFF}';

/// Puts stars in place of every secret, with what tells it from another.
pub(super) fn seal_secrets(root: &mut Node, shape: &Shape) {
    secret::each(root, shape, &mut |node| {
        node.value = Value::Text(sealed(secret::HIDDEN, &inline(node)));
    });
    each_text(root, &mut |text| {
        let shown = secret::without_passwords(text);
        if shown != *text {
            *text = sealed(&shown, text);
        }
    });
}

fn sealed(shown: &str, secret: &str) -> String {
    let hash = evenkeel_policy::hash::hash(secret.as_bytes());
    format!("{shown}{SEAL}{hash:x}")
}

/// Leaves nothing but the stars of sealed secrets.
pub(super) fn hide_sealed(root: &mut Node) {
    each_text(root, &mut |text| {
        if let Some(at) = text.find(SEAL) {
            text.truncate(at);
        }
    });
}

fn each_text(node: &mut Node, found: &mut dyn FnMut(&mut String)) {
    match &mut node.value {
        Value::Text(text) => found(text),
        Value::List(items) => items.iter_mut().for_each(|it| each_text(it, found)),
        Value::Table(entries) => entries
            .iter_mut()
            .for_each(|entry| each_text(&mut entry.node, found)),
        Value::Integer(_) | Value::Boolean(_) | Value::Other(_) => {}
    }
}

/// The tree as a document. The first level, and the named tables below it, become sections;
/// everything else stands inline.
pub(super) fn document(root: &Node) -> String {
    let mut text = String::new();
    let Value::Table(entries) = &root.value else {
        return text;
    };
    for entry in entries {
        let name = key(&entry.key);
        match &entry.node.value {
            Value::List(items) => {
                items
                    .iter()
                    .for_each(|it| section(&mut text, &format!("[[{name}]]"), it));
            }
            Value::Table(inner) if matches!(entry.key.as_str(), "upstream" | "cache") => {
                for named in inner {
                    let header = format!("[{name}.{}]", key(&named.key));
                    section(&mut text, &header, &named.node);
                }
            }
            Value::Table(_) => section(&mut text, &format!("[{name}]"), &entry.node),
            // Cannot follow a section; they come first in the shape.
            _ => text.insert_str(0, &format!("{name} = {}\n", inline(&entry.node))),
        }
    }
    text
}

fn section(text: &mut String, header: &str, node: &Node) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(header);
    text.push('\n');
    let Value::Table(entries) = &node.value else {
        return;
    };
    for entry in entries {
        let value = match &entry.node.value {
            Value::List(items) if items.iter().any(|it| matches!(it.value, Value::Table(_))) => {
                let lines: String = items
                    .iter()
                    .map(|it| format!("  {},\n", inline(it)))
                    .collect();
                format!("[\n{lines}]")
            }
            _ => inline(&entry.node),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} = {value}", key(&entry.key));
    }
}

fn is_empty(node: &Node) -> bool {
    matches!(&node.value, Value::Table(inner) if inner.is_empty())
}

/// A value on one line.
pub(super) fn inline(node: &Node) -> String {
    match &node.value {
        Value::Text(text) => quoted(text),
        Value::Integer(integer) => integer.to_string(),
        Value::Boolean(boolean) => boolean.to_string(),
        Value::Other(text) => text.clone(),
        Value::List(items) => {
            format!(
                "[{}]",
                items.iter().map(inline).collect::<Vec<_>>().join(", ")
            )
        }
        Value::Table(entries) => {
            let pair =
                |entry: &TableEntry| format!("{} = {}", key(&entry.key), inline(&entry.node));
            let pairs: Vec<_> = entries.iter().map(pair).collect();
            if pairs.is_empty() {
                "{}".into()
            } else {
                format!("{{ {} }}", pairs.join(", "))
            }
        }
    }
}

fn key(key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !key.is_empty() && key.bytes().all(bare) {
        key.to_owned()
    } else {
        quoted(key)
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The default `text`, a TOML value, as the reference page shows it.
pub(super) fn default_text(text: &str) -> String {
    let at = |_| tree::SourcePlace {
        source: 0,
        range: 0..0,
    };
    tree::read_value(text, &at).map_or_else(|| text.to_owned(), |node| inline(&node))
}
