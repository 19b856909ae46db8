//! `host [":" port]`, as it stands in `Host` and in a target (RFC 9110 §4.2).

use std::net::Ipv6Addr;

use super::grammar::among;

/// An authority without user information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Authority {
    /// The port; none if it is not stated, or stated and empty.
    pub port: Option<u16>,
}

/// Whether it is a host, with or without a port, as `Host` has it.
pub fn is_authority(text: &[u8]) -> bool {
    read(text).is_some()
}

/// Reads an authority; `None` if it has no host, or is none.
///
/// Deviation: a comma, which RFC 3986 lets a name hold, is refused: it is what
/// two `Host` fields look like after somebody joined them.
pub(super) fn read(authority: &[u8]) -> Option<Authority> {
    let host_len = match authority {
        [b'[', address @ ..] => {
            let len = memchr::memchr(b']', address)?;
            let address = std::str::from_utf8(&address[..len]).ok()?;
            address.parse::<Ipv6Addr>().ok()?;
            len + 2
        }
        _ => authority
            .iter()
            .position(|&byte| !IN_NAME[usize::from(byte)])
            .unwrap_or(authority.len()),
    };
    if host_len == 0 {
        return None;
    }
    let port = match &authority[host_len..] {
        [] | [b':'] => None,
        [b':', digits @ ..] if digits.len() <= 5 => {
            let number = digits.iter().try_fold(0u32, |sum, &byte| {
                byte.is_ascii_digit()
                    .then(|| sum * 10 + u32::from(byte - b'0'))
            })?;
            Some(u16::try_from(number).ok()?)
        }
        _ => return None,
    };
    Some(Authority { port })
}

/// `unreserved`, `sub-delims` without the comma, and `%` (RFC 3986 §3.2.2).
const IN_NAME: [bool; 256] =
    among(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-._~!$&'()*+;=%");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_authorities() {
        for (authority, port) in [
            ("a", Some(None)),
            ("example.com", Some(None)),
            ("example.com:", Some(None)),
            ("example.com:80", Some(Some(80))),
            ("example.com:65535", Some(Some(65535))),
            ("my_host~%41", Some(None)),
            ("[::1]", Some(None)),
            ("[::ffff:1.2.3.4]:443", Some(Some(443))),
            ("", None),
            (":80", None),
            ("a:port", None),
            ("a:65536", None),
            ("a:000080", None),
            ("a:+8", None),
            ("a:1:2", None),
            ("::1", None),
            ("[::1", None),
            ("[]", None),
            ("[::1]x", None),
            ("[::1%25eth0]", None),
            ("[a]", None),
            ("a]", None),
            ("a,b", None),
            ("a b", None),
            ("a/b", None),
            ("a\\b", None),
            ("user@a", None),
            ("a#b", None),
            ("a\"b", None),
            ("caf\u{e9}", None),
        ] {
            let read = read(authority.as_bytes()).map(|authority| authority.port);
            assert_eq!(read, port, "{authority:?}");
        }
    }
}
