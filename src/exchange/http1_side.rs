//! A client's HTTP/1 connection, and the bandwidth of writes to it.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context as TaskContext, Poll, ready};

use super::throttle::Throttle;
use crate::net::stream::{Follow, Stream};

/// An HTTP/1 connection, for exchanges.
#[derive(Debug)]
pub struct Http1Side {
    /// The connection.
    pub stream: Stream,
    /// State that few connections need; the others stay small.
    rare: Option<Box<Rare>>,
}

/// State that few connections need.
#[derive(Debug, Default)]
struct Rare {
    /// Whether the client has closed its sending side alone, and waits for its answer.
    is_half_closed: bool,
    /// Holds the response back, where it has a bandwidth.
    throttle: Option<Throttle>,
}

impl Http1Side {
    /// The side of an accepted connection.
    pub fn new(stream: Stream) -> Self {
        Http1Side { stream, rare: None }
    }

    /// Whether the client is known to have half-closed.
    pub(super) fn is_half_closed(&self) -> bool {
        self.rare.as_ref().is_some_and(|it| it.is_half_closed)
    }

    /// Notes that the client has half-closed.
    pub(super) fn set_half_closed(&mut self) {
        self.rare.get_or_insert_default().is_half_closed = true;
    }

    /// Has the bandwidth hold the response back.
    pub(super) fn set_throttle(&mut self, throttle: Throttle) {
        self.rare.get_or_insert_default().throttle = Some(throttle);
    }

    /// Ends the bandwidth's hold on the response.
    pub(super) fn take_throttle(&mut self) -> Option<Throttle> {
        let rare = self.rare.as_mut()?;
        let throttle = rare.throttle.take();
        if !rare.is_half_closed {
            self.rare = None;
        }
        throttle
    }

    /// Holds the response back, where it has a bandwidth.
    #[inline]
    pub(super) fn throttle(&self) -> Option<&Throttle> {
        self.rare.as_ref()?.throttle.as_ref()
    }

    fn throttle_mut(&mut self) -> Option<&mut Throttle> {
        self.rare.as_mut()?.throttle.as_mut()
    }

    /// How many of `len` bytes may be written now; at least one.
    fn poll_allowed(&mut self, cx: &TaskContext<'_>, len: usize) -> Poll<usize> {
        match self.throttle_mut() {
            None => Poll::Ready(len),
            Some(throttle) => throttle.poll_booked(cx, len),
        }
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let (Poll::Ready(Ok(len)), Some(throttle)) = (written, self.throttle_mut()) {
            throttle.wrote(*len);
        }
    }

    /// Writes a part of `bytes`, followed by `follow`, within the bandwidth.
    pub(super) fn poll_write(
        &mut self,
        cx: &TaskContext<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        let len = ready!(self.poll_allowed(cx, bytes.len()));
        let follow = if len < bytes.len() {
            // The rest comes later: these bytes are flushed now.
            Follow::Anything
        } else {
            follow
        };
        let written = self.stream.poll_write(cx, &bytes[..len], follow);
        self.wrote(&written);
        written
    }

    /// The same, without waiting.
    pub(super) fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        let len = match self.throttle_mut() {
            None => bytes.len(),
            Some(throttle) => throttle.booked_now(bytes.len())?,
        };
        let follow = if len < bytes.len() {
            Follow::Anything
        } else {
            follow
        };
        let written = self.stream.try_write(&bytes[..len], follow)?;
        if let (Ok(len), Some(throttle)) = (&written, self.throttle_mut()) {
            throttle.wrote(*len);
        }
        Some(written)
    }

    /// Ready when a write would block neither for the client nor for the bandwidth.
    pub(super) fn poll_write_ready(&mut self, cx: &TaskContext<'_>) -> Poll<()> {
        // Books no bytes that can't be written.
        if self.throttle().is_some_and(Throttle::is_waiting) {
            ready!(self.poll_allowed(cx, 1));
        }
        self.stream.poll_write_ready(cx)
    }

    /// Writes a part of a file within the bandwidth: see [`Stream::poll_send_file`].
    pub(super) fn poll_send_file(
        &mut self,
        cx: &TaskContext<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        let len = ready!(self.poll_allowed(cx, len));
        let written = self.stream.poll_send_file(cx, file, offset, len);
        self.wrote(&written);
        written
    }
}
