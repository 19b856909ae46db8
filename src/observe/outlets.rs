//! The access logs and the exporter of one configuration.

use std::sync::Arc;

use super::access_log::Layout;
use super::access_log::writer::LogSender;
use super::otlp::SpanSender;

/// The access logs and the exporter of one configuration.
///
/// Invariant: a destination that a later configuration lacks is finished once nobody holds one of
/// these.
#[derive(Debug, Clone)]
pub struct Outlets {
    /// Layout of the lines.
    pub layout: Arc<Layout>,
    /// Hands lines over.
    pub lines: LogSender,
    /// Hands spans over, if there is a collector.
    pub spans: Option<SpanSender>,
}
