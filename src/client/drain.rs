//! Reads on after an answer on a connection of HTTP/1.
//!
//! It reads to the end of the request's body, so that the next request can follow, or until the
//! client closes.
//!
//! Invariant: a connection that an answer kept alive carries the next request.
//! Exceptions: a bound of the listener's `drain` is passed, the body is malformed,
//! or the client leaves.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use evenkeel_proto::http1::BodyDecoder;

use super::ClientConnection;
use crate::exchange::drain::Bounds;
use crate::exchange::pump::{Pump, PumpEnd};
use crate::exchange::{Context, Next, Sender};
use crate::net::buffer::Buffer;

/// Longest time that a client may go on sending after its connection was closed
/// for sending.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The end of the request is not known: no further one can follow.
const MALFORMED: Next = Next::Linger {
    sender: Sender::Answered,
};

/// Reads the rest of a body that stands at `decoder`, after its answer. `buffer` holds bytes that
/// were read behind it, and then those of the next request. Gives the fate of the connection:
/// `next`, if the body's end came.
///
/// # Cancellation
/// Dropping the future closes the connection.
pub(super) async fn drain(
    context: &Context,
    connection: &mut ClientConnection,
    buffer: &mut Buffer,
    mut decoder: BodyDecoder,
    next: Next,
) -> Next {
    match decoder.advance(buffer.filled()) {
        Ok(advance) => buffer.consume(advance.consumed),
        Err(_) => return MALFORMED,
    }
    if decoder.is_done() {
        return next;
    }
    let counters = context.listener_counters();
    counters.drains.add(1);
    if next != Next::KeepAlive && connection.http1.stream.close_notify().is_err() {
        return Next::Close;
    }
    let begun = std::mem::replace(buffer, Buffer::small());
    let mut pump = Pump::dropping(decoder, Some(begun));
    let bounds = Bounds::new(context, u64::MAX);
    match read_on(context, connection, &mut pump, &bounds).await {
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

/// Says that nothing more comes, then drops all that the client sends until it closes.
/// A close with unread bytes would reset the connection and take the answer with it
/// (RFC 9112 §9.6).
pub(super) async fn linger(
    context: &Context,
    connection: &mut ClientConnection,
    buffer: Buffer,
    sender: Sender,
) {
    if connection.http1.stream.close_notify().is_err() {
        return;
    }
    drop(buffer);
    let deadline = match sender {
        Sender::Answered => u64::MAX,
        Sender::Late => context.wheel.deadline(LINGER_TIMEOUT),
    };
    let bounds = Bounds::new(context, deadline);
    let mut pump = Pump::dropping(BodyDecoder::UntilClose, None);
    let session = connection.client.session;
    let reading = read_on(context, connection, &mut pump, &bounds);
    let mut reading = std::pin::pin!(reading);
    poll_fn(|cx| {
        // The client has had its answer: others need its room more.
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
    connection: &mut ClientConnection,
    pump: &mut Pump,
    bounds: &Bounds,
) -> Option<PumpEnd> {
    let ClientConnection { http1, timer, .. } = connection;
    let wheel = &context.wheel;
    wheel.set(timer, bounds.silence(context));
    poll_fn(|cx| {
        let before = pump.progress();
        if let Poll::Ready(end) = pump.poll_drop(cx, &mut (&mut http1.stream).into()) {
            return Poll::Ready(Some(end));
        }
        if pump.progress() != before {
            wheel.set(timer, bounds.silence(context));
        }
        if bounds.are_too_many(pump.bytes_read) || wheel.has_fired(timer) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await
}
