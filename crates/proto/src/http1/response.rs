//! A response's head: its lines, and the rules that they have to keep.

use super::fields::{self, Framing, FramingError};
use super::grammar::{self, Stop};
use super::{MAX_RESPONSE_FIELDS, Parsed};
use crate::error::ResponseError;
use crate::field::{Field, FieldKind, decimal};
use crate::head::{Method, ResponseHead, Version};
use crate::span::Span;
use crate::wire::BodyFraming;

/// Reads a response's head from the start of `buf` into `head`. `method` is the
/// request's: it decides whether a body follows.
///
/// # Errors
/// The first rule that the head breaks. It may be taken all the same by
/// [`parse_odd_response`](super::parse_odd_response), else the connection can't be
/// used further.
pub fn parse_response(
    buf: &[u8],
    method: Method,
    head: &mut ResponseHead,
) -> Result<Parsed, ResponseError> {
    match read_status_line(buf, head) {
        Ok(()) => {}
        Err(Stop::Short) => return Ok(Parsed::Partial),
        Err(Stop::Odd | Stop::TooManyFields) => return Err(ResponseError::StatusLine),
    }
    match grammar::field_lines(buf, head.wire.end, &mut head.fields, MAX_RESPONSE_FIELDS) {
        Ok(end) => head.wire.end = end,
        Err(Stop::Short) => return Ok(Parsed::Partial),
        Err(Stop::Odd) => return Err(ResponseError::Field),
        Err(Stop::TooManyFields) => return Err(ResponseError::TooManyFields),
    }
    read_head(buf, method, head)?;
    Ok(Parsed::Complete)
}

/// Reads the meaning of a head's lines, once version, status and fields are
/// known.
pub(crate) fn read_head(
    buf: &[u8],
    method: Method,
    head: &mut ResponseHead,
) -> Result<(), ResponseError> {
    let options =
        fields::connection_options(buf, &mut head.fields).ok_or(ResponseError::TooManyFields)?;
    let stated = stated_framing(buf, head)?;
    head.wire.framing = response_framing(stated.framing, method, head);
    head.wire.keep_alive = !options.close
        && !stated.is_doubtful
        && head.wire.framing != BodyFraming::UntilClose
        && (head.version == Version::Http11 || options.keep_alive);
    Ok(())
}

/// `version SP status [SP reason]` (RFC 9112 §4); `head.wire.end` is where it ends.
///
/// Deviation: the space before a reason that is missing may be missing too.
fn read_status_line(buf: &[u8], head: &mut ResponseHead) -> Result<(), Stop> {
    let (version, end) = grammar::version(buf, 0)?;
    let (status, end) = grammar::status(buf, grammar::expect(buf, end, b' ')?)?;
    let (reason_start, reason_end) = match buf.get(end) {
        Some(b' ') => (end + 1, grammar::text_end(buf, end + 1)),
        _ => (end, end),
    };
    head.wire.start = 0;
    head.wire.end = grammar::line_end(buf, reason_end)?;
    head.version = version;
    head.status = status;
    head.reason = Span::new(reason_start, reason_end);
    Ok(())
}

/// The framing fields of a response, as stated.
struct Stated {
    framing: Framing,
    /// Whether a client may read the end of the body differently: the
    /// connection is not used again (RFC 9112 §6.1, §6.3).
    is_doubtful: bool,
}

/// Reads `Content-Length` and `Transfer-Encoding`.
fn stated_framing(buf: &[u8], head: &mut ResponseHead) -> Result<Stated, ResponseError> {
    let framing = match fields::framing(buf, &head.fields) {
        Ok(framing) => framing,
        Err(FramingError::Coding) => return Err(ResponseError::Framing),
        Err(_) => return settled_framing(buf, &mut head.fields).ok_or(ResponseError::Framing),
    };
    Ok(Stated {
        framing,
        is_doubtful: framing == Framing::Chunked && head.version == Version::Http10,
    })
}

