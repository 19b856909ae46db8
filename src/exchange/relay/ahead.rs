//! Responses that are taken off the endpoint ahead of their client.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Context as TaskContext, Poll, ready};

use super::{Relay, Response, Stop};
use crate::config::Buffer as BufferSettings;
use crate::exchange::body::{PumpEnd, TAILROOM};
use crate::exchange::carrier::Carrier;
use crate::exchange::outcome::Outcome;
use crate::exchange::pump::{Pump, TURNS, WaitsFor};
use crate::exchange::reserved::Reserved;
use crate::exchange::watch::ClientWatch;
use crate::exchange::{Context, Exchange, WriteFailure};
use crate::metrics::end::End;
use crate::net::stream::Follow;

/// Length of the pieces that hold a response, in bytes.
const PIECE_LEN: usize = 16 * 1024;
/// Most framing that is added to a read: a chunk's size, and the ends of the chunk and of the
/// body.
const FRAMING_LEN: usize = 2 * TAILROOM;

/// Bytes of a response that wait for their client, in pieces of [`PIECE_LEN`].
///
/// Invariant: `reserved` covers all pieces, including those still to be made.
#[derive(Debug)]
pub(in crate::exchange) struct Backlog {
    reserved: Reserved,
    pieces: VecDeque<Vec<u8>>,
    /// Written bytes of the first piece.
    written: usize,
    len: usize,
}

impl Backlog {
    pub(super) fn new(context: &Context) -> Self {
        Backlog {
            reserved: Reserved::none(&context.buffer_memory),
            pieces: VecDeque::new(),
            written: 0,
            len: 0,
        }
    }

    /// Number of held bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of bytes that fit into the reserved memory.
    fn room_len(&self) -> usize {
        let made = self.pieces.len() * PIECE_LEN;
        let last = self.pieces.back().map_or(0, |last| PIECE_LEN - last.len());
        self.reserved.len() - made + last
    }

    /// Reserves room for `len` bytes; `false` if no memory is left.
    pub(super) fn reserve(&mut self, len: usize) -> bool {
        let lacking = len.saturating_sub(self.room_len());
        lacking == 0 || self.reserved.grow(lacking.next_multiple_of(PIECE_LEN))
    }

