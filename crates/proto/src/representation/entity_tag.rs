//! Entity tags and lists of them (RFC 9110 §8.8.3).

/// How two entity tags are compared (RFC 9110 §8.8.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// A weak one is like no other.
    Strong,
    /// Whether they are weak does not matter.
    Weak,
}

/// Whether two values are tags that are the same.
pub(super) fn is_same(value: &[u8], other: &[u8], comparison: Comparison) -> bool {
    let tag = |value| match EntityTag::take(value) {
        Some((tag, [])) => Some(tag),
        _ => None,
    };
    match (tag(value), tag(other)) {
        (Some(tag), Some(other)) => tag.is_same(other, comparison),
        _ => false,
    }
}

/// Whether a list holds the tag `current`; `None` if it is malformed.
pub(super) fn list_names(list: &[u8], current: &[u8], comparison: Comparison) -> Option<bool> {
    let current = EntityTag::take(current).map(|(tag, _)| tag);
    let mut is_named = false;
    let mut rest = after_separators(list);
    while !rest.is_empty() {
        let (tag, after) = EntityTag::take(rest)?;
        is_named |= current.is_some_and(|current| tag.is_same(current, comparison));
        if !matches!(after.trim_ascii_start(), [] | [b',', ..]) {
            return None;
        }
        rest = after_separators(after);
    }
    Some(is_named)
}

/// The rest after commas and white space: items of a list may be empty.
fn after_separators(list: &[u8]) -> &[u8] {
    let is_separator = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let len = list.iter().take_while(|byte| is_separator(byte)).count();
    &list[len..]
}

#[derive(Debug, Clone, Copy)]
struct EntityTag<'a> {
    is_weak: bool,
    /// With its quotes.
    opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// The tag that `value` begins with, and the rest.
    fn take(value: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (is_weak, quoted) = match value.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, value),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        let inner_len = memchr::memchr(b'"', inner)?;
        let is_sound = |&byte: &u8| byte > b' ' && byte != 0x7f;
        if !inner[..inner_len].iter().all(is_sound) {
            return None;
        }
        let (opaque, rest) = quoted.split_at(inner_len + 2);
        Some((EntityTag { is_weak, opaque }, rest))
    }

    fn is_same(self, other: EntityTag<'_>, comparison: Comparison) -> bool {
        let is_comparable = match comparison {
            Comparison::Strong => !self.is_weak && !other.is_weak,
            Comparison::Weak => true,
        };
        is_comparable && self.opaque == other.opaque
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_as_the_table_of_the_rfc() {
        for (tag, other, strong, weak) in [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
            ("\"1\"", "\"1\" ", false, false),
            ("w/\"1\"", "\"1\"", false, false),
            ("1", "1", false, false),
            ("", "", false, false),
            ("\"\"", "\"\"", true, true),
        ] {
            for (tag, other) in [(tag, other), (other, tag)] {
                let same = |comparison| is_same(tag.as_bytes(), other.as_bytes(), comparison);
                let found = (same(Comparison::Strong), same(Comparison::Weak));
                assert_eq!(found, (strong, weak), "{tag} {other}");
            }
        }
    }

    #[test]
    fn reads_lists() {
        for (list, named) in [
            ("\"a,b\"", Some(true)),
            ("\"x\", \"a,b\"", Some(true)),
            ("\"a,b\",\"x\"", Some(true)),
            ("W/\"a,b\"", Some(true)),
            (",, \"a,b\" ,\t,", Some(true)),
            ("\"x\",\"y\"", Some(false)),
            ("\"a\", \"b\"", Some(false)),
            ("\"a\\\"", Some(false)),
            ("\"\u{e9}\"", Some(false)),
            ("", Some(false)),
            (",", Some(false)),
            ("*", None),
            ("\"a,b\", *", None),
            ("a", None),
            ("\"a,b\" \"x\"", None),
            ("\"a,b\"x", None),
            ("\"a,b\", x", None),
            ("\"a,b", None),
            ("a,b\"", None),
            ("\"", None),
            ("W/", None),
            ("W/ \"a,b\"", None),
            ("w/\"a,b\"", None),
            ("\"a b\"", None),
            ("\"a\tb\"", None),
        ] {
            let found = list_names(list.as_bytes(), b"\"a,b\"", Comparison::Weak);
            assert_eq!(found, named, "{list}");
        }
        assert_eq!(
            list_names(b"\"\", \"a\"", b"", Comparison::Weak),
            Some(false)
        );
    }
}
