//! A client's connection of HTTP/2, for exchanges: each has a stream. See [`crate::http2`].

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll, ready};

use evenkeel_proto::BodyFraming;
use evenkeel_proto::http2::response::{head_block, tunnel_block};
use evenkeel_proto::http2::server::{Connection, Server};
use evenkeel_proto::http2::{Direction, ErrorCode, Settings, StreamId};

use super::context::{ListenerSide, Worker};
use super::stalled::StalledStream;
use super::throttle::Throttle;
use crate::http2::{BodyReading, BodyWriting, SharedConnection, room_of};
use crate::net::pipe::Pipe;
use crate::net::stream::Follow;
use crate::observe::access_log::StreamPlace;

/// The state that the streams of a client's connection share with its driver.
#[derive(Debug)]
pub struct Http2Connection {
    /// Identifies the connection in the process.
    number: u32,
    /// The address that the client connected to; `None` for a Unix socket.
    local_address: Option<SocketAddr>,
    shared: SharedConnection<Server>,
    worker: Rc<Worker>,
    /// Counts for the client's listener.
    listener: Rc<ListenerSide>,
    /// Number of exchanges in an upstream's queue.
    queued: Cell<u32>,
    /// The stream limit that the client knows, and the tick when it was sent.
    told: Cell<(u32, u64)>,
}

/// Counts an exchange in an upstream's queue until dropped.
#[derive(Debug)]
pub struct QueuedStream(Rc<Http2Connection>);

impl Drop for QueuedStream {
    fn drop(&mut self) {
        self.0.queued.update(|it| it - 1);
        self.0.wake_driver();
    }
}

/// Bytes to read for a stream while its connection has no room: they fit a small buffer.
const LITTLE: usize = 12 * 1024;

/// Bytes that a stalled stream has to send to count as moving again.
const PROGRESS: usize = 1024;

/// Least stream limit, however long the queue is.
const FEW_STREAMS: u32 = 4;

impl Http2Connection {
    /// A new connection.
    pub fn new(
        worker: Rc<Worker>,
        listener: Rc<ListenerSide>,
        settings: Settings,
        local_address: Option<SocketAddr>,
    ) -> Rc<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        Rc::new(Http2Connection {
            worker,
            listener,
            local_address,
            number: LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            shared: SharedConnection::new(Connection::new(settings)),
            queued: Cell::new(0),
            told: Cell::new((settings.max_streams, 0)),
        })
    }

    /// Adapts the client's stream limit to the queue. While exchanges wait, the limit falls to
    /// the number in service. Afterwards it rises to `max` in steps, or at once if no stream is
    /// open. `now` is the worker's tick. Apart from that jump, the limit changes at most once in
    /// a tick.
    pub fn follow_queue(&self, max: u32, now: u64) {
        /// Ticks between two raises.
        const STEP_UP: u64 = 10;
        let (told, at) = self.told.get();
        let queued = self.queued.get();
        if queued == 0 && told == max {
            return;
        }
        let mut protocol = self.protocol.borrow_mut();
        let in_flight = u32::try_from(protocol.in_flight()).unwrap_or(u32::MAX);
        let wanted = match queued {
            0 if in_flight == 0 => max,
            _ if now == at => told,
            0 if now < at + STEP_UP => told,
            0 => max.min(told * 2),
            _ => told.min(FEW_STREAMS.max(in_flight.saturating_sub(queued))),
        };
        if wanted != told && !protocol.is_shut_down() {
            protocol.advertise(wanted);
            self.told.set((wanted, now));
        }
    }

    /// Ends all traffic with the client. Drops requests that have not started.
    pub fn give_up(&self) {
        if self.breaks() {
            self.protocol.borrow_mut().forget_waiting_blocks();
        }
    }
}

impl Deref for Http2Connection {
    type Target = SharedConnection<Server>;

    fn deref(&self) -> &SharedConnection<Server> {
        &self.shared
    }
}

