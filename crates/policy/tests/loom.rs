//! The hand-over of slots and connections under every order of memory accesses
//! that two or three threads can have: `make loom`.
#![cfg(loom)]

use std::future::poll_fn;
use std::task::{Poll, Waker};

use evenkeel_policy::Instant;
use evenkeel_policy::balance::Balance;
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Acquired, Dispatcher, LaneSettings, SlotRequest};
use evenkeel_policy::endpoint::{EndpointSettings, EndpointState, Reservation};
use evenkeel_policy::health::HealthSettings;
use evenkeel_policy::pool::{Checkout, Owner, SharedPool};
use evenkeel_policy::queue::{Left, QueueSettings, Ticket};
use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const NAMES: [&str; 2] = ["a", "b"];

struct Site {
    dispatcher: Dispatcher,
    /// A worker's at its start. It knows the first members.
    chooser: Chooser,
    /// Of the first endpoint.
    pool: SharedPool<Opened>,
    /// The client that pinned connections belong to.
    owner: Arc<Owner>,
    /// Threads of the first endpoint that a connection occupies, an idle one
    /// too.
    occupied: Arc<AtomicU32>,
    /// Exchanges that hold a slot, as the endpoint would count them.
    inside: AtomicU32,
    limit: u32,
    now: Instant,
}

impl Site {
    fn new(limits: &[u32], lanes: &[u32]) -> Arc<Self> {
        let now = Instant::from_nanos(1_000_000_000);
        let endpoints = NAMES.iter().zip(limits);
        let endpoints = endpoints.map(|(name, &limit)| settings(name, limit));
        let queue = QueueSettings::default();
        let health = HealthSettings::default();
        let lanes = lanes.iter().map(|&max_in_flight| LaneSettings {
            name: "lane",
            max_in_flight,
        });
        let lanes: Vec<_> = lanes.collect();
        let dispatcher = Dispatcher::new(endpoints, &lanes, queue, health, now);
        Arc::new(Site {
            chooser: Chooser::new(dispatcher.members(), Balance::RoundRobin, 0),
            dispatcher,
            pool: SharedPool::new(8),
            owner: Arc::default(),
            occupied: Arc::new(AtomicU32::new(0)),
            inside: AtomicU32::new(0),
            limit: limits.iter().sum(),
            now,
        })
    }

    fn acquire(&self, lane: Option<usize>, waker: &Waker) -> Acquired {
        let asking = SlotRequest {
            tried: &[],
            key: 0,
            pinned_to: None,
            lane,
            priority: 0,
            arrived: self.now,
            now: self.now,
        };
        let mut chooser = self.chooser.clone();
        self.dispatcher.acquire(&mut chooser, &asking, waker)
    }

    /// The endpoint of a slot: one of the first members.
    fn state(&self, slot: Reservation) -> &EndpointState {
        let state = self.chooser.members().get(slot.endpoint());
        state.expect("it is one of them")
    }

    fn release(&self, slot: Reservation, lane: Option<usize>) {
        let state = self.state(slot);
        self.dispatcher.release(state, slot, lane, || self.now);
    }

    /// Waits for as long as it takes: a waiter that is forgotten is a deadlock,
    /// which the checker reports.
    fn exchange(&self, lane: Option<usize>) {
        let slot = self.wait_for_slot(lane);
        self.hold_and_release(slot, lane);
    }

    fn wait_for_slot(&self, lane: Option<usize>) -> Reservation {
        let mut ticket: Option<Ticket> = None;
        block_on(poll_fn(|cx| {
            if let Some(ticket) = &ticket {
                return match self.dispatcher.poll(ticket, cx.waker()) {
                    Some(Left::Granted(reservation)) => Poll::Ready(reservation),
                    Some(left) => panic!("nobody sends it away: {left:?}"),
                    None => Poll::Pending,
                };
            }
            match self.acquire(lane, cx.waker()) {
                Acquired::Reserved { reservation, .. } => Poll::Ready(reservation),
                Acquired::Queued(queued) => {
                    ticket = Some(queued);
                    Poll::Pending
                }
                Acquired::Refused(refusal) => panic!("{refusal:?}"),
            }
        }))
    }

    /// An exchange at the first endpoint, which keeps its connection.
    fn connected_exchange(&self, wanted: WantedConnection) {
        let slot = self.wait_for_slot(None);
        self.use_connection(wanted, slot);
        self.release(slot, None);
    }

