//! TCP connections: an endpoint with a slot, then unchanged bytes in both directions.
//!
//! A connection gets its slot as an HTTP request does: see `exchange::forward`. It keeps the slot
//! until both sides have closed.

use std::cell::Cell;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::observation::{Answer, Observed};
use evenkeel_proto::BodyFraming;
use evenkeel_proto::client_hello::ClientHello;
use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::proxy_protocol::{Extensions, Version};

use super::attempt::Connections;
use super::forward::{try_endpoints, wanted};
use super::outcome::Unanswered;
use super::request::RequestBody;
use super::tunnel::{self, Carried, Side, Silence, TunnelStart};
use super::{Exchange, box_cold, proxy_header};
use crate::config::Proxying;
use crate::metrics::end::{End, Failure};
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::net::stream::Stream;
use crate::observe::access_log::Phase;
use crate::observe::sessions::Stage;
use crate::upstream::{Slot, Upstream};

/// The client's first bytes, from before its route was chosen.
pub struct First {
    /// The bytes.
    pub bytes: Buffer,
    /// The bytes as a TLS ClientHello, if they are one.
    pub hello: Option<ClientHello>,
}

/// Connects the client with an endpoint, and carries bytes in both directions until both have
/// closed. `first` are the client's bytes so far, where routes ask about them. `key` is for
/// balancers by key.
///
/// # Cancellation
/// Dropping the future closes the endpoint's connection and gives the slot back.
pub async fn carry(
    exchange: &mut Exchange<'_>,
    proxying: &Proxying,
    key: u64,
    first: Option<Box<First>>,
) -> End {
    let context = exchange.context;
    let upstream = context.upstream(proxying.upstream);
    exchange.progress.set_upstream(upstream.index());
    let timeouts = &upstream.config().timeouts;
    exchange.total_deadline = timeouts
        .total
        .map_or(u64::MAX, |total| context.wheel.deadline(total));
    if context
        .generation()
        .maintenance
        .has_upstream(upstream.index())
    {
        return Failure::Maintenance.into();
    }
    upstream.count_request();
    // Boxed, as none of it is needed while bytes are carried.
    let connecting = {
        // A copy, as a borrow of `first` would enlarge the tunnel's state.
        let hello = first.as_ref().and_then(|it| it.hello.as_ref());
        let server_name = exchange.client.server_name(hello).into();
        box_cold(connect(exchange, upstream, proxying, key, server_name))
    };
    let (slot, mut stream) = match connecting.await {
        Ok(connected) => connected,
        Err(unanswered) => return unanswered.end,
    };
    let connected_at = clock::now();
    let connect_time = exchange.progress.figures.times.connect;
    exchange.progress.figures.phase = Phase::Data;
    exchange.progress.figures.responded = Some(connected_at);
    exchange.progress.track.enter(Stage::Tunnel);
    let answered_at = Cell::new(None);
    let answer = || answered(&slot, connect_time, &answered_at);
    let start = TunnelStart {
        // With TLS the header was sent before the handshake.
        from_client: match upstream
            .config()
            .proxy_protocol
            .filter(|_| slot.tls().is_none())
        {
            Some(version) => Some(behind_proxy_header(exchange, version, first)),
            None => first.map(|it| it.bytes).filter(|it| !it.is_empty()),
        },
        from_upstream: None,
    };
    let silence = Silence {
        idle: timeouts.tcp_idle,
        dead_peer: Some(timeouts.dead_peer),
    };
    let carried = tunnel::carry(exchange, &mut stream, start, silence, answer).await;
    let end = end(&carried);
    // The tunnel was cut before the endpoint's first byte. The endpoint may be slow or frozen, so
    // nothing is learned.
    let is_unknown = end != End::Tunnel && carried.up_bytes > 0;
    if answered_at.get().is_none() && !end.is_endpoint_fault() && !is_unknown {
        // It had no reason to send anything.
        answered(&slot, connect_time, &answered_at);
    } else if let Some(at) = answered_at.get() {
        let times = &mut exchange.progress.figures.times;
        times.first_byte = Some(at.duration_since(connected_at));
    }
    let counters = slot.counters();
    counters.bytes_out.add(carried.up_bytes);
    counters.bytes_in.add(carried.down_bytes);
    if end.is_endpoint_fault() {
        counters.failures.add(1);
    }
    if end == End::Failure(Failure::UpstreamClosed) {
        slot.observe(Observed::Failed, clock::now());
    }
    if let Some(side) = carried.broken {
        box_cold(pass_reset_on(exchange, &mut stream, side)).await;
    } else if carried.end != End::Tunnel {
        // The tunnel was cut. Resets, so that neither peer takes a part for the whole.
        stream.abort_on_close();
        exchange.side.abort_on_close();
    }
    end
}

