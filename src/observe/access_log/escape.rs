//! Escapes text from outside, so that it can't pass for another part of a line.

use super::line::Line;

/// As nginx does it: `"`, `\` and everything that is not printable ASCII
/// become `\xHH`.
pub(super) fn push_quoted(line: &mut Line<'_>, value: &[u8]) {
    push_escaped(line, value, is_plain, |line, byte| {
        line.literal(b"\\x");
        push_hex(line, byte);
    });
}

/// The same for what stands between spaces.
pub(super) fn push_word(line: &mut Line<'_>, value: &[u8]) {
    push_escaped(
        line,
        value,
        |byte| is_plain(byte) && byte != b' ',
        |line, byte| {
            line.literal(b"\\x");
            push_hex(line, byte);
        },
    );
}

/// As HAProxy does it (configuration manual, section 8.6): `"`, `#` and
/// everything that is not printable ASCII become `#HH`.
pub(super) fn push_hashed(line: &mut Line<'_>, value: &[u8]) {
    let is_plain = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'#';
    push_escaped(line, value, is_plain, |line, byte| {
        line.byte(b'#');
        push_hex(line, byte);
    });
}

/// The inside of a JSON string, in ASCII. Invalid UTF-8 is shown as Latin-1.
pub(super) fn push_json(line: &mut Line<'_>, value: &[u8]) {
    if are_plain(value) {
        return line.bytes(value);
    }
    for chunk in value.utf8_chunks() {
        for letter in chunk.valid().chars() {
            push_json_letter(line, letter);
        }
        for &byte in chunk.invalid() {
            push_json_letter(line, char::from(byte));
        }
    }
}

fn push_json_letter(line: &mut Line<'_>, letter: char) {
    match u8::try_from(letter) {
        Ok(byte) if is_plain(byte) => line.byte(byte),
        Ok(byte @ (b'"' | b'\\')) => line.literal(&[b'\\', byte]),
        _ => {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                line.literal(b"\\u");
                for byte in unit.to_be_bytes() {
                    push_hex(line, byte);
                }
            }
        }
    }
}

/// Whether no byte needs an escape, but for formats with a sign of their own.
pub(super) fn are_plain(value: &[u8]) -> bool {
    are_all(value, is_plain)
}

fn is_plain(byte: u8) -> bool {
    (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\'
}

#[inline]
fn push_escaped(
    line: &mut Line<'_>,
    value: &[u8],
    is_plain: impl Fn(u8) -> bool,
    escape: impl Fn(&mut Line<'_>, u8),
) {
    if are_all(value, &is_plain) {
        return line.bytes(value);
    }
    for &byte in value {
        if is_plain(byte) {
            line.byte(byte);
        } else {
            escape(line, byte);
        }
    }
}

#[inline]
fn are_all(value: &[u8], is_plain: impl Fn(u8) -> bool) -> bool {
    // Without an early end the compiler looks at many bytes at a time.
    !value.iter().fold(false, |odd, &byte| odd | !is_plain(byte))
}

fn push_hex(line: &mut Line<'_>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    line.literal(&[
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
    ]);
}

#[cfg(test)]
mod tests {
    use super::super::line::written;
    use super::*;

    /// The value that a reader decodes from the JSON string.
    fn read_as_json(value: &[u8]) -> String {
        let json = written(|line| {
            line.byte(b'"');
            push_json(line, value);
            line.byte(b'"');
        });
        assert!(json.is_ascii(), "{json:?}");
        serde_json::from_slice(&json).expect("a JSON string")
    }

    #[test]
    fn no_byte_can_forge_a_line() {
        for byte in 0..=255u8 {
            for push in [push_quoted, push_word, push_hashed] {
                let escaped = written(|line| push(line, &[b'a', byte, b'b']));
                assert!(escaped.iter().all(|&byte| (0x20..0x7f).contains(&byte)));
                assert!(!escaped.contains(&b'"'));
            }
            let word = written(|line| push_word(line, &[byte]));
            assert!(!word.contains(&b' '));
            let text = read_as_json(&[b'a', byte, b'b']);
            assert_eq!(text, String::from_iter(['a', char::from(byte), 'b']));
        }
    }

    #[test]
    fn json_has_the_letters_that_utf_8_stands_for() {
        for (value, expected) in [
            (
                "naïve \u{202e}日本 🦀\"\\".as_bytes(),
                "naïve \u{202e}日本 🦀\"\\",
            ),
            (b"\xc3\xa9 and \xe9", "é and é"),
            (b"cut off: \xf0\x9f\xa6", "cut off: \u{f0}\u{9f}\u{a6}"),
        ] {
            assert_eq!(read_as_json(value), expected);
        }
    }

    #[test]
    fn escapes_as_haproxy_does() {
        let text = b"a\"#\x00\x7f\xff |{}\\";
        assert_eq!(
            written(|line| push_hashed(line, text)),
            b"a#22#23#00#7F#FF |{}\\"
        );
    }

    #[test]
    fn a_byte_is_seen_wherever_it_stands() {
        for len in 1..70 {
            for at in 0..len {
                let mut value = vec![b'x'; len];
                assert!(are_all(&value, is_plain));
                value[at] = b'"';
                assert!(!are_all(&value, is_plain), "{at} of {len}");
            }
        }
    }
}
