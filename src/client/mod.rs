//! The accepting side: connections of clients, idle and active.
//!
//! Per worker. An idle connection is a small task that waits for readability;
//! when it comes, the connection takes a place for its larger active state
//! (`http1`) and gives it back when there is nothing more to read.

mod future_pool;
pub(crate) mod http1;
mod proxy_protocol;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use rustix::io::Errno;

use crate::exchange::remote::Remote;
use crate::exchange::{Client, Worker, answer, box_cold, room};
use crate::net::descriptors::Taker;
use crate::net::is_out_of_descriptors;
use crate::net::listen::{AcceptTurns, Incoming, Listener, Peer};
use crate::net::stream::Peeked;
use crate::net::tasks;
use crate::net::timer::Timer;
use crate::observe::sessions::{Accepted, Need, SessionKey};
use future_pool::FuturePool;
use http1::Served;

/// Counts a connection for as long as it is open.
struct OpenConnection {
    worker: Rc<Worker>,
    listener: usize,
    session: SessionKey,
}

impl OpenConnection {
    /// To be called once a place of the listener's limit was taken.
    fn new(worker: &Rc<Worker>, client: &Client) -> Self {
        let listener = client.listener;
        worker.open_count.update(|it| it + 1);
        let gauge = &worker.counters.listeners[listener].open;
        gauge.set(gauge.value() + 1);
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
        let gauge = &worker.counters.listeners[self.listener].open;
        gauge.set(gauge.value() - 1);
        worker.open_connections[self.listener].remove();
    }
}

/// Accepts connections until the worker drains. Those that the kernel has ready
/// by then are accepted still: closing the listening socket would reset them, as
/// it does those of deferred clients that have sent nothing.
///
/// # Cancellation
/// Dropping it closes the listening socket; accepted connections go on.
pub async fn accept(worker: Rc<Worker>, listener: Listener, index: usize) {
    let serve = http1::serve;
    let places = Rc::new(FuturePool::new());
    let mut pause = AcceptPause::default();
    let drain = DrainSign::new(&worker);
    // More than this can't have been waiting when draining began.
    let mut last_count = worker.listener_setting(index, |it| it.accepting.backlog);
    let mut turns = AcceptTurns::default();
    loop {
        turns.give().await;
        let accepted = poll_fn(|cx| match listener.poll_accept(cx) {
            Poll::Pending if drain.poll(cx).is_ready() => Poll::Ready(None),
            accepted => accepted.map(Some),
        });
        let Some(accepted) = accepted.await else {
            if turns.look_again().await {
                continue;
            } else {
                return;
            }
        };
        if worker.is_draining.get() {
            last_count = last_count.saturating_sub(1);
            if last_count == 0 {
                return;
            }
        }
        let admitted = match accepted {
            Ok(incoming) => admit(&worker, incoming, index).await,
            Err(error) => Err(error),
        };
        match admitted {
            Ok(Some(client)) => {
                pause.is_over(&worker, index);
                let session = client.session;
                let open = OpenConnection::new(&worker, &client);
                let place = tasks::spawn(connection(open, client, places.clone(), serve));
                worker.sessions.has_task(session, place);
            }
            // It was refused.
            Ok(None) => {}
            Err(_) if worker.is_draining.get() => return,
            Err(error) => pause.wait(&worker, index, &error).await,
        }
    }
}

/// Notices that the worker begins to drain.
struct DrainSign<'a> {
    worker: &'a Worker,
    /// Never fires: the worker wakes whatever has a timer when it drains.
    timer: Timer,
    is_registered: Cell<bool>,
}

impl<'a> DrainSign<'a> {
    fn new(worker: &'a Worker) -> Self {
        let timer = worker.wheel.timer();
        worker.set_timeout(&timer, Duration::MAX);
        DrainSign {
            worker,
            timer,
            is_registered: Cell::new(false),
        }
    }

