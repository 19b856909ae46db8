//! Keeps slow clients from holding slots (`buffer` of an upstream).
//!
//! Owns three means. A request's body is read before the request takes a slot.
//! A response is taken off the endpoint ahead of its client. A client that a
//! slot waits for must keep up a least rate. Per worker; the memory is counted
//! over all workers ([`BufferMemory`]).
//!
//! Invariant: a slot waits for its client only where the body is longer than
//! the buffer or the memory is used up, and then at `min_rate` or faster.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use evenkeel_proto::RequestHead;
use evenkeel_proto::http1::BodyDecoder;

use super::forward::{Outcome, RequestBody, Unanswered};
use super::pump::{Pump, PumpEnd, TAILROOM, TURNS, Unread, WaitsFor};
use super::relay::{Relay, Response, Stop};
use super::watch::ClientWatch;
use super::{Context, Exchange, Progress, TimedOut, WriteFailure, follow};
use crate::metrics::BufferMemory;
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::net::stream::{Follow, Stream};
use crate::net::timer::{Timer, Wheel};
use crate::observe::access_log::Phase;
use crate::observe::sessions::Stage;
use crate::upstream::Upstream;

/// Over how long a client's rate is judged.
const WINDOW: Duration = Duration::from_secs(10);
/// Unit in which a response is held, in bytes.
const PIECE_LEN: usize = 16 * 1024;
/// Most that the framing of what is read adds to it: a chunk's size, the ends
/// of the chunk and of the body.
const FRAMING_LEN: usize = 2 * TAILROOM;
/// Room for a request's body at first, in bytes.
const FIRST_READ_LEN: usize = 16 * 1024;

// The pace of a client.

/// Judges whether a client keeps up the least rate while a slot waits for it.
///
/// ```text
///              wait                 wait, judge: not too slow
///   no window ------> window open -------------------------> the next window
///       ^                  |     \
///       +------------------+      judge: too slow -> the client is cut off
///              rest
/// ```
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// Fewest bytes in a window; 0 where there is no least rate.
    min_bytes: u64,
    /// Whether the client was told to wait: nothing is due from it yet.
    is_told_to_wait: bool,
    window: Option<Window>,
    /// Tick at which the silence of the side that is waited for is too long.
    silence: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    /// Tick at which it is over.
    end: u64,
    /// Bytes that had moved when it began.
    moved: u64,
}

/// The judgement on a wait whose timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    InTime,
    /// Nothing moved for too long.
    Silent,
    /// The client was too slow.
    Slow,
}

impl Pace {
    /// The pace that the clients of an upstream must keep.
    pub fn of(upstream: &Upstream) -> Self {
        let min_rate = upstream.config().buffer.map_or(0, |it| it.min_rate);
        Pace {
            min_bytes: min_rate.saturating_mul(WINDOW.as_secs()),
            ..Pace::default()
        }
    }

    /// The pace of a request's body. A client that expects 100 (Continue) waits
    /// to be told to go on.
    pub fn of_request(upstream: &Upstream, head: &RequestHead) -> Self {
        match head.wire.upgrade {
            // A tunnel may begin before the body ends.
            Some(_) => Pace::default(),
            None => Pace {
                is_told_to_wait: head.wire.expect_continue,
                ..Pace::of(upstream)
            },
        }
    }

    /// The client waits no longer to be told to go on.
    pub fn go_on(&mut self) {
        self.is_told_to_wait = false;
    }

    /// Begins a wait that may be silent until the tick `silence`. A wait for the
    /// client has the number of bytes that `moved` from or to it so far. Gives
    /// the tick at which the wait is to be judged.
    pub fn wait(&mut self, wheel: &Wheel, silence: u64, moved: Option<impl Fn() -> u64>) -> u64 {
        self.silence = Some(silence);
        match moved {
            Some(moved) if self.min_bytes > 0 && !self.is_told_to_wait => {
                self.window.get_or_insert_with(|| Window {
                    end: wheel.deadline(WINDOW),
                    moved: moved(),
                });
            }
            _ => self.window = None,
        }
        self.due()
    }

    /// The tick at which the wait is to be judged.
    pub fn due(&self) -> u64 {
        let window = self.window.map_or(u64::MAX, |window| window.end);
        self.silence.unwrap_or(u64::MAX).min(window)
    }

