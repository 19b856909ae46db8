//! Listening sockets that another process has opened for this one: the process that it
//! takes over from, or the service manager.
//!
//! Invariant: a given socket is either accepted from, or closed once all listeners are bound.
//! No connection in its queue is lost while its address is still wanted, whatever the number of
//! workers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_setfd};
use socket2::{Socket, Type};

use crate::address::Address;
use crate::listen::{
    Accepting, Bound, BoundListener, FileIdentity, Opener, SocketFile, begin_to_listen, prepare,
    silent_sibling,
};

/// The process that has opened a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketProvider {
    /// The process that this one takes over from. A listener that has another address
    /// now binds that.
    Predecessor,
    /// The service manager. A listener of the socket's name takes it, whatever its
    /// address.
    ServiceManager,
}

/// A listening socket from another process.
#[derive(Debug)]
pub struct InheritedSocket {
    giver: SocketProvider,
    /// The listener's name, or the name in the unit.
    name: String,
    /// The address in the configuration of the process before, where it was not the
    /// socket's: port 0.
    wanted: Option<Address>,
    address: Address,
    socket: Socket,
    file: Option<FileIdentity>,
}

impl InheritedSocket {
    /// Checks that connections can be accepted from it.
    ///
    /// # Errors
    /// It is not a listening stream socket of an internet or Unix domain.
    pub fn new(giver: SocketProvider, name: &str, socket: OwnedFd) -> io::Result<Self> {
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        let socket = Socket::from(socket);
        let refused = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if socket.r#type()? != Type::STREAM {
            return refused("it is not a stream socket");
        }
        if !socket.is_listener()? {
            return refused("it does not listen");
        }
        let local = socket.local_addr()?;
        let address = match (local.as_socket(), local.as_pathname()) {
            (Some(address), _) => Address::Tcp(address),
            (None, Some(path)) => Address::Unix(path.to_owned()),
            (None, None) => return refused("its address cannot be configured"),
        };
        socket.set_nonblocking(true)?;
        Ok(InheritedSocket {
            giver,
            name: name.to_owned(),
            wanted: None,
            address,
            socket,
            file: None,
        })
    }

    /// The same, of a listener with this address in its configuration.
    pub fn wanted_at(self, address: Address) -> Self {
        InheritedSocket {
            wanted: Some(address),
            ..self
        }
    }

    /// The same, with its file, which is this process's to remove.
    pub fn with_file(self, file: Option<FileIdentity>) -> Self {
        InheritedSocket { file, ..self }
    }

    /// Its name at the giver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address that it listens on.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it is for a listener of this name and address.
    fn is_for(&self, name: &str, address: &Address) -> bool {
        let wanted = self.wanted.as_ref().unwrap_or(&self.address);
        match self.giver {
            SocketProvider::Predecessor => {
                let is_any_port = matches!(wanted, Address::Tcp(it) if it.port() == 0);
                wanted == address && (self.name == name || !is_any_port)
            }
            // Without names in the unit all are empty, as the status page's is.
            SocketProvider::ServiceManager => {
                let is_named = !name.is_empty() && self.name == name;
                is_named || is_same(&self.address, address)
            }
        }
    }
}

/// Whether two addresses are the same, or all addresses of a machine at the same port.
fn is_same(one: &Address, other: &Address) -> bool {
    match (one, other) {
        (Address::Tcp(one), Address::Tcp(other)) => {
            let both_all = one.ip().is_unspecified() && other.ip().is_unspecified();
            one == other || both_all && one.port() == other.port()
        }
        _ => one == other,
    }
}

/// Given sockets that no listener has taken yet.
#[derive(Debug, Default)]
pub struct InheritedSockets(Vec<InheritedSocket>);

impl InheritedSockets {
    /// Adds one.
    pub fn add(&mut self, socket: InheritedSocket) {
        self.0.push(socket);
    }

    /// The sockets that were not taken.
    pub fn iter(&self) -> impl Iterator<Item = &InheritedSocket> {
        self.0.iter()
    }

    /// Takes the sockets for a listener. If one has the listener's name, those of other names
    /// stay: several listeners may have had port 0.
    fn take(&mut self, name: &str, address: &Address) -> Vec<InheritedSocket> {
        let mut all = self.0.iter();
        let is_named = all.any(|it| it.name == name && it.is_for(name, address));
        let is_wanted =
            |it: &mut InheritedSocket| it.is_for(name, address) && (!is_named || it.name == name);
        self.0.extract_if(.., is_wanted).collect()
    }

