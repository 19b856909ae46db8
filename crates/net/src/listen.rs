//! Listening sockets: one per worker and address.
//!
//! TCP sockets share their port by SO_REUSEPORT, so that the kernel spreads
//! connections over workers; a Unix socket is one that all workers accept on.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::net::SocketFlags;
use socket2::{Domain, Socket};

use crate::address::Address;
use crate::descriptors::{Taker, is_reserved, lowered};
use crate::poller::{Interest, Side, Source};
use crate::stream::{Stream, answer_and_close};
use crate::stream_socket;

/// How the kernel accepts connections, before a worker takes them.
#[derive(Debug, Clone, Copy)]
pub struct Accepting {
    /// Length of its queue, in connections.
    pub backlog: u32,
    /// Whether it keeps them until the client has sent something.
    pub is_deferred: bool,
}

/// A bound socket, not yet part of any event loop.
#[derive(Debug)]
pub struct BoundListener {
    /// One socket, or several if this worker also has those of others: an upgrade continues
    /// with all sockets, whatever the number of workers.
    pub(crate) sockets: Vec<Socket>,
    /// The address bound, with the port that the kernel chose for port 0.
    pub address: Address,
    /// Goes with the sockets.
    pub(crate) open: Arc<()>,
}

/// The process that opened the sockets of an address. It may keep them for longer than this
/// process accepts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// This process, or one that it took over from.
    ThisProgram,
    /// The service manager. No other process can bind the address.
    ServiceManager,
}

/// The sockets of an address.
#[derive(Debug)]
pub struct Bound {
    /// The process that opened them.
    pub opener: Opener,
    /// One for each worker.
    pub listeners: Vec<BoundListener>,
    /// The file of a Unix socket.
    pub file: Option<SocketFile>,
}

/// Tells whether sockets of an address are open in this process.
#[derive(Debug)]
pub struct StillOpen(Vec<Weak<()>>);

impl Bound {
    /// A handle that tells whether these listeners are still open: on their way to a worker, or
    /// there.
    pub fn still_open(&self) -> StillOpen {
        let each = self.listeners.iter();
        StillOpen(each.map(|it| Arc::downgrade(&it.open)).collect())
    }
}

impl StillOpen {
    /// Whether a worker has one.
    pub fn is_any(&self) -> bool {
        self.0.iter().any(|it| it.strong_count() > 0)
    }
}

/// Binds `address` once for each worker.
///
/// # Errors
/// The address is in use, not of this machine, or not permitted.
pub fn bind(address: &Address, accepting: Accepting, workers: usize) -> io::Result<Bound> {
    if let Address::Tcp(address) = address {
        // With SO_REUSEPORT a second process of the same user would get a share of
        // the connections instead of an error: ask without it first.
        drop(bound_socket(*address)?);
    }
    bind_beside(address, accepting, workers)
}

/// As [`bind`], if another listener of this process may have the same port at another address.
///
/// # Errors
/// As [`bind`], but it is no error if a program of the same user has the TCP port as well.
pub fn bind_beside(address: &Address, accepting: Accepting, workers: usize) -> io::Result<Bound> {
    match address {
        Address::Tcp(address) => Ok(Bound {
            opener: Opener::ThisProgram,
            listeners: bind_tcp(*address, accepting, workers)?,
            file: None,
        }),
        Address::Unix(path) => bind_unix(path, accepting.backlog, workers),
    }
}

/// Binds a Unix socket that only the process's user and group may connect to.
///
/// # Errors
/// As [`bind`].
pub fn bind_private(path: &Path, backlog: u32) -> io::Result<(BoundListener, SocketFile)> {
    remove_dead_socket(path)?;
    let socket = stream_socket(Domain::UNIX)?;
    let mode = Mode::from_raw_mode(PRIVATE_MODE);
    // The file is created with the socket's mode, less the umask, so that others can connect at
    // no moment.
    rustix::fs::fchmod(&socket, mode)?;
    let file = SocketFile::bind(&socket, path)?;
    rustix::fs::chmod(path, mode)?;
    socket.listen(self::backlog(backlog))?;
    let bound = BoundListener {
        sockets: vec![socket],
        address: Address::Unix(path.to_owned()),
        open: Arc::default(),
    };
    Ok((bound, file))
}

fn backlog(wanted: u32) -> i32 {
    wanted.min(i32::MAX as u32) as i32
}

/// For the user and the group: to read and to write.
const PRIVATE_MODE: u32 = 0o660;

