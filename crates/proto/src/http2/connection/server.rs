//! A connection that a client has opened.

use super::super::request::{HeadFault, RequestExtras, RequestReader};
use super::super::stream::Stream;
use super::role::Common;
use super::*;
use crate::error::RequestError;
use crate::field::Field;
use crate::head::RequestHead;

/// The payload of the PING by which a peer shows that it knows of the end.
const SHUTDOWN_PING: &[u8; 8] = b"evenkeel";

/// A connection as its server has it.
pub type Connection = Core<Server>;

/// The state that only a server has.
#[derive(Debug, Default)]
pub struct Server {
    reader: RequestReader,
    /// Whether the end was announced to the peer.
    is_leaving: bool,
    /// Blocks that wait for memory, in their order.
    waiting: VecDeque<WaitingBlock>,
    /// Streams whose heads are among them.
    deferred: usize,
}

/// A block of fields that was not decoded yet, as it came.
#[derive(Debug)]
struct WaitingBlock {
    stream: StreamId,
    ends: bool,
    bytes: Vec<u8>,
}

/// Bytes of decoded heads that a connection may always have.
const HELD_MIN: u64 = 64 * 1024;
/// Bytes of them for each byte that came.
const HELD_PER_BYTE: u64 = 3;
/// A head of this length is not left in a buffer that is longer.
const LONG_HEAD: usize = 1024;

/// A request that has begun.
#[derive(Debug)]
pub struct Request {
    /// Its head, as text of HTTP/1.
    pub bytes: Vec<u8>,
    /// Its head.
    pub head: Box<RequestHead>,
    /// The wishes of the request beyond HTTP/1.
    pub asked: RequestExtras,
}

/// An event from received bytes.
#[derive(Debug)]
pub enum Event {
    /// A request.
    Request(StreamId, Request),
    /// A request whose head is refused: it is to be answered.
    Refused(StreamId, RequestError),
    /// Content of a request has come, or its end.
    Readable(StreamId),
    /// A request was cut off, by either side.
    Reset(StreamId, ErrorCode),
    /// More may be sent: see [`Connection::next_writable`].
    Writable,
    /// The peer opens no more streams.
    GoAway,
}

impl From<Common> for Event {
    fn from(event: Common) -> Self {
        match event {
            Common::Readable(id) => Event::Readable(id),
            Common::Reset(id, code) => Event::Reset(id, code),
            Common::Writable => Event::Writable,
        }
    }
}

impl Connection {
    /// A new connection: its first bytes are among the unsent ones.
    pub fn new(settings: Settings) -> Self {
        let resets = Budget::new(RESETS.0, RESETS.1);
        let mut it = Core::begin(Server::default(), settings, Some(resets));
        it.preface_left = PREFACE.len();
        it.push_settings(&[
            Setting::MaxConcurrentStreams(settings.max_streams),
            Setting::EnableConnectProtocol(true),
        ]);
        it
    }

    /// Announces the end: the peer opens no more streams.
    ///
    /// Streams on their way are still served. Once the peer shows that it knows, the connection
    /// [shuts down](Self::shut_down) by itself (RFC 9113 §6.8).
    pub fn begin_shutdown(&mut self) {
        if self.role.is_leaving || self.goes_away.is_some() {
            return;
        }
        self.role.is_leaving = true;
        let payload = [WINDOW_MAX, ErrorCode::NoError.number()].map(u32::to_be_bytes);
        self.push_frame(FrameKind::GoAway, 0, 0, payload.as_flattened());
        self.push_frame(FrameKind::Ping, 0, 0, SHUTDOWN_PING);
    }

    /// Tells the peer how many streams it may have from now on, at most as many as the
    /// [settings](Settings::max_streams) say. Streams that it opens before it knows are served.
    pub fn advertise(&mut self, streams: u32) {
        // The peer acknowledges the frame.
        self.idle_frames.earn(1);
        let mut payload = Vec::new();
        Setting::MaxConcurrentStreams(streams.min(self.settings.max_streams)).push(&mut payload);
        self.push_frame(FrameKind::Settings, 0, 0, &payload);
    }

    /// Whether the end was announced to the peer.
    pub fn is_leaving(&self) -> bool {
        self.role.is_leaving
    }

