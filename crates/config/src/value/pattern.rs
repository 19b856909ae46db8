//! Patterns that requests are compared with.

use super::regex::{FromRegex, RegexTable, read_regex};
use crate::diagnostics::Report;
use crate::regex_like::{self, Foreign};
use crate::setting::{Fault, FromText, Setting, resolve_to, wrong_type};
use crate::shape::Shape;
use crate::tree::{Node, Value};
use evenkeel_policy::route::{
    Case, HostPattern, PathPattern, PatternError, RegexPattern, ValuePattern,
};

resolve_to!(Path => PathPattern);

/// A pattern over hosts.
#[derive(Debug)]
pub struct Host(pub HostPattern);

impl FromText for Host {
    const FORM: &'static str = "a host, such as `\"example.com\"` or `\"*.example.com\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        HostPattern::new(text).map(Self).map_err(|error| {
            let fault = Fault::new(format!("`{text}` is not a valid host pattern"));
            match error {
                _ if regex_like::kind(text).is_some() => fault.help(format!(
                    "write a regular expression as {}; a plain host is {}",
                    regex_like::as_table(text),
                    examples(Self::FORM)
                )),
                PatternError::HostWildcard if text == "*" => {
                    fault.help("to match every host, leave out `host`")
                }
                PatternError::HostWildcard => {
                    fault.help("a wildcard must come first, as in \"*.example.com\"")
                }
                _ if text.contains(':') => {
                    fault.help("write only the host, without port or scheme")
                }
                _ if !text.is_ascii() => fault.help("write its ASCII form (xn--…)"),
                _ => fault.help("write it as in \"example.com\" or \"*.example.com\""),
            }
        })
    }

    fn doubt(text: &str) -> Option<Fault> {
        let fault = Fault::new(format!("`{text}` matches no host"));
        if text == "_" {
            return Some(fault.help("to match every host, leave out `host`"));
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
            let fault = Fault::new(format!("`{text}` is not a valid path pattern"));
            match error {
                _ if regex_like::kind(text).is_some() => fault.help(path_help(text)),
                PatternError::QueryInPath => fault
                    .help("a path has no query; match that with `query = { name = \"value\" }`"),
                PatternError::TooLong => fault.help(too_long()),
                _ if text.starts_with('*') => fault.help(format!(
                    "`*` matches within a segment, `**` also matches `/`: did you mean \
                     `\"*{text}\"`?"
                )),
                _ => fault.help(format!("a path begins with `/`: \"/{text}\"")),
            }
        })
    }

    fn doubt(text: &str) -> Option<Fault> {
        let what = match regex_like::kind(text)? {
            Foreign::Regex => format!("`{text}` looks like a regular expression"),
            Foreign::Placeholder => format!("the placeholder in `{text}` is matched literally"),
        };
        Some(Fault::new(what).help(path_help(text)))
    }
}

impl FromRegex for Host {
    const CASE: Case = Case::Insensitive;

    fn from_regex(regex: RegexPattern) -> Self {
        Self(HostPattern::Regex(Box::new(regex)))
    }
}

impl FromRegex for Path {
    const CASE: Case = Case::Sensitive;

    fn from_regex(regex: RegexPattern) -> Self {
        Self(PathPattern::Regex(Box::new(regex)))
    }
}

/// Advice for a path pattern in the syntax of another program.
fn path_help(text: &str) -> String {
    let paths = regex_like::as_paths(text);
    let proposed = paths.iter().map(|it| format!("\"{it}\""));
    let proposed: Vec<_> = proposed.collect();
    let meant = match &proposed[..] {
        [] => String::new(),
        [only] => format!(": did you mean {only}?"),
        all => format!(": did you mean [{}]?", all.join(", ")),
    };
    let as_text = format!("a plain path is {}{meant}", examples(Path::FORM));
    match regex_like::kind(text) {
        Some(Foreign::Regex) => {
            let table = regex_like::as_table(text);
            format!("write a regular expression as {table}; {as_text}")
        }
        _ => as_text,
    }
}

/// The examples of a form, without marks of code.
fn examples(form: &str) -> String {
    let examples = form.split_once("such as ").map_or(form, |(_, it)| it);
    examples.replace('`', "")
}

pub(in super::super) fn too_long() -> String {
    let len = evenkeel_policy::route::Glob::MAX_LEN;
    format!("a pattern with wildcards has at most {len} other characters")
}

/// The required value of a header, parameter or cookie.
#[derive(Debug)]
pub struct WantedValue(pub ValuePattern);

impl Setting for WantedValue {
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
            Value::Table(_) => {
                let regex = read_regex(node, Case::Sensitive, report)?;
                ValuePattern::Regex(Box::new(regex))
            }
            // A plain number is plainly meant as its text.
            Value::Integer(number) => ValuePattern::Exact(number.to_string().into_bytes()),
            _ => return wrong_type(node, report),
        };
        Some(Self(pattern))
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![
            Shape::Text {
                form: "text in which `*` matches anything",
                pattern: None,
            },
            Shape::Integer {
                min: 0,
                max: i64::MAX,
            },
            Shape::Boolean,
            RegexTable::shape(),
        ])
    }
}