    /// Judges the wait, and begins the next window where it goes on.
    pub fn judge(&mut self, wheel: &Wheel, moved: impl Fn() -> u64) -> Verdict {
        let now = wheel.now();
        if wheel.is_stopped() || self.silence.is_some_and(|silence| silence <= now) {
            return Verdict::Silent;
        }
        let Some(window) = self.window.filter(|window| window.end <= now) else {
            return Verdict::InTime;
        };
        let moved = moved();
        // Bytes of earlier answers in the socket make these wrap around.
        if moved.wrapping_sub(window.moved) < self.min_bytes {
            return Verdict::Slow;
        }
        self.window = Some(Window {
            end: wheel.deadline(WINDOW),
            moved,
        });
        Verdict::InTime
    }
}

/// Bytes that a client has acknowledged of those `written`. The kernel takes
/// megabytes on its behalf, then nothing for as long as they last.
pub(super) fn taken(client: &Stream, written: u64) -> u64 {
    written.wrapping_sub(client.unacknowledged_len())
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
    pub(super) fn judge(&mut self, wheel: &Wheel) -> Verdict {
        let read = self.bytes_read;
        self.pace.judge(wheel, || read)
    }

    /// Judges the wait of this request, whose timer has fired, and sets the timer
    /// for the next judgement where it goes on.
    pub(super) fn judge_by(&mut self, wheel: &Wheel, timer: &Timer) -> Verdict {
        let verdict = self.judge(wheel);
        if verdict == Verdict::InTime {
            wheel.set(timer, self.pace.due());
        }
        verdict
    }
}

// Memory.

/// A part of the memory for buffers; given back when dropped.
#[derive(Debug)]
struct Reserved {
    memory: Arc<BufferMemory>,
    len: usize,
}

impl Reserved {
    fn none(context: &Context) -> Self {
        Reserved {
            memory: context.buffer_memory.clone(),
            len: 0,
        }
    }

    /// Takes `len` bytes more; `false` where there are not as many.
    fn grow(&mut self, len: usize) -> bool {
        let is_granted = self.memory.try_reserve(len as u64);
        if is_granted {
            self.len += len;
        }
        is_granted
    }

    fn shrink(&mut self, len: usize) {
        self.memory.release(len as u64);
        self.len -= len;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.memory.release(self.len as u64);
    }
}

// Requests.

/// Whether a request's body is read before it takes a slot, beyond what came
/// with the head.
pub(super) fn reads_ahead(upstream: &Upstream, request: &RequestBody<'_>) -> bool {
    let Some(buffer) = upstream.config().buffer else {
        return false;
    };
    let head = request.head;
    // A client that expects 100 (Continue) sends nothing before it has come. A
    // tunnel may begin before the body ends.
    let is_due = !head.wire.expect_continue && head.wire.upgrade.is_none();
    is_due && request.bytes.len() - head.wire.end < buffer.request_bytes
}

/// A request whose body was read ahead of its slot.
pub(super) struct ReadAhead {
    /// Begins with the head; the first `filled` bytes count.
    bytes: Vec<u8>,
    filled: usize,
    /// Length of what is valid of it, behind which the decoder stands.
    valid_len: usize,
    decoder: BodyDecoder,
    reserved: Reserved,
}

/// A body on its way into memory.
struct Reading<'a, 'e> {
    exchange: &'a mut Exchange<'e>,
    request: &'a RequestBody<'a>,
    /// Up to which length it is read, head included.
    target_len: usize,
    ahead: ReadAhead,
}

