//! A stream whose other end is in the same process: no socket, no event loop.
//!
//! For tests of what lies above `net`. It can neither splice nor send files.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Follow, Peeked};
use crate::descriptors::Taker;

/// Bytes that were written and not read, at most.
const CAPACITY: usize = 64 * 1024;

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    incoming: Lane,
    outgoing: Lane,
    is_aborted: bool,
}

/// One direction.
#[derive(Debug, Clone, Default)]
struct Lane(Arc<Mutex<Carried>>);

#[derive(Debug, Default)]
struct Carried {
    bytes: VecDeque<u8>,
    /// Nothing more is written.
    is_ended: bool,
    /// The reader is gone.
    is_unread: bool,
    /// The connection was reset.
    is_broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Lane {
    fn carried(&self) -> MutexGuard<'_, Carried> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and wakes both sides.
    fn change<R>(&self, change: impl FnOnce(&mut Carried) -> R) -> R {
        let (result, wakers) = {
            let mut carried = self.carried();
            let result = change(&mut carried);
            (result, [carried.reader.take(), carried.writer.take()])
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
        result
    }
}

impl Carried {
    fn is_readable(&self) -> bool {
        !self.bytes.is_empty() || self.is_ended || self.is_broken
    }

    fn is_writable(&self) -> bool {
        self.bytes.len() < CAPACITY || self.is_unread || self.is_broken
    }
}

impl End {
    pub fn pair() -> (Self, Self) {
        let (there, back) = (Lane::default(), Lane::default());
        let one = End {
            incoming: back.clone(),
            outgoing: there.clone(),
            is_aborted: false,
        };
        let other = End {
            incoming: there,
            outgoing: back,
            is_aborted: false,
        };
        (one, other)
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

    pub fn forget_waiters(&self) {
        self.incoming.carried().reader = None;
        self.outgoing.carried().writer = None;
    }

    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let mut incoming = self.incoming.carried();
        if incoming.is_readable() {
            return Poll::Ready(());
        }
        incoming.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.poll_read_ready(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(self.incoming.change(|incoming| {
            if incoming.bytes.is_empty() && incoming.is_broken {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let len = incoming.bytes.len().min(room.len());
            let bytes = incoming.bytes.drain(..len);
            room.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            Ok(len)
        }))
    }

    pub fn poll_peek_into(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.poll_read_ready(cx).is_pending() {
            return Poll::Pending;
        }
        let incoming = self.incoming.carried();
        let len = incoming.bytes.len().min(room.len());
        let bytes = incoming.bytes.iter();
        room.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        Poll::Ready(Ok(len))
    }

    pub fn poll_peek_beyond(
        &self,
        cx: &Context<'_>,
        room: &mut [u8],
        seen: usize,
    ) -> Poll<io::Result<usize>> {
        match self.poll_peek_into(cx, room) {
            Poll::Ready(Ok(len)) if len > 0 && len <= seen => {
                self.incoming.carried().reader = Some(cx.waker().clone());
                Poll::Pending
            }
            peeked => peeked,
        }
    }

    pub fn local_address(&self) -> Option<SocketAddr> {
        None
    }

    pub fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let mut outgoing = self.outgoing.carried();
        if outgoing.is_writable() {
            return Poll::Ready(());
        }
        outgoing.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn poll_write(
        &self,
        cx: &Context<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        if self.poll_write_ready(cx).is_pending() {
            return Poll::Pending;
        }
        match self.try_write(bytes, follow) {
            Some(written) => Poll::Ready(written),
            None => Poll::Pending,
        }
    }

    pub fn try_write(&self, bytes: &[u8], _: Follow) -> Option<io::Result<usize>> {
        let written = self.outgoing.change(|outgoing| {
            if outgoing.is_unread || outgoing.is_broken || outgoing.is_ended {
                return Some(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let len = bytes.len().min(CAPACITY - outgoing.bytes.len());
            outgoing.bytes.extend(&bytes[..len]);
            (len > 0 || bytes.is_empty()).then_some(Ok(len))
        });
        if let Some(Err(_)) = &written {
            self.incoming.change(|incoming| incoming.is_broken = true);
        }
        written
    }

    pub fn unacknowledged_len(&self) -> u64 {
        self.outgoing.carried().bytes.len() as u64
    }

    pub fn close_notify(&self) -> io::Result<()> {
        self.outgoing.change(|outgoing| outgoing.is_ended = true);
        Ok(())
    }

    pub fn peek(&self) -> Peeked {
        let incoming = self.incoming.carried();
        if incoming.is_broken {
            Peeked::Broken
        } else if !incoming.bytes.is_empty() {
            Peeked::Data
        } else if incoming.is_ended {
            Peeked::End
        } else {
            Peeked::Nothing
        }
    }

    pub fn poll_ended(&self, cx: &Context<'_>) -> Poll<()> {
        let mut incoming = self.incoming.carried();
        if incoming.is_broken || incoming.is_ended {
            return Poll::Ready(());
        }
        incoming.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn poll_broken(&self, cx: &Context<'_>) -> Poll<()> {
        let is_over = self.outgoing.carried().is_ended;
        let mut incoming = self.incoming.carried();
        if incoming.is_broken || (incoming.is_ended && is_over) {
            return Poll::Ready(());
        }
        incoming.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn is_readable(&self) -> bool {
        self.incoming.carried().is_readable()
    }

    pub fn watch_peer(&self, _dead_after: Duration) {}

    pub fn abort_on_close(&mut self) {
        self.is_aborted = true;
    }

    pub fn is_of_this_thread(&self) -> bool {
        true
    }

    pub fn is_known_stale(&self) -> bool {
        self.is_readable()
    }
}

impl Drop for End {
    /// Closing with unread bytes is a reset, as over TCP.
    fn drop(&mut self) {
        let has_unread = self.incoming.change(|incoming| {
            incoming.is_unread = true;
            !incoming.bytes.is_empty()
        });
        let is_reset = has_unread || self.is_aborted;
        self.outgoing.change(|outgoing| {
            outgoing.is_ended = true;
            outgoing.is_broken |= is_reset;
        });
    }
}
