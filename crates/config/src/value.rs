//! The kinds of value that options take: names, addresses, patterns, words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use evenkeel_policy::balance::{Balance, WeightMode};
use evenkeel_policy::health::Initial;
use evenkeel_policy::queue::Discipline;
use evenkeel_policy::route::network::NetworkError;
use evenkeel_policy::route::{HostPattern, Network, PathPattern, PatternError, ValuePattern};
use evenkeel_proto::Scheme;

use super::diagnostics::Report;
use super::regex_like::{self, Foreign};
use super::setting::{Fault, FromText, Resolve, Setting, resolve_to, wrong_type};
use super::shape::{Choice, Shape};
use super::tree::{Node, Value};
use super::{Adopt, BalanceKey, EventFormat, HalfClose, Level};
use evenkeel_net::Address;

/// One of a few words, with the value each stands for.
macro_rules! choice {
    ($(#[doc = $about:literal])* $type:ty { $($word:literal => $value:expr, $help:literal;)* }) => {
        impl Setting for $type {
            fn read(node: &Node, report: &mut Report) -> Option<Self> {
                $crate::value::read_word(node, report, |word| match word {
                    $($word => Some($value),)*
                    _ => None,
                })
            }

            fn shape() -> Shape {
                Shape::Choice(vec![$(Choice { word: $word, help: $help }),*])
            }
        }

        impl $crate::setting::Resolve for $type {
            type Resolved = Self;

            fn resolve(&self) -> Option<Self> {
                Some(Self::clone(self))
            }
        }
    };
}

pub(super) use choice;

/// Reads one of a few words; `find` gives the value that a word stands for.
pub(super) fn read_word<T: Setting>(
    node: &Node,
    report: &mut Report,
    find: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let Value::Text(text) = &node.value else {
        return wrong_type(node, report);
    };
    let value = find(text);
    if value.is_none() {
        let shape = T::shape();
        let words: Vec<_> = shape.choices().iter().map(|it| it.word).collect();
        report
            .mistake(&node.place, format!("unknown word `{text}`"))
            .label(format!("expected {}", shape.words()))
            .propose_word(text, &words);
    }
    value
}

impl Setting for Balance {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        read_word(node, report, Balance::from_word)
    }

    fn shape() -> Shape {
        let choice = |it: &Balance| Choice {
            word: it.word(),
            help: it.help(),
        };
        Shape::Choice(Balance::ALL.iter().map(choice).collect())
    }
}

choice!(WeightMode {
    "default" => WeightMode::Default, "its share of the traffic while none is idle";
    "idle" => WeightMode::Idle, "the number of exchanges below which it counts as idle";
    "peak" => WeightMode::Peak, "the most exchanges that it takes; where all have theirs, a request is refused";
});

choice!(BalanceKey {
    "uri" => BalanceKey::Uri, "the path and the query of the request";
    "client" => BalanceKey::Client, "the address of the client";
});

choice!(Discipline {
    "fifo" => Discipline::Fifo, "who came first";
    "adaptive-lifo" => Discipline::AdaptiveLifo, "who came first; who came last while the queue stands for longer than its target";
    "codel" => Discipline::Codel, "who came first; while the queue stands for longer than its target, who has waited for longer than that is answered at once";
});

choice!(Initial {
    "down" => Initial::Down, "it gets no requests; the first probe decides alone, whatever `rise` and `fall` say";
    "up" => Initial::Up, "it gets requests; the first probe counts as any other";
});

choice!(Adopt {
    "off" => Adopt::Off, "the client's is passed on like any field, and nothing is made of it";
    "keep" => Adopt::Keep, "the client's where it is well-formed, else a new one";
    "new" => Adopt::New, "always a new one; the client's is not passed on";
});

