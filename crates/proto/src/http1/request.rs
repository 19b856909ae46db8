//! A request's head: the grammar by httparse, the rules around it here.

use std::mem::MaybeUninit;

use super::fields::{self, Framing, FramingError};
use super::{MAX_FIELDS, Parsed, diagnose};
use crate::error::RequestError;
use crate::head::{BodyFraming, FieldKind, Method, RequestHead, Span, Version};

/// Reads a request's head from the start of `buf` into `head`.
///
/// Limits on length are the caller's: it knows how much it buffered.
///
/// # Errors
/// The first rule of RFC 9112 or RFC 9110 §7.2 that the head breaks. The
/// connection must then be closed: what follows can't be told apart.
pub fn parse_request(buf: &[u8], head: &mut RequestHead) -> Result<Parsed, RequestError> {
    let mut lines = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    let end = match request.parse_with_uninit_headers(buf, &mut lines) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return partial(buf),
        Err(error) => return Err(diagnose::request_error(buf, error)),
    };
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(RequestError::RequestLine);
    };
    head.method = Method::from_token(method.as_bytes());
    head.method_span = fields::span_in(buf, method.as_bytes());
    head.target = fields::span_in(buf, target.as_bytes());
    head.version = match minor {
        0 => Version::Http10,
        _ => Version::Http11,
    };
    head.start = head.method_span.start as usize;
    head.end = end;
    check_lines(buf, head)?;
    fields::collect(buf, request.headers, &mut head.fields);
    read_fields(buf, head)?;
    read_target(buf, head)?;
    Ok(Parsed::Complete)
}

/// Tells a head that may still become whole from one that can't: httparse
/// skips any number of empty lines, RFC 9112 §2.2 asks for at least one.
fn partial(buf: &[u8]) -> Result<Parsed, RequestError> {
    if buf.starts_with(b"\r\n\r\n") || buf.starts_with(b"\n") {
        return Err(RequestError::RequestLine);
    }
    if !fields::lines_end_in_crlf(buf) {
        return Err(RequestError::BareLf);
    }
    Ok(Parsed::Partial)
}

fn check_lines(buf: &[u8], head: &RequestHead) -> Result<(), RequestError> {
    let stray = &buf[..head.start];
    if !stray.is_empty() && stray != b"\r\n" {
        return Err(RequestError::RequestLine);
    }
    if !fields::lines_end_in_crlf(&buf[head.start..head.end]) {
        return Err(RequestError::BareLf);
    }
    Ok(())
}

/// Everything that fields decide: framing, persistence, expectation, host.
fn read_fields(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let mut host = None;
    let mut has_connection = false;
    let mut has_framing = false;
    let mut upgrade = None;
    head.expect_continue = false;
    for field in &head.fields {
        match field.kind {
            FieldKind::Host if host.is_some() => return Err(RequestError::HostRepeated),
            FieldKind::Host => host = Some(field.value),
            FieldKind::Connection => has_connection = true,
            FieldKind::ContentLength | FieldKind::TransferEncoding => has_framing = true,
            FieldKind::Upgrade => upgrade = Some(field.value),
            FieldKind::Expect => {
                if !field.value.of(buf).eq_ignore_ascii_case(b"100-continue") {
                    return Err(RequestError::Expectation);
                }
                head.expect_continue = head.version == Version::Http11;
            }
            _ => {}
        }
    }
    head.host = host.unwrap_or_default();
    if host.is_none() && head.version == Version::Http11 {
        return Err(RequestError::HostMissing);
    }
    if !is_authority(head.host.of(buf)) {
        return Err(RequestError::HostInvalid);
    }
    head.keep_alive = head.version == Version::Http11;
    head.upgrade = None;
    if has_connection {
        let options = fields::connection_options(buf, &mut head.fields);
        head.keep_alive = !options.close && (head.keep_alive || options.keep_alive);
        if options.upgrade && head.version == Version::Http11 {
            head.upgrade = upgrade;
        }
    }
    head.framing = if has_framing {
        request_framing(buf, head)?
    } else {
        BodyFraming::None
    };
    Ok(())
}

fn request_framing(buf: &[u8], head: &RequestHead) -> Result<BodyFraming, RequestError> {
    match fields::framing(buf, &head.fields) {
        Ok(Framing::Chunked) if head.version == Version::Http10 => {
            Err(RequestError::TransferCoding)
        }
        Ok(Framing::Chunked) => Ok(BodyFraming::Chunked),
        Ok(Framing::Length { bytes: 0 } | Framing::Unstated) => Ok(BodyFraming::None),
        Ok(Framing::Length { bytes }) => Ok(BodyFraming::Length { bytes }),
        Err(FramingError::Length) => Err(RequestError::ContentLength),
        Err(FramingError::Repeated) => Err(RequestError::ContentLengthRepeated),
        Err(FramingError::Both) => Err(RequestError::LengthAndCoding),
        Err(FramingError::Coding) => Err(RequestError::TransferCoding),
    }
}

/// Splits the target by its form (RFC 9112 §3.2).
fn read_target(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let target = head.target.of(buf);
    // httparse lets bytes above 0x7f and fragments pass.
    if target.iter().any(|&byte| byte >= 0x80 || byte == b'#') {
        return Err(RequestError::Target);
    }
    head.host_in_target = false;
    head.path_and_query = head.target;
    if target.first() == Some(&b'/') {
        split_query(buf, head);
        return Ok(());
    }
    if head.method == Method::Connect {
        if !is_authority(target) || target.is_empty() {
            return Err(RequestError::Target);
        }
        head.host = head.target;
        head.host_in_target = true;
        head.path_and_query = Span::default();
        split_query(buf, head);
        return Ok(());
    }
    if target == b"*" && head.method == Method::Options {
        split_query(buf, head);
        return Ok(());
    }
    read_absolute_form(buf, head)
}

/// `http://authority/path?query`: the authority overrules `Host`.
fn read_absolute_form(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let target = head.target.of(buf);
    let scheme_len = [&b"http://"[..], b"https://"]
        .iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
        .map(|scheme| scheme.len())
        .ok_or(RequestError::Target)?;
    let rest = &target[scheme_len..];
    let authority_len = rest
        .iter()
        .position(|&byte| byte == b'/' || byte == b'?')
        .unwrap_or(rest.len());
    let authority = &rest[..authority_len];
    if authority.is_empty() || !is_authority(authority) {
        return Err(RequestError::Target);
    }
    let start = head.target.start as usize + scheme_len;
    head.host = Span::new(start, start + authority_len);
    head.host_in_target = true;
    head.path_and_query = Span::new(start + authority_len, head.target.end as usize);
    split_query(buf, head);
    Ok(())
}

fn split_query(buf: &[u8], head: &mut RequestHead) {
    let whole = head.path_and_query;
    let start = whole.start as usize;
    match memchr::memchr(b'?', whole.of(buf)) {
        Some(mark) => {
            head.path = Span::new(start, start + mark);
            head.query = Span::new(start + mark + 1, whole.end as usize);
        }
        None => {
            head.path = whole;
            head.query = Span::new(whole.end as usize, whole.end as usize);
        }
    }
}

/// Bytes that `host [":" port]` may hold; no user information (RFC 9110 §4.2.4).
fn is_authority(authority: &[u8]) -> bool {
    authority.iter().all(|&byte| {
        byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'.' | b'-'
                    | b'_'
                    | b':'
                    | b'['
                    | b']'
                    | b'~'
                    | b'%'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b';'
                    | b'='
            )
    })
}
