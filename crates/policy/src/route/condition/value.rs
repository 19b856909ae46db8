//! Conditions on the values of a header, parameter or cookie.

use crate::route::RegexPattern;
use crate::route::pattern::{self, Glob, PatternError, Star};

/// A condition on the values of a header, parameter or cookie.
#[derive(Debug, Clone)]
pub enum ValuePattern {
    /// A value exists, whatever it is.
    Present,
    /// No value exists.
    Absent,
    /// One of them is this text.
    Exact(Vec<u8>),
    /// One of them matches.
    Glob(Box<Glob>),
    /// This matches in one of them.
    Regex(Box<RegexPattern>),
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

    /// The condition, as written.
    pub(super) fn wanted(&self) -> String {
        match self {
            Self::Present => "any value".into(),
            Self::Absent => "none".into(),
            Self::Exact(text) => pattern::escape(text),
            Self::Glob(glob) => glob.to_string(),
            Self::Regex(regex) => regex.to_string(),
        }
    }

    pub(in crate::route) fn accepts(
        &self,
        mut values: impl Iterator<Item = impl Iterator<Item = u8>>,
    ) -> bool {
        match self {
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
            Self::Exact(exact) => values.any(|value| value.eq(exact.iter().copied())),
            Self::Glob(glob) => values.any(|value| glob.matches(value)),
            Self::Regex(regex) => values.any(|value| is_found(regex, value)),
        }
    }
}

/// Whether an expression matches in a value.
///
/// The search needs the value in one piece, and a value may be decoded on the way. A usual value
/// has room on the stack.
fn is_found(regex: &RegexPattern, mut value: impl Iterator<Item = u8>) -> bool {
    let mut usual = [0; 512];
    let mut len = 0;
    for (place, byte) in usual.iter_mut().zip(&mut value) {
        *place = byte;
        len += 1;
    }
    match value.next() {
        None => regex.is_match(&usual[..len]),
        Some(next) => {
            let mut long = usual.to_vec();
            long.push(next);
            long.extend(value);
            regex.is_match(&long)
        }
    }
}

/// The name and the value of a pair; without `=` the value is empty.
pub(super) fn split_at_equals(pair: &[u8]) -> (&[u8], &[u8]) {
    match pair.iter().position(|&byte| byte == b'=') {
        Some(at) => (&pair[..at], &pair[at + 1..]),
        None => (pair, b""),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any pattern over values of a few letters.
    pub fn patterns() -> impl Strategy<Value = ValuePattern> {
        prop_oneof![
            Just(ValuePattern::Present),
            Just(ValuePattern::Absent),
            "[ab*]{0,2}".prop_map(|text| ValuePattern::new(&text).unwrap()),
            "[ab.]{0,2}".prop_map(|text| regex(&text)),
        ]
    }

    /// A value in which this is found.
    pub fn regex(text: &str) -> ValuePattern {
        let regex = RegexPattern::new(text, crate::route::Case::Sensitive).unwrap();
        ValuePattern::Regex(Box::new(regex))
    }

    #[test]
    fn expressions_are_found_in_values_of_every_length() {
        for len in [0, 1, 511, 512, 513, 4000] {
            let value = format!("{}b", "a".repeat(len));
            let accepts = |pattern: &str| regex(pattern).accepts([value.bytes()].into_iter());
            assert!(accepts("^a*b$"), "{len}");
            assert!(!accepts("^a*$"), "{len}");
        }
    }
}
