//! A connection that a client has opened.

use super::super::request::{Asked, HeadFault, RequestReader};
use super::role::Common;
use super::*;
use crate::error::RequestError;
use crate::head::RequestHead;

/// What stands in the PING by which a peer shows that it knows of the end.
const SHUTDOWN_PING: &[u8; 8] = b"evenkeel";

/// A connection as its server has it.
pub type Connection = Core<Server>;

/// What a server knows beyond what both ends do.
#[derive(Debug, Default)]
pub struct Server {
    reader: RequestReader,
    /// Whether the peer was told that there will be an end.
    is_leaving: bool,
}

/// A request that has begun.
#[derive(Debug)]
pub struct Request {
    /// Its head, as text of HTTP/1.
    pub bytes: Vec<u8>,
    /// Its head.
    pub head: Box<RequestHead>,
    /// What it says beyond HTTP/1.
    pub asked: Asked,
}

/// What has come of some bytes.
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
    /// One that has just begun: what it sends first is among its unsent bytes.
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

    /// Says that there will be an end: the peer opens no more streams. Those that are on their
    /// way are served still; once the peer shows that it knows, the connection
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

    /// Whether the peer was told that there will be an end.
    pub fn is_leaving(&self) -> bool {
        self.role.is_leaving
    }

    fn take_request(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
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
                return Ok(Event::Reset(id, ErrorCode::Protocol));
            }
        };
        self.idle_frames.earn(1);
        let mut stream = self.new_stream();
        if ends {
            stream.incoming = Direction::Ended;
        }
        let is_tunnel = read.is_ok_and(|it| it.opens_websocket);
        if refused.is_none() && !is_tunnel {
            stream.expect(head.wire.framing);
        }
        stream.priority = Priority::of(&head, &bytes);
        self.streams.insert(id, stream);
        Ok(match (read, refused) {
            (Ok(asked), None) => Event::Request(id, Request { bytes, head, asked }),
            (_, error) => Event::Refused(id, error.unwrap_or(RequestError::FieldName)),
        })
    }
}

impl Role for Server {
    type Event = Event;
    type Head = RequestHead;

    fn pending(&mut self) -> Option<Event> {
        None
    }

    /// The peer opens a stream.
    fn take_head(
        core: &mut Connection,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> Room<Server>,
    ) -> Taken<Self> {
        core.last_stream = id;
        let is_beyond = core.goes_away.is_some_and(|last| id > last);
        if is_beyond || core.streams.len() >= core.settings.max_streams as usize {
            core.skip_block(block)?;
            if !is_beyond {
                core.spend_reset()?;
            }
            core.push_reset(id, ErrorCode::RefusedStream);
            return Ok(None);
        }
        core.take_request(id, ends, block, room).map(Some)
    }

    fn take_reset(core: &mut Connection, id: StreamId, code: ErrorCode) -> Taken<Self> {
        let Some(stream) = core.streams.get_mut(id) else {
            return Ok(None);
        };
        let was_answered = stream.outgoing == Direction::Ended;
        stream.incoming = Direction::Reset(code);
        stream.outgoing = Direction::Reset(code);
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
