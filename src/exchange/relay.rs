//! Relays a response to the client, and the rest of the request to the endpoint.

mod ahead;
mod coded;

use std::future::poll_fn;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::coding::Coding;
use evenkeel_proto::http1::write::Persistence;

use self::ahead::{Ahead, Backlog, fits, take_ahead};
use super::body::{BodySink, BodySource, PumpEnd};
use super::drain::Bounds;
use super::pace::{Pace, Verdict, taken};
use super::pump::{Pump, Unread, WaitsFor};
use super::watch::ClientWatch;
use super::{Exchange, Next, Progress, RestOfBody, Sender, box_cold};
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::net::stream::{Peeked, Stream};
use crate::observe::sessions::Stage;
use crate::upstream::{KeepAlive, Upstream};

pub(super) use self::ahead::{Rest, response_bound};

/// A response with its rewritten head.
#[derive(Debug)]
pub(super) struct Response {
    pub status: u16,
    /// Whether it carries events as they happen.
    pub is_event_stream: bool,
    /// The content coding for its body, if any.
    pub coding: Option<Coding>,
    /// Length of the rewritten head.
    pub head_len: usize,
    /// Bytes at the front of the buffer to send: the head and a part of the body.
    pub ready: usize,
    /// Bytes sent already.
    pub sent: u64,
    /// The source of the rest of its body.
    pub source: BodySource,
    /// The sink of its body.
    pub sink: BodySink,
    pub persistence: Persistence,
    /// Whether the body ends with the client's connection.
    pub ends_with_connection: bool,
    /// The fate of the rest of the request's body, also after the response.
    pub rest_of_request: RestOfBody,
    /// Whether the endpoint's connection can carry another exchange, once the request is sent.
    pub keeps_upstream: bool,
    /// The endpoint's promise for its idle connection.
    pub keep_alive: KeepAlive,
}

/// Both streams of an exchange whose response has begun.
pub(super) struct Relay<'a, 'e> {
    pub exchange: &'a mut Exchange<'e>,
    pub stream: &'a mut Stream,
    /// The rest of the request, if there is any.
    pub request: &'a mut Option<Box<Pump>>,
    pub watch: &'a mut ClientWatch,
    pub upstream: &'a Upstream,
    /// Most bytes of the response to take off the endpoint ahead of the client; `None` for
    /// nothing.
    pub bound: Option<usize>,
    /// The pace of the client, while the response waits for it.
    pub pace: Pace,
}

/// Why relaying stopped.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stop {
    Response(PumpEnd),
    Request(PumpEnd),
    ClientGone,
    ClientSlow,
    TimedOut(WaitsFor),
    /// No memory to compress the response.
    EncoderFailed,
    /// The client does not read now: take the response ahead of it.
    TakeAhead {
        bound: usize,
    },
}

/// The result of relaying.
#[derive(Debug)]
pub(super) struct Relayed {
    pub end: End,
    pub next: Next,
    /// Whether the endpoint's connection can carry another exchange.
    pub keeps_upstream: bool,
    /// The endpoint's promise for its idle connection.
    pub keep_alive: KeepAlive,
    /// Whether a failure is not the endpoint's fault: the client did not read or send.
    pub is_excused: bool,
    /// Bytes of the response received after those that came with its head.
    pub bytes_received: u64,
    /// The rest of the request's body, where the client's connection continues after it.
    pub unread: Option<Box<Unread>>,
    /// The rest of the response for the client, where the endpoint is done.
    pub rest: Option<Box<Rest>>,
}

impl Response {
    /// The result, if no more arrived than came with the head.
    pub fn relayed(&self, end: End) -> Relayed {
        let next = match end {
            End::Complete => Next::after(self.persistence, RestOfBody::Read),
            _ if self.ends_with_connection => Next::Abort,
            _ => Next::Cut,
        };
        Relayed {
            end,
            next,
            keeps_upstream: end == End::Complete && self.keeps_upstream,
            keep_alive: self.keep_alive,
            is_excused: false,
            bytes_received: 0,
            unread: None,
            rest: None,
        }
    }

    /// Notes that `sent` bytes of the response went to the client.
    pub fn note(&self, sent: u64, progress: &mut Progress<'_>) {
        progress.figures.status = self.status;
        progress.figures.bytes_out += sent;
        progress.figures.body_bytes_out += sent.saturating_sub(self.head_len as u64);
    }
}