    fn poll(&self, cx: &TaskContext<'_>) -> Poll<()> {
        if !self.is_registered.replace(true) {
            self.timer.register(cx);
        }
        if self.worker.is_draining.get() {
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
    listener: usize,
) -> io::Result<Option<Box<Client>>> {
    let counters = &worker.counters.listeners[listener];
    counters.connections.add(1);
    let incoming = match take_descriptor(worker, incoming).await {
        Ok(incoming) => incoming,
        Err(incoming) => {
            counters.connections_no_descriptor.add(1);
            refuse(worker, incoming, NO_DESCRIPTOR);
            return Ok(None);
        }
    };
    let need = Need::Connection {
        listener: listener as u16,
    };
    if !take_place(worker, listener, need).await {
        counters.connections_refused.add(1);
        refuse(worker, incoming, need);
        return Ok(None);
    }
    let peer = incoming.peer;
    let stream = incoming.into_stream().inspect_err(|_| {
        worker.open_connections[listener].remove();
    })?;
    let peer = match peer {
        Peer::Tcp(address) => Remote::from(address),
        Peer::Unix => Remote::new(None, 0),
    };
    let session = worker.sessions.open(Accepted {
        address: peer.address,
        port: peer.port,
        listener,
        tick: worker.wheel.now(),
    });
    let timer = worker.wheel.timer();
    let client = Client::new(stream, timer, peer, listener, session);
    Ok(Some(Box::new(client)))
}

/// What a connection lacks whose descriptor is kept from clients.
const NO_DESCRIPTOR: Need = Need::Descriptor(Taker::Client);

/// A descriptor that is not kept from clients, for a connection that has one;
/// where none is free, something else is closed.
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

/// Takes one of the connections that a listener may have; where it has as many,
/// another one is closed. Whether there is one.
async fn take_place(worker: &Worker, listener: usize, need: Need) -> bool {
    let limit = worker.listener_setting(listener, |it| it.limits.connections);
    for _ in 0..room::TRIES {
        if worker.open_connections[listener].try_add(limit) {
            return true;
        }
        if !room::make(worker, need).await {
            break;
        }
    }
    false
}

/// Answers a connection that there is no room for, and closes it.
fn refuse(worker: &Worker, incoming: Incoming, need: Need) {
    let answer = answer::refusal(worker, need.failure().into());
    incoming.answer_and_close(&answer);
}

/// Accepting failed: the kernel lacks memory, or all descriptors are in use and
/// nothing can be closed. Trying again at once would spin, so it pauses for a
/// moment.
#[derive(Debug, Default)]
struct AcceptPause {
    is_paused: bool,
}

/// Whatever is closed, the next connection can be taken from the kernel.
const ANY: Need = Need::Descriptor(Taker::Exchange);
/// How long a pause lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

impl AcceptPause {
    async fn wait(&mut self, worker: &Worker, listener: usize, error: &io::Error) {
        // The client left before it was accepted: nothing is wrong here.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        let errno = Errno::from_io_error(error);
        if errno.is_some_and(is_out_of_descriptors) && room::make(worker, ANY).await {
            return;
        }
        if !self.is_paused {
            self.is_paused = true;
            worker.counters.listeners[listener].accept_pauses.add(1);
            worker.listener_setting(listener, |it| {
                let name = &it.name;
                tracing::warn!(
                    listener = name,
                    "listener {name}: accepting pauses: {error}"
                );
            });
        }
        worker.wheel.sleep(ACCEPT_PAUSE).await;
    }

    fn is_over(&mut self, worker: &Worker, listener: usize) {
        if std::mem::take(&mut self.is_paused) {
            worker.listener_setting(listener, |it| {
                let name = &it.name;
                tracing::info!(listener = name, "listener {name}: accepting again");
            });
        }
    }
}

/// What is prefetched before a connection's task goes on (see [`tasks`]). From
/// [`Hint::Exchange`] on it belongs to one exchange.
#[derive(Debug, Clone, Copy)]
enum Hint {
    Client,
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
            // As much as an exchange has that waits for an endpoint's response:
            // few others wait at all.
            Hint::Exchange => 1408,
            _ => 256,
        }
    }

    /// The memory of the exchange may be another's by the time that this task goes
    /// on.
    fn clear_exchange() {
        tasks::clear_prefetch_from(Hint::Exchange as usize);
    }

