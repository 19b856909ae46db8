//! Messages with descriptors, from one process to another over a pair of sockets.
//!
//! A message is its length, its bytes, and a number of descriptors, which follow in groups of
//! the size that the kernel accepts. All calls block, up to the timeout that was set.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors in one group; the kernel takes 253.
const GROUP: usize = 128;
/// Longest message, in bytes.
const MAX_LEN: u32 = 1 << 30;
/// Most descriptors of one message.
const MAX_DESCRIPTORS: u32 = 1 << 20;

/// One end of the pair.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl Channel {
    /// A pair of ends: one for this process, and one for a program that it starts.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        fcntl_setfd(&theirs, FdFlags::empty())?;
        Ok((Channel(ours), theirs.into()))
    }

    /// The end that this process has inherited, named by an environment variable; `None`
    /// without that variable. To be called once.
    ///
    /// # Errors
    /// The variable names no socket.
    pub fn of_variable(name: &str) -> io::Result<Option<Self>> {
        let Some(text) = std::env::var_os(name) else {
            return Ok(None);
        };
        let number = text.to_str().and_then(|it| it.parse::<RawFd>().ok());
        let number = number.filter(|it| *it > 2);
        let invalid = || io::Error::other(format!("{name} names no descriptor"));
        let number = number.ok_or_else(invalid)?;
        // Whether it is open.
        std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).map_err(|_| invalid())?;
        // SAFETY: it is open, and the parent process left it for us: no other code here knows
        // of it.
        let end = unsafe { OwnedFd::from_raw_fd(number) };
        Channel::inherited(end).map(Some)
    }

    /// The end that this process has inherited. Programs that it starts do not inherit it.
    ///
    /// # Errors
    /// The descriptor is no socket.
    pub fn inherited(end: OwnedFd) -> io::Result<Self> {
        fcntl_setfd(&end, FdFlags::CLOEXEC)?;
        let stream = UnixStream::from(end);
        stream.peer_addr()?;
        Ok(Channel(stream))
    }

    /// Waits for at most so long in each call that follows; `None` for ever.
    ///
    /// # Errors
    /// The time is zero.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)?;
        self.0.set_write_timeout(timeout)
    }

    /// Sets the same timeout for receiving only.
    ///
    /// # Errors
    /// The time is zero.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// Waits until there is something to receive, or the end of the other side; or until
    /// `stop` has something to read, or its end. Whether it is not that.
    ///
    /// # Errors
    /// The kernel can't wait.
    pub fn wait_unless(&self, stop: impl AsFd) -> io::Result<bool> {
        let mut both = [
            PollFd::new(&self.0, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        retry_on_intr(|| poll(&mut both, None))?;
        Ok(both[1].revents().is_empty())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other end is closed, or takes nothing in time.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let too_long = |_| io::Error::other("the message is too long");
        let len = u32::try_from(bytes.len()).map_err(too_long)?;
        let count = u32::try_from(descriptors.len()).map_err(too_long)?;
        let mut head = [0; 8];
        head[..4].copy_from_slice(&len.to_be_bytes());
        head[4..].copy_from_slice(&count.to_be_bytes());
        (&self.0).write_all(&head)?;
        (&self.0).write_all(bytes)?;
        for group in descriptors.chunks(GROUP) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(group)) {
                return Err(io::Error::other("too many descriptors at once"));
            }
            // Descriptors go with a byte.
            let byte = [IoSlice::new(&[0])];
            retry_on_intr(|| sendmsg(&self.0, &byte, &mut ancillary, SendFlags::NOSIGNAL))?;
        }
        Ok(())
    }

    /// The next message; `None` if the other end is closed.
    ///
    /// # Errors
    /// The message is cut off, malformed, or does not come in time.
    pub fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut head = [0; 8];
        // With a timeout a signal interrupts it (signal(7)).
        let first = loop {
            match (&self.0).read(&mut head[..1]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                first => break first?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        (&self.0).read_exact(&mut head[1..])?;
        let [a, b, c, d, e, f, g, h] = head;
        let len = u32::from_be_bytes([a, b, c, d]);
        let count = u32::from_be_bytes([e, f, g, h]);
        if len > MAX_LEN || count > MAX_DESCRIPTORS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // A length that is not true takes no memory.
        let mut bytes = Vec::new();
        let read = (&self.0).take(u64::from(len)).read_to_end(&mut bytes)?;
        if read < len as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut descriptors = Vec::new();
        while descriptors.len() < count as usize {
            self.receive_group(&mut descriptors)?;
        }
        Ok(Some((bytes, descriptors)))
    }

    fn receive_group(&self, descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut into = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| recvmsg(&self.0, &mut into, &mut ancillary, flags))?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = descriptors.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if descriptors.len() == before {
            // The kernel drops descriptors for which there is no room.
            return Err(io::Error::other(
                "descriptors were lost: the limit is reached",
            ));
        }
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_with_all_their_descriptors() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::inherited(theirs).unwrap();
        theirs.set_timeout(Some(Duration::from_secs(5))).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for (len, count) in [(0, 0), (5, 1), (1000, 0), (7, GROUP), (7, 2 * GROUP + 3)] {
            let bytes = vec![b'x'; len];
            let descriptors = vec![file.as_fd(); count];
            ours.send(&bytes, &descriptors).unwrap();
            let (received, files) = theirs.receive().unwrap().unwrap();
            assert_eq!((received.len(), files.len()), (len, count));
        }
        drop(ours);
        assert!(theirs.receive().unwrap().is_none());
    }

    #[test]
    fn a_message_that_is_cut_off_is_an_error() {
        for sent in [&[0, 0][..], &[0, 0, 0, 4, 0, 0, 0, 0, b'x'], &[255; 8]] {
            let (ours, theirs) = Channel::pair().unwrap();
            let theirs = Channel::inherited(theirs).unwrap();
            (&ours.0).write_all(sent).unwrap();
            drop(ours);
            assert!(theirs.receive().is_err(), "{sent:?}");
        }
    }

    #[test]
    fn silence_has_an_end() {
        let (ours, _theirs) = Channel::pair().unwrap();
        ours.set_timeout(Some(Duration::from_millis(20))).unwrap();
        let error = ours.receive().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn waiting_ends_with_a_message_or_when_it_is_to() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::inherited(theirs).unwrap();
        let (stop, stopper) = io::pipe().unwrap();
        ours.send(b"hello", &[]).unwrap();
        assert!(theirs.wait_unless(&stop).unwrap());
        theirs.receive().unwrap().unwrap();
        drop(stopper);
        assert!(!theirs.wait_unless(&stop).unwrap());
        // Later messages are for the next owner of the end.
        ours.send(b"hello", &[]).unwrap();
        assert!(!theirs.wait_unless(&stop).unwrap());
        assert!(theirs.receive().unwrap().is_some());
    }
}
