//! The configuration as written: every option, defined once.
//!
//! The doc comments here are what users read, in the reference page and in
//! the JSON Schema; after changing one, write both anew with `make docs`.

use evenkeel_policy::balance::Balance;

use super::AccessLogFormat;
use super::diagnostics::Report;
use super::quantity::{Size, Span, Timeout};
use super::setting::{Bounded, Map, OneOrMore, Placed, Setting, Shape, options, wrong_type};
use super::tree::{Entry, Node, Value};
use super::value::{
    Bind, Client, EndpointAddress, FieldValue, Host, LogPath, Method, Name, Path, Text, Wanted,
    Workers,
};

options! {
    /// Everything in the file.
    pub struct File as "the configuration" {
        /// Process-wide settings.
        server: Server = Default("{}"),
        /// Where requests are logged: a table, or `true` for one with its
        /// defaults. It holds for every listener that does not say otherwise.
        access_log: AccessLog = Optional("no access log"),
        /// Where clients connect; at least one.
        listener: Vec<Listener> = Default("[]"),
        /// What is done with which request, by one of `upstream`, `answer` and
        /// `redirect`. The first route that matches decides; where none does,
        /// the answer is 404.
        route: Vec<Route> = Default("[]"),
        /// Groups of endpoints, by name.
        upstream: Map<Upstream> = Default("{}"),
    }
}

options! {
    /// Process-wide settings.
    pub struct Server as "the server" {
        /// Number of worker threads.
        workers: Workers = Default("'auto'"),
        /// How long TERM and INT wait for exchanges in flight before the
        /// process ends.
        drain_timeout: Span = Default("'30s'"),
    }
}

options! {
    /// Where and how requests are logged, one line each.
    pub struct AccessLogTable as "the access log" {
        /// The file that lines are appended to; `"-"` is standard output.
        path: LogPath = Default("'-'"),
        /// Layout of a line.
        format: AccessLogFormat = Default("'combined'"),
    }
}

options! {
    /// How the requests of this listener are logged.
    pub struct ListenerAccessLogTable as "the listener's access log" {
        /// The file that lines are appended to; `"-"` is standard output.
        path: LogPath = Optional("as in the global `access_log`"),
        /// Layout of a line.
        format: AccessLogFormat = Optional("as in the global `access_log`"),
    }
}

options! {
    /// Where clients connect.
    pub struct Listener as "a listener" {
        /// The name that logs, counters and routes use.
        name: Name = Optional("`listener-N`, counted from 1"),
        /// Where it listens. Without an address in front of the port it
        /// listens on every IPv4 address; `[::]` is for IPv6.
        bind: Bind = Required,
        /// Length of the kernel's queue of connections not yet accepted; the
        /// kernel may cap it lower.
        backlog: Bounded<1, 1_000_000> = Default("4096"),
        /// Bounds on what a client may send.
        limits: Limits = Default("{}"),
        /// Bounds on how long a client may take.
        timeouts: ClientTimeouts = Default("{}"),
        /// Where its requests are logged: a table, `true` for one with the
        /// global settings or the defaults, `false` for nowhere.
        access_log: ListenerAccessLog = Optional("as in the global `access_log`"),
    }
}

options! {
    /// Bounds on what a client may send.
    pub struct Limits as "the limits of a listener" {
        /// Request line and header fields together, at most 128 KiB; the
        /// answer is 431 above it.
        head: Size = Default("'32KiB'"),
        /// The target of the request (path and query); the answer is 414
        /// above it.
        target: Size = Default("'8KiB'"),
        /// The body of a request; the answer is 413 above it.
        body: Size = Optional("no limit"),
        /// Connections at once, over all workers.
        connections: Bounded<1, 0xFFFF_FFFF> = Optional("no limit"),
    }
}

