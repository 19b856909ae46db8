//! A million exchanges over several threads: no limit is exceeded, and nothing
//! is left over.
//!
//! Clients leave, endpoints fail, leave and return, and weights and limits
//! change meanwhile.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::balance::Balance;
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Acquired, Dispatcher, LaneSettings, SlotRequest};
use evenkeel_policy::endpoint::{Admin, EndpointId, EndpointSettings, Reservation, Tried};
use evenkeel_policy::health::HealthSettings;
use evenkeel_policy::observation::{Answer, Observed};
use evenkeel_policy::queue::{Discipline, Left, QueueSettings, Sharing, Ticket};

const EXCHANGES: u64 = 1_000_000;
const THREADS: u64 = 6;
const NAMES: [&str; 3] = ["a", "b", "c"];
const LIMITS: [u32; 3] = [1, 2, 1];
const LANE: u32 = 1;

/// The present, from the first time on that it was asked for.
fn now() -> Instant {
    static BEGUN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(BEGUN.elapsed().as_nanos() as u64)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

struct Site {
    dispatcher: Dispatcher,
    /// As the endpoints themselves would count.
    inside: [AtomicU32; 3],
    inside_lane: AtomicU32,
    most: [AtomicU32; 3],
    waited: AtomicU64,
    left: AtomicU64,
    is_over: AtomicBool,
}

/// One thread that makes exchanges.
struct Worker<'a> {
    site: &'a Site,
    chooser: Chooser,
    random: fastrand::Rng,
    waker: Waker,
}

impl Worker<'_> {
    fn exchange(&mut self) {
        let now = now();
        let lane = (self.random.u8(..4) == 0).then_some(0);
        let sent = |number| Tried::Sent {
            endpoint: EndpointId::new(number),
        };
        let tried: &[Tried] = match self.random.u8(..8) {
            0 => &[sent(0)],
            1 => &[sent(1), sent(2)],
            _ => &[],
        };
        let asking = SlotRequest {
            tried,
            key: 0,
            pinned_to: None,
            lane,
            priority: self.random.u8(..3),
            arrived: now,
            now,
        };
        let dispatcher = &self.site.dispatcher;
        let line = self.random.u64(..3);
        let acquired = dispatcher.acquire_in_line(&mut self.chooser, &asking, &self.waker, || line);
        match acquired {
            Acquired::Reserved { reservation, .. } => self.hold(reservation, lane),
            Acquired::Refused(_) => {}
            Acquired::Queued(ticket) => {
                self.site.waited.fetch_add(1, Ordering::Relaxed);
                if let Some(reservation) = self.wait(ticket) {
                    self.hold(reservation, lane);
                }
            }
        }
    }

    /// Waits, in one of four cases only for a moment.
    fn wait(&mut self, ticket: Ticket) -> Option<Reservation> {
        let is_patient = self.random.u8(..4) != 0;
        let deadline = now() + Duration::from_secs(20);
        loop {
            match self.site.dispatcher.poll(&ticket, &self.waker) {
                Some(Left::Granted(reservation)) => return Some(reservation),
                Some(Left::TimedOut | Left::Refused(_)) => return None,
                None if !is_patient => {
                    self.site.left.fetch_add(1, Ordering::Relaxed);
                    thread::yield_now();
                    return self.site.dispatcher.leave(ticket);
                }
                None => thread::park_timeout(Duration::from_secs(5)),
            }
            assert!(now() < deadline, "a waiter was forgotten");
        }
    }

    fn hold(&mut self, reservation: Reservation, lane: Option<usize>) {
        let site = self.site;
        let id = reservation.endpoint();
        let member = self.chooser.members().get(id).cloned();
        // It may have joined and left since this worker chose last.
        let state = member.or_else(|| site.dispatcher.endpoint(id));
        let state = state.expect("it is in use");
        let endpoint = NAMES.iter().position(|name| *name == state.name());
        let endpoint = endpoint.expect("there is no other");
        let inside = site.inside[endpoint].fetch_add(1, Ordering::SeqCst) + 1;
        site.most[endpoint].fetch_max(inside, Ordering::Relaxed);
        assert!(inside <= LIMITS[endpoint], "{inside} at {endpoint}");
        if lane.is_some() {
            let inside = site.inside_lane.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(inside <= LANE, "{inside} in the lane");
        }
        if self.random.u8(..16) == 0 {
            thread::yield_now();
        }
        let observed = match self.random.u8(..8) {
            0..2 => Observed::Failed,
            2 => Observed::Unreachable,
            _ => Observed::Head(Answer {
                first_byte: None,
                is_error: false,
            }),
        };
        // Other tests look at the change.
        let _ = site
            .dispatcher
            .report(&mut self.chooser, &state, reservation, observed, now());
        if lane.is_some() {
            site.inside_lane.fetch_sub(1, Ordering::SeqCst);
        }
        site.inside[endpoint].fetch_sub(1, Ordering::SeqCst);
        site.dispatcher.release(&state, reservation, lane, now);
    }
}

