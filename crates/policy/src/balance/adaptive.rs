//! `adaptive`: least requests, with weights learned from the time to the
//! first byte. The default.
//!
//! Each endpoint has a factor e^f by which it is slower than the upstream. Idle
//! endpoints take turns by weight / e^f, where up to twice as slow or as fast
//! counts as equal. While none is idle, the least (n + 1) * e^f / weight wins.
//!
//! f is the mean of the logarithm of an answer's time relative to the
//! upstream's, over about a second. Ten answers' worth of "as all others" are
//! added. So thin evidence changes little, and learned values fade in a few
//! seconds.
//!
//! Logarithms, because one page of 500 ms among nineteen of 5 ms must not
//! decide. With arithmetic means such a mix gave a p99 of 14 s, with this 0.65
//! s (simulated).
//!
//! Per worker. e^f is kept. An answer of the endpoint updates it if the last
//! update was 10 ms ago. Other factors are updated every 50 ms, some at each
//! pick. So a busy endpoint costs one logarithm an answer, and no exponential.

use std::time::Duration;

use crate::Instant;

use super::draw::Draw;
use super::least::{Compared, Least, Share};
use super::{BalancerSnapshot, Learned, LearnsFrom, Promises, Ranking, Split, View, kept};
use crate::members::Moved;
use crate::observation::{Answer, Observation};

/// Part of the upstream's mean that each answer makes up.
const MEAN_PART: f64 = 0.002;

/// Time over which evidence fades to 1/e.
const FADE_SECONDS: f64 = 1.0;

/// Answers' worth of "as all others".
const DOUBT: f64 = 10.0;

/// An answer's logarithm relative to the mean is cut off here, both ways.
const MOST: f64 = 5.0;

/// Less evidence than this is none.
const NOTHING: f64 = 0.001;

/// An idle endpoint that is slower or faster by less than this counts as equal.
///
/// Deviation: without this factor the shares of idle endpoints drift from the
/// weights. An endpoint that gets little has cold caches, seems slower, and
/// gets less. Before two equal servers with weights of 3:1, the light one got
/// 10 to 25 %.
const ALIKE: f64 = 2.0;

/// However slow an endpoint seems, idle it counts as no slower than this: it
/// must be seen again.
const MOST_SLOW_IDLE: f64 = 20.0;

/// Up to this many endpoints all are compared, else so many drawn ones.
const ALL: usize = 256;
const SAMPLE: usize = 32;

/// Evidence that is younger has not faded yet.
const FRESH: Duration = Duration::from_millis(10);

/// How old a factor may be.
const ROUND: Duration = Duration::from_millis(50);

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct Adaptive {
    least: Least,
    draw: Draw,
    evidence: Vec<Evidence>,
    /// e^f of each endpoint.
    factors: Vec<f32>,
    /// Mean logarithm of the upstream's times in seconds, less the learned
    /// values of the endpoints that they came from.
    mean: Option<f64>,
    refresh: Refresh,
}

/// Evidence on one endpoint, as it was at `at`.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    sum: f64,
    answers: f64,
    at: Option<Instant>,
}

impl Evidence {
    /// Lets it fade up to now; `false` where it is fresh.
    fn fade(&mut self, now: Instant) -> bool {
        if let Some(at) = self.at {
            let age = now.duration_since(at);
            if age < FRESH {
                return false;
            }
            let left = (-age.as_secs_f64() / FADE_SECONDS).exp();
            self.sum *= left;
            self.answers *= left;
        }
        self.at = Some(now);
        true
    }

    fn add(&mut self, relative: f64) {
        self.sum += relative.clamp(-MOST, MOST);
        self.answers += 1.0;
    }

    /// f, the logarithm of how much slower than the upstream it is.
    fn slowness(&self) -> f64 {
        self.sum / (self.answers + DOUBT)
    }
}

/// Which factors are due.
#[derive(Debug, Clone, Default)]
struct Refresh {
    next: usize,
    at: Option<Instant>,
}

impl Refresh {
    /// How many of `count` endpoints are due, so that all come within a
    /// [`ROUND`].
    fn due(&mut self, count: usize, now: Instant) -> usize {
        let Some(at) = self.at else {
            self.at = Some(now);
            return 0;
        };
        let passed = now.duration_since(at);
        if passed >= ROUND {
            self.at = Some(now);
            return count;
        }
        let due = passed.subsec_nanos() as usize * count / ROUND.subsec_nanos() as usize;
        // Else the time adds up until one is due.
        if due > 0 {
            self.at = Some(now);
        }
        due
    }
}

