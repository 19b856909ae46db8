//! Pipes that move bytes between sockets without copying them (`splice`(2)). Each thread has a
//! free list of its own.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use evenkeel_policy::Instant;
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::clock;
use crate::descriptors::{Taker, within_limit};

/// Capacity of a pipe, in pages. Each page takes one piece of a packet: up to 32 KiB on
/// loopback, about 1,500 bytes from a network. With the kernel's default of 16, a response of
/// 300 KB takes a fifth more CPU time; 256 pages gain nothing more.
const SLOTS: usize = 64;
const PAGE_LEN: usize = 4096;
/// Most bytes to put into a pipe at once. A peer that takes nothing holds up this many.
const FILL_LEN: usize = 256 * 1024;
/// Pipes kept for reuse, per thread. Each is two descriptors.
const KEPT: usize = 16;
/// Most pipes in use at once, per thread. Each peer that does not take its bytes uses one.
const IN_USE: usize = 64;

/// How long no new one is asked for when the kernel gave none.
const PAUSE: Duration = Duration::from_secs(1);

/// Free pipes of one thread.
struct FreeList {
    pipes: Vec<Ends>,
    in_use: usize,
    /// When the kernel may be asked for another.
    next_new: Instant,
}

thread_local! {
    static FREE: RefCell<FreeList> = const {
        RefCell::new(FreeList { pipes: Vec::new(), in_use: 0, next_new: Instant::from_nanos(0) })
    };
}

#[derive(Debug)]
struct Ends {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// A pipe. Goes back to its thread's free list when dropped, if nothing is in it.
#[derive(Debug)]
pub struct Pipe {
    /// `None` only while it is dropped.
    ends: Option<Ends>,
    held: usize,
}

impl Pipe {
    /// An empty pipe; `None` if this thread has too many in use, or the kernel lacks
    /// descriptors or memory for pipes (`pipe`(7)).
    pub fn take() -> Option<Self> {
        let ends = FREE.with_borrow_mut(|free| {
            if free.in_use >= IN_USE {
                return None;
            }
            let ends = free.pipes.pop().or_else(|| free.make())?;
            free.in_use += 1;
            Some(ends)
        })?;
        Some(Pipe {
            ends: Some(ends),
            held: 0,
        })
    }

    /// How many this thread keeps for reuse.
    pub fn kept_count() -> usize {
        FREE.with_borrow(|free| free.pipes.len())
    }

    /// Closes the pipes that this thread keeps for reuse; returns whether there were any.
    pub fn close_kept() -> bool {
        let kept = FREE.with_borrow_mut(|free| std::mem::take(&mut free.pipes));
        !kept.is_empty()
    }

    /// Bytes that are in it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves up to `len` bytes from a socket that does not block into it; 0 is
    /// the end. Fewer may come than there are.
    pub(super) fn fill(&mut self, source: BorrowedFd<'_>, len: u64) -> Result<usize, Errno> {
        let len = len.min(FILL_LEN as u64) as usize;
        let writer = self.ends().writer.as_fd();
        let moved = splice(source, None, writer, None, len, SpliceFlags::NONBLOCK)?;
        self.held += moved;
        Ok(moved)
    }

    /// Moves a part of its bytes into a non-blocking socket. `is_more` announces that more will
    /// be written at once.
    pub(super) fn drain(&mut self, sink: BorrowedFd<'_>, is_more: bool) -> Result<usize, Errno> {
        let mut flags = SpliceFlags::NONBLOCK;
        flags.set(SpliceFlags::MORE, is_more);
        let reader = self.ends().reader.as_fd();
        let moved = splice(reader, None, sink, None, self.held, flags)?;
        self.held -= moved;
        Ok(moved)
    }

    /// Reads a part of its bytes into `room`.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let len = retry_on_intr(|| rustix::io::read(&self.ends().reader, &mut *room))?;
        self.held -= len;
        Ok(len)
    }

    fn ends(&self) -> &Ends {
        self.ends
            .as_ref()
            .expect("it has its ends until it is dropped")
    }
}

impl FreeList {
    /// A new pipe, unless the kernel refused one just now.
    fn make(&mut self) -> Option<Ends> {
        let now = clock::now();
        if now < self.next_new {
            return None;
        }
        let made = Ends::new();
        if made.is_err() {
            self.next_new = now + PAUSE;
        }
        made.ok()
    }
}

impl Ends {
    fn new() -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let reader = within_limit(reader, Taker::Exchange)?;
        let writer = within_limit(writer, Taker::Exchange)?;
        fcntl_setpipe_size(&writer, SLOTS * PAGE_LEN)?;
        Ok(Ends { reader, writer })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let ends = self.ends.take();
        // A pipe dropped while its thread ends has no list to return to.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            free.in_use -= 1;
            if self.held == 0 && free.pipes.len() < KEPT {
                free.pipes.extend(ends);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        one.set_nonblocking(true).expect("it does not block");
        (one, other)
    }

    #[test]
    fn moves_bytes_from_one_socket_to_another() {
        let (source, mut sender) = pair();
        let (sink, mut receiver) = pair();
        let mut pipe = Pipe::take().expect("a pipe");
        assert_eq!(pipe.fill(source.as_fd(), 9), Err(Errno::AGAIN));
        sender.write_all(b"body, next").expect("it is sent");
        assert_eq!(pipe.fill(source.as_fd(), 4), Ok(4));
        assert_eq!(pipe.held(), 4);
        assert_eq!(pipe.drain(sink.as_fd(), false), Ok(4));
        let mut received = [0; 4];
        receiver.read_exact(&mut received).expect("it is there");
        assert_eq!(&received, b"body");
        assert_eq!(pipe.held(), 0);
        assert_eq!(pipe.fill(source.as_fd(), 99), Ok(6), "the rest is there");
        drop(sender);
        assert_eq!(pipe.fill(source.as_fd(), 99), Ok(0), "the end");
        let mut rest = [0; 9];
        let len = pipe.read(&mut rest).expect("it is there");
        assert_eq!((&rest[..len], pipe.held()), (&b", next"[..], 0));
    }

    #[test]
    fn one_that_holds_something_is_not_used_again() {
        let (source, mut sender) = pair();
        sender.write_all(b"secret").expect("it is sent");
        let mut pipe = Pipe::take().expect("a pipe");
        pipe.fill(source.as_fd(), 6).expect("it is there");
        drop(pipe);
        assert_eq!(FREE.with_borrow(|free| free.pipes.len()), 0);
        drop(Pipe::take().expect("a pipe"));
        assert_eq!(FREE.with_borrow(|free| free.pipes.len()), 1);
    }

    #[test]
    fn pipes_run_out_and_come_back() {
        let held: Vec<_> = (0..IN_USE).map_while(|_| Pipe::take()).collect();
        assert_eq!(held.len(), IN_USE);
        assert!(Pipe::take().is_none());
        drop(held);
        assert_eq!(Pipe::kept_count(), KEPT);
        assert!(Pipe::take().is_some());
        assert!(Pipe::close_kept());
        assert_eq!(Pipe::kept_count(), 0);
    }
}
