//! Tests of every balancer, and the parts that the tests of each one share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

use proptest::prelude::*;

use super::*;
use crate::chooser::Chooser;
use crate::dispatch::{Acquired, Dispatcher, SlotRequest};
use crate::endpoint::{EndpointId, EndpointSettings, Flag};
use crate::hash;
use crate::observation::{Answer, Observed};
use crate::queue::QueueSettings;

const fn fair(no_rr: bool, weight_mode: WeightMode) -> Balance {
    Balance::Fair(FairOptions { no_rr, weight_mode })
}

/// An answer whose first byte came after so long.
pub(super) fn answer(endpoint: usize, now: Instant, milliseconds: u64) -> Observation {
    Observation {
        endpoint,
        now,
        observed: Observed::Head(Answer {
            first_byte: Some(Duration::from_millis(milliseconds)),
            is_error: false,
        }),
    }
}

/// An answer that is an error, whose first byte came after so long.
pub(super) fn error(endpoint: usize, now: Instant, milliseconds: u64) -> Observation {
    Observation {
        endpoint,
        now,
        observed: Observed::Head(Answer {
            first_byte: Some(Duration::from_millis(milliseconds)),
            is_error: true,
        }),
    }
}

/// A tunnel: the time of its first byte says nothing.
pub(super) fn tunnel(endpoint: usize, now: Instant) -> Observation {
    Observation {
        endpoint,
        now,
        observed: Observed::Head(Answer {
            first_byte: None,
            is_error: false,
        }),
    }
}

/// An upstream without limits and without a queue, and a clock.
pub(super) struct Site {
    dispatcher: Dispatcher,
    members: Arc<Members>,
    pub(super) now: Instant,
}

impl Site {
    pub(super) fn new(weights: &[u32]) -> Self {
        let limits: Vec<_> = weights.iter().map(|&weight| (weight, None)).collect();
        Self::with_limits(&limits)
    }

    fn with_limits(limits: &[(u32, Option<u32>)]) -> Self {
        let name = |index| format!("10.0.0.{index}:8080");
        let names: Vec<_> = (0..limits.len()).map(name).collect();
        let endpoints = names
            .iter()
            .zip(limits)
            .map(|(name, limits)| EndpointSettings {
                name,
                fingerprint: 0,
                weight: limits.0,
                max_in_flight: limits.1,
                tier: 0,
            });
        let queue = QueueSettings {
            max: 0,
            ..QueueSettings::default()
        };
        let now = Instant::from_nanos(1_000_000_000);
        let health = crate::health::HealthSettings::default();
        let dispatcher = Dispatcher::new(endpoints, &[], queue, health, now);
        Site {
            members: dispatcher.members(),
            dispatcher,
            now,
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View::new(&self.members, self.now)
    }

    pub(super) fn view_of(&self, key: u64) -> View<'_> {
        View { key, ..self.view() }
    }

    pub(super) fn state(&self, index: usize) -> &EndpointState {
        &self.members.endpoints()[index]
    }

    /// Makes it so many exchanges in flight at each endpoint.
    pub(super) fn load(&mut self, loads: &[u32]) {
        for (state, &load) in self.members.endpoints().iter().zip(loads) {
            while state.in_flight() > load {
                state.release();
            }
            while state.in_flight() < load {
                assert!(state.try_reserve(u32::MAX).is_some(), "it has a limit");
            }
        }
    }

    pub(super) fn reserve(&self, balancer: &mut Balancer) -> Option<usize> {
        let asking = SlotRequest {
            tried: &[],
            key: 0,
            pinned_to: None,
            lane: None,
            priority: 0,
            arrived: self.now,
            now: self.now,
        };
        let mut chooser = Chooser::new(self.dispatcher.members(), Balance::First, 0);
        std::mem::swap(&mut chooser.balancer, balancer);
        let acquired = self
            .dispatcher
            .acquire(&mut chooser, &asking, Waker::noop());
        *balancer = chooser.balancer;
        match acquired {
            Acquired::Reserved { reservation, .. } => Some(reservation.endpoint().index()),
            _ => None,
        }
    }

