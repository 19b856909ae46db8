//! Takes connections in: a descriptor, a place of the listener's limit, and a task for
//! each. Per worker.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::Scheme;
use rustix::io::Errno;

use super::future_pool::FuturePool;
use super::{ClientConnection, OpenConnection, http1, serve_connection};
#[cfg(test)]
use super::{http1::Served, http2, tcp};
use crate::config::ClientProtocol;
use crate::exchange::context::{ClientQuota, ListenerSide};
use crate::exchange::remote::Remote;
use crate::exchange::{Client, Http1Side, Worker, answer, room};
use crate::net::descriptors::Taker;
use crate::net::is_out_of_descriptors;
use crate::net::listen::{AcceptTurns, Incoming, Listener, Peer};
use crate::net::stream::Stream;
use crate::net::tasks;
use crate::net::timer::Timer;
use crate::observe::sessions::{Accepted, Need};

/// Accepts connections until the listener takes nothing new.
///
/// Connections that the kernel has ready by then are still accepted: closing the listening socket
/// would reset them. Deferred clients that have sent nothing are reset.
///
/// # Cancellation
/// Dropping it closes the listening socket; accepted connections go on.
pub async fn accept(worker: Rc<Worker>, listener: Rc<Listener>, side: Rc<ListenerSide>) {
    let serve = http1::serve;
    let places = Rc::new(FuturePool::new());
    let mut pause = AcceptPause::default();
    let closing = ClosingSign::new(&worker, &side);
    // Once closing has begun: connections still to accept. Each accept queue holds at most
    // `backlog`.
    let mut last_count = None;
    let mut turns = AcceptTurns::default();
    loop {
        turns.give().await;
        let accepted = poll_fn(|cx| match listener.poll_accept(cx) {
            Poll::Pending if closing.poll(cx).is_ready() => Poll::Ready(None),
            accepted => accepted.map(Some),
        });
        let accepted = match accepted.await {
            Some(accepted) => accepted,
            None if turns.look_again().await => continue,
            // Other tasks had their turns since the event loop looked.
            None => match listener.accept_now() {
                Some(accepted) => accepted,
                None => return,
            },
        };
        if side.is_closing() {
            let most = || side.setting(|it| it.accepting.backlog) * listener.socket_count();
            let left = last_count.get_or_insert_with(most);
            *left = left.saturating_sub(1);
            if *left == 0 {
                return;
            }
        }
        let admitted = match accepted {
            Ok(incoming) => admit(&worker, incoming, &side).await,
            Err(error) => Err(error),
        };
        match admitted {
            Ok(Some(connection)) => {
                pause.is_over(&side);
                let session = connection.client.session;
                let open = OpenConnection::new(&worker, &connection.client);
                let serving = serve_connection(open, connection, places.clone(), serve);
                let place = tasks::spawn(serving);
                worker.sessions.has_task(session, place);
            }
            // It was refused.
            Ok(None) => {}
            Err(_) if side.is_closing() => return,
            Err(error) => pause.wait(&worker, &side, &error).await,
        }
    }
}

/// Notices that a listener takes nothing new.
struct ClosingSign<'a> {
    side: &'a ListenerSide,
    /// Never fires: when draining begins, the worker wakes every task with a timer.
    timer: Timer,
    is_registered: Cell<bool>,
}

impl<'a> ClosingSign<'a> {
    fn new(worker: &Worker, side: &'a ListenerSide) -> Self {
        let timer = worker.wheel.timer();
        worker.set_timeout(&timer, Duration::MAX);
        ClosingSign {
            side,
            timer,
            is_registered: Cell::new(false),
        }
    }

