//! The PROXY protocol header in front of a client's connection.
//!
//! Read before anything else, and never beyond its last byte: the kernel keeps the rest for
//! `http1`. A connection without bytes holds no buffer.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, ready};

use evenkeel_proto::proxy_protocol::{self, MAX_HEADER_LEN, Start};

use super::drain::linger;
use super::http1::{self, Arrival};
use super::tcp;
use super::{ClientConnection, Wait, may_be_silent, wait_for_request};
use crate::config::{ClientProtocol, HeaderPresence};
use crate::exchange::{Context, Next, Worker};
use crate::metrics::end::Failure;
use crate::net::buffer::Buffer;
use crate::net::clock;

/// Takes the header off a connection, and its address for the client's; `None` where the
/// connection has to be closed.
///
/// Over HTTP, a connection without its header is answered. Over TCP, a silent connection that may
/// leave the header out is served as it is at the end of the wait.
///
/// The header and the first byte of the first request have one timeout together.
///
/// # Cancellation
/// Dropping the future closes the connection.
pub(super) async fn take_header(
    worker: &Rc<Worker>,
    mut connection: Box<ClientConnection>,
    presence: HeaderPresence,
    wait: Wait,
) -> Option<Box<ClientConnection>> {
    let mut started = clock::now();
    let is_there = wait_for_request(worker, &mut connection, wait).await;
    let is_missed = presence == HeaderPresence::Required && is_late(worker, &connection);
    if !is_there && !is_missed {
        let is_taken = may_be_silent(presence, &connection.client.listener);
        return (is_taken && is_late(worker, &connection)).then_some(connection);
    }
    let mut buffer = Buffer::small();
    let read = if is_there {
        started = clock::now();
        read(worker, &mut connection, presence, &mut buffer).await
    } else {
        Err(Missing::Refused(Failure::ProxyHeaderTimeout))
    };
    match read {
        Ok(()) => return Some(connection),
        Err(Missing::Closed) => {}
        Err(Missing::Refused(failure)) => {
            let took = clock::since(started);
            let arrival = Arrival { started, took };
            let context = Context::new(worker.clone(), &connection.client.listener);
            if context.listener().protocol == ClientProtocol::Tcp {
                tcp::refuse(&context, &mut connection, started, failure);
                return None;
            }
            refuse(&context, &mut connection, buffer, arrival, failure).await;
        }
    }
    None
}

/// Whether the wait is over because its time is, and not because the worker wants
/// the connection closed.
fn is_late(worker: &Worker, connection: &ClientConnection) -> bool {
    worker.wheel.has_fired(&connection.timer) && !connection.client.listener.is_closing()
}

/// Why a connection has no header.
enum Missing {
    /// The peer closed it without a byte, as probes do.
    Closed,
    /// The connection is refused, or was cut off.
    Refused(Failure),
}

/// Reads the header into `buffer`, and takes its content over into `client`. If an optional
/// header is missing, nothing is read.
///
/// Waits no longer than the connection's timer, which the caller has set. Answers nothing: the
/// answer to a refused client is the caller's.
///
/// Invariant: no byte behind the header is taken. Bytes are looked at first, and
/// taken once it is known that they belong to the header.
///
/// # Errors
/// Why there is none.
async fn read(
    worker: &Worker,
    connection: &mut ClientConnection,
    presence: HeaderPresence,
    buffer: &mut Buffer,
) -> Result<(), Missing> {
    let ClientConnection {
        http1,
        timer,
        client,
        ..
    } = connection;
    let stream = &mut http1.stream;
    let refused = |failure| Poll::Ready(Err(Missing::Refused(failure)));
    // Bytes that were looked at and may not belong to a header.
    let mut undecided = 0;
    let header = poll_fn(|cx| {
        loop {
            let before = buffer.len();
            let room = &mut buffer.room()[..MAX_HEADER_LEN - before];
            match stream.poll_peek_beyond(cx, room, undecided) {
                Poll::Ready(Ok(len)) if len > 0 => buffer.fill(len),
                Poll::Ready(_) if before == 0 => return Poll::Ready(Err(Missing::Closed)),
                Poll::Ready(_) => return refused(Failure::ClientGone),
                Poll::Pending if worker.wheel.has_fired(timer) => {
                    return refused(worker.timed_out(u64::MAX, Failure::ProxyHeaderTimeout));
                }
                Poll::Pending => match worker.sessions.take_told(client.session) {
                    Some(failure) => return refused(failure),
                    None => return Poll::Pending,
                },
            }
            if presence == HeaderPresence::Optional && before == 0 {
                let seen = buffer.len();
                match proxy_protocol::start(buffer.filled()) {
                    Start::Header => undecided = 0,
                    Start::Undecided => {
                        undecided = seen;
                        buffer.clear();
                        continue;
                    }
                    Start::Other => {
                        buffer.clear();
                        return Poll::Ready(Ok(None));
                    }
                }
            }
            let Ok(header) = proxy_protocol::parse(buffer.filled()) else {
                return refused(Failure::ProxyHeader);
            };
            let len = header.map_or(buffer.len(), |it| it.len) - before;
            buffer.truncate(before);
            match ready!(stream.poll_read(cx, &mut buffer.room()[..len])) {
                Ok(taken) if taken == len => buffer.fill(len),
                _ => return refused(Failure::ClientGone),
            }
            if let Some(header) = header {
                return Poll::Ready(Ok(Some(header)));
            }
        }
    });
    if let Some(header) = header.await? {
        client.stands_for(worker, &header.connection(buffer.filled()));
    }
    Ok(())
}

/// Answers a connection without a header, writes its line and closes it.
async fn refuse(
    context: &Context,
    connection: &mut ClientConnection,
    buffer: Buffer,
    arrival: Arrival,
    failure: Failure,
) {
    let session = connection.client.session;
    let track = context.sessions.wake(session);
    let end = failure.into();
    let next = http1::refuse(context, connection, &buffer, &track, arrival, end).await;
    let now = context.wheel.now();
    context.sessions.rest(session, track, now);
    if let Next::Linger { sender } = next {
        linger(context, connection, buffer, sender).await;
    }
}