choice!(HalfClose {
    "auto" => HalfClose::Auto, "an HTTP/1.1 client that keeps its connection has left; with HTTP/1.0 or `Connection: close` it has left if it closes later than 100 ms after its request, else it is served";
    "serve" => HalfClose::Serve, "it is served; one that has left holds its slot until its answer comes";
    "abort" => HalfClose::Abort, "it has left";
});

choice!(Scheme {
    "http" => Scheme::Http, "a plain connection";
    "https" => Scheme::Https, "TLS, which a trusted proxy took off";
});

/// A family of fields that tell of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarding {
    XForwarded,
    Forwarded,
    XRealIp,
}

choice!(Forwarding {
    "x-forwarded" => Forwarding::XForwarded, "`X-Forwarded-For`, `-Proto` and `-Host`, and `-Port` where a trusted proxy sent it";
    "forwarded" => Forwarding::Forwarded, "`Forwarded` (RFC 7239)";
    "x-real-ip" => Forwarding::XRealIp, "`X-Real-IP`";
});

choice!(Level {
    "error" => Level::Error, "what keeps the program from its work";
    "warn" => Level::Warn, "what an operator should look at";
    "info" => Level::Info, "changes of state";
    "debug" => Level::Debug, "single probes and the like";
    "trace" => Level::Trace, "what libraries say of their work";
});

choice!(EventFormat {
    "text" => EventFormat::Text, "a line for people, on standard error";
    "json" => EventFormat::Json, "one JSON object a line, on standard error";
    "journald" => EventFormat::Journald, "entries of the systemd journal, with priority and fields";
});

/// Where a collector takes spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl {
    /// Host and port: what to connect to, and the value of `Host`.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

impl FromText for CollectorUrl {
    const FORM: &'static str = "a URL, such as `\"http://127.0.0.1:4318\"`";
    const PATTERN: Option<&'static str> = Some("^http://");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!("`{text}` is no URL of a collector"));
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(match text.starts_with("https://") {
                true => fault.help("only `http` is spoken: send to a collector on this machine, and let that go on with TLS"),
                false => fault.help("write it as in \"http://127.0.0.1:4318\""),
            });
        };
        if !rest.bytes().all(|it| it.is_ascii_graphic() && it != b'#') {
            return Err(fault.help("no spaces, no `#`, and %XX for what is not ASCII"));
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(fault.help(
                "a user and a password go into `headers`, as in authorization = \"Basic …\"",
            ));
        }
        let after_host = &authority[authority.rfind(']').unwrap_or(0)..];
        let authority = match after_host.contains(':') {
            true => authority.to_owned(),
            // The port that is registered for OTLP over HTTP.
            false => format!("{authority}:4318"),
        };
        let (host, port) = authority.rsplit_once(':').unwrap_or_default();
        if !host.is_empty() && port.parse::<u16>().is_err() {
            return Err(fault.help(port_help(port, 1)));
        }
        if host.is_empty() {
            return Err(fault.help("write a host and a port, as in \"http://127.0.0.1:4318\""));
        }
        let path = if matches!(path, "" | "/") {
            "/v1/traces"
        } else {
            path
        };
        Ok(Self {
            authority,
            path: path.to_owned(),
        })
    }
}

/// Number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// One per core.
    Auto,
    /// This many.
    Count(usize),
}

impl Workers {
    const MAX: i64 = 1024;
}

impl Setting for Workers {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::Text(text) if text == "auto" => Some(Self::Auto),
            // The bounds are below what a `usize` holds on every machine.
            Value::Integer(count) if (1..=Self::MAX).contains(count) => {
                Some(Self::Count(*count as usize))
            }
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        let auto = Choice {
            word: "auto",
            help: "one per core",
        };
        Shape::AnyOf(vec![
            Shape::Choice(vec![auto]),
            Shape::Integer {
                min: 1,
                max: Self::MAX,
            },
        ])
    }
}

impl Resolve for Workers {
    type Resolved = usize;

    fn resolve(&self) -> Option<usize> {
        Some(match self {
            Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Workers::Count(count) => *count,
        })
    }
}