/// The endpoint of the name at this index.
fn settings(index: usize) -> EndpointSettings<'static> {
    EndpointSettings {
        name: NAMES[index],
        fingerprint: 0,
        weight: 1,
        max_in_flight: Some(LIMITS[index]),
        tier: 0,
    }
}

/// Makes all changes that can come from outside, again and again.
fn meddle(site: &Site) {
    let mut random = fastrand::Rng::with_seed(99);
    let dispatcher = &site.dispatcher;
    while !site.is_over.load(Ordering::Relaxed) {
        let now = now();
        let members = dispatcher.members();
        if let Some(state) = random.choice(members.endpoints()) {
            let limit = NAMES.iter().position(|name| *name == state.name());
            let limit = LIMITS[limit.expect("there is no other")];
            match random.u8(..6) {
                0 => dispatcher.set_weight(state, random.u32(1..5), now),
                // Never above its first limit.
                1 => state.set_max_in_flight(Some(random.u32(1..=limit))),
                2 => _ = dispatcher.set_admin(state, Admin::Drain, now),
                3 => _ = dispatcher.set_admin(state, Admin::Ready, now),
                4 => _ = dispatcher.probed(state, random.bool(), now),
                _ => _ = dispatcher.reached(state, now),
            }
        }
        if random.u8(..4) == 0 {
            let mut order = [0, 1, 2];
            random.shuffle(&mut order);
            let count = match random.u8(..32) {
                0 => 0,
                1..8 => random.usize(1..3),
                _ => 3,
            };
            let members = order[..count].iter().map(|&index| settings(index));
            dispatcher.replace_members(members, now);
        }
        dispatcher.tick(now + Duration::from_secs(random.u64(..20)));
        thread::sleep(Duration::from_micros(50));
    }
    dispatcher.replace_members((0..3).map(settings), now());
    for state in dispatcher.members().endpoints() {
        let now = now();
        // The changes do not matter any more.
        let _ = site.dispatcher.set_admin(state, Admin::Ready, now);
        let _ = site.dispatcher.reached(state, now);
        let _ = site.dispatcher.probed(state, true, now);
        let _ = site.dispatcher.probed(state, true, now);
    }
    site.dispatcher.tick(now() + Duration::from_secs(60));
}

fn run(discipline: Discipline, sharing: Sharing, exchanges: u64) {
    let queue = QueueSettings {
        max: 4,
        discipline,
        sharing,
        target: Duration::from_millis(1),
        ..QueueSettings::default()
    };
    let health = HealthSettings::default();
    let lane = LaneSettings {
        name: "lane",
        max_in_flight: LANE,
    };
    let site = Site {
        dispatcher: Dispatcher::new((0..3).map(settings), &[lane], queue, health, now()),
        inside: Default::default(),
        inside_lane: AtomicU32::new(0),
        most: Default::default(),
        waited: AtomicU64::new(0),
        left: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let site = &site;
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                scope.spawn(move || {
                    let mut worker = Worker {
                        site,
                        chooser: Chooser::new(
                            site.dispatcher.members(),
                            Balance::ShortestQueue,
                            seed,
                        ),
                        random: fastrand::Rng::with_seed(seed),
                        waker: Waker::from(Arc::new(Unpark(thread::current()))),
                    };
                    for _ in 0..exchanges / THREADS {
                        worker.exchange();
                    }
                })
            })
            .collect();
        let meddler = scope.spawn(move || meddle(site));
        // It goes on until the last one is through: that one must not wait for
        // an endpoint that stays drained.
        let ended: Vec<_> = workers.into_iter().map(|it| it.join()).collect();
        site.is_over.store(true, Ordering::Relaxed);
        meddler.join().expect("it ends");
        assert!(ended.iter().all(Result::is_ok), "a worker panicked");
    });
    assert_eq!(site.dispatcher.waiting(), 0);
    assert_eq!(site.dispatcher.lane_in_flight(0), 0);
    let members = site.dispatcher.members();
    for (index, state) in members.endpoints().iter().enumerate() {
        assert_eq!(state.in_flight(), 0, "at {}", state.name());
        let most = site.most[index].load(Ordering::Relaxed);
        assert_eq!(most, LIMITS[index], "it was never full");
    }
    assert!(site.waited.load(Ordering::Relaxed) > exchanges / 1000);
    assert!(site.left.load(Ordering::Relaxed) > 0);
}

#[test]
fn no_limit_is_exceeded_and_nothing_is_left_over() {
    run(Discipline::Fifo, Sharing::Anyone, EXCHANGES / 4);
    run(Discipline::Fifo, Sharing::ByKey, EXCHANGES / 4);
    run(Discipline::AdaptiveLifo, Sharing::Anyone, EXCHANGES / 4);
    run(Discipline::Codel, Sharing::Anyone, EXCHANGES / 8);
    run(Discipline::Codel, Sharing::ByKey, EXCHANGES / 8);
}
