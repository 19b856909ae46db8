//! HTTP/2 on a client's connection: its driver, and the exchange of each stream.
//!
//! The driver is the connection's task, and alone reads and writes the socket. Each request gets
//! a task of its own, which ends with its exchange. [`crate::http2`] has the state that both
//! share. A connection without an exchange is as idle as one of HTTP/1, and holds no buffer.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::http2::connection::Settings;
use evenkeel_proto::http2::frame::PREFACE;
use evenkeel_proto::http2::{Event, Request, StreamId};
use evenkeel_proto::{BodyFraming, RequestError, RequestHead};

use super::ClientConnection;
use super::drain::linger;
use super::http1::{Served, check_limits};
use crate::exchange::identity::Identity;
use crate::exchange::{
    Client, ClientSide, Context, Exchange, Http2Connection, Http2Stream, Next, Progress, Sender,
    Worker, answer, box_cold,
};
use crate::handler;
use crate::http2::forget_unsent;
use crate::metrics::end::End;
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::net::stream::Follow;
use crate::net::tasks::Task;
use crate::net::timer::Timer;
use crate::observe::sessions::{Stage, Track};

/// Requests that a connection begins before others have a turn.
const REQUESTS_PER_TURN: usize = 20;

/// Bytes that are read of a connection before others have a turn.
const READ_PER_TURN: usize = 256 * 1024;

/// How long a client has to show that it knows of the end.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Has a connection speak HTTP/2 from here on.
pub(super) fn begin(worker: &Rc<Worker>, connection: &mut ClientConnection) -> Rc<Http2Connection> {
    let listener = &connection.client.listener;
    listener.counters().http2_connections.add(1);
    let max_head = listener.setting(|it| it.limits.head_bytes);
    let max_head = u32::try_from(max_head).unwrap_or(u32::MAX);
    let settings = Settings {
        max_head,
        ..Settings::default()
    };
    let shared = Http2Connection::new(
        worker.clone(),
        listener.clone(),
        settings,
        connection.http1.stream.local_address(),
    );
    connection.http2 = Some(shared.clone());
    shared
}

/// Whether a connection without TLS begins with HTTP/2. The client has to show it before the
/// timer of the connection fires. Nothing is taken.
pub(super) async fn has_preface(worker: &Worker, connection: &mut ClientConnection) -> bool {
    let ClientConnection { http1, timer, .. } = connection;
    let mut seen = 0;
    let mut room = [0; PREFACE.len()];
    poll_fn(|cx| {
        if seen == 0 {
            timer.register(cx);
        }
        loop {
            match http1.stream.poll_peek_beyond(cx, &mut room, seen) {
                Poll::Ready(Ok(len)) if len > seen => {
                    if room[..len] != PREFACE[..len] {
                        return Poll::Ready(false);
                    }
                    if len >= DECISIVE_LEN {
                        return Poll::Ready(true);
                    }
                    seen = len;
                }
                Poll::Pending if !worker.wheel.has_fired(timer) => return Poll::Pending,
                // HTTP/1 finds the mistake.
                _ => return Poll::Ready(false),
            }
        }
    })
    .await
}

/// Bytes that tell HTTP/2 from HTTP/1: no method is called `PRI` (RFC 9113 §3.4).
const DECISIVE_LEN: usize = b"PRI ".len();

/// Drives a connection that has something to read, until it has no exchange any more. `spawn`
/// begins the task of an exchange.
///
/// # Cancellation
/// Dropping the future closes the connection. Its exchanges end by themselves.
pub(super) async fn serve(
    worker: &Rc<Worker>,
    mut connection: Box<ClientConnection>,
    shared: Rc<Http2Connection>,
    spawn: impl Fn(Task),
) -> Served {
    let track = worker.sessions.wake(connection.client.session);
    track.begin_head(clock::now());
    let mut driver = Driver {
        worker,
        connection: &mut connection,
        shared: &shared,
        track: &track,
        spawn: &spawn,
        unread: None,
        timer: worker.wheel.timer(),
        wait: Wait::Nothing,
        frames: u64::MAX,
        requests: 0,
        read: 0,
    };
    let over = poll_fn(|cx| driver.poll(cx)).await;
    let has_served = driver.requests > 0;
    let (session, now) = (connection.client.session, worker.wheel.now());
    worker.sessions.rest(session, track, now);
    match over {
        Over::Idle => {
            shared.shrink();
            if has_served {
                Served::Idle(connection)
            } else {
                Served::Nothing(connection)
            }
        }
        Over::Told => {
            // A close with unread bytes would drop unsent frames.
            let context = Context::new(worker.clone(), &connection.client.listener);
            let unread = Buffer::small();
            box_cold(linger(&context, &mut connection, unread, Sender::Late)).await;
            Served::Closed
        }
        Over::Gone => Served::Closed,
    }
}