resolve_to!(
    Name => String,
    FieldValue => String,
    Text => String,
    Method => String,
    Bind => Address,
    SocketPath => Address,
    StatusRange => RangeInclusive<u16>,
);

/// The name of a listener, a route or an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(pub String);

impl FromText for Name {
    const FORM: &'static str = "a name of letters, digits, `-`, `_` and `.`";
    const PATTERN: Option<&'static str> = Some("^[A-Za-z0-9_.-]+$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if text.is_empty() || !text.bytes().all(allowed) {
            // It ends up in logs and metric labels, unquoted.
            return Err(Fault::new(format!("`{text}` is no name"))
                .help("a name is made of letters, digits, `-`, `_` and `.`"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// A value of a header field: printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldValue(pub String);

impl FromText for FieldValue {
    const FORM: &'static str = "text of printable ASCII characters";
    const PATTERN: Option<&'static str> = Some("^[!-~]([ -~]*[!-~])?$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        if let Some(found) = text.chars().find(|c| !(' '..='~').contains(c)) {
            return Err(
                Fault::new(format!("{found:?} cannot stand in a header field"))
                    .help("only printable ASCII characters can; percent-encode it in a URL"),
            );
        }
        if text.is_empty() || text.trim() != text {
            return Err(Fault::new(
                "the text is empty, or begins or ends with a space",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The name of a header field or a cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldName(pub String);

/// Whether text can be the name of a header field or a cookie (RFC 9110
/// §5.6.2, a token).
pub fn is_token(text: &str) -> bool {
    evenkeel_proto::http1::is_token(text.as_bytes())
}

impl FromText for FieldName {
    const FORM: &'static str = "a name, such as `\"X-User\"`";
    const PATTERN: Option<&'static str> = Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        match is_token(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(
                Fault::new(format!("`{text}` is no name of a field or cookie"))
                    .help("write it without spaces, colons or quotes, as in \"X-User\""),
            ),
        }
    }
}

/// Path and query that a probe asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbePath(pub String);

impl FromText for ProbePath {
    const FORM: &'static str = "a path, such as `\"/healthz\"`";
    const PATTERN: Option<&'static str> = Some(r#"^/[!"$-~]*$"#);

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!("`{text}` is no path to ask for"));
        if text.contains("://") {
            return Err(fault.help("write the path alone; the host goes to `host`"));
        }
        if !text.starts_with('/') {
            return Err(fault.help(format!("a path begins with `/`: \"/{text}\"")));
        }
        match text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            true => Ok(Self(text.to_owned())),
            false => Err(fault.help(
                "it goes into a request line as it is: no spaces, no `#`, and %XX for what is not ASCII",
            )),
        }
    }
}

/// Statuses from one to another, both included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRange(pub RangeInclusive<u16>);

impl StatusRange {
    const FORM: &'static str = "a range of statuses, such as `\"200-399\"`";
}

impl Setting for StatusRange {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let status = |text: &str| {
            text.trim()
                .parse()
                .ok()
                .filter(|it| (200..=599).contains(it))
        };
        let text = match &node.value {
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            _ => return wrong_type(node, report),
        };
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (status(first), status(last)) {
            (Some(first), Some(last)) if first <= last => Some(Self(first..=last)),
            (Some(first), Some(last)) => {
                report
                    .mistake(&node.place, format!("no status is from {first} to {last}"))
                    .help(format!("did you mean \"{last}-{first}\"?"));
                None
            }
            _ => {
                let class = text
                    .strip_suffix("xx")
                    .filter(|it| ["2", "3", "4", "5"].contains(it));
                let help = match class {
                    Some(class) => format!("did you mean \"{class}00-{class}99\"?"),
                    None => "statuses are 200 to 599; write one, or two as in \"200-399\" for all between them".into(),
                };
                report
                    .mistake(&node.place, format!("`{text}` is no status of an answer"))
                    .help(help);
                None
            }
        }
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![
            Shape::Integer { min: 200, max: 599 },
            Shape::Text {
                form: Self::FORM,
                pattern: Some("^[2-5][0-9][0-9](-[2-5][0-9][0-9])?$"),
            },
        ])
    }
}

