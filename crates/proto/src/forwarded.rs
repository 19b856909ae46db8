//! The fields of proxies about the client behind them: `X-Forwarded-*`, and
//! `Forwarded` (RFC 7239).
//!
//! Anybody can write these fields. A trusted proxy adds to their right end, so
//! they are read from there. As long as an address is a trusted proxy's, the
//! next one to the left is the peer that this proxy saw. The first address that
//! is not trusted is the client. The text to the left of it is the client's own
//! claim.
//!
//! Invariant: every believed value was written by a trusted proxy. If a proxy
//! wrote no address (`unknown`, a name, rubbish), the client is the last known
//! address.
//!
//! `Forwarded` is read only where there is no `X-Forwarded-For`: most proxies write
//! the latter, and pass on whatever `Forwarded` their clients send.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::field::FieldKind;
use crate::head::{RequestHead, Scheme};
use crate::span::Span;

/// Most addresses that are read of a request.
pub const MAX_HOPS: usize = 32;
/// Longest host that is believed, in bytes: a name and a port.
const MAX_HOST_LEN: usize = 261;

const FOR: &str = "x-forwarded-for";
const PROTO: &str = "x-forwarded-proto";
const HOST: &str = "x-forwarded-host";
const PORT: &str = "x-forwarded-port";
const FORWARDED: &str = "forwarded";

/// The believed part of a request that a trusted proxy sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Believed {
    /// The client's address; `None` where none was reported, so that the proxy
    /// is the client.
    pub client: Option<IpAddr>,
    /// Trusted proxies between the client and the sender of the request. The
    /// one nearest to the client comes last.
    pub hops: Vec<IpAddr>,
    /// The scheme that the client asked by.
    pub scheme: Option<Scheme>,
    /// The host that the client asked for; empty where none was reported.
    pub host: Span,
    /// The port that the client asked at; empty where none was reported.
    pub port: Span,
}

impl Believed {
    /// Reads the fields of a head that a trusted proxy sent. They replace the
    /// fields of an earlier head.
    pub fn read(&mut self, buf: &[u8], head: &RequestHead, is_trusted: impl Fn(IpAddr) -> bool) {
        self.client = None;
        self.hops.clear();
        let addresses = items(buf, head, FOR);
        let count = addresses.clone().count();
        let element = match count {
            0 => {
                let elements = || items(buf, head, FORWARDED).map(|it| Element::of(buf, it));
                let nodes = elements().map(|it| address(it?.node.of(buf)));
                self.walk(nodes, is_trusted);
                elements().nth(self.hops.len()).flatten()
            }
            _ => {
                self.walk(addresses.map(|it| address(it.of(buf))), is_trusted);
                None
            }
        }
        .unwrap_or_default();
        // A list as long as that of addresses has an item for each of them. In
        // any other list, the last proxy wrote the last item.
        let at = self.hops.len();
        let told = |name| {
            let mut all = items(buf, head, name);
            if at > 0 && all.clone().count() == count {
                all.nth(at)
            } else {
                all.next()
            }
        };
        let scheme_of = |it: Span| scheme(it.of(buf));
        let host_of = |it: &Span| is_host(it.of(buf));
        self.scheme = scheme_of(element.proto).or_else(|| told(PROTO).and_then(scheme_of));
        self.host = Some(element.host).filter(host_of).unwrap_or_default();
        if self.host.is_empty() {
            self.host = told(HOST).filter(host_of).unwrap_or_default();
        }
        let port = told(PORT).filter(|it| is_port(it.of(buf)));
        self.port = port.unwrap_or_default();
    }

    /// Follows the addresses, the last proxy's first, to the client.
    fn walk(
        &mut self,
        told: impl Iterator<Item = Option<IpAddr>>,
        is_trusted: impl Fn(IpAddr) -> bool,
    ) {
        for address in told.take(MAX_HOPS) {
            let Some(address) = address else { return };
            if let Some(proxy) = self.client.replace(address) {
                self.hops.push(proxy);
            }
            if !is_trusted(address) {
                return;
            }
        }
    }
}

