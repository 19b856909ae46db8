//! Reads the head of an endpoint's response, and decides on the form for the client.

use std::cell::RefMut;
use std::io;

use evenkeel_proto::http1::recode::{Recoding, recode_head};
use evenkeel_proto::http1::write::{Persistence, ResponseEdits, Transcode};
use evenkeel_proto::http1::{Parsed, parse_odd_response, parse_response};
use evenkeel_proto::representation::Codable;
use evenkeel_proto::{BodyFraming, ResponseError, ResponseHead, Version};

use super::{Attempt, Retry, Sending, Sent};
use crate::config::{FieldEdit, ResponseCompression};
use crate::exchange::body::{BodySink, BodySource, TAILROOM};
use crate::exchange::compression::{Decision, ResponseFacts};
use crate::exchange::edits::edit_response;
use crate::exchange::identity::{ROOM, Room};
use crate::exchange::pace::Verdict;
use crate::exchange::pump::HEADROOM;
use crate::exchange::relay::Response;
use crate::exchange::side::ReplacedHead;
use crate::exchange::sticky::new_cookie;
use crate::exchange::{ClientSide, Exchange, WriteFailure};
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::stream::Follow;
use crate::observe::counters::status_class;
use crate::upstream;
use crate::upstream::http2::Fault;

/// Longest response head, in bytes.
const MAX_RESPONSE_HEAD_LEN: usize = 64 * 1024;

/// Interim responses of an attempt.
#[derive(Default)]
pub(super) struct Interim {
    pub count: u32,
    pub bytes: u32,
    /// Whether the client got a 100 (Continue) for its body.
    pub is_continued: bool,
}

/// The meaning of the bytes received so far.
pub(super) enum Received {
    Partial,
    /// A 1xx head of this length at the front of the buffer, to be forwarded.
    Interim(usize),
    /// The response's head at the front of the buffer, and a part of its body.
    Final(Response),
    /// An upgrade: a head of this length at the front of the buffer, and the first bytes of the
    /// tunnel.
    Tunnel(usize),
}

impl Sent<'_, '_> {
    /// Handles the result of a read of the response.
    pub(super) fn receive(
        &self,
        read: io::Result<usize>,
        buffer: &mut Buffer,
    ) -> Result<Received, Attempt> {
        match read {
            Err(error) if self.is_refused(&error) => return Err(self.refused()),
            Err(error) if let Some(fault) = Fault::of(&error) => {
                return Err(self.stream_failed(fault, buffer));
            }
            Ok(len) if len > 0 => {
                buffer.fill(len);
                self.counters.bytes_in.add(len as u64);
            }
            // Leading empty lines are no start of a response.
            _ if buffer.filled().iter().all(u8::is_ascii_whitespace) => {
                return Err(self.lost_connection(Sending::Something));
            }
            _ => return Err(Attempt::failed(Failure::UpstreamClosed)),
        }
        self.parse_counted(buffer)
            .map_err(|end| self.unreadable(end))
    }

    /// The end of a stream without a response, on an HTTP/2 connection that continues. `buffer`
    /// has the bytes that came before.
    #[cold]
    fn stream_failed(&self, fault: Fault, buffer: &Buffer) -> Attempt {
        match fault {
            Fault::Untouched => self.untouched(Retry::Untouched),
            Fault::Ended => self.untouched(Retry::Ended),
            Fault::Cut(_) if buffer.is_empty() => self.cut_off(),
            Fault::Cut(_) => Attempt::failed(Failure::UpstreamClosed),
            Fault::Request(why) => Attempt::failed(why),
            Fault::Malformed(why) => {
                self.count_status(0);
                self.unreadable(why.into())
            }
        }
    }

    fn parse_counted(&self, buffer: &mut Buffer) -> Result<Received, End> {
        self.parse(buffer).inspect_err(|_| {
            self.count_status(0);
            self.exchange
                .context
                .failures
                .note_evidence(buffer.filled());
        })
    }

    /// Parses a head at the front of `buffer`, and replaces it by the client's head.
    fn parse(&self, buffer: &mut Buffer) -> Result<Received, End> {
        let request = self.request.head;
        let head = &mut *self.exchange.context.response_head.borrow_mut();
        let parsed = match parse_response(buffer.filled(), request.method, head) {
            Err(_) => self.parse_odd(buffer, head)?,
            Ok(parsed) => parsed,
        };
        if parsed == Parsed::Partial {
            if buffer.len() >= MAX_RESPONSE_HEAD_LEN {
                return Err(ResponseError::HeadTooLarge.into());
            }
            if buffer.room().len() <= TAILROOM {
                // This is a small buffer, as too many large ones are in use.
                buffer.enlarge(HEADROOM + MAX_RESPONSE_HEAD_LEN + TAILROOM, HEADROOM);
            }
            return Ok(Received::Partial);
        }
        match head.status {
            101 if request.wire.upgrade.is_none() => Err(ResponseError::Upgrade.into()),
            101 => {
                let len = self.replace_head(buffer, head, Persistence::Upgrade)?;
                Ok(Received::Tunnel(len))
            }
            100..200 => {
                let len = self.replace_head(buffer, head, Persistence::Keep)?;
                Ok(Received::Interim(len))
            }
            _ => self.prepare(buffer, head).map(Received::Final),
        }
    }

