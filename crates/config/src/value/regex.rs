//! Regular expressions in the place of other patterns: `{ regex = "…" }`.

use evenkeel_policy::route::{Case, RegexError, RegexPattern};

use super::Text;
use crate::diagnostics::Report;
use crate::setting::{FromText, Placed, Resolve, Setting, options};
use crate::shape::Shape;
use crate::tree::{Node, Value};

options! {
    /// A regular expression.
    pub struct RegexTable as "a regular expression" {
        /// The expression, in the syntax of Rust's `regex`. It may match anywhere in the text,
        /// unless it has `^` or `$`.
        regex: Placed<Text> = Required,
    }
}

/// A pattern that can be written as a regular expression too.
pub trait FromRegex {
    /// How letters are compared.
    const CASE: Case;

    /// The pattern of what an expression is found in.
    fn from_regex(regex: RegexPattern) -> Self;
}

/// A pattern as text, or as `{ regex = "…" }`.
#[derive(Debug)]
pub struct OrRegex<T>(pub T);

impl<T: FromText + FromRegex> Setting for OrRegex<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        if let Value::Table(_) = node.value {
            let regex = read_regex(node, T::CASE, report)?;
            return Some(Self(T::from_regex(regex)));
        }
        T::read(node, report).map(Self)
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![T::shape(), RegexTable::shape()])
    }
}

impl<T: Resolve> Resolve for OrRegex<T> {
    type Resolved = T::Resolved;

    fn resolve(&self) -> Option<Self::Resolved> {
        self.0.resolve()
    }
}

/// Reads `{ regex = "…" }`, and reports a fault in it.
pub(super) fn read_regex(node: &Node, case: Case, report: &mut Report) -> Option<RegexPattern> {
    let table = RegexTable::read(node, report)?;
    let Placed {
        value: Text(text),
        place,
    } = table.regex.value?;
    match RegexPattern::new(&text, case) {
        Ok(regex) => Some(regex),
        Err(error) => {
            let (what, help) = match error {
                RegexError::Syntax(what) => (
                    format!("`{text}` is not a valid regular expression: {what}"),
                    advice(&what),
                ),
                RegexError::TooLarge => (
                    format!("`{text}` needs more than 1 MiB of memory"),
                    "write smaller counts: `{1,1000}` makes a thousand copies".to_owned(),
                ),
            };
            report.mistake(&place, what).help(help);
            None
        }
    }
}

/// Advice on syntax that this engine does not support.
fn advice(what: &str) -> String {
    let advice = if what.contains("look-around") || what.contains("backreference") {
        "look-arounds and back-references are not supported, because every search takes linear \
         time; write a second condition, such as `not`"
    } else if what.contains("Unicode") || what.contains("UTF-8") {
        "expressions match bytes: write bytes and ASCII classes"
    } else {
        "the syntax is described at https://docs.rs/regex/latest/regex/#syntax"
    };
    advice.to_owned()
}
