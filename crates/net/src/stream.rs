//! A connected byte stream, whatever carries it.
//!
//! Waiting and reading are apart: an idle connection waits for readability
//! without a buffer, and takes one when there is something to read.
//!
//! A stream reports its own capabilities: whether the kernel moves its bytes
//! ([`can_splice`](Stream::can_splice), [`can_send_file`](Stream::can_send_file)), and whether
//! an idle one can still be used ([`is_stale`](Stream::is_stale)).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use crate::descriptors::Taker;
use crate::pipe::Pipe;
use crate::transport::{
    Carried, DetachedTransport, Plain, Tls, Transport, with_detached, with_transport,
};
pub use crate::transport::{Carrying, Follow, HandshakeError, Negotiated, Peeked};

/// A connected stream.
#[derive(Debug)]
pub struct Stream(Transport);

/// A connected stream that no task waits for: any thread may take it on. Dropping
/// it closes it.
#[derive(Debug)]
pub struct DetachedStream(DetachedTransport);

impl Stream {
    /// A stream of a non-blocking socket.
    ///
    /// # Errors
    /// The kernel has no memory for it, or the user's limit of watched descriptors is reached.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Plain::new(socket).map(|plain| Stream(Transport::Plain(plain)))
    }

    /// A stream on `carrier`. It is never idle: it ends with one exchange.
    pub fn carried(carrier: Box<dyn Carrying>) -> Self {
        Stream(Transport::Carried(Carried::new(carrier)))
    }

    /// Whether it is [carried](Self::carried).
    pub fn is_carried(&self) -> bool {
        matches!(self.0, Transport::Carried(_))
    }

    /// Two streams, each the other's peer, without a socket.
    #[cfg(feature = "simulation")]
    pub fn pair() -> (Self, Self) {
        let (one, other) = crate::transport::memory::End::pair();
        (
            Stream(Transport::Memory(one)),
            Stream(Transport::Memory(other)),
        )
    }

    /// Expects TLS of the client at the other end. The handshake is still to come.
    ///
    /// # Errors
    /// The configuration can't be used, or the stream is no plain socket.
    pub fn accept_tls(self, config: Arc<ServerConfig>) -> io::Result<Self> {
        self.encrypted(|socket| Tls::accept(socket, config))
    }

    /// Speaks TLS with the server of this name at the other end. The handshake is still
    /// to come.
    ///
    /// # Errors
    /// As [`accept_tls`](Self::accept_tls).
    pub fn connect_tls(
        self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        self.encrypted(|socket| Tls::connect(socket, config, name))
    }

    fn encrypted(
        self,
        encrypt: impl FnOnce(Plain) -> Result<Tls, rustls::Error>,
    ) -> io::Result<Self> {
        match self.0 {
            Transport::Plain(socket) => match encrypt(socket) {
                Ok(tls) => Ok(Stream(Transport::Tls(Box::new(tls)))),
                Err(error) => Err(io::Error::other(error)),
            },
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Drops the encryption, for an answer to a client that does not speak TLS. Bytes read by
    /// the handshake are lost.
    #[must_use]
    pub fn without_tls(self) -> Self {
        match self.0 {
            Transport::Tls(tls) => Stream(Transport::Plain(tls.into_plain())),
            other => Stream(other),
        }
    }

    /// Waits until the handshake ends. Ready at once on a stream without encryption, and once a
    /// client has sent early data (0-RTT).
    ///
    /// # Errors
    /// Why the handshake failed. The peer has got an alert, if TLS has one for it.
    pub fn poll_handshake(&mut self, cx: &Context<'_>) -> Poll<Result<(), HandshakeError>> {
        match &mut self.0 {
            Transport::Tls(tls) => tls.poll_handshake(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Whether the handshake goes on, though the client has sent something already (0-RTT).
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        matches!(&self.0, Transport::Tls(tls) if tls.is_handshaking())
    }

    /// Waits until the handshake is over, where the client has sent something before that.
    ///
    /// # Errors
    /// As of [`poll_handshake`](Self::poll_handshake).
    pub fn poll_whole_handshake(&mut self, cx: &Context<'_>) -> Poll<Result<(), HandshakeError>> {
        match &mut self.0 {
            Transport::Tls(tls) => tls.poll_whole_handshake(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// The outcome of the handshake; `None` on a stream without encryption.
    pub fn negotiated(&self) -> Option<Negotiated<'_>> {
        match &self.0 {
            Transport::Tls(tls) => Some(tls.negotiated()),
            _ => None,
        }
    }

    /// Waits until the connection is open.
    pub(crate) fn poll_connected(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Transport::Plain(plain) => {
                ready!(plain.poll_write_ready(cx));
                Poll::Ready(plain.connected())
            }
            // An encrypted stream exists only once it is open.
            Transport::Tls(_) | Transport::Carried(_) => Poll::Ready(Ok(())),
            #[cfg(feature = "simulation")]
            Transport::Memory(_) => Poll::Ready(Ok(())),
        }
    }

    /// Detaches the stream without a system call. `None` if it is [carried](Self::carried): it
    /// is over.
    pub fn detach(self) -> Option<DetachedStream> {
        Some(DetachedStream(match self.0 {
            Transport::Carried(_) => return None,
            Transport::Plain(plain) => DetachedTransport::Plain(plain.detach()),
            Transport::Tls(tls) => DetachedTransport::Tls(Box::new(tls.detach())),
            #[cfg(feature = "simulation")]
            Transport::Memory(end) => DetachedTransport::Memory(end),
        }))
    }

    /// Has another task wait for it from now on.
    pub fn forget_waiters(&self) {
        with_transport!(&self.0, it => it.forget_waiters());
    }

    /// Whether the kernel moves its bytes to and from a [`Pipe`].
    pub fn can_splice(&self) -> bool {
        with_transport!(&self.0, it => it.can_splice())
    }

    /// Whether the kernel sends files on it.
    pub fn can_send_file(&self) -> bool {
        with_transport!(&self.0, it => it.can_send_file())
    }

    /// Whether its bytes are protected on the way.
    pub fn is_encrypted(&self) -> bool {
        with_transport!(&self.0, it => it.is_encrypted())
    }

    /// Bytes that were taken from the socket and are still to be read here.
    pub fn buffered(&self) -> usize {
        with_transport!(&self.0, it => it.buffered())
    }

    /// Whether its descriptor is kept from this taker.
    pub fn is_reserved(&self, taker: Taker) -> bool {
        with_transport!(&self.0, it => it.is_reserved(taker))
    }

    /// Ready when a read would not block. Holds no buffer.
    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        with_transport!(&self.0, it => it.poll_read_ready(cx))
    }

    /// Reads into `room`; 0 is the end.
    pub fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.poll_read(cx, room))
    }

    /// Copies bytes into `room` without consuming them; 0 is the end. After fewer bytes than
    /// fit, the next call waits for more.
    pub fn poll_peek_into(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.poll_peek_into(cx, room))
    }

    /// The same, once there are more than `seen` bytes, or the end without any bytes. Behind
    /// bytes, the end is not visible.
    pub fn poll_peek_beyond(
        &mut self,
        cx: &Context<'_>,
        room: &mut [u8],
        seen: usize,
    ) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.poll_peek_beyond(cx, room, seen))
    }

    /// Its own address; `None` for a Unix socket. A system call.
    pub fn local_address(&self) -> Option<SocketAddr> {
        with_transport!(&self.0, it => it.local_address())
    }

    /// Writes a part of `bytes`.
    pub fn poll_write(
        &mut self,
        cx: &Context<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.poll_write(cx, bytes, follow))
    }

    /// Writes a part of `bytes`; `None` where the stream takes nothing now.
    pub fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.try_write(bytes, follow))
    }

    /// Moves up to `len` bytes into a pipe, without copying them; 0 is the end. For
    /// streams that [can splice](Self::can_splice).
    pub fn poll_read_into(
        &mut self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        len: u64,
    ) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.poll_read_into(cx, pipe, len))
    }

    /// Writes a part of a pipe's bytes, without copying them. For streams that [can
    /// splice](Self::can_splice).
    pub fn poll_write_from(
        &mut self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.poll_write_from(cx, pipe, follow))
    }

    /// Writes a part of what stands at `offset` of a file, at most `len` bytes,
    /// without copying it; 0 where the file ends there. Waits for the disk where
    /// it is not in memory. For streams that
    /// [can send files](Self::can_send_file).
    pub fn poll_send_file(
        &mut self,
        cx: &Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.0, it => it.poll_send_file(cx, file, offset, len))
    }

    /// Ready when a write would not block.
    pub fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        with_transport!(&self.0, it => it.poll_write_ready(cx))
    }

    /// Bytes that were written and that the peer has not acknowledged; 0 where
    /// the kernel does not say.
    pub fn unacknowledged_len(&self) -> u64 {
        with_transport!(&self.0, it => it.unacknowledged_len())
    }

    /// Says that nothing more comes, and closes the sending side.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn close_notify(&mut self) -> io::Result<()> {
        with_transport!(&mut self.0, it => it.close_notify())
    }

    /// Looks at the next byte without consuming it: one system call. If there is none, a wait
    /// for the next byte can begin.
    pub fn peek(&mut self) -> Peeked {
        with_transport!(&mut self.0, it => it.peek())
    }

    /// Waits until there is something to [`peek`](Self::peek) at.
    pub fn poll_peek(&mut self, cx: &Context<'_>) -> Poll<Peeked> {
        loop {
            ready!(self.poll_read_ready(cx));
            match self.peek() {
                Peeked::Nothing => {}
                peeked => return Poll::Ready(peeked),
            }
        }
    }

    /// Waits until the peer has closed its sending side, or the connection is broken. Bytes
    /// sent before that may be unread. No system call.
    pub fn poll_ended(&self, cx: &Context<'_>) -> Poll<()> {
        with_transport!(&self.0, it => it.poll_ended(cx))
    }

    /// Ready when the connection is broken, or closed both ways, whatever may be
    /// read before that. No system call.
    pub fn poll_broken(&self, cx: &Context<'_>) -> Poll<()> {
        with_transport!(&self.0, it => it.poll_broken(cx))
    }

    /// Whether the peer has closed an idle connection, or sent unexpected bytes. The event loop
    /// notices both: a system call only confirms them.
    pub fn is_stale(&mut self) -> bool {
        with_transport!(&self.0, it => it.is_readable()) && self.peek() != Peeked::Nothing
    }

    /// Whether bytes wait to be read, as far as the event loop has noticed: a
    /// system call is made only to confirm it.
    pub fn has_unread(&mut self) -> bool {
        with_transport!(&self.0, it => it.is_readable()) && self.peek() == Peeked::Data
    }

    /// Makes the kernel end a connection whose peer acknowledges nothing for `dead_after`
    /// (`TCP_USER_TIMEOUT`), and probe a silent peer. No effect on a Unix socket.
    pub fn watch_peer(&self, dead_after: Duration) {
        with_transport!(&self.0, it => it.watch_peer(dead_after));
    }

    /// Makes it end without the announcement of a complete message (TLS has one): the peer has
    /// only a part.
    pub fn cut(&mut self) {
        if let Transport::Tls(tls) = &mut self.0 {
            tls.cut();
        }
    }

    /// Turns the coming close into a reset, so that the peer can't take a cut-off message for
    /// complete.
    pub fn abort_on_close(&mut self) {
        with_transport!(&mut self.0, it => it.abort_on_close());
    }
}

