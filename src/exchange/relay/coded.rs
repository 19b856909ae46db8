//! Responses that get a content coding on their way to the client.
//!
//! The pump delivers the plain content of the body, which goes through an encoder. The output
//! goes to the client. While the client does not read, the output goes into a backlog, so that
//! the endpoint is free. The upstream's settings bound the backlog.
//!
//! ```text
//! endpoint ─▶ pump ─▶ encoder ─▶ [ backlog ]──[ out ] ─▶ client
//! ```
//!
//! Invariant: `out` follows the backlog. A turn gives the encoder at most [`SLICE_LEN`] bytes.
//! When the endpoint pauses, the encoder is flushed, so that the client has everything so far.

use std::future::poll_fn;
use std::task::{Context as TaskContext, Poll, ready};

use evenkeel_proto::coding::Coding;
use evenkeel_proto::http1::BodyDecoder;

use super::ahead::Backlog;
use super::{Relay, Relayed, Response, Stop, WaitsFor};
use crate::exchange::body::PumpEnd;
use crate::exchange::carrier::Carrier;
use crate::exchange::compression::{CodedBody, EncoderFailed, SLICE_LEN};
use crate::exchange::pump::Pump;
use crate::net::buffer::Buffer;
use crate::net::stream::Follow;
use crate::observe::sessions::Stage;

/// Length of encoded output, in bytes, at which it is written before more is encoded.
const OUT_MIN: usize = 16 * 1024;

/// Cost of a read beside its bytes, as a share of a turn: a read may bring only framing.
const READ_COST: usize = 256;
/// Assumed least factor by which a body shrinks.
const SHRINKS_BY: u64 = 2;

/// A response on its way through an encoder.
struct CodedResponse<'c> {
    pump: Pump,
    body: CodedBody<'c>,
    out: Vec<u8>,
    /// Written bytes at the front of `out`.
    written: usize,
    backlog: Backlog,
    /// How the body ended, if it has; the remaining output is to be written.
    ended: Option<PumpEnd>,
    /// Whether the endpoint had paused before other tasks had their turn.
    has_paused: bool,
    /// What follows the last byte on the connection.
    follow: Follow,
}

/// Why encoding stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EncodeStop {
    /// Enough output to write.
    Full,
    /// The endpoint sends nothing more for now.
    Pauses,
    /// Other tasks get a turn.
    Yields,
    /// The body has ended.
    Ended,
}

impl From<EncoderFailed> for Stop {
    fn from(_: EncoderFailed) -> Self {
        Stop::EncoderFailed
    }
}

