//! Moves a body from one carrier to another, as far as both permit.
//!
//! A pump holds a buffer only between a read and the write that empties it, or while a piece of
//! chunked framing is incomplete. A long body of known length goes through a pipe, without a
//! copy.
//!
//! ```text
//!   buffer.filled():  [ ready: may be written ][ leftover: an unfinished piece ]
//! ```

use std::io;
use std::task::{Context, Poll, ready};

use evenkeel_proto::http1::write::{RESPONSE_HEAD_GROWTH_MAX, Transcode};
use evenkeel_proto::http1::{BodyDecoder, ODD_HEAD_GROWTH_MAX};

pub use super::body::PumpEnd;
use super::body::{BodySink, BodySource, CHUNK_SIZE_LINE_LEN, TAILROOM, Way};
use super::carrier::Carrier;
use super::pace::{Pace, Verdict};
use crate::net::buffer::{Buffer, SMALL_LEN};
use crate::net::pipe::Pipe;
use crate::net::stream::Follow;
use crate::net::timer::{Timer, Wheel};

/// Room kept in front of a read: for a rewritten head or a chunk's size.
pub const HEADROOM: usize = 1024;
const _: () =
    assert!(ODD_HEAD_GROWTH_MAX + RESPONSE_HEAD_GROWTH_MAX + CHUNK_SIZE_LINE_LEN <= HEADROOM);
/// Reads and writes in a row before other connections have a turn.
pub const TURNS: u64 = 16;
/// Number of chunks whose decoding costs as much as one turn.
const CHUNKS_PER_TURN: u64 = 64;
/// A source counts as stopped after this many ticks of silence. That is longer than a round trip,
/// and shorter than an endpoint's timeout for a body.
const SILENT_TICKS: u64 = 3;

/// The rest of a body that is not forwarded.
#[derive(Debug)]
pub struct Unread {
    /// The decoder, after the bytes that were read and taken.
    pub decoder: BodyDecoder,
    /// Bytes that follow those.
    pub leftover: Option<Buffer>,
}

/// The side that a pump waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// More to read.
    Source,
    /// Room to write.
    Sink,
}

/// A body in transit.
#[derive(Debug)]
pub struct Pump {
    source: BodySource,
    sink: BodySink,
    buffer: Option<Buffer>,
    ready: usize,
    /// Holds bytes that were read and not written. Invariant: there is never a buffer at the same
    /// time.
    pipe: Option<Pipe>,
    is_copied: bool,
    /// The worker's tick of the last progress, as noted by the user.
    pub moved_at: u64,
    /// The pace of the client.
    pub pace: Pace,
    /// Bytes read from the source.
    pub bytes_read: u64,
    /// Bytes written to the sink.
    pub bytes_written: u64,
}

impl Pump {
    /// A pump for the body that `source` reads. `buffer` has `ready` bytes to write unchanged,
    /// then bytes that the source has not taken.
    pub fn new(source: BodySource, sink: BodySink, buffer: Option<Buffer>, ready: usize) -> Self {
        Pump {
            source,
            sink,
            buffer,
            ready,
            pipe: None,
            is_copied: false,
            moved_at: 0,
            pace: Pace::default(),
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    /// A pump that drops the rest of a body, after `decoder`. `buffer` has bytes that the decoder
    /// has not taken.
    pub fn dropping(decoder: BodyDecoder, buffer: Option<Buffer>) -> Self {
        Pump::new(BodySource::http1(decoder), BodySink::closed(), buffer, 0)
    }

    /// Uses no pipes, so that [`into_leftover`](Self::into_leftover) can return unwritten bytes.
    pub fn copied(mut self) -> Self {
        self.is_copied = true;
        self
    }

    /// The side that it waits for while it is not done.
    pub fn waits_for(&self) -> WaitsFor {
        if self.ready > 0 || self.pipe.is_some() {
            WaitsFor::Sink
        } else {
            WaitsFor::Source
        }
    }

    /// Whether it holds nothing, so that a new pump could replace it.
    pub fn is_at_rest(&self) -> bool {
        let holds_nothing = self.buffer.is_none() && self.pipe.is_none();
        holds_nothing && !self.source.is_bulky() && !self.sink.is_closed()
    }

    /// Whether the sink has closed, and the rest of the body is dropped.
    pub fn sink_is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    /// Whether it waits for a source that counts as stopped; `now` is the worker's tick.
    pub fn has_source_stopped(&self, now: u64) -> bool {
        let silence = now.saturating_sub(self.moved_at);
        self.waits_for() == WaitsFor::Source && !self.source.is_done() && silence >= SILENT_TICKS
    }

    /// Whether the whole body is read, and written or dropped.
    pub fn is_done(&self) -> bool {
        self.source.is_done() && self.ready == 0 && self.pipe.is_none()
    }

    /// The decoder, after the bytes that were read and taken.
    pub fn decoder(&self) -> &BodyDecoder {
        self.source.decoder()
    }

    /// Sets the pace that judges the client.
    pub fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Whether the source has delivered the whole body.
    pub fn is_source_done(&self) -> bool {
        self.source.is_done()
    }

    /// Number of bytes held for the sink.
    pub fn held_len(&self) -> usize {
        self.ready + self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// The bytes held for the sink, if the pump is [`copied`](Self::copied).
    pub fn held(&self) -> &[u8] {
        let buffer = self.buffer.as_ref();
        buffer.map_or(&[], |it| &it.filled()[..self.ready])
    }

    /// Removes the first `len` held bytes, which the caller has taken.
    pub fn take_held(&mut self, len: usize) {
        debug_assert!(len <= self.ready, "it holds no more");
        self.ready -= len;
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(len);
            if buffer.is_empty() {
                self.buffer = None;
            }
        }
    }

    /// Bytes of the body that are still to be read, where that is known.
    pub fn unseen_len(&self) -> u64 {
        self.source.unseen_len()
    }

    /// Bytes of an unfinished piece of framing.
    pub fn leftover_len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |it| it.len() - self.ready)
    }

