//! A client's connection of HTTP/2, as far as exchanges use it: each has a stream.
//!
//! The connection has a task of its own, its driver, which alone reads and writes the
//! socket. A stream reads and writes what the protocol keeps in memory, and wakes the driver
//! where that has news. Many streams that write in one turn of the event loop so leave in
//! one send.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll, Waker, ready};

use evenkeel_proto::http1::{ChunkedDecoder, Piece};
use evenkeel_proto::http2::response::{head_block, trailer_block, tunnel_block};
use evenkeel_proto::http2::{Connection, Direction, ErrorCode, Settings, StreamId};
use evenkeel_proto::{BodyError, BodyFraming};

use super::throttle::Throttle;
use crate::net::pipe::Pipe;
use crate::net::stream::Follow;
use crate::observe::access_log::StreamPlace;

/// Bytes that wait to be sent on a connection before its streams wait.
const UNSENT_MAX: usize = 64 * 1024;

/// What the streams of a connection share with its driver.
#[derive(Debug)]
pub struct Http2Connection {
    /// Tells it from others of the process.
    number: u32,
    /// The address that the client connected to; `None` for a Unix socket.
    local_address: Option<SocketAddr>,
    /// The protocol. Never borrowed over a call of anybody else.
    pub protocol: RefCell<Connection>,
    /// Tasks of the streams that wait, by their numbers.
    waiting: RefCell<Vec<(StreamId, Waker)>>,
    driver: RefCell<Option<Waker>>,
    /// Whether nothing more comes from the client, nor goes to it.
    is_broken: Cell<bool>,
    /// Where a block of fields is written before it is sent.
    block: RefCell<Vec<u8>>,
}

impl Http2Connection {
    /// A connection that has just begun.
    pub fn new(settings: Settings, local_address: Option<SocketAddr>) -> Rc<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        Rc::new(Http2Connection {
            local_address,
            number: LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            protocol: RefCell::new(Connection::new(settings)),
            waiting: RefCell::default(),
            driver: RefCell::default(),
            is_broken: Cell::new(false),
            block: RefCell::default(),
        })
    }

    /// The present task is the driver.
    pub fn register_driver(&self, cx: &TaskContext<'_>) {
        register(&mut self.driver.borrow_mut(), cx);
    }

    /// There is something to send, or a stream has ended.
    fn wake_driver(&self) {
        if let Some(driver) = &*self.driver.borrow() {
            driver.wake_by_ref();
        }
    }

    /// There is news of a stream.
    pub fn wake(&self, id: StreamId) {
        let waiting = self.waiting.borrow();
        if let Ok(at) = waiting.binary_search_by_key(&id, |it| it.0) {
            waiting[at].1.wake_by_ref();
        }
    }

    /// Wakes streams that wait to send, in the order in which they may, as many as find room.
    /// Whether there may be more.
    pub fn wake_writers(&self) -> bool {
        /// Streams that have a turn at once: each sends up to a frame or more.
        const AT_ONCE: usize = 4;
        for _ in 0..AT_ONCE {
            let mut protocol = self.protocol.borrow_mut();
            if protocol.unsent().len() >= UNSENT_MAX {
                return false;
            }
            let Some(id) = protocol.next_writable() else {
                return false;
            };
            drop(protocol);
            self.wake(id);
        }
        true
    }

    /// Nothing more comes from the client, nor goes to it.
    pub fn breaks(&self) {
        if !self.is_broken.replace(true) {
            self.protocol.borrow_mut().forget_waiting_blocks();
            for (_, waker) in &*self.waiting.borrow() {
                waker.wake_by_ref();
            }
        }
    }

    /// Whether it [broke](Self::breaks).
    pub fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    fn wait(&self, id: StreamId, cx: &TaskContext<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.binary_search_by_key(&id, |it| it.0) {
            Ok(at) if waiting[at].1.will_wake(cx.waker()) => {}
            Ok(at) => waiting[at].1 = cx.waker().clone(),
            Err(at) => waiting.insert(at, (id, cx.waker().clone())),
        }
    }

    fn forget(&self, id: StreamId) {
        let mut waiting = self.waiting.borrow_mut();
        if let Ok(at) = waiting.binary_search_by_key(&id, |it| it.0) {
            waiting.remove(at);
        }
    }

    /// Gives memory back that it does not need while nothing goes on.
    pub fn shrink(&self) {
        self.protocol.borrow_mut().shrink();
        self.waiting.borrow_mut().shrink_to_fit();
        self.block.take();
    }
}

