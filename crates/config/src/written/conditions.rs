//! Conditions of a route on a request: the keys of `match`.
//!
//! Each key is a row of the table below: its help, its type, its default, and how a value
//! becomes conditions of the policy.

use evenkeel_policy::route::condition::{self, AllOf, Condition, ValuePattern};
use evenkeel_proto::Scheme;

use super::super::chance::Chance;
use super::super::diagnostics::Report;
use super::super::reserved::HeaderName;
use super::super::setting::{Field, Map, OneOrMore, Placed, Setting, options};
use super::super::shape::{Recursive, Shape};
use super::super::tree::Node;
use super::super::value::{
    Beginning, ClientItem, Host, Method, OrRegex, Path, Text, WantedValue, Window,
};
use super::names::Names;

/// Defines the keys of `match` as options, and their translation into conditions.
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
            /// All its conditions; `None` if one of its values has a mistake.
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

            /// Whether it has no conditions.
            pub(in super::super) fn takes_everything(&self) -> bool {
                $( asks_nothing(&self.$key) )&&*
            }
        }
    };
}

conditions! {
    /// The conditions on a request. All keys must hold; where a key takes a list, one item of
    /// the list is enough.
    pub struct Match as "a match" {
        /// The listener that the request came by, by name.
        listener: OneOrMore<Placed<Text>> = Optional("any") => listener,
        /// The host of the request without port, compared without case. `*.example.com` is
        /// every host below `example.com`, at any depth, but not `example.com` itself. `{ regex
        /// = "^api[0-9]+\\." }` is every host in which the regular expression is found.
        host: OneOrMore<OrRegex<Host>> = Optional("any") => |hosts, _| items(hosts, |it| it.0.0.clone(), condition::Host),
        /// The path of the request without query, in normal form: `%61` is `a`, `%40` is `@`,
        /// `//` is `/` and `/x/../` is `/`. `/a` is that path alone; `/a/*` is every path that
        /// begins with `/a/`. Elsewhere `*` stands for any characters within a segment, `**`
        /// for any characters at all, and `\*` for a star. `{ regex = "^/u/(?<id>[0-9]+)$" }`
        /// is every path in whose normal form the regular expression is found: without `^` it
        /// may be found anywhere. Servers disagree on `%2F`, `\`, `%5C`, `;parameters`, `//`
        /// and dot segments. If another reading of the path finds another route, the answer is
        /// 400 `ambiguous-path`.
        path: OneOrMore<OrRegex<Path>> = Optional("any") => |paths, _| items(paths, |it| it.0.0.clone(), condition::Path),
        /// The method of the request, compared without case, as some servers do. `GET` does not
        /// stand for `HEAD`.
        method: OneOrMore<Method> = Optional("any") => |methods, _| items(methods, |it| it.0.clone(), condition::Method),
        /// The header fields of the request: name to value, in which `*` stands for any
        /// characters. `true` is any value, `false` no such field, and `{ regex = "…" }` a
        /// value in which the regular expression is found. If a field is there several times,
        /// one matching line is enough. Some servers read `X_User` as `X-User`, so both are the
        /// same field here.
        header: Map<HeaderName, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Header { name, value }),
        /// The query parameters of the request, written as in `header`.
        query: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Query { name, value }),
        /// The cookies of the request, written as in `header`.
        cookie: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Cookie { name, value }),
        /// The server name that a TLS client asks for (SNI), written as in `host`. A listener
        /// of TCP reads it without ending TLS.
        sni: OneOrMore<OrRegex<Host>> = Optional("any") => |names, _| items(names, |it| it.0.0.clone(), condition::Sni),
        /// A protocol that a TLS client offers (ALPN), such as `h2`. For listeners of TCP.
        alpn: OneOrMore<Text> = Optional("any") => |names, _| items(names, |it| it.0.clone(), condition::Alpn),
        /// The first bytes that the client sends, such as `SSH-`. For listeners of TCP. If a
        /// client sends nothing within the listener's `timeouts.first_bytes`, it is taken to
        /// wait for the server's first bytes: it gets a route without this condition.
        first_bytes: OneOrMore<Beginning> = Optional("any") => |texts, _| items(texts, |it| it.0.clone(), condition::FirstBytes),
        /// The client's address or network. `{ file = "nets.txt" }` is a file of them, one a
        /// line; `#` begins a comment. The file is read again when it changes.
        client: OneOrMore<ClientItem> = Optional("any") => client,
        /// The certificate that the client has shown over TLS, by one of its identities:
        /// `"dns:a.example.com"`, `"uri:spiffe://…"`, `"email:…"`, `"ip:…"`, `"subject:CN=…"`,
        /// `"issuer:CN=…"`, `"serial:…"` or its fingerprint `"sha256:…"`. `*` stands for any
        /// characters. `true` is any certificate, `false` none. The listener must ask for
        /// certificates: see `tls.client`.
        client_certificate: OneOrMore<WantedValue> = Optional("any") => |wanted, _| items(wanted, |it| it.0.clone(), condition::ClientCertificate),
        /// The scheme of the URL that the client asked for. It is `http`, unless the listener
        /// has `tls` or one of the `trusted_proxies` says otherwise.
        scheme: Scheme = Optional("any") => |scheme, _| Some(vec![condition::Scheme(scheme.as_str()).into()]),
        /// The time of day: `"22:00-06:00"` goes over midnight. Days may stand in front, as in
        /// `"mon-fri 08:00-18:00"` or `"sat,sun 10:00-16:00"`: the days on which the window
        /// begins. `UTC` or the name of a time zone may stand behind, as in `"08:00-18:00
        /// Europe/Berlin"`. Without one, the machine's time zone counts.
        time: OneOrMore<Window> = Optional("any") => |windows, _| items(windows, |it| it.0.clone(), condition::Time),
        /// A random share of the requests, drawn again for each: `0.1` is one in ten. Over TCP
        /// it is a share of the connections.
        share: Chance = Optional("all") => |chance, _| Some(chance.condition()),
        /// Further tables as in `match`: one of them must hold.
        any: OneOrMore<Nested> = Optional("none") => |tables, names| Some(vec![condition::Any(alternatives(tables, names)?).into()]),
        /// Further tables as in `match`: all of them must hold. Use it to ask for one key
        /// twice.
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
        Shape::Recursive(Recursive {
            shape: Match::shape,
            words: "a table as in `match`",
            pointer: "#/properties/route/items/properties/match",
        })
    }
}