options! {
    /// Bounds on how long a client may take.
    pub struct ClientTimeouts as "the timeouts of a listener" {
        /// From the first byte of a request's head to its last; the answer is
        /// 408 beyond it.
        head: Timeout = Default("'10s'"),
        /// Longest silence within the body of a request (the answer is 408
        /// beyond it), and longest time during which a client takes nothing
        /// of its response.
        body: Timeout = Default("'30s'"),
        /// Longest time that a connection waits for its next request.
        idle: Timeout = Default("'60s'"),
    }
}

options! {
    /// Which requests, and what answers them.
    pub struct Route as "a route" {
        /// The name that logs use.
        name: Name = Optional("`route-N`, counted from 1"),
        /// What a request must show, all of it; everything where this is left
        /// out.
        r#match: Match = Default("{}"),
        /// Proxy to the upstream of this name.
        upstream: Placed<Text> = Optional(""),
        /// Answer with this, without an upstream.
        answer: Answer = Optional(""),
        /// Redirect there: a URL, or a table.
        redirect: Redirect = Optional(""),
    }
}

options! {
    /// What a request must show. All keys must hold; where a key takes a list,
    /// one item of it is enough.
    pub struct Match as "a match" {
        /// The listener that it came by, by name.
        listener: OneOrMore<Placed<Text>> = Optional("any"),
        /// Its host without port, compared without case. `*.example.com` is
        /// every host below `example.com`, at any depth, but not that itself.
        host: OneOrMore<Host> = Optional("any"),
        /// Its path without query, in normal form: `%61` is `a`, `//` is `/`
        /// and `/x/../` is `/`, while `%2F` is no `/`. `/a` is that path alone; `/a/*` is everything
        /// that begins with `/a/`; elsewhere `*` stands for anything within a
        /// segment and `**` for anything at all; `\*` is a star.
        path: OneOrMore<Path> = Optional("any"),
        /// Its method. `GET` does not stand for `HEAD`.
        method: OneOrMore<Method> = Optional("any"),
        /// Its header fields: name to value, in which `*` stands for anything;
        /// `true` for any value, `false` for none. Of a field that is there
        /// several times, one line is enough.
        header: Map<Wanted> = Default("{}"),
        /// The parameters of its query, written as in `header`.
        query: Map<Wanted> = Default("{}"),
        /// Its cookies, written as in `header`.
        cookie: Map<Wanted> = Default("{}"),
        /// The client's address or network.
        client: OneOrMore<Client> = Optional("any"),
    }
}

options! {
    /// A fixed answer.
    pub struct Answer as "an answer" {
        /// Status code.
        status: Bounded<200, 599> = Default("200"),
        /// The body, as sent.
        body: Text = Default("''"),
        /// Value of `Content-Type`.
        content_type: FieldValue = Default("'text/plain; charset=utf-8'"),
    }
}

options! {
    /// A redirect.
    pub struct RedirectTable as "a redirect" {
        /// Value of `Location`. `$host`, `$path` and `$query` in it stand for
        /// the request's host without port, its path, and its query with a
        /// leading `?` where there is one.
        to: Placed<FieldValue> = Required,
        /// 301, 302, 303, 307 or 308.
        status: Placed<Bounded<301, 308>> = Default("302"),
    }
}

options! {
    /// A named group of endpoints.
    pub struct Upstream as "an upstream" {
        /// How an endpoint is chosen.
        balance: Balance = Default("'round-robin'"),
        /// The endpoints; where there is none, the answer is 503.
        endpoints: Vec<Placed<Endpoint>> = Default("[]"),
        /// Idle connections kept for later exchanges.
        pool: Pool = Default("{}"),
        /// Bounds on how long an attempt may take.
        timeouts: UpstreamTimeouts = Default("{}"),
        /// Further attempts after the first, where HTTP allows them.
        retries: Bounded<0, 100> = Default("2"),
    }
}

