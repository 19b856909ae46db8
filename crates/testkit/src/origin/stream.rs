//! A connection to an origin, TCP or Unix, and how to break it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// An accepted connection.
#[derive(Debug)]
pub(super) enum OriginStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl OriginStream {
    /// Closes with a reset where the transport has one.
    pub(super) fn reset(self) {
        if let OriginStream::Tcp(stream) = &self {
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
        match self.get_mut() {
            OriginStream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            OriginStream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for OriginStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            OriginStream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            OriginStream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            OriginStream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            OriginStream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            OriginStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            OriginStream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
