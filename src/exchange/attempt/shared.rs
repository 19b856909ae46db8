//! Streams of shared connections (HTTP/2), and the drivers of these connections.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::http2::StreamId;
use evenkeel_proto::{BodyFraming, Scheme};

use super::UpstreamConnection;
use super::opened::{NotOpened, Opened, Origin};
use crate::certificates::{Alpn, has_chosen_http2};
use crate::config::{ClientProtocol, EndpointProtocol};
use crate::exchange::request::RequestBody;
use crate::exchange::room::with_descriptor;
use crate::exchange::{Exchange, Worker};
use crate::net::clock;
use crate::net::stream::Stream;
use crate::net::tasks::spawn;
use crate::net::timer::Timer;
use crate::upstream::http2::{Http2Connection, Step, StreamRequest};
use crate::upstream::{Endpoint, Slot};

/// Longest silence of a connection with exchanges before its endpoint gets a PING.
const SILENCE: Duration = Duration::from_secs(10);
/// Time for the answer to a PING.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until the next PING to an endpoint that has sent nothing else. gRPC servers take more
/// frequent ones for an attack.
const NEXT_QUESTION: Duration = Duration::from_secs(300);
/// The same where further exchanges have started since, and all of them wait.
const NEXT_QUESTION_OF_MORE: Duration = Duration::from_secs(30);
/// Longest time for an endpoint to acknowledge sent bytes.
const DEAD_AFTER: Duration = Duration::from_secs(20);

/// The ALPN offer for a connection, and so whether it may be HTTP/2.
pub(super) fn alpn(slot: &Slot<'_>, protocol: ClientProtocol, request: &RequestBody<'_>) -> Alpn {
    match (protocol, slot.upstream().config().protocol) {
        (ClientProtocol::Tcp, _) => Alpn::Nothing,
        // A connection of HTTP/2 can't become a tunnel.
        (ClientProtocol::Http, EndpointProtocol::Either) if request.head.wire.upgrade.is_some() => {
            Alpn::Http1
        }
        (ClientProtocol::Http, protocol) => protocol.into(),
    }
}

/// A stream of an open connection.
pub(super) fn take_stream(
    exchange: &Exchange<'_>,
    slot: &Slot<'_>,
    request: &RequestBody<'_>,
    connection: UpstreamConnection,
) -> Option<Opened> {
    let stream = slot.endpoint().http2().take()?;
    slot.counters().reuses.add(1);
    Some(Opened {
        stream: stream.stream(asking(exchange, slot, request)),
        origin: match connection {
            UpstreamConnection::AnyIdle => Origin::Pool,
            // All connections that are known to be broken are already removed.
            UpstreamConnection::New => Origin::New(clock::now()),
        },
    })
}

/// The facts about an exchange's request.
pub(super) fn asking(
    exchange: &Exchange<'_>,
    slot: &Slot<'_>,
    request: &RequestBody<'_>,
) -> StreamRequest {
    StreamRequest {
        call: exchange.call().cloned(),
        scheme: match slot.tls() {
            Some(_) => Scheme::Https,
            None => Scheme::Http,
        },
        framing: match request.head.wire.framing {
            BodyFraming::Length { .. } | BodyFraming::None | BodyFraming::Chunked => {
                request.head.wire.framing
            }
            BodyFraming::UntilClose => BodyFraming::None,
        },
    }
}

