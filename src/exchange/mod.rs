//! One request and its response: forward, retry, tunnel, error answers.
//!
//! Per worker. Knows streams and upstreams; does not accept connections, match
//! routes or keep pools.

pub mod answer;
mod attempt;
mod buffering;
pub mod drain;
mod forward;
pub mod identity;
pub mod pump;
mod queueing;
mod record;
mod relay;
pub(crate) mod remote;
pub mod room;
mod watch;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_proto::http1::write::{self, Persistence};
use evenkeel_proto::{LoopId, RequestHead, ResponseHead, Scheme, Version};

use crate::config::{self, Config};
use crate::files::Files;
use crate::metrics::end::Failure;
use crate::metrics::{BufferMemory, OpenCount};
use crate::net::clock;
use crate::net::stream::{Follow, Stream};
use crate::net::timer::{Timer, Wheel};
use crate::observe::access_log::AccessLog;
use crate::observe::counters::{Counters, ListenerCounters};
use crate::observe::failures::Failures;
use crate::observe::otlp::SpanSender;
use crate::observe::sessions::{SessionKey, Sessions};
use crate::upstream::{PinnedConnections, Upstream};

use self::remote::{RelayedClient, Remote};
use identity::{IdSource, Identity};
use room::Room;
use watch::ClientWatch;

pub(crate) use forward::refused_end;
pub use forward::{Outcome, forward};
pub use record::Progress;

/// What every exchange of a worker works with.
#[derive(Debug)]
pub struct Context {
    /// The configuration that the exchange began with.
    pub config: Arc<Config>,
    /// Its upstreams, in order.
    pub upstreams: Vec<Upstream>,
    /// The worker's timeouts.
    pub wheel: Wheel,
    /// The worker's counters.
    pub counters: Arc<Counters>,
    /// The worker's access logs.
    pub access_log: AccessLog,
    /// Connections open per listener, over all workers.
    pub open_connections: Arc<[OpenCount]>,
    /// Memory in which bodies are held for slow clients, over all workers.
    pub buffer_memory: Arc<BufferMemory>,
    /// Where spans go, if they go anywhere.
    pub spans: Option<SpanSender>,
    /// Where request ids and traces come from.
    pub ids: IdSource,
    /// What the process calls itself to endpoints.
    pub loop_id: LoopId,
    /// Whether the worker is finishing what it has.
    pub is_draining: Cell<bool>,
    /// Where heads are written before they are sent; never held over a wait.
    pub scratch: RefCell<Vec<u8>>,
    /// Where a response's head is read into; never held over a wait.
    pub response_head: RefCell<ResponseHead>,
    /// The worker's open connections.
    pub sessions: Sessions,
    /// The last exchanges that failed.
    pub failures: Failures,
    /// The files that routes serve.
    pub files: Rc<Files>,
    /// What is known of room for connections.
    pub room: Room,
    /// Connections to endpoints that belong to one client each.
    pub pinned: PinnedConnections,
}

/// The accepting side of an exchange.
#[derive(Debug)]
pub struct Client {
    /// The client's connection.
    pub stream: Stream,
    /// The one timeout that its task has at a time.
    pub timer: Timer,
    /// Who connected.
    pub peer: Remote,
    /// Whether a PROXY header left open who the client is: what its requests say
    /// of the client is a stranger's word, whatever address the proxy has.
    is_unnamed: bool,
    /// The client of the request in hand, where a trusted proxy sent that.
    relayed: Option<Box<RelayedClient>>,
    /// Whether it has closed its sending side alone, and waits for its answer.
    pub is_half_closed: Cell<bool>,
    /// Index of the listener that accepted it.
    pub listener: usize,
    /// Its entry among the worker's open connections.
    pub session: SessionKey,
}

impl Client {
    /// A connection of a listener that was accepted.
    pub fn new(
        stream: Stream,
        timer: Timer,
        peer: Remote,
        listener: usize,
        session: SessionKey,
    ) -> Self {
        Client {
            stream,
            timer,
            peer,
            is_unnamed: false,
            relayed: None,
            is_half_closed: Cell::new(false),
            listener,
            session,
        }
    }

