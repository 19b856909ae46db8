//! Where the endpoints of an upstream come from.

use super::Endpoint;
use crate::setting::FromText;
use crate::value::{Destination, EndpointAddress};
use crate::{Family, ResolveTo};

/// Where endpoints come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointSource {
    /// An address that is written.
    Fixed(Endpoint),
    /// A name that is looked up.
    Name(NameSource),
    /// A service whose SRV records name them.
    Service(ServiceSource),
}

/// A name that is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameSource {
    /// The name.
    pub host: String,
    /// The port of all its addresses.
    pub port: u16,
    /// How many endpoints it is.
    pub resolve: ResolveTo,
    /// Which addresses count; `None` for those of IPv4, or else of IPv6.
    pub family: Option<Family>,
    /// What each of its endpoints is but for its address, under the name as written.
    pub pattern: Endpoint,
}

/// A service whose SRV records name endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSource {
    /// Its name, such as `_http._tcp.app.internal`.
    pub service: String,
    /// How many endpoints each of its hosts is.
    pub resolve: ResolveTo,
    /// Which addresses of its hosts count.
    pub family: Option<Family>,
    /// What each of its endpoints is but for its address, weight and tier, under the
    /// name as written.
    pub pattern: Endpoint,
}

impl EndpointSource {
    /// Its text, as written.
    pub fn text(&self) -> &str {
        match self {
            EndpointSource::Fixed(endpoint) => &endpoint.name,
            EndpointSource::Name(name) => &name.pattern.name,
            EndpointSource::Service(service) => &service.service,
        }
    }

    /// The endpoint that is written, where it is one.
    pub fn fixed(&self) -> Option<&Endpoint> {
        match self {
            EndpointSource::Fixed(endpoint) => Some(endpoint),
            EndpointSource::Name(_) | EndpointSource::Service(_) => None,
        }
    }
}

impl Endpoint {
    /// The endpoint at an address, with nothing else said of it.
    ///
    /// # Errors
    /// It is no address, or one with a name: the text says what it is.
    pub fn at(text: &str) -> Result<Endpoint, String> {
        let EndpointAddress { text, destination } =
            EndpointAddress::from_text(text).map_err(|fault| fault.what)?;
        let Destination::Address(address) = destination else {
            return Err(format!("`{text}` is a name: write its address"));
        };
        let host = if address.is_unix() {
            "localhost"
        } else {
            &text
        };
        Ok(Endpoint {
            host: host.to_owned(),
            name: text,
            address,
            weight: 1,
            max_in_flight: None,
            tier: 0,
        })
    }
}
