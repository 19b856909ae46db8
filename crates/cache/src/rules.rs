//! The rules of a route for its cache: compiled settings, shared by all workers.

use std::time::Duration;

use crate::control::Seconds;
use crate::key::KeyRules;

/// Whether what requests say in `Cache-Control` counts (RFC 9111 §5.2.1 leaves it
/// to the cache).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientDirectives {
    /// A client may ask for validation, and for stale responses.
    #[default]
    Honoured,
    /// Clients decide nothing, so that they can't cause load on the endpoints. Only
    /// `only-if-cached` counts.
    Ignored,
}

/// The rules of a route for its cache.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// The parts of the key.
    pub key: KeyRules,
    /// How long a response of a status is fresh, where the response itself does not
    /// say.
    pub ttl: Vec<(u16, Duration)>,
    /// Whether a response that says nothing is fresh for a tenth of the time since
    /// its `Last-Modified` (RFC 9111 §4.2.2).
    pub heuristic: bool,
    /// How long a response is served that is stale while it is validated, where the
    /// response itself does not say (RFC 5861 §3).
    pub stale_while_revalidate: Duration,
    /// How long a response is served that is stale while the endpoints fail, where
    /// the response itself does not say (RFC 5861 §4).
    pub stale_if_error: Duration,
    /// Whether a response with `Set-Cookie` is stored without saying `public` or
    /// `s-maxage`: its cookie is for one client.
    pub stores_cookies: bool,
    /// The effect of a request's `Cache-Control`.
    pub client_directives: ClientDirectives,
    /// The longest body that is stored, in bytes; 0 for no bound but the store's.
    pub max_body_bytes: u64,
    /// Names of request fields, in lower case, that the endpoint gets with other values
    /// than the client sent.
    pub edited: Vec<String>,
    /// Whether every request has shown who it is from, whichever fields it has: its response
    /// is stored only where that says that it is for all.
    pub is_authorized: bool,
}

impl Rules {
    /// How long a response of this status is fresh by the route's settings.
    pub(crate) fn ttl_of(&self, status: u16) -> Option<Seconds> {
        let found = self.ttl.iter().find(|(it, _)| *it == status);
        found.map(|(_, ttl)| whole_seconds(*ttl))
    }

    /// Whether a body of this length is stored.
    pub fn admits(&self, body_bytes: u64) -> bool {
        self.max_body_bytes == 0 || body_bytes <= self.max_body_bytes
    }
}

/// In whole seconds, as far as they fit.
pub(crate) fn whole_seconds(duration: Duration) -> Seconds {
    Seconds::try_from(duration.as_secs()).unwrap_or(Seconds::MAX)
}
