//! What comes of the wish for a connection to an endpoint.

use std::io;

use evenkeel_policy::Instant;
use evenkeel_tls::HandshakeFault;

use crate::net::stream::Stream;
use crate::upstream::Bond;

/// A connection to an endpoint.
pub(super) struct Opened {
    pub stream: Stream,
    pub origin: Origin,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was opened at this moment.
    New(Instant),
    /// It was idle, for anybody.
    Pool,
    /// It was idle, for this client.
    Pinned(Bond),
}

impl Origin {
    /// Whether the endpoint may be closing it.
    pub fn is_idle(self) -> bool {
        !matches!(self, Origin::New(_))
    }
}

/// Why there is no connection.
pub(super) enum NotOpened {
    /// The system says so.
    Connect(io::Error),
    /// It could not be secured.
    Tls(HandshakeFault),
}
