//! One attempt at one endpoint: connect, send, wait for the response's head,
//! then relay it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use evenkeel_policy::Instant;
use evenkeel_proto::http1::write::{self, ClientInfo, Persistence, Scheme, Transcode};
use evenkeel_proto::http1::{BodyDecoder, Parsed, parse_response};
use evenkeel_proto::{BodyFraming, ResponseError, ResponseHead, Version};

use super::buffering::{Pace, Rest, Verdict, response_bound};
use super::drain::Body;
use super::forward::{Connection, Outcome, Request};
use super::identity::{ROOM, Room};
use super::pump::{HEADROOM, Pump, PumpEnd, SPLICED_MIN, TAILROOM, Unread, WaitsFor, decode_front};
use super::relay::{self, Relay, Relayed, Response, TunnelStart};
use super::room::with_descriptor;
use super::watch::ClientWatch;
use super::{
    Client, Context, Next, Progress, Sender, TimedOut, WriteFailure, follow, lap, rare, write_all,
};
use crate::config::UpstreamTimeouts;
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::net::connect::{is_backlog_full, is_unreachable, reason};
use crate::net::stream::{Follow, Stream};
use crate::observe::access_log::Phase;
use crate::observe::counters::{EndpointCounters, status_class};
use crate::observe::end::{End, Failure};
use crate::observe::sessions::Stage;
use crate::upstream::Slot;

/// Longest response head that is read, in bytes.
const MAX_RESPONSE_HEAD_LEN: usize = 64 * 1024;

/// What is read of a response with its head where a long one is to be expected,
/// in bytes: the rest need not be copied.
const SHORT_READ_LEN: usize = 16 * 1024;
/// Bodies from this length on are long ones.
const LONG_LEN: u64 = SHORT_READ_LEN as u64 + SPLICED_MIN;

/// What came of an attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    /// A response was relayed, whole or not.
    Finished(Outcome),
    /// No response has begun.
    Failed {
        /// What to answer if there is no further attempt.
        end: End,
        /// Whether there may be one.
        retry: Retry,
        /// Whether the endpoint is to blame, and has not been yet.
        is_blamed: bool,
        /// The rest of the request, if more was read than came with its head.
        unread: Option<Box<Unread>>,
    },
}

/// Whether and where a failed attempt may be repeated (RFC 9110 §9.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// The endpoint may have acted on the request.
    Never,
    /// Only the connection was at fault.
    OnNewConnection,
    /// At an endpoint not tried yet.
    Elsewhere,
    /// At any endpoint with room: the backlog was full, and nothing was sent.
    WhereThereIsRoom,
}

impl Attempt {
    fn failed(end: impl Into<End>) -> Self {
        let end = end.into();
        Attempt::Failed {
            end,
            retry: Retry::Never,
            is_blamed: end.is_endpoint_fault(),
            unread: None,
        }
    }

    /// There is no connection to the endpoint.
    fn not_opened(failure: Failure) -> Self {
        let retry = match failure {
            Failure::TotalTimeout | Failure::Stopped | Failure::ClientGone => Retry::Never,
            Failure::Saturated => Retry::WhereThereIsRoom,
            _ => Retry::Elsewhere,
        };
        Attempt::Failed {
            end: failure.into(),
            retry,
            is_blamed: false,
            unread: None,
        }
    }

    /// How it failed, if it did.
    fn end(&self) -> Option<End> {
        match self {
            Attempt::Finished(_) => None,
            Attempt::Failed { end, .. } => Some(*end),
        }
    }

    /// The same, with the rest of the request, and whether the failure says
    /// nothing of the endpoint.
    fn concluded(mut self, is_excused: bool, read: Option<Box<Unread>>) -> Self {
        if let Attempt::Failed {
            is_blamed, unread, ..
        } = &mut self
        {
            *is_blamed &= !is_excused;
            *unread = read;
        }
        self
    }
}

/// The endpoint's side while its response is awaited.
struct Sent<'a, 'b> {
    context: &'a Context,
    slot: &'a Slot<'a>,
    /// Of the endpoint that the slot is at.
    counters: &'a EndpointCounters,
    request: &'a Request<'b>,
    stream: Stream,
    is_reused: bool,
    /// The rest of the request, while there is some that was not written; the
    /// endpoint may take no more of it.
    pump: Option<Box<Pump>>,
    /// The interim responses so far.
    interim: Interim,
    /// When all of the request that was there had been sent.
    sent_at: Instant,
    /// What was read beyond the request's body.
    leftover: Option<Buffer>,
    watch: &'a mut ClientWatch,
}

/// The interim responses of an attempt.
#[derive(Default)]
struct Interim {
    count: u32,
    bytes: u32,
    /// Whether the client was told to send its body (100).
    is_continued: bool,
}

/// What ended a wait for the response.
enum Event {
    Request(PumpEnd),
    /// What a read brought, behind what the buffer held before.
    Read(io::Result<usize>, Buffer),
    ClientGone,
    ClientSlow,
    TimedOut,
}

