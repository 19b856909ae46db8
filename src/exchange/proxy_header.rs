//! The PROXY protocol header in front of a connection to an endpoint.
//!
//! Invariant: a connection that began with a client's header carries only exchanges of that
//! client's connection. The connection is pinned ([`PinReason::TellsClient`]) or closed.
//!
//! [`PinReason::TellsClient`]: crate::upstream::PinReason::TellsClient

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_proto::proxy_protocol::{self, Connection, Extensions, Version};

use super::identity::ROOM;
use super::request::RequestBody;
use super::{Client, Exchange};

/// Appends the header of a client to `out`. `connected_to` is the address that the client
/// connected to here. An address from the client's own PROXY header takes precedence.
pub fn write(
    out: &mut Vec<u8>,
    version: Version,
    client: &Client,
    connected_to: Option<SocketAddr>,
    extensions: Extensions<'_>,
) {
    let remote = client.remote();
    let addresses = remote.address.map(|source| {
        let destination = client.told_destination().or(connected_to);
        let destination = destination.unwrap_or_else(|| unknown(source));
        (SocketAddr::new(source, remote.port), destination)
    });
    let connection = Connection {
        addresses,
        extensions,
    };
    proxy_protocol::write(out, version, &connection);
}

/// Appends the header of this exchange's client to `out`, with the facts in its request. It is
/// sent with the head, or before the TLS handshake.
#[cold]
pub(super) fn write_for(
    out: &mut Vec<u8>,
    version: Version,
    exchange: &Exchange<'_>,
    request: &RequestBody<'_>,
) {
    let mut room = ROOM;
    let extensions = match request.server_name {
        Some(name) => Extensions {
            authority: Some(name).filter(|it| !it.is_empty()),
            ..Extensions::default()
        },
        None => {
            let host = request.head.host_name(request.bytes);
            let identity = exchange.progress.identity;
            Extensions {
                authority: Some(host).filter(|it| !it.is_empty()),
                unique_id: identity.request_id(request.bytes, &mut room),
                ..Extensions::default()
            }
        }
    };
    let connected_to = exchange.side.local_address();
    write(out, version, exchange.client, connected_to, extensions);
}

/// The unspecified address of the same family.
fn unknown(beside: IpAddr) -> SocketAddr {
    let address = match beside {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, 0)
}