    pub(super) fn release(&self, endpoint: usize) {
        let state = self.state(endpoint);
        self.dispatcher
            .release(state, state.reservation(), None, || self.now);
    }
}

/// A random endpoint of the property below.
#[derive(Debug, Clone)]
struct Shape {
    weight: u32,
    max_in_flight: Option<u32>,
    flag: Option<Flag>,
    load: u32,
    phantoms: u32,
    ramp: u16,
    errors: u16,
    is_tried: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let flag = prop::sample::select(vec![
        None,
        None,
        None,
        None,
        Some(Flag::Trial),
        Some(Flag::Down),
        Some(Flag::Drain),
        Some(Flag::Stop),
        Some(Flag::Ejected),
        Some(Flag::Unreachable),
    ]);
    let limit = prop::option::weighted(0.3, 0..4_u32);
    let phantoms = prop::sample::select(vec![0, 0, 0, 1, 7]);
    let ramp = prop::sample::select(vec![256, 256, 100, 0]);
    let errors = prop::sample::select(vec![0, 0, 1, 4]);
    (
        0..5_u32,
        limit,
        flag,
        0..5_u32,
        phantoms,
        ramp,
        errors,
        0..5,
    )
        .prop_map(
            |(weight, max_in_flight, flag, load, phantoms, ramp, errors, tried)| Shape {
                weight,
                max_in_flight,
                flag,
                load: load.min(max_in_flight.unwrap_or(u32::MAX)),
                phantoms,
                ramp,
                errors,
                is_tried: tried == 0,
            },
        )
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    prop_oneof![
        4 => prop::collection::vec(shape(), 0..6),
        2 => prop::collection::vec(shape(), 6..50),
        1 => prop::collection::vec(shape(), 260..300),
    ]
}

fn observations() -> impl Strategy<Value = Vec<(usize, u64, Option<u64>, bool)>> {
    let first_byte = prop::option::of(0..2_000_000_u64);
    let observation = (0..300_usize, 0..3_000_u64, first_byte, any::<bool>());
    prop::collection::vec(observation, 0..30)
}

proptest! {
    /// No balancer picks a forbidden endpoint, and each finds an allowed one.
    #[test]
    fn only_the_eligible_are_picked_and_one_is_found(
        shapes in shapes(),
        observations in observations(),
        key: u64,
        seed: u64,
        only_with_room: bool,
    ) {
        let limits: Vec<_> = shapes.iter().map(|it| (it.weight, it.max_in_flight)).collect();
        let mut site = Site::with_limits(&limits);
        let loads: Vec<_> = shapes.iter().map(|it| it.load).collect();
        site.load(&loads);
        let mut tried = Vec::new();
        for (index, shape) in shapes.iter().enumerate() {
            let state = site.state(index);
            state.set_phantoms(shape.phantoms);
            state.set_ramp(shape.ramp);
            (0..shape.errors).for_each(|_| _ = state.count_error());
            shape.flag.iter().for_each(|&flag| _ = state.set(flag, true));
            if shape.is_tried {
                tried.push(Tried::Sent {
                    endpoint: EndpointId::new(index as u32),
                });
            }
        }
        for balance in Balance::variants() {
            let mut balancer = Balancer::new(balance, seed);
            let mut now = site.now;
            for &(endpoint, pause, first_byte, is_error) in &observations {
                now += Duration::from_millis(pause);
                balancer.observe(&Observation {
                    endpoint: endpoint % shapes.len().max(1),
                    now,
                    observed: Observed::Head(Answer {
                        first_byte: first_byte.map(Duration::from_micros),
                        is_error,
                    }),
                });
            }
            for turn in 0..12 {
                let view = View {
                    tried: &tried,
                    key: key.wrapping_add(turn),
                    now: now + Duration::from_millis(turn * 9),
                    only_with_room,
                    ..site.view()
                };
                let may = |index: usize| {
                    let shape = &shapes[index];
                    shape.weight > 0
                        && !shape.is_tried
                        && shape.flag.is_none()
                        && (!only_with_room || site.state(index).has_room())
                        && shape.load < balancer.cap(&view, index)
                };
                let any = (0..shapes.len()).any(may);
                let eligible: Vec<_> = (0..shapes.len()).filter(|&index| may(index)).collect();
                match balancer.pick(&view) {
                    Some(index) => prop_assert!(eligible.contains(&index), "{balance:?}: {index}"),
                    None => prop_assert!(!any, "{balance:?} found none"),
                }
            }
        }
    }
}

