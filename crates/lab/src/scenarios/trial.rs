//! A trial: entrants before the same origins, loaded in turn, in rounds.
//!
//! All entrants run at once and are loaded one at a time. The order rotates by one each round,
//! so that drift of the machine affects all alike. Ratios are taken within a round.

use std::io;

use serde::Serialize;

use super::entrant::Entrant;
use super::origins::{Origins, Shape};
use super::stall::StallWatch;
use crate::bench::proxy::{Proxy, Site};
use crate::bench::report::{Round, median};
use crate::bench::rounds::{load, measured};

/// The plan of a trial.
#[derive(Debug, Clone)]
pub struct Plan {
    /// As the table calls it.
    pub title: String,
    /// Behind every entrant.
    pub origins: Vec<Shape>,
    /// In the order of the table.
    pub entrants: Vec<Entrant>,
    /// Arguments of the load before the first round.
    pub warm_up: Vec<String>,
    /// Arguments of the load of a round.
    pub load: Vec<String>,
    /// The page whose latency counts; `None` for all pages.
    pub page: Option<&'static str>,
    /// How often each is loaded.
    pub rounds: usize,
    /// How often each peer is.
    pub peer_rounds: usize,
}

/// The results of a trial.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// As the table calls it.
    pub title: String,
    /// In the order of the table.
    pub series: Vec<Series>,
}

/// The figures of one entrant.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// The entrant's.
    pub label: &'static str,
    /// Why it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// In the order in which they ran.
    pub rounds: Vec<Round>,
    /// The machine's own longest stall meanwhile, in milliseconds.
    pub stall_ms: f64,
}

impl Series {
    /// One of an entrant that has yet to run, or says why it does not.
    #[must_use]
    pub fn of(label: &'static str, refused: Option<String>) -> Self {
        Self {
            label,
            refused,
            rounds: Vec::new(),
            stall_ms: 0.0,
        }
    }

    /// Runs `measure` for a further round, and looks for stalls meanwhile.
    ///
    /// # Errors
    /// The errors of `measure`.
    pub fn add(&mut self, measure: impl FnOnce() -> io::Result<Round>) -> io::Result<()> {
        let watch = StallWatch::start();
        let round = measure();
        self.stall_ms = self.stall_ms.max(watch.finish());
        self.rounds.push(round?);
        Ok(())
    }
}

impl Plan {
    /// Starts everything, runs the rounds and ends everything.
    ///
    /// # Errors
    /// An origin can't be started or the load can't be run. An entrant that
    /// can't be started is left out, and says why.
    pub fn run(&self, site: &Site) -> io::Result<Trial> {
        let origins = Origins::start(site, &self.origins)?;
        let mut proxies: Vec<Option<Proxy>> = Vec::new();
        let mut series = Vec::new();
        for entrant in &self.entrants {
            let started = entrant.start(site, &origins.addresses);
            let refused = started.as_ref().err().map(ToString::to_string);
            series.push(Series::of(entrant.label, refused));
            proxies.push(started.ok());
        }
        for (entrant, proxy) in self.entrants.iter().zip(&proxies) {
            let arguments = entrant.load.as_ref().unwrap_or(&self.warm_up);
            if let Some(proxy) = proxy {
                load(proxy.address, arguments)?;
            }
        }
        for round in 0..self.rounds {
            for step in 0..self.entrants.len() {
                let at = (round + step) % self.entrants.len();
                let entrant = &self.entrants[at];
                let Some(proxy) = &proxies[at] else {
                    continue;
                };
                if entrant.is_peer() && round >= self.peer_rounds {
                    continue;
                }
                let arguments = entrant.load.as_ref().unwrap_or(&self.load);
                series[at].add(|| {
                    measured(proxy, |address| {
                        let summary = load(address, arguments)?;
                        Ok(match self.page {
                            Some(path) => summary.of_page(path),
                            None => summary,
                        })
                    })
                })?;
            }
        }
        Ok(Trial {
            title: self.title.clone(),
            series,
        })
    }
}

