//! Tunnels: bytes both ways, over TCP or after a change of protocols (101).

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

/// A tunnel that is this old has its peers watched. A shorter one does without the ten
/// system calls that this takes.
const WATCHED_AFTER: Duration = Duration::from_secs(1);

/// Bounds on the silence of a tunnel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// Longest time in which nothing moves.
    pub idle: Duration,
    /// A peer that acknowledges nothing for so long is dead, where that is watched.
    pub dead_peer: Option<Duration>,
}

/// Carries bytes both ways until both sides have closed, one of them broke,
/// it was silent for too long, it took too long in all, or the program stops. A
/// side that closes its sending half only has that passed on. `on_answer` is called
/// with the endpoint's first bytes.
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
    // The peers are watched from here on.
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

/// What a tunnel carried.
pub(super) struct Carried {
    /// How it ended.
    pub end: End,
    /// To the endpoint.
    pub up_bytes: u64,
    /// From the endpoint, after what came with its head.
    pub down_bytes: u64,
    /// Who closed its sending side first, or broke.
    pub closed_first: Option<Side>,
    /// Whose connection broke, and with it the tunnel.
    pub broken: Option<Side>,
}

/// What each side of a tunnel has sent before it began.
pub(super) struct TunnelStart {
    pub from_client: Option<Buffer>,
    /// Begins with the head of the 101, over HTTP.
    pub from_upstream: Option<Buffer>,
}

/// One direction of a tunnel.
struct Direction {
    state: State,
    /// What moves the bytes. There is none while nothing is on its way, so that an idle
    /// tunnel takes little memory.
    pump: Option<Box<Pump>>,
    /// Read from the source.
    bytes_read: u64,
    /// Written to the sink.
    bytes_written: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Its source closed, which was passed on, or its sink takes nothing more.
    Closed,
    /// Its sink was reset; what came from there before may be on its way.
    Reset,
    /// One of the streams broke.
    Broken,
}

impl Direction {
    /// One whose source has sent these bytes.
    fn new(first: Option<Buffer>) -> Self {
        Direction {
            state: State::Open,
            pump: first.map(|it| Box::new(pump(Some(it)))),
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    /// Moves what can be moved, and says whether something was. `other` is the state of
    /// the other direction.
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
            // A write was told of the reset, so that reads say that it is the end.
            PumpEnd::Done if other == State::Reset => State::Broken,
            PumpEnd::Done => {
                // A sink that is gone has no sending side to close.
                let _ = sink.close_notify();
                State::Closed
            }
            // What the sink sent before it went may still be on its way.
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

/// A pump of bytes as they are, which begins with these.
fn pump(buffer: Option<Buffer>) -> Pump {
    let len = buffer.as_ref().map_or(0, Buffer::len);
    let source = BodySource::http1(BodyDecoder::UntilClose);
    Pump::new(source, BodySink::http1(Transcode::Raw), buffer, len)
}
