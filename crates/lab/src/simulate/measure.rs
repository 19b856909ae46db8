//! The results of a run.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::workload::Class;
use crate::load::Percentile;
use crate::load::summary::percentiles;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With a response that is no error.
    Answered,
    /// With a response that is one.
    Failed,
    /// With a connection that failed, and no attempt left.
    Unreachable,
    /// Without an attempt: there was no place for it.
    Refused,
    /// In the queue, when its time was over.
    TimedOut,
}

/// One request that is over.
#[derive(Debug, Clone, Copy)]
pub struct Over {
    /// How.
    pub end: End,
    /// Kind of page.
    pub class: Class,
    /// When it came.
    pub arrived: Duration,
    /// When it was over.
    pub at: Duration,
    /// Time in the proxy's queue.
    pub waited: Duration,
    /// Whether it came after the warm-up.
    pub is_measured: bool,
}

/// Counts and times while a run goes on.
#[derive(Debug)]
pub struct Measure {
    ends: [u64; 5],
    all_ends: u64,
    latencies: Sample,
    fast_latencies: Sample,
    waits: Sample,
    waited: u64,
    window: [Duration; 2],
    is_warm: bool,
    /// Right answers in the window.
    in_window: u64,
}

/// Upper bound of the percentiles: three hours.
const LONGEST_NS: u64 = 3 * 3_600 * 1_000_000_000;

/// Times for percentiles and a mean.
#[derive(Debug)]
struct Sample {
    histogram: Histogram<u64>,
    total: Duration,
    max: Duration,
}

impl Sample {
    fn new() -> Self {
        Sample {
            histogram: Histogram::new_with_bounds(1_000, LONGEST_NS, 3)
                .expect("bounds and digits are allowed"),
            total: Duration::ZERO,
            max: Duration::ZERO,
        }
    }

    fn add(&mut self, time: Duration) {
        self.histogram.saturating_record(time.as_nanos() as u64);
        self.total += time;
        self.max = self.max.max(time);
    }

    fn times(&self) -> Times {
        let at = |percent| self.histogram.value_at_percentile(percent) as f64 / 1e6;
        let count = self.histogram.len().max(1) as f64;
        Times {
            mean_ms: self.total.as_secs_f64() * 1e3 / count,
            p50_ms: at(50.0),
            p95_ms: at(95.0),
            p99_ms: at(99.0),
            p999_ms: at(99.9),
            max_ms: self.max.as_secs_f64() * 1e3,
        }
    }
}

/// Mean, percentiles and maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Times {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

/// The figures of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Right answers per second, between the end of the warm-up and the last
    /// arrival.
    pub per_second: f64,
    /// Requests that were measured.
    pub measured: u64,
    /// Number of these without a correct answer.
    pub errors: u64,
    /// Number of these by [`End`]: failed, unreachable, refused, timed out.
    pub errors_by_end: [u64; 4],
    /// Ends of all requests, the warm-up's included.
    pub ended: u64,
    /// From arrival to the answer, of right answers.
    pub latency: Times,
    /// The same for fast pages alone.
    pub fast_latency: Times,
    /// Time in the proxy's queue; zero for who did not wait.
    pub wait: Times,
    /// Share of requests that waited.
    pub waiting_share: f64,
    /// For the plot.
    pub percentiles: Vec<Percentile>,
    /// Slots and places still held at the end: anything but zero is a leak.
    pub left_over: u64,
    /// Reservations above `max_in_flight`: zero, or the limit does not hold.
    pub over_limit: u64,
}

impl Figures {
    /// Errors of all requests measured, between 0 and 1.
    #[must_use]
    pub fn error_share(&self) -> f64 {
        self.errors as f64 / self.measured.max(1) as f64
    }
}

impl Default for Measure {
    fn default() -> Self {
        Measure {
            ends: [0; 5],
            all_ends: 0,
            latencies: Sample::new(),
            fast_latencies: Sample::new(),
            waits: Sample::new(),
            waited: 0,
            window: [Duration::ZERO; 2],
            is_warm: false,
            in_window: 0,
        }
    }
}

impl Measure {
    /// Notes an arrival: throughput is counted between the first and the last
    /// that are measured.
    pub fn arrived(&mut self, now: Duration, is_measured: bool) {
        self.window[1] = now;
        if is_measured && !self.is_warm {
            self.window[0] = now;
            self.is_warm = true;
        }
    }

    /// Notes an end. `is_open` is whether there are arrivals to come.
    pub fn over(&mut self, over: &Over, is_open: bool) {
        self.all_ends += 1;
        if over.is_measured {
            self.add(over);
        }
        if is_open && self.is_warm && over.end == End::Answered {
            self.in_window += 1;
        }
    }

    fn add(&mut self, over: &Over) {
        self.ends[over.end as usize] += 1;
        self.waits.add(over.waited);
        self.waited += u64::from(!over.waited.is_zero());
        if over.end != End::Answered {
            return;
        }
        let latency = over.at.saturating_sub(over.arrived);
        self.latencies.add(latency);
        if over.class == Class::Fast {
            self.fast_latencies.add(latency);
        }
    }

    /// The figures of the run.
    #[must_use]
    pub fn figures(&self, left_over: u64, over_limit: u64) -> Figures {
        let [_, errors_by_end @ ..] = self.ends;
        let measured: u64 = self.ends.iter().sum();
        let seconds = self.window[1].saturating_sub(self.window[0]).as_secs_f64();
        Figures {
            per_second: self.in_window as f64 / seconds.max(f64::MIN_POSITIVE),
            measured,
            errors: errors_by_end.iter().sum(),
            errors_by_end,
            ended: self.all_ends,
            latency: self.latencies.times(),
            fast_latency: self.fast_latencies.times(),
            wait: self.waits.times(),
            waiting_share: self.waited as f64 / measured.max(1) as f64,
            percentiles: percentiles(&self.latencies.histogram),
            left_over,
            over_limit,
        }
    }
}
