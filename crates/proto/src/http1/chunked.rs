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
//! so that no byte of a malformed one is ever passed on. Chunk extensions (§7.1.1)
//! and trailer fields that may not be any are for the reader of the body to leave
//! out: see [`BodyDecoder::restate`](super::BodyDecoder::restate).

use super::MAX_FIELDS;
use super::grammar::{self, Stop};
use super::trailer::is_forbidden;
use crate::error::BodyError;
use crate::field::MAX_BODY_BYTES;

/// Longest trailer section, in bytes.
pub const MAX_TRAILER_LEN: usize = 8 * 1024;

/// Most digits of a chunk size: what fits 64 bits.
const MAX_SIZE_DIGITS: usize = 16;

/// Longest extension of a chunk, with the line's end, in bytes.
const MAX_EXTENSION_LEN: usize = 1024;

/// Most bytes of extensions beyond those of content: a body's limit counts content.
const MAX_EXTENSIONS_LEN: u64 = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkedState {
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
        /// Bytes of an extension or white space, in front of the line's end.
        extension_len: usize,
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
    state: ChunkedState,
    data_bytes: u64,
    chunks: u64,
    /// Bytes of extensions so far, at most 4 GiB.
    extension_bytes: u32,
    /// Whether all that was taken is in normal form.
    is_normal: bool,
    /// Whether no trailer field goes on.
    drops_trailers: bool,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        ChunkedDecoder {
            state: ChunkedState::Size,
            data_bytes: 0,
            chunks: 0,
            extension_bytes: 0,
            is_normal: true,
            drops_trailers: false,
        }
    }
}

impl ChunkedDecoder {
    /// Has no trailer field go on.
    pub(super) fn drop_trailers(&mut self) {
        self.drops_trailers = true;
    }

    /// Bytes of content that are left of the present chunk.
    pub fn chunk_left(&self) -> u64 {
        match self.state {
            ChunkedState::Data { remaining } => remaining,
            _ => 0,
        }
    }

    pub(super) fn drops_trailers(&self) -> bool {
        self.drops_trailers
    }

    /// Content announced so far, in bytes, without framing.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Chunks announced so far.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Whether all taken pieces can go on as they are.
    pub fn is_normal(&self) -> bool {
        self.is_normal
    }

    /// Whether the last piece was the end.
    pub fn is_done(&self) -> bool {
        self.state == ChunkedState::Done
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
            ChunkedState::Size => self.size(input),
            ChunkedState::Data { remaining } => {
                let len = remaining.min(input.len() as u64) as usize;
                let remaining = remaining - len as u64;
                self.state = match remaining {
                    0 => ChunkedState::DataEnd,
                    _ => ChunkedState::Data { remaining },
                };
                Ok(Piece::Data { len })
            }
            ChunkedState::DataEnd => match input {
                [b'\r', b'\n', ..] => {
                    self.state = ChunkedState::Size;
                    Ok(Piece::Framing {
                        len: 2,
                        extension_len: 0,
                    })
                }
                [b'\r'] => Ok(Piece::NeedMore),
                _ => Err(BodyError::ChunkEnd),
            },
            ChunkedState::Trailer => self.trailer(input),
            ChunkedState::Done => Ok(Piece::End { len: 0 }),
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
        let extension_len = match &input[digits..] {
            [] => return Ok(Piece::NeedMore),
            [b'\r'] if digits > 0 => return Ok(Piece::NeedMore),
            [b'\r', b'\n', ..] if digits > 0 => 0,
            behind @ [b';' | b' ' | b'\t', ..] if digits > 0 => match extension_len(behind)? {
                Some(len) => len,
                None => return Ok(Piece::NeedMore),
            },
            _ => return Err(BodyError::ChunkSize),
        };
        self.data_bytes = self
            .data_bytes
            .checked_add(size)
            .filter(|&total| total <= MAX_BODY_BYTES)
            .ok_or(BodyError::ChunkSize)?;
        self.chunks += 1;
        self.state = match size {
            0 => ChunkedState::Trailer,
            remaining => ChunkedState::Data { remaining },
        };
        if extension_len > 0 {
            self.is_normal = false;
            self.extension_bytes = self.extension_bytes.saturating_add(extension_len as u32);
            if u64::from(self.extension_bytes) > self.data_bytes + MAX_EXTENSIONS_LEN {
                return Err(BodyError::ChunkExtension);
            }
        }
        Ok(Piece::Framing {
            len: digits + extension_len + 2,
            extension_len,
        })
    }