impl Relay<'_, '_> {
    /// Relays the response to its end, or until a side stops. Also stops once the response is off
    /// the endpoint; the client then gets the rest without it.
    pub async fn response(mut self, response: Response, buffer: Buffer) -> Relayed {
        let (source, sink) = (response.source.clone(), response.sink.clone());
        let mut pump = Pump::new(source, sink, Some(buffer), response.ready);
        self.exchange.progress.track.enter(Stage::Response);
        let before = self.exchange.progress.figures.bytes_out + response.sent;
        let mut held = None;
        let stop = loop {
            let stop = self.run(&mut pump, before).await;
            let Stop::TakeAhead { bound } = stop else {
                break stop;
            };
            let taken = take_ahead(&mut self, &mut pump, bound, before);
            match box_cold(taken).await {
                Ahead::CaughtUp => {}
                Ahead::OffEndpoint(backlog, end) => {
                    held = Some(backlog);
                    break Stop::Response(end);
                }
                Ahead::Stopped(stop) => break stop,
            }
        };
        self.ended(stop, response, pump, held).await
    }

    /// The result of a response that has stopped. `held` is the rest for the client of a response
    /// that is off the endpoint.
    async fn ended(
        &mut self,
        stop: Stop,
        response: Response,
        pump: Pump,
        held: Option<Backlog>,
    ) -> Relayed {
        let sent = response.sent + pump.bytes_written;
        if held.is_none() {
            response.note(sent, &mut self.exchange.progress);
        }
        let mut relayed = response.relayed(self.end_of(stop));
        relayed.is_excused = self.is_excused(stop);
        relayed.bytes_received = pump.bytes_read;
        relayed.keeps_upstream &= pump.into_leftover().is_none();
        if relayed.end == End::Complete && !self.is_request_done() {
            self.exchange.progress.track.enter(Stage::Request);
            self.finish_request(&response, &mut relayed).await;
        }
        relayed.rest = held.map(|held| Rest::new(held, response, sent));
        relayed
    }

    fn is_excused(&self, stop: Stop) -> bool {
        match stop {
            Stop::TimedOut(WaitsFor::Sink) => true,
            Stop::Response(PumpEnd::SourceCut) => {
                let now = self.exchange.context.wheel.now();
                let request = self.request.as_deref();
                request.is_some_and(|it| !it.sink_is_closed() && it.has_source_stopped(now))
            }
            _ => false,
        }
    }

    pub fn is_request_done(&self) -> bool {
        self.request.as_deref().is_none_or(Pump::is_done)
    }

    /// Relays the rest of the request, after the whole response was sent.
    ///
    /// Invariant: an endpoint that responds early and reads on gets the whole body, and both
    /// connections stay open, within the listener's `drain`. An endpoint that closes frees its
    /// connection and its slot at once. An endpoint that stops reading frees them after
    /// `drain.silence`. In both cases the client's connection stays open.
    async fn finish_request(&mut self, response: &Response, relayed: &mut Relayed) {
        let Some(request) = self.request.as_mut() else {
            return;
        };
        // The client needs this end of the response now.
        let side = &mut self.exchange.side;
        side.end_response();
        if relayed.next == Next::Close {
            side.close_notify();
        }
        let keeps_upstream = std::mem::take(&mut relayed.keeps_upstream);
        if response.rest_of_request == RestOfBody::Unread {
            relayed.next = Next::after(Persistence::Close, RestOfBody::Unread);
            return;
        }
        if !keeps_upstream || request.sink_is_closed() {
            return;
        }
        let counters = self.exchange.context.listener_counters();
        match self.pump_on().await {
            Ok(PumpEnd::Done) => {
                counters.drains.add(1);
                relayed.keeps_upstream = true;
            }
            Ok(PumpEnd::SinkClosed | PumpEnd::SinkReset) | Err(WaitsFor::Sink) => {}
            Ok(PumpEnd::SourceCut | PumpEnd::Malformed(_) | PumpEnd::TooLarge) => {
                let sender = Sender::Answered;
                relayed.next = Next::Linger { sender };
            }
            Err(WaitsFor::Source) => {
                counters.drains.add(1);
                counters.drains_cut.add(1);
                let sender = Sender::Late;
                relayed.next = Next::Linger { sender };
            }
        }
    }

