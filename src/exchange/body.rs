//! The source and the sink of a body.
//!
//! The protocols of client and upstream each give the exchange a head with a [`BodySource`], and
//! a [`BodySink`] for the other direction. A [`Pump`](super::pump::Pump) moves bytes between
//! them. Both ends agree on the fast ways: see [`Way`].
//!
//! HTTP/1 is the only framing so far, with its own variant in each enum. A [`Carrier`], lent for
//! each poll, moves the bytes.

use std::io::{self, ErrorKind};
use std::task::{Context, Poll};

use evenkeel_proto::http1::write::Transcode;
use evenkeel_proto::http1::{Advance, BodyDecoder};
use evenkeel_proto::{BodyError, BodyFraming, Version};

use super::carrier::Carrier;
use crate::net::buffer::Buffer;
use crate::net::pipe::Pipe;
use crate::net::stream::Follow;

/// Room kept after a read: for the ends of a chunk and of a chunked body.
pub const TAILROOM: usize = 16;
/// After a read with more chunks than this, the next reads are short, as decoding chunks keeps
/// the worker busy.
const TINY_CHUNKS: u64 = 1024;
/// Length of a read from a body in tiny chunks, in bytes.
const TINY_CHUNKS_READ_LEN: usize = 16 * 1024;
/// Least rest of a body, in bytes, that goes through a pipe. A shorter one is copied in the time
/// of the two further system calls.
pub const SPLICED_MIN: u64 = 64 * 1024;
/// Length of a read, in bytes, that shows bulk in a body without a length. The next bytes go
/// through a pipe, until a turn brings less.
const BULKY_MIN: usize = SPLICED_MIN as usize;
/// Most bytes of a body without a length to splice in a turn: as many as the pipe takes.
const UNKNOWN_LEN: u64 = 1 << 30;
/// Longest line with a chunk's size, in bytes.
pub const CHUNK_SIZE_LINE_LEN: usize = b"0000000000000000\r\n".len();
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Why a pump stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PumpEnd {
    /// The whole body was written.
    Done,
    /// The source closed before the body's end.
    SourceCut,
    /// The sink accepts nothing more.
    SinkClosed,
    /// The same, as its peer has reset the connection.
    SinkReset,
    /// The body is malformed.
    Malformed(BodyError),
    /// The body is over the limit.
    TooLarge,
}

/// The source of a body.
#[derive(Debug, Clone)]
pub enum BodySource {
    /// A message of HTTP/1.
    Http1(Http1Source),
}

/// The body of a message on a connection of HTTP/1.
#[derive(Debug, Clone)]
pub struct Http1Source {
    /// The decoder, after the bytes that were read and taken.
    decoder: BodyDecoder,
    is_done: bool,
    /// Whether the last read brought chunks of a few bytes each.
    has_tiny_chunks: bool,
    /// Most content of a chunked body, in bytes.
    limit_bytes: Option<u64>,
    /// Whether the last read of a body without a length showed bulk.
    is_bulky: bool,
}

/// The sink of a body.
#[derive(Debug, Clone)]
pub enum BodySink {
    /// A message of HTTP/1.
    Http1(Http1Sink),
}

/// The body of a message for a connection of HTTP/1.
#[derive(Debug, Clone)]
pub struct Http1Sink {
    transcode: Transcode,
    /// The next thing on the connection after the body's last byte.
    follow: Follow,
    /// Whether it accepts nothing more: later bytes are dropped.
    is_closed: bool,
}

/// The way of the next bytes from a source to a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Through a buffer.
    Copied,
    /// Through a pipe: the kernel moves them.
    Spliced,
}

impl Way {
    /// The way of the next bytes. They are spliced if both ends agree and the body is long
    /// enough.
    pub fn between(
        source: &BodySource,
        from: &Carrier<'_>,
        sink: &BodySink,
        to: &Carrier<'_>,
    ) -> Self {
        let is_long = source.unseen_len() >= SPLICED_MIN || source.is_bulky();
        if is_long && !sink.is_closed() && from.can_splice() && to.can_splice() {
            Way::Spliced
        } else {
            Way::Copied
        }
    }
}