/// Path of a file that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl FromText for FilePath {
    const FORM: &'static str = "the path of a file";

    fn from_text(text: &str) -> Result<Self, Fault> {
        match text.is_empty() {
            true => Err(Fault::new("the path is empty")),
            false => Ok(Self(PathBuf::from(text))),
        }
    }
}

/// What a file holds, by the end of its name.
pub fn content_type_of(file: &str) -> &'static str {
    let extension = std::path::Path::new(file).extension();
    let extension = extension.map(|it| it.to_string_lossy().to_ascii_lowercase());
    match extension.as_deref() {
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("txt") => "text/plain; charset=utf-8",
        Some("json") => "application/json",
        Some("gif") => "image/gif",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("webp") => "image/webp",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Any text, such as a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(pub String);

impl FromText for Text {
    const FORM: &'static str = "text";

    fn from_text(text: &str) -> Result<Self, Fault> {
        Ok(Self(text.to_owned()))
    }
}

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind(pub Address);

impl FromText for Bind {
    const FORM: &'static str = "an address, such as `\"0.0.0.0:8080\"`, `\"[::]:80\"`, `\":8080\"` or `\"unix:/run/x.sock\"`";
    const SEVERAL: Option<&'static str> =
        Some("an address has a `[[listener]]` of its own: write one for each");

    fn from_text(text: &str) -> Result<Self, Fault> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self(Address::Tcp(address)));
        }
        let fault = Fault::new(format!("`{text}` is no address to listen on"));
        if text.contains("${") || text.contains("{{") || text.contains("{$") {
            return Err(fault.help(
                "no variable is expanded in a value: `--set listener.0.bind=:8080` or \
                 EVENKEEL_LISTENER__0__BIND=:8080 sets it",
            ));
        }
        let mut options = text.split_whitespace().skip(1);
        if text.starts_with("https://") || options.any(|it| matches!(it, "ssl" | "tls" | "crt")) {
            return Err(fault.help(
                "TLS is not supported yet: let a program in front end TLS, and name its \
                 address in `trusted_proxies`",
            ));
        }
        if let Some(meant) = with_brackets(text) {
            return Err(fault.help(format!("did you mean `\"{meant}\"`?")));
        }
        if let Some(port) = text.strip_prefix(':').or_else(|| text.strip_prefix("*:")) {
            return match port.parse() {
                Ok(port) => Ok(Self(Address::Tcp(SocketAddr::new(
                    Ipv4Addr::UNSPECIFIED.into(),
                    port,
                )))),
                Err(_) => Err(fault.help(port_help(port, 0))),
            };
        }
        if text.parse::<u16>().is_ok() {
            return Err(fault.help(format!("did you mean `\":{text}\"`?")));
        }
        if let Some(path) = text.strip_prefix('/') {
            return Err(fault.help(format!("did you mean `\"unix:/{path}\"`?")));
        }
        if text.parse::<IpAddr>().is_ok() {
            return Err(fault.help(format!(
                "the port is missing: \"{}\"",
                with_port(text, 8080)
            )));
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            return Err(fault.help(format!("did you mean `\"127.0.0.1:{port}\"`?")));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
        Err(match is_ip(host) {
            true => fault.help(port_help(port, 0)),
            false if is_like_ipv4(host) => fault.help(IPV4_HELP),
            false => {
                fault.help("write an IP address and a port, as in \"0.0.0.0:8080\" or \":8080\"")
            }
        })
    }
}

const IPV4_HELP: &str = "each of the four numbers of an IPv4 address is 0 to 255";

/// Whether a text is an address as it stands in front of a port.
fn is_ip(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok(),
    }
}