    /// Takes the sockets that were given for an address, and gives each worker its own. Without
    /// any, the address is bound.
    ///
    /// Given sockets stay unchanged until [`SocketCopies::prepare`], because the process before
    /// may go on with them. Sockets that join given ones listen only after
    /// [`SocketCopies::listen`]: otherwise connections in their queues would wait for this
    /// process, or be reset with it.
    ///
    /// # Errors
    /// A socket can't be prepared, or `otherwise`, which binds, fails.
    pub fn bind(
        &mut self,
        name: &str,
        address: &Address,
        accepting: Accepting,
        workers: usize,
        otherwise: impl FnOnce() -> io::Result<Bound>,
    ) -> io::Result<Bound> {
        let given = self.take(name, address);
        if given.is_empty() {
            otherwise()
        } else {
            shared_out(given, accepting, workers)
        }
    }
}

/// The variables in which the service manager describes its sockets (sd_listen_fds(3)).
pub const SERVICE_MANAGER_VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The first descriptor from the service manager.
const FIRST_GIVEN: RawFd = 3;

/// The sockets that the service manager has opened for this process. To be called once.
///
/// # Errors
/// One of them can't be listened on.
pub fn of_service_manager() -> io::Result<InheritedSockets> {
    let [pid, count, names] = SERVICE_MANAGER_VARIABLES.map(|it| std::env::var(it).ok());
    let pid = pid.and_then(|it| it.parse::<u32>().ok());
    let count = count.and_then(|it| it.parse::<u16>().ok()).unwrap_or(0);
    let mut sockets = InheritedSockets::default();
    if pid != Some(std::process::id()) {
        return Ok(sockets);
    }
    let names = names.unwrap_or_default();
    let mut names = names.split(':');
    for number in 0..RawFd::from(count) {
        let name = names.next().unwrap_or_default();
        // SAFETY: the service manager left it open for this process, whose id it named, and no
        // other code here knows of it.
        let socket = unsafe { OwnedFd::from_raw_fd(FIRST_GIVEN + number) };
        let socket = InheritedSocket::new(SocketProvider::ServiceManager, name, socket).map_err(
            |error| {
                io::Error::other(format!(
                    "socket {number} of the service manager ({name}): {error}"
                ))
            },
        )?;
        sockets.add(socket);
    }
    Ok(sockets)
}

/// Gives each worker its sockets. With more sockets than workers, a worker has several. With
/// fewer, new sockets join them at the port. If that is not permitted, or for a Unix socket,
/// workers share them.
fn shared_out(
    given: Vec<InheritedSocket>,
    accepting: Accepting,
    workers: usize,
) -> io::Result<Bound> {
    let address = given[0].address.clone();
    let giver = given[0].giver;
    let identity_of = given[0].file;
    let mut listeners: Vec<_> = (0..workers)
        .map(|_| BoundListener {
            sockets: Vec::new(),
            address: address.clone(),
            open: Arc::default(),
        })
        .collect();
    let sockets: Vec<Socket> = given.into_iter().map(|it| it.socket).collect();
    // One of ours can be joined at its port.
    let opener = match (giver, &address) {
        (SocketProvider::Predecessor, Address::Unix(_)) => Opener::ThisProgram,
        (SocketProvider::Predecessor, Address::Tcp(_)) if sockets[0].reuse_port()? => {
            Opener::ThisProgram
        }
        _ => Opener::ServiceManager,
    };
    for (at, listener) in listeners.iter_mut().enumerate().skip(sockets.len()) {
        let shared = &sockets[at % sockets.len()];
        let joined = match &address {
            Address::Tcp(address) if shared.reuse_port()? => {
                silent_sibling(*address, accepting).ok()
            }
            _ => None,
        };
        let socket = joined.map_or_else(|| shared.try_clone(), Ok)?;
        listener.sockets.push(socket);
    }
    for (at, socket) in sockets.into_iter().enumerate() {
        listeners[at % workers].sockets.push(socket);
    }
    let file = match (&address, giver) {
        // It may be lost: this process is to find that as the one before has.
        (Address::Unix(path), SocketProvider::Predecessor) => {
            identity_of.map(|it| SocketFile::given(path.clone(), it))
        }
        // The service manager removes its own.
        _ => None,
    };
    Ok(Bound {
        opener,
        listeners,
        file,
    })
}

/// Copies of an address's listening sockets, for a process that takes over.
///
/// Invariant: they are dropped before this process stops accepting. Otherwise connections would
/// wait in a queue that no process accepts from.
#[derive(Debug)]
pub struct SocketCopies(Vec<OwnedFd>);

