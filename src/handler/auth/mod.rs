//! Routes with `auth`: a request continues once its client is authenticated.
//!
//! A client that was verified recently does not wait. Everything else is cold.

mod basic;
mod credentials;
mod forward;

use std::pin::Pin;

use crate::config::Auth;
use crate::exchange::{Exchange, Outcome};

/// Authenticates the client, where the route requires it. Returns a future where that is not done
/// at once. The future gives `None` where the request continues, or the outcome of its refusal.
///
/// # Cancellation
/// Safe: a client that leaves is not verified.
pub(super) fn pending_check<'e>(
    exchange: &'e mut Exchange<'_>,
    route: usize,
) -> Option<Pin<Box<dyn Future<Output = Option<Outcome>> + 'e>>> {
    let context = exchange.context;
    match context.config().routes[route].auth.as_deref()? {
        Auth::Basic(basic) => basic::pending_check(exchange, basic),
        Auth::Forward(forward) => Some(forward::pending_check(exchange, forward)),
    }
}