/// What the bytes received so far amount to.
enum Received {
    Partial,
    /// A 1xx head of this length at the front of the buffer, to be passed on.
    Interim(usize),
    /// The response's head at the front of the buffer, then some of its body.
    Final(Response),
    /// The endpoint changed protocols: a head of this length at the front of
    /// the buffer, then the tunnel's first bytes.
    Tunnel(usize),
}

/// How a response begins.
enum Begun {
    /// A head and what came of the body, in a buffer.
    Response(Response, Buffer),
    /// A head of this length and the tunnel's first bytes, in a buffer.
    Tunnel(usize, Buffer),
}

/// Makes one attempt.
///
/// # Cancellation
/// Dropping the future closes the endpoint's connection.
pub(super) fn attempt(
    context: &Context,
    client: &mut Client,
    slot: &Slot<'_>,
    request: &Request<'_>,
    connection: Connection,
    watch: &mut ClientWatch,
    progress: &mut Progress<'_>,
) -> impl Future<Output = Attempt> {
    async move {
        let mut sent = {
            let opened = match take_idle(context, slot, connection) {
                Some(stream) => Ok(Opened {
                    stream,
                    new_at: None,
                }),
                None => rare(open(context, client, slot, request, watch, progress)).await,
            };
            match opened {
                Ok(opened) => Sent::new(context, slot, request, opened, watch, progress),
                Err(failure) => return Attempt::not_opened(failure),
            }
        };
        progress.figures.phase = Phase::Response;
        if sent.send_head(client).is_err() {
            // The endpoint took none of it, so it can't have acted on it.
            return sent.lost_connection(Sending::Nothing);
        }
        sent.set_timeout(client);
        progress.track.enter(match sent.pump {
            Some(_) => Stage::Request,
            None => Stage::Wait,
        });
        let begun = sent.await_response(client, progress).await;
        let rest = match sent.answer_at_once(begun, client, progress) {
            Ok(attempt) => return attempt,
            Err(rest) => rest,
        };
        rest.await
    }
}

/// A connection to an endpoint.
struct Opened {
    stream: Stream,
    /// When it was opened, if it is new.
    new_at: Option<Instant>,
}

/// An idle connection, if one is there and may be used.
fn take_idle(context: &Context, slot: &Slot<'_>, connection: Connection) -> Option<Stream> {
    if connection == Connection::New {
        slot.make_room();
        return None;
    }
    let counters = endpoint_counters(context, slot);
    let reused = slot.take_idle();
    if reused.stale > 0 {
        counters.stale.add(reused.stale);
    }
    if reused.stream.is_some() {
        counters.reuses.add(1);
    }
    reused.stream
}

/// A new connection.
async fn open(
    context: &Context,
    client: &Client,
    slot: &Slot<'_>,
    request: &Request<'_>,
    watch: &mut ClientWatch,
    progress: &mut Progress<'_>,
) -> Result<Opened, Failure> {
    let counters = endpoint_counters(context, slot);
    let timeout = slot.upstream().config().timeouts.connect;
    let deadline = context.wheel.deadline(timeout).min(request.total_deadline);
    context.wheel.set(&client.timer, deadline);
    progress.track.enter(Stage::Connect);
    let mut reached_at = clock::now();
    let mut connecting = std::pin::pin!(with_descriptor(context, || slot.connect()));
    let connected = context.until_deadline(
        &client.timer,
        poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connected) => Poll::Ready(Some(connected)),
            // What still comes of the request can't be told from an end.
            Poll::Pending if request.is_whole() => {
                watch.poll_gone(cx, &client.stream).map(|()| None)
            }
            Poll::Pending => Poll::Pending,
        }),
    );
    let connected = connected.await;
    progress.figures.times.connect = Some(lap(&mut reached_at));
    let failure = match connected {
        Ok(None) => return Err(Failure::ClientGone),
        Ok(Some(Ok(stream))) => {
            counters.connects.add(1);
            slot.reached(reached_at);
            return Ok(Opened {
                stream,
                new_at: Some(reached_at),
            });
        }
        Ok(Some(Err(error))) => {
            if is_backlog_full(&error) {
                // Room may come about here or elsewhere: the endpoint is busy.
                return Err(Failure::Saturated);
            }
            if is_unreachable(&error) {
                slot.report_unreachable(&reason(&error), reached_at);
                Failure::ConnectFailed
            } else {
                Failure::NoSocket
            }
        }
        Err(TimedOut) => {
            let failure = context.timed_out(request.total_deadline, Failure::ConnectTimeout);
            // A backlog that stays full has been counted: see `Slot::connect`.
            if failure == Failure::ConnectTimeout && !slot.config().address.is_unix() {
                slot.report_unreachable("it did not answer in time", reached_at);
            }
            failure
        }
    };
    counters.connect_failures.add(1);
    Err(failure)
}

/// Counters of the endpoint that the slot is at.
pub(super) fn endpoint_counters<'a>(context: &'a Context, slot: &Slot<'_>) -> &'a EndpointCounters {
    &context.counters.upstreams[slot.upstream().index()].endpoints[slot.endpoint()]
}

