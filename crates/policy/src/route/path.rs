//! The normal form of a path, on which routes match.
//!
//! Each character has one spelling: visible ASCII stands for itself, and all
//! else is percent-encoded, with digits in upper case. A `%` that encodes
//! nothing is a plain one. Characters that would be delimiters if they were
//! decoded stay encoded: `%2F`, `%3F`, `%23` and `%25`. Dot segments are
//! removed (RFC 3986 section 6.2.2), and runs of `/` count as one. Thus
//! `/%61dmin`, `//admin` and `/x/../admin` all become `/admin`, and `/%40a`
//! becomes `/@a`. The path that is sent to the upstream is not touched.
//!
//! The normal form is one reading of a path; `reading` has the others.

use std::borrow::Cow;

/// The normal form of `path`; borrowed only where servers read it in one way.
///
/// A path that does not begin with `/` (as in `OPTIONS *`) keeps its segments.
pub fn normalise(path: &[u8]) -> Cow<'_, [u8]> {
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(normal_form(&decode(path)))
}

/// The normal form of a path that is [`decode`]d.
pub(super) fn normal_form(text: &[u8]) -> Vec<u8> {
    without_dot_segments(&with_single_slashes(&finish(text)))
}

/// Whether a path has its normal form and no other reading. Cautious: `false`
/// may be wrong.
fn is_plain(path: &[u8]) -> bool {
    let after = path.get(1..).unwrap_or_default();
    let is_odd = |byte: u8| {
        let is_mark = (byte == b'%') | (byte == b'\\') | (byte == b';');
        is_mark | !byte.is_ascii_graphic()
    };
    // Without an early end the compiler looks at many bytes at a time.
    let pairs = std::iter::zip(path, after);
    let is_odd_behind = pairs.fold(false, |found, (&before, &byte)| {
        let begins_segment = before == b'/';
        found | is_odd(byte) | (begins_segment & ((byte == b'/') | (byte == b'.')))
    });
    !is_odd_behind && !path.first().is_some_and(|&first| is_odd(first))
}

/// How a path writes one of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As it is.
    Plain,
    /// Percent-encoded, or as a `%` that encodes nothing.
    Encoded,
}

/// Takes the next byte that `rest` spells.
pub(super) fn take(rest: &mut &[u8]) -> Option<(u8, Spelling)> {
    let (&byte, tail) = rest.split_first()?;
    *rest = tail;
    if byte != b'%' {
        return Some((byte, Spelling::Plain));
    }
    let decoded = decode_pair(tail);
    if decoded.is_some() {
        *rest = &tail[2..];
    }
    Some((decoded.unwrap_or(b'%'), Spelling::Encoded))
}

/// Appends a byte in the one spelling of its character. Characters that servers
/// treat in several ways keep their spelling.
pub(super) fn push(text: &mut Vec<u8>, byte: u8, spelling: Spelling) {
    let is_encoded = match byte {
        b'/' | b'\\' | b';' | b'.' => spelling == Spelling::Encoded,
        b'%' | b'?' | b'#' => true,
        _ => !byte.is_ascii_graphic(),
    };
    if is_encoded {
        push_encoded(text, byte);
    } else {
        text.push(byte);
    }
}

/// The normal form of a path without any encoding, such as a file's.
pub fn encode(path: &[u8]) -> Vec<u8> {
    let mut normal = Vec::with_capacity(path.len());
    for &byte in path {
        push(&mut normal, byte, Spelling::Plain);
    }
    normal
}

/// Each character in its one spelling, but for `%2E`, `%5C` and `%3B`: these
/// differ from `.`, `\` and `;` up to [`finish`].
pub(super) fn decode(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((byte, spelling)) = take(&mut rest) {
        push(&mut text, byte, spelling);
    }
    text
}

/// Decodes the rest that [`decode`] left.
pub(super) fn finish(text: &[u8]) -> Cow<'_, [u8]> {
    let mut finished = Cow::Borrowed(text);
    for (mark, byte) in [(b"%2E", b'.'), (b"%5C", b'\\'), (b"%3B", b';')] {
        if let Some(replaced) = with_replaced(&finished, mark, byte) {
            finished = Cow::Owned(replaced);
        }
    }
    finished
}