    fn trailer(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        let len = match input {
            [b'\r', b'\n', ..] => 2,
            [b'\r'] => 0,
            _ => self.trailer_len(input)?,
        };
        if len == 0 {
            return if input.len() < MAX_TRAILER_LEN {
                Ok(Piece::NeedMore)
            } else {
                Err(BodyError::TrailerTooLarge)
            };
        }
        self.state = ChunkedState::Done;
        Ok(Piece::End { len })
    }

    /// Length of a trailer section with fields, 0 while it is not whole.
    fn trailer_len(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        // Bytes after the limit may be the next message.
        let input = &input[..input.len().min(MAX_TRAILER_LEN)];
        let mut fields = Vec::new();
        let len = match grammar::field_lines(input, 0, &mut fields, MAX_FIELDS) {
            Ok(end) => end,
            Err(Stop::Short) => return Ok(0),
            Err(Stop::Odd) => return Err(BodyError::Trailer),
            Err(Stop::TooManyFields) => return Err(BodyError::TrailerTooLarge),
        };
        self.is_normal &=
            !self.drops_trailers && !fields.iter().any(|field| is_forbidden(field, input));
        Ok(len)
    }
}

/// Length of what stands between a chunk's size and the line's end: white space,
/// and extensions (RFC 9112 §7.1.1). `None` while the line is not whole.
///
/// ```text
/// *( BWS ";" BWS token [ BWS "=" BWS ( token / quoted-string ) ] ) BWS CRLF
/// ```
#[cold]
fn extension_len(input: &[u8]) -> Result<Option<usize>, BodyError> {
    // Bytes after the limit may be content.
    let limited = &input[..input.len().min(MAX_EXTENSION_LEN)];
    match extension_end(limited) {
        Ok(end) => Ok(Some(end)),
        Err(Stop::Short) if limited.len() < MAX_EXTENSION_LEN => Ok(None),
        Err(_) => Err(BodyError::ChunkExtension),
    }
}

fn extension_end(input: &[u8]) -> Result<usize, Stop> {
    let mut at = grammar::blanks_end(input, 0);
    while input.get(at) == Some(&b';') {
        at = token(input, grammar::blanks_end(input, at + 1))?;
        at = grammar::blanks_end(input, at);
        if input.get(at) == Some(&b'=') {
            let value = grammar::blanks_end(input, at + 1);
            at = match input.get(value) {
                Some(b'"') => quoted_end(input, value + 1)?,
                _ => token(input, value)?,
            };
            at = grammar::blanks_end(input, at);
        }
    }
    grammar::line_end(input, at)?;
    Ok(at)
}

/// Takes the token at `at`, behind which there must be a byte.
fn token(input: &[u8], at: usize) -> Result<usize, Stop> {
    let end = grammar::token_end(input, at);
    match input.get(end) {
        None => Err(Stop::Short),
        Some(_) if end == at => Err(Stop::Odd),
        Some(_) => Ok(end),
    }
}

/// Takes a quoted string (RFC 9110 §5.6.4) from behind its first quote.
fn quoted_end(input: &[u8], mut at: usize) -> Result<usize, Stop> {
    loop {
        match *input.get(at).ok_or(Stop::Short)? {
            b'"' => return Ok(at + 1),
            b'\\' => match *input.get(at + 1).ok_or(Stop::Short)? {
                byte if is_text(byte) => at += 2,
                _ => return Err(Stop::Odd),
            },
            byte if is_text(byte) => at += 1,
            _ => return Err(Stop::Odd),
        }
    }
}

/// No control byte but a tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

#[cfg(test)]
mod tests;