impl DetachedStream {
    /// Takes it on for this thread: without a system call where it was this
    /// thread's before.
    ///
    /// # Errors
    /// As [`Stream::new`]; the stream is closed.
    pub fn attach(self) -> io::Result<Stream> {
        Ok(Stream(match self.0 {
            DetachedTransport::Plain(plain) => Transport::Plain(plain.attach()?),
            DetachedTransport::Tls(tls) => Transport::Tls(Box::new(tls.attach()?)),
            #[cfg(feature = "simulation")]
            DetachedTransport::Memory(end) => Transport::Memory(end),
        }))
    }

    /// Whether it was this thread's before.
    pub fn is_of_this_thread(&self) -> bool {
        with_detached!(&self.0, it => it.is_of_this_thread())
    }

    /// Whether it is idle and this thread knows that it is
    /// [stale](Stream::is_stale).
    pub fn is_known_stale(&self) -> bool {
        with_detached!(&self.0, it => it.is_known_stale())
    }

    /// Whether its descriptor is kept from this taker.
    pub fn is_reserved(&self, taker: Taker) -> bool {
        with_detached!(&self.0, it => it.is_reserved(taker))
    }
}

/// Sends a short answer on a connection that no event loop knows, reads the bytes that have
/// come from the peer, and closes it. Never blocks. Without that read the close would be a
/// reset.
pub(crate) fn answer_and_close(socket: OwnedFd, answer: &[u8]) {
    // A client that does not read the answer does not need it.
    let _ = rustix::net::send(&socket, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
    let mut room = [0; 16 * 1024];
    let _ = rustix::net::recv(&socket, &mut room, RecvFlags::DONTWAIT);
}
