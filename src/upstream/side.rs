//! One worker's side of its upstreams: learned values, counters and open connections.
//!
//! Per worker. A side lives as long as a generation that has its upstream. The generations of a
//! worker share it, so that connections, learned times and tallies outlive a change of the
//! configuration.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use evenkeel_policy::Instant;
use evenkeel_policy::balance::{Balance, Learned};
use evenkeel_policy::budget::Tally;
use evenkeel_policy::chooser::{Chooser, ChooserSnapshot};
use evenkeel_policy::dispatch::{Dispatcher, Outlook, SlotRequest};
use evenkeel_policy::endpoint::EndpointId;

use super::endpoint::{Endpoint, Endpoints};
use super::shared::SharedUpstream;
use super::sticky::StickyCookies;
use crate::config;
use crate::observe::counters::CountersByEndpoint;
use crate::observe::inquiry::LearnedSide;

/// One worker's side of an upstream.
#[derive(Debug)]
pub struct UpstreamSide {
    shared: Arc<SharedUpstream>,
    /// The dispatcher of `shared`, one step nearer.
    pub(super) dispatcher: Arc<Dispatcher>,
    balance: Cell<Balance>,
    pub(super) chooser: RefCell<Chooser>,
    endpoints: RefCell<Endpoints>,
    counters: Arc<CountersByEndpoint>,
    /// Requests that the retry budget does not know of yet.
    pub(super) tally: RefCell<Tally>,
    /// The tick at which exchanges in flight were added up last, and how many
    /// they were.
    pub(super) in_flight: Cell<(u64, u64)>,
    /// Length of the body that began last, in bytes; 0 where it was not known.
    pub(super) last_body_len: Cell<u64>,
    pub(super) sticky_cookies: StickyCookies,
    /// Copies of requests that are in flight, or wait.
    pub(super) copies: Cell<u32>,
}

impl UpstreamSide {
    fn new(
        shared: &Arc<SharedUpstream>,
        balance: Balance,
        counters: &Arc<CountersByEndpoint>,
        seed: u64,
    ) -> Self {
        UpstreamSide {
            chooser: RefCell::new(Chooser::new(shared.dispatcher().members(), balance, seed)),
            balance: Cell::new(balance),
            dispatcher: shared.dispatcher().clone(),
            shared: shared.clone(),
            endpoints: RefCell::default(),
            counters: counters.clone(),
            tally: RefCell::default(),
            in_flight: Cell::default(),
            last_body_len: Cell::default(),
            sticky_cookies: StickyCookies::default(),
            copies: Cell::default(),
        }
    }

    /// Follows these settings from now on.
    fn follow(&self, config: &config::Upstream, seed: u64) {
        self.balance_by(config.balance, seed);
        self.endpoints.borrow_mut().follow(&config.pool);
    }

    /// Balances like this from now on. Another balancer begins with nothing learned.
    fn balance_by(&self, balance: Balance, seed: u64) {
        if self.balance.replace(balance) != balance {
            self.chooser
                .replace(Chooser::new(self.dispatcher.members(), balance, seed));
        }
    }

    /// This worker's side of an endpoint, if it has used the endpoint.
    pub fn used(&self, endpoint: EndpointId) -> Option<Rc<Endpoint>> {
        self.endpoints.borrow().get(endpoint).cloned()
    }

    #[cold]
    pub(super) fn begin(&self, endpoint: EndpointId) -> Rc<Endpoint> {
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.begin(endpoint, &self.shared, &self.counters)
    }

    /// The outcome for an exchange that came now, and the learned values of endpoints. Changes
    /// nothing: a copy of the balancer picks.
    pub fn outlook(&self, asking: &SlotRequest<'_>) -> (Outlook, Vec<(EndpointId, Learned)>) {
        let mut chooser = self.chooser.borrow().clone();
        let outlook = self.dispatcher.outlook(&mut chooser, asking);
        let ids = chooser.members().endpoints().iter().map(|it| it.id());
        let learned = ids.filter_map(|id| Some((id, chooser.learned(id, asking.now)?)));
        (outlook, learned.collect())
    }

