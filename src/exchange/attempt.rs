//! One attempt at one endpoint: connects, sends, waits for the response's head, and relays the
//! response.

mod connect;
mod finish;
mod head;
mod open;
mod opened;
mod shared;

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use evenkeel_policy::Instant;
use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::http1::write::{self, ClientInfo, Forward};
use evenkeel_proto::{Credentials, ResponseError};
use evenkeel_tls::handshake_fault::is_handshake_refusal;

pub(super) use self::connect::Connections;
use self::head::{Interim, Received, response_buffer};
use self::open::{open, take_idle};
use self::opened::{Opened, Origin};
use super::body::{PumpEnd, SPLICED_MIN, TAILROOM};
use super::drain::Body;
use super::edits::{edit_request, set_request_fields};
use super::identity::ROOM;
use super::outcome::Outcome;
use super::pace::{Pace, Verdict};
use super::patience::ExchangeTimeouts;
use super::proxy_header;
use super::pump::{Pump, Unread, WaitsFor};
use super::relay::Response;
use super::request::RequestBody;
use super::variables::Values;
use super::watch::ClientWatch;
use super::{Client, Exchange, RestOfBody, box_cold};
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::net::stream::{Follow, Stream};
use crate::observe::access_log::Phase;
use crate::observe::counters::EndpointCounters;
use crate::observe::sessions::Stage;
use crate::upstream::{PinReason, Slot};

/// Most bytes that are read with a head where a long body is likely, so that the rest need not be
/// copied.
const SHORT_READ_LEN: usize = 16 * 1024;
/// Length from which a body counts as long.
const LONG_LEN: u64 = SHORT_READ_LEN as u64 + SPLICED_MIN;

/// The connections that an attempt may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamConnection {
    /// An idle one, if there is one.
    AnyIdle,
    /// Only a new one.
    New,
}

/// A kind of attempt: the work at an endpoint, once it has a slot.
pub(super) trait Attempting {
    /// The result of an attempt that has not failed.
    type Done;

    /// Makes one attempt.
    ///
    /// # Cancellation
    /// Dropping the future closes the endpoint's connection.
    fn attempt(
        exchange: &mut Exchange<'_>,
        slot: &Slot<'_>,
        request: &RequestBody<'_>,
        connection: UpstreamConnection,
        watch: &mut ClientWatch,
    ) -> impl Future<Output = Attempt<Self::Done>>;
}

/// Attempts that send a request and relay the response.
pub(super) struct Requests;

impl Attempting for Requests {
    type Done = Outcome;

