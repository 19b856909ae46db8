//! The listeners of the process: their sockets, and which of them a configuration
//! goes on with.

use std::io;
use std::sync::{Arc, Weak};

use crate::config::machine::{self, Obstacle};
use crate::config::{Config, Listener};
use crate::exchange::context::SharedListener;
use crate::net::Address;
use crate::net::given::{InheritedSocket, InheritedSockets, SocketCopies, SocketProvider};
use crate::net::listen::{self, BoundListener, Opener, SocketFile, StillOpen};
use crate::observe::sessions::ListenerId;

/// Listeners of the newest configuration, in its order.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    current: Vec<OpenListener>,
    /// By id: each that a worker may have a side of.
    by_id: Vec<Weak<SharedListener>>,
    /// Listeners that left: their workers may listen there for a moment more.
    left: Vec<LeftListener>,
    /// Listeners that left and whose sockets the service manager has opened. It still has them,
    /// so that nobody could bind their addresses again.
    spare: Vec<OpenListener>,
}

#[derive(Debug)]
struct LeftListener {
    address: Address,
    sockets: StillOpen,
}

/// A listener that connections are accepted by.
#[derive(Debug)]
struct OpenListener {
    name: String,
    /// The address as configured: port 0 is any.
    wanted: Address,
    /// The address that was bound.
    address: Address,
    shared: Arc<SharedListener>,
    opener: Opener,
    sockets: StillOpen,
    /// The file of a Unix socket.
    file: Option<SocketFile>,
    /// For a process that takes over; `None` once nothing more is accepted.
    copies: Option<SocketCopies>,
}

/// Sockets that a new process gets.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    /// The listener's name, or that of the status page.
    pub name: &'a str,
    /// The address as configured.
    pub wanted: &'a Address,
    pub copies: &'a SocketCopies,
    pub file: Option<&'a SocketFile>,
}

/// Sockets for the listeners of a configuration that are not there yet.
#[derive(Debug)]
pub(super) struct NewSockets {
    /// For each listener in order: where it stood before, or its new sockets.
    places: Vec<ListenerPlace>,
}

#[derive(Debug)]
enum ListenerPlace {
    Stays { at: usize },
    New(listen::Bound, SocketCopies),
}

impl Listeners {
    /// Binds the new listeners of this configuration, once for each worker.
    ///
    /// Writes the ports that port 0 became into it. Takes sockets that were given for a listener,
    /// at the start or before the listener left. Present listeners do not change.
    ///
    /// # Errors
    /// A listener can't be bound; the error's text names it.
    pub fn bind(
        &self,
        config: &mut Config,
        given: &mut InheritedSockets,
    ) -> io::Result<NewSockets> {
        let workers = config.server.workers;
        let stay = self.staying(&config.listeners);
        // Also of a listener that has another address at the same port now.
        let of_before: Vec<_> = given.iter().map(|it| it.address().clone()).collect();
        self.give_spare(given)?;
        let mut places = Vec::with_capacity(config.listeners.len());
        for (listener, stays) in config.listeners.iter_mut().zip(stay) {
            places.push(match stays {
                Some(at) => {
                    listener.bind = self.current[at].address.clone();
                    ListenerPlace::Stays { at }
                }
                None => {
                    let bound = self.bind_one(listener, workers, given, &of_before)?;
                    let copies = SocketCopies::of(&bound)?;
                    if bound.opener == Opener::ServiceManager && !self.spare.is_empty() {
                        copies.prepare(&listener.bind, listener.accepting)?;
                    }
                    ListenerPlace::New(bound, copies)
                }
            });
        }
        Ok(NewSockets { places })
    }

    /// The files of Unix sockets that were bound, with the names of their listeners.
    pub fn files(&self) -> impl Iterator<Item = (&str, &SocketFile)> {
        let current = self.current.iter();
        current.filter_map(|it| Some((&*it.name, it.file.as_ref()?)))
    }

