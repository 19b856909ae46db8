//! A connection that a client has opened, without I/O (RFC 9113 §5 and §6).
//!
//! Bytes that came go in by [`next`](Connection::next), which gives one event after the
//! other. Bytes that are to be sent gather in [`unsent`](Connection::unsent). Whoever owns
//! the connection reads, writes, and has a task for each request.
//!
//! What a peer may cost is bounded, whatever it sends:
//!
//! | what | bound |
//! |---|---|
//! | exchanges | [`Settings::max_streams`]: one counts until [`release`](Connection::release), so that a reset makes no room for another while its work goes on |
//! | resets, of either side | 200 at once, 20 in a second |
//! | frames that bring nothing | 1,000 at once, 100 in a second, and as many as content earns |
//! | a block of fields | twice [`Settings::max_head`], in at most eight frames |
//! | content that nobody reads | the window of the connection |
//! | answers to frames | none while 64 KiB wait to be sent |

use std::collections::VecDeque;

use super::budget::Budget;
use super::frame::{
    ErrorCode, FrameHead, FrameKind, HEAD_LEN, PAYLOAD_MAX, PREFACE, Setting, WINDOW_FIRST,
    WINDOW_MAX, flags,
};
use super::request::{Asked, HeadFault, RequestReader, read_trailers};
use super::stream::{Direction, Priority, Stream, StreamId, Streams};
use crate::error::RequestError;
use crate::head::RequestHead;
use crate::hpack::Decoder;
use crate::wire::BodyFraming;

/// Most bytes that wait to be sent when a frame is to be answered.
const REPLIES_MAX: usize = 64 * 1024;
/// Streams that were reset here, of which frames may still come.
const RESET_MAX: usize = 64;
/// Frames of one block of fields.
const BLOCK_FRAMES_MAX: u32 = 8;
/// Resets at once, and in a second.
const RESETS: (u32, u32) = (200, 20);
/// Frames at once that bring nothing, and in a second.
const IDLE_FRAMES: (u32, u32) = (1000, 100);
/// Bytes of content that earn one such frame.
const CONTENT_PER_FRAME: u32 = 1024;

/// What a client is told, and held to.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Largest head of a request, in bytes, with 32 for each field.
    pub max_head: u32,
    /// Requests that it may have in flight.
    pub max_streams: u32,
    /// Content that each of them may have unread, in bytes.
    pub stream_window: u32,
    /// Content that all of them may have unread, in bytes: at least 65,535.
    pub connection_window: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_head: 16 * 1024,
            max_streams: 100,
            stream_window: WINDOW_FIRST,
            connection_window: 1 << 20,
        }
    }
}

/// The peer has broken the protocol, or costs too much. What says so is among the unsent
/// bytes; once these are sent, the connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fatal {
    /// What the peer is told.
    pub code: ErrorCode,
    /// What it did.
    pub why: &'static str,
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

/// What the peer has told of itself.
#[derive(Debug)]
struct Peer {
    initial_window: u32,
    max_frame: u32,
}

/// A block of fields that comes in several frames.
#[derive(Debug)]
struct Gathering {
    stream: StreamId,
    ends_stream: bool,
    frames: u32,
    bytes: Vec<u8>,
}

/// Content that is on its way.
#[derive(Debug, Clone, Copy)]
struct Coming {
    stream: StreamId,
    left: u32,
    ends: bool,
    /// Whether somebody wants it.
    is_wanted: bool,
}

/// The payload of a frame.
enum Payload<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
}

/// A connection of HTTP/2, as its server has it.
#[derive(Debug)]
pub struct Connection {
    settings: Settings,
    peer: Peer,
    decoder: Decoder,
    reader: RequestReader,
    /// Bytes of the preface that are still to come.
    preface_left: usize,
    /// Whether the peer has sent its settings.
    has_settings: bool,
    /// A frame that has come in part.
    partial: Vec<u8>,
    gathering: Option<Gathering>,
    coming: Option<Coming>,
    streams: Streams,
    /// The last stream that the peer has opened.
    last_stream: StreamId,
    /// The last stream that is served, once there is one.
    goes_away: Option<StreamId>,
    were_reset: VecDeque<StreamId>,
    receive_window: i64,
    uncredited: u32,
    send_window: i64,
    resets: Budget,
    idle_frames: Budget,
    now_ms: u64,
    unsent: Vec<u8>,
}

