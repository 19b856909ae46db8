//! Layers: the file, `local.toml` beside it, variables, `--set`.
//!
//! A later layer overrides an earlier one. Tables are merged key by key. A list replaces the
//! list before; only items with a `name` are merged into the item of that name, or added at the
//! end.

use super::diagnostics::{Origin, Report};
use super::secret;
use super::setting::Setting;
use super::shape::Shape;
use super::tree::{self, Node, SourcePlace, TableEntry, Value};
use super::written::File;

/// Prefix of the environment variables that set an option.
pub const VARIABLE_PREFIX: &str = "EVENKEEL_";

/// Puts `over` on top of `base`.
pub(super) fn merge(base: &mut Node, over: Node) {
    match (&mut base.value, over.value) {
        (Value::Table(entries), Value::Table(later)) => {
            for entry in later {
                match entries.iter_mut().find(|it| it.key == entry.key) {
                    Some(earlier) => merge(&mut earlier.node, entry.node),
                    None => entries.push(entry),
                }
            }
        }
        (Value::List(items), Value::List(later)) if all_named(&later) => {
            for item in later {
                let name = item.text_of("name");
                match items.iter_mut().find(|it| it.text_of("name") == name) {
                    Some(earlier) => merge(earlier, item),
                    None => items.push(item),
                }
            }
        }
        (_, value) => {
            *base = Node {
                place: over.place,
                value,
            }
        }
    }
}

fn all_named(items: &[Node]) -> bool {
    !items.is_empty() && items.iter().all(|it| it.text_of("name").is_some())
}

/// Applies the variables that set an option: `EVENKEEL_SERVER__WORKERS=2` is `server.workers =
/// 2`.
///
/// A variable without `__` sets nothing, since every option is within a table. Variables that a
/// container platform sets for a service of this name thus have no effect. A variable that
/// spells an option with a single `_` causes a warning.
pub(super) fn apply_variables(
    root: &mut Node,
    variables: impl IntoIterator<Item = (String, String)>,
    report: &mut Report,
) {
    let own = variables.into_iter();
    let mut variables: Vec<_> = own
        .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
        .collect();
    variables.sort();
    for (name, value) in variables {
        if !name.contains("__") {
            let words = name[VARIABLE_PREFIX.len()..].to_ascii_lowercase();
            if let Some(path) = spelled_with_one(&words, &File::shape()) {
                let help = match &path[..] {
                    [only] => format!("`--set {only}=VALUE` sets this option"),
                    keys => format!(
                        "write two `_` between keys: did you mean `{VARIABLE_PREFIX}{}`?",
                        keys.join("__").to_ascii_uppercase()
                    ),
                };
                report
                    .warning_without_place(format!("the variable `{name}` sets nothing"))
                    .help(help);
            }
            continue;
        }
        let source = report.add_source(Origin::Variable, format!("{name}={value}"));
        let mut at = VARIABLE_PREFIX.len();
        let mut path = Vec::new();
        for part in name[at..].split("__") {
            let place = SourcePlace {
                source,
                range: at..at + part.len(),
            };
            path.push(Step {
                key: part.to_ascii_lowercase(),
                place,
                spelling: Spelling::Variable,
            });
            at += part.len() + 2;
        }
        let value = written_value(&value, source, name.len() + 1);
        put(root, &path, value, report);
    }
}

/// The keys that `words` spell, with a single `_` between them.
fn spelled_with_one(words: &str, shape: &Shape) -> Option<Vec<String>> {
    let below = |key: &str, rest: &str, shape: &Shape| {
        let mut keys = vec![key.to_owned()];
        keys.extend(spelled_with_one(rest, shape)?);
        Some(keys)
    };
    match shape {
        Shape::Table(table) => table.keys.iter().find_map(|it| {
            let rest = words.strip_prefix(it.key)?;
            match rest.strip_prefix('_') {
                Some(rest) => below(it.key, rest, &it.shape),
                None => rest.is_empty().then(|| vec![it.key.to_owned()]),
            }
        }),
        // The name of an item may have a `_` in it too.
        Shape::List(item) | Shape::Map(item) => {
            let mut ends = words.match_indices('_').map(|(at, _)| at);
            ends.find_map(|at| below(&words[..at], &words[at + 1..], item))
        }
        Shape::AnyOf(shapes) => shapes.iter().find_map(|it| spelled_with_one(words, it)),
        _ => None,
    }
}

