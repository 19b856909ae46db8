//! The accepting side: connections of clients, idle and active.
//!
//! Per worker. An idle connection is a small task that waits for readability;
//! when it comes, the connection takes a place for its larger active state
//! (`http1`) and gives it back when there is nothing more to read.

mod future_pool;
pub(crate) mod http1;
mod proxy_protocol;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::RequestHead;
use rustix::io::Errno;

use crate::exchange::remote::Remote;
use crate::exchange::{Client, Context, answer, box_cold, room};
use crate::net::descriptors::Taker;
use crate::net::is_out_of_descriptors;
use crate::net::listen::{AcceptTurns, Incoming, Listener, Peer};
use crate::net::stream::Peeked;
use crate::net::tasks;
use crate::net::timer::Timer;
use crate::observe::sessions::{Accepted, Need, SessionKey};
use future_pool::FuturePool;
use http1::Served;

/// What the connections of a worker share.
#[derive(Debug)]
pub struct Clients {
    /// What their exchanges work with.
    pub context: Context,
    /// Connections open on this worker.
    open: Cell<usize>,
    /// Heads to be filled again.
    #[expect(clippy::vec_box, reason = "taken and given back by moving a pointer")]
    heads: RefCell<Vec<Box<RequestHead>>>,
}

/// Heads kept for reuse.
const HEADS_KEPT: usize = 512;

impl Clients {
    /// No connection is open.
    pub fn new(context: Context) -> Self {
        Clients {
            context,
            open: Cell::new(0),
            heads: RefCell::default(),
        }
    }

    /// Accepts nothing that comes from now on, and finishes what is open.
    pub fn drain(&self) {
        self.context.is_draining.set(true);
        self.context.wheel.wake_all();
    }

    /// Connections open on this worker.
    pub fn open_count(&self) -> usize {
        self.open.get()
    }

    fn take_head(&self) -> Box<RequestHead> {
        self.heads.borrow_mut().pop().unwrap_or_default()
    }

    fn keep_head(&self, head: Box<RequestHead>) {
        let mut heads = self.heads.borrow_mut();
        if heads.len() < HEADS_KEPT {
            heads.push(head);
        }
    }
}

/// Counts a connection for as long as it is open.
struct OpenConnection {
    clients: Rc<Clients>,
    listener: usize,
    session: SessionKey,
}

impl OpenConnection {
    /// To be called once a place of the listener's limit was taken.
    fn new(clients: &Rc<Clients>, client: &Client) -> Self {
        let listener = client.listener;
        clients.open.set(clients.open.get() + 1);
        let gauge = &clients.context.counters.listeners[listener].open;
        gauge.set(gauge.value() + 1);
        OpenConnection {
            clients: clients.clone(),
            listener,
            session: client.session,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let open = &self.clients.open;
        open.set(open.get() - 1);
        let context = &self.clients.context;
        context.sessions.close(self.session);
        if !context.pinned.is_empty() {
            context.pinned.close(self.session);
        }
        let gauge = &self.clients.context.counters.listeners[self.listener].open;
        gauge.set(gauge.value() - 1);
        self.clients.context.open_connections[self.listener].remove();
    }
}

/// Accepts connections until the worker drains. Those that the kernel has ready
/// by then are accepted still: closing the listening socket would reset them, as
/// it does those of deferred clients that have sent nothing.
///
/// # Cancellation
/// Dropping it closes the listening socket; accepted connections go on.
pub async fn accept(clients: Rc<Clients>, listener: Listener, index: usize) {
    let serve = http1::serve;
    let places = Rc::new(FuturePool::new());
    let mut pause = AcceptPause::default();
    let drain = DrainSign::new(&clients.context);
    // More than this can't have been waiting when draining began.
    let mut last_count = clients.context.config.listeners[index].accepting.backlog;
    let mut turns = AcceptTurns::default();
    loop {
        turns.give().await;
        let accepted = poll_fn(|cx| match listener.poll_accept(cx) {
            Poll::Pending if drain.poll(cx).is_ready() => Poll::Ready(None),
            accepted => accepted.map(Some),
        });
        let Some(accepted) = accepted.await else {
            match turns.look_again().await {
                true => continue,
                false => return,
            }
        };
        if clients.context.is_draining.get() {
            last_count = last_count.saturating_sub(1);
            if last_count == 0 {
                return;
            }
        }
        let admitted = match accepted {
            Ok(incoming) => admit(&clients, incoming, index).await,
            Err(error) => Err(error),
        };
        match admitted {
            Ok(Some(client)) => {
                pause.is_over(&clients, index);
                let session = client.session;
                let open = OpenConnection::new(&clients, &client);
                let place = tasks::spawn(connection(open, client, places.clone(), serve));
                clients.context.sessions.has_task(session, place);
            }
            // It was refused.
            Ok(None) => {}
            Err(_) if clients.context.is_draining.get() => return,
            Err(error) => pause.wait(&clients, index, &error).await,
        }
    }
}

/// Notices that the worker begins to drain.
struct DrainSign<'a> {
    context: &'a Context,
    /// Never fires: the worker wakes whatever has a timer when it drains.
    timer: Timer,
    is_registered: Cell<bool>,
}

