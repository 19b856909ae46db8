//! Connections of HTTP/2 to an endpoint, which the exchanges of a worker share.
//!
//! An exchange has a stream of one of them. The stream looks like a connection of HTTP/1 that
//! carries only this exchange, which writes its request as text and reads the text of its
//! response. Heads and bodies are translated here, once for each message.

mod call;
mod pool;
mod stream;
mod web;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_proto::grpc::Dialect;
use evenkeel_proto::http2::client::{Client, Connection, Event, Response};
use evenkeel_proto::http2::{Direction, ErrorCode, Fatal, Settings, StreamId};
use evenkeel_proto::{BodyError, BodyFraming, ResponseError, ResponseHead};

pub use self::call::Call;
pub use self::pool::{Http2Pool, Opening};
pub use self::stream::StreamRequest;
use self::web::{Length, translate_head};
use crate::http2::SharedConnection;
use crate::net::buffer::Buffer;
use crate::net::stream::Stream;

/// Most bytes of unread heads: an endpoint may send interim ones (1xx) without end.
const UNREAD_MAX: usize = 64 * 1024;

/// Bytes that are read of a connection before others have a turn.
const READ_PER_TURN: usize = 256 * 1024;

/// A connection to an endpoint, as far as exchanges use it.
#[derive(Debug)]
pub struct Http2Connection {
    shared: SharedConnection<Client>,
    local_address: Option<SocketAddr>,
    /// Received heads and faults of streams, by their numbers.
    arrived: RefCell<Vec<(StreamId, Arrived)>>,
    /// Whether it takes no more exchanges.
    is_retired: Cell<bool>,
    /// Whether the endpoint has ended it, and there was no fault.
    ends_well: Cell<bool>,
    /// Whether a response has begun on it.
    has_served: Cell<bool>,
    /// How often a part of a response has come.
    heard: Cell<u64>,
    /// How long it may be idle.
    pub idle_timeout: Cell<Duration>,
    /// Why it broke, where the endpoint is to blame.
    fault: Cell<Option<&'static str>>,
}

/// The received part of a stream, without its content.
#[derive(Debug, Default)]
struct Arrived {
    /// Text of heads, of which the first `read` bytes were read.
    text: Vec<u8>,
    read: usize,
    /// How the body is framed, once the head of the response has come.
    framing: Option<BodyFraming>,
    /// Why there is no response.
    fault: Option<Fault>,
    /// The call that it is, if it is one.
    call: Option<Rc<Call>>,
}

/// Why a stream has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The endpoint has done nothing for the request (RFC 9113 §8.7).
    Untouched,
    /// The same, because it has ended the connection, which had served others.
    Ended,
    /// It has sent a malformed head.
    Malformed(ResponseError),
    /// The client's body is malformed.
    Request(BodyError),
    /// The endpoint has cut it off.
    Cut(ErrorCode),
}

/// How far an attempt to go on has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing can be done now.
    Blocked,
    /// Other tasks get their turn.
    Yield,
}

impl Http2Connection {
    /// One that was just opened from this address.
    pub fn new(local_address: Option<SocketAddr>, idle_timeout: Duration) -> Rc<Self> {
        Rc::new(Http2Connection {
            shared: SharedConnection::new(Connection::new(Settings::OF_CLIENT)),
            local_address,
            arrived: RefCell::default(),
            is_retired: Cell::new(false),
            ends_well: Cell::new(false),
            has_served: Cell::new(false),
            heard: Cell::new(0),
            idle_timeout: Cell::new(idle_timeout),
            fault: Cell::new(None),
        })
    }

    /// Takes no more exchanges. The connection is closed once it has none.
    pub fn retire(&self) {
        if !self.is_retired.replace(true) {
            self.wake_driver();
        }
    }

    /// Whether it takes no more exchanges.
    pub fn is_retired(&self) -> bool {
        self.is_retired.get() || self.is_broken()
    }

    /// How often a part of a response has come.
    pub fn heard(&self) -> u64 {
        self.heard.get()
    }

