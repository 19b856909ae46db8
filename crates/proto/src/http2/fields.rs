//! Blocks of fields of any message (RFC 9113 §8.2).

use crate::field::{Field, FieldKind};
use crate::hpack::{Block, DecodeError, Decoded, encode};
use crate::http1;
use crate::span::Span;

/// The count of each field of a head beyond its bytes (RFC 9113 §6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Something that is read from the fields of a block.
pub(super) trait TakeField {
    /// Why it can't be.
    type Fault;
    /// The fields are more than are read.
    const TOO_LARGE: Self::Fault;

    /// The text that fields are decoded to.
    fn text(&mut self) -> &mut Vec<u8>;

    /// Takes a field that was decoded at the end of the text.
    fn take(&mut self, field: Decoded) -> Result<(), Self::Fault>;
}

/// Decodes all fields of a block, up to `max` bytes as RFC 9113 §6.5.2 counts them. Fields behind
/// the first fault are decoded for the table alone.
pub(super) fn read_all<T: TakeField>(
    block: &mut Block<'_>,
    it: &mut T,
    max: usize,
) -> Result<Result<(), T::Fault>, DecodeError> {
    let (mut size, mut result) = (0, Ok(()));
    loop {
        let start = it.text().len();
        let Some(field) = block.next(it.text())? else {
            return Ok(result);
        };
        size += field.name.len() + field.value.len() + FIELD_OVERHEAD;
        if result.is_ok() {
            result = if size > max {
                Err(T::TOO_LARGE)
            } else {
                it.take(field)
            };
        }
        if result.is_err() {
            it.text().truncate(start);
        }
    }
}

/// Why trailers are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedTrailers;

/// Trailers that are being read: the lines of allowed ones.
struct Trailers<'a>(&'a mut Vec<u8>);

impl TakeField for Trailers<'_> {
    type Fault = MalformedTrailers;
    const TOO_LARGE: MalformedTrailers = MalformedTrailers;

    fn text(&mut self) -> &mut Vec<u8> {
        self.0
    }

    fn take(&mut self, field: Decoded) -> Result<(), MalformedTrailers> {
        let out = &mut *self.0;
        if !is_well_formed(field, out) {
            return Err(MalformedTrailers);
        }
        let kept = Field {
            name: field.name,
            value: field.value,
            kind: FieldKind::from_name(field.name.of(out)),
        };
        if http1::is_forbidden_trailer(&kept, out) {
            out.truncate(field.name.start as usize);
        }
        Ok(())
    }
}

/// Reads allowed trailers as lines into `out` (RFC 9113 §8.1).
pub(super) fn read_trailers(
    mut block: Block<'_>,
    out: &mut Vec<u8>,
    max: usize,
) -> Result<Result<(), MalformedTrailers>, DecodeError> {
    read_all(&mut block, &mut Trailers(out), max)
}

/// Whether name and value have nothing that they may not have (RFC 9113 §8.2.1).
pub(super) fn is_well_formed(field: Decoded, out: &[u8]) -> bool {
    let (name, value) = (field.name.of(out), field.value.of(out));
    let is_padded = |it: Option<&u8>| matches!(it, Some(b' ' | b'\t'));
    // Names of the static table need no look, but for pseudo-fields.
    let is_name = (field.static_name != 0 && name.first() != Some(&b':'))
        || (http1::is_token(name) && !name.iter().any(u8::is_ascii_uppercase));
    is_name && http1::is_field_text(value) && !is_padded(value.first()) && !is_padded(value.last())
}

/// Whether a field is about a connection, so that it has no place in HTTP/2 (RFC 9113 §8.2.2).
pub(super) fn is_of_connection(kind: FieldKind, name: &[u8]) -> bool {
    match kind {
        FieldKind::Connection
        | FieldKind::KeepAlive
        | FieldKind::TransferEncoding
        | FieldKind::Upgrade => true,
        FieldKind::HopByHop => name == b"proxy-connection",
        _ => false,
    }
}

/// Appends the lines of HTTP/1 as fields, without hop-by-hop fields and fields that `is_left_out`
/// names. Gives whether a transfer coding was among them.
pub(super) fn push_fields<'a>(
    out: &mut Vec<u8>,
    lines: impl Iterator<Item = &'a [u8]>,
    is_left_out: impl Fn(FieldKind, &[u8]) -> bool,
) -> bool {
    let mut is_coded = false;
    for (name, value) in lines.filter_map(name_and_value) {
        let kind = FieldKind::from_name(name);
        match kind {
            FieldKind::TransferEncoding => is_coded = true,
            FieldKind::Connection
            | FieldKind::KeepAlive
            | FieldKind::Upgrade
            | FieldKind::HopByHop => {}
            _ if is_left_out(kind, name) => {}
            _ => encode::field(out, name, value),
        }
    }
    is_coded
}

/// The name and the value of a line of HTTP/1.
pub(super) fn name_and_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// Appends a line of HTTP/1 with a field that the peer did not send.
pub(super) fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8], kind: FieldKind) -> Field {
    let start = out.len();
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
    let value_at = start + name.len() + 2;
    Field {
        name: Span::new(start, start + name.len()),
        value: Span::new(value_at, value_at + value.len()),
        kind,
    }
}
