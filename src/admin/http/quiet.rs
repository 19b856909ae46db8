//! A connection that nothing moves over is closed: who reads nothing, or sends
//! nothing, keeps no place for ever.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that notes when bytes moved last, in either direction.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    moved: Rc<Cell<Instant>>,
}

/// When bytes moved last.
#[derive(Debug)]
pub(super) struct Moved(Rc<Cell<Instant>>);

impl<S> Watched<S> {
    pub(super) fn new(stream: S) -> (Self, Moved) {
        let moved = Rc::new(Cell::new(Instant::now()));
        let watched = Watched {
            stream,
            moved: moved.clone(),
        };
        (watched, Moved(moved))
    }

    fn note(&self) {
        self.moved.set(Instant::now());
    }
}

impl Moved {
    /// Waits until nothing has moved for so long.
    pub(super) async fn quiet_for(&self, limit: Duration) {
        loop {
            let due = self.0.get() + limit;
            if Instant::now() >= due {
                return;
            }
            tokio::time::sleep_until(due.into()).await;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.note();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let len = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.note();
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bytes))?;
        self.note();
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