    /// Why it broke, where the endpoint is to blame.
    pub fn fault(&self) -> Option<&'static str> {
        self.fault.get()
    }

    /// The connection has become useless, for this reason.
    pub fn fails(&self, why: &'static str) {
        if self.breaks() {
            self.fault.set(Some(why));
        }
    }

    /// Sends unsent bytes; whether some were sent.
    pub fn flush(&self, cx: &Context<'_>, stream: &mut Stream) -> bool {
        self.shared.flush(cx, stream).unwrap_or_else(|_| {
            // Bytes that came before may still be read.
            self.is_retired.set(true);
            false
        })
    }

    /// Reads bytes that have come, and tells the streams.
    pub fn take(&self, cx: &Context<'_>, stream: &mut Stream, now_ms: u64) -> Step {
        let mut read = 0;
        while read < READ_PER_TURN {
            if stream.poll_read_ready(cx).is_pending() {
                return Step::Blocked;
            }
            let mut buffer = Buffer::large();
            match stream.poll_read(cx, buffer.room()) {
                Poll::Ready(Ok(len)) if len > 0 => {
                    read += len;
                    buffer.fill(len);
                    if !self.protocol.borrow().has_settings()
                        && buffer.filled().starts_with(b"HTTP/1")
                    {
                        self.fails("it answers in HTTP/1.1, not in HTTP/2");
                        return Step::Blocked;
                    }
                    if let Err(fatal) = self.take_bytes(buffer.filled(), now_ms) {
                        self.fails(fatal.why);
                        return Step::Blocked;
                    }
                }
                Poll::Ready(_) => {
                    self.breaks();
                    return Step::Blocked;
                }
                Poll::Pending => return Step::Blocked,
            }
        }
        Step::Yield
    }

    fn take_bytes(&self, bytes: &[u8], now_ms: u64) -> Result<(), Fatal> {
        let mut input = bytes;
        let mut spare: Option<Box<ResponseHead>> = None;
        loop {
            let event = {
                let mut room = || (Vec::new(), spare.take().unwrap_or_default());
                let mut protocol = self.protocol.borrow_mut();
                protocol.next(&mut input, now_ms, &mut room)?
            };
            let Some(event) = event else {
                return Ok(());
            };
            if matches!(
                event,
                Event::Head(..) | Event::Interim(..) | Event::Readable(_)
            ) {
                self.heard.update(|it| it.wrapping_add(1));
            }
            match event {
                Event::Head(id, response) => {
                    self.begins(id, &response);
                    spare = Some(response.head);
                }
                Event::Interim(id, Response { bytes, head }) => {
                    self.arrives(id, &bytes, None);
                    spare = Some(head);
                }
                Event::Malformed(id, error) => self.has_failed(id, Fault::Malformed(error)),
                Event::Refused(id) if self.ends_well.get() && self.has_served.get() => {
                    self.has_failed(id, Fault::Ended);
                }
                Event::Refused(id) => self.has_failed(id, Fault::Untouched),
                Event::Reset(id, code) => {
                    if code == ErrorCode::EnhanceYourCalm {
                        // Another connection may still serve the exchange.
                        self.is_retired.set(true);
                    }
                    self.has_failed(id, Fault::Cut(code));
                }
                Event::Readable(id) | Event::Stopped(id, _) => self.wake(id),
                // Streams are woken in their order, once the driver knows what fits.
                Event::Writable | Event::Capacity | Event::Pong(_) => {}
                Event::GoAway(code) => {
                    self.is_retired.set(true);
                    self.ends_well.set(code == ErrorCode::NoError);
                    if code != ErrorCode::NoError {
                        self.fault.set(Some(end_by(code)));
                    }
                }
            }
        }
    }

    /// The head of a response has come.
    fn begins(&self, id: StreamId, response: &Response) {
        let Response { bytes, head } = response;
        self.has_served.set(true);
        let call = self.with_arrived(id, |it| it.call.clone()).flatten();
        let is_whole = self.incoming(id) != Some(Direction::Open);
        if let Some(call) = &call {
            call.note_head(head, bytes, is_whole);
        }
        let Some(call) = call.filter(|it| it.is_answered()) else {
            return self.arrives(id, bytes, Some(head.wire.framing));
        };
        let mut text = Vec::with_capacity(bytes.len() + 32);
        // Trailers follow, whatever length the head has.
        let has_length = match head.wire.framing {
            BodyFraming::Length { .. } => true,
            BodyFraming::None => !matches!(head.status, 204 | 304),
            BodyFraming::Chunked | BodyFraming::UntilClose => false,
        };
        let is_framed_anew = has_length && !is_whole;
        let (length, framing) = if is_framed_anew {
            (Length::Dropped, BodyFraming::Chunked)
        } else {
            (Length::Kept, head.wire.framing)
        };
        translate_head(&mut text, bytes, Dialect::Grpc, call.dialect, length);
        if is_framed_anew {
            text.truncate(text.len() - b"\r\n".len());
            text.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        }
        self.arrives(id, &text, Some(framing));
    }

    /// A head has come for a stream.
    fn arrives(&self, id: StreamId, text: &[u8], framing: Option<BodyFraming>) {
        self.with_arrived(id, |it| {
            if it.text.len() - it.read > UNREAD_MAX {
                it.fault = Some(Fault::Malformed(ResponseError::HeadTooLarge));
                return;
            }
            it.text.drain(..std::mem::take(&mut it.read));
            it.text.extend_from_slice(text);
            it.framing = framing;
        });
        self.wake(id);
    }

    fn has_failed(&self, id: StreamId, fault: Fault) {
        self.with_arrived(id, |it| it.fault = Some(fault));
        self.wake(id);
    }

    /// Changes the received part of a stream, unless that is gone.
    fn with_arrived<T>(&self, id: StreamId, change: impl FnOnce(&mut Arrived) -> T) -> Option<T> {
        let mut arrived = self.arrived.borrow_mut();
        let at = arrived.binary_search_by_key(&id, |it| it.0).ok()?;
        Some(change(&mut arrived[at].1))
    }

    /// Whether it has no exchange.
    pub fn is_idle(&self) -> bool {
        self.protocol.borrow().in_flight() == 0
    }
}

impl Deref for Http2Connection {
    type Target = SharedConnection<Client>;

    fn deref(&self) -> &SharedConnection<Client> {
        &self.shared
    }
}

impl Fault {
    /// Why a read of a stream failed, where the connection goes on.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Untouched | Fault::Ended => out.write_str("it has not processed the request"),
            Fault::Malformed(error) => error.fmt(out),
            Fault::Request(error) => error.fmt(out),
            Fault::Cut(code) => write!(out, "it has reset the stream: {}", code.name()),
        }
    }
}

impl std::error::Error for Fault {}

/// Why a connection is lost that an endpoint ends with this code.
fn end_by(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::EnhanceYourCalm => "it reports excessive load (ENHANCE_YOUR_CALM)",
        ErrorCode::Protocol => "it reports a protocol error (PROTOCOL_ERROR)",
        ErrorCode::Internal => "it reports an internal error (INTERNAL_ERROR)",
        ErrorCode::Compression => "it can't decode headers (COMPRESSION_ERROR)",
        ErrorCode::InadequateSecurity => "its TLS is not good enough (INADEQUATE_SECURITY)",
        ErrorCode::Http11Required => "it wants HTTP/1.1 (HTTP_1_1_REQUIRED)",
        _ => "it ends the connection with an error",
    }
}