impl ReadAhead {
    /// Reads on until the body is whole, or `buffer.request` of it is there, or
    /// no memory is left for it; `None` where there is none from the start. The
    /// time that this takes is part of receiving the request.
    ///
    /// # Errors
    /// The end with which to refuse, and what was read of the body.
    pub async fn read(
        exchange: &mut Exchange<'_>,
        upstream: &Upstream,
        request: &RequestBody<'_>,
    ) -> Result<Option<Self>, Unanswered> {
        let begun = clock::now();
        let bound = upstream.config().buffer.map_or(0, |it| it.request_bytes);
        let context = exchange.context;
        exchange.progress.figures.phase = Phase::Head;
        exchange.progress.track.enter(Stage::Request);
        let mut reading = Reading {
            exchange: &mut *exchange,
            request,
            target_len: request.head.wire.end.saturating_add(bound),
            ahead: ReadAhead {
                bytes: Vec::new(),
                filled: 0,
                valid_len: request.valid_len,
                decoder: request.decoder.clone(),
                reserved: Reserved::none(context),
            },
        };
        let mut read = Ok(());
        while read.is_ok() && !reading.is_over() {
            if !reading.make_room() {
                let counters = &context.counters.upstreams[upstream.index()];
                counters.buffers_refused.add(1);
                break;
            }
            let before = reading.ahead.filled;
            read = reading.read_more().await;
            let progress = &mut reading.exchange.progress;
            progress.figures.bytes_in += (reading.ahead.filled - before) as u64;
            progress.track.set_bytes_in(progress.figures.bytes_in);
        }
        let ahead = reading.ahead;
        let progress = &mut exchange.progress;
        progress.figures.times.head += clock::since(begun);
        let ahead = (ahead.filled > 0).then_some(ahead);
        if let Err(end) = read {
            return Err(Self::unanswered(end.into(), ahead, progress));
        }
        progress.figures.phase = Phase::Local;
        if let Some(ahead) = &ahead {
            progress.figures.bytes_in -= ahead.surplus().len() as u64;
        }
        Ok(ahead)
    }

    /// Adds where the body stands to a refusal that does not know of more than
    /// the first part of it.
    ///
    /// Invariant: whoever reads on after a refusal begins behind the last byte
    /// that was taken. Anything else would take the next request for a body.
    pub fn unanswered(
        unanswered: Unanswered,
        ahead: Option<Self>,
        progress: &mut Progress<'_>,
    ) -> Unanswered {
        let Some(ahead) = ahead.filter(|_| unanswered.unread.is_none()) else {
            return unanswered;
        };
        let behind = &ahead.bytes[ahead.valid_len..ahead.filled];
        let leftover = (!behind.is_empty()).then(|| copy_of(behind));
        if !ahead.decoder.is_done() {
            progress.figures.bytes_in -= behind.len() as u64;
        }
        Unanswered {
            unread: Some(Box::new(Unread {
                decoder: ahead.decoder,
                leftover,
            })),
            ..unanswered
        }
    }

    /// The body as it stands now.
    pub fn body<'r>(&'r self, first: &RequestBody<'r>) -> RequestBody<'r> {
        RequestBody {
            head: first.head,
            bytes: &self.bytes[..self.filled],
            valid_len: self.valid_len,
            decoder: self.decoder.clone(),
        }
    }

    /// Bytes read beyond the body's end.
    fn surplus(&self) -> &[u8] {
        match self.decoder.is_done() {
            true => &self.bytes[self.valid_len..self.filled],
            false => &[],
        }
    }

    /// Says in `outcome` which bytes are the next request's. All of the client's
    /// buffer belonged to `first`.
    pub fn settle(self, first: &RequestBody<'_>, outcome: &mut Outcome) {
        outcome.consumed = first.bytes.len();
        let surplus = self.surplus();
        if outcome.leftover.is_none() && !surplus.is_empty() {
            outcome.leftover = Some(copy_of(surplus));
        }
    }
}

fn copy_of(bytes: &[u8]) -> Buffer {
    let mut copy = Buffer::with_capacity(bytes.len());
    let fits = copy.append(bytes);
    debug_assert!(fits, "the buffer was made for them");
    copy
}

impl Reading<'_, '_> {
    fn is_over(&self) -> bool {
        self.ahead.decoder.is_done() || self.ahead.filled >= self.target_len
    }

    /// Sees to it that there is room to read into; `false` where no memory is
    /// left for it.
    fn make_room(&mut self) -> bool {
        let ahead = &mut self.ahead;
        let (len, first) = (ahead.bytes.len(), self.request.bytes);
        if len > 0 && ahead.filled < len {
            return true;
        }
        let more = match len {
            0 => FIRST_READ_LEN,
            len => len,
        };
        let filled = ahead.filled.max(first.len());
        let to_come = match ahead.decoder.unseen_len() {
            0 => usize::MAX,
            len => usize::try_from(len).unwrap_or(usize::MAX),
        };
        let new_len = filled + more.min(to_come).min(self.target_len - filled);
        if !ahead.reserved.grow(new_len - len) {
            return false;
        }
        ahead.bytes.reserve_exact(new_len - len);
        ahead.bytes.resize(new_len, 0);
        if ahead.filled == 0 {
            ahead.bytes[..first.len()].copy_from_slice(first);
            ahead.filled = first.len();
        }
        true
    }

