//! Addresses of listeners and endpoints.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A socket address, or the path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 or IPv6 address with its port.
    Tcp(SocketAddr),
    /// Path of a Unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// Whether it is that of a Unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self, Address::Unix(_))
    }

    /// Whether sockets at the two could be in each other's way.
    pub fn shares_port(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Tcp(one), Address::Tcp(other)) => one.port() == other.port(),
            _ => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(out),
            Address::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}
