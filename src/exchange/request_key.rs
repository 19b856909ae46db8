//! Keys of requests. Requests with the same key are counted or kept together.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evenkeel_policy::hash::hash;

use super::variables::{Values, expand};
use crate::config::{Limit, RequestKey};
use crate::limits::with_network;

/// The settings for keys of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keyed<'a> {
    /// The source of the key.
    by: &'a RequestKey,
    /// Significant bits of an IPv4 address.
    prefix_v4: u8,
    /// Significant bits of an IPv6 address.
    prefix_v6: u8,
}

impl<'a> Keyed<'a> {
    /// The key settings of a limit.
    pub fn of(limit: &'a Limit) -> Self {
        Keyed {
            by: &limit.key,
            prefix_v4: limit.prefix_v4,
            prefix_v6: limit.prefix_v6,
        }
    }

    /// The key settings of shared queues and bandwidths. A client with one IPv6 address usually
    /// has all of its 64-bit network.
    pub fn by_network(by: &'a RequestKey) -> Self {
        Keyed {
            by,
            prefix_v4: 32,
            prefix_v6: 64,
        }
    }

    /// Keys by the whole address.
    fn by_address(by: &'a RequestKey) -> Self {
        Keyed {
            by,
            prefix_v4: 32,
            prefix_v6: 128,
        }
    }

    /// The same prefixes, with the client as key.
    fn by_client(self) -> Self {
        Keyed {
            by: &RequestKey::Client,
            ..self
        }
    }
}

/// Calls `use_key` with the key of a request, unless that is empty. `room` is overwritten.
pub(crate) fn with_key<T>(
    keyed: Keyed<'_>,
    values: &Values<'_>,
    address: Option<IpAddr>,
    room: &mut Vec<u8>,
    use_key: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    match keyed.by {
        RequestKey::Client => {
            // A process of this machine, on a Unix socket.
            let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let Keyed {
                prefix_v4,
                prefix_v6,
                ..
            } = keyed;
            Some(with_network(address, prefix_v4, prefix_v6, use_key))
        }
        RequestKey::Text(text) => {
            room.clear();
            expand(room, text, values, b"");
            let key = room.trim_ascii();
            (!key.is_empty()).then(|| use_key(key))
        }
    }
}

/// The hash of a request's key; of the client's address if the key is empty.
pub(crate) fn hash_of(
    by: &RequestKey,
    values: &Values<'_>,
    address: Option<IpAddr>,
    room: &mut Vec<u8>,
) -> u64 {
    with_key_or_client(Keyed::by_address(by), values, address, room, hash).unwrap_or_default()
}

/// Calls `use_key` with the key of a request, or with the client's address if the key is empty.
pub(crate) fn with_key_or_client<T>(
    keyed: Keyed<'_>,
    values: &Values<'_>,
    address: Option<IpAddr>,
    room: &mut Vec<u8>,
    use_key: impl Fn(&[u8]) -> T,
) -> Option<T> {
    let found = with_key(keyed, values, address, room, &use_key);
    found.or_else(|| with_key(keyed.by_client(), values, address, room, &use_key))
}

/// The key of a request as text; empty if it has none.
pub(crate) fn key_text(keyed: Keyed<'_>, values: &Values<'_>, address: Option<IpAddr>) -> String {
    let text = |key: &[u8]| match (keyed.by, key) {
        (RequestKey::Client, &[a, b, c, d]) => Ipv4Addr::new(a, b, c, d).to_string(),
        (RequestKey::Client, key) => {
            let octets = <[u8; 16]>::try_from(key).unwrap_or_default();
            Ipv6Addr::from(octets).to_string()
        }
        (RequestKey::Text(_), key) => String::from_utf8_lossy(key).into_owned(),
    };
    with_key(keyed, values, address, &mut Vec::new(), text).unwrap_or_default()
}

/// The same; the client's address if the request has none.
pub(crate) fn key_text_or_client(
    keyed: Keyed<'_>,
    values: &Values<'_>,
    address: Option<IpAddr>,
) -> String {
    let text = key_text(keyed, values, address);
    if text.is_empty() {
        key_text(keyed.by_client(), values, address)
    } else {
        text
    }
}
