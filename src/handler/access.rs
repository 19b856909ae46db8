//! Access to a route, by client and rate: all checks before the action of the route.
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

/// The verdict of a route's access list on a client; without an address over a Unix socket.
pub(crate) fn access_of(route: &config::Route, client: Option<IpAddr>) -> Access {
    match &route.access {
        None => Access::Allowed,
        // A process of this machine, on a Unix socket.
        Some(list) => list.of(client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))),
    }
}

/// Checks a request against its route's conditions for clients. Returns a future where the
/// request does not pass at once. The future gives `None` where the request continues, or else
/// its outcome.
///
/// All checks share one future: each separate await would grow the exchange's future.
///
/// # Cancellation
/// Safe: a request that leaves has still used its turn of the limits.
pub(super) fn pending_check<'e>(
    exchange: &'e mut Exchange<'_>,
    route: usize,
) -> Option<Pin<Box<dyn Future<Output = Option<Outcome>> + 'e>>> {
    let settings = &exchange.context.config().routes[route];
    let is_closed = exchange.context.generation().maintenance.has_route(route);
    if settings.access.is_none() && settings.auth.is_none() && !is_closed {
        return limits::pending_check(exchange, route);
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
        (true, _) => auth::pending_check(exchange, route),
        (false, false) => limits::pending_check(exchange, route),
        (false, true) => Some(Box::pin(limits_then_auth(exchange, route))),
    }
}

async fn limits_then_auth(exchange: &mut Exchange<'_>, route: usize) -> Option<Outcome> {
    if let Some(pending_check) = limits::pending_check(exchange, route)
        && let Some(outcome) = pending_check.await
    {
        return Some(outcome);
    }
    match auth::pending_check(exchange, route) {
        Some(pending_check) => pending_check.await,
        None => None,
    }
}
