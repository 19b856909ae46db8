//! Advice for a key that its table does not have.
//!
//! Invariant: all tables and their keys come from the definitions of the options, so
//! that a new option is proposed without a change here.

use super::diagnostics::{Report, nearest};
use super::peers::{self, Meaning};
use super::setting::FromText;
use super::shape::{Shape, TableShape, alternatives};
use super::tree::{Node, TableEntry, Value};
use super::value::EndpointAddress;

/// Path of the table of an endpoint.
const ENDPOINTS: &str = "upstream.NAME.endpoints";

/// How the table of the whole file is named.
const WHOLE: &str = "the configuration";

/// Keys of the host of an endpoint beside one of its port.
const HOST_KEYS: [&str; 6] = ["host", "address", "ip", "addr", "server", "name"];

/// Most tables that are named as those of a key.
const MOST_TABLES: usize = 3;

/// A table of the configuration with its keys.
#[derive(Debug)]
pub(super) struct Table {
    /// Its keys from the top, with dots between; `NAME` stands for any.
    pub path: String,
    /// As it is written.
    pub shown: String,
    /// Its keys.
    pub keys: Vec<&'static str>,
    /// The shape of the value of each.
    shapes: Vec<Shape>,
}

impl Table {
    /// Whether this value may stand under this key.
    fn takes(&self, key: &str, value: &Value) -> bool {
        let mut keys = self.keys.iter().zip(&self.shapes);
        keys.any(|(it, shape)| *it == key && shape.takes(value))
    }
}

/// Every table that can be written in a file of this shape.
pub(super) fn tables(file: &Shape) -> Vec<Table> {
    let mut tables = Vec::new();
    collect(file, "", WHOLE, &mut tables);
    tables
}

fn collect(shape: &Shape, path: &str, shown: &str, tables: &mut Vec<Table>) {
    match shape {
        Shape::Table(table) => {
            tables.push(Table {
                path: path.to_owned(),
                shown: shown.to_owned(),
                keys: table.keys.iter().map(|it| it.key).collect(),
                shapes: table.keys.iter().map(|it| it.shape.clone()).collect(),
            });
            // The access logs of listeners and routes have the keys of the global one.
            let keys = table.keys.iter();
            for key in keys.filter(|it| path.is_empty() || it.key != "access_log") {
                let (path, shown) = if path.is_empty() {
                    (key.key.to_owned(), header(key.key, &key.shape))
                } else {
                    (
                        format!("{path}.{}", key.key),
                        format!("`{}` of {shown}", key.key),
                    )
                };
                collect(&key.shape, &path, &shown, tables);
            }
        }
        Shape::List(item) => collect(item, path, shown, tables),
        Shape::Map(item) => collect(item, &format!("{path}.NAME"), shown, tables),
        Shape::AnyOf(shapes) => shapes
            .iter()
            .for_each(|it| collect(it, path, shown, tables)),
        _ => {}
    }
}

/// How a table of the whole configuration begins.
fn header(key: &str, shape: &Shape) -> String {
    match shape {
        Shape::List(_) => format!("`[[{key}]]`"),
        Shape::Map(_) => format!("`[{key}.NAME]`"),
        _ => format!("`[{key}]`"),
    }
}

/// Reports every key of the tree that its table does not have. `file` is the shape of
/// the tree.
pub(super) fn check(root: &Node, file: &Shape, report: &mut Report) {
    let mut check = Check {
        file,
        tables: None,
        report,
    };
    check.walk(root, file);
}

struct Check<'a> {
    file: &'a Shape,
    /// All tables: collected for the first unknown key, as most files have none.
    tables: Option<Vec<Table>>,
    report: &'a mut Report,
}

