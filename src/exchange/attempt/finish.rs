//! The steps after a response's head: relays the response, counts the attempt, and keeps the
//! endpoint's connection if it can be reused.

use std::pin::Pin;

use evenkeel_policy::observation::{Answer, Observed};
use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::{BodyFraming, grpc};

use super::{Attempt, BelongsTo, ResponseStart, Retry, Sent};
use crate::exchange::outcome::Outcome;
use crate::exchange::pace::Pace;
use crate::exchange::pump::{Pump, Unread, WaitsFor};
use crate::exchange::relay::{Relay, Relayed, Response, Rest, response_bound};
use crate::exchange::tunnel::{self, Silence, TunnelStart};
use crate::exchange::{Exchange, Next, RestOfBody, Sender, box_cold};
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::observe::access_log::GrpcStatus;
use crate::observe::sessions::{NO_SESSION, Stage};

impl<'a, 'e> Sent<'a, 'e> {
    /// Sends the response, and ends the attempt if that takes no wait.
    ///
    /// # Errors
    /// The future with the remaining work.
    pub(super) fn answer_at_once<'c>(
        mut self,
        begun: Result<ResponseStart, Attempt>,
    ) -> Result<Attempt, Pin<Box<dyn Future<Output = Attempt> + 'c>>>
    where
        Self: 'c,
    {
        match begun {
            Ok(ResponseStart::Response(mut response, mut buffer)) => {
                if self.exchange.call().is_some()
                    && let Some(attempt) = self.refused_call(&response)
                {
                    return Ok(attempt);
                }
                let head = &buffer.filled()[..response.head_len];
                let Exchange { side, progress, .. } = &mut *self.exchange;
                let taken = side.begin_response(progress, head);
                buffer.consume(taken);
                progress.figures.bytes_out += taken as u64;
                response.ready -= taken;
                response.head_len -= taken;
                self.report(&response);
                match self.send_at_once(&mut response, &mut buffer) {
                    Some(relayed) => {
                        response.note(response.sent, &mut self.exchange.progress);
                        Ok(self.finish(relayed))
                    }
                    None => Err(box_cold(self.relay(response, buffer))),
                }
            }
            Ok(ResponseStart::Tunnel(head_len, mut buffer)) => {
                let Exchange { side, progress, .. } = &mut *self.exchange;
                let taken = side.begin_response(progress, &buffer.filled()[..head_len]);
                buffer.consume(taken);
                Err(box_cold(self.tunnel(head_len - taken, buffer)))
            }
            Err(attempt) => {
                let is_excused = attempt.end().is_some_and(|end| self.is_excused(end));
                let unread = self.take_unread();
                Ok(attempt.concluded(is_excused, unread))
            }
        }
    }

    /// Writes a response that has arrived whole. `None` if it has not, or the client does not
    /// read all of it now; then [`Self::relay`] continues.
    fn send_at_once(&mut self, response: &mut Response, buffer: &mut Buffer) -> Option<Relayed> {
        if !response.source.is_done() || self.pump.is_some() || response.coding.is_some() {
            return None;
        }
        let bytes = &buffer.filled()[..response.ready];
        let follow = self.exchange.follow(response.persistence);
        let mut client = self.exchange.side.carrier();
        if let Some(Ok(len)) = client.try_write(bytes, follow) {
            response.ready -= len;
            response.sent += len as u64;
            buffer.consume(len);
        }
        (response.ready == 0).then(|| response.relayed(End::Complete))
    }

    pub(super) async fn relay(mut self, response: Response, buffer: Buffer) -> Attempt {
        let upstream = self.slot.upstream();
        // Events are sent as they happen, however slow they are.
        let (bound, pace) = if response.is_event_stream {
            (None, Pace::default())
        } else {
            let buffer = self.exchange.buffer(upstream);
            (response_bound(buffer), Pace::of(buffer))
        };
        if let Some(pump) = &mut self.pump
            && (response.is_event_stream || response.rest_of_request == RestOfBody::Unread)
        {
            // Nobody waits for the rest of the request.
            pump.pace = Pace::default();
        }
        let relay = Relay {
            exchange: &mut *self.exchange,
            stream: &mut self.stream,
            request: &mut self.pump,
            watch: self.watch,
            upstream,
            bound,
            pace,
        };
        let mut relayed = match response.coding {
            None => relay.response(response, buffer).await,
            Some(coding) => box_cold(relay.coded_response(coding, response, buffer)).await,
        };
        if let Some(pump) = self.pump.take() {
            let unread = self.unread_of(*pump);
            let goes_on = matches!(relayed.next, Next::KeepAlive | Next::Close);
            if goes_on && relayed.end == End::Complete {
                relayed.unread = Some(Box::new(unread));
            }
        }
        match relayed.rest.take() {
            Some(rest) => self.deliver(relayed, rest).await,
            None => self.finish(relayed),
        }
    }

    /// Frees the slot, and sends the rest of a response that is off the endpoint.
    ///
    /// Invariant: the connection is idle or closed before the slot is free.
    async fn deliver(self, relayed: Relayed, rest: Box<Rest>) -> Attempt {
        let slot = self.slot;
        let mut watch = *self.watch;
        let (mut outcome, exchange) = self.conclude(relayed);
        slot.release();
        rest.deliver(exchange, &mut watch, &mut outcome).await;
        Attempt::Finished(outcome)
    }

    /// The rest of the request, if more was read than its first buffer. Bytes in transit are
    /// lost, but count as received and sent.
    #[cold]
    fn take_unread(&mut self) -> Option<Box<Unread>> {
        let unread = match self.pump.take() {
            Some(pump) if pump.bytes_read == 0 => {
                self.count_pump(&pump);
                return None;
            }
            Some(pump) => self.unread_of(*pump),
            None if self.request.is_whole() => return None,
            // The whole request was sent.
            None => Unread {
                decoder: BodyDecoder::new(BodyFraming::None),
                leftover: self.leftover.take(),
            },
        };
        Some(Box::new(unread))
    }

    /// Counts the bytes of a pump, and returns the rest of its body.
    fn unread_of(&mut self, pump: Pump) -> Unread {
        self.count_pump(&pump);
        let unread = pump.into_unread();
        // The leftover is dropped, or belongs to the next request.
        let leftover_len = unread.leftover.as_ref().map_or(0, Buffer::len);
        self.exchange.progress.figures.bytes_in -= leftover_len as u64;
        unread
    }

    /// Whether a failure says nothing of the endpoint.
    ///
    /// Invariant: an endpoint is blamed only for its own time. It is not blamed where less than
    /// half of the total time was left when it got the request. It is not blamed either where the
    /// client stopped within its body or never began it.
    #[cold]
    pub(super) fn is_excused(&self, end: End) -> bool {
        match end {
            End::Failure(Failure::TotalTimeout) => {
                let total = self.patience().total.unwrap_or_default();
                let is_client_late = self.waits_for() == Some(WaitsFor::Source);
                is_client_late || clock::since(self.sent_at) < total / 2
            }
            End::Failure(Failure::UpstreamClosed) => self.has_client_stopped(),
            // Many servers send no 100 and read the body as it comes.
            End::Failure(Failure::FirstByteTimeout) => self.awaits_continue(),
            _ => false,
        }
    }

    /// Whether the client has stopped within its body, so that the endpoint may have given up
    /// waiting.
    fn has_client_stopped(&self) -> bool {
        let pumping = self.pumping().filter(|_| !self.awaits_continue());
        pumping.is_some_and(|pump| pump.has_source_stopped(self.exchange.context.wheel.now()))
    }

    /// Reports the verdict of the response's head on the endpoint. Reports nothing for an error
    /// where the client has stopped within its body.
    fn report(&self, response: &Response) {
        let has_client_stopped = self.has_client_stopped();
        if has_client_stopped && (response.status == 408 || response.status >= 500) {
            return;
        }
        if self.exchange.call().is_some() {
            // The status of a call decides, which may come at its end.
            return;
        }
        let first_byte = self.exchange.progress.figures.times.first_byte;
        let now = self.sent_at + first_byte.unwrap_or_default();
        let teaches = !response.is_event_stream && !has_client_stopped;
        let answer = Answer {
            first_byte: first_byte.filter(|_| teaches),
            is_error: is_server_error(response.status),
        };
        self.slot.observe(Observed::Head(answer), now);
    }

    /// Notes the status of a call, and reports its verdict on the endpoint.
    #[cold]
    fn report_call(&mut self) {
        let figures = &mut self.exchange.progress.figures;
        let (first_byte, http) = (figures.times.first_byte, figures.status);
        let status = self.exchange.call().and_then(|it| it.status());
        let is_error = match status {
            Some(status) => grpc::is_server_fault(status),
            None => is_server_error(http),
        };
        self.exchange.progress.figures.grpc = status.map_or(GrpcStatus::NONE, GrpcStatus::of);
        let answer = Answer {
            first_byte,
            is_error,
        };
        let now = self.sent_at + first_byte.unwrap_or_default();
        self.slot.observe(Observed::Head(answer), now);
    }

    /// The failed attempt, where the endpoint has answered a call with only a status that has to
    /// be retried elsewhere.
    #[cold]
    fn refused_call(&mut self, response: &Response) -> Option<Attempt> {
        let status = self.exchange.call()?.status()?;
        let retried = &self.slot.upstream().config().grpc_retry_on;
        if !self.can_replay() || !response.source.is_done() || !retried.contains(&status) {
            return None;
        }
        self.report_call();
        Some(Attempt::Failed {
            // Without a retry this status is the answer.
            end: End::Complete,
            retry: Retry::Elsewhere,
            is_blamed: false,
            unread: None,
        })
    }

    /// Counts the attempt, and keeps the connection if it can be reused.
    pub(super) fn finish(self, relayed: Relayed) -> Attempt {
        Attempt::Finished(self.conclude(relayed).0)
    }

    /// The same, for an exchange that continues.
    fn conclude(mut self, relayed: Relayed) -> (Outcome, &'a mut Exchange<'e>) {
        if relayed.end == End::Complete && self.exchange.call().is_some() {
            self.report_call();
        }
        let (context, client) = (self.exchange.context, self.exchange.client);
        self.counters.bytes_in.add(relayed.bytes_received);
        if relayed.end.is_endpoint_fault() {
            self.counters.failures.add(1);
        }
        if relayed.end.is_endpoint_fault() && !relayed.is_excused && !self.is_excused(relayed.end) {
            self.slot.observe(Observed::Failed, clock::now());
        } else if relayed.end == End::Complete {
            self.slot.observe_end(relayed.bytes_received, self.sent_at);
        }
        if relayed.keeps_upstream {
            let (keep_alive, now) = (relayed.keep_alive, context.wheel.now());
            match self.belongs_to {
                BelongsTo::Pool => self.slot.keep_idle(self.stream, keep_alive, now),
                BelongsTo::Client(bond)
                    if relayed.next == Next::KeepAlive && client.session != NO_SESSION =>
                {
                    let pinned = self.slot.pin(self.stream, bond, keep_alive, now);
                    let own = &context.pinned;
                    pinned
                        .into_iter()
                        .for_each(|it| own.add(client.session, it));
                }
                // No other exchange may have the connection.
                BelongsTo::Client(_) | BelongsTo::Nobody => {}
            }
        }
        let consumed = self.request.consumed();
        let mut outcome = Outcome::new(relayed.end, relayed.next, consumed);
        outcome.leftover = self.leftover;
        if let Some(unread) = relayed.unread {
            outcome = outcome.with_unread(*unread);
        }
        (outcome, self.exchange)
    }

    pub(super) async fn tunnel(mut self, head_len: usize, buffer: Buffer) -> Attempt {
        self.count_status(101);
        let answer = Answer {
            first_byte: None,
            is_error: false,
        };
        self.slot.observe(Observed::Head(answer), self.sent_at);
        // First the rest of the request, unchanged, then the bytes read after it.
        let behind = if self.request.is_whole() {
            &self.request.bytes[self.request.valid_len..]
        } else {
            &[][..]
        };
        self.exchange.progress.figures.bytes_in += behind.len() as u64;
        let pump = self.pump.take();
        if let Some(pump) = &pump {
            self.count_pump(pump);
        }
        let progress = &mut self.exchange.progress;
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
        let silence = Silence {
            idle: self.exchange.patience(self.slot.upstream()).idle,
            dead_peer: None,
        };
        let start = TunnelStart {
            from_client: Some(from_client),
            from_upstream: Some(buffer),
        };
        // A tunnel has no limit on its total time.
        self.exchange.total_deadline = u64::MAX;
        let (exchange, stream) = (&mut *self.exchange, &mut self.stream);
        let carried = tunnel::carry(exchange, stream, start, silence, || {}).await;
        // The head is not a part of the body.
        let figures = &mut self.exchange.progress.figures;
        figures.body_bytes_out = figures.body_bytes_out.saturating_sub(head_len as u64);
        self.counters.bytes_out.add(carried.up_bytes);
        self.counters.bytes_in.add(carried.down_bytes);
        let consumed = self.request.bytes.len();
        let sender = Sender::Late;
        Attempt::Finished(Outcome::new(carried.end, Next::Linger { sender }, consumed))
    }
}

/// Whether a status shows a fault of the endpoint: a missing feature (501, 505) is no fault.
fn is_server_error(status: u16) -> bool {
    status >= 500 && !matches!(status, 501 | 505)
}
