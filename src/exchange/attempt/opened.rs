//! The result of asking for a connection to an endpoint.

use std::io;

use evenkeel_policy::Instant;
use evenkeel_tls::HandshakeFault;

use crate::net::stream::Stream;
use crate::upstream::PinReason;

/// A connection to an endpoint.
pub(super) struct Opened {
    pub stream: Stream,
    pub origin: Origin,
}

/// The origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was opened at this instant.
    New(Instant),
    /// It was idle, for any exchange.
    Pool,
    /// It was idle, for this client.
    Pinned(PinReason),
}

impl Origin {
    /// Whether the endpoint may have closed it meanwhile.
    pub fn is_idle(self) -> bool {
        !matches!(self, Origin::New(_))
    }
}

/// Why there is no connection.
pub(super) enum NotOpened {
    /// The system has returned this error.
    Connect(io::Error),
    /// The TLS handshake failed.
    Tls(HandshakeFault),
}