    /// Relays the rest of the request within the listener's `drain`.
    ///
    /// # Errors
    /// The side that was waited for when a bound was reached.
    async fn pump_on(&mut self) -> Result<PumpEnd, WaitsFor> {
        let Relay {
            exchange,
            stream,
            request,
            ..
        } = self;
        let Exchange {
            context,
            side,
            timer,
            rare,
            total_deadline,
            ..
        } = &mut **exchange;
        let Some(request) = request else {
            return Ok(PumpEnd::Done);
        };
        let bounds = Bounds::new(context, *total_deadline);
        let bytes_before = request.bytes_read;
        let wheel = &context.wheel;
        let set_timeout = |request: &mut Pump| {
            let due = request.wait(wheel, bounds.silence(context));
            wheel.set(timer, due);
        };
        set_timeout(request);
        poll_fn(|cx| {
            let before = request.progress();
            let recording = rare.as_mut().and_then(|it| it.recording.as_mut());
            let mut client = side.body_carrier(recording);
            let polled = request.poll(cx, &mut client, &mut (&mut **stream).into());
            if let Poll::Ready(end) = polled {
                return Poll::Ready(Ok(end));
            }
            // An early end: the endpoint's next response can't have begun.
            if let Poll::Ready(Peeked::End | Peeked::Broken) = stream.poll_peek(cx) {
                return Poll::Ready(Ok(PumpEnd::SinkClosed));
            }
            if request.progress() != before {
                set_timeout(request);
            }
            let is_long = bounds.are_too_many(request.bytes_read - bytes_before);
            // A slow client does not keep the slot.
            let is_late =
                context.has_fired(timer) && request.judge_by(context, timer) != Verdict::InTime;
            if is_long || is_late {
                Poll::Ready(Err(request.waits_for()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// `sent` bytes went to the client before.
    async fn run(&mut self, response: &mut Pump, sent: u64) -> Stop {
        let mut is_timed = false;
        poll_fn(|cx| {
            let before = response.progress();
            let client = &mut self.exchange.side.carrier();
            let polled = response.poll(cx, &mut (&mut *self.stream).into(), client);
            if let Poll::Ready(end) = polled {
                return Poll::Ready(Stop::Response(end));
            }
            if let Some(bound) = self.bound
                && response.waits_for() == WaitsFor::Sink
                && client.poll_write_ready(cx).is_pending()
                && fits(response, bound)
            {
                return Poll::Ready(Stop::TakeAhead { bound });
            }
            let request_moved = match self.poll_others(cx) {
                Ok(has_moved) => has_moved,
                Err(stop) => return Poll::Ready(stop),
            };
            if !is_timed || request_moved || response.progress() != before {
                is_timed = true;
                let track = &self.exchange.progress.track;
                track.set_bytes_out(sent + response.bytes_written);
                match response.waits_for() {
                    WaitsFor::Sink => self.wait_for_client(response),
                    WaitsFor::Source => self.wait_for_endpoint(),
                }
            }
            match self.judge(response, response.waits_for()) {
                Some(stop) => Poll::Ready(stop),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Relays the rest of the request. Returns whether bytes moved.
    ///
    /// # Errors
    /// The request or the client ends the exchange.
    pub fn poll_others(&mut self, cx: &mut TaskContext<'_>) -> Result<bool, Stop> {
        let has_moved = self.poll_request(cx).map_err(Stop::Request)?;
        let is_request_done = self.is_request_done();
        let side = &mut self.exchange.side;
        let gone = if is_request_done {
            self.watch.poll_gone(cx, side)
        } else {
            side.poll_broken(cx)
        };
        if gone.is_ready() {
            return Err(Stop::ClientGone);
        }
        Ok(has_moved)
    }

    /// Relays the rest of the request. Returns whether bytes moved.
    fn poll_request(&mut self, cx: &mut TaskContext<'_>) -> Result<bool, PumpEnd> {
        let Some(request) = self.request.as_mut().filter(|it| !it.is_done()) else {
            return Ok(false);
        };
        let before = request.progress();
        let client = &mut self.exchange.body_carrier();
        match request.poll(cx, client, &mut (&mut *self.stream).into()) {
            Poll::Ready(PumpEnd::Done) => {
                self.watch.restart(clock::now());
                if request.leftover_len() > 0 {
                    self.watch.leave_fin_to_next();
                }
                // The endpoint may have waited for this to continue its response.
                cx.waker().wake_by_ref();
            }
            // An endpoint may respond without reading the whole request. The rest is read and
            // dropped, so that the client goes on to read. Nothing waits for it.
            Poll::Ready(PumpEnd::SinkClosed | PumpEnd::SinkReset) => {
                request.pace = Pace::default();
                cx.waker().wake_by_ref();
            }
            Poll::Pending => {}
            Poll::Ready(end) => return Err(end),
        }
        let has_moved = request.progress() != before;
        if has_moved {
            request.moved_at = self.exchange.context.wheel.now();
        }
        Ok(has_moved)
    }

    /// Starts a wait for the client to read the response.
    pub fn wait_for_client(&mut self, response: &Pump) {
        let timeout = self.exchange.listener().timeouts.body;
        self.wait(timeout, Some(response.bytes_written));
    }

    fn wait_for_endpoint(&mut self) {
        self.wait(self.exchange.patience(self.upstream).idle, None);
    }

    /// Sets the timer for a wait, and for what the client has to send meanwhile. A wait for the
    /// client counts the bytes `written` to it.
    fn wait(&mut self, timeout: Duration, written: Option<u64>) {
        let Exchange {
            context,
            side,
            timer,
            total_deadline,
            ..
        } = &*self.exchange;
        let wheel = &context.wheel;
        let silence = wheel.deadline(timeout).min(*total_deadline);
        // While the route's bandwidth holds the response back, the client is not late.
        let written = written.filter(|_| !side.is_throttled());
        let taken = written.map(|written| move || taken(side, written));
        let due = self.pace.wait(wheel, silence, taken);
        let request_due = match self.request.as_deref_mut() {
            Some(request) => request.wait(wheel, u64::MAX),
            None => u64::MAX,
        };
        wheel.set(timer, due.min(request_due));
    }

    /// Why to stop, where the timer has fired and a wait was too long. `waits_for` is the side
    /// that the response waits for.
    pub fn judge(&mut self, response: &Pump, waits_for: WaitsFor) -> Option<Stop> {
        let Exchange {
            context,
            side,
            timer,
            ..
        } = &*self.exchange;
        if !context.has_fired(timer) {
            return None;
        }
        let taken = || taken(side, response.bytes_written);
        let (mut verdict, mut due) = (self.pace.judge(context, taken), self.pace.due());
        if let (Verdict::InTime, Some(request)) = (verdict, self.request.as_deref_mut()) {
            verdict = request.judge(context);
            due = due.min(request.pace.due());
        }
        if verdict != Verdict::InTime && waits_for == WaitsFor::Sink && self.exchange.is_held_back()
        {
            self.wait_for_client(response);
            return None;
        }
        match verdict {
            Verdict::Silent => Some(Stop::TimedOut(waits_for)),
            Verdict::Slow => Some(Stop::ClientSlow),
            Verdict::InTime => {
                context.wheel.set(timer, due);
                None
            }
        }
    }

    fn end_of(&self, stop: Stop) -> End {
        let failure = match stop {
            Stop::Response(PumpEnd::Done) => return End::Complete,
            Stop::Response(PumpEnd::SourceCut) => Failure::UpstreamCut,
            Stop::Response(PumpEnd::SinkClosed | PumpEnd::SinkReset) => self.exchange.client_left(),
            Stop::Response(PumpEnd::Malformed(_) | PumpEnd::TooLarge) => Failure::UpstreamBody,
            Stop::Request(PumpEnd::Malformed(error)) => return End::Body(error),
            Stop::Request(PumpEnd::TooLarge) => Failure::BodyTooLarge,
            Stop::Request(_) | Stop::ClientGone => Failure::ClientGone,
            Stop::ClientSlow => Failure::ClientSlow,
            Stop::EncoderFailed => Failure::CompressionFailed,
            // Relaying continues.
            Stop::TakeAhead { .. } => return End::Complete,
            Stop::TimedOut(waits_for) => {
                let failure = match waits_for {
                    WaitsFor::Source => Failure::UpstreamStalled,
                    WaitsFor::Sink => Failure::ClientStalled,
                };
                self.exchange.timed_out(failure)
            }
        };
        End::Failure(failure)
    }
}