/// One element of `Forwarded`.
#[derive(Debug, Default)]
struct Element {
    /// Value of `for`, without quotes.
    node: Span,
    proto: Span,
    host: Span,
}

impl Element {
    /// `None` where it is none.
    fn of(buf: &[u8], element: Span) -> Option<Self> {
        let mut all = Element::default();
        for pair in pieces(buf, element, b';') {
            let text = pair.of(buf);
            let equals = text.iter().position(|it| *it == b'=')?;
            let value_start = pair.start as usize + equals + 1;
            let value = unquoted(buf, Span::new(value_start, pair.end as usize))?;
            let is = |known: &[u8]| text[..equals].eq_ignore_ascii_case(known);
            let place = if is(b"for") {
                &mut all.node
            } else if is(b"proto") {
                &mut all.proto
            } else if is(b"host") {
                &mut all.host
            } else {
                continue;
            };
            // Each may be there once.
            if !place.is_empty() {
                return None;
            }
            *place = value;
        }
        Some(all)
    }
}

/// The items of all lines of a field, the last one first.
fn items<'a>(
    buf: &'a [u8],
    head: &'a RequestHead,
    name: &'static str,
) -> impl Iterator<Item = Span> + Clone + 'a {
    let lines = head.fields.iter().rev();
    let lines = lines.filter(move |it| {
        it.kind == FieldKind::Forwarded && it.name.of(buf).eq_ignore_ascii_case(name.as_bytes())
    });
    lines.flat_map(|line| pieces(buf, line.value, b','))
}

/// The pieces between separators outside of quotes, without white space around
/// them. The last piece comes first, and empty pieces are left out.
///
/// Read from the right: an open quote that a client wrote does not swallow the
/// part that a proxy added.
fn pieces(buf: &[u8], whole: Span, separator: u8) -> impl Iterator<Item = Span> + Clone {
    let mut rest = Some(whole);
    let piece = move || {
        let whole = rest?;
        let (bytes, start) = (whole.of(buf), whole.start as usize);
        let mut is_quoted = false;
        let mut places = (0..bytes.len()).rev();
        let separator_at = places.find(|&at| {
            let is_escaped = is_quoted && at > 0 && bytes[at - 1] == b'\\';
            is_quoted ^= bytes[at] == b'"' && !is_escaped;
            bytes[at] == separator && !is_quoted
        });
        rest = separator_at.map(|at| Span::new(start, start + at));
        let piece = &bytes[separator_at.map_or(0, |at| at + 1)..];
        let end = start + bytes.len() - (piece.len() - piece.trim_ascii_end().len());
        Some(Span::new(end - piece.trim_ascii().len(), end))
    };
    std::iter::from_fn(piece).filter(|it| !it.is_empty())
}

/// A value without the quotes around it; `None` where it can't be meant as it is.
fn unquoted(buf: &[u8], value: Span) -> Option<Span> {
    let inner = match value.of(buf) {
        [b'"', .., b'"'] => Span {
            start: value.start + 1,
            end: value.end - 1,
        },
        _ => value,
    };
    let is_plain = |it: &u8| !matches!(it, b'"' | b'\\');
    inner.of(buf).iter().all(is_plain).then_some(inner)
}

/// An address that stands alone, in brackets, or before a port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bracketed = || {
        text.strip_prefix('[')?
            .strip_suffix(']')?
            .parse::<Ipv6Addr>()
            .ok()
    };
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    let address = text.parse().ok();
    let address = address
        .or_else(|| bracketed().map(IpAddr::V6))
        .or_else(with_port)?;
    Some(address.to_canonical())
}

fn scheme(text: &[u8]) -> Option<Scheme> {
    let is = |known: &str| text.eq_ignore_ascii_case(known.as_bytes());
    if is("https") || is("wss") {
        Some(Scheme::Https)
    } else if is("http") || is("ws") {
        Some(Scheme::Http)
    } else {
        None
    }
}

