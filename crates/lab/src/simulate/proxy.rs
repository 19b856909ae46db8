//! The proxy under virtual time: the policy that runs in the real one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

use evenkeel_policy::Instant;
use evenkeel_policy::balance::Balance;
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Acquired, Dispatcher, LaneSettings, SlotRequest};
use evenkeel_policy::endpoint::{EndpointId, EndpointSettings, EndpointState, Reservation, Tried};
use evenkeel_policy::health::HealthSettings;
use evenkeel_policy::queue::{Left, QueueSettings, Ticket};

use super::watch::{self, AttemptOver, Guarding};

/// The number of balancers, and their shared knowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balancers {
    /// Workers of one proxy: slots and queue are shared.
    Workers(usize),
    /// Several proxies, each of which knows only its own exchanges.
    Proxies(usize),
}

impl Balancers {
    /// How many.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Balancers::Workers(count) | Balancers::Proxies(count) => count,
        }
    }
}

/// Every endpoint's weight. Differences between endpoints have to be learned.
const WEIGHT: u32 = 1;

/// The settings of the proxy.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// The balancer.
    pub balance: Balance,
    /// Of every endpoint.
    pub max_in_flight: Option<u32>,
    /// Slots that slow pages are kept to, if they are.
    pub slow_lane: Option<u32>,
    /// Whether errors have consequences.
    pub guarding: Guarding,
    /// Bounds and order of the queue.
    pub queue: QueueSettings,
}

/// Requests that were woken and have not been looked at.
type Woken = Arc<Mutex<VecDeque<usize>>>;

/// A request's waker.
struct Bell {
    slot: usize,
    woken: Woken,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        locked(&self.woken).push_back(self.slot);
    }
}

fn locked(woken: &Woken) -> MutexGuard<'_, VecDeque<usize>> {
    match woken.lock() {
        Ok(woken) => woken,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// One balancer with the dispatcher that it uses.
#[derive(Debug)]
struct Worker {
    dispatcher: usize,
    chooser: Chooser,
}

/// All balancers.
#[derive(Debug)]
pub struct Proxy {
    dispatchers: Vec<Dispatcher>,
    workers: Vec<Worker>,
    woken: Woken,
    /// By the request's slot.
    wakers: Vec<Waker>,
}

impl Proxy {
    /// Nothing is in flight.
    #[must_use]
    pub fn new(
        policy: &Policy,
        balancers: Balancers,
        endpoint_count: usize,
        seed: u64,
        epoch: Instant,
    ) -> Self {
        let names: Vec<String> = (0..endpoint_count)
            .map(|index| format!("origin-{index}"))
            .collect();
        let dispatcher = || {
            let endpoints = names.iter().map(|name| EndpointSettings {
                name,
                fingerprint: 0,
                weight: WEIGHT,
                max_in_flight: policy.max_in_flight,
                tier: 0,
            });
            let lane = policy.slow_lane.map(|max_in_flight| LaneSettings {
                name: "slow",
                max_in_flight,
            });
            Dispatcher::new(
                endpoints,
                lane.as_slice(),
                policy.queue,
                HealthSettings {
                    guard: policy.guarding == Guarding::On,
                    ..HealthSettings::default()
                },
                epoch,
            )
        };
        let dispatcher_count = match balancers {
            Balancers::Workers(_) => 1,
            Balancers::Proxies(count) => count,
        };
        let dispatchers: Vec<_> = (0..dispatcher_count).map(|_| dispatcher()).collect();
        let mut seeds = fastrand::Rng::with_seed(!seed);
        let workers = (0..balancers.count()).map(|index| {
            let dispatcher = index % dispatcher_count;
            Worker {
                dispatcher,
                chooser: Chooser::new(
                    dispatchers[dispatcher].members(),
                    policy.balance,
                    seeds.u64(..),
                ),
            }
        });
        Proxy {
            workers: workers.collect(),
            dispatchers,
            woken: Woken::default(),
            wakers: Vec::new(),
        }
    }

    /// Asks for an endpoint, for the request in `slot`.
    pub fn acquire(&mut self, worker: usize, slot: usize, asking: &SlotRequest<'_>) -> Acquired {
        while self.wakers.len() <= slot {
            let bell = Bell {
                slot: self.wakers.len(),
                woken: self.woken.clone(),
            };
            self.wakers.push(Waker::from(Arc::new(bell)));
        }
        let worker = &mut self.workers[worker];
        let dispatcher = &self.dispatchers[worker.dispatcher];
        dispatcher.acquire(&mut worker.chooser, asking, &self.wakers[slot])
    }

    /// An endpoint as one that refused a connection.
    #[must_use]
    pub fn refused_until(&self, worker: usize, endpoint: EndpointId, until: Instant) -> Tried {
        Tried::Refused {
            endpoint,
            until,
            openings: self.state(worker, endpoint).openings(),
        }
    }

    /// A request that was woken: to be looked at with [`poll`](Self::poll).
    pub fn next_woken(&mut self) -> Option<usize> {
        locked(&self.woken).pop_front()
    }

    /// How a waiter left the queue, if it has.
    pub fn poll(&self, worker: usize, slot: usize, ticket: &Ticket) -> Option<Left> {
        self.dispatcher(worker).poll(ticket, &self.wakers[slot])
    }

    /// Takes a waiter out of the queue: the slot that it was granted just now,
    /// if it was.
    pub fn leave(&self, worker: usize, ticket: Ticket) -> Option<Reservation> {
        self.dispatcher(worker).leave(ticket)
    }

    /// Learns from an attempt and releases its slot.
    pub fn attempt_over(&mut self, worker: usize, lane: Option<usize>, attempt: &AttemptOver) {
        let worker = &mut self.workers[worker];
        let dispatcher = &self.dispatchers[worker.dispatcher];
        watch::attempt_over(dispatcher, &mut worker.chooser, attempt);
        let endpoint = worker.chooser.members().get(attempt.reservation.endpoint());
        let endpoint = endpoint.expect("members stay");
        dispatcher.release(endpoint, attempt.reservation, lane, || attempt.now);
    }

    /// The periodic work of every balancer.
    pub fn tick(&mut self, now: Instant, is_reachable: impl Fn(usize) -> bool) {
        for dispatcher in &self.dispatchers {
            watch::tick(dispatcher, now, &is_reachable);
        }
    }

    /// Exchanges in flight at an endpoint, as this balancer knows it.
    #[must_use]
    pub fn in_flight(&self, worker: usize, endpoint: EndpointId) -> u32 {
        self.state(worker, endpoint).in_flight()
    }

    /// Number of slots and places that are still held.
    #[must_use]
    pub fn held(&self) -> u64 {
        let held = |dispatcher: &Dispatcher| {
            let members = dispatcher.members();
            let states = members.endpoints().iter();
            let in_flight: u64 = states.map(|state| u64::from(state.in_flight())).sum();
            in_flight + dispatcher.waiting() as u64
        };
        self.dispatchers.iter().map(held).sum()
    }

    fn state(&self, worker: usize, endpoint: EndpointId) -> &EndpointState {
        let members = self.workers[worker].chooser.members();
        members.get(endpoint).expect("members stay")
    }

    fn dispatcher(&self, worker: usize) -> &Dispatcher {
        &self.dispatchers[self.workers[worker].dispatcher]
    }
}
