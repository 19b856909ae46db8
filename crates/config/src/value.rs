//! The kinds of value that options take: names, texts, numbers of workers, statuses.

mod address;
mod network;
mod pattern;
mod regex;
mod time;
mod words;

use super::diagnostics::Report;
use super::setting::{Fault, FromText, Resolve, Setting, resolve_to, wrong_type};
use super::shape::{Choice, Shape};
use super::tree::{Node, Value};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use evenkeel_tls::Pin;
use evenkeel_tls::client::NoPin;

pub(super) use address::port_help;
pub use address::{
    Bind, CollectorUrl, Destination, EndpointAddress, MAX_SOCKET_PATH, ResolverAddress,
    ServiceName, SocketPath,
};
pub use network::{ClientItem, Peer};
pub(super) use pattern::too_long;
pub use pattern::{Host, Path, WantedValue};
pub use regex::OrRegex;
pub use time::Window;
pub use words::{Forwarding, GrpcCode};

/// A choice of words, with the value of each.
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

/// Reads a word of a choice; `find` gives the word's value.
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
            // The upper bound is below the maximum of `usize` on every machine.
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
            return Err(Fault::new(format!("`{text}` is not a valid name"))
                .help("use only letters, digits, `-`, `_` and `.`"));
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
            return Err(Fault::new(format!("{found:?} is not allowed in a header"))
                .help("only printable ASCII characters are allowed; in a URL, percent-encode it"));
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
        if is_token(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Fault::new(format!(
                "`{text}` is not a valid name of a header or cookie"
            ))
            .help("write it without spaces, colons or quotes, as in \"X-User\""))
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
        let fault = Fault::new(format!("`{text}` is not a valid path"));
        if text.contains("://") {
            return Err(fault.help("write only the path; the host goes into `host`"));
        }
        if !text.starts_with('/') {
            return Err(fault.help(format!("a path begins with `/`: \"/{text}\"")));
        }
        if text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#')
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(fault.help(
                "it is sent as written: no spaces, no `#`, and %XX for characters outside ASCII",
            ))
        }
    }
}

/// Bytes in hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HexBytes(pub Vec<u8>);

impl FromText for HexBytes {
    const FORM: &'static str = "bytes in hex, such as `\"50494e470d0a\"`";
    const PATTERN: Option<&'static str> = Some("^( *[0-9A-Fa-f]{2})* *$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = |text: &str| Fault::new(format!("`{text}` is not a valid byte in hex"));
        let mut bytes = Vec::new();
        for part in text.split(' ') {
            if part.starts_with("0x") || part.starts_with("0X") {
                return Err(fault(part).help("write the digits without `0x`"));
            }
            for pair in part.as_bytes().chunks(2) {
                let digits = std::str::from_utf8(pair).unwrap_or(part);
                let is_pair = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
                let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_pair);
                bytes.push(byte.ok_or_else(|| {
                    fault(digits).help("write two digits for each byte, as in \"50 49 4e 47\"")
                })?);
            }
        }
        Ok(Self(bytes))
    }
}

/// The name that a probe logs in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginName(pub String);

impl FromText for LoginName {
    const FORM: &'static str = "the name of a user, such as `\"evenkeel\"`";
    const PATTERN: Option<&'static str> = Some("^[^\\u0000-\\u001f]{1,63}$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        if text.is_empty() || text.len() > 63 || text.chars().any(char::is_control) {
            return Err(Fault::new(format!(
                "`{}` is not a valid user name",
                text.escape_debug()
            ))
            .help("a name has 1 to 63 bytes, and no control characters"));
        }
        Ok(Self(text.to_owned()))
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
                    .mistake(
                        &node.place,
                        format!("the range from {first} to {last} is empty"),
                    )
                    .help(format!("did you mean \"{last}-{first}\"?"));
                None
            }
            _ => {
                let class = text
                    .strip_suffix("xx")
                    .filter(|it| ["2", "3", "4", "5"].contains(it));
                let help = match class {
                    Some(class) => format!("did you mean \"{class}00-{class}99\"?"),
                    None => {
                        "statuses are 200 to 599; write one, or a range such as \"200-399\"".into()
                    }
                };
                report
                    .mistake(&node.place, format!("`{text}` is not a valid status"))
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
        if text.is_empty() {
            Err(Fault::new("the path is empty"))
        } else {
            Ok(Self(PathBuf::from(text)))
        }
    }
}

/// The name or the IP address that a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerName(pub String);

impl FromText for ServerName {
    const FORM: &'static str = "a host name or an IP address, such as `\"app.internal\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let is_label = |it: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            !it.is_empty() && it.len() < 64 && it.bytes().all(allowed)
        };
        let is_name = text.len() < 254 && text.split('.').all(is_label);
        // The last label of a name is no number.
        let is_number = text
            .rsplit('.')
            .next()
            .is_some_and(|it| it.parse::<u32>().is_ok());
        if text.parse::<IpAddr>().is_ok() || is_name && !is_number {
            return Ok(Self(text.to_owned()));
        }
        let fault = Fault::new(format!("`{text}` is not a valid host name"));
        Err(fault.help("write only the name, without port or wildcard, as in \"app.internal\""))
    }
}

impl FromText for Pin {
    const FORM: &'static str = "a public key as `\"sha256/…\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        text.parse().map_err(|no_pin: NoPin| {
            Fault::new(format!("`{text}` is not a valid pin")).help(no_pin.to_string())
        })
    }
}

/// The name of a file, or a pattern of such names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludePattern(pub String);

impl FromText for IncludePattern {
    const FORM: &'static str = "the path of a file, or a pattern such as `\"conf.d/*.toml\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Err(Fault::new("the path is empty"));
        }
        match glob::Pattern::new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => {
                let fault = Fault::new(format!("`{text}` is not a valid pattern: {}", error.msg));
                Err(fault.help("patterns have `*`, `?`, `**` and `[a-z]`"))
            }
        }
    }
}

impl IncludePattern {
    /// Whether the path is a pattern, for any number of files.
    pub fn is_pattern(&self) -> bool {
        self.0.contains(['*', '?', '['])
    }
}

/// The content type of a file, by the ending of its name.
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

/// The first bytes of a connection: at least one byte.
#[derive(Debug)]
pub struct Beginning(pub Vec<u8>);

impl FromText for Beginning {
    const FORM: &'static str = "the first bytes that a client sends, such as `\"SSH-\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        match text.len() {
            0 => Err(Fault::new("an empty text matches every client")
                .help("to match every client, leave out `first_bytes`")),
            1..=MAX_BEGINNING_LEN => Ok(Self(text.as_bytes().to_vec())),
            _ => Err(Fault::new(format!(
                "at most {MAX_BEGINNING_LEN} bytes can be compared"
            ))),
        }
    }
}

/// Longest beginning that is compared, in bytes: it fits into the buffer of a
/// connection.
const MAX_BEGINNING_LEN: usize = 256;

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
        let fault = Fault::new(format!("`{text}` is not a valid method"));
        let upper = text.to_ascii_uppercase();
        let several: Vec<_> = upper
            .split(|it: char| it.is_whitespace() || ['|', ','].contains(&it))
            .filter(|it| !it.is_empty())
            .collect();
        if several.len() > 1 && several.iter().all(|it| METHODS.contains(it)) {
            let several: Vec<_> = several.iter().map(|it| format!("\"{it}\"")).collect();
            return Err(fault.help(format!("write a list: [{}]", several.join(", "))));
        }
        Err(if letters(&upper) {
            fault.help(format!("methods are upper case: \"{upper}\""))
        } else {
            fault.help("write it as in \"GET\"")
        })
    }
}