    /// Reads once, and checks what came.
    async fn read_more(&mut self) -> Result<(), End> {
        let exchange = &mut *self.exchange;
        let listener = exchange.listener();
        exchange.set_bounded_timeout(listener.timeouts.body);
        let ahead = &mut self.ahead;
        let room = &mut ahead.bytes[ahead.filled..];
        let stream = &mut exchange.client.stream;
        let reading = poll_fn(|cx| stream.poll_read(cx, room));
        let context = exchange.context;
        let len = match context.until_deadline(&exchange.timer, reading).await {
            Ok(Ok(len)) if len > 0 => len,
            Ok(_) => return Err(Failure::ClientGone.into()),
            Err(TimedOut) => return Err(exchange.timed_out(Failure::BodyTimeout).into()),
        };
        ahead.filled += len;
        let undecoded = &ahead.bytes[ahead.valid_len..ahead.filled];
        ahead.valid_len += ahead.decoder.advance(undecoded)?.consumed;
        let announced = ahead.decoder.announced_bytes().unwrap_or(0);
        match listener.limits.allow_body(announced) {
            true => Ok(()),
            false => Err(Failure::BodyTooLarge.into()),
        }
    }
}

// Responses.

/// Bytes of a response that wait for their client, in pieces of
/// [`PIECE_LEN`].
///
/// Invariant: `reserved` covers all pieces, those that are to be made included.
#[derive(Debug)]
pub(super) struct Backlog {
    reserved: Reserved,
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were written.
    written: usize,
    len: usize,
}

impl Backlog {
    fn new(context: &Context) -> Self {
        Backlog {
            reserved: Reserved::none(context),
            pieces: VecDeque::new(),
            written: 0,
            len: 0,
        }
    }

    /// Bytes that fit into what is reserved.
    fn room_len(&self) -> usize {
        let made = self.pieces.len() * PIECE_LEN;
        let last = self.pieces.back().map_or(0, |last| PIECE_LEN - last.len());
        self.reserved.len - made + last
    }

    /// Reserves room for `len` bytes; `false` where no memory is left.
    fn reserve(&mut self, len: usize) -> bool {
        let lacking = len.saturating_sub(self.room_len());
        lacking == 0 || self.reserved.grow(lacking.next_multiple_of(PIECE_LEN))
    }

