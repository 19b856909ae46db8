//! Who may use a route, by the client's address.

use std::net::{IpAddr, Ipv4Addr};

use evenkeel_policy::route::Access;

use crate::config;

/// What a route's access list says of a client; it has no address over a Unix socket.
pub(crate) fn access_of(route: &config::Route, client: Option<IpAddr>) -> Access {
    match &route.access {
        None => Access::Allowed,
        // A process of this machine, on a Unix socket.
        Some(list) => list.of(client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))),
    }
}
