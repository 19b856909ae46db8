//! Moves a body from one stream to another, as far as both will go.
//!
//! A pump holds a buffer only between a read and the write that empties it,
//! or while a piece of chunked framing is incomplete. A long body of known
//! length goes by way of a pipe in its place, and is not copied.
//!
//! ```text
//!   buffer.filled():  [ ready: may be written ][ leftover: an unfinished piece ]
//! ```

use std::io;
use std::task::{Context, Poll, ready};

use evenkeel_proto::BodyError;
use evenkeel_proto::http1::write::Transcode;
use evenkeel_proto::http1::{Advance, BodyDecoder};

use super::buffering::Pace;
use crate::net::buffer::Buffer;
use crate::net::pipe::Pipe;
use crate::net::stream::{Follow, Stream};

/// Room left in front of what is read: for a rewritten head or a chunk's size.
pub const HEADROOM: usize = 1024;
/// Room left behind it: for the end of a chunk and of a chunked body.
pub const TAILROOM: usize = 16;
/// Reads and writes in a row before other connections have a turn.
pub const TURNS: u64 = 16;
/// Chunks whose decoding costs as much as a turn.
const CHUNKS_PER_TURN: u64 = 64;
/// Length of a read of a body in tiny chunks, in bytes.
const TINY_CHUNKS_READ_LEN: usize = 16 * 1024;
/// A source that sent nothing for so many ticks has stopped: longer than a round
/// trip takes, and shorter than an endpoint waits for a body.
const SILENT_TICKS: u64 = 3;
/// A body of which so much is to come goes by way of a pipe, in bytes: less is
/// copied in the time that two more system calls take.
pub const SPLICED_MIN: u64 = 64 * 1024;
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// How a pump stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PumpEnd {
    /// The whole body was written.
    Done,
    /// The source closed before the body's end.
    SourceCut,
    /// The sink takes nothing more.
    SinkClosed,
    /// The body is malformed.
    Malformed(BodyError),
    /// The body is over the limit.
    TooLarge,
}

/// The rest of a body that is not passed on.
#[derive(Debug)]
pub struct Unread {
    /// Stands behind the bytes that were read and taken.
    pub decoder: BodyDecoder,
    /// Bytes that were read behind those.
    pub leftover: Option<Buffer>,
}

/// Which side a pump waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// More to read.
    Source,
    /// Room to write.
    Sink,
}

/// A body on its way.
#[derive(Debug)]
pub struct Pump {
    decoder: BodyDecoder,
    transcode: Transcode,
    buffer: Option<Buffer>,
    ready: usize,
    /// With what was read into it and is not written; never beside a buffer.
    pipe: Option<Pipe>,
    is_copied: bool,
    source_is_done: bool,
    /// Whether the sink has closed: what still comes is dropped.
    sink_is_closed: bool,
    /// Whether what was read last came in chunks of a few bytes each.
    has_tiny_chunks: bool,
    follow: Follow,
    limit_bytes: Option<u64>,
    /// The worker's tick in which something moved last, as its user notes it.
    pub moved_at: u64,
    /// That of its client.
    pub pace: Pace,
    /// Bytes read from the source.
    pub bytes_read: u64,
    /// Bytes written to the sink.
    pub bytes_written: u64,
}