impl Connection {
    /// One that has just begun: what it sends first is among its unsent bytes.
    pub fn new(settings: Settings) -> Self {
        let mut it = Connection {
            settings,
            peer: Peer {
                initial_window: WINDOW_FIRST,
                max_frame: PAYLOAD_MAX,
            },
            decoder: Decoder::default(),
            reader: RequestReader::default(),
            preface_left: PREFACE.len(),
            has_settings: false,
            partial: Vec::new(),
            gathering: None,
            coming: None,
            streams: Streams::default(),
            last_stream: 0,
            goes_away: None,
            were_reset: VecDeque::new(),
            receive_window: i64::from(settings.connection_window.max(WINDOW_FIRST)),
            uncredited: 0,
            send_window: i64::from(WINDOW_FIRST),
            resets: Budget::new(RESETS.0, RESETS.1),
            idle_frames: Budget::new(IDLE_FRAMES.0, IDLE_FRAMES.1),
            now_ms: 0,
            unsent: Vec::new(),
        };
        let mut payload = Vec::new();
        for setting in [
            Setting::MaxConcurrentStreams(settings.max_streams),
            Setting::InitialWindowSize(settings.stream_window),
            Setting::MaxHeaderListSize(settings.max_head),
            Setting::EnableConnectProtocol(true),
            Setting::NoRfc7540Priorities(true),
        ] {
            setting.push(&mut payload);
        }
        it.push_frame(FrameKind::Settings, 0, 0, &payload);
        let more = settings.connection_window.saturating_sub(WINDOW_FIRST);
        if more > 0 {
            it.push_frame(FrameKind::WindowUpdate, 0, 0, &more.to_be_bytes());
        }
        it
    }

