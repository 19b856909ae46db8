//! The differences between two configurations, in the words of the file.
//!
//! A [`Written`] holds the text of all layers of a configuration. With thousands of routes it
//! is much smaller than a tree. [`diff`] parses two of them, and descends into the parts that
//! differ. Every option that may be written is thus compared by its key, including options
//! added later. Files that the configuration names are not compared: an answer's body may
//! change behind the same path.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use evenkeel_net::Address;
use toml::de::DeTable;

use super::Config;
use super::print;
use super::setting::{FromText, Setting};
use super::shape::{Shape, TableShape};
use super::tree::{self, Node, SourcePlace, TableEntry, Value};
use super::value::Bind;
use super::written::File;

/// A setting that only another process can change.
struct Fixed {
    key: &'static str,
    /// Takes the value over from the configuration before; returns whether it differed.
    keep: fn(&mut Config, &Config) -> bool,
}

const FIXED: [Fixed; 4] = [
    Fixed {
        key: "server.workers",
        keep: |config, before| keep(&mut config.server.workers, &before.server.workers),
    },
    Fixed {
        key: "server.control",
        keep: |config, before| keep(&mut config.server.control, &before.server.control),
    },
    Fixed {
        key: "server.reserved_descriptors",
        keep: |config, before| {
            let before = &before.server.reserved_descriptors;
            keep(&mut config.server.reserved_descriptors, before)
        },
    },
    Fixed {
        key: "status.bind",
        keep: |config, before| match (&mut config.status, &before.status) {
            (Some(status), Some(before)) => keep(&mut status.bind, &before.bind),
            (status, before) => keep(status, before),
        },
    },
];

fn keep<T: PartialEq + Clone>(setting: &mut T, before: &T) -> bool {
    let is_other = *setting != *before;
    if is_other {
        setting.clone_from(before);
    }
    is_other
}

impl Config {
    /// Keeps the settings of `before` that only another process can change. Returns the keys of
    /// those that would have changed.
    pub fn keep_fixed(&mut self, before: &Config) -> Vec<&'static str> {
        let has_status = [&*self, before].map(|it| it.status.is_some());
        let kept = FIXED.iter().filter(|it| (it.keep)(self, before));
        let kept: Vec<_> = kept.map(|it| it.key).collect();
        let written = kept.iter().map(|&key| match key {
            // The whole table appears or disappears.
            "status.bind" if has_status[0] != has_status[1] => "status",
            key => key,
        });
        self.written.take_over(&before.written, written);
        kept
    }
}

/// The text of a configuration's layers, without defaults. Of a secret it has only a mark that
/// tells one secret from another.
#[derive(Clone, Default)]
pub(super) struct Written(Box<str>);

impl fmt::Debug for Written {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `Config` prints the settings by its other fields.
        out.write_str("Written")
    }
}

impl Written {
    /// The text of this tree, whose secrets are sealed.
    pub fn new(root: &Node) -> Self {
        Written(print::document(root).into())
    }

    /// Takes the values of these keys from `before`.
    fn take_over<'a>(&mut self, before: &Written, keys: impl Iterator<Item = &'a str>) {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return;
        }
        let (mut root, before) = (self.root(), before.root());
        for key in keys {
            let (table, key) = match key.split_once('.') {
                Some((table, key)) => (Some(table), key),
                None => (None, key),
            };
            let source = match table {
                Some(table) => before.entry(table).map(|it| &it.node),
                None => Some(&before),
            };
            let kept = source.and_then(|it| it.entry(key));
            let into = match table {
                Some(table) => table_in(&mut root, table),
                None => Some(&mut root),
            };
            if let Some(Value::Table(entries)) = into.map(|it| &mut it.value) {
                entries.retain(|it| it.key != key);
                entries.extend(kept.cloned());
            }
        }
        *self = Written::new(&root);
    }

    fn root(&self) -> Node {
        let at = |range| SourcePlace { source: 0, range };
        // The text was printed from a tree, so it can be parsed.
        let table = DeTable::parse(&self.0).map(|it| tree::table_value(it.into_inner(), &at));
        table_of(table.map_or_else(|_| Vec::new(), entries_of))
    }
}

/// A change from one configuration to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The object that changes.
    pub of: Subject,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// The object of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A setting of the process; its key says which.
    Process,
    /// The listener of this name.
    Listener(String),
    /// The route of this name.
    Route(String),
    /// The upstream of this name.
    Upstream(String),
    /// The cache of this name.
    Cache(String),
    /// An endpoint, or a source of endpoints.
    Endpoint {
        /// The name of its upstream.
        upstream: String,
        /// The name of the endpoint in the list.
        endpoint: String,
    },
}

