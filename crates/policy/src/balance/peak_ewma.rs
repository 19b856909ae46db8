//! `peak-ewma`: of two endpoints at random, the one that should answer first.
//!
//! Finagle's and Linkerd's. The time to the first byte is averaged over 10 s. A
//! slower answer counts in full at once, a faster one little by little. The
//! average is multiplied by exchanges in flight plus one. For upstreams where
//! an endpoint now and then stalls. `adaptive` is steadier if pages differ much
//! in cost.
//!
//! Both are drawn by weight. Of two idle endpoints, the first drawn may be k
//! times as slow as the second. Then it is kept with a chance of 1 / k, a
//! twentieth at least. So weights hold when nothing is in flight, and a slow
//! endpoint is seen again.
//!
//! The learned time fades while an endpoint gets nothing, so that it is tried
//! again. An endpoint without observations counts as the mean. An error never
//! counts as faster than the mean: failing fast is not being fast.

use std::time::Duration;

use crate::Instant;

use super::draw::Draw;
use super::{BalancerSnapshot, Evidence, Learned, LearnsFrom, Promises, Ranking, Split, View};
use crate::members::Moved;
use crate::observation::{Answer, Observation};

/// Time over which a cost fades to 1/e.
const DECAY_SECONDS: f64 = 10.0;

/// Part of the mean that each observation makes up.
const MEAN_PART: f64 = 1.0 / 128.0;

/// The least chance of an idle endpoint that was drawn first.
const LEAST_CHANCE: f64 = 0.05;

/// Longer than an answer takes: a longer time from another process is not
/// believed.
const MOST_SECONDS: f64 = 1e6;

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct PeakEwma {
    draw: Draw,
    costs: Vec<Option<Cost>>,
    /// Mean time to the first byte over the upstream, in seconds.
    mean: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    seconds: f64,
    at: Instant,
}

impl Cost {
    /// How much of it is left.
    fn remains(&self, now: Instant) -> f64 {
        let age = now.duration_since(self.at).as_secs_f64();
        (-age / DECAY_SECONDS).exp()
    }
}

impl PeakEwma {
    /// A generator of its own for each worker.
    pub fn new(seed: u64) -> Self {
        PeakEwma {
            draw: Draw::new(seed),
            costs: Vec::new(),
            mean: None,
        }
    }

    /// Whether of two idle endpoints the second one drawn gets the exchange.
    fn is_turn_of_second(&mut self, view: &View<'_>, first: usize, second: usize) -> bool {
        let [first, second] = [first, second].map(|index| self.expected(view, index));
        second < first && self.draw.below(1.0) >= (second / first).max(LEAST_CHANCE)
    }

    /// Seconds to the first byte that the endpoint should take when idle.
    fn expected(&self, view: &View<'_>, index: usize) -> f64 {
        // Before any observation, exchanges in flight decide.
        let unknown = || self.mean.unwrap_or(1.0);
        self.seconds(index, view.now).unwrap_or_else(unknown)
    }

    fn cost(&self, view: &View<'_>, index: usize) -> f64 {
        self.expected(view, index) * (f64::from(view.load(index)) + 1.0)
            / f64::from(view.weight(index))
    }

    fn seconds(&self, index: usize, now: Instant) -> Option<f64> {
        let cost = self.costs.get(index)?.as_ref()?;
        Some(cost.seconds * cost.remains(now))
    }
}

impl Ranking for PeakEwma {
    const LEARNS_FROM: LearnsFrom = LearnsFrom::Head;