    /// The earlier place of each listener, if it was there.
    ///
    /// A listener is recognised by its configured address. Several may have the same one, with
    /// any port: a listener of the same name comes first.
    fn staying(&self, listeners: &[Listener]) -> Vec<Option<usize>> {
        let mut is_taken = vec![false; self.current.len()];
        let mut stay = vec![None; listeners.len()];
        for is_named_alike in [true, false] {
            for (listener, stays) in listeners.iter().zip(&mut stay) {
                let mut current = self.current.iter().enumerate();
                let same = current.find(|(at, it)| {
                    let is_free = !is_taken[*at] && it.wanted == listener.bind;
                    is_free && (!is_named_alike || it.name == listener.name)
                });
                if let (None, Some((at, _))) = (&stays, same) {
                    is_taken[at] = true;
                    *stays = Some(at);
                }
            }
        }
        stay
    }

    /// Adds copies of sockets that the service manager has still, of listeners that left.
    fn give_spare(&self, given: &mut InheritedSockets) -> io::Result<()> {
        for OpenListener { name, copies, .. } in &self.spare {
            for socket in copies.iter().flat_map(SocketCopies::iter) {
                let socket = socket.try_clone_to_owned()?;
                given.add(InheritedSocket::new(
                    SocketProvider::ServiceManager,
                    name,
                    socket,
                )?);
            }
        }
        Ok(())
    }

    fn bind_one(
        &self,
        listener: &Listener,
        workers: usize,
        given: &mut InheritedSockets,
        of_before: &[Address],
    ) -> io::Result<listen::Bound> {
        let Listener {
            bind, accepting, ..
        } = listener;
        let ours = self.current.iter().map(|it| &it.address);
        let left = self.left.iter().filter(|it| it.sockets.is_any());
        let left = left.map(|it| &it.address);
        let mut all = ours.chain(left).chain(of_before);
        let is_beside = all.any(|it| it.shares_port(bind));
        let bound = given.bind(&listener.name, bind, *accepting, workers, || {
            if is_beside {
                listen::bind_beside(bind, *accepting, workers)
            } else {
                listen::bind(bind, *accepting, workers)
            }
        });
        bound.map_err(|error| {
            let what = format!("listener {}: bind {bind}", listener.name);
            machine::explained(&what, &error, Obstacle::of(bind))
        })
    }

    /// Goes on with these. Gives each worker's new sockets: of each listener in order,
    /// `None` where it has one already. Files of Unix sockets that left are removed.
    pub fn follow(
        &mut self,
        new: NewSockets,
        config: &mut Config,
        workers: usize,
    ) -> Vec<Vec<Option<BoundListener>>> {
        let mut before: Vec<_> = std::mem::take(&mut self.current)
            .into_iter()
            .map(Some)
            .collect();
        let mut by_worker: Vec<_> = (0..workers).map(|_| Vec::new()).collect();
        for (place, listener) in new.places.into_iter().zip(&mut config.listeners) {
            let stays = match place {
                ListenerPlace::Stays { at } => before[at].take(),
                ListenerPlace::New(bound, copies) => {
                    self.add(bound, copies, listener, &mut by_worker);
                    continue;
                }
            };
            let name = listener.name.clone();
            self.current
                .extend(stays.map(|it| OpenListener { name, ..it }));
            by_worker.iter_mut().for_each(|it| it.push(None));
        }
        before.into_iter().flatten().for_each(|it| self.leave(it));
        let Listeners { current, spare, .. } = self;
        // One that came back has copies of its own.
        spare.retain(|it| current.iter().all(|has| has.address != it.address));
        by_worker
    }

    /// A listener is no more.
    fn leave(&mut self, listener: OpenListener) {
        self.left.retain(|it| it.sockets.is_any());
        if listener.opener == Opener::ServiceManager {
            let (name, address) = (&listener.name, &listener.address);
            tracing::warn!(
                "listener {name}: the service manager still has its socket at {address}: \
                 connections wait there until a listener uses it again"
            );
            self.spare.push(listener);
            return;
        }
        self.left.push(LeftListener {
            address: listener.address,
            sockets: listener.sockets,
        });
    }