#[test]
fn what_is_in_flight_is_shared_by_weight() {
    for balance in Balance::variants() {
        let site = Site::new(&[5, 1, 0, 2]);
        let mut balancer = Balancer::new(balance, 7);
        let tolerance = match balancer.promises().in_flight {
            Split::ByWeight => 4,
            Split::NearlyByWeight => 40,
            Split::Otherwise => continue,
        };
        for _ in 0..800 {
            site.reserve(&mut balancer).expect("there is room");
        }
        let loads = [0, 1, 2, 3].map(|index| site.state(index).load());
        for (load, due) in loads.into_iter().zip([500, 100, 0, 200]) {
            assert!(load.abs_diff(due) <= tolerance, "{balance:?}: {loads:?}");
        }
    }
}

/// Above 256 endpoints `adaptive` compares a sample. That must not take traffic
/// from the heavy ones.
#[test]
fn samples_follow_the_weights_too() {
    let mut weights = vec![1; 400];
    weights[7] = 200;
    let site = Site::new(&weights);
    let mut balancer = Balancer::new(Balance::Adaptive, 7);
    for _ in 0..6_000 {
        site.reserve(&mut balancer).expect("there is room");
    }
    let load = site.state(7).load();
    assert!((1_900..2_200).contains(&load), "{load} rather than 2,000");
    // The others have 10 each; drawn without comparing, some have 20.
    let states = site.view().endpoints.iter().enumerate();
    let others = states.filter(|&(index, _)| index != 7);
    let most = others.map(|(_, state)| state.load()).max();
    assert!(most <= Some(13), "{most:?}");
}

/// Exchanges one after the other: nothing is in flight at any pick.
#[test]
fn without_load_the_weights_hold() {
    for balance in Balance::variants() {
        let site = Site::new(&[5, 1, 0, 2]);
        let mut balancer = Balancer::new(balance, 7);
        let tolerance = match balancer.promises().idle {
            Split::ByWeight => 1_000,
            Split::NearlyByWeight => 4_000,
            Split::Otherwise => continue,
        };
        let mut counts = [0_u32; 4];
        for _ in 0..80_000 {
            counts[balancer.pick(&site.view()).expect("three are up")] += 1;
        }
        for (count, due) in counts.into_iter().zip([50_000, 10_000, 0, 20_000]) {
            assert!(count.abs_diff(due) <= tolerance, "{balance:?}: {counts:?}");
        }
    }
}

#[test]
fn the_first_one_is_filled_before_the_next() {
    let site = Site::with_limits(&[(1, Some(2)), (9, Some(1)), (1, None)]);
    let mut balancer = Balancer::new(Balance::First, 7);
    let picks: Vec<_> = (0..5).filter_map(|_| site.reserve(&mut balancer)).collect();
    assert_eq!(picks, [0, 0, 1, 2, 2]);
    site.release(0);
    assert_eq!(site.reserve(&mut balancer), Some(0));
}

/// Exchanges one after the other to endpoints that answer after so many
/// milliseconds: how many of them go to each.
fn one_after_the_other(
    balancer: &mut Balancer,
    site: &mut Site,
    count: usize,
    milliseconds: &[u64],
) -> Vec<usize> {
    let mut counts = vec![0; milliseconds.len()];
    for _ in 0..count {
        let index = balancer.pick(&site.view()).expect("one is up");
        counts[index] += 1;
        site.now += Duration::from_millis(milliseconds[index]);
        balancer.observe(&answer(index, site.now, milliseconds[index]));
    }
    counts
}