impl BodySource {
    /// A body whose next byte is for `decoder`.
    pub fn http1(decoder: BodyDecoder) -> Self {
        BodySource::Http1(Http1Source {
            is_done: decoder.is_done(),
            decoder,
            has_tiny_chunks: false,
            limit_bytes: None,
            is_bulky: false,
        })
    }

    /// Limits the content of a chunked body.
    pub fn with_limit(mut self, limit_bytes: Option<u64>) -> Self {
        let BodySource::Http1(http1) = &mut self;
        http1.limit_bytes = limit_bytes;
        self
    }

    /// Whether the whole body was read.
    pub fn is_done(&self) -> bool {
        let BodySource::Http1(http1) = self;
        http1.is_done
    }

    /// Bytes of the body that are still to be read, where that is known.
    pub fn unseen_len(&self) -> u64 {
        let BodySource::Http1(http1) = self;
        http1.decoder.unseen_len()
    }

    /// Whether a body without a length comes in bulk.
    pub fn is_bulky(&self) -> bool {
        let BodySource::Http1(http1) = self;
        http1.is_bulky
    }

    /// Number of chunks decoded so far.
    pub fn chunks(&self) -> u64 {
        let BodySource::Http1(http1) = self;
        http1.decoder.chunks()
    }

    /// The decoder, after the bytes that were read and taken.
    pub fn decoder(&self) -> &BodyDecoder {
        let BodySource::Http1(http1) = self;
        &http1.decoder
    }

    /// Notes the number of chunks in the last turn.
    pub fn note_chunks(&mut self, count: u64) {
        let BodySource::Http1(http1) = self;
        http1.has_tiny_chunks = count > TINY_CHUNKS;
    }

    /// Ready when a read would not block.
    pub fn poll_ready(&self, cx: &Context<'_>, from: &mut Carrier<'_>) -> Poll<()> {
        let BodySource::Http1(_) = self;
        from.poll_read_ready(cx)
    }

    /// Moves bytes into a pipe, and returns how many. `None` where they can't be spliced, or a
    /// read will show the error.
    pub fn poll_splice(
        &mut self,
        cx: &Context<'_>,
        from: &mut Carrier<'_>,
        pipe: &mut Pipe,
    ) -> Poll<Result<Option<u64>, PumpEnd>> {
        let BodySource::Http1(http1) = self;
        let is_bulky = std::mem::take(&mut http1.is_bulky);
        let unseen_len = if is_bulky {
            UNKNOWN_LEN
        } else {
            http1.decoder.unseen_len()
        };
        from.poll_read_into(cx, pipe, unseen_len)
            .map(|read| match read {
                // A read will show whether this is the end.
                Ok(0) if is_bulky => Ok(None),
                Ok(0) => Err(PumpEnd::SourceCut),
                Ok(len) if is_bulky => {
                    http1.is_bulky = len >= BULKY_MIN;
                    Ok(Some(len as u64))
                }
                Ok(len) => {
                    let len = len as u64;
                    http1.decoder.pass(len);
                    http1.is_done = http1.decoder.is_done();
                    Ok(Some(len))
                }
                Err(error) if can_be_read(&error) => Ok(None),
                // An error shows only once: a read would now show a plain end.
                Err(_) => Err(PumpEnd::SourceCut),
            })
    }

