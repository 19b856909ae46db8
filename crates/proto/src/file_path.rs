//! From the path of a request to the path of a file below a root.
//!
//! Decides on names alone. The caller finds out whether such a file exists, and
//! where links lead to.

use std::borrow::Cow;

use crate::error::PathError;

/// Longest name of a file or folder, in bytes.
pub const MAX_NAME_LEN: usize = 255;

/// Longest path that the system takes, in bytes.
pub const MAX_PATH_LEN: usize = 4095;

/// The path below a root that a request's path leads to.
///
/// `path` is as sent, without query. The result has no slash at its front, and
/// is empty for the root itself.
///
/// Percent signs are decoded, once. Then `.`, `..` and empty segments are
/// resolved (RFC 3986 §5.2.4). A slash at the end is kept, and a path that ends
/// in `/.` or `/..` gets one. The result is borrowed if the path needs none of
/// this, and has no name that begins with a dot.
///
/// # Errors
/// Why no file can be there. Deviation: RFC 3986 lets a `..` in the root stay
/// there. Here it is refused, because only attackers send it.
pub fn decode(path: &[u8]) -> Result<Cow<'_, [u8]>, PathError> {
    let decoded = match path.strip_prefix(b"/") {
        Some(below) if is_literal(path) => {
            check_names(below)?;
            Cow::Borrowed(below)
        }
        _ => Cow::Owned(resolve(path)?),
    };
    if decoded.len() > MAX_PATH_LEN {
        return Err(PathError::TooLong);
    }
    Ok(decoded)
}

/// Whether some name in a decoded path begins with a dot; a path that
/// [`decode`] borrows has none. `.well-known` is there to be found (RFC 8615).
pub fn is_hidden(path: &[u8]) -> bool {
    let path = path.strip_prefix(b".well-known/").unwrap_or(path);
    path.first() == Some(&b'.') || has_pair(path, |before, byte| before == b'/' && byte == b'.')
}

/// Whether a path that begins with a slash needs no decoding and no resolving.
fn is_literal(path: &[u8]) -> bool {
    !has_pair(path, |before, byte| {
        let begins_segment = before == b'/';
        let is_odd_there = (byte == b'/') | (byte == b'.');
        (byte == b'%') | (byte == 0) | (begins_segment & is_odd_there)
    })
}

/// Whether a byte and the one before it are such a pair.
fn has_pair(path: &[u8], is_such: impl Fn(u8, u8) -> bool) -> bool {
    let after = path.get(1..).unwrap_or_default();
    // Without an early end the compiler looks at many bytes at a time.
    std::iter::zip(path, after).fold(false, |found, (&before, &byte)| {
        found | is_such(before, byte)
    })
}

fn check_names(path: &[u8]) -> Result<(), PathError> {
    let is_long = |name: &[u8]| name.len() > MAX_NAME_LEN;
    if is_long(path) && path.split(|&byte| byte == b'/').any(is_long) {
        return Err(PathError::NameTooLong);
    }
    Ok(())
}

/// Decodes and resolves segment by segment. Before each of them, the resolved
/// part is empty or ends in a slash.
fn resolve(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut resolved = Vec::with_capacity(path.len());
    for segment in path.split_inclusive(|&byte| byte == b'/') {
        let start = resolved.len();
        let name = segment.strip_suffix(b"/").unwrap_or(segment);
        decode_name(name, &mut resolved)?;
        match &resolved[start..] {
            b"" => {}
            b"." => resolved.truncate(start),
            b".." => {
                resolved.truncate(start);
                climb(&mut resolved)?;
            }
            name if name.len() > MAX_NAME_LEN => return Err(PathError::NameTooLong),
            _ => resolved.extend_from_slice(&segment[name.len()..]),
        }
    }
    Ok(resolved)
}

/// Takes the last folder off.
fn climb(resolved: &mut Vec<u8>) -> Result<(), PathError> {
    let _slash = resolved.pop().ok_or(PathError::Climbs)?;
    let parent_len = memchr::memrchr(b'/', resolved).map_or(0, |slash| slash + 1);
    resolved.truncate(parent_len);
    Ok(())
}

/// Appends a name without its percent signs.
fn decode_name(name: &[u8], decoded: &mut Vec<u8>) -> Result<(), PathError> {
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let (byte, after) = match first {
            b'%' => {
                let (&[high, low], after) = after.split_first_chunk().ok_or(PathError::Percent)?;
                (digit(high)? << 4 | digit(low)?, after)
            }
            &byte => (byte, after),
        };
        match byte {
            0 => return Err(PathError::Nul),
            b'/' => return Err(PathError::EncodedSlash),
            byte => decoded.push(byte),
        }
        rest = after;
    }
    Ok(())
}

