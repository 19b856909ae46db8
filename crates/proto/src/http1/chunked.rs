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

use super::{MAX_FIELDS, fields};
use crate::error::BodyError;
use crate::head::FieldKind;

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
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        ChunkedDecoder {
            state: State::Size,
            data_bytes: 0,
        }
    }
}

impl ChunkedDecoder {
    /// Content announced so far, in bytes, without framing.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
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
            .ok_or(BodyError::ChunkSize)?;
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
    let mut lines = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let (len, lines) = match httparse::parse_headers(input, &mut lines) {
        Ok(httparse::Status::Complete(parsed)) => parsed,
        Ok(httparse::Status::Partial) => return Ok(0),
        Err(httparse::Error::TooManyHeaders) => return Err(BodyError::TrailerTooLarge),
        Err(_) => return Err(BodyError::Trailer),
    };
    if len > MAX_TRAILER_LEN {
        return Err(BodyError::TrailerTooLarge);
    }
    // RFC 9110 §6.5.1: what frames, routes or authenticates has no place here.
    let sets_head_field = lines.iter().any(|line| {
        let kind = FieldKind::from_name(line.name.as_bytes());
        !matches!(
            kind,
            FieldKind::Other | FieldKind::UserAgent | FieldKind::Referer
        )
    });
    if sets_head_field || !fields::lines_end_in_crlf(&input[..len]) {
        return Err(BodyError::Trailer);
    }
    Ok(len)
}