/// Applies one `--set key=value`.
pub(super) fn apply_set(root: &mut Node, text: &str, report: &mut Report) {
    let source = report.add_source(Origin::Set, text);
    let Some((path, value)) = split_set(text) else {
        let place = SourcePlace {
            source,
            range: 0..text.len(),
        };
        report.hide_in_broken_text(&place, &File::shape());
        report
            .mistake(&place, "expected `key=value`")
            .help("write it as in `--set server.workers=2`");
        return;
    };
    let mut steps = Vec::new();
    for range in path {
        let key = text[range.clone()].trim().trim_matches('"').to_owned();
        let place = SourcePlace { source, range };
        if key.is_empty() {
            let range = value..text.len();
            report.hide(&[SourcePlace { source, range }]);
            report.mistake(&place, "an empty key");
            return;
        }
        steps.push(Step {
            key,
            place,
            spelling: Spelling::Exact,
        });
    }
    let value = written_value(&text[value..], source, value);
    put(root, &steps, value, report);
}

/// Puts the value of a variable or a `--set` in its place, and hides its secrets.
fn put(root: &mut Node, path: &[Step], value: Node, report: &mut Report) {
    let file = File::shape();
    report.hide(&secrets_at(path, value.clone(), &file));
    insert(root, path, value, &file, report);
}

/// The places of what may be secret of a value at this path.
fn secrets_at(path: &[Step], value: Node, file: &Shape) -> Vec<SourcePlace> {
    let is_broken_table =
        matches!(&value.value, Value::Text(text) if text.trim_start().starts_with(['{', '[']));
    let may_hold = path
        .first()
        .is_none_or(|it| secret::may_be_under(&it.key, file));
    if is_broken_table && may_hold {
        return vec![value.place];
    }
    let mut alone = path.iter().rev().fold(value, |node, step| Node {
        place: step.place.clone(),
        value: Value::Table(vec![TableEntry {
            key: step.key.clone(),
            key_place: step.place.clone(),
            node,
        }]),
    });
    secret::places(&mut alone, file)
}

/// The ranges of the keys in `a.b."c.d"=value`, and where the value begins.
fn split_set(text: &str) -> Option<(Vec<std::ops::Range<usize>>, usize)> {
    let mut keys = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'.' | b'=' if !quoted => {
                keys.push(start..at);
                start = at + 1;
                if byte == b'=' {
                    return Some((keys, start));
                }
            }
            _ => {}
        }
    }
    None
}

/// The value of a text, `offset` bytes into its source: TOML, or else the text itself.
fn written_value(text: &str, source: usize, offset: usize) -> Node {
    let at = |range: std::ops::Range<usize>| {
        let range = range.start + offset..range.end + offset;
        SourcePlace { source, range }
    };
    let plain = || Node {
        place: at(0..text.len()),
        value: Value::Text(text.to_owned()),
    };
    let value = tree::read_value(text, &at).unwrap_or_else(plain);
    match value.value {
        // `1.2.3.4`-like and date-like text is meant as text.
        Value::Other(_) => plain(),
        _ => value,
    }
}

/// One key on the way to a value.
struct Step {
    key: String,
    place: SourcePlace,
    spelling: Spelling,
}

/// How a step is compared with the keys that are there.
#[derive(Clone, Copy)]
enum Spelling {
    Exact,
    /// Case is ignored, and `_` stands for `-` and `.` too: the name of a variable can't
    /// express more.
    Variable,
}

impl Step {
    fn names(&self, key: &str) -> bool {
        let plain = |byte: u8| match byte {
            b'-' | b'.' => b'_',
            _ => byte.to_ascii_lowercase(),
        };
        match self.spelling {
            Spelling::Exact => self.key == key,
            Spelling::Variable => self.key.bytes().map(plain).eq(key.bytes().map(plain)),
        }
    }
}

