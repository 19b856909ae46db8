//! Variables of a request and of its response, and texts with them in braces.

use evenkeel_policy::route::rewriting::rewrite;

use super::diagnostics::nearest;
use super::setting::{Fault, FromText, resolve_to};
use super::template::{Piece, pieces};
use super::value::is_token;

/// Defines the named variables, each with its word and help.
macro_rules! variables {
    ($($name:ident => $word:literal, $when:ident, $help:literal;)*) => {
        /// A named variable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Variable {
            $( #[doc = $help] $name, )*
        }

        impl Variable {
            /// Every variable.
            pub const ALL: &[Variable] = &[$(Variable::$name),*];

            /// Its name.
            pub fn word(self) -> &'static str {
                match self { $(Variable::$name => $word,)* }
            }

            /// The meaning of the variable.
            pub fn help(self) -> &'static str {
                match self { $(Variable::$name => $help,)* }
            }

            /// When its value is known.
            pub fn known(self) -> Known {
                match self { $(Variable::$name => Known::$when,)* }
            }
        }
    };
}

/// When the value of a variable is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// When the request has a route.
    WithRequest,
    /// Once the client has shown who it is: after the route's limits.
    WithUser,
    /// Once there is a response.
    WithResponse,
}

variables! {
    ClientIp => "client_ip", WithRequest, "address of the client; empty over a Unix socket";
    ClientPort => "client_port", WithRequest, "port of the client; 0 if unknown";
    Scheme => "scheme", WithRequest, "`http` or `https`, as the client asked";
    Listener => "listener", WithRequest, "name of the listener";
    Route => "route", WithRequest, "name of the route";
    Method => "method", WithRequest, "method of the request";
    Host => "host", WithRequest, "its host, with the port where it has one";
    Target => "target", WithRequest, "its path and query, as sent";
    Path => "path", WithRequest, "its path, as sent; in `rewrite`, its path after `strip_prefix`";
    Query => "query", WithRequest, "its query, without `?`";
    Version => "version", WithRequest, "its version, as in `HTTP/1.1`";
    Referer => "referer", WithRequest, "value of `Referer`";
    UserAgent => "user_agent", WithRequest, "value of `User-Agent`";
    ServerName => "server_name", WithRequest, "the server name that the client sends over TLS \
        (SNI)";
    User => "user", WithUser, "the user, on a route with `auth`";
    RequestId => "request_id", WithRequest, "the request's id, with `request_id` of the listener";
    TraceId => "trace_id", WithRequest, "the id of the request's trace, with `trace` of the listener";
    Status => "status", WithResponse, "status sent to the client";
    Upstream => "upstream", WithResponse, "name of the upstream";
    Endpoint => "endpoint", WithResponse, "name of the last endpoint tried";
    Attempts => "attempts", WithResponse, "attempts made";
    Reason => "reason", WithResponse, "why that endpoint was chosen";
    Cache => "cache", WithResponse, "what the cache did: `hit`, `stale`, `miss`, `revalidated` or `bypass`";
    QueueMs => "queue_ms", WithResponse, "time in the queue, in milliseconds";
    ConnectMs => "connect_ms", WithResponse, "time to open a connection, in milliseconds";
    FirstByteMs => "first_byte_ms", WithResponse, "time from sending the request to the \
        response's head, in milliseconds";
}

/// A text with variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expression {
    /// Its parts, in order.
    pub parts: Box<[ExpressionPart]>,
}

/// A piece of an [`Expression`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpressionPart {
    /// This text.
    Text(Box<str>),
    /// The value of a variable.
    Variable(Variable),
    /// The first value of the request's header field of this name.
    Header(Box<str>),
    /// The value of the request's cookie of this name.
    Cookie(Box<str>),
    /// The value of the request's query parameter of this name, as sent.
    Query(Box<str>),
    /// The group of this name or number, counted from 1, of the first regular expression
    /// of the route's paths that the path is found by.
    Capture(Box<str>),
}

/// Prefixes of variables for values that a request has by name.
const KINDS: [&str; 4] = ["header", "cookie", "query", "capture"];

