//! A connection that was opened here, to an endpoint: streams are opened, requests are sent, and
//! responses are read.
//!
//! A server can attack less than a client, because all streams are opened here. Resets have no
//! budget: each is of a stream that was opened here, which costs a request, and a stream is reset
//! once. All other frames are bounded as at a server. The peer may send three more frames without
//! effect for each stream that may be open, and at most 1,000 interim heads before a response.

use super::super::response::{ResponseFault, read_response};
use super::super::stream::Awaited;
use super::role::Common;
use super::*;
use crate::error::ResponseError;
use crate::head::{Method, ResponseHead};

/// Streams that a peer is taken to allow, until it has sent its settings.
const STREAMS_UNTOLD: u32 = 100;
/// Interim responses before a response.
const INTERIM_MAX: u32 = 1000;

/// Frames that are allowed to come for a stream that was given up.
const LATE_FRAMES: u32 = 3;

/// A connection as its client has it.
pub type Connection = Core<Client>;

/// The state that only a client has.
#[derive(Debug)]
pub struct Client {
    /// Streams that the peer allows, where it has said so.
    peer_max_streams: Option<u32>,
    /// Streams that may be in flight.
    max_streams: u32,
    /// The last stream that the peer serves, once it has said GOAWAY.
    last_served: Option<StreamId>,
    /// Whether the peer takes an extended CONNECT.
    allows_extended_connect: bool,
    /// Events that are still to be told: at most one for each stream, and one.
    pending: VecDeque<Event>,
}

/// The head of a response.
#[derive(Debug)]
pub struct Response {
    /// Its head, as text of HTTP/1.
    pub bytes: Vec<u8>,
    /// Its head.
    pub head: Box<ResponseHead>,
}

/// An event from received bytes.
#[derive(Debug)]
pub enum Event {
    /// A response has begun.
    Head(StreamId, Response),
    /// An interim response (1xx): the response itself is still to come.
    Interim(StreamId, Response),
    /// A response whose head is not believed. Its stream was reset.
    Malformed(StreamId, ResponseError),
    /// Content of a response has come, or its end.
    Readable(StreamId),
    /// A response was cut off, by either side.
    Reset(StreamId, ErrorCode),
    /// The peer has done nothing for a request: it may be tried elsewhere, whatever its method
    /// (RFC 9113 §8.7).
    Refused(StreamId),
    /// The peer wants no more of a request that it has answered. The response is whole.
    Stopped(StreamId, ErrorCode),
    /// More may be sent: see [`Connection::next_writable`].
    Writable,
    /// The peer takes no more streams. Streams that it has not refused go on.
    GoAway(ErrorCode),
    /// The peer allows more streams than before: see [`Connection::capacity`].
    Capacity,
    /// The answer to a [`ping`](Connection::ping).
    Pong([u8; 8]),
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

impl Settings {
    /// The settings of a client: heads as large as of HTTP/1, and 100 KB of body without a wait.
    pub const OF_CLIENT: Settings = Settings {
        max_head: 64 * 1024,
        max_streams: 1000,
        stream_window: 128 * 1024,
        // As much as all streams: an unread one takes no window from others.
        connection_window: 1000 * 128 * 1024,
    };
}

impl Connection {
    /// A new connection: its first bytes are among the unsent ones. Streams may be opened at
    /// once.
    pub fn new(settings: Settings) -> Self {
        let role = Client {
            peer_max_streams: None,
            max_streams: settings.max_streams.min(STREAMS_UNTOLD),
            last_served: None,
            allows_extended_connect: false,
            pending: VecDeque::new(),
        };
        let mut it = Core::begin(role, settings, None);
        // All streams may be given up at once, while their responses are on their way.
        let late = LATE_FRAMES.saturating_mul(settings.max_streams);
        let most = IDLE_FRAMES.0.saturating_add(late);
        it.idle_frames = Budget::new(most, IDLE_FRAMES.1);
        it.unsent.extend_from_slice(PREFACE);
        it.push_settings(&[Setting::EnablePush(false)]);
        it
    }