/// The kind of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object is new.
    Added,
    /// The object is gone.
    Removed,
    /// The object has no name of its own, and has another number in the new order.
    Renamed {
        /// The name after the change.
        now: String,
    },
    /// The route is tried earlier or later than before, relative to other routes.
    Moved,
    /// An option has another value.
    Setting {
        /// The option's key, as in `queue.max`.
        key: String,
        /// The value before, as TOML; `None` if there was none.
        before: Option<String>,
        /// The value after the change.
        now: Option<String>,
    },
}

impl Change {
    /// Whether only another process can make the change.
    pub fn is_fixed(&self) -> bool {
        match (&self.of, &self.kind) {
            (Subject::Process, ChangeKind::Setting { key, .. }) => {
                // Or a table with such a key, which appears or disappears as a whole.
                let is_in = |it: &Fixed| it.key.split_once('.').is_some_and(|it| it.0 == key);
                FIXED.iter().any(|it| it.key == key || is_in(it))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Process => out.write_str("process"),
            Subject::Listener(name) => write!(out, "listener {name}"),
            Subject::Route(name) => write!(out, "route {name}"),
            Subject::Upstream(name) => write!(out, "upstream {name}"),
            Subject::Cache(name) => write!(out, "cache {name}"),
            Subject::Endpoint { upstream, endpoint } => {
                write!(out, "upstream {upstream}: endpoint {endpoint}")
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.of;
        match &self.kind {
            ChangeKind::Added => write!(out, "{of} is added"),
            ChangeKind::Removed => write!(out, "{of} is removed"),
            ChangeKind::Renamed { now } => {
                write!(out, "{of} is renamed to {now}: counters belong to the name")
            }
            ChangeKind::Moved => write!(
                out,
                "{of} moves to another position: routes are tried in order"
            ),
            ChangeKind::Setting { key, before, now } => {
                if !matches!(of, Subject::Process) {
                    write!(out, "{of}: ")?;
                }
                match (before, now) {
                    (Some(before), Some(now)) if before == now => {
                        write!(out, "{key} changes (its values are not shown)")?;
                    }
                    (Some(before), Some(now)) => {
                        write!(out, "{key} changes from {before} to {now}")?;
                    }
                    (None, Some(now)) => write!(out, "{key} is set to {now}")?,
                    (Some(before), None) => write!(out, "{key} is no longer {before}")?,
                    (None, None) => write!(out, "{key} changes")?,
                }
                if self.is_fixed() {
                    out.write_str("; only a restart or an upgrade of the program changes it")?;
                }
                Ok(())
            }
        }
    }
}

/// The changes from `before` to `now`: of the process, listeners, routes, upstreams with their
/// endpoints, then caches.
pub fn diff(before: &Config, now: &Config) -> Vec<Change> {
    let [before, now] = [before, now].map(|it| it.written.root());
    let mut changes = Vec::new();
    let Shape::Table(file) = File::shape() else {
        return changes;
    };
    for key in &file.keys {
        let [before, now] = [&before, &now].map(|it| it.entry(key.key).map(|it| &it.node));
        match key.key {
            // `include` only says where other keys come from.
            "include" => {}
            "listener" => {
                let items = [before, now].map(|it| Item::list("listener", it));
                named(items, &key.shape, Subject::Listener, &mut changes);
            }
            "route" => {
                let items = [before, now].map(|it| Item::list("route", it));
                named(items, &key.shape, Subject::Route, &mut changes);
            }
            "upstream" => {
                let items = [before, now].map(Item::map);
                upstreams(items, &key.shape, &mut changes);
            }
            "cache" => {
                let items = [before, now].map(Item::map);
                caches(items, &key.shape, &mut changes);
            }
            key => section(&file, key, [before, now], &mut changes),
        }
    }
    changes
}

/// An object that is known by its name.
struct Item<'a> {
    name: String,
    /// Whether the name is written, rather than a number in a list.
    is_named: bool,
    node: &'a Node,
    text: String,
}

impl<'a> Item<'a> {
    fn list(kind: &str, list: Option<&'a Node>) -> Vec<Self> {
        let items = match list.map(|it| &it.value) {
            Some(Value::List(items)) => &items[..],
            _ => &[],
        };
        let items = items.iter().enumerate();
        let items = items.map(|(index, node)| {
            let name = node.text_of("name");
            Item {
                is_named: name.is_some(),
                name: name.map_or_else(|| format!("{kind}-{}", index + 1), str::to_owned),
                text: print::inline(node),
                node,
            }
        });
        items.collect()
    }

    fn map(map: Option<&'a Node>) -> Vec<Self> {
        let entries = match map.map(|it| &it.value) {
            Some(Value::Table(entries)) => &entries[..],
            _ => &[],
        };
        let items = entries.iter().map(|entry| Item {
            name: entry.key.clone(),
            is_named: true,
            text: print::inline(&entry.node),
            node: &entry.node,
        });
        items.collect()
    }
}

/// For each item of `now`, the index of the same item in `before`. Items are matched by name;
/// an unnamed item by its text, else by its number.
fn same_ones(before: &[Item<'_>], now: &[Item<'_>]) -> Vec<Option<usize>> {
    let places = || before.iter().zip(0..);
    let named = places().filter(|(it, _)| it.is_named);
    let mut by_name: HashMap<&str, usize> = named.map(|(it, at)| (&*it.name, at)).collect();
    let mut by_text = HashMap::<&str, VecDeque<usize>>::new();
    for (item, at) in places().filter(|(it, _)| !it.is_named) {
        by_text.entry(&item.text).or_default().push_back(at);
    }
    let found = now.iter().map(|it| {
        if it.is_named {
            by_name.remove(&*it.name)
        } else {
            by_text.get_mut(&*it.text)?.pop_front()
        }
    });
    let mut found: Vec<_> = found.collect();
    let left: HashSet<usize> = by_text.into_values().flatten().collect();
    let by_number = left.into_iter().map(|at| (&*before[at].name, at));
    let mut by_number: HashMap<&str, usize> = by_number.collect();
    for (found, item) in found.iter_mut().zip(now) {
        if found.is_none() && !item.is_named {
            *found = by_number.remove(&*item.name);
        }
    }
    found
}

/// The same for listeners. A listener is matched by its address, whatever its name; at another
/// address, by its name.
fn same_listeners(before: &[Item<'_>], now: &[Item<'_>]) -> Vec<Option<usize>> {
    let mut by_bind = HashMap::<_, Vec<usize>>::new();
    for (item, at) in before.iter().zip(0..) {
        by_bind.entry(bind(item)).or_default().push(at);
    }
    let mut found = vec![None; now.len()];
    for is_named_alike in [true, false] {
        for (item, found) in now.iter().zip(&mut found) {
            if let (None, Some(places)) = (&found, by_bind.get_mut(&bind(item))) {
                let is_it = |at: &usize| !is_named_alike || before[*at].name == item.name;
                let first = places.iter().position(is_it);
                *found = first.map(|it| places.remove(it));
            }
        }
    }
    let taken: HashSet<usize> = found.iter().flatten().copied().collect();
    let left = before.iter().enumerate();
    let left = left.filter(|(at, _)| !taken.contains(at));
    let mut by_name: HashMap<&str, usize> = left.map(|(at, it)| (&*it.name, at)).collect();
    for (item, found) in now.iter().zip(&mut found) {
        *found = found.or_else(|| by_name.remove(&*item.name));
    }
    found
}

/// The address that a listener listens on.
fn bind(listener: &Item<'_>) -> Option<Address> {
    Some(Bind::from_text(listener.node.text_of("bind")?).ok()?.0)
}

/// Listeners and routes, which are in lists.
fn named(
    [before, now]: [Vec<Item<'_>>; 2],
    shape: &Shape,
    subject: fn(String) -> Subject,
    changes: &mut Vec<Change>,
) {
    let Shape::List(shape) = shape else { return };
    let is_listener = matches!(subject(String::new()), Subject::Listener(_));
    let same = if is_listener {
        same_listeners(&before, &now)
    } else {
        same_ones(&before, &now)
    };
    let moved = moved(&same);
    added_and_removed([&before, &now], &same, &subject, changes);
    for (at, (item, same)) in now.iter().zip(&same).enumerate() {
        let Some(old) = same.map(|at| &before[at]) else {
            continue;
        };
        let mut note = |of: &Item<'_>, kind| {
            let of = subject(of.name.clone());
            changes.push(Change { of, kind });
        };
        if old.name != item.name {
            let now = item.name.clone();
            note(old, ChangeKind::Renamed { now });
        }
        // The order of listeners has no effect.
        if moved.contains(&at) && !is_listener {
            note(item, ChangeKind::Moved);
        }
        if old.text != item.text {
            let mut nodes = [old.node, item.node].map(|it| filled(it, shape));
            let has_same_bind = is_listener && bind(old) == bind(item);
            for node in &mut nodes {
                if let Value::Table(entries) = &mut node.value {
                    // Only the name differs, and an address may be written in several ways.
                    entries.retain(|it| it.key != "name" && !(has_same_bind && it.key == "bind"));
                }
            }
            compare(subject(item.name.clone()), nodes.each_ref(), changes);
        }
    }
}

fn added_and_removed(
    [before, now]: [&[Item<'_>]; 2],
    same: &[Option<usize>],
    subject: &dyn Fn(String) -> Subject,
    changes: &mut Vec<Change>,
) {
    let stay: HashSet<usize> = same.iter().flatten().copied().collect();
    let removed = before.iter().enumerate();
    let removed = removed.filter(|(at, _)| !stay.contains(at));
    changes.extend(removed.map(|(_, it)| Change {
        of: subject(it.name.clone()),
        kind: ChangeKind::Removed,
    }));
    let added = now.iter().zip(same).filter(|(_, same)| same.is_none());
    changes.extend(added.map(|(it, _)| Change {
        of: subject(it.name.clone()),
        kind: ChangeKind::Added,
    }));
}

/// Indexes of the items that have moved: the smallest such set.
fn moved(same: &[Option<usize>]) -> HashSet<usize> {
    let staying: Vec<_> = (0..)
        .zip(same)
        .filter_map(|(at, it)| Some((at, (*it)?)))
        .collect();
    // The longest run that is in order stays (patience sorting).
    let mut tops: Vec<usize> = Vec::new();
    let mut before = vec![None; staying.len()];
    for (index, (_, place)) in staying.iter().enumerate() {
        let pile = tops.partition_point(|&top| staying[top].1 < *place);
        before[index] = pile.checked_sub(1).map(|it| tops[it]);
        match tops.get_mut(pile) {
            Some(top) => *top = index,
            None => tops.push(index),
        }
    }
    let mut moved: HashSet<usize> = staying.iter().map(|(at, _)| *at).collect();
    let mut next = tops.last().copied();
    while let Some(index) = next {
        moved.remove(&staying[index].0);
        next = before[index];
    }
    moved
}

fn upstreams([before, now]: [Vec<Item<'_>>; 2], shape: &Shape, changes: &mut Vec<Change>) {
    let Shape::Map(shape) = shape else { return };
    let same = same_ones(&before, &now);
    added_and_removed([&before, &now], &same, &Subject::Upstream, changes);
    for (item, same) in now.iter().zip(&same) {
        let Some(old) = same.map(|at| &before[at]).filter(|it| it.text != item.text) else {
            continue;
        };
        let mut nodes = [old.node, item.node].map(|it| filled(it, shape));
        let lists = nodes.each_mut().map(take_endpoints);
        let of = Subject::Upstream(item.name.clone());
        compare(of, nodes.each_ref(), changes);
        let [before, now] = lists.each_ref().map(|it| endpoint_items(it));
        let same = same_ones(&before, &now);
        let subject = |endpoint| Subject::Endpoint {
            upstream: item.name.clone(),
            endpoint,
        };
        added_and_removed([&before, &now], &same, &subject, changes);
        for (now, same) in now.iter().zip(&same) {
            if let Some(before) = same.map(|at| &before[at]) {
                let of = subject(now.name.clone());
                compare(of, [before.node, now.node], changes);
            }
        }
    }
}

fn caches([before, now]: [Vec<Item<'_>>; 2], shape: &Shape, changes: &mut Vec<Change>) {
    let Shape::Map(shape) = shape else { return };
    let same = same_ones(&before, &now);
    added_and_removed([&before, &now], &same, &Subject::Cache, changes);
    for (item, same) in now.iter().zip(&same) {
        if let Some(old) = same.map(|at| &before[at]) {
            let nodes = [old.node, item.node].map(|it| filled(it, shape));
            compare(Subject::Cache(item.name.clone()), nodes.each_ref(), changes);
        }
    }
}

/// Notes the settings of one object that differ.
fn compare(of: Subject, [before, now]: [&Node; 2], changes: &mut Vec<Change>) {
    let mut settings = Settings { of, changes };
    settings.compare("", [Some(before), Some(now)]);
}

/// Takes the endpoints out of an upstream, each as a table with its defaults.
fn take_endpoints(upstream: &mut Node) -> Vec<Node> {
    let Value::Table(entries) = &mut upstream.value else {
        return Vec::new();
    };
    let at = entries.iter().position(|it| it.key == "endpoints");
    let list = at.map(|at| entries.remove(at).node.value);
    let Some(Value::List(items)) = list else {
        return Vec::new();
    };
    let shape = super::written::EndpointTable::shape();
    let tables = items.into_iter().map(|it| match it.value {
        Value::Text(_) => filled(&table_of(vec![entry("address", it)]), &shape),
        _ => filled(&it, &shape),
    });
    tables.collect()
}

/// Endpoints by their names in the list. A name that is listed twice makes two.
fn endpoint_items(endpoints: &[Node]) -> Vec<Item<'_>> {
    let mut seen = HashMap::<String, usize>::new();
    let items = endpoints.iter().map(|node| {
        let name = ["address", "srv"].iter().find_map(|key| node.text_of(key));
        let name = name.unwrap_or_default().to_owned();
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        Item {
            name: if *count == 1 {
                name
            } else {
                format!("{name} (number {count})")
            },
            is_named: true,
            text: String::new(),
            node,
        }
    });
    items.collect()
}

/// Compares a part of the file that is one table, such as `[server]`.
fn section(file: &TableShape, key: &str, nodes: [Option<&Node>; 2], changes: &mut Vec<Change>) {
    let Some(shape) = file.keys.iter().find(|it| it.key == key) else {
        return;
    };
    let nodes = nodes.map(|it| match it {
        Some(node) => Some(filled(node, &shape.shape)),
        None if shape.presence.is_empty_table() => {
            Some(filled(&table_of(Vec::new()), &shape.shape))
        }
        None => None,
    });
    let of = Subject::Process;
    let mut settings = Settings { of, changes };
    settings.compare(key, [nodes[0].as_ref(), nodes[1].as_ref()]);
}

/// Finds the settings of one object that differ.
struct Settings<'a> {
    of: Subject,
    changes: &'a mut Vec<Change>,
}

impl Settings<'_> {
    fn compare(&mut self, key: &str, nodes: [Option<&Node>; 2]) {
        if let [Some(before), Some(now)] = nodes
            && let (Value::Table(old), Value::Table(new)) = (&before.value, &now.value)
        {
            let gone = old.iter().filter(|it| now.entry(&it.key).is_none());
            for entry in new.iter().chain(gone) {
                let below = match key {
                    "" => entry.key.clone(),
                    _ => format!("{key}.{}", entry.key),
                };
                let nodes = [before, now].map(|it| it.entry(&entry.key).map(|it| &it.node));
                self.compare(&below, nodes);
            }
            return;
        }
        let [before, now] = nodes.map(|it| it.map(print::inline));
        if before != now {
            let [before, now] = nodes.map(|it| it.map(shown));
            self.changes.push(Change {
                of: self.of.clone(),
                kind: ChangeKind::Setting {
                    key: key.to_owned(),
                    before,
                    now,
                },
            });
        }
    }
}

/// A value for people, without the marks that tell secrets apart.
fn shown(node: &Node) -> String {
    let mut node = node.clone();
    print::hide_sealed(&mut node);
    print::inline(&node)
}

/// A copy of the node with every default filled in.
fn filled(node: &Node, shape: &Shape) -> Node {
    let mut node = node.clone();
    print::fill_defaults(&mut node, shape);
    node
}

fn table_of(entries: Vec<TableEntry>) -> Node {
    Node {
        place: nowhere(),
        value: Value::Table(entries),
    }
}

fn entry(key: &str, node: Node) -> TableEntry {
    TableEntry {
        key: key.to_owned(),
        key_place: nowhere(),
        node,
    }
}

/// The table under this key; an empty one is inserted if it is missing.
fn table_in<'a>(root: &'a mut Node, key: &str) -> Option<&'a mut Node> {
    let Value::Table(entries) = &mut root.value else {
        return None;
    };
    let at = entries.iter().position(|it| it.key == key);
    let at = at.unwrap_or_else(|| {
        entries.push(entry(key, table_of(Vec::new())));
        entries.len() - 1
    });
    entries.get_mut(at).map(|it| &mut it.node)
}

fn entries_of(value: Value) -> Vec<TableEntry> {
    match value {
        Value::Table(entries) => entries,
        _ => Vec::new(),
    }
}

fn nowhere() -> SourcePlace {
    SourcePlace {
        source: 0,
        range: 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_as_explain_the_order_have_moved() {
        let cases: [(&[Option<usize>], &[usize]); 5] = [
            (&[], &[]),
            (&[Some(0), None, Some(1), Some(5)], &[]),
            (&[Some(3), Some(0), Some(1), Some(2)], &[0]),
            (&[Some(1), Some(2), None, Some(0), Some(3)], &[3]),
            (&[Some(2), Some(1), Some(0)], &[0, 1]),
        ];
        for (same, expected) in cases {
            let mut moved: Vec<_> = moved(same).into_iter().collect();
            moved.sort_unstable();
            assert_eq!(moved, expected, "{same:?}");
        }
    }
}
