//! Patterns over text: globs, paths and hosts.

use std::fmt;

use super::RegexPattern;
use super::path::{self, Spelling};
use super::reading::{self, Oddity};

/// Why text is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternError {
    /// More than [`Glob::MAX_LEN`] bytes beside its wildcards.
    TooLong,
    /// A path that begins neither with `/` nor with `**`.
    NoLeadingSlash,
    /// A path with `?` or `#` in it.
    QueryInPath,
    /// A host with a wildcard elsewhere than in a leading `*.`.
    HostWildcard,
    /// A host with a port, a path, a space or nothing in it.
    HostSyntax,
}

/// The meaning of a single `*` of a glob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Star {
    /// Anything but `/`; `**` stands for anything.
    WithinSegment,
    /// Anything.
    Anything,
}

/// Text with wildcards; `\*` is a plain star.
///
/// A glob runs as an automaton whose states fit one machine integer. So the
/// time is linear in the text, whatever the pattern: a client finds no
/// backtracking to exploit.
#[derive(Clone)]
pub struct Glob {
    /// Bit `i` of entry `b`: the `i`-th literal of the pattern is `b`.
    literals: Box<[u128; 256]>,
    /// Bit `i`: after `i` literals stands a wildcard that takes anything.
    any: u128,
    /// Bit `i`: after `i` literals stands a wildcard that takes all but `/`.
    within_segment: u128,
    /// The state in which the whole pattern has matched.
    accept: u128,
    /// As it was compiled from.
    text: Box<[u8]>,
}

impl Glob {
    /// Most bytes in a pattern, wildcards not counted.
    pub const MAX_LEN: usize = 127;

    /// Compiles `pattern`.
    ///
    /// # Errors
    ///
    /// [`PatternError::TooLong`].
    pub fn new(pattern: &[u8], star: Star) -> Result<Self, PatternError> {
        let mut glob = Self {
            literals: Box::new([0; 256]),
            any: 0,
            within_segment: 0,
            accept: 1,
            text: pattern.into(),
        };
        let mut rest = pattern;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            let literal = match (byte, tail.first()) {
                (b'*', Some(b'*')) => {
                    rest = &tail[1..];
                    glob.any |= glob.accept;
                    continue;
                }
                (b'*', _) => {
                    match star {
                        Star::Anything => glob.any |= glob.accept,
                        Star::WithinSegment => glob.within_segment |= glob.accept,
                    }
                    continue;
                }
                (b'\\', Some(&escaped @ (b'*' | b'\\'))) => {
                    rest = &tail[1..];
                    escaped
                }
                _ => byte,
            };
            glob.literals[usize::from(literal)] |= glob.accept;
            glob.accept = glob.accept.checked_mul(2).ok_or(PatternError::TooLong)?;
        }
        Ok(glob)
    }

    /// Whether the whole of `text` matches.
    pub fn matches(&self, text: impl IntoIterator<Item = u8>) -> bool {
        let mut states = 1_u128;
        for byte in text {
            let mut next = (states & self.literals[usize::from(byte)]) << 1 | states & self.any;
            if byte != b'/' {
                next |= states & self.within_segment;
            }
            if next == 0 {
                return false;
            }
            states = next;
        }
        states & self.accept != 0
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Glob")
            .field("len", &self.accept.trailing_zeros())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

/// Whether `pattern` has a wildcard in it (an escaped star is none).
pub(crate) fn has_wildcard(pattern: &[u8]) -> bool {
    let mut escaped = false;
    pattern.iter().any(|&byte| {
        let wildcard = byte == b'*' && !escaped;
        escaped = byte == b'\\' && !escaped;
        wildcard
    })
}

/// `pattern` with `\*` and `\\` replaced by `*` and `\`.
pub(crate) fn unescape(pattern: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(pattern.len());
    let mut bytes = pattern.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let escaped = bytes.next_if(|&next| byte == b'\\' && matches!(next, b'*' | b'\\'));
        text.push(escaped.unwrap_or(byte));
    }
    text
}

