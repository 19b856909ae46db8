//! Tunnels: bytes in both directions, over TCP or after an upgrade (101).

use std::future::poll_fn;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::http1::write::Transcode;

use super::body::{BodySink, BodySource, PumpEnd};
use super::carrier::Carrier;
use super::pump::Pump;
use super::{Exchange, Progress};
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::stream::Stream;

/// Age at which a tunnel starts to watch its peers. Shorter tunnels save the ten system calls for
/// that.
const WATCHED_AFTER: Duration = Duration::from_secs(1);

/// Limits on the silence of a tunnel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// Longest time without progress.
    pub idle: Duration,
    /// A watched peer counts as dead after this time without acknowledgements.
    pub dead_peer: Option<Duration>,
}

/// Carries bytes in both directions. Ends when both sides have closed or one has broken, after
/// too much silence or too much total time, or when the program stops. Passes a half-close on.
/// Calls `on_answer` at the endpoint's first bytes.
pub(super) fn carry(
    exchange: &mut Exchange<'_>,
    stream: &mut Stream,
    first: TunnelStart,
    silence: Silence,
    on_answer: impl FnOnce(),
) -> impl Future<Output = Carried> {
    let mut up = Direction::new(first.from_client);
    let mut down = Direction::new(first.from_upstream);
    let mut on_answer = Some(on_answer);
    let wheel = &exchange.context.wheel;
    let mut idle_at = wheel.deadline(silence.idle);
    // The dead-peer watch starts at this tick.
    let mut watch_at = silence.dead_peer.map(|_| wheel.deadline(WATCHED_AFTER));
    async move {
        exchange.set_deadline(watch_at.map_or(idle_at, |it| it.min(idle_at)));
        let mut closed_first = None;
        let _counted = exchange.context.generation().count_tunnel();
        let end = poll_fn(|cx| {
            let client = &mut exchange.side.carrier();
            let endpoint = &mut (&mut *stream).into();
            let up_moved = up.poll(cx, client, endpoint, down.state);
            let down_moved = down.poll(cx, endpoint, client, up.state);
            if down_moved
                && down.bytes_read > 0
                && let Some(on_answer) = on_answer.take()
            {
                on_answer();
            }
            if closed_first.is_none() {
                closed_first = if !down.is_open() {
                    Some(Side::Endpoint)
                } else {
                    (!up.is_open()).then_some(Side::Client)
                };
            }
            if up.is_over(&down) {
                return Poll::Ready(End::Tunnel);
            }
            if up_moved || down_moved {
                let Progress { track, figures, .. } = &exchange.progress;
                track.set_bytes_in(figures.bytes_in + up.bytes_read);
                track.set_bytes_out(figures.bytes_out + down.bytes_written);
                idle_at = exchange.context.wheel.deadline(silence.idle);
                exchange.set_deadline(watch_at.map_or(idle_at, |it| it.min(idle_at)));
            }
            if watch_at.is_some_and(|it| it <= exchange.context.wheel.now()) {
                watch_at = None;
                if let Some(dead_after) = silence.dead_peer {
                    exchange.side.watch_peer(dead_after);
                    stream.watch_peer(dead_after);
                }
                exchange.set_deadline(idle_at);
            }
            if exchange.side.gives_way() {
                Poll::Ready(Failure::ClientStalled.into())
            } else if exchange.context.ends_tunnels.get() {
                Poll::Ready(Failure::Stopped.into())
            } else if exchange.has_timed_out() {
                Poll::Ready(exchange.timed_out(Failure::TunnelIdle).into())
            } else {
                Poll::Pending
            }
        })
        .await;
        let figures = &mut exchange.progress.figures;
        figures.bytes_in += up.bytes_read;
        figures.bytes_out += down.bytes_written;
        figures.body_bytes_out += down.bytes_written;
        Carried {
            end,
            up_bytes: up.bytes_written,
            down_bytes: down.bytes_read,
            closed_first,
            broken: match (up.state, down.state) {
                (State::Broken, _) => Some(Side::Client),
                (_, State::Broken) => Some(Side::Endpoint),
                _ => None,
            },
        }
    }
}