/// One stream: a request and its response. Dropping it makes room for another, and resets an
/// incomplete response.
#[derive(Debug)]
pub struct Http2Stream {
    connection: Rc<Http2Connection>,
    id: StreamId,
    body: BodyReading,
    /// Whether it may become a tunnel.
    may_tunnel: bool,
    /// The framing of the response's body, as it is written here.
    response: BodyWriting,
    /// Holds the response back, where it has a bandwidth.
    throttle: Option<Box<Throttle>>,
    /// Present while the client reads nothing.
    stalled: Option<Box<StalledStream>>,
    /// The error code of a reset before its end.
    code: ErrorCode,
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.connection.forget(self.id);
        let mut code = self.code;
        if self.gives_way() {
            code = ErrorCode::EnhanceYourCalm;
            self.connection.listener.counters().http2_displaced.add(1);
        }
        let mut protocol = self.connection.protocol.borrow_mut();
        protocol.release(self.id, code);
        drop(protocol);
        self.connection.wake_driver();
    }
}

impl Http2Stream {
    /// The stream of a request with this framing of its body. `may_tunnel` says whether it asks
    /// for a WebSocket.
    pub fn new(
        connection: Rc<Http2Connection>,
        id: StreamId,
        framing: BodyFraming,
        may_tunnel: bool,
    ) -> Self {
        Http2Stream {
            connection,
            id,
            may_tunnel,
            body: BodyReading::of(framing),
            response: BodyWriting::Content,
            throttle: None,
            stalled: None,
            code: ErrorCode::Cancel,
        }
    }