/// Tells the client of an idle connection that it ends, and gives it a moment to know, unless
/// another connection waits for its room.
pub(super) async fn say_goodbye(
    worker: &Rc<Worker>,
    mut connection: Box<ClientConnection>,
    shared: Rc<Http2Connection>,
    spawn: impl Fn(Task),
) {
    let is_awaited =
        !connection.client.listener.is_closing() && !worker.wheel.has_fired(&connection.timer);
    if is_awaited {
        let mut protocol = shared.protocol.borrow_mut();
        protocol.shut_down();
        let stream = &mut connection.http1.stream;
        // A client that can't be told at once finds the connection closed.
        let _ = stream.try_write(protocol.unsent(), Follow::Close);
        return;
    }
    shared.protocol.borrow_mut().begin_shutdown();
    serve(worker, connection, shared, spawn).await;
}

/// How the driver's work ended.
enum Over {
    /// No exchange is left.
    Idle,
    /// The end was announced to the client.
    Told,
    /// The client is gone.
    Gone,
}

/// The event that the driver waits for, no longer than until its timer fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Anything.
    Nothing,
    /// The client takes unsent bytes.
    Write,
    /// The rest of a frame or block that the client has begun to send.
    Rest,
    /// The client knows that the connection ends.
    Goodbye,
}

struct Driver<'a, S> {
    worker: &'a Rc<Worker>,
    connection: &'a mut ClientConnection,
    shared: &'a Rc<Http2Connection>,
    track: &'a Rc<Track>,
    spawn: &'a S,
    /// Bytes that were read and not taken.
    unread: Option<Buffer>,
    timer: Timer,
    wait: Wait,
    /// Frames that had come when the timer was set; `MAX` before that.
    frames: u64,
    /// Requests that were begun.
    requests: u32,
    /// Bytes that were read in this turn.
    read: usize,
}

/// The result of an attempt to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// There may be more.
    More,
    /// Nothing can be done now.
    Blocked,
    /// Other tasks get their turn.
    Yield,
}