/// One of the two peers of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Endpoint,
}

/// The traffic of a tunnel, and its end.
pub(super) struct Carried {
    /// How it ended.
    pub end: End,
    /// Bytes to the endpoint.
    pub up_bytes: u64,
    /// Bytes from the endpoint, after those that came with its head.
    pub down_bytes: u64,
    /// The side that first closed its sending direction, or broke.
    pub closed_first: Option<Side>,
    /// The side whose connection broke and ended the tunnel.
    pub broken: Option<Side>,
}

/// The bytes that each side sent before the tunnel began.
pub(super) struct TunnelStart {
    pub from_client: Option<Buffer>,
    /// Over HTTP, begins with the head of the 101.
    pub from_upstream: Option<Buffer>,
}

/// One direction of a tunnel.
struct Direction {
    state: State,
    /// Moves the bytes. Absent while no bytes are in transit, so that an idle tunnel takes little
    /// memory.
    pump: Option<Box<Pump>>,
    /// Bytes read from the source.
    bytes_read: u64,
    /// Bytes written to the sink.
    bytes_written: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has closed, and the half-close was passed on; or the sink accepts nothing more.
    Closed,
    /// The sink was reset; bytes that it sent before may still arrive.
    Reset,
    /// One of the streams broke.
    Broken,
}

impl Direction {
    /// A direction whose source has sent these first bytes.
    fn new(first: Option<Buffer>) -> Self {
        Direction {
            state: State::Open,
            pump: first.map(|it| Box::new(pump(Some(it)))),
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    /// Moves bytes. Returns whether any moved. `other` is the state of the other direction.
    fn poll(
        &mut self,
        cx: &mut TaskContext<'_>,
        source: &mut Carrier<'_>,
        sink: &mut Carrier<'_>,
        other: State,
    ) -> bool {
        if self.state != State::Open {
            return false;
        }
        let mut fresh = None;
        let moving = match &mut self.pump {
            Some(pump) => &mut **pump,
            None => fresh.insert(pump(None)),
        };
        let polled = moving.poll(cx, source, sink);
        let has_moved = moving.progress() > 0;
        self.bytes_read += std::mem::take(&mut moving.bytes_read);
        self.bytes_written += std::mem::take(&mut moving.bytes_written);
        let is_at_rest = moving.is_at_rest();
        let Poll::Ready(end) = polled else {
            if is_at_rest {
                self.pump = None;
            } else if let Some(fresh) = fresh {
                self.pump = Some(Box::new(fresh));
            }
            return has_moved;
        };
        self.pump = None;
        self.state = match end {
            // The write got the error of the reset, so reads show a plain end.
            PumpEnd::Done if other == State::Reset => State::Broken,
            PumpEnd::Done => {
                // A closed sink needs no half-close.
                let _ = sink.close_notify();
                State::Closed
            }
            // Bytes that the sink sent before may still arrive.
            PumpEnd::SinkClosed => State::Closed,
            PumpEnd::SinkReset => State::Reset,
            _ => State::Broken,
        };
        true
    }

    fn is_open(&self) -> bool {
        self.state == State::Open
    }

    fn is_over(&self, other: &Direction) -> bool {
        let is_broken = self.state == State::Broken || other.state == State::Broken;
        is_broken || (!self.is_open() && !other.is_open())
    }
}

/// A pump for unchanged bytes, starting with `buffer`.
fn pump(buffer: Option<Buffer>) -> Pump {
    let len = buffer.as_ref().map_or(0, Buffer::len);
    let source = BodySource::http1(BodyDecoder::UntilClose);
    Pump::new(source, BodySink::http1(Transcode::Raw), buffer, len)
}