    /// A probe, which waits for nobody.
    fn probe(&self) {
        let state = &self.chooser.members().endpoints()[0];
        if let Some(slot) = state.try_reserve_for_probe() {
            self.use_connection(WantedConnection::New, slot);
            self.release(slot, None);
        }
    }

    fn use_connection(&self, wanted: WantedConnection, slot: Reservation) {
        let state = self.state(slot);
        let idle = match wanted {
            WantedConnection::Any | WantedConnection::Pinned => {
                match self.pool.take(state, |_| false) {
                    Checkout::Idle(idle) => Some(idle),
                    Checkout::Nothing => None,
                    Checkout::Displaced(other) => {
                        drop(other);
                        None
                    }
                }
            }
            WantedConnection::New => {
                drop(self.pool.make_room(state));
                None
            }
        };
        let connection = idle.unwrap_or_else(|| Opened::new(self.occupied.clone(), self.limit));
        match wanted {
            WantedConnection::Pinned => drop(self.pool.pin(connection, &self.owner, state)),
            WantedConnection::Any | WantedConnection::New => {
                drop(self.pool.put(connection, state, self.now))
            }
        }
    }

    /// The next request of the client that a connection is pinned to.
    fn pinned_exchange(&self) {
        let slot = self.wait_for_slot(None);
        let state = self.state(slot);
        match self.pool.take_pinned(&self.owner) {
            Some(pinned) => drop(self.pool.pin(pinned, &self.owner, state)),
            None => self.use_connection(WantedConnection::Pinned, slot),
        }
        self.release(slot, None);
    }

    /// Leaves at once where it would have to wait.
    fn impatient_exchange(&self, lane: Option<usize>) {
        let granted = match self.acquire(lane, Waker::noop()) {
            Acquired::Reserved { reservation, .. } => Some(reservation),
            Acquired::Queued(ticket) => self.dispatcher.leave(ticket),
            Acquired::Refused(refusal) => panic!("{refusal:?}"),
        };
        if let Some(reservation) = granted {
            self.hold_and_release(reservation, lane);
        }
    }

    fn hold_and_release(&self, reservation: Reservation, lane: Option<usize>) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(inside <= self.limit, "{inside} of {} at once", self.limit);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.release(reservation, lane);
    }

    fn is_at_rest(&self) {
        assert_eq!(self.dispatcher.waiting(), 0);
        let states = self.chooser.members().endpoints();
        assert!(states.iter().all(|state| state.in_flight() == 0));
    }
}

fn settings(name: &'static str, limit: u32) -> EndpointSettings<'static> {
    EndpointSettings {
        name,
        fingerprint: 0,
        weight: 1,
        max_in_flight: Some(limit),
        tier: 0,
    }
}

/// Which connection an exchange uses.
#[derive(Debug, Clone, Copy)]
enum WantedConnection {
    /// An idle one where there is one.
    Any,
    /// One that was never used.
    New,
    /// Any, which is the client's alone from then on.
    Pinned,
}

/// A connection, which occupies a thread of its endpoint while it is open.
#[derive(Debug)]
struct Opened {
    occupied: Arc<AtomicU32>,
}

impl Opened {
    fn new(occupied: Arc<AtomicU32>, limit: u32) -> Self {
        let open = occupied.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(open <= limit, "{open} connections before {limit} threads");
        Opened { occupied }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.occupied.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How a thread takes part.
#[derive(Debug, Clone, Copy)]
enum Client {
    Patient,
    Impatient,
}

/// Runs an exchange on this thread and each of `others` on a thread of its own.
/// The endpoints have these limits, and all exchanges are in this lane.
fn check(
    preemptions: usize,
    (limits, lanes): (&'static [u32], &'static [u32]),
    others: &'static [Client],
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let site = Site::new(limits, lanes);
        let lane = (!lanes.is_empty()).then_some(0);
        let threads: Vec<_> = others
            .iter()
            .map(|&client| {
                let site = site.clone();
                thread::spawn(move || match client {
                    Client::Patient => site.exchange(lane),
                    Client::Impatient => site.impatient_exchange(lane),
                })
            })
            .collect();
        site.exchange(lane);
        for thread in threads {
            thread.join().expect("it ends");
        }
        site.is_at_rest();
        if let Some(lane) = lane {
            assert_eq!(site.dispatcher.lane_in_flight(lane), 0);
        }
    });
}

#[test]
fn two_exchanges_share_one_slot() {
    check(4, (&[1], &[]), &[Client::Patient]);
}

#[test]
fn three_exchanges_share_one_slot() {
    check(3, (&[1], &[]), &[Client::Patient; 2]);
}

#[test]
fn three_exchanges_share_two_endpoints() {
    check(2, (&[1, 1], &[]), &[Client::Patient; 2]);
}

#[test]
fn a_waiter_leaves_while_a_slot_is_handed_over() {
    check(3, (&[1], &[]), &[Client::Impatient, Client::Patient]);
}

#[test]
fn a_lane_is_left_and_entered() {
    check(3, (&[2], &[1]), &[Client::Impatient, Client::Patient]);
}

/// Exchanges on two threads while one of these endpoints leaves: each finds a slot,
/// and none is lost.
fn check_replacement(preemptions: usize, limits: &'static [u32], staying: &'static [u32]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let site = Site::new(limits, &[]);
        let other = {
            let site = site.clone();
            thread::spawn(move || site.exchange(None))
        };
        let replacing = {
            let site = site.clone();
            thread::spawn(move || {
                let members = NAMES.iter().rev().zip(staying);
                let members = members.map(|(name, &limit)| settings(name, limit));
                site.dispatcher.replace_members(members, site.now);
            })
        };
        site.exchange(None);
        other.join().expect("it ends");
        replacing.join().expect("it ends");
        site.is_at_rest();
    });
}