    /// Opens a stream with the block of a request's head
    /// ([`head_block`](crate::http2::request::head_block)). `ends` says whether no content
    /// follows. `None` where no stream may be opened now: see [`capacity`](Self::capacity).
    pub fn open(&mut self, method: Method, block: &[u8], ends: bool) -> Option<StreamId> {
        if self.capacity() == 0 {
            return None;
        }
        let id = (self.last_stream + 1) | 1;
        self.last_stream = id;
        let mut stream = self.new_stream();
        stream.awaited = Some(Awaited { method, interim: 0 });
        self.streams.insert(id, stream);
        // For the head of the response, in case the exchange is gone by then.
        self.idle_frames.earn(1);
        self.send_fields(id, block, ends);
        Some(id)
    }

    /// How many streams may be opened now. An exchange counts until it is
    /// [released](Self::release).
    ///
    /// The peer's limit holds, and [`Settings::max_streams`]. Until the peer has sent its
    /// settings, the limit is taken to be 100: RFC 9113 §6.5.2 recommends no smaller one. The
    /// peer refuses surplus streams, which may then be tried again.
    pub fn capacity(&self) -> usize {
        if self.goes_away.is_some() || self.role.last_served.is_some() {
            return 0;
        }
        let ids = (WINDOW_MAX - self.last_stream).div_ceil(2) as usize;
        let streams = self.role.max_streams as usize;
        streams.saturating_sub(self.streams.len()).min(ids)
    }

    /// How many streams the peer allows, where it has said so.
    pub fn peer_limit(&self) -> Option<u32> {
        self.role.peer_max_streams
    }

    /// Takes the peer to allow so many streams, as it has allowed before, until it says how many.
    pub fn expect_limit(&mut self, streams: u32) {
        if !self.has_settings {
            self.role.max_streams = streams.min(self.settings.max_streams);
        }
    }

    /// Whether the peer takes an extended CONNECT (RFC 8441 §3); `false` until its settings came.
    pub fn allows_extended_connect(&self) -> bool {
        self.role.allows_extended_connect
    }

    /// Whether the peer's settings came.
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Asks whether the peer is there: [`Event::Pong`] brings the same bytes back.
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.idle_frames.earn(1);
        self.push_frame(FrameKind::Ping, 0, 0, &payload);
    }
}

impl Role for Client {
    type Event = Event;
    type Head = ResponseHead;
    const LEAVES_RESPONSES: bool = true;

    fn pending(core: &mut Connection, _: &mut impl FnMut() -> Room<Self>) -> FrameResult<Self> {
        Ok(core.role.pending.pop_front())
    }

    /// An endpoint sends only requested responses, so no block is deferred.
    fn defers(_: &mut Connection, _: StreamId, _: bool, _: &[u8]) -> Result<bool, Fatal> {
        Ok(false)
    }

    fn deferred(_: &Connection) -> usize {
        0
    }

    /// A response begins.
    fn take_head(
        core: &mut Connection,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> Room<Client>,
    ) -> FrameResult<Self> {
        let stream = core.streams.get_mut(id);
        let Some(method) = stream.and_then(|it| it.awaited).map(|it| it.method) else {
            return Err(protocol("HEADERS of a stream that was not opened"));
        };
        let (mut bytes, mut head) = room();
        let max = core.settings.max_head as usize;
        let block = core.decoder.block(block);
        match read_response(block, &mut bytes, &mut head, max, method, ends) {
            Ok(()) => {}
            Err(ResponseFault::Decoding(_)) => return Err(undecodable()),
            Err(ResponseFault::Refused(error)) => {
                core.reset_stream(id, code_of(error))?;
                return Ok(Some(Event::Malformed(id, error)));
            }
        }
        core.take_response(id, ends, Response { bytes, head })
    }

    fn take_reset(core: &mut Connection, id: StreamId, code: ErrorCode) -> FrameResult<Self> {
        let stream = core.streams.get_mut(id);
        Ok(stream.and_then(|it| cut_off(it, id, code)))
    }

    /// Clients that left may have given up more streams here than are remembered. The connection
    /// is not lost for that.
    fn take_late(core: &mut Connection, _: StreamId, kind: FrameKind) -> Result<(), Fatal> {
        match kind {
            FrameKind::Headers => Ok(()),
            _ => core.spend_frame(),
        }
    }

