//! Connections without I/O (RFC 9113 §5 and §6): the common part of both ends.
//!
//! [`server`] is the end of the accepting side, [`client`] that of the connecting side.
//!
//! Received bytes go in by [`next`](Core::next), which gives one event after the other. Bytes to
//! be sent gather in [`unsent`](Core::unsent). The owner of the connection reads, writes, and has
//! a task for each request.
//!
//! The cost of a peer is bounded, whatever it sends:
//!
//! | what | bound |
//! |---|---|
//! | exchanges | [`Settings::max_streams`]: one counts until [`release`](Core::release), so that a reset makes no room for another while its work goes on |
//! | resets, of either side | 200 at once, 20 in a second, and one for four whole responses |
//! | frames that bring nothing | 1,000 at once, 100 in a second, and as many as requests and content earn |
//! | a block of fields | twice [`Settings::max_head`], in at most eight frames |
//! | heads as they are decoded, at a server | 64 KiB, and three times what came; further blocks wait |
//! | content that nobody reads | the windows |
//! | answers to frames | none while 64 KiB of them wait to be sent |

pub mod client;
mod incoming;
mod outgoing;
mod role;
pub mod server;

use std::collections::VecDeque;

use super::budget::Budget;
use super::frame::{
    ErrorCode, FrameHead, FrameKind, HEAD_LEN, PAYLOAD_MAX, PREFACE, Setting, WINDOW_FIRST,
    WINDOW_MAX, flags,
};
use super::stream::{Direction, Priority, Stream, StreamId, Streams};
use crate::hpack::{Decoder, TABLE_SIZE, encode};
pub use role::Role;
use role::Room;

/// Most bytes of answers that wait to be sent when a frame is to be answered.
const REPLIES_MAX: usize = 64 * 1024;
/// Streams that were reset here, for which frames may still come.
const RESET_MAX: usize = 512;
/// Frames of one block of fields.
const BLOCK_FRAMES_MAX: u32 = 8;
/// Resets at once, and in a second.
const RESETS: (u32, u32) = (200, 20);
/// Frames without effect: at once, and in a second.
const IDLE_FRAMES: (u32, u32) = (1000, 100);
/// Bytes of content that earn one such frame.
const CONTENT_PER_FRAME: u32 = 1024;
/// Frames without effect that anything sent earns: an update of each window, and a PING by which
/// the peer measures the round trip.
const FRAMES_EARNED: u32 = 3;
/// Whole responses that earn a reset.
const RESPONSES_PER_RESET: u32 = 4;
/// Most bytes that are read before the peer gets a window update.
const CREDIT_MAX: u32 = 1 << 19;

/// The limits that the peer is told and held to. The defaults are those of a server.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Largest head that it may send, in bytes, with 32 for each field.
    pub max_head: u32,
    /// Requests that may be in flight.
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
            // As much as all streams: none that stalls takes it from others.
            connection_window: 100 * WINDOW_FIRST,
        }
    }
}

/// The peer has broken the protocol, or costs too much. The GOAWAY is among the unsent bytes. The
/// owner closes the connection once they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fatal {
    /// The code that the peer gets.
    pub code: ErrorCode,
    /// The offence.
    pub why: &'static str,
}

/// The peer's settings.
#[derive(Debug)]
struct Peer {
    initial_window: u32,
    max_frame: u32,
    /// Whether its decoder has a smaller table than at first: the next block says that it
    /// is not used (RFC 9113 §4.3.1).
    shrank_table: bool,
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
    /// Whether an exchange wants it.
    is_wanted: bool,
}

/// The payload of a frame.
enum Payload<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
}

/// The outcome of a frame.
type FrameResult<R> = Result<Option<<R as Role>::Event>, Fatal>;