impl Expression {
    /// Takes a text with names in braces apart.
    ///
    /// # Errors
    /// A brace is left open, or a name is unknown.
    pub(super) fn read(text: &str) -> Result<Self, Fault> {
        let parts = pieces(text).into_iter().map(|piece| match piece? {
            Piece::Text(text) => Ok(ExpressionPart::Text(text.into())),
            Piece::Name(name) => part(name),
        });
        Ok(Self {
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    /// Whether it is the same text for every request.
    pub fn is_constant(&self) -> bool {
        self.parts
            .iter()
            .all(|it| matches!(it, ExpressionPart::Text(_)))
    }

    /// Its first variable that is not part of the request's URL, as written.
    pub(super) fn beyond_url(&self) -> Option<String> {
        use Variable::{Host, Path, Query, Scheme, Target};
        let part = self.parts.iter().find(|it| match it {
            ExpressionPart::Text(_) | ExpressionPart::Query(_) | ExpressionPart::Capture(_) => {
                false
            }
            ExpressionPart::Variable(it) => !matches!(it, Host | Path | Query | Scheme | Target),
            ExpressionPart::Header(_) | ExpressionPart::Cookie(_) => true,
        })?;
        let alone = Expression {
            parts: [part.clone()].into(),
        };
        Some(format!("`{alone}`"))
    }

    /// The groups of regular expressions that stand in it.
    pub(super) fn captures(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|it| match it {
            ExpressionPart::Capture(name) => Some(&**name),
            _ => None,
        })
    }

    /// Whether it contains the user, who is unknown until after a route's limits.
    pub(super) fn has_user(&self) -> bool {
        let user = ExpressionPart::Variable(Variable::User);
        self.parts.contains(&user)
    }

    /// The first variable in it that only a response has.
    pub(super) fn needs_response(&self) -> Option<Variable> {
        self.parts.iter().find_map(|it| match it {
            ExpressionPart::Variable(it) if it.known() == Known::WithResponse => Some(*it),
            _ => None,
        })
    }
}

impl ExpressionPart {
    /// Whether only a response has the value.
    pub(super) fn needs_response(&self) -> bool {
        matches!(self, ExpressionPart::Variable(it) if it.known() == Known::WithResponse)
    }
}

/// As it was written.
impl std::fmt::Display for Expression {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts.iter().try_for_each(|it| it.fmt(out))
    }
}

/// As it was written.
impl std::fmt::Display for ExpressionPart {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExpressionPart::Text(text) => {
                out.write_str(&text.replace('{', "{{").replace('}', "}}"))
            }
            ExpressionPart::Variable(variable) => write!(out, "{{{}}}", variable.word()),
            ExpressionPart::Header(name) => write!(out, "{{header:{name}}}"),
            ExpressionPart::Cookie(name) => write!(out, "{{cookie:{name}}}"),
            ExpressionPart::Query(name) => write!(out, "{{query:{name}}}"),
            ExpressionPart::Capture(name) => write!(out, "{{capture:{name}}}"),
        }
    }
}

pub(super) fn part(name: &str) -> Result<ExpressionPart, Fault> {
    let known = Variable::ALL.iter().find(|it| it.word() == name);
    if let Some(variable) = known {
        return Ok(ExpressionPart::Variable(*variable));
    }
    match name.split_once(':') {
        Some(("header", of)) if is_token(of) => return Ok(ExpressionPart::Header(of.into())),
        Some(("cookie", of)) if is_token(of) => return Ok(ExpressionPart::Cookie(of.into())),
        Some(("query", of)) if !of.is_empty() => return Ok(ExpressionPart::Query(of.into())),
        Some(("capture", of)) if !of.is_empty() => return Ok(ExpressionPart::Capture(of.into())),
        Some((kind @ ("header" | "cookie"), of)) => {
            return Err(
                Fault::new(format!("`{of}` is not a valid name of a {kind}"))
                    .help(format!("write it as in {{{kind}:X-User}}")),
            );
        }
        _ => {}
    }
    let fault = Fault::new(format!("there is no variable `{{{name}}}`"));
    let words: Vec<_> = Variable::ALL.iter().map(|it| it.word()).collect();
    let kinds = KINDS.map(|it| format!("{it}:NAME")).join(", ");
    Err(match nearest(name, words.iter().copied()) {
        Some(word) => fault.help(format!("did you mean `{{{word}}}`?")),
        None => fault.help(format!("variables are {}, {kinds}", words.join(", "))),
    })
}

/// The value of a header field that is set, with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldText(pub Expression);

