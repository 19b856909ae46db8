//! Follows a body to its end, whichever way that end is known.

use super::chunked::{ChunkedDecoder, Piece};
use crate::error::BodyError;
use crate::head::BodyFraming;

/// Where in its body a message stands.
#[derive(Debug, Clone)]
pub enum BodyDecoder {
    /// So many bytes are still to come; 0 is the end.
    Length {
        /// Bytes to come.
        remaining: u64,
    },
    /// A chunked body.
    Chunked(ChunkedDecoder),
    /// The body ends with the connection.
    UntilClose,
}

/// What part of an input belongs to the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advance {
    /// Bytes from the start of the input that were taken.
    pub consumed: usize,
    /// Bytes of content left at the start of the input after
    /// [`BodyDecoder::strip`]; equal to `consumed` after
    /// [`BodyDecoder::advance`].
    pub kept: usize,
}

impl BodyDecoder {
    /// A decoder at the start of a body.
    pub fn new(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::None => BodyDecoder::Length { remaining: 0 },
            BodyFraming::Length { bytes } => BodyDecoder::Length { remaining: bytes },
            BodyFraming::Chunked => BodyDecoder::Chunked(ChunkedDecoder::default()),
            BodyFraming::UntilClose => BodyDecoder::UntilClose,
        }
    }

    /// Whether the body is over without the connection having to close.
    pub fn is_done(&self) -> bool {
        match self {
            BodyDecoder::Length { remaining } => *remaining == 0,
            BodyDecoder::Chunked(chunked) => chunked.is_done(),
            BodyDecoder::UntilClose => false,
        }
    }

    /// Takes as much of `input` as is valid, framing included: these bytes can
    /// be passed on as they are. What is not taken belongs to the next message
    /// when the body is over, and is an unfinished piece when it is not.
    ///
    /// # Errors
    /// A chunk or trailer is malformed; nothing of it was taken, and what was
    /// taken before it is lost to the caller.
    pub fn advance(&mut self, input: &[u8]) -> Result<Advance, BodyError> {
        let consumed = match self {
            BodyDecoder::Length { remaining } => {
                let len = (*remaining).min(input.len() as u64);
                *remaining -= len;
                len as usize
            }
            BodyDecoder::UntilClose => input.len(),
            BodyDecoder::Chunked(chunked) => {
                let mut taken = 0;
                loop {
                    match chunked.piece(&input[taken..])? {
                        Piece::Framing { len } | Piece::Data { len } => taken += len,
                        Piece::End { len } => break taken + len,
                        Piece::NeedMore => break taken,
                    }
                }
            }
        };
        Ok(Advance {
            consumed,
            kept: consumed,
        })
    }

    /// Like [`advance`](Self::advance), moving the content to the start of
    /// `input` and leaving framing and trailers out.
    ///
    /// # Errors
    /// As for [`advance`](Self::advance).
    pub fn strip(&mut self, input: &mut [u8]) -> Result<Advance, BodyError> {
        let BodyDecoder::Chunked(chunked) = self else {
            return self.advance(input);
        };
        let (mut consumed, mut kept) = (0, 0);
        loop {
            match chunked.piece(&input[consumed..])? {
                Piece::Framing { len } => consumed += len,
                Piece::Data { len } => {
                    input.copy_within(consumed..consumed + len, kept);
                    consumed += len;
                    kept += len;
                }
                Piece::End { len } => {
                    consumed += len;
                    break;
                }
                Piece::NeedMore => break,
            }
        }
        Ok(Advance { consumed, kept })
    }

    /// Content of the body as far as it is known, in bytes, if it is counted
    /// by its framing.
    pub fn announced_bytes(&self) -> Option<u64> {
        match self {
            BodyDecoder::Chunked(chunked) => Some(chunked.data_bytes()),
            BodyDecoder::Length { .. } | BodyDecoder::UntilClose => None,
        }
    }
}