/// A pattern of a path whose literal text is in the normal form of a path.
///
/// Invariant: an encoded star or backslash is a literal one, so `%2A` never
/// becomes a wildcard.
fn normalise(pattern: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((byte, spelling)) = path::take(&mut rest) {
        let literal = match (byte, spelling, rest.first()) {
            (b'\\', Spelling::Plain, Some(&escaped @ (b'*' | b'\\'))) => {
                rest = &rest[1..];
                escaped
            }
            (b'*', Spelling::Plain, _) => {
                text.push(byte);
                continue;
            }
            _ => byte,
        };
        match literal {
            b'*' | b'\\' => text.extend([b'\\', literal]),
            b'.' | b';' => text.push(literal),
            _ => path::push(&mut text, literal, spelling),
        }
    }
    path::without_dot_segments(&path::with_single_slashes(&text))
}

/// A pattern over the normal form of a path (see [`path`]).
///
/// `/a` is that path alone. `/a/*` is everything that begins with `/a/`,
/// however deep, but not `/a` itself. Elsewhere `*` stands for anything within
/// a segment and `**` for anything at all.
#[derive(Debug, Clone)]
pub enum PathPattern {
    /// This path.
    Exact(Vec<u8>),
    /// Every path that begins so.
    Prefix(Vec<u8>),
    /// Every path that matches.
    Glob(Box<Glob>),
    /// Every path in which this is found.
    Regex(Box<RegexPattern>),
}

impl PathPattern {
    /// Compiles `pattern`, written as it would be in a URL or with characters
    /// as they are.
    ///
    /// # Errors
    ///
    /// [`PatternError::NoLeadingSlash`], [`PatternError::QueryInPath`] or
    /// [`PatternError::TooLong`].
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        if pattern.contains(['?', '#']) {
            return Err(PatternError::QueryInPath);
        }
        if !pattern.starts_with('/') && !pattern.starts_with("**") {
            return Err(PatternError::NoLeadingSlash);
        }
        let pattern = normalise(pattern.as_bytes());
        if let Some(prefix) = pattern.strip_suffix(b"*")
            && prefix.ends_with(b"/")
            && !has_wildcard(prefix)
        {
            return Ok(Self::Prefix(unescape(prefix)));
        }
        if has_wildcard(&pattern) {
            return Glob::new(&pattern, Star::WithinSegment).map(|it| Self::Glob(Box::new(it)));
        }
        Ok(Self::Exact(unescape(&pattern)))
    }

    /// The other ways in which servers read this pattern, in normal form:
    /// `/a%2Fb` as `/a/b`. None where there are too many.
    pub fn other_readings(&self) -> Vec<Vec<u8>> {
        let text = match self {
            Self::Exact(path) | Self::Prefix(path) => path.clone(),
            // Wildcards stand for themselves.
            Self::Glob(glob) => unescape(&glob.text),
            Self::Regex(_) => return Vec::new(),
        };
        if text.first() != Some(&b'/') || reading::oddity(&text) != Oddity::Ambiguous {
            return Vec::new();
        }
        let readings = reading::readings(&text).unwrap_or_default();
        readings.into_iter().skip(1).collect()
    }

    /// Whether `path`, in its normal form, matches.
    pub fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => path == exact,
            Self::Prefix(prefix) => path.starts_with(prefix),
            Self::Glob(glob) => glob.matches(path.iter().copied()),
            Self::Regex(regex) => regex.is_match(path),
        }
    }

    /// The text that every matching path begins with; `None` where it is not
    /// known.
    pub(super) fn front(&self) -> Option<Vec<u8>> {
        match self {
            Self::Exact(path) | Self::Prefix(path) => Some(path.clone()),
            Self::Glob(glob) => {
                let mut ends = (1..=glob.text.len()).rev().map(|end| &glob.text[..end]);
                // The text in front of a wildcard has no wildcard, and no half
                // of an escape.
                let front = ends.find(|it| !has_wildcard(it) && !it.ends_with(b"\\"));
                front.map(unescape)
            }
            Self::Regex(_) => None,
        }
    }
}

/// In the normal form that paths are compared in.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => f.write_str(&escape(path)),
            Self::Prefix(path) => write!(f, "{}*", escape(path)),
            Self::Glob(glob) => glob.fmt(f),
            Self::Regex(regex) => regex.fmt(f),
        }
    }
}

/// The reverse of [`unescape`].
pub(super) fn escape(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.replace('\\', "\\\\").replace('*', "\\*")
}