/// An IPv6 address with its port, where the brackets are missing.
fn with_brackets(text: &str) -> Option<String> {
    let (address, port) = text.rsplit_once(':')?;
    let is_port = (2..=5).contains(&port.len()) && port.parse::<u16>().is_ok_and(|it| it > 0);
    let is_address = address.parse::<Ipv6Addr>().is_ok();
    (is_port && is_address).then(|| format!("[{address}]:{port}"))
}

/// Whether a text is nothing but numbers with dots, as no name of a host is.
fn is_like_ipv4(text: &str) -> bool {
    text.contains('.') && text.bytes().all(|it| it.is_ascii_digit() || it == b'.')
}

/// What to write for a port that is none; `min` is the smallest one.
pub(super) fn port_help(port: &str, min: u16) -> String {
    let known = [("http", 80), ("https", 443), ("http-alt", 8080)];
    let is_number = !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit());
    match known
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(port))
    {
        Some((_, number)) => format!("write the port as a number: {number}"),
        None if is_number => format!("the port must be {min} to 65535"),
        None => format!("a port is a number from {min} to 65535"),
    }
}

/// Path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPath(pub Address);

impl FromText for SocketPath {
    const FORM: &'static str =
        "the path of a Unix socket, such as `\"/run/evenkeel/control.sock\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        unix_path(text.strip_prefix("unix:").unwrap_or(text)).map(Self)
    }
}

fn with_port(address: &str, port: u16) -> String {
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

fn unix_path(path: &str) -> Result<Address, Fault> {
    /// Bytes in `sockaddr_un`, the final NUL among them.
    const MAX_LEN: usize = 108;
    if path.is_empty() {
        return Err(Fault::new("the path of the socket is missing")
            .help("write it after `unix:`, as in \"unix:/run/app.sock\""));
    }
    if path.len() >= MAX_LEN {
        let what = format!(
            "the path of the socket is longer than {} bytes",
            MAX_LEN - 1
        );
        return Err(Fault::new(what));
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

/// Where an endpoint is, before its name is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// An address.
    Address(Address),
    /// A name to look up.
    Host {
        /// The name.
        name: String,
        /// The port.
        port: u16,
    },
}

/// An endpoint's address with the text that it was written as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointAddress {
    /// As written.
    pub text: String,
    /// What it means.
    pub destination: Destination,
}

impl FromText for EndpointAddress {
    const FORM: &'static str = "an address, such as `\"10.0.0.1:8080\"`, `\"app.internal:80\"` or `\"unix:/run/app.sock\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let destination = destination(text)?;
        Ok(Self {
            text: text.to_owned(),
            destination,
        })
    }
}

