//! The sources of an upstream's endpoints.

use std::path::Path;

use super::Endpoint;
use crate::setting::FromText;
use crate::value::{Destination, EndpointAddress};
use crate::{Family, ResolveTo};

/// A source of endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointSource {
    /// A written address.
    Fixed(Endpoint),
    /// A name to look up.
    Name(NameSource),
    /// A service whose SRV records name the endpoints.
    Service(ServiceSource),
}

/// A name to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameSource {
    /// The name.
    pub host: String,
    /// The port of all its addresses.
    pub port: u16,
    /// How many endpoints it makes.
    pub resolve: ResolveTo,
    /// Which addresses count; `None` for IPv4, or IPv6 if there are none.
    pub family: Option<Family>,
    /// The settings of each of its endpoints except the address, under the name as written.
    pub pattern: Endpoint,
}

/// A service whose SRV records name endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSource {
    /// Its name, such as `_http._tcp.app.internal`.
    pub service: String,
    /// How many endpoints each of its hosts makes.
    pub resolve: ResolveTo,
    /// Which addresses of its hosts count.
    pub family: Option<Family>,
    /// The settings of each of its endpoints except address, weight and tier, under the name as
    /// written.
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

    /// The endpoint of a written address.
    pub fn fixed(&self) -> Option<&Endpoint> {
        match self {
            EndpointSource::Fixed(endpoint) => Some(endpoint),
            EndpointSource::Name(_) | EndpointSource::Service(_) => None,
        }
    }
}

/// The whole list of sources as a short text.
pub(crate) fn listed(sources: &[EndpointSource], file: Option<&Path>) -> String {
    let mut text = String::new();
    for source in sources {
        let (kind, resolve, family, pattern) = match source {
            EndpointSource::Fixed(endpoint) => ("address", None, None, endpoint),
            EndpointSource::Name(name) => ("name", Some(name.resolve), name.family, &name.pattern),
            EndpointSource::Service(service) => (
                "service",
                Some(service.resolve),
                service.family,
                &service.pattern,
            ),
        };
        let resolve = match resolve {
            None => "-",
            Some(ResolveTo::Each) => "each",
            Some(ResolveTo::One) => "one",
        };
        let family = match family {
            None => "-",
            Some(Family::Ipv4) => "4",
            Some(Family::Ipv6) => "6",
            Some(Family::Both) => "both",
        };
        // The text already has the host, the port and the address.
        let Endpoint {
            name: _,
            host: _,
            address: _,
            weight,
            max_in_flight,
            tier,
        } = pattern;
        let limit = max_in_flight.map_or("-".to_owned(), |it| it.to_string());
        let written = source.text();
        text += &format!("{kind} {written:?} {resolve} {family} {weight} {limit} {tier}\n");
    }
    if let Some(file) = file {
        text += &format!("file {:?}\n", file.to_string_lossy());
    }
    format!("{:016x}", evenkeel_policy::hash::hash(text.as_bytes()))
}

impl Endpoint {
    /// The endpoint at an address, with the default for everything else.
    ///
    /// # Errors
    /// The text is no address, or it contains a name. The error says which.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NameLookup, load_text};

    fn listed_as(keys: &str) -> String {
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n[upstream.app]\n{keys}"
        );
        let loaded = load_text("folder/test.toml", &text, NameLookup::Later).unwrap();
        loaded.config.upstreams[0].listed.clone()
    }

    #[test]
    fn every_other_list_has_another_text() {
        let lists = [
            "endpoints = ['a.test:80']",
            "endpoints = ['b.test:80']",
            "endpoints = ['a.test:80', 'b.test:80']",
            "endpoints = ['b.test:80', 'a.test:80']",
            "endpoints = [{ address = 'a.test:80', resolve = 'one' }]",
            "endpoints = [{ address = 'a.test:80', family = '4' }]",
            "endpoints = [{ address = 'a.test:80', family = '6' }]",
            "endpoints = [{ address = 'a.test:80', family = 'both' }]",
            "endpoints = [{ address = 'a.test:80', weight = 2 }]",
            "endpoints = [{ address = 'a.test:80', tier = 2 }]",
            "endpoints = [{ address = 'a.test:80', max_in_flight = 2 }]",
            "endpoints = [{ srv = '_http._tcp.a.test' }]",
            "endpoints = [{ srv = '_http._tcp.a.test', family = '6' }]",
            "endpoints = ['a.test:80']\nendpoints_file = 'a.json'",
            "endpoints = ['a.test:80']\nendpoints_file = 'b.json'",
        ];
        let mut texts: Vec<_> = lists.iter().map(|it| listed_as(it)).collect();
        assert_eq!(
            texts[0],
            listed_as("retries = 1\nendpoints = ['a.test:80']")
        );
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), lists.len());
    }

    #[test]
    fn it_is_the_same_from_wherever_the_file_is_read() {
        let file = Path::new("a.json");
        let elsewhere = listed(&[], Some(file));
        assert_eq!(listed_as("endpoints_file = 'a.json'"), elsewhere);
    }
}