    /// Bytes that are to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent
    }

    /// The first bytes of them were sent.
    pub fn sent(&mut self, len: usize) {
        if len >= self.unsent.len() {
            self.unsent.clear();
        } else {
            self.unsent.drain(..len);
        }
    }

    /// Exchanges that were not released.
    pub fn in_flight(&self) -> usize {
        self.streams.len()
    }

    /// Takes bytes off the front of `input`, up to the next event. `None` once all were
    /// taken. `now_ms` never runs backwards; `room` gives buffers for a head.
    ///
    /// # Errors
    /// The connection is over: see [`Fatal`].
    pub fn next(
        &mut self,
        input: &mut &[u8],
        now_ms: u64,
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
        self.now_ms = now_ms;
        let event = self.read(input, room);
        if let Err(fatal) = &event {
            self.go_away(self.last_stream, fatal.code);
        }
        event
    }

    fn read(
        &mut self,
        input: &mut &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
        self.take_preface(input)?;
        loop {
            if let Some(coming) = self.coming {
                if coming.left > 0 && input.is_empty() {
                    return Ok(None);
                }
                if let Some(event) = self.take_content(coming, input)? {
                    return Ok(Some(event));
                }
                continue;
            }
            let Some((head, payload)) = self.take_frame(input)? else {
                return Ok(None);
            };
            let payload = match &payload {
                Payload::Borrowed(payload) => payload,
                Payload::Owned(frame) => frame.get(HEAD_LEN..).unwrap_or_default(),
            };
            if let Some(event) = self.take(head, payload, room)? {
                return Ok(Some(event));
            }
        }
    }

    /// What a client of HTTP/2 sends first.
    fn take_preface(&mut self, input: &mut &[u8]) -> Result<(), Fatal> {
        let wanted = &PREFACE[PREFACE.len() - self.preface_left..];
        let len = wanted.len().min(input.len());
        if wanted[..len] != input[..len] {
            return Err(protocol("something else in the place of the preface"));
        }
        *input = &input[len..];
        self.preface_left -= len;
        Ok(())
    }

    /// Takes the next frame off; of DATA its head alone. `None` where it is not there as a
    /// whole: what there is of it is kept.
    fn take_frame<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<(FrameHead, Payload<'a>)>, Fatal> {
        if !self.partial.is_empty() || input.len() < HEAD_LEN {
            self.keep(input, HEAD_LEN);
        }
        let from = if self.partial.is_empty() {
            *input
        } else {
            &self.partial
        };
        let Some(head) = from.first_chunk() else {
            return Ok(None);
        };
        let head = FrameHead::read(head);
        if head.len > PAYLOAD_MAX {
            let why = "a frame that is longer than was allowed";
            return Err(fatal(ErrorCode::FrameSize, why));
        }
        self.check_order(head)?;
        let whole = match head.kind {
            FrameKind::Data if !head.has(flags::PADDED) => HEAD_LEN,
            _ => HEAD_LEN + head.len as usize,
        };
        if self.partial.is_empty()
            && let Some((frame, rest)) = input.split_at_checked(whole)
        {
            *input = rest;
            return Ok(Some((head, Payload::Borrowed(&frame[HEAD_LEN..]))));
        }
        self.keep(input, whole);
        if self.partial.len() < whole {
            return Ok(None);
        }
        Ok(Some((
            head,
            Payload::Owned(std::mem::take(&mut self.partial)),
        )))
    }

    /// Keeps bytes of a frame, up to this length.
    fn keep(&mut self, input: &mut &[u8], len: usize) {
        let missing = len.saturating_sub(self.partial.len()).min(input.len());
        let (bytes, rest) = input.split_at(missing);
        self.partial.extend_from_slice(bytes);
        *input = rest;
    }

    /// Nothing stands between the frames of a block (RFC 9113 §4.3).
    fn check_order(&self, head: FrameHead) -> Result<(), Fatal> {
        let is_in_order = match &self.gathering {
            Some(it) => head.kind == FrameKind::Continuation && head.stream == it.stream,
            None => head.kind != FrameKind::Continuation,
        };
        if is_in_order {
            return Ok(());
        }
        Err(protocol(
            "a frame that does not belong to the block of fields",
        ))
    }

    fn take(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
        let is_of_connection = matches!(
            head.kind,
            FrameKind::Settings | FrameKind::Ping | FrameKind::GoAway | FrameKind::PriorityUpdate
        );
        let may_be_both = matches!(head.kind, FrameKind::WindowUpdate | FrameKind::Unknown);
        if !may_be_both && is_of_connection != (head.stream == 0) {
            return Err(protocol("a frame at a stream that it is not for"));
        }
        if !self.has_settings && head.kind != FrameKind::Settings {
            return Err(protocol("another frame than SETTINGS first"));
        }
        match head.kind {
            FrameKind::Data => self.begin_content(head, payload),
            FrameKind::Headers => self.take_headers(head, payload, room),
            FrameKind::Continuation => self.take_continuation(head, payload, room),
            FrameKind::Priority => self.take_priority(head, payload),
            FrameKind::RstStream => self.take_reset(head, payload),
            FrameKind::Settings => self.take_settings(head, payload),
            FrameKind::PushPromise => Err(protocol("PUSH_PROMISE of a client")),
            FrameKind::Ping => self.take_ping(head, payload),
            FrameKind::GoAway if payload.len() < 8 => Err(frame_size("GOAWAY")),
            FrameKind::GoAway => Ok(Some(Event::GoAway)),
            FrameKind::WindowUpdate => self.take_window(head, payload),
            FrameKind::PriorityUpdate => self.take_priority_update(payload),
            FrameKind::Unknown => self.spend_frame().map(|()| None),
        }
    }
}