impl Pump {
    /// A pump at the point where `decoder` stands. `buffer` holds `ready`
    /// bytes to be written as they are, then what the decoder could not take.
    pub fn new(
        decoder: BodyDecoder,
        transcode: Transcode,
        buffer: Option<Buffer>,
        ready: usize,
    ) -> Self {
        let source_is_done = decoder.is_done();
        Pump {
            decoder,
            transcode,
            buffer,
            ready,
            pipe: None,
            is_copied: false,
            source_is_done,
            sink_is_closed: false,
            has_tiny_chunks: false,
            follow: Follow::Anything,
            limit_bytes: None,
            moved_at: 0,
            pace: Pace::default(),
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    /// Refuses a chunked body of more content than this.
    pub fn with_limit(mut self, limit_bytes: Option<u64>) -> Self {
        self.limit_bytes = limit_bytes;
        self
    }

    /// A pump that drops the rest of a body, at the point where `decoder`
    /// stands; the decoder could not take what `buffer` holds.
    pub fn dropping(decoder: BodyDecoder, buffer: Option<Buffer>) -> Self {
        let mut pump = Pump::new(decoder, Transcode::Raw, buffer, 0);
        pump.sink_is_closed = true;
        pump
    }

    /// Keeps all of it out of pipes, so that what was read and not written can be
    /// had back by [`into_leftover`](Self::into_leftover).
    pub fn copied(mut self) -> Self {
        self.is_copied = true;
        self
    }

    /// Says what happens to the sink after the body's last byte.
    pub fn followed_by(mut self, follow: Follow) -> Self {
        self.follow = follow;
        self
    }

    /// Which side it waits for when it is not through.
    pub fn waits_for(&self) -> WaitsFor {
        match self.ready > 0 || self.pipe.is_some() {
            true => WaitsFor::Sink,
            false => WaitsFor::Source,
        }
    }

    /// Whether the sink has closed, so that the rest of the body is dropped.
    pub fn sink_is_closed(&self) -> bool {
        self.sink_is_closed
    }

    /// Whether it waits for a source that has been silent for a while; `now` is the
    /// worker's tick.
    pub fn has_source_stopped(&self, now: u64) -> bool {
        let silence = now.saturating_sub(self.moved_at);
        self.waits_for() == WaitsFor::Source && !self.source_is_done && silence >= SILENT_TICKS
    }

    /// Whether the whole body was read, and written or dropped.
    pub fn is_done(&self) -> bool {
        self.source_is_done && self.ready == 0 && self.pipe.is_none()
    }

    /// The decoder, which stands behind the bytes that were read and taken.
    pub fn decoder(&self) -> &BodyDecoder {
        &self.decoder
    }

    /// Judges the client by this pace.
    pub fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Whether the source has nothing more of the body.
    pub fn is_source_done(&self) -> bool {
        self.source_is_done
    }

    /// Bytes that it holds for the sink.
    pub fn held_len(&self) -> usize {
        self.ready + self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// Bytes that the source still has for the body, where that is known.
    pub fn unseen_len(&self) -> u64 {
        self.decoder.unseen_len()
    }

    /// Bytes of an unfinished piece of framing.
    pub fn leftover_len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |it| it.len() - self.ready)
    }

    /// What happens to the sink after the body's last byte.
    pub fn follow(&self) -> Follow {
        self.follow
    }

    /// Hands all that it holds for the sink to `store`, in order.
    ///
    /// # Errors
    /// What is in a pipe can't be read: it is lost, and with it the body.
    pub fn move_held(&mut self, mut store: impl FnMut(&[u8])) -> io::Result<()> {
        if let Some(buffer) = &mut self.buffer {
            store(&buffer.filled()[..self.ready]);
            buffer.consume(self.ready);
            self.ready = 0;
            if buffer.is_empty() {
                self.buffer = None;
            }
        }
        if let Some(pipe) = &mut self.pipe {
            let mut piece = Buffer::large();
            while pipe.held() > 0 {
                let len = pipe.read(piece.room())?;
                store(&piece.room()[..len]);
            }
            self.pipe = None;
        }
        Ok(())
    }

    /// Reads up to `len` bytes, although the sink takes nothing. What can be
    /// written of them is for [`move_held`](Self::move_held), at once.
    pub fn poll_read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        len: usize,
    ) -> Poll<Result<(), PumpEnd>> {
        debug_assert!(self.held_len() == 0, "it would lie behind what is read");
        // Wait first, take a buffer then.
        ready!(source.poll_read_ready(cx));
        self.poll_fill(cx, source, len)
    }

    /// A number that changes whenever something moved.
    pub fn progress(&self) -> u64 {
        self.bytes_read + self.bytes_written
    }

    /// What was read beyond the body's end: the next message, or surplus; of one
    /// that is [`copied`](Self::copied) also what was not written.
    pub fn into_leftover(self) -> Option<Buffer> {
        self.buffer.filter(|buffer| !buffer.is_empty())
    }