    /// A copy of the chooser, for another process to learn from.
    pub fn learned(&self) -> LearnedSide {
        LearnedSide {
            upstream: self.shared.name().to_owned(),
            balance: self.balance.get(),
            chooser: self.chooser.borrow().clone(),
        }
    }

    /// Goes on from the learned state of another process, with the newest members.
    pub fn learn(&self, kept: &ChooserSnapshot, now: Instant) {
        let mut chooser = self.chooser.borrow_mut();
        self.dispatcher.update(&mut chooser);
        chooser.restore(kept, now);
    }

    /// How it balances.
    pub fn balance(&self) -> Balance {
        self.balance.get()
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Shows each endpoint that this worker has used.
    pub fn for_each_endpoint(&self, mut show: impl FnMut(&Endpoint)) {
        self.endpoints.borrow().iter().for_each(|it| show(it));
    }

    /// The endpoint with the largest `key` that this worker has used.
    pub fn max_endpoint_by_key(&self, key: impl Fn(&Endpoint) -> usize) -> Option<Rc<Endpoint>> {
        let endpoints = self.endpoints.borrow();
        endpoints.iter().max_by_key(|it| key(it)).cloned()
    }

    /// Closes idle connections that are too old or that the endpoint closed, and
    /// takes notice of endpoints that left; `now` is the worker's tick.
    pub fn sweep(&self, now: u64) {
        self.dispatcher.update(&mut self.chooser.borrow_mut());
        self.endpoints.borrow_mut().sweep(now);
    }

    /// Closes idle connections to endpoints that this worker has used. Shared ones of endpoints
    /// with a limit are among them.
    pub fn close_idle(&self) {
        self.for_each_endpoint(|it| {
            it.pool.close();
            it.http2().close_idle(usize::MAX);
        });
    }
}

/// The sides that a worker has, of the upstreams of all its living generations.
///
/// Invariant: an upstream has one side in a worker, whichever generation asks for it.
/// It goes with the last generation that has the upstream, and its idle connections
/// are closed then.
#[derive(Debug, Default)]
pub struct UpstreamSides {
    /// By the address of the dispatcher, which the side holds: it names no other
    /// upstream while the side lives.
    by_dispatcher: RefCell<HashMap<*const Dispatcher, Weak<UpstreamSide>>>,
}

impl UpstreamSides {
    /// The side of this upstream, which follows `config` from now on; begun where the
    /// worker has none. `counters` are of its endpoints.
    pub fn of(
        &self,
        shared: &Arc<SharedUpstream>,
        config: &config::Upstream,
        counters: &Arc<CountersByEndpoint>,
        seed: u64,
    ) -> Rc<UpstreamSide> {
        if let Some(side) = self.get(shared.dispatcher()) {
            side.follow(config, seed);
            return side;
        }
        let side = Rc::new(UpstreamSide::new(shared, config.balance, counters, seed));
        let dispatcher = Arc::as_ptr(shared.dispatcher());
        let mut by_dispatcher = self.by_dispatcher.borrow_mut();
        by_dispatcher.insert(dispatcher, Rc::downgrade(&side));
        side
    }

    /// The side of the upstream with this dispatcher, if the worker has one.
    pub fn get(&self, dispatcher: &Arc<Dispatcher>) -> Option<Rc<UpstreamSide>> {
        let by_dispatcher = self.by_dispatcher.borrow();
        by_dispatcher.get(&Arc::as_ptr(dispatcher))?.upgrade()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Rc<UpstreamSide>> {
        let by_dispatcher = self.by_dispatcher.borrow();
        by_dispatcher.values().filter_map(Weak::upgrade).collect()
    }

    /// Copies of requests that are in flight to any of them.
    pub fn copies(&self) -> u32 {
        self.all().iter().map(|it| it.copies.get()).sum()
    }

    /// Closes the idle connections of a worker that drains: see
    /// [`UpstreamSide::close_idle`]. Their places are a successor's.
    pub fn close_idle(&self) {
        self.all().iter().for_each(|it| it.close_idle());
    }

    /// Forgets sides of upstreams that no generation has any more.
    pub fn forget_gone(&self) {
        let mut by_dispatcher = self.by_dispatcher.borrow_mut();
        by_dispatcher.retain(|_, side| side.strong_count() > 0);
    }
}
