//! The results of a load, in the form that the benchmark reads.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Failed exchanges by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// The connection could not be opened.
    pub connect: u64,
    /// The status was not 200.
    pub status: u64,
    /// The body's length was not the one asked for.
    pub length: u64,
    /// The connection ended before the answer did.
    pub closed: u64,
    /// Answers that were not HTTP/1.
    pub malformed: u64,
    /// No answer had come when the load ended.
    pub unanswered: u64,
}

impl Errors {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.connect + self.status + self.length + self.closed + self.malformed + self.unanswered
    }
}

/// Latency at one percentile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// Between 0 and 100.
    pub percent: f64,
    /// In microseconds.
    pub latency_us: f64,
}

/// The figures of one load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Answers that were right.
    pub answered: u64,
    /// Exchanges that were not.
    pub errors: Errors,
    /// Answers of 503, where they are no failures.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// From the first request, or the end of the warm-up, to the last answer.
    pub seconds: f64,
    /// Right answers per second.
    pub per_second: f64,
    /// Connections opened.
    pub opened: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Latency from the median outwards.
    pub percentiles: Vec<Percentile>,
    /// The pages by themselves, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageLatency>,
}

/// Latency of one page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PageLatency {
    /// Its path.
    pub path: String,
    /// Answers that were right.
    pub answered: u64,
    /// Answers of 503, where they are no failures.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Latency from the median outwards.
    pub percentiles: Vec<Percentile>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Summary {
    /// These figures with the latency of one page in place of all.
    #[must_use]
    pub fn of_page(mut self, path: &str) -> Self {
        let page = self.pages.iter().find(|page| page.path == path);
        if let Some(page) = page.cloned() {
            self.mean_us = page.mean_us;
            self.percentiles = page.percentiles;
        }
        self
    }

    /// Latency at one of the percentiles kept, in microseconds.
    #[must_use]
    pub fn latency_us(&self, percent: f64) -> f64 {
        self.percentiles
            .iter()
            .find(|at| (at.percent - percent).abs() < 1e-9)
            .map_or(0.0, |at| at.latency_us)
    }
}

/// Percentiles for a table and, evenly spaced on a logarithmic scale of what
/// lies above them, for a plot.
#[must_use]
pub fn percentiles(latency_ns: &Histogram<u64>) -> Vec<Percentile> {
    /// Points per factor of ten, as far as 99.999 %.
    const PER_DECADE: u32 = 12;
    let named = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999, 100.0];
    let mut percents: Vec<f64> = (0..=5 * PER_DECADE)
        .map(|step| 100.0 * (1.0 - 10f64.powf(-f64::from(step) / f64::from(PER_DECADE))))
        .filter(|percent| *percent > 50.0 && named.iter().all(|at| (at - percent).abs() > 1e-6))
        .chain(named)
        .collect();
    percents.sort_by(f64::total_cmp);
    percents
        .into_iter()
        .map(|percent| Percentile {
            percent,
            latency_us: latency_ns.value_at_percentile(percent) as f64 / 1e3,
        })
        .collect()
}
