//! Stickiness: the cookie by which a client stays at an endpoint.

use std::time::Duration;

use evenkeel_policy::dispatch::Pin;
use evenkeel_policy::endpoint::EndpointId;
use evenkeel_policy::route::condition::cookies;
use evenkeel_proto::Scheme;

use super::Exchange;
use crate::config::Sticky;
use crate::upstream::Upstream;

impl<'a> Exchange<'a> {
    /// The stickiness of its route, if that has any.
    pub(super) fn sticky(&self) -> Option<&'a Sticky> {
        let route = self.progress.figures.route? as usize;
        self.context.config().routes[route].sticky.as_deref()
    }

    /// The value of the cookie that it was sent with; `None` without one.
    fn cookie(&self, name: &str) -> Option<Vec<u8>> {
        let (head, bytes) = (self.head, self.bytes);
        let mut lines = head
            .fields
            .iter()
            .filter(|it| it.is_named(b"cookie", bytes));
        lines.find_map(|it| {
            cookies(it.value.of(bytes), name)
                .next()
                .map(Iterator::collect)
        })
    }
}

/// The endpoint that the client has a session at, by its cookie.
pub(super) fn session(exchange: &Exchange<'_>, upstream: &Upstream) -> Option<Pin> {
    let sticky = exchange.sticky()?;
    let value = exchange.cookie(&sticky.cookie)?;
    let endpoint = upstream.sticky_endpoint(sticky, &value)?;
    Some(Pin::Session(endpoint))
}

/// The line that gives the client a cookie for the endpoint which has answered it; `None`
/// where it has that already, and where the response goes to a cache.
pub(super) fn new_cookie(
    exchange: &Exchange<'_>,
    upstream: &Upstream,
    endpoint: EndpointId,
) -> Option<Vec<u8>> {
    let sticky = exchange.sticky().filter(|_| !exchange.side.is_store())?;
    let mut value = Vec::with_capacity(32);
    upstream.push_sticky_value(&mut value, sticky, endpoint);
    let has_it = exchange
        .cookie(&sticky.cookie)
        .is_some_and(|it| it == value);
    if has_it || value.is_empty() {
        return None;
    }
    let mut line = [b"Set-Cookie: ", sticky.cookie.as_bytes(), b"=", &value].concat();
    if let Some(max_age) = sticky.max_age {
        line.extend_from_slice(format!("; Max-Age={}", Duration::as_secs(&max_age)).as_bytes());
    }
    line.extend_from_slice(b"; Path=/; HttpOnly; SameSite=Lax");
    if exchange.client.scheme() == Scheme::Https {
        line.extend_from_slice(b"; Secure");
    }
    line.extend_from_slice(b"\r\n");
    Some(line)
}
