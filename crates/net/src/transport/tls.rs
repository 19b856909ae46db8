//! TLS over a socket (RFC 8446, RFC 5246), by rustls.
//!
//! All connections of a thread share the buffers that records are read into and written from.
//! An idle connection holds no buffer.

mod session;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use super::{DetachedPlain, Follow, Peeked, Plain};
use crate::descriptors::Taker;
use crate::tasks;
use session::{End, SEALED_LEN, Session, WRITE_LEN};
pub use session::{HandshakeError, Negotiated};

/// Least that is read at once, in bytes: a record of full length with its header.
const READ_LEN: usize = 17 * 1024;
/// Most that is read at once, in bytes.
const READ_MAX: usize = 4 * READ_LEN;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Scratch memory of a thread: records live in it for the length of one call.
#[derive(Default)]
struct Scratch {
    read: Vec<u8>,
    sealed: Vec<u8>,
    /// End of each record in `sealed`.
    ends: Vec<usize>,
}

/// A connection that is encrypted, or about to be.
#[derive(Debug)]
pub(crate) struct Tls {
    socket: Plain,
    session: Session,
}

/// The same, and no task waits for it.
#[derive(Debug)]
pub(crate) struct DetachedTls {
    socket: DetachedPlain,
    session: Session,
}

impl Drop for Tls {
    /// Announces the end of the bytes, unless a message was cut off.
    fn drop(&mut self) {
        if self.session.unconfirmed == 0 && !matches!(self.session.end, Some(End::Failed(_))) {
            self.session.say_close();
        }
        let _ = self.flush();
    }
}

/// Each method is documented at the method of `Stream` with the same name.
impl Tls {
    pub fn accept(socket: Plain, config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let session = Session::accept(config)?;
        Ok(Tls { socket, session })
    }

    pub fn connect(
        socket: Plain,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let session = Session::connect(config, name)?;
        Ok(Tls { socket, session })
    }

    pub fn detach(self) -> DetachedTls {
        let (socket, session) = self.into_parts();
        DetachedTls {
            socket: socket.detach(),
            session,
        }
    }

    /// The socket alone. The handshake may have taken bytes from it.
    pub fn into_plain(self) -> Plain {
        self.into_parts().0
    }

    fn into_parts(self) -> (Plain, Session) {
        let tls = ManuallyDrop::new(self);
        // SAFETY: `tls` is not dropped, so that each field is moved out of it once.
        unsafe { (std::ptr::read(&tls.socket), std::ptr::read(&tls.session)) }
    }