    /// Whether the peer may open this stream, and then does so. Otherwise the stream is refused.
    fn opens(&mut self, id: StreamId) -> Result<bool, Fatal> {
        self.last_stream = id;
        let is_beyond = self.goes_away.is_some_and(|last| id > last);
        if !is_beyond && self.streams.len() < self.settings.max_streams as usize {
            return Ok(true);
        }
        if !is_beyond {
            self.spend_reset()?;
        }
        self.push_reset(id, ErrorCode::RefusedStream);
        Ok(false)
    }

    /// Whether blocks wait until an exchange has ended. [`next`](Self::next) looks at them again.
    pub fn has_waiting_blocks(&self) -> bool {
        !self.role.waiting.is_empty()
    }

    /// Forgets waiting blocks: no request comes of them.
    pub fn forget_waiting_blocks(&mut self) {
        for block in std::mem::take(&mut self.role.waiting) {
            let stream = self.streams.get_mut(block.stream);
            if stream.is_some_and(|it| it.is_deferred) {
                self.streams.remove(block.stream);
            }
        }
        self.role.deferred = 0;
    }

    /// Whether another head may be decoded. A client can have much decoded from few bytes, by
    /// fields of the table. So the bytes held are bounded by the bytes that came.
    fn may_decode(&self) -> bool {
        self.held as u64 <= HELD_MIN + HELD_PER_BYTE * self.received
    }

    /// Takes a waiting block.
    fn take_waiting(
        &mut self,
        block: WaitingBlock,
        room: &mut impl FnMut() -> Room<Server>,
    ) -> FrameResult<Server> {
        let (id, ends) = (block.stream, block.ends);
        let is_deferred = |it: &mut Stream| it.is_deferred;
        match self.streams.get_mut(id).map(is_deferred) {
            None => self.skip_block(&block.bytes).map(|()| None),
            Some(false) => self.take_block_now(id, ends, &block.bytes, room),
            Some(true) => {
                self.role.deferred -= 1;
                let Some(stream) = self.streams.remove(id) else {
                    return Ok(None);
                };
                if matches!(stream.incoming, Direction::Reset(_)) {
                    self.credit(0, stream.unread().len() as u32);
                    return self.skip_block(&block.bytes).map(|()| None);
                }
                self.take_request(id, ends, &block.bytes, Some(stream), room)
                    .map(Some)
            }
        }
    }

    fn take_request(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
        begun: Option<Stream>,
        room: &mut impl FnMut() -> Room<Server>,
    ) -> Result<Event, Fatal> {
        let (mut bytes, mut head) = room();
        let block = self.decoder.block(block);
        let max = self.settings.max_head as usize;
        let nonce = u128::from(self.now_ms) << 32 | u128::from(id);
        let reader = &mut self.role.reader;
        let read = reader.read(block, &mut bytes, &mut head, max, ends, nonce);
        let refused = match read {
            Ok(_) => None,
            Err(HeadFault::Refused(error)) => Some(error),
            Err(HeadFault::Decoding(_)) => return Err(undecodable()),
            Err(HeadFault::Malformed) => {
                self.spend_reset()?;
                self.push_reset(id, ErrorCode::Protocol);
                let content = begun.map_or(0, |it| it.unread().len());
                self.credit(0, content as u32);
                return Ok(Event::Reset(id, ErrorCode::Protocol));
            }
        };
        self.idle_frames.earn(FRAMES_EARNED);
        let mut stream = match begun {
            Some(begun) => begun,
            None => self.new_stream(),
        };
        stream.is_deferred = false;
        if ends {
            stream.incoming = Direction::Ended;
        }
        let is_tunnel = read.is_ok_and(|it| it.opens_websocket);
        if refused.is_none() && !is_tunnel {
            stream.expect(head.wire.framing);
        }
        stream.priority = Priority::of(&head, &bytes);
        if bytes.len() > LONG_HEAD {
            bytes.shrink_to_fit();
        }
        stream.held = bytes.len() + head.fields.len() * size_of::<Field>();
        self.held += stream.held;
        let has_right_length = stream.holds_to_length();
        self.streams.insert(id, stream);
        if !has_right_length {
            let reset = self.reset_stream(id, ErrorCode::Protocol)?;
            self.release(id, ErrorCode::Protocol);
            return Ok(reset.unwrap_or(Event::Reset(id, ErrorCode::Protocol)));
        }
        Ok(match (read, refused) {
            (Ok(asked), None) => Event::Request(id, Request { bytes, head, asked }),
            (_, error) => Event::Refused(id, error.unwrap_or(RequestError::FieldName)),
        })
    }
}

