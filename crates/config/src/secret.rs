//! Secrets: values that are secret by their option, and passwords in URLs.
//!
//! Invariant: no output has the text of a secret. `print` leaves it out of the effective
//! configuration and of a reload's changes. `Report::hide` leaves it out of mistakes, warnings
//! and layers: the loader calls it for each layer that it reads. There, a value counts as a
//! secret if a mistake hides which option it was meant for.
//!
//! The status page, `explain` and the control socket show parts of the resolved
//! configuration. Only the exporter and the prober look at its secrets, and `explain`
//! leaves passwords out of URLs.

use std::ops::Range;

use super::shape::{Shape, TableShape};
use super::tree::{Node, SourcePlace, TableEntry, Value, offset};

/// Shown in the place of a secret.
pub(super) const HIDDEN: &str = "***";

/// The form of an option with a password in its URL.
pub(super) const REDIS_URL: &str =
    "a URL, such as `\"redis://10.0.0.5:6379/0\"` or `\"unix:/run/redis/redis.sock\"`";

/// Passes every value in the tree that is or may be a secret to `found`. `file` is the shape of
/// the tree.
///
/// The option decides. Below a key that is misspelt or sounds like a secret's, a value may be
/// one too. So may a value of another type than its option's.
pub(super) fn each(root: &mut Node, file: &Shape, found: &mut dyn FnMut(&mut Node)) {
    each_below(root, file, file, found);
}

/// The same of what stands at `node`, of this shape.
fn each_below(node: &mut Node, shape: &Shape, file: &Shape, found: &mut dyn FnMut(&mut Node)) {
    match (&mut node.value, shape) {
        (_, Shape::Secret(_)) => each_value(node, found),
        (Value::Table(entries), Shape::Table(table)) => {
            for entry in entries {
                match table.keys.iter().find(|it| it.key == entry.key) {
                    Some(key) => each_below(&mut entry.node, &key.shape, file, found),
                    None if may_be_of_secrets(entry, table) => each_value(&mut entry.node, found),
                    None => match plain_option(&entry.key, file) {
                        Some(shape) => each_below(&mut entry.node, &shape, file, found),
                        None if has_table(&entry.node) => each_value(&mut entry.node, found),
                        None => {}
                    },
                }
            }
        }
        // The path of a probe in place of its table.
        (Value::Text(text), Shape::Table(table)) if is_path(text) && table.has("path") => {}
        // A path through a list names its items, or counts them.
        (Value::Table(entries), Shape::Map(item) | Shape::List(item)) => {
            entries
                .iter_mut()
                .for_each(|it| each_below(&mut it.node, item, file, found));
        }
        (Value::List(items), Shape::List(item)) => {
            items
                .iter_mut()
                .for_each(|it| each_below(it, item, file, found));
        }
        (Value::Text(text), Shape::Text { form, .. })
            if *form == REDIS_URL && may_hide_password(text) =>
        {
            found(node);
        }
        (value, Shape::AnyOf(shapes)) => match shapes.iter().find(|it| it.takes(value)) {
            Some(shape) => each_below(node, shape, file, found),
            None if may_hold(shape) => each_value(node, found),
            None => {}
        },
        (_, Shape::Recursive(again)) => each_below(node, &(again.shape)(), file, found),
        _ if may_hold(shape) => each_value(node, found),
        _ => {}
    }
}

/// Passes every number and text in the tree to `found`.
fn each_value(node: &mut Node, found: &mut dyn FnMut(&mut Node)) {
    match &mut node.value {
        Value::Table(entries) => entries
            .iter_mut()
            .for_each(|it| each_value(&mut it.node, found)),
        Value::List(items) => items.iter_mut().for_each(|it| each_value(it, found)),
        Value::Text(_) | Value::Integer(_) | Value::Other(_) => found(node),
        Value::Boolean(_) => {}
    }
}

/// Whether an entry that is no option of its table may be meant to hold secrets.
fn may_be_of_secrets(entry: &TableEntry, table: &TableShape) -> bool {
    let is_text = match &entry.node.value {
        Value::Text(text) => !is_path(text),
        value => matches!(value, Value::List(_)),
    };
    sounds_secret(&entry.key)
        || entry.key.to_ascii_lowercase().starts_with("header")
        || is_text && table.keys.iter().any(|it| is_of_secrets(&it.shape))
}