    /// Has `value` prefetched, in place of what was under this hint.
    fn set<T: ?Sized>(self, value: &T) {
        tasks::hint_prefetch(self as usize, value, self.most());
    }
}

const _: () = assert!((Hint::Track as usize) < tasks::HINTS);

/// One client's connection, from accept to close.
fn connection<F>(
    open: OpenConnection,
    mut client: Box<Client>,
    places: Rc<FuturePool<F>>,
    serve: impl Fn(Rc<Worker>, Box<Client>) -> F,
) -> impl Future<Output = ()>
where
    F: Future<Output = Served>,
{
    async move {
        let worker = &open.worker;
        // A drain closes idle connections at once, but not one whose first request
        // may be on its way.
        let head_timeout = worker.listener_setting(open.listener, |it| it.timeouts.head);
        let first_wait = if worker.is_draining.get() {
            head_timeout.min(FIRST_REQUEST_IN_DRAIN)
        } else {
            head_timeout
        };
        let mut wait = Wait::ForFirst(Some(first_wait));
        if speaks_proxy_protocol(worker, &client) {
            let header = proxy_protocol::take_header(worker, client, wait);
            match box_cold(header).await {
                Some(told) => client = told,
                None => return,
            }
            wait = wait.on();
        }
        Hint::Client.set(&*client);
        client.timer.hint_prefetch(Hint::Timer as usize);
        while wait_for_request(worker, &mut client, wait).await {
            (client, wait) = match places.run(|| serve(worker.clone(), client)).await {
                Served::Idle(client) => {
                    let timeout = worker.listener_setting(open.listener, |it| it.timeouts.idle);
                    (client, Wait::ForNext(Some(timeout)))
                }
                Served::Nothing(client) => (client, wait.on()),
                Served::Closed => return,
            };
            Hint::clear_exchange();
        }
        // The connection counts as open until its descriptor is free.
        drop(client);
    }
}

/// Whether the peer is a proxy that says first who its client is.
fn speaks_proxy_protocol(worker: &Worker, client: &Client) -> bool {
    let address = client.peer.address;
    worker.listener_setting(client.listener, |it| it.proxy_protocol.contains(address))
}

/// What an idle connection waits for, and how long; `None` where its timer goes on
/// from before.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// Its first request.
    ForFirst(Option<Duration>),
    /// A further one.
    ForNext(Option<Duration>),
}

impl Wait {
    /// The same wait, which has not begun anew.
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
    client: &mut Client,
    wait: Wait,
) -> impl Future<Output = bool> {
    let (Wait::ForFirst(timeout) | Wait::ForNext(timeout)) = wait;
    if let Some(timeout) = timeout {
        worker.set_timeout(&client.timer, timeout);
    }
    let mut has_waited = false;
    poll_fn(move |cx| {
        let is_new = !std::mem::replace(&mut has_waited, true);
        if is_new {
            client.timer.register(cx);
            tasks::begin_next();
        }
        if client.stream.poll_read_ready(cx).is_ready() {
            // Others have their turn before one that sends without pause.
            if is_new && matches!(wait, Wait::ForNext(_)) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(true);
        }
        if worker.wheel.has_fired(&client.timer) || is_displaced(cx, worker, client) {
            return Poll::Ready(false);
        }
        let is_unwanted = matches!(wait, Wait::ForNext(_)) && worker.is_draining.get();
        // A request that is there already is served: the event loop is about
        // to say that it came.
        if is_unwanted && client.stream.peek() != Peeked::Data {
            Poll::Ready(false)
        } else {
            Poll::Pending
        }
    })
}

/// Whether an idle connection is to be closed to make room here, or was at an
/// endpoint. A request that is there already is served.
fn is_displaced(cx: &TaskContext<'_>, worker: &Worker, client: &mut Client) -> bool {
    let pinned = &worker.pinned;
    let has_given_way = !pinned.is_empty() && pinned.poll_displaced(cx, client.session).is_ready();
    let is_told = worker.sessions.take_told(client.session).is_some();
    let is_displaced = (is_told || has_given_way) && client.stream.peek() != Peeked::Data;
    if is_displaced {
        let counters = worker.listener_counters(client);
        counters.connections_displaced.add(1);
    }
    is_displaced
}
