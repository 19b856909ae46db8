//! Proxying to one of several upstreams, by their weights.

use evenkeel_policy::split;

use super::{Handler, Plan, RequestFacts, proxy};
use crate::config::{Config, Proxying, Split};
use crate::exchange::request_key::hash_of;
use crate::exchange::sticky;
use crate::exchange::variables::Values;
use crate::exchange::{Exchange, Outcome, box_cold};

impl Handler for Split {
    fn handle<'a>(
        &'a self,
        _route: usize,
        exchange: &mut Exchange<'a>,
    ) -> impl Future<Output = Outcome> {
        let chosen = match session_part(self, exchange) {
            Some(part) => part,
            None => {
                let context = exchange.context;
                let values = Values::of(exchange);
                let address = exchange.client.remote().address;
                let room = &mut context.scratch.borrow_mut();
                weighted_part(self, hash_of(&self.by, &values, address, room))
            }
        };
        let proxying = &self.parts[chosen].proxying;
        // Boxed, so that the future of other routes does not grow.
        box_cold(proxy::forward(exchange, proxying))
    }

    fn plan<'a>(&'a self, _request: &RequestFacts<'a>) -> Plan<'a> {
        Plan::Split(self)
    }

    fn label(&self, config: &Config) -> String {
        let name = |it: &Proxying| config.upstreams[it.upstream].name.clone();
        let parts = self.parts.iter();
        let parts = parts.map(|it| format!("{} {}", name(&it.proxying), it.share.weight()));
        format!("split {}", parts.collect::<Vec<_>>().join(", "))
    }

    fn passes_on(&self) -> bool {
        true
    }
}

/// The part with the client's session, by its sticky cookie.
fn session_part(split: &Split, exchange: &Exchange<'_>) -> Option<usize> {
    exchange.sticky()?;
    let parts = split.parts.iter();
    let mut upstreams = parts.map(|it| exchange.context.upstream(it.proxying.upstream));
    upstreams.position(|it| sticky::session(exchange, it).is_some())
}

/// The part for requests with this key.
pub(crate) fn weighted_part(split: &Split, key: u64) -> usize {
    let shares = split.parts.iter().map(|it| it.share);
    // The configuration ensures that one part has a weight.
    split::choose(shares, key).unwrap_or_default()
}
