//! HTTP/1 on a client's connection: heads in, exchanges, one after the other.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_proto::http1::{Parsed, parse_request};
use evenkeel_proto::{RequestError, RequestHead};

use super::drain::{drain, linger};
use super::{ClientConnection, Hint, early};
use crate::config::Limits;
use crate::exchange::identity::Identity;
use crate::exchange::{Context, Next, Outcome, Progress, Sender, Worker, answer, box_cold};
use crate::handler;
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::observe::sessions::Track;

/// Exchanges of one client in a row before other connections have a turn.
const EXCHANGES_PER_TURN: u32 = 16;

/// The result of reading a head.
enum Read {
    /// The head is whole.
    Head(Arrival),
    /// Nothing can be read now.
    Nothing,
    /// The client closed between two requests.
    Closed,
    /// The head is refused, or did not come in time.
    Refused(Arrival, End),
}

/// When a head came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// When its first byte was there.
    pub started: Instant,
    /// The time from its first byte to its last; zero if it came in one piece.
    pub took: Duration,
}

/// The state of a connection after its readable bytes were served.
pub(super) enum Served {
    /// The connection is idle after a request.
    Idle(Box<ClientConnection>),
    /// Nothing but empty lines came: it is as idle as before.
    Nothing(Box<ClientConnection>),
    /// The connection is closed.
    Closed,
}

/// Serves a connection that has something to read, until nothing more can be read.
///
/// # Cancellation
/// Dropping the future closes the connection.
pub(super) fn serve(
    worker: Rc<Worker>,
    mut connection: Box<ClientConnection>,
) -> impl Future<Output = Served> {
    let mut context = Context::new(worker, &connection.client.listener);
    async move {
        let mut head = context.heads.take();
        let mut buffer = Buffer::small();
        let track = context.sessions.wake(connection.client.session);
        Hint::Head.set(&*head);
        Hint::Track.set(&*track);
        let next = exchanges(
            &mut context,
            &mut connection,
            &mut buffer,
            &mut head,
            &track,
        )
        .await;
        context.heads.keep(head);
        let (session, now) = (connection.client.session, context.wheel.now());
        context.sessions.rest(session, track, now);
        if matches!(next, Some(Next::Cut)) {
            connection.http1.stream.cut();
        }
        match next {
            None => return Served::Nothing(connection),
            Some(Next::KeepAlive) => return Served::Idle(connection),
            // A close with unread bytes drops unsent ones. So do bytes that come later, and the
            // end of a handshake is sure to come.
            Some(Next::Close | Next::Cut)
                if connection.http1.stream.has_unread()
                    || connection.http1.stream.is_handshaking() =>
            {
                box_cold(linger(&context, &mut connection, buffer, Sender::Late)).await;
            }
            Some(Next::Close | Next::Cut) => {}
            Some(Next::Linger { sender }) => {
                box_cold(linger(&context, &mut connection, buffer, sender)).await
            }
            Some(Next::Abort) => connection.http1.stream.abort_on_close(),
        }
        Served::Closed
    }
}

