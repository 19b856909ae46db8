//! Regular expressions over the bytes of a path, a host or a value.
//!
//! The time of a search is linear in the length of the text: no expression explodes. Letters,
//! digits and word characters are ASCII, and `.` is any byte, so that no text is out of reach of
//! a rule.

use std::fmt;
use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};

/// Most memory that a compiled expression may take, in bytes.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// Most memory that the searches of a thread keep for an expression, in bytes.
const MAX_CACHE_BYTES: usize = 1 << 20;

/// Whether letters in upper and in lower case are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// They differ.
    Sensitive,
    /// They are the same.
    Insensitive,
}

/// A compiled regular expression. It matches anywhere in a text, unless it has `^` or `$`.
#[derive(Clone)]
pub struct RegexPattern(Regex);

/// Why text is no regular expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegexError {
    /// Its syntax is wrong, in this way.
    Syntax(String),
    /// Its compiled form takes more memory than is allowed.
    TooLarge,
}

impl RegexPattern {
    /// Compiles an expression, in the syntax of the `regex` crate.
    ///
    /// # Errors
    /// Its syntax is wrong, or it is too large.
    pub fn new(text: &str, case: Case) -> Result<Self, RegexError> {
        let built = RegexBuilder::new(text)
            .unicode(false)
            .dot_matches_new_line(true)
            .case_insensitive(case == Case::Insensitive)
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_CACHE_BYTES)
            .build();
        built.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => RegexError::TooLarge,
            error => {
                // Lines before the last one show where: that is for a terminal.
                let said = error.to_string();
                let last = said.lines().last().unwrap_or_default();
                let what = last.strip_prefix("error: ").unwrap_or(last);
                RegexError::Syntax(what.to_owned())
            }
        })
    }

    /// Whether it matches in `text`.
    pub fn is_match(&self, text: &[u8]) -> bool {
        self.0.is_match(text)
    }

    /// The names of its groups, in order. The first is the whole; that and groups without
    /// a name have none.
    pub fn group_names(&self) -> impl Iterator<Item = Option<&str>> {
        self.0.capture_names()
    }

    /// Its groups in `text`; `None` where it does not match.
    pub fn captures(&self, text: &[u8]) -> Option<Captures<'_>> {
        let found = self.0.captures(text)?;
        let groups = found.iter().map(|it| Some(it?.range()));
        Some(Captures {
            groups: groups.collect(),
            text: text.to_vec(),
            pattern: self,
        })
    }
}

impl PartialEq for RegexPattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for RegexPattern {}

/// The expression as written.
impl fmt::Display for RegexPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "regex {}", self.0.as_str())
    }
}

impl fmt::Debug for RegexPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The groups of a regular expression in a text.
#[derive(Debug, Clone)]
pub struct Captures<'t> {
    text: Vec<u8>,
    groups: Vec<Option<Range<usize>>>,
    pattern: &'t RegexPattern,
}

impl Captures<'_> {
    /// The group of this number, counted from 1; 0 is the whole match. `None` where there is no
    /// such group, or the group did not take part in the match.
    pub fn numbered(&self, number: usize) -> Option<&[u8]> {
        let range = self.groups.get(number)?.clone()?;
        self.text.get(range)
    }

    /// The group of this name.
    pub fn named(&self, name: &str) -> Option<&[u8]> {
        let mut names = self.pattern.group_names();
        self.numbered(names.position(|it| it == Some(name))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_bytes() {
        for (pattern, text, expected) in [
            ("^/u/([0-9]+)$", &b"/u/12"[..], true),
            ("^/u/([0-9]+)$", b"/u/12\n", false),
            ("u", b"/u/12", true),
            ("^.*$", b"\xff\n\xfe", true),
            ("[^a]", b"\xff", true),
            (r"^\w$", b"\xc3\xa9", false),
            ("A", b"a", false),
        ] {
            let compiled = RegexPattern::new(pattern, Case::Sensitive).unwrap();
            assert_eq!(compiled.is_match(text), expected, "{pattern} on {text:?}");
        }
        let of_host = RegexPattern::new("^api[0-9]\\.", Case::Insensitive).unwrap();
        assert!(of_host.is_match(b"API7.test"));
    }

    #[test]
    fn what_is_no_expression() {
        for (pattern, expected) in [
            ("(a", "unclosed group"),
            ("a{2", "unclosed counted repetition"),
            ("(?=a)", "look-around"),
            (r"\p{Greek}", "Unicode"),
        ] {
            match RegexPattern::new(pattern, Case::Sensitive) {
                Err(RegexError::Syntax(what)) => assert!(what.contains(expected), "{what}"),
                other => panic!("{pattern}: {other:?}"),
            }
        }
        let large = RegexPattern::new("(a{1000}){1000}", Case::Sensitive);
        assert_eq!(large, Err(RegexError::TooLarge));
    }

    #[test]
    fn groups_by_number_and_name() {
        let pattern = RegexPattern::new("^/(?<who>[a-z]+)/([0-9]+)(x)?", Case::Sensitive).unwrap();
        let found = pattern.captures(b"/anna/12/more").unwrap();
        assert_eq!(found.numbered(0), Some(&b"/anna/12"[..]));
        assert_eq!(found.named("who"), Some(&b"anna"[..]));
        assert_eq!(found.numbered(2), Some(&b"12"[..]));
        assert_eq!(found.numbered(3), None);
        assert_eq!(found.numbered(4), None);
        assert_eq!(found.named("whom"), None);
        assert!(pattern.captures(b"/12").is_none());
        let names: Vec<_> = pattern.group_names().collect();
        assert_eq!(names, [None, Some("who"), None, None]);
    }

    /// Engines that backtrack take longer than the universe for these.
    #[test]
    fn no_expression_explodes() {
        let text = "a".repeat(60_000);
        for pattern in [
            "^(a*)*b$",
            "^(a|aa)+$b",
            "(x+x+)+y",
            "^(([a-z])+.)+[A-Z]([a-z])+$",
        ] {
            let compiled = RegexPattern::new(pattern, Case::Sensitive).unwrap();
            assert!(!compiled.is_match(text.as_bytes()), "{pattern}");
        }
    }
}