fn register(place: &mut Option<Waker>, cx: &TaskContext<'_>) {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *place = Some(cx.waker().clone()),
    }
}

/// One stream: a request and its response. Dropping it makes room for another one; a
/// response that is not whole is reset then.
///
/// Whoever reads the request's body gets it as HTTP/1 frames it, and whoever writes the
/// response writes it so: in chunks, with trailers behind them, where the head says so.
#[derive(Debug)]
pub struct Http2Stream {
    connection: Rc<Http2Connection>,
    id: StreamId,
    body: BodyReading,
    /// Whether it is asked to become a tunnel.
    may_tunnel: bool,
    /// How the response's body is framed that is written.
    response: BodyWriting,
    /// What holds the response back, where it has a bandwidth.
    throttle: Option<Box<Throttle>>,
    /// With which it is reset where it is dropped before its end.
    code: ErrorCode,
}

/// How far the body of a request was read.
#[derive(Debug)]
enum BodyReading {
    /// As it comes.
    Content,
    /// In chunks: bytes that frame it and are to be read first, and what is left of the
    /// present chunk.
    Chunks {
        framing: Vec<u8>,
        left: usize,
        is_over: bool,
    },
}

/// How far the body of a response was written.
#[derive(Debug)]
enum BodyWriting {
    /// As it goes.
    Content,
    /// In chunks, which are taken apart. `held` is the beginning of a piece of framing.
    Chunks {
        decoder: ChunkedDecoder,
        held: Vec<u8>,
    },
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.connection.forget(self.id);
        let mut protocol = self.connection.protocol.borrow_mut();
        protocol.release(self.id, self.code);
        drop(protocol);
        self.connection.wake_driver();
    }
}

