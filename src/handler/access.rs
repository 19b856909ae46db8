//! Who may use a route, and how often: what comes before the action of a route.
//!
//! ```text
//! allow, deny ─▶ maintenance ─▶ limits ─▶ auth ─▶ action
//! ```

use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;

use evenkeel_policy::route::Access;

use super::{auth, refuse};
use crate::config;
use crate::exchange::{Exchange, Outcome, box_cold, limits};
use crate::metrics::end::Failure;

/// What a route's access list says of a client; it has no address over a Unix socket.
pub(crate) fn access_of(route: &config::Route, client: Option<IpAddr>) -> Access {
    match &route.access {
        None => Access::Allowed,
        // A process of this machine, on a Unix socket.
        Some(list) => list.of(client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))),
    }
}

/// Holds a request against what its route asks of clients. What is left to do where it does
/// not pass at once: `None` of that where it goes on, or else its outcome.
///
/// One future for all of it: each wait of its own would grow the exchange's.
///
/// # Cancellation
/// Safe: a request that leaves has used its turn of the limits.
pub(super) fn held_up<'e>(
    exchange: &'e mut Exchange<'_>,
    route: usize,
) -> Option<Pin<Box<dyn Future<Output = Option<Outcome>> + 'e>>> {
    let settings = &exchange.context.config().routes[route];
    let is_closed = exchange.context.generation().maintenance.has_route(route);
    if settings.access.is_none() && settings.auth.is_none() && !is_closed {
        return limits::held_up(exchange, route);
    }
    let client = exchange.client.remote().address;
    if access_of(settings, client) != Access::Allowed {
        return Some(box_cold(async {
            Some(refuse(exchange, Failure::Denied).await)
        }));
    }
    if is_closed {
        return Some(box_cold(async {
            Some(refuse(exchange, Failure::Maintenance).await)
        }));
    }
    match (settings.limits.is_empty(), settings.auth.is_some()) {
        (true, _) => auth::held_up(exchange, route),
        (false, false) => limits::held_up(exchange, route),
        (false, true) => Some(Box::pin(limits_then_auth(exchange, route))),
    }
}

async fn limits_then_auth(exchange: &mut Exchange<'_>, route: usize) -> Option<Outcome> {
    if let Some(held_up) = limits::held_up(exchange, route)
        && let Some(outcome) = held_up.await
    {
        return Some(outcome);
    }
    match auth::held_up(exchange, route) {
        Some(held_up) => held_up.await,
        None => None,
    }
}
