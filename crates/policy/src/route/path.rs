//! The normal form of a path, on which routes match.
//!
//! Follows RFC 3986 section 6.2.2: percent-encodings of unreserved characters
//! are decoded, the digits of the others are upper case, dot segments are
//! removed. Beyond it, runs of `/` count as one, as most servers behind a
//! proxy treat them, and bytes outside ASCII and a `%` that encodes nothing are
//! percent-encoded. Thus `/%61dmin`, `//admin` and `/x/../admin` all match
//! `/admin`. What is sent to the upstream is not touched.

use std::borrow::Cow;

/// The normal form of `path`; borrowed where it already has it.
///
/// A path that does not begin with `/` (as in `OPTIONS *`) keeps its segments.
pub fn normalise(path: &[u8]) -> Cow<'_, [u8]> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    if decoded.first() == Some(&b'/') {
        Cow::Owned(remove_dot_segments(&decoded))
    } else {
        Cow::Owned(decoded)
    }
}

/// Cheap and cautious: `false` may still turn out to be normal.
fn is_normal(path: &[u8]) -> bool {
    let mut previous = 0;
    for &byte in path {
        let suspicious = match byte {
            b'%' | 0x80.. => true,
            b'.' | b'/' => previous == b'/',
            _ => false,
        };
        if suspicious {
            return false;
        }
        previous = byte;
    }
    true
}

/// The normal form of a path that nobody encoded, such as that of a file.
pub fn encode(path: &[u8]) -> Vec<u8> {
    let mut normal = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'%' | 0x80.. => push_encoded(&mut normal, byte),
            _ => normal.push(byte),
        }
    }
    normal
}

/// Decodes unreserved characters; the digits of the other encodings are upper
/// case.
pub(super) fn decode_unreserved(path: &[u8]) -> Vec<u8> {
    let mut normal = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, decode_pair(tail)) {
            (b'%', Some(decoded)) => {
                rest = &tail[2..];
                if is_unreserved(decoded) {
                    normal.push(decoded);
                } else {
                    push_encoded(&mut normal, decoded);
                }
            }
            (b'%' | 0x80.., _) => push_encoded(&mut normal, byte),
            _ => normal.push(byte),
        }
    }
    normal
}

/// Removes dot segments and empty segments of a path that begins with a slash.
pub(super) fn remove_dot_segments(path: &[u8]) -> Vec<u8> {
    let mut normal = Vec::with_capacity(path.len());
    let mut segments = path[1..].split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            b"" | b"." => {}
            b".." => {
                let parent = normal.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                normal.truncate(parent);
            }
            _ => {
                normal.push(b'/');
                normal.extend_from_slice(segment);
                continue;
            }
        }
        if last {
            normal.push(b'/');
        }
    }
    normal
}

/// The byte that two hexadecimal digits at the start of `digits` stand for.
pub(crate) fn decode_pair(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| {
        (*digits.get(at)? as char)
            .to_digit(16)
            .map(|digit| digit as u8)
    };
    Some(digit(0)? << 4 | digit(1)?)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn push_encoded(normal: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    normal.extend([
        b'%',
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn normal_forms() {
        for (path, expected) in [
            ("/", "/"),
            ("", ""),
            ("*", "*"),
            ("/a/b.c", "/a/b.c"),
            ("/%61dmin", "/admin"),
            ("/%41%7e%2D%5f", "/A~-_"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/%zz%4", "/%25zz%254"),
            ("/%%361dmin", "/%2561dmin"),
            ("/%2561", "/%2561"),
            ("/./a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/../../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/b/.", "/a/b/"),
            ("/..", "/"),
            ("//a///b//", "/a/b/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/..."),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("a/../b", "a/../b"),
        ] {
            let normal = normalise(path.as_bytes());
            assert_eq!(String::from_utf8_lossy(&normal), expected, "of {path:?}");
        }
    }

    #[test]
    fn a_normal_path_is_borrowed() {
        assert!(matches!(
            normalise(b"/img/2024/a-b_c~d.png"),
            Cow::Borrowed(_)
        ));
    }

    proptest! {
        #[test]
        fn normalising_twice_changes_nothing(path in "/[a/.%26eE\u{e9}]{0,24}") {
            let once = normalise(path.as_bytes()).into_owned();
            prop_assert_eq!(&*normalise(&once), &once[..]);
        }

        #[test]
        fn no_dot_segment_is_left(path in "/[a/.%2eE]{0,24}") {
            let normal = normalise(path.as_bytes()).into_owned();
            prop_assert!(normal.starts_with(b"/"));
            prop_assert!(!normal.split(|&b| b == b'/').any(|it| it == b".." || it == b"."));
        }

        #[test]
        fn encoding_letters_changes_nothing(path in "/[a-z/]{0,12}", encode in any::<u16>()) {
            let mut written = Vec::new();
            for (index, byte) in path.bytes().enumerate() {
                if byte.is_ascii_lowercase() && encode >> (index % 16) & 1 == 1 {
                    written.extend(format!("%{byte:02x}").bytes());
                } else {
                    written.push(byte);
                }
            }
            prop_assert_eq!(normalise(&written), normalise(path.as_bytes()));
        }
    }
}
