//! Requests that come before the end of the TLS handshake (0-RTT, RFC 8470).

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use evenkeel_proto::{BodyFraming, RequestHead};

use super::{ClientConnection, tcp};
use crate::exchange::{Client, Context, Worker};
use crate::metrics::end::Failure;
use crate::net::clock;
use crate::net::timer::Timer;

/// Whether a request may be answered before the end of the handshake (RFC 8470 §3).
///
/// Such a request may be a copy by an attacker: it must have no effect but an answer.
pub(super) fn may_be_repeated(head: &RequestHead) -> bool {
    let wire = &head.wire;
    head.method.is_safe() && wire.framing == BodyFraming::None && wire.upgrade.is_none()
}

/// Waits for the end of a handshake whose client has sent a request before it. The handshake has
/// its usual time, whatever was answered meanwhile.
///
/// # Errors
/// Why the connection ends.
pub(super) async fn finish_handshake(
    worker: &Worker,
    connection: &mut ClientConnection,
) -> Result<(), Failure> {
    let ClientConnection {
        http1,
        timer,
        client,
        ..
    } = connection;
    let deadline = client.tls().map_or(0, |it| it.handshake_deadline);
    worker.wheel.set(timer, deadline);
    let finished = poll_fn(|cx| {
        timer.register(cx);
        match http1.stream.poll_whole_handshake(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(_)) => Poll::Ready(Err(Failure::ClientGone)),
            Poll::Pending => late(worker, timer, client).map(Err),
        }
    })
    .await;
    finished.inspect_err(|_| client.listener.counters().tls_failed.add(1))
}

/// The same for a client whose requests are answered. A handshake that does not end has its
/// line in the access log; `false` then.
pub(super) async fn finish_idle(worker: &Rc<Worker>, connection: &mut ClientConnection) -> bool {
    let started = clock::now();
    match finish_handshake(worker, connection).await {
        Ok(()) => true,
        // It has got its answers.
        Err(Failure::ClientGone) => false,
        Err(failure) => {
            let context = Context::new(worker.clone(), &connection.client.listener);
            tcp::refuse(&context, connection, started, failure);
            false
        }
    }
}

/// Why a handshake ends that waits for its client, if it does.
pub(super) fn late(worker: &Worker, timer: &Timer, client: &Client) -> Poll<Failure> {
    if worker.wheel.has_fired(timer) {
        return Poll::Ready(worker.timed_out(u64::MAX, Failure::TlsHandshakeTimeout));
    }
    match worker.sessions.take_told(client.session) {
        Some(failure) => Poll::Ready(failure),
        None => Poll::Pending,
    }
}
