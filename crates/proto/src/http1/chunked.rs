//! The chunked transfer coding (RFC 9112 §7.1), decoded piece by piece.
//!
//! ```text
//!            size > 0            all data           CRLF
//!   Size ───────────────▶ Data ───────────▶ DataEnd ──────┐
//!    ▲ │ size = 0                                         │
//!    │ └──────────▶ Trailer ── empty line ──▶ Done        │
//!    └─────────────────────────────────────────────────────┘
//! ```
//!
//! A size line or a trailer section is taken only when it is whole and valid,
//! so that no byte of a malformed one is ever passed on.

use super::MAX_BODY_BYTES;
use super::grammar::{self, Stop};
use crate::error::BodyError;
use crate::head::{Field, FieldKind};

/// Longest trailer section, in bytes.
pub const MAX_TRAILER_LEN: usize = 8 * 1024;

/// Most digits of a chunk size: what fits 64 bits.
const MAX_SIZE_DIGITS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Data { remaining: u64 },
    DataEnd,
    Trailer,
    Done,
}

/// The next piece of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes of framing.
    Framing {
        /// Bytes from the start of the input.
        len: usize,
    },
    /// So many bytes of content.
    Data {
        /// Bytes from the start of the input.
        len: usize,
    },
    /// The trailer section; the body is over.
    End {
        /// Bytes from the start of the input.
        len: usize,
    },
    /// The input holds no whole piece: more bytes are needed.
    NeedMore,
}

/// Follows a chunked body through its framing.
#[derive(Debug, Clone)]
pub struct ChunkedDecoder {
    state: State,
    data_bytes: u64,
    chunks: u64,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        ChunkedDecoder {
            state: State::Size,
            data_bytes: 0,
            chunks: 0,
        }
    }
}

impl ChunkedDecoder {
    /// Content announced so far, in bytes, without framing.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Chunks announced so far.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Whether the last piece was the end.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes the next piece from the start of `input`.
    ///
    /// # Errors
    /// The rule that the body breaks; nothing of the piece was taken.
    pub fn piece(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        if input.is_empty() {
            return Ok(Piece::NeedMore);
        }
        match self.state {
            State::Size => self.size(input),
            State::Data { remaining } => {
                let len = remaining.min(input.len() as u64) as usize;
                let remaining = remaining - len as u64;
                self.state = match remaining {
                    0 => State::DataEnd,
                    _ => State::Data { remaining },
                };
                Ok(Piece::Data { len })
            }
            State::DataEnd => match input {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(Piece::Framing { len: 2 })
                }
                [b'\r'] => Ok(Piece::NeedMore),
                _ => Err(BodyError::ChunkEnd),
            },
            State::Trailer => self.trailer(input),
            State::Done => Ok(Piece::End { len: 0 }),
        }
    }

    fn size(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        let mut size = 0u64;
        let mut digits = 0;
        for &byte in input {
            let Some(digit) = (byte as char).to_digit(16) else {
                break;
            };
            digits += 1;
            if digits > MAX_SIZE_DIGITS {
                return Err(BodyError::ChunkSize);
            }
            size = size << 4 | u64::from(digit);
        }
        match &input[digits..] {
            [] => return Ok(Piece::NeedMore),
            [b';' | b' ' | b'\t', ..] if digits > 0 => return Err(BodyError::ChunkExtension),
            [b'\r'] if digits > 0 => return Ok(Piece::NeedMore),
            [b'\r', b'\n', ..] if digits > 0 => {}
            _ => return Err(BodyError::ChunkSize),
        }
        self.data_bytes = self
            .data_bytes
            .checked_add(size)
            .filter(|&total| total <= MAX_BODY_BYTES)
            .ok_or(BodyError::ChunkSize)?;
        self.chunks += 1;
        self.state = match size {
            0 => State::Trailer,
            remaining => State::Data { remaining },
        };
        Ok(Piece::Framing { len: digits + 2 })
    }

    fn trailer(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        let len = match input {
            [b'\r', b'\n', ..] => 2,
            [b'\r'] => 0,
            _ => trailer_len(input)?,
        };
        if len == 0 {
            return match input.len() < MAX_TRAILER_LEN {
                true => Ok(Piece::NeedMore),
                false => Err(BodyError::TrailerTooLarge),
            };
        }
        self.state = State::Done;
        Ok(Piece::End { len })
    }
}

/// Length of a trailer section with fields, 0 while it is not whole.
fn trailer_len(input: &[u8]) -> Result<usize, BodyError> {
    // What comes after the limit may be the next message.
    let input = &input[..input.len().min(MAX_TRAILER_LEN)];
    let mut fields = Vec::new();
    let len = match grammar::field_lines(input, 0, &mut fields) {
        Ok(end) => end,
        Err(Stop::Short) => return Ok(0),
        Err(Stop::Odd) => return Err(BodyError::Trailer),
        Err(Stop::TooManyFields) => return Err(BodyError::TrailerTooLarge),
    };
    if fields.iter().any(|field| is_forbidden(field, input)) {
        return Err(BodyError::Trailer);
    }
    Ok(len)
}

/// RFC 9110 §6.5.1: what frames, routes, authenticates or says how to read the
/// content has no place behind it. An endpoint may merge trailers into the head.
fn is_forbidden(field: &Field, buf: &[u8]) -> bool {
    const FORBIDDEN: [&str; 12] = [
        "authorization",
        "cache-control",
        "content-encoding",
        "content-range",
        "content-type",
        "cookie",
        "max-forwards",
        "pragma",
        "range",
        "set-cookie",
        "trailer",
        "www-authenticate",
    ];
    let is_head_field = !matches!(
        field.kind,
        FieldKind::Other | FieldKind::UserAgent | FieldKind::Referer
    );
    is_head_field
        || FORBIDDEN
            .iter()
            .any(|forbidden| field.is_named(forbidden.as_bytes(), buf))
}

