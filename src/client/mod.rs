//! The accepting side: connections of clients, idle and active.
//!
//! Per worker. An idle connection is a small task that waits for readability. Then the connection
//! takes a place for its larger active state (`http1`), and gives it back when nothing more can
//! be read.

mod accept;
mod connection;
mod drain;
mod early;
mod future_pool;
pub(crate) mod http1;
mod http2;
mod proxy_protocol;
mod tcp;
mod tls;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::config::{ClientProtocol, HeaderPresence};
use crate::exchange::context::ListenerSide;
use crate::exchange::{Client, Worker, box_cold};
use crate::net::stream::Peeked;
use crate::net::tasks;
use crate::observe::sessions::SessionKey;
pub use accept::accept;
#[cfg(test)]
pub(crate) use accept::{carried_len, serve_http2, serve_stream, served_len};
use connection::ClientConnection;
use future_pool::FuturePool;
use http1::Served;

/// Counts a connection for as long as it is open.
struct OpenConnection {
    worker: Rc<Worker>,
    listener: Rc<ListenerSide>,
    session: SessionKey,
}

impl OpenConnection {
    /// To be called once a place of the listener's limit was taken.
    fn new(worker: &Rc<Worker>, client: &Client) -> Self {
        let listener = client.listener.clone();
        worker.open_count.update(|it| it + 1);
        listener.opened();
        OpenConnection {
            worker: worker.clone(),
            listener,
            session: client.session,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let worker = &*self.worker;
        worker.open_count.update(|it| it - 1);
        worker.sessions.close(self.session);
        if !worker.pinned.is_empty() {
            worker.pinned.close(self.session);
        }
        self.listener.closed();
    }
}

/// The memory that is prefetched before a connection's task goes on (see [`tasks`]). From
/// [`Hint::Exchange`] on it belongs to one exchange.
#[derive(Debug, Clone, Copy)]
enum Hint {
    Connection,
    Timer,
    /// The future of the exchange, in a place of the pool.
    Exchange,
    Head,
    Fields,
    /// Of the request.
    Bytes,
    Track,
}

impl Hint {
    /// Most that is prefetched of it, in bytes.
    fn most(self) -> usize {
        match self {
            // As much as an exchange has while it waits for an endpoint's response. Few others
            // wait at all.
            Hint::Exchange => 1408,
            _ => 256,
        }
    }

    /// By the time that this task goes on, the memory of the exchange may be another's.
    fn clear_exchange() {
        tasks::clear_prefetch_from(Hint::Exchange as usize);
    }

    /// Has `value` prefetched, replacing the earlier value of this hint.
    fn set<T: ?Sized>(self, value: &T) {
        tasks::hint_prefetch(self as usize, value, self.most());
    }
}

const _: () = assert!((Hint::Track as usize) < tasks::HINTS);

/// Serves one client's connection, from accept to close.
fn serve_connection<F>(
    open: OpenConnection,
    mut connection: Box<ClientConnection>,
    places: Rc<FuturePool<F>>,
    serve: impl Fn(Rc<Worker>, Box<ClientConnection>) -> F,
) -> impl Future<Output = ()>
where
    F: Future<Output = Served>,
{
    async move {
        let worker = &open.worker;
        // A drain closes idle connections at once, but not one whose first request
        // may be on its way.
        let presence = proxy_header_from(&connection.client);
        let may_be_silent = presence.is_some_and(|it| may_be_silent(it, &open.listener));
        let head_timeout = open.listener.setting(|it| {
            if may_be_silent {
                it.timeouts.first_bytes
            } else if it.tls.is_some() {
                it.timeouts.handshake
            } else {
                it.timeouts.head
            }
        });
        let first_wait = if open.listener.is_closing() && !worker.is_lingering.get() {
            head_timeout.min(FIRST_REQUEST_IN_DRAIN)
        } else {
            head_timeout
        };
        let mut wait = Wait::ForFirst(Some(first_wait));
        if let Some(presence) = presence {
            let header = proxy_protocol::take_header(worker, connection, presence, wait);
            match box_cold(header).await {
                Some(told) => connection = told,
                None => return,
            }
            wait = wait.on();
        }
        if let Some(config) = open.listener.tls() {
            let handshake = tls::handshake(worker, connection, config, wait);
            match box_cold(handshake).await {
                Some(encrypted) => connection = encrypted,
                None => return,
            }
            wait = Wait::ForFirst(Some(first_wait));
        }
        if open.listener.setting(|it| it.protocol) == ClientProtocol::Tcp {
            return box_cold(tcp::serve(worker.clone(), connection)).await;
        }
        Hint::Connection.set(&*connection);
        connection.timer.hint_prefetch(Hint::Timer as usize);
        let mut may_begin_http2 = begin_http2(worker, &mut connection);
        loop {
            if !wait_for_request(worker, &mut connection, wait).await {
                if let Some(http2) = connection.http2.clone() {
                    let goodbye = http2::say_goodbye(worker, connection, http2, spawn_exchange);
                    box_cold(goodbye).await;
                }
                return;
            }
            if std::mem::take(&mut may_begin_http2)
                && box_cold(http2::has_preface(worker, &mut connection)).await
            {
                http2::begin(worker, &mut connection);
            }
            let served = match connection.http2.clone() {
                None => places.run(|| serve(worker.clone(), connection)).await,
                Some(http2) => {
                    if connection.http1.stream.is_handshaking()
                        && !box_cold(early::finish_idle(worker, &mut connection)).await
                    {
                        return;
                    }
                    box_cold(http2::serve(worker, connection, http2, spawn_exchange)).await
                }
            };
            (connection, wait) = match served {
                Served::Idle(mut connection) => {
                    if connection.http1.stream.is_handshaking()
                        && !box_cold(early::finish_idle(worker, &mut connection)).await
                    {
                        return;
                    }
                    let timeout = open.listener.setting(|it| it.timeouts.idle);
                    (connection, Wait::ForNext(Some(timeout)))
                }
                Served::Nothing(connection) => (connection, wait.on()),
                Served::Closed => return,
            };
            Hint::clear_exchange();
        }
    }
}

/// Switches a connection to HTTP/2 after a handshake that chose it. Gives whether its first bytes
/// may still come.
fn begin_http2(worker: &Rc<Worker>, connection: &mut ClientConnection) -> bool {
    let stream = &connection.http1.stream;
    if !stream.is_encrypted() {
        return connection.client.listener.setting(|it| it.h2c);
    }
    let negotiated = stream.negotiated();
    if negotiated.is_some_and(|it| it.protocol == Some(b"h2")) {
        http2::begin(worker, connection);
    }
    false
}

/// Begins the task of an exchange that shares its connection with others.
fn spawn_exchange(task: tasks::Task) {
    tasks::spawn_boxed(task);
}

/// Whether the peer is a proxy that sends a header about its client; `None` where it is none.
fn proxy_header_from(client: &Client) -> Option<HeaderPresence> {
    let address = client.peer.address;
    let listener = &client.listener;
    listener.setting(|it| it.proxy_protocol.header_from(address))
}

/// Whether a silent connection is served without a header once its time is over: over TCP its
/// server may speak first.
fn may_be_silent(presence: HeaderPresence, listener: &ListenerSide) -> bool {
    let is_tcp = || listener.setting(|it| it.protocol) == ClientProtocol::Tcp;
    presence == HeaderPresence::Optional && is_tcp()
}

/// The request that an idle connection waits for, and how long; `None` where its timer goes on
/// from before.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// Its first request.
    ForFirst(Option<Duration>),
    /// A further one.
    ForNext(Option<Duration>),
}