/// Settles framing fields of more than one word that have one reading. `None`
/// where they contradict each other.
///
/// A length stated several times is that length (RFC 9110 §8.6), and a coding
/// overrules a length (RFC 9112 §6.3). The client gets only the field that
/// counts.
#[cold]
fn settled_framing(buf: &[u8], fields: &mut [Field]) -> Option<Stated> {
    let mut length = None;
    for field in &mut *fields {
        if field.kind != FieldKind::ContentLength {
            continue;
        }
        let mut items = field.value.of(buf).split(|&byte| byte == b',');
        let first = items.next().unwrap_or_default();
        for item in std::iter::once(first).chain(items) {
            let bytes = decimal(item.trim_ascii())?;
            if *length.get_or_insert(bytes) != bytes {
                return None;
            }
        }
        // No white space stands in front of a value.
        let start = field.value.start as usize;
        field.value = Span::new(start, start + first.trim_ascii_end().len());
    }
    let is_chunked = fields
        .iter()
        .any(|field| field.kind == FieldKind::TransferEncoding);
    // Beside a coding none counts, else the first does.
    let lengths = fields
        .iter_mut()
        .filter(|field| field.kind == FieldKind::ContentLength)
        .skip(usize::from(!is_chunked));
    for repeated in lengths {
        repeated.kind = FieldKind::HopByHop;
    }
    let framing = fields::framing(buf, fields).ok()?;
    Some(Stated {
        framing,
        is_doubtful: is_chunked,
    })
}

