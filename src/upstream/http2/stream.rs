//! A stream of a connection, as an exchange sees it: text of HTTP/1 both ways.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_proto::grpc::Dialect;
use evenkeel_proto::http2::request::{Form, Trailers, head_block};
use evenkeel_proto::http2::{Direction, ErrorCode, StreamId};
use evenkeel_proto::{BodyError, BodyFraming, Scheme};

use super::web::{Length, TextWriting, WebReading, translate_head};
use super::{Arrived, Call, Fault, Http2Connection};
use crate::http2::{BodyReading, BodyWriting, room_of};
use crate::net::stream::{Carrying, Peeked, Stream};

/// The facts on a request before its head is written.
#[derive(Debug, Clone)]
pub struct StreamRequest {
    /// The scheme of the requested URL.
    pub scheme: Scheme,
    /// How its body is framed.
    pub framing: BodyFraming,
    /// The call that it is, if it is one.
    pub call: Option<Rc<Call>>,
}

/// Before a head is written a stream has no number.
const UNOPENED: StreamId = 0;

/// One exchange on a connection.
#[derive(Debug)]
struct EndpointStream {
    connection: Rc<Http2Connection>,
    asking: StreamRequest,
    id: Cell<StreamId>,
    request: RequestWriting,
    /// Once the head of the response was read.
    response: Option<ResponseReading>,
}

/// How far the body of a request was written.
#[derive(Debug)]
enum RequestWriting {
    /// As HTTP has it.
    Plain(BodyWriting),
    /// It comes in base64.
    Text(TextWriting),
}

/// How far the body of a response was read.
#[derive(Debug)]
enum ResponseReading {
    /// As HTTP has it.
    Plain(BodyReading),
    /// As gRPC-Web has it.
    Web(WebReading),
}

impl Http2Connection {
    /// A stream for an exchange. The stream is opened when the head of its request is written.
    pub fn stream(self: &Rc<Self>, asking: StreamRequest) -> Stream {
        Stream::carried(Box::new(EndpointStream {
            connection: self.clone(),
            request: asking.writing(),
            asking,
            id: Cell::new(UNOPENED),
            response: None,
        }))
    }
}

impl StreamRequest {
    fn writing(&self) -> RequestWriting {
        let dialect = self.call.as_ref().map(|it| it.dialect);
        if dialect == Some(Dialect::WebText) && self.framing != BodyFraming::None {
            return RequestWriting::Text(TextWriting::new(self.framing));
        }
        RequestWriting::Plain(match self.framing {
            BodyFraming::None => BodyWriting::Counted(0),
            BodyFraming::Length { bytes } => BodyWriting::Counted(bytes),
            BodyFraming::Chunked => BodyWriting::in_chunks(),
            BodyFraming::UntilClose => BodyWriting::Content,
        })
    }
}

impl Drop for EndpointStream {
    fn drop(&mut self) {
        let (id, connection) = (self.id.get(), &self.connection);
        if id == UNOPENED {
            return;
        }
        connection.forget(id);
        let mut arrived = connection.arrived.borrow_mut();
        if let Ok(at) = arrived.binary_search_by_key(&id, |it| it.0) {
            arrived.remove(at);
        }
        let mut protocol = connection.protocol.borrow_mut();
        protocol.release(id, ErrorCode::Cancel);
        drop(protocol);
        connection.wake_driver();
    }
}