    /// The head for the client, in place of the endpoint's head in `bytes`. It has the route's
    /// edits, a sticky cookie if the client needs one, and the remaining quotas of limits where
    /// configured.
    fn client_head(
        &self,
        bytes: &[u8],
        head: &ResponseHead,
        edits: ResponseEdits<'_>,
    ) -> ReplacedHead<'_> {
        let Exchange { context, side, .. } = &*self.exchange;
        let replaced = side.response_head(context, bytes, head, edits);
        let endpoint = self.slot.id();
        let cookie = new_cookie(self.exchange, self.slot.upstream(), endpoint);
        let mut added = cookie.unwrap_or_default();
        self.exchange.push_limit_fields(&mut added);
        match self.exchange.response_edits() {
            None if added.is_empty() => replaced,
            edits => {
                let rest = &bytes[replaced.len..head.wire.end];
                let edits = edits.unwrap_or_default();
                let by = self.edited(replaced.by, rest, edits, &added);
                ReplacedHead {
                    len: head.wire.end,
                    by: Some(by),
                }
            }
        }
    }

    /// Makes the edits last. So the endpoint's `Connection` can't remove an edited field as
    /// hop-by-hop.
    #[cold]
    fn edited<'c>(
        &'c self,
        front: Option<RefMut<'c, Vec<u8>>>,
        rest: &[u8],
        edits: &[FieldEdit],
        added: &[u8],
    ) -> RefMut<'c, Vec<u8>> {
        let mut out = front.unwrap_or_else(|| {
            let mut scratch = self.exchange.context.scratch.borrow_mut();
            scratch.clear();
            scratch
        });
        let mut own = self.exchange.context.unedited.borrow_mut();
        own.clear();
        own.extend_from_slice(&out);
        own.extend_from_slice(rest);
        out.clear();
        edit_response(&mut out, &own, self.exchange, edits);
        let fields_end = out.len() - b"\r\n".len();
        out.truncate(fields_end);
        out.extend_from_slice(added);
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Decides whether the body gets a content coding.
    #[cold]
    fn decide_coding(
        &self,
        settings: &ResponseCompression,
        bytes: &[u8],
        head: &ResponseHead,
    ) -> Decision {
        let fields = head.fields.iter();
        let fields = fields.map(|it| (it.name.of(bytes), it.value.of(bytes)));
        let response = ResponseFacts {
            status: head.status,
            fields: Codable::of(fields),
            len: match head.wire.framing {
                BodyFraming::Length { bytes } => Some(bytes),
                _ => None,
            },
        };
        let has_body = head.wire.framing != BodyFraming::None;
        match self.exchange.decide_coding(settings, response) {
            Decision::Body(_) if !has_body => Decision::AsItIs,
            decision => decision,
        }
    }

    /// The client's head for a body that has, or could have, a content coding. `head` is the
    /// endpoint's, and `replaced` is its form for the client.
    #[cold]
    fn recoded<'c>(
        &'c self,
        replaced: ReplacedHead<'c>,
        head: &[u8],
        recoding: Recoding,
    ) -> ReplacedHead<'c> {
        let mut own = self.exchange.context.unedited.borrow_mut();
        own.clear();
        own.extend_from_slice(replaced.by.as_ref().map_or(&[][..], |it| &it[..]));
        own.extend_from_slice(&head[replaced.len..]);
        let scratch = || self.exchange.context.scratch.borrow_mut();
        let mut out = replaced.by.unwrap_or_else(scratch);
        out.clear();
        recode_head(&mut out, &own, recoding);
        ReplacedHead {
            len: head.len(),
            by: Some(out),
        }
    }

    /// Parses an odd but unambiguous head at the front of `buffer`, and corrects it.
    #[cold]
    fn parse_odd(&self, buffer: &mut Buffer, head: &mut ResponseHead) -> Result<Parsed, End> {
        let method = self.request.head.method;
        let scratch = &mut *self.exchange.context.scratch.borrow_mut();
        match parse_odd_response(buffer.filled(), method, head, scratch)? {
            Some(len) => {
                buffer.skip(len);
                prepend_head(buffer, scratch)?;
                Ok(Parsed::Complete)
            }
            None => Ok(Parsed::Partial),
        }
    }

    /// Decides on the form of the response for the client, and takes the part of its body that
    /// came with the head.
    fn prepare(&self, buffer: &mut Buffer, head: &ResponseHead) -> Result<Response, End> {
        let side = &self.exchange.side;
        let decision = match self.exchange.compression() {
            None => Decision::AsItIs,
            Some(settings) => self.decide_coding(settings, buffer.filled(), head),
        };
        let coding = decision.coding();
        let sink = match coding {
            None => side.body_sink(self.request.head, head.wire.framing),
            // Plain content for the encoder.
            Some(_) => BodySink::http1(Transcode::Strip),
        };
        let transcode = sink.transcode();
        let ends_with_connection = match coding {
            None => side.ends_with_connection(transcode, head.wire.framing),
            Some(_) => !self.request.head.version.knows_chunks(),
        };
        let rest_of_request = self.rest_of_body();
        let persistence = if ends_with_connection {
            Persistence::Close
        } else {
            self.exchange.persistence(rest_of_request)
        };
        let is_event_stream = is_event_stream(head, buffer.filled());
        let mut room = ROOM;
        let edits = ResponseEdits {
            transcode,
            persistence,
            request_id: self.response_id(&mut room),
            strict_transport: self.exchange.strict_transport(),
        };
        let decoder = self.exchange.response_decoder(head.wire.framing);
        let mut source = BodySource::http1(decoder);
        self.slot.upstream().note_body_len(source.unseen_len());
        let malformed = |_| End::Failure(Failure::UpstreamBody);
        let bytes = buffer.filled();
        if let Some(effect) = (self.exchange.rare.as_ref()).and_then(|it| it.cache_effect.as_ref())
        {
            effect.apply(self.exchange, bytes, head);
        }
        let mut replaced = self.client_head(bytes, head, edits);
        if let Some(recoding) = decision.recoding(self.request.head.version) {
            replaced = self.recoded(replaced, &bytes[..head.wire.end], recoding);
        }
        // A head with `Keep-Alive` is always replaced.
        let keep_alive = if replaced.len == head.wire.end {
            upstream::keep_alive(head, bytes)
        } else {
            None
        };
        buffer.skip(head.wire.end);
        let body_len = source.take(buffer, &sink).map_err(malformed)?;
        let mut head_len = head.wire.end - replaced.len;
        buffer.restore(head_len);
        if let Some(scratch) = replaced.by {
            head_len += scratch.len();
            prepend_head(buffer, &scratch)?;
        }
        let ready = head_len + body_len;
        let has_surplus = source.is_done() && buffer.len() > ready;
        if has_surplus {
            buffer.truncate(ready);
        }
        self.count_status(head.status);
        Ok(Response {
            status: head.status,
            is_event_stream,
            coding,
            head_len,
            ready,
            sent: 0,
            source,
            sink: sink.followed_by(self.exchange.follow(persistence)),
            persistence,
            ends_with_connection,
            rest_of_request,
            keeps_upstream: head.wire.keep_alive && !has_surplus,
            keep_alive,
        })
    }

    /// Replaces the endpoint's head by the client's. Returns its length.
    fn replace_head(
        &self,
        buffer: &mut Buffer,
        head: &ResponseHead,
        persistence: Persistence,
    ) -> Result<usize, End> {
        let mut room = ROOM;
        let request_id = match persistence {
            Persistence::Upgrade => self.response_id(&mut room),
            // Only the final response has this field.
            _ => None,
        };
        let edits = ResponseEdits {
            transcode: Transcode::Raw,
            persistence,
            request_id,
            strict_transport: match persistence {
                Persistence::Upgrade => self.exchange.strict_transport(),
                _ => None,
            },
        };
        let replaced = match persistence {
            Persistence::Upgrade => self.client_head(buffer.filled(), head, edits),
            _ => {
                let Exchange { context, side, .. } = &*self.exchange;
                side.response_head(context, buffer.filled(), head, edits)
            }
        };
        buffer.skip(head.wire.end);
        let Some(scratch) = replaced.by else {
            return Ok(0);
        };
        prepend_head(buffer, &scratch)?;
        Ok(scratch.len())
    }

    fn response_id<'r>(&self, room: &'r mut Room) -> Option<&'r [u8]>
    where
        Self: 'r,
    {
        self.exchange
            .progress
            .identity
            .response_id(self.request.bytes, room)
    }

    pub(super) fn count_status(&self, status: u16) {
        self.counters.status[status_class(status)].add(1);
    }

    /// Forwards interim responses until another message arrives. HTTP/1.0 has none (RFC 9110
    /// §15.2).
    ///
    /// Invariant: the number of interim responses, their bytes and the exchange's deadline are
    /// limited, so an endpoint can't send them without end.
    pub(super) async fn pass_interim(
        &mut self,
        mut received: Received,
        buffer: &mut Buffer,
    ) -> Result<Received, End> {
        while let Received::Interim(len) = received {
            self.count_interim(len)?;
            if self.is_too_late() {
                return Err(self.timed_out());
            }
            if self.interim.is_continued
                && let Some(pump) = self.pump.as_deref_mut()
            {
                // Now the client has to send.
                pump.pace.go_on();
            }
            // The endpoint is alive: the wait for the response restarts.
            self.set_timeout();
            if self.request.head.version != Version::Http10 {
                let Exchange { side, progress, .. } = &mut *self.exchange;
                let head = &buffer.filled()[..len];
                let taken = side.begin_response(progress, head);
                let head = &head[taken..];
                // The timer is already set for the wait for the final response.
                let passing = self.exchange.write_all(head, 0, Follow::Anything, None);
                let (sent, written) = passing.await;
                let figures = &mut self.exchange.progress.figures;
                figures.bytes_out += sent as u64;
                figures.has_half_head |= written == Err(WriteFailure::TimedOut);
                written.map_err(|why| self.exchange.write_failed(why))?;
            }
            buffer.skip(len);
            if buffer.is_empty() {
                return Ok(Received::Partial);
            }
            if buffer.room().len() <= TAILROOM {
                // Forwarded heads have used up its front.
                let mut fresh = response_buffer(self.exchange);
                let fits = buffer.len() + 2 * TAILROOM <= fresh.room().len();
                if fits && fresh.append(buffer.filled()) {
                    *buffer = fresh;
                }
            }
            received = self.parse_counted(buffer)?;
        }
        Ok(received)
    }

    /// Whether the wait for the response is over. The end of a window of the client's pace does
    /// not count.
    fn is_too_late(&mut self) -> bool {
        let context = self.exchange.context;
        let has_fired = self.exchange.has_timed_out();
        let Some(pump) = self.pump.as_deref_mut().filter(|_| has_fired) else {
            return has_fired;
        };
        // The next wait detects a slow client.
        pump.judge_by(context, &self.exchange.timer) == Verdict::Silent
    }

    /// Counts the interim response with the last head, and checks the upstream's limits.
    fn count_interim(&mut self, len: usize) -> Result<(), End> {
        let most = self.slot.upstream().config().interim;
        let interim = &mut self.interim;
        interim.is_continued |= self.exchange.context.response_head.borrow().status == 100;
        interim.count += 1;
        interim.bytes = interim.bytes.saturating_add(len as u32);
        if interim.count > most.count || u64::from(interim.bytes) > most.bytes {
            Err(Failure::UpstreamInterim.into())
        } else {
            Ok(())
        }
    }
}

