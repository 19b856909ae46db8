//! Keys of requests: what those have in common that are counted, or kept, together.

use std::net::{IpAddr, Ipv4Addr};

use evenkeel_policy::hash::hash;

use super::variables::{Values, expand};
use crate::config::{Limit, RequestKey};
use crate::limits::with_network;

/// How requests are keyed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keyed<'a> {
    /// By what.
    by: &'a RequestKey,
    /// Bits of an IPv4 address that are looked at.
    prefix_v4: u8,
    /// The same of an IPv6 address.
    prefix_v6: u8,
}

impl<'a> Keyed<'a> {
    /// As a limit has them keyed.
    pub fn of(limit: &'a Limit) -> Self {
        Keyed {
            by: &limit.key,
            prefix_v4: limit.prefix_v4,
            prefix_v6: limit.prefix_v6,
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

/// The hash of a request's key; of the client's address where the key is empty.
pub(crate) fn hash_of(
    by: &RequestKey,
    values: &Values<'_>,
    address: Option<IpAddr>,
    room: &mut Vec<u8>,
) -> u64 {
    let of = |by| Keyed {
        by,
        prefix_v4: 32,
        prefix_v6: 128,
    };
    let found = with_key(of(by), values, address, room, hash);
    let by_client = || with_key(of(&RequestKey::Client), values, address, room, hash);
    found.or_else(by_client).unwrap_or_default()
}
