//! An exchange's timeouts for its endpoint, and its buffer meanwhile: those of its route, or else
//! of its upstream.

use std::time::Duration;

use super::Exchange;
use crate::config::{Buffer, Route};
use crate::upstream::Upstream;

/// The timeouts of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExchangeTimeouts {
    /// Up to the first byte of the response.
    pub first_byte: Duration,
    /// Between two parts of the response.
    pub idle: Duration,
    /// For the whole exchange; `None` for no limit.
    pub total: Option<Duration>,
}

impl<'a> Exchange<'a> {
    /// The route with its timeouts; `None` for a copy, which goes to other endpoints.
    fn waiting_route(&self) -> Option<&'a Route> {
        self.route().filter(|_| !self.side.is_copy())
    }

    /// Its timeouts for an endpoint of this upstream.
    pub(super) fn patience(&self, upstream: &Upstream) -> ExchangeTimeouts {
        let of_upstream = &upstream.config().timeouts;
        let own = self.waiting_route().and_then(|it| it.timeouts.as_deref());
        ExchangeTimeouts {
            first_byte: own
                .and_then(|it| it.first_byte)
                .unwrap_or(of_upstream.first_byte),
            idle: own.and_then(|it| it.idle).unwrap_or(of_upstream.idle),
            total: self
                .bound()
                .or(own.and_then(|it| it.total).or(of_upstream.total)),
        }
    }

    /// Its total time, if another exchange makes it for itself.
    fn bound(&self) -> Option<Duration> {
        self.rare.as_ref()?.total
    }

    /// The buffer that keeps its client from holding a slot of this upstream, if there is one.
    pub(super) fn buffer(&self, upstream: &Upstream) -> Option<Buffer> {
        let own = self.waiting_route().and_then(|it| it.buffer);
        own.unwrap_or(upstream.config().buffer)
    }
}
