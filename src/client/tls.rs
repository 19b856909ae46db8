//! The TLS handshake of a client's connection.
//!
//! It comes after a header of the PROXY protocol, and before everything else. A client
//! that is silent costs no more than one without TLS: the state of a handshake is made
//! once its first byte is there.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use evenkeel_acme::ACME_TLS_ALPN;
use evenkeel_proto::client_hello::{self, FirstMessage};
use evenkeel_tls::Facts;
use rustls::ServerConfig;
use rustls::pki_types::UnixTime;

use super::early::late;
use super::http1::{self, Arrival};
use super::{ClientConnection, Wait, drain, tcp, wait_for_request};
use crate::certificates::ServedTls;
use crate::config::ClientProtocol;
use crate::exchange::{Context, Http1Side, Next, TlsClient, Worker};
use crate::metrics::end::Failure;
use crate::net::buffer::Buffer;
use crate::net::clock;
use crate::net::stream::{HandshakeError, Stream};

/// Encrypts a connection; `None` where it is closed.
///
/// A failed handshake has its line in the access log. A client that leaves without a
/// byte has none, as probes do.
///
/// # Cancellation
/// Dropping the future closes the connection.
pub(super) async fn handshake(
    worker: &Rc<Worker>,
    mut connection: Box<ClientConnection>,
    mut config: Arc<ServerConfig>,
    wait: Wait,
) -> Option<Box<ClientConnection>> {
    if !wait_for_request(worker, &mut connection, wait).await {
        return None;
    }
    let started = clock::now();
    let listener = connection.client.listener.clone();
    let timeout = listener.setting(|it| it.timeouts.handshake);
    let deadline = worker.wheel.deadline(timeout);
    worker.wheel.set(&connection.timer, deadline);
    let mut proof = None;
    if let Some(served) = listener.ordering() {
        match proof_wanted(worker, &mut connection, served).await {
            Ok(HandshakePurpose::Proof(wanted)) => proof = Some(wanted),
            Ok(HandshakePurpose::Service) => {}
            // A reload may have come while it waited.
            Ok(HandshakePurpose::LateService) => config = listener.tls().unwrap_or(config),
            Err(Refused::Gone) => return None,
            Err(Refused::For(failure)) => {
                listener.counters().tls_failed.add(1);
                let context = Context::new(worker.clone(), &listener);
                tcp::refuse(&context, &mut connection, started, failure);
                return None;
            }
        }
    }
    let is_proof = proof.is_some();
    let config = proof.unwrap_or(config);
    let accept = |stream: Stream| stream.accept_tls(config);
    let mut connection = match with_stream(*connection, accept) {
        Ok(connection) => connection,
        Err(error) => {
            tracing::error!("TLS can't begin: {error}");
            return None;
        }
    };
    let refused = match agree(worker, &mut connection).await {
        Ok(()) if is_proof => {
            // That was all (RFC 8737 §3). The client may have closed already.
            let _ = connection.http1.stream.close_notify();
            return None;
        }
        Ok(()) if begin(&mut connection, deadline) => return Some(connection),
        Ok(()) => Failure::TlsHandshake,
        // A probe, or a client that left.
        Err(Refused::Gone) => return None,
        Err(Refused::For(failure)) => failure,
    };
    listener.counters().tls_failed.add(1);
    let context = Context::new(worker.clone(), &listener);
    if refused == Failure::NotTls && context.listener().protocol == ClientProtocol::Http {
        let took = clock::since(started);
        answer_plainly(&context, connection, Arrival { started, took }).await;
    } else {
        tcp::refuse(&context, &mut connection, started, refused);
    }
    None
}