/// Frames that came.
impl Connection {
    fn begin_content(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        self.receive_window -= i64::from(head.len);
        if self.receive_window < 0 {
            let why = "more content than the window of the connection";
            return Err(fatal(ErrorCode::FlowControl, why));
        }
        let ends = head.has(flags::END_STREAM);
        let is_padded = head.has(flags::PADDED);
        let content = if is_padded {
            head.content(payload)
                .ok_or(protocol("more padding than there is"))?
        } else {
            payload
        };
        if head.len == 0 && !ends {
            self.spend_frame()?;
        }
        self.idle_frames.earn(head.len / CONTENT_PER_FRAME);
        if self.is_idle(head.stream) {
            return Err(protocol("content of a stream that was not opened"));
        }
        let mut event = None;
        let is_wanted = match self.streams.get_mut(head.stream) {
            None => {
                self.is_late(head.stream)?;
                false
            }
            Some(stream) => match stream.incoming {
                Direction::Reset(_) => false,
                Direction::Ended => {
                    event = self.reset_stream(head.stream, ErrorCode::StreamClosed)?;
                    false
                }
                Direction::Open => {
                    stream.receive_window -= i64::from(head.len);
                    if stream.receive_window < 0 {
                        event = self.reset_stream(head.stream, ErrorCode::FlowControl)?;
                    }
                    event.is_none()
                }
            },
        };
        let coming = Coming {
            stream: head.stream,
            left: head.len,
            ends,
            is_wanted,
        };
        if !is_padded {
            self.coming = Some(coming);
            return Ok(event);
        }
        // All of it is here.
        let padding = head.len - content.len() as u32;
        self.credit(head.stream, padding);
        let coming = Coming {
            left: content.len() as u32,
            ..coming
        };
        let mut content = content;
        Ok(self.take_content(coming, &mut content)?.or(event))
    }

    /// Takes what is here of content that is on its way.
    fn take_content(&mut self, coming: Coming, input: &mut &[u8]) -> Result<Option<Event>, Fatal> {
        let len = input.len().min(coming.left as usize);
        let (bytes, rest) = input.split_at(len);
        *input = rest;
        let left = coming.left - len as u32;
        self.coming = (left > 0).then_some(Coming { left, ..coming });
        let stream = self.streams.get_mut(coming.stream);
        let Some(stream) = stream.filter(|it| coming.is_wanted && it.incoming == Direction::Open)
        else {
            self.credit(0, len as u32);
            return Ok(None);
        };
        let is_over = coming.ends && left == 0;
        let fits = stream.take(bytes);
        if !fits || (is_over && stream.expected.is_some_and(|it| it > 0)) {
            // The window of the connection is for others.
            self.credit(0, if fits { 0 } else { len as u32 });
            return self.reset_stream(coming.stream, ErrorCode::Protocol);
        }
        if is_over {
            stream.incoming = Direction::Ended;
        }
        let is_news = len > 0 || is_over;
        Ok(is_news.then_some(Event::Readable(coming.stream)))
    }