/// With `by` for each `mark`, if there is one.
pub(super) fn with_replaced(text: &[u8], mark: &[u8], by: u8) -> Option<Vec<u8>> {
    let mut found = memchr::memmem::find_iter(text, mark).peekable();
    found.peek()?;
    let mut replaced = Vec::with_capacity(text.len());
    let mut from = 0;
    for at in found {
        replaced.extend_from_slice(&text[from..at]);
        replaced.push(by);
        from = at + mark.len();
    }
    replaced.extend_from_slice(&text[from..]);
    Some(replaced)
}

/// With one slash for each run of them.
pub(super) fn with_single_slashes(text: &[u8]) -> Cow<'_, [u8]> {
    if text.first() != Some(&b'/') || memchr::memmem::find(text, b"//").is_none() {
        return Cow::Borrowed(text);
    }
    let mut merged = text.to_vec();
    merged.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    Cow::Owned(merged)
}

/// Without dot segments (RFC 3986 section 5.2.4). An empty segment is a segment
/// there, which a `..` behind it takes away.
pub fn without_dot_segments(text: &[u8]) -> Vec<u8> {
    if text.first() != Some(&b'/') || memchr::memmem::find(text, b"/.").is_none() {
        return text.to_vec();
    }
    let mut resolved = Vec::with_capacity(text.len());
    let mut segments = text[1..].split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            b"." => {}
            b".." => {
                let parent_len = memchr::memrchr(b'/', &resolved).unwrap_or(0);
                resolved.truncate(parent_len);
            }
            _ => {
                resolved.push(b'/');
                resolved.extend_from_slice(segment);
                continue;
            }
        }
        if segments.peek().is_none() {
            resolved.push(b'/');
        }
    }
    resolved
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
            ("/%40%3A%24%21%27%28%29%2C", "/@:$!'(),"),
            ("/%2b%3d%26%2a%7B%7D%5b%5D%7C%22%3c", "/+=&*{}[]|\"<"),
            ("/%5c%3B\\;", "/\\;\\;"),
            ("/a%20b c\t%09", "/a%20b%20c%09%09"),
            ("/a%3fb%23", "/a%3Fb%23"),
            ("/%c3%A9\u{e9}%ff", "/%C3%A9%C3%A9%FF"),
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
        fn normalising_twice_changes_nothing(path in "/[a/.%2356bBcCeEfF;\\\\ \u{e9}]{0,24}") {
            let once = normalise(path.as_bytes()).into_owned();
            prop_assert_eq!(&*normalise(&once), &once[..]);
        }

        #[test]
        fn no_dot_segment_is_left(path in "/[a/.%2eE]{0,24}") {
            let normal = normalise(path.as_bytes()).into_owned();
            prop_assert!(normal.starts_with(b"/"));
            prop_assert!(!normal.split(|&b| b == b'/').any(|it| it == b".." || it == b"."));
        }

        /// Encodes any characters, except those that would become delimiters.
        #[test]
        fn encoding_changes_nothing(path in "/[ !\"$&-.0->@-~\u{e9}]{0,16}", encode in any::<u16>()) {
            let mut written = vec![b'/'];
            for (index, byte) in path.bytes().enumerate().skip(1) {
                match encode >> (index % 16) & 3 {
                    0 => written.push(byte),
                    1 => written.extend(format!("%{byte:02x}").bytes()),
                    _ => written.extend(format!("%{byte:02X}").bytes()),
                }
            }
            prop_assert_eq!(normalise(&written), normalise(path.as_bytes()));
        }

        /// A file's name has the same normal form as a request for it.
        #[test]
        fn a_name_is_encoded_as_it_is_asked_for(name in "[^\u{0}/.][^\u{0}/]{0,12}") {
            let asked: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let encoded = encode(format!("/{name}").as_bytes());
            let asked = format!("/{asked}");
            prop_assert_eq!(&*normalise(asked.as_bytes()), &encoded[..]);
        }
    }
}