/// A pattern over hosts, compared without case; a dot at the end of the host
/// does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// This host.
    Exact(Vec<u8>),
    /// Every host that ends so, at any depth, and is longer.
    Suffix(Vec<u8>),
    /// Every host in which this is found.
    Regex(Box<RegexPattern>),
}

impl HostPattern {
    /// Compiles `example.com`, `*.example.com` or `[::1]`.
    ///
    /// # Errors
    ///
    /// [`PatternError::HostWildcard`] or [`PatternError::HostSyntax`].
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let pattern = pattern.strip_suffix('.').unwrap_or(pattern);
        let (suffix, name) = match pattern.strip_prefix('*') {
            Some(name) if name.starts_with('.') && name.len() > 1 => (true, name),
            Some(_) => return Err(PatternError::HostWildcard),
            None => (false, pattern),
        };
        if name.contains('*') {
            return Err(PatternError::HostWildcard);
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let bracketed = name
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let valid = match bracketed {
            Some(address) => !suffix && address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !name.is_empty() && name.bytes().all(plain),
        };
        if !valid {
            return Err(PatternError::HostSyntax);
        }
        let name = name.as_bytes().to_vec();
        Ok(if suffix {
            Self::Suffix(name)
        } else {
            Self::Exact(name)
        })
    }

    /// Whether `host`, without port, matches.
    pub fn matches(&self, host: &[u8]) -> bool {
        let host = host.strip_suffix(b".").unwrap_or(host);
        match self {
            Self::Exact(name) => host.eq_ignore_ascii_case(name),
            Self::Suffix(suffix) => host
                .split_at_checked(host.len().wrapping_sub(suffix.len()))
                .is_some_and(|(rest, end)| !rest.is_empty() && end.eq_ignore_ascii_case(suffix)),
            Self::Regex(regex) => regex.is_match(host),
        }
    }

