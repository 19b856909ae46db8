//! TCP on a client's connection: a route by the visible facts of it, then bytes
//! both ways.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use evenkeel_policy::Instant;
use evenkeel_proto::client_hello::{self, FirstMessage};

use super::ClientConnection;
use crate::exchange::identity::Identity;
use crate::exchange::tcp::First;
use crate::exchange::{Context, Exchange, Progress, Worker, box_cold};
use crate::handler;
use crate::metrics::end::Failure;
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::observe::sessions::Track;

/// Serves the connection until it is closed.
///
/// # Cancellation
/// Dropping the future closes it, and its endpoint's connection.
pub(super) async fn serve(worker: Rc<Worker>, mut connection: Box<ClientConnection>) {
    let context = Context::new(worker, &connection.client.listener);
    poll_fn(|cx| {
        connection.timer.register(cx);
        Poll::Ready(())
    })
    .await;
    let started = clock::now();
    let session = connection.client.session;
    let track = context.sessions.wake(session);
    track.begin_exchange(started, b"", 0);
    let read = if context.listener().preread.is_nothing() {
        Ok(None)
    } else {
        box_cold(read_first(&context, &mut connection)).await
    };
    let first_len = match &read {
        Ok(Some(first)) => first.bytes.len(),
        Ok(None) | Err(_) => 0,
    };
    let mut exchange = exchange(&context, &mut connection, started, first_len, &track);
    let end = match read {
        Ok(first) => handler::handle_connection(&mut exchange, first).await,
        Err(failure) => failure.into(),
    };
    exchange.conclude(end);
    context.sessions.rest(session, track, context.wheel.now());
}

/// Writes the line of a connection that is closed before anything was read of it.
pub(super) fn refuse(
    context: &Context,
    connection: &mut ClientConnection,
    started: Instant,
    failure: Failure,
) {
    let session = connection.client.session;
    let track = context.sessions.wake(session);
    track.begin_exchange(started, b"", 0);
    exchange(context, connection, started, 0, &track).conclude(failure.into());
    context.sessions.rest(session, track, context.wheel.now());
}

/// The exchange of a connection, with so many bytes read.
fn exchange<'a>(
    context: &'a Context,
    connection: &'a mut ClientConnection,
    started: Instant,
    first_len: usize,
    track: &Rc<Track>,
) -> Exchange<'a> {
    let progress = Progress::new(
        context,
        &connection.client,
        started,
        clock::since(started),
        first_len,
        &Identity::NONE,
        track.clone(),
    );
    connection.exchange(context, &[], &context.no_head, progress)
}

/// Reads what routes ask about, as far as it comes in time.
///
/// # Errors
/// The client sent a part of it, or closed without a byte.
async fn read_first(
    context: &Context,
    connection: &mut ClientConnection,
) -> Result<Option<Box<First>>, Failure> {
    let ClientConnection {
        http1,
        timer,
        client,
        ..
    } = connection;
    let preread = &context.listener().preread;
    let mut buffer = Buffer::small();
    context.set_timeout(timer, context.listener().timeouts.first_bytes);
    let message = poll_fn(|cx| {
        loop {
            let bytes = buffer.filled();
            let message = if preread.client_hello {
                client_hello::read(bytes)
            } else {
                FirstMessage::Other
            };
            if message != FirstMessage::Partial && !preread.is_undecided(bytes) {
                return Poll::Ready(Ok(message));
            }
            if buffer.room().is_empty() {
                buffer.grow();
            }
            match http1.stream.poll_read(cx, buffer.room()) {
                Poll::Ready(Ok(len)) if len > 0 => buffer.fill(len),
                // A probe, or a client that thought better of it.
                Poll::Ready(_) if buffer.is_empty() => {
                    return Poll::Ready(Err(Failure::ClientGone));
                }
                // Nothing more comes: the bytes so far decide.
                Poll::Ready(_) => return Poll::Ready(Ok(FirstMessage::Other)),
                Poll::Pending if context.has_fired(timer) => {
                    let late = if buffer.is_empty() {
                        // The server is to begin.
                        Ok(FirstMessage::Other)
                    } else {
                        Err(Failure::FirstBytesTimeout)
                    };
                    return Poll::Ready(match context.cut_off() {
                        Some(failure) => Err(failure),
                        None => late,
                    });
                }
                Poll::Pending => match context.sessions.take_told(client.session) {
                    Some(failure) => return Poll::Ready(Err(failure)),
                    None => return Poll::Pending,
                },
            }
        }
    })
    .await?;
    let hello = match message {
        FirstMessage::ClientHello(hello) => Some(hello),
        FirstMessage::Partial | FirstMessage::Other => None,
    };
    Ok(Some(Box::new(First {
        bytes: buffer,
        hello,
    })))
}