/// A stream of a connection that this exchange or another one opens now. If the endpoint chooses
/// HTTP/1, a connection of HTTP/1. Sets the cells to whether it is in the handshake, and whether
/// it opens one itself.
pub(super) async fn open_stream(
    worker: &Rc<Worker>,
    slot: &Slot<'_>,
    asking: StreamRequest,
    alpn: Alpn,
    (is_handshaking, is_own): (&Cell<bool>, &Cell<bool>),
) -> Result<Stream, NotOpened> {
    let pool = slot.endpoint().http2();
    let opening = loop {
        if let Some(connection) = pool.take() {
            return Ok(connection.stream(asking));
        }
        if pool.has_refused() {
            // Each exchange needs its own connection.
            break None;
        }
        match pool.begin() {
            Some(opening) => break Some(opening),
            None => pool.changed().await,
        }
    };
    is_own.set(true);
    let mut stream = with_descriptor(worker, || slot.connect())
        .await
        .map_err(NotOpened::Connect)?;
    if let Some(tls) = slot.tls() {
        is_handshaking.set(true);
        let encrypted = tls.encrypt(stream, alpn, &[]).await;
        stream = encrypted.map_err(NotOpened::Tls)?;
        if alpn == Alpn::Either && !has_chosen_http2(&stream) {
            pool.note_refusal();
            return Ok(stream);
        }
    }
    stream.watch_peer(DEAD_AFTER);
    let idle_timeout = slot.upstream().config().pool.idle_timeout;
    let connection = Http2Connection::new(stream.local_address(), idle_timeout);
    let driver = Driver::new(worker, slot, stream, &connection);
    spawn(driver.run());
    pool.add(connection.clone());
    drop(opening);
    Ok(connection.stream(asking))
}

/// Reads and writes a connection while it is useful.
struct Driver {
    worker: Rc<Worker>,
    upstream: String,
    endpoint: Weak<Endpoint>,
    name: String,
    connection: Rc<Http2Connection>,
    stream: Stream,
    timer: Timer,
    /// `None` before the timer was set.
    wait: Option<Wait>,
    /// Number of received frames.
    frames: u64,
    /// Whether a PING was sent, and nothing has arrived since.
    is_asked: bool,
    /// Whether the endpoint's stream limit is known.
    knows_limit: bool,
    /// The value of `heard` at the last PING.
    heard_before: Option<u64>,
    /// The last stream at the last PING.
    last_before: StreamId,
    /// Whether the next PING comes sooner, as further streams have started.
    is_hurried: bool,
}

/// The event that a driver waits for, until its timer fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The endpoint reads the sent bytes.
    Write,
    /// The endpoint sends anything: exchanges wait for it.
    Word,
    /// The endpoint answers a PING.
    Answer,
    /// Another exchange uses the connection.
    Use,
}

impl Driver {
    fn new(
        worker: &Rc<Worker>,
        slot: &Slot<'_>,
        stream: Stream,
        connection: &Rc<Http2Connection>,
    ) -> Self {
        Driver {
            worker: worker.clone(),
            upstream: slot.upstream().config().name.clone(),
            endpoint: Rc::downgrade(slot.endpoint()),
            name: slot.endpoint().state().name().to_owned(),
            connection: connection.clone(),
            stream,
            timer: worker.wheel.timer(),
            wait: None,
            frames: 0,
            is_asked: false,
            knows_limit: false,
            heard_before: None,
            last_before: 0,
            is_hurried: false,
        }
    }

