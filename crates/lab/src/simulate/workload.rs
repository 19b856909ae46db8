//! The requests of clients, and their times: seeded, and the same for every policy.

use std::f64::consts::TAU;
use std::time::Duration;

use evenkeel_policy::hash::hash;

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Each client asks again as soon as it has its answer.
    Closed {
        /// How many clients.
        clients: u32,
    },
    /// A Poisson process, whether or not the answers come.
    Open {
        /// Mean rate.
        per_second: f64,
    },
}

/// How long an origin of speed one needs for a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceTime {
    /// Always the same.
    Fixed(Duration),
    /// Exponential.
    Exponential {
        /// Mean.
        mean: Duration,
    },
    /// Log-normal.
    LogNormal {
        /// Mean of the time itself.
        mean: Duration,
        /// Standard deviation of its logarithm.
        sigma: f64,
    },
    /// Two kinds of pages, each with a fixed time.
    Mix {
        /// Of the many.
        fast: Duration,
        /// Of the few.
        slow: Duration,
        /// How many are slow, between 0 and 1.
        slow_share: f64,
    },
}

/// A kind of page, as routes tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Fast, or there is one kind only.
    Fast,
    /// The slow kind of [`ServiceTime::Mix`].
    Slow,
}

/// The load of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// How long they take.
    pub service_time: ServiceTime,
    /// How many arrive.
    pub requests: u64,
    /// How many of them, at the beginning, are not measured.
    pub warm_up: u64,
}

/// The properties of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// At an origin of speed one.
    pub time: Duration,
    /// Kind of page.
    pub class: Class,
    /// Hash of the key that balancers by key use.
    pub key: u64,
}

/// Different keys that requests come with.
const KEYS: u64 = 10_000;

impl ServiceTime {
    /// The mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        match *self {
            ServiceTime::Fixed(mean)
            | ServiceTime::Exponential { mean }
            | ServiceTime::LogNormal { mean, .. } => mean,
            ServiceTime::Mix {
                fast,
                slow,
                slow_share,
            } => fast.mul_f64(1.0 - slow_share) + slow.mul_f64(slow_share),
        }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> (Duration, Class) {
        let time = match *self {
            ServiceTime::Fixed(time) => time,
            ServiceTime::Exponential { mean } => mean.mul_f64(exponential(random)),
            ServiceTime::LogNormal { mean, sigma } => {
                let exponent = sigma * normal(random) - sigma * sigma / 2.0;
                mean.mul_f64(exponent.exp())
            }
            ServiceTime::Mix {
                fast,
                slow,
                slow_share,
            } => {
                if random.f64() < slow_share {
                    return (slow, Class::Slow);
                } else {
                    fast
                }
            }
        };
        (time, Class::Fast)
    }
}

/// Random streams of a run, one for each purpose. A policy that draws more from one does not
/// change the others.
#[derive(Debug)]
pub struct Source {
    gaps: fastrand::Rng,
    works: fastrand::Rng,
    keys: fastrand::Rng,
    balancers: fastrand::Rng,
}

impl Source {
    /// The streams of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut seeds = fastrand::Rng::with_seed(seed);
        Source {
            gaps: seeds.fork(),
            works: seeds.fork(),
            keys: seeds.fork(),
            balancers: seeds.fork(),
        }
    }

    /// Time to the next arrival of a Poisson stream.
    pub fn gap(&mut self, per_second: f64) -> Duration {
        Duration::from_secs_f64(exponential(&mut self.gaps) / per_second)
    }

    /// The next request.
    pub fn work(&mut self, service_time: &ServiceTime) -> Work {
        let (time, class) = service_time.draw(&mut self.works);
        let key = hash(&self.keys.u64(..KEYS).to_le_bytes());
        Work { time, class, key }
    }

    /// Which balancer gets a request of an open loop.
    pub fn balancer(&mut self, count: usize) -> usize {
        self.balancers.usize(..count)
    }
}

fn exponential(random: &mut fastrand::Rng) -> f64 {
    -(1.0 - random.f64()).ln()
}

fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (2.0 * exponential(random)).sqrt();
    radius * (TAU * random.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn drawn_times_have_the_mean_that_they_say() {
        let times = [
            ServiceTime::Fixed(20 * MS),
            ServiceTime::Exponential { mean: 20 * MS },
            ServiceTime::LogNormal {
                mean: 20 * MS,
                sigma: 1.0,
            },
            ServiceTime::Mix {
                fast: 5 * MS,
                slow: 500 * MS,
                slow_share: 0.05,
            },
        ];
        let mut source = Source::new(1);
        for service_time in times {
            let drawn: f64 = (0..200_000)
                .map(|_| source.work(&service_time).time.as_secs_f64())
                .sum();
            let ratio = drawn / 200_000.0 / service_time.mean().as_secs_f64();
            assert!((ratio - 1.0).abs() < 0.03, "{service_time:?}: {ratio}");
        }
    }

    #[test]
    fn gaps_have_the_mean_and_the_spread_of_a_poisson_stream() {
        let mut source = Source::new(2);
        let gaps: Vec<f64> = (0..200_000)
            .map(|_| source.gap(100.0).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| gap * gap).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 100.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((square / (mean * mean) - 2.0).abs() < 0.05, "{square}");
    }
}