impl SocketCopies {
    /// Copies of these, each socket once.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn of(bound: &Bound) -> io::Result<Self> {
        let mut known = Vec::new();
        let mut copies = Vec::new();
        for socket in bound.listeners.iter().flat_map(|it| &it.sockets) {
            let inode = rustix::fs::fstat(socket)?.st_ino;
            if !known.contains(&inode) {
                known.push(inode);
                copies.push(socket.as_fd().try_clone_to_owned()?);
            }
        }
        Ok(SocketCopies(copies))
    }

    /// Applies these settings to the sockets that already listen. They then hold for another
    /// process with the same socket too, so call it when this process serves.
    ///
    /// # Errors
    /// The kernel refuses them for one of the sockets; all were tried.
    pub fn prepare(&self, address: &Address, accepting: Accepting) -> io::Result<()> {
        let tried = self.0.iter().map(|it| prepare(it, address, accepting));
        tried.fold(Ok(()), io::Result::and)
    }

    /// Has those listen that do not yet.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn listen(&self, accepting: Accepting) -> io::Result<()> {
        let mut all = self.0.iter();
        all.try_for_each(|it| begin_to_listen(it, accepting))
    }

    /// How many sockets they are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The copies.
    pub fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use evenkeel_testkit::{TempDir, deadline};

    use super::*;
    use crate::listen;

    const ACCEPTING: Accepting = Accepting {
        backlog: 8,
        is_deferred: false,
    };

    fn loopback() -> Address {
        Address::Tcp(([127, 0, 0, 1], 0).into())
    }

    /// Sockets of another process, which had this many workers.
    fn given_of(workers: usize) -> (InheritedSockets, Address) {
        let bound = listen::bind(&loopback(), ACCEPTING, workers).unwrap();
        let copies = SocketCopies::of(&bound).unwrap();
        assert_eq!(copies.count(), workers);
        let mut given = InheritedSockets::default();
        for copy in copies.iter() {
            let copy = copy.try_clone_to_owned().unwrap();
            let socket = InheritedSocket::new(SocketProvider::Predecessor, "web", copy).unwrap();
            given.add(socket.wanted_at(loopback()));
        }
        (given, bound.listeners[0].address.clone())
    }

    fn take(given: &mut InheritedSockets, workers: usize) -> Bound {
        let none = || Err(io::Error::other("nothing was given"));
        given
            .bind("web", &loopback(), ACCEPTING, workers, none)
            .unwrap()
    }

    #[test]
    fn every_socket_goes_on_whatever_the_number_of_workers() {
        for (before, workers) in [(1, 1), (4, 4), (5, 2), (2, 5), (1, 3)] {
            let (mut given, address) = given_of(before);
            let bound = take(&mut given, workers);
            assert_eq!(bound.listeners.len(), workers);
            let all = bound.listeners.iter().flat_map(|it| &it.sockets);
            assert_eq!(all.count(), before.max(workers), "{before} {workers}");
            for listener in &bound.listeners {
                assert!(!listener.sockets.is_empty(), "{before} {workers}");
                assert_eq!(listener.address, address);
            }
            let Address::Tcp(address) = address else {
                unreachable!("it was bound to one");
            };
            TcpStream::connect(address).unwrap();
            assert_eq!(given.iter().count(), 0);
        }
    }

    /// Accepts this many connections, and no more. Returns those of each listener. A connection
    /// may get into the queue shortly after its client is connected.
    #[track_caller]
    fn accepted(listeners: &[BoundListener], wanted: usize) -> Vec<usize> {
        let mut each = vec![0; listeners.len()];
        deadline::until("all connections are accepted", || {
            for (sum, listener) in each.iter_mut().zip(listeners) {
                for socket in &listener.sockets {
                    *sum += std::iter::from_fn(|| socket.accept().ok()).count();
                }
            }
            each.iter().sum::<usize>() >= wanted
        });
        assert_eq!(each.iter().sum::<usize>(), wanted, "{each:?}");
        each
    }

    #[test]
    fn a_connection_that_waits_is_not_lost() {
        let (mut given, address) = given_of(3);
        let Address::Tcp(address) = address else {
            unreachable!("it was bound to one");
        };
        let clients: Vec<_> = (0..12)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let bound = take(&mut given, 2);
        accepted(&bound.listeners, clients.len());
    }

    #[test]
    fn sockets_that_join_have_no_connection_before_they_are_to_listen() {
        let (mut given, address) = given_of(1);
        let Address::Tcp(address) = address else {
            unreachable!("it was bound to one");
        };
        let bound = take(&mut given, 4);
        // As many as its queue takes.
        let clients = [(); 8].map(|()| TcpStream::connect(address).unwrap());
        accepted(&bound.listeners[..1], clients.len());
        SocketCopies::of(&bound).unwrap().listen(ACCEPTING).unwrap();
        let clients = [(); 20].map(|()| TcpStream::connect(address).unwrap());
        let each = accepted(&bound.listeners, clients.len());
        assert!(each[1..].iter().any(|it| *it > 0), "{each:?}");
    }

    #[test]
    fn sockets_stay_as_they_are_until_this_process_serves() {
        const DEFERRED: Accepting = Accepting {
            backlog: 8,
            is_deferred: true,
        };
        let (mut given, address) = given_of(1);
        let none = || Err(io::Error::other("nothing was given"));
        let bound = given.bind("web", &loopback(), DEFERRED, 1, none).unwrap();
        let socket = &bound.listeners[0].sockets[0];
        let Address::Tcp(at) = address else {
            unreachable!("it was bound to one");
        };
        // Nothing is sent: where connections are deferred, it is not accepted.
        let _undeferred = TcpStream::connect(at).unwrap();
        socket.accept().unwrap();
        let copies = SocketCopies::of(&bound).unwrap();
        copies.prepare(&address, DEFERRED).unwrap();
        let _deferred = TcpStream::connect(at).unwrap();
        let error = socket.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_path_that_is_lost_is_known() {
        let dir = TempDir::new().unwrap();
        let path = dir.join("web.sock");
        let address = Address::Unix(path.clone());
        let before = listen::bind(&address, ACCEPTING, 1).unwrap();
        let identity = before.file.as_ref().map(SocketFile::identity);
        let take = || {
            let copies = SocketCopies::of(&before).unwrap();
            let mut given = InheritedSockets::default();
            for copy in copies.iter() {
                let copy = copy.try_clone_to_owned().unwrap();
                let socket =
                    InheritedSocket::new(SocketProvider::Predecessor, "web", copy).unwrap();
                given.add(socket.with_file(identity));
            }
            let none = || Err(io::Error::other("nothing was given"));
            let bound = given.bind("web", &address, ACCEPTING, 1, none).unwrap();
            bound.file.unwrap()
        };
        assert!(take().is_there());
        std::fs::remove_file(&path).unwrap();
        assert!(!take().is_there());
        let _other = UnixListener::bind(&path).unwrap();
        let mut file = take();
        assert!(!file.is_there());
        // It does not remove another process's file either.
        file.take_over();
        drop(file);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_listener_takes_its_own_sockets_alone() {
        let (mut given, address) = given_of(1);
        let other = || Err(io::Error::other("nothing was given"));
        for (name, wanted) in [("other", loopback()), ("web", address)] {
            let bound = given.bind(name, &wanted, ACCEPTING, 1, other);
            assert!(bound.is_err(), "{name} {wanted}");
        }
        take(&mut given, 1);
    }

    #[test]
    fn a_socket_of_a_unit_is_found_by_its_name_or_address() {
        for (given_as, name, address, is_found) in [
            ("web", "web", "127.0.0.1:1", true),
            ("web", "other", "actual", true),
            ("web", "other", "127.0.0.1:1", false),
            ("", "web", "127.0.0.1:1", false),
            ("", "", "127.0.0.1:1", false),
            ("", "", "actual", true),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let actual = listener.local_addr().unwrap();
            let address = address.parse().unwrap_or(actual);
            let mut given = InheritedSockets::default();
            let socket =
                InheritedSocket::new(SocketProvider::ServiceManager, given_as, listener.into());
            given.add(socket.unwrap());
            let address = Address::Tcp(address);
            let none = || Err(io::Error::other("nothing was given"));
            let bound = given.bind(name, &address, ACCEPTING, 3, none);
            assert_eq!(bound.is_ok(), is_found, "{given_as:?} {name:?} {address}");
            if let Ok(bound) = bound {
                // It can't be joined at its port: all share it.
                assert_eq!(SocketCopies::of(&bound).unwrap().count(), 1);
            }
        }
    }

    #[test]
    fn what_cannot_be_listened_on_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for socket in [OwnedFd::from(stream), udp.into(), file.into()] {
            let number = socket.as_raw_fd();
            let refused = InheritedSocket::new(SocketProvider::ServiceManager, "web", socket);
            assert!(refused.is_err(), "{number}");
        }
    }
}
