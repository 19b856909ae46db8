//! Networks of client addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses: one address or a CIDR prefix.
///
/// An IPv4 address that arrives mapped into IPv6 (`::ffff:10.0.0.1`) is
/// treated as the IPv4 address it is, on both sides of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    family: Family,
    base: u128,
    mask: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// Both ends of a network, included.
pub(super) enum Span {
    V4(u32, u32),
    V6(u128, u128),
}

/// Why text is not a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkError {
    /// The part before `/` is not an IP address.
    Address,
    /// The part after `/` is not a number, or longer than the address.
    PrefixLen,
}

impl Network {
    /// Whether every address of its family lies in it.
    pub fn is_everybody(&self) -> bool {
        match self.family {
            Family::V4 => self.mask as u32 == 0,
            Family::V6 => self.mask == 0,
        }
    }

    /// The addresses that share the first `prefix_len` bits with `address`;
    /// `None` where the address has fewer bits.
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<Self> {
        let (address, prefix_len) = match (address, address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(mapped)) if (96..=128).contains(&prefix_len) => {
                (IpAddr::V4(mapped), prefix_len - 96)
            }
            (address, _) => (address, prefix_len),
        };
        let (family, bits) = split(address);
        let width: u8 = match family {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        let host_len = width.checked_sub(prefix_len)?;
        let mask = u128::MAX.checked_shl(u32::from(host_len)).unwrap_or(0);
        Some(Self {
            family,
            base: bits & mask,
            mask,
        })
    }

    /// Its first and its last address.
    pub(super) fn span(&self) -> Span {
        let last = self.base | !self.mask;
        match self.family {
            // The mask of IPv4 has ones above its 32 bits.
            Family::V4 => Span::V4(self.base as u32, last as u32),
            Family::V6 => Span::V6(self.base, last),
        }
    }

    /// Whether every address of `other` lies in it.
    pub fn covers(&self, other: &Network) -> bool {
        let is_wider = self.mask & other.mask == self.mask;
        self.family == other.family && is_wider && other.base & self.mask == self.base
    }

    /// Whether `address` lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (family, bits) = split(address.to_canonical());
        family == self.family && bits & self.mask == self.base
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, width): (IpAddr, u32) = match self.family {
            Family::V4 => (Ipv4Addr::from_bits(self.base as u32).into(), 32),
            Family::V6 => (Ipv6Addr::from_bits(self.base).into(), 128),
        };
        // The mask of IPv4 has ones above its 32 bits.
        let prefix_len = width - self.mask.trailing_zeros().min(width);
        if prefix_len == width {
            address.fmt(f)
        } else {
            write!(f, "{address}/{prefix_len}")
        }
    }
}

fn split(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(address) => (Family::V4, u128::from(address.to_bits())),
        IpAddr::V6(address) => (Family::V6, Ipv6Addr::to_bits(address)),
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Reads `10.0.0.0/8`, `::1` and the like; bits beyond the prefix are
    /// ignored.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address)?;
        let full_len = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = match prefix_len {
            Some(digits) => digits.parse().map_err(|_| NetworkError::PrefixLen)?,
            None => full_len,
        };
        Self::new(address, prefix_len).ok_or(NetworkError::PrefixLen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_it_is() {
        for (written, shown) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.0.0.1", "10.0.0.1"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::1", "::1"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ] {
            let network: Network = written.parse().unwrap();
            assert_eq!(network.to_string(), shown);
        }
    }

    #[test]
    fn containment() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("::ffff:10.0.0.0/104", "10.2.3.4", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "::1", true),
            ("::/0", "1.2.3.4", false),
            ("2001:db8::/32", "2001:db8:1::5", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("::1", "::1", true),
        ] {
            let network: Network = network.parse().expect(network);
            assert_eq!(
                network.contains(address.parse().unwrap()),
                expected,
                "{network:?} {address}"
            );
        }
    }

    #[test]
    fn what_is_no_network() {
        for (text, expected) in [
            ("10.0.0", NetworkError::Address),
            ("10.0.0.0/33", NetworkError::PrefixLen),
            ("::/129", NetworkError::PrefixLen),
            ("10.0.0.0/", NetworkError::PrefixLen),
            ("10.0.0.0/-1", NetworkError::PrefixLen),
            ("localhost", NetworkError::Address),
        ] {
            assert_eq!(text.parse::<Network>(), Err(expected), "{text}");
        }
    }
}
