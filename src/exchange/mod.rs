//! One request and its response: forward, retry, tunnel, error answers.
//!
//! Per worker. Knows streams and upstreams; does not accept connections, match
//! routes or keep pools.

pub mod answer;
mod attempt;
pub(crate) mod bandwidth;
mod body;
mod buffering;
mod cache_effect;
mod carrier;
mod client;
pub(crate) mod compression;
pub mod context;
pub mod drain;
pub(crate) mod edits;
mod encoder;
mod error_page;
mod forward;
mod grpc;
mod http1_side;
mod http2_side;
pub mod identity;
mod known_room;
pub(crate) mod limits;
mod moment;
mod outcome;
mod pace;
mod page_fetch;
mod patience;
pub mod proxy_header;
pub mod pump;
mod queueing;
mod record;
mod recording;
mod relay;
pub(crate) mod remote;
mod request;
pub(crate) mod request_key;
mod reserved;
pub mod room;
mod side;
mod stalled;
pub(crate) mod sticky;
pub mod store_side;
mod subrequest;
pub mod tcp;
mod throttle;
mod tunnel;
pub(crate) mod variables;
mod watch;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_proto::RequestHead;
use evenkeel_proto::http1::write::Persistence;

use crate::config;
use crate::limits::InFlight;
use crate::metrics::end::Failure;
use crate::net::clock;
use crate::net::stream::Follow;
use crate::net::timer::Timer;
use crate::upstream::http2::Call;

use carrier::Carrier;
use watch::ClientWatch;

pub use cache_effect::CacheEffect;
pub use client::{Client, TlsClient};
pub use context::{Context, Worker};
pub use forward::forward;
pub(crate) use forward::refused_end;
pub use http1_side::Http1Side;
pub use http2_side::{Http2Connection, Http2Stream};
pub use known_room::Room;
pub use moment::Moment;
pub use outcome::Outcome;
pub use page_fetch::fetch_page;
pub use record::Progress;
pub(crate) use recording::{Recorded, Recorder, Unrecorded};
pub use side::ClientSide;
pub use subrequest::{KeptHead, KeptResponse, Subrequest};

/// One request and its response, from the head's last byte to the line in the log.
///
/// A connection of HTTP/1 has one exchange at a time; other protocols may have many: see
/// [`ClientSide`]. The request's body still depends on HTTP/1: it is read by the framing in its
/// head, and forwarded unchanged.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The worker, and the exchange's generation.
    pub context: &'a Context,
    /// The client.
    pub client: &'a Client,
    /// The client's side.
    pub side: ClientSide<'a>,
    /// The only timer: one timeout at a time. HTTP/1 lends the connection's timer.
    pub timer: Timer,
    /// The client's buffer, which begins with the head. Over HTTP/2 it has other text before the
    /// head: the request line is at `head.wire.start`.
    pub bytes: &'a [u8],
    /// The request's head. A head without a length was not read: see
    /// [`head_read`](Self::head_read).
    pub head: &'a RequestHead,
    /// Its result so far.
    pub progress: Progress<'a>,
    /// Fields that few exchanges need.
    pub rare: Option<Box<Rare>>,
    /// Facts for routing that are not in the request.
    pub moment: Moment,
    /// Tick at which the total time is used up. `u64::MAX` until an upstream sets it.
    pub total_deadline: u64,
}

/// Fields that few exchanges need. They are apart so that other exchanges stay small.
#[derive(Debug, Default)]
pub struct Rare {
    /// The effect of the response on a cache that it goes past.
    pub cache_effect: Option<CacheEffect>,
    /// Counts the exchange as in flight for the limits of its route.
    pub in_flight: Vec<InFlight>,
    /// The user, once the client is authenticated.
    pub user: Option<Box<str>>,
    /// Fields that an endpoint gets in place of the client's.
    pub set_fields: Option<Rc<[SetField]>>,
    /// Total time of an exchange that another exchange makes.
    total: Option<Duration>,
    /// The gRPC call, to an HTTP/2 endpoint.
    call: Option<Rc<Call>>,
    /// Records the request for a copy, while its body arrives.
    recording: Option<recording::Recording>,
}

