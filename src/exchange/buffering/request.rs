//! Request bodies that are read before the request takes a slot.

use std::future::poll_fn;
use std::task::Poll;

use evenkeel_proto::http1::BodyDecoder;

use crate::exchange::outcome::{Outcome, Unanswered};
use crate::exchange::pump::Unread;
use crate::exchange::request::RequestBody;
use crate::exchange::reserved::Reserved;
use crate::exchange::{Exchange, Progress, TimedOut};
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::observe::access_log::Phase;
use crate::observe::sessions::Stage;
use crate::upstream::Upstream;

/// Longest gRPC call that is kept for a retry by default, in bytes.
const CALL_LEN: usize = 64 * 1024;

/// First room for a request's body, in bytes.
const FIRST_READ_LEN: usize = 16 * 1024;

/// Whether the rest of a request's body is read before it takes a slot.
pub(in crate::exchange) fn reads_ahead(
    exchange: &Exchange<'_>,
    upstream: &Upstream,
    request: &RequestBody<'_>,
) -> bool {
    let most = most_ahead(exchange, upstream);
    let head = request.head;
    // A client that waits for 100 (Continue) sends nothing yet. A tunnel may begin before the
    // body ends.
    let is_due = !head.wire.expect_continue && head.wire.upgrade.is_none();
    is_due && request.bytes.len() - head.wire.end < most
}

/// Most bytes of a body to read before its request takes a slot. A gRPC call that may be retried
/// needs a message.
fn most_ahead(exchange: &Exchange<'_>, upstream: &Upstream) -> usize {
    let is_repeatable = exchange.call().is_some() && !upstream.config().grpc_retry_on.is_empty();
    match exchange.buffer(upstream) {
        Some(buffer) => buffer.request_bytes,
        None if is_repeatable => CALL_LEN,
        None => 0,
    }
}

/// A request whose body was read ahead of its slot.
pub(in crate::exchange) struct ReadAhead {
    /// Begins with the head; the first `filled` bytes are used.
    bytes: Vec<u8>,
    filled: usize,
    /// Length of the valid part, at whose end the decoder is.
    valid_len: usize,
    decoder: BodyDecoder,
    reserved: Reserved,
}

/// The result of a read.
enum Read {
    Some,
    /// No bytes for now.
    Nothing,
}

/// A body that is being read into memory.
struct Reading<'a, 'e> {
    exchange: &'a mut Exchange<'e>,
    request: &'a RequestBody<'a>,
    /// Length to read up to, including the head.
    target_len: usize,
    ahead: ReadAhead,
}

impl ReadAhead {
    /// Reads until the body is whole, or `buffer.request` of it is there, or no memory is left.
    /// Of a gRPC call it reads only what is there now. `None` if no memory was left from the
    /// start. The time counts as part of receiving the request.
    ///
    /// # Errors
    /// The end for a refusal, and the body as far as it was read.
    pub async fn read(
        exchange: &mut Exchange<'_>,
        upstream: &Upstream,
        request: &RequestBody<'_>,
    ) -> Result<Option<Self>, Unanswered> {
        let begun = clock::now();
        let bound = most_ahead(exchange, upstream);
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
                reserved: Reserved::none(&context.buffer_memory),
            },
        };
        let mut read = Ok(Read::Some);
        while matches!(read, Ok(Read::Some)) && !reading.is_over() {
            if !reading.make_room() {
                let counters = &context.generation().counters.upstreams[upstream.index()];
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

    /// Adds the position in the body to a refusal that knows only the first part of the body.
    ///
    /// Invariant: after a refusal, reading continues after the last byte that was taken. At any
    /// other position, the next request would be taken for a body.
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

    /// The body as far as it was read.
    pub fn body<'r>(&'r self, first: &RequestBody<'r>) -> RequestBody<'r> {
        RequestBody {
            head: first.head,
            bytes: &self.bytes[..self.filled],
            valid_len: self.valid_len,
            decoder: self.decoder.clone(),
            server_name: first.server_name,
        }
    }

    /// Bytes read beyond the body's end.
    fn surplus(&self) -> &[u8] {
        if self.decoder.is_done() {
            &self.bytes[self.valid_len..self.filled]
        } else {
            &[]
        }
    }

    /// Sets in `outcome` which bytes belong to the next request. The client's whole buffer
    /// belonged to `first`.
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

    /// Makes room to read into; `false` if no memory is left.
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

    /// Reads once, and checks the bytes. Does not wait for more of a gRPC call, as its client may
    /// wait for an answer to what it has sent.
    async fn read_more(&mut self) -> Result<Read, End> {
        let exchange = &mut *self.exchange;
        let is_call = exchange.call().is_some();
        let listener = exchange.listener();
        exchange.set_bounded_timeout(listener.timeouts.body);
        let ahead = &mut self.ahead;
        let room = &mut ahead.bytes[ahead.filled..];
        let Exchange {
            context,
            side,
            timer,
            rare,
            ..
        } = &mut *exchange;
        let recording = rare.as_mut().and_then(|it| it.recording.as_mut());
        let mut client = side.body_carrier(recording);
        let reading = poll_fn(|cx| match client.poll_read(cx, room) {
            Poll::Pending if is_call => Poll::Ready(None),
            read => read.map(Some),
        });
        let len = match context.until_deadline(timer, reading).await {
            Ok(None) => return Ok(Read::Nothing),
            Ok(Some(Ok(len))) if len > 0 => len,
            Ok(_) => return Err(Failure::ClientGone.into()),
            Err(TimedOut) => return Err(exchange.timed_out(Failure::BodyTimeout).into()),
        };
        ahead.filled += len;
        let undecoded = &ahead.bytes[ahead.valid_len..ahead.filled];
        ahead.valid_len += ahead.decoder.advance(undecoded)?.consumed;
        let announced = ahead.decoder.announced_bytes().unwrap_or(0);
        if listener.limits.allow_body(announced) {
            Ok(Read::Some)
        } else {
            Err(Failure::BodyTooLarge.into())
        }
    }
}