    /// What the sink has to expect after the held bytes.
    pub fn follow(&self) -> Follow {
        self.sink.follow(&self.source)
    }

    /// Hands all held bytes over to `store`, in order.
    ///
    /// # Errors
    /// The pipe can't be read. Its bytes are lost, and with them the body.
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

    /// Reads up to `len` bytes while the sink accepts nothing. Call
    /// [`move_held`](Self::move_held) at once for the bytes that can be written.
    pub fn poll_read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Carrier<'_>,
        len: usize,
    ) -> Poll<Result<(), PumpEnd>> {
        debug_assert!(self.held_len() == 0, "it would lie behind what is read");
        // Waits first, and takes a buffer only for a read.
        ready!(self.source.poll_ready(cx, source));
        self.poll_fill(cx, source, len)
    }

    /// A number that changes with all progress.
    pub fn progress(&self) -> u64 {
        self.bytes_read + self.bytes_written
    }

    /// Bytes beyond the body's end: the next message, or surplus. A [`copied`](Self::copied) pump
    /// also returns its unwritten bytes.
    pub fn into_leftover(self) -> Option<Buffer> {
        self.buffer.filter(|buffer| !buffer.is_empty())
    }

    /// The rest of the body, to be read elsewhere. Drops bytes that were taken and not written.
    pub fn into_unread(mut self) -> Unread {
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(self.ready);
        }
        Unread {
            decoder: self.source.decoder().clone(),
            leftover: self.into_leftover(),
        }
    }

    /// Moves as many bytes as possible. If the sink has closed, reads and drops them.
    ///
    /// # Cancellation
    /// Safe at any time. The pump keeps bytes that were read and not written.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Carrier<'_>,
        sink: &mut Carrier<'_>,
    ) -> Poll<PumpEnd> {
        self.poll_into(cx, source, Some(sink))
    }

    fn poll_into(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Carrier<'_>,
        mut sink: Option<&mut Carrier<'_>>,
    ) -> Poll<PumpEnd> {
        let mut turns = 0;
        while turns < TURNS {
            turns += 1;
            let chunks_before = self.source.chunks();
            if self.sink.is_closed() {
                self.drop_ready();
            }
            if let Some(sink) = sink.as_deref_mut() {
                match self.poll_write(cx, sink) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(end)) => {
                        self.sink.close();
                        return Poll::Ready(end);
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            if self.source.is_done() {
                return Poll::Ready(PumpEnd::Done);
            }
            // Waits first, and takes a buffer only for a read. So the buffer is still in the
            // cache for the write.
            if self.source.poll_ready(cx, source).is_pending() {
                return Poll::Pending;
            }
            let len_max = sink.as_ref().map_or(usize::MAX, |it| it.read_len_max());
            let way = match &sink {
                Some(sink) => Way::between(&self.source, source, &self.sink, sink),
                None => Way::Copied,
            };
            let filled = match self.pipe_for_next(way) {
                Some(pipe) => self.poll_splice(cx, source, pipe),
                None => self.poll_fill(cx, source, len_max),
            };
            match filled {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => return Poll::Pending,
            }
            let chunks = self.source.chunks() - chunks_before;
            self.source.note_chunks(chunks);
            turns += chunks / CHUNKS_PER_TURN;
        }
        // Both sides are always ready: yields to other connections.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads and drops the body to its end.
    pub fn poll_drop(&mut self, cx: &mut Context<'_>, source: &mut Carrier<'_>) -> Poll<PumpEnd> {
        debug_assert!(self.sink.is_closed(), "nothing is written");
        self.poll_into(cx, source, None)
    }

    fn drop_ready(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(ready);
        }
        self.pipe = None;
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut Carrier<'_>,
    ) -> Poll<Result<(), PumpEnd>> {
        let follow = self.follow();
        if let Some(buffer) = &mut self.buffer {
            while self.ready > 0 {
                let bytes = &buffer.filled()[..self.ready];
                let len = ready!(self.sink.poll_write(cx, to, bytes, follow))?;
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
                let len = ready!(self.sink.poll_splice(cx, to, pipe, follow))?;
                self.bytes_written += len as u64;
            }
            self.pipe = None;
        }
        Poll::Ready(Ok(()))
    }

    /// A pipe, if the next bytes go through one.
    fn pipe_for_next(&self, way: Way) -> Option<Pipe> {
        let is_spliced = way == Way::Spliced && self.buffer.is_none() && !self.is_copied;
        is_spliced.then(Pipe::take).flatten()
    }

    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Carrier<'_>,
        mut pipe: Pipe,
    ) -> Poll<Result<(), PumpEnd>> {
        match ready!(self.source.poll_splice(cx, from, &mut pipe))? {
            Some(len) => {
                self.bytes_read += len;
                self.pipe = Some(pipe);
                Poll::Ready(Ok(()))
            }
            None => self.poll_fill(cx, from, usize::MAX),
        }
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Carrier<'_>,
        len_max: usize,
    ) -> Poll<Result<(), PumpEnd>> {
        let mut buffer = self.take_buffer(len_max);
        let len = match self.source.poll_read(cx, from, &mut buffer, len_max) {
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
        self.bytes_read += len as u64;
        Poll::Ready(self.decode(buffer))
    }

    /// The buffer, with an unfinished piece moved to its front, or a new one. With a chunked
    /// source the buffer may end with bytes of the next message, which have to fit where heads
    /// are read.
    fn take_buffer(&mut self, len_max: usize) -> Buffer {
        if let Some(mut buffer) = self.buffer.take() {
            let leftover = buffer.len();
            if buffer.room().len() < 2 * TAILROOM + leftover {
                buffer.compact();
            }
            return buffer;
        }
        let mut buffer = if len_max < SMALL_LEN {
            Buffer::small()
        } else {
            Buffer::large()
        };
        if self.sink.transcode() == Transcode::Chunk {
            buffer.clear_with_headroom(HEADROOM);
        }
        buffer
    }

    fn end_of_source(&mut self, mut buffer: Buffer) -> Result<(), PumpEnd> {
        let last = self.source.end(&self.sink)?;
        if !last.is_empty() && buffer.append(last) {
            self.ready = buffer.len();
            self.buffer = Some(buffer);
        }
        Ok(())
    }

    fn decode(&mut self, mut buffer: Buffer) -> Result<(), PumpEnd> {
        self.ready = self.source.take(&mut buffer, &self.sink)?;
        self.buffer = Some(buffer);
        if self.source.is_too_large() && !self.sink.is_closed() {
            Err(PumpEnd::TooLarge)
        } else {
            Ok(())
        }
    }
}

impl Pump {
    /// Starts a wait of this request, with silence permitted until the tick `silence`. Returns
    /// the tick of its judgement.
    pub(super) fn wait(&mut self, wheel: &Wheel, silence: u64) -> u64 {
        let is_due = self.waits_for() == WaitsFor::Source && !self.is_source_done();
        let read = self.bytes_read;
        let read = is_due.then_some(|| read);
        self.pace.wait(wheel, silence, read)
    }

    /// Judges the wait of this request.
    pub(super) fn judge(&mut self, context: &super::Context) -> Verdict {
        let read = self.bytes_read;
        self.pace.judge(context, || read)
    }

    /// Judges the wait of this request after its timer fired. Sets the timer for the next
    /// judgement if the wait continues.
    pub(super) fn judge_by(&mut self, context: &super::Context, timer: &Timer) -> Verdict {
        let verdict = self.judge(context);
        if verdict == Verdict::InTime {
            context.wheel.set(timer, self.pace.due());
        }
        verdict
    }
}
