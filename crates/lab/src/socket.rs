//! Non-blocking TCP sockets and epoll, as thin as they come.
//!
//! Shared by the relay, the origin and the load generator. One `Poller` per
//! thread; every socket made here is non-blocking with Nagle's delay off.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime};

use nix::cmsg_space;
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};

/// The size of the one receive buffer that each tool has.
pub const BUFFER_LEN: usize = 256 * 1024;

/// Connections that may wait for `accept`.
const BACKLOG: i32 = 4096;

/// One epoll instance.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    waiting: Waiting,
}

/// How a thread waits for events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It sleeps until there are some.
    Asleep,
    /// It polls without sleeping, and yields to other processes on its core between two polls.
    /// A sender then has no one to wake: waking a sleeping processor costs the sender
    /// microseconds, on a virtual machine even more, and only a fast proxy would pay them.
    Awake,
}

impl Poller {
    /// Makes an empty epoll instance.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    pub fn new(waiting: Waiting) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, waiting })
    }

    /// Watches `source`, level-triggered, under `token`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&self, source: impl AsFd, token: u64, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            source,
            EventData::new_u64(token),
            interest,
        )?)
    }

    /// Replaces what `source` is watched for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn modify(&self, source: impl AsFd, token: u64, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            source,
            EventData::new_u64(token),
            interest,
        )?)
    }

    /// Waits until something is ready and leaves it in `events`.
    ///
    /// # Errors
    /// The kernel's; an interrupted sleep is no error and leaves no event.
    pub fn wait(&self, events: &mut Vec<Event>) -> io::Result<()> {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        events.clear();
        let timeout = (self.waiting == Waiting::Awake).then_some(&AT_ONCE);
        loop {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout) {
                Ok(0) => rustix::thread::sched_yield(),
                Ok(_) | Err(Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The outcome of one receive or send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// Bytes moved; never zero for a receive.
    Moved(usize),
    /// The socket is not ready.
    Wait,
    /// The other end has closed, or the connection broke.
    Closed,
}

/// Listens on `address`.
///
/// # Errors
/// The kernel's, such as an address in use.
pub fn listen_on(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes the next waiting connection, if there is one.
#[must_use]
pub fn accept_from(listener: &OwnedFd) -> Option<OwnedFd> {
    let socket = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).ok()?;
    sockopt::set_tcp_nodelay(&socket, true).ok()?;
    Some(socket)
}

/// Begins a connection; it may still be on its way when this returns.
///
/// # Errors
/// The kernel's, such as no local port left.
pub fn connect_to(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(address)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Receives once.
pub fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Transfer {
    match recv(socket, buffer, RecvFlags::empty()) {
        Ok((0, _)) => Transfer::Closed,
        Ok((len, _)) => Transfer::Moved(len),
        Err(Errno::AGAIN | Errno::INTR) => Transfer::Wait,
        Err(_) => Transfer::Closed,
    }
}

/// Makes the kernel record the arrival of a socket's bytes, for [`receive_stamped`].
///
/// # Errors
/// The errors of the kernel.
pub fn stamp_arrivals(socket: &OwnedFd) -> io::Result<()> {
    Ok(setsockopt(socket, ReceiveTimestampns, &true)?)
}

/// Receives once, and says how long ago the last of the bytes arrived, where the
/// kernel has noted that.
pub fn receive_stamped(socket: &OwnedFd, buffer: &mut [u8]) -> (Transfer, Option<Duration>) {
    let mut room = cmsg_space!(TimeSpec);
    let mut slices = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::empty();
    let got = match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut room), flags) {
        Ok(got) => got,
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return (Transfer::Wait, None),
        Err(_) => return (Transfer::Closed, None),
    };
    if got.bytes == 0 {
        return (Transfer::Closed, None);
    }
    let arrived = got.cmsgs().ok().and_then(|mut messages| {
        messages.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
            _ => None,
        })
    });
    let ago = arrived.and_then(|it| (SystemTime::UNIX_EPOCH + it).elapsed().ok());
    (Transfer::Moved(got.bytes), ago)
}

/// Sends once.
#[must_use]
pub fn transmit(socket: &OwnedFd, bytes: &[u8]) -> Transfer {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(len) => Transfer::Moved(len),
        Err(Errno::AGAIN | Errno::INTR) => Transfer::Wait,
        Err(_) => Transfer::Closed,
    }
}

fn new_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Raises the limit on open descriptors as far as it goes, and returns it.
#[must_use]
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let current = limit.current.unwrap_or(u64::MAX);
    if setrlimit(Resource::Nofile, limit).is_err() {
        return getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    }
    current
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::sleep;
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_kernel_says_when_bytes_arrived() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = connect_to(listener.local_addr()?)?;
        stamp_arrivals(&socket)?;
        let (mut peer, _) = listener.accept()?;
        let mut buffer = [0; 16];
        assert_eq!(
            receive_stamped(&socket, &mut buffer),
            (Transfer::Wait, None)
        );

        // It begins some time after the first socket of all has asked for it.
        let asked = Instant::now();
        let mut is_begun = false;
        while !is_begun {
            assert!(asked.elapsed() < Duration::from_secs(10), "no stamps");
            peer.write_all(b"x")?;
            while let (Transfer::Moved(_), stamp) = receive_stamped(&socket, &mut buffer) {
                is_begun |= stamp.is_some();
            }
        }
        let sent = Instant::now();
        peer.write_all(b"hello")?;
        let lay_at_least = Duration::from_millis(5);
        sleep(lay_at_least);
        let (transfer, ago) = receive_stamped(&socket, &mut buffer);
        assert_eq!(transfer, Transfer::Moved(5));
        assert!((lay_at_least..sent.elapsed()).contains(&ago.expect("a stamp")));

        drop(peer);
        let mut stream = TcpStream::from(socket);
        stream.set_nonblocking(false)?;
        assert_eq!(stream.read(&mut buffer)?, 0);
        let closed = (Transfer::Closed, None);
        assert_eq!(receive_stamped(&stream.into(), &mut buffer), closed);
        Ok(())
    }
}