impl Trial {
    /// One entrant's figures, if it ran.
    #[must_use]
    pub fn series(&self, label: &str) -> Option<&Series> {
        let mut series = self.series.iter();
        series.find(|at| at.label == label && !at.rounds.is_empty())
    }

    /// The median over the rounds of one entrant's figure.
    pub fn median(&self, label: &str, figure: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let series = self.series(label)?;
        let figures: Vec<f64> = series.rounds.iter().filter_map(figure).collect();
        (!figures.is_empty()).then(|| median(figures))
    }

    /// The greatest over the rounds of one entrant's figure.
    pub fn worst(&self, label: &str, figure: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let series = self.series(label)?;
        let figures = series.rounds.iter().filter_map(figure);
        figures.max_by(f64::total_cmp)
    }

    /// The median over the rounds of a ratio of two entrants' figures.
    pub fn ratio(
        &self,
        over: &str,
        under: &str,
        figure: impl Fn(&Round) -> Option<f64>,
    ) -> Option<f64> {
        let (over, under) = (self.series(over)?, self.series(under)?);
        let pairs = over.rounds.iter().zip(&under.rounds);
        let ratios: Vec<f64> = pairs
            .filter_map(|(over, under)| Some(figure(over)? / figure(under)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    /// Requests of one entrant that failed, over all rounds.
    #[must_use]
    pub fn failed(&self, label: &str) -> u64 {
        let rounds = self.series(label).map(|series| &series.rounds);
        rounds.into_iter().flatten().map(|round| round.failed).sum()
    }

    /// Requests of one entrant, answered right or not, over all rounds.
    #[must_use]
    pub fn asked(&self, label: &str) -> u64 {
        let rounds = self.series(label).map(|series| &series.rounds);
        let asked = |round: &Round| round.answered + round.failed;
        rounds.into_iter().flatten().map(asked).sum()
    }
}

/// Right answers per second.
#[must_use]
pub fn throughput(round: &Round) -> Option<f64> {
    Some(round.per_second)
}

/// Latency at a percentile, in milliseconds.
pub fn latency_ms(percent: f64) -> impl Fn(&Round) -> Option<f64> {
    move |round| round.latency_us(percent).map(|us| us / 1e3)
}

/// Latency at a percentile over the median latency.
pub fn over_median(percent: f64) -> impl Fn(&Round) -> Option<f64> {
    move |round| Some(round.latency_us(percent)? / round.latency_us(50.0)?)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::load::Percentile;

    /// A round with a median and a maximum in milliseconds.
    pub fn round(per_second: f64, p50_ms: f64, max_ms: f64, failed: u64) -> Round {
        let at = |percent, ms: f64| Percentile {
            percent,
            latency_us: ms * 1e3,
        };
        Round {
            per_second,
            answered: 100,
            failed,
            percentiles: vec![at(50.0, p50_ms), at(100.0, max_ms)],
            ..Round::default()
        }
    }

    pub fn trial(series: &[(&'static str, Vec<Round>)]) -> Trial {
        let series = series.iter().map(|(label, rounds)| {
            let refused = rounds.is_empty().then(|| "unknown key".to_owned());
            let mut series = Series::of(label, refused);
            series.rounds.clone_from(rounds);
            series
        });
        Trial {
            title: "t".into(),
            series: series.collect(),
        }
    }

    #[test]
    fn figures_over_rounds() {
        let fast = vec![round(30.0, 10.0, 15.0, 0), round(40.0, 10.0, 30.0, 2)];
        let slow = vec![round(10.0, 20.0, 20.0, 0), round(20.0, 20.0, 20.0, 0)];
        let trial = trial(&[("fast", fast), ("slow", slow), ("absent", Vec::new())]);
        assert_eq!(trial.ratio("fast", "slow", throughput), Some(2.5));
        assert_eq!(trial.worst("fast", over_median(100.0)), Some(3.0));
        assert_eq!(trial.median("slow", latency_ms(50.0)), Some(20.0));
        assert_eq!(trial.ratio("fast", "absent", throughput), None);
        assert_eq!((trial.failed("fast"), trial.asked("fast")), (2, 202));
    }
}
