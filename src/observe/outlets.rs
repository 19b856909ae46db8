//! Where the exchanges of one configuration are recorded: lines of access logs, and spans.

use std::sync::Arc;

use super::access_log::Layout;
use super::access_log::writer::LogSender;
use super::otlp::SpanSender;

/// Where exchanges of one configuration are recorded.
///
/// Invariant: a destination that a later configuration has no more is finished once
/// nobody holds one of these.
#[derive(Debug, Clone)]
pub struct Outlets {
    /// What lines look like.
    pub layout: Arc<Layout>,
    /// Where lines go.
    pub lines: LogSender,
    /// Where spans go, if they go anywhere.
    pub spans: Option<SpanSender>,
}
