//! The client's side of an exchange: how its protocol brings the request's body and
//! takes the response.
//!
//! Each protocol is a variant of [`ClientSide`]. HTTP/1 lends its connection to one
//! exchange after the other. A protocol that multiplexes gives each exchange a stream
//! of its own, so that a connection carries many at once.
//!
//! A response reaches a side in one of two forms:
//!
//! - The head of an endpoint goes through [`ClientSide::response_head`], which gives the
//!   text of HTTP/1 that goes in front of the body. [`ClientSide::begin_response`] takes
//!   that off where the protocol has a form of its own, and sends it. The body follows by
//!   way of the [`Carrier`].
//! - An answer made here is text of HTTP/1, and goes through
//!   [`ClientSide::poll_write_answer`].
//!
//! Invariant: a response that went out whole is ended. Where no write has said the end,
//! [`ClientSide::end_response`] does.

use std::cell::RefMut;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::http1::write::{self, Kept, Persistence, ResponseEdits, Transcode};
use evenkeel_proto::{BodyFraming, RequestHead, ResponseHead, Version};

use super::Progress;
use super::RestOfBody;
use super::body::BodySink;
use super::carrier::{Carrier, RecordedStream};
use super::context::{ListenerSide, Worker};
use super::http1_side::Http1Side;
use super::http2_side::{Http2Stream, QueuedStream};
use super::recording::Recording;
use super::store_side::StoreSide;
use super::subrequest::Subrequest;
use super::throttle::Throttle;
use crate::net::clock;
use crate::net::stream::{Follow, Peeked};
use crate::observe::access_log::StreamPlace;

