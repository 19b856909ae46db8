//! A worker's side of its listeners.
//!
//! Per worker, except [`SharedListener`]. A listener is identified by its bound address, whatever
//! else a configuration changes. One that left keeps the last generation that had it, for its
//! open connections.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use evenkeel_policy::in_flight::{CountedAt, Entering, InFlightTable};
use rustls::ServerConfig;

use super::Generation;
use crate::certificates::ServedTls;
use crate::config;
use crate::limits::{PREFIX_V4, PREFIX_V6, with_network};
use crate::metrics::OpenCount;
use crate::observe::counters::ListenerCounters;
use crate::observe::sessions::ListenerId;

/// The state of a listener that all workers share.
#[derive(Debug)]
pub struct SharedListener {
    /// Identifies the listener in the process. Reused only when no worker has a side of the
    /// listener.
    pub id: ListenerId,
    /// Open connections, over all workers.
    pub open: OpenCount,
    /// Open connections by client, once there was a limit on them.
    by_client: OnceLock<InFlightTable>,
}

/// Clients that are counted apart. The table takes 1 MiB.
const CLIENTS: usize = 131_072;

impl SharedListener {
    /// A listener without a connection.
    pub fn new(id: ListenerId) -> Self {
        SharedListener {
            id,
            open: OpenCount::default(),
            by_client: OnceLock::new(),
        }
    }
}

/// A connection's standing towards the limit on its client's connections.
#[derive(Debug)]
pub(crate) enum ClientQuota {
    /// There is no limit, so it is not counted.
    NotCounted,
    /// It is within the limit.
    Counted(Box<CountedConnection>),
    /// The client is at the limit.
    TooMany,
}

/// A connection that is counted by client. Dropping it ends the count.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    listener: Rc<ListenerSide>,
    place: CountedAt,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        if let Some(table) = self.listener.shared.by_client.get() {
            table.leave(self.place);
        }
    }
}

/// One worker's side of a listener.
///
/// Connections hold it, so it lives until the last of them is closed.
#[derive(Debug)]
pub struct ListenerSide {
    shared: Arc<SharedListener>,
    /// The generation of its next exchanges: the newest one, or the last that had the listener.
    generation: RefCell<Rc<Generation>>,
    /// Its index in the configuration of that generation.
    position: Cell<usize>,
    /// Open connections on this worker.
    open_count: Cell<u64>,
    is_closing: Cell<bool>,
}

impl ListenerSide {
    fn new(shared: Arc<SharedListener>, generation: Rc<Generation>, position: usize) -> Self {
        ListenerSide {
            shared,
            generation: RefCell::new(generation),
            position: Cell::new(position),
            open_count: Cell::default(),
            is_closing: Cell::default(),
        }
    }

    /// The state that all workers share.
    #[cfg(test)]
    pub fn shared(&self) -> &Arc<SharedListener> {
        &self.shared
    }

    /// Its id.
    pub fn id(&self) -> ListenerId {
        self.shared.id
    }

    /// Its open connections, over all workers.
    pub fn open(&self) -> &OpenCount {
        &self.shared.open
    }

    /// Counts one more connection of this peer, unless the client is at its limit.
    pub(crate) fn count_of_client(self: &Rc<Self>, peer: Option<IpAddr>) -> ClientQuota {
        let limit = self.setting(|it| {
            let is_proxy = || {
                let header = it.proxy_protocol.header_from(peer);
                it.trusted_proxies.contains(peer) || header.is_some()
            };
            let limit = it.limits.connections_per_client;
            limit.filter(|_| !is_proxy())
        });
        let (Some(limit), Some(address)) = (limit, peer) else {
            return ClientQuota::NotCounted;
        };
        let table = &self.shared.by_client;
        let table = table.get_or_init(|| InFlightTable::new(CLIENTS));
        let entering = with_network(address, PREFIX_V4, PREFIX_V6, |key| table.enter(key, limit));
        match entering {
            Entering::NotCounted => ClientQuota::NotCounted,
            Entering::Refused => ClientQuota::TooMany,
            Entering::Counted(place) => ClientQuota::Counted(Box::new(CountedConnection {
                listener: self.clone(),
                place,
            })),
        }
    }

    /// Whether it accepts nothing new: it has left, or the process drains. Its idle connections
    /// are closed, and others after their exchange.
    pub fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// The generation of its next exchange, and its index in that.
    pub(super) fn generation(&self) -> (Rc<Generation>, usize) {
        (self.generation.borrow().clone(), self.position.get())
    }

    /// Whether its next exchange has this generation.
    pub(super) fn is_of(&self, generation: &Rc<Generation>) -> bool {
        Rc::ptr_eq(&self.generation.borrow(), generation)
    }

    /// Reads a setting in the present configuration.
    pub fn setting<T>(&self, read: impl FnOnce(&config::Listener) -> T) -> T {
        let generation = self.generation.borrow();
        read(&generation.config.listeners[self.position.get()])
    }

