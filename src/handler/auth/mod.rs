//! Routes with `auth`: a request goes on once its client has shown who it is.
//!
//! A client that was verified a while ago takes no wait. Everything else is cold.

mod basic;
mod credentials;
mod forward;

use std::pin::Pin;

use crate::config::Auth;
use crate::exchange::{Exchange, Outcome};

/// Asks who the client is, where the route wants to know. What is left to do where it has
/// not shown that yet: `None` where it goes on, or its outcome where it is refused.
///
/// # Cancellation
/// Safe: a client that leaves is not verified.
pub(super) fn held_up<'e>(
    exchange: &'e mut Exchange<'_>,
    route: usize,
) -> Option<Pin<Box<dyn Future<Output = Option<Outcome>> + 'e>>> {
    let context = exchange.context;
    match context.config().routes[route].auth.as_deref()? {
        Auth::Basic(basic) => basic::held_up(exchange, basic),
        Auth::Forward(forward) => Some(forward::held_up(exchange, forward)),
    }
}