    /// Reads up to `len_max` bytes behind the filled ones of `buffer`. Returns the length.
    pub fn poll_read(
        &self,
        cx: &Context<'_>,
        from: &mut Carrier<'_>,
        buffer: &mut Buffer,
        len_max: usize,
    ) -> Poll<io::Result<usize>> {
        let BodySource::Http1(http1) = self;
        let room = buffer.room();
        let mut room_len = (room.len() - TAILROOM).min(len_max);
        if http1.has_tiny_chunks {
            room_len = room_len.min(TINY_CHUNKS_READ_LEN);
        }
        let polled = from.poll_read(cx, &mut room[..room_len]);
        if let Poll::Ready(Ok(len)) = polled {
            buffer.fill(len);
        }
        polled
    }

    /// Takes bytes from `buffer`, in the form that `sink` wants. Returns the number of bytes at
    /// its front that may be written. The bytes after them were not taken.
    ///
    /// # Errors
    /// The body is malformed, or over the limit.
    pub fn take(&mut self, buffer: &mut Buffer, sink: &BodySink) -> Result<usize, PumpEnd> {
        let BodySource::Http1(http1) = self;
        let BodySink::Http1(to) = sink;
        let taken = take_front(&mut http1.decoder, to.transcode, buffer);
        let ready = taken.map_err(PumpEnd::Malformed)?;
        http1.is_done = http1.decoder.is_done();
        // Unchanged bytes of a body that only the connection ends.
        http1.is_bulky = ready >= BULKY_MIN
            && to.transcode == Transcode::Raw
            && matches!(http1.decoder, BodyDecoder::UntilClose);
        Ok(ready)
    }

    /// Whether the announced content is over the limit.
    pub fn is_too_large(&self) -> bool {
        let BodySource::Http1(http1) = self;
        let announced = http1.decoder.announced_bytes().unwrap_or(0);
        http1.limit_bytes.is_some_and(|limit| announced > limit)
    }

    /// Handles the end of the source. Returns the bytes that end the body for `sink`.
    ///
    /// # Errors
    /// The body was not complete.
    pub fn end(&mut self, sink: &BodySink) -> Result<&'static [u8], PumpEnd> {
        let BodySource::Http1(http1) = self;
        let BodySink::Http1(to) = sink;
        if !matches!(http1.decoder, BodyDecoder::UntilClose) {
            return Err(PumpEnd::SourceCut);
        }
        http1.is_done = true;
        Ok(match to.transcode {
            Transcode::Chunk => LAST_CHUNK,
            Transcode::Raw | Transcode::Strip => b"",
        })
    }

    /// The decoder, for reading on elsewhere.
    pub fn into_decoder(self) -> BodyDecoder {
        let BodySource::Http1(http1) = self;
        http1.decoder
    }
}

impl BodySink {
    /// A message whose body is written with this transcoding.
    pub fn http1(transcode: Transcode) -> Self {
        BodySink::Http1(Http1Sink {
            transcode,
            follow: Follow::Anything,
            is_closed: false,
        })
    }

    /// The sink of a client that speaks `version`, for a response with this framing. A framing
    /// that both protocols know stays unchanged.
    pub fn of_client(version: Version, framing: BodyFraming) -> Self {
        Self::http1(match (framing, version.knows_chunks()) {
            (BodyFraming::Chunked, false) => Transcode::Strip,
            (BodyFraming::UntilClose, true) => Transcode::Chunk,
            _ => Transcode::Raw,
        })
    }

    /// A sink that drops everything.
    pub fn closed() -> Self {
        let mut sink = Self::http1(Transcode::Raw);
        sink.close();
        sink
    }

    /// Sets what comes on the connection after the body's last byte.
    pub fn followed_by(mut self, follow: Follow) -> Self {
        let BodySink::Http1(http1) = &mut self;
        http1.follow = follow;
        self
    }

    /// The change of the framing.
    pub fn transcode(&self) -> Transcode {
        let BodySink::Http1(http1) = self;
        http1.transcode
    }

    /// Whether it accepts nothing more.
    pub fn is_closed(&self) -> bool {
        let BodySink::Http1(http1) = self;
        http1.is_closed
    }

