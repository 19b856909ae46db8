//! Proxying to an upstream.

use super::{Handler, Plan, RequestFacts};
use crate::config::{self, Config, Proxying};
use crate::exchange::{self, Exchange, Outcome};

impl Handler for Proxying {
    fn handle<'a>(
        &'a self,
        _route: usize,
        exchange: &mut Exchange<'a>,
    ) -> impl Future<Output = Outcome> {
        forward(exchange, self)
    }

    fn plan<'a>(&'a self, _request: &RequestFacts<'a>) -> Plan<'a> {
        Plan::Forward(*self)
    }

    fn label(&self, config: &Config) -> String {
        config.upstreams[self.upstream].name.clone()
    }

    fn passes_on(&self) -> bool {
        true
    }
}

/// Forwards the request.
pub(super) fn forward(
    exchange: &mut Exchange<'_>,
    proxying: &Proxying,
) -> impl Future<Output = Outcome> {
    let upstream = &exchange.context.config().upstreams[proxying.upstream];
    let key = balance_key(upstream, &RequestFacts::new(exchange));
    exchange::forward(exchange, proxying, key)
}

/// The balancer's key, for a balancer by key; otherwise 0.
pub(crate) fn balance_key(upstream: &config::Upstream, request: &RequestFacts<'_>) -> u64 {
    if upstream.balance.takes_key() {
        upstream.key.hash(request)
    } else {
        0
    }
}