fn digit(byte: u8) -> Result<u8, PathError> {
    match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        b'A'..=b'F' => Ok(byte - b'A' + 10),
        _ => Err(PathError::Percent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrows_what_needs_no_change() {
        for (path, below) in [
            ("/", ""),
            ("/a", "a"),
            ("/a/", "a/"),
            ("/img/2007/photo.jpg", "img/2007/photo.jpg"),
            ("/a.b/c..d", "a.b/c..d"),
            ("/a../b.", "a../b."),
            ("/a b\\..\\c", "a b\\..\\c"),
            ("/?", "?"),
            ("/caf\u{e9}", "caf\u{e9}"),
        ] {
            let decoded = decode(path.as_bytes());
            assert_eq!(decoded, Ok(Cow::Borrowed(below.as_bytes())), "{path}");
            assert!(matches!(decoded, Ok(Cow::Borrowed(_))), "{path}");
        }
    }

    #[test]
    fn decodes_and_resolves() {
        for (path, below) in [
            ("", ""),
            ("a/b", "a/b"),
            ("*", "*"),
            ("//", ""),
            ("//a///b//", "a/b/"),
            ("/a%20b", "a b"),
            ("/%61%2Ecss", "a.css"),
            ("/caf%C3%A9", "caf\u{e9}"),
            ("/100%25", "100%"),
            ("/a%3Fb%23c", "a?b#c"),
            ("/a+b%2B", "a+b+"),
            ("/.", ""),
            ("/./", ""),
            ("/a/.", "a/"),
            ("/a/./b", "a/b"),
            ("/a/..", ""),
            ("/a/../", ""),
            ("/a/b/..", "a/"),
            ("/a/b/../", "a/"),
            ("/a/b/../c", "a/c"),
            ("/a/b/../../c", "c"),
            ("/a//../b", "b"),
            ("/a/...", "a/..."),
            ("/.well-known/x", ".well-known/x"),
            ("/a/..b/.c", "a/..b/.c"),
            // Every way to write `..`.
            ("/a/%2e%2e/b", "b"),
            ("/a/%2E%2E/b", "b"),
            ("/a/.%2e/b", "b"),
            ("/a/%2e./b", "b"),
            ("/a/%2e/b", "a/b"),
            ("/a/b/%2e%2e", "a/"),
            // Paths that only look like it.
            ("/%252e%252e/b", "%2e%2e/b"),
            ("/a/%252e", "a/%2e"),
            ("/%252f..%252f", "%2f..%2f"),
            ("/..\\b", "..\\b"),
            ("/%5c..%5Cb", "\\..\\b"),
            ("/..;/b", "..;/b"),
        ] {
            let decoded = decode(path.as_bytes());
            assert_eq!(decoded.as_deref(), Ok(below.as_bytes()), "{path}");
        }
        // Overlong UTF-8 is bytes like any others.
        let overlong = decode(b"/%c0%ae%c0%ae/b");
        assert_eq!(overlong.as_deref(), Ok(&b"\xc0\xae\xc0\xae/b"[..]));
    }

    #[test]
    fn refuses_what_no_file_has() {
        use PathError::*;
        for (path, error) in [
            ("/..", Climbs),
            ("/../", Climbs),
            ("/../a", Climbs),
            ("..", Climbs),
            ("/./..", Climbs),
            ("//..", Climbs),
            ("/a/../..", Climbs),
            ("/a/../../a", Climbs),
            ("/a/b/../../../a/b", Climbs),
            ("/%2e%2e/a", Climbs),
            ("/%2E./a", Climbs),
            ("/.%2E", Climbs),
            ("/..%2f", EncodedSlash),
            ("/..%2Fetc", EncodedSlash),
            ("/%2e%2e%2fetc", EncodedSlash),
            ("/a%2fb", EncodedSlash),
            ("%2f", EncodedSlash),
            ("/a%00", Nul),
            ("/a%00.jpg", Nul),
            ("/a\0", Nul),
            ("\0", Nul),
            ("/%", Percent),
            ("/a%2", Percent),
            ("/%/a", Percent),
            ("/a%2/e", Percent),
            ("/%zz", Percent),
            ("/%2g", Percent),
            ("/%+1", Percent),
            ("/%%41", Percent),
            ("/%u002e", Percent),
        ] {
            assert_eq!(decode(path.as_bytes()), Err(error), "{path:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "an interpreter takes minutes for so much")]
    fn bounds_names_and_paths() {
        let longest = "n".repeat(MAX_NAME_LEN);
        let most = format!("/{longest}").repeat(MAX_PATH_LEN / (MAX_NAME_LEN + 1));
        let encoded = "%6e".repeat(MAX_NAME_LEN);
        let many = "/a".repeat(MAX_PATH_LEN / 2);
        for (path, is_fine) in [
            (format!("/{longest}"), true),
            (format!("/{longest}n"), false),
            (format!("/a/{longest}n/b"), false),
            (format!("//{longest}n"), false),
            (format!("/{longest}n/../b"), false),
            (format!("/{encoded}"), true),
            (format!("/{encoded}%6e"), false),
        ] {
            let expected = if is_fine {
                None
            } else {
                Some(PathError::NameTooLong)
            };
            assert_eq!(decode(path.as_bytes()).err(), expected, "{path}");
        }
        for (path, is_fine) in [
            (format!("{most}/{longest}"), true),
            (format!("{most}/{longest}/"), false),
            (format!("{many}/a"), true),
            (format!("{many}/ab"), false),
            (format!("/{many}/ab"), false),
            (format!("/{many}/./a"), true),
            (format!("{many}/%61"), true),
            (format!("{many}/%61b"), false),
        ] {
            let expected = if is_fine {
                None
            } else {
                Some(PathError::TooLong)
            };
            assert_eq!(decode(path.as_bytes()).err(), expected, "{path}");
        }
    }

    #[test]
    fn knows_hidden_names() {
        for (path, hidden) in [
            ("", false),
            ("a", false),
            ("a.b/c.", false),
            (".", true),
            (".git/config", true),
            ("a/.htaccess", true),
            ("a/b./", false),
            ("a/.b/c", true),
            ("a/...", true),
        ] {
            assert_eq!(is_hidden(path.as_bytes()), hidden, "{path}");
        }
    }
}