impl<S: Fn(Task)> Driver<'_, S> {
    fn poll(&mut self, cx: &TaskContext<'_>) -> Poll<Over> {
        self.shared.register_driver(cx);
        self.timer.register(cx);
        let listener = &self.connection.client.listener;
        // Closing early loses nothing.
        if listener.is_closing() {
            self.shared.protocol.borrow_mut().begin_shutdown();
        }
        self.read = 0;
        self.give_way();
        let mut has_written = self.flush(cx);
        let mut left = REQUESTS_PER_TURN;
        while !self.shared.is_broken() {
            match self.take(cx, &mut left) {
                Step::More => {}
                Step::Blocked => break,
                Step::Yield => {
                    cx.waker().wake_by_ref();
                    break;
                }
            }
        }
        has_written |= self.flush(cx);
        if self.shared.wake_writers() {
            cx.waker().wake_by_ref();
        }
        self.give_way();
        if !self.shared.is_broken() {
            let max = Settings::default().max_streams;
            self.shared.follow_queue(max, self.worker.wheel.now());
        }
        self.look_at_timer(has_written);
        // The timer may have queued frames.
        self.flush(cx);
        match self.over() {
            Some(over) => Poll::Ready(over),
            None => Poll::Pending,
        }
    }

    /// Ends a connection without an exchange where its room is wanted. The caller checks that it
    /// has none.
    fn give_way(&self) {
        let in_flight = self.shared.protocol.borrow().in_flight();
        self.track.enter(if in_flight == 0 {
            Stage::Head
        } else {
            Stage::Idle
        });
        let session = self.connection.client.session;
        if in_flight == 0 && self.worker.sessions.take_told(session).is_some() {
            let counters = self.connection.client.listener.counters();
            counters.connections_displaced.add(1);
            self.shared.protocol.borrow_mut().shut_down();
            self.shared.give_up();
        }
    }

    /// Sends unsent bytes; whether some were sent.
    fn flush(&mut self, cx: &TaskContext<'_>) -> bool {
        let stream = &mut self.connection.http1.stream;
        self.shared.flush(cx, stream).unwrap_or_else(|_| {
            self.shared.give_up();
            false
        })
    }

    /// Takes unread bytes, or reads.
    fn take(&mut self, cx: &TaskContext<'_>, left: &mut usize) -> Step {
        if let Some(buffer) = self.unread.take() {
            return self.take_bytes(buffer, left);
        }
        if self.read >= READ_PER_TURN {
            return Step::Yield;
        }
        let mut buffer = Buffer::large();
        if self.shared.protocol.borrow().has_waiting_blocks() {
            // An exchange may have made room for a request.
            match self.take_bytes(buffer, left) {
                Step::More => buffer = Buffer::large(),
                step => return step,
            }
        }
        match self.connection.http1.stream.poll_read(cx, buffer.room()) {
            Poll::Ready(Ok(len)) if len > 0 => {
                buffer.fill(len);
                self.read += len;
                self.take_bytes(buffer, left)
            }
            Poll::Ready(_) => {
                self.shared.give_up();
                Step::Blocked
            }
            Poll::Pending => Step::Blocked,
        }
    }

    fn take_bytes(&mut self, mut buffer: Buffer, left: &mut usize) -> Step {
        let now = clock::now();
        let now_ms = self.worker.access_log.unix_us(now) / 1000;
        let worker = self.worker;
        // Most heads are far smaller than the room for one.
        let mut room = || {
            let mut bytes = worker.scratch.take();
            bytes.clear();
            (bytes, worker.heads.take())
        };
        loop {
            if *left == 0 {
                self.unread = Some(buffer);
                return Step::Yield;
            }
            let mut input = buffer.filled();
            let before = input.len();
            let event = {
                let mut protocol = self.shared.protocol.borrow_mut();
                protocol.next(&mut input, now_ms, &mut room)
            };
            let taken = before - input.len();
            buffer.consume(taken);
            match event {
                Ok(None) => return Step::More,
                Ok(Some(Event::Request(id, mut request))) => {
                    *left -= 1;
                    let bytes = request.bytes.as_slice().into();
                    worker
                        .scratch
                        .replace(std::mem::replace(&mut request.bytes, bytes));
                    self.begin(id, Ok(request));
                }
                Ok(Some(Event::Refused(id, error))) => {
                    *left -= 1;
                    self.begin(id, Err(error));
                }
                Ok(Some(Event::Readable(id) | Event::Reset(id, _))) => self.shared.wake(id),
                // Streams are woken in their order, once the driver knows what fits.
                Ok(Some(Event::Writable)) => {}
                Ok(Some(Event::GoAway)) => self.shared.protocol.borrow_mut().shut_down(),
                Err(fatal) => {
                    self.breaks(fatal.why);
                    return Step::Blocked;
                }
            }
        }
    }

    /// Begins the exchange of a request.
    fn begin(&mut self, id: StreamId, request: Result<Request, RequestError>) {
        self.requests = self.requests.wrapping_add(1);
        let listener = &self.connection.client.listener;
        let stream =
            |framing, may_tunnel| Http2Stream::new(self.shared.clone(), id, framing, may_tunnel);
        let (stream, bytes, head, refused) = match request {
            Ok(Request { bytes, head, asked }) => {
                let stream = stream(head.wire.framing, asked.opens_websocket);
                let refused = listener.setting(|it| check_limits(&it.limits, &head)).err();
                (stream, bytes.into_boxed_slice(), head, refused)
            }
            Err(error) => {
                let stream = stream(BodyFraming::None, false);
                (
                    stream,
                    Box::default(),
                    self.worker.heads.take(),
                    Some(error),
                )
            }
        };
        let exchange = StreamExchange {
            context: Context::new(self.worker.clone(), listener),
            client: self.connection.client.for_fetch(),
            stream,
            of_connection: self.track.clone(),
            bytes,
            head,
            refused,
        };
        (self.spawn)(Box::pin(exchange.serve()));
    }

    /// Sets the timer for the awaited event, or ends the wait if its time is over.
    fn look_at_timer(&mut self, has_written: bool) {
        let mut protocol = self.shared.protocol.borrow_mut();
        let is_first = self.frames == u64::MAX;
        let wait = if self.shared.is_broken() && protocol.unsent().is_empty() {
            Wait::Nothing
        } else if !protocol.unsent().is_empty() {
            Wait::Write
        } else if protocol.is_leaving() && !protocol.is_shut_down() {
            Wait::Goodbye
        } else if protocol.awaits_rest() {
            Wait::Rest
        } else {
            Wait::Nothing
        };
        let has_moved = match wait {
            Wait::Write => has_written,
            // Frames without effect do not keep a connection.
            Wait::Rest => protocol.in_flight() > 0 && protocol.frames() != self.frames,
            Wait::Goodbye | Wait::Nothing => false,
        };
        if wait == self.wait && !has_moved && !is_first {
            if !self.worker.wheel.has_fired(&self.timer) {
                return;
            }
            match wait {
                Wait::Nothing => {}
                Wait::Write => {
                    forget_unsent(&mut protocol);
                    drop(protocol);
                    self.breaks("it reads no data");
                }
                Wait::Rest => {
                    protocol.shut_down();
                    drop(protocol);
                    self.breaks("the rest of a frame did not arrive");
                }
                Wait::Goodbye => protocol.shut_down(),
            }
            return;
        }
        self.wait = wait;
        self.frames = protocol.frames();
        let timeout = self.connection.client.listener.setting(|it| match wait {
            Wait::Nothing => Duration::MAX,
            Wait::Write => it.timeouts.body,
            Wait::Rest => it.timeouts.head,
            Wait::Goodbye => GOODBYE_TIMEOUT,
        });
        self.worker.set_timeout(&self.timer, timeout);
    }

    /// Ends the connection for a fault of the client.
    fn breaks(&self, why: &str) {
        let listener = &self.connection.client.listener;
        listener.counters().http2_broken.add(1);
        listener.setting(|it| {
            let name = &it.name;
            tracing::debug!(listener = name, "listener {name}: HTTP/2: {why}");
        });
        self.shared.give_up();
    }

    /// How it ended, if it did.
    fn over(&self) -> Option<Over> {
        let protocol = self.shared.protocol.borrow();
        if protocol.in_flight() > 0 || !protocol.unsent().is_empty() {
            return None;
        }
        if self.shared.is_broken() {
            return Some(if protocol.is_shut_down() {
                Over::Told
            } else {
                Over::Gone
            });
        }
        if protocol.is_shut_down() {
            return Some(Over::Told);
        }
        let is_idle = !protocol.awaits_rest() && !protocol.is_leaving() && self.unread.is_none();
        is_idle.then_some(Over::Idle)
    }
}