/// The client's first bytes, after the PROXY header for the endpoint.
#[cold]
fn behind_proxy_header(
    exchange: &Exchange<'_>,
    version: Version,
    first: Option<Box<First>>,
) -> Buffer {
    let mut header = Vec::new();
    let hello = first.as_ref().and_then(|it| it.hello.as_ref());
    let client = exchange.client;
    let extensions = Extensions {
        authority: Some(client.server_name(hello)).filter(|it| !it.is_empty()),
        ..Extensions::default()
    };
    let connected_to = exchange.side.local_address();
    proxy_header::write(&mut header, version, client, connected_to, extensions);
    let bytes = first.as_ref().map_or(&[][..], |it| it.bytes.filled());
    let mut both = Buffer::with_capacity(header.len() + bytes.len());
    let fits = both.append(&header) && both.append(bytes);
    debug_assert!(fits, "the buffer was made for them");
    both
}

/// A connection to an endpoint, and its slot.
///
/// # Errors
/// No endpoint could be connected.
async fn connect<'u>(
    exchange: &mut Exchange<'_>,
    upstream: &'u Upstream,
    proxying: &Proxying,
    key: u64,
    server_name: Box<[u8]>,
) -> Result<(Slot<'u>, Stream), Unanswered> {
    let wanted = wanted(exchange, upstream, proxying, key);
    // The client's bytes stay in place, so that a retry can send them to another endpoint.
    let nothing = RequestBody {
        head: exchange.head,
        bytes: &[],
        valid_len: 0,
        decoder: BodyDecoder::new(BodyFraming::None),
        server_name: Some(&server_name),
    };
    let both = |slot, stream| (slot, stream);
    try_endpoints::<Connections, _>(exchange, &wanted, upstream, &nothing, both).await
}

/// Notes that the endpoint was of use. Balancers learn from its connect time. An endpoint that
/// closes without a byte was of no use.
fn answered(slot: &Slot<'_>, connect_time: Option<Duration>, at: &Cell<Option<Instant>>) {
    let now = clock::now();
    at.set(Some(now));
    let answer = Answer {
        first_byte: connect_time,
        is_error: false,
    };
    slot.observe(Observed::Head(answer), now);
}

/// The end of the exchange.
fn end(carried: &Carried) -> End {
    if carried.end != End::Tunnel {
        return carried.end;
    }
    match (carried.closed_first, carried.broken) {
        (Some(Side::Endpoint), _) if carried.down_bytes == 0 => Failure::UpstreamClosed.into(),
        (_, Some(Side::Client)) => Failure::ClientGone.into(),
        (_, Some(Side::Endpoint)) => Failure::UpstreamCut.into(),
        (_, None) => End::Tunnel,
    }
}

/// Interval of checks whether all bytes have arrived.
const DELIVERY_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for bytes to arrive before a reset.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Resets the other side's connection once all bytes written to it have arrived. A reset would
/// overtake bytes that the kernel still holds.
async fn pass_reset_on(exchange: &mut Exchange<'_>, stream: &mut Stream, broken: Side) {
    let wheel = &exchange.context.wheel;
    let deadline = wheel.deadline(DELIVERY_TIMEOUT);
    loop {
        let held = match broken {
            Side::Client => stream.unacknowledged_len(),
            Side::Endpoint => exchange.side.unacknowledged_len(),
        };
        if held == 0 || wheel.now() >= deadline || exchange.context.cut_off().is_some() {
            break;
        }
        wheel.sleep(DELIVERY_PAUSE).await;
    }
    match broken {
        Side::Client => stream.abort_on_close(),
        Side::Endpoint => exchange.side.abort_on_close(),
    }
}
