//! The endpoints of an upstream at one moment.
//!
//! [`Members`] is a snapshot that never changes; the dispatcher replaces it as a
//! whole. Each worker has a [`Chooser`](crate::chooser::Chooser) with the snapshot that it
//! chooses from, and takes the next one over before a pick.
//!
//! Invariant: within one snapshot an endpoint is found by its position, which is
//! what keeps a pick fast. Across snapshots it is found by its [`EndpointId`].

use std::sync::Arc;

use crate::endpoint::{EndpointId, EndpointState};

/// No position.
const NONE: u32 = u32::MAX;

/// The endpoints of an upstream, in order.
///
/// The count of each `Arc` says whether an endpoint that left is still in use: it
/// is touched where the members change, and by no exchange.
#[derive(Debug, Default)]
pub struct Members {
    /// Tells snapshots of one dispatcher apart.
    version: u32,
    endpoints: Box<[Arc<EndpointState>]>,
    /// Of each endpoint, side by side for balancers by key.
    identities: Box<[u64]>,
    /// By id.
    positions: Box<[u32]>,
    /// The lowest tier, where the endpoints are of several.
    lowest_of_several_tiers: Option<u16>,
}

impl Members {
    pub(crate) fn new(version: u32, endpoints: Vec<Arc<EndpointState>>) -> Self {
        let ids = endpoints.iter().map(|it| it.id().index() + 1);
        let mut positions = vec![NONE; ids.max().unwrap_or(0)];
        for (position, endpoint) in endpoints.iter().enumerate() {
            positions[endpoint.id().index()] = position as u32;
        }
        let tiers = || endpoints.iter().map(|it| it.tier());
        let lowest = tiers().min();
        Members {
            version,
            lowest_of_several_tiers: lowest.filter(|&lowest| tiers().any(|it| it != lowest)),
            identities: endpoints.iter().map(|it| it.identity()).collect(),
            endpoints: endpoints.into(),
            positions: positions.into(),
        }
    }

    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// All of them, in their order.
    pub fn endpoints(&self) -> &[Arc<EndpointState>] {
        &self.endpoints
    }

    pub(crate) fn lowest_of_several_tiers(&self) -> Option<u16> {
        self.lowest_of_several_tiers
    }

    pub(crate) fn identities(&self) -> &[u64] {
        &self.identities
    }

    /// The member with this id.
    pub fn get(&self, id: EndpointId) -> Option<&Arc<EndpointState>> {
        self.endpoints.get(self.position(id)?)
    }

    /// The first member of this name.
    pub fn named(&self, name: &str) -> Option<&Arc<EndpointState>> {
        self.endpoints.iter().find(|it| it.name() == name)
    }

    /// The place of the member with this id in the order.
    pub fn position(&self, id: EndpointId) -> Option<usize> {
        let position = *self.positions.get(id.index())?;
        (position != NONE).then_some(position as usize)
    }

    /// Whether this very endpoint is a member.
    pub(crate) fn has(&self, endpoint: &EndpointState) -> bool {
        self.get(endpoint.id())
            .is_some_and(|it| std::ptr::eq(&**it, endpoint))
    }
}

/// The old positions of a snapshot's endpoints.
#[derive(Debug)]
pub struct Moved {
    /// For each position its old one; `None` where the endpoint is new.
    sources: Vec<Option<usize>>,
}

impl Moved {
    pub(crate) fn between(old: &Members, new: &Members) -> Self {
        let source = |it: &Arc<EndpointState>| old.position(it.id()).filter(|_| old.has(it));
        Moved {
            sources: new.endpoints.iter().map(source).collect(),
        }
    }

    /// Reorders a table by position into the new order. `fresh` makes the entries of new
    /// endpoints.
    pub(crate) fn carry<T>(&self, table: &mut Vec<T>, mut fresh: impl FnMut() -> T) {
        let mut old: Vec<_> = std::mem::take(table).into_iter().map(Some).collect();
        let mut taken = |at: usize| old.get_mut(at)?.take();
        let sources = self.sources.iter();
        table.extend(sources.map(|it| it.and_then(&mut taken).unwrap_or_else(&mut fresh)));
    }

    /// The new position of what stood there; `None` where it left.
    pub(crate) fn position_of(&self, old: usize) -> Option<usize> {
        self.sources.iter().position(|&it| it == Some(old))
    }
}
