//! A stream that another component carries, such as one of many on a connection.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Follow, Peeked};
use crate::descriptors::Taker;

/// The carrier of a stream without a socket of its own. It is dropped with the stream.
///
/// The methods are documented at those of [`Stream`](crate::stream::Stream) with the same
/// names.
pub trait Carrying: Debug {
    /// Ready when a read would not block.
    fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()>;

    /// Reads into `room`; 0 is the end.
    fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Ready when a write would not block.
    fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()>;

    /// Writes a part of `bytes`; `None` where nothing is taken now.
    fn try_write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>>;

    /// Waits as [`poll_write_ready`](Self::poll_write_ready) does, and writes then.
    fn poll_write(&mut self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Says that nothing more is written.
    fn end(&mut self);

    /// Looks at what a read would find now.
    fn peek(&self) -> Peeked;

    /// Ready when it is cut off.
    fn poll_broken(&self, cx: &Context<'_>) -> Poll<()>;

    /// Address of this side of what carries it.
    fn local_address(&self) -> Option<SocketAddr>;
}

/// A stream that is carried.
#[derive(Debug)]
pub(crate) struct Carried(Box<dyn Carrying>);

impl Carried {
    pub fn new(carrier: Box<dyn Carrying>) -> Self {
        Carried(carrier)
    }

    moved_here!();

    pub fn is_encrypted(&self) -> bool {
        false
    }

    pub fn buffered(&self) -> usize {
        0
    }

    pub fn is_reserved(&self, _: Taker) -> bool {
        false
    }

    pub fn forget_waiters(&self) {}

    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_read_ready(cx)
    }

    pub fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_read(cx, room)
    }

    pub fn poll_peek_into(&self, _: &Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    pub fn poll_peek_beyond(
        &self,
        cx: &Context<'_>,
        room: &mut [u8],
        _: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_peek_into(cx, room)
    }

    pub fn local_address(&self) -> Option<SocketAddr> {
        self.0.local_address()
    }

    pub fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_write_ready(cx)
    }

    pub fn poll_write(
        &mut self,
        cx: &Context<'_>,
        bytes: &[u8],
        _: Follow,
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bytes)
    }

    pub fn try_write(&mut self, bytes: &[u8], _: Follow) -> Option<io::Result<usize>> {
        self.0.try_write(bytes)
    }

    pub fn unacknowledged_len(&self) -> u64 {
        0
    }

    pub fn close_notify(&mut self) -> io::Result<()> {
        self.0.end();
        Ok(())
    }

    pub fn peek(&self) -> Peeked {
        self.0.peek()
    }

    pub fn poll_ended(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_broken(cx)
    }

    pub fn poll_broken(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_broken(cx)
    }

    pub fn is_readable(&self) -> bool {
        false
    }

    pub fn watch_peer(&self, _: Duration) {}

    pub fn abort_on_close(&mut self) {}
}
