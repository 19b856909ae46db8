//! The facts of an exchange that a span has.

use evenkeel_proto::Scheme;
use evenkeel_proto::Version;
use evenkeel_proto::identity::TraceParent;

use crate::metrics::end::End;
use crate::observe::access_log::{Reason, Times};

/// An exchange that is over, as the server that its client sees.
#[derive(Debug, Clone)]
pub struct Span {
    /// The trace, and the id of this span in it.
    pub place: TraceParent,
    /// The client's span.
    pub parent_id: Option<u64>,
    /// When the first byte was there, in microseconds since 1970.
    pub started_unix_us: u64,
    /// Method, as sent.
    pub method: String,
    /// Whether that is one that is known.
    pub is_known_method: bool,
    /// Path, as sent.
    pub path: String,
    /// Host and port, as sent.
    pub host: String,
    /// Version of the client.
    pub version: Version,
    /// Value of `User-Agent`.
    pub user_agent: Option<String>,
    /// By which the client asked.
    pub scheme: Scheme,
    /// Address of the client.
    pub client: String,
    /// Request id, where there is one.
    pub request_id: Option<String>,
    /// Name of the listener.
    pub listener: String,
    /// Name of the route.
    pub route: Option<String>,
    /// Name of the upstream.
    pub upstream: Option<String>,
    /// Name of the last endpoint tried.
    pub endpoint: Option<String>,
    /// Why it was that one.
    pub reason: Option<Reason>,
    /// Attempts made.
    pub attempts: u32,
    /// Status sent; 0 if none was.
    pub status: u16,
    /// How it ended.
    pub end: End,
    /// Whether it failed by the doing of a server: ours or the endpoint's.
    pub is_error: bool,
    /// How long each phase took.
    pub times: Times,
}
