//! One thing that a rule asks of a request.

use super::network::Network;
use super::path::decode_pair;
use super::pattern::{self, Glob, HostPattern, PathPattern, PatternError, Star};
use super::{Facts, Request};

/// One thing that a rule asks of a request. Where it holds a list, one item
/// of the list is enough.
#[derive(Debug)]
pub enum Condition {
    /// The connection came by one of these listeners, by index.
    Listener(Vec<usize>),
    /// The host matches.
    Host(Vec<HostPattern>),
    /// The normal form of the path matches.
    Path(Vec<PathPattern>),
    /// The method is one of these.
    ///
    /// Deviation: methods have a case (RFC 9110 section 9.1), but some endpoints
    /// take `delete` for `DELETE`. A rule on one is a rule on both.
    Method(Vec<String>),
    /// The client's address lies in one of these networks.
    Client(Vec<Network>),
    /// The client asked by this scheme: `http` or `https`.
    Scheme(&'static str),
    /// A field of this name, or of one that endpoints take for it. The lines of
    /// all of them count as lines of one field.
    Header {
        /// Name of the field.
        name: String,
        /// What one of its lines must be.
        value: ValuePattern,
    },
    /// A parameter of the query, percent-decoded and with `+` for a space.
    Query {
        /// Name of the parameter.
        name: String,
        /// What one of its values must be.
        value: ValuePattern,
    },
    /// A cookie.
    Cookie {
        /// Name of the cookie.
        name: String,
        /// What one of its values must be.
        value: ValuePattern,
    },
}

impl Condition {
    /// Order in which a rule asks: what is cheap to tell goes first.
    pub(super) fn cost(&self) -> u8 {
        match self {
            Self::Listener(_) | Self::Scheme(_) => 0,
            Self::Method(_) => 1,
            Self::Host(_) => 2,
            Self::Client(_) => 3,
            Self::Path(_) => 4,
            Self::Query { .. } => 5,
            Self::Header { .. } => 6,
            Self::Cookie { .. } => 7,
        }
    }

    pub(super) fn holds<F: Facts>(&self, request: &Request<'_, F>) -> bool {
        let facts = request.facts;
        match self {
            Self::Listener(indexes) => indexes.contains(&facts.listener()),
            Self::Host(patterns) => patterns.iter().any(|it| it.matches(facts.host())),
            Self::Path(patterns) => patterns.iter().any(|it| it.matches(request.path())),
            Self::Method(methods) => {
                let is_sent = |it: &String| facts.method().eq_ignore_ascii_case(it.as_bytes());
                methods.iter().any(is_sent)
            }
            Self::Client(networks) => {
                let client = facts.client();
                networks.iter().any(|it| it.contains(client))
            }
            Self::Scheme(scheme) => facts.scheme() == *scheme,
            Self::Header { name, value } => {
                value.accepts(facts.fields(name).map(|it| it.trim_ascii().iter().copied()))
            }
            Self::Query { name, value } => value.accepts(parameters(facts.query(), name)),
            Self::Cookie { name, value } => {
                let lines = facts.fields("cookie");
                value.accepts(lines.flat_map(|line| cookies(line, name)))
            }
        }
    }
}

/// For an explanation.
impl Condition {
    /// What of a request it looks at, as the configuration names it: `host`,
    /// `header x-user`.
    pub fn subject(&self) -> String {
        match self {
            Self::Listener(_) => "listener".into(),
            Self::Host(_) => "host".into(),
            Self::Path(_) => "path".into(),
            Self::Method(_) => "method".into(),
            Self::Client(_) => "client".into(),
            Self::Scheme(_) => "scheme".into(),
            Self::Header { name, .. } => format!("header {name}"),
            Self::Query { name, .. } => format!("query {name}"),
            Self::Cookie { name, .. } => format!("cookie {name}"),
        }
    }

    /// What it asks for, one of these; listeners by their index.
    pub fn wanted(&self) -> Vec<String> {
        let texts = |items: &mut dyn Iterator<Item = String>| items.collect();
        match self {
            Self::Listener(indexes) => texts(&mut indexes.iter().map(usize::to_string)),
            Self::Host(patterns) => texts(&mut patterns.iter().map(HostPattern::to_string)),
            Self::Path(patterns) => texts(&mut patterns.iter().map(PathPattern::to_string)),
            Self::Method(methods) => methods.clone(),
            Self::Client(networks) => texts(&mut networks.iter().map(Network::to_string)),
            Self::Scheme(scheme) => vec![(*scheme).into()],
            Self::Header { value, .. } | Self::Query { value, .. } | Self::Cookie { value, .. } => {
                vec![value.wanted()]
            }
        }
    }