/// Counts the handshake, and notes the client's facts. `false` where the client has resumed
/// a session whose certificate has expired since: resumption itself does not look at it.
fn begin(connection: &mut ClientConnection, deadline: u64) -> bool {
    let Some(negotiated) = connection.http1.stream.negotiated() else {
        return true;
    };
    let certificate = negotiated.peer_certificates.first();
    let facts = certificate.and_then(|it| Facts::of(it));
    let has_expired = |it: &Facts| it.not_after < UnixTime::now();
    if negotiated.is_resumed && facts.as_ref().is_some_and(has_expired) {
        return false;
    }
    let listener = &connection.client.listener;
    let counters = listener.counters();
    counters.tls_handshakes.add(1);
    if negotiated.is_resumed {
        counters.tls_resumed.add(1);
    }
    let forwarded = certificate.filter(|_| listener.forwards_certificates());
    connection.client.is_encrypted(TlsClient {
        server_name: negotiated.server_name.unwrap_or_default().into(),
        identities: facts.as_ref().map_or_else(Vec::new, identities),
        certificate_field: forwarded.map(|it| certificate_field(it)),
        is_early: false,
        handshake_deadline: deadline,
    });
    true
}

/// The identities in a client's certificate.
fn identities(facts: &Facts) -> Vec<Box<[u8]>> {
    let named = |kind: &str, name: &dyn Display| format!("{kind}:{name}").into_bytes().into();
    let all = |kind: &'static str, names: &[String]| {
        names.iter().map(|it| named(kind, it)).collect::<Vec<_>>()
    };
    let mut identities = all("dns", &facts.dns_names);
    identities.extend(all("uri", &facts.uris));
    identities.extend(all("email", &facts.emails));
    identities.extend(facts.ip_addresses.iter().map(|it| named("ip", it)));
    identities.extend([
        named("subject", &facts.subject),
        named("issuer", &facts.issuer),
        named("serial", &facts.serial),
        named("sha256", &hexadecimal(&facts.fingerprint)),
    ]);
    identities
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of `Client-Cert`: a byte sequence of structured fields (RFC 9440 §2.1).
fn certificate_field(certificate: &[u8]) -> Box<[u8]> {
    let encoded = BASE64_STANDARD.encode(certificate);
    format!(":{encoded}:").into_bytes().into()
}

/// Why there is no connection.
enum Refused {
    /// The client left.
    Gone,
    /// It failed, with this word.
    For(Failure),
}

/// The purpose of a client's handshake.
enum HandshakePurpose {
    /// A certificate authority wants proof of a name: how that handshake goes.
    Proof(Arc<ServerConfig>),
    /// Anything else.
    Service,
    /// The same, and the client has waited for a certificate.
    LateService,
}

/// Finds the client's purpose. A client that asks for a name without a certificate waits for it,
/// if it may be ordered.
async fn proof_wanted(
    worker: &Worker,
    connection: &mut ClientConnection,
    served: Arc<ServedTls>,
) -> Result<HandshakePurpose, Refused> {
    match asked_for(worker, connection).await? {
        Some((name, true)) => match served.acme() {
            Some(acme) => Ok(acme
                .proof(&name)
                .await
                .map_or(HandshakePurpose::Service, HandshakePurpose::Proof)),
            None => Ok(HandshakePurpose::Service),
        },
        Some((name, false)) if served.may_demand(&name) => {
            let mut current = Some(served);
            while let Some(served) = current.filter(|it| it.may_demand(&name)) {
                let is_over = wait_for_certificate(worker, connection, &served, &name).await?;
                let listener = &connection.client.listener;
                current = listener.ordering().filter(|_| !is_over);
            }
            Ok(HandshakePurpose::LateService)
        }
        _ => Ok(HandshakePurpose::Service),
    }
}

/// Waits until a name has a certificate, or will have none for now. `false` after a reload: other
/// listeners order then, if any do.
async fn wait_for_certificate(
    worker: &Worker,
    connection: &mut ClientConnection,
    served: &Arc<ServedTls>,
    name: &str,
) -> Result<bool, Refused> {
    let ClientConnection { timer, client, .. } = connection;
    let mut demand = Box::pin(served.demand(name));
    let mut is_new = true;
    poll_fn(|cx| {
        if std::mem::take(&mut is_new) {
            timer.register(cx);
        }
        if !client.listener.is_ordering(served) {
            return Poll::Ready(Ok(false));
        }
        match demand.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(true)),
            Poll::Pending => late(worker, timer, client).map(|it| Err(Refused::For(it))),
        }
    })
    .await
}