fn destination(text: &str) -> Result<Destination, Fault> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path(path).map(Destination::Address);
    }
    let fault = Fault::new(format!("`{text}` is no address of an endpoint"));
    if let Ok(address) = text.parse::<SocketAddr>() {
        return match address.port() {
            0 => Err(fault.help("nothing can be reached at port 0")),
            _ => Ok(Destination::Address(Address::Tcp(address))),
        };
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        if ["https", "wss", "grpcs"].contains(&scheme) {
            return Err(fault.help(
                "TLS to endpoints is not supported yet: name a port that speaks plain HTTP",
            ));
        }
        if let Some(path) = rest.strip_prefix("unix:") {
            // nginx has the path of the request after a colon.
            let path = path.split(':').next().unwrap_or(path);
            return Err(fault.help(format!("did you mean `\"unix:{path}\"`?")));
        }
        let host = rest.split('/').next().unwrap_or(rest);
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = if host.contains(':') {
            host.to_owned()
        } else {
            with_port(host, 80)
        };
        return Err(fault.help(format!("an endpoint has no scheme or path: \"{host}\"")));
    }
    if let Some(meant) = with_brackets(text) {
        return Err(fault.help(format!("did you mean `\"{meant}\"`?")));
    }
    if let Some((address, options)) = text.split_once(char::is_whitespace)
        && destination(address).is_ok()
    {
        return Err(fault.help(match endpoint_options(options) {
            Some(keys) => format!("write a table: {{ address = \"{address}\"{keys} }}"),
            None => format!("options go into a table: {{ address = \"{address}\", … }}"),
        }));
    }
    if let Some((address, _)) = text.split_once('/')
        && destination(address).is_ok()
    {
        return Err(fault.help(format!("an endpoint has no path: \"{address}\"")));
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(fault.help(format!("the port is missing: \"{}\"", with_port(text, 80))));
    }
    let Some((name, port)) = text.rsplit_once(':') else {
        if text.starts_with('/') {
            return Err(fault.help(format!("did you mean `\"unix:{text}\"`?")));
        }
        return Err(fault.help(format!("the port is missing: \"{text}:80\"")));
    };
    if is_ip(name) {
        return Err(fault.help(port_help(port, 1)));
    }
    if is_like_ipv4(name) {
        return Err(fault.help(IPV4_HELP));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > 253 || !name.bytes().all(allowed) {
        return Err(fault.help("write a host and a port, as in \"10.0.0.1:8080\""));
    }
    match port.parse() {
        Ok(port) if port > 0 => Ok(Destination::Host {
            name: name.to_owned(),
            port,
        }),
        _ => Err(fault.help(port_help(port, 1))),
    }
}

/// The options of a server of nginx or HAProxy as keys of an endpoint's table.
fn endpoint_options(options: &str) -> Option<String> {
    let words = options.split(|it: char| it.is_whitespace() || it == '=');
    let words: Vec<_> = words.filter(|it| !it.is_empty()).collect();
    let mut keys = String::new();
    for pair in words.chunks(2) {
        let [word, value] = pair else { return None };
        let key = match *word {
            "weight" => "weight",
            "maxconn" | "max_conns" => "max_in_flight",
            _ => return None,
        };
        keys.push_str(&format!(", {key} = {}", value.parse::<u32>().ok()?));
    }
    Some(keys)
}

/// A pattern over hosts.
#[derive(Debug)]
pub struct Host(pub HostPattern);

impl FromText for Host {
    const FORM: &'static str = "a host, such as `\"example.com\"` or `\"*.example.com\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        HostPattern::new(text).map(Self).map_err(|error| {
            let fault = Fault::new(format!("`{text}` is no pattern of a host"));
            match error {
                _ if regex_like::kind(text).is_some() => fault.help(format!(
                    "this is a regular expression; here a host is {}",
                    examples(Self::FORM)
                )),
                PatternError::HostWildcard if text == "*" => {
                    fault.help("leave out `host` to match every host")
                }
                PatternError::HostWildcard => {
                    fault.help("a wildcard stands in front, as in \"*.example.com\"")
                }
                _ if text.contains(':') => {
                    fault.help("write the host alone, without a port or scheme")
                }
                _ if !text.is_ascii() => fault.help("write it in its ASCII form (xn--…)"),
                _ => fault.help("write it as in \"example.com\" or \"*.example.com\""),
            }
        })
    }

    fn doubt(text: &str) -> Option<Fault> {
        let fault = Fault::new(format!("no host is `{text}`"));
        if text == "_" {
            return Some(fault.help("leave out `host` to match every host"));
        }
        let domain = text.strip_prefix('.')?;
        Some(fault.help(format!(
            "did you mean \"*.{domain}\", or [\"{domain}\", \"*.{domain}\"]?"
        )))
    }
}

/// A pattern over paths.
#[derive(Debug)]
pub struct Path(pub PathPattern);