#[test]
fn an_endpoint_leaves_while_exchanges_come() {
    check_replacement(2, &[1, 1], &[1]);
}

#[test]
fn endpoints_change_places_while_exchanges_come() {
    check_replacement(2, &[1, 1], &[1, 1]);
}

/// An endpoint with as many threads as slots. Each thread serves one connection
/// until that is closed: no exchange ever finds all threads taken.
fn check_connections(
    preemptions: usize,
    limit: &'static [u32],
    others: &'static [Option<WantedConnection>],
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let site = Site::new(limit, &[]);
        let threads: Vec<_> = others
            .iter()
            .map(|&other| {
                let site = site.clone();
                thread::spawn(move || match other {
                    Some(wanted) => site.connected_exchange(wanted),
                    None => site.probe(),
                })
            })
            .collect();
        site.connected_exchange(WantedConnection::Any);
        for thread in threads {
            thread.join().expect("it ends");
        }
        site.is_at_rest();
        let idle = site.pool.count(|_| true) + site.pool.count_pinned(|_| true);
        assert_eq!(idle as u32, site.occupied.load(Ordering::SeqCst));
    });
}

#[test]
fn one_thread_serves_the_connections_of_two_exchanges() {
    check_connections(3, &[1], &[Some(WantedConnection::Any)]);
}

#[test]
fn two_threads_serve_the_connections_of_three_exchanges() {
    check_connections(
        2,
        &[2],
        &[Some(WantedConnection::Any), Some(WantedConnection::Any)],
    );
}

#[test]
fn a_new_connection_takes_the_place_of_an_idle_one() {
    check_connections(
        2,
        &[2],
        &[Some(WantedConnection::Any), Some(WantedConnection::New)],
    );
}

#[test]
fn a_probe_takes_the_place_of_an_idle_connection() {
    check_connections(3, &[1], &[None, Some(WantedConnection::Any)]);
}

#[test]
fn a_pinned_connection_gives_way_to_an_exchange() {
    check_connections(2, &[1], &[Some(WantedConnection::Pinned)]);
    check_connections(
        2,
        &[2],
        &[Some(WantedConnection::Pinned), Some(WantedConnection::Any)],
    );
}

#[test]
fn a_pinned_connection_is_taken_while_another_exchange_closes_it() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let site = Site::new(&[1], &[]);
        site.connected_exchange(WantedConnection::Pinned);
        let other = {
            let site = site.clone();
            thread::spawn(move || site.connected_exchange(WantedConnection::Any))
        };
        site.pinned_exchange();
        other.join().expect("it ends");
        site.is_at_rest();
        let idle = site.pool.count(|_| true) + site.pool.count_pinned(|_| true);
        assert_eq!(idle as u32, site.occupied.load(Ordering::SeqCst));
    });
}