impl<'a> DrainSign<'a> {
    fn new(context: &'a Context) -> Self {
        let timer = context.wheel.timer();
        context.set_timeout(&timer, Duration::MAX);
        DrainSign {
            context,
            timer,
            is_registered: Cell::new(false),
        }
    }

    fn poll(&self, cx: &TaskContext<'_>) -> Poll<()> {
        if !self.is_registered.replace(true) {
            self.timer.register(cx);
        }
        match self.context.is_draining.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Takes a connection in where there is room for it, or room can be made;
/// otherwise it is refused.
///
/// # Errors
/// The kernel lacks memory.
async fn admit(
    clients: &Clients,
    incoming: Incoming,
    listener: usize,
) -> io::Result<Option<Box<Client>>> {
    let context = &clients.context;
    let counters = &context.counters.listeners[listener];
    counters.connections.add(1);
    let incoming = match take_descriptor(context, incoming).await {
        Ok(incoming) => incoming,
        Err(incoming) => {
            counters.connections_no_descriptor.add(1);
            refuse(context, incoming, NO_DESCRIPTOR);
            return Ok(None);
        }
    };
    let need = Need::Connection {
        listener: listener as u16,
    };
    if !take_place(context, listener, need).await {
        counters.connections_refused.add(1);
        refuse(context, incoming, need);
        return Ok(None);
    }
    let peer = incoming.peer;
    let stream = incoming.into_stream().inspect_err(|_| {
        context.open_connections[listener].remove();
    })?;
    let peer = match peer {
        Peer::Tcp(address) => Remote::from(address),
        Peer::Unix => Remote::new(None, 0),
    };
    let session = context.sessions.open(Accepted {
        address: peer.address,
        port: peer.port,
        listener,
        tick: context.wheel.now(),
    });
    let timer = context.wheel.timer();
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
async fn take_descriptor(context: &Context, mut incoming: Incoming) -> Result<Incoming, Incoming> {
    for _ in 0..room::TRIES {
        if !incoming.is_reserved(Taker::Client) {
            return Ok(incoming);
        }
        incoming = incoming.lowered();
        if incoming.is_reserved(Taker::Client) && !room::make(context, NO_DESCRIPTOR).await {
            break;
        }
    }
    Err(incoming)
}

/// Takes one of the connections that a listener may have; where it has as many,
/// another one is closed. Whether there is one.
async fn take_place(context: &Context, listener: usize, need: Need) -> bool {
    let limit = context.config.listeners[listener].limits.connections;
    for _ in 0..room::TRIES {
        if context.open_connections[listener].try_add(limit) {
            return true;
        }
        if !room::make(context, need).await {
            break;
        }
    }
    false
}

/// Answers a connection that there is no room for, and closes it.
fn refuse(context: &Context, incoming: Incoming, need: Need) {
    let answer = answer::refusal(context, need.failure().into());
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
    async fn wait(&mut self, clients: &Clients, listener: usize, error: &io::Error) {
        // The client left before it was accepted: nothing is wrong here.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        let context = &clients.context;
        let errno = Errno::from_io_error(error);
        if errno.is_some_and(is_out_of_descriptors) && room::make(context, ANY).await {
            return;
        }
        if !self.is_paused {
            self.is_paused = true;
            context.counters.listeners[listener].accept_pauses.add(1);
            let name = &context.config.listeners[listener].name;
            tracing::warn!(
                listener = name,
                "listener {name}: accepting pauses: {error}"
            );
        }
        context.wheel.sleep(ACCEPT_PAUSE).await;
    }

    fn is_over(&mut self, clients: &Clients, listener: usize) {
        if std::mem::take(&mut self.is_paused) {
            let name = &clients.context.config.listeners[listener].name;
            tracing::info!(listener = name, "listener {name}: accepting again");
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
    serve: impl Fn(Rc<Clients>, Box<Client>) -> F,
) -> impl Future<Output = ()>
where
    F: Future<Output = Served>,
{
    async move {
        let clients = &open.clients;
        let timeouts = &clients.context.config.listeners[open.listener].timeouts;
        // A drain closes idle connections at once, but not one whose first request
        // may be on its way.
        let first_wait = match clients.context.is_draining.get() {
            true => timeouts.head.min(FIRST_REQUEST_IN_DRAIN),
            false => timeouts.head,
        };
        let mut wait = Wait::ForFirst(Some(first_wait));
        if speaks_proxy_protocol(&clients.context, &client) {
            let header = proxy_protocol::take_header(clients, client, wait);
            match box_cold(header).await {
                Some(told) => client = told,
                None => return,
            }
            wait = wait.on();
        }
        Hint::Client.set(&*client);
        client.timer.hint_prefetch(Hint::Timer as usize);
        while wait_for_request(&clients.context, &mut client, wait).await {
            (client, wait) = match places.run(|| serve(clients.clone(), client)).await {
                Served::Idle(client) => (client, Wait::ForNext(Some(timeouts.idle))),
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
fn speaks_proxy_protocol(context: &Context, client: &Client) -> bool {
    let peers = &context.listener(client).proxy_protocol;
    peers.contains(client.peer.address)
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
    context: &Context,
    client: &mut Client,
    wait: Wait,
) -> impl Future<Output = bool> {
    let (Wait::ForFirst(timeout) | Wait::ForNext(timeout)) = wait;
    if let Some(timeout) = timeout {
        context.set_timeout(&client.timer, timeout);
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
        if context.wheel.has_fired(&client.timer) || is_displaced(cx, context, client) {
            return Poll::Ready(false);
        }
        let is_unwanted = matches!(wait, Wait::ForNext(_)) && context.is_draining.get();
        // A request that is there already is served: the event loop is about
        // to say that it came.
        match is_unwanted && client.stream.peek() != Peeked::Data {
            true => Poll::Ready(false),
            false => Poll::Pending,
        }
    })
}

/// Whether an idle connection is to be closed to make room here, or was at an
/// endpoint. A request that is there already is served.
fn is_displaced(cx: &TaskContext<'_>, context: &Context, client: &mut Client) -> bool {
    let pinned = &context.pinned;
    let has_given_way = !pinned.is_empty() && pinned.poll_displaced(cx, client.session).is_ready();
    let is_told = context.sessions.take_told(client.session).is_some();
    let is_displaced = (is_told || has_given_way) && client.stream.peek() != Peeked::Data;
    if is_displaced {
        let counters = context.listener_counters(client);
        counters.connections_displaced.add(1);
    }
    is_displaced
}