impl FromText for Path {
    const FORM: &'static str = "a path, such as `\"/exact\"`, `\"/below/*\"` or `\"**.png\"`";
    const PATTERN: Option<&'static str> = Some(r"^(/|\*\*)[^?#]*$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        PathPattern::new(text).map(Self).map_err(|error| {
            let fault = Fault::new(format!("`{text}` is no pattern of a path"));
            match error {
                _ if regex_like::kind(text).is_some() => {
                    fault.help(format!("this is a regular expression; {}", path_help(text)))
                }
                PatternError::QueryInPath => fault
                    .help("a path has no query; match that with `query = { name = \"value\" }`"),
                PatternError::TooLong => fault.help(too_long()),
                _ if text.starts_with('*') => fault.help(format!(
                    "`*` stays within a segment, `**` crosses `/`: did you mean `\"*{text}\"`?"
                )),
                _ => fault.help(format!("a path begins with `/`: \"/{text}\"")),
            }
        })
    }

    fn doubt(text: &str) -> Option<Fault> {
        let what = match regex_like::kind(text)? {
            Foreign::Regex => format!("`{text}` looks like a regular expression"),
            Foreign::Placeholder => format!("the placeholder in `{text}` stands for itself"),
        };
        Some(Fault::new(what).help(path_help(text)))
    }
}

/// What to write for a path as other programs have it.
fn path_help(text: &str) -> String {
    let paths = regex_like::as_paths(text);
    let proposed = paths.iter().map(|it| format!("\"{it}\""));
    let proposed: Vec<_> = proposed.collect();
    let meant = match &proposed[..] {
        [] => String::new(),
        [only] => format!(": did you mean {only}?"),
        all => format!(": did you mean [{}]?", all.join(", ")),
    };
    format!("here a path is {}{meant}", examples(Path::FORM))
}

/// The examples of a form, without marks of code.
fn examples(form: &str) -> String {
    let examples = form.split_once("such as ").map_or(form, |(_, it)| it);
    examples.replace('`', "")
}

fn too_long() -> String {
    let len = evenkeel_policy::route::Glob::MAX_LEN;
    format!("a pattern with wildcards has at most {len} other characters")
}

/// The methods that clients use most (RFC 9110 §9).
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT",
];

/// A method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method(pub String);

impl FromText for Method {
    const FORM: &'static str = "a method, such as `\"GET\"`";
    const PATTERN: Option<&'static str> = Some("^[A-Z][A-Z0-9_-]*$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let letters =
            |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_uppercase());
        let allowed =
            |it: u8| it.is_ascii_uppercase() || it.is_ascii_digit() || b"-_".contains(&it);
        if text.get(..1).is_some_and(letters) && text.bytes().all(allowed) {
            return Ok(Self(text.to_owned()));
        }
        let fault = Fault::new(format!("`{text}` is no method"));
        let upper = text.to_ascii_uppercase();
        let several: Vec<_> = upper
            .split(|it: char| it.is_whitespace() || ['|', ','].contains(&it))
            .filter(|it| !it.is_empty())
            .collect();
        if several.len() > 1 && several.iter().all(|it| METHODS.contains(it)) {
            let several: Vec<_> = several.iter().map(|it| format!("\"{it}\"")).collect();
            return Err(fault.help(format!("write a list: [{}]", several.join(", "))));
        }
        Err(match letters(&upper) {
            true => fault.help(format!("methods are upper case: \"{upper}\"")),
            false => fault.help("write it as in \"GET\""),
        })
    }
}

/// A network of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client(pub Network);

impl FromText for Client {
    const FORM: &'static str = "an address or network, such as `\"10.0.0.0/8\"` or `\"::1\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        text.parse().map(Self).map_err(|error| {
            let fault = Fault::new(format!("`{text}` is no address or network"));
            match error {
                NetworkError::Address => match networks_between(text) {
                    Some(networks) => fault.help(format!("write networks: [{networks}]")),
                    None => fault.help("write it as in \"10.0.0.1\" or \"10.0.0.0/8\""),
                },
                NetworkError::PrefixLen => fault
                    .help("after `/` stands the number of bits: at most 32 for IPv4, 128 for IPv6"),
            }
        })
    }

    fn doubt(text: &str) -> Option<Fault> {
        let (address, _) = text.split_once('/')?;
        let address = address.parse::<IpAddr>().ok()?.to_canonical();
        let network = text.parse::<Network>().ok()?.to_string();
        let first = network.split('/').next()?.parse::<IpAddr>().ok()?;
        (first != address).then(|| {
            Fault::new(format!("`{text}` is the whole network `{network}`")).help(format!(
                "write \"{network}\" for the network, \"{address}\" for the one address"
            ))
        })
    }
}