/// A connection of HTTP/2: the common part of both ends.
#[derive(Debug)]
pub struct Core<R> {
    role: R,
    settings: Settings,
    peer: Peer,
    decoder: Decoder,
    /// Bytes of the preface that are still to come.
    preface_left: usize,
    /// Whether the peer has sent its settings.
    has_settings: bool,
    /// A frame that has come in part.
    partial: Vec<u8>,
    gathering: Option<Gathering>,
    coming: Option<Coming>,
    streams: Streams,
    /// The last stream that was opened.
    last_stream: StreamId,
    /// The last stream of the peer that is served, once there is one.
    goes_away: Option<StreamId>,
    were_reset: VecDeque<StreamId>,
    /// Bytes of content that may still come for streams which an exchange has left.
    late: u64,
    receive_window: i64,
    uncredited: u32,
    send_window: i64,
    /// `None` at an end whose resets are all of streams that it has opened.
    resets: Option<Budget>,
    idle_frames: Budget,
    now_ms: u64,
    /// Frames that came, as far as they were taken.
    frames: u64,
    /// Bytes that came.
    received: u64,
    /// Bytes of heads and trailers that were decoded, of streams that were not released.
    held: usize,
    /// Responses that were whole.
    completed: u32,
    unsent: Vec<u8>,
    /// At most so many bytes among the unsent are answers to frames.
    replies: usize,
    /// The last unsent frame, if it is of a stream and can carry its end: the stream, and where
    /// the frame begins.
    last_frame: Option<(StreamId, usize)>,
    /// How often a stream had its turn to send.
    turns: u64,
}

impl<R: Role> Core<R> {
    fn begin(role: R, settings: Settings, resets: Option<Budget>) -> Self {
        Core {
            role,
            settings,
            peer: Peer {
                initial_window: WINDOW_FIRST,
                max_frame: PAYLOAD_MAX,
                shrank_table: false,
            },
            decoder: Decoder::default(),
            preface_left: 0,
            has_settings: false,
            partial: Vec::new(),
            gathering: None,
            coming: None,
            streams: Streams::default(),
            last_stream: 0,
            goes_away: None,
            were_reset: VecDeque::new(),
            late: 0,
            receive_window: i64::from(settings.connection_window.max(WINDOW_FIRST)),
            uncredited: 0,
            send_window: i64::from(WINDOW_FIRST),
            resets,
            idle_frames: Budget::new(IDLE_FRAMES.0, IDLE_FRAMES.1),
            now_ms: 0,
            frames: 0,
            received: 0,
            held: 0,
            completed: 0,
            unsent: Vec::new(),
            replies: 0,
            last_frame: None,
            turns: 0,
        }
    }

    /// Sends the settings: `own`, and the ones that both ends send.
    fn push_settings(&mut self, own: &[Setting]) {
        let mut payload = Vec::new();
        let shared = [
            Setting::InitialWindowSize(self.settings.stream_window),
            Setting::MaxHeaderListSize(self.settings.max_head),
            Setting::NoRfc7540Priorities(true),
        ];
        for setting in own.iter().chain(&shared) {
            setting.push(&mut payload);
        }
        self.push_frame(FrameKind::Settings, 0, 0, &payload);
        let window = self.settings.connection_window;
        let more = window.saturating_sub(WINDOW_FIRST);
        if more > 0 {
            self.push_frame(FrameKind::WindowUpdate, 0, 0, &more.to_be_bytes());
        }
    }

    /// A stream that has just begun.
    fn new_stream(&mut self) -> Stream {
        self.turns += 1;
        Stream {
            incoming: Direction::Open,
            outgoing: Direction::Open,
            content: Vec::new(),
            read: 0,
            trailers: Vec::new(),
            receive_window: i64::from(self.settings.stream_window),
            uncredited: 0,
            send_window: i64::from(self.peer.initial_window),
            expected: None,
            waits: false,
            turn: self.turns,
            priority: Priority::UNTOLD,
            awaited: None,
            is_cancelled: false,
            is_deferred: false,
            held: 0,
        }
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
        self.replies = self.replies.min(self.unsent.len());
        let last = self.last_frame;
        self.last_frame = last.and_then(|(id, at)| Some((id, at.checked_sub(len)?)));
    }

    /// Gives memory back that it does not need while nothing goes on.
    pub fn shrink(&mut self) {
        let unsent = (self.unsent.is_empty(), &mut self.unsent);
        let partial = (self.partial.is_empty(), &mut self.partial);
        for (is_empty, buffer) in [unsent, partial] {
            if is_empty {
                *buffer = Vec::new();
            }
        }
        self.role.shrink();
        self.streams.shrink();
    }

