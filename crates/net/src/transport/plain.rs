//! A socket that carries the bytes unchanged.
//!
//! Waiting and reading are apart: an idle connection waits for readability
//! without a buffer, and takes one when there is something to read.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::fs::sendfile;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{RecvFlags, SendFlags};
use socket2::TcpKeepalive;

use super::{Follow, Peeked};
use crate::descriptors::{Taker, is_reserved};
use crate::pipe::Pipe;
use crate::poller::{Detached, Interest, Side, Source};
use crate::tasks;

/// Asks how much a socket has sent that is not acknowledged (tcp(7)).
const SIOCOUTQ: Opcode = 0x5411;

/// Pauses between probes in the time after which a silent peer is dead: it is asked
/// first when half of them are over.
const KEEP_ALIVE_PARTS: u32 = 8;

/// A connected non-blocking socket. It holds no bytes itself: received bytes are with the
/// kernel.
#[derive(Debug)]
pub(crate) struct Plain(Source<OwnedFd>);

/// A connected socket that no task waits for.
#[derive(Debug)]
pub(crate) struct DetachedPlain(Detached<OwnedFd>);

/// The methods are documented at those of `Stream` with the same names.
impl Plain {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Source::new(socket, Interest::ReadWrite).map(Plain)
    }

    pub fn detach(self) -> DetachedPlain {
        DetachedPlain(self.0.detach())
    }

    /// The error of a connection that failed to open. The event loop has noticed failures, so a
    /// success costs no system call.
    pub fn connected(&self) -> io::Result<()> {
        if !self.0.is_over() {
            return Ok(());
        }
        Ok(rustix::net::sockopt::socket_error(self)??)
    }

    pub fn can_splice(&self) -> bool {
        true
    }

    pub fn can_send_file(&self) -> bool {
        true
    }

    pub fn is_encrypted(&self) -> bool {
        false
    }

    pub fn buffered(&self) -> usize {
        0
    }

    pub fn forget_waiters(&self) {
        self.0.forget_waiters();
    }

    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_ready(cx, Side::Read)
    }

    /// A short read says that nothing is left: that saves a recv that would return
    /// EAGAIN.
    pub fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx));
            ready!(tasks::poll_operation(cx));
            match retry_on_intr(|| rustix::net::recv(self, &mut *room, RecvFlags::empty())) {
                Ok((len, _)) => {
                    // Bytes may be left behind a part of an error queue.
                    if len > 0 && len < room.len() {
                        self.0.note_drained(Side::Read);
                    }
                    return Poll::Ready(Ok(len));
                }
                Err(Errno::AGAIN) => self.0.note_blocked(Side::Read),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Reads into `room`; `None` where nothing has come.
    pub fn try_read(&self, room: &mut [u8]) -> Option<io::Result<usize>> {
        match retry_on_intr(|| rustix::net::recv(self, &mut *room, RecvFlags::empty())) {
            Ok((len, _)) => Some(Ok(len)),
            Err(Errno::AGAIN) => {
                self.0.note_blocked(Side::Read);
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    pub fn poll_peek_into(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_call(cx, Side::Read, || {
            rustix::net::recv(self, &mut *room, RecvFlags::PEEK).map(|(len, _)| len)
        })
    }

    /// Bytes that are already there wake no task: the event loop reports further ones.
    pub fn poll_peek_beyond(
        &self,
        cx: &Context<'_>,
        room: &mut [u8],
        seen: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            match ready!(self.poll_peek_into(cx, room)) {
                Ok(len) if len > 0 && len <= seen => self.0.note_blocked(Side::Read),
                peeked => return Poll::Ready(peeked),
            }
        }
    }

    pub fn local_address(&self) -> Option<SocketAddr> {
        let address = rustix::net::getsockname(self).ok()?;
        SocketAddr::try_from(address).ok()
    }

    pub fn poll_write(
        &self,
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

    pub fn try_write(&self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, follow.is_more());
        // The known readiness is not checked: the socket takes most writes whole, and the
        // readiness has left the processor's caches.
        match retry_on_intr(|| rustix::net::send(self, bytes, flags)) {
            Ok(len) => {
                if len < bytes.len() {
                    self.0.note_drained(Side::Write);
                }
                Some(Ok(len))
            }
            Err(Errno::AGAIN) => {
                self.0.note_blocked(Side::Write);
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    pub fn poll_read_into(
        &self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        len: u64,
    ) -> Poll<io::Result<usize>> {
        // Whether more is there is unknown: the pipe may be full.
        self.poll_call(cx, Side::Read, || pipe.fill(self.as_fd(), len))
    }

    pub fn poll_write_from(
        &self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        let is_more = follow.is_more();
        self.poll_call(cx, Side::Write, || pipe.drain(self.as_fd(), is_more))
    }

    pub fn poll_send_file(
        &self,
        cx: &Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        // Less may be the file's end as well: the next call tells.
        self.poll_call(cx, Side::Write, || {
            let mut at = offset;
            sendfile(self, file, Some(&mut at), len)
        })
    }

    /// Makes a system call when a side is ready, again until it does not say that
    /// it would block. Whether the side is ready after that is for the next one to
    /// tell.
    fn poll_call(
        &self,
        cx: &Context<'_>,
        side: Side,
        mut call: impl FnMut() -> Result<usize, Errno>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_ready(cx, side));
            ready!(tasks::poll_operation(cx));
            match retry_on_intr(&mut call) {
                Err(Errno::AGAIN) => self.0.note_blocked(side),
                done => return Poll::Ready(done.map_err(io::Error::from)),
            }
        }
    }

    pub fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_ready(cx, Side::Write)
    }

    pub fn unacknowledged_len(&self) -> u64 {
        // SAFETY: SIOCOUTQ writes one C int.
        let query = unsafe { Getter::<SIOCOUTQ, std::ffi::c_int>::new() };
        // SAFETY: it changes nothing, and a socket of another kind refuses it.
        let len = unsafe { ioctl(self, query) };
        len.map_or(0, |len| u64::try_from(len).unwrap_or(0))
    }

    pub fn close_notify(&self) -> io::Result<()> {
        rustix::net::shutdown(self, rustix::net::Shutdown::Write).map_err(io::Error::from)
    }

    pub fn peek(&self) -> Peeked {
        let peeked = peek(self.as_fd());
        if peeked == Peeked::Nothing {
            self.0.note_blocked(Side::Read);
        }
        peeked
    }

    pub fn poll_ended(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_ended(cx)
    }

    pub fn poll_broken(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_over(cx)
    }

    pub fn is_reserved(&self, taker: Taker) -> bool {
        is_reserved(self, taker)
    }

    /// Whether bytes or the end have come, as far as the event loop has noticed.
    pub fn is_readable(&self) -> bool {
        self.0.is_ready(Side::Read)
    }

    pub fn watch_peer(&self, dead_after: Duration) {
        let socket = socket2::SockRef::from(self);
        let pause = (dead_after / KEEP_ALIVE_PARTS).max(Duration::from_secs(1));
        let probes = TcpKeepalive::new()
            .with_time(pause * (KEEP_ALIVE_PARTS / 2))
            .with_interval(pause)
            .with_retries(KEEP_ALIVE_PARTS / 2);
        // A Unix socket has neither: its peer is gone when its process is.
        let _ = socket.set_tcp_keepalive(&probes);
        let _ = socket.set_tcp_user_timeout(Some(dead_after));
    }

    pub fn abort_on_close(&self) {
        let socket = socket2::SockRef::from(self);
        // A socket that is gone already needs no reset.
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
}

fn peek(socket: BorrowedFd<'_>) -> Peeked {
    let mut byte = [0; 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match retry_on_intr(|| rustix::net::recv(socket, &mut byte, flags)) {
        Ok((0, _)) => Peeked::End,
        Ok(_) => Peeked::Data,
        Err(Errno::AGAIN) => Peeked::Nothing,
        Err(_) => Peeked::Broken,
    }
}

impl AsFd for DetachedPlain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl DetachedPlain {
    pub fn attach(self) -> io::Result<Plain> {
        self.0.attach().map(Plain)
    }

    pub fn is_of_this_thread(&self) -> bool {
        self.0.is_of_this_thread()
    }

    pub fn is_known_stale(&self) -> bool {
        self.0.is_known_ready() && peek(self.0.as_fd()) != Peeked::Nothing
    }

    /// Whether the peer sends nothing more, as far as this thread knows.
    pub fn is_known_ended(&self) -> bool {
        self.0.is_known_ended()
    }

    pub fn is_reserved(&self, taker: Taker) -> bool {
        is_reserved(self, taker)
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