/// Puts `value` at `path` below `node`. Creates tables and named items on the way according to
/// `shape`.
fn insert(node: &mut Node, path: &[Step], value: Node, shape: &Shape, report: &mut Report) {
    let Some((step, rest)) = path.split_first() else {
        merge(node, value);
        return;
    };
    let inner = inner_shape(shape, &step.key);
    let target = match &mut node.value {
        Value::Table(entries) => {
            let found = entries.iter().position(|it| step.names(&it.key));
            let index = found.unwrap_or_else(|| {
                let made = empty(&step.place, &inner);
                let place = step.place.clone();
                entries.push(TableEntry {
                    key: step.key.clone(),
                    key_place: place,
                    node: made,
                });
                entries.len() - 1
            });
            let entry = &mut entries[index];
            if rest.is_empty() && found.is_none() {
                entry.node = value;
                return;
            }
            &mut entry.node
        }
        Value::List(items) => {
            let names = names_of(items);
            let len = items.len();
            match item(items, step, shape) {
                Some(index) => {
                    if index == len && len > 0 {
                        warn_of_new_item(names, len, step, report);
                    }
                    &mut items[index]
                }
                None => return report_no_item(items, step, report),
            }
        }
        _ => {
            let kind = node.kind();
            report
                .mistake(
                    &step.place,
                    format!("cannot set `{}` within {kind}", step.key),
                )
                .related(&node.place, format!("this is {kind}"));
            return;
        }
    };
    insert(target, rest, value, &inner, report);
}

fn names_of(items: &[Node]) -> Vec<String> {
    let names = items.iter().filter_map(|it| it.text_of("name"));
    names.map(str::to_owned).collect()
}

/// Warns of an item that is made, where another one was probably meant.
fn warn_of_new_item(names: Vec<String>, len: usize, step: &Step, report: &mut Report) {
    let help = if names.is_empty() {
        format!("write an index from 0 to {}", len - 1)
    } else {
        format!("known items: {}", names.join(", "))
    };
    report
        .warning(
            &step.place,
            format!(
                "no file has an item `{}`, so this would add a new one",
                step.key
            ),
        )
        .help(help);
}

fn report_no_item(items: &[Node], step: &Step, report: &mut Report) {
    let names: Vec<_> = items.iter().filter_map(|it| it.text_of("name")).collect();
    let help = if names.is_empty() {
        format!("write an index below {}", items.len())
    } else {
        format!("known items: {}", names.join(", "))
    };
    report
        .mistake(&step.place, format!("there is no item `{}`", step.key))
        .help(help)
        .propose(&step.key, names);
}

/// The item that `step` names or counts; made where items of `shape` have
/// names.
fn item(items: &mut Vec<Node>, step: &Step, shape: &Shape) -> Option<usize> {
    let named = |it: &Node| it.text_of("name").is_some_and(|name| step.names(name));
    if let Some(index) = items.iter().position(named) {
        return Some(index);
    }
    if let Ok(index) = step.key.parse::<usize>() {
        return (index < items.len()).then_some(index);
    }
    let Shape::Table(table) = inner_shape(shape, &step.key) else {
        return None;
    };
    table.keys.iter().find(|it| it.key == "name")?;
    let place = step.place.clone();
    let name = Node {
        place: place.clone(),
        value: Value::Text(step.key.clone()),
    };
    let entry = TableEntry {
        key: "name".into(),
        key_place: place.clone(),
        node: name,
    };
    items.push(Node {
        place,
        value: Value::Table(vec![entry]),
    });
    Some(items.len() - 1)
}

/// The shape of what stands under `key` in a value of `shape`; an empty
/// choice where there is no such key.
fn inner_shape(shape: &Shape, key: &str) -> Shape {
    let unknown = Shape::Choice(Vec::new());
    match shape {
        Shape::Table(table) => {
            let found = table.keys.iter().find(|it| it.key == key);
            found.map_or(unknown, |it| it.shape.clone())
        }
        Shape::List(item) | Shape::Map(item) => (**item).clone(),
        Shape::AnyOf(shapes) => {
            let is_table = |it: &&Shape| matches!(it, Shape::Table(_) | Shape::Recursive(_));
            let table = shapes.iter().find(is_table);
            table.map_or(unknown, |table| inner_shape(table, key))
        }
        Shape::Recursive(again) => inner_shape(&(again.shape)(), key),
        _ => unknown,
    }
}

fn empty(place: &SourcePlace, shape: &Shape) -> Node {
    let value = match shape {
        Shape::List(_) => Value::List(Vec::new()),
        _ => Value::Table(Vec::new()),
    };
    Node {
        place: place.clone(),
        value,
    }
}