/// Whether a text is a mistaken URL, in which nothing tells a password from the rest.
fn may_hide_password(text: &str) -> bool {
    let is_path = text.starts_with("unix:") || text.starts_with('/');
    text.contains('@') && !is_path && passwords(text).is_empty()
}

/// Whether a word is one for a secret.
fn sounds_secret(word: &str) -> bool {
    const SIGNS: [&str; 8] = [
        "token",
        "passw",
        "secret",
        "authoriz",
        "credential",
        "apikey",
        "privatekey",
        "bearer",
    ];
    let letters = word.chars().filter(|it| it.is_alphanumeric());
    let word: String = letters.flat_map(char::to_lowercase).collect();
    word == "auth" || SIGNS.iter().any(|it| word.contains(it))
}

/// The shape of the options with this key, unless one of them may hold a secret.
fn plain_option(key: &str, file: &Shape) -> Option<Shape> {
    let mut named = Vec::new();
    options_named(key, file, &mut named);
    let first = named.first()?;
    (!named.iter().any(|it| may_hold(it))).then(|| (*first).clone())
}

fn options_named<'a>(key: &str, shape: &'a Shape, named: &mut Vec<&'a Shape>) {
    match shape {
        Shape::Table(table) => {
            for it in &table.keys {
                named.extend((it.key == key).then_some(&it.shape));
                options_named(key, &it.shape, named);
            }
        }
        Shape::Map(item) | Shape::List(item) => options_named(key, item, named),
        Shape::AnyOf(shapes) => shapes.iter().for_each(|it| options_named(key, it, named)),
        _ => {}
    }
}

/// Whether a text is a short path, as no token is.
fn is_path(text: &str) -> bool {
    /// Tokens are longer.
    const MAX_LEN: usize = 24;
    let is_of_path = |it: u8| it.is_ascii_lowercase() || b"/-_.".contains(&it);
    text.starts_with('/') && text.len() <= MAX_LEN && text.bytes().all(is_of_path)
}

fn has_table(node: &Node) -> bool {
    match &node.value {
        Value::Table(_) => true,
        Value::List(items) => items.iter().any(has_table),
        _ => false,
    }
}

fn is_of_secrets(shape: &Shape) -> bool {
    matches!(shape, Shape::Map(item) if matches!(**item, Shape::Secret(_)))
}

/// Whether it has an option for a secret, at any depth. A shape that refers back to an
/// enclosing one adds none.
fn may_hold(shape: &Shape) -> bool {
    match shape {
        Shape::Secret(_) => true,
        Shape::Table(table) => table.keys.iter().any(|it| may_hold(&it.shape)),
        Shape::Map(item) | Shape::List(item) => may_hold(item),
        Shape::AnyOf(shapes) => shapes.iter().any(may_hold),
        _ => false,
    }
}

/// Whether what stands under this key of the file may hold a secret: it has an
/// option for one, or is no option.
pub(super) fn may_be_under(key: &str, file: &Shape) -> bool {
    let Shape::Table(table) = file else {
        return true;
    };
    let known = table.keys.iter().find(|it| it.key == key);
    known.is_none_or(|it| may_hold(&it.shape))
}

/// The places of every value that is or may be secret.
pub(super) fn places(root: &mut Node, file: &Shape) -> Vec<SourcePlace> {
    let mut places = Vec::new();
    each(root, file, &mut |secret| places.push(secret.place.clone()));
    places
}

/// The words to hide in the lines of a syntax error, if they may hold a secret.
///
/// The names of options and tables are shown, and the key that a line begins with.
pub(super) fn in_broken_lines(
    text: &str,
    mistake: &Range<usize>,
    file: &Shape,
) -> Vec<Range<usize>> {
    let mut names = Vec::new();
    option_names(file, &mut names);
    let mut hidden = Vec::new();
    // The first key of the table that a line stands in, and where its header is.
    let (mut table, mut header) = (None, 0);
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let range = start..start + line.len();
        start = range.end;
        let bare = line.trim();
        if let Some(name) = bare.strip_prefix('[') {
            let name = name.trim_start_matches('[').trim_start();
            table = name.split(|c| !is_of_word(c)).next();
            header = range.start;
        }
        let line_end = range.start + line.trim_end_matches('\n').len();
        let is_touched = mistake.start <= line_end && range.start <= mistake.end;
        if !is_touched || is_header(bare) {
            continue;
        }
        if table.is_none_or(|table| may_be_under(table, file)) || has_headers(&text[header..]) {
            let key_len = first_key_len(line);
            if is_plain_line(line, key_len, table, file) && !has_headers(&text[header..]) {
                continue;
            }
            let is_hidden = |word: &&str| !names.contains(word);
            let words = line[key_len..].split(|c| !is_of_word(c)).filter(is_hidden);
            hidden.extend(words.map(|word| {
                let at = offset(text, word);
                at..at + word.len()
            }));
        }
    }
    hidden
}