/// RFC 9112 §6.3 for responses.
fn response_framing(stated: Framing, method: Method, head: &mut ResponseHead) -> BodyFraming {
    if head.status < 200 || head.status == 204 {
        // Such a response carries no framing fields (RFC 9110 §8.6, RFC 9112
        // §6.1): they go no further than this.
        for field in &mut head.fields {
            if matches!(
                field.kind,
                FieldKind::ContentLength | FieldKind::TransferEncoding
            ) {
                field.kind = FieldKind::HopByHop;
            }
        }
        return BodyFraming::None;
    }
    if head.status == 304 || method == Method::Head {
        return BodyFraming::None;
    }
    match stated {
        Framing::Chunked => BodyFraming::Chunked,
        Framing::Length { bytes: 0 } => BodyFraming::None,
        Framing::Length { bytes } => BodyFraming::Length { bytes },
        Framing::Unstated => BodyFraming::UntilClose,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses whole, then byte by byte: no prefix says something else.
    fn parse(response: &[u8], method: Method) -> Result<ResponseHead, ResponseError> {
        let mut head = ResponseHead::default();
        let whole = parse_response(response, method, &mut head);
        let mut part_head = ResponseHead::default();
        for len in 0..response.len() {
            let part = parse_response(&response[..len], method, &mut part_head);
            let agrees = part == Ok(Parsed::Partial) || (part.is_err() && part == whole);
            assert!(
                agrees,
                "{len} bytes of {}: {part:?}",
                response.escape_ascii()
            );
        }
        match whole? {
            Parsed::Complete => Ok(head),
            Parsed::Partial => panic!("{} is not whole", response.escape_ascii()),
        }
    }

    #[test]
    fn refuses() {
        use ResponseError::*;
        let fields = |line: &str, count| format!("HTTP/1.1 200 OK\r\n{}\r\n", line.repeat(count));
        let many = fields("A: b\r\n", MAX_RESPONSE_FIELDS + 1);
        let many_bare = many.replacen("b\r\n", "b\n", 1);
        let options = fields(&format!("Connection: {}\r\n", "a,".repeat(100)), 2);
        for (response, error) in [
            ("\r\nHTTP/1.1 200 OK\r\n\r\n", StatusLine),
            ("ICY 200 OK\r\n\r\n", StatusLine),
            ("HTTP/2 200\r\n\r\n", StatusLine),
            ("HTTP/1.1  200 OK\r\n\r\n", StatusLine),
            ("HTTP/1.1 20 OK\r\n\r\n", StatusLine),
            ("HTTP/1.1 2000 OK\r\n\r\n", StatusLine),
            ("HTTP/1.1 +20 OK\r\n\r\n", StatusLine),
            ("HTTP/1.1 099 OK\r\n\r\n", StatusLine),
            ("HTTP/1.1 099 OK\r\nX: y\n\r\n", StatusLine),
            ("HTTP/1.1 200 O\0K\r\n\r\n", StatusLine),
            ("HTTP/1.1 200 O\rK\r\n\r\n", StatusLine),
            ("HTTP/1.1 200 OK\nX: y\r\n\r\n", StatusLine),
            ("HTTP/1.1 200 OK\r\nX: y\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nX: y\0\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", Field),
            (many.as_str(), TooManyFields),
            (many_bare.as_str(), Field),
            (options.as_str(), TooManyFields),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
                Framing,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\n", Framing),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3,\r\n\r\n", Framing),
            ("HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n", Framing),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: x\r\n\r\n",
                Framing,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                Framing,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                Framing,
            ),
        ] {
            let refused = parse(response.as_bytes(), Method::Get).err();
            assert_eq!(refused, Some(error), "{response:?}");
        }
    }

    #[test]
    fn refuses_a_part_that_shows_it() {
        use ResponseError::*;
        let mut head = ResponseHead::default();
        for (part, error) in [
            ("\r", StatusLine),
            ("HTTP/1.1 0", StatusLine),
            ("HTTP/1.1 200 OK\n", StatusLine),
            ("HTTP/1.1 200 OK\r\nX: y\nZ", Field),
        ] {
            let refused = parse_response(part.as_bytes(), Method::Get, &mut head);
            assert_eq!(refused, Err(error), "{part:?}");
        }
    }

    #[test]
    fn reads_framing_and_persistence() {
        use BodyFraming::{Chunked, Length, None, UntilClose};
        use Method::{Get, Head};
        for (method, response, framing, keep_alive) in [
            (
                Get,
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                Length { bytes: 5 },
                true,
            ),
            (
                Get,
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                None,
                true,
            ),
            (
                Get,
                "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n",
                Chunked,
                true,
            ),
            (
                Get,
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n",
                Chunked,
                false,
            ),
            (
                Get,
                "HTTP/1.1 200 OK\r\nContent-Length: 3, 03\r\nContent-Length: 3\r\n\r\n",
                Length { bytes: 3 },
                true,
            ),
            (
                Get,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
                Chunked,
                false,
            ),
            (
                Head,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
                None,
                false,
            ),
            (
                Get,
                "HTTP/1.9 200 OK\r\nContent-Length: 3\r\n\r\n",
                Length { bytes: 3 },
                true,
            ),
            (Get, "HTTP/1.1 200 OK\r\n\r\n", UntilClose, false),
            (Head, "HTTP/1.1 200 OK\r\n\r\n", None, true),
            (
                Head,
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                None,
                true,
            ),
            (
                Get,
                "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n",
                None,
                true,
            ),
            (
                Get,
                "HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n",
                None,
                true,
            ),
            (
                Get,
                "HTTP/1.1 103 Hints\r\nTransfer-Encoding: chunked\r\n\r\n",
                None,
                true,
            ),
            (
                Get,
                "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
                Length { bytes: 5 },
                false,
            ),
            (
                Get,
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n",
                Length { bytes: 5 },
                true,
            ),
            (
                Get,
                "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5\r\n\r\n",
                Length { bytes: 5 },
                false,
            ),
        ] {
            let head = parse(response.as_bytes(), method).unwrap();
            let found = (head.wire.framing, head.wire.keep_alive);
            assert_eq!(found, (framing, keep_alive), "{method:?} {response:?}");
        }
    }

    #[test]
    fn reads_reasons() {
        for (line, reason) in [
            (&b"HTTP/1.1 200 OK"[..], &b"OK"[..]),
            (b"HTTP/1.1 200 ", b""),
            (b"HTTP/1.1 200", b""),
            (b"HTTP/1.1 999 Quite  Fine\t", b"Quite  Fine\t"),
            (b"HTTP/1.1 200 caf\xe9", b"caf\xe9"),
        ] {
            let response = [line, b"\r\n\r\n"].concat();
            let head = parse(&response, Method::Get).unwrap();
            assert_eq!(head.reason.of(&response), reason);
        }
    }
}
