//! Upstreams as a worker sees them: shared endpoints, its own idle pools.
//!
//! Choosing is the policy crate's, connecting the net module's. What is shared
//! with other workers is [`Dispatcher`] and nothing else.

pub(crate) mod change;
mod pool;
pub mod probe;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use evenkeel_policy::balance::Balancer;
use evenkeel_policy::dispatch::{Acquired, Asking, Dispatcher, EndpointSettings, Refusal};
use evenkeel_policy::queue::QueueSettings;

use crate::config;
use crate::net::connect;
use crate::net::stream::Stream;
use pool::IdlePool;

/// One worker's side of an upstream.
#[derive(Debug)]
pub struct Upstream {
    config: Arc<config::Config>,
    index: usize,
    dispatcher: Arc<Dispatcher>,
    balancer: RefCell<Balancer>,
    pools: Vec<RefCell<IdlePool>>,
}

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Every endpoint that could be tried is at its limit.
    Saturated,
    /// No endpoint is up, ready and untried.
    NoEndpoint,
}

/// The right to one exchange at one endpoint; given back when dropped.
#[derive(Debug)]
pub struct Slot<'a> {
    upstream: &'a Upstream,
    endpoint: usize,
}

/// What the workers share of an upstream, with nothing in flight.
pub fn dispatcher(config: &config::Upstream) -> Dispatcher {
    let endpoints = config.endpoints.iter().map(|endpoint| EndpointSettings {
        name: &endpoint.name,
        weight: endpoint.weight,
        max_in_flight: endpoint.max_in_flight,
    });
    let queue = QueueSettings {
        max: 0,
        ..QueueSettings::default()
    };
    Dispatcher::new(endpoints, &[], queue, config.health, Instant::now())
}

impl Upstream {
    /// The side of one worker, with empty pools.
    pub fn new(
        config: Arc<config::Config>,
        index: usize,
        dispatcher: Arc<Dispatcher>,
        seed: u64,
    ) -> Self {
        let settings = &config.upstreams[index];
        Upstream {
            balancer: RefCell::new(Balancer::new(settings.balance, seed)),
            pools: settings
                .endpoints
                .iter()
                .map(|_| RefCell::new(IdlePool::new(&settings.pool)))
                .collect(),
            config,
            index,
            dispatcher,
        }
    }

    /// Its settings.
    pub fn config(&self) -> &config::Upstream {
        &self.config.upstreams[self.index]
    }

    /// Its position in the configuration.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Chooses an endpoint and takes a place there. `tried` are endpoints that
    /// this exchange will not go to again.
    ///
    /// # Errors
    /// No place can be had.
    ///
    /// # Cancellation
    /// Safe: dropping the future leaves nothing taken.
    pub async fn acquire(&self, tried: &[u32]) -> Result<Slot<'_>, Refused> {
        let now = Instant::now();
        let asking = Asking {
            tried,
            key: 0,
            lane: None,
            priority: 0,
            arrived: now,
            now,
        };
        let mut balancer = self.balancer.borrow_mut();
        match self
            .dispatcher
            .acquire(&mut balancer, &asking, Waker::noop())
        {
            Acquired::Reserved { endpoint } => Ok(Slot {
                upstream: self,
                endpoint,
            }),
            Acquired::Refused(Refusal::NoEndpoint) => Err(Refused::NoEndpoint),
            Acquired::Refused(_) => Err(Refused::Saturated),
            Acquired::Queued(_) => unreachable!("there is no queue"),
        }
    }

    /// Closes idle connections that are too old or that the endpoint closed;
    /// `now` is the worker's tick.
    pub fn sweep(&self, now: u64) {
        for pool in &self.pools {
            pool.borrow_mut().sweep(now);
        }
    }
}

/// An idle connection, and how many closed ones were found on the way to it.
#[derive(Debug)]
pub struct Reused {
    /// The most recently used one that is still open.
    pub stream: Option<Stream>,
    /// Connections that the endpoint had closed.
    pub stale: u64,
}

impl<'a> Slot<'a> {
    /// The upstream that it belongs to.
    pub fn upstream(&self) -> &'a Upstream {
        self.upstream
    }

    /// Index of the endpoint in its upstream.
    pub fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// The endpoint's settings.
    pub fn config(&self) -> &config::Endpoint {
        &self.upstream.config().endpoints[self.endpoint]
    }

    /// Takes an idle connection, the most recently used first.
    pub fn take_idle(&self) -> Reused {
        self.upstream.pools[self.endpoint].borrow_mut().take()
    }

    /// Keeps a connection for the next exchange; `now` is the worker's tick.
    pub fn keep_idle(&self, stream: Stream, now: u64) {
        self.upstream.pools[self.endpoint]
            .borrow_mut()
            .put(stream, now);
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// As the kernel says; there is no timeout here.
    pub async fn connect(&self) -> io::Result<Stream> {
        connect::connect(&self.config().address).await
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.upstream
            .dispatcher
            .release(self.endpoint, None, Instant::now);
    }
}