impl<'a> Relay<'_, 'a> {
    /// Relays the response with this coding to its end, or until a side stops. Also stops once
    /// the response is off the endpoint; the client then gets the rest without it.
    pub async fn coded_response(
        mut self,
        coding: Coding,
        response: Response,
        buffer: Buffer,
    ) -> Relayed {
        self.exchange.progress.track.enter(Stage::Response);
        let head = buffer.filled()[..response.head_len].to_vec();
        let (source, sink) = (response.source.clone(), response.sink.clone());
        let mut pump = Pump::new(source, sink, Some(buffer), response.ready).copied();
        pump.take_held(head.len());
        let Ok(body) = self.exchange.coded_body(coding, known_len(&pump)) else {
            return self.ended(Stop::EncoderFailed, response, pump, None).await;
        };
        let mut coded = CodedResponse {
            pump,
            body,
            out: head,
            written: 0,
            backlog: Backlog::new(self.exchange.context),
            ended: None,
            has_paused: false,
            follow: self.exchange.follow(response.persistence),
        };
        let before = self.exchange.progress.figures.bytes_out;
        let stop = self.run_coded(&mut coded, before).await;
        let CodedResponse {
            pump,
            mut backlog,
            ended,
            ..
        } = coded;
        let is_off_endpoint = matches!(stop, Stop::Response(end) if ended == Some(end));
        let held = (is_off_endpoint && backlog.len() > 0).then(|| {
            backlog.trim();
            backlog
        });
        self.ended(stop, response, pump, held).await
    }

    /// `sent` bytes went to the client before.
    async fn run_coded(&mut self, coded: &mut CodedResponse<'a>, sent: u64) -> Stop {
        let mut is_timed = false;
        poll_fn(|cx| {
            let before = coded.pump.progress();
            if let Poll::Ready(stop) = self.poll_coded(cx, coded) {
                return Poll::Ready(stop);
            }
            let request_moved = match self.poll_others(cx) {
                Ok(has_moved) => has_moved,
                Err(stop) => return Poll::Ready(stop),
            };
            let waits_for = coded.waits_for();
            if !is_timed || request_moved || coded.pump.progress() != before {
                is_timed = true;
                let track = &self.exchange.progress.track;
                track.set_bytes_out(sent + coded.pump.bytes_written);
                match waits_for {
                    WaitsFor::Sink => self.wait_for_client(&coded.pump),
                    WaitsFor::Source => self.wait_for_endpoint(),
                }
            }
            match self.judge(&coded.pump, waits_for) {
                Some(stop) => Poll::Ready(stop),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Encodes and writes as much as both sides and a turn permit.
    fn poll_coded(
        &mut self,
        cx: &mut TaskContext<'_>,
        coded: &mut CodedResponse<'_>,
    ) -> Poll<Stop> {
        let mut budget = SLICE_LEN;
        loop {
            let turn = match self.encode(cx, coded, &mut budget) {
                Ok(turn) => turn,
                Err(stop) => return Poll::Ready(stop),
            };
            let has_written = match coded.poll_write(cx, &mut self.exchange.side.carrier()) {
                Poll::Ready(Err(end)) => return Poll::Ready(Stop::Response(end)),
                Poll::Ready(Ok(())) => true,
                // The client gets it later, and the endpoint continues.
                Poll::Pending if self.set_aside(coded) => false,
                Poll::Pending => return Poll::Pending,
            };
            match (turn, coded.ended) {
                (EncodeStop::Ended, Some(end)) if has_written || self.is_request_done() => {
                    return Poll::Ready(Stop::Response(end));
                }
                (EncodeStop::Full, _) => {}
                (EncodeStop::Yields, _) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // A request in transit still needs the endpoint's connection.
                (EncodeStop::Ended | EncodeStop::Pauses, _) => return Poll::Pending,
            }
        }
    }

    /// Encodes until there is enough to write, or no more input. `budget` is the rest of the
    /// turn, in bytes.
    ///
    /// # Errors
    /// The encoder can't continue.
    fn encode(
        &mut self,
        cx: &mut TaskContext<'_>,
        coded: &mut CodedResponse<'_>,
        budget: &mut usize,
    ) -> Result<EncodeStop, Stop> {
        loop {
            let CodedResponse {
                pump, body, out, ..
            } = coded;
            if coded.ended.is_some() {
                return Ok(EncodeStop::Ended);
            }
            if out.len() - coded.written >= OUT_MIN {
                return Ok(EncodeStop::Full);
            }
            if pump.held_len() == 0 && pump.is_source_done() {
                body.finish(out)?;
                coded.ended = Some(PumpEnd::Done);
                continue;
            }
            if *budget == 0 {
                return Ok(EncodeStop::Yields);
            }
            if pump.held_len() > 0 {
                let held = pump.held();
                let taken = body.take(&held[..held.len().min(*budget)], out)?;
                pump.take_held(taken);
                *budget -= taken;
                coded.has_paused = false;
                continue;
            }
            let endpoint = &mut (&mut *self.stream).into();
            match pump.poll_read_ahead(cx, endpoint, SLICE_LEN) {
                Poll::Ready(Ok(())) => *budget = budget.saturating_sub(READ_COST),
                Poll::Ready(Err(end)) => {
                    body.flush(out)?;
                    coded.ended = Some(end);
                }
                Poll::Pending if !body.is_holding() => return Ok(EncodeStop::Pauses),
                // More may arrive while other tasks run, and a flush costs bytes.
                Poll::Pending if !coded.has_paused => {
                    coded.has_paused = true;
                    return Ok(EncodeStop::Yields);
                }
                Poll::Pending => {
                    body.flush(out)?;
                    return Ok(EncodeStop::Pauses);
                }
            }
        }
    }

    /// Moves the output into the backlog; `false` if the backlog is full, or the response is too
    /// long for it.
    fn set_aside(&mut self, coded: &mut CodedResponse<'_>) -> bool {
        let Some(bound) = self.bound else {
            return false;
        };
        let out_len = coded.out.len() - coded.written;
        let to_come = usize::try_from(coded.pump.unseen_len() / SHRINKS_BY);
        let whole_len = (coded.backlog.len() + out_len).saturating_add(to_come.unwrap_or(bound));
        if whole_len > bound {
            return false;
        }
        if !coded.backlog.reserve(out_len) {
            let upstream = self.upstream.index();
            let counters = &self.exchange.context.generation().counters.upstreams[upstream];
            counters.buffers_refused.add(1);
            self.bound = None;
            return false;
        }
        coded.backlog.append(&coded.out[coded.written..]);
        coded.out.clear();
        coded.written = 0;
        true
    }
}

/// The length of a pump's body, where it is known at the start.
fn known_len(pump: &Pump) -> Option<u64> {
    let held = pump.held_len() as u64;
    match pump.decoder() {
        _ if pump.is_source_done() => Some(held),
        BodyDecoder::Length { .. } => Some(held + pump.unseen_len()),
        _ => None,
    }
}

impl CodedResponse<'_> {
    fn waits_for(&self) -> WaitsFor {
        if self.backlog.len() > 0 || self.written < self.out.len() {
            WaitsFor::Sink
        } else {
            WaitsFor::Source
        }
    }

    /// Writes all output.
    ///
    /// # Errors
    /// The client accepts nothing more.
    fn poll_write(
        &mut self,
        cx: &TaskContext<'_>,
        client: &mut Carrier<'_>,
    ) -> Poll<Result<(), PumpEnd>> {
        let follow = match self.ended {
            Some(PumpEnd::Done) => self.follow,
            _ => Follow::Anything,
        };
        let before = self.backlog.len();
        if before > 0 {
            let follows_backlog = match self.out.len() {
                0 => follow,
                _ => Follow::More,
            };
            let polled = self.backlog.poll_write(cx, client, follows_backlog);
            self.pump.bytes_written += (before - self.backlog.len()) as u64;
            ready!(polled)?;
        }
        while self.written < self.out.len() {
            match client.poll_write(cx, &self.out[self.written..], follow) {
                Poll::Ready(Ok(len)) if len > 0 => {
                    self.written += len;
                    self.pump.bytes_written += len as u64;
                }
                Poll::Ready(_) => return Poll::Ready(Err(PumpEnd::SinkClosed)),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.out.clear();
        self.out.shrink_to(2 * OUT_MIN);
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}
