//! The cost of a pick: `cargo bench -p evenkeel-policy`, with `-- NAME` for
//! some balancers. Beside each figure is its limit; the program fails if one is
//! exceeded.
//!
//! The figure is that of the fastest of several rounds: slower rounds include
//! other work of the machine. Every pick has another key and a later time; one
//! in 64 gives the balancer something to learn. `with place` is the cost of the
//! whole order of work: the pick, and a place taken and given back.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::balance::{Balance, Balancer, View};
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Acquired, Dispatcher, SlotRequest};
use evenkeel_policy::endpoint::{EndpointSettings, Reservation};
use evenkeel_policy::hash::mix;
use evenkeel_policy::health::HealthSettings;
use evenkeel_policy::members::Members;
use evenkeel_policy::observation::{Answer, Observation, Observed};
use evenkeel_policy::queue::QueueSettings;

/// Endpoints, and the nanoseconds that a pick among them may cost.
const LIMITS: [(usize, f64); 3] = [(10, 100.0), (100, 500.0), (1_000, 4_000.0)];

const ROUNDS: usize = 30;

#[derive(Clone, Copy)]
enum Case {
    /// All of one weight, all busy.
    Equal,
    /// Weights from 1 to 8, all busy.
    Weighted,
    /// One has nearly all the weight, and the key is always the same.
    Uneven,
    /// The last one alone is up.
    One,
}

const CASES: [(&str, Case); 4] = [
    ("equal", Case::Equal),
    ("weighted", Case::Weighted),
    ("uneven", Case::Uneven),
    ("one up", Case::One),
];

struct Site {
    dispatcher: Dispatcher,
    members: Arc<Members>,
    start: Instant,
}

impl Site {
    /// Endpoints with three exchanges in flight for each, placed at random.
    fn new(count: usize, case: Case) -> Self {
        let names: Vec<_> = (0..count)
            .map(|index| format!("10.0.0.{index}:8080"))
            .collect();
        let endpoints = names
            .iter()
            .enumerate()
            .map(|(index, name)| EndpointSettings {
                name,
                fingerprint: 0,
                weight: match case {
                    Case::Equal | Case::One => 4,
                    Case::Weighted => 1 + (mix(index as u64) % 8) as u32,
                    Case::Uneven if index == count - 1 => 10_000,
                    Case::Uneven => 1,
                },
                max_in_flight: None,
                tier: 0,
            });
        let start = Instant::from_nanos(0);
        let (queue, health) = (QueueSettings::default(), HealthSettings::default());
        let dispatcher = Dispatcher::new(endpoints, &[], queue, health, start);
        let site = Site {
            members: dispatcher.members(),
            dispatcher,
            start,
        };
        let mut chooser = Chooser::new(site.dispatcher.members(), Balance::Random, 3);
        for _ in 0..count * 3 {
            site.acquire(&mut chooser, 0, start);
        }
        // So that `fair` finds none idle.
        let mut rest = Chooser::new(site.dispatcher.members(), Balance::ShortestQueue, 3);
        let endpoints = site.members.endpoints();
        while endpoints.iter().any(|state| state.in_flight() == 0) {
            site.acquire(&mut rest, 0, start);
        }
        if let Case::One = case {
            for endpoint in &endpoints[..count - 1] {
                site.dispatcher.set_weight(endpoint, 0, start);
            }
        }
        site
    }

    fn acquire(&self, chooser: &mut Chooser, key: u64, now: Instant) -> Option<Reservation> {
        let asking = SlotRequest {
            tried: &[],
            key,
            pinned_to: None,
            lane: None,
            priority: 0,
            arrived: now,
            now,
        };
        match self.dispatcher.acquire(chooser, &asking, Waker::noop()) {
            Acquired::Reserved { reservation, .. } => Some(reservation),
            _ => None,
        }
    }
}

/// Nanoseconds that a call of `one` takes in the balancer's best round. `one`
/// gets the number of the call and the time.
fn measure(picks: u64, start: Instant, mut one: impl FnMut(u64, Instant)) -> f64 {
    let mut call = 0;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = std::time::Instant::now();
        for _ in 0..picks {
            call += 1;
            // 50,000 a second for this worker.
            one(call, start + Duration::from_micros(20 * call));
        }
        best = best.min(began.elapsed().as_nanos() as f64 / picks as f64);
    }
    best
}

fn learn(balancer: &mut Balancer, count: usize, call: u64, now: Instant) {
    let random = mix(call);
    balancer.observe(&Observation {
        endpoint: (random % count as u64) as usize,
        now,
        observed: Observed::Head(Answer {
            first_byte: Some(Duration::from_micros(1_000 + random % 9_000)),
            is_error: random.is_multiple_of(50),
        }),
    });
}

fn main() -> ExitCode {
    let mut passed = true;
    println!(
        "{:<20}{:<10}{:>10}{:>10}{:>10}{:>8}{:>20}",
        "balancer", "weights", "endpoints", "ns/pick", "limit", "", "with place, ns"
    );
    let wanted = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    let wanted = wanted.unwrap_or_default();
    for balance in Balance::variants() {
        let name = match balance {
            Balance::Fair(options) => format!("fair {:?} {}", options.weight_mode, options.no_rr),
            other => other.word().to_owned(),
        };
        if !name.contains(&wanted) {
            continue;
        }
        for (case_name, case) in CASES {
            for (count, limit) in LIMITS {
                let site = Site::new(count, case);
                let mut balancer = Balancer::new(balance, 7);
                let mut view = View::new(&site.members, site.start);
                for call in 0..count as u64 * 4 {
                    learn(&mut balancer, count, call, site.start);
                }
                let key = |call| match case {
                    Case::Uneven => 0,
                    _ => mix(call),
                };
                let picks = 200_000 / count as u64;
                let pick = measure(picks, site.start, |call, now| {
                    if call % 64 == 0 {
                        learn(&mut balancer, count, call, now);
                    }
                    (view.key, view.now) = (key(call), now);
                    black_box(balancer.pick(black_box(&view)));
                });
                let mut chooser = Chooser::new(site.dispatcher.members(), balance, 7);
                let place = measure(picks, site.start, |call, now| {
                    if let Some(reservation) = site.acquire(&mut chooser, key(call), now) {
                        let endpoint = &site.members.endpoints()[reservation.endpoint().index()];
                        site.dispatcher.release(endpoint, reservation, None, || now);
                    }
                });
                let verdict = if pick <= limit { "PASS" } else { "FAIL" };
                passed &= pick <= limit;
                println!(
                    "{name:<20}{case_name:<10}{count:>10}{pick:>10.0}{limit:>10.0}{verdict:>8}{place:>20.0}"
                );
            }
        }
    }
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