/// How much of a request went to the endpoint before its connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Nothing,
    Something,
}

impl<'a, 'b> Sent<'a, 'b> {
    /// Nothing is sent yet.
    fn new(
        context: &'a Context,
        slot: &'a Slot<'a>,
        request: &'a Request<'b>,
        opened: Opened,
        watch: &'a mut ClientWatch,
        progress: &Progress<'_>,
    ) -> Self {
        Sent {
            context,
            slot,
            counters: endpoint_counters(context, slot),
            request,
            is_reused: opened.new_at.is_none(),
            stream: opened.stream,
            pump: None,
            interim: Interim::default(),
            // On an idle connection it is sent as soon as it is there.
            sent_at: match opened.new_at {
                Some(new_at) => new_at,
                None if progress.figures.attempts == 1
                    && progress.figures.times.queue.is_none() =>
                {
                    watch.request_end
                }
                None => clock::now(),
            },
            leftover: None,
            watch,
        }
    }

    /// Writes the head and what is there of the body; what does not go at once
    /// is left to a pump.
    ///
    /// # Errors
    /// The endpoint had closed the connection.
    fn send_head(&mut self, client: &Client) -> Result<(), ()> {
        let request = self.request;
        let mut scratch = self.context.scratch.borrow_mut();
        scratch.clear();
        let mut room = ROOM;
        let info = ClientInfo {
            address: client.address.map(|_| client.address_text.as_bytes()),
            scheme: Scheme::Http,
            marks: request.identity.marks(&mut room),
        };
        write::request_head(&mut scratch, request.bytes, request.head, info);
        scratch.extend_from_slice(&request.bytes[request.head.end..request.valid_len]);
        let sent = match self.stream.try_write(&scratch, Follow::Anything) {
            Some(Ok(len)) => len,
            Some(Err(_)) => return Err(()),
            None => 0,
        };
        self.counters.bytes_out.add(sent as u64);
        if sent < scratch.len() || !request.is_whole() {
            let limit = self.context.listener(client).limits.body_bytes;
            let rest = request.rest(&scratch[sent..]).with_limit(limit);
            let pace = Pace::of_request(self.slot.upstream(), request.head);
            let mut pump = rest.with_pace(pace);
            pump.moved_at = self.context.wheel.now();
            self.pump = Some(Box::new(pump));
        }
        Ok(())
    }

    /// What is read at once of the response, at most.
    fn read_len_max(&self) -> usize {
        match self.slot.upstream().last_body_len() < LONG_LEN {
            true => usize::MAX,
            false => SHORT_READ_LEN,
        }
    }

    fn timeouts(&self) -> &UpstreamTimeouts {
        &self.slot.upstream().config().timeouts
    }

    /// The pump of the rest of the request, while the endpoint takes it.
    fn pumping(&self) -> Option<&Pump> {
        self.pump.as_deref().filter(|pump| !pump.sink_is_closed())
    }

    /// Whether the client's connection can carry another request: the body of
    /// this one was read, or will be.
    fn will_be_read(&self, client: &Client) -> bool {
        let Some(pump) = &self.pump else { return true };
        let head = self.request.head;
        let is_awaited = !self.interim.is_continued
            && pump.bytes_read == 0
            && self.request.bytes.len() <= head.end;
        let body = match is_awaited && head.expect_continue {
            true => Body::MayNotCome,
            false => Body::Comes,
        };
        body.will_be_read(self.context, client, pump.decoder())
    }

    /// How long the present wait may take: for the client's body, for the
    /// endpoint to take it, or for its response.
    fn set_timeout(&mut self, client: &Client) {
        let timeout = match self.pumping().map(Pump::waits_for) {
            Some(WaitsFor::Source) => self.context.listener(client).timeouts.body,
            Some(WaitsFor::Sink) => self.timeouts().idle,
            None => self.timeouts().first_byte,
        };
        let wheel = &self.context.wheel;
        let deadline = wheel.deadline(timeout).min(self.request.total_deadline);
        let due = match self.pump.as_deref_mut() {
            Some(pump) => pump.wait(wheel, deadline),
            None => deadline,
        };
        wheel.set(&client.timer, due);
    }

