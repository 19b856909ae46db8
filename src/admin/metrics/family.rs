//! What a metric is, before it has a format: families, their samples, and who
//! writes them.

use super::pieces::Output;
use crate::metrics::histogram::Distribution;
use crate::observe::figures::{Ends, StatusFigures};

/// A family: samples of one name that differ in their labels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    /// What the name begins with: `evenkeel_endpoint_`.
    pub scope: &'static str,
    /// The rest of it.
    pub name: &'static str,
    pub kind: Kind,
    /// A sentence for people, without line breaks or backslashes.
    pub help: &'static str,
}

/// What becomes of a family's values over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// They only grow.
    Counter,
    /// They rise and fall.
    Gauge,
    /// They are distributions of times.
    Seconds,
    /// They are distributions of sizes.
    Bytes,
}

impl Kind {
    /// The word of the formats.
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Seconds | Kind::Bytes => "histogram",
        }
    }
}

/// What one object shows in a family.
#[derive(Debug, Clone)]
pub(super) enum Reading<'a> {
    /// Nothing: there is no limit, or the kernel does not tell.
    Absent,
    One(Value),
    Distribution(&'a Distribution),
    /// By class of status, with the names of the classes; without a name a
    /// class is left out.
    Classes {
        label: &'static str,
        names: &'static [&'static str; 6],
        status: &'a StatusFigures,
    },
    /// By how exchanges ended: those words that occurred.
    Ends(&'a Ends),
    /// 1 for the state that is, 0 for the others.
    State {
        all: &'static [&'static str],
        is: &'static str,
    },
    /// By state, how many there are.
    States(Vec<(&'static str, u64)>),
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    /// Shown in seconds.
    Micros(u64),
    /// Shown in seconds.
    Millis(u64),
    Real(f64),
}

impl Value {
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Value::Whole(value) => value as f64,
            Value::Micros(value) => value as f64 / 1e6,
            Value::Millis(value) => value as f64 / 1e3,
            Value::Real(value) => value,
        }
    }
}

/// The labels of one object, as each format has them, so that they are
/// escaped once and not for each sample.
#[derive(Debug, Clone, Default)]
pub(super) struct Labels {
    /// `listener="web"`, without braces.
    pub text: Vec<u8>,
    /// Fields `label` of the message `Metric`.
    pub protobuf: Vec<u8>,
}

impl Labels {
    pub(super) fn new(pairs: &[(&str, &str)]) -> Self {
        let mut labels = Labels::default();
        for (name, value) in pairs {
            super::text::write_label(&mut labels.text, name, value);
            super::protobuf::write_label(&mut labels.protobuf, name, value);
        }
        labels
    }
}

/// Writes families in one format.
pub(super) trait Writer {
    /// Begins a family; the samples that follow are its own.
    fn family(&mut self, family: &Family);
    /// A sample, with a label more than its object has or without.
    fn sample(&mut self, labels: &Labels, more: Option<(&'static str, &'static str)>, value: Value);
    /// A sample of a family of distributions.
    fn distribution(&mut self, labels: &Labels, distribution: &Distribution);
    /// Where all of it goes.
    fn output(&mut self) -> &mut Output;

    /// What one object shows.
    fn reading(&mut self, labels: &Labels, reading: Reading<'_>) {
        match reading {
            Reading::Absent => {}
            Reading::One(value) => self.sample(labels, None, value),
            Reading::Distribution(distribution) => self.distribution(labels, distribution),
            Reading::Classes {
                label,
                names,
                status,
            } => {
                let classes = names.iter().zip(status.0);
                for (class, count) in classes.filter(|(name, _)| !name.is_empty()) {
                    self.sample(labels, Some((label, class)), Value::Whole(count));
                }
            }
            Reading::Ends(ends) => {
                for (end, count) in ends.iter() {
                    self.sample(labels, Some(("end", end.word())), Value::Whole(count));
                }
            }
            Reading::State { all, is } => {
                for one in all {
                    let value = Value::Whole(u64::from(*one == is));
                    self.sample(labels, Some(("state", one)), value);
                }
            }
            Reading::States(counts) => {
                for (state, count) in counts {
                    self.sample(labels, Some(("state", state)), Value::Whole(count));
                }
            }
        }
    }
}

/// A family of the objects of type `T`, with what each of them shows.
pub(super) struct Metric<T> {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    pub read: for<'a> fn(&'a T) -> Reading<'a>,
}

/// Writes families for these objects.
pub(super) async fn each<T>(
    metrics: &[Metric<T>],
    scope: &'static str,
    objects: &[(&Labels, &T)],
    out: &mut impl Writer,
) {
    for metric in metrics {
        out.family(&Family {
            scope,
            name: metric.name,
            kind: metric.kind,
            help: metric.help,
        });
        for (labels, object) in objects {
            out.reading(labels, (metric.read)(object));
            out.output().pause().await;
        }
    }
}

/// A row of a table of metrics.
pub(super) const fn metric<T>(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: for<'a> fn(&'a T) -> Reading<'a>,
) -> Metric<T> {
    Metric {
        name,
        kind,
        help,
        read,
    }
}

/// A count, or a level that is a whole number.
pub(super) fn whole(value: impl Into<u64>) -> Reading<'static> {
    Reading::One(Value::Whole(value.into()))
}

/// A number that may be unknown.
pub(super) fn maybe(value: Option<impl Into<u64>>) -> Reading<'static> {
    value.map_or(Reading::Absent, whole)
}
