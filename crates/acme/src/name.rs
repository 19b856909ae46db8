//! The names to order certificates for, and values derived from them.

use std::net::IpAddr;

use instant_acme::Identifier;
use rustls_pki_types::ServerName;

/// A name of a host, a wildcard name or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Name {
    /// The name of a host, in lower case, without a dot at the end.
    Host(String),
    /// `*.` before a domain. This is the domain.
    Wildcard(String),
    /// An address (RFC 8738).
    Address(IpAddr),
}

impl Name {
    /// `None` where the text is no name that a certificate can have.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Self::Address(address));
        }
        let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        match text.strip_prefix("*.") {
            Some(domain) => is_host(domain).then(|| Self::Wildcard(domain.to_owned())),
            None => is_host(&text).then_some(Self::Host(text)),
        }
    }

    /// The identifier in an order.
    pub(crate) fn identifier(&self) -> Identifier {
        match self {
            Self::Address(address) => Identifier::Ip(*address),
            _ => Identifier::Dns(self.to_string()),
        }
    }

    /// A name that a certificate for this one is valid for.
    ///
    /// # Panics
    /// Never: the name was checked when it was parsed.
    pub(crate) fn server_name(&self) -> ServerName<'static> {
        match self {
            Self::Address(address) => ServerName::IpAddress((*address).into()),
            Self::Host(host) => host_name(host.clone()),
            Self::Wildcard(domain) => host_name(format!("any.{domain}")),
        }
    }

    /// The server name that a TLS-ALPN-01 handshake asks for: of an address, its reverse
    /// name (RFC 8738, section 6).
    pub(crate) fn alpn_server_name(&self) -> String {
        match self {
            Self::Address(IpAddr::V4(address)) => {
                let [a, b, c, d] = address.octets();
                format!("{d}.{c}.{b}.{a}.in-addr.arpa")
            }
            Self::Address(IpAddr::V6(address)) => {
                let nibbles = address.octets().into_iter().rev();
                let nibbles = nibbles.flat_map(|it| [it & 15, it >> 4]);
                let labels: String = nibbles.map(|it| format!("{it:x}.")).collect();
                format!("{labels}ip6.arpa")
            }
            _ => self.to_string(),
        }
    }

    /// The name of the TXT record of DNS-01.
    pub(crate) fn challenge_record(&self) -> String {
        match self {
            Self::Host(domain) | Self::Wildcard(domain) => format!("_acme-challenge.{domain}"),
            Self::Address(address) => format!("_acme-challenge.{address}"),
        }
    }
}

/// The name of a file for a name, without an extension: `*.` is written as `_.`.
///
/// A text that is no name gets a file name too, which no certificate has.
pub(crate) fn file_stem(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    match name.strip_prefix("*.") {
        Some(domain) => format!("_.{}", domain.replace('/', "_")),
        None => name.replace('/', "_"),
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(host) => f.write_str(host),
            Self::Wildcard(domain) => write!(f, "*.{domain}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

fn host_name(name: String) -> ServerName<'static> {
    ServerName::try_from(name).expect("it was checked when it was parsed")
}

/// Whether it is the name of a host: letters, digits and hyphens in labels. `_` is known to
/// resolvers, but no issuer signs it.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_known = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_known)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // `any.` and `_acme-challenge.` have to fit before it.
    name.len() <= 237
        && name.split('.').all(is_label)
        && !name
            .rsplit('.')
            .next()
            .is_some_and(|it| it.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for (text, expected) in [
            ("example.com", Some("example.com")),
            ("Example.COM.", Some("example.com")),
            ("localhost", Some("localhost")),
            ("xn--bcher-kva.example", Some("xn--bcher-kva.example")),
            ("*.example.com", Some("*.example.com")),
            ("192.0.2.1", Some("192.0.2.1")),
            ("2001:DB8::1", Some("2001:db8::1")),
            ("*.192.0.2.1", None),
            ("*", None),
            ("*.", None),
            ("a.*.example.com", None),
            ("", None),
            (".", None),
            ("..", None),
            ("../x", None),
            ("a/b.example", None),
            ("a b.example", None),
            ("-a.example", None),
            ("a..example", None),
            ("_sip.example", None),
            ("bücher.example", None),
            ("1.2.3", None),
        ] {
            let name = Name::parse(text).map(|it| it.to_string());
            assert_eq!(name.as_deref(), expected, "{text:?}");
            if let Some(name) = Name::parse(text) {
                // It does not panic.
                let _ = name.server_name();
            }
        }
        let longest = format!("{}.{}", ["a"; 50].join("."), "b".repeat(63));
        let longest = format!(
            "{}.{longest}",
            "c".repeat(237 - 1 - longest.len()).replace("ccc", "c.c")
        );
        assert_eq!(longest.len(), 237);
        let _ = Name::parse(&longest).expect("a long name").server_name();
        assert_eq!(Name::parse(&format!("d{longest}")), None);
    }

    #[test]
    fn handshakes_for_addresses_ask_for_reverse_names() {
        let of = |text: &str| Name::parse(text).expect("a name").alpn_server_name();
        assert_eq!(of("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        // RFC 8738, section 6.
        assert_eq!(
            of("2001:db8::1"),
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"
        );
        assert_eq!(of("Example.com"), "example.com");
    }

    #[test]
    fn files_have_safe_names() {
        assert_eq!(file_stem("*.Example.com"), "_.example.com");
        assert_eq!(file_stem("example.com"), "example.com");
        assert_eq!(file_stem("2001:db8::1"), "2001:db8::1");
        assert_eq!(file_stem("../../etc/passwd"), ".._.._etc_passwd");
    }
}