/// The part of a factor that does not count while an endpoint is idle.
fn alike(factor: f64) -> f64 {
    factor.clamp(1.0 / ALIKE, ALIKE)
}

impl Adaptive {
    /// Workers begin at different endpoints.
    pub fn new(seed: u64) -> Self {
        Adaptive {
            least: Least::new(seed),
            draw: Draw::new(seed),
            evidence: Vec::new(),
            factors: Vec::new(),
            mean: None,
            refresh: Refresh::default(),
        }
    }

    fn least_of_all(&mut self, view: &View<'_>) -> Option<usize> {
        let factors = &self.factors;
        self.least
            .pick(view, Compared::LoadWithThis, |index, state| {
                let factor = f64::from(factors[index]);
                let weight = f64::from(View::weight_of(state));
                let busy = weight / factor;
                Share {
                    // The quotient is there: another would cost more.
                    idle: (busy * alike(factor)).max(weight * (1.0 / MOST_SLOW_IDLE)),
                    busy,
                }
            })
    }

    /// Drawn by weight: else a heavy endpoint could not get more than its
    /// share of the samples. So the idle ones among them need only their
    /// learned part.
    fn least_of_sample(&mut self, view: &View<'_>) -> Option<usize> {
        let mut idle = [(0, 0.0); SAMPLE];
        let mut idle_count = 0;
        let mut idle_sum = 0.0;
        let mut best = None;
        let mut least = f64::INFINITY;
        let factors = &self.factors;
        self.draw.several(view, SAMPLE, |index| {
            let load = view.load(index);
            let factor = f64::from(factors[index]);
            if load == 0 {
                idle_sum += (alike(factor) / factor).max(1.0 / MOST_SLOW_IDLE);
                idle[idle_count] = (index, idle_sum);
                idle_count += 1;
                return;
            }
            let score = (f64::from(load) + 1.0) * factor / f64::from(view.weight(index));
            if score < least {
                least = score;
                best = Some(index);
            }
        });
        if idle_count == 0 {
            return best;
        }
        let point = self.draw.below(idle_sum);
        let idle = &idle[..idle_count];
        let found = idle.iter().find(|&&(_, sum)| point < sum);
        found.or(idle.last()).map(|&(index, _)| index)
    }

    /// How many times as long as the upstream's mean the endpoint takes, if
    /// anything is known of it.
    fn slowness(&self, index: usize) -> Option<f64> {
        self.evidence.get(index)?.at?;
        Some(f64::from(self.factors[index]))
    }

    /// Lets the factors of some endpoints fade.
    fn refresh(&mut self, now: Instant) {
        let count = self.factors.len();
        for _ in 0..self.refresh.due(count, now) {
            self.refresh.next = match self.refresh.next + 1 {
                next if next < count => next,
                _ => 0,
            };
            let evidence = &mut self.evidence[self.refresh.next];
            if evidence.at.is_none() {
                continue;
            }
            evidence.fade(now);
            if evidence.answers < NOTHING {
                *evidence = Evidence::default();
            }
            self.factors[self.refresh.next] = evidence.slowness().exp() as f32;
        }
    }

    fn resize(&mut self, count: usize) {
        if self.factors.len() < count {
            self.evidence.resize(count, Evidence::default());
            self.factors.resize(count, 1.0);
        }
    }
}

impl Ranking for Adaptive {
    const LEARNS_FROM: LearnsFrom = LearnsFrom::Head;

