//! Listening sockets: one per worker and address.
//!
//! TCP sockets share their port by SO_REUSEPORT, so that the kernel spreads
//! connections over workers; a Unix socket is one that all workers accept on.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

use super::stream::Stream;
use crate::config::Address;

/// A bound socket, not yet part of any event loop.
#[derive(Debug)]
pub struct BoundListener {
    socket: Socket,
    /// The address bound, with the port that the kernel chose for port 0.
    pub address: Address,
}

/// Binds `address` once for each worker.
///
/// # Errors
/// The address is in use, not of this machine, or not permitted.
pub fn bind(address: &Address, backlog: u32, workers: usize) -> io::Result<Vec<BoundListener>> {
    match address {
        Address::Tcp(address) => bind_tcp(*address, backlog, workers),
        Address::Unix(path) => bind_unix(path, backlog, workers),
    }
}

fn bind_tcp(
    mut address: SocketAddr,
    backlog: u32,
    workers: usize,
) -> io::Result<Vec<BoundListener>> {
    // With SO_REUSEPORT a second process of the same user would get a share of
    // the connections instead of an error: ask without it first.
    drop(bound_socket(address)?);
    let mut bound = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = tcp_socket(address)?;
        socket.set_reuse_port(true)?;
        // Accepted sockets inherit it: no system call per connection.
        socket.set_tcp_nodelay(true)?;
        socket.bind(&address.into())?;
        socket.listen(backlog.min(i32::MAX as u32) as i32)?;
        if let Some(actual) = socket.local_addr()?.as_socket() {
            address = actual;
        }
        bound.push(BoundListener {
            socket,
            address: Address::Tcp(address),
        });
    }
    Ok(bound)
}

fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// A socket that has the address for itself.
fn bound_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = tcp_socket(address)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind_unix(path: &Path, backlog: u32, workers: usize) -> io::Result<Vec<BoundListener>> {
    remove_dead_socket(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    (0..workers)
        .map(|_| {
            Ok(BoundListener {
                socket: socket.try_clone()?,
                address: Address::Unix(path.to_owned()),
            })
        })
        .collect()
}

/// A socket file that nobody listens on is left over from a process that was
/// killed; one that answers belongs to somebody.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// A listening socket on a worker's event loop.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix.
    Unix(UnixListener),
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Address and port.
    Tcp(SocketAddr),
    /// A process of this machine.
    Unix,
}

impl Listener {
    /// Puts a bound socket on the event loop of the current thread.
    ///
    /// # Errors
    /// The event loop can't take it (out of file descriptors).
    pub fn register(bound: BoundListener) -> io::Result<Self> {
        Ok(match bound.address {
            Address::Tcp(_) => Listener::Tcp(TcpListener::from_std(bound.socket.into())?),
            Address::Unix(_) => Listener::Unix(UnixListener::from_std(bound.socket.into())?),
        })
    }

    /// The next connection.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, Peer)>> {
        match self {
            Listener::Tcp(listener) => listener
                .poll_accept(cx)
                .map_ok(|(stream, peer)| (Stream::Tcp(stream), Peer::Tcp(peer))),
            Listener::Unix(listener) => listener
                .poll_accept(cx)
                .map_ok(|(stream, _)| (Stream::Unix(stream), Peer::Unix)),
        }
    }
}