fn bind_tcp(
    mut address: SocketAddr,
    accepting: Accepting,
    workers: usize,
) -> io::Result<Vec<BoundListener>> {
    let mut bound = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = sibling(address, accepting)?;
        if let Some(actual) = socket.local_addr()?.as_socket() {
            address = actual;
        }
        bound.push(BoundListener {
            sockets: vec![socket],
            address: Address::Tcp(address),
            open: Arc::default(),
        });
    }
    Ok(bound)
}

/// One of several sockets at a port.
fn sibling(address: SocketAddr, accepting: Accepting) -> io::Result<Socket> {
    let socket = silent_sibling(address, accepting)?;
    socket.listen(backlog(accepting.backlog))?;
    Ok(socket)
}

/// The same without a share of the connections yet: it does not listen.
pub(crate) fn silent_sibling(address: SocketAddr, accepting: Accepting) -> io::Result<Socket> {
    let socket = tcp_socket(address)?;
    socket.set_reuse_port(true)?;
    // Accepted sockets inherit it: no system call per connection.
    socket.set_tcp_nodelay(true)?;
    if accepting.is_deferred {
        defer_accept(&socket, true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Makes a socket listen, unless it already does.
pub(crate) fn begin_to_listen(socket: &impl AsFd, accepting: Accepting) -> io::Result<()> {
    if rustix::net::sockopt::socket_acceptconn(socket)? {
        return Ok(());
    }
    Ok(rustix::net::listen(socket, backlog(accepting.backlog))?)
}

/// Applies these settings to a socket that already listens.
pub(crate) fn prepare(
    socket: &impl AsFd,
    address: &Address,
    accepting: Accepting,
) -> io::Result<()> {
    if !address.is_unix() {
        rustix::net::sockopt::set_tcp_nodelay(socket, true)?;
        defer_accept(socket, accepting.is_deferred)?;
    }
    Ok(rustix::net::listen(socket, backlog(accepting.backlog))?)
}

/// Lets the kernel hold back a connection until its client has sent something, or hand it over
/// at once.
///
/// The wait is the shortest that can be set: about a second, after which the kernel resends its
/// part of the handshake.
fn defer_accept(socket: &impl AsFd, is_deferred: bool) -> io::Result<()> {
    let seconds = libc::c_int::from(is_deferred);
    // SAFETY: the value is an int, of the length that is given, and the kernel
    // only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of_val(&seconds) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = stream_socket(Domain::for_address(address))?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// A socket that has the address alone.
fn bound_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = tcp_socket(address)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind_unix(path: &Path, backlog: u32, workers: usize) -> io::Result<Bound> {
    remove_dead_socket(path)?;
    let socket = stream_socket(Domain::UNIX)?;
    let file = SocketFile::bind(&socket, path)?;
    socket.listen(self::backlog(backlog))?;
    let listener = |_| {
        Ok(BoundListener {
            sockets: vec![socket.try_clone()?],
            address: Address::Unix(path.to_owned()),
            open: Arc::default(),
        })
    };
    Ok(Bound {
        opener: Opener::ThisProgram,
        listeners: (0..workers).map(listener).collect::<io::Result<_>>()?,
        file: Some(file),
    })
}

/// The file of a Unix socket that this process bound; removed on drop.
///
/// Invariant: only the file that was bound is removed or moved. A file that a successor put in
/// its place stays. The kernel does not reuse the file's inode while the socket is open, so
/// drop this before the socket.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: FileIdentity,
    owner: Owner,
}

/// The process whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// This one, which removes it.
    This,
    /// Another one, which this one may take over from.
    Another,
}

/// Device and inode of a file.
pub type FileIdentity = (u64, u64);

/// The file at the path of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundAt {
    /// The file that was bound.
    Own,
    /// Another file: connections to the path reach another process.
    Other,
    /// None, or none that can be looked at.
    Nothing,
}

impl SocketFile {
    fn bind(socket: &Socket, path: &Path) -> io::Result<Self> {
        socket.bind(&socket2::SockAddr::unix(path)?)?;
        Ok(SocketFile {
            path: path.to_owned(),
            identity: identity(path)?,
            owner: Owner::This,
        })
    }

    /// Gives the socket a second path, with the process's id appended. Another process may then
    /// replace the file at the first path. `None` if the path belongs to another process.
    ///
    /// # Errors
    /// The second path is too long for a socket, or taken.
    pub fn link_aside(&self) -> io::Result<Option<Self>> {
        if !self.is_there() {
            return Ok(None);
        }
        let aside = aside(&self.path)?;
        remove_dead_socket(&aside)?;
        std::fs::hard_link(&self.path, &aside)?;
        Ok(Some(SocketFile {
            path: aside,
            identity: self.identity,
            owner: Owner::This,
        }))
    }

    /// Moves the file to a path, whatever stands there.
    ///
    /// # Errors
    /// As of [`std::fs::rename`]; the file stays where it is.
    pub fn move_to(&mut self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path)?;
        self.path = path.to_owned();
        Ok(())
    }

    /// Frees the path for a successor, and keeps the socket reachable at another path, with the
    /// process's id appended. `None` if the path already belongs to a successor.
    ///
    /// # Errors
    /// The other path is too long for a socket, or taken. The file is then removed.
    pub fn move_aside(mut self) -> io::Result<Option<Self>> {
        if !self.is_there() {
            return Ok(None);
        }
        let aside = aside(&self.path)?;
        remove_dead_socket(&aside)?;
        std::fs::rename(&self.path, &aside)?;
        self.path = aside;
        Ok(Some(self))
    }

    /// The file of a socket that another process bound. It stays that one's until it is
    /// [taken over](Self::take_over).
    pub(crate) fn given(path: PathBuf, identity: FileIdentity) -> Self {
        SocketFile {
            path,
            identity,
            owner: Owner::Another,
        }
    }

    /// The file is this process's from now on.
    pub fn take_over(&mut self) {
        self.owner = Owner::This;
    }

    /// Tells the file from another one at its path: device and inode.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// The file at this path, compared with a socket's own. Blocks for a moment.
    pub fn found_at(path: &Path, wanted: FileIdentity) -> FoundAt {
        match identity(path) {
            Ok(found) if found == wanted => FoundAt::Own,
            Ok(_) => FoundAt::Other,
            Err(_) => FoundAt::Nothing,
        }
    }

    /// Leaves the file where it is: it is another process's now.
    pub fn leave(mut self) {
        self.owner = Owner::Another;
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to the file that was bound.
    pub fn is_there(&self) -> bool {
        Self::found_at(&self.path, self.identity) == FoundAt::Own
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.owner == Owner::This && self.is_there() {
            // Gone meanwhile is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A path with the process's id appended.
///
/// # Errors
/// The path is too long for a socket.
pub fn aside(path: &Path) -> io::Result<PathBuf> {
    let mut aside = path.to_owned().into_os_string();
    aside.push(format!(".{}", std::process::id()));
    let aside = PathBuf::from(aside);
    socket2::SockAddr::unix(&aside)?;
    Ok(aside)
}

/// The device and the inode of a file.
fn identity(path: &Path) -> io::Result<FileIdentity> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// Removes a socket file that no process listens on, left over from a killed process. A socket
/// that answers belongs to another process, and so does any other file.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let is_there = |what| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    match std::fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(meta) if !meta.file_type().is_socket() => {
            is_there("a file that is not a socket exists there")
        }
        Ok(_) => {
            let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
            // A process that hangs accepts no connection into its backlog: do not wait for
            // that.
            socket.set_nonblocking(true)?;
            match socket.connect(&socket2::SockAddr::unix(path)?) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                Ok(()) | Err(_) => is_there("another process listens there"),
            }
        }
    }
}