    async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
        self.connection.breaks();
        let fault = self.connection.fault();
        let Some(endpoint) = self.endpoint.upgrade() else {
            return;
        };
        endpoint.http2().sweep();
        if endpoint.http2().note_fault(fault)
            && let Some(why) = fault
        {
            let (upstream, endpoint) = (&self.upstream, &self.name);
            tracing::warn!(
                upstream,
                endpoint,
                "upstream {upstream}: endpoint {endpoint}: connection of HTTP/2 lost: {why}"
            );
        }
    }

    fn poll(&mut self, cx: &TaskContext<'_>) -> Poll<()> {
        self.connection.register_driver(cx);
        self.timer.register(cx);
        let mut has_written = self.connection.flush(cx, &mut self.stream);
        if !self.connection.is_broken() {
            let now_ms = self.worker.access_log.unix_us(clock::now()) / 1000;
            if self.connection.take(cx, &mut self.stream, now_ms) == Step::Yield {
                cx.waker().wake_by_ref();
            }
        }
        has_written |= self.connection.flush(cx, &mut self.stream);
        self.note_limit();
        if self.connection.wake_writers() {
            cx.waker().wake_by_ref();
        }
        self.look_at_timer(has_written);
        if self.is_over() {
            self.connection.protocol.borrow_mut().shut_down();
            self.connection.flush(cx, &mut self.stream);
            return Poll::Ready(());
        }
        self.connection.flush(cx, &mut self.stream);
        Poll::Pending
    }

    /// Notes the endpoint's stream limit, once.
    fn note_limit(&mut self) {
        if self.knows_limit {
            return;
        }
        let protocol = self.connection.protocol.borrow();
        self.knows_limit = protocol.has_settings();
        if let (Some(limit), Some(endpoint)) = (protocol.peer_limit(), self.endpoint.upgrade()) {
            endpoint.http2().note_limit(limit);
        }
    }

    /// Whether an unused connection is superfluous.
    fn is_surplus(&self) -> bool {
        let protocol = self.connection.protocol.borrow();
        let allows_none = protocol.has_settings() && protocol.capacity() == 0;
        drop(protocol);
        let endpoint = self.endpoint.upgrade();
        allows_none || endpoint.is_none_or(|it| it.http2().has_surplus())
    }

    /// Whether the connection is finished.
    fn is_over(&self) -> bool {
        self.connection.is_retired() && self.connection.is_idle()
    }

    /// Sets the timer for the present wait. Acts if the timer has fired.
    fn look_at_timer(&mut self, has_written: bool) {
        let frames = self.connection.protocol.borrow().frames();
        let has_news = frames != self.frames;
        self.frames = frames;
        self.is_asked &= !has_news;
        let wait = self.awaited();
        if wait == Wait::Word && self.wait == Some(wait) && self.is_to_be_asked_sooner() {
            self.is_hurried = true;
            self.worker.set_timeout(&self.timer, NEXT_QUESTION_OF_MORE);
        }
        let has_moved = match wait {
            Wait::Write => has_written,
            Wait::Word => has_news,
            Wait::Answer | Wait::Use => false,
        };
        if self.wait == Some(wait) && !has_moved {
            if self.worker.wheel.has_fired(&self.timer) {
                self.time_is_up(wait);
            }
            return;
        }
        self.wait_for(wait);
    }

    fn wait_for(&mut self, wait: Wait) {
        if wait == Wait::Use {
            self.connection.shrink();
            if self.is_surplus() {
                self.connection.retire();
            }
        }
        self.wait = Some(wait);
        self.is_hurried = false;
        let timeout = match wait {
            Wait::Write => DEAD_AFTER,
            Wait::Word if self.heard_before == Some(self.connection.heard()) => NEXT_QUESTION,
            Wait::Word => SILENCE,
            Wait::Answer => ANSWER_TIMEOUT,
            Wait::Use => self.connection.idle_timeout.get(),
        };
        self.worker.set_timeout(&self.timer, timeout);
    }

    /// Whether the next PING is far away, and an exchange has started since the last one.
    fn is_to_be_asked_sooner(&self) -> bool {
        !self.is_hurried
            && self.heard_before == Some(self.connection.heard())
            && self.connection.protocol.borrow().last_stream() != self.last_before
    }

    fn awaited(&self) -> Wait {
        let protocol = self.connection.protocol.borrow();
        if !protocol.unsent().is_empty() {
            Wait::Write
        } else if protocol.in_flight() == 0 {
            Wait::Use
        } else if self.is_asked {
            Wait::Answer
        } else {
            Wait::Word
        }
    }

    fn time_is_up(&mut self, wait: Wait) {
        match wait {
            Wait::Word => {
                self.connection.protocol.borrow_mut().ping(*b"evenkeel");
                self.heard_before = Some(self.connection.heard());
                self.last_before = self.connection.protocol.borrow().last_stream();
                self.is_asked = true;
                self.wait_for(Wait::Answer);
            }
            Wait::Answer => self.connection.fails("it does not answer a PING"),
            Wait::Write => self.connection.fails("it reads no data"),
            Wait::Use => self.connection.retire(),
        }
    }
}