    /// The address that the client connected to.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.connection.local_address
    }

    /// Counts its exchange as waiting in an upstream's queue.
    pub(super) fn queue(&self) -> QueuedStream {
        self.connection.queued.update(|it| it + 1);
        self.connection.wake_driver();
        QueuedStream(self.connection.clone())
    }

    /// The numbers of its connection and stream.
    pub(super) fn place(&self) -> StreamPlace {
        StreamPlace {
            connection: self.connection.number,
            stream: self.id,
        }
    }

    /// Sets the error code of a reset before its end.
    pub fn fails_with(&mut self, code: ErrorCode) {
        self.code = code;
    }

    /// Whether either side has reset it.
    pub(super) fn is_reset(&self) -> bool {
        self.connection.is_broken() || self.connection.incoming(self.id).is_none()
    }

    /// Sends a head that is given as text of HTTP/1.
    pub(super) fn send_head(&mut self, text: &[u8]) {
        let mut block = self.connection.block.borrow_mut();
        block.clear();
        let head = if self.may_tunnel {
            tunnel_block(&mut block, text)
        } else {
            head_block(&mut block, text)
        };
        if head.is_chunked {
            self.response = BodyWriting::in_chunks();
        }
        let mut protocol = self.connection.protocol.borrow_mut();
        protocol.send_fields(self.id, &block, false);
        drop(protocol);
        self.connection.wake_driver();
    }

    /// Ends the response, once.
    pub(super) fn end(&self) {
        self.connection.protocol.borrow_mut().end(self.id);
        self.connection.wake_driver();
    }

    /// Sends a head, given as text, and the bytes after it. The text is the first `head_len`
    /// bytes of `bytes`.
    pub(super) fn poll_write_text(
        &mut self,
        cx: &TaskContext<'_>,
        bytes: &[u8],
        head_len: usize,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        let (head, content) = bytes.split_at(head_len);
        self.send_head(head);
        if content.is_empty() {
            if follow == Follow::Close {
                self.end();
            }
            return Poll::Ready(Ok(head_len));
        }
        let written = match self.poll_write(cx, content, follow) {
            Poll::Ready(Ok(len)) => len,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            // The head is sent.
            Poll::Pending => 0,
        };
        Poll::Ready(Ok(head_len + written))
    }

    pub(super) fn can_splice(&self) -> bool {
        false
    }

    pub(super) fn poll_read_ready(&self, cx: &TaskContext<'_>) -> Poll<()> {
        let mut protocol = self.connection.protocol.borrow_mut();
        let is_open = matches!(protocol.incoming(self.id), Some((Direction::Open, _)));
        let is_ready = self.body.has_framing() || !is_open || protocol.readable_len(self.id) > 0;
        drop(protocol);
        if is_ready || self.connection.is_broken() {
            Poll::Ready(())
        } else {
            self.connection.wait(self.id, cx)
        }
    }

    pub(super) fn poll_read(
        &mut self,
        cx: &TaskContext<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut protocol = self.connection.protocol.borrow_mut();
        let len = self.body.read(&mut protocol, self.id, room);
        let has_news = !protocol.unsent().is_empty();
        let incoming = protocol.incoming(self.id).map(|it| it.0);
        drop(protocol);
        if len > 0 {
            // Permits the client to send more.
            if has_news {
                self.connection.wake_driver();
            }
            return Poll::Ready(Ok(len));
        }
        match incoming {
            _ if room.is_empty() => Poll::Ready(Ok(0)),
            Some(Direction::Ended) => Poll::Ready(Ok(0)),
            Some(Direction::Open) if !self.connection.is_broken() => {
                self.connection.wait(self.id, cx)
            }
            _ => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    pub(super) fn poll_read_into(
        &self,
        _: &TaskContext<'_>,
        _: &mut Pipe,
        _: u64,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Bytes to read at once: as many as there is room for, or a few.
    pub(super) fn read_len_max(&self) -> usize {
        room_of(&self.connection.protocol.borrow()).max(LITTLE)
    }

    pub(super) fn poll_write_ready(&mut self, cx: &TaskContext<'_>) -> Poll<()> {
        if let Some(throttle) = self.throttle.as_mut().filter(|it| it.is_waiting()) {
            ready!(throttle.poll_booked(cx, 1));
        }
        self.connection.poll_write_ready(self.id, cx)
    }

    pub(super) fn poll_write(
        &mut self,
        cx: &TaskContext<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        let len = match &mut self.throttle {
            None => bytes.len(),
            Some(throttle) => ready!(throttle.poll_booked(cx, bytes.len())),
        };
        match self.write(&bytes[..len], follow_of_part(follow, bytes, len)) {
            Some(written) => Poll::Ready(written),
            None if self.gives_way() => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            None => {
                self.stalls(cx);
                self.connection.wait(self.id, cx)
            }
        }
    }

    pub(super) fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        let len = match &mut self.throttle {
            None => bytes.len(),
            Some(throttle) => throttle.booked_now(bytes.len())?,
        };
        self.write(&bytes[..len], follow_of_part(follow, bytes, len))
    }

    /// Notes that the stream can't send now.
    fn stalls(&mut self, cx: &TaskContext<'_>) {
        if let Some(stalled) = &self.stalled {
            return stalled.register(cx);
        }
        let Worker { stalled, wheel, .. } = &*self.connection.worker;
        self.stalled = Some(Box::new(stalled.add(cx, wheel.now())));
    }

    /// Whether the stream has to end: its client reads nothing, and the room for such streams is
    /// used up.
    pub(super) fn gives_way(&self) -> bool {
        self.stalled.as_ref().is_some_and(|it| it.gives_way())
    }

    /// Writes as much as windows and memory allow; `None` for nothing.
    fn write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        if self.is_reset() {
            return Some(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if bytes.is_empty() && follow == Follow::Close {
            self.end();
            return Some(Ok(0));
        }
        let ends = follow == Follow::Close;
        let written = self.response.write(&self.connection, self.id, bytes, ends);
        let Ok(len) = written else {
            return Some(Err(io::ErrorKind::InvalidData.into()));
        };
        if len == 0 && !bytes.is_empty() {
            return None;
        }
        // A few bytes now and then are no progress.
        if self.stalled.is_some() && (len >= PROGRESS || len == bytes.len()) {
            self.stalled = None;
        }
        if let Some(throttle) = &mut self.throttle {
            throttle.wrote(len);
        }
        self.connection.wake_driver();
        Some(Ok(len))
    }

    pub(super) fn poll_write_from(
        &self,
        _: &TaskContext<'_>,
        _: &mut Pipe,
        _: Follow,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    pub(super) fn poll_broken(&self, cx: &TaskContext<'_>) -> Poll<()> {
        if self.is_reset() {
            Poll::Ready(())
        } else {
            self.connection.wait(self.id, cx)
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as other carriers have it")]
    pub(super) fn close_notify(&self) -> io::Result<()> {
        self.end();
        Ok(())
    }

    /// Has the bandwidth hold the response back.
    pub(super) fn set_throttle(&mut self, throttle: Throttle) {
        self.throttle = Some(Box::new(throttle));
    }

    /// Ends the bandwidth's hold on the response.
    pub(super) fn take_throttle(&mut self) -> Option<Throttle> {
        self.throttle.take().map(|it| *it)
    }

    /// Holds the response back, where it has a bandwidth.
    pub(super) fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_deref()
    }
}

/// What follows a part of `bytes`: more of them, or `follow` after the last.
fn follow_of_part(follow: Follow, bytes: &[u8], len: usize) -> Follow {
    if len < bytes.len() {
        Follow::Anything
    } else {
        follow
    }
}