    /// Adds bytes, for which there is room.
    pub(super) fn append(&mut self, mut bytes: &[u8]) {
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

    /// Writes as much as the client reads. Ready when all is written. `follow` is what follows
    /// the last byte.
    pub(super) fn poll_write(
        &mut self,
        cx: &TaskContext<'_>,
        client: &mut Carrier<'_>,
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

    /// Releases the reserved memory beyond its pieces.
    pub(super) fn trim(&mut self) {
        let spare = self.reserved.len() - self.pieces.len() * PIECE_LEN;
        self.reserved.shrink(spare);
    }
}

/// The rest of a response for the client, when the endpoint is done.
#[derive(Debug)]
pub(in crate::exchange) struct Rest {
    backlog: Backlog,
    response: Response,
    /// Sent bytes of the response.
    sent: u64,
}

/// How taking a response ahead of its client ended.
pub(in crate::exchange) enum Ahead {
    /// The client has everything so far, or no memory is left.
    CaughtUp,
    /// The endpoint is done with the response, which ended so.
    OffEndpoint(Backlog, PumpEnd),
    /// The exchange has ended.
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

/// Most bytes of a response that are taken ahead of its client; `None` for nothing.
pub(in crate::exchange) fn response_bound(buffer: Option<BufferSettings>) -> Option<usize> {
    let bound = buffer?.response_bytes;
    (bound > 0).then_some(bound)
}

/// Whether a response can be taken off its endpoint within `bound`, while its client does not
/// read. A longer one streams on until its rest fits, as taking a part of it would not free the
/// slot any sooner.
pub(in crate::exchange) fn fits(pump: &Pump, bound: usize) -> bool {
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

/// Takes a response off the endpoint, up to `bound`, while the client reads at its own pace.
/// `sent` bytes went to the client before those of the pump.
pub(in crate::exchange) async fn take_ahead(
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
                Poll::Ready(StepResult::Again) if turn + 1 == TURNS => {
                    cx.waker().wake_by_ref();
                    polled = Poll::Pending;
                }
                Poll::Ready(StepResult::Again) => {}
                _ => break,
            }
        }
        match polled {
            Poll::Ready(StepResult::Ended(ended)) => return Poll::Ready(Ok(ended)),
            Poll::Ready(StepResult::OffEndpoint(end)) => return Poll::Ready(Err(end)),
            Poll::Ready(StepResult::Again) | Poll::Pending => {}
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
enum StepResult {
    Again,
    /// The endpoint is done, and the client lacks a part.
    OffEndpoint(PumpEnd),
    Ended(Ahead),
}

impl Taking<'_, '_, '_> {
    /// Reserves room for `len` bytes; `false` if no memory is left. The rest of the response then
    /// streams, once the client has read all held bytes.
    fn reserve(&mut self, len: usize) -> bool {
        let is_reserved = self.backlog.reserve(len);
        if !is_reserved {
            let upstream = self.relay.upstream.index();
            let counters = &self.relay.exchange.context.generation().counters.upstreams[upstream];
            counters.buffers_refused.add(1);
            self.relay.bound = None;
        }
        is_reserved
    }

    /// Moves the bytes of the pump into the backlog.
    ///
    /// # Errors
    /// Bytes in a pipe are lost.
    fn store(&mut self) -> io::Result<()> {
        let Taking { pump, backlog, .. } = self;
        pump.move_held(|bytes| backlog.append(bytes))
    }

    /// Writes as much as the client reads, and then reads once.
    fn poll_turn(&mut self, cx: &mut TaskContext<'_>) -> Poll<StepResult> {
        let follow = self.pump.follow();
        let before = self.backlog.len;
        let client = &mut self.relay.exchange.side.carrier();
        let written = self.backlog.poll_write(cx, client, follow);
        self.pump.bytes_written += (before - self.backlog.len) as u64;
        let is_source_done = self.pump.is_source_done();
        let ended = match written {
            Poll::Ready(Ok(())) if is_source_done => Stop::Response(PumpEnd::Done),
            Poll::Ready(Ok(())) => return Poll::Ready(StepResult::Ended(Ahead::CaughtUp)),
            Poll::Ready(Err(end)) => Stop::Response(end),
            Poll::Pending if !is_source_done => return self.poll_read(cx),
            Poll::Pending if self.relay.is_request_done() => {
                return Poll::Ready(StepResult::OffEndpoint(PumpEnd::Done));
            }
            // A request in transit still needs the endpoint's connection.
            Poll::Pending => return Poll::Pending,
        };
        Poll::Ready(StepResult::Ended(Ahead::Stopped(ended)))
    }

    fn poll_read(&mut self, cx: &mut TaskContext<'_>) -> Poll<StepResult> {
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
        let endpoint = &mut (&mut *self.relay.stream).into();
        let ended = match ready!(self.pump.poll_read_ahead(cx, endpoint, len)) {
            Err(end) => end,
            Ok(()) if self.store().is_err() => PumpEnd::SourceCut,
            Ok(()) => return Poll::Ready(StepResult::Again),
        };
        // The client still gets the earlier bytes.
        Poll::Ready(StepResult::OffEndpoint(ended))
    }
}

impl Rest {
    /// Sends the rest to the client, which no longer holds a slot. Puts the result into the
    /// exchange's outcome.
    pub async fn deliver(
        mut self: Box<Self>,
        exchange: &mut Exchange<'_>,
        watch: &mut ClientWatch,
        outcome: &mut Outcome,
    ) {
        let timeout = exchange.listener().timeouts.body;
        let follow = if outcome.end == End::Complete {
            exchange.follow(self.response.persistence)
        } else {
            // A cut response does not end as a whole one does.
            Follow::Anything
        };
        let before = exchange.progress.figures.bytes_out;
        let mut is_timed = false;
        let failure = poll_fn(|cx| {
            let held = self.backlog.len;
            let client = &mut exchange.side.carrier();
            let written = self.backlog.poll_write(cx, client, follow);
            self.sent += (held - self.backlog.len) as u64;
            match written {
                Poll::Ready(Ok(())) => return Poll::Ready(None),
                Poll::Ready(Err(_)) => return Poll::Ready(Some(WriteFailure::Closed)),
                Poll::Pending => {}
            }
            if watch.poll_gone(cx, &mut exchange.side).is_ready() {
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