#[cfg(test)]
mod tests {
    use super::super::{BodyDecoder, MAX_FIELDS};
    use super::*;
    use crate::head::BodyFraming;

    /// Strips `body` in pieces of so many bytes: content, bytes taken, and
    /// whether the end was seen.
    fn strip(body: &[u8], piece_len: usize) -> Result<(Vec<u8>, usize, bool), BodyError> {
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let (mut content, mut taken) = (Vec::new(), 0);
        for read in (0..body.len()).step_by(piece_len) {
            if decoder.is_done() {
                break;
            }
            let end = (read + piece_len).min(body.len());
            let mut input = body[taken..end].to_vec();
            let advance = decoder.strip(&mut input)?;
            content.extend_from_slice(&input[..advance.kept]);
            taken += advance.consumed;
        }
        Ok((content, taken, decoder.is_done()))
    }

    #[test]
    fn decodes() {
        let huge = format!("0\r\nA: {}\r\n\r\n", "b".repeat(MAX_TRAILER_LEN - 7));
        for (body, content, rest_len) in [
            ("0\r\n\r\n", "", 0),
            ("3\r\nabc\r\n0\r\n\r\n", "abc", 0),
            ("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "abcde", 0),
            ("0000003\r\nabc\r\n000\r\n\r\nGET /", "abc", 5),
            ("A\r\n0123456789\r\n0\r\n\r\n0\r\n\r\n", "0123456789", 5),
            ("1\r\n\r\r\n0\r\nX: y\r\nEtag: z\r\n\r\nrest", "\r", 4),
            (huge.as_str(), "", 0),
        ] {
            for piece_len in [usize::MAX, 1, 2, 3, 7] {
                let expected = (content.as_bytes().to_vec(), body.len() - rest_len, true);
                assert_eq!(
                    strip(body.as_bytes(), piece_len),
                    Ok(expected),
                    "{}",
                    &body[..body.len().min(60)]
                );
            }
        }
    }

    #[test]
    fn refuses() {
        use BodyError::*;
        let huge = format!("0\r\nA: {}\r\n\r\n", "b".repeat(MAX_TRAILER_LEN - 6));
        let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        let many_bare = many.replacen("b\r\n", "b\n", 1);
        for (body, error) in [
            ("\r\n", ChunkSize),
            ("x\r\n", ChunkSize),
            ("0x3\r\nabc\r\n", ChunkSize),
            ("+3\r\nabc\r\n", ChunkSize),
            (" 3\r\nabc\r\n", ChunkSize),
            ("3_0\r\n", ChunkSize),
            ("3\nabc\r\n", ChunkSize),
            ("3\rabc\r\n", ChunkSize),
            ("00000000000000003\r\nabc\r\n", ChunkSize),
            ("10000000000000003\r\nabc\r\n", ChunkSize),
            ("8000000000000000\r\n", ChunkSize),
            ("ffffffffffffffff\r\n", ChunkSize),
            ("1\r\na\r\n7fffffffffffffff\r\n", ChunkSize),
            ("3 \r\nabc\r\n", ChunkExtension),
            ("3\t;a\r\nabc\r\n", ChunkExtension),
            ("3;\r\nabc\r\n", ChunkExtension),
            ("3;a=b\nabc\r\n", ChunkExtension),
            ("0;a\r\n\r\n", ChunkExtension),
            ("2\r\nabc\r\n", ChunkEnd),
            ("3\r\nabc\n0\r\n", ChunkEnd),
            ("3\r\nabc\rx", ChunkEnd),
            ("3\r\nabc0\r\n", ChunkEnd),
            ("0\r\n\n", Trailer),
            ("0\r\n\rx", Trailer),
            ("0\r\nno colon\r\n\r\n", Trailer),
            ("0\r\nX : y\r\n\r\n", Trailer),
            ("0\r\nX: y\r\n z\r\n\r\n", Trailer),
            ("0\r\nX: y\n\r\n", Trailer),
            ("0\r\nX: y\nZ: ", Trailer),
            ("0\r\nX: \0\r\n\r\n", Trailer),
            ("0\r\ncontent-length: 3\r\n\r\n", Trailer),
            ("0\r\nTransfer-Encoding: chunked\r\n\r\n", Trailer),
            ("0\r\nTransfer_Encoding: chunked\r\n\r\n", Trailer),
            ("0\r\nHost: b\r\n\r\n", Trailer),
            ("0\r\nX-Forwarded-For: 6\r\n\r\n", Trailer),
            ("0\r\nAuthorization: b\r\n\r\n", Trailer),
            ("0\r\nX: y\r\nset-cookie: b\r\n\r\n", Trailer),
            (huge.as_str(), TrailerTooLarge),
            (many.as_str(), TrailerTooLarge),
            (many_bare.as_str(), Trailer),
        ] {
            for piece_len in [usize::MAX, 1, 2, 3, 7] {
                assert_eq!(
                    strip(body.as_bytes(), piece_len),
                    Err(error),
                    "{}",
                    &body[..body.len().min(60)]
                );
            }
        }
    }

    #[test]
    fn announces_what_is_to_come() {
        let mut decoder = ChunkedDecoder::default();
        assert_eq!(decoder.piece(b"ff\r\nabc"), Ok(Piece::Framing { len: 4 }));
        assert_eq!(decoder.data_bytes(), 255);
        assert_eq!(decoder.piece(b""), Ok(Piece::NeedMore));
        assert_eq!(decoder.piece(b"abc"), Ok(Piece::Data { len: 3 }));
    }
}