impl EndpointStream {
    /// Opens the stream with the head at the front of `text`. Gives the length of that;
    /// `None` where the connection takes no stream.
    fn open(&self, text: &[u8]) -> Option<usize> {
        let end = memchr::memmem::find(text, b"\r\n\r\n")? + b"\r\n\r\n".len();
        if self.connection.is_retired() {
            return None;
        }
        if let Some(call) = &self.asking.call {
            call.begin();
        }
        let block = &mut *self.connection.block.borrow_mut();
        block.clear();
        let form = Form {
            scheme: self.asking.scheme,
            trailers: Trailers::Accepted,
            protocol: None,
        };
        let translated;
        let mut head = &text[..end];
        if let Some(dialect @ (Dialect::Web | Dialect::WebText)) = self.dialect() {
            let mut own = Vec::with_capacity(end);
            let length = match dialect {
                Dialect::WebText => Length::Dropped,
                _ => Length::Kept,
            };
            translate_head(&mut own, head, dialect, Dialect::Grpc, length);
            translated = own;
            head = &translated;
        }
        let method = head_block(block, head, form);
        let ends = matches!(self.request, RequestWriting::Plain(BodyWriting::Counted(0)));
        let id = {
            let mut protocol = self.connection.protocol.borrow_mut();
            protocol.open(method, block, ends)?
        };
        self.id.set(id);
        let mut arrived = self.connection.arrived.borrow_mut();
        let call = self.asking.call.clone();
        arrived.push((
            id,
            Arrived {
                call,
                ..Arrived::default()
            },
        ));
        Some(end)
    }

    /// Reads unread heads into `room`: how many bytes. Gives the framing of the body once no head
    /// is left.
    fn read_heads(&self, room: &mut [u8]) -> (usize, Option<BodyFraming>) {
        let read = self.connection.with_arrived(self.id.get(), |arrived| {
            let unread = &arrived.text[arrived.read..];
            let len = unread.len().min(room.len());
            room[..len].copy_from_slice(&unread[..len]);
            arrived.read += len;
            if arrived.read < arrived.text.len() {
                return (len, None);
            }
            arrived.text = Vec::new();
            arrived.read = 0;
            (len, arrived.framing)
        });
        read.unwrap_or_default()
    }

    fn dialect(&self) -> Option<Dialect> {
        self.asking.call.as_ref().map(|it| it.dialect)
    }

    /// How a body of this framing is read.
    fn reading(&self, framing: BodyFraming) -> ResponseReading {
        let call = self.asking.call.as_ref();
        match call.filter(|it| it.is_answered()).map(|it| it.dialect) {
            // Other dialects have no trailers.
            Some(dialect @ (Dialect::Web | Dialect::WebText))
                if framing == BodyFraming::Chunked =>
            {
                ResponseReading::Web(WebReading::new(dialect))
            }
            _ => ResponseReading::Plain(BodyReading::of(framing)),
        }
    }

    /// Writes a part of the body: how much of it was taken.
    fn write_body(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let (id, connection) = (self.id.get(), &self.connection);
        let writing = match &mut self.request {
            RequestWriting::Plain(writing) => {
                return writing.write(connection, id, bytes, false);
            }
            RequestWriting::Text(writing) => writing,
        };
        let mut protocol = connection.protocol.borrow_mut();
        let room = room_of(&protocol);
        if !writing.flush(&mut protocol, id, room) {
            return Ok(0);
        }
        let taken = writing.take(bytes)?;
        let room = room_of(&protocol);
        if writing.flush(&mut protocol, id, room) {
            return Ok(taken);
        }
        Ok(writing.keep_back_one(taken))
    }

    /// Whether all of the response was read.
    fn is_read(&self) -> bool {
        match &self.response {
            None => false,
            Some(ResponseReading::Plain(body)) => body.is_over(),
            Some(ResponseReading::Web(body)) => body.is_over(),
        }
    }

    /// The error of a stream that was cut off.
    fn error(&self) -> io::Error {
        let fault = self.connection.with_arrived(self.id.get(), |it| it.fault);
        match fault.flatten() {
            Some(fault) => io::Error::other(fault),
            None => io::ErrorKind::ConnectionReset.into(),
        }
    }

    fn has_text(&self) -> bool {
        let has_text = |it: &mut Arrived| it.read < it.text.len() || it.fault.is_some();
        let has_text = self.connection.with_arrived(self.id.get(), has_text);
        has_text.unwrap_or(false)
    }
}

