//! How long an exchange waits for its endpoint, and what it takes off client and endpoint
//! meanwhile: as its route says, or else its upstream.

use std::time::Duration;

use super::Exchange;
use crate::config::{Buffer, Route};
use crate::upstream::Upstream;

/// How long an exchange waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For the first byte of the response.
    pub first_byte: Duration,
    /// For more of it.
    pub idle: Duration,
    /// For all of it; `None` for any time.
    pub total: Option<Duration>,
}

impl<'a> Exchange<'a> {
    /// The route whose waits it has; that of a copy is of other endpoints.
    fn waiting_route(&self) -> Option<&'a Route> {
        self.route().filter(|_| !self.side.is_copy())
    }

    /// How long it waits for an endpoint of this upstream.
    pub(super) fn patience(&self, upstream: &Upstream) -> Patience {
        let of_upstream = &upstream.config().timeouts;
        let own = self.waiting_route().and_then(|it| it.timeouts.as_deref());
        Patience {
            first_byte: own
                .and_then(|it| it.first_byte)
                .unwrap_or(of_upstream.first_byte),
            idle: own.and_then(|it| it.idle).unwrap_or(of_upstream.idle),
            total: self
                .bound()
                .or(own.and_then(|it| it.total).or(of_upstream.total)),
        }
    }

    /// What bounds it in all, where another exchange makes it for itself.
    fn bound(&self) -> Option<Duration> {
        self.rare.as_ref()?.total
    }

    /// What keeps its client from holding a slot of this upstream, if anything does.
    pub(super) fn buffer(&self, upstream: &Upstream) -> Option<Buffer> {
        let own = self.waiting_route().and_then(|it| it.buffer);
        own.unwrap_or(upstream.config().buffer)
    }
}
