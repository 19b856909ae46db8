//! Advice for a value of another type than its option's: how to write it.

use super::shape::{Shape, TableShape};
use super::tree::{Node, TableEntry, Value};

/// The same value in the form that `shape` has, if there is one. `written` is the
/// text that the value begins with.
pub(super) fn advice(node: &Node, shape: &Shape, written: &str) -> Option<String> {
    match (shape, &node.value) {
        // A text may have been meant.
        (Shape::AnyOf(_), Value::Other(_)) if takes_text(shape) => None,
        (Shape::Recursive(again), _) => advice(node, &(again.shape)(), written),
        (Shape::AnyOf(shapes), _) => shapes.iter().find_map(|it| advice(node, it, written)),
        (Shape::List(item), Value::Table(entries)) if takes_table(item) => {
            // Of `[listener.web]` the place is the first key alone.
            let is_named = |it: &TableEntry| matches!(it.node.value, Value::Table(_));
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
            None => list_of(table, written),
        },
        (Shape::Table(table), Value::Text(text)) => as_table(table, text, is_shown(text, written)),
        (Shape::Table(table), Value::Integer(number)) => {
            let key = ["status", "max"].into_iter().find(|it| table.has(it))?;
            Some(table_with(table, key, &number.to_string()))
        }
        (Shape::Table(table), Value::Boolean(true)) => by_default(table),
        (Shape::Map(item), Value::Text(line)) => fields(item, &[line]),
        (Shape::Map(item), Value::List(lines)) => {
            let lines = lines.iter().map(|it| match &it.value {
                Value::Text(line) => Some(line),
                _ => None,
            });
            fields(item, &lines.collect::<Option<Vec<_>>>()?)
        }
        (Shape::Text { .. } | Shape::Choice(_), Value::List(items)) => match &items[..] {
            [only] => match &only.value {
                Value::Text(text) => Some(format!("write it without brackets: \"{text}\"")),
                _ => None,
            },
            _ => None,
        },
        (Shape::Integer { .. }, Value::Other(_)) => Some("write a whole number".to_owned()),
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
        Shape::Table(table) if table.has(key) => {
            // "an upstream" is `[upstream.NAME]`.
            let kind = table.title.rsplit(' ').next().unwrap_or_default();
            Some(format!(
                "a name is missing: `{key}` is a key of a table with a name, `[{kind}.NAME]`"
            ))
        }
        _ => None,
    }
}

/// The name in `[name]` or `[[name]]`.
fn header(written: &str) -> Option<&str> {
    let line = written.lines().next()?;
    let name = line.strip_prefix('[')?.trim_start_matches('[');
    let name = name.split(']').next()?.trim();
    let is_of_name = |it: char| it.is_alphanumeric() || matches!(it, '_' | '-' | '.' | '"');
    (!name.is_empty() && !name.starts_with('"') && name.chars().all(is_of_name)).then_some(name)
}

/// Advice to write a list as a table, under the key that takes it.
fn list_of(table: &TableShape, written: &str) -> Option<String> {
    let mut needed = table.keys.iter().filter(|it| it.presence.is_required());
    let only = match (&table.keys[..], needed.next(), needed.next()) {
        ([only], ..) | (_, Some(only), None) => Some(only),
        _ => None,
    };
    if let Some(only) = only
        && takes_list(&only.shape)
        && !written.contains('\n')
    {
        return Some(format!("write a table: {{ {} = {written} }}", only.key));
    }
    let mut lists = table
        .keys
        .iter()
        .filter(|it| matches!(it.shape, Shape::List(_)));
    match (lists.next(), lists.next()) {
        (Some(only), None) => Some(format!("write a table: {{ {} = [ … ] }}", only.key)),
        _ => None,
    }
}

fn takes_list(shape: &Shape) -> bool {
    shape.is_any(|it| matches!(it, Shape::List(_)))
}

/// Whether a report shows the text, rather than stars instead.
fn is_shown(text: &str, written: &str) -> bool {
    written.trim_matches(['"', '\'']) == text
}