    /// Takes the peer of the socket for a proxy, and this address for the client's.
    ///
    /// Invariant: whoever asks for the client's address gets the same one: the
    /// connection's entry has it too.
    pub fn stands_for(&mut self, context: &Context, address: SocketAddr) {
        self.peer = address.into();
        let sessions = &context.sessions;
        sessions.set_client(self.session, address.ip(), address.port());
    }

    /// Takes the peer of the socket for a proxy that does not name its client.
    pub fn stands_for_nobody(&mut self) {
        self.is_unnamed = true;
    }

    /// Takes over whom a request is from, where a trusted proxy sends it.
    pub fn asks(&mut self, context: &Context, bytes: &[u8], head: &RequestHead) {
        let trusted = &context.listener(self).trusted_proxies;
        if trusted.contains(self.peer.address) && !self.is_unnamed {
            let proxy = self.peer;
            let relayed = self.relayed.take();
            let mut relayed = relayed.unwrap_or_else(|| Box::new(RelayedClient::new(&proxy)));
            relayed.read(&proxy, trusted, bytes, head);
            self.relayed = Some(relayed);
        }
    }

    /// What comes next is no request, and so from whoever connected.
    pub fn asks_nothing(&mut self) {
        self.relayed = None;
    }

    /// Who the request in hand is from.
    pub fn remote(&self) -> &Remote {
        match &self.relayed {
            None => &self.peer,
            Some(relayed) => &relayed.remote,
        }
    }

    /// The scheme of the URL that the client asked for.
    pub fn scheme(&self) -> Scheme {
        let told = self.relayed.as_ref().and_then(|it| it.scheme());
        told.unwrap_or(match self.stream.is_encrypted() {
            true => Scheme::Https,
            false => Scheme::Http,
        })
    }

    /// What a trusted proxy said of the client, for endpoints.
    pub fn relayed(&self) -> Option<write::Relayed<'_>> {
        self.relayed.as_ref().map(|it| it.relayed())
    }
}

/// What becomes of the client's connection after an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It can carry another one.
    KeepAlive,
    /// Everything was sent, and nothing more comes: close.
    Close,
    /// Everything was sent, but the client may still be sending: closing at
    /// once would reset the connection and lose the answer.
    Linger {
        /// Who is sending.
        sender: Sender,
    },
    /// Cut it, so that the client can't take what it got for a whole answer.
    Abort,
}

/// Who goes on sending when its connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A client that may not have read its answer yet.
    Answered,
    /// A client that had its time, or sent more than its request.
    Late,
}

/// A wait was over before what it waited for came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOut;

impl Context {
    /// Settings of the listener that accepted this client.
    pub fn listener(&self, client: &Client) -> &config::Listener {
        &self.config.listeners[client.listener]
    }

    /// What a request is called that came at `started`, where that is wanted.
    pub fn identify(
        &self,
        client: &Client,
        started: Instant,
        bytes: &[u8],
        head: &RequestHead,
    ) -> Option<Identity> {
        let settings = &self.listener(client).identity;
        settings.is_on().then(|| {
            let unix_ms = || self.access_log.unix_us(started) / 1_000;
            let records = self.spans.is_some();
            Identity::of(settings, &self.ids, unix_ms, records, bytes, head)
        })
    }

    /// Counters of the listener that accepted this client.
    pub fn listener_counters(&self, client: &Client) -> &ListenerCounters {
        &self.counters.listeners[client.listener]
    }