/// The name that a client asks for, and whether it wants proof of it (RFC 8737 §3); `None` where
/// it asks for none. All its bytes stay to be read again.
async fn asked_for(
    worker: &Worker,
    connection: &mut ClientConnection,
) -> Result<Option<(String, bool)>, Refused> {
    let ClientConnection {
        http1,
        timer,
        client,
        ..
    } = connection;
    let mut buffer = Buffer::small();
    let mut seen = 0;
    let message = poll_fn(|cx| {
        if seen == 0 {
            timer.register(cx);
        }
        loop {
            buffer.clear();
            let room = buffer.room();
            let most = room.len();
            match http1.stream.poll_peek_beyond(cx, room, seen) {
                Poll::Ready(Ok(len)) if len > 0 => {
                    buffer.fill(len);
                    seen = len;
                }
                Poll::Ready(_) => return Poll::Ready(Err(Refused::Gone)),
                Poll::Pending => {
                    return late(worker, timer, client).map(|it| Err(Refused::For(it)));
                }
            }
            match client_hello::read(buffer.filled()) {
                // Authorities need less.
                FirstMessage::Partial if seen < most => {}
                message => return Poll::Ready(Ok(message)),
            }
        }
    })
    .await?;
    let FirstMessage::ClientHello(hello) = message else {
        return Ok(None);
    };
    let wants_proof = hello.protocols().eq([ACME_TLS_ALPN]);
    let name = String::from_utf8(hello.server_name.into_vec());
    let name = name.ok().filter(|it| !it.is_empty());
    Ok(name.map(|it| (it, wants_proof)))
}

async fn agree(worker: &Worker, connection: &mut ClientConnection) -> Result<(), Refused> {
    let ClientConnection {
        http1,
        timer,
        client,
        ..
    } = connection;
    let mut is_new = true;
    poll_fn(|cx| {
        if std::mem::take(&mut is_new) {
            timer.register(cx);
        }
        let refused = match http1.stream.poll_handshake(cx) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
            Poll::Ready(Err(HandshakeError::Gone(_))) => Refused::Gone,
            Poll::Ready(Err(HandshakeError::NotTls)) => Refused::For(Failure::NotTls),
            Poll::Ready(Err(HandshakeError::Failed(error))) => {
                let peer = client.peer.address;
                client.listener.setting(|it| {
                    let name = &it.name;
                    tracing::debug!(
                        listener = name,
                        "listener {name}: TLS with {}: {error}",
                        peer.map_or_else(|| "a client".to_owned(), |it| it.to_string())
                    );
                });
                Refused::For(Failure::TlsHandshake)
            }
            Poll::Pending => return late(worker, timer, client).map(|it| Err(Refused::For(it))),
        };
        Poll::Ready(Err(refused))
    })
    .await
}

/// Tells a client of plain HTTP that this is the wrong port for it.
async fn answer_plainly(context: &Context, connection: Box<ClientConnection>, arrival: Arrival) {
    let plain = with_stream(*connection, |stream| {
        Ok::<_, Infallible>(stream.without_tls())
    });
    let Ok(mut connection) = plain;
    let track = context.sessions.wake(connection.client.session);
    let buffer = Buffer::small();
    let end = Failure::NotTls.into();
    let next = http1::refuse(context, &mut connection, &buffer, &track, arrival, end).await;
    let (session, now) = (connection.client.session, context.wheel.now());
    context.sessions.rest(session, track, now);
    if let Next::Linger { sender } = next {
        drain::linger(context, &mut connection, buffer, sender).await;
    }
}

/// The same connection with another stream.
fn with_stream<E>(
    connection: ClientConnection,
    change: impl FnOnce(Stream) -> Result<Stream, E>,
) -> Result<Box<ClientConnection>, E> {
    let ClientConnection {
        http1,
        timer,
        client,
        http2,
    } = connection;
    Ok(Box::new(ClientConnection {
        http1: Http1Side::new(change(http1.stream)?),
        timer,
        client,
        http2,
    }))
}