/// A worker's listening sockets of one address, on its event loop.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<ListeningSocket>,
    kind: Kind,
    /// The socket to look at first, so that each gets its turn.
    first: Cell<usize>,
    /// Goes after the sockets.
    _open: Arc<()>,
}

#[derive(Debug)]
struct ListeningSocket {
    source: Source<Socket>,
    /// Whether the last readiness has brought a connection already.
    has_accepted: Cell<bool>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Tcp,
    Unix,
}

/// The source of a connection.
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
        let sockets = bound.sockets.into_iter().map(|socket| {
            Ok(ListeningSocket {
                source: Source::new(socket, Interest::Read)?,
                has_accepted: Cell::new(false),
            })
        });
        Ok(Listener {
            sockets: sockets.collect::<io::Result<_>>()?,
            kind: match bound.address {
                Address::Tcp(_) => Kind::Tcp,
                Address::Unix(_) => Kind::Unix,
            },
            first: Cell::new(0),
            _open: bound.open,
        })
    }

    /// How many sockets it accepts on.
    pub fn socket_count(&self) -> u32 {
        self.sockets.len() as u32
    }

    /// Applies these settings to later connections.
    ///
    /// # Errors
    /// The kernel refuses them.
    pub fn accept_as(&self, accepting: Accepting) -> io::Result<()> {
        for ListeningSocket { source, .. } in &self.sockets {
            // To listen again changes the length of the queue.
            rustix::net::listen(source, backlog(accepting.backlog))?;
            if let Kind::Tcp = self.kind {
                defer_accept(source, accepting.is_deferred)?;
            }
        }
        Ok(())
    }

    /// The next connection.
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<Incoming>> {
        let (before, from) = self.sockets.split_at(self.first.get());
        for (offset, socket) in from.iter().chain(before).enumerate() {
            if let Poll::Ready(accepted) = socket.poll_accept(cx, self.kind) {
                let next = self.first.get() + offset + 1;
                self.first.set(next % self.sockets.len());
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }

    /// A connection that the kernel has ready now, whether or not the event loop has seen it.
    pub fn accept_now(&self) -> Option<io::Result<Incoming>> {
        let mut accepted = self.sockets.iter().map(|it| it.accept(self.kind));
        accepted.find(|it| {
            let error = it.as_ref().err();
            error.is_none_or(|it| it.kind() != io::ErrorKind::WouldBlock)
        })
    }
}

impl Drop for Listener {
    /// Copies of the sockets may be another process's, whose connections are no news
    /// here.
    fn drop(&mut self) {
        self.sockets.iter().for_each(|it| it.source.unwatch());
    }
}

impl ListeningSocket {
    fn poll_accept(&self, cx: &Context<'_>, kind: Kind) -> Poll<io::Result<Incoming>> {
        loop {
            ready!(self.source.poll_ready(cx, Side::Read));
            // The kernel makes a file before it looks whether anybody waits:
            // to ask first is cheaper than an accept in vain.
            if !self.has_accepted.get() || self.somebody_waits() {
                match self.accept(kind) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    accepted => {
                        self.has_accepted.set(true);
                        return Poll::Ready(accepted);
                    }
                }
            }
            self.has_accepted.set(false);
            self.source.note_blocked(Side::Read);
        }
    }

    fn somebody_waits(&self) -> bool {
        let mut socket = [PollFd::new(&self.source, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // If poll fails, the accept finds out.
        rustix::event::poll(&mut socket, Some(&now)) != Ok(0)
    }

    fn accept(&self, kind: Kind) -> io::Result<Incoming> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match kind {
            Kind::Tcp => {
                let (socket, peer) = rustix::net::acceptfrom_with(&self.source, flags)?;
                let peer = peer
                    .and_then(|peer| SocketAddr::try_from(peer).ok())
                    .ok_or(io::ErrorKind::ConnectionAborted)?;
                // Invariant: no address of a client is an IPv4 address mapped into
                // IPv6. The same client at a listener of both families is the
                // same client in keys, conditions, limits and logs.
                let address = peer.ip().to_canonical();
                let peer = Peer::Tcp(SocketAddr::new(address, peer.port()));
                Ok(Incoming { socket, peer })
            }
            Kind::Unix => {
                let socket = rustix::net::accept_with(&self.source, flags)?;
                Ok(Incoming {
                    socket,
                    peer: Peer::Unix,
                })
            }
        }
    }
}

/// A connection that was accepted, and is on no event loop yet.
#[derive(Debug)]
pub struct Incoming {
    /// It does not block.
    socket: OwnedFd,
    /// The client's address.
    pub peer: Peer,
}

impl Incoming {
    /// Whether its descriptor is kept from this taker.
    pub fn is_reserved(&self, taker: Taker) -> bool {
        is_reserved(&self.socket, taker)
    }

    /// The same, with the lowest descriptor that is free, if that is a lower one.
    pub fn lowered(self) -> Self {
        Incoming {
            socket: lowered(self.socket),
            ..self
        }
    }

    /// Puts it on the event loop of the current thread.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn into_stream(self) -> io::Result<Stream> {
        Stream::new(self.socket)
    }

    /// Sends a short answer, reads the bytes that have come from the peer, and closes the
    /// connection. Never blocks. Without that read the close would be a reset.
    pub fn answer_and_close(self, answer: &[u8]) {
        answer_and_close(self.socket, answer);
    }

    /// Its socket, for another runtime.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// Connections accepted in a row before other tasks have a turn.
const ACCEPTS_PER_TURN: u32 = 16;

/// Turns that a task which accepts connections leaves to others of its thread.
#[derive(Debug, Default)]
pub struct AcceptTurns {
    /// Connections accepted so far.
    number: u32,
    has_looked_again: bool,
}

impl AcceptTurns {
    /// Lets other tasks have a turn where it is time; to be called before each accept.
    ///
    /// Invariant: other tasks have a turn after `ACCEPTS_PER_TURN` connections, even
    /// where further ones wait without end.
    pub async fn give(&mut self) {
        self.number = self.number.wrapping_add(1);
        if self.number.is_multiple_of(ACCEPTS_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }

    /// Whether to look for connections once more where a drain found none.
    ///
    /// The event loop looks at the socket before that: it wakes in the first turn,
    /// and has looked by the second. Closing the socket resets the connections that
    /// the kernel has ready.
    pub async fn look_again(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_looked_again, true);
        if is_first {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        is_first
    }
}
