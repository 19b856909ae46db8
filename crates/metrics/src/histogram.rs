//! Histograms with buckets of a fixed relative width, like Prometheus's native histograms of
//! schema
//! 3. An octave has eight buckets, each a twelfth wider than the one before.
//!
//! Like a counter, a histogram has one writer and any number of readers. Without values it
//! takes two words.

use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::cells::{Counter, Gauge, Lazy};
use crate::saved::Saved;

/// Buckets to an octave.
pub const PER_OCTAVE: usize = 8;
/// Number of octaves. Larger values go to the last bucket.
const OCTAVES: usize = 40;
/// The bucket of zero, and those of the octaves.
pub const BUCKETS: usize = 1 + OCTAVES * PER_OCTAVE;

/// The bounds within an octave: 2^(k/8) for k from 1 to 7, as 2^-32ths above one.
const CUTS: [u32; PER_OCTAVE - 1] = [
    0x172B_83C8,
    0x306F_E0A4,
    0x4BFD_AD54,
    0x6A09_E668,
    0x8ACE_5423,
    0xAE89_F996,
    0xD581_8DD0,
];

/// A distribution that one worker adds to and anybody reads.
#[derive(Debug, Default)]
pub struct Histogram(Lazy<Buckets>);

#[derive(Debug)]
struct Buckets {
    sum: Counter,
    /// A bit for each octave that has a value, from 1 on, and 0 for zero. A reader of thousands
    /// of histograms looks only at the octaves that have one.
    octaves: Gauge,
    buckets: [Counter; BUCKETS],
}

impl Default for Buckets {
    fn default() -> Self {
        Buckets {
            sum: Counter::default(),
            octaves: Gauge::default(),
            buckets: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl Histogram {
    /// Adds a value; only the worker that owns the histogram may.
    pub fn record(&self, value: u64) {
        self.record_at(bucket(value), value);
    }

    /// Adds a duration, in whole microseconds.
    pub fn record_time(&self, time: Duration) {
        self.record(micros(time));
    }

    /// Adds a value whose bucket is known.
    pub fn record_at(&self, bucket: usize, value: u64) {
        let cells = self.0.get_or_init();
        cells.sum.add(value);
        let bucket = bucket.min(BUCKETS - 1);
        let octaves = cells.octaves.value();
        let octave = 1 << bucket.div_ceil(PER_OCTAVE);
        if octaves & octave == 0 {
            cells.octaves.set(octaves | octave);
        }
        cells.buckets[bucket].add(1);
    }

    /// Its sum, and the counts of its buckets.
    pub(crate) fn save(&self) -> Saved {
        let Some(cells) = self.0.get() else {
            return Saved::Nothing;
        };
        let mut counts = vec![cells.sum.value()];
        counts.extend(cells.buckets.iter().map(Counter::value));
        let used = counts.iter().rposition(|it| *it > 0);
        counts.truncate(used.map_or(0, |last| last + 1));
        Saved::numbers(counts)
    }

    /// Has at least these from now on; only the worker that owns the histogram may.
    pub(crate) fn raise(&self, saved: &Saved) {
        let Some((sum, counts)) = saved.values().split_first() else {
            return;
        };
        let cells = self.0.get_or_init();
        cells.sum.add(sum.saturating_sub(cells.sum.value()));
        for (bucket, (cell, count)) in cells.buckets.iter().zip(counts).enumerate() {
            let more = count.saturating_sub(cell.value());
            if more > 0 {
                let octave = 1 << bucket.div_ceil(PER_OCTAVE);
                cells.octaves.set(cells.octaves.value() | octave);
                cell.add(more);
            }
        }
    }

    /// Adds the counts of another histogram, which no longer changes. Only the worker that owns
    /// this one may call it.
    pub fn take_over(&self, other: &Histogram) {
        let Some(others) = other.0.get() else {
            return;
        };
        let cells = self.0.get_or_init();
        cells.sum.add(others.sum.value());
        let octaves = cells.octaves.value() | others.octaves.value();
        cells.octaves.set(octaves);
        for (cell, other) in cells.buckets.iter().zip(&others.buckets) {
            cell.add(other.value());
        }
    }
}

/// Whole microseconds.
pub fn micros(time: Duration) -> u64 {
    time.as_secs() * 1_000_000 + u64::from(time.subsec_micros())
}

/// The bucket of a value. Zero has bucket 0; values from 2^(n + k/8) up to the next bound have
/// bucket `8 * n + k + 1`.
pub fn bucket(value: u64) -> usize {
    let Some(octave) = value.checked_ilog2() else {
        return 0;
    };
    // The bits behind the leading one, as 2^-32ths.
    let fraction = ((value << (63 - octave) << 1) >> 32) as u32;
    let above = CUTS.iter().filter(|&&cut| fraction >= cut).count();
    (1 + octave as usize * PER_OCTAVE + above).min(BUCKETS - 1)
}

/// The lower bound of a bucket: its least value.
pub fn lower_bound(bucket: usize) -> f64 {
    match bucket {
        0 => 0.0,
        _ => ((bucket - 1) as f64 / PER_OCTAVE as f64).exp2(),
    }
}

/// The sum of histograms of several workers or moments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Values in each bucket; those behind the last are empty.
    buckets: Vec<u64>,
    count: u64,
    sum: u64,
}

impl Distribution {
    /// Adds everything that a histogram has counted so far.
    pub fn add(&mut self, histogram: &Histogram) {
        let Some(cells) = histogram.0.get() else {
            return;
        };
        self.sum += cells.sum.value();
        let octaves = cells.octaves.value();
        // From the top, so that there is one allocation.
        let occupied = (0..=OCTAVES).rev().filter(|it| octaves & (1 << it) != 0);
        for octave in occupied {
            let end = 1 + octave * PER_OCTAVE;
            let start = end.saturating_sub(PER_OCTAVE);
            let counts = &cells.buckets[start..end];
            if self.buckets.len() < end {
                // Buckets after the last value are left out.
                let last = counts.iter().rposition(|it| it.value() > 0);
                let len = last.map_or(0, |last| start + last + 1);
                self.buckets.resize(len.max(self.buckets.len()), 0);
            }
            let sums = self.buckets.get_mut(start..).unwrap_or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                let count = count.value();
                *sum += count;
                self.count += count;
            }
        }
    }

    /// Adds another distribution to this one.
    pub fn merge(&mut self, other: &Distribution) {
        self.sum += other.sum;
        self.count += other.count;
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
    }

    fn add_at(&mut self, bucket: usize, count: u64) {
        if count == 0 {
            return;
        }
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += count;
        self.count += count;
    }

    /// The values added since an earlier state of the same distribution.
    pub fn since(&self, earlier: &Distribution) -> Distribution {
        let mut news = Distribution {
            sum: self.sum.saturating_sub(earlier.sum),
            ..Distribution::default()
        };
        if self.count == earlier.count {
            return news;
        }
        for (index, count) in self.buckets.iter().enumerate() {
            let before = earlier.buckets.get(index).copied().unwrap_or(0);
            news.add_at(index, count.saturating_sub(before));
        }
        news
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum, in their unit.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Values in each bucket, up to the last that is not empty.
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// Values below `bound`, which should be one of the buckets' bounds.
    pub fn count_below(&self, bound: f64) -> u64 {
        let below = self.buckets.iter().enumerate();
        below
            .take_while(|(index, _)| lower_bound(*index) < bound)
            .map(|(_, count)| count)
            .sum()
    }

    /// The quantile of the values; 0 without values. It is exact to the width of a bucket (9
    /// %), and interpolated within the bucket.
    pub fn quantile(&self, part: f64) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let rank = part.clamp(0.0, 1.0) * self.count as f64;
        let mut below = 0.0;
        for (index, count) in self.buckets.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                let (from, to) = (lower_bound(index), lower_bound(index + 1));
                return match index {
                    0 => 0.0,
                    _ => from + (to - from) * (rank - below) / count,
                };
            }
            below += count;
        }
        lower_bound(self.buckets.len())
    }

    /// The mean; 0 for no values.
    pub fn mean(&self) -> f64 {
        match self.count {
            0 => 0.0,
            count => self.sum as f64 / count as f64,
        }
    }
}

