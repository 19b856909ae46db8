//! Restates the head of a response that is odd but has one reading.
//!
//! Servers send LF alone at the ends of lines, an empty line in front of the
//! status line, and folded fields. The line breaks are put right, and the result
//! is held against the same grammar as every other head. Nothing else is mended.

use super::grammar::is_blank;
use super::{MAX_RESPONSE_FIELDS, Parsed, parse_response};
use crate::error::ResponseError;
use crate::head::{Method, ResponseHead};

/// Most bytes by which [`parse_odd_response`] makes a head longer.
///
/// They are a CR in the status line, in each field's line and in the empty one. A fold becomes no
/// longer.
pub const ODD_HEAD_GROWTH_MAX: usize = 1 + MAX_RESPONSE_FIELDS + 1;

/// Reads the head of a response that [`parse_response`] refused, with its lines
/// restated (RFC 9112 §2.2, §5.2). Gives the length of the head in `buf`, for which
/// `out` stands from then on: the spans of `head` are in `out`. `None` while it is
/// not whole.
///
/// # Errors
/// The first rule that it breaks all the same.
#[cold]
pub fn parse_odd_response(
    buf: &[u8],
    method: Method,
    head: &mut ResponseHead,
    out: &mut Vec<u8>,
) -> Result<Option<usize>, ResponseError> {
    let end = restate_lines(buf, out);
    if out.is_empty() {
        return Ok(None);
    }
    match parse_response(out, method, head)? {
        Parsed::Complete => Ok(end),
        Parsed::Partial => Ok(None),
    }
}

/// Writes the lines of a head to `out`, each with CRLF at its end. Gives where the head ends in
/// `buf`, if it does.
fn restate_lines(buf: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    out.clear();
    let mut lines = 0;
    let mut at = 0;
    loop {
        let rest = &buf[at..];
        let lf = memchr::memchr(b'\n', rest);
        let line = &rest[..lf.unwrap_or(rest.len())];
        // The byte behind a last CR is not known yet.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // The first line of fields has none in front of it to go on with.
        let is_folded = lines > 1 && line.first().is_some_and(|&byte| is_blank(byte));
        if is_folded {
            fold(out, line);
        } else {
            out.extend_from_slice(line);
        }
        at += lf? + 1;
        match (line.is_empty(), lines) {
            (true, 0) => continue,
            (true, _) => {
                out.extend_from_slice(b"\r\n");
                return Some(at);
            }
            (false, _) => out.extend_from_slice(b"\r\n"),
        }
        lines += usize::from(!is_folded);
    }
}

/// Goes on with the last line of `out`: the fold becomes one space.
fn fold(out: &mut Vec<u8>, line: &[u8]) {
    out.truncate(out.len().saturating_sub(b"\r\n".len()));
    while out.last().is_some_and(|&byte| is_blank(byte)) {
        out.pop();
    }
    let blanks = line.iter().take_while(|&&byte| is_blank(byte));
    out.push(b' ');
    out.extend_from_slice(&line[blanks.count()..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Restates whole, then byte by byte: no prefix says something else.
    fn restate(response: &str) -> Result<(String, usize), ResponseError> {
        let mut head = ResponseHead::default();
        let (mut out, mut part) = (Vec::new(), Vec::new());
        let buf = response.as_bytes();
        let whole = parse_odd_response(buf, Method::Get, &mut head, &mut out);
        for len in 0..buf.len() {
            let before = parse_odd_response(&buf[..len], Method::Get, &mut head, &mut part);
            let is_same = before == whole && (whole.is_err() || part == out);
            assert!(before == Ok(None) || is_same, "{len} bytes: {before:?}");
        }
        let len = whole?.expect("it is whole");
        Ok((String::from_utf8(out).unwrap(), len))
    }

    #[test]
    fn puts_line_breaks_right() {
        for (response, restated) in [
            (
                "HTTP/1.1 200 OK\nA: b\n\n",
                "HTTP/1.1 200 OK\r\nA: b\r\n\r\n",
            ),
            (
                "\r\nHTTP/1.1 200\r\nA: b\n\r\n",
                "HTTP/1.1 200\r\nA: b\r\n\r\n",
            ),
            ("\n\nHTTP/1.0 200 OK\r\n\n", "HTTP/1.0 200 OK\r\n\r\n"),
            (
                "HTTP/1.1 200 OK\r\nA: b \r\n \t c\r\n\td\r\nE: f\r\n\r\n",
                "HTTP/1.1 200 OK\r\nA: b c d\r\nE: f\r\n\r\n",
            ),
            // A line of blanks is no end.
            (
                "HTTP/1.1 200 OK\r\nA: b\r\n \r\nC: d\r\n\r\n",
                "HTTP/1.1 200 OK\r\nA: b \r\nC: d\r\n\r\n",
            ),
        ] {
            for body in ["", "\r\n", "hello\n\n"] {
                let found = restate(&format!("{response}{body}"));
                assert_eq!(
                    found,
                    Ok((restated.to_owned(), response.len())),
                    "{response:?}"
                );
            }
        }
    }

    #[test]
    fn grows_by_the_ends_of_lines_at_most() {
        for line in ["A: b\n", "A:\n b\n \n"] {
            let lines = line.repeat(MAX_RESPONSE_FIELDS);
            let response = format!("HTTP/1.1 200 OK\n{lines}\n");
            let mut head = ResponseHead::default();
            let mut out = Vec::new();
            let buf = response.as_bytes();
            let parsed = parse_odd_response(buf, Method::Get, &mut head, &mut out);
            assert_eq!(parsed, Ok(Some(response.len())));
            let most = response.len() + ODD_HEAD_GROWTH_MAX;
            assert!(out.len() <= most, "{} of {most}", out.len());
            assert!(line.contains(" \n") || out.len() == most);
        }
    }

    #[test]
    fn mends_nothing_else() {
        use ResponseError::*;
        for (response, error) in [
            ("ICY 200 OK\n\n", StatusLine),
            ("\n\rHTTP/1.1 200 OK\n\n", StatusLine),
            (" HTTP/1.1 200 OK\n\n", StatusLine),
            ("HTTP/1.1 200 OK\n b: c\n\n", Field),
            ("HTTP/1.1 200 OK\nA : b\n\n", Field),
            ("HTTP/1.1 200 OK\nA: b\rC: d\n\n", Field),
            ("HTTP/1.1 200 OK\nA: b\r\r\n\n", Field),
            ("HTTP/1.1 200 OK\nA: b\n \0\n\n", Field),
            ("HTTP/1.1 200 OK\r\nA: b\r\r\n c\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\nA: b\n \x0c c\n\n", Field),
            ("HTTP/1.1 200 OK\nA\n : b\n\n", Field),
            ("HTTP/1.1 200 OK\nContent-Length: 5\n 6\n\n", Framing),
        ] {
            assert_eq!(restate(response), Err(error), "{response:?}");
        }
    }

    #[test]
    fn shows_at_once_what_can_be_no_head() {
        let mut head = ResponseHead::default();
        let mut out = Vec::new();
        for part in [
            "\x15\x03\x01",
            "SSH-2.0-x\r\n",
            "\nx",
            "HTTP/1.1 200 OK\n\x01",
        ] {
            let refused = parse_odd_response(part.as_bytes(), Method::Get, &mut head, &mut out);
            assert!(refused.is_err(), "{part:?}");
        }
    }
}
