//! A response's head from a block of fields (RFC 9113 §8.1 to §8.3).
//!
//! As with a request, the head becomes text of HTTP/1, which the spans of the head go into. The
//! rules of both protocols hold for it. If the block does not say how the body ends, that is
//! added to the text: a client of HTTP/1 then reads the body to its end.

use super::super::fields::{self, TakeField};
use crate::error::ResponseError;
use crate::field::{Field, FieldKind};
use crate::head::{Method, ResponseHead, Version};
use crate::hpack::{Block, DecodeError, Decoded};
use crate::http1::{self, MAX_RESPONSE_FIELDS, reason_phrase};
use crate::span::Span;
use crate::wire::BodyFraming;

/// Why the head of a response is not read. All of its block was decoded, except after `Decoding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFault {
    /// The connection is lost, with `COMPRESSION_ERROR`.
    Decoding(DecodeError),
    /// It breaks a rule: the stream is reset.
    Refused(ResponseError),
}

impl From<DecodeError> for ResponseFault {
    fn from(error: DecodeError) -> Self {
        ResponseFault::Decoding(error)
    }
}

impl From<ResponseError> for ResponseFault {
    fn from(error: ResponseError) -> Self {
        ResponseFault::Refused(error)
    }
}

/// A head that is being read.
struct Reading<'a> {
    out: &'a mut Vec<u8>,
    head: &'a mut ResponseHead,
    /// Whether the status line was written.
    has_begun: bool,
}

/// Reads the head of a response into `out` and `head`. `max` is the size of the largest one, as
/// RFC 9113 §6.5.2 counts it. `method` is that of the request. `ends` says whether the stream
/// ends with it, so that there is no body.
///
/// # Errors
/// See [`ResponseFault`].
pub fn read_response(
    mut block: Block<'_>,
    out: &mut Vec<u8>,
    head: &mut ResponseHead,
    max: usize,
    method: Method,
    ends: bool,
) -> Result<(), ResponseFault> {
    out.clear();
    head.fields.clear();
    let mut reading = Reading {
        out,
        head,
        has_begun: false,
    };
    fields::read_all(&mut block, &mut reading, max)??;
    Ok(reading.end(method, ends)?)
}

impl TakeField for Reading<'_> {
    type Fault = ResponseError;
    const TOO_LARGE: ResponseError = ResponseError::HeadTooLarge;

    fn text(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn take(&mut self, field: Decoded) -> Result<(), ResponseError> {
        let name = field.name.of(self.out);
        if name.first() == Some(&b':') || !self.has_begun {
            return self.begin(field);
        }
        let kind = FieldKind::from_name(name);
        // The one field of a connection that HTTP/2 has is for requests (RFC 9113 §8.2.2).
        let is_of_connection = fields::is_of_connection(kind, name) || name == b"te";
        if is_of_connection || !fields::is_well_formed(field, self.out) {
            return Err(ResponseError::Field);
        }
        let Decoded { name, value, .. } = field;
        self.push(Field { name, value, kind })
    }
}

impl Reading<'_> {
    fn push(&mut self, field: Field) -> Result<(), ResponseError> {
        if self.head.fields.len() == MAX_RESPONSE_FIELDS {
            return Err(ResponseError::TooManyFields);
        }
        self.head.fields.push(field);
        Ok(())
    }

    /// Takes `:status`, which comes first and is alone (RFC 9113 §8.3.2): a status line stands
    /// in its place.
    fn begin(&mut self, field: Decoded) -> Result<(), ResponseError> {
        if self.has_begun || field.name.of(self.out) != b":status" {
            return Err(ResponseError::StatusLine);
        }
        let status = match field.value.of(self.out) {
            b"101" => return Err(ResponseError::Upgrade),
            digits @ [b'1'..=b'9', _, _] => number(digits).ok_or(ResponseError::StatusLine)?,
            _ => return Err(ResponseError::StatusLine),
        };
        self.has_begun = true;
        self.out.clear();
        self.out.extend_from_slice(b"HTTP/1.1 ");
        self.out.extend(digits(status));
        self.out.push(b' ');
        let reason_at = self.out.len();
        self.out.extend_from_slice(reason_phrase(status).as_bytes());
        self.head.reason = Span::new(reason_at, self.out.len());
        self.out.extend_from_slice(b"\r\n");
        self.head.status = status;
        // The text follows the rules of this version.
        self.head.version = Version::Http11;
        Ok(())
    }

    /// All fields are there.
    fn end(mut self, method: Method, ends: bool) -> Result<(), ResponseError> {
        if !self.has_begun {
            return Err(ResponseError::StatusLine);
        }
        let status = self.head.status;
        let is_interim = status < 200;
        let is_tunnel = method == Method::Connect && matches!(status, 200..300);
        let has_no_body = is_interim || matches!(status, 204 | 304) || method == Method::Head;
        if is_interim && ends {
            return Err(ResponseError::Framing);
        }
        let has_length = |it: &Field| it.kind == FieldKind::ContentLength;
        if is_tunnel {
            // RFC 9110 §9.3.6: a length says nothing of the tunnel's bytes.
            let lengths = self.head.fields.iter_mut().filter(|it| has_length(it));
            lengths.for_each(|it| it.kind = FieldKind::HopByHop);
        } else if !has_no_body && !self.head.fields.iter().any(has_length) {
            let (name, value, kind): (&[u8], &[u8], _) = if ends {
                (b"content-length", b"0", FieldKind::ContentLength)
            } else {
                (
                    b"transfer-encoding",
                    b"chunked",
                    FieldKind::TransferEncoding,
                )
            };
            let field = fields::push_line(self.out, name, value, kind);
            self.push(field)?;
        }
        self.out.extend_from_slice(b"\r\n");
        self.head.wire.start = 0;
        self.head.wire.end = self.out.len();
        http1::read_response_head(self.out, method, self.head)?;
        self.head.version = Version::Http2;
        match self.head.wire.framing {
            BodyFraming::Length { .. } if ends => Err(ResponseError::Framing),
            BodyFraming::UntilClose if ends => {
                self.head.wire.framing = BodyFraming::None;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn number(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0, |number: u16, byte| {
        let digit = byte.is_ascii_digit().then(|| u16::from(byte - b'0'))?;
        Some(number * 10 + digit)
    })
}

fn digits(status: u16) -> [u8; 3] {
    [status / 100, status / 10 % 10, status % 10].map(|it| b'0' + it as u8)
}

#[cfg(test)]
mod tests;