    /// Whether a frame, a block of fields or the beginning of the connection has come in part.
    /// The peer owes the rest.
    pub fn awaits_rest(&self) -> bool {
        let has_begun = self.preface_left == 0 && self.has_settings;
        !has_begun || !self.partial.is_empty() || self.gathering.is_some()
    }

    /// Frames that came so far: of DATA their heads.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The last stream that was opened; 0 before the first one.
    pub fn last_stream(&self) -> StreamId {
        self.last_stream
    }

    /// Exchanges that were not released.
    pub fn in_flight(&self) -> usize {
        self.streams.len() - R::deferred(self)
    }

    /// Bytes of memory that it holds for received and for unsent data.
    pub fn memory(&self) -> usize {
        let gathering = self.gathering.as_ref();
        self.unsent.capacity()
            + self.partial.capacity()
            + gathering.map_or(0, |it| it.bytes.capacity())
            + self.decoder.memory()
            + self.streams.memory()
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
        room: &mut impl FnMut() -> Room<R>,
    ) -> Result<Option<R::Event>, Fatal> {
        self.now_ms = now_ms;
        let before = input.len();
        let event = self.read(input, room);
        self.received += (before - input.len()) as u64;
        if let Err(fatal) = &event {
            self.go_away(fatal.code);
        }
        event
    }

    fn read(&mut self, input: &mut &[u8], room: &mut impl FnMut() -> Room<R>) -> FrameResult<R> {
        self.take_preface(input)?;
        loop {
            if let Some(event) = R::pending(self, room)? {
                return Ok(Some(event));
            }
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
            self.frames += 1;
            let payload = match &payload {
                Payload::Borrowed(payload) => payload,
                Payload::Owned(frame) => frame.get(HEAD_LEN..).unwrap_or_default(),
            };
            if let Some(event) = self.take(head, payload, room)? {
                return Ok(Some(event));
            }
        }
    }

    /// Takes the preface, the first bytes of a client of HTTP/2.
    fn take_preface(&mut self, input: &mut &[u8]) -> Result<(), Fatal> {
        let wanted = &PREFACE[PREFACE.len() - self.preface_left..];
        let len = wanted.len().min(input.len());
        if wanted[..len] != input[..len] {
            return Err(protocol("no preface at the beginning"));
        }
        *input = &input[len..];
        self.preface_left -= len;
        Ok(())
    }

    /// Takes the next frame off; of DATA its head alone. `None` where it is not whole: the
    /// received part is kept.
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
            "a frame inside a block of fields that does not belong to it",
        ))
    }

    fn take(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &mut impl FnMut() -> Room<R>,
    ) -> FrameResult<R> {
        let is_of_connection = matches!(
            head.kind,
            FrameKind::Settings | FrameKind::Ping | FrameKind::GoAway | FrameKind::PriorityUpdate
        );
        let may_be_both = matches!(head.kind, FrameKind::WindowUpdate | FrameKind::Unknown);
        if !may_be_both && is_of_connection != (head.stream == 0) {
            return Err(protocol("a frame on a stream that does not allow it"));
        }
        if !self.has_settings && head.kind != FrameKind::Settings {
            return Err(protocol("the first frame is not SETTINGS"));
        }
        match head.kind {
            FrameKind::Data => self.begin_content(head, payload),
            FrameKind::Headers => self.take_headers(head, payload, room),
            FrameKind::Continuation => self.take_continuation(head, payload, room),
            FrameKind::Priority => self.take_priority(head, payload),
            FrameKind::RstStream => self.take_reset(head, payload),
            FrameKind::Settings => self.take_settings(head, payload),
            FrameKind::PushPromise => Err(protocol("PUSH_PROMISE, which is not allowed")),
            FrameKind::Ping => self.take_ping(head, payload),
            FrameKind::GoAway => self.take_go_away(payload),
            FrameKind::WindowUpdate => self.take_window(head, payload),
            FrameKind::PriorityUpdate => {
                self.spend_frame()?;
                R::take_priority_update(self, payload).map(|()| None)
            }
            FrameKind::Unknown => self.spend_frame().map(|()| None),
        }
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
mod joined;
#[cfg(test)]
mod tests;