/// Learned values of an endpoint change its share and never end it.
#[test]
fn an_idle_endpoint_keeps_a_share() {
    for balance in Balance::variants() {
        for seed in 0..4 {
            let mut balancer = Balancer::new(balance, seed);
            if balancer.learns_from() == LearnsFrom::Nothing {
                continue;
            }
            let mut site = Site::new(&[1, 1]);
            let mut run = |site: &mut Site, count, milliseconds: &[u64]| {
                one_after_the_other(&mut balancer, site, count, milliseconds)
            };
            // Answers that differ as answers of a cold cache do.
            let counts = run(&mut site, 600, &[10, 15]);
            let least = match balance {
                Balance::Adaptive => 299,
                _ => 150,
            };
            assert!(counts[1] >= least, "{balance:?}: {counts:?}");
            let counts = run(&mut site, 600, &[1, 200]);
            assert!((10..200).contains(&counts[1]), "{balance:?}: {counts:?}");
            // An outage, and it is back.
            site.state(1).set(Flag::Unreachable, true);
            let counts = run(&mut site, 2_000, &[10, 10]);
            assert_eq!(counts[1], 0);
            site.state(1).set(Flag::Unreachable, false);
            let counts = run(&mut site, 100, &[10, 10]);
            let least = match balance {
                Balance::Adaptive => 35,
                // It forgets in 10 s, not in one.
                _ => 3,
            };
            assert!((least..=60).contains(&counts[1]), "{balance:?}: {counts:?}");
        }
    }
}

/// Above 256 endpoints too, where a sample is compared.
#[test]
fn an_idle_endpoint_of_many_keeps_a_share() {
    let mut weights = vec![1; 300];
    weights[7] = 3;
    let mut site = Site::new(&weights);
    let mut balancer = Balancer::new(Balance::Adaptive, 7);
    let mut milliseconds = vec![1; 300];
    milliseconds[9] = 8;
    let mut counts = vec![0; 300];
    for _ in 0..10 {
        let more = one_after_the_other(&mut balancer, &mut site, 6_000, &milliseconds);
        counts
            .iter_mut()
            .zip(more)
            .for_each(|(all, more)| *all += more);
    }
    // 200 to each of the others.
    assert!((500..700).contains(&counts[7]), "{}", counts[7]);
    assert!((50..290).contains(&counts[9]), "{}", counts[9]);
    let others = (0..300).filter(|index| ![7, 9].contains(index));
    let others: Vec<_> = others.map(|index| counts[index]).collect();
    assert!(
        others.iter().all(|count| (120..290).contains(count)),
        "{others:?}"
    );
}

/// A failing endpoint looks busier to all that look at load.
#[test]
fn ghosts_are_avoided() {
    for balance in Balance::variants() {
        let site = Site::new(&[1, 1]);
        site.state(0).set_phantoms(1);
        let mut balancer = Balancer::new(balance, 7);
        if balancer.promises().in_flight == Split::Otherwise {
            continue;
        }
        for _ in 0..20 {
            assert_eq!(balancer.pick(&site.view()), Some(1), "{balance:?}");
        }
    }
}

#[test]
fn only_fair_at_its_peak_refuses() {
    for balance in Balance::variants() {
        let is_peak = [false, true].map(|no_rr| fair(no_rr, WeightMode::Peak));
        let is_peak = is_peak.contains(&balance);
        let site = Site::new(&[3]);
        let balancer = Balancer::new(balance, 0);
        assert_eq!(balancer.refuses_when_busy(), is_peak);
        let cap = if is_peak { 3 } else { u32::MAX };
        assert_eq!(balancer.cap(&site.view(), 0), cap);
    }
}

#[test]
fn each_has_a_word_of_its_own_and_starts_with_its_default_options() {
    for &balance in Balance::ALL {
        assert_eq!(Balance::from_word(balance.word()), Some(balance));
        assert!(Balance::variants().any(|it| it == balance));
    }
    assert_eq!(
        Balance::from_word("fair"),
        Some(fair(false, WeightMode::Default))
    );
    assert_eq!(Balance::from_word("none"), None);
}

