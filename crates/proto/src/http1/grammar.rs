//! The grammar of heads (RFC 9112 §2 to §5): where words, lines and fields end.
//!
//! Every reader goes over a byte once and stops at the first that can't stand
//! where it does. So a verdict on some bytes holds for all inputs that begin
//! with them, however they are cut up on their way.

use crate::field::{Field, FieldKind};
use crate::head::Version;
use crate::span::Span;

/// Why reading stopped before the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The bytes are as they should be so far, but there are too few.
    Short,
    /// A byte stands where it must not.
    Odd,
    /// The head has more fields than are read.
    TooManyFields,
}

/// Reads field lines from `at` to the empty line behind them into `fields`, `max`
/// of them at most; returns where that ends.
pub(super) fn field_lines(
    buf: &[u8],
    mut at: usize,
    fields: &mut Vec<Field>,
    max: usize,
) -> Result<usize, Stop> {
    fields.clear();
    while buf.get(at) != Some(&b'\r') {
        let name = Span::new(at, token_end(buf, at));
        let value_at = word_end(buf, name, b':')?;
        if fields.len() == max {
            return Err(Stop::TooManyFields);
        }
        let value_start = blanks_end(buf, value_at);
        let value_end = text_end(buf, value_start);
        at = line_end(buf, value_end)?;
        fields.push(Field {
            name,
            value: without_blanks_behind(buf, value_start, value_end),
            kind: FieldKind::from_name(name.of(buf)),
        });
    }
    line_end(buf, at)
}

/// The byte at `at`.
fn byte(buf: &[u8], at: usize) -> Result<u8, Stop> {
    buf.get(at).copied().ok_or(Stop::Short)
}

/// Takes `wanted`, which must be at `at`; returns the place behind it.
pub(super) fn expect(buf: &[u8], at: usize, wanted: u8) -> Result<usize, Stop> {
    if byte(buf, at)? == wanted {
        Ok(at + 1)
    } else {
        Err(Stop::Odd)
    }
}

/// Takes the `delimiter` behind a word, which must have a byte at least.
pub(super) fn word_end(buf: &[u8], word: Span, delimiter: u8) -> Result<usize, Stop> {
    let end = expect(buf, word.end as usize, delimiter)?;
    if word.is_empty() {
        Err(Stop::Odd)
    } else {
        Ok(end)
    }
}

/// Takes each byte of `word`, which must be at `at`.
pub(super) fn expect_all(buf: &[u8], at: usize, word: &[u8]) -> Result<usize, Stop> {
    let found = buf.get(at..).unwrap_or_default();
    if found.starts_with(word) {
        Ok(at + word.len())
    } else if word.starts_with(found) {
        Err(Stop::Short)
    } else {
        Err(Stop::Odd)
    }
}

/// Takes the CRLF that must be at `at`.
pub(super) fn line_end(buf: &[u8], at: usize) -> Result<usize, Stop> {
    match buf.get(at..) {
        Some([b'\r', b'\n', ..]) => Ok(at + 2),
        _ => expect_all(buf, at, b"\r\n"),
    }
}

/// Reads `HTTP/1.` and a digit; returns what is behind it, too. Every minor
/// version but 0 is read as 1 (RFC 9110 §2.5).
pub(super) fn version(buf: &[u8], at: usize) -> Result<(Version, usize), Stop> {
    let at = expect_all(buf, at, b"HTTP/1.")?;
    match byte(buf, at)? {
        b'0' => Ok((Version::Http10, at + 1)),
        b'1'..=b'9' => Ok((Version::Http11, at + 1)),
        _ => Err(Stop::Odd),
    }
}

/// Reads a status code of three digits, not below 100.
pub(super) fn status(buf: &[u8], at: usize) -> Result<(u16, usize), Stop> {
    let mut status = 0;
    for place in at..at + 3 {
        match byte(buf, place)? {
            b'0' if place == at => return Err(Stop::Odd),
            digit @ b'0'..=b'9' => status = status * 10 + u16::from(digit - b'0'),
            _ => return Err(Stop::Odd),
        }
    }
    Ok((status, at + 3))
}

/// The end of the run of `tchar` from `at`.
pub(super) fn token_end(buf: &[u8], at: usize) -> usize {
    let rest = buf.get(at..).unwrap_or_default();
    at + rest
        .iter()
        .position(|&byte| !is_token_byte(byte))
        .unwrap_or(rest.len())
}

/// The end of a field's value or a reason phrase from `at`: before the first
/// control byte other than a tab.
pub(super) fn text_end(buf: &[u8], at: usize) -> usize {
    let mut at = run_end::<b' ', true>(buf, at);
    while buf.get(at) == Some(&b'\t') {
        at = run_end::<b' ', true>(buf, at + 1);
    }
    at
}

/// The end of a target from `at`: before the first byte that is not visible
/// ASCII.
pub(super) fn target_end(buf: &[u8], at: usize) -> usize {
    run_end::<b'!', false>(buf, at)
}