/// A table with this value under this key, and with the keys that it needs.
fn table_with(table: &TableShape, key: &str, value: &str) -> String {
    let needed = table
        .keys
        .iter()
        .filter(|it| it.key != key && it.presence.is_required());
    let needed: String = needed.map(|it| format!("{} = …, ", it.key)).collect();
    format!("write a table: {{ {needed}{key} = {value} }}")
}

/// The table that a text was meant to be. The text could be a secret of the table:
/// then it is left out.
fn as_table(table: &TableShape, text: &str, is_shown: bool) -> Option<String> {
    let quoted = |text: &str| {
        if is_shown {
            format!("\"{text}\"")
        } else {
            "…".to_owned()
        }
    };
    if table.has("path") && table.has("host") && table.has("method") {
        if let Some(keys) = traefik_rule(text) {
            return Some(format!("write a table: {{ {keys} }}"));
        }
        let is_host = !text.contains('/') && text.contains('.');
        let key = if is_host { "host" } else { "path" };
        return Some(table_with(table, key, &quoted(text)));
    }
    let key = ["path", "body", "file"]
        .into_iter()
        .find(|it| table.has(it))?;
    let value = match key {
        "file" => "\"FILE\"".to_owned(),
        _ => quoted(text),
    };
    Some(table_with(table, key, &value))
}

/// The conditions of a rule of Traefik that are plain to see.
fn traefik_rule(rule: &str) -> Option<String> {
    let mut keys = Vec::new();
    for part in rule.split("&&") {
        let (name, rest) = part.trim().split_once('(')?;
        let value = rest.strip_suffix(')')?.trim_matches(['`', '"', '\'']);
        if value.contains(['`', '(', ')', '"', ',']) {
            return None;
        }
        keys.push(match name {
            "Host" => format!("host = \"{value}\""),
            "Path" => format!("path = \"{value}\""),
            "PathPrefix" => {
                let stem = value.trim_end_matches('/');
                format!("path = [\"{stem}\", \"{stem}/*\"]")
            }
            "Method" => format!("method = \"{value}\""),
            _ => return None,
        });
    }
    Some(keys.join(", "))
}

/// Advice for `true` in the place of a table.
fn by_default(table: &TableShape) -> Option<String> {
    let needed = table.keys.iter();
    let mut needed = needed.filter(|it| it.presence.is_required());
    if let Some(needed) = needed.next() {
        let example = needed.shape.example()?;
        let example = if takes_list(&needed.shape) {
            format!("[{example}]")
        } else {
            example
        };
        return Some(format!("write a table: {{ {} = {example} }}", needed.key));
    }
    let path = table.keys.iter().find(|it| it.key == "path");
    match path.and_then(|it| it.shape.example()) {
        Some(example) => Some(format!("write a table: {{ path = {example} }}")),
        None => Some("write a table: `{}` has all defaults".to_owned()),
    }
}

/// A table with the fields in lines such as `X-A: b`. Values that no output shows
/// are left out.
fn fields(item: &Shape, lines: &[&String]) -> Option<String> {
    let is_bare = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    let fields = lines.iter().map(|line| {
        let (name, value) = line.split_once([':', '='])?;
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || !name.chars().all(is_bare) || value.contains(['"', '\\']) {
            return None;
        }
        Some(match item {
            Shape::Secret(_) => format!("{name} = …"),
            _ => format!("{name} = \"{value}\""),
        })
    });
    let fields = fields.collect::<Option<Vec<_>>>()?;
    (!fields.is_empty()).then(|| format!("write a table: {{ {} }}", fields.join(", ")))
}

/// The boolean that a word means in other languages.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" | "enabled" => Some(true),
        "false" | "no" | "off" | "0" | "disabled" => Some(false),
        _ => None,
    }
}

fn takes_table(shape: &Shape) -> bool {
    shape.is_any(|it| matches!(it, Shape::Table(_)))
}

fn takes_text(shape: &Shape) -> bool {
    shape.is_any(|it| matches!(it, Shape::Text { .. } | Shape::Choice(_)))
}
