//! A connected byte stream, whatever carries it.
//!
//! Waiting and reading are apart: an idle connection waits for readability
//! without a buffer, and takes one when there is something to read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use rustix::fs::sendfile;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// A connected stream.
#[derive(Debug)]
pub enum Stream {
    /// TCP over IPv4 or IPv6.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

/// What follows the bytes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Nothing that is known: they are sent at once.
    Anything,
    /// The stream is closed right away: the last of them travel with the
    /// closing segment, which saves one of two segments for a small answer.
    Close,
    /// More of the same answer, at once.
    More,
}

/// What a look at a stream's next byte shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peeked {
    /// Bytes wait to be read.
    Data,
    /// The peer has closed its sending side.
    End,
    /// Nothing yet.
    Nothing,
    /// The connection is broken.
    Broken,
}

impl Stream {
    /// Ready when a read would not block. Holds no buffer.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(cx),
            Stream::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Reads into `room`; 0 is the end. A short read is taken as the sign that
    /// nothing is left, which saves the read that would say so.
    ///
    /// The system call is made here rather than by tokio's own read: that one
    /// looks at the readiness once more and goes through the C library's
    /// cancellation points, 3 % of an exchange together.
    pub fn poll_read(&self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut read = Ok(0);
            let call = || {
                read = retry_on_intr(|| rustix::net::recv(self, &mut *room, RecvFlags::empty()))
                    .map(|(len, _)| len);
                match read {
                    // What waits behind a part of an error queue is unknown.
                    Ok(len) if len == 0 || len == room.len() => Ok(()),
                    Ok(_) | Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
                    Err(_) => Ok(()),
                }
            };
            let was_ready = self.try_io(Interest::READABLE, call);
            match (was_ready, read) {
                (_, Err(Errno::AGAIN)) => {}
                (_, Err(error)) => return Poll::Ready(Err(error.into())),
                (Ok(()), Ok(len)) => return Poll::Ready(Ok(len)),
                (Err(_), Ok(len)) if len > 0 => return Poll::Ready(Ok(len)),
                // It was not ready: nothing was called.
                (Err(_), Ok(_)) => {}
            }
            ready!(self.poll_read_ready(cx))?;
        }
    }

    /// Writes a part of `bytes`.
    pub fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_write_ready(cx))?;
            if let Some(written) = self.try_write(bytes, follow) {
                return Poll::Ready(written);
            }
        }
    }

    /// Writes a part of `bytes`; `None` where the stream takes nothing now.
    pub fn try_write(&self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        let flags = match follow {
            Follow::Anything => SendFlags::NOSIGNAL,
            Follow::Close | Follow::More => SendFlags::NOSIGNAL | SendFlags::MORE,
        };
        // What the event loop knows of the stream is not asked: it takes all of
        // most writes, and what is known has left the processor's caches.
        match retry_on_intr(|| rustix::net::send(self, bytes, flags)) {
            Ok(len) => {
                if len < bytes.len() {
                    self.clear_ready(Interest::WRITABLE);
                }
                Some(Ok(len))
            }
            Err(Errno::AGAIN) => {
                self.clear_ready(Interest::WRITABLE);
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Writes a part of what stands at `offset` of a file, at most `len` bytes,
    /// without copying it; 0 where the file ends there. Waits for the disk where
    /// it is not in memory.
    pub fn poll_send_file(
        &self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_write_ready(cx))?;
            let mut at = offset;
            match retry_on_intr(|| sendfile(self, file, Some(&mut at), len)) {
                Err(Errno::AGAIN) => self.clear_ready(Interest::WRITABLE),
                // Less may be the file's end as well: the next call tells.
                written => return Poll::Ready(written.map_err(io::Error::from)),
            }
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_write_ready(cx),
            Stream::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Runs `call` if the stream is ready, and forgets the readiness if it
    /// says that it would block.
    fn try_io(&self, interest: Interest, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.try_io(interest, call),
            Stream::Unix(stream) => stream.try_io(interest, call),
        }
    }

    /// Closes the sending side.
    pub fn shutdown(&self) -> io::Result<()> {
        rustix::net::shutdown(self, rustix::net::Shutdown::Write).map_err(io::Error::from)
    }

    /// Looks at the next byte without taking it: one system call.
    pub fn peek(&self) -> Peeked {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(self, &mut byte, flags) {
            Ok((0, _)) => Peeked::End,
            Ok(_) => Peeked::Data,
            Err(Errno::AGAIN | Errno::INTR) => Peeked::Nothing,
            Err(_) => Peeked::Broken,
        }
    }

    /// Forgets a readiness that a [`peek`](Self::peek) showed to be over.
    pub fn clear_read_ready(&self) {
        self.clear_ready(Interest::READABLE);
    }

    fn clear_ready(&self, interest: Interest) {
        // Its result is the one given here.
        let _ = self.try_io(interest, || Err(io::ErrorKind::WouldBlock.into()));
    }

    /// Whether an idle connection has been closed by its peer, or sent bytes
    /// that nobody asked for. The event loop has noticed: a system call is made
    /// only to confirm it.
    pub fn is_stale(&self) -> bool {
        let mut is_stale = false;
        // Its result says no more than `is_stale` does.
        let _ = self.try_io(Interest::READABLE, || match self.peek() {
            Peeked::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            Peeked::Data | Peeked::End | Peeked::Broken => {
                is_stale = true;
                Ok(())
            }
        });
        is_stale
    }

    /// Whether bytes wait to be read, as far as the event loop has noticed: a
    /// system call is made only to confirm it.
    pub fn has_unread(&self) -> bool {
        let peeked = self.try_io(Interest::READABLE, || match self.peek() {
            Peeked::Data => Ok(()),
            Peeked::Nothing | Peeked::End | Peeked::Broken => Err(io::ErrorKind::Other.into()),
        });
        peeked.is_ok()
    }

    /// Makes the coming close a reset, so that the peer can't take what it got
    /// for a complete message.
    pub fn abort_on_close(&self) {
        let socket = socket2::SockRef::from(self);
        // A socket that is gone already needs no reset.
        let _ = socket.set_linger(Some(std::time::Duration::ZERO));
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}
