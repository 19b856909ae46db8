//! Moves a body from one carrier to another, as far as both will go.
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

/// Room left in front of what is read: for a rewritten head or a chunk's size.
pub const HEADROOM: usize = 1024;
const _: () =
    assert!(ODD_HEAD_GROWTH_MAX + RESPONSE_HEAD_GROWTH_MAX + CHUNK_SIZE_LINE_LEN <= HEADROOM);
/// Reads and writes in a row before other connections have a turn.
pub const TURNS: u64 = 16;
/// Chunks whose decoding costs as much as a turn.
const CHUNKS_PER_TURN: u64 = 64;
/// A source that sent nothing for so many ticks has stopped: longer than a round
/// trip takes, and shorter than an endpoint waits for a body.
const SILENT_TICKS: u64 = 3;

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
    source: BodySource,
    sink: BodySink,
    buffer: Option<Buffer>,
    ready: usize,
    /// With what was read into it and is not written; never beside a buffer.
    pipe: Option<Pipe>,
    is_copied: bool,
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
    /// A pump at the point where `source` stands. `buffer` holds `ready` bytes to be
    /// written as they are, then what the source could not take.
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

    /// A pump that drops the rest of a body, at the point where `decoder`
    /// stands; the decoder could not take what `buffer` holds.
    pub fn dropping(decoder: BodyDecoder, buffer: Option<Buffer>) -> Self {
        Pump::new(BodySource::http1(decoder), BodySink::closed(), buffer, 0)
    }

    /// Keeps all of it out of pipes, so that what was read and not written can be
    /// had back by [`into_leftover`](Self::into_leftover).
    pub fn copied(mut self) -> Self {
        self.is_copied = true;
        self
    }

    /// Which side it waits for when it is not through.
    pub fn waits_for(&self) -> WaitsFor {
        if self.ready > 0 || self.pipe.is_some() {
            WaitsFor::Sink
        } else {
            WaitsFor::Source
        }
    }

    /// Whether it holds nothing, and would begin anew as it goes on.
    pub fn is_at_rest(&self) -> bool {
        let holds_nothing = self.buffer.is_none() && self.pipe.is_none();
        holds_nothing && !self.source.is_bulky() && !self.sink.is_closed()
    }

    /// Whether the sink has closed, so that the rest of the body is dropped.
    pub fn sink_is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    /// Whether it waits for a source that has been silent for a while; `now` is the
    /// worker's tick.
    pub fn has_source_stopped(&self, now: u64) -> bool {
        let silence = now.saturating_sub(self.moved_at);
        self.waits_for() == WaitsFor::Source && !self.source.is_done() && silence >= SILENT_TICKS
    }

    /// Whether the whole body was read, and written or dropped.
    pub fn is_done(&self) -> bool {
        self.source.is_done() && self.ready == 0 && self.pipe.is_none()
    }

    /// The decoder, which stands behind the bytes that were read and taken.
    pub fn decoder(&self) -> &BodyDecoder {
        self.source.decoder()
    }

    /// Judges the client by this pace.
    pub fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Whether the source has nothing more of the body.
    pub fn is_source_done(&self) -> bool {
        self.source.is_done()
    }

    /// Bytes that it holds for the sink.
    pub fn held_len(&self) -> usize {
        self.ready + self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// The bytes that it holds for the sink, where they are [`copied`](Self::copied).
    pub fn held(&self) -> &[u8] {
        let buffer = self.buffer.as_ref();
        buffer.map_or(&[], |it| &it.filled()[..self.ready])
    }

    /// Somebody else has taken the first `len` bytes of those that it holds.
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

    /// Bytes that the source still has for the body, where that is known.
    pub fn unseen_len(&self) -> u64 {
        self.source.unseen_len()
    }

    /// Bytes of an unfinished piece of framing.
    pub fn leftover_len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |it| it.len() - self.ready)
    }

    /// What follows all that it holds for the sink.
    pub fn follow(&self) -> Follow {
        self.sink.follow(&self.source)
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
        source: &mut Carrier<'_>,
        len: usize,
    ) -> Poll<Result<(), PumpEnd>> {
        debug_assert!(self.held_len() == 0, "it would lie behind what is read");
        // Wait first, take a buffer then.
        ready!(self.source.poll_ready(cx, source));
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
            decoder: self.source.decoder().clone(),
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
            // Wait first, take a buffer then: it will still be in the cache
            // when it is written.
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
        // Two sides that are always ready: let the others have a turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads and drops the body up to its end.
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

    /// A pipe, if what comes next is to go by way of one.
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

    /// The buffer with an unfinished piece moved to its front, or a new one.
    /// A chunked source may send what belongs to the next message, which then
    /// stays in the buffer: that must fit where heads are read.
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
    /// Begins a wait of this request that may be silent until the tick `silence`.
    /// Gives the tick at which it is to be judged.
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

    /// Judges the wait of this request, whose timer has fired, and sets the timer
    /// for the next judgement where it goes on.
    pub(super) fn judge_by(&mut self, context: &super::Context, timer: &Timer) -> Verdict {
        let verdict = self.judge(context);
        if verdict == Verdict::InTime {
            context.wheel.set(timer, self.pace.due());
        }
        verdict
    }
}
