//! Gets a connection to an endpoint: an idle or a new one.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use evenkeel_tls::HandshakeFault;

use super::opened::{NotOpened, Opened, Origin};
use super::{UpstreamConnection, shared};
use crate::certificates::Alpn;
use crate::config::EndpointProtocol;
use crate::exchange::request::RequestBody;
use crate::exchange::room::with_descriptor;
use crate::exchange::watch::ClientWatch;
use crate::exchange::{Client, Context, Exchange, TimedOut, proxy_header, restart};
use crate::metrics::end::Failure;
use crate::net::clock;
use crate::net::connect::{is_backlog_full, is_unreachable, reason};
use crate::observe::counters::EndpointCounters;
use crate::observe::sessions::Stage;
use crate::upstream::{HANDSHAKE_TIMEOUT, Reused, Slot};

/// An idle connection, if there is one that the exchange may use.
pub(super) fn take_idle(
    exchange: &Exchange<'_>,
    slot: &Slot<'_>,
    request: &RequestBody<'_>,
    connection: UpstreamConnection,
) -> Option<Opened> {
    let context = exchange.context;
    match slot.upstream().config().protocol {
        EndpointProtocol::Http1 => {}
        EndpointProtocol::Http2 => {
            return shared::take_stream(exchange, slot, request, connection);
        }
        EndpointProtocol::Either => {
            if request.head.wire.upgrade.is_none()
                && let Some(opened) = shared::take_stream(exchange, slot, request, connection)
            {
                return Some(opened);
            }
        }
    }
    if !context.pinned.is_empty()
        && let Some(opened) = take_pinned(context, exchange.client, slot)
    {
        return Some(opened);
    }
    let counters = slot.counters();
    // An idle connection has named no client, or another one.
    let tells_client = slot.upstream().config().proxy_protocol.is_some();
    if connection == UpstreamConnection::New || tells_client {
        counters.displaced.add(slot.make_room());
        return None;
    }
    let reused = slot.take_idle(context.wheel.now());
    count_reused(counters, &reused);
    Some(Opened {
        stream: reused.stream?,
        origin: Origin::Pool,
    })
}

/// The client's pinned connection, if it is to this endpoint.
#[cold]
fn take_pinned(context: &Context, client: &Client, slot: &Slot<'_>) -> Option<Opened> {
    let own = context.pinned.take(client.session, slot.upstream())?;
    let tells_client = slot.upstream().config().proxy_protocol.is_some();
    if tells_client && client.relayed().is_some() {
        // It may have named another client of the same proxy.
        return None;
    }
    let origin = Origin::Pinned(own.bond());
    let reused = slot.take_pinned(own, context.wheel.now());
    count_reused(slot.counters(), &reused);
    let stream = reused.stream?;
    Some(Opened { stream, origin })
}

fn count_reused(counters: &EndpointCounters, reused: &Reused) {
    if reused.stale > 0 {
        counters.stale.add(reused.stale);
    }
    if reused.displaced > 0 {
        counters.displaced.add(reused.displaced);
    }
    if reused.stream.is_some() {
        counters.reuses.add(1);
    }
}

/// A new connection, with TLS where the upstream has it, within the connect timeout.
pub(super) async fn open(
    exchange: &mut Exchange<'_>,
    slot: &Slot<'_>,
    request: &RequestBody<'_>,
    watch: &mut ClientWatch,
) -> Result<Opened, Failure> {
    let context = exchange.context;
    let counters = slot.counters();
    exchange.set_bounded_timeout(slot.upstream().config().timeouts.connect);
    exchange.progress.track.enter(Stage::Connect);
    let mut reached_at = clock::now();
    let header = header_before_tls(exchange, slot, request);
    let alpn = shared::alpn(slot, exchange.listener().protocol, request);
    let is_handshaking = Cell::new(false);
    let may_share = matches!(alpn, Alpn::Http2 | Alpn::Either);
    let is_own = Cell::new(!may_share);
    let asking = may_share.then(|| shared::asking(exchange, slot, request));
    let mut connecting = std::pin::pin!(async {
        if let Some(asking) = asking {
            let told = (&is_handshaking, &is_own);
            return shared::open_stream(&context.worker(), slot, asking, alpn, told).await;
        }
        let stream = with_descriptor(context, || slot.connect()).await;
        let stream = stream.map_err(NotOpened::Connect)?;
        let Some(tls) = slot.tls() else {
            return Ok(stream);
        };
        is_handshaking.set(true);
        let encrypted = tls.encrypt(stream, alpn, &header).await;
        encrypted.map_err(NotOpened::Tls)
    });
    let connected = context.until_deadline(
        &exchange.timer,
        poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connected) => Poll::Ready(Some(connected)),
            Poll::Pending => {
                let gone = if request.is_whole() {
                    watch.poll_gone(cx, &mut exchange.side)
                } else {
                    ClientWatch::poll_gone_early(cx, &mut exchange.side)
                };
                gone.map(|()| None)
            }
        }),
    );
    let connected = connected.await;
    exchange.progress.figures.times.connect = Some(restart(&mut reached_at));
    let failure = match connected {
        Ok(None) => return Err(Failure::ClientGone),
        Ok(Some(Ok(stream))) => {
            if !is_own.get() {
                // Another exchange has opened and counted it.
                counters.reuses.add(1);
                return Ok(Opened {
                    stream,
                    origin: Origin::New(reached_at),
                });
            }
            counters.connects.add(1);
            slot.reached(reached_at);
            return Ok(Opened {
                stream,
                origin: Origin::New(reached_at),
            });
        }
        Ok(Some(Err(NotOpened::Tls(fault)))) => {
            slot.observe_unreachable(fault.summary(), reached_at);
            match fault {
                HandshakeFault::Certificate(_) => Failure::UpstreamCertificate,
                HandshakeFault::Other(_) => Failure::UpstreamTls,
            }
        }
        Ok(Some(Err(NotOpened::Connect(error)))) => {
            if is_backlog_full(&error) {
                // Room may appear here or elsewhere: the endpoint is busy.
                return Err(Failure::Saturated);
            }
            if is_unreachable(&error) {
                slot.observe_unreachable(&reason(&error), reached_at);
                Failure::ConnectFailed
            } else {
                Failure::NoSocket
            }
        }
        Err(TimedOut) => {
            let failure = exchange.timed_out(Failure::ConnectTimeout);
            let why = if is_handshaking.get() {
                Some(HANDSHAKE_TIMEOUT)
            } else if slot.config().address.is_unix() {
                // `Slot::connect` has counted a backlog that stays full.
                None
            } else {
                Some("it did not answer in time")
            };
            if failure == Failure::ConnectTimeout
                && let Some(why) = why
            {
                slot.observe_unreachable(why, reached_at);
            }
            failure
        }
    };
    counters.connect_failures.add(1);
    Err(failure)
}

/// The PROXY header of a connection with TLS. It is sent in plain text before the handshake.
/// Empty without one.
fn header_before_tls(
    exchange: &Exchange<'_>,
    slot: &Slot<'_>,
    request: &RequestBody<'_>,
) -> Vec<u8> {
    let mut header = Vec::new();
    if slot.tls().is_some()
        && let Some(version) = slot.upstream().config().proxy_protocol
    {
        proxy_header::write_for(&mut header, version, exchange, request);
    }
    header
}