/// The networks that a range of IPv4 addresses is made of, as items of a list.
fn networks_between(text: &str) -> Option<String> {
    /// A longer list was hardly meant.
    const MOST: usize = 8;
    let (first, last) = text.split_once('-')?;
    let number = |it: &str| it.trim().parse::<Ipv4Addr>().ok().map(u32::from);
    let (mut next, last) = (u64::from(number(first)?), u64::from(number(last)?));
    let mut networks = Vec::new();
    while next <= last {
        let aligned = next.trailing_zeros().min(32);
        let bits = aligned.min((last - next + 1).ilog2());
        let address = Ipv4Addr::from(u32::try_from(next).ok()?);
        networks.push(format!("\"{address}/{}\"", 32 - bits));
        next += 1 << bits;
    }
    (1..=MOST)
        .contains(&networks.len())
        .then(|| networks.join(", "))
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// An address in this network.
    In(Network),
    /// Anybody on a Unix socket.
    Unix,
}

impl FromText for Peer {
    const FORM: &'static str =
        "an address or network, such as `\"10.0.0.0/8\"` or `\"::1\"`, or `\"unix\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = || Fault::new(format!("`{text}` is no address or network"));
        match text {
            "unix" => Ok(Self::Unix),
            "*" | "all" | "any" => Err(fault().help(
                "name the proxies in front, as in \"10.0.0.0/8\": with all addresses any \
                 client could claim any address",
            )),
            "private_ranges" | "private" => Err(fault().help(
                "write the networks: [\"10.0.0.0/8\", \"172.16.0.0/12\", \"192.168.0.0/16\", \
                 \"127.0.0.0/8\", \"fd00::/8\", \"::1\"]",
            )),
            "localhost" => Err(fault().help("write [\"127.0.0.1\", \"::1\"]")),
            _ => match text.parse() {
                Ok(network) => Ok(Self::In(network)),
                Err(NetworkError::Address) if networks_between(text).is_some() => {
                    Client::from_text(text).map(|it| Self::In(it.0))
                }
                Err(NetworkError::Address) => Err(fault().help(
                    "write it as in \"10.0.0.0/8\"; \"unix\" is every peer on a Unix socket",
                )),
                Err(NetworkError::PrefixLen) => Client::from_text(text).map(|it| Self::In(it.0)),
            },
        }
    }

    fn doubt(text: &str) -> Option<Fault> {
        Client::doubt(text)
    }
}

/// What a header, parameter or cookie must be.
#[derive(Debug)]
pub struct Wanted(pub ValuePattern);

impl Setting for Wanted {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let pattern = match &node.value {
            Value::Boolean(true) => ValuePattern::Present,
            Value::Boolean(false) => ValuePattern::Absent,
            Value::Text(text) => match ValuePattern::new(text) {
                Ok(pattern) => pattern,
                Err(_) => {
                    report
                        .mistake(&node.place, "the pattern is too long")
                        .help(too_long());
                    return None;
                }
            },
            // A plain number is plainly meant as its text.
            Value::Integer(number) => ValuePattern::Exact(number.to_string().into_bytes()),
            _ => return wrong_type(node, report),
        };
        Some(Self(pattern))
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![
            Shape::Text {
                form: "text in which `*` stands for anything",
                pattern: None,
            },
            Shape::Integer {
                min: 0,
                max: i64::MAX,
            },
            Shape::Boolean,
        ])
    }
}
