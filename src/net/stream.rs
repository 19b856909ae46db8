//! A connected byte stream, whatever carries it.
//!
//! Waiting and reading are apart: an idle connection waits for readability
//! without a buffer, and takes one when there is something to read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connected stream.
#[derive(Debug)]
pub enum Stream {
    /// TCP over IPv4 or IPv6.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
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
    pub fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(room);
        let done = match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut into),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, &mut into),
        };
        done.map_ok(|()| into.filled().len())
    }

    /// Writes a part of `bytes`.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    /// Closes the sending side.
    pub fn shutdown(&mut self) -> io::Result<()> {
        rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Write).map_err(io::Error::from)
    }

    /// Looks at the next byte without taking it: one system call.
    pub fn peek(&self) -> Peeked {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(self.fd(), &mut byte, flags) {
            Ok((0, _)) => Peeked::End,
            Ok(_) => Peeked::Data,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Peeked::Nothing,
            Err(_) => Peeked::Broken,
        }
    }

    /// Forgets a readiness that a [`peek`](Self::peek) showed to be over.
    pub fn clear_read_ready(&self) {
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = match self {
            Stream::Tcp(stream) => stream.try_io(tokio::io::Interest::READABLE, nothing),
            Stream::Unix(stream) => stream.try_io(tokio::io::Interest::READABLE, nothing),
        };
    }

    /// Whether an idle connection has been closed by its peer, or sent bytes
    /// that nobody asked for. No system call: the event loop has noticed.
    pub fn is_stale(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_read_ready(&mut cx).is_ready()
    }

    /// Makes the coming close a reset, so that the peer can't take what it got
    /// for a complete message.
    pub fn abort_on_close(&self) {
        let socket = socket2::SockRef::from(self);
        // A socket that is gone already needs no reset.
        let _ = socket.set_linger(Some(std::time::Duration::ZERO));
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
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
