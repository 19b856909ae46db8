//! What a route asks of a request: the keys of `match`.
//!
//! Each key is a row of the table below: its help, its type, what holds without it,
//! and how a value becomes conditions of the policy.

use evenkeel_policy::route::condition::{self, AllOf, Condition, ValuePattern};
use evenkeel_proto::Scheme;

use super::super::chance::Chance;
use super::super::diagnostics::Report;
use super::super::reserved::HeaderName;
use super::super::setting::{Field, Map, OneOrMore, Placed, Setting, options};
use super::super::shape::{Again, Shape};
use super::super::tree::Node;
use super::super::value::{
    Beginning, ClientItem, Host, Method, OrRegex, Path, Text, WantedValue, Window,
};
use super::names::Names;

/// Defines the keys of `match` as options, and how they become conditions.
macro_rules! conditions {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident as $title:literal {
            $(
                $(#[doc = $help:literal])*
                $key:ident: $type:ty = $presence:ident($default:literal) => $compile:expr,
            )*
        }
    ) => {
        options! {
            $(#[doc = $about])*
            pub struct $name as $title {
                $(
                    $(#[doc = $help])*
                    $key: $type = $presence($default),
                )*
            }
        }

        impl $name {
            /// All that it asks; `None` where something in it is mistaken.
            pub(in super::super) fn conditions(&self, names: &Names<'_>) -> Option<Vec<Condition>> {
                let mut conditions = Vec::new();
                $(
                    let compile: fn(&$type, &Names<'_>) -> Option<Vec<Condition>> = $compile;
                    if let Some(value) = &self.$key.value {
                        conditions.extend(compile(value, names)?);
                    }
                )*
                Some(conditions)
            }

            /// Whether there is no condition in it.
            pub(in super::super) fn takes_everything(&self) -> bool {
                $( asks_nothing(&self.$key) )&&*
            }
        }
    };
}

conditions! {
    /// What a request must show. All keys must hold; where a key takes a list,
    /// one item of it is enough.
    pub struct Match as "a match" {
        /// The listener that it came by, by name.
        listener: OneOrMore<Placed<Text>> = Optional("any") => listener,
        /// Its host without port, compared without case. `*.example.com` is
        /// every host below `example.com`, at any depth, but not that itself.
        /// `{ regex = "^api[0-9]+\\." }` is every host in which a regular expression is
        /// found.
        host: OneOrMore<OrRegex<Host>> = Optional("any") => |hosts, _| items(hosts, |it| it.0.0.clone(), condition::Host),
        /// Its path without query, in normal form: `%61` is `a`, `%40` is `@`,
        /// `//` is `/` and `/x/../` is `/`. `/a` is that path alone; `/a/*` is
        /// everything that begins with `/a/`; elsewhere `*` stands for anything
        /// within a segment and `**` for anything at all; `\*` is a star.
        /// `{ regex = "^/u/(?<id>[0-9]+)$" }` is every path in whose normal form a regular
        /// expression is found: without `^` anywhere in it. Servers
        /// disagree on `%2F`, `\`, `%5C`, `;parameters`, `//` and dot segments:
        /// where a reading of the path finds another route, the answer is 400
        /// `ambiguous-path`.
        path: OneOrMore<OrRegex<Path>> = Optional("any") => |paths, _| items(paths, |it| it.0.0.clone(), condition::Path),
        /// Its method, compared without case, as some servers do. `GET` does not
        /// stand for `HEAD`.
        method: OneOrMore<Method> = Optional("any") => |methods, _| items(methods, |it| it.0.clone(), condition::Method),
        /// Its header fields: name to value, in which `*` stands for anything;
        /// `true` for any value, `false` for none, `{ regex = "…" }` for one in which a
        /// regular expression is found. Of a field that is there
        /// several times, one line is enough. Some servers read `X_User` as
        /// `X-User`, so both are one field here.
        header: Map<HeaderName, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Header { name, value }),
        /// The parameters of its query, written as in `header`.
        query: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Query { name, value }),
        /// Its cookies, written as in `header`.
        cookie: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Cookie { name, value }),
        /// The server that a client of TLS names (SNI), written as in `host`. On a
        /// listener of TCP, TLS is not ended for it.
        sni: OneOrMore<OrRegex<Host>> = Optional("any") => |names, _| items(names, |it| it.0.0.clone(), condition::Sni),
        /// A protocol that a client of TLS offers (ALPN), such as `h2`. This is for
        /// listeners of TCP.
        alpn: OneOrMore<Text> = Optional("any") => |names, _| items(names, |it| it.0.clone(), condition::Alpn),
        /// What the client sends first, such as `SSH-`. A client that sends nothing
        /// within the listener's `timeouts.first_bytes` waits for the server to begin:
        /// it takes a route without this condition. This is for listeners of TCP.
        first_bytes: OneOrMore<Beginning> = Optional("any") => |texts, _| items(texts, |it| it.0.clone(), condition::FirstBytes),
        /// The client's address or network. `{ file = "nets.txt" }` is a file of them, with
        /// one a line; `#` begins a comment. The file is read again when it changes.
        client: OneOrMore<ClientItem> = Optional("any") => client,
        /// The certificate that the client has shown over TLS, by one of its identities:
        /// `"dns:a.example.com"`, `"uri:spiffe://…"`, `"email:…"`, `"ip:…"`,
        /// `"subject:CN=…"`, `"issuer:CN=…"`, `"serial:…"` or `"sha256:…"`, its
        /// fingerprint. `*` stands for anything; `true` for any certificate, `false` for
        /// none. The listener asks for one by `tls.client`.
        client_certificate: OneOrMore<WantedValue> = Optional("any") => |wanted, _| items(wanted, |it| it.0.clone(), condition::ClientCertificate),
        /// The scheme of the URL that the client asked for. That is `http`, unless
        /// the listener has `tls`, or one of the `trusted_proxies` says otherwise.
        scheme: Scheme = Optional("any") => |scheme, _| Some(vec![condition::Scheme(scheme.as_str()).into()]),
        /// The time of day: `"22:00-06:00"` goes over midnight. Days stand in front, as
        /// in `"mon-fri 08:00-18:00"` or `"sat,sun 10:00-16:00"`: those on which it
        /// begins. `UTC` or the name of a zone stands behind, as in `"08:00-18:00
        /// Europe/Berlin"`. Without one it is the time of the machine.
        time: OneOrMore<Window> = Optional("any") => |windows, _| items(windows, |it| it.0.clone(), condition::Time),
        /// A random share of the requests, drawn anew for each: `0.1` is one in ten. Of
        /// connections of TCP it is a share of these.
        share: Chance = Optional("all") => |chance, _| Some(chance.condition()),
        /// Further tables as in `match`: one of them must hold.
        any: OneOrMore<Nested> = Optional("none") => |tables, names| Some(vec![condition::Any(alternatives(tables, names)?).into()]),
        /// Further tables as in `match`: all of them must hold. That is for a key that is
        /// asked twice.
        all: OneOrMore<Nested> = Optional("none") => all,
        /// Further tables as in `match`: none of them may hold.
        not: OneOrMore<Nested> = Optional("none") => |tables, names| Some(vec![condition::Not(alternatives(tables, names)?).into()]),
    }
}

