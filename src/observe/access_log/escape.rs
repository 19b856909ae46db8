//! Text from outside, written so that it can't pass for anything of a line.

/// As nginx does it: `"`, `\` and everything that is not printable ASCII
/// become `\xHH`.
pub(super) fn push_quoted(out: &mut Vec<u8>, value: &[u8]) {
    push_escaped(out, value, is_plain, |out, byte| {
        out.extend_from_slice(b"\\x");
        push_hex(out, byte);
    });
}

/// The same for what stands between spaces.
pub(super) fn push_word(out: &mut Vec<u8>, value: &[u8]) {
    push_escaped(
        out,
        value,
        |byte| is_plain(byte) && byte != b' ',
        |out, byte| {
            out.extend_from_slice(b"\\x");
            push_hex(out, byte);
        },
    );
}

/// As HAProxy does it (configuration manual, section 8.6): `"`, `#` and
/// everything that is not printable ASCII become `#HH`.
pub(super) fn push_hashed(out: &mut Vec<u8>, value: &[u8]) {
    let is_plain = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'#';
    push_escaped(out, value, is_plain, |out, byte| {
        out.push(b'#');
        push_hex(out, byte);
    });
}

/// What stands between the quotes of a JSON string. Bytes above 0x7f need not
/// be UTF-8: they are shown as Latin-1.
pub(super) fn push_json(out: &mut Vec<u8>, value: &[u8]) {
    push_escaped(out, value, is_plain, |out, byte| {
        if byte == b'"' || byte == b'\\' {
            out.extend_from_slice(&[b'\\', byte]);
        } else {
            out.extend_from_slice(b"\\u00");
            push_hex(out, byte);
        }
    });
}

pub(super) fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn is_plain(byte: u8) -> bool {
    (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\'
}

#[inline]
fn push_escaped(
    out: &mut Vec<u8>,
    value: &[u8],
    is_plain: impl Fn(u8) -> bool,
    escape: impl Fn(&mut Vec<u8>, u8),
) {
    // Without an early end the compiler looks at many bytes at a time.
    let odd = value.iter().fold(false, |odd, &byte| odd | !is_plain(byte));
    if !odd {
        return out.extend_from_slice(value);
    }
    for &byte in value {
        if is_plain(byte) {
            out.push(byte);
        } else {
            escape(out, byte);
        }
    }
}

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_can_forge_a_line() {
        for byte in 0..=255u8 {
            for push in [push_quoted, push_word, push_hashed] {
                let mut escaped = Vec::new();
                push(&mut escaped, &[b'a', byte, b'b']);
                assert!(escaped.iter().all(|&byte| (0x20..0x7f).contains(&byte)));
                assert!(!escaped.contains(&b'"'));
            }
            let mut word = Vec::new();
            push_word(&mut word, &[byte]);
            assert!(!word.contains(&b' '));
            let mut json = vec![b'"'];
            push_json(&mut json, &[b'a', byte, b'b']);
            json.push(b'"');
            let text: String = serde_json::from_slice(&json).expect("a JSON string");
            assert_eq!(text, String::from_iter(['a', char::from(byte), 'b']));
        }
    }

    #[test]
    fn escapes_as_haproxy_does() {
        let mut out = Vec::new();
        push_hashed(&mut out, b"a\"#\x00\x7f\xff |{}\\");
        assert_eq!(out, b"a#22#23#00#7F#FF |{}\\");
    }
}