    fn await_response(
        &mut self,
        client: &mut Client,
        progress: &mut Progress<'_>,
    ) -> impl Future<Output = Result<Begun, Attempt>> {
        async move {
            let mut held = None;
            loop {
                let went_on = match self.next_event(client, &mut held, progress).await {
                    Event::Request(end) => self.request_ended(client, end, progress),
                    Event::ClientGone => Err(Failure::ClientGone.into()),
                    Event::ClientSlow => Err(Failure::ClientSlow.into()),
                    Event::TimedOut => Err(self.timed_out()),
                    Event::Read(read, mut buffer) => {
                        let mut received = self.receive(client, read, &mut buffer)?;
                        if matches!(received, Received::Interim(_)) {
                            let passing =
                                self.pass_interim(client, received, &mut buffer, progress);
                            received = rare(passing).await.map_err(Attempt::failed)?;
                            let is_continued = self.interim.is_continued;
                            let pump = self.pump.as_deref_mut().filter(|_| is_continued);
                            if pump.is_some_and(|it| it.pace.go_on()) {
                                // It is the client's turn.
                                self.set_timeout(client);
                            }
                        }
                        if matches!(received, Received::Final(_) | Received::Tunnel(_)) {
                            let now = clock::now();
                            progress.figures.times.first_byte =
                                Some(now.duration_since(self.sent_at));
                            progress.figures.responded = Some(now);
                            progress.figures.phase = Phase::Data;
                        }
                        match received {
                            Received::Final(response) => {
                                return Ok(Begun::Response(response, buffer));
                            }
                            Received::Tunnel(len) => return Ok(Begun::Tunnel(len, buffer)),
                            Received::Partial | Received::Interim(_) => {
                                held = (!buffer.is_empty()).then_some(buffer);
                                Ok(())
                            }
                        }
                    }
                };
                went_on.map_err(Attempt::failed)?;
            }
        }
    }

    fn next_event(
        &mut self,
        client: &mut Client,
        held: &mut Option<Buffer>,
        progress: &Progress<'_>,
    ) -> impl Future<Output = Event> {
        poll_fn(move |cx| {
            if let Some(pump) = self.pump.as_mut().filter(|it| !it.sink_is_closed()) {
                let before = pump.progress();
                let polled = pump.poll(cx, &client.stream, &self.stream);
                let has_moved = pump.progress() != before;
                let bytes_in = progress.figures.bytes_in + pump.bytes_read;
                progress.track.set_bytes_in(bytes_in);
                if let Poll::Ready(end) = polled {
                    return Poll::Ready(Event::Request(end));
                }
                if has_moved {
                    pump.moved_at = self.context.wheel.now();
                    self.set_timeout(client);
                }
            }
            // Wait first, take a buffer then.
            if self.stream.poll_read_ready(cx).is_ready() {
                let mut buffer = held.take().unwrap_or_else(response_buffer);
                let room = buffer.room();
                let room_len = (room.len() - TAILROOM).min(self.read_len_max());
                match self.stream.poll_read(cx, &mut room[..room_len]) {
                    Poll::Ready(read) => return Poll::Ready(Event::Read(read, buffer)),
                    // There was nothing after all.
                    Poll::Pending => *held = (!buffer.is_empty()).then_some(buffer),
                }
            }
            if self.pumping().is_none() && self.watch.poll_gone(cx, &client.stream).is_ready() {
                return Poll::Ready(Event::ClientGone);
            }
            let wheel = &self.context.wheel;
            if !wheel.has_fired(&client.timer) {
                return Poll::Pending;
            }
            let Some(pump) = self.pump.as_deref_mut() else {
                return Poll::Ready(Event::TimedOut);
            };
            match pump.judge_by(wheel, &client.timer) {
                Verdict::Silent => Poll::Ready(Event::TimedOut),
                Verdict::Slow => Poll::Ready(Event::ClientSlow),
                Verdict::InTime => Poll::Pending,
            }
        })
    }

    /// The request's body is at its end, one way or another.
    fn request_ended(
        &mut self,
        client: &Client,
        end: PumpEnd,
        progress: &mut Progress<'_>,
    ) -> Result<(), End> {
        match end {
            PumpEnd::Done => {
                let Some(pump) = self.pump.take() else {
                    return Ok(());
                };
                self.count_pump(&pump, progress);
                progress.track.enter(Stage::Wait);
                progress.track.set_bytes_in(progress.figures.bytes_in);
                self.leftover = pump.into_leftover();
                // The next request's.
                progress.figures.bytes_in -= self.leftover.as_ref().map_or(0, Buffer::len) as u64;
                self.sent_at = clock::now();
                *self.watch = ClientWatch::new(self.sent_at);
            }
            // It may have answered before it closed.
            PumpEnd::SinkClosed => {}
            PumpEnd::SourceCut => return Err(Failure::ClientGone.into()),
            PumpEnd::Malformed(error) => return Err(error.into()),
            PumpEnd::TooLarge => return Err(Failure::BodyTooLarge.into()),
        }
        self.set_timeout(client);
        Ok(())
    }

    fn count_pump(&self, pump: &Pump, progress: &mut Progress<'_>) {
        progress.figures.bytes_in += pump.bytes_read;
        self.counters.bytes_out.add(pump.bytes_written);
    }

    fn timed_out(&self) -> End {
        let failure = match self.pumping().map(Pump::waits_for) {
            Some(WaitsFor::Source) => Failure::BodyTimeout,
            Some(WaitsFor::Sink) => Failure::UpstreamStalled,
            None => Failure::FirstByteTimeout,
        };
        let total_deadline = self.request.total_deadline;
        self.context.timed_out(total_deadline, failure).into()
    }

