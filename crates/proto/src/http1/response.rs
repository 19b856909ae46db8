//! A response's head: the grammar by httparse, the rules around it here.

use std::mem::MaybeUninit;

use super::fields::{self, Framing};
use super::{MAX_FIELDS, Parsed};
use crate::error::ResponseError;
use crate::head::{BodyFraming, FieldKind, Method, ResponseHead, Span, Version};

/// Reads a response's head from the start of `buf` into `head`; `method` is
/// that of the request, which decides whether a body follows.
///
/// # Errors
/// The first rule that the head breaks; the connection can't be used further.
pub fn parse_response(
    buf: &[u8],
    method: Method,
    head: &mut ResponseHead,
) -> Result<Parsed, ResponseError> {
    // httparse would skip empty lines before the status line, and take a status
    // below 100.
    let start = &buf[..buf.len().min(b"HTTP/".len())];
    if !b"HTTP/".starts_with(start) || buf.get("HTTP/1.1 ".len()) == Some(&b'0') {
        return Err(ResponseError::StatusLine);
    }
    let mut lines = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        buf,
        &mut lines,
    );
    let end = match parsed {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) if fields::lines_end_in_crlf(buf) => {
            return Ok(Parsed::Partial);
        }
        Ok(httparse::Status::Partial) => return Err(ResponseError::Field),
        Err(httparse::Error::TooManyHeaders) => return Err(too_many_fields(buf)),
        Err(
            httparse::Error::HeaderName | httparse::Error::HeaderValue | httparse::Error::NewLine,
        ) => return Err(ResponseError::Field),
        Err(_) => return Err(ResponseError::StatusLine),
    };
    let (Some(status), Some(minor)) = (response.code, response.version) else {
        return Err(ResponseError::StatusLine);
    };
    if !fields::head_lines_end_in_crlf(buf, response.headers, end) {
        return Err(ResponseError::Field);
    }
    head.status = status;
    head.version = match minor {
        0 => Version::Http10,
        _ => Version::Http11,
    };
    head.reason = match response.reason {
        Some(reason) if !reason.is_empty() => fields::span_in(buf, reason.as_bytes()),
        _ => reason_span(buf),
    };
    head.start = 0;
    head.end = end;
    fields::collect(buf, response.headers, &mut head.fields);
    let options =
        fields::connection_options(buf, &mut head.fields).ok_or(ResponseError::TooManyFields)?;
    head.framing = response_framing(buf, method, head)?;
    head.keep_alive = !options.close
        && head.framing != BodyFraming::UntilClose
        && (head.version == Version::Http11 || options.keep_alive);
    Ok(Parsed::Complete)
}

/// A bare LF among the fields that fit is found first, as it is in a part.
fn too_many_fields(buf: &[u8]) -> ResponseError {
    match fields::first_lines_end_in_crlf(buf, MAX_FIELDS + 2) {
        true => ResponseError::TooManyFields,
        false => ResponseError::Field,
    }
}

/// The reason phrase, as sent: httparse drops one with bytes above 0x7f.
fn reason_span(buf: &[u8]) -> Span {
    let line_end = memchr::memchr(b'\r', buf).unwrap_or(0);
    let start = "HTTP/1.1 200 ".len().min(line_end);
    Span::new(start, line_end)
}

/// RFC 9112 §6.3 for responses.
fn response_framing(
    buf: &[u8],
    method: Method,
    head: &mut ResponseHead,
) -> Result<BodyFraming, ResponseError> {
    let stated = fields::framing(buf, &head.fields).map_err(|_| ResponseError::Framing)?;
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
        return Ok(BodyFraming::None);
    }
    if head.status == 304 || method == Method::Head {
        return Ok(BodyFraming::None);
    }
    match stated {
        Framing::Chunked if head.version == Version::Http10 => Err(ResponseError::Framing),
        Framing::Chunked => Ok(BodyFraming::Chunked),
        Framing::Length { bytes: 0 } => Ok(BodyFraming::None),
        Framing::Length { bytes } => Ok(BodyFraming::Length { bytes }),
        Framing::Unstated => Ok(BodyFraming::UntilClose),
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
        let many = fields("A: b\r\n", MAX_FIELDS + 1);
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
            ("HTTP/1.1 200 OK\nX: y\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nX: y\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nX: y\0\r\n\r\n", Field),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", Field),
            (many.as_str(), TooManyFields),
            (many_bare.as_str(), Field),
            (options.as_str(), TooManyFields),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
                Framing,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\n", Framing),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
                Framing,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                Framing,
            ),
            (
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                Framing,
            ),
        ] {
            let refused = parse(response.as_bytes(), Method::Get).err();
            assert_eq!(refused, Some(error), "{response:?}");
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
            let found = (head.framing, head.keep_alive);
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