/// Exchange after exchange; [`Next::KeepAlive`] when the connection is idle, `None`
/// where there was none.
fn exchanges(
    context: &mut Context,
    connection: &mut ClientConnection,
    buffer: &mut Buffer,
    head: &mut RequestHead,
    track: &Rc<Track>,
) -> impl Future<Output = Option<Next>> {
    async move {
        let mut number = 0_u32;
        loop {
            context.renew(&connection.client.listener);
            let arrival = match read_request(context, connection, buffer, head, track).await {
                Read::Head(arrival) => arrival,
                Read::Nothing if number == 0 => return None,
                Read::Nothing => return Some(Next::KeepAlive),
                Read::Closed => return Some(Next::Close),
                Read::Refused(arrival, end) => {
                    let refused = refuse(context, connection, buffer, track, arrival, end);
                    return Some(box_cold(refused).await);
                }
            };
            let bytes = buffer.filled();
            Hint::Bytes.set(bytes);
            Hint::Fields.set(&head.fields[..]);
            let client = &mut connection.client;
            client.asks(context, bytes, head);
            track.begin_exchange(arrival.started, head.line(bytes), head.wire.end);
            let identity = context.identify(arrival.started, bytes, head);
            let progress = Progress::new(
                context,
                client,
                arrival.started,
                arrival.took,
                head.wire.end,
                identity.as_ref().unwrap_or(&Identity::NONE),
                track.clone(),
            );
            let mut exchange = connection.exchange(context, bytes, head, progress);
            let outcome = handler::handle(&mut exchange).await;
            let Outcome {
                end,
                next,
                consumed,
                leftover,
                unread,
            } = outcome;
            exchange.conclude(end);
            match leftover {
                Some(leftover) => *buffer = leftover,
                None => buffer.consume(consumed),
            }
            let next = match unread {
                Some(decoder) => box_cold(drain(context, connection, buffer, *decoder, next)).await,
                None => next,
            };
            if next != Next::KeepAlive {
                return Some(next);
            }
            if connection.client.listener.is_closing() && !context.is_lingering.get() {
                return Some(Next::Close);
            }
            if buffer.is_empty() {
                return Some(Next::KeepAlive);
            }
            // A client that pipelines without pause gives way to others.
            number = number.saturating_add(1);
            if number.is_multiple_of(EXCHANGES_PER_TURN) {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Answers a malformed head, and writes its line.
pub(super) async fn refuse(
    context: &Context,
    connection: &mut ClientConnection,
    buffer: &Buffer,
    track: &Rc<Track>,
    arrival: Arrival,
    end: End,
) -> Next {
    let client = &mut connection.client;
    client.asks_nothing();
    track.begin_exchange(arrival.started, b"", buffer.len());
    let progress = Progress::new(
        context,
        client,
        arrival.started,
        arrival.took,
        buffer.len(),
        &Identity::NONE,
        track.clone(),
    );
    let head = RequestHead::default();
    let mut exchange = connection.exchange(context, buffer.filled(), &head, progress);
    if end == End::Failure(Failure::TlsHandshakeTimeout) {
        // The request may be a copy by an attacker: it gets no answer.
        exchange.conclude(end);
        return Next::Close;
    }
    let refused = answer::refuse(&mut exchange, end, None).await;
    exchange.conclude(end);
    match end {
        // Another connection waits for its room.
        End::Failure(Failure::NoDescriptor | Failure::Connections) => {
            let counters = context.listener_counters();
            counters.connections_displaced.add(1);
            Next::Close
        }
        _ => refused.next,
    }
}

/// A head that is being read.
struct Incoming {
    /// When its first byte was there, and the tick by which it must be whole.
    begun: Option<(Instant, u64)>,
    /// Bytes that were searched and hold no whole head.
    seen: usize,
}

/// Removes the empty lines that some clients send behind a body (RFC 9112 §2.2). Whether there
/// were any.
fn skip_empty_lines(buffer: &mut Buffer) -> bool {
    let mut has_skipped = false;
    while buffer.filled().starts_with(b"\r\n") {
        buffer.consume(b"\r\n".len());
        has_skipped = true;
    }
    has_skipped
}

/// Reads the head of a request. A request that must not be a replay waits for the end of the
/// handshake.
async fn read_request(
    context: &Context,
    connection: &mut ClientConnection,
    buffer: &mut Buffer,
    head: &mut RequestHead,
    track: &Track,
) -> Read {
    let read = read_head(context, connection, buffer, head, track).await;
    if let Read::Head(arrival) = read
        && connection.http1.stream.is_handshaking()
        && !early::may_be_repeated(head)
        && let Err(failure) = box_cold(early::finish_handshake(context, connection)).await
    {
        return Read::Refused(arrival, failure.into());
    }
    let is_early = connection.http1.stream.is_handshaking();
    connection.client.is_early(is_early);
    read
}

/// Reads until a head is whole, refused, or too late.
async fn read_head(
    context: &Context,
    connection: &mut ClientConnection,
    buffer: &mut Buffer,
    head: &mut RequestHead,
    track: &Track,
) -> Read {
    let mut incoming = Incoming {
        begun: None,
        seen: 0,
    };
    loop {
        if skip_empty_lines(buffer) {
            incoming.seen = 0;
        }
        if !buffer.is_empty() {
            let is_first = incoming.begun.is_none();
            let (started, _) = *incoming.begun.get_or_insert_with(|| {
                let timeout = context.listener().timeouts.head;
                (clock::now(), context.wheel.deadline(timeout))
            });
            let arrival = |took| Arrival { started, took };
            match parse(context, buffer, head, &mut incoming.seen) {
                Ok(Parsed::Complete) if is_first => return Read::Head(arrival(Duration::ZERO)),
                Ok(Parsed::Complete) => {
                    // A client that has sent its request need not leave.
                    context.sessions.take_told(connection.client.session);
                    return Read::Head(arrival(clock::since(started)));
                }
                Ok(Parsed::Partial) if is_first => track.begin_head(started),
                Ok(Parsed::Partial) => {}
                Err(error) => return Read::Refused(arrival(clock::since(started)), error.into()),
            }
        }
        match read_more(context, connection, buffer, &incoming).await {
            ReadMore::Some => {}
            ReadMore::Nothing => return Read::Nothing,
            ReadMore::Failed(failure) => {
                let Some((started, _)) = incoming.begun.filter(|_| !buffer.is_empty()) else {
                    return Read::Closed;
                };
                let took = clock::since(started);
                return Read::Refused(Arrival { started, took }, failure.into());
            }
        }
    }
}

/// Looks for a head in `buffer` and holds it against the listener's limits.
fn parse(
    context: &Context,
    buffer: &Buffer,
    head: &mut RequestHead,
    seen: &mut usize,
) -> Result<Parsed, RequestError> {
    let bytes = buffer.filled();
    let limits = &context.listener().limits;
    // Without a line's end among the new bytes, no head can be whole. A head that comes byte by
    // byte is not parsed at each of them.
    let news = &bytes[(*seen).min(bytes.len())..];
    let parsed = if *seen == 0 || memchr::memchr(b'\n', news).is_some() {
        parse_request(bytes, head)?
    } else {
        Parsed::Partial
    };
    *seen = bytes.len();
    match parsed {
        Parsed::Complete => check_limits(limits, head).map(|()| Parsed::Complete),
        Parsed::Partial if bytes.len() >= limits.head_bytes => match memchr::memchr(b'\n', bytes) {
            Some(len) if len <= limits.target_bytes => Err(RequestError::HeadTooLarge),
            _ => Err(RequestError::TargetTooLong),
        },
        Parsed::Partial => Ok(Parsed::Partial),
    }
}

/// Holds a whole head against a listener's limits.
pub(crate) fn check_limits(limits: &Limits, head: &RequestHead) -> Result<(), RequestError> {
    if head.target.len() > limits.target_bytes {
        Err(RequestError::TargetTooLong)
    } else if head.wire.end > limits.head_bytes {
        Err(RequestError::HeadTooLarge)
    } else {
        Ok(())
    }
}

/// The result of a wait for more of a head.
enum ReadMore {
    Some,
    Nothing,
    Failed(Failure),
}

/// Reads once. Waits only when a head has begun: until its deadline.
async fn read_more(
    context: &Context,
    connection: &mut ClientConnection,
    buffer: &mut Buffer,
    incoming: &Incoming,
) -> ReadMore {
    let ClientConnection {
        http1,
        timer,
        client,
        ..
    } = connection;
    if buffer.room().is_empty() {
        buffer.grow();
    }
    if let Some((_, deadline)) = incoming.begun {
        context.wheel.set(timer, deadline);
    }
    poll_fn(|cx| {
        let polled = http1.stream.poll_read(cx, buffer.room());
        Poll::Ready(match polled {
            Poll::Ready(Ok(len)) if len > 0 => {
                buffer.fill(len);
                ReadMore::Some
            }
            Poll::Ready(_) => ReadMore::Failed(Failure::ClientGone),
            Poll::Pending if incoming.begun.is_none() => ReadMore::Nothing,
            Poll::Pending if context.wheel.has_fired(timer) => {
                ReadMore::Failed(Failure::HeadTimeout)
            }
            Poll::Pending => match context.sessions.take_told(client.session) {
                Some(failure) => ReadMore::Failed(failure),
                None => return Poll::Pending,
            },
        })
    })
    .await
}
