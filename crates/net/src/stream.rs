//! A connected byte stream, whatever carries it.
//!
//! Waiting and reading are apart: an idle connection waits for readability
//! without a buffer, and takes one when there is something to read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::fs::sendfile;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{RecvFlags, SendFlags};

use crate::pipe::Pipe;
use crate::poller::{Detached, Interest, Side, Source};
use crate::tasks;

/// Asks how much a socket has sent that is not acknowledged (tcp(7)).
const SIOCOUTQ: Opcode = 0x5411;

/// A connected stream: TCP over IPv4 or IPv6, or a Unix socket.
#[derive(Debug)]
pub struct Stream(Source<OwnedFd>);

/// A connected stream that no task waits for: any thread may take it on. Dropping
/// it closes it.
#[derive(Debug)]
pub struct DetachedStream(Detached<OwnedFd>);

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

impl Follow {
    /// Whether the kernel may wait for what follows.
    fn is_more(self) -> bool {
        self != Follow::Anything
    }
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
    /// A stream of a socket that does not block.
    ///
    /// # Errors
    /// As [`Source::new`].
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Source::new(socket, Interest::ReadWrite).map(Stream)
    }

    /// Lets go of it without a system call.
    pub fn detach(self) -> DetachedStream {
        DetachedStream(self.0.detach())
    }

    /// Has another task wait for it from now on.
    pub fn forget_waiters(&self) {
        self.0.forget_waiters();
    }

    /// Ready when a read would not block. Holds no buffer.
    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_ready(cx, Side::Read)
    }

    /// Reads into `room`; 0 is the end. A short read is taken as the sign that
    /// nothing is left, which saves the read that would say so.
    pub fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx));
            ready!(tasks::poll_operation(cx));
            match retry_on_intr(|| rustix::net::recv(self, &mut *room, RecvFlags::empty())) {
                Ok((len, _)) => {
                    // What waits behind a part of an error queue is unknown.
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

    /// Reads into `room` what stays to be read again; 0 is the end. Where it is
    /// less than was hoped for, the next call waits for more.
    pub fn poll_peek_into(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_call(cx, Side::Read, || {
            rustix::net::recv(self, &mut *room, RecvFlags::PEEK).map(|(len, _)| len)
        })
    }

    /// Writes a part of `bytes`.
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

    /// Writes a part of `bytes`; `None` where the stream takes nothing now.
    pub fn try_write(&self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, follow.is_more());
        // What the event loop knows of the stream is not asked: it takes all of
        // most writes, and what is known has left the processor's caches.
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

    /// Moves up to `len` bytes into a pipe, without copying them; 0 is the end.
    pub fn poll_read_into(
        &self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        len: u64,
    ) -> Poll<io::Result<usize>> {
        // Whether more is there is unknown: the pipe may be full.
        self.poll_call(cx, Side::Read, || pipe.fill(self.as_fd(), len))
    }

    /// Writes a part of what is in a pipe, without copying it.
    pub fn poll_write_from(
        &self,
        cx: &Context<'_>,
        pipe: &mut Pipe,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        let is_more = follow.is_more();
        self.poll_call(cx, Side::Write, || pipe.drain(self.as_fd(), is_more))
    }

    /// Writes a part of what stands at `offset` of a file, at most `len` bytes,
    /// without copying it; 0 where the file ends there. Waits for the disk where
    /// it is not in memory.
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

    /// Ready when a write would not block.
    pub fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_ready(cx, Side::Write)
    }

    /// Bytes that were written and that the peer has not acknowledged; 0 where
    /// the kernel does not say.
    pub fn unacknowledged_len(&self) -> u64 {
        // SAFETY: SIOCOUTQ writes one C int.
        let query = unsafe { Getter::<SIOCOUTQ, std::ffi::c_int>::new() };
        // SAFETY: it changes nothing, and a socket of another kind refuses it.
        let len = unsafe { ioctl(self, query) };
        len.map_or(0, |len| u64::try_from(len).unwrap_or(0))
    }

    /// Closes the sending side.
    pub fn shutdown(&self) -> io::Result<()> {
        rustix::net::shutdown(self, rustix::net::Shutdown::Write).map_err(io::Error::from)
    }

    /// Looks at the next byte without taking it: one system call. Where there is
    /// nothing, the next wait for it begins.
    pub fn peek(&self) -> Peeked {
        let peeked = peek(self.as_fd());
        if peeked == Peeked::Nothing {
            self.0.note_blocked(Side::Read);
        }
        peeked
    }

    /// Waits until there is something to [`peek`](Self::peek) at.
    pub fn poll_peek(&self, cx: &Context<'_>) -> Poll<Peeked> {
        loop {
            ready!(self.poll_read_ready(cx));
            match self.peek() {
                Peeked::Nothing => {}
                peeked => return Poll::Ready(peeked),
            }
        }
    }

    /// Ready when the connection is broken, or closed both ways, whatever may be
    /// read before that. No system call.
    pub fn poll_broken(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.poll_over(cx)
    }

    /// Whether an idle connection has been closed by its peer, or sent bytes
    /// that nobody asked for. The event loop has noticed: a system call is made
    /// only to confirm it.
    pub fn is_stale(&self) -> bool {
        self.0.is_ready(Side::Read) && self.peek() != Peeked::Nothing
    }

    /// Whether bytes wait to be read, as far as the event loop has noticed: a
    /// system call is made only to confirm it.
    pub fn has_unread(&self) -> bool {
        self.0.is_ready(Side::Read) && self.peek() == Peeked::Data
    }

    /// Makes the coming close a reset, so that the peer can't take what it got
    /// for a complete message.
    pub fn abort_on_close(&self) {
        let socket = socket2::SockRef::from(self);
        // A socket that is gone already needs no reset.
        let _ = socket.set_linger(Some(std::time::Duration::ZERO));
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

impl AsFd for DetachedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl DetachedStream {
    /// Takes it on for this thread: without a system call where it was this
    /// thread's before.
    ///
    /// # Errors
    /// As [`Source::new`]; the stream is closed.
    pub fn attach(self) -> io::Result<Stream> {
        self.0.attach().map(Stream)
    }

    /// Whether it was this thread's before.
    pub fn is_of_this_thread(&self) -> bool {
        self.0.is_of_this_thread()
    }

    /// Whether it is idle and this thread knows that it is
    /// [stale](Stream::is_stale).
    pub fn is_known_stale(&self) -> bool {
        self.0.is_known_ready() && peek(self.0.as_fd()) != Peeked::Nothing
    }
}

/// Sends a short answer on a connection that no event loop knows, takes what has
/// come from the peer, and closes it. Never waits: unread bytes would make the
/// close a reset.
pub fn answer_and_close(socket: OwnedFd, answer: &[u8]) {
    // Whoever does not take it has no use for it.
    let _ = rustix::net::send(&socket, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
    let mut room = [0; 16 * 1024];
    let _ = rustix::net::recv(&socket, &mut room, RecvFlags::DONTWAIT);
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
