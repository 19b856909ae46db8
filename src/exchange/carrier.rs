//! The carriers of a body's bytes: a connection of its own, or its share of one.
//!
//! A side lends its carrier for each poll. A [`BodySource`](super::body::BodySource) and a
//! [`BodySink`](super::body::BodySink) know the framing of the bytes; a carrier only moves them.
//! A stream of a multiplexed connection carries plain content. Its end is a read of 0 bytes. A
//! write with [`Follow::Close`] ends it, or [`Carrier::close_notify`] alone.

use std::io;
use std::task::{Context, Poll};

use super::http1_side::Http1Side;
use super::http2_side::Http2Stream;
use super::recording::Recording;
use super::store_side::StoreSide;
use super::subrequest::Subrequest;
use crate::net::pipe::Pipe;
use crate::net::stream::{Follow, Stream};

/// The carrier of a body's bytes, lent for a poll.
#[derive(Debug)]
pub enum Carrier<'a> {
    /// A connection with one exchange at a time.
    Connection(&'a mut Stream),
    /// A connection whose reads are recorded.
    Recorded(RecordedStream<'a, Stream>),
    /// One of many streams on a connection.
    Multiplexed(&'a mut Http2Stream),
    /// A stream whose reads are recorded.
    RecordedMultiplexed(RecordedStream<'a, Http2Stream>),
    /// A connection of a client whose route has a bandwidth.
    Paced(&'a mut Http1Side),
    /// A cache that takes a response.
    Store(&'a mut StoreSide),
    /// Another exchange that keeps a response.
    Subrequest(&'a mut Subrequest),
}

impl<'a> From<&'a mut Stream> for Carrier<'a> {
    fn from(stream: &'a mut Stream) -> Self {
        Carrier::Connection(stream)
    }
}

/// Runs an expression for each kind of carrier. A paced one reads as its connection does.
macro_rules! with_carrier {
    ($carrier:expr, $it:ident => $result:expr, $paced:ident => $of_paced:expr) => {
        match $carrier {
            Carrier::Connection($it) => $result,
            Carrier::Recorded($it) => $result,
            Carrier::Paced($paced) => $of_paced,
            Carrier::Store($it) => $result,
            Carrier::Subrequest($it) => $result,
            Carrier::Multiplexed($it) => $result,
            Carrier::RecordedMultiplexed($it) => $result,
        }
    };
}

/// [`Stream`] documents the methods of the same names.
impl Carrier<'_> {
    pub fn can_splice(&self) -> bool {
        // A paced carrier writes as much as it may now.
        with_carrier!(self, it => it.can_splice(), _it => false)
    }

    pub fn poll_read_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
        with_carrier!(self, it => it.poll_read_ready(cx), it => it.stream.poll_read_ready(cx))
    }

    pub fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        with_carrier!(self, it => it.poll_read(cx, room), it => it.stream.poll_read(cx, room))
    }

    pub fn poll_read_into(
        &mut self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        len: u64,
    ) -> Poll<io::Result<usize>> {
        with_carrier!(
            self,
            it => it.poll_read_into(cx, pipe, len),
            it => it.stream.poll_read_into(cx, pipe, len)
        )
    }

    /// Most bytes to read for it at once. A stream accepts no more than its connection has room
    /// for, and the rest would have to be held.
    pub fn read_len_max(&self) -> usize {
        match self {
            Carrier::Multiplexed(stream) => stream.read_len_max(),
            _ => usize::MAX,
        }
    }

    pub fn poll_write_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
        with_carrier!(self, it => it.poll_write_ready(cx), it => it.poll_write_ready(cx))
    }

    pub fn poll_write(
        &mut self,
        cx: &Context<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        with_carrier!(
            self,
            it => it.poll_write(cx, bytes, follow),
            it => it.poll_write(cx, bytes, follow)
        )
    }

    pub fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        with_carrier!(self, it => it.try_write(bytes, follow), it => it.try_write(bytes, follow))
    }

    pub fn poll_write_from(
        &mut self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        with_carrier!(
            self,
            it => it.poll_write_from(cx, pipe, follow),
            // Nothing is spliced to a stream.
            _it => Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
        )
    }

    pub fn close_notify(&mut self) -> io::Result<()> {
        with_carrier!(self, it => it.close_notify(), it => it.stream.close_notify())
    }
}

/// A carrier of a request's body that records what is read. Nothing is written to it.
#[derive(Debug)]
pub struct RecordedStream<'a, S> {
    pub stream: &'a mut S,
    pub recording: &'a mut Recording,
}

/// Implements the methods of a carrier.
macro_rules! recorded {
    ($stream:ty) => {
        impl RecordedStream<'_, $stream> {
            /// A pipe would hide the bytes.
            fn can_splice(&self) -> bool {
                false
            }

            fn poll_read_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
                self.stream.poll_read_ready(cx)
            }

            fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
                let read = self.stream.poll_read(cx, room);
                if let Poll::Ready(Ok(len)) = read {
                    self.recording.take(&room[..len]);
                }
                read
            }

            fn poll_read_into(
                &self,
                _: &Context<'_>,
                _: &mut Pipe,
                _: u64,
            ) -> Poll<io::Result<usize>> {
                Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
            }

            fn poll_write_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
                self.stream.poll_write_ready(cx)
            }

            fn poll_write(
                &mut self,
                cx: &Context<'_>,
                bytes: &[u8],
                follow: Follow,
            ) -> Poll<io::Result<usize>> {
                self.stream.poll_write(cx, bytes, follow)
            }

            fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
                self.stream.try_write(bytes, follow)
            }

            fn poll_write_from(
                &mut self,
                cx: &Context<'_>,
                pipe: &mut Pipe,
                follow: Follow,
            ) -> Poll<io::Result<usize>> {
                self.stream.poll_write_from(cx, pipe, follow)
            }

            fn close_notify(&mut self) -> io::Result<()> {
                self.stream.close_notify()
            }
        }
    };
}

recorded!(Stream);
recorded!(Http2Stream);
