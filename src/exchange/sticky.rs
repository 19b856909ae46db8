//! Stickiness: the cookie by which a client stays at an endpoint.

use std::time::Duration;

use evenkeel_policy::dispatch::Pin;
use evenkeel_policy::endpoint::EndpointId;
use evenkeel_policy::route::condition::cookies;
use evenkeel_proto::{RequestHead, Scheme};

use super::Exchange;
use crate::config::Sticky;
use crate::upstream::Upstream;

impl<'a> Exchange<'a> {
    /// The stickiness of the route, if it has any.
    pub(crate) fn sticky(&self) -> Option<&'a Sticky> {
        self.route()?.sticky.as_deref()
    }
}

/// The values of the cookies with this name in a request, cut at `VALUE_MAX`. A client may have
/// several, for different paths or domains.
pub(crate) fn values<'a>(
    head: &'a RequestHead,
    bytes: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = Value> + 'a {
    let fields = head.fields.iter();
    let lines = fields.filter(move |it| it.is_named(b"cookie", bytes));
    lines.flat_map(move |it| cookies(it.value.of(bytes), name).map(Value::of))
}

/// Longer values are not ours, in bytes.
const VALUE_MAX: usize = 32;

/// The value of a cookie.
pub(crate) struct Value {
    bytes: [u8; VALUE_MAX],
    len: usize,
}

impl Value {
    fn of(value: impl Iterator<Item = u8>) -> Self {
        let mut bytes = [0; VALUE_MAX];
        let places = bytes.iter_mut();
        let len = places.zip(value).map(|(place, byte)| *place = byte).count();
        Value { bytes, len }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The endpoint of the client's session, by its cookie.
pub(crate) fn session(exchange: &Exchange<'_>, upstream: &Upstream) -> Option<Pin> {
    let sticky = exchange.sticky()?;
    let endpoint = values(exchange.head, exchange.bytes, &sticky.cookie)
        .find_map(|it| upstream.sticky_endpoint(sticky, it.as_ref()))?;
    Some(Pin::Session(endpoint))
}

/// The line with the client's cookie for the endpoint that has responded. `None` if the client
/// already has it, and for a response to a cache.
pub(super) fn new_cookie(
    exchange: &Exchange<'_>,
    upstream: &Upstream,
    endpoint: EndpointId,
) -> Option<Vec<u8>> {
    let sticky = exchange.sticky().filter(|_| !exchange.side.is_store())?;
    upstream.with_sticky_value(sticky, endpoint, |value| {
        let mut sent = values(exchange.head, exchange.bytes, &sticky.cookie);
        let has_it = sent.any(|it| it.as_ref() == value);
        (!has_it).then(|| cookie_line(exchange, sticky, value))
    })?
}

fn cookie_line(exchange: &Exchange<'_>, sticky: &Sticky, value: &[u8]) -> Vec<u8> {
    let mut line = [b"Set-Cookie: ", sticky.cookie.as_bytes(), b"=", value].concat();
    if let Some(max_age) = sticky.max_age {
        line.extend_from_slice(format!("; Max-Age={}", Duration::as_secs(&max_age)).as_bytes());
    }
    line.extend_from_slice(b"; Path=/; HttpOnly; SameSite=Lax");
    if exchange.client.scheme() == Scheme::Https {
        line.extend_from_slice(b"; Secure");
    }
    line.extend_from_slice(b"\r\n");
    line
}