/// Whether a response carries events as they happen (HTML, server-sent events). The time of the
/// first event then says nothing of the endpoint.
pub(super) fn is_event_stream(head: &ResponseHead, bytes: &[u8]) -> bool {
    // Event streams have no length.
    if matches!(
        head.wire.framing,
        BodyFraming::None | BodyFraming::Length { .. }
    ) {
        return false;
    }
    let mut fields = head.fields.iter();
    let of_type = fields.find(|field| field.is_named(b"content-type", bytes));
    of_type.is_some_and(|field| field.value.of(bytes).starts_with(b"text/event-stream"))
}

/// Puts a head in front of the first part of its body.
fn prepend_head(buffer: &mut Buffer, head: &[u8]) -> Result<(), End> {
    if buffer.headroom() < head.len() {
        // Edits may make a head longer than the usual headroom.
        let headroom = HEADROOM + head.len();
        buffer.enlarge(headroom + buffer.len() + 2 * TAILROOM, headroom);
    }
    if buffer.prepend(head) {
        Ok(())
    } else {
        Err(ResponseError::HeadTooLarge.into())
    }
}

/// Usual growth of a head by edits, in bytes; more needs a larger buffer.
const EDITS_ROOM: usize = 1024;

pub(super) fn response_buffer(exchange: &Exchange<'_>) -> Buffer {
    // The buffer may be held while other streams of the client's connection have a turn.
    let mut buffer = match &exchange.side {
        ClientSide::Http2(_) => Buffer::small(),
        _ => Buffer::large(),
    };
    let has_edits = exchange.response_edits().is_some();
    let is_edited = has_edits || exchange.sticky().is_some() || exchange.tells_limits();
    let room = if is_edited { EDITS_ROOM } else { 0 };
    buffer.clear_with_headroom(HEADROOM + room);
    buffer
}