    /// A host that matches; empty where none is known.
    pub(super) fn example(&self) -> Vec<u8> {
        match self {
            Self::Exact(name) => name.clone(),
            Self::Suffix(suffix) => [b"a", &suffix[..]].concat(),
            Self::Regex(_) => Vec::new(),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(&String::from_utf8_lossy(name)),
            Self::Suffix(suffix) => write!(f, "*{}", String::from_utf8_lossy(suffix)),
            Self::Regex(regex) => regex.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths() {
        for (pattern, path, expected) in [
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a", "/A", false),
            ("/img/*", "/img/", true),
            ("/img/*", "/img/a/b.png", true),
            ("/img/*", "/img", false),
            ("/img/*", "/imgs/a", false),
            ("/*", "/", true),
            ("/*", "/a/b", true),
            ("/*/edit", "/page/edit", true),
            ("/*/edit", "/a/b/edit", false),
            ("/*/edit", "//edit", true),
            ("/**/edit", "/a/b/edit", true),
            ("/**/edit", "/edit", false),
            ("**.png", "/a/b.png", true),
            ("**.png", "/a/b.pngx", false),
            ("/*.png", "/b.png", true),
            ("/*.png", "/a/b.png", false),
            ("/a*/*c", "/abb/ccc", true),
            ("/users/*/posts/*", "/users/7/posts/9", true),
            ("/users/*/posts/*", "/users/7/posts/9/x", false),
            ("/a\\*b", "/a*b", true),
            ("/a\\*b", "/axb", false),
            ("/a\\*b*", "/a*bc", true),
            ("/%61dmin", "/admin", true),
            ("/caf\u{e9}/*", "/caf%C3%A9/x", true),
            ("/%c3*", "/%C3%A9", true),
            ("/@admin/*", "/@admin/x", true),
            ("/%40admin/*", "/@admin/x", true),
            ("/a b/*", "/a%20b/x", true),
            ("/a%20b/*", "/a%20b/x", true),
            ("/a%2Ab", "/a*b", true),
            ("/a%2Ab", "/axb", false),
            ("/a%2ab*", "/a*bc", true),
            ("/a%2ab*", "/axbc", false),
            ("/%2A%2a", "/**", true),
            ("/%2A%2a", "/ab", false),
            ("/%2F*", "/%2Fa", true),
            ("/%2F*", "//a", false),
            ("/a\\%2A", "/a\\*", true),
            ("/a\\%2A", "/a\\b", false),
            ("/a\\\\*", "/a\\b", true),
            ("/a%5c*", "/a\\b", true),
            ("/a%5C%2A", "/a\\*", true),
            ("/a%5Cb", "/a\\b", true),
            ("/a\\b", "/a\\b", true),
            ("/a%3Bb", "/a;b", true),
            ("/100%/*", "/100%25/x", true),
            ("/x/%2e%2E/a%2eb", "/a.b", true),
        ] {
            let pattern_compiled = PathPattern::new(pattern).expect(pattern);
            assert_eq!(
                pattern_compiled.matches(path.as_bytes()),
                expected,
                "{pattern} on {path}"
            );
        }
    }

    #[test]
    fn kinds_of_path() {
        assert!(matches!(
            PathPattern::new("/a/b"),
            Ok(PathPattern::Exact(_))
        ));
        assert!(matches!(
            PathPattern::new("/a/*"),
            Ok(PathPattern::Prefix(_))
        ));
        assert!(matches!(
            PathPattern::new("/*/a/*"),
            Ok(PathPattern::Glob(_))
        ));
        let long = format!("/*{}", "a".repeat(Glob::MAX_LEN));
        for (pattern, expected) in [
            ("a", PatternError::NoLeadingSlash),
            ("*.png", PatternError::NoLeadingSlash),
            ("", PatternError::NoLeadingSlash),
            ("/a?b=c", PatternError::QueryInPath),
            (&long, PatternError::TooLong),
        ] {
            assert_eq!(PathPattern::new(pattern).err(), Some(expected), "{pattern}");
        }
        assert!(PathPattern::new(&long[..long.len() - 1]).is_ok());
    }

    #[test]
    fn other_readings_of_what_is_asked_for() {
        for (pattern, readings) in [
            ("/a/*", &[][..]),
            ("/a\\*b", &[]),
            ("/a%20b", &[]),
            ("/a%2fb", &["/a/b"]),
            ("/a%2Fb/*", &["/a/b/"]),
            ("/a\\\\b/*/c", &["/a/b/*/c"]),
            ("/*;v=1", &["/*"]),
            ("**.php;**", &[]),
        ] {
            let found = PathPattern::new(pattern).expect(pattern).other_readings();
            let found: Vec<_> = found.iter().map(|it| String::from_utf8_lossy(it)).collect();
            assert_eq!(found, readings, "{pattern}");
        }
    }

    #[test]
    fn hosts() {
        for (pattern, host, expected) in [
            ("example.com", "Example.COM", true),
            ("example.com", "example.com.", true),
            ("example.com", "www.example.com", false),
            ("*.example.com", "www.example.com", true),
            ("*.Example.com", "a.b.EXAMPLE.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*.example.com", "badexample.com", false),
            ("*.example.com", "", false),
            ("[::1]", "[::1]", true),
        ] {
            let compiled = HostPattern::new(pattern).expect(pattern);
            assert_eq!(
                compiled.matches(host.as_bytes()),
                expected,
                "{pattern} on {host}"
            );
        }
        for (pattern, expected) in [
            ("*", PatternError::HostWildcard),
            ("*.", PatternError::HostWildcard),
            ("www.*.com", PatternError::HostWildcard),
            ("a.com:80", PatternError::HostSyntax),
            ("http://a.com", PatternError::HostSyntax),
            ("", PatternError::HostSyntax),
        ] {
            assert_eq!(HostPattern::new(pattern), Err(expected), "{pattern}");
        }
    }

    /// The obvious matcher, exponential and plainly right.
    fn matches_slowly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', b'*', rest @ ..] => {
                (0..=text.len()).any(|skipped| matches_slowly(rest, &text[skipped..]))
            }
            [b'*', rest @ ..] => (0..=text.len())
                .take_while(|&skipped| !text[..skipped].contains(&b'/'))
                .any(|skipped| matches_slowly(rest, &text[skipped..])),
            [byte, rest @ ..] => text.first() == Some(byte) && matches_slowly(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_obvious_matcher(pattern in "[ab/*]{0,8}", text in "[ab/]{0,8}") {
            let glob = Glob::new(pattern.as_bytes(), Star::WithinSegment).unwrap();
            prop_assert_eq!(
                glob.matches(text.bytes()),
                matches_slowly(pattern.as_bytes(), text.as_bytes())
            );
        }
    }
}