impl Wait {
    /// The same wait, whose time goes on.
    fn on(self) -> Self {
        match self {
            Wait::ForFirst(_) => Wait::ForFirst(None),
            Wait::ForNext(_) => Wait::ForNext(None),
        }
    }
}

/// How long a connection that is new when the worker drains has for its first
/// request.
const FIRST_REQUEST_IN_DRAIN: Duration = Duration::from_secs(1);

/// Whether the client sent something (or closed) before `timeout`, and the
/// worker is not draining.
fn wait_for_request(
    worker: &Worker,
    connection: &mut ClientConnection,
    wait: Wait,
) -> impl Future<Output = bool> {
    let (Wait::ForFirst(timeout) | Wait::ForNext(timeout)) = wait;
    if let Some(timeout) = timeout {
        worker.set_timeout(&connection.timer, timeout);
    }
    let mut has_waited = false;
    poll_fn(move |cx| {
        let is_new = !std::mem::replace(&mut has_waited, true);
        if is_new {
            connection.timer.register(cx);
            tasks::begin_next();
        }
        if connection.http1.stream.poll_read_ready(cx).is_ready() {
            // Other connections get their turn before one that sends without pause.
            if is_new && matches!(wait, Wait::ForNext(_)) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(true);
        }
        if worker.wheel.has_fired(&connection.timer) || is_displaced(cx, worker, connection) {
            return Poll::Ready(false);
        }
        // A client of HTTP/2 gets a GOAWAY, and loses nothing.
        let may_be_told = connection.http2.is_some();
        let is_unwanted = connection.client.listener.is_closing()
            && (may_be_told || (matches!(wait, Wait::ForNext(_)) && !worker.is_lingering.get()));
        // A request that has arrived is served: the event loop is about to report it.
        if is_unwanted && connection.http1.stream.peek() != Peeked::Data {
            Poll::Ready(false)
        } else {
            Poll::Pending
        }
    })
}

/// Whether an idle connection has to close to make room here, or was displaced at an endpoint. A
/// request that has arrived is served.
fn is_displaced(cx: &TaskContext<'_>, worker: &Worker, connection: &mut ClientConnection) -> bool {
    let ClientConnection { http1, client, .. } = connection;
    let pinned = &worker.pinned;
    let has_given_way = !pinned.is_empty() && pinned.poll_displaced(cx, client.session).is_ready();
    let is_told = worker.sessions.take_told(client.session).is_some();
    let is_displaced = (is_told || has_given_way) && http1.stream.peek() != Peeked::Data;
    if is_displaced {
        let counters = client.listener.counters();
        counters.connections_displaced.add(1);
    }
    is_displaced
}