/// Count, sum, mean and some quantiles.
impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rounded = |value: f64| (value * 10.0).round() / 10.0;
        let mut summary = serializer.serialize_struct("Distribution", 7)?;
        summary.serialize_field("count", &self.count())?;
        summary.serialize_field("sum", &self.sum())?;
        summary.serialize_field("mean", &rounded(self.mean()))?;
        for (name, part) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
            summary.serialize_field(name, &rounded(self.quantile(part)))?;
        }
        summary.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_within_its_bucket() {
        let powers = (0..41).flat_map(|n| [(1u64 << n) - 1, 1 << n, (1 << n) + 1]);
        for value in (0..5_000).chain(powers).chain([1_000_003, 123_456_789_012]) {
            let index = bucket(value);
            assert!(lower_bound(index) <= value as f64, "{value} in {index}");
            if index + 1 < BUCKETS {
                assert!(
                    (value as f64) < lower_bound(index + 1),
                    "{value} in {index}"
                );
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_as_exact_as_a_bucket() {
        let histogram = Histogram::default();
        (1..=10_000).for_each(|value| histogram.record(value));
        let mut all = Distribution::default();
        all.add(&histogram);
        assert_eq!((all.count(), all.sum()), (10_000, 50_005_000));
        for part in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let exact = part * 10_000.0;
            let found = all.quantile(part);
            assert!((found / exact - 1.0).abs() < 0.0905, "{part}: {found}");
        }
        assert_eq!(all.count_below(1024.0), 1023);
        assert_eq!(Distribution::default().quantile(0.5), 0.0);
    }

    #[test]
    fn what_came_since() {
        let histogram = Histogram::default();
        let mut before = Distribution::default();
        histogram.record(3);
        before.add(&histogram);
        histogram.record(700);
        histogram.record(0);
        let mut after = Distribution::default();
        after.add(&histogram);
        let news = after.since(&before);
        assert_eq!((news.count(), news.sum()), (2, 700));
        let mut merged = before.clone();
        merged.merge(&news);
        assert_eq!(merged, after);
    }

    #[test]
    fn a_histogram_takes_another_over() {
        let [one, other, both] = [(); 3].map(|()| Histogram::default());
        for (histogram, value) in [(&one, 3), (&other, 0), (&other, 700), (&other, 3)] {
            histogram.record(value);
            both.record(value);
        }
        one.take_over(&other);
        one.take_over(&Histogram::default());
        let [taken, both] = [&one, &both].map(|it| {
            let mut all = Distribution::default();
            all.add(it);
            all
        });
        assert_eq!(taken, both);
    }
}