impl Http2Stream {
    /// The stream of a request whose head says that its body is framed so. `may_tunnel` says
    /// whether it asks for a WebSocket.
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
            body: match framing {
                BodyFraming::Chunked => BodyReading::Chunks {
                    framing: Vec::new(),
                    left: 0,
                    is_over: false,
                },
                _ => BodyReading::Content,
            },
            response: BodyWriting::Content,
            throttle: None,
            code: ErrorCode::Cancel,
        }
    }

    /// The address that the client connected to.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.connection.local_address
    }

    /// Where it is among all.
    pub(super) fn place(&self) -> StreamPlace {
        StreamPlace {
            connection: self.connection.number,
            stream: self.id,
        }
    }

    /// It is reset with this code where it is dropped before its end.
    pub fn fails_with(&mut self, code: ErrorCode) {
        self.code = code;
    }

    /// Whether it was cut off by either side.
    fn is_reset(&self) -> bool {
        let mut protocol = self.connection.protocol.borrow_mut();
        let incoming = protocol.incoming(self.id).map(|it| it.0);
        let is_whole = matches!(incoming, Some(Direction::Open | Direction::Ended));
        self.connection.is_broken() || !is_whole
    }

    fn wait<T>(&self, cx: &TaskContext<'_>) -> Poll<T> {
        self.connection.wait(self.id, cx);
        Poll::Pending
    }

    /// Sends a head that is text of HTTP/1.
    pub(super) fn send_head(&mut self, text: &[u8]) {
        let mut block = self.connection.block.borrow_mut();
        block.clear();
        let head = if self.may_tunnel {
            tunnel_block(&mut block, text)
        } else {
            head_block(&mut block, text)
        };
        if head.is_chunked {
            self.response = BodyWriting::Chunks {
                decoder: ChunkedDecoder::default(),
                held: Vec::new(),
            };
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

    /// Sends a head in text, of which so many bytes are at the front of `bytes`, and what
    /// follows it.
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
            // The head is through.
            Poll::Pending => 0,
        };
        Poll::Ready(Ok(head_len + written))
    }

    pub(super) fn can_splice(&self) -> bool {
        false
    }

    pub(super) fn poll_read_ready(&self, cx: &TaskContext<'_>) -> Poll<()> {
        let has_framing = match &self.body {
            BodyReading::Content => false,
            BodyReading::Chunks { framing, .. } => !framing.is_empty(),
        };
        let mut protocol = self.connection.protocol.borrow_mut();
        let is_open = matches!(protocol.incoming(self.id), Some((Direction::Open, _)));
        let is_ready = has_framing || !is_open || protocol.readable_len(self.id) > 0;
        drop(protocol);
        if is_ready || self.connection.is_broken() {
            Poll::Ready(())
        } else {
            self.wait(cx)
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
            // The client is told that it may send more.
            if has_news {
                self.connection.wake_driver();
            }
            return Poll::Ready(Ok(len));
        }
        match incoming {
            _ if room.is_empty() => Poll::Ready(Ok(0)),
            Some(Direction::Ended) => Poll::Ready(Ok(0)),
            Some(Direction::Open) if !self.connection.is_broken() => self.wait(cx),
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

    pub(super) fn poll_write_ready(&mut self, cx: &TaskContext<'_>) -> Poll<()> {
        if let Some(throttle) = self.throttle.as_mut().filter(|it| it.is_waiting()) {
            ready!(throttle.poll_booked(cx, 1));
        }
        let mut protocol = self.connection.protocol.borrow_mut();
        let room = room_of(&protocol);
        let can_send = protocol.can_send(self.id, room);
        drop(protocol);
        if can_send || self.connection.is_broken() {
            Poll::Ready(())
        } else {
            self.wait(cx)
        }
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
            None => self.wait(cx),
        }
    }

    pub(super) fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        let len = match &mut self.throttle {
            None => bytes.len(),
            Some(throttle) => throttle.booked_now(bytes.len())?,
        };
        self.write(&bytes[..len], follow_of_part(follow, bytes, len))
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
        let mut protocol = self.connection.protocol.borrow_mut();
        let len = match &mut self.response {
            BodyWriting::Content => {
                let (ends, room) = (follow == Follow::Close, room_of(&protocol));
                protocol.send_content(self.id, bytes, ends, room)
            }
            BodyWriting::Chunks { decoder, held } => {
                let block = &mut self.connection.block.borrow_mut();
                let before = held.len();
                let joined;
                let input = if held.is_empty() {
                    bytes
                } else {
                    joined = [&std::mem::take(held)[..], bytes].concat();
                    &joined
                };
                match write_chunks(decoder, &mut protocol, self.id, input, block) {
                    // What is left begins a piece, of which the caller has no more now.
                    Ok(taken) if decoder.chunk_left() == 0 && !decoder.is_done() => {
                        held.extend_from_slice(&input[taken..]);
                        bytes.len()
                    }
                    Ok(taken) => taken.saturating_sub(before),
                    Err(_) => return Some(Err(io::ErrorKind::InvalidData.into())),
                }
            }
        };
        drop(protocol);
        if len == 0 && !bytes.is_empty() {
            return None;
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
            self.wait(cx)
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as other carriers have it")]
    pub(super) fn close_notify(&self) -> io::Result<()> {
        self.end();
        Ok(())
    }

    /// Has the response held back.
    pub(super) fn set_throttle(&mut self, throttle: Throttle) {
        self.throttle = Some(Box::new(throttle));
    }

    /// Ends what holds the response back.
    pub(super) fn take_throttle(&mut self) -> Option<Throttle> {
        self.throttle.take().map(|it| *it)
    }

    /// What holds the response back, where it has a bandwidth.
    pub(super) fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_deref()
    }
}