    pub fn negotiated(&self) -> Negotiated<'_> {
        self.session.negotiated()
    }

    pub fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    pub fn poll_whole_handshake(&mut self, cx: &Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            ready!(self.poll_handshake(cx))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            // Early data only: the rest of the handshake is still to come.
            ready!(self.poll_fill(cx, &mut [])).map_err(HandshakeError::Gone)?;
        }
    }

    pub fn poll_handshake(&mut self, cx: &Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            match &self.session.end {
                None | Some(End::Closed) => {}
                Some(End::CutOff) => {
                    let gone = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(HandshakeError::Gone(gone)));
                }
                Some(End::NotTls) => return Poll::Ready(Err(HandshakeError::NotTls)),
                Some(End::Failed(error)) => {
                    let error = error.clone();
                    // The alert, if the socket takes it.
                    let _ = self.flush();
                    return Poll::Ready(Err(HandshakeError::Failed(error)));
                }
            }
            let is_over = !self.session.is_handshaking();
            // A request came with the handshake: tickets travel with its answer.
            if is_over && !self.session.received.is_empty() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_flush(cx)).map_err(HandshakeError::Gone)?;
            if is_over || self.session.has_early_data {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_fill(cx, &mut [])).map_err(HandshakeError::Gone)?;
        }
    }

    moved_here!();

    pub fn is_encrypted(&self) -> bool {
        true
    }

    pub fn buffered(&self) -> usize {
        self.session.buffered()
    }

    pub fn forget_waiters(&self) {
        self.socket.forget_waiters();
    }

    /// Whether there is plaintext to read, or the end is known.
    fn has_news(&self) -> bool {
        !self.session.received.is_empty() || self.session.end.is_some()
    }

    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        if self.has_news() {
            return Poll::Ready(());
        }
        self.socket.poll_read_ready(cx)
    }

    pub fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if !self.session.received.is_empty() {
                return Poll::Ready(Ok(self.session.received.take_into(room)));
            }
            if let Some(end) = &self.session.end {
                return Poll::Ready(end.read());
            }
            if room.is_empty() {
                return Poll::Ready(Ok(0));
            }
            let len = ready!(self.poll_fill(cx, room))?;
            if len > 0 {
                return Poll::Ready(Ok(len));
            }
        }
    }

    /// Reads records once: their plaintext goes into `room` first. Returns how much of it
    /// is filled.
    fn poll_fill(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let filled = self.fill(room, |socket, records| socket.poll_read(cx, records));
        if filled.is_pending() && self.session.unconfirmed == 0 {
            // Messages of the protocol that were to go with an answer: none is near.
            let _ = self.flush();
        }
        filled
    }

    fn fill(
        &mut self,
        room: &mut [u8],
        read: impl FnOnce(&Plain, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Tls { socket, session } = self;
        SCRATCH.with_borrow_mut(|scratch| {
            let more = (room.len() + room.len() / 64).clamp(READ_LEN, READ_MAX);
            let kept = session.begin_read(&mut scratch.read, more);
            let len = ready!(read(socket, &mut scratch.read[kept..kept + more]))?;
            if len == 0 {
                session.end = Some(End::CutOff);
                return Poll::Ready(Ok(0));
            }
            Poll::Ready(Ok(session.receive(&mut scratch.read[..kept + len], room)))
        })
    }

    pub fn poll_peek_into(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_peek_beyond(cx, room, 0)
    }

    pub fn poll_peek_beyond(
        &mut self,
        cx: &Context<'_>,
        room: &mut [u8],
        seen: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            let received = &self.session.received;
            if received.rest().len() > seen {
                return Poll::Ready(Ok(received.copy_into(room)));
            }
            if let Some(end) = &self.session.end {
                // Behind bytes, the end does not show.
                return if received.is_empty() {
                    Poll::Ready(end.read())
                } else {
                    Poll::Pending
                };
            }
            ready!(self.poll_fill(cx, &mut []))?;
        }
    }

    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket.local_address()
    }

    pub fn poll_write(
        &mut self,
        cx: &Context<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_write_ready(cx));
            ready!(tasks::poll_operation(cx));
            if let Some(written) = self.try_write(bytes, follow) {
                return Poll::Ready(written);
            }
        }
    }

    pub fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        if self.session.unconfirmed > 0 {
            // These bytes were sealed by an earlier call.
            return Some(match self.flush()? {
                Ok(()) => Ok(std::mem::take(&mut self.session.unconfirmed)),
                Err(error) => Err(error),
            });
        }
        if bytes.is_empty() {
            return Some(Ok(0));
        }
        // Waiting messages go in front of the data, if they fit there.
        if self.session.outgoing.rest().len() > SEALED_LEN - WRITE_LEN - WRITE_LEN / 64
            && let Err(error) = self.flush()?
        {
            return Some(Err(error));
        }
        let part = &bytes[..bytes.len().min(WRITE_LEN)];
        let is_last = part.len() == bytes.len();
        let follow = if is_last { follow } else { Follow::More };
        let Tls { socket, session } = self;
        SCRATCH.with_borrow_mut(|Scratch { sealed, ends, .. }| {
            if sealed.is_empty() {
                sealed.resize(SEALED_LEN, 0);
            }
            let mut len = match session.seal(part, sealed, ends) {
                Ok(len) => len,
                Err(error) => return Some(Err(error)),
            };
            if follow == Follow::Close {
                session.say_close();
                len += session.outgoing.take_into(&mut sealed[len..]);
            }
            let sent = match socket.try_write(&sealed[..len], follow) {
                Some(Ok(sent)) if sent == len => return Some(Ok(part.len())),
                Some(Ok(sent)) => sent,
                Some(Err(error)) => return Some(Err(error)),
                None => 0,
            };
            session.outgoing.push(&sealed[sent..len]);
            session.note_partly_sent(part.len(), sent, ends)
        })
    }

    /// Sends what waits; `None` where the socket does not take all of it now.
    fn flush(&mut self) -> Option<io::Result<()>> {
        let Tls { socket, session } = self;
        while !session.outgoing.is_empty() {
            match socket.try_write(session.outgoing.rest(), Follow::Anything)? {
                Ok(len) => session.outgoing.take(len),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(()))
    }

    fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(flushed) = self.flush() {
                return Poll::Ready(flushed);
            }
            ready!(self.poll_write_ready(cx));
        }
    }

    pub fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.socket.poll_write_ready(cx)
    }

    pub fn unacknowledged_len(&self) -> u64 {
        self.socket.unacknowledged_len() + self.session.outgoing.rest().len() as u64
    }

    pub fn close_notify(&mut self) -> io::Result<()> {
        self.session.say_close();
        if let Some(Err(error)) = self.flush() {
            return Err(error);
        }
        self.socket.close_notify()
    }

    pub fn peek(&mut self) -> Peeked {
        loop {
            if !self.session.received.is_empty() {
                return Peeked::Data;
            }
            match &self.session.end {
                None => {}
                Some(End::Closed | End::CutOff) => return Peeked::End,
                Some(End::NotTls | End::Failed(_)) => return Peeked::Broken,
            }
            let filled = self.fill(&mut [], |socket, records| match socket.try_read(records) {
                Some(read) => Poll::Ready(read),
                None => Poll::Pending,
            });
            match filled {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Peeked::Broken,
                Poll::Pending => return Peeked::Nothing,
            }
        }
    }

    pub fn poll_ended(&self, cx: &Context<'_>) -> Poll<()> {
        if self.session.end.is_some() {
            return Poll::Ready(());
        }
        self.socket.poll_ended(cx)
    }

    pub fn poll_broken(&self, cx: &Context<'_>) -> Poll<()> {
        self.socket.poll_broken(cx)
    }

    pub fn is_reserved(&self, taker: Taker) -> bool {
        self.socket.is_reserved(taker)
    }

    pub fn is_readable(&self) -> bool {
        self.has_news() || self.socket.is_readable()
    }

    pub fn watch_peer(&self, dead_after: Duration) {
        self.socket.watch_peer(dead_after);
    }

    pub fn cut(&mut self) {
        self.session.abort();
    }

    pub fn abort_on_close(&mut self) {
        self.cut();
        self.socket.abort_on_close();
    }
}

impl DetachedTls {
    pub fn attach(self) -> io::Result<Tls> {
        let DetachedTls { socket, session } = self;
        let socket = socket.attach()?;
        Ok(Tls { socket, session })
    }

    pub fn is_of_this_thread(&self) -> bool {
        self.socket.is_of_this_thread()
    }

    /// Unread bytes of the socket may be a ticket: only the next read can tell. Behind the
    /// end of the connection nothing more comes.
    pub fn is_known_stale(&self) -> bool {
        let has_news = !self.session.received.is_empty() || self.session.end.is_some();
        has_news || self.socket.is_known_ended()
    }

    pub fn is_reserved(&self, taker: Taker) -> bool {
        self.socket.is_reserved(taker)
    }
}
