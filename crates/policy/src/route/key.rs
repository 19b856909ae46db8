//! Keys of balancers: a part of the request, hashed.

use std::net::IpAddr;

use super::Facts;
use super::condition::{cookies, parameters};
use crate::hash::{hash, mix};

/// A part of a request. If a request has no such part, its URI stands in, so
/// that these requests are not all one key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BalanceKey {
    /// The path and query.
    #[default]
    Uri,
    /// A header field, by name.
    Header(String),
    /// A cookie, by name.
    Cookie(String),
    /// A query parameter, by name.
    Query(String),
    /// The client's address.
    Client,
}

impl BalanceKey {
    /// The request's key.
    pub fn hash(&self, request: &impl Facts) -> u64 {
        if let BalanceKey::Client = self {
            return hash_address(request.client());
        }
        match self.part(request) {
            Some(part) => hash(&part),
            None => mix(hash(request.path())) ^ hash(request.query()),
        }
    }

    /// The value of its header, cookie or parameter, if the request has it.
    pub fn part(&self, request: &impl Facts) -> Option<Vec<u8>> {
        match self {
            BalanceKey::Uri | BalanceKey::Client => None,
            BalanceKey::Header(name) => request.fields(name).next().map(<[u8]>::to_vec),
            BalanceKey::Cookie(name) => request
                .fields("cookie")
                .find_map(|line| cookies(line, name).next().map(Iterator::collect)),
            BalanceKey::Query(name) => parameters(request.query(), name)
                .next()
                .map(Iterator::collect),
        }
    }
}

fn hash_address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => hash(&address.octets()),
        IpAddr::V6(address) => hash(&address.octets()),
    }
}