/// A match in a match.
#[derive(Debug)]
pub struct Nested(pub Box<Match>);

impl Setting for Nested {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        Match::read(node, report).map(|it| Self(Box::new(it)))
    }

    fn shape() -> Shape {
        Shape::Again(Again {
            shape: Match::shape,
            words: "a table as in `match`",
            pointer: "#/properties/route/items/properties/match",
        })
    }
}

impl Match {
    /// The matches that stand in it, with the key of each.
    pub(in super::super) fn nested(&self) -> impl Iterator<Item = (&'static str, &Match)> {
        let fields = [("any", &self.any), ("all", &self.all), ("not", &self.not)];
        fields.into_iter().flat_map(|(key, field)| {
            let tables = field.value.iter().flat_map(|it| &it.0);
            tables.map(move |it| (key, &*it.0))
        })
    }

    /// It and all that stand in it, at any depth.
    pub(in super::super) fn each(&self) -> Vec<&Match> {
        let mut found = vec![self];
        let mut at = 0;
        while let Some(next) = found.get(at).copied() {
            found.extend(next.nested().map(|(_, it)| it));
            at += 1;
        }
        found
    }
}

conditions! {
    /// What a request shows that goes past the cache: all of it. Where a key takes a
    /// list, one item of it is enough.
    pub struct Bypass as "a bypass" {
        /// Its header fields, written as in `match`.
        header: Map<HeaderName, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Header { name, value }),
        /// The parameters of its query, written as in `match`.
        query: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Query { name, value }),
        /// Its cookies, written as in `match`.
        cookie: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Cookie { name, value }),
        /// The client's address or network, or a file of them, as in `match`.
        client: OneOrMore<ClientItem> = Optional("any") => client,
    }
}

