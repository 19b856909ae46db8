//! Prometheus's protocol buffers, with native histograms of schema 3.
//!
//! Source: io/prometheus/client/metrics.proto of prometheus/client_model; `wire`
//! names the numbers of its fields. Each message is a `MetricFamily`
//! with its length before it.

use evenkeel_metrics::family::{Kind, Value};

use super::family::{Family, Labels, Writer};
use super::pieces::Output;
use super::text::{bounds, counts_below};
use super::wire::{bytes, field, number, real, varint, write_label, zigzag};
use crate::metrics::histogram::Distribution;

/// Eight buckets to an octave: a bucket ends at 2^(index/8).
const SCHEMA: i64 = 3;

/// The index in seconds of the bucket with index 0 in microseconds. A second is not a power of
/// two of microseconds but 8 · 19.93 buckets. Rounding to whole buckets shows times as 4 % longer
/// than they were.
const SECONDS_OFFSET: i64 = -159;

/// Values up to this one belong to the bucket of zero.
const ZERO_SECONDS: f64 = 1e-6;
const ZERO_BYTES: f64 = f64::from_bits(0x37F0_0000_0000_0000);

/// Longest run of empty buckets within a span. A new span costs two integers, which is more than
/// they do.
const LARGEST_GAP: usize = 2;

const COUNTER: u64 = 0;
const GAUGE: u64 = 1;
const HISTOGRAM: u64 = 4;

/// Messages in progress.
#[derive(Debug)]
pub(super) struct Protobuf {
    out: Output,
    kind: Kind,
    /// The family's name, help and type, until its first sample.
    head: Vec<u8>,
    /// The family's message so far; empty without a sample.
    family: Vec<u8>,
    metric: Vec<u8>,
    histogram: Vec<u8>,
    small: Vec<u8>,
}

impl Protobuf {
    pub(super) fn new(out: Output) -> Self {
        Protobuf {
            out,
            kind: Kind::Gauge,
            head: Vec::new(),
            family: Vec::new(),
            metric: Vec::new(),
            histogram: Vec::new(),
            small: Vec::new(),
        }
    }

    pub(super) fn finish(mut self) {
        self.end_family();
        self.out.end();
    }

    /// Leaves out a family without samples.
    fn end_family(&mut self) {
        if !self.family.is_empty() {
            varint(&mut self.out, (self.head.len() + self.family.len()) as u64);
            self.out.extend_from_slice(&self.head);
            self.out.extend_from_slice(&self.family);
            self.family.clear();
        }
    }

    fn write_histogram(&mut self, distribution: &Distribution) {
        let out = &mut self.histogram;
        out.clear();
        let (offset, zero, unit) = match self.kind {
            Kind::Seconds => (SECONDS_OFFSET, ZERO_SECONDS, 1e-6),
            Kind::Bytes | Kind::Counter | Kind::Gauge => (0, ZERO_BYTES, 1.0),
        };
        number(out, field::SAMPLE_COUNT, distribution.count());
        real(out, field::SAMPLE_SUM, distribution.sum() as f64 * unit);
        // For readers without native histograms.
        let bounds = bounds(self.kind);
        for (&(exponent, _), (_, count)) in bounds.iter().zip(counts_below(distribution, bounds)) {
            self.small.clear();
            number(&mut self.small, field::BUCKET_CUMULATIVE_COUNT, count);
            let bound = f64::from(exponent).exp2() * unit;
            real(&mut self.small, field::BUCKET_UPPER_BOUND, bound);
            bytes(out, field::BUCKET, &self.small);
        }
        number(out, field::SCHEMA, zigzag(SCHEMA));
        real(out, field::ZERO_THRESHOLD, zero);
        let buckets = distribution.buckets();
        let (zeros, buckets) = buckets.split_first().unwrap_or((&0, &[]));
        number(out, field::ZERO_COUNT, *zeros);
        let mut end_before = 0;
        for span in spans(buckets) {
            let (start, len) = (span.start as i64 + 1 + offset, span.len());
            self.small.clear();
            let gap = start - end_before;
            number(&mut self.small, field::SPAN_OFFSET, zigzag(gap));
            number(&mut self.small, field::SPAN_LENGTH, len as u64);
            bytes(out, field::POSITIVE_SPAN, &self.small);
            end_before = start + len as i64;
        }
        self.small.clear();
        let mut before = 0;
        for span in spans(buckets) {
            for &count in &buckets[span] {
                varint(&mut self.small, zigzag(count as i64 - before));
                before = count as i64;
            }
        }
        bytes(out, field::POSITIVE_DELTA, &self.small);
    }
}

impl Writer for Protobuf {
    fn family(&mut self, family: &Family) {
        self.end_family();
        self.kind = family.kind;
        self.head.clear();
        self.small.clear();
        self.small.extend_from_slice(family.scope.as_bytes());
        self.small.extend_from_slice(family.name.as_bytes());
        bytes(&mut self.head, field::FAMILY_NAME, &self.small);
        bytes(&mut self.head, field::FAMILY_HELP, family.help.as_bytes());
        let kind = match family.kind {
            Kind::Counter => COUNTER,
            Kind::Gauge => GAUGE,
            Kind::Seconds | Kind::Bytes => HISTOGRAM,
        };
        number(&mut self.head, field::FAMILY_TYPE, kind);
    }

    fn sample(
        &mut self,
        labels: &Labels,
        more: Option<(&'static str, &'static str)>,
        value: Value,
    ) {
        self.metric.clear();
        self.metric.extend_from_slice(&labels.protobuf);
        if let Some((name, value)) = more {
            write_label(&mut self.metric, name, value);
        }
        self.small.clear();
        real(&mut self.small, field::VALUE, value.as_f64());
        let field = match self.kind {
            Kind::Counter => field::METRIC_COUNTER,
            Kind::Gauge | Kind::Seconds | Kind::Bytes => field::METRIC_GAUGE,
        };
        bytes(&mut self.metric, field, &self.small);
        bytes(&mut self.family, field::FAMILY_METRIC, &self.metric);
    }

    fn distribution(&mut self, labels: &Labels, distribution: &Distribution) {
        self.write_histogram(distribution);
        self.metric.clear();
        self.metric.extend_from_slice(&labels.protobuf);
        bytes(&mut self.metric, field::METRIC_HISTOGRAM, &self.histogram);
        bytes(&mut self.family, field::FAMILY_METRIC, &self.metric);
    }

    fn output(&mut self) -> &mut Output {
        &mut self.out
    }
}

/// Runs of buckets with values; small gaps are included.
fn spans(buckets: &[u64]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next + buckets.get(next..)?.iter().position(|&count| count > 0)?;
        let mut end = start + 1;
        for (index, &count) in buckets.iter().enumerate().skip(end) {
            if count > 0 {
                end = index + 1;
            } else if index - end >= LARGEST_GAP {
                break;
            }
        }
        next = end;
        Some(start..end)
    })
}