    /// The TLS for its next client; `None` for plain text.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        let generation = self.generation.borrow();
        let served = generation.tls[self.position.get()].as_ref()?;
        Some(served.config())
    }

    /// Its certificates, if any are ordered by ACME; `None` if all come from files.
    pub fn ordering(&self) -> Option<Arc<ServedTls>> {
        let generation = self.generation.borrow();
        let served = generation.tls[self.position.get()].as_ref()?;
        served.acme().map(|_| served.clone())
    }

    /// Whether its next client gets these certificates.
    pub fn is_ordering(&self, served: &Arc<ServedTls>) -> bool {
        let generation = self.generation.borrow();
        let now = generation.tls[self.position.get()].as_ref();
        now.is_some_and(|it| Arc::ptr_eq(it, served))
    }

    /// Whether endpoints get the certificates of its clients.
    pub fn forwards_certificates(&self) -> bool {
        let generation = self.generation.borrow();
        let served = generation.tls[self.position.get()].as_ref();
        served.is_some_and(|it| it.forwards_certificates())
    }

    /// This worker's counters of it, under its present name.
    pub fn counters(&self) -> Arc<ListenerCounters> {
        let generation = self.generation.borrow();
        generation.counters.listeners[self.position.get()].clone()
    }

    /// Counts a connection that has a place within the listener's limit.
    pub fn opened(&self) {
        self.open_count.update(|it| it + 1);
        let gauge = &self.counters().open;
        gauge.set(gauge.value() + 1);
    }

    /// Ends the count of a connection, and frees its place.
    pub fn closed(&self) {
        self.open_count.update(|it| it - 1);
        let gauge = &self.counters().open;
        gauge.set(gauge.value() - 1);
        self.shared.open.remove();
    }

    /// Switches to the configuration of this generation.
    fn follow(&self, generation: &Rc<Generation>, position: usize) {
        let before = self.counters();
        self.generation.replace(generation.clone());
        self.position.set(position);
        // Open connections count under the present name.
        let (now, open) = (self.counters(), self.open_count.get());
        before.open.set(before.open.value() - open);
        now.open.set(now.open.value() + open);
    }

    fn close(&self) {
        self.is_closing.set(true);
    }
}

/// A worker's sides of its listeners: those of the newest generation, and those that left and
/// have connections.
#[derive(Debug, Default)]
pub struct ListenerSides(RefCell<Vec<Rc<ListenerSide>>>);

impl ListenerSides {
    /// Switches the listeners of this generation to it. Returns them in the order of the
    /// configuration, and whether the tasks of connections have to look again: because other
    /// listeners left, or because a client may wait for a certificate that others order now.
    pub(super) fn follow(
        &self,
        generation: &Rc<Generation>,
        listeners: &[Arc<SharedListener>],
    ) -> (Vec<Rc<ListenerSide>>, bool) {
        let before = self.0.take();
        let find = |id: ListenerId| before.iter().find(|it| it.id() == id);
        let listeners = listeners.iter().enumerate();
        let mut must_look = false;
        let current = listeners.map(|(position, shared)| match find(shared.id) {
            Some(side) => {
                let ordering = side.ordering();
                side.follow(generation, position);
                must_look |= ordering.is_some_and(|it| !side.is_ordering(&it));
                side.clone()
            }
            None => {
                let (shared, generation) = (shared.clone(), generation.clone());
                Rc::new(ListenerSide::new(shared, generation, position))
            }
        });
        let current: Vec<_> = current.collect();
        let is_current = |it: &Rc<ListenerSide>| current.iter().any(|side| Rc::ptr_eq(side, it));
        let left: Vec<_> = before.into_iter().filter(|it| !is_current(it)).collect();
        must_look |= left.iter().any(|it| !it.is_closing());
        left.iter().for_each(|it| it.close());
        self.0.replace([&current[..], &left].concat());
        self.forget_gone();
        (current, must_look)
    }

    /// All sides.
    pub fn all(&self) -> Vec<Rc<ListenerSide>> {
        self.0.borrow().clone()
    }

    /// The name of the listener with this id.
    pub fn name(&self, id: ListenerId) -> Option<String> {
        let sides = self.0.borrow();
        let side = sides.iter().find(|it| it.id() == id)?;
        Some(side.setting(|it| it.name.clone()))
    }

    /// Number of sides whose next exchange has this generation.
    pub(super) fn count_of(&self, generation: &Rc<Generation>) -> usize {
        let sides = self.0.borrow();
        sides.iter().filter(|it| it.is_of(generation)).count()
    }

    /// Open connections in the process, over all listeners.
    pub fn open_connections(&self) -> u32 {
        self.0.borrow().iter().map(|it| it.open().value()).sum()
    }

    /// Has all of them accept nothing new: see [`ListenerSide::is_closing`].
    pub(super) fn close(&self) {
        self.0.borrow().iter().for_each(|it| it.close());
    }

    /// Removes sides that left and have neither connections nor a socket.
    pub fn forget_gone(&self) {
        let mut sides = self.0.borrow_mut();
        sides.retain(|it| !it.is_closing() || Rc::strong_count(it) > 1);
    }
}