    fn take_headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
        if head.stream.is_multiple_of(2) {
            return Err(protocol("a stream with an even number"));
        }
        let block = head
            .content(payload)
            .ok_or(protocol("HEADERS that are too short"))?;
        let ends_stream = head.has(flags::END_STREAM);
        if head.has(flags::END_HEADERS) {
            return self.take_block(head.stream, ends_stream, block, room);
        }
        self.gathering = Some(Gathering {
            stream: head.stream,
            ends_stream,
            frames: 1,
            bytes: block.to_vec(),
        });
        Ok(None)
    }

    fn take_continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
        let Some(gathering) = &mut self.gathering else {
            return Err(protocol("CONTINUATION of nothing"));
        };
        gathering.frames += 1;
        let len = gathering.bytes.len() + payload.len();
        if gathering.frames > BLOCK_FRAMES_MAX || len > 2 * self.settings.max_head as usize {
            let why = "a block of fields that is too long, or in too many frames";
            return Err(fatal(ErrorCode::EnhanceYourCalm, why));
        }
        gathering.bytes.extend_from_slice(payload);
        if !head.has(flags::END_HEADERS) {
            return Ok(None);
        }
        match self.gathering.take() {
            Some(it) => self.take_block(it.stream, it.ends_stream, &it.bytes, room),
            None => Ok(None),
        }
    }

    /// A whole block of fields.
    fn take_block(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
        if let Some(stream) = self.streams.get_mut(id) {
            return match stream.incoming {
                Direction::Open => self.take_trailers(id, ends, block),
                Direction::Ended => {
                    self.skip_block(block)?;
                    self.reset_stream(id, ErrorCode::StreamClosed)
                }
                Direction::Reset(_) => self.skip_block(block).map(|()| None),
            };
        }
        if id <= self.last_stream {
            self.skip_block(block)?;
            if self.were_reset.contains(&id) {
                return Ok(None);
            }
            let why = "HEADERS of a stream that was closed";
            return Err(fatal(ErrorCode::StreamClosed, why));
        }
        self.last_stream = id;
        let is_beyond = self.goes_away.is_some_and(|last| id > last);
        if is_beyond || self.streams.len() >= self.settings.max_streams as usize {
            self.skip_block(block)?;
            if !is_beyond {
                self.spend_reset()?;
            }
            self.push_reset(id, ErrorCode::RefusedStream);
            return Ok(None);
        }
        self.take_request(id, ends, block, room).map(Some)
    }

    fn take_request(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Event, Fatal> {
        let (mut bytes, mut head) = room();
        let block = self.decoder.block(block);
        let max = self.settings.max_head as usize;
        let read = self.reader.read(block, &mut bytes, &mut head, max, ends);
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
        let framing = refused.is_none().then_some(head.wire.framing);
        self.streams.insert(
            id,
            Stream {
                incoming: if ends {
                    Direction::Ended
                } else {
                    Direction::Open
                },
                outgoing: Direction::Open,
                content: Vec::new(),
                read: 0,
                trailers: Vec::new(),
                receive_window: i64::from(self.settings.stream_window),
                uncredited: 0,
                send_window: i64::from(self.peer.initial_window),
                expected: match framing {
                    Some(BodyFraming::Length { bytes }) => Some(bytes),
                    Some(BodyFraming::None) => Some(0),
                    _ => None,
                },
                waits: false,
                priority: Priority::of(&head, &bytes),
            },
        );
        Ok(match (read, refused) {
            (Ok(asked), None) => Event::Request(id, Request { bytes, head, asked }),
            (_, error) => Event::Refused(id, error.unwrap_or(RequestError::FieldName)),
        })
    }

    fn take_trailers(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
    ) -> Result<Option<Event>, Fatal> {
        let mut lines = Vec::new();
        let max = self.settings.max_head as usize;
        let read = read_trailers(self.decoder.block(block), &mut lines, max);
        if let Err(HeadFault::Decoding(_)) = read {
            return Err(undecodable());
        }
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        let is_short = stream.expected.is_some_and(|it| it > 0);
        if !ends || is_short || read.is_err() {
            return self.reset_stream(id, ErrorCode::Protocol);
        }
        stream.trailers = lines;
        stream.incoming = Direction::Ended;
        Ok(Some(Event::Readable(id)))
    }

    /// Decodes a block for the table alone.
    fn skip_block(&mut self, block: &[u8]) -> Result<(), Fatal> {
        let mut room = Vec::new();
        let mut block = self.decoder.block(block);
        loop {
            room.clear();
            match block.next(&mut room) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(_) => return Err(undecodable()),
            }
        }
    }

    fn take_priority(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        self.spend_frame()?;
        if payload.len() != 5 {
            return self.reset_stream(head.stream, ErrorCode::FrameSize);
        }
        Ok(None)
    }

    fn take_reset(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        let number = payload.try_into().map_err(|_| frame_size("RST_STREAM"))?;
        let code = ErrorCode::from_number(u32::from_be_bytes(number));
        if self.is_idle(head.stream) {
            return Err(protocol("RST_STREAM of a stream that was not opened"));
        }
        let Some(stream) = self.streams.get_mut(head.stream) else {
            return self.spend_frame().map(|()| None);
        };
        let is_new = !matches!(stream.incoming, Direction::Reset(_));
        let was_answered = stream.outgoing == Direction::Ended;
        stream.incoming = Direction::Reset(code);
        stream.outgoing = Direction::Reset(code);
        if !was_answered {
            self.spend_reset()?;
        }
        Ok(is_new.then_some(Event::Reset(head.stream, code)))
    }

    fn take_settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || (head.has(flags::ACK) && !payload.is_empty()) {
            return Err(frame_size("SETTINGS"));
        }
        if head.has(flags::ACK) {
            return Ok(None);
        }
        if self.has_settings {
            self.spend_frame()?;
        }
        self.has_settings = true;
        let mut event = None;
        for setting in settings {
            let why = "SETTINGS with a value that can't be";
            match Setting::read(*setting).map_err(|code| fatal(code, why))? {
                Setting::InitialWindowSize(window) => {
                    self.change_windows(window)?;
                    event = Some(Event::Writable);
                }
                Setting::MaxFrameSize(max) => self.peer.max_frame = max,
                _ => {}
            }
        }
        self.reply(FrameKind::Settings, &[])?;
        Ok(event)
    }

    /// The peer has another window for each stream (RFC 9113 §6.9.2).
    fn change_windows(&mut self, window: u32) -> Result<(), Fatal> {
        let more = i64::from(window) - i64::from(self.peer.initial_window);
        self.peer.initial_window = window;
        for (_, stream) in self.streams.iter_mut() {
            stream.send_window += more;
            if stream.send_window > i64::from(WINDOW_MAX) {
                let why = "SETTINGS make a window too large";
                return Err(fatal(ErrorCode::FlowControl, why));
            }
        }
        Ok(())
    }

    fn take_ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        if payload.len() != 8 {
            return Err(frame_size("PING"));
        }
        if !head.has(flags::ACK) {
            self.spend_frame()?;
            self.reply(FrameKind::Ping, payload)?;
        }
        Ok(None)
    }

    fn take_window(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        let more = payload
            .try_into()
            .map_err(|_| frame_size("WINDOW_UPDATE"))?;
        let more = u32::from_be_bytes(more) & WINDOW_MAX;
        self.spend_frame()?;
        if self.is_idle(head.stream) {
            return Err(protocol("WINDOW_UPDATE of a stream that was not opened"));
        }
        let window = if head.stream == 0 {
            &mut self.send_window
        } else {
            match self.streams.get_mut(head.stream) {
                Some(stream) => &mut stream.send_window,
                None => return Ok(None),
            }
        };
        *window += i64::from(more);
        let code = match more {
            0 => ErrorCode::Protocol,
            _ if *window > i64::from(WINDOW_MAX) => ErrorCode::FlowControl,
            _ => return Ok(Some(Event::Writable)),
        };
        if head.stream == 0 {
            return Err(fatal(code, "WINDOW_UPDATE of nothing, or of too much"));
        }
        self.reset_stream(head.stream, code)
    }

    fn take_priority_update(&mut self, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        self.spend_frame()?;
        let (stream, value) = payload
            .split_first_chunk()
            .ok_or(frame_size("PRIORITY_UPDATE"))?;
        let id = u32::from_be_bytes(*stream) & WINDOW_MAX;
        if id == 0 {
            return Err(protocol("PRIORITY_UPDATE of the connection"));
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.priority = Priority::read(value);
        }
        Ok(None)
    }

    /// Whether the peer has not opened this stream yet. What it can't open counts so.
    fn is_idle(&self, id: StreamId) -> bool {
        id > self.last_stream || (id != 0 && id.is_multiple_of(2))
    }

    /// Content came for a stream that is gone.
    fn is_late(&mut self, id: StreamId) -> Result<(), Fatal> {
        if !self.were_reset.contains(&id) {
            self.spend_reset()?;
            self.push_reset(id, ErrorCode::StreamClosed);
        }
        Ok(())
    }

    fn spend_frame(&mut self) -> Result<(), Fatal> {
        if self.idle_frames.spend(self.now_ms) {
            return Ok(());
        }
        let why = "too many frames that bring nothing";
        Err(fatal(ErrorCode::EnhanceYourCalm, why))
    }

    fn spend_reset(&mut self) -> Result<(), Fatal> {
        if self.resets.spend(self.now_ms) {
            return Ok(());
        }
        Err(fatal(ErrorCode::EnhanceYourCalm, "too many resets"))
    }

    /// Ends a stream whose peer breaks a rule.
    fn reset_stream(&mut self, id: StreamId, code: ErrorCode) -> Result<Option<Event>, Fatal> {
        self.spend_reset()?;
        self.push_reset(id, code);
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        stream.incoming = Direction::Reset(code);
        stream.outgoing = Direction::Reset(code);
        Ok(Some(Event::Reset(id, code)))
    }
}