/// The first byte from `at` that is below `LEAST`, or is DEL, or is above DEL
/// unless `TAKES_HIGH`.
fn run_end<const LEAST: u8, const TAKES_HIGH: bool>(buf: &[u8], mut at: usize) -> usize {
    const fn every(byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }
    while let Some(eight) = buf.get(at..).and_then(<[u8]>::first_chunk) {
        // The highest bit of each byte that is meant. A borrow can set it in
        // the byte above one that is meant, so that only the lowest counts.
        let eight = u64::from_le_bytes(*eight);
        let unlike_del = eight ^ every(0x7f);
        let less = eight.wrapping_sub(every(LEAST)) & !eight;
        let del = unlike_del.wrapping_sub(every(1)) & !unlike_del;
        let high = if TAKES_HIGH { 0 } else { eight };
        let found = (less | del | high) & every(0x80);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while let Some(&byte) = buf.get(at)
        && byte >= LEAST
        && byte != 0x7f
        && (TAKES_HIGH || byte.is_ascii())
    {
        at += 1;
    }
    at
}

/// The end of the run of spaces and tabs from `at`.
pub(super) fn blanks_end(buf: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = buf.get(at)
        && is_blank(byte)
    {
        at += 1;
    }
    at
}

fn without_blanks_behind(buf: &[u8], start: usize, mut end: usize) -> Span {
    while end > start && is_blank(buf[end - 1]) {
        end -= 1;
    }
    Span::new(start, end)
}

/// Space or tab.
pub(super) fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Whether `text` is a token (RFC 9110 §5.6.2), as names of fields are.
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && token_end(text, 0) == text.len()
}

/// Whether a value may stand in a field.
pub(crate) fn is_field_text(value: &[u8]) -> bool {
    text_end(value, 0) == value.len()
}

/// Whether a text may stand as a target.
pub(crate) fn is_target(text: &[u8]) -> bool {
    !text.is_empty() && target_end(text, 0) == text.len()
}

/// `tchar` of RFC 9110 §5.6.2.
pub(super) fn is_token_byte(byte: u8) -> bool {
    IN_TOKEN[usize::from(byte)]
}

const IN_TOKEN: [bool; 256] =
    among(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");

/// A table of the bytes in `allowed`.
pub(super) const fn among(allowed: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut index = 0;
    while index < allowed.len() {
        table[allowed[index] as usize] = true;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::MAX_FIELDS;
    use proptest::prelude::*;

    /// Bytes that decide something, mostly.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            6 => proptest::sample::select(b"aZ09-_!~ \t:".to_vec()),
            1 => proptest::sample::select(b"\r\n\0\x1f\x20\x21\x7e\x7f\x80\xff".to_vec()),
            1 => any::<u8>(),
        ];
        proptest::collection::vec(byte, 0..40)
    }

    /// Field lines, some of them not quite right.
    fn lines() -> impl Strategy<Value = Vec<u8>> {
        let line = (
            "[A-Za-z-]{1,18}",
            "( ?:|:\t? {0,2}|)",
            bytes(),
            "(\r\n){0,2}|\n",
        );
        let line = line.prop_map(|(name, colon, value, end)| {
            [name.as_bytes(), colon.as_bytes(), &value, end.as_bytes()].concat()
        });
        (
            proptest::collection::vec(line, 0..4),
            prop_oneof![Just("\r\n"), Just("")],
        )
            .prop_map(|(lines, end)| [&lines.concat(), end.as_bytes()].concat())
    }

    fn texts(fields: &[Field], buf: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let text = |field: &Field| (field.name.of(buf).to_vec(), field.value.of(buf).to_vec());
        fields.iter().map(text).collect()
    }

    proptest! {
        #[test]
        fn runs_end_where_a_reader_of_single_bytes_ends(buf in bytes(), skip in 0..9_usize) {
            let end = |ends: fn(u8) -> bool| {
                let rest = buf.get(skip..).unwrap_or_default();
                skip + rest.iter().take_while(|&&byte| !ends(byte)).count()
            };
            prop_assert_eq!(text_end(&buf, skip), end(|byte| byte != b'\t' && byte.is_ascii_control()));
            prop_assert_eq!(target_end(&buf, skip), end(|byte| !byte.is_ascii_graphic()));
        }

        #[test]
        fn field_lines_are_those_of_httparse_where_every_line_ends_in_crlf(buf in lines()) {
            let mut fields = Vec::new();
            let ours = field_lines(&buf, 0, &mut fields, MAX_FIELDS);
            let mut theirs = [httparse::EMPTY_HEADER; MAX_FIELDS];
            match httparse::parse_headers(&buf, &mut theirs) {
                Ok(httparse::Status::Complete((end, theirs))) => {
                    let bare = |end: usize| {
                        let lfs = memchr::memchr_iter(b'\n', &buf[..end]);
                        lfs.into_iter().any(|lf| lf == 0 || buf[lf - 1] != b'\r')
                    };
                    if bare(end) {
                        prop_assert_eq!(ours, Err(Stop::Odd));
                    } else {
                        prop_assert_eq!(ours, Ok(end));
                        let theirs: Vec<_> = theirs
                            .iter()
                            .map(|line| (line.name.as_bytes().to_vec(), line.value.to_vec()))
                            .collect();
                        prop_assert_eq!(texts(&fields, &buf), theirs);
                    }
                }
                Ok(httparse::Status::Partial) => prop_assert!(ours.is_err()),
                Err(_) => prop_assert_eq!(ours, Err(Stop::Odd)),
            }
        }

        #[test]
        fn what_some_bytes_say_holds_for_all_that_begin_with_them(buf in lines()) {
            let mut fields = Vec::new();
            let whole = field_lines(&buf, 0, &mut fields, MAX_FIELDS);
            for len in 0..buf.len() {
                let part = field_lines(&buf[..len], 0, &mut fields, MAX_FIELDS);
                prop_assert!(part == Err(Stop::Short) || part == whole, "{len} bytes: {part:?}");
            }
        }
    }
}