    /// Takes what a read brought of the response.
    fn receive(
        &self,
        client: &Client,
        read: io::Result<usize>,
        buffer: &mut Buffer,
    ) -> Result<Received, Attempt> {
        match read {
            Ok(len) if len > 0 => {
                buffer.fill(len);
                self.counters.bytes_in.add(len as u64);
            }
            _ if buffer.is_empty() => return Err(self.lost_connection(Sending::Something)),
            _ => return Err(Attempt::failed(Failure::UpstreamClosed)),
        }
        self.parse_counted(client, buffer).map_err(Attempt::failed)
    }

    fn parse_counted(&self, client: &Client, buffer: &mut Buffer) -> Result<Received, End> {
        self.parse(client, buffer).inspect_err(|_| {
            self.count_status(0);
            self.context.failures.note_evidence(buffer.filled());
        })
    }

    /// Looks for a head at the front of `buffer`, and puts the one that the
    /// client gets in its place.
    fn parse(&self, client: &Client, buffer: &mut Buffer) -> Result<Received, End> {
        let request = self.request.head;
        let head = &mut *self.context.response_head.borrow_mut();
        if parse_response(buffer.filled(), request.method, head)? == Parsed::Partial {
            if buffer.len() >= MAX_RESPONSE_HEAD_LEN {
                return Err(ResponseError::HeadTooLarge.into());
            }
            if buffer.room().len() <= TAILROOM {
                // A small one, because too many large ones are in use.
                buffer.enlarge(HEADROOM + MAX_RESPONSE_HEAD_LEN + TAILROOM, HEADROOM);
            }
            return Ok(Received::Partial);
        }
        match head.status {
            101 if request.upgrade.is_none() => Err(ResponseError::Upgrade.into()),
            101 => {
                let len = self.replace_head(buffer, head, Persistence::Upgrade)?;
                Ok(Received::Tunnel(len))
            }
            100..200 => {
                let len = self.replace_head(buffer, head, Persistence::Keep)?;
                Ok(Received::Interim(len))
            }
            _ => self.prepare(client, buffer, head).map(Received::Final),
        }
    }

    /// Decides how the response goes to the client, and takes the part of its
    /// body that came with the head.
    fn prepare(
        &self,
        client: &Client,
        buffer: &mut Buffer,
        head: &ResponseHead,
    ) -> Result<Response, End> {
        let request = self.request.head;
        let transcode = match (head.framing, request.version) {
            (BodyFraming::Chunked, Version::Http10) => Transcode::Strip,
            (BodyFraming::UntilClose, Version::Http11) => Transcode::Chunk,
            _ => Transcode::Raw,
        };
        let ends_with_connection = transcode == Transcode::Strip
            || (head.framing == BodyFraming::UntilClose && transcode == Transcode::Raw);
        let reads_request = self.will_be_read(client);
        let persistence = match ends_with_connection {
            true => Persistence::Close,
            false => self.context.persistence(request, reads_request),
        };
        let is_event_stream = is_event_stream(head, buffer.filled());
        let mut room = ROOM;
        let id = self.response_id(&mut room);
        let bytes = buffer.filled();
        let mut decoder = BodyDecoder::new(head.framing);
        self.slot.upstream().note_body_len(decoder.unseen_len());
        let malformed = |_| End::Failure(Failure::UpstreamBody);
        let (head_len, ready) =
            if write::is_response_head_kept(bytes, head, transcode, persistence, id) {
                let body = decoder.advance(&bytes[head.end..]).map_err(malformed)?;
                (head.end, head.end + body.consumed)
            } else {
                let scratch = &mut *self.context.scratch.borrow_mut();
                scratch.clear();
                write::response_head(scratch, bytes, head, transcode, persistence, id);
                buffer.skip(head.end);
                let body_len = decode_front(&mut decoder, transcode, buffer).map_err(malformed)?;
                prepend_head(buffer, scratch)?;
                (scratch.len(), scratch.len() + body_len)
            };
        let has_surplus = decoder.is_done() && buffer.len() > ready;
        if has_surplus {
            buffer.truncate(ready);
        }
        self.count_status(head.status);
        Ok(Response {
            status: head.status,
            is_event_stream,
            head_len,
            ready,
            sent: 0,
            decoder,
            transcode,
            persistence,
            ends_with_connection,
            reads_request,
            keeps_upstream: head.keep_alive && !has_surplus,
        })
    }

    /// Puts the client's head in the place of the endpoint's, and gives its
    /// length.
    fn replace_head(
        &self,
        buffer: &mut Buffer,
        head: &ResponseHead,
        persistence: Persistence,
    ) -> Result<usize, End> {
        let scratch = &mut *self.context.scratch.borrow_mut();
        scratch.clear();
        let mut room = ROOM;
        let id = match persistence {
            Persistence::Upgrade => self.response_id(&mut room),
            // An interim response: the final one says it.
            _ => None,
        };
        let transcode = Transcode::Raw;
        write::response_head(scratch, buffer.filled(), head, transcode, persistence, id);
        buffer.skip(head.end);
        prepend_head(buffer, scratch)?;
        Ok(scratch.len())
    }