impl Role for Server {
    type Event = Event;
    type Head = RequestHead;
    const LEAVES_RESPONSES: bool = false;

    fn pending(core: &mut Connection, room: &mut impl FnMut() -> Room<Self>) -> FrameResult<Self> {
        while core.may_decode()
            && let Some(block) = core.role.waiting.pop_front()
        {
            if let Some(event) = core.take_waiting(block, room)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// A block waits where too much is held, and behind another waiting block. The stream that it
    /// opens takes content meanwhile.
    fn defers(
        core: &mut Connection,
        id: StreamId,
        ends: bool,
        block: &[u8],
    ) -> Result<bool, Fatal> {
        if core.role.waiting.is_empty() && core.may_decode() {
            return Ok(false);
        }
        let is_new = id > core.last_stream;
        if is_new && core.opens(id)? {
            let mut stream = core.new_stream();
            stream.is_deferred = true;
            if ends {
                stream.incoming = Direction::Ended;
            }
            core.streams.insert(id, stream);
            core.role.deferred += 1;
        }
        core.role.waiting.push_back(WaitingBlock {
            stream: id,
            ends,
            bytes: block.to_vec(),
        });
        Ok(true)
    }

    fn deferred(core: &Connection) -> usize {
        core.role.deferred
    }

    /// The peer opens a stream.
    fn take_head(
        core: &mut Connection,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> Room<Server>,
    ) -> FrameResult<Self> {
        if !core.opens(id)? {
            return core.skip_block(block).map(|()| None);
        }
        core.take_request(id, ends, block, None, room).map(Some)
    }

    fn take_reset(core: &mut Connection, id: StreamId, code: ErrorCode) -> FrameResult<Self> {
        let Some(stream) = core.streams.get_mut(id) else {
            return Ok(None);
        };
        let was_answered = stream.outgoing == Direction::Ended;
        stream.incoming = Direction::Reset(code);
        stream.outgoing = Direction::Reset(code);
        stream.is_cancelled = true;
        if !was_answered {
            core.spend_reset()?;
        }
        Ok(Some(Event::Reset(id, code)))
    }

    fn take_late(core: &mut Connection, id: StreamId, kind: FrameKind) -> Result<(), Fatal> {
        if kind == FrameKind::Headers {
            let why = "HEADERS of a stream that was closed";
            return Err(fatal(ErrorCode::StreamClosed, why));
        }
        core.spend_reset()?;
        core.push_reset(id, ErrorCode::StreamClosed);
        Ok(())
    }

    fn take_setting(_: &mut Connection, _: Setting) -> Result<(), Fatal> {
        Ok(())
    }

    fn end_settings(_: &mut Connection) {}

    fn take_pong(core: &mut Connection, payload: [u8; 8]) -> Option<Event> {
        if core.role.is_leaving && payload == *SHUTDOWN_PING {
            core.shut_down();
        }
        None
    }

    fn take_go_away(_: &mut Connection, _: StreamId, _: ErrorCode) -> Event {
        Event::GoAway
    }

    fn take_priority_update(core: &mut Connection, payload: &[u8]) -> Result<(), Fatal> {
        let (stream, value) = payload
            .split_first_chunk()
            .ok_or(frame_size("PRIORITY_UPDATE"))?;
        let id = u32::from_be_bytes(*stream) & WINDOW_MAX;
        if id == 0 {
            return Err(protocol("PRIORITY_UPDATE of the connection"));
        }
        if let Some(stream) = core.streams.get_mut(id) {
            stream.priority = Priority::read(value);
        }
        Ok(())
    }

    fn last_served(core: &Connection) -> StreamId {
        core.last_stream
    }

    /// RFC 9113 §8.1: the rest of a request that was answered is not wanted.
    fn release_code(_: Direction, outgoing: Direction, code: ErrorCode) -> ErrorCode {
        match outgoing {
            Direction::Ended => ErrorCode::NoError,
            _ => code,
        }
    }

    fn shrink(&mut self) {
        self.reader = RequestReader::default();
    }
}

#[cfg(test)]
mod tests;
