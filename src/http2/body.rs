//! Bodies as HTTP/1 frames them, on streams.
//!
//! Readers of a message get its body as HTTP/1 frames it, and writers write it so. If the head
//! says so, it is in chunks, with trailers behind them.

use evenkeel_proto::http1::{ChunkedDecoder, Piece};
use evenkeel_proto::http2::response::trailer_block;
use evenkeel_proto::http2::{Core, Direction, Role, StreamId};
use evenkeel_proto::{BodyError, BodyFraming};

use super::{SharedConnection, room_of};

/// How far the body of a message was read.
#[derive(Debug)]
pub enum BodyReading {
    /// As it comes.
    Content,
    /// In chunks: unread framing, and the rest of the present chunk.
    Chunks {
        /// Bytes of framing that are read first.
        framing: Vec<u8>,
        /// The rest of the present chunk.
        left: usize,
        /// Whether the end was framed.
        is_over: bool,
    },
}

/// How far the body of a message was written.
#[derive(Debug)]
pub enum BodyWriting {
    /// As it goes. The writer says where it ends.
    Content,
    /// The same, with so many bytes to go: the last of them is the end.
    Counted(u64),
    /// In chunks, which are taken apart. `held` is the beginning of a piece of framing.
    Chunks {
        /// Stands behind the taken bytes.
        decoder: ChunkedDecoder,
        /// The beginning of a piece of framing.
        held: Vec<u8>,
    },
}

impl BodyReading {
    /// The reading of a message with this framing.
    pub fn of(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::Chunked => BodyReading::Chunks {
                framing: Vec::new(),
                left: 0,
                is_over: false,
            },
            _ => BodyReading::Content,
        }
    }

    /// Whether the end was framed, if the framing has one.
    pub fn is_over(&self) -> bool {
        match self {
            BodyReading::Content => true,
            BodyReading::Chunks { is_over, .. } => *is_over,
        }
    }

    /// Whether something can be read that no stream has.
    pub fn has_framing(&self) -> bool {
        match self {
            BodyReading::Content => false,
            BodyReading::Chunks { framing, .. } => !framing.is_empty(),
        }
    }

    /// Reads the available bytes into `room`: how many.
    pub fn read<R: Role>(
        &mut self,
        protocol: &mut Core<R>,
        id: StreamId,
        room: &mut [u8],
    ) -> usize {
        let BodyReading::Chunks {
            framing,
            left,
            is_over,
        } = self
        else {
            return protocol.read_content(id, room);
        };
        let mut at = 0;
        while at < room.len() {
            if !framing.is_empty() {
                let len = framing.len().min(room.len() - at);
                room[at..at + len].copy_from_slice(&framing[..len]);
                framing.drain(..len);
                at += len;
            } else if *left > 0 {
                let most = (*left).min(room.len() - at);
                let len = protocol.read_content(id, &mut room[at..at + most]);
                if len == 0 {
                    // Cut off within the body.
                    break;
                }
                at += len;
                *left -= len;
                if *left == 0 {
                    framing.extend_from_slice(b"\r\n");
                }
            } else if !begin_chunk(protocol, id, framing, left, is_over) {
                break;
            }
        }
        at
    }
}

/// Begins the next chunk, or the end of a chunked body. `false` while there is none.
fn begin_chunk<R: Role>(
    protocol: &mut Core<R>,
    id: StreamId,
    framing: &mut Vec<u8>,
    left: &mut usize,
    is_over: &mut bool,
) -> bool {
    *left = protocol.readable_len(id);
    if *left > 0 {
        framing.extend_from_slice(format!("{left:x}\r\n").as_bytes());
        return true;
    }
    match protocol.incoming(id) {
        Some((Direction::Ended, trailers)) if !*is_over => {
            *is_over = true;
            framing.extend_from_slice(b"0\r\n");
            framing.extend_from_slice(trailers);
            framing.extend_from_slice(b"\r\n");
            true
        }
        _ => false,
    }
}

impl BodyWriting {
    /// In chunks, from their beginning.
    pub fn in_chunks() -> Self {
        BodyWriting::Chunks {
            decoder: ChunkedDecoder::default(),
            held: Vec::new(),
        }
    }

    /// Writes as much as windows and memory allow: how many bytes. `ends` says whether
    /// nothing follows them, where chunks do not say it.
    ///
    /// # Errors
    /// The chunks are malformed.
    pub fn write<R: Role>(
        &mut self,
        connection: &SharedConnection<R>,
        id: StreamId,
        bytes: &[u8],
        ends: bool,
    ) -> Result<usize, BodyError> {
        let protocol = &mut *connection.protocol.borrow_mut();
        let room = room_of(protocol);
        match self {
            BodyWriting::Content => Ok(protocol.send_content(id, bytes, ends, room)),
            BodyWriting::Counted(left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let bytes = &bytes[..bytes.len().min(most)];
                let ends = bytes.len() as u64 == *left;
                let len = protocol.send_content(id, bytes, ends, room);
                *left -= len as u64;
                Ok(len)
            }
            BodyWriting::Chunks { decoder, held } => {
                let block = &mut connection.block.borrow_mut();
                let before = held.len();
                let joined;
                let input = if held.is_empty() {
                    bytes
                } else {
                    joined = [&std::mem::take(held)[..], bytes].concat();
                    &joined
                };
                let taken = write_chunks(decoder, protocol, id, input, block)?;
                if decoder.chunk_left() == 0 && !decoder.is_done() {
                    // The rest begins a piece, of which the caller has no more now.
                    held.extend_from_slice(&input[taken..]);
                    return Ok(bytes.len());
                }
                Ok(taken.saturating_sub(before))
            }
        }
    }
}

/// Sends the content that `bytes` have of a chunked body, as far as windows and memory allow.
/// Gives how many bytes were taken. A piece of framing comes and is taken as a whole.
fn write_chunks<R: Role>(
    decoder: &mut ChunkedDecoder,
    protocol: &mut Core<R>,
    id: StreamId,
    bytes: &[u8],
    block: &mut Vec<u8>,
) -> Result<usize, BodyError> {
    let mut taken = 0;
    while taken < bytes.len() {
        let rest = &bytes[taken..];
        let left = usize::try_from(decoder.chunk_left()).unwrap_or(usize::MAX);
        if left > 0 {
            let content = &rest[..left.min(rest.len())];
            let room = room_of(protocol);
            let len = protocol.send_content(id, content, false, room);
            if len == 0 {
                break;
            }
            decoder.piece(&content[..len])?;
            taken += len;
            continue;
        }
        match decoder.piece(rest)? {
            Piece::Framing { len, .. } | Piece::Data { len } => taken += len,
            Piece::End { len } => {
                block.clear();
                trailer_block(block, &rest[..len]);
                if block.is_empty() {
                    protocol.end(id);
                } else {
                    protocol.send_fields(id, block, true);
                }
                taken += len;
                break;
            }
            Piece::NeedMore => break,
        }
    }
    Ok(taken)
}
