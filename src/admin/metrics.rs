//! The metrics: every figure as families of samples, in the scraper's format.
//!
//! `catalogue` lists the families, and `haproxy` gives them HAProxy's names. `text` and
//! `protobuf` write them, a piece at a time. docs/metrics.md lists them for people; a test
//! compares it with the catalogue.

mod catalogue;
mod family;
mod haproxy;
mod pieces;
mod protobuf;
mod text;
mod wire;

use crate::observe::figures::{Figures, UpstreamFigures};
use family::Labels;
pub use pieces::Pieces;
use text::Dialect;

/// The formats of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
    /// The protocol buffers of Prometheus, with native histograms.
    Protobuf,
}

/// The naming of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Our own.
    Evenkeel,
    /// The names of HAProxy's exporter, for the metrics that we have.
    Haproxy,
}

impl Names {
    /// The naming that a query requests: `names=haproxy`, or our own by default; `None` for an
    /// unknown one.
    pub fn of_query(query: Option<&str>) -> Option<Self> {
        let mut pairs = query.into_iter().flat_map(|query| query.split('&'));
        match pairs.find_map(|pair| pair.strip_prefix("names=")) {
            Some("haproxy") => Some(Names::Haproxy),
            None | Some("evenkeel") => Some(Names::Evenkeel),
            Some(_) => None,
        }
    }
}

impl Format {
    /// The preferred format in a request's `Accept` (RFC 9110, section 12.5.1). Among equal ones
    /// the first; text if none fits.
    pub fn accepted(accept: Option<&str>) -> Self {
        let ranges = accept.into_iter().flat_map(|accept| accept.split(','));
        let mut best = (0.0, Format::Text);
        for range in ranges {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let mut weight = 1.0;
            let (mut is_family, mut is_delimited) = (false, false);
            for parameter in parts {
                let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
                match (name.trim(), value.trim().trim_matches('"')) {
                    ("q", value) => weight = value.parse().unwrap_or(0.0),
                    ("proto", value) => is_family = value == "io.prometheus.client.MetricFamily",
                    ("encoding", value) => is_delimited = value == "delimited",
                    _ => {}
                }
            }
            let format = match media_type {
                "application/vnd.google.protobuf" if is_family && is_delimited => Format::Protobuf,
                "application/openmetrics-text" => Format::OpenMetrics,
                "text/plain" | "text/*" | "*/*" => Format::Text,
                _ => continue,
            };
            if weight > best.0 {
                best = (weight, format);
            }
        }
        best.1
    }

    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// All metrics, in pieces that are written on demand.
pub fn pieces(figures: Figures, names: Names, format: Format) -> Pieces {
    Pieces::new(async move |out| {
        let dialect = match format {
            Format::Text => Dialect::Prometheus,
            Format::OpenMetrics => Dialect::OpenMetrics,
            Format::Protobuf => {
                let mut protobuf = protobuf::Protobuf::new(out);
                write(&figures, names, &mut protobuf).await;
                return protobuf.finish();
            }
        };
        let mut text = text::Text::new(dialect, out);
        write(&figures, names, &mut text).await;
        text.finish();
    })
}

async fn write(figures: &Figures, names: Names, out: &mut impl family::Writer) {
    match names {
        Names::Evenkeel => catalogue::write(figures, out).await,
        Names::Haproxy => haproxy::write(figures, out).await,
    }
}

/// The labels of every endpoint of an upstream.
fn endpoint_labels(
    upstream: &UpstreamFigures,
    upstream_label: &'static str,
    endpoint_label: &'static str,
) -> impl Iterator<Item = Labels> {
    upstream.endpoints.iter().map(move |endpoint| {
        Labels::new(&[
            (upstream_label, upstream.name.as_str()),
            (endpoint_label, &endpoint.name),
        ])
    })
}

#[cfg(test)]
mod tests;