    fn take_setting(core: &mut Connection, setting: Setting) -> Result<(), Fatal> {
        match setting {
            Setting::EnablePush(true) => {
                return Err(protocol("SETTINGS of a server that enable push"));
            }
            Setting::MaxConcurrentStreams(max) => core.role.peer_max_streams = Some(max),
            Setting::EnableConnectProtocol(it) => core.role.allows_extended_connect = it,
            _ => {}
        }
        Ok(())
    }

    fn end_settings(core: &mut Connection) {
        let own = core.settings.max_streams;
        let max = core.role.peer_max_streams.map_or(own, |it| it.min(own));
        if max > core.role.max_streams {
            core.role.pending.push_back(Event::Capacity);
        }
        core.role.max_streams = max;
    }

    fn take_pong(_: &mut Connection, payload: [u8; 8]) -> Option<Event> {
        Some(Event::Pong(payload))
    }

    fn take_go_away(core: &mut Connection, last: StreamId, code: ErrorCode) -> Event {
        // RFC 9113 §6.8: it never grows.
        let last = core.role.last_served.map_or(last, |it| it.min(last));
        core.role.last_served = Some(last);
        let streams = core.streams.iter_mut().filter(|it| it.0 > last);
        let refused = ErrorCode::RefusedStream;
        let events = streams.filter_map(|(id, stream)| cut_off(stream, id, refused));
        core.role.pending.extend(events);
        Event::GoAway(code)
    }

    fn take_priority_update(_: &mut Connection, _: &[u8]) -> Result<(), Fatal> {
        // RFC 9218 §7.1.
        Err(protocol("PRIORITY_UPDATE of a server"))
    }

    /// No stream of the peer is.
    fn last_served(_: &Connection) -> StreamId {
        0
    }

    /// RFC 9113 §8.1: the rest of a request that was answered is of no use.
    fn release_code(incoming: Direction, _: Direction, code: ErrorCode) -> ErrorCode {
        match incoming {
            Direction::Ended => ErrorCode::NoError,
            _ => code,
        }
    }

    fn shrink(&mut self) {
        self.pending.shrink_to_fit();
    }
}

impl Connection {
    fn take_response(
        &mut self,
        id: StreamId,
        ends: bool,
        response: Response,
    ) -> FrameResult<Client> {
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        if response.head.status < 200 {
            if let Some(awaited) = &mut stream.awaited {
                awaited.interim += 1;
                if awaited.interim > INTERIM_MAX {
                    return self.reset_stream(id, ErrorCode::EnhanceYourCalm);
                }
            }
            return Ok(Some(Event::Interim(id, response)));
        }
        stream.awaited = None;
        stream.expect(response.head.wire.framing);
        if ends {
            stream.incoming = Direction::Ended;
        }
        Ok(Some(Event::Head(id, response)))
    }
}

/// The peer ends a stream.
fn cut_off(stream: &mut Stream, id: StreamId, code: ErrorCode) -> Option<Event> {
    let was_sending = stream.outgoing == Direction::Open;
    if stream.incoming == Direction::Ended {
        // RFC 9113 §8.1: a whole response stays one.
        stream.outgoing = Direction::Reset(code);
        return was_sending.then_some(Event::Stopped(id, code));
    }
    if stream.incoming != Direction::Open {
        return None;
    }
    stream.incoming = Direction::Reset(code);
    stream.outgoing = Direction::Reset(code);
    let is_untouched = stream.awaited.is_some_and(|it| it.interim == 0);
    Some(if code == ErrorCode::RefusedStream && is_untouched {
        Event::Refused(id)
    } else {
        Event::Reset(id, code)
    })
}

/// The code of the reset for a stream whose response has this fault.
fn code_of(error: ResponseError) -> ErrorCode {
    match error {
        // They are sound, and more than is read here.
        ResponseError::HeadTooLarge | ResponseError::TooManyFields => ErrorCode::Cancel,
        _ => ErrorCode::Protocol,
    }
}

#[cfg(test)]
mod tests;
