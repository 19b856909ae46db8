//! Names what is wrong with a head that the grammar refused.
//!
//! The parser only says that a token was bad; people want to know which rule
//! was broken. This runs after a refusal, never on the good path.

use crate::error::RequestError;

/// The rule that `head` breaks; `fallback` where none is recognised.
pub(super) fn request_error(head: &[u8], fallback: httparse::Error) -> RequestError {
    if fallback == httparse::Error::TooManyHeaders {
        return RequestError::TooManyFields;
    }
    let mut lines = head.split_inclusive(|&byte| byte == b'\n');
    let mut line = lines.next().unwrap_or_default();
    while line == b"\r\n" {
        line = lines.next().unwrap_or_default();
    }
    if let Some(error) = request_line_error(line, fallback) {
        return error;
    }
    for line in lines {
        if let Some(error) = field_line_error(line) {
            return error;
        }
    }
    match fallback {
        httparse::Error::HeaderName => RequestError::FieldName,
        httparse::Error::HeaderValue | httparse::Error::NewLine => RequestError::FieldValue,
        _ => RequestError::RequestLine,
    }
}

fn request_line_error(line: &[u8], fallback: httparse::Error) -> Option<RequestError> {
    if line.contains(&0) {
        return Some(RequestError::Nul);
    }
    if line.ends_with(b"\n") && !line.ends_with(b"\r\n") {
        return Some(RequestError::BareLf);
    }
    if fallback == httparse::Error::Version {
        let version = line
            .trim_ascii_end()
            .rsplit(|&byte| byte == b' ')
            .next()
            .unwrap_or_default();
        return Some(if is_version(version) {
            RequestError::Version
        } else {
            RequestError::RequestLine
        });
    }
    matches!(fallback, httparse::Error::Token | httparse::Error::Status)
        .then_some(RequestError::RequestLine)
}

/// `HTTP/` and digits with at most one dot: a version, though not one of ours.
fn is_version(word: &[u8]) -> bool {
    word.strip_prefix(b"HTTP/").is_some_and(|number| {
        !number.is_empty()
            && number
                .iter()
                .all(|&byte| byte.is_ascii_digit() || byte == b'.')
            && number.iter().filter(|&&byte| byte == b'.').count() <= 1
    })
}

fn field_line_error(line: &[u8]) -> Option<RequestError> {
    if line.contains(&0) {
        return Some(RequestError::Nul);
    }
    if line.ends_with(b"\n") && !line.ends_with(b"\r\n") {
        return Some(RequestError::BareLf);
    }
    let first = *line.first()?;
    if line == b"\r\n" {
        return None;
    }
    if first == b' ' || first == b'\t' {
        return Some(RequestError::ObsFold);
    }
    let Some(colon) = memchr::memchr(b':', line) else {
        return line.ends_with(b"\n").then_some(RequestError::FieldName);
    };
    let name = &line[..colon];
    if name
        .last()
        .is_some_and(|&byte| byte == b' ' || byte == b'\t')
    {
        return Some(RequestError::SpaceBeforeColon);
    }
    if name.is_empty() || !name.iter().all(|&byte| is_token_byte(byte)) {
        return Some(RequestError::FieldName);
    }
    let value = line[colon + 1..].trim_ascii();
    value
        .iter()
        .any(|&byte| (byte < 0x20 && byte != b'\t') || byte == 0x7f)
        .then_some(RequestError::FieldValue)
}

/// `tchar` of RFC 9110 §5.6.2.
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
