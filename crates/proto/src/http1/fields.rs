//! The statements of fields on a connection and on framing.

use super::MAX_FIELDS;
use crate::field::{Field, FieldKind, decimal, list_items};

/// The options that the `Connection` fields of a message name.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ConnectionOptions {
    pub close: bool,
    pub keep_alive: bool,
    pub upgrade: bool,
}

/// Reads every `Connection` field and marks the fields that it names as
/// hop-by-hop (RFC 9110 §7.6.1).
///
/// `None` if they name more than a head can hold: looking each of them up
/// would take a millisecond for a head of 16 KB.
pub(super) fn connection_options(buf: &[u8], fields: &mut [Field]) -> Option<ConnectionOptions> {
    let mut options = ConnectionOptions::default();
    let mut count = 0;
    for index in 0..fields.len() {
        if fields[index].kind != FieldKind::Connection {
            continue;
        }
        for option in list_items(fields[index].value.of(buf)) {
            count += 1;
            if count > MAX_FIELDS {
                return None;
            }
            if option.eq_ignore_ascii_case(b"close") {
                options.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                options.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                options.upgrade = true;
            } else {
                mark_hop_by_hop(buf, fields, option);
            }
        }
    }
    Some(options)
}

/// A sender can take off only fields that nothing here depends on: naming
/// `Host` or `Content-Length` in `Connection` changes nothing.
fn mark_hop_by_hop(buf: &[u8], fields: &mut [Field], option: &[u8]) {
    for field in fields {
        let removable = matches!(
            field.kind,
            FieldKind::Other
                | FieldKind::Authorization
                | FieldKind::Referer
                | FieldKind::UserAgent
                | FieldKind::RequestId
                | FieldKind::TraceParent
                | FieldKind::TraceState
        );
        if removable && field.is_named(option, buf) {
            field.kind = FieldKind::HopByHop;
        }
    }
}

/// The framing that a message's fields state, before its kind is considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Unstated,
    Length { bytes: u64 },
    Chunked,
}

/// Why framing fields can't be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FramingError {
    Length,
    Repeated,
    Both,
    Coding,
}

/// Reads `Content-Length` and `Transfer-Encoding` (RFC 9112 §6).
///
/// Deviation: in a request, a list of equal lengths is refused, although RFC 9112
/// §6.3 lets a recipient cope. So is a coding other than exactly one `chunked`.
pub(super) fn framing(buf: &[u8], fields: &[Field]) -> Result<Framing, FramingError> {
    let mut found = Framing::Unstated;
    for field in fields {
        let value = field.value.of(buf);
        let next = match field.kind {
            FieldKind::ContentLength => Framing::Length {
                bytes: decimal(value).ok_or(FramingError::Length)?,
            },
            FieldKind::TransferEncoding if value.eq_ignore_ascii_case(b"chunked") => {
                Framing::Chunked
            }
            FieldKind::TransferEncoding => return Err(FramingError::Coding),
            _ => continue,
        };
        found = match (found, next) {
            (Framing::Unstated, next) => next,
            (Framing::Length { .. }, Framing::Length { .. }) => return Err(FramingError::Repeated),
            (Framing::Chunked, Framing::Chunked) => return Err(FramingError::Coding),
            _ => return Err(FramingError::Both),
        };
    }
    Ok(found)
}
