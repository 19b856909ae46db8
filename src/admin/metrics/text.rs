//! Prometheus's text format and OpenMetrics.
//!
//! Source: prometheus.io/docs/instrumenting/exposition_formats, and the OpenMetrics
//! specification, version 1.0.0. A scrape of a thousand endpoints has more than 100,000 lines. So
//! a line is joined from ready pieces, without formatting machinery.

use evenkeel_metrics::family::{Kind, Value};

use super::family::{Family, Labels, Writer};
use super::pieces::Output;
use crate::metrics::histogram::{Distribution, PER_OCTAVE};

/// The bounds of histograms of times, as powers of two of a microsecond, with their text in
/// seconds. They are bounds of our own buckets, so that counts are exact.
const SECONDS: [(u32, &str); 17] = [
    (7, "0.000128"),
    (9, "0.000512"),
    (10, "0.001024"),
    (11, "0.002048"),
    (12, "0.004096"),
    (13, "0.008192"),
    (14, "0.016384"),
    (15, "0.032768"),
    (16, "0.065536"),
    (17, "0.131072"),
    (18, "0.262144"),
    (19, "0.524288"),
    (20, "1.048576"),
    (21, "2.097152"),
    (22, "4.194304"),
    (23, "8.388608"),
    (25, "33.554432"),
];

/// The bounds of histograms of sizes, as powers of two of a byte.
const BYTES: [(u32, &str); 12] = [
    (8, "256.0"),
    (10, "1024.0"),
    (12, "4096.0"),
    (14, "16384.0"),
    (16, "65536.0"),
    (18, "262144.0"),
    (20, "1048576.0"),
    (22, "4194304.0"),
    (24, "16777216.0"),
    (26, "67108864.0"),
    (28, "268435456.0"),
    (30, "1073741824.0"),
];

/// The bounds of a kind's histograms: exponents of two of the recorded unit, and their text.
pub(super) fn bounds(kind: Kind) -> &'static [(u32, &'static str)] {
    match kind {
        Kind::Bytes => &BYTES,
        Kind::Seconds | Kind::Counter | Kind::Gauge => &SECONDS,
    }
}

/// The number of values below each of the bounds.
pub(super) fn counts_below<'a>(
    distribution: &'a Distribution,
    bounds: &'static [(u32, &'static str)],
) -> impl Iterator<Item = (&'static str, u64)> + 'a {
    let buckets = distribution.buckets();
    let (mut from, mut below) = (0, 0);
    bounds.iter().map(move |&(exponent, bound)| {
        let to = (1 + exponent as usize * PER_OCTAVE).min(buckets.len());
        below += buckets[from..to].iter().sum::<u64>();
        from = to;
        (bound, below)
    })
}

/// One of the two text formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Prometheus,
    OpenMetrics,
}

/// A text in progress.
#[derive(Debug)]
pub(super) struct Text {
    dialect: Dialect,
    out: Output,
    kind: Kind,
    /// The family's name.
    name: Vec<u8>,
    /// The start of a histogram's lines.
    prefix: Vec<u8>,
}

impl Text {
    pub(super) fn new(dialect: Dialect, out: Output) -> Self {
        Text {
            dialect,
            out,
            kind: Kind::Gauge,
            name: Vec::new(),
            prefix: Vec::new(),
        }
    }

    pub(super) fn finish(mut self) {
        if self.dialect == Dialect::OpenMetrics {
            self.out.extend_from_slice(b"# EOF\n");
        }
        self.out.end();
    }

    /// A line whose name is the family's with a suffix.
    fn line(&mut self, suffix: &str, labels: &Labels, value: Value) {
        self.out.extend_from_slice(&self.name);
        self.out.extend_from_slice(suffix.as_bytes());
        if !labels.text.is_empty() {
            self.out.push(b'{');
            self.out.extend_from_slice(&labels.text);
            self.out.push(b'}');
        }
        self.end(value);
    }

    fn end(&mut self, value: Value) {
        self.out.push(b' ');
        write_value(&mut self.out, value);
        self.out.push(b'\n');
    }
}

impl Writer for Text {
    fn family(&mut self, family: &Family) {
        self.kind = family.kind;
        self.name.clear();
        self.name.extend_from_slice(family.scope.as_bytes());
        self.name.extend_from_slice(family.name.as_bytes());
        // In OpenMetrics the suffix belongs to the sample, and not to the family.
        let name = match (self.dialect, family.kind) {
            (Dialect::OpenMetrics, Kind::Counter) => {
                self.name.strip_suffix(b"_total").unwrap_or(&self.name)
            }
            _ => &self.name,
        };
        for (what, text) in [("HELP", family.help), ("TYPE", family.kind.word())] {
            self.out.extend_from_slice(b"# ");
            self.out.extend_from_slice(what.as_bytes());
            self.out.push(b' ');
            self.out.extend_from_slice(name);
            self.out.push(b' ');
            self.out.extend_from_slice(text.as_bytes());
            self.out.push(b'\n');
        }
    }

    fn sample(
        &mut self,
        labels: &Labels,
        more: Option<(&'static str, &'static str)>,
        value: Value,
    ) {
        let Some((label, word)) = more else {
            return self.line("", labels, value);
        };
        self.out.extend_from_slice(&self.name);
        self.out.push(b'{');
        self.out.extend_from_slice(&labels.text);
        if !labels.text.is_empty() {
            self.out.push(b',');
        }
        self.out.extend_from_slice(label.as_bytes());
        self.out.extend_from_slice(b"=\"");
        self.out.extend_from_slice(word.as_bytes());
        self.out.extend_from_slice(b"\"}");
        self.end(value);
    }

    fn distribution(&mut self, labels: &Labels, distribution: &Distribution) {
        self.prefix.clear();
        self.prefix.extend_from_slice(&self.name);
        self.prefix.extend_from_slice(b"_bucket{");
        self.prefix.extend_from_slice(&labels.text);
        if !labels.text.is_empty() {
            self.prefix.push(b',');
        }
        self.prefix.extend_from_slice(b"le=\"");
        let all = ("+Inf", distribution.count());
        for (bound, count) in counts_below(distribution, bounds(self.kind)).chain([all]) {
            self.out.extend_from_slice(&self.prefix);
            self.out.extend_from_slice(bound.as_bytes());
            self.out.extend_from_slice(b"\"} ");
            self.out
                .extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
            self.out.push(b'\n');
        }
        let sum = match self.kind {
            Kind::Seconds => Value::Micros(distribution.sum()),
            Kind::Bytes | Kind::Counter | Kind::Gauge => Value::Whole(distribution.sum()),
        };
        self.line("_sum", labels, sum);
        self.line("_count", labels, Value::Whole(distribution.count()));
    }

    fn output(&mut self) -> &mut Output {
        &mut self.out
    }
}

fn write_value(out: &mut Vec<u8>, value: Value) {
    match value {
        Value::Whole(value) => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
        Value::Micros(value) => write_decimal(out, value, 6),
        Value::Millis(value) => write_decimal(out, value, 3),
        Value::Real(value) => out.extend_from_slice(value.to_string().as_bytes()),
    }
}

/// A number with this many digits after the point.
fn write_decimal(out: &mut Vec<u8>, value: u64, digits: usize) {
    let one = 10_u64.pow(digits as u32);
    out.extend_from_slice(itoa::Buffer::new().format(value / one).as_bytes());
    out.push(b'.');
    let mut buffer = itoa::Buffer::new();
    let rest = buffer.format(value % one);
    out.extend(std::iter::repeat_n(b'0', digits - rest.len()));
    out.extend_from_slice(rest.as_bytes());
}
