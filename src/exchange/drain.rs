//! Reads the rest of a request's body after its answer, so that the client's
//! connection can carry the next request; or what a client sends until it closes.
//!
//! Invariant: a connection that an answer kept alive carries the next request.
//! Exceptions: a bound of the listener's `drain` is passed, the body is malformed,
//! or the client leaves.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use evenkeel_proto::http1::BodyDecoder;

use super::body::PumpEnd;
use super::pump::Pump;
use super::{Client, Context, Exchange, Next, RestOfBody, Sender};
use crate::config;
use crate::net::buffer::Buffer;

/// Longest time that a client may go on sending after its connection was closed
/// for sending.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The end of the request is not known: no further one can follow.
const MALFORMED: Next = Next::Linger {
    sender: Sender::Answered,
};

/// How much longer a client is read from.
#[derive(Debug)]
pub(super) struct Bounds {
    silence: Duration,
    /// Tick at which it has taken too long in all.
    until: u64,
    bytes: u64,
}

impl Bounds {
    /// The bounds of the client's listener, from now on and until `deadline`.
    pub fn new(context: &Context, client: &Client, deadline: u64) -> Self {
        let config::Drain {
            silence,
            total,
            bytes,
        } = context.listener(client).drain;
        Bounds {
            silence,
            until: context.wheel.deadline(total).min(deadline),
            bytes,
        }
    }

    /// Tick at which a silence that begins now is too long.
    pub fn silence(&self, context: &Context) -> u64 {
        context.wheel.deadline(self.silence).min(self.until)
    }

    /// Sets the client's timer for the silence that begins now.
    fn set_timeout(&self, context: &Context, client: &Client) {
        context.wheel.set(&client.timer, self.silence(context));
    }

    /// Whether so many bytes are more than are read.
    pub fn are_too_many(&self, bytes_read: u64) -> bool {
        bytes_read > self.bytes
    }

    /// Whether one of them is passed, with so many bytes read.
    fn are_passed(&self, context: &Context, client: &Client, bytes_read: u64) -> bool {
        self.are_too_many(bytes_read) || context.wheel.has_fired(&client.timer)
    }
}

/// Whether a body that stands at `decoder` can be read to its end within the
/// listener's bounds, as far as its announced length tells.
pub(super) fn is_within_bounds(exchange: &Exchange<'_>, decoder: &BodyDecoder) -> bool {
    let most = exchange.listener().drain.bytes;
    decoder.is_done() || (most > 0 && decoder.unseen_len() <= most)
}

/// A body that is not read to its end yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// It is on its way.
    Comes,
    /// Its client asked for a 100, and has sent nothing of it without one: it may
    /// never come (RFC 9110 §10.1.1).
    MayNotCome,
}

impl Body {
    /// What becomes of it after an answer. It stands at `decoder`.
    pub fn rest(self, exchange: &Exchange<'_>, decoder: &BodyDecoder) -> RestOfBody {
        let comes = self == Body::Comes && is_within_bounds(exchange, decoder);
        if decoder.is_done() || comes {
            RestOfBody::Read
        } else {
            RestOfBody::Unread
        }
    }
}

/// What becomes of the body of a request of which nothing was read beyond the head,
/// if an answer of our own is sent first.
pub(crate) fn rest_of_body(exchange: &Exchange<'_>) -> RestOfBody {
    let head = exchange.head;
    let body = if head.wire.expect_continue && exchange.bytes.len() <= head.wire.end {
        Body::MayNotCome
    } else {
        Body::Comes
    };
    body.rest(exchange, &BodyDecoder::new(head.wire.framing))
}

/// Reads the rest of a body that stands at `decoder`, after its answer. `buffer`
/// holds what was read behind that, and then what is the next request's. Gives
/// what becomes of the connection, which is `next` where the body's end came.
///
/// # Cancellation
/// Dropping the future closes the connection.
pub(crate) async fn drain(
    context: &Context,
    client: &mut Client,
    buffer: &mut Buffer,
    mut decoder: BodyDecoder,
    next: Next,
) -> Next {
    let counters = context.listener_counters(client);
    match decoder.advance(buffer.filled()) {
        Ok(advance) => buffer.consume(advance.consumed),
        Err(_) => return MALFORMED,
    }
    if decoder.is_done() {
        return next;
    }
    counters.drains.add(1);
    if next != Next::KeepAlive && client.stream.close_notify().is_err() {
        return Next::Close;
    }
    let begun = std::mem::replace(buffer, Buffer::small());
    let mut pump = Pump::dropping(decoder, Some(begun));
    let bounds = Bounds::new(context, client, u64::MAX);
    match read_on(context, client, &mut pump, &bounds).await {
        Some(PumpEnd::Done) => {
            if let Some(leftover) = pump.into_unread().leftover {
                *buffer = leftover;
            }
            next
        }
        Some(PumpEnd::SourceCut) => Next::Close,
        Some(_) => MALFORMED,
        None => {
            counters.drains_cut.add(1);
            Next::Linger {
                sender: Sender::Late,
            }
        }
    }
}

/// Says that nothing more comes, then takes what the client still sends until
/// it closes: a close with unread bytes would reset the connection and take
/// the answer with it (RFC 9112 §9.6).
pub(crate) async fn linger(context: &Context, client: &mut Client, buffer: Buffer, sender: Sender) {
    if client.stream.close_notify().is_err() {
        return;
    }
    drop(buffer);
    let deadline = match sender {
        Sender::Answered => u64::MAX,
        Sender::Late => context.wheel.deadline(LINGER_TIMEOUT),
    };
    let bounds = Bounds::new(context, client, deadline);
    let mut pump = Pump::dropping(BodyDecoder::UntilClose, None);
    let session = client.session;
    let reading = read_on(context, client, &mut pump, &bounds);
    let mut reading = std::pin::pin!(reading);
    poll_fn(|cx| {
        // It has had its answer: others need its room more.
        if context.sessions.take_told(session).is_some() {
            return Poll::Ready(());
        }
        reading.as_mut().poll(cx).map(|_| ())
    })
    .await;
}

/// Reads and drops what `pump` takes: how that ended, or `None` where a bound was
/// passed.
async fn read_on(
    context: &Context,
    client: &mut Client,
    pump: &mut Pump,
    bounds: &Bounds,
) -> Option<PumpEnd> {
    bounds.set_timeout(context, client);
    poll_fn(|cx| {
        let before = pump.progress();
        if let Poll::Ready(end) = pump.poll_drop(cx, &mut client.stream) {
            return Poll::Ready(Some(end));
        }
        if pump.progress() != before {
            bounds.set_timeout(context, client);
        }
        if bounds.are_passed(context, client, pump.bytes_read) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await
}
