//! Upstreams as a worker sees them: shared endpoints, its idle pools.
//!
//! Choosing is the policy crate's, connecting the net module's. Workers share a
//! [`SharedUpstream`]: the dispatcher, and the idle connections to endpoints with a limit. A
//! worker's own part is an [`UpstreamSide`], which all its generations share. An [`Upstream`] is
//! a generation's handle to that side, and hands out the [`Slot`]s of exchanges.

pub(crate) mod change;
mod endpoint;
pub mod http2;
mod pinned;
mod pool;
pub mod probe;
mod shared;
mod side;
mod slot;
mod sticky;

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_policy::Instant;
use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{EndpointId, Tried};
use evenkeel_policy::members::Members;

use crate::config::{self, Sticky};

pub use endpoint::Endpoint;
pub use evenkeel_policy::queue::Refusal;
pub use pinned::{PinReason, Pinned, PinnedConnections};
pub use pool::{KeepAlive, Reused, keep_alive};
pub use shared::{SharedEndpoint, SharedUpstream, shared_upstreams};
pub use side::{UpstreamSide, UpstreamSides};
pub(crate) use slot::{BACKLOG_FULL, HANDSHAKE_TIMEOUT};
pub use slot::{Chosen, NoSlot, Slot, SlotCriteria, WaitFailure, Waiting};
pub(crate) use sticky::explained_endpoint;
pub use sticky::prepare_own_key;

/// An upstream as one generation of a worker sees it.
///
/// It has the generation's settings, and the worker's side, which other generations may have as
/// well.
#[derive(Debug)]
pub struct Upstream {
    config: Arc<config::Config>,
    index: usize,
    side: Rc<UpstreamSide>,
    /// For each lane of the configuration the dispatcher's.
    lanes: Box<[u32]>,
}

/// Endpoints whose exchanges in flight are added up each time.
const SUMMED_AT_ONCE: usize = 32;

impl Upstream {
    /// The upstream with this index in the configuration, which it follows or followed,
    /// with the worker's side of it.
    pub fn new(config: Arc<config::Config>, index: usize, side: Rc<UpstreamSide>) -> Self {
        let lanes = config.upstreams[index].lanes.iter();
        let lanes = lanes.map(|it| side.dispatcher.lane_named(&it.name));
        let lanes = lanes.map(|it| it.expect("the dispatcher has the lane") as u32);
        Upstream {
            lanes: lanes.collect(),
            config,
            index,
            side,
        }
    }

    /// Its settings.
    pub fn config(&self) -> &config::Upstream {
        &self.config.upstreams[self.index]
    }

    /// Length of the last body that began, in bytes, 0 where it was not known: the expectation
    /// for the next.
    pub fn last_body_len(&self) -> u64 {
        self.side.last_body_len.get()
    }

    /// Notes how long a body is going to be, in bytes; 0 where that is not known.
    pub fn note_body_len(&self, len: u64) {
        self.side.last_body_len.set(len);
    }

    /// Its position in the configuration.
    pub fn index(&self) -> usize {
        self.index
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.side.dispatcher
    }

    /// The endpoints that it chooses from, in their order.
    pub fn members(&self) -> Arc<Members> {
        self.side.chooser.borrow().members().clone()
    }

    /// The endpoint that the value of a sticky cookie stands for, if there is one.
    pub fn sticky_endpoint(&self, sticky: &Sticky, value: &[u8]) -> Option<EndpointId> {
        let name = &self.config().name;
        let cookies = &self.side.sticky_cookies;
        cookies.endpoint(sticky, name, &self.members(), value)
    }

    /// Calls `use_value` with the value of the sticky cookie that stands for an endpoint;
    /// `None` where that has left.
    pub fn with_sticky_value<T>(
        &self,
        sticky: &Sticky,
        endpoint: EndpointId,
        use_value: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let name = &self.config().name;
        let cookies = &self.side.sticky_cookies;
        cookies.with_value(sticky, name, &self.members(), endpoint, use_value)
    }

    /// This worker's side of an endpoint, if it has used the endpoint.
    pub fn used(&self, endpoint: EndpointId) -> Option<Rc<Endpoint>> {
        self.side.used(endpoint)
    }

    /// Whether an endpoint takes exchanges that is not among `tried`.
    pub fn has_untried(&self, tried: &[Tried], now: Instant) -> bool {
        self.side.chooser.borrow().members().has_untried(tried, now)
    }

    /// Whether an endpoint takes exchanges, and its last connection opened.
    pub fn is_reachable(&self) -> bool {
        self.side.chooser.borrow().members().is_reachable()
    }

    /// Counts a copy of a request until the result is dropped. `None` where this worker has `max`
    /// copies in flight here.
    pub fn begin_copy(&self, max: u32) -> Option<CopyInFlight> {
        let in_flight = self.side.copies.get();
        (in_flight < max).then(|| {
            self.side.copies.set(in_flight + 1);
            CopyInFlight(self.side.clone())
        })
    }

    /// Counts a request towards the retries that are allowed.
    pub fn count_request(&self) {
        let retries = &self.dispatcher().retries;
        retries.request(&mut self.side.tally.borrow_mut());
    }

    /// Takes a retry out of the budget, if one is left. Whether there was one.
    pub fn may_retry(&self, now: Instant) -> bool {
        let retries = &self.dispatcher().retries;
        retries.try_retry(&mut self.side.tally.borrow_mut(), now)
    }

    /// The line of a key, where keys share the queue.
    pub fn line_of(&self, key: &[u8]) -> u64 {
        self.dispatcher().line_of(key)
    }

    /// Exchanges that wait in the queue, of all workers.
    pub fn waiting(&self) -> usize {
        self.dispatcher().waiting()
    }

    /// Exchanges in flight at all endpoints, of all workers. Many endpoints are added up once a
    /// tick; `now` is the worker's.
    pub fn in_flight(&self, now: u64) -> u64 {
        let chooser = self.side.chooser.borrow();
        let states = chooser.members().endpoints();
        let (tick, in_flight) = self.side.in_flight.get();
        if tick == now && states.len() > SUMMED_AT_ONCE {
            return in_flight;
        }
        let in_flight = states.iter().map(|it| u64::from(it.in_flight())).sum();
        self.side.in_flight.set((now, in_flight));
        in_flight
    }
}

/// Counts a copy of a request as in flight.
#[derive(Debug)]
pub struct CopyInFlight(Rc<UpstreamSide>);

impl Drop for CopyInFlight {
    fn drop(&mut self) {
        self.0.copies.update(|it| it - 1);
    }
}
