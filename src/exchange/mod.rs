//! One request and its response: forward, retry, tunnel, error answers.
//!
//! Per worker. Knows streams and upstreams; does not accept connections, match
//! routes or keep pools.

pub mod answer;
mod attempt;
mod buffering;
mod client;
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
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_proto::http1::write::Persistence;
use evenkeel_proto::{LoopId, RequestHead, ResponseHead, Version};

use crate::config::{self, Config};
use crate::files::Files;
use crate::metrics::end::Failure;
use crate::metrics::{BufferMemory, OpenCount};
use crate::net::clock;
use crate::net::stream::Follow;
use crate::net::timer::{Timer, Wheel};
use crate::observe::access_log::AccessLog;
use crate::observe::counters::{Counters, ListenerCounters};
use crate::observe::failures::Failures;
use crate::observe::otlp::SpanSender;
use crate::observe::sessions::Sessions;
use crate::upstream::{PinnedConnections, Upstream};

use identity::{IdSource, Identity};
use room::Room;
use watch::ClientWatch;

pub use client::Client;
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

/// One request and its response, from the head's last byte to the line in the log.
///
/// A connection of HTTP/1 has one at a time. Nothing here depends on that.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// What it works with.
    pub context: &'a Context,
    /// Who asks.
    pub client: &'a mut Client,
    /// The one timeout that it has at a time. HTTP/1 lends that of the connection.
    pub timer: Timer,
    /// The client's buffer, which begins with the head.
    pub bytes: &'a [u8],
    /// The request's head. One without a length was not read: see
    /// [`head_read`](Self::head_read).
    pub head: &'a RequestHead,
    /// What it has come to.
    pub progress: Progress<'a>,
    /// Tick at which it has taken too long in all; that of the upstream, once there is
    /// one.
    pub total_deadline: u64,
}

impl<'a> Exchange<'a> {
    /// An exchange that begins with this head, at the front of `bytes`.
    pub fn new(
        context: &'a Context,
        client: &'a mut Client,
        bytes: &'a [u8],
        head: &'a RequestHead,
        progress: Progress<'a>,
    ) -> Self {
        Exchange {
            context,
            timer: client.timer.clone(),
            client,
            bytes,
            head,
            progress,
            total_deadline: u64::MAX,
        }
    }

    /// The head, unless what came is none.
    pub fn head_read(&self) -> Option<&'a RequestHead> {
        (self.head.end > 0).then_some(self.head)
    }

    /// Settings of the listener that accepted the client.
    pub fn listener(&self) -> &'a config::Listener {
        self.context.listener(self.client)
    }

    /// Sets the timer to fire after `timeout`.
    pub fn set_timeout(&self, timeout: Duration) {
        self.context.set_timeout(&self.timer, timeout);
    }

    /// Sets the timer to fire after `timeout`, or when the exchange has taken too long
    /// in all.
    pub fn set_bounded_timeout(&self, timeout: Duration) {
        let wheel = &self.context.wheel;
        let deadline = wheel.deadline(timeout).min(self.total_deadline);
        wheel.set(&self.timer, deadline);
    }

    /// Whether the timer has fired.
    pub fn has_timed_out(&self) -> bool {
        self.context.wheel.has_fired(&self.timer)
    }

    /// Why the timer fired: the program stops, the exchange has taken too long in
    /// all, or else `failure`.
    pub fn timed_out(&self, failure: Failure) -> Failure {
        self.context.timed_out(self.total_deadline, failure)
    }

    /// The failure of an exchange whose client did not get all of an answer.
    pub fn write_failed(&self, why: WriteFailure) -> Failure {
        match why {
            WriteFailure::Closed => Failure::ClientGone,
            WriteFailure::TimedOut => self.timed_out(Failure::ClientStalled),
        }
    }

    /// What the response's head tells the client about its connection. `rest` is what
    /// becomes of the request's body.
    pub fn persistence(&self, rest: RestOfBody) -> Persistence {
        self.context
            .persistence(self.head, rest == RestOfBody::Read)
    }
}

/// What becomes of the part of a request's body that was not read before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestOfBody {
    /// It is read, or there is none: its end is known.
    Read,
    /// It stays unread.
    Unread,
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

impl Next {
    /// What follows an answer that went to the client whole.
    pub fn after(persistence: Persistence, rest: RestOfBody) -> Self {
        match (persistence, rest) {
            (Persistence::Keep | Persistence::KeepTold | Persistence::Upgrade, _) => {
                Next::KeepAlive
            }
            (Persistence::Close, RestOfBody::Read) => Next::Close,
            (Persistence::Close, RestOfBody::Unread) => Next::Linger {
                sender: Sender::Answered,
            },
        }
    }
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

impl Exchange<'_> {
    /// Writes all of `bytes`, or as much as the client takes until it closes or the
    /// timer fires. With a `timeout` that is when it has taken nothing for so long;
    /// otherwise the timer stays as whoever waits besides has set it. Gives the
    /// number written too.
    async fn write_all(
        &mut self,
        bytes: &[u8],
        follow: Follow,
        timeout: Option<Duration>,
    ) -> (usize, Result<(), WriteFailure>) {
        let Exchange {
            context,
            client,
            timer,
            ..
        } = self;
        let mut sent = 0;
        let progressed = || {
            timeout
                .into_iter()
                .for_each(|it| context.set_timeout(timer, it))
        };
        progressed();
        let written = std::future::poll_fn(|cx: &mut TaskContext<'_>| {
            while sent < bytes.len() {
                match client.stream.poll_write(cx, &bytes[sent..], follow) {
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

    /// Waits for `future` as long as the client stays, at most until the timer fires.
    ///
    /// # Errors
    /// The client left; or its timer fired, which is the future's to explain. The
    /// future is dropped then.
    pub(crate) async fn while_client_stays<T>(
        &mut self,
        future: impl Future<Output = T>,
    ) -> Result<T, Gone> {
        let mut future = std::pin::pin!(future);
        let request_end = self.progress.arrived();
        let mut watch = ClientWatch::of(self, request_end);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if self.has_timed_out() => Poll::Ready(Err(Gone::TimedOut)),
            Poll::Pending => watch.poll_gone(cx, self.client).map(|()| Err(Gone::Client)),
        })
        .await
    }
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
pub enum WriteFailure {
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