    /// Waits for `future`, at most until the client's timer fires.
    ///
    /// # Errors
    /// [`TimedOut`], with the future dropped.
    pub async fn until_deadline<T>(
        &self,
        timer: &Timer,
        future: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if self.wheel.has_fired(timer) => Poll::Ready(Err(TimedOut)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Sets the client's timer to fire after `timeout`.
    pub fn set_timeout(&self, timer: &Timer, timeout: Duration) {
        self.wheel.set(timer, self.wheel.deadline(timeout));
    }

    /// Why a timer fired: the program stops, the exchange has taken too long in
    /// all, or else `failure`.
    pub(crate) fn timed_out(&self, total_deadline: u64, failure: Failure) -> Failure {
        if self.wheel.is_stopped() {
            Failure::Stopped
        } else if total_deadline <= self.wheel.now() {
            Failure::TotalTimeout
        } else {
            failure
        }
    }

    /// What the response's head tells the client about its connection.
    pub fn persistence(&self, head: &RequestHead, is_whole: bool) -> Persistence {
        if !head.keep_alive || !is_whole || self.is_draining.get() {
            Persistence::Close
        } else if head.version == Version::Http10 {
            Persistence::KeepTold
        } else {
            Persistence::Keep
        }
    }
}

/// What follows a response's last byte on the client's connection.
pub(crate) fn follow(persistence: Persistence) -> Follow {
    match persistence {
        Persistence::Close => Follow::Close,
        Persistence::Keep | Persistence::KeepTold | Persistence::Upgrade => Follow::Anything,
    }
}

/// Writes all of `bytes`, or as much as the client takes until it closes or its
/// timer fires. With a `timeout` that is when it has taken nothing for so long;
/// otherwise the timer stays as whoever waits besides has set it. Gives the
/// number written too.
async fn write_all(
    context: &Context,
    client: &mut Client,
    bytes: &[u8],
    follow: Follow,
    timeout: Option<Duration>,
) -> (usize, Result<(), WriteFailure>) {
    let Client { stream, timer, .. } = client;
    let mut sent = 0;
    let progressed = || {
        timeout
            .into_iter()
            .for_each(|it| context.set_timeout(timer, it))
    };
    progressed();
    let written = std::future::poll_fn(|cx: &mut TaskContext<'_>| {
        while sent < bytes.len() {
            match stream.poll_write(cx, &bytes[sent..], follow) {
                Poll::Ready(Ok(len)) if len > 0 => {
                    sent += len;
                    progressed();
                }
                Poll::Ready(_) => return Poll::Ready(Err(WriteFailure::Closed)),
                Poll::Pending if context.wheel.has_fired(timer) => {
                    return Poll::Ready(Err(WriteFailure::TimedOut));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await;
    (sent, written)
}

/// Waits for `future` as long as the client stays, at most until its timer
/// fires. The request with this head was complete at `request_end`.
///
/// # Errors
/// The client left; or [`TimedOut`], which is the future's to explain. The
/// future is dropped then.
pub(crate) async fn while_client_stays<T>(
    context: &Context,
    client: &mut Client,
    head: &RequestHead,
    request_end: Instant,
    future: impl Future<Output = T>,
) -> Result<T, Gone> {
    let mut future = std::pin::pin!(future);
    let mut watch = ClientWatch::of(context, client, head, request_end);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending if context.wheel.has_fired(&client.timer) => Poll::Ready(Err(Gone::TimedOut)),
        Poll::Pending => watch.poll_gone(cx, client).map(|()| Err(Gone::Client)),
    })
    .await
}

/// Why a wait ended before what it waited for came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The client left.
    Client,
    /// Its timer fired.
    TimedOut,
}

/// Why a client did not get all of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFailure {
    /// It closed the connection.
    Closed,
    /// It took nothing for too long.
    TimedOut,
}

/// Boxes a cold future, so that it grows neither the hot future nor its code. Costs
/// an allocation where the path is taken.
#[cold]
pub fn box_cold<'a, T>(
    future: impl Future<Output = T> + 'a,
) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}

/// Time since `start`, which restarts now: one clock call a phase.
fn restart(start: &mut Instant) -> Duration {
    let now = clock::now();
    let elapsed = now.duration_since(*start);
    *start = now;
    elapsed
}
