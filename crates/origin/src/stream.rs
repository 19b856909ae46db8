//! A connection to an origin, TCP or Unix, and how to break it.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::Shared;

/// An accepted connection.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One whose bytes are counted.
pub(super) struct OriginStream {
    socket: Socket,
    shared: Rc<Shared>,
}

impl OriginStream {
    pub(super) fn new(socket: Socket, shared: Rc<Shared>) -> Self {
        OriginStream { socket, shared }
    }

    /// Closes with a reset where the transport has one.
    pub(super) fn reset(self) {
        if let Socket::Tcp(stream) = &self.socket {
            // A failure leaves an ordinary close, which is broken enough.
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for OriginStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let stream = self.get_mut();
        let polled = match &mut stream.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        let len = (buf.filled().len() - before) as u64;
        let counters = &stream.shared.counters;
        counters.bytes_received.fetch_add(len, Relaxed);
        polled
    }
}

impl AsyncWrite for OriginStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let polled = match &mut stream.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        if let Poll::Ready(Ok(len)) = polled {
            let counters = &stream.shared.counters;
            counters.bytes_sent.fetch_add(len as u64, Relaxed);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
