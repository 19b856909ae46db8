//! Families of metrics in writing: full names, labels of samples, and the writers of formats.

use evenkeel_metrics::family::{Kind, Metric, Reading, Value, in_order};
use evenkeel_metrics::histogram::Distribution;

use super::pieces::Output;
use super::wire;

/// A family: samples of one name with different labels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    /// Prefix of the name: `evenkeel_endpoint_`.
    pub scope: &'static str,
    /// The rest of the name.
    pub name: &'static str,
    pub kind: Kind,
    /// A sentence for people, without line breaks or backslashes.
    pub help: &'static str,
}

/// The labels of one object in each format, escaped once and not for each sample.
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
            write_label(&mut labels.text, name, value);
            wire::write_label(&mut labels.protobuf, name, value);
        }
        labels
    }
}

/// Adds `name="value"` to a list of labels.
fn write_label(out: &mut Vec<u8>, name: &str, value: &str) {
    if !out.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    for byte in value.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'"' => out.extend_from_slice(b"\\\""),
            b'\n' => out.extend_from_slice(b"\\n"),
            // Some readers also take this for the end of a line.
            b'\r' => out.push(b' '),
            byte => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Writes families in one format.
pub(super) trait Writer {
    /// Starts a family; the next samples belong to it.
    fn family(&mut self, family: &Family);
    /// A sample, with one label more than its object's, or with these alone.
    fn sample(&mut self, labels: &Labels, more: Option<(&'static str, &'static str)>, value: Value);
    /// A sample of a family of distributions.
    fn distribution(&mut self, labels: &Labels, distribution: &Distribution);
    /// The output of the writer.
    fn output(&mut self) -> &mut Output;

    /// Writes the reading of one object.
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
            Reading::Grpc(statuses) => {
                for (status, count) in statuses.iter() {
                    self.sample(labels, Some(("status", status)), Value::Whole(count));
                }
            }
            Reading::Reasons { label, counts } => {
                for (word, count) in counts.iter() {
                    self.sample(labels, Some((label, word)), Value::Whole(count));
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

/// Writes families for these objects.
pub(super) async fn each<T>(
    metrics: &[Metric<T>],
    scope: &'static str,
    objects: &[(&Labels, &T)],
    out: &mut impl Writer,
) {
    for metric in in_order(metrics) {
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