#[test]
fn what_a_balancer_says_it_learns_from_it_learns_from() {
    for balance in Balance::variants() {
        let site = Site::new(&[1, 1]);
        let mut balancer = Balancer::new(balance, 0);
        balancer.observe(&answer(1, site.now, 20));
        let has_learned = balancer.learned(1, site.now).is_some();
        let learns = balancer.learns_from() != LearnsFrom::Nothing;
        assert_eq!(has_learned, learns, "{balance:?}");
    }
}

/// Tests that the balancers by key have in common.
pub(super) mod keys {
    use super::*;

    fn owners(balance: Balance, site: &Site, keys: u64) -> Vec<usize> {
        let mut balancer = Balancer::new(balance, 0);
        (0..keys)
            .map(|key| {
                let key = hash::hash(&key.to_le_bytes());
                balancer.pick(&site.view_of(key)).expect("one is up")
            })
            .collect()
    }

    pub(in super::super) fn are_shared_by_weight(balance: Balance) {
        let mixed = |index: u32| 1 + index % 2;
        let cases = [
            (20_000, vec![1; 3]),
            (30_000, vec![1; 5]),
            (200_000, vec![1; 100]),
            (30_000, vec![1, 2, 5]),
            (200_000, (0..100).map(mixed).collect()),
        ];
        for (keys, weights) in cases {
            let site = Site::new(&weights);
            let mut counts = vec![0_u32; weights.len()];
            for owner in owners(balance, &site, keys) {
                counts[owner] += 1;
            }
            let total: u32 = weights.iter().sum();
            for (&count, &weight) in counts.iter().zip(&weights) {
                let due = keys as f64 * f64::from(weight) / f64::from(total);
                let share = f64::from(count) / due;
                assert!((0.9..1.1).contains(&share), "{share} among {weights:?}");
            }
        }
    }

    pub(in super::super) fn stay_when_one_leaves(balance: Balance) {
        let site = Site::new(&[1, 3, 1, 2, 1]);
        let before = owners(balance, &site, 5_000);
        site.state(1).set(Flag::Down, true);
        let after = owners(balance, &site, 5_000);
        let mut moved = [0; 5];
        for (before, after) in before.into_iter().zip(after) {
            match before {
                1 => moved[after] += 1,
                _ => assert_eq!(after, before),
            }
        }
        assert_eq!(moved[1], 0);
        assert!([0, 2, 3, 4].iter().all(|&index| moved[index] > 200));
    }

    pub(in super::super) fn move_with_a_weight(balance: Balance) {
        let site = Site::new(&[1, 3, 1, 2, 1]);
        let before = owners(balance, &site, 5_000);
        site.state(2).set_weight(4);
        let more = owners(balance, &site, 5_000);
        let mut moved = 0;
        for (before, more) in before.iter().zip(&more) {
            if before != more {
                assert_eq!(*more, 2);
                moved += 1;
            }
        }
        // From 1 of 8 to 4 of 11.
        assert!((1_000..1_400).contains(&moved), "{moved}");
    }
}

/// One answer of the simulation below.
struct SimulatedAnswer {
    endpoint: usize,
    seconds: f64,
}

/// Exchanges that arrive at random, `per_second`, at endpoints of so many
/// threads. Each thread takes the first exchange that waits at its endpoint.
struct Simulation<'a> {
    balance: Balance,
    threads: Vec<usize>,
    per_second: f64,
    seconds: f64,
    /// How long an exchange takes at an endpoint, in seconds, at this time.
    takes: &'a dyn Fn(usize, f64, &mut fastrand::Rng) -> f64,
}