/// A field of a request with replaced values. The endpoint gets no value from the client under
/// its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetField {
    /// Its name.
    pub name: Box<str>,
    /// Its values, one line each; none to remove the field.
    pub values: Vec<Vec<u8>>,
}

impl<'a> Exchange<'a> {
    /// A new exchange with this head, at the front of `bytes`.
    pub fn new(
        context: &'a Context,
        client: &'a Client,
        side: ClientSide<'a>,
        timer: Timer,
        bytes: &'a [u8],
        head: &'a RequestHead,
        progress: Progress<'a>,
    ) -> Self {
        Exchange {
            context,
            client,
            side,
            timer,
            bytes,
            head,
            progress,
            rare: None,
            moment: Moment::default(),
            total_deadline: u64::MAX,
        }
    }

    /// The fields that few exchanges need; allocates them.
    pub fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The user, if the client is authenticated.
    pub fn user(&self) -> Option<&str> {
        self.rare.as_ref()?.user.as_deref()
    }

    /// Fields that an endpoint gets in place of the client's.
    pub fn set_fields(&self) -> Option<&[SetField]> {
        self.rare.as_ref()?.set_fields.as_deref()
    }

    /// The carrier of the request's body.
    fn body_carrier(&mut self) -> Carrier<'_> {
        let recording = self.rare.as_mut().and_then(|it| it.recording.as_mut());
        self.side.body_carrier(recording)
    }

    /// The head, unless the input was not a head.
    pub fn head_read(&self) -> Option<&'a RequestHead> {
        (self.head.wire.end > 0).then_some(self.head)
    }

    /// Whether this is a TCP connection, which has no head.
    pub fn is_tcp(&self) -> bool {
        self.listener().protocol == config::ClientProtocol::Tcp
    }

    /// The route of the request, once it is known.
    pub fn route(&self) -> Option<&'a config::Route> {
        let route = self.progress.figures.route? as usize;
        Some(&self.context.config().routes[route])
    }

    /// Settings of the listener that accepted the client.
    pub fn listener(&self) -> &'a config::Listener {
        self.context.listener()
    }

    /// Sets the timer to fire after `timeout`.
    pub fn set_timeout(&self, timeout: Duration) {
        self.context.set_timeout(&self.timer, timeout);
    }

    /// Sets the timer to fire after `timeout`, or when the total time is used up.
    pub fn set_bounded_timeout(&self, timeout: Duration) {
        self.set_deadline(self.context.wheel.deadline(timeout));
    }

    /// Sets the timer to this tick, or to the end of the total time.
    pub fn set_deadline(&self, deadline: u64) {
        let deadline = deadline.min(self.total_deadline);
        self.context.wheel.set(&self.timer, deadline);
    }

    /// Whether the timer has fired, or the exchange has to end at once. A wait for the route's
    /// bandwidth does not count.
    pub fn has_timed_out(&self) -> bool {
        self.context.has_fired(&self.timer) && !self.is_held_back()
    }

    /// Why the timer fired: the program stops, the generation's time is up, the total time is
    /// used up, or else `failure`.
    pub fn timed_out(&self, failure: Failure) -> Failure {
        self.context.timed_out(self.total_deadline, failure)
    }

    /// The failure of an exchange whose client did not get all of an answer.
    pub fn write_failed(&self, why: WriteFailure) -> Failure {
        match why {
            WriteFailure::Closed => self.client_left(),
            WriteFailure::TimedOut => self.timed_out(Failure::ClientStalled),
        }
    }

    /// The failure of an exchange whose client reads no more: the client has left, or was cut off
    /// for reading too little.
    pub fn client_left(&self) -> Failure {
        if self.side.gives_way() {
            Failure::ClientStalled
        } else {
            Failure::ClientGone
        }
    }

    /// The persistence of the client's connection, for the response's head. `rest` is the fate of
    /// the request's body.
    pub fn persistence(&self, rest: RestOfBody) -> Persistence {
        let listener = &self.client.listener;
        self.side.persistence(listener, self.head, rest)
    }

    /// The next thing on the client's side after the last byte of a response.
    pub fn follow(&self, persistence: Persistence) -> Follow {
        self.side.follow(persistence)
    }
}

