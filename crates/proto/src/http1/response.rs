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
    let mut lines = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        buf,
        &mut lines,
    );
    let end = match parsed {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(Parsed::Partial),
        Err(httparse::Error::TooManyHeaders) => return Err(ResponseError::TooManyFields),
        Err(
            httparse::Error::HeaderName | httparse::Error::HeaderValue | httparse::Error::NewLine,
        ) => return Err(ResponseError::Field),
        Err(_) => return Err(ResponseError::StatusLine),
    };
    let (Some(status), Some(minor)) = (response.code, response.version) else {
        return Err(ResponseError::StatusLine);
    };
    if !(100..=999).contains(&status) || !buf.starts_with(b"HTTP/") {
        return Err(ResponseError::StatusLine);
    }
    if !fields::lines_end_in_crlf(&buf[..end]) {
        return Err(ResponseError::Field);
    }
    head.status = status;
    head.version = match minor {
        0 => Version::Http10,
        _ => Version::Http11,
    };
    head.reason = reason_span(buf);
    head.start = 0;
    head.end = end;
    fields::collect(buf, response.headers, &mut head.fields);
    let options = fields::connection_options(buf, &mut head.fields);
    head.framing = response_framing(buf, method, head)?;
    head.keep_alive = !options.close
        && head.framing != BodyFraming::UntilClose
        && (head.version == Version::Http11 || options.keep_alive);
    Ok(Parsed::Complete)
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
