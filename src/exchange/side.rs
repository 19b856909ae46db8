//! The client's side of an exchange: brings the request's body and takes the response, by its
//! protocol.
//!
//! Each protocol is a variant of [`ClientSide`]. HTTP/1 lends its connection to one exchange
//! after another. A multiplexed protocol gives each exchange its own stream, so a connection
//! carries many exchanges at once.
//!
//! A response reaches a side in one of two forms:
//!
//! - An endpoint's head goes through [`ClientSide::response_head`], which returns the HTTP/1 text
//!   in front of the body. If the protocol has its own form, [`ClientSide::begin_response`] takes
//!   this text and sends that form. The body follows through the [`Carrier`].
//! - Our own answer is HTTP/1 text, and goes through [`ClientSide::poll_write_answer`].
//!
//! Invariant: a response that was sent whole is ended. [`ClientSide::end_response`] ends it where
//! no write has.

use std::cell::RefMut;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_proto::http1::write::{self, HeadReuse, Persistence, ResponseEdits, Transcode};
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
    /// One of many streams of a connection.
    Http2(&'a mut Http2Stream),
    /// A cache that fetches a response.
    Store(&'a mut StoreSide),
    /// Another exchange that makes a request for itself.
    Subrequest(&'a mut Subrequest),
}

/// The part of an endpoint's head that the client gets in another form.
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

    /// The carrier of the request's body; `recording` gets a copy of the bytes.
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

    /// The address that the client connected to; `None` for a Unix socket. Costs a system call.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            ClientSide::Http1(http1) => http1.stream.local_address(),
            ClientSide::Http2(stream) => stream.local_address(),
            ClientSide::Store(_) | ClientSide::Subrequest(_) => None,
        }
    }

    /// Counts the exchange as waiting in an upstream's queue, until the result is dropped.
    pub(super) fn queue(&self) -> Option<QueuedStream> {
        match self {
            ClientSide::Http2(stream) => Some(stream.queue()),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => None,
        }
    }

    /// Whether the client is known to have left, without a look at its connection.
    pub(super) fn has_left(&self) -> bool {
        match self {
            ClientSide::Http2(stream) => stream.is_reset(),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Whether the exchange has to end: its client reads nothing, and others need the room.
    pub(super) fn gives_way(&self) -> bool {
        match self {
            ClientSide::Http2(stream) => stream.gives_way(),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// The numbers of its connection and stream; zero on a connection without streams.
    pub(super) fn place(&self) -> StreamPlace {
        match self {
            ClientSide::Http2(stream) => stream.place(),
            ClientSide::Http1(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {
                StreamPlace::default()
            }
        }
    }

    /// The persistence of the connection, for a response's head. `rest` is the fate of the
    /// request's body.
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

    /// The sink of a response's body with this framing at the endpoint.
    pub(super) fn body_sink(&self, request: &RequestHead, framing: BodyFraming) -> BodySink {
        match self {
            ClientSide::Http1(_) => BodySink::of_client(request.version, framing),
            // The plain content, as for a client without chunks. The stream removes chunks, and
            // its end is the end of a body without length.
            ClientSide::Http2(_) => BodySink::http1(Transcode::Raw),
            ClientSide::Store(_) | ClientSide::Subrequest(_) => {
                BodySink::of_client(Version::Http10, framing)
            }
        }
    }

    /// Whether the body ends with the client's connection.
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

    /// Takes the head of an endpoint's response, at the front of `bytes`. Returns the part that
    /// the client gets in another form.
    ///
    /// Invariant: a side that keeps the head replaces all of it by nothing, so that only the body
    /// is left. Nothing is sent yet, as the response may still be refused. A later head replaces
    /// an earlier one.
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

    /// Starts the response with the last head. `head` is the text in front of the body;
    /// `progress` is the exchange's. Returns how many bytes of the head the side has sent in its
    /// own form.
    pub(super) fn begin_response(&mut self, progress: &Progress<'_>, head: &[u8]) -> usize {
        match self {
            // The head is sent in front of the body.
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

    /// Ends the response after its last byte, where no write has ended it. May be called again.
    pub(super) fn end_response(&mut self) {
        match self {
            // The framing or the end of the connection marks the end.
            ClientSide::Http1(_) => {}
            // The exchange marks the end.
            ClientSide::Store(_) | ClientSide::Subrequest(_) => {}
            ClientSide::Http2(stream) => stream.end(),
        }
    }

    /// Writes a part of our own answer. The first `head_len` bytes are the rest of its head.
    pub(super) fn poll_write_answer(
        &mut self,
        cx: &TaskContext<'_>,
        bytes: &[u8],
        head_len: usize,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(head_len <= bytes.len(), "the head is a part of them");
        match self {
            // The head is already HTTP/1 text.
            ClientSide::Http1(http1) => http1.poll_write(cx, bytes, follow),
            // The followers get the reason for the missing response.
            ClientSide::Store(_) | ClientSide::Subrequest(_) => Poll::Ready(Ok(bytes.len())),
            ClientSide::Http2(stream) if head_len > 0 => {
                stream.poll_write_text(cx, bytes, head_len, follow)
            }
            ClientSide::Http2(stream) => stream.poll_write(cx, bytes, follow),
        }
    }

    /// Waits until the client stops sending, and returns what is unread then. Makes no system
    /// call before that.
    pub(super) fn poll_end(&mut self, cx: &TaskContext<'_>) -> Poll<Peeked> {
        match self {
            ClientSide::Http1(http1) => http1.stream.poll_ended(cx).map(|()| http1.stream.peek()),
            // A stream carries one request, and ends with it.
            ClientSide::Store(store) => store.poll_broken(cx).map(|()| Peeked::Broken),
            // The other exchange drops this one when it gives up.
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

    /// Whether the exchange fails where it would have to wait for an endpoint.
    pub(super) fn is_impatient(&self) -> bool {
        match self {
            ClientSide::Http1(_) | ClientSide::Subrequest(_) => false,
            ClientSide::Store(store) => store.may_serve_stale(),
            ClientSide::Http2(_) => false,
        }
    }

    /// Whether the client is a cache or another exchange, which get the response unchanged.
    pub(super) fn is_store(&self) -> bool {
        matches!(self, ClientSide::Store(_) | ClientSide::Subrequest(_))
    }

    /// Whether the client is another exchange that makes a request for itself.
    pub(super) fn asks_for_itself(&self) -> bool {
        matches!(self, ClientSide::Subrequest(it) if !it.is_copy())
    }

    /// Whether the request is a copy of another one, and nobody waits for its response.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self, ClientSide::Subrequest(it) if it.is_copy())
    }

    /// Whether the client is known to have half-closed.
    pub(super) fn is_half_closed(&self) -> bool {
        match self {
            ClientSide::Http1(http1) => http1.is_half_closed(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Notes that the client has half-closed. On HTTP/1 this also holds for the next exchanges of
    /// the connection.
    pub(super) fn set_half_closed(&mut self) {
        match self {
            ClientSide::Http1(http1) => http1.set_half_closed(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => {}
        }
    }

    /// Ends the connection's sending direction after the response.
    pub(super) fn close_notify(&mut self) {
        // The next read shows an error.
        let _ = self.carrier().close_notify();
    }

    /// Whether the route's bandwidth holds the response back now.
    pub(super) fn is_throttled(&self) -> bool {
        match self {
            ClientSide::Http1(http1) => http1.throttle().is_some_and(Throttle::is_waiting),
            ClientSide::Http2(stream) => stream.throttle().is_some_and(Throttle::is_waiting),
            ClientSide::Store(_) | ClientSide::Subrequest(_) => false,
        }
    }

    /// Ends the bandwidth's hold on the response. Returns how long it has lasted.
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

    /// Written bytes that the client has not acknowledged; 0 where the transport does not say.
    pub(super) fn unacknowledged_len(&self) -> u64 {
        match self {
            ClientSide::Http1(http1) => http1.stream.unacknowledged_len(),
            ClientSide::Http2(_) | ClientSide::Store(_) | ClientSide::Subrequest(_) => 0,
        }
    }

    /// Has the kernel detect a dead client: see
    /// [`Stream::watch_peer`](crate::net::stream::Stream::watch_peer).
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

/// Keeps the head in place, as far as the client gets it unchanged.
fn http1_response_head<'c>(
    worker: &'c Worker,
    bytes: &[u8],
    head: &ResponseHead,
    edits: ResponseEdits<'_>,
) -> ReplacedHead<'c> {
    let is_interim = head.status < 200;
    let kept = if is_interim {
        HeadReuse::Nothing
    } else {
        write::kept_of_response_head(bytes, head, edits)
    };
    if kept == HeadReuse::Whole {
        return ReplacedHead { len: 0, by: None };
    }
    let mut scratch = worker.scratch.borrow_mut();
    scratch.clear();
    let date = worker.access_log.last_date();
    let len = if kept == HeadReuse::Undated {
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