    /// The one of two that costs less; the first drawn of a tie.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let (first, second) = self.draw.two(view)?;
        let is_second = match view.load(first) + view.load(second) {
            0 => self.is_turn_of_second(view, first, second),
            _ => self.cost(view, second) < self.cost(view, first),
        };
        Some(if is_second { second } else { first })
    }

    /// Learns the time to the first byte.
    fn observe(&mut self, observation: &Observation) {
        let Some(Answer {
            first_byte,
            is_error,
        }) = observation.observed.answer()
        else {
            return;
        };
        let seconds = first_byte.map(|time| time.as_secs_f64());
        let seconds = match (seconds, self.mean) {
            (seconds, Some(mean)) if is_error => seconds.unwrap_or(0.0).max(mean),
            (Some(_), None) if is_error => return,
            (Some(seconds), _) => {
                let mean = self.mean.get_or_insert(seconds);
                *mean += (seconds - *mean) * MEAN_PART;
                seconds
            }
            (None, _) => return,
        };
        if observation.endpoint >= self.costs.len() {
            self.costs.resize(observation.endpoint + 1, None);
        }
        let cost = &mut self.costs[observation.endpoint];
        let seconds = cost.as_ref().map_or(seconds, |cost| {
            let remains = cost.remains(observation.now);
            // The average, unless the answer is a peak above it.
            seconds.max(cost.seconds * remains + seconds * (1.0 - remains))
        });
        *cost = Some(Cost {
            seconds,
            at: observation.now,
        });
    }

    fn learned(&self, index: usize, now: Instant) -> Option<Learned> {
        let seconds = self.seconds(index, now)?;
        Some(Learned::Time(Duration::from_secs_f64(seconds)))
    }

    fn keep(&self, now: Instant) -> Option<BalancerSnapshot> {
        let endpoints = (0..self.costs.len()).map(|index| {
            let sum = self.seconds(index, now)?;
            Some(Evidence { sum, answers: 1.0 })
        });
        let kept = BalancerSnapshot {
            mean: self.mean,
            endpoints: endpoints.collect(),
        };
        (!kept.is_empty()).then_some(kept)
    }

    fn restore(&mut self, kept: &BalancerSnapshot, now: Instant) {
        let is_time = |seconds: f64| (0.0..MOST_SECONDS).contains(&seconds);
        self.mean = kept.finite_mean().filter(|it| is_time(*it));
        self.costs.resize(kept.endpoints.len(), None);
        for (index, Evidence { sum: seconds, .. }) in kept.evidence() {
            self.costs[index] = is_time(seconds).then_some(Cost { seconds, at: now });
        }
    }

    fn follow(&mut self, moved: &Moved) {
        moved.carry(&mut self.costs, || None);
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::NearlyByWeight,
            idle: Split::ByWeight,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Balance;
    use super::super::tests::{Site, answer, error, tunnel};
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// The picks, of 1,000, that go to the first endpoint.
    fn to_the_first(balancer: &mut PeakEwma, site: &Site) -> usize {
        let picks = (0..1_000).filter(|_| balancer.pick(&site.view()) == Some(0));
        picks.count()
    }

    #[test]
    fn a_peak_counts_at_once_and_fades() {
        let mut site = Site::new(&[1, 1]);
        let start = site.now;
        let mut balancer = PeakEwma::new(1);
        balancer.observe(&answer(0, start, 20));
        balancer.observe(&answer(1, start, 30));
        site.load(&[1, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(0));
        balancer.observe(&answer(0, start, 100));
        assert_eq!(balancer.pick(&site.view()), Some(1));
        // One good answer does not make up for it, 20 s of them do.
        balancer.observe(&answer(0, start, 20));
        assert_eq!(balancer.pick(&site.view()), Some(1));
        for second in 1..=25 {
            balancer.observe(&answer(0, after(start, second), 20));
            balancer.observe(&answer(1, after(start, second), 30));
        }
        site.now = after(start, 25);
        assert_eq!(balancer.pick(&site.view()), Some(0));
    }

    #[test]
    fn one_that_gets_nothing_is_tried_again() {
        let mut site = Site::new(&[1, 1]);
        let start = site.now;
        let mut balancer = PeakEwma::new(1);
        balancer.observe(&answer(0, start, 100));
        site.load(&[1, 1]);
        for second in 0..=30 {
            balancer.observe(&answer(1, after(start, second), 20));
            site.now = after(start, second);
            let picked = balancer.pick(&site.view());
            // 100 ms are as 20 ms after 10 s * ln 5.
            assert_eq!(picked, Some(if second <= 16 { 1 } else { 0 }));
        }
    }

    #[test]
    fn an_idle_one_that_is_slow_keeps_a_small_share() {
        let site = Site::new(&[1, 1]);
        for (milliseconds, shares) in [(20, 450..550), (80, 90..160), (20_000, 10..45)] {
            let mut balancer = PeakEwma::new(1);
            balancer.observe(&answer(1, site.now, 20));
            balancer.observe(&answer(0, site.now, milliseconds));
            let share = to_the_first(&mut balancer, &site);
            assert!(shares.contains(&share), "{share} for {milliseconds} ms");
        }
    }

    #[test]
    fn what_is_in_flight_and_weights_count() {
        let mut site = Site::new(&[1, 1]);
        let mut balancer = PeakEwma::new(1);
        balancer.observe(&answer(0, site.now, 10));
        balancer.observe(&answer(1, site.now, 30));
        site.load(&[3, 0]);
        assert_eq!(balancer.pick(&site.view()), Some(1), "40 > 30");
        site.load(&[1, 0]);
        assert_eq!(balancer.pick(&site.view()), Some(0), "20 < 30");
        site.state(1).set_weight(2);
        assert_eq!(balancer.pick(&site.view()), Some(1), "20 > 15");
    }

    #[test]
    fn failing_fast_is_not_being_fast_and_tunnels_say_nothing() {
        let site = Site::new(&[1, 1]);
        let mut balancer = PeakEwma::new(1);
        let tunnel = tunnel(1, site.now);
        balancer.observe(&tunnel);
        let fail = error(1, site.now, 1);
        balancer.observe(&fail);
        assert_eq!(balancer.mean, None);
        balancer.observe(&answer(0, site.now, 20));
        for _ in 0..100 {
            balancer.observe(&fail);
            balancer.observe(&tunnel);
        }
        balancer.observe(&answer(0, site.now, 19));
        let costs = [0, 1].map(|index| balancer.cost(&site.view(), index));
        assert!(costs[1] * 1.05 >= costs[0], "{costs:?}");
        let slow = error(1, site.now, 500);
        balancer.observe(&slow);
        let costs = [0, 1].map(|index| balancer.cost(&site.view(), index));
        assert!(costs[1] > 10.0 * costs[0], "{costs:?}");
    }

    #[test]
    fn the_faster_endpoint_gets_more() {
        super::super::tests::faster_gets_more(Balance::PeakEwma);
    }
}