    fn attempt(
        exchange: &mut Exchange<'_>,
        slot: &Slot<'_>,
        request: &RequestBody<'_>,
        connection: UpstreamConnection,
        watch: &mut ClientWatch,
    ) -> impl Future<Output = Attempt> {
        async move {
            let mut sent = {
                let opened = match take_idle(exchange, slot, request, connection) {
                    Some(opened) => Ok(opened),
                    None => box_cold(open(exchange, slot, request, watch)).await,
                };
                match opened {
                    Ok(opened) => Sent::new(exchange, slot, request, opened, watch),
                    Err(failure) => return Attempt::not_opened(failure),
                }
            };
            sent.exchange.progress.figures.phase = Phase::Response;
            if sent.send_head().is_err() {
                // The endpoint has taken no byte of it, so it can't have acted on it.
                return sent.lost_connection(Sending::Nothing);
            }
            sent.set_timeout();
            sent.exchange.progress.track.enter(match sent.pump {
                Some(_) => Stage::Request,
                None => Stage::Wait,
            });
            let begun = sent.await_response().await;
            let rest = match sent.answer_at_once(begun) {
                Ok(attempt) => return attempt,
                Err(rest) => rest,
            };
            rest.await
        }
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub(super) enum Attempt<T = Outcome> {
    /// Not failed: a response was relayed, whole or in part.
    Finished(T),
    /// Failed before any response.
    Failed {
        /// The end of the exchange, if this is the last attempt.
        end: End,
        /// Whether and where to retry.
        retry: Retry,
        /// Whether to blame the endpoint, if it was not blamed yet.
        is_blamed: bool,
        /// The rest of the request, if more was read than the first buffer.
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
    /// The endpoint has reported that it did nothing for the request (RFC 9113 §8.7).
    Untouched,
    /// The same: the endpoint has ended a connection that had served others.
    Ended,
    /// At an endpoint not tried yet.
    Elsewhere,
    /// At any endpoint with room: the backlog was full, so nothing was sent.
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

    /// How it failed, if it did.
    fn end(&self) -> Option<End> {
        match self {
            Attempt::Finished(_) => None,
            Attempt::Failed { end, .. } => Some(*end),
        }
    }

    /// Adds the rest of the request, and whether the failure is not the endpoint's fault.
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

impl<T> Attempt<T> {
    /// A failure to get a connection to the endpoint.
    fn not_opened(failure: Failure) -> Self {
        let retry = match failure {
            Failure::TotalTimeout
            | Failure::Stopped
            | Failure::GenerationTimeout
            | Failure::ClientGone => Retry::Never,
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
}

/// The endpoint's side of the exchange, until its response.
struct Sent<'a, 'e> {
    exchange: &'a mut Exchange<'e>,
    slot: &'a Slot<'a>,
    /// The counters of the slot's endpoint.
    counters: &'a EndpointCounters,
    request: &'a RequestBody<'a>,
    stream: Stream,
    is_reused: bool,
    /// Who may use the connection after this exchange.
    belongs_to: BelongsTo,
    /// Writes the rest of the request, if there is any. The endpoint may have stopped reading.
    pump: Option<Box<Pump>>,
    /// Interim responses so far.
    interim: Interim,
    /// End of sending the first part of the request, or the whole request.
    sent_at: Instant,
    /// Bytes read beyond the request's body.
    leftover: Option<Buffer>,
    watch: &'a mut ClientWatch,
}

/// The exchanges that may use the endpoint's connection next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BelongsTo {
    /// Any exchange.
    Pool,
    /// Exchanges of the same client.
    Client(PinReason),
    /// None: the connection has named a client of a trusted proxy, and the proxy's next request
    /// may be of another client.
    Nobody,
}

impl BelongsTo {
    /// The same after a PROXY header.
    #[cold]
    fn after_header(self, client: &Client) -> Self {
        match self {
            _ if client.relayed().is_some() => BelongsTo::Nobody,
            BelongsTo::Pool => BelongsTo::Client(PinReason::TellsClient),
            _ => self,
        }
    }
}

/// The end of a wait for the response.
enum Event {
    Request(PumpEnd),
    /// The result of a read. The bytes follow the earlier ones in the buffer.
    Read(io::Result<usize>, Buffer),
    ClientGone,
    ClientSlow,
    TimedOut,
}

/// The start of a response.
enum ResponseStart {
    /// A head, and a part of the body, in a buffer.
    Response(Response, Buffer),
    /// A head of this length and the first bytes of the tunnel, in a buffer.
    Tunnel(usize, Buffer),
}

/// How much of a request was sent before the connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Nothing,
    /// Some of it, for which the endpoint did nothing.
    InVain,
    Something,
}

impl<'a, 'e> Sent<'a, 'e> {
    /// The state before anything is sent.
    fn new(
        exchange: &'a mut Exchange<'e>,
        slot: &'a Slot<'a>,
        request: &'a RequestBody<'a>,
        opened: Opened,
        watch: &'a mut ClientWatch,
    ) -> Self {
        let figures = &exchange.progress.figures;
        let belongs_to = match (request.head.credentials, opened.origin) {
            (Credentials::OfRequest, Origin::Pinned(bond)) => BelongsTo::Client(bond),
            (Credentials::OfRequest, _) => BelongsTo::Pool,
            _ => BelongsTo::Client(PinReason::Authenticated),
        };
        Sent {
            slot,
            counters: slot.counters(),
            request,
            is_reused: opened.origin.is_idle(),
            belongs_to: match slot.upstream().config().proxy_protocol {
                None => belongs_to,
                Some(_) => belongs_to.after_header(exchange.client),
            },
            stream: opened.stream,
            pump: None,
            interim: Interim::default(),
            // An idle connection sends each part as soon as it is there.
            sent_at: match opened.origin {
                Origin::New(opened_at) => opened_at,
                _ if figures.attempts == 1 && figures.times.queue.is_none() => watch.request_end,
                _ => clock::now(),
            },
            leftover: None,
            watch,
            exchange,
        }
    }

    /// Writes the head and the first part of the body. A pump writes the rest.
    ///
    /// # Errors
    /// The endpoint had closed the connection.
    fn send_head(&mut self) -> Result<(), ()> {
        let (request, context) = (self.request, self.exchange.context);
        let client = self.exchange.client;
        let mut scratch = context.scratch.borrow_mut();
        scratch.clear();
        if !self.is_reused
            && let Some(version) = self.slot.upstream().config().proxy_protocol
            && self.slot.tls().is_none()
        {
            proxy_header::write_for(&mut scratch, version, self.exchange, request);
        }
        let mut room = ROOM;
        let info = ClientInfo {
            address: client.remote().told(),
            scheme: client.scheme(),
            relayed: client.relayed(),
            forward: self.told(),
            default_host: self.slot.config().authority().as_bytes(),
            certificate: client.tls().and_then(|it| it.certificate_field.as_deref()),
            is_early: client.tls().is_some_and(|it| it.is_early),
            marks: self.exchange.progress.identity.marks(&mut room),
            loop_id: &context.loop_id,
            via: self.slot.upstream().config().via,
        };
        let head_start = scratch.len();
        write::request_head(&mut scratch, request.bytes, request.head, info);
        if let Some(fields) = self.exchange.set_fields() {
            let unedited = &mut context.unedited.borrow_mut();
            set_request_fields(&mut scratch, head_start, unedited, fields);
        }
        if let Some(edits) = self.exchange.edits()
            && edits.change_requests()
        {
            let values = Values::of(self.exchange);
            let unedited = &mut context.unedited.borrow_mut();
            edit_request(&mut scratch, head_start, unedited, &values, edits);
        }
        let body_start = scratch.len();
        scratch.extend_from_slice(&request.bytes[request.head.wire.end..request.valid_len]);
        if !request.decoder.is_normal() {
            let decoder = self.exchange.request_decoder(request.head.wire.framing);
            restate_body(&mut scratch, body_start, decoder);
        }
        let sent = match self.stream.try_write(&scratch, Follow::Anything) {
            Some(Ok(len)) => len,
            Some(Err(_)) => return Err(()),
            None => 0,
        };
        self.counters.bytes_out.add(sent as u64);
        if sent < scratch.len() || !request.is_whole() {
            let limit = self.exchange.listener().limits.body_bytes;
            let rest = request.rest(&scratch[sent..], limit);
            let buffer = self.exchange.buffer(self.slot.upstream());
            let pace = Pace::of_request(buffer, request.head);
            let mut pump = rest.with_pace(pace);
            pump.moved_at = context.wheel.now();
            self.pump = Some(Box::new(pump));
        }
        Ok(())
    }

    /// The fields that describe the client to the endpoint. Forward auth always sends those that
    /// auth servers expect.
    fn told(&self) -> Forward {
        let forward = self.slot.upstream().config().forward;
        Forward {
            x_forwarded: forward.x_forwarded || self.exchange.side.asks_for_itself(),
            ..forward
        }
    }

    /// Most bytes of the response to read at once.
    fn read_len_max(&self) -> usize {
        if self.slot.upstream().last_body_len() < LONG_LEN {
            usize::MAX
        } else {
            SHORT_READ_LEN
        }
    }

    fn patience(&self) -> ExchangeTimeouts {
        self.exchange.patience(self.slot.upstream())
    }

    /// The pump of the rest of the request, while the endpoint reads it.
    fn pumping(&self) -> Option<&Pump> {
        self.pump.as_deref().filter(|pump| !pump.sink_is_closed())
    }

    /// Whether the client still waits for the endpoint to ask for its body, with 100
    /// (Continue).
    fn awaits_continue(&self) -> bool {
        let head = self.request.head;
        let pump = self.pump.as_deref().filter(|_| head.wire.expect_continue);
        pump.is_some_and(|pump| pump.bytes_read == 0)
            && !self.interim.is_continued
            && self.request.bytes.len() <= head.wire.end
    }

    /// The side that the rest of the request waits for. `None` where the endpoint has to respond:
    /// the request is sent, or the client waits for 100 (Continue).
    fn waits_for(&self) -> Option<WaitsFor> {
        let waits_for = self.pumping().map(Pump::waits_for);
        waits_for.filter(|&side| side == WaitsFor::Sink || !self.awaits_continue())
    }

    /// The fate of the rest of the request's body.
    fn rest_of_body(&self) -> RestOfBody {
        let Some(pump) = &self.pump else {
            return RestOfBody::Read;
        };
        let body = if self.awaits_continue() {
            Body::MayNotCome
        } else {
            Body::Comes
        };
        body.rest(self.exchange, pump.decoder())
    }

    /// Sets the limit of the present wait: for the client's body, for the endpoint to read it, or
    /// for its response.
    fn set_timeout(&mut self) {
        let timeout = match self.waits_for() {
            Some(WaitsFor::Source) => self.exchange.listener().timeouts.body,
            Some(WaitsFor::Sink) => self.patience().idle,
            None => self.patience().first_byte,
        };
        let wheel = &self.exchange.context.wheel;
        let deadline = wheel.deadline(timeout).min(self.exchange.total_deadline);
        let due = match self.pump.as_deref_mut() {
            Some(pump) => pump.wait(wheel, deadline),
            None => deadline,
        };
        wheel.set(&self.exchange.timer, due);
    }

    fn await_response(&mut self) -> impl Future<Output = Result<ResponseStart, Attempt>> {
        async move {
            let mut held = None;
            loop {
                let went_on = match self.next_event(&mut held).await {
                    Event::Request(end) => self.request_ended(end),
                    Event::ClientGone => Err(Failure::ClientGone.into()),
                    Event::ClientSlow => Err(Failure::ClientSlow.into()),
                    Event::TimedOut => Err(self.timed_out()),
                    Event::Read(read, mut buffer) => {
                        let mut received = self.receive(read, &mut buffer)?;
                        if matches!(received, Received::Interim(_)) {
                            let passing = self.pass_interim(received, &mut buffer);
                            received = box_cold(passing).await.map_err(Attempt::failed)?;
                        }
                        if matches!(received, Received::Final(_) | Received::Tunnel(_)) {
                            let now = clock::now();
                            let figures = &mut self.exchange.progress.figures;
                            figures.times.first_byte = Some(now.duration_since(self.sent_at));
                            figures.responded = Some(now);
                            figures.phase = Phase::Data;
                        }
                        match received {
                            Received::Final(response) => {
                                return Ok(ResponseStart::Response(response, buffer));
                            }
                            Received::Tunnel(len) => return Ok(ResponseStart::Tunnel(len, buffer)),
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

    fn next_event(&mut self, held: &mut Option<Buffer>) -> impl Future<Output = Event> {
        poll_fn(move |cx| {
            if let Some(pump) = self.pump.as_mut().filter(|it| !it.sink_is_closed()) {
                let before = pump.progress();
                let client = &mut self.exchange.body_carrier();
                let polled = pump.poll(cx, client, &mut (&mut self.stream).into());
                let has_moved = pump.progress() != before;
                let progress = &self.exchange.progress;
                let bytes_in = progress.figures.bytes_in + pump.bytes_read;
                progress.track.set_bytes_in(bytes_in);
                if let Poll::Ready(end) = polled {
                    return Poll::Ready(Event::Request(end));
                }
                if has_moved {
                    pump.moved_at = self.exchange.context.wheel.now();
                    self.set_timeout();
                }
            }
            // Waits first, and takes a buffer only for a read.
            if self.stream.poll_read_ready(cx).is_ready() {
                let mut buffer = held
                    .take()
                    .unwrap_or_else(|| response_buffer(self.exchange));
                let room = buffer.room();
                let room_len = (room.len() - TAILROOM).min(self.read_len_max());
                match self.stream.poll_read(cx, &mut room[..room_len]) {
                    Poll::Ready(read) => return Poll::Ready(Event::Read(read, buffer)),
                    // The event was false: there was nothing to read.
                    Poll::Pending => *held = (!buffer.is_empty()).then_some(buffer),
                }
            }
            let gone = match self.pumping() {
                None => self.watch.poll_gone(cx, &mut self.exchange.side),
                // A read shows an end, once the endpoint reads more.
                Some(_) => self.exchange.side.poll_broken(cx),
            };
            if gone.is_ready() {
                return Poll::Ready(Event::ClientGone);
            }
            if !self.exchange.has_timed_out() {
                return Poll::Pending;
            }
            let Some(pump) = self.pump.as_deref_mut() else {
                return Poll::Ready(Event::TimedOut);
            };
            match pump.judge_by(self.exchange.context, &self.exchange.timer) {
                Verdict::Silent => Poll::Ready(Event::TimedOut),
                Verdict::Slow => Poll::Ready(Event::ClientSlow),
                Verdict::InTime => Poll::Pending,
            }
        })
    }

    /// Handles the end of the request's body, whole or not.
    fn request_ended(&mut self, end: PumpEnd) -> Result<(), End> {
        match end {
            PumpEnd::Done => {
                let Some(pump) = self.pump.take() else {
                    return Ok(());
                };
                self.count_pump(&pump);
                let progress = &mut self.exchange.progress;
                progress.track.enter(Stage::Wait);
                progress.track.set_bytes_in(progress.figures.bytes_in);
                self.leftover = pump.into_leftover();
                // These bytes are of the next request.
                progress.figures.bytes_in -= self.leftover.as_ref().map_or(0, Buffer::len) as u64;
                self.sent_at = clock::now();
                self.watch.restart(self.sent_at);
                if self.leftover.is_some() {
                    self.watch.leave_fin_to_next();
                }
            }
            // The endpoint may have responded before it closed.
            PumpEnd::SinkClosed | PumpEnd::SinkReset => {}
            PumpEnd::SourceCut => return Err(Failure::ClientGone.into()),
            PumpEnd::Malformed(error) => return Err(error.into()),
            PumpEnd::TooLarge => return Err(Failure::BodyTooLarge.into()),
        }
        self.set_timeout();
        Ok(())
    }

    fn count_pump(&mut self, pump: &Pump) {
        self.exchange.progress.figures.bytes_in += pump.bytes_read;
        self.counters.bytes_out.add(pump.bytes_written);
    }

    fn timed_out(&self) -> End {
        let failure = match self.waits_for() {
            Some(WaitsFor::Source) => Failure::BodyTimeout,
            Some(WaitsFor::Sink) => Failure::UpstreamStalled,
            None => Failure::FirstByteTimeout,
        };
        self.exchange.timed_out(failure).into()
    }

    /// Handles bytes that are not the head of a response.
    #[cold]
    fn unreadable(&self, end: End) -> Attempt {
        let is_no_head = end == End::Response(ResponseError::StatusLine);
        match self.lost_connection(Sending::Something) {
            // They may be left from an earlier exchange, and say nothing of this one.
            Attempt::Failed {
                retry: retry @ Retry::OnNewConnection,
                is_blamed,
                unread,
                ..
            } if is_no_head => Attempt::Failed {
                end,
                retry,
                is_blamed,
                unread,
            },
            _ => Attempt::failed(end),
        }
    }

    /// Whether the endpoint refuses the handshake of a new connection. In TLS 1.3 the refusal
    /// arrives after the handshake has ended here.
    #[cold]
    fn is_refused(&self, error: &io::Error) -> bool {
        let alert = error.get_ref().and_then(|it| it.downcast_ref());
        !self.is_reused && self.interim.count == 0 && alert.is_some_and(is_handshake_refusal)
    }

    /// The endpoint did nothing for the request, which may be retried by `again`.
    #[cold]
    fn untouched(&self, again: Retry) -> Attempt {
        let mut attempt = self.lost_connection(Sending::InVain);
        if let Attempt::Failed {
            retry, is_blamed, ..
        } = &mut attempt
        {
            *is_blamed = false;
            if *retry != Retry::Never {
                *retry = again;
            }
        }
        attempt
    }

    /// The endpoint has reset this exchange alone; its connection stays open.
    #[cold]
    fn cut_off(&self) -> Attempt {
        let mut attempt = self.lost_connection(Sending::Something);
        if let Attempt::Failed {
            end,
            retry,
            is_blamed,
            ..
        } = &mut attempt
        {
            *end = Failure::UpstreamClosed.into();
            *is_blamed = true;
            if *retry == Retry::OnNewConnection {
                *retry = Retry::Elsewhere;
            }
        }
        attempt
    }

    /// The endpoint has refused the handshake.
    #[cold]
    fn refused(&self) -> Attempt {
        let mut attempt = self.lost_connection(Sending::Something);
        if let Attempt::Failed { end, .. } = &mut attempt {
            *end = Failure::UpstreamTls.into();
        }
        attempt
    }

    /// Whether the client repeats a request after its connection is closed. Clients do so if the
    /// connection has carried a request before.
    #[cold]
    fn may_repeat(&self) -> bool {
        let Exchange {
            context, client, ..
        } = &*self.exchange;
        self.slot.upstream().config().pool.close_on_stale
            && context.sessions.requests(client.session) > 1
    }

    /// Whether the sent part of the request is still here. Body bytes beyond the first buffer are
    /// gone.
    fn can_replay(&self) -> bool {
        match &self.pump {
            Some(pump) => pump.bytes_read == 0,
            None => self.request.is_whole(),
        }
    }

    /// The endpoint closed before the first byte of its response.
    fn lost_connection(&self, sending: Sending) -> Attempt {
        // After an interim response, the connection was not stale.
        let is_stale = self.is_reused && self.interim.count == 0;
        let can_replay = sending == Sending::Nothing || self.can_replay();
        let is_allowed = sending != Sending::Something || self.request.head.method.is_idempotent();
        let retry = match (can_replay && is_allowed, is_stale) {
            (true, true) => Retry::OnNewConnection,
            (true, false) => Retry::Elsewhere,
            (false, _) => Retry::Never,
        };
        let is_for_client = retry == Retry::Never && is_stale && self.may_repeat();
        let failure = if is_for_client {
            Failure::UpstreamStale
        } else {
            Failure::UpstreamClosed
        };
        Attempt::Failed {
            end: failure.into(),
            retry,
            // A stale connection says nothing of the endpoint.
            is_blamed: !is_stale,
            unread: None,
        }
    }
}

/// Removes the parts of a body, from `start` on, that are not forwarded. `decoder` stands at the
/// start of the body.
#[cold]
fn restate_body(scratch: &mut Vec<u8>, start: usize, mut decoder: BodyDecoder) {
    let restated = decoder.restate(&mut scratch[start..]);
    debug_assert!(restated.is_ok(), "it was checked when it was read");
    if let Ok(advance) = restated {
        scratch.truncate(start + advance.kept);
    }
}