fn is_host(text: &[u8]) -> bool {
    let is_allowed = |it: &u8| it.is_ascii_alphanumeric() || b"-._~%:[]".contains(it);
    (1..=MAX_HOST_LEN).contains(&text.len()) && text.iter().all(is_allowed)
}

fn is_port(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.bytes().all(|it| it.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|it| it > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{Parsed, parse_request};

    /// The believed part of a request with these fields, where `10.0.0.0/8` and
    /// `fd00::/8` are trusted: client, hops, and the rest.
    fn believed(fields: &str) -> (String, String, String) {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let (buf, mut head) = (request.as_bytes(), RequestHead::default());
        assert_eq!(
            parse_request(buf, &mut head),
            Ok(Parsed::Complete),
            "{fields}"
        );
        let is_trusted = |it: IpAddr| match it {
            IpAddr::V4(it) => it.octets()[0] == 10,
            IpAddr::V6(it) => it.octets()[0] == 0xfd,
        };
        let mut all = Believed {
            // Of an earlier request.
            client: Some(IpAddr::V6(Ipv6Addr::LOCALHOST)),
            hops: vec![IpAddr::V6(Ipv6Addr::LOCALHOST)],
            scheme: Some(Scheme::Https),
            host: Span { start: 0, end: 3 },
            port: Span { start: 0, end: 3 },
        };
        all.read(buf, &head, is_trusted);
        let text = |it: Span| String::from_utf8(it.of(buf).to_vec()).unwrap();
        let hops: Vec<String> = all.hops.iter().map(IpAddr::to_string).collect();
        let scheme = all.scheme.map_or("-", Scheme::as_str);
        (
            all.client.map_or("-".into(), |it| it.to_string()),
            hops.join(" "),
            format!("{scheme} {} {}", text(all.host), text(all.port)),
        )
    }

    fn client(fields: &str) -> String {
        believed(fields).0
    }

    #[test]
    fn the_client_is_the_first_from_the_right_that_is_not_trusted() {
        for (value, expected, hops) in [
            ("192.0.2.1", "192.0.2.1", ""),
            ("198.51.100.9, 192.0.2.1", "192.0.2.1", ""),
            (
                "192.0.2.1, 10.0.0.2,10.0.0.1",
                "192.0.2.1",
                "10.0.0.1 10.0.0.2",
            ),
            ("10.0.0.2, 10.0.0.1", "10.0.0.2", "10.0.0.1"),
            ("192.0.2.1:4711", "192.0.2.1", ""),
            ("2001:db8::1", "2001:db8::1", ""),
            ("[2001:db8::1]", "2001:db8::1", ""),
            ("[2001:db8::1]:80, fd00::1", "2001:db8::1", "fd00::1"),
            ("::ffff:192.0.2.1", "192.0.2.1", ""),
            (" , 192.0.2.1 ,, ", "192.0.2.1", ""),
            // An item that is no address ends the way.
            ("192.0.2.1, unknown, 10.0.0.1", "10.0.0.1", ""),
            ("192.0.2.1, \"10.0.0.9\"", "-", ""),
            ("192.0.2.1 10.0.0.9", "-", ""),
            ("0300.0.2.1", "-", ""),
            ("1.2.3.4.5, <script>", "-", ""),
            ("", "-", ""),
        ] {
            let (found, found_hops, _) = believed(&format!("X-Forwarded-For: {value}\r\n"));
            assert_eq!(
                (found.as_str(), found_hops.as_str()),
                (expected, hops),
                "{value}"
            );
        }
        // Lines count as one list.
        assert_eq!(
            client("x-forwarded-for: 192.0.2.1\r\nA: b\r\nX-Forwarded-For: 10.0.0.1\r\n"),
            "192.0.2.1"
        );
    }

    #[test]
    fn so_many_hops_are_read_and_no_more() {
        let list = |count: usize| vec!["10.0.0.1"; count].join(",");
        let (_, hops, _) = believed(&format!("X-Forwarded-For: 192.0.2.1,{}\r\n", list(31)));
        assert_eq!(hops.split(' ').count(), MAX_HOPS - 1);
        let fields = format!("X-Forwarded-For: 192.0.2.1,{}\r\n", list(1_000));
        let (client, hops, _) = believed(&fields);
        assert_eq!(
            (client.as_str(), hops.split(' ').count()),
            ("10.0.0.1", MAX_HOPS - 1)
        );
    }

    #[test]
    fn reads_the_standard_field_where_there_is_no_other() {
        for (value, expected, rest) in [
            ("for=192.0.2.1", "192.0.2.1", "-  "),
            (
                "for=192.0.2.1;proto=HTTPS;by=_x;host=\"a.example:8443\"",
                "192.0.2.1",
                "https a.example:8443 ",
            ),
            (
                "For=\"[2001:db8::1]:80\" ; Proto=http",
                "2001:db8::1",
                "http  ",
            ),
            (
                "for=\"a, b\", for=192.0.2.1;proto=https, for=10.0.0.1;proto=http",
                "192.0.2.1",
                "https  ",
            ),
            // Not the client's word on the scheme.
            (
                "for=198.51.100.9;proto=https, for=192.0.2.1",
                "192.0.2.1",
                "-  ",
            ),
            ("proto=https", "-", "https  "),
            // An open quote of the client swallows nothing.
            ("for=\"x, for=192.0.2.1", "192.0.2.1", "-  "),
            ("for=\"x\\\", for=192.0.2.1", "192.0.2.1", "-  "),
            ("for=\", for=192.0.2.1;host=\"b\"", "192.0.2.1", "- b "),
            // Rubbish.
            ("for=192.0.2.1;for=192.0.2.2", "-", "-  "),
            ("for=unknown;proto=https", "-", "https  "),
            ("for=_hidden, for=10.0.0.1", "10.0.0.1", "-  "),
            ("192.0.2.1", "-", "-  "),
            ("for=\"192.0.2.\\1\"", "-", "-  "),
            ("for=192.0.2.1;host=\"a\\\"b\"", "-", "-  "),
            ("for", "-", "-  "),
            (";;=,", "-", "-  "),
        ] {
            let (found, _, found_rest) = believed(&format!("Forwarded: {value}\r\n"));
            assert_eq!(
                (found.as_str(), found_rest.as_str()),
                (expected, rest),
                "{value}"
            );
        }
        let both = "Forwarded: for=198.51.100.9;proto=https\r\nX-Forwarded-For: 192.0.2.1\r\n";
        assert_eq!(believed(both).0, "192.0.2.1");
        assert_eq!(believed(both).2, "-  ");
    }

    #[test]
    fn scheme_host_and_port_are_those_that_the_clients_proxy_saw() {
        for (fields, expected) in [
            ("X-Forwarded-Proto: https\r\n", "https  "),
            ("X-Forwarded-Proto: WSS\r\n", "https  "),
            ("X-Forwarded-Proto: gopher\r\n", "-  "),
            // The last proxy's word, where there is no address.
            ("X-Forwarded-Proto: https, http\r\n", "http  "),
            (
                "X-Forwarded-For: 192.0.2.1, 10.0.0.1\r\nX-Forwarded-Proto: https, http\r\n",
                "https  ",
            ),
            (
                "X-Forwarded-For: 192.0.2.1, 10.0.0.1\r\nX-Forwarded-Proto: https\r\n",
                "https  ",
            ),
            // Three for two addresses: the client sent the first.
            (
                "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https, http\r\n",
                "http  ",
            ),
            (
                "X-Forwarded-Host: a.example:8443\r\nX-Forwarded-Port: 8443\r\n",
                "- a.example:8443 8443",
            ),
            (
                "X-Forwarded-Host: a\"b\r\nX-Forwarded-Port: 65536\r\n",
                "-  ",
            ),
            ("X-Forwarded-Port: 0\r\n", "-  "),
            ("X-Forwarded-Port: +80\r\n", "-  "),
        ] {
            assert_eq!(believed(fields).2, expected, "{fields}");
        }
        let long = format!("X-Forwarded-Host: {}\r\n", "a".repeat(MAX_HOST_LEN + 1));
        assert_eq!(believed(&long).2, "-  ");
    }
}