impl Match {
    /// The matches directly inside it, with the key of each.
    pub(in super::super) fn nested(&self) -> impl Iterator<Item = (&'static str, &Match)> {
        let fields = [("any", &self.any), ("all", &self.all), ("not", &self.not)];
        fields.into_iter().flat_map(|(key, field)| {
            let tables = field.value.iter().flat_map(|it| &it.0);
            tables.map(move |it| (key, &*it.0))
        })
    }

    /// This match and all matches inside it, at any depth.
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
    /// The requests that bypass the cache. All keys must hold; where a key takes a list, one
    /// item of the list is enough.
    pub struct Bypass as "a bypass" {
        /// The header fields of the request, written as in `match`.
        header: Map<HeaderName, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Header { name, value }),
        /// The query parameters of the request, written as in `match`.
        query: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Query { name, value }),
        /// The cookies of the request, written as in `match`.
        cookie: Map<Text, WantedValue> = Default("{}") => |map, _| named(map, |name, value| condition::Cookie { name, value }),
        /// The client's address or network, or a file of them, as in `match`.
        client: OneOrMore<ClientItem> = Optional("any") => client,
    }
}

/// A value that may be written and still set no condition.
trait ConditionValue {
    fn asks_nothing(&self) -> bool {
        false
    }
}

impl<T> ConditionValue for OneOrMore<T> {}

impl ConditionValue for Scheme {}

impl ConditionValue for Chance {}

impl<K, T> ConditionValue for Map<K, T> {
    fn asks_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

fn asks_nothing<T: ConditionValue>(field: &Field<T>) -> bool {
    match &field.value {
        Some(value) => value.asks_nothing(),
        // The mistaken value may be meant to set a condition.
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

/// Conditions of `all` simply join those of the match that it is in.
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
