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

/// Carries bytes both ways until both sides have closed, one of them broke,
/// nothing moved for `idle_timeout`, it took too long in all, or the program stops. A
/// side that closes its sending half only has that passed on. `on_answer` is called
/// with the endpoint's first bytes.
pub(super) async fn carry(
    exchange: &mut Exchange<'_>,
    stream: &mut Stream,
    first: TunnelStart,
    idle_timeout: Duration,
    on_answer: impl FnOnce(),
) -> Carried {
    let start = |buffer: Option<Buffer>| {
        let len = buffer.as_ref().map_or(0, Buffer::len);
        let source = BodySource::http1(BodyDecoder::UntilClose);
        Pump::new(source, BodySink::http1(Transcode::Raw), buffer, len)
    };
    let mut on_answer = Some(on_answer);
    let mut up = Direction::Open(start(first.from_client));
    let mut down = Direction::Open(start(first.from_upstream));
    exchange.set_bounded_timeout(idle_timeout);
    let mut closed_first = None;
    let _counted = exchange.context.generation().count_tunnel();
    let end = poll_fn(|cx| {
        let client = &mut exchange.side.carrier();
        let endpoint = &mut (&mut *stream).into();
        let up_moved = up.poll(cx, client, endpoint);
        let down_moved = down.poll(cx, endpoint, client);
        if down_moved
            && down.bytes_read() > 0
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
            track.set_bytes_in(figures.bytes_in + up.bytes_read());
            track.set_bytes_out(figures.bytes_out + down.bytes_written());
            exchange.set_bounded_timeout(idle_timeout);
        }
        if exchange.context.ends_tunnels.get() {
            Poll::Ready(Failure::Stopped.into())
        } else if exchange.has_timed_out() {
            Poll::Ready(exchange.timed_out(Failure::TunnelIdle).into())
        } else {
            Poll::Pending
        }
    })
    .await;
    let figures = &mut exchange.progress.figures;
    figures.bytes_in += up.bytes_read();
    figures.bytes_out += down.bytes_written();
    figures.body_bytes_out += down.bytes_written();
    Carried {
        end,
        up_bytes: up.bytes_written(),
        down_bytes: down.bytes_read(),
        closed_first,
        broken: match (&up, &down) {
            (Direction::Broken(_), _) => Some(Side::Client),
            (_, Direction::Broken(_)) => Some(Side::Endpoint),
            _ => None,
        },
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
enum Direction {
    Open(Pump),
    /// Its source closed, which was passed on, or its sink takes nothing more.
    Closed(Pump),
    /// One of the streams broke.
    Broken(Pump),
}

impl Direction {
    /// Moves what can be moved, and says whether something was.
    fn poll(
        &mut self,
        cx: &mut TaskContext<'_>,
        source: &mut Carrier<'_>,
        sink: &mut Carrier<'_>,
    ) -> bool {
        let Direction::Open(pump) = self else {
            return false;
        };
        let before = pump.progress();
        let polled = pump.poll(cx, source, sink);
        let has_moved = pump.progress() != before;
        let Poll::Ready(end) = polled else {
            return has_moved;
        };
        let nothing = Pump::dropping(BodyDecoder::UntilClose, None);
        let pump = std::mem::replace(pump, nothing);
        *self = match end {
            PumpEnd::Done => {
                // A sink that is gone has no sending side to close.
                let _ = sink.close_notify();
                Direction::Closed(pump)
            }
            // What the sink sent before it went may still be on its way.
            PumpEnd::SinkClosed => Direction::Closed(pump),
            _ => Direction::Broken(pump),
        };
        true
    }

    fn is_open(&self) -> bool {
        matches!(self, Direction::Open(_))
    }

    fn pump(&self) -> &Pump {
        match self {
            Direction::Open(pump) | Direction::Closed(pump) | Direction::Broken(pump) => pump,
        }
    }

    fn bytes_read(&self) -> u64 {
        self.pump().bytes_read
    }

    fn bytes_written(&self) -> u64 {
        self.pump().bytes_written
    }

    fn is_over(&self, other: &Direction) -> bool {
        matches!(
            (self, other),
            (Direction::Broken(_), _)
                | (_, Direction::Broken(_))
                | (Direction::Closed(_), Direction::Closed(_))
        )
    }
}