    /// The rest of the body, to be read elsewhere. Bytes that were taken and not
    /// written are dropped.
    pub fn into_unread(mut self) -> Unread {
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(self.ready);
        }
        Unread {
            decoder: self.decoder.clone(),
            leftover: self.into_leftover(),
        }
    }

    /// Moves as much as possible. Where the sink has closed, bytes are read and
    /// dropped.
    ///
    /// # Cancellation
    /// It can be polled again, or dropped, at any time; what was read and not
    /// written is lost with the pump only.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
    ) -> Poll<PumpEnd> {
        self.poll_into(cx, source, Some(sink))
    }

    fn poll_into(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        mut sink: Option<&mut Stream>,
    ) -> Poll<PumpEnd> {
        let mut turns = 0;
        while turns < TURNS {
            turns += 1;
            let chunks_before = self.decoder.chunks();
            if self.sink_is_closed {
                self.drop_ready();
            }
            if let Some(sink) = sink.as_deref_mut() {
                match self.poll_write(cx, sink) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(end)) => {
                        self.sink_is_closed = true;
                        return Poll::Ready(end);
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            if self.source_is_done {
                return Poll::Ready(PumpEnd::Done);
            }
            // Wait first, take a buffer then: it will still be in the cache
            // when it is written.
            if source.poll_read_ready(cx).is_pending() {
                return Poll::Pending;
            }
            let can_splice = source.can_splice() && sink.as_deref().is_some_and(Stream::can_splice);
            let filled = match self.pipe_for_next(can_splice) {
                Some(pipe) => self.poll_splice(cx, source, pipe),
                None => self.poll_fill(cx, source, usize::MAX),
            };
            match filled {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => return Poll::Pending,
            }
            let chunks = self.decoder.chunks() - chunks_before;
            self.has_tiny_chunks = chunks > TURNS * CHUNKS_PER_TURN;
            turns += chunks / CHUNKS_PER_TURN;
        }
        // Two sides that are always ready: let the others have a turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads and drops the body up to its end.
    pub fn poll_drop(&mut self, cx: &mut Context<'_>, source: &mut Stream) -> Poll<PumpEnd> {
        debug_assert!(self.sink_is_closed, "nothing is written");
        self.poll_into(cx, source, None)
    }

    fn drop_ready(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(ready);
        }
        self.pipe = None;
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, sink: &mut Stream) -> Poll<Result<(), PumpEnd>> {
        let follow = match self.source_is_done {
            true => self.follow,
            false => Follow::Anything,
        };
        if let Some(buffer) = &mut self.buffer {
            while self.ready > 0 {
                let bytes = &buffer.filled()[..self.ready];
                let len = ready!(written(sink.poll_write(cx, bytes, follow)))?;
                buffer.consume(len);
                self.ready -= len;
                self.bytes_written += len as u64;
            }
            if buffer.is_empty() {
                self.buffer = None;
            }
        }
        if let Some(pipe) = &mut self.pipe {
            while pipe.held() > 0 {
                let len = ready!(written(sink.poll_write_from(cx, pipe, follow)))?;
                self.bytes_written += len as u64;
            }
            self.pipe = None;
        }
        Poll::Ready(Ok(()))
    }

    /// A pipe, if what comes next is to go by way of one.
    fn pipe_for_next(&self, can_splice: bool) -> Option<Pipe> {
        let is_long = self.decoder.unseen_len() >= SPLICED_MIN;
        let is_copied = self.is_copied || self.sink_is_closed || !can_splice;
        let is_spliced = is_long && self.buffer.is_none() && !is_copied;
        is_spliced.then(Pipe::take).flatten()
    }

    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        mut pipe: Pipe,
    ) -> Poll<Result<(), PumpEnd>> {
        let len = match ready!(source.poll_read_into(cx, &mut pipe, self.decoder.unseen_len())) {
            Ok(0) => return Poll::Ready(Err(PumpEnd::SourceCut)),
            Ok(len) => len as u64,
            // Either it can't be spliced, or a read says the same.
            Err(_) => return self.poll_fill(cx, source, usize::MAX),
        };
        self.bytes_read += len;
        self.decoder.pass(len);
        self.source_is_done = self.decoder.is_done();
        self.pipe = Some(pipe);
        Poll::Ready(Ok(()))
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        len_max: usize,
    ) -> Poll<Result<(), PumpEnd>> {
        let mut buffer = self.take_buffer();
        let room = buffer.room();
        let mut room_len = (room.len() - TAILROOM).min(len_max);
        if self.has_tiny_chunks {
            room_len = room_len.min(TINY_CHUNKS_READ_LEN);
        }
        let len = match source.poll_read(cx, &mut room[..room_len]) {
            Poll::Ready(Ok(0)) => return Poll::Ready(self.end_of_source(buffer)),
            Poll::Ready(Ok(len)) => len,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(PumpEnd::SourceCut)),
            Poll::Pending => {
                if !buffer.is_empty() {
                    self.buffer = Some(buffer);
                }
                return Poll::Pending;
            }
        };
        buffer.fill(len);
        self.bytes_read += len as u64;
        Poll::Ready(self.decode(buffer))
    }

    /// The buffer with an unfinished piece moved to its front, or a new one.
    /// A chunked source may send what belongs to the next message, which then
    /// stays in the buffer: that must fit where heads are read.
    fn take_buffer(&mut self) -> Buffer {
        if let Some(mut buffer) = self.buffer.take() {
            let leftover = buffer.len();
            if buffer.room().len() < 2 * TAILROOM + leftover {
                buffer.compact();
            }
            return buffer;
        }
        let mut buffer = Buffer::large();
        if self.transcode == Transcode::Chunk {
            buffer.clear_with_headroom(HEADROOM);
        }
        buffer
    }

    fn end_of_source(&mut self, mut buffer: Buffer) -> Result<(), PumpEnd> {
        if !matches!(self.decoder, BodyDecoder::UntilClose) {
            return Err(PumpEnd::SourceCut);
        }
        self.source_is_done = true;
        if self.transcode == Transcode::Chunk && buffer.append(LAST_CHUNK) {
            self.ready = buffer.len();
            self.buffer = Some(buffer);
        }
        Ok(())
    }

    fn decode(&mut self, mut buffer: Buffer) -> Result<(), PumpEnd> {
        self.ready = decode_front(&mut self.decoder, self.transcode, &mut buffer)
            .map_err(PumpEnd::Malformed)?;
        let announced = self.decoder.announced_bytes().unwrap_or(0);
        let is_too_large = self.limit_bytes.is_some_and(|limit| announced > limit);
        self.source_is_done = self.decoder.is_done();
        self.buffer = Some(buffer);
        match is_too_large && !self.sink_is_closed {
            true => Err(PumpEnd::TooLarge),
            false => Ok(()),
        }
    }
}

/// What a write came to: how many bytes it took, or that there is no more use.
fn written(polled: Poll<io::Result<usize>>) -> Poll<Result<usize, PumpEnd>> {
    polled.map(|written| match written {
        Ok(len) if len > 0 => Ok(len),
        _ => Err(PumpEnd::SinkClosed),
    })
}

/// Runs the filled bytes of `buffer` through the decoder and gives the number
/// of bytes at its front that may be written; what follows them was not taken.
///
/// # Errors
/// The body is malformed.
pub fn decode_front(
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

/// Moves what was not taken up to what was kept; gives the length of that.
fn close_gap(buffer: &mut Buffer, advance: Advance) -> usize {
    if advance.kept < advance.consumed {
        let bytes = buffer.filled_mut();
        bytes.copy_within(advance.consumed.., advance.kept);
        let len = bytes.len() - (advance.consumed - advance.kept);
        buffer.truncate(len);
    }
    advance.kept
}

/// Writes the size of a chunk into `line`, which ends in CRLF, and gives what
/// of it counts.
fn chunk_size_line(line: &mut [u8; 18], len: usize) -> &[u8] {
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
