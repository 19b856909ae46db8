//! Follows a body to its end, whichever way that end is known.

use super::chunked::{ChunkedDecoder, Piece};
use super::trailer;
use crate::error::BodyError;
use crate::wire::BodyFraming;

/// The position of a message in its body.
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

/// The part of an input that belongs to the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advance {
    /// Bytes from the start of the input that were taken.
    pub consumed: usize,
    /// Bytes left at the start of the input after [`BodyDecoder::strip`] or
    /// [`BodyDecoder::restate`]; equal to `consumed` after
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

    /// The same decoder, of a body whose trailer fields do not go on
    /// ([`restate`](Self::restate) leaves them out).
    pub fn without_trailers(mut self) -> Self {
        if let BodyDecoder::Chunked(chunked) = &mut self {
            chunked.drop_trailers();
        }
        self
    }

    /// Whether the body is over without the connection having to close.
    pub fn is_done(&self) -> bool {
        match self {
            BodyDecoder::Length { remaining } => *remaining == 0,
            BodyDecoder::Chunked(chunked) => chunked.is_done(),
            BodyDecoder::UntilClose => false,
        }
    }

    /// Takes as much of `input` as is valid, framing included. These bytes can be passed on as
    /// they are while the decoder [`is_normal`](Self::is_normal).
    ///
    /// The rest belongs to the next message when the body is over. Before that, it is an
    /// unfinished piece.
    ///
    /// # Errors
    /// A chunk or trailer is malformed, and nothing of it was taken. Pieces that were taken
    /// before it are lost to the caller.
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
                        Piece::Framing { len, .. } | Piece::Data { len } => taken += len,
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

    /// Bytes that belong to the body whatever they are: all that are to come,
    /// where their number is known.
    pub fn unseen_len(&self) -> u64 {
        match self {
            BodyDecoder::Length { remaining } => *remaining,
            BodyDecoder::Chunked(_) | BodyDecoder::UntilClose => 0,
        }
    }

    /// Takes `len` bytes without a look at them, no more than
    /// [`unseen_len`](Self::unseen_len).
    pub fn pass(&mut self, len: u64) {
        debug_assert!(len <= self.unseen_len(), "they belong to the body");
        if let BodyDecoder::Length { remaining } = self {
            *remaining = remaining.saturating_sub(len);
        }
    }

    /// Like [`advance`](Self::advance), moving the content to the start of
    /// `input` and leaving framing and trailers out.
    ///
    /// # Errors
    /// As for [`advance`](Self::advance).
    pub fn strip(&mut self, input: &mut [u8]) -> Result<Advance, BodyError> {
        self.compact(input, |piece, _| match piece {
            Piece::Data { len } => len,
            _ => 0,
        })
    }

    /// Like [`advance`](Self::advance), leaving out the parts that do not go on. The rest moves
    /// to the start of `input`.
    ///
    /// Left out are chunk extensions, white space behind a chunk's size, and forbidden trailer
    /// fields (RFC 9112 §7.1.1, RFC 9110 §6.5.1), or all trailer fields
    /// ([`without_trailers`](Self::without_trailers)).
    ///
    /// # Errors
    /// As for [`advance`](Self::advance).
    pub fn restate(&mut self, input: &mut [u8]) -> Result<Advance, BodyError> {
        let drops_trailers = match self {
            BodyDecoder::Chunked(chunked) => chunked.drops_trailers(),
            _ => false,
        };
        self.compact(input, |piece, bytes| match piece {
            Piece::Framing { len, extension_len } => {
                if extension_len > 0 {
                    let line_end = len - b"\r\n".len();
                    bytes.copy_within(line_end.., line_end - extension_len);
                }
                len - extension_len
            }
            Piece::End { len } if len > b"\r\n".len() && drops_trailers => {
                bytes[..2].copy_from_slice(b"\r\n");
                2
            }
            Piece::End { len } if len > b"\r\n".len() => trailer::restate_trailer(bytes),
            Piece::Data { len } | Piece::End { len } => len,
            Piece::NeedMore => 0,
        })
    }

    /// Like [`advance`](Self::advance), moving the parts of each piece that `keep` keeps to the
    /// start of `input`. `keep` gets the piece's bytes, moves the kept ones to their front, and
    /// gives their number.
    #[inline]
    fn compact(
        &mut self,
        input: &mut [u8],
        keep: impl Fn(Piece, &mut [u8]) -> usize,
    ) -> Result<Advance, BodyError> {
        let BodyDecoder::Chunked(chunked) = self else {
            return self.advance(input);
        };
        let (mut consumed, mut kept) = (0, 0);
        loop {
            let piece = chunked.piece(&input[consumed..])?;
            let (Piece::Framing { len, .. } | Piece::Data { len } | Piece::End { len }) = piece
            else {
                break;
            };
            let end = consumed + len;
            let kept_len = keep(piece, &mut input[consumed..end]);
            if kept < consumed {
                input.copy_within(consumed..consumed + kept_len, kept);
            }
            consumed = end;
            kept += kept_len;
            if chunked.is_done() {
                break;
            }
        }
        Ok(Advance { consumed, kept })
    }

    /// Whether the taken bytes can be passed on as they are. [`restate`](Self::restate) left
    /// nothing out, and would have left nothing out.
    pub fn is_normal(&self) -> bool {
        match self {
            BodyDecoder::Chunked(chunked) => chunked.is_normal(),
            BodyDecoder::Length { .. } | BodyDecoder::UntilClose => true,
        }
    }

    /// Chunks so far: each costs as much as many bytes of a body without them.
    pub fn chunks(&self) -> u64 {
        match self {
            BodyDecoder::Chunked(chunked) => chunked.chunks(),
            BodyDecoder::Length { .. } | BodyDecoder::UntilClose => 0,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_more_than_the_body() {
        for (framing, input, consumed, is_done) in [
            (BodyFraming::None, "GET /", 0, true),
            (BodyFraming::Length { bytes: 3 }, "abcGET /", 3, true),
            (BodyFraming::Length { bytes: 9 }, "abc", 3, false),
            (BodyFraming::UntilClose, "abc", 3, false),
            (BodyFraming::Chunked, "1\r\na\r\n0\r\n\r\nGET /", 11, true),
            (BodyFraming::Chunked, "1\r\na\r\n0\r\nX:", 9, false),
        ] {
            let mut decoder = BodyDecoder::new(framing);
            let advance = decoder.advance(input.as_bytes()).unwrap();
            let kept = consumed;
            assert_eq!(advance, Advance { consumed, kept }, "{framing:?}");
            assert_eq!(decoder.is_done(), is_done, "{framing:?}");
            // One of a byte, and the last.
            let chunks = 2 * u64::from(framing == BodyFraming::Chunked);
            assert_eq!(decoder.chunks(), chunks, "{input:?}");
            if is_done {
                let after = decoder.advance(b"more").unwrap();
                assert_eq!(after.consumed, 0, "{framing:?}");
            }
        }
    }

    #[test]
    fn strips_in_place_and_leaves_the_rest() {
        let mut input = *b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\nGET /";
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let advance = decoder.strip(&mut input).unwrap();
        let (consumed, kept) = (advance.consumed, advance.kept);
        assert_eq!(
            (&input[..kept], &input[consumed..]),
            (&b"abc"[..], &b"GET /"[..])
        );
    }

    #[test]
    fn passes_what_has_a_known_length_unseen() {
        let mut decoder = BodyDecoder::new(BodyFraming::Length { bytes: 9 });
        decoder.advance(b"abc").unwrap();
        assert_eq!(decoder.unseen_len(), 6);
        decoder.pass(6);
        assert!(decoder.is_done());
        for framing in [BodyFraming::Chunked, BodyFraming::UntilClose] {
            assert_eq!(BodyDecoder::new(framing).unseen_len(), 0, "{framing:?}");
        }
    }
}