/// The fate of the part of a request's body that was not read before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestOfBody {
    /// It is read, or empty. The body's end is known.
    Read,
    /// It stays unread.
    Unread,
}

/// The next state of the client's connection after an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Keep it for another exchange.
    KeepAlive,
    /// Everything was sent, and the client sends no more: close.
    Close,
    /// Everything was sent, but the client may still be sending. An immediate close would reset
    /// the connection and lose the answer.
    Linger {
        /// Why the client may still send.
        sender: Sender,
    },
    /// Close within a response whose length the client knows. TLS sends no close_notify.
    Cut,
    /// Reset, so that the client can't take a part of a response for the whole.
    Abort,
}

impl Next {
    /// The next state of the connection after an answer that was sent whole.
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

/// A client that may still send when its connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The client may not have read its answer yet.
    Answered,
    /// The client has used up its time, or has sent more than its request.
    Late,
}

/// A wait ended without its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOut;

impl Exchange<'_> {
    /// Writes all of `bytes`, or as much as the client reads until it closes or the timer fires.
    /// The first `head_len` bytes are the head of our own answer. `timeout` limits the time in
    /// which the client reads nothing. Without it the caller has set the timer. Returns the
    /// number of written bytes too.
    // Not an `async fn`, which would hold its arguments twice.
    fn write_all(
        &mut self,
        bytes: &[u8],
        head_len: usize,
        follow: Follow,
        timeout: Option<Duration>,
    ) -> impl Future<Output = (usize, Result<(), WriteFailure>)> {
        let mut sent = 0;
        let set_timeout = move |exchange: &Self| {
            if let Some(timeout) = timeout {
                exchange.set_timeout(timeout);
            }
        };
        set_timeout(self);
        std::future::poll_fn(move |cx: &mut TaskContext<'_>| {
            while sent < bytes.len() {
                let head_len = head_len.saturating_sub(sent);
                let rest = &bytes[sent..];
                match self.side.poll_write_answer(cx, rest, head_len, follow) {
                    Poll::Ready(Ok(len)) if len > 0 => {
                        sent += len;
                        set_timeout(self);
                    }
                    Poll::Ready(_) => return Poll::Ready((sent, Err(WriteFailure::Closed))),
                    Poll::Pending if self.has_timed_out() => {
                        return Poll::Ready((sent, Err(WriteFailure::TimedOut)));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready((sent, Ok(())))
        })
    }

    /// Waits for `future` while the client stays, until the timer fires.
    ///
    /// # Errors
    /// The client has left, or the timer has fired; the caller knows why. The future is dropped
    /// then.
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
            Poll::Pending => watch
                .poll_gone(cx, &mut self.side)
                .map(|()| Err(Gone::Client)),
        })
        .await
    }
}

/// Why a wait ended without its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The client left.
    Client,
    /// The timer has fired.
    TimedOut,
}

/// Why an answer was not sent whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFailure {
    /// It closed the connection.
    Closed,
    /// The client read nothing for too long.
    TimedOut,
}

/// Boxes a cold future, so that it does not grow the hot future and its code. Costs an allocation
/// on the cold path.
#[cold]
pub fn box_cold<'a, T>(
    future: impl Future<Output = T> + 'a,
) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}

/// Time since `start`, which restarts now: one clock call for each phase.
fn restart(start: &mut Instant) -> Duration {
    let now = clock::now();
    let elapsed = now.duration_since(*start);
    *start = now;
    elapsed
}