/// The client's side of one exchange.
#[derive(Debug)]
pub enum ClientSide<'a> {
    /// A connection that carries one exchange at a time.
    Http1(&'a mut Http1Side),
    /// One of many streams on a connection.
    Http2(&'a mut Http2Stream),
    /// A cache, which asks for what it does not have.
    Store(&'a mut StoreSide),
    /// Another exchange, which asks for itself.
    Subrequest(&'a mut Subrequest),
}

/// The part of an endpoint's head that a client gets in another form.
#[derive(Debug)]
pub(super) struct ReplacedHead<'c> {
    /// Bytes at the front of the endpoint's head that do not go to the client.
    pub len: usize,
    /// The bytes that go to the client in their place.
    pub by: Option<RefMut<'c, Vec<u8>>>,
}

impl ClientSide<'_> {
    /// The carrier of both bodies.
    pub(super) fn carrier(&mut self) -> Carrier<'_> {
        match self {
            ClientSide::Http1(http1) => match http1.throttle() {
                None => Carrier::Connection(&mut http1.stream),
                Some(_) => Carrier::Paced(http1),
            },
            ClientSide::Store(store) => Carrier::Store(store),
            ClientSide::Subrequest(kept) => Carrier::Subrequest(kept),
            ClientSide::Http2(stream) => Carrier::Multiplexed(stream),
        }
    }

    /// The carrier of the request's body, of which `recording` gets what is read.
    pub(super) fn body_carrier<'c>(
        &'c mut self,
        recording: Option<&'c mut Recording>,
    ) -> Carrier<'c> {
        match (self, recording.filter(|it| !it.is_over())) {
            (ClientSide::Http1(http1), Some(recording)) => Carrier::Recorded(RecordedStream {
                stream: &mut http1.stream,
                recording,
            }),
            (ClientSide::Http2(stream), Some(recording)) => {
                Carrier::RecordedMultiplexed(RecordedStream { stream, recording })
            }
            (side, _) => side.carrier(),
        }
    }

    /// The address that the client connected to; `None` for a Unix socket. A system
    /// call.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            ClientSide::Http1(http1) => http1.stream.local_address(),
            ClientSide::Http2(stream) => stream.local_address(),
            ClientSide::Store(_) | ClientSide::Subrequest(_) => None,
        }
    }

    /// The exchange waits in the queue of an upstream, until what this gives is dropped.
    pub(super) fn queue(&self) -> Option<QueuedStream> {
        match self {
            ClientSide::Http2(stream) => Some(stream.queue()),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => None,
        }
    }

    /// Whether the client has left, as far as is known without a look at its connection.
    pub(super) fn has_left(&self) -> bool {
        match self {
            ClientSide::Http2(stream) => stream.is_reset(),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Whether it is to end, for its client takes nothing and others need the room.
    pub(super) fn gives_way(&self) -> bool {
        match self {
            ClientSide::Http2(stream) => stream.gives_way(),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Where it takes place on a connection that carries many.
    pub(super) fn place(&self) -> StreamPlace {
        match self {
            ClientSide::Http2(stream) => stream.place(),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {
                StreamPlace::default()
            }
        }
    }

    /// The fate of the connection that the head of a response announces. `rest` is what
    /// becomes of the request's body.
    pub(super) fn persistence(
        &self,
        listener: &ListenerSide,
        head: &RequestHead,
        rest: RestOfBody,
    ) -> Persistence {
        match self {
            ClientSide::Http1(_) => http1_persistence(listener, head, rest),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {
                Persistence::Keep
            }
        }
    }

    /// The next thing on the carrier after the last byte of a response.
    pub(super) fn follow(&self, persistence: Persistence) -> Follow {
        match (self, persistence) {
            (ClientSide::Http1(_), Persistence::Close) => Follow::Close,
            (ClientSide::Http1(_), _) => Follow::Anything,
            (ClientSide::Store(_) | ClientSide::Subrequest(_), _) => Follow::Anything,
            (ClientSide::Http2(_), _) => Follow::Close,
        }
    }

    /// The sink of a response's body that an endpoint frames so.
    pub(super) fn body_sink(&self, request: &RequestHead, framing: BodyFraming) -> BodySink {
        match self {
            ClientSide::Http1(_) => BodySink::of_client(request.version, framing),
            // Content alone, as for a client that knows no chunks.
            // The stream takes chunks apart, and what has no length ends with it.
            ClientSide::Http2(_) => BodySink::http1(Transcode::Raw),
            ClientSide::Store(_) | ClientSide::Subrequest(_) => {
                BodySink::of_client(Version::Http10, framing)
            }
        }
    }

    /// Whether the client knows the end of a body only by that of its connection.
    pub(super) fn ends_with_connection(&self, transcode: Transcode, framing: BodyFraming) -> bool {
        match self {
            ClientSide::Http1(_) => match transcode {
                Transcode::Strip => true,
                Transcode::Raw => framing == BodyFraming::UntilClose,
                Transcode::Chunk => false,
            },
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Takes the head of an endpoint's response, at the front of `bytes`. Gives the
    /// part of it that goes to the client in another form.
    ///
    /// Invariant: a side that keeps the head replaces all of it by nothing, so that the body
    /// alone is left. Nothing is sent yet: the response may still be refused. A head that was
    /// kept before gives way.
    pub(super) fn response_head<'c>(
        &self,
        worker: &'c Worker,
        bytes: &[u8],
        head: &ResponseHead,
        edits: ResponseEdits<'_>,
    ) -> ReplacedHead<'c> {
        match self {
            ClientSide::Http1(_) | ClientSide::Http2(_) => {
                http1_response_head(worker, bytes, head, edits)
            }
            ClientSide::Store(store) => {
                let unix_s = worker.access_log.unix_us(clock::now()) / 1_000_000;
                store.take_head(bytes, head, unix_s);
                ReplacedHead {
                    len: head.wire.end,
                    by: None,
                }
            }
            ClientSide::Subrequest(kept) => {
                kept.take_head(bytes, head);
                ReplacedHead {
                    len: head.wire.end,
                    by: None,
                }
            }
        }
    }

    /// The response whose head was taken last goes to the client. `head` is what goes in
    /// front of its body, and `progress` that of the exchange. Gives how many bytes of the
    /// head the side has sent in its own form.
    pub(super) fn begin_response(&mut self, progress: &Progress<'_>, head: &[u8]) -> usize {
        match self {
            // The head goes in front of the body.
            ClientSide::Http1(_) | ClientSide::Subrequest(_) => 0,
            ClientSide::Store(store) => {
                store.begin_response(progress);
                0
            }
            ClientSide::Http2(stream) => {
                stream.send_head(head);
                head.len()
            }
        }
    }

    /// All of the response was written: says its end where no write has said it. May be
    /// called again.
    pub(super) fn end_response(&mut self) {
        match self {
            // The framing says it, or the end of the connection.
            ClientSide::Http1(_) => {}
            // The exchange says it.
            ClientSide::Store(_) | ClientSide::Subrequest(_) => {}
            ClientSide::Http2(stream) => stream.end(),
        }
    }

    /// Writes a part of an answer made here. The first `head_len` bytes are what is left
    /// of its head.
    pub(super) fn poll_write_answer(
        &mut self,
        cx: &TaskContext<'_>,
        bytes: &[u8],
        head_len: usize,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(head_len <= bytes.len(), "the head is a part of them");
        match self {
            // It is text already.
            ClientSide::Http1(http1) => http1.poll_write(cx, bytes, follow),
            // Who follows is told why there is no response.
            ClientSide::Store(_) | ClientSide::Subrequest(_) => Poll::Ready(Ok(bytes.len())),
            ClientSide::Http2(stream) if head_len > 0 => {
                stream.poll_write_text(cx, bytes, head_len, follow)
            }
            ClientSide::Http2(stream) => stream.poll_write(cx, bytes, follow),
        }
    }

    /// Waits until the client sends nothing more, and says what is unread then. No
    /// system call before that, whatever else comes.
    pub(super) fn poll_end(&mut self, cx: &TaskContext<'_>) -> Poll<Peeked> {
        match self {
            ClientSide::Http1(http1) => http1.stream.poll_ended(cx).map(|()| http1.stream.peek()),
            // A stream carries one request, and ends with it.
            ClientSide::Store(store) => store.poll_broken(cx).map(|()| Peeked::Broken),
            // Who asks drops it.
            ClientSide::Subrequest(_) => Poll::Pending,
            ClientSide::Http2(stream) => stream.poll_broken(cx).map(|()| Peeked::Broken),
        }
    }

    /// Ready when nothing can reach the client any more.
    pub(super) fn poll_broken(&mut self, cx: &TaskContext<'_>) -> Poll<()> {
        match self {
            ClientSide::Http1(http1) => http1.stream.poll_broken(cx),
            ClientSide::Store(store) => store.poll_broken(cx),
            ClientSide::Subrequest(_) => Poll::Pending,
            ClientSide::Http2(stream) => stream.poll_broken(cx),
        }
    }

    /// Whether the exchange rather fails than waits for an endpoint.
    pub(super) fn is_impatient(&self) -> bool {
        match self {
            ClientSide::Http1(_) | ClientSide::Subrequest(_) => false,
            ClientSide::Store(store) => store.may_serve_stale(),
            ClientSide::Http2(_) => false,
        }
    }

    /// Whether it is a cache or another exchange: they take responses as they come.
    pub(super) fn is_store(&self) -> bool {
        matches!(self, ClientSide::Store(_) | ClientSide::Subrequest(_))
    }

    /// Whether it is another exchange, which asks for itself.
    pub(super) fn asks_for_itself(&self) -> bool {
        matches!(self, ClientSide::Subrequest(it) if !it.is_copy())
    }

    /// Whether the request is a copy of another one, whose response nobody waits for.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self, ClientSide::Subrequest(it) if it.is_copy())
    }

    /// Whether the client was found to have closed its sending side alone.
    pub(super) fn is_half_closed(&self) -> bool {
        match self {
            ClientSide::Http1(http1) => http1.is_half_closed(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// The client has closed its sending side alone. That holds for the exchanges that
    /// follow on a connection of HTTP/1, too.
    pub(super) fn set_half_closed(&mut self) {
        match self {
            ClientSide::Http1(http1) => http1.set_half_closed(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {}
        }
    }

    /// Says that nothing more comes behind the response.
    pub(super) fn close_notify(&mut self) {
        // An error shows in the reads that follow.
        let _ = self.carrier().close_notify();
    }

    /// Whether the bandwidth of the route holds the response back at this moment.
    pub(super) fn is_throttled(&self) -> bool {
        match self {
            ClientSide::Http1(http1) => http1.throttle().is_some_and(Throttle::is_waiting),
            ClientSide::Http2(stream) => stream.throttle().is_some_and(Throttle::is_waiting),
            ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Ends what holds the response back. Gives how long it did.
    pub(super) fn end_throttle(&mut self) -> Duration {
        match self {
            ClientSide::Http1(http1) => {
                let throttle = http1.take_throttle();
                throttle.map_or(Duration::ZERO, |it| it.waited())
            }
            ClientSide::Http2(stream) => {
                let throttle = stream.take_throttle();
                throttle.map_or(Duration::ZERO, |it| it.waited())
            }
            ClientSide::Store(_) | ClientSide::Subrequest(_) => Duration::ZERO,
        }
    }

    /// Bytes that were written and that the client has not acknowledged; 0 where nobody
    /// says.
    pub(super) fn unacknowledged_len(&self) -> u64 {
        match self {
            ClientSide::Http1(http1) => http1.stream.unacknowledged_len(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => 0,
        }
    }

    /// Has the kernel find out when the client is dead: see [`Stream::watch_peer`](crate::net::stream::Stream::watch_peer).
    pub(super) fn watch_peer(&mut self, dead_after: Duration) {
        match self {
            ClientSide::Http1(http1) => http1.stream.watch_peer(dead_after),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {}
        }
    }

    /// Makes the coming close a reset.
    pub(super) fn abort_on_close(&mut self) {
        match self {
            ClientSide::Http1(http1) => http1.stream.abort_on_close(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {}
        }
    }

    /// Whether the kernel sends files to the client.
    pub fn can_send_file(&self) -> bool {
        match self {
            ClientSide::Http1(http1) => http1.stream.can_send_file(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Writes a part of a file: see [`Stream::poll_send_file`](crate::net::stream::Stream::poll_send_file). For sides that
    /// [can send files](Self::can_send_file).
    pub fn poll_send_file(
        &mut self,
        cx: &TaskContext<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            ClientSide::Http1(http1) => http1.poll_send_file(cx, file, offset, len),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {
                Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
            }
        }
    }
}

fn http1_persistence(listener: &ListenerSide, head: &RequestHead, rest: RestOfBody) -> Persistence {
    let is_unread = rest == RestOfBody::Unread;
    if !head.wire.keep_alive || is_unread || listener.is_closing() {
        Persistence::Close
    } else if head.version == Version::Http10 {
        Persistence::KeepTold
    } else {
        Persistence::Keep
    }
}

/// The head stays where it was read as far as the client gets it as it is.
fn http1_response_head<'c>(
    worker: &'c Worker,
    bytes: &[u8],
    head: &ResponseHead,
    edits: ResponseEdits<'_>,
) -> ReplacedHead<'c> {
    let is_interim = head.status < 200;
    let kept = if is_interim {
        Kept::Nothing
    } else {
        write::kept_of_response_head(bytes, head, edits)
    };
    if kept == Kept::Whole {
        return ReplacedHead { len: 0, by: None };
    }
    let mut scratch = worker.scratch.borrow_mut();
    scratch.clear();
    let date = worker.access_log.last_date();
    let len = if kept == Kept::Undated {
        write::dated_status_line(&mut scratch, bytes, head, &date)
    } else {
        let date = (!is_interim).then_some(&date[..]);
        write::response_head(&mut scratch, bytes, head, edits, date);
        head.wire.end
    };
    ReplacedHead {
        len,
        by: Some(scratch),
    }
}
