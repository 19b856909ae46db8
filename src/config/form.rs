//! Advice for a value of another type than its option's: how to write it.

use super::setting::{Shape, TableShape};
use super::tree::{Entry, Node, Value};

/// The same value in the form that `shape` has, if there is one. `written` is the
/// text that the value begins with.
pub(super) fn advice(node: &Node, shape: &Shape, written: &str) -> Option<String> {
    match (shape, &node.value) {
        (Shape::AnyOf(shapes), _) => shapes.iter().find_map(|it| advice(node, it, written)),
        (Shape::List(item), Value::Table(entries)) if takes_table(item) => {
            // Of `[listener.web]` the place is the first key alone.
            let is_named = |it: &Entry| matches!(it.node.value, Value::Table(_));
            match header(written) {
                Some(name) => Some(format!("write `[[{name}]]`: there may be several")),
                None if written.starts_with('{') => Some("write a list: `[{ … }]`".to_owned()),
                None => {
                    let name = entries.iter().find(|it| is_named(it)).map(|it| &it.key)?;
                    Some(format!("write `[[{written}]]`, with name = \"{name}\""))
                }
            }
        }
        (Shape::List(item), Value::Text(text)) if takes_text(item) => {
            let is_none = matches!(text.trim(), "none" | "off");
            let items = text
                .split([',', ';', ' '])
                .filter(|it| !it.is_empty() && !is_none);
            let items: Vec<_> = items.map(|it| format!("\"{it}\"")).collect();
            Some(format!("write a list: [{}]", items.join(", ")))
        }
        (Shape::Map(item), Value::List(_)) if takes_table(item) => {
            let name = header(written)?;
            Some(format!(
                "write `[{name}.NAME]`, with a name of its own for each"
            ))
        }
        (Shape::Table(table), Value::List(_)) => match header(written) {
            Some(name) => Some(format!("write `[{name}]`, with single brackets")),
            None => list_of(table),
        },
        (Shape::Table(table), Value::Integer(number)) if has(table, "status") => {
            Some(format!("write a table: {{ status = {number} }}"))
        }
        // The text could be a secret of the table.
        (Shape::Table(table), Value::Text(_)) if has(table, "path") => {
            Some("write a table: { path = … }".to_owned())
        }
        (Shape::Integer { .. }, Value::Text(text)) => {
            let number: i64 = text.trim().parse().ok()?;
            Some(format!("write it without quotes: {number}"))
        }
        (Shape::Boolean, Value::Text(text)) => {
            boolean(text).map(|it| format!("write it without quotes: {it}"))
        }
        (Shape::Boolean, Value::Integer(number)) => {
            boolean(&number.to_string()).map(|it| format!("write {it}"))
        }
        _ => None,
    }
}

/// Advice for a key in the place of a name: the tables with names have such a key.
pub(super) fn nameless(key: &str, shape: &Shape) -> Option<String> {
    match shape {
        Shape::Table(table) if has(table, key) => Some(format!(
            "a name is missing: `{key}` is a key of a table with a name, as in `[upstream.app]`"
        )),
        _ => None,
    }
}

fn has(table: &TableShape, key: &str) -> bool {
    table.keys.iter().any(|it| it.key == key)
}

/// The name in `[name]` or `[[name]]`.
fn header(written: &str) -> Option<&str> {
    let line = written.lines().next()?;
    let name = line.strip_prefix('[')?.trim_start_matches('[');
    let name = name.split(']').next()?.trim();
    let is_of_name = |it: char| it.is_alphanumeric() || matches!(it, '_' | '-' | '.' | '"');
    (!name.is_empty() && !name.starts_with('"') && name.chars().all(is_of_name)).then_some(name)
}

/// The one key of a table that takes a list.
fn list_of(table: &TableShape) -> Option<String> {
    let mut lists = table
        .keys
        .iter()
        .filter(|it| matches!(it.shape, Shape::List(_)));
    match (lists.next(), lists.next()) {
        (Some(only), None) => Some(format!("write a table: {{ {} = [ … ] }}", only.key)),
        _ => None,
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" | "enabled" => Some(true),
        "false" | "no" | "off" | "0" | "disabled" => Some(false),
        _ => None,
    }
}

fn takes_table(shape: &Shape) -> bool {
    match shape {
        Shape::Table(_) => true,
        Shape::AnyOf(shapes) => shapes.iter().any(takes_table),
        _ => false,
    }
}

fn takes_text(shape: &Shape) -> bool {
    match shape {
        Shape::Text { .. } | Shape::Choice(_) => true,
        Shape::AnyOf(shapes) => shapes.iter().any(takes_text),
        _ => false,
    }
}