    fn response_id<'r>(&self, room: &'r mut Room) -> Option<&'r [u8]>
    where
        Self: 'r,
    {
        self.request.identity.response_id(self.request.bytes, room)
    }

    fn count_status(&self, status: u16) {
        self.counters.status[status_class(status)].add(1);
    }

    /// Passes interim responses on until something else comes; HTTP/1.0 knows
    /// none (RFC 9110 §15.2).
    ///
    /// Invariant: an endpoint that sends them without end is stopped by their
    /// number, their bytes, or the deadline of the wait.
    async fn pass_interim(
        &mut self,
        client: &mut Client,
        mut received: Received,
        buffer: &mut Buffer,
        progress: &mut Progress<'_>,
    ) -> Result<Received, End> {
        while let Received::Interim(len) = received {
            self.count_interim(len)?;
            if self.is_too_late(client) {
                return Err(self.timed_out());
            }
            if self.request.head.version != Version::Http10 {
                let head = &buffer.filled()[..len];
                // The timer is that of the wait for the final response.
                let passing = write_all(self.context, client, head, Follow::Anything, None);
                let (sent, written) = passing.await;
                progress.figures.bytes_out += sent as u64;
                match written {
                    Ok(()) => {}
                    Err(WriteFailure::Closed) => return Err(Failure::ClientGone.into()),
                    Err(WriteFailure::TimedOut) => return Err(Failure::ClientStalled.into()),
                }
            }
            buffer.skip(len);
            if buffer.is_empty() {
                return Ok(Received::Partial);
            }
            if buffer.room().len() <= TAILROOM {
                // Its front is used up by heads that were passed on.
                let mut fresh = response_buffer();
                let fits = buffer.len() + 2 * TAILROOM <= fresh.room().len();
                if fits && fresh.append(buffer.filled()) {
                    *buffer = fresh;
                }
            }
            received = self.parse_counted(client, buffer)?;
        }
        Ok(received)
    }

    /// Whether the wait for the response is over. The end of a window by which the
    /// client's pace is judged is no such end.
    fn is_too_late(&mut self, client: &Client) -> bool {
        let wheel = &self.context.wheel;
        let has_fired = wheel.has_fired(&client.timer);
        let Some(pump) = self.pump.as_deref_mut().filter(|_| has_fired) else {
            return has_fired;
        };
        // A slow client is for the next wait to find.
        pump.judge_by(wheel, &client.timer) == Verdict::Silent
    }

    /// Counts the interim response whose head was parsed last, and holds it
    /// against the upstream's bounds.
    fn count_interim(&mut self, len: usize) -> Result<(), End> {
        let most = self.slot.upstream().config().interim;
        let interim = &mut self.interim;
        interim.is_continued |= self.context.response_head.borrow().status == 100;
        interim.count += 1;
        interim.bytes = interim.bytes.saturating_add(len as u32);
        match interim.count > most.count || u64::from(interim.bytes) > most.bytes {
            true => Err(Failure::UpstreamInterim.into()),
            false => Ok(()),
        }
    }

    /// The endpoint closed before the first byte of its response.
    fn lost_connection(&self, sending: Sending) -> Attempt {
        // What was read of the body beyond its first buffer is gone.
        let can_replay = match &self.pump {
            Some(pump) => pump.bytes_read == 0,
            None => sending == Sending::Nothing || self.request.is_whole(),
        };
        let is_allowed = sending == Sending::Nothing || self.request.head.method.is_idempotent();
        let retry = match (can_replay && is_allowed, self.is_reused) {
            (true, true) => Retry::OnNewConnection,
            (true, false) => Retry::Elsewhere,
            (false, _) => Retry::Never,
        };
        Attempt::Failed {
            end: Failure::UpstreamClosed.into(),
            retry,
            // A connection that had gone stale says nothing of the endpoint.
            is_blamed: !self.is_reused,
            unread: None,
        }
    }

    /// Sends the response, and ends the attempt where that takes no wait.
    ///
    /// # Errors
    /// What else there is to be done.
    fn answer_at_once<'c>(
        mut self,
        begun: Result<Begun, Attempt>,
        client: &'c mut Client,
        progress: &'c mut Progress<'_>,
    ) -> Result<Attempt, Pin<Box<dyn Future<Output = Attempt> + 'c>>>
    where
        Self: 'c,
    {
        match begun {
            Ok(Begun::Response(mut response, mut buffer)) => {
                self.report(&response, progress);
                match self.send_at_once(client, &mut response, &mut buffer) {
                    Some(relayed) => {
                        response.note(response.sent, progress);
                        Ok(self.finish(relayed))
                    }
                    None => Err(rare(self.relay(client, response, buffer, progress))),
                }
            }
            Ok(Begun::Tunnel(head_len, buffer)) => {
                Err(rare(self.tunnel(client, head_len, buffer, progress)))
            }
            Err(attempt) => {
                let is_excused = attempt.end().is_some_and(|end| self.is_excused(end));
                let unread = self.take_unread(progress);
                Ok(attempt.concluded(is_excused, unread))
            }
        }
    }

    /// Writes a response that is there as a whole; `None` if it is not, or the
    /// client does not take all of it now: the rest is for [`Self::relay`].
    fn send_at_once(
        &self,
        client: &Client,
        response: &mut Response,
        buffer: &mut Buffer,
    ) -> Option<Relayed> {
        if !response.decoder.is_done() || self.pump.is_some() {
            return None;
        }
        let bytes = &buffer.filled()[..response.ready];
        if let Some(Ok(len)) = client.stream.try_write(bytes, follow(response.persistence)) {
            response.ready -= len;
            response.sent += len as u64;
            buffer.consume(len);
        }
        (response.ready == 0).then(|| response.relayed(End::Complete))
    }

    async fn relay(
        mut self,
        client: &mut Client,
        response: Response,
        buffer: Buffer,
        progress: &mut Progress<'_>,
    ) -> Attempt {
        let upstream = self.slot.upstream();
        // Events are sent as they happen, however slowly.
        let (bound, pace) = match response.is_event_stream {
            true => (None, Pace::default()),
            false => (response_bound(upstream), Pace::of(upstream)),
        };
        if let Some(pump) = &mut self.pump
            && (response.is_event_stream || !response.reads_request)
        {
            // Nobody waits for the rest of the request.
            pump.pace = Pace::default();
        }
        let relay = Relay {
            context: self.context,
            timeouts: &self.slot.upstream().config().timeouts,
            stream: &mut self.stream,
            total_deadline: self.request.total_deadline,
            request: &mut self.pump,
            watch: self.watch,
            upstream,
            bound,
            pace,
        };
        let mut relayed = relay.response(client, response, buffer, progress).await;
        if let Some(pump) = self.pump.take() {
            let unread = self.unread_of(*pump, progress);
            let goes_on = matches!(relayed.next, Next::KeepAlive | Next::Close);
            if goes_on && relayed.end == End::Complete {
                relayed.unread = Some(Box::new(unread));
            }
        }
        match relayed.rest.take() {
            Some(rest) => self.deliver(relayed, rest, client, progress).await,
            None => self.finish(relayed),
        }
    }

    /// Gives the slot back, then sends what the client has yet to take of a
    /// response that is off the endpoint.
    ///
    /// Invariant: the connection is idle, or closed, before the slot is free.
    async fn deliver(
        self,
        relayed: Relayed,
        rest: Box<Rest>,
        client: &mut Client,
        progress: &mut Progress<'_>,
    ) -> Attempt {
        let (context, slot) = (self.context, self.slot);
        let total_deadline = self.request.total_deadline;
        let mut watch = ClientWatch::new(self.watch.request_end);
        let mut attempt = self.finish(relayed);
        slot.release();
        if let Attempt::Finished(outcome) = &mut attempt {
            let delivering = rest.deliver(
                context,
                client,
                &mut watch,
                total_deadline,
                outcome,
                progress,
            );
            delivering.await;
        }
        attempt
    }

    /// The rest of the request, if more was read than came with its head. Bytes on
    /// their way are lost, but were received and sent.
    #[cold]
    fn take_unread(&mut self, progress: &mut Progress<'_>) -> Option<Box<Unread>> {
        let unread = match self.pump.take() {
            Some(pump) if pump.bytes_read == 0 => {
                self.count_pump(&pump, progress);
                return None;
            }
            Some(pump) => self.unread_of(*pump, progress),
            None if self.request.is_whole() => return None,
            // All of it was sent.
            None => Unread {
                decoder: BodyDecoder::new(BodyFraming::None),
                leftover: self.leftover.take(),
            },
        };
        Some(Box::new(unread))
    }

    /// Counts what a pump moved, and gives what it leaves.
    fn unread_of(&self, pump: Pump, progress: &mut Progress<'_>) -> Unread {
        self.count_pump(&pump, progress);
        let unread = pump.into_unread();
        // It is dropped, or the next request's.
        let leftover_len = unread.leftover.as_ref().map_or(0, Buffer::len);
        progress.figures.bytes_in -= leftover_len as u64;
        unread
    }

    /// Whether a failure says nothing of the endpoint.
    ///
    /// Invariant: an endpoint is blamed for its own time only. An exchange that
    /// had less than half of its time left when the endpoint got the request, or
    /// whose client stopped in the middle of its body, blames nobody.
    #[cold]
    fn is_excused(&self, end: End) -> bool {
        match end {
            End::Failure(Failure::TotalTimeout) => {
                let total = self.timeouts().total.unwrap_or_default();
                let is_client_late = self.pumping().map(Pump::waits_for) == Some(WaitsFor::Source);
                is_client_late || clock::since(self.sent_at) < total / 2
            }
            End::Failure(Failure::UpstreamClosed) => self.has_client_stopped(),
            _ => false,
        }
    }

    /// Whether the client has stopped in the middle of its body, so that the
    /// endpoint may have given up waiting for it.
    fn has_client_stopped(&self) -> bool {
        let pumping = self.pumping();
        pumping.is_some_and(|pump| pump.has_source_stopped(self.context.wheel.now()))
    }

    /// Reports what the response's head says of the endpoint: nothing where it is
    /// an error and the client has stopped in the middle of its body.
    fn report(&self, response: &Response, progress: &Progress<'_>) {
        let has_client_stopped = self.has_client_stopped();
        if has_client_stopped && (response.status == 408 || response.status >= 500) {
            return;
        }
        let first_byte = progress.figures.times.first_byte;
        let now = self.sent_at + first_byte.unwrap_or_default();
        let teaches = !response.is_event_stream && !has_client_stopped;
        let is_error = is_server_error(response.status);
        self.slot
            .report(is_error, first_byte.filter(|_| teaches), now);
    }

    /// Counts the attempt and keeps the connection if it can be used again.
    fn finish(self, relayed: Relayed) -> Attempt {
        self.counters.bytes_in.add(relayed.bytes_received);
        if relayed.end.is_endpoint_fault() {
            self.counters.failures.add(1);
        }
        if relayed.end.is_endpoint_fault() && !relayed.is_excused && !self.is_excused(relayed.end) {
            self.slot.report(true, None, clock::now());
        }
        if relayed.keeps_upstream {
            self.slot.keep_idle(self.stream, self.context.wheel.now());
        }
        let consumed = self.request.consumed();
        let mut outcome = Outcome::new(relayed.end, relayed.next, consumed);
        outcome.leftover = self.leftover;
        Attempt::Finished(match relayed.unread {
            Some(unread) => outcome.with_unread(*unread),
            None => outcome,
        })
    }

    async fn tunnel(
        mut self,
        client: &mut Client,
        head_len: usize,
        buffer: Buffer,
        progress: &mut Progress<'_>,
    ) -> Attempt {
        self.count_status(101);
        self.slot.report(false, None, self.sent_at);
        // What is left of the request goes first, as it is, then what was read
        // behind it.
        let behind = match self.request.is_whole() {
            true => &self.request.bytes[self.request.valid_len..],
            false => &[][..],
        };
        progress.figures.bytes_in += behind.len() as u64;
        let pump = self.pump.take();
        if let Some(pump) = &pump {
            self.count_pump(pump, progress);
        }
        if let Some(leftover) = &self.leftover {
            progress.figures.bytes_in += leftover.len() as u64;
        }
        let rest = pump.and_then(|pump| pump.into_leftover()).or(self.leftover);
        let rest = rest.as_ref().map_or(&[][..], Buffer::filled);
        let mut from_client = Buffer::with_capacity(rest.len() + behind.len());
        let fits = from_client.append(rest) && from_client.append(behind);
        debug_assert!(fits, "the buffer was made for them");
        progress.figures.status = 101;
        progress.track.enter(Stage::Tunnel);
        let idle_timeout = self.slot.upstream().config().timeouts.idle;
        let start = TunnelStart {
            from_client,
            from_upstream: buffer,
        };
        let carried = relay::tunnel(
            self.context,
            client,
            self.stream,
            start,
            idle_timeout,
            progress,
        )
        .await;
        // What went to the client began with the head.
        progress.figures.body_bytes_out = progress
            .figures
            .body_bytes_out
            .saturating_sub(head_len as u64);
        self.counters.bytes_out.add(carried.up_bytes);
        self.counters.bytes_in.add(carried.down_bytes);
        let consumed = self.request.bytes.len();
        let sender = Sender::Late;
        Attempt::Finished(Outcome::new(End::Tunnel, Next::Linger { sender }, consumed))
    }
}

/// Whether a response tells of events as they happen (HTML, server-sent
/// events): when the first of them comes says nothing of the endpoint.
fn is_event_stream(head: &ResponseHead, bytes: &[u8]) -> bool {
    // Nothing else is without a length and of this type.
    if matches!(head.framing, BodyFraming::None | BodyFraming::Length { .. }) {
        return false;
    }
    let mut fields = head.fields.iter();
    let of_type = fields.find(|field| field.is_named(b"content-type", bytes));
    of_type.is_some_and(|field| field.value.of(bytes).starts_with(b"text/event-stream"))
}

/// Whether a status shows that something is wrong with the endpoint: not where
/// it only lacks what was asked for.
fn is_server_error(status: u16) -> bool {
    status >= 500 && !matches!(status, 501 | 505)
}

/// Puts a head in front of what came of its body.
fn prepend_head(buffer: &mut Buffer, head: &[u8]) -> Result<(), End> {
    match buffer.prepend(head) {
        true => Ok(()),
        // Headroom is larger than what is ever added to a head.
        false => Err(ResponseError::HeadTooLarge.into()),
    }
}

fn response_buffer() -> Buffer {
    let mut buffer = Buffer::large();
    buffer.clear_with_headroom(HEADROOM);
    buffer
}