    /// Adds bytes that there is room for.
    fn append(&mut self, mut bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.room_len(), "room was reserved");
        self.len += bytes.len();
        while !bytes.is_empty() {
            let is_full = |last: &Vec<u8>| last.len() == PIECE_LEN;
            if self.pieces.back().is_none_or(is_full) {
                self.pieces.push_back(Vec::with_capacity(PIECE_LEN));
            }
            let Some(last) = self.pieces.back_mut() else {
                return;
            };
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_LEN - last.len()));
            last.extend_from_slice(now);
            bytes = later;
        }
    }

    /// Writes as much as the client takes; ready when all is written. `follow`
    /// is what follows the last byte.
    fn poll_write(
        &mut self,
        cx: &TaskContext<'_>,
        client: &mut Stream,
        follow: Follow,
    ) -> Poll<Result<(), PumpEnd>> {
        while let Some(piece) = self.pieces.front() {
            let follow = match self.pieces.len() {
                1 => follow,
                _ => Follow::More,
            };
            let bytes = &piece[self.written..];
            match client.poll_write(cx, bytes, follow) {
                Poll::Ready(Ok(len)) if len > 0 => self.take(len),
                Poll::Ready(_) => return Poll::Ready(Err(PumpEnd::SinkClosed)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Notes that `len` bytes of the first piece were written.
    fn take(&mut self, len: usize) {
        self.written += len;
        self.len -= len;
        if self
            .pieces
            .front()
            .is_some_and(|it| it.len() == self.written)
        {
            self.pieces.pop_front();
            self.written = 0;
            self.reserved.shrink(PIECE_LEN);
        }
    }

    /// Gives back what is reserved beyond its pieces.
    fn trim(&mut self) {
        let spare = self.reserved.len - self.pieces.len() * PIECE_LEN;
        self.reserved.shrink(spare);
    }
}

/// The part of a response that its client has yet to take, when the endpoint
/// has no part in it any more.
#[derive(Debug)]
pub(super) struct Rest {
    backlog: Backlog,
    response: Response,
    /// Bytes sent of the response.
    sent: u64,
}

/// How taking a response ahead of its client ended.
pub(super) enum Ahead {
    /// The client has taken all that there is, or no memory is left.
    CaughtUp,
    /// The endpoint is through with the response, and this is how it ended.
    OffEndpoint(Backlog, PumpEnd),
    /// The exchange is over.
    Stopped(Stop),
}

impl Rest {
    /// The rest of a response of which `sent` bytes went to the client.
    pub fn new(backlog: Backlog, response: Response, sent: u64) -> Box<Self> {
        Box::new(Rest {
            backlog,
            response,
            sent,
        })
    }
}

/// How much of a response is taken off an endpoint ahead of its client, in
/// bytes; `None` for nothing.
pub(super) fn response_bound(upstream: &Upstream) -> Option<usize> {
    let bound = upstream.config().buffer?.response_bytes;
    (bound > 0).then_some(bound)
}

/// Whether a response whose client takes nothing now is taken off the endpoint
/// within `bound`. One that is known to be longer streams on until the rest of
/// it fits: to take a part of it would not free the slot any sooner.
pub(super) fn fits(pump: &Pump, bound: usize) -> bool {
    let held = pump.held_len();
    held <= bound && pump.unseen_len() <= (bound - held) as u64
}

/// A response that is taken off its endpoint ahead of its client.
struct Taking<'r, 'a, 'e> {
    relay: &'r mut Relay<'a, 'e>,
    pump: &'r mut Pump,
    backlog: Backlog,
    bound: usize,
}

/// Takes a response off the endpoint, up to `bound`, while the client takes it
/// at its own pace; `sent` bytes went to it before those of the pump.
pub(super) async fn take_ahead(
    relay: &mut Relay<'_, '_>,
    pump: &mut Pump,
    bound: usize,
    sent: u64,
) -> Ahead {
    let context = relay.exchange.context;
    let mut taking = Taking {
        backlog: Backlog::new(context),
        relay,
        pump,
        bound,
    };
    if !taking.reserve(taking.pump.held_len()) {
        return Ahead::CaughtUp;
    }
    if taking.store().is_err() {
        return Ahead::Stopped(Stop::Response(PumpEnd::SourceCut));
    }
    let mut is_timed = false;
    let ended = poll_fn(|cx| {
        let before = taking.pump.bytes_written;
        let mut polled = Poll::Pending;
        for turn in 0..TURNS {
            polled = taking.poll_turn(cx);
            match polled {
                Poll::Ready(Turn::Again) if turn + 1 == TURNS => {
                    cx.waker().wake_by_ref();
                    polled = Poll::Pending;
                }
                Poll::Ready(Turn::Again) => {}
                _ => break,
            }
        }
        match polled {
            Poll::Ready(Turn::Ended(ended)) => return Poll::Ready(Ok(ended)),
            Poll::Ready(Turn::OffEndpoint(end)) => return Poll::Ready(Err(end)),
            Poll::Ready(Turn::Again) | Poll::Pending => {}
        }
        let request_moved = match taking.relay.poll_others(cx) {
            Ok(has_moved) => has_moved,
            Err(stop) => return Poll::Ready(Ok(Ahead::Stopped(stop))),
        };
        if !is_timed || request_moved || taking.pump.bytes_written != before {
            is_timed = true;
            let track = &taking.relay.exchange.progress.track;
            track.set_bytes_out(sent + taking.pump.bytes_written);
            taking.relay.wait_for_client(taking.pump);
        }
        match taking.relay.judge(taking.pump, WaitsFor::Sink) {
            Some(stop) => Poll::Ready(Ok(Ahead::Stopped(stop))),
            None => Poll::Pending,
        }
    })
    .await;
    ended.unwrap_or_else(|end| {
        let mut backlog = taking.backlog;
        backlog.trim();
        Ahead::OffEndpoint(backlog, end)
    })
}

/// The outcome of one turn of writing and reading.
enum Turn {
    Again,
    /// The endpoint is through, and the client has not taken all.
    OffEndpoint(PumpEnd),
    Ended(Ahead),
}

impl Taking<'_, '_, '_> {
    /// Reserves room for `len` bytes; `false` where no memory is left. The rest of
    /// the response streams then, once the client has taken all that is held.
    fn reserve(&mut self, len: usize) -> bool {
        let is_reserved = self.backlog.reserve(len);
        if !is_reserved {
            let upstream = self.relay.upstream.index();
            let counters = &self.relay.exchange.context.counters.upstreams[upstream];
            counters.buffers_refused.add(1);
            self.relay.bound = None;
        }
        is_reserved
    }

    /// Moves what the pump holds into the backlog.
    ///
    /// # Errors
    /// Bytes are lost that were in a pipe.
    fn store(&mut self) -> io::Result<()> {
        let Taking { pump, backlog, .. } = self;
        pump.move_held(|bytes| backlog.append(bytes))
    }

    /// Writes what the client takes, then reads once.
    fn poll_turn(&mut self, cx: &mut TaskContext<'_>) -> Poll<Turn> {
        let follow = self.pump.follow();
        let before = self.backlog.len;
        let client = &mut *self.relay.exchange.client;
        let written = self.backlog.poll_write(cx, &mut client.stream, follow);
        self.pump.bytes_written += (before - self.backlog.len) as u64;
        let is_source_done = self.pump.is_source_done();
        let ended = match written {
            Poll::Ready(Ok(())) if is_source_done => Stop::Response(PumpEnd::Done),
            Poll::Ready(Ok(())) => return Poll::Ready(Turn::Ended(Ahead::CaughtUp)),
            Poll::Ready(Err(end)) => Stop::Response(end),
            Poll::Pending if !is_source_done => return self.poll_read(cx),
            Poll::Pending if self.relay.is_request_done() => {
                return Poll::Ready(Turn::OffEndpoint(PumpEnd::Done));
            }
            // A request that is still sent needs the endpoint's connection.
            Poll::Pending => return Poll::Pending,
        };
        Poll::Ready(Turn::Ended(Ahead::Stopped(ended)))
    }

    fn poll_read(&mut self, cx: &mut TaskContext<'_>) -> Poll<Turn> {
        let room_len = self.bound.saturating_sub(self.backlog.len);
        if room_len == 0 || self.relay.bound.is_none() {
            return Poll::Pending;
        }
        let to_come = match self.pump.unseen_len() {
            0 => PIECE_LEN,
            len => usize::try_from(len).unwrap_or(usize::MAX),
        };
        let len = room_len.min(to_come);
        if !self.reserve(len + self.pump.leftover_len() + FRAMING_LEN) {
            return Poll::Pending;
        }
        let ended = match ready!(self.pump.poll_read_ahead(cx, self.relay.stream, len)) {
            Err(end) => end,
            Ok(()) if self.store().is_err() => PumpEnd::SourceCut,
            Ok(()) => return Poll::Ready(Turn::Again),
        };
        // The client gets the bytes that came before.
        Poll::Ready(Turn::OffEndpoint(ended))
    }
}

impl Rest {
    /// Sends what is left to the client, which holds no slot any more, and puts
    /// what came of it into the outcome of the exchange.
    pub async fn deliver(
        mut self: Box<Self>,
        exchange: &mut Exchange<'_>,
        watch: &mut ClientWatch,
        outcome: &mut Outcome,
    ) {
        let timeout = exchange.listener().timeouts.body;
        let follow = follow(self.response.persistence);
        let before = exchange.progress.figures.bytes_out;
        let mut is_timed = false;
        let failure = poll_fn(|cx| {
            let held = self.backlog.len;
            let client = &mut *exchange.client;
            let written = self.backlog.poll_write(cx, &mut client.stream, follow);
            self.sent += (held - self.backlog.len) as u64;
            match written {
                Poll::Ready(Ok(())) => return Poll::Ready(None),
                Poll::Ready(Err(_)) => return Poll::Ready(Some(WriteFailure::Closed)),
                Poll::Pending => {}
            }
            if watch.poll_gone(cx, client).is_ready() {
                return Poll::Ready(Some(WriteFailure::Closed));
            }
            if !is_timed || self.backlog.len != held {
                is_timed = true;
                let track = &exchange.progress.track;
                track.set_bytes_out(before + self.sent);
                exchange.set_bounded_timeout(timeout);
            }
            if exchange.has_timed_out() {
                Poll::Ready(Some(WriteFailure::TimedOut))
            } else {
                Poll::Pending
            }
        })
        .await;
        let failure = failure.map(|why| exchange.write_failed(why));
        self.response.note(self.sent, &mut exchange.progress);
        if let Some(failure) = failure {
            outcome.end = failure.into();
            outcome.next = self.response.relayed(outcome.end).next;
        }
    }
}