/// Whether a line sets an option without secrets to one value, in an existing table.
fn is_plain_line(line: &str, key_len: usize, table: Option<&str>, file: &Shape) -> bool {
    let key = line[..key_len].trim();
    let value = &line[key_len..];
    let is_known = match (table, file) {
        (Some(table), Shape::Table(shape)) => shape.has(table),
        _ => false,
    };
    let mut words = value.split(|c| !is_of_word(c));
    is_known
        && plain_option(key, file).is_some()
        && !value.contains('{')
        && value.matches('=').count() == 1
        && !words.any(sounds_secret)
}

fn is_of_word(c: char) -> bool {
    !c.is_ascii() || c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Whether a line has nothing but the name of a table.
fn is_header(line: &str) -> bool {
    let is_of_name = |c: char| is_of_word(c) || matches!(c, '.' | '[' | ']' | ' ');
    line.starts_with('[') && line.chars().all(is_of_name)
}

/// Whether a table that begins a text has the key `headers`.
fn has_headers(text: &str) -> bool {
    let mut lines = text.lines();
    let own = lines.next().into_iter();
    let others = lines.take_while(|line| !line.trim_start().starts_with('['));
    let mut all = own.chain(others);
    all.any(|line| line.to_ascii_lowercase().contains("headers"))
}

/// Length of the blanks and the key that a line begins with, where `=` and a value
/// come after it.
fn first_key_len(line: &str) -> usize {
    let Some((key, value)) = line.split_once('=') else {
        return 0;
    };
    let is_key = key.trim().chars().all(|c| is_of_word(c) || c == '.');
    let value = value.trim();
    if is_key && !value.is_empty() && !value.starts_with('=') {
        key.len()
    } else {
        0
    }
}

fn option_names(shape: &Shape, names: &mut Vec<&'static str>) {
    match shape {
        Shape::Table(table) => {
            for key in &table.keys {
                names.push(key.key);
                option_names(&key.shape, names);
            }
        }
        Shape::Map(item) | Shape::List(item) => option_names(item, names),
        Shape::AnyOf(shapes) => shapes.iter().for_each(|it| option_names(it, names)),
        _ => {}
    }
}

/// The passwords in the URLs of a text: `scheme://user:PASSWORD@host`.
pub(super) fn passwords(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (at, mark) in text.match_indices("://") {
        let start = at + mark.len();
        // Passwords of Redis are not percent-encoded, and its paths are numbers.
        let ends = if text[..at].ends_with("redis") || text[..at].ends_with("rediss") {
            "\"'`<>"
        } else {
            "/?#\"'`<>"
        };
        let is_end = |c: char| c.is_whitespace() || ends.contains(c);
        let end = text[start..]
            .find(is_end)
            .map_or(text.len(), |len| start + len);
        // The last @ is the one before the host.
        let Some(user) = text[start..end].rfind('@') else {
            continue;
        };
        if let Some(colon) = text[start..start + user].find(':') {
            found.push(start + colon + 1..start + user);
        }
    }
    found
}

/// The text with `***` in place of passwords.
pub fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for range in passwords(text) {
        shown.push_str(&text[from..range.start]);
        shown.push_str(HIDDEN);
        from = range.end;
    }
    shown.push_str(&text[from..]);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_urls() {
        for (text, shown) in [
            ("http://a:b@host:80/x", "http://a:***@host:80/x"),
            ("`http://a:b:c@d@host` is", "`http://a:***@host` is"),
            (
                "x = \"udp://u:p@h\" # http://v:w@i",
                "x = \"udp://u:***@h\" # http://v:***@i",
            ),
            ("redis://a:b/c#d@e@host/0", "redis://a:***@host/0"),
            ("`rediss://:b?c@host`", "`rediss://:***@host`"),
            ("http://user@host", "http://user@host"),
            ("http://host:80/a@b:c@d", "http://host:80/a@b:c@d"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("a:b@c", "a:b@c"),
            ("://", "://"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