impl FromText for FieldText {
    const FORM: &'static str =
        "text of printable ASCII characters, in which `{client_ip}` and the like are variables";

    fn from_text(text: &str) -> Result<Self, Fault> {
        super::value::FieldValue::from_text(text)?;
        Expression::read(text).map(Self)
    }
}

/// The path that a target makes of the shortest values that variables may have.
fn example(target: &Expression) -> Vec<u8> {
    let mut path = String::new();
    for part in &target.parts {
        match part {
            ExpressionPart::Text(text) => match text.split_once('?') {
                Some((of_path, _)) => {
                    path.push_str(of_path);
                    break;
                }
                None => path.push_str(text),
            },
            ExpressionPart::Variable(Variable::Path) => path.push_str("/v"),
            // It begins with a slash, which is encoded.
            ExpressionPart::Variable(Variable::Target) => path.push_str("%2Fv"),
            _ => path.push('v'),
        }
    }
    path.into_bytes()
}

/// The path that is sent on in the place of a request's, with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetText(pub Expression);

impl FromText for TargetText {
    const FORM: &'static str = "a path with variables, such as `\"/v2{path}\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = || Fault::new(format!("`{text}` is not a valid path"));
        if let Some(found) = text.chars().find(|it| !it.is_ascii_graphic()) {
            return Err(fault().help(format!(
                "{found:?} is not allowed in a URL: percent-encode it"
            )));
        }
        if text.contains('#') {
            return Err(fault().help("leave out `#` and the part after it: clients do not send it"));
        }
        let target = Expression::read(text)?;
        let begins_with_slash = match target.parts.first() {
            Some(ExpressionPart::Text(text)) => text.starts_with('/'),
            Some(ExpressionPart::Variable(Variable::Path)) => true,
            _ => false,
        };
        if !begins_with_slash {
            return Err(fault().help("a path begins with `/` or with {path}"));
        }
        for word in ["$host", "$path", "$query"] {
            if text.contains(word) {
                let help = format!("write it as {{{}}} here", &word[1..]);
                return Err(Fault::new(format!("`{word}` is for `redirect` and `try`")).help(help));
            }
        }
        if rewrite(b"/v", |_| Some(example(&target))).is_err() {
            let has_target = |it| matches!(it, &ExpressionPart::Variable(Variable::Target));
            return Err(fault().help(if target.parts.iter().any(has_target) {
                "{target} includes the query: write {path} instead, with the query after `?`, as \
                 in \"/v2{path}?{query}\""
            } else {
                "leave out `//`, `/./` and `/../`; {path} begins with `/`"
            }));
        }
        match target.needs_response() {
            Some(variable) => Err(Fault::new(format!(
                "`{{{}}}` is not known until there is a response",
                variable.word()
            ))),
            None => Ok(Self(target)),
        }
    }
}

resolve_to!(FieldText => Expression, TargetText => Expression);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_taken_apart() {
        for text in [
            "plain",
            "{client_ip}",
            "a {{b}} {header:X-User}{cookie:s}-{query:q}",
            "/v2{path}?{query}",
        ] {
            let read = Expression::read(text).expect(text);
            assert_eq!(read.to_string(), text);
        }
        let read = Expression::read("{client_ip}, {status}").unwrap();
        assert_eq!(read.needs_response(), Some(Variable::Status));
        assert!(!read.is_constant());
        assert!(Expression::read("a{{b").unwrap().is_constant());
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, said) in [
            ("{client}", "{client_ip}"),
            ("{zzzzzzzz}", "variables are client_ip, "),
            ("{header:a b}", "{header:X-User}"),
            ("{host", "{{"),
        ] {
            let fault = FieldText::from_text(text).expect_err(text);
            let help = fault.help.unwrap_or_default();
            assert!(help.contains(said), "{text}: {help}");
        }
        for text in [
            "a",
            "{host}/a",
            "/a b",
            "/a#b",
            "/{status}",
            "",
            "/é",
            "/a$path",
            "/x{target}",
            "/a/../b",
            "//x",
            "/x/{path}",
            "/a%2fb",
        ] {
            assert!(TargetText::from_text(text).is_err(), "{text}");
        }
        for text in [
            "/a/{query:b}",
            "/a{query}",
            "/x{path}/",
            "{path}?a=//{target}",
            "/",
        ] {
            assert!(TargetText::from_text(text).is_ok(), "{text}");
        }
    }
}