impl Carrying for EndpointStream {
    fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        match self.peek() {
            Peeked::Nothing => self.connection.wait(self.id.get(), cx),
            Peeked::Data | Peeked::End | Peeked::Broken => Poll::Ready(()),
        }
    }

    fn peek(&self) -> Peeked {
        let id = self.id.get();
        let has_data = match &self.response {
            None => self.has_text(),
            Some(body) => {
                let has_own = match body {
                    ResponseReading::Plain(body) => body.has_framing(),
                    ResponseReading::Web(body) => body.has_more(),
                };
                has_own || self.connection.protocol.borrow_mut().readable_len(id) > 0
            }
        };
        match self.connection.incoming(id) {
            _ if has_data => Peeked::Data,
            Some(Direction::Open) => Peeked::Nothing,
            // The end of a chunked body is still to be read.
            Some(_) if !self.is_read() => Peeked::Data,
            Some(_) => Peeked::End,
            None => Peeked::Broken,
        }
    }

    fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let id = self.id.get();
        let mut len = 0;
        if self.response.is_none() {
            let (read, framing) = self.read_heads(room);
            len = read;
            self.response = framing.map(|it| self.reading(it));
        }
        let mut has_news = false;
        if let Some(body) = &mut self.response {
            let mut protocol = self.connection.protocol.borrow_mut();
            let room = &mut room[len..];
            len += match body {
                ResponseReading::Plain(body) => body.read(&mut protocol, id, room),
                ResponseReading::Web(body) => body.read(&mut protocol, id, room),
            };
            has_news = !protocol.unsent().is_empty();
            if let Some(call) = &self.asking.call
                && let Some((Direction::Ended, lines)) = protocol.incoming(id)
            {
                call.note_trailers(lines);
            }
        }
        if has_news {
            // A window update lets the endpoint send more.
            self.connection.wake_driver();
        }
        if len > 0 || room.is_empty() {
            return Poll::Ready(Ok(len));
        }
        match self.connection.incoming(id) {
            Some(Direction::Open) if !self.has_text() => self.connection.wait(id, cx),
            Some(Direction::Ended) if self.response.is_some() => Poll::Ready(Ok(0)),
            _ => Poll::Ready(Err(self.error())),
        }
    }

    fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        match self.id.get() {
            UNOPENED => Poll::Ready(()),
            id => self.connection.poll_write_ready(id, cx),
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        let head_len = match self.id.get() {
            UNOPENED => match self.open(bytes) {
                Some(len) => len,
                None => return Some(Err(io::ErrorKind::NotConnected.into())),
            },
            _ => 0,
        };
        let id = self.id.get();
        let outgoing = self.connection.protocol.borrow_mut().outgoing(id);
        let is_over = matches!(outgoing, None | Some(Direction::Reset(_)));
        if is_over || self.connection.is_broken() {
            return Some(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let content = &bytes[head_len..];
        let len = match self.write_body(content) {
            Ok(len) => len,
            Err(error) => {
                // The reader of the response gets the fault.
                self.connection.has_failed(id, Fault::Request(error));
                return Some(Ok(bytes.len()));
            }
        };
        self.connection.wake_driver();
        match head_len + len {
            0 if !bytes.is_empty() => None,
            len => Some(Ok(len)),
        }
    }

    fn poll_write(&mut self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.try_write(bytes) {
            Some(written) => Poll::Ready(written),
            None => self.connection.wait(self.id.get(), cx),
        }
    }

    fn end(&mut self) {
        self.connection.protocol.borrow_mut().end(self.id.get());
        self.connection.wake_driver();
    }

    fn poll_broken(&self, cx: &Context<'_>) -> Poll<()> {
        let id = self.id.get();
        if id != UNOPENED && self.connection.incoming(id).is_none() {
            Poll::Ready(())
        } else {
            self.connection.wait(id, cx)
        }
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.connection.local_address
    }
}