/// A value that may ask for nothing although it is written.
trait Asking {
    fn asks_nothing(&self) -> bool {
        false
    }
}

impl<T> Asking for OneOrMore<T> {}

impl Asking for Scheme {}

impl Asking for Chance {}

impl<K, T> Asking for Map<K, T> {
    fn asks_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

fn asks_nothing<T: Asking>(field: &Field<T>) -> bool {
    match &field.value {
        Some(value) => value.asks_nothing(),
        // What is mistaken may be meant to ask something.
        None => !field.written,
    }
}

fn listener(wanted: &OneOrMore<Placed<Text>>, names: &Names<'_>) -> Option<Vec<Condition>> {
    let indexes = wanted.0.iter().map(|it| names.listener(&it.value.0));
    let indexes = indexes.collect::<Option<_>>()?;
    Some(vec![condition::Listener(indexes).into()])
}

fn client(wanted: &OneOrMore<ClientItem>, names: &Names<'_>) -> Option<Vec<Condition>> {
    Some(vec![clients(wanted.0.iter(), names)?.into()])
}

/// The clients that these items name.
pub(crate) fn clients<'a>(
    items: impl Iterator<Item = &'a ClientItem>,
    names: &Names<'_>,
) -> Option<condition::Client> {
    let (mut networks, mut files) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            ClientItem::In(network) => networks.push(*network),
            ClientItem::File(path) => files.push(names.network_file(&path.value.0)?),
        }
    }
    Some(condition::Client::new(networks, files))
}

/// Conditions that must all hold stand beside those of the match that they are in.
fn all(tables: &OneOrMore<Nested>, names: &Names<'_>) -> Option<Vec<Condition>> {
    let each = tables.0.iter().map(|it| it.0.conditions(names));
    let each: Vec<_> = each.collect::<Option<_>>()?;
    Some(each.into_iter().flatten().collect())
}

fn alternatives(tables: &OneOrMore<Nested>, names: &Names<'_>) -> Option<Vec<AllOf>> {
    let each = tables.0.iter().map(|it| it.0.conditions(names));
    each.map(|it| it.map(AllOf::new)).collect()
}

/// A condition on a list of items.
fn items<T, U, C: Into<Condition>>(
    list: &OneOrMore<T>,
    item: impl Fn(&T) -> U,
    condition: impl Fn(Vec<U>) -> C,
) -> Option<Vec<Condition>> {
    let items = list.0.iter().map(item).collect();
    Some(vec![condition(items).into()])
}

/// A condition for each name of a map.
fn named<K, C: Into<Condition>>(
    map: &Map<K, WantedValue>,
    condition: impl Fn(String, ValuePattern) -> C,
) -> Option<Vec<Condition>> {
    let pairs = map.0.iter().map(|it| {
        let value = it.value.as_ref()?.0.clone();
        Some(condition(it.name.clone(), value).into())
    });
    pairs.collect()
}