/// Bytes that may be put behind those that wait to be sent.
fn room_of(protocol: &Connection) -> usize {
    UNSENT_MAX.saturating_sub(protocol.unsent().len())
}

/// Sends what `bytes` have of a chunked body, as far as windows and memory allow. Gives how
/// many of them were taken. A piece of framing is taken as a whole, and comes so.
fn write_chunks(
    decoder: &mut ChunkedDecoder,
    protocol: &mut Connection,
    id: StreamId,
    bytes: &[u8],
    block: &mut Vec<u8>,
) -> Result<usize, BodyError> {
    let mut taken = 0;
    while taken < bytes.len() {
        let rest = &bytes[taken..];
        let left = usize::try_from(decoder.chunk_left()).unwrap_or(usize::MAX);
        if left > 0 {
            let content = &rest[..left.min(rest.len())];
            let room = room_of(protocol);
            let len = protocol.send_content(id, content, false, room);
            if len == 0 {
                break;
            }
            decoder.piece(&content[..len])?;
            taken += len;
            continue;
        }
        match decoder.piece(rest)? {
            Piece::Framing { len, .. } | Piece::Data { len } => taken += len,
            Piece::End { len } => {
                block.clear();
                trailer_block(block, &rest[..len]);
                if block.is_empty() {
                    protocol.end(id);
                } else {
                    protocol.send_fields(id, block, true);
                }
                taken += len;
                break;
            }
            Piece::NeedMore => break,
        }
    }
    Ok(taken)
}

/// What follows a part of `bytes`: their rest, unless it is all of them.
fn follow_of_part(follow: Follow, bytes: &[u8], len: usize) -> Follow {
    if len < bytes.len() {
        Follow::Anything
    } else {
        follow
    }
}

impl BodyReading {
    /// Reads what is there into `room`: how many bytes.
    fn read(&mut self, protocol: &mut Connection, id: StreamId, room: &mut [u8]) -> usize {
        let BodyReading::Chunks {
            framing,
            left,
            is_over,
        } = self
        else {
            return protocol.read_content(id, room);
        };
        let mut at = 0;
        while at < room.len() {
            if !framing.is_empty() {
                let len = framing.len().min(room.len() - at);
                room[at..at + len].copy_from_slice(&framing[..len]);
                framing.drain(..len);
                at += len;
            } else if *left > 0 {
                let most = (*left).min(room.len() - at);
                let len = protocol.read_content(id, &mut room[at..at + most]);
                if len == 0 {
                    // Cut off within.
                    break;
                }
                at += len;
                *left -= len;
                if *left == 0 {
                    framing.extend_from_slice(b"\r\n");
                }
            } else if !begin_chunk(protocol, id, framing, left, is_over) {
                break;
            }
        }
        at
    }
}

/// Begins the next chunk, or the end of a chunked body. `false` while there is none.
fn begin_chunk(
    protocol: &mut Connection,
    id: StreamId,
    framing: &mut Vec<u8>,
    left: &mut usize,
    is_over: &mut bool,
) -> bool {
    *left = protocol.readable_len(id);
    if *left > 0 {
        framing.extend_from_slice(format!("{left:x}\r\n").as_bytes());
        return true;
    }
    match protocol.incoming(id) {
        Some((Direction::Ended, trailers)) if !*is_over => {
            *is_over = true;
            framing.extend_from_slice(b"0\r\n");
            framing.extend_from_slice(trailers);
            framing.extend_from_slice(b"\r\n");
            true
        }
        _ => false,
    }
}