options! {
    /// One address of an upstream.
    pub struct EndpointTable as "an endpoint" {
        /// Where to connect. A name is looked up once, when the configuration
        /// is loaded.
        address: Placed<EndpointAddress> = Required,
        /// Share of the traffic relative to the other endpoints; 0 gets none.
        weight: Bounded<0, 1_000_000> = Default("1"),
        /// Most exchanges in flight, over all workers.
        max_in_flight: Bounded<1, 0xFFFF_FFFF> = Optional("no limit"),
    }
}

options! {
    /// Idle connections kept for later exchanges.
    pub struct Pool as "a pool" {
        /// Most idle connections per endpoint and worker; 0 keeps none.
        max_idle: Bounded<0, 1_000_000> = Default("1024"),
        /// How long an idle connection is kept.
        idle_timeout: Timeout = Default("'60s'"),
    }
}

options! {
    /// Bounds on how long an attempt may take.
    pub struct UpstreamTimeouts as "the timeouts of an upstream" {
        /// Establishing a connection; another endpoint is tried then, and the
        /// answer is 502 where none is left.
        connect: Timeout = Default("'1s'"),
        /// From the last byte of the request to the first of the response; the
        /// answer is 504 beyond it.
        first_byte: Timeout = Default("'60s'"),
        /// Longest silence within a response or a tunnel.
        idle: Timeout = Default("'60s'"),
        /// The whole exchange, retries included.
        total: Timeout = Optional("no limit"),
    }
}

/// The global access log.
#[derive(Debug)]
pub enum AccessLog {
    /// None.
    Off,
    /// This.
    On(AccessLogTable),
}

impl Setting for AccessLog {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match node.value {
            Value::Boolean(false) => Some(Self::Off),
            Value::Boolean(true) => AccessLogTable::read(&empty_table(node), report).map(Self::On),
            Value::Table(_) => AccessLogTable::read(node, report).map(Self::On),
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![AccessLogTable::shape(), Shape::Boolean])
    }
}

/// A listener's access log.
#[derive(Debug)]
pub enum ListenerAccessLog {
    /// None.
    Off,
    /// This, over the global one.
    On(ListenerAccessLogTable),
}

impl Setting for ListenerAccessLog {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match node.value {
            Value::Boolean(false) => Some(Self::Off),
            Value::Boolean(true) => {
                ListenerAccessLogTable::read(&empty_table(node), report).map(Self::On)
            }
            Value::Table(_) => ListenerAccessLogTable::read(node, report).map(Self::On),
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![ListenerAccessLogTable::shape(), Shape::Boolean])
    }
}

fn empty_table(node: &Node) -> Node {
    Node {
        place: node.place.clone(),
        value: Value::Table(Vec::new()),
    }
}

/// Defines a value written as a table, or as the text of one key of it.
macro_rules! short_for {
    ($(#[doc = $about:literal])* $name:ident, $table:ident, $key:literal, $text:ty) => {
        $(#[doc = $about])*
        #[derive(Debug)]
        pub struct $name(pub $table);

        impl Setting for $name {
            fn read(node: &Node, report: &mut Report) -> Option<Self> {
                match node.value {
                    Value::Text(_) => $table::read(&table_of($key, node), report).map(Self),
                    Value::Table(_) => $table::read(node, report).map(Self),
                    _ => wrong_type(node, report),
                }
            }

            fn shape() -> Shape {
                Shape::AnyOf(vec![<$text>::shape(), $table::shape()])
            }
        }
    };
}

short_for!(
    /// Where a redirect leads.
    Redirect, RedirectTable, "to", FieldValue
);
short_for!(
    /// An endpoint of an upstream.
    Endpoint, EndpointTable, "address", EndpointAddress
);

/// The table that has only this key, with the value at `node`.
fn table_of(key: &str, node: &Node) -> Node {
    let place = node.place.clone();
    let entry = Entry {
        key: key.to_owned(),
        key_place: place.clone(),
        node: node.clone(),
    };
    Node {
        place,
        value: Value::Table(vec![entry]),
    }
}