/// The exchange of a stream.
struct StreamExchange {
    context: Context,
    client: Client,
    stream: Http2Stream,
    /// The session of the connection.
    of_connection: Rc<Track>,
    /// The request's head in text of HTTP/1.
    bytes: Box<[u8]>,
    head: Box<RequestHead>,
    /// The fault of a head that is refused.
    refused: Option<RequestError>,
}

impl StreamExchange {
    // Not an `async fn`, and nothing is moved out of it: a task would hold both.
    fn serve(mut self) -> impl Future<Output = ()> {
        async move {
            // First of all, so that nothing more is held over it.
            let timer = self.context.wheel.spare_timer();
            timer.register_task().await;
            let started = clock::now();
            let track = self.context.sessions.begin_stream(&self.of_connection);
            if self.refused.is_some() {
                *self.head = RequestHead::default();
            }
            let Self {
                context,
                client,
                stream,
                bytes,
                head,
                refused,
                ..
            } = &mut self;
            client.asks(context, bytes, head);
            track.begin_exchange(started, head.line(bytes), head.wire.end);
            let identity = context.identify(started, bytes, head).map(Box::new);
            let progress = Progress::new(
                context,
                client,
                started,
                Duration::ZERO,
                bytes.len(),
                identity.as_deref().unwrap_or(&Identity::NONE),
                track.clone(),
            );
            let side = ClientSide::Http2(stream);
            let mut exchange =
                Exchange::new(context, client, side, timer.clone(), bytes, head, progress);
            let (end, next) = match *refused {
                None => {
                    let outcome = handler::handle(&mut exchange).await;
                    (outcome.end, outcome.next)
                }
                Some(error) => {
                    let end = End::from(error);
                    let refused = answer::refuse(&mut exchange, end, None).await;
                    (end, refused.next)
                }
            };
            let cut_code = exchange.cut_code();
            exchange.conclude(end);
            if matches!(next, Next::Cut | Next::Abort) {
                stream.fails_with(cut_code);
            }
            let Self {
                context,
                stream,
                head,
                of_connection,
                ..
            } = self;
            drop(stream);
            context.heads.keep(head);
            context.wheel.keep(timer);
            context.sessions.end_stream(&of_connection, track);
        }
    }
}