    /// What the request has of that; nothing where it has none.
    pub(super) fn found<F: Facts>(&self, request: &Request<'_, F>) -> Vec<Vec<u8>> {
        let facts = request.facts;
        match self {
            Self::Listener(_) => vec![facts.listener().to_string().into()],
            Self::Host(_) => vec![facts.host().to_vec()],
            Self::Path(_) => vec![request.path().to_vec()],
            Self::Method(_) => vec![facts.method().to_vec()],
            Self::Client(_) => vec![facts.client().to_string().into()],
            Self::Scheme(_) => vec![facts.scheme().into()],
            Self::Header { name, .. } => {
                let values = facts.fields(name).map(|it| it.trim_ascii().to_vec());
                values.collect()
            }
            Self::Query { name, .. } => parameters(facts.query(), name)
                .map(Iterator::collect)
                .collect(),
            Self::Cookie { name, .. } => facts
                .fields("cookie")
                .flat_map(|line| cookies(line, name).map(Iterator::collect))
                .collect(),
        }
    }
}

/// What the values of a header, parameter or cookie must be.
#[derive(Debug, Clone)]
pub enum ValuePattern {
    /// There is one, whatever its value.
    Present,
    /// There is none.
    Absent,
    /// One of them is this text.
    Exact(Vec<u8>),
    /// One of them matches.
    Glob(Box<Glob>),
}

impl ValuePattern {
    /// Compiles text in which `*` stands for anything and `\*` for a star.
    ///
    /// # Errors
    ///
    /// [`PatternError::TooLong`].
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let pattern = pattern.as_bytes();
        if pattern::has_wildcard(pattern) {
            return Glob::new(pattern, Star::Anything).map(|it| Self::Glob(Box::new(it)));
        }
        Ok(Self::Exact(pattern::unescape(pattern)))
    }

    /// What it asks for, as written.
    fn wanted(&self) -> String {
        match self {
            Self::Present => "any value".into(),
            Self::Absent => "none".into(),
            Self::Exact(text) => pattern::escape(text),
            Self::Glob(glob) => glob.to_string(),
        }
    }

    fn accepts(&self, mut values: impl Iterator<Item = impl Iterator<Item = u8>>) -> bool {
        match self {
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
            Self::Exact(exact) => values.any(|value| value.eq(exact.iter().copied())),
            Self::Glob(glob) => values.any(|value| glob.matches(value)),
        }
    }
}

/// The decoded values of the parameter `name`.
pub(super) fn parameters<'a>(query: &'a [u8], name: &'a str) -> impl Iterator<Item = Decoded<'a>> {
    let pairs = query
        .split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty());
    pairs.filter_map(|pair| {
        let (key, value) = split_at_equals(pair);
        Decoded { rest: key }
            .eq(name.bytes())
            .then_some(Decoded { rest: value })
    })
}

/// The values of the cookie `name` in one `Cookie` line (RFC 6265 section
/// 4.2.1), without the quotes that may stand around them.
pub(super) fn cookies<'a>(
    line: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = impl Iterator<Item = u8>> {
    line.split(|&byte| byte == b';').filter_map(|pair| {
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            return None;
        }
        let (key, value) = split_at_equals(pair);
        let unquoted = value
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        (key == name.as_bytes()).then(|| unquoted.unwrap_or(value).iter().copied())
    })
}

fn split_at_equals(pair: &[u8]) -> (&[u8], &[u8]) {
    match pair.iter().position(|&byte| byte == b'=') {
        Some(at) => (&pair[..at], &pair[at + 1..]),
        None => (pair, b""),
    }
}

/// Bytes of a query component, decoded on the way.
pub(super) struct Decoded<'a> {
    rest: &'a [u8],
}

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&byte, tail) = self.rest.split_first()?;
        self.rest = tail;
        match byte {
            b'+' => Some(b' '),
            b'%' => match decode_pair(tail) {
                Some(decoded) => {
                    self.rest = &tail[2..];
                    Some(decoded)
                }
                None => Some(byte),
            },
            _ => Some(byte),
        }
    }
}
