//! The sender of a request: the peer, or the client that a trusted proxy names.
//!
//! Invariant: conditions, keys, logs, spans and fields for endpoints all have the same client and
//! scheme, as they ask [`Client`](super::Client) for them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use evenkeel_proto::forwarded::Believed;
use evenkeel_proto::http1::write;
use evenkeel_proto::{RequestHead, Scheme};

use crate::config::Peers;
use crate::observe::access_log::AddressText;

/// The address of a peer or client.
#[derive(Debug, Clone, Copy)]
pub struct Remote {
    /// Its address; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// Its address as text for logs.
    pub text: AddressText,
    /// Its port; 0 over a Unix socket, and where it is unknown.
    pub port: u16,
}

impl Remote {
    /// The remote with this address and port.
    pub fn new(address: Option<IpAddr>, port: u16) -> Self {
        Remote {
            address,
            text: AddressText::new(address),
            port,
        }
    }

    /// The address in the form for endpoints.
    pub fn told(&self) -> Option<&[u8]> {
        self.address.map(|_| self.text.as_bytes())
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&String::from_utf8_lossy(self.text.as_bytes()))
    }
}

impl From<SocketAddr> for Remote {
    fn from(address: SocketAddr) -> Self {
        Remote::new(Some(address.ip()), address.port())
    }
}

/// The client that a trusted proxy names in a request.
#[derive(Debug, Clone)]
pub struct RelayedClient {
    /// The client; the proxy itself where it names none.
    pub remote: Remote,
    /// Address of the proxy.
    proxy: Option<IpAddr>,
    believed: Believed,
}

impl RelayedClient {
    /// A client of this proxy, whose fields are not read yet.
    pub fn new(proxy: &Remote) -> Self {
        RelayedClient {
            remote: *proxy,
            proxy: proxy.address,
            believed: Believed::default(),
        }
    }

    /// Reads the proxy's fields in a request's head.
    pub fn read(&mut self, proxy: &Remote, trusted: &Peers, bytes: &[u8], head: &RequestHead) {
        let is_trusted = |it| trusted.contains(Some(it));
        self.believed.read(bytes, head, is_trusted);
        self.proxy = proxy.address;
        self.remote = match self.believed.client {
            Some(_) => Remote::new(self.believed.client, 0),
            None => *proxy,
        };
    }

    /// The scheme of the client's request, if the proxy names it.
    pub fn scheme(&self) -> Option<Scheme> {
        self.believed.scheme
    }

    /// The further facts for endpoints, beside address and scheme.
    pub fn relayed(&self) -> write::Relayed<'_> {
        write::Relayed {
            believed: &self.believed,
            proxy: self.proxy,
        }
    }
}
