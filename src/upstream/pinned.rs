//! Idle connections that belong to one client.
//!
//! NTLM and Negotiate authenticate the connection: every later request on it is the same user's.
//! Such a connection carries requests of one client's connection alone, and is closed with it. So
//! does one that began with a PROXY header, which names the client.
//!
//! Invariant: a connection on which a request had credentials for the connection
//! ([`Credentials::OfConnection`](evenkeel_proto::Credentials)) is pinned or closed.
//! It never enters a pool that others take from. Nor does one that began with a header.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use evenkeel_policy::endpoint::{EndpointId, Flag};

use super::Upstream;
use super::endpoint::Endpoint;
use super::pool::{HeldConnection, Reused};
use super::side::UpstreamSide;

/// The pinned connections of a worker's clients: one for each client and upstream. Clients are
/// known by the keys of their sessions.
///
/// They are apart from the clients' own state, which stays small: few clients have any.
#[derive(Debug, Default)]
pub struct PinnedConnections(RefCell<HashMap<u32, Vec<Pinned>>>);

/// An idle connection that belongs to one client.
#[derive(Debug)]
pub struct Pinned {
    upstream: Weak<UpstreamSide>,
    endpoint: Rc<Endpoint>,
    bond: PinReason,
    held: HeldConnection,
}

/// Why a connection belongs to one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinReason {
    /// It was authenticated: the client's requests follow it to its endpoint.
    Authenticated,
    /// It names the client. A new connection elsewhere does as well.
    TellsClient,
}

impl PinnedConnections {
    /// Whether no client has one.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Adds one of a client. Another to the same upstream is closed.
    #[cold]
    pub fn add(&self, client: u32, pinned: Pinned) {
        let mut clients = self.0.borrow_mut();
        let own = clients.entry(client).or_default();
        own.retain(|it| !it.upstream.ptr_eq(&pinned.upstream));
        own.push(pinned);
    }

    /// The endpoint that a client has authenticated itself to, in this upstream.
    #[cold]
    pub fn endpoint_of(&self, client: u32, upstream: &Upstream) -> Option<EndpointId> {
        let clients = self.0.borrow();
        let mut own = clients.get(&client)?.iter();
        let pinned = own.find(|it| it.is_to(upstream) && it.bond == PinReason::Authenticated)?;
        Some(pinned.endpoint.id())
    }

    /// Takes out a client's connection to this upstream.
    #[cold]
    pub fn take(&self, client: u32, upstream: &Upstream) -> Option<Pinned> {
        let mut clients = self.0.borrow_mut();
        let own = clients.get_mut(&client)?;
        let at = own.iter().position(|it| it.is_to(upstream))?;
        let pinned = own.swap_remove(at);
        if own.is_empty() {
            clients.remove(&client);
        }
        Some(pinned)
    }

    /// Ready once a connection of this client was closed to make room for another. The client
    /// then has to authenticate again.
    #[cold]
    pub fn poll_displaced(&self, cx: &Context<'_>, client: u32) -> Poll<()> {
        let clients = self.0.borrow();
        let Some(own) = clients.get(&client) else {
            return Poll::Pending;
        };
        let is_displaced = |it: &&Pinned| {
            it.bond == PinReason::Authenticated && it.held.poll_displaced(cx).is_ready()
        };
        // Each of them has to wake the task.
        match own.iter().filter(is_displaced).count() {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Closes connections that their endpoints have closed, or are about to, and connections to
    /// endpoints that left. `now` is the worker's tick. Connections that count towards a limit
    /// are swept with their pool.
    pub fn sweep(&self, now: u64) {
        self.0.borrow_mut().retain(|_, own| {
            own.retain_mut(|it| !it.has_left() && !it.held.is_stale(now));
            !own.is_empty()
        });
    }

    /// Closes the connections of a client that has left.
    #[cold]
    pub fn close(&self, client: u32) {
        let own = self.0.borrow_mut().remove(&client);
        drop(own);
    }
}

impl Pinned {
    pub(super) fn new(
        upstream: &Upstream,
        endpoint: Rc<Endpoint>,
        bond: PinReason,
        held: HeldConnection,
    ) -> Self {
        Pinned {
            upstream: Rc::downgrade(&upstream.side),
            endpoint,
            bond,
            held,
        }
    }

    /// Why it belongs to its client.
    pub fn bond(&self) -> PinReason {
        self.bond
    }

    fn is_to(&self, upstream: &Upstream) -> bool {
        std::ptr::eq(self.upstream.as_ptr(), &*upstream.side)
    }

    /// Whether its endpoint is no member any more, or has a pool of another kind, or its
    /// upstream is gone.
    fn has_left(&self) -> bool {
        self.upstream.strong_count() == 0
            || self.endpoint.state().has(Flag::Removed)
            || self.endpoint.is_superseded()
    }

    /// The connection for an exchange that has a slot at this endpoint; `now` is the worker's
    /// tick. If the slot is at another endpoint than the connection's, the connection is closed.
    pub(super) fn take_for(self, endpoint: &Rc<Endpoint>, now: u64) -> Reused {
        if Rc::ptr_eq(&self.endpoint, endpoint) {
            self.held.take(now)
        } else {
            Reused::default()
        }
    }
}