    fn add(
        &mut self,
        bound: listen::Bound,
        copies: SocketCopies,
        listener: &mut Listener,
        by_worker: &mut [Vec<Option<BoundListener>>],
    ) {
        let wanted = listener.bind.clone();
        let still_open = bound.still_open();
        if let Some(first) = bound.listeners.first() {
            // Figures and answers to operators have the port that port 0 became.
            listener.bind = first.address.clone();
        }
        for (sockets, socket) in by_worker.iter_mut().zip(bound.listeners) {
            sockets.push(Some(socket));
        }
        let shared = Arc::new(SharedListener::new(self.free_id()));
        self.by_id[usize::from(shared.id)] = Arc::downgrade(&shared);
        self.current.push(OpenListener {
            name: listener.name.clone(),
            wanted,
            address: listener.bind.clone(),
            shared,
            opener: bound.opener,
            sockets: still_open,
            file: bound.file,
            copies: Some(copies),
        });
    }

    /// The lowest id that no worker knows.
    fn free_id(&mut self) -> ListenerId {
        let free = self.by_id.iter().position(|it| it.strong_count() == 0);
        let free = free.unwrap_or_else(|| {
            self.by_id.push(Weak::new());
            self.by_id.len() - 1
        });
        free as ListenerId
    }

    /// The side of each listener that workers share, in order.
    pub fn shared(&self) -> Vec<Arc<SharedListener>> {
        self.current.iter().map(|it| it.shared.clone()).collect()
    }

    /// The address of each listener, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.current.iter().map(|it| it.address.clone()).collect()
    }

    /// Frees the paths of Unix sockets for a successor. Workers alone have the sockets
    /// from then on.
    pub fn remove_files(&mut self) {
        self.spare.clear();
        for listener in &mut self.current {
            (listener.file, listener.copies) = (None, None);
        }
    }

    /// The same, where another process has the sockets: their files are its own.
    pub fn leave_files(&mut self) {
        self.spare.clear();
        for listener in &mut self.current {
            listener.file.take().into_iter().for_each(SocketFile::leave);
            listener.copies = None;
        }
    }

    /// Has all sockets listen. `listeners` are these listeners in order.
    ///
    /// # Errors
    /// The kernel refuses it; the error's text names the listener.
    pub fn listen(&self, listeners: &[Listener]) -> io::Result<()> {
        for (open, listener) in self.current.iter().zip(listeners) {
            let Some(copies) = &open.copies else {
                continue;
            };
            copies.listen(listener.accepting).map_err(|error| {
                let OpenListener { name, address, .. } = open;
                io::Error::other(format!("listener {name}: listen at {address}: {error}"))
            })?;
        }
        Ok(())
    }

    /// Sets how sockets of another process take connections in; `listeners` are in order. If the
    /// kernel refuses, a socket stays as it was there.
    pub fn prepare(&self, listeners: &[Listener]) {
        for (open, listener) in self.current.iter().zip(listeners) {
            let Some(copies) = &open.copies else {
                continue;
            };
            if let Err(error) = copies.prepare(&open.address, listener.accepting) {
                let OpenListener { name, address, .. } = open;
                tracing::warn!(
                    listener = name,
                    "listener {name}: backlog and defer_accept are not changed at {address}: \
                     {error}"
                );
            }
        }
    }

    /// Takes over the files of sockets that another process had.
    pub fn take_over_files(&mut self) {
        let files = self.current.iter_mut().flat_map(|it| &mut it.file);
        files.for_each(SocketFile::take_over);
    }

    /// The configured address of each listener: port 0 is any.
    pub fn wanted(&self) -> Vec<Address> {
        self.current.iter().map(|it| it.wanted.clone()).collect()
    }

    /// Listeners that nobody reaches at their path any more, each in a sentence.
    pub fn lost_paths(&self) -> impl Iterator<Item = String> {
        let lost = self.current.iter().filter(|open| {
            let mut file = open.file.iter();
            file.any(|it| !it.is_there())
        });
        lost.map(|OpenListener { name, address, .. }| {
            format!(
                "listener {name}: another program has taken {address}, or the file is gone; only \
                 a restart binds it again"
            )
        })
    }

    /// The sockets that a process gets when it takes over. Sockets of listeners that left are
    /// among them where only those sockets make an address usable again.
    pub fn lend(&self) -> impl Iterator<Item = Lent<'_>> {
        self.current.iter().chain(&self.spare).filter_map(|open| {
            Some(Lent {
                name: &open.name,
                wanted: &open.wanted,
                copies: open.copies.as_ref()?,
                file: open.file.as_ref(),
            })
        })
    }
}