    fn poll(&self, cx: &TaskContext<'_>) -> Poll<()> {
        if !self.is_registered.replace(true) {
            self.timer.register(cx);
        }
        if self.side.is_closing() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Takes a connection in where there is room for it, or room can be made;
/// otherwise it is refused.
///
/// # Errors
/// The kernel lacks memory.
async fn admit(
    worker: &Worker,
    incoming: Incoming,
    listener: &Rc<ListenerSide>,
) -> io::Result<Option<Box<ClientConnection>>> {
    let counters = listener.counters();
    counters.connections.add(1);
    let incoming = match take_descriptor(worker, incoming).await {
        Ok(incoming) => incoming,
        Err(incoming) => {
            counters.connections_no_descriptor.add(1);
            refuse(worker, listener, incoming, NO_DESCRIPTOR);
            return Ok(None);
        }
    };
    let need = Need::Connection {
        listener: listener.id(),
    };
    let of_client = listener.count_of_client(address_of(incoming.peer));
    if matches!(of_client, ClientQuota::TooMany) || !take_place(worker, listener, need).await {
        counters.connections_refused.add(1);
        refuse(worker, listener, incoming, need);
        return Ok(None);
    }
    let peer = incoming.peer;
    let stream = incoming.into_stream().inspect_err(|_| {
        listener.open().remove();
    })?;
    let mut connection = connected(worker, stream, peer, listener);
    if let ClientQuota::Counted(counted) = of_client {
        connection.client.counted = Some(counted);
    }
    Ok(Some(connection))
}

/// The address of a peer; `None` on a Unix socket.
fn address_of(peer: Peer) -> Option<IpAddr> {
    match peer {
        Peer::Tcp(address) => Some(address.ip()),
        Peer::Unix => None,
    }
}

/// A connection that was taken in.
fn connected(
    worker: &Worker,
    stream: Stream,
    peer: Peer,
    listener: &Rc<ListenerSide>,
) -> Box<ClientConnection> {
    let peer = match peer {
        Peer::Tcp(address) => Remote::from(address),
        Peer::Unix => Remote::new(None, 0),
    };
    let session = worker.sessions.open(Accepted {
        address: peer.address,
        port: peer.port,
        listener: listener.id(),
        tick: worker.wheel.now(),
    });
    let scheme = if stream.is_encrypted() {
        Scheme::Https
    } else {
        Scheme::Http
    };
    Box::new(ClientConnection {
        http1: Http1Side::new(stream),
        timer: worker.wheel.timer(),
        client: Client::new(peer, scheme, listener.clone(), session),
        http2: None,
    })
}

/// The need of a connection whose descriptor is kept from clients.
const NO_DESCRIPTOR: Need = Need::Descriptor(Taker::Client);

/// Gives a connection a descriptor that is not kept from clients. If none is free, another
/// connection or file is closed.
///
/// # Errors
/// Nothing else can be closed: the connection as it was.
async fn take_descriptor(worker: &Worker, mut incoming: Incoming) -> Result<Incoming, Incoming> {
    for _ in 0..room::TRIES {
        if !incoming.is_reserved(Taker::Client) {
            return Ok(incoming);
        }
        incoming = incoming.lowered();
        if incoming.is_reserved(Taker::Client) && !room::make(worker, NO_DESCRIPTOR).await {
            break;
        }
    }
    Err(incoming)
}

/// Takes one of the connections that a listener may have. At the limit, another connection is
/// closed. Whether there is one.
async fn take_place(worker: &Worker, listener: &ListenerSide, need: Need) -> bool {
    let limit = listener.setting(|it| it.limits.connections);
    for _ in 0..room::TRIES {
        if listener.open().try_add(limit) {
            return true;
        }
        if !room::make(worker, need).await {
            break;
        }
    }
    false
}

/// Answers a connection that there is no room for, and closes it.
fn refuse(worker: &Worker, listener: &ListenerSide, incoming: Incoming, need: Need) {
    let answer = match listener.setting(|it| it.protocol) {
        ClientProtocol::Http => answer::refusal(worker, need.failure().into()),
        ClientProtocol::Tcp => Vec::new(),
    };
    incoming.answer_and_close(&answer);
}

/// Accepting failed: the kernel lacks memory, or all descriptors are in use and
/// nothing can be closed. Trying again at once would spin, so it pauses for a
/// moment.
#[derive(Debug, Default)]
struct AcceptPause {
    is_paused: bool,
}

/// Any closed connection lets the kernel give the next one.
const ANY: Need = Need::Descriptor(Taker::Exchange);
/// How long a pause lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

impl AcceptPause {
    async fn wait(&mut self, worker: &Worker, listener: &ListenerSide, error: &io::Error) {
        // The client left before it was accepted: this is no failure.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        let errno = Errno::from_io_error(error);
        if errno.is_some_and(is_out_of_descriptors) && room::make(worker, ANY).await {
            return;
        }
        if !self.is_paused {
            self.is_paused = true;
            listener.counters().accept_pauses.add(1);
            listener.setting(|it| {
                let name = &it.name;
                tracing::warn!(
                    listener = name,
                    "listener {name}: accepting is paused: {error}"
                );
            });
        }
        worker.wheel.sleep(ACCEPT_PAUSE).await;
    }

    fn is_over(&mut self, listener: &ListenerSide) {
        if std::mem::take(&mut self.is_paused) {
            listener.setting(|it| {
                let name = &it.name;
                tracing::info!(listener = name, "listener {name}: accepting again");
            });
        }
    }
}

/// Serves a stream as if the first listener had accepted it.
#[cfg(test)]
pub(crate) fn serve_stream(
    worker: &Rc<Worker>,
    stream: Stream,
    peer: Peer,
) -> impl Future<Output = ()> + use<> {
    let listener = &worker.listeners.all()[0];
    let is_free = listener.open().try_add(None);
    debug_assert!(is_free, "there is no limit");
    let connection = connected(worker, stream, peer, listener);
    let open = OpenConnection::new(worker, &connection.client);
    serve_connection(open, connection, Rc::new(FuturePool::new()), http1::serve)
}

/// The same for HTTP/2, whose exchanges `spawn` begins.
#[cfg(test)]
pub(crate) fn serve_http2(
    worker: &Rc<Worker>,
    stream: Stream,
    peer: Peer,
    spawn: impl Fn(tasks::Task) + 'static,
) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    let listener = &worker.listeners.all()[0];
    let mut connection = connected(worker, stream, peer, listener);
    let shared = http2::begin(worker, &mut connection);
    let worker = worker.clone();
    Box::pin(async move {
        loop {
            connection = match http2::serve(&worker, connection, shared.clone(), &spawn).await {
                Served::Idle(connection) | Served::Nothing(connection) => connection,
                Served::Closed => return,
            };
            poll_fn(|cx| connection.http1.stream.poll_read_ready(cx)).await;
        }
    })
}

/// Length of a connection's state during an exchange, in bytes.
#[cfg(test)]
pub(crate) fn served_len(worker: &Rc<Worker>, stream: Stream, peer: Peer) -> usize {
    let listener = &worker.listeners.all()[0];
    let connection = connected(worker, stream, peer, listener);
    size_of_val(&http1::serve(worker.clone(), connection))
}

/// The same for a connection of TCP.
#[cfg(test)]
pub(crate) fn carried_len(worker: &Rc<Worker>, stream: Stream, peer: Peer) -> usize {
    let listener = &worker.listeners.all()[0];
    let connection = connected(worker, stream, peer, listener);
    size_of_val(&tcp::serve(worker.clone(), connection))
}