impl Simulation<'_> {
    fn run(&self) -> Vec<SimulatedAnswer> {
        let site = Site::new(&vec![1; self.threads.len()]);
        let mut balancer = Balancer::new(self.balance, 11);
        let mut random = fastrand::Rng::with_seed(23);
        let free = |&count: &usize| BinaryHeap::from(vec![Reverse(0); count]);
        let mut free: Vec<_> = self.threads.iter().map(free).collect();
        let mut ends = BinaryHeap::new();
        let mut answers = Vec::new();
        let mut arrives = 0.0;
        while arrives < self.seconds {
            arrives -= (1.0 - random.f64()).ln() / self.per_second;
            let nanos = (arrives * 1e9) as u64;
            while let Some(&Reverse((end, start, endpoint))) = ends.peek()
                && end <= nanos
            {
                ends.pop();
                let time = Duration::from_nanos(end - start);
                balancer.observe(&Observation {
                    endpoint,
                    now: site.now + Duration::from_nanos(end),
                    observed: Observed::Head(Answer {
                        first_byte: Some(time),
                        is_error: false,
                    }),
                });
                site.release(endpoint);
                answers.push(SimulatedAnswer {
                    endpoint,
                    seconds: time.as_secs_f64(),
                });
            }
            let view = View {
                now: site.now + Duration::from_nanos(nanos),
                ..site.view()
            };
            let endpoint = balancer.pick(&view).expect("all are up");
            assert!(site.state(endpoint).try_reserve(u32::MAX).is_some());
            let takes = (self.takes)(endpoint, arrives, &mut random);
            let Reverse(thread) = free[endpoint].pop().expect("it has threads");
            let end = nanos.max(thread) + (takes * 1e9) as u64;
            free[endpoint].push(Reverse(end));
            ends.push(Reverse((end, nanos, endpoint)));
        }
        answers
    }
}

fn exponential(mean: f64, random: &mut fastrand::Rng) -> f64 {
    -(1.0 - random.f64()).ln() * mean
}

/// Two endpoints, one four times as fast; later they change places.
pub(super) fn faster_gets_more(balance: Balance) {
    let swap = 60.0;
    let simulation = Simulation {
        balance,
        threads: vec![1_000; 2],
        per_second: 200.0,
        seconds: 2.0 * swap,
        takes: &|endpoint, now, random| {
            let is_slow = (endpoint == 0) == (now < swap);
            exponential(if is_slow { 0.04 } else { 0.01 }, random)
        },
    };
    let answers = simulation.run();
    let (early, late) = answers.split_at(answers.len() / 2);
    for (answers, slow) in [(early, 0), (late, 1)] {
        // The first third is for learning.
        let answers = &answers[answers.len() / 3..];
        let count = answers.iter().filter(|it| it.endpoint == slow).count();
        let share = count as f64 / answers.len() as f64;
        assert!((0.002..0.3).contains(&share), "{share} to the slow one");
    }
}

fn percentile_99(answers: &[SimulatedAnswer]) -> f64 {
    let mut seconds: Vec<_> = answers.iter().map(|it| it.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() * 99 / 100]
}

/// Ten endpoints have the same fast and slow pages.
///
/// A balancer must not flee the endpoint that answered slow pages.
#[test]
fn a_mix_of_fast_and_slow_pages_does_not_confuse_adaptive() {
    let run = |balance| {
        let mean = 0.95 * 0.005 + 0.05 * 0.5;
        let simulation = Simulation {
            balance,
            threads: vec![1; 10],
            per_second: 0.7 * 10.0 / mean,
            seconds: 300.0,
            takes: &|_, _, random| if random.u32(..100) < 5 { 0.5 } else { 0.005 },
        };
        simulation.run()
    };
    let answers = run(Balance::Adaptive);
    let mut counts = [0; 10];
    answers.iter().for_each(|it| counts[it.endpoint] += 1);
    for count in counts {
        let share = f64::from(count) * 10.0 / answers.len() as f64;
        assert!((0.8..1.25).contains(&share), "{counts:?}");
    }
    let adaptive = percentile_99(&answers);
    let against = |balance, ratio| {
        let other = percentile_99(&run(balance));
        assert!(adaptive <= ratio * other, "{adaptive} s to {other} s");
    };
    against(Balance::Random, 0.3);
    against(Balance::TwoChoices, 0.6);
    against(Balance::ShortestQueue, 1.2);
}