/// What is sent.
impl Connection {
    /// Sends the head of a response, or its trailers: a block of fields. `ends` says whether
    /// nothing follows.
    pub fn send_fields(&mut self, id: StreamId, block: &[u8], ends: bool) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        if stream.outgoing != Direction::Open {
            return;
        }
        if ends {
            stream.outgoing = Direction::Ended;
        }
        let max = self.peer.max_frame as usize;
        let (mut rest, mut kind) = (block, FrameKind::Headers);
        let mut own = if ends { flags::END_STREAM } else { 0 };
        loop {
            let (part, behind) = rest.split_at(rest.len().min(max));
            let last = if behind.is_empty() {
                flags::END_HEADERS
            } else {
                0
            };
            self.push_frame(kind, own | last, id, part);
            if behind.is_empty() {
                return;
            }
            (rest, kind, own) = (behind, FrameKind::Continuation, 0);
        }
    }

    /// Sends content, as far as the windows and `room` bytes allow: how much of it was
    /// taken. Where that is not all, the stream waits: see
    /// [`next_writable`](Self::next_writable). The end is sent with the last byte.
    pub fn send_content(&mut self, id: StreamId, bytes: &[u8], ends: bool, room: usize) -> usize {
        let connection = self.send_window.max(0) as usize;
        let Some(stream) = self.streams.get_mut(id) else {
            return 0;
        };
        if stream.outgoing != Direction::Open {
            return 0;
        }
        let own = stream.send_window.max(0) as usize;
        let len = bytes.len().min(own).min(connection).min(room);
        let is_all = len == bytes.len();
        stream.waits = !is_all;
        stream.send_window -= len as i64;
        if is_all && ends {
            stream.outgoing = Direction::Ended;
        }
        self.send_window -= len as i64;
        self.idle_frames.earn(len as u32 / CONTENT_PER_FRAME);
        let max = self.peer.max_frame.min(PAYLOAD_MAX) as usize;
        let mut rest = &bytes[..len];
        while !rest.is_empty() || (is_all && ends) {
            let (part, behind) = rest.split_at(rest.len().min(max));
            let is_last = is_all && ends && behind.is_empty();
            let own = if is_last { flags::END_STREAM } else { 0 };
            self.push_frame(FrameKind::Data, own, id, part);
            rest = behind;
            if is_last {
                break;
            }
        }
        len
    }

    /// The stream that is to send next, of those that wait and that the windows let send.
    /// It waits no longer.
    pub fn next_writable(&mut self) -> Option<StreamId> {
        if self.send_window <= 0 {
            return None;
        }
        let ready = self.streams.iter_mut();
        let ready = ready.filter(|(_, it)| it.waits && it.send_window > 0);
        let (id, stream) = ready.min_by_key(|(_, it)| it.priority.urgency)?;
        stream.waits = false;
        Some(id)
    }

    /// Takes content of a request out: how many bytes went into `room`. The peer may send as
    /// many again.
    pub fn read_content(&mut self, id: StreamId, room: &mut [u8]) -> usize {
        let Some(stream) = self.streams.get_mut(id) else {
            return 0;
        };
        let len = stream.read_into(room);
        self.credit(id, len as u32);
        len
    }

    /// How a request ends, once all of its content was read.
    pub fn incoming(&mut self, id: StreamId) -> Option<(Direction, &[u8])> {
        let stream = self.streams.get_mut(id)?;
        if !stream.unread().is_empty() && stream.incoming == Direction::Ended {
            return Some((Direction::Open, &[]));
        }
        Some((stream.incoming, &stream.trailers))
    }

    /// The exchange of a stream has ended: it makes room for another. A stream whose
    /// response is not whole is reset with this code.
    pub fn release(&mut self, id: StreamId, code: ErrorCode) {
        let Some(stream) = self.streams.remove(id) else {
            return;
        };
        let unread = stream.unread().len() as u32;
        self.credit(0, unread + stream.uncredited);
        if stream.is_closed() {
            return;
        }
        // RFC 9113 §8.1: the rest of a request that was answered is not wanted.
        let is_answered = stream.outgoing == Direction::Ended;
        self.push_reset(
            id,
            if is_answered {
                ErrorCode::NoError
            } else {
                code
            },
        );
    }

    /// Opens no stream behind the last one that was opened.
    pub fn shut_down(&mut self) {
        self.go_away(self.last_stream, ErrorCode::NoError);
    }

    fn go_away(&mut self, last: StreamId, code: ErrorCode) {
        self.goes_away = Some(last);
        let payload = [last.to_be_bytes(), code.number().to_be_bytes()].concat();
        self.push_frame(FrameKind::GoAway, 0, 0, &payload);
    }

    /// The peer may send so many bytes more, at a stream and on the connection.
    fn credit(&mut self, id: StreamId, len: u32) {
        self.uncredited += len;
        if u64::from(self.uncredited) * 2 >= u64::from(self.settings.connection_window) {
            let more = std::mem::take(&mut self.uncredited);
            self.receive_window += i64::from(more);
            self.push_frame(FrameKind::WindowUpdate, 0, 0, &more.to_be_bytes());
        }
        let window = self.settings.stream_window;
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        stream.uncredited += len;
        let is_due = u64::from(stream.uncredited) * 2 >= u64::from(window);
        if is_due && stream.incoming == Direction::Open {
            let more = std::mem::take(&mut stream.uncredited);
            stream.receive_window += i64::from(more);
            self.push_frame(FrameKind::WindowUpdate, 0, id, &more.to_be_bytes());
        }
    }

    /// Answers a frame. A peer that asks and does not read is not answered for ever.
    fn reply(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), Fatal> {
        if self.unsent.len() > REPLIES_MAX {
            let why = "answers that nobody reads";
            return Err(fatal(ErrorCode::EnhanceYourCalm, why));
        }
        self.push_frame(kind, flags::ACK, 0, payload);
        Ok(())
    }

    fn push_reset(&mut self, id: StreamId, code: ErrorCode) {
        if self.were_reset.len() == RESET_MAX {
            self.were_reset.pop_front();
        }
        self.were_reset.push_back(id);
        let payload = code.number().to_be_bytes();
        self.push_frame(FrameKind::RstStream, 0, id, &payload);
    }

    fn push_frame(&mut self, kind: FrameKind, flags: u8, stream: StreamId, payload: &[u8]) {
        let head = FrameHead {
            len: payload.len() as u32,
            kind,
            flags,
            stream,
        };
        self.unsent.extend_from_slice(&head.bytes());
        self.unsent.extend_from_slice(payload);
    }
}

fn fatal(code: ErrorCode, why: &'static str) -> Fatal {
    Fatal { code, why }
}

fn protocol(why: &'static str) -> Fatal {
    fatal(ErrorCode::Protocol, why)
}

fn frame_size(why: &'static str) -> Fatal {
    fatal(ErrorCode::FrameSize, why)
}

fn undecodable() -> Fatal {
    fatal(
        ErrorCode::Compression,
        "a block of fields that can't be decoded",
    )
}

#[cfg(test)]
mod tests;