    /// An idle endpoint in turn, else the one at which one more exchange
    /// should be answered first, by weight.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        self.resize(view.len());
        self.refresh(view.now);
        match view.len() {
            0..=ALL => None,
            _ => self.least_of_sample(view),
        }
        .or_else(|| self.least_of_all(view))
    }

    /// Learns the time to the first byte, or that there was an error.
    ///
    /// Deviation: an error counts as ten times the upstream's mean, but does
    /// not change that mean. Otherwise an outage would drive the mean up for as
    /// long as it lasts.
    fn observe(&mut self, observation: &Observation) {
        let Some(Answer {
            first_byte,
            is_error,
        }) = observation.observed.answer()
        else {
            return;
        };
        let Observation { endpoint, now, .. } = *observation;
        let relative = match (is_error, first_byte) {
            (true, _) => 10_f64.ln(),
            (false, Some(time)) => {
                // A clock's step of nothing is not infinitely fast.
                let time = time.max(Duration::from_micros(1)).as_secs_f64().ln();
                time - *self.mean.get_or_insert(time)
            }
            (false, None) => return,
        };
        self.resize(endpoint + 1);
        let evidence = &mut self.evidence[endpoint];
        let was_old = evidence.fade(now);
        if let Some(mean) = &mut self.mean
            && !is_error
        {
            *mean += (relative - evidence.slowness()) * MEAN_PART;
        }
        evidence.add(relative);
        if was_old {
            self.factors[endpoint] = evidence.slowness().exp() as f32;
        }
    }

    fn learned(&self, index: usize, _now: Instant) -> Option<Learned> {
        self.slowness(index).map(Learned::Slowness)
    }

    fn keep(&self, now: Instant) -> Option<BalancerSnapshot> {
        let kept = self.evidence.iter().map(|evidence| {
            let mut evidence = *evidence;
            evidence.at?;
            evidence.fade(now);
            (evidence.answers >= NOTHING).then_some(kept::Evidence {
                sum: evidence.sum,
                answers: evidence.answers,
            })
        });
        let kept = BalancerSnapshot {
            mean: self.mean,
            endpoints: kept.collect(),
        };
        (!kept.is_empty()).then_some(kept)
    }

    fn restore(&mut self, kept: &BalancerSnapshot, now: Instant) {
        self.mean = kept.finite_mean();
        self.resize(kept.endpoints.len());
        for (index, kept::Evidence { sum, answers }) in kept.evidence() {
            let most = MOST * answers;
            let evidence = Evidence {
                sum: sum.clamp(-most, most),
                answers,
                at: Some(now),
            };
            self.factors[index] = evidence.slowness().exp() as f32;
            self.evidence[index] = evidence;
        }
    }

    fn follow(&mut self, moved: &Moved) {
        self.least.follow(moved);
        moved.carry(&mut self.evidence, Evidence::default);
        moved.carry(&mut self.factors, || 1.0);
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::ByWeight,
            idle: Split::ByWeight,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Balance;
    use super::super::tests::{Site, answer, error, faster_gets_more, tunnel};
    use super::*;
    use crate::observation::Observed;

    /// A thousand answers a second of these endpoints, each in turn.
    fn teach(site: &mut Site, balancer: &mut Adaptive, seconds: u64, times: &[u64]) {
        for count in 0..seconds * 1_000 {
            site.now += Duration::from_millis(1);
            let endpoint = count as usize % times.len();
            balancer.observe(&answer(endpoint, site.now, times[endpoint]));
            balancer.refresh(site.now);
        }
    }

    #[test]
    fn a_slower_endpoint_gets_less_in_proportion() {
        let mut site = Site::new(&[1, 1]);
        let mut balancer = Adaptive::new(0);
        assert_eq!(balancer.slowness(1), None);
        teach(&mut site, &mut balancer, 10, &[10, 40]);
        assert_eq!(balancer.slowness(1), Some(f64::from(balancer.factors[1])));
        assert_eq!(balancer.slowness(2), None);
        let ratio = balancer.factors[1] / balancer.factors[0];
        // 4, if it were certain.
        assert!((3.7..4.0).contains(&ratio), "{ratio}");
        site.load(&[5, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(0), "6 < 2 * 4");
        site.load(&[7, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(1), "8 > 2 * 4, nearly");
        site.state(0).set_weight(2);
        assert_eq!(balancer.pick(&site.view()), Some(0));
    }

    #[test]
    fn it_follows_the_formula() {
        let site = Site::new(&[1, 1]);
        let mut balancer = Adaptive::new(0);
        balancer.observe(&answer(0, site.now, 100));
        assert_eq!(balancer.mean, Some(0.1_f64.ln()));
        assert_eq!(balancer.factors[0], 1.0);
        balancer.observe(&answer(1, site.now, 200));
        let mean = 0.1_f64.ln() + 0.002 * 2_f64.ln();
        assert_eq!(balancer.mean, Some(mean));
        let f = 2_f64.ln() / 11.0;
        assert_eq!(balancer.factors[1], f.exp() as f32);
        // Half a second later, 3 s: cut off at 5.
        let later = site.now + Duration::from_millis(500);
        balancer.observe(&answer(1, later, 1_000_000));
        let left = (-0.5_f64).exp();
        let f = (2_f64.ln() * left + 5.0) / (left + 1.0 + 10.0);
        assert!((f64::from(balancer.factors[1]) - f.exp()).abs() < 1e-6);
    }

    #[test]
    fn thin_evidence_changes_little() {
        let site = Site::new(&[1, 1]);
        let mut balancer = Adaptive::new(0);
        balancer.observe(&answer(0, site.now, 10));
        balancer.observe(&answer(1, site.now, 100));
        assert!(balancer.factors[1] < 1.25);
        // Of a hundred answers 100 ms are certain.
        (0..99).for_each(|_| balancer.observe(&answer(1, site.now, 100)));
        assert!(balancer.factors[1] < 1.25, "known a moment later");
        balancer.observe(&answer(1, site.now + FRESH, 100));
        assert!(balancer.factors[1] > 4.0);
    }

    #[test]
    fn it_forgets_in_a_few_seconds() {
        let mut site = Site::new(&[1, 1]);
        let mut balancer = Adaptive::new(0);
        teach(&mut site, &mut balancer, 5, &[10, 100]);
        assert!(balancer.factors[1] > 2.5, "{:?}", balancer.factors);
        // Nothing more is heard of it: it is tried again.
        let mut faded = 0;
        for millisecond in 1..=10_000 {
            site.now += Duration::from_millis(1);
            balancer.pick(&site.view());
            if balancer.factors[1] < 1.1 {
                faded = millisecond;
                break;
            }
        }
        assert!((2_000..8_000).contains(&faded), "{faded} ms");
        teach(&mut site, &mut balancer, 5, &[10, 100]);
        // The endpoint is well again, and its answers show it.
        teach(&mut site, &mut balancer, 4, &[10, 10]);
        assert!(balancer.factors[1] / balancer.factors[0] < 1.1);
    }

    /// Among many endpoints a pick brings some up to date, and all in time.
    #[test]
    fn all_factors_fade() {
        for (count, pause) in [(3, 1), (40, 7), (700, 2), (700, 90)] {
            let mut site = Site::new(&vec![1; count]);
            let mut balancer = Adaptive::new(0);
            balancer.observe(&answer(0, site.now, 10));
            for endpoint in 0..count {
                balancer.observe(&answer(endpoint, site.now, 1_000));
            }
            assert!(balancer.factors[count - 1] > 1.05);
            let end = site.now + Duration::from_secs(9);
            while site.now < end {
                site.now += Duration::from_millis(pause);
                balancer.pick(&site.view());
            }
            assert_eq!(balancer.factors, vec![1.0; count]);
        }
    }

    #[test]
    fn slow_pages_everywhere_are_nobodys_fault() {
        let mut site = Site::new(&[1; 4]);
        let mut balancer = Adaptive::new(0);
        let mut random = fastrand::Rng::with_seed(1);
        let mut furthest = 1.0_f32;
        for count in 0..40_000 {
            site.now += Duration::from_micros(500);
            let time = if random.u32(..100) < 5 { 500 } else { 5 };
            balancer.observe(&answer(count % 4, site.now, time));
            if count > 4_000 {
                let factor = balancer.factors[count % 4];
                furthest = furthest.max(factor).max(1.0 / factor);
            }
        }
        // Means of the times themselves go up and down fivefold.
        assert!(furthest < 1.5, "{furthest}");
    }

    #[test]
    fn errors_count_as_slow_and_leave_the_mean() {
        let site = Site::new(&[1, 1]);
        let mut balancer = Adaptive::new(0);
        let error = error(1, site.now, 1);
        balancer.observe(&error);
        balancer.observe(&answer(0, site.now, 20));
        for _ in 0..300 {
            balancer.observe(&Observation {
                observed: Observed::Failed,
                ..error
            });
            balancer.observe(&error);
        }
        balancer.observe(&Observation {
            now: site.now + FRESH,
            ..error
        });
        assert_eq!(balancer.mean, Some(0.02_f64.ln()));
        assert!((9.0..10.0).contains(&balancer.factors[1]));
        let before = balancer.factors.clone();
        balancer.observe(&tunnel(1, site.now));
        assert_eq!(balancer.factors, before, "a tunnel");
    }

    #[test]
    fn equal_endpoints_get_their_turns() {
        let site = Site::new(&[1; 3]);
        let mut balancer = Adaptive::new(1023);
        let picks: Vec<_> = (0..6).filter_map(|_| balancer.pick(&site.view())).collect();
        assert_eq!(picks[3..], picks[..3]);
        assert_ne!(picks[0], picks[1]);
        assert_ne!(picks[1], picks[2]);
    }

    #[test]
    fn the_faster_endpoint_gets_more() {
        faster_gets_more(Balance::Adaptive);
    }

    #[test]
    fn of_many_it_finds_the_few_that_are_up() {
        let site = Site::new(&[1; 900]);
        let out = crate::endpoint::Flag::Down;
        (1..900).for_each(|index| _ = site.state(index).set(out, true));
        assert_eq!(Adaptive::new(3).pick(&site.view()), Some(0));
        site.state(0).set(out, true);
        assert_eq!(Adaptive::new(3).pick(&site.view()), None);
    }
}