impl Check<'_> {
    fn walk(&mut self, node: &Node, shape: &Shape) {
        match (&node.value, shape) {
            (Value::Table(entries), Shape::Table(table)) => {
                self.check_keys(entries, table);
                for entry in entries {
                    if let Some(key) = table.keys.iter().find(|it| it.key == entry.key) {
                        self.walk(&entry.node, &key.shape);
                    }
                }
            }
            (Value::Table(entries), Shape::Map(item)) => {
                entries.iter().for_each(|it| self.walk(&it.node, item));
            }
            (Value::List(items), Shape::List(item)) => {
                items.iter().for_each(|it| self.walk(it, item));
            }
            (value, Shape::AnyOf(shapes)) => {
                if let Some(shape) = shapes.iter().find(|it| it.takes(value)) {
                    self.walk(node, shape);
                }
            }
            (_, Shape::Recursive(again)) => self.walk(node, &(again.shape)()),
            _ => {}
        }
    }

    /// Reports the keys of `entries` that the table does not have.
    fn check_keys(&mut self, entries: &[TableEntry], table: &TableShape) {
        for entry in entries.iter().filter(|it| !table.has(&it.key)) {
            let tables = self.tables.get_or_insert_with(|| tables(self.file));
            let known: Vec<_> = table.keys.iter().map(|it| it.key).collect();
            let said = explain(entry, entries, table.title, &known, tables);
            let found = self.report.mistake(&entry.key_place, said.title);
            if let Some(help) = said.help {
                found.help(help);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct KeyMessage {
    title: String,
    help: Option<String>,
}

/// The words on one of the `entries` of the table of this title with the keys `known`,
/// of all these tables.
fn explain(
    entry: &TableEntry,
    entries: &[TableEntry],
    title: &str,
    known: &[&str],
    tables: &[Table],
) -> KeyMessage {
    let key = entry.key.as_str();
    let current = tables.iter().find(|it| it.keys == known);
    let current = current.map_or("", |it| it.path.as_str());
    let unknown = |help: String| KeyMessage {
        title: format!("unknown key `{key}` in {title}"),
        help: Some(help),
    };
    let did_you_mean = |key: &str| unknown(format!("did you mean {key}?"));

    if current.is_empty() && is_of_traefik(entry) {
        return unknown(
            "this looks like Traefik: its routers are `[[route]]`, its services \
             `[upstream.NAME]` and its entry points `[[listener]]` here"
                .to_owned(),
        );
    }
    if (HOST_KEYS.contains(&key) || key == "port")
        && let Some(address) = address_in_parts(entries, current)
    {
        return unknown(format!("write address = \"{address}\""));
    }
    let meanings: Vec<_> = peers::meanings(key, current).collect();
    if let Some(advice) = peers::advice_in(key, current) {
        return unknown(advice.to_owned());
    }
    let own = meanings.iter().filter_map(|it| match it {
        Meaning::Key { table, key } if *table == current => Some(*key),
        _ => None,
    });
    let own = own.filter(|it| known.contains(it));
    let own: Vec<_> = own.map(|it| format!("`{it}`")).collect();
    if !own.is_empty() {
        return did_you_mean(&alternatives(&own));
    }
    if let Some(nearest) = nearest(key, known.iter().copied()) {
        return did_you_mean(&format!("`{nearest}`"));
    }
    for meaning in meanings.iter().copied() {
        match meaning {
            // The collector of spans is no part of what proxies have.
            Meaning::Missing(what, meanwhile) if current != "otlp" => {
                return KeyMessage {
                    title: format!("unknown key `{key}` in {title}: {what} not supported yet"),
                    help: (!meanwhile.is_empty()).then(|| meanwhile.to_owned()),
                };
            }
            Meaning::Advice(advice) => return unknown(advice.to_owned()),
            _ => {}
        }
    }
    let mut owners: Vec<_> = tables.iter().filter(|it| it.keys.contains(&key)).collect();
    if owners.iter().any(|it| it.takes(key, &entry.node.value)) {
        owners.retain(|it| it.takes(key, &entry.node.value));
    }
    let owners = owners
        .into_iter()
        .map(|it| (it.path.as_str(), it.shown.clone()));
    if let Some(owners) = nearby(owners.collect(), current) {
        // A key of the whole configuration stands in no table.
        let is_global = owners.contains(WHOLE);
        let is_tables = matches!(entry.node.value, Value::List(_))
            || matches!(key, "listener" | "route" | "upstream");
        let above = match is_global {
            true if is_tables => ": write it on its own, in no other table",
            true => ": write it at the top, before the first `[table]`",
            false => "",
        };
        return unknown(format!("`{key}` is a key of {owners}{above}"));
    }
    let shown = |path: &str| {
        let table = tables.iter().find(|it| it.path == path);
        table.map_or_else(|| format!("`{path}`"), |it| it.shown.clone())
    };
    let meant = meanings.into_iter().filter_map(|it| match it {
        Meaning::Key { table, key } => Some((table, format!("`{key}` of {}", shown(table)))),
        Meaning::Table(path) if path != current => Some((path, shown(path))),
        _ => None,
    });
    match nearby(meant.collect(), current) {
        Some(meant) => unknown(format!("`{key}` is {meant} here")),
        None => unknown(format!("the keys of {title} are {}", known.join(", "))),
    }
}

/// Whether a key of the whole configuration begins the tables of Traefik.
fn is_of_traefik(entry: &TableEntry) -> bool {
    let tables = ["routers", "services", "middlewares"];
    ["http", "tcp", "udp"].contains(&entry.key.as_str())
        && tables.iter().any(|it| entry.node.entry(it).is_some())
}

/// The address of an endpoint that is written as a host and a port.
fn address_in_parts(entries: &[TableEntry], current: &str) -> Option<String> {
    if current != ENDPOINTS {
        return None;
    }
    let value_of = |keys: &[&str]| {
        let found = entries.iter().find(|it| keys.contains(&it.key.as_str()))?;
        match &found.node.value {
            Value::Text(text) => Some(text.clone()),
            Value::Integer(number) => Some(number.to_string()),
            _ => None,
        }
    };
    let host = value_of(&HOST_KEYS)?;
    let address = format!("{host}:{}", value_of(&["port"])?);
    EndpointAddress::from_text(&address).ok().map(|it| it.text)
}

/// Selects texts by their tables: those within the table at `current`, or else around it, or
/// else all. The tables with the shortest path come first.
fn nearby(mut found: Vec<(&str, String)>, current: &str) -> Option<String> {
    let is_within = |inner: &str, outer: &str| {
        let rest = inner.strip_prefix(outer);
        outer.is_empty() || rest.is_some_and(|it| it.is_empty() || it.starts_with('.'))
    };
    found.sort_by_key(|(path, _)| path.matches('.').count());
    if found.iter().any(|(path, _)| is_within(path, current)) {
        found.retain(|(path, _)| is_within(path, current));
    } else if found.iter().any(|(path, _)| is_within(current, path)) {
        found.retain(|(path, _)| is_within(current, path));
    }
    let mut texts: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
    texts.dedup();
    texts.truncate(MOST_TABLES);
    (!texts.is_empty()).then(|| alternatives(&texts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Setting;
    use crate::tree::SourcePlace;
    use crate::written::File;

    /// The help for `key` with this value in the table at `path`.
    fn said_of(path: &str, key: &str, value: Value) -> String {
        let tables = tables(&File::shape());
        let table = tables.iter().find(|it| it.path == path).unwrap();
        let place = SourcePlace {
            source: 0,
            range: 0..0,
        };
        let entry = TableEntry {
            key: key.to_owned(),
            key_place: place.clone(),
            node: Node { place, value },
        };
        let said = explain(
            &entry,
            std::slice::from_ref(&entry),
            "it",
            &table.keys,
            &tables,
        );
        match said.help {
            Some(help) => format!("{}: {help}", said.title),
            None => said.title,
        }
    }

    fn said(path: &str, key: &str) -> String {
        said_of(path, key, Value::Table(Vec::new()))
    }

    #[test]
    fn a_key_of_another_table_names_it() {
        for (path, key, expected) in [
            (
                "",
                "queue",
                "`queue` is a key of `[disk]` or `[upstream.NAME]`",
            ),
            ("", "health", "`health` is a key of `[upstream.NAME]`"),
            ("", "workers", "`workers` is a key of `[server]`"),
            ("", "request_id", "`request_id` is a key of `[[listener]]`"),
            (
                "",
                "bind",
                "`bind` is a key of `[status]` or `[[listener]]`",
            ),
            ("route", "path", "`path` is a key of `match` of `[[route]]`"),
            (
                "listener",
                "queue",
                "`queue` is a key of `[disk]` or `[upstream.NAME]`",
            ),
            (
                "upstream.NAME.pool",
                "retries",
                "`retries` is a key of `[upstream.NAME]`",
            ),
        ] {
            let unknown = format!("unknown key `{key}` in it: {expected}");
            assert_eq!(said(path, key), unknown);
        }
        let said = said_of("route.match", "upstream", Value::Text("app".to_owned()));
        assert!(
            said.ends_with("`upstream` is a key of `[[route]]`"),
            "{said}"
        );
        // Only tables whose key accepts the value are named.
        let said = said_of("upstream.NAME", "path", Value::List(Vec::new()));
        assert!(
            said.ends_with("`path` is a key of `match` of `[[route]]`"),
            "{said}"
        );
    }

    #[test]
    fn a_key_of_another_program_names_the_one_here() {
        for (path, key, expected) in [
            ("route", "proxy_pass", "did you mean `upstream`?"),
            ("upstream.NAME", "server", "did you mean `endpoints`?"),
            ("upstream.NAME", "lb_policy", "did you mean `balance`?"),
            ("listener", "listen", "did you mean `bind`?"),
            (
                "listener",
                "maxconn",
                "`maxconn` is `connections` of `limits` of `[[listener]]` here",
            ),
            (
                "upstream.NAME.endpoints",
                "maxconn",
                "did you mean `max_in_flight`?",
            ),
            ("", "frontend", "`frontend` is `[[listener]]` here"),
            ("", "conf_d", "did you mean `include`?"),
            (
                "",
                "proxy_pass",
                "`proxy_pass` is `upstream` of `[[route]]` here",
            ),
            (
                "",
                "worker_processes",
                "`worker_processes` is `workers` of `[server]` here",
            ),
            (
                "",
                "requestMirrorPolicies",
                "`requestMirrorPolicies` is `mirror` of `[[route]]` here",
            ),
        ] {
            let said = said(path, key);
            assert_eq!(said, format!("unknown key `{key}` in it: {expected}"));
        }
    }

    #[test]
    fn a_lack_is_named() {
        for (path, key, expected) in [
            (
                "route",
                "headers",
                "write `request_headers` for what an endpoint gets",
            ),
            (
                "route.compress",
                "level",
                "write `gzip_level`, `br_level` or `zstd_level`",
            ),
        ] {
            let title = format!("unknown key `{key}` in it: {expected}");
            assert!(said(path, key).starts_with(&title), "{}", said(path, key));
        }
        assert!(said("route.match", "headers").ends_with("did you mean `header`?"));
    }
}