    /// Marks it as accepting nothing more.
    pub fn close(&mut self) {
        let BodySink::Http1(http1) = self;
        http1.is_closed = true;
    }

    /// What comes on the connection after the bytes of a write.
    pub fn follow(&self, source: &BodySource) -> Follow {
        let BodySink::Http1(http1) = self;
        if source.is_done() {
            http1.follow
        } else {
            Follow::Anything
        }
    }

    /// Writes a part of `bytes`, followed by `follow`.
    pub fn poll_write(
        &self,
        cx: &Context<'_>,
        to: &mut Carrier<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<Result<usize, PumpEnd>> {
        let BodySink::Http1(_) = self;
        written(to.poll_write(cx, bytes, follow))
    }

    /// Writes a part of a pipe's bytes, followed by `follow`.
    pub fn poll_splice(
        &self,
        cx: &Context<'_>,
        to: &mut Carrier<'_>,
        pipe: &mut Pipe,
        follow: Follow,
    ) -> Poll<Result<usize, PumpEnd>> {
        let BodySink::Http1(_) = self;
        written(to.poll_write_from(cx, pipe, follow))
    }
}

/// Whether a read may still work after a failed splice.
fn can_be_read(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::OutOfMemory
    )
}

/// The result of a write: its length, or that the sink is closed.
fn written(polled: Poll<io::Result<usize>>) -> Poll<Result<usize, PumpEnd>> {
    polled.map(|written| match written {
        Ok(len) if len > 0 => Ok(len),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(PumpEnd::SinkReset),
        _ => Err(PumpEnd::SinkClosed),
    })
}

/// Runs the filled bytes of `buffer` through the decoder. Returns the number of bytes at its
/// front that may be written. The bytes after them were not taken.
///
/// # Errors
/// The body is malformed.
fn take_front(
    decoder: &mut BodyDecoder,
    transcode: Transcode,
    buffer: &mut Buffer,
) -> Result<usize, BodyError> {
    match transcode {
        Transcode::Raw => {
            let advance = decoder.restate(buffer.filled_mut())?;
            Ok(close_gap(buffer, advance))
        }
        Transcode::Strip => {
            let advance = decoder.strip(buffer.filled_mut())?;
            Ok(close_gap(buffer, advance))
        }
        Transcode::Chunk => {
            let len = decoder.advance(buffer.filled())?.consumed;
            if len == 0 {
                return Ok(0);
            }
            let mut line = *b"0000000000000000\r\n";
            let size_line = chunk_size_line(&mut line, len);
            let fits = buffer.prepend(size_line) && buffer.append(b"\r\n");
            debug_assert!(fits, "head- and tailroom are left for this");
            Ok(buffer.len())
        }
    }
}

/// Moves the untaken bytes up to the kept ones. Returns the length of the latter.
fn close_gap(buffer: &mut Buffer, advance: Advance) -> usize {
    if advance.kept < advance.consumed {
        let bytes = buffer.filled_mut();
        bytes.copy_within(advance.consumed.., advance.kept);
        let len = bytes.len() - (advance.consumed - advance.kept);
        buffer.truncate(len);
    }
    advance.kept
}

/// Writes the size of a chunk into `line`, which ends in CRLF. Returns the used part of the line.
fn chunk_size_line(line: &mut [u8; CHUNK_SIZE_LINE_LEN], len: usize) -> &[u8] {
    let mut rest = len;
    let mut start = 16;
    while start > 0 && (rest > 0 || start == 16) {
        start -= 1;
        line[start] = b"0123456789abcdef"[rest % 16];
        rest /= 16;
    }
    &line[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_chunk_sizes() {
        for len in [0, 1, 9, 10, 15, 16, 255, 256, 261_120, usize::MAX] {
            let mut line = *b"0000000000000000\r\n";
            let expected = format!("{len:x}\r\n");
            assert_eq!(chunk_size_line(&mut line, len), expected.as_bytes());
        }
    }
}
