//! The header of the PROXY protocol, versions 1 and 2, in front of a connection.
//!
//! A proxy that passes bytes on names its client in it. Follows HAProxy's
//! `doc/proxy-protocol.txt` of 2020-03-05. [`Extensions`] has the TLVs that are known. The CRC32C
//! is checked, and other TLVs are skipped.

mod tlv;
mod write;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use tlv::{Extensions, MAX_UNIQUE_ID_LEN, Ssl};
pub use write::{Connection, Version, own_header, write};

/// Longest header that is read, in bytes: addresses and TLVs of version 2.
pub const MAX_HEADER_LEN: usize = 4096;

/// Longest line of version 1, its CRLF included, in bytes.
const MAX_LINE_LEN: usize = 107;
/// The first bytes of version 1.
const LINE_START: &[u8] = b"PROXY ";
/// The first bytes of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length: in bytes.
const FIXED_LEN: usize = 16;

/// A whole header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its length in bytes: the client's own bytes follow.
    pub len: usize,
    /// The client's address, and the one that it connected to, never IPv4 addresses
    /// mapped into IPv6; `None` where the connection is the proxy's own (`LOCAL`), or
    /// the header tells no IP address (`UNKNOWN`, `UNSPEC`, Unix sockets).
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The start of its TLVs.
    tlvs_start: usize,
}

impl Header {
    /// The connection that it tells of; `bytes` begin with this header.
    pub fn connection<'a>(&self, bytes: &'a [u8]) -> Connection<'a> {
        Connection {
            addresses: self.addresses,
            extensions: self.extensions(bytes),
        }
    }

    fn extensions<'a>(&self, bytes: &'a [u8]) -> Extensions<'a> {
        let header = bytes.get(..self.len).unwrap_or_default();
        let is_inside = self.tlvs_start <= header.len();
        debug_assert!(is_inside, "it is the header of these bytes");
        if !is_inside {
            return Extensions::default();
        }
        tlv::read(header, self.tlvs_start).unwrap_or_default()
    }
}

/// The bytes are no PROXY protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The kind of a connection's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// A header, which may be malformed further on.
    Header,
    /// A header or something else: that shows with the next bytes.
    Undecided,
    /// Something else.
    Other,
}

/// Looks whether a connection begins with a header; for peers that may leave it out.
pub fn start(bytes: &[u8]) -> Start {
    let starts = [LINE_START, SIGNATURE];
    match starts.iter().find(|it| is_begun(bytes, it)) {
        Some(start) if bytes.len() >= start.len() => Start::Header,
        Some(_) => Start::Undecided,
        None => Start::Other,
    }
}

/// Looks for a header at the front of `bytes`; `None` where more bytes are needed,
/// and every byte so far belongs to it.
///
/// # Errors
/// [`Malformed`], as early as the bytes show it.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    if is_begun(bytes, LINE_START) {
        parse_line(bytes)
    } else if is_begun(bytes, SIGNATURE) {
        parse_binary(bytes)
    } else {
        Err(Malformed)
    }
}

/// Whether `bytes` and `start` agree as far as both go.
fn is_begun(bytes: &[u8], start: &[u8]) -> bool {
    let len = bytes.len().min(start.len());
    bytes[..len] == start[..len]
}

/// Version 1.
fn parse_line(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let line = &bytes[..bytes.len().min(MAX_LINE_LEN)];
    let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
        return if line.len() < MAX_LINE_LEN {
            Ok(None)
        } else {
            Err(Malformed)
        };
    };
    let text = line[..end].strip_suffix(b"\r").ok_or(Malformed)?;
    let text = text.strip_prefix(LINE_START).ok_or(Malformed)?;
    let addresses = match text.strip_prefix(b"UNKNOWN") {
        // The rest of such a line means nothing.
        Some(b"" | [b' ', ..]) => None,
        Some(_) => return Err(Malformed),
        None => Some(addresses_of(text).ok_or(Malformed)?),
    };
    let len = end + 1;
    Ok(Some(Header {
        len,
        addresses,
        tlvs_start: len,
    }))
}

/// Both addresses behind `PROXY `; `None` where anything of the line is malformed.
fn addresses_of(text: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split(' ');
    let family = words.next()?;
    let address = |word: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => word.parse().map(IpAddr::V4).ok(),
            "TCP6" => word.parse().map(IpAddr::V6).ok(),
            _ => None,
        }
    };
    let (source, destination) = (address(words.next()?)?, address(words.next()?)?);
    let (source_port, destination_port) = (port(words.next()?)?, port(words.next()?)?);
    let is_over = words.next().is_none();
    is_over.then(|| {
        (
            told(source, source_port),
            told(destination, destination_port),
        )
    })
}

/// A port in decimal, without leading zeros.
fn port(word: &str) -> Option<u16> {
    let is_decimal = word.bytes().all(|byte| byte.is_ascii_digit());
    let is_canonical = word == "0" || !word.starts_with('0');
    if is_decimal && is_canonical {
        word.parse().ok()
    } else {
        None
    }
}

/// Invariant: no address of a client is an IPv4 address mapped into IPv6.
fn told(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address.to_canonical(), port)
}

/// Version 2.
fn parse_binary(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let is_local = match bytes.get(SIGNATURE.len()) {
        None => return Ok(None),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(Malformed),
    };
    let Some(&[family_and_transport, high, low]) = bytes.get(SIGNATURE.len() + 1..FIXED_LEN) else {
        return Ok(None);
    };
    let len = FIXED_LEN + usize::from(u16::from_be_bytes([high, low]));
    let addresses_len = match (family_and_transport >> 4, family_and_transport & 0xF) {
        (0, 0..=2) => 0,
        (1, 0..=2) => 12,
        (2, 0..=2) => 36,
        (3, 0..=2) => 216,
        _ => return Err(Malformed),
    };
    // Addresses and TLVs of a connection of the proxy's own mean nothing.
    let least_len = if is_local {
        FIXED_LEN
    } else {
        FIXED_LEN + addresses_len
    };
    if !(least_len..=MAX_HEADER_LEN).contains(&len) {
        return Err(Malformed);
    }
    let Some(rest) = bytes.get(FIXED_LEN..len) else {
        return Ok(None);
    };
    if is_local {
        return Ok(Some(Header {
            len,
            addresses: None,
            tlvs_start: len,
        }));
    }
    let addresses = match family_and_transport >> 4 {
        1 => addresses_in::<4>(rest, |it| Ipv4Addr::from(it).into()),
        2 => addresses_in::<16>(rest, |it| Ipv6Addr::from(it).into()),
        _ => None,
    };
    let tlvs_start = FIXED_LEN + addresses_len;
    tlv::read(&bytes[..len], tlvs_start)?;
    Ok(Some(Header {
        len,
        addresses,
        tlvs_start,
    }))
}

/// Two addresses of `N` bytes, and their two ports.
fn addresses_in<const N: usize>(
    bytes: &[u8],
    address: impl Fn([u8; N]) -> IpAddr,
) -> Option<(SocketAddr, SocketAddr)> {
    let (source, rest) = bytes.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (source_port, rest) = rest.split_first_chunk()?;
    let (destination_port, _) = rest.split_first_chunk()?;
    Some((
        told(address(*source), u16::from_be_bytes(*source_port)),
        told(address(*destination), u16::from_be_bytes(*destination_port)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of version 2.
    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let len = (rest.len() as u16).to_be_bytes();
        [SIGNATURE, &[command, family], &len, rest].concat()
    }

    /// Checks a header that stands whole before a request, then byte by byte.
    #[track_caller]
    fn check(header: &[u8], source: Option<&str>) {
        let source = source.map(|it| it.parse().unwrap());
        let len = header.len();
        let bytes = [header, b"GET / HTTP/1.1\r\n"].concat();
        for end in 0..len {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{end} bytes");
        }
        for end in len..=bytes.len() {
            let whole = parse(&bytes[..end]).unwrap().unwrap();
            let told = whole.addresses.map(|(source, _)| source);
            assert_eq!((whole.len, told), (len, source), "{end} bytes");
        }
    }

    #[test]
    fn lines_of_version_1() {
        for (line, source) in [
            ("TCP4 192.0.2.7 10.0.0.1 56324 443", Some("192.0.2.7:56324")),
            (
                "TCP4 255.255.255.255 255.255.255.255 65535 65535",
                Some("255.255.255.255:65535"),
            ),
            ("TCP4 192.0.2.7 10.0.0.1 0 0", Some("192.0.2.7:0")),
            ("TCP6 2001:db8::7 ::1 1 80", Some("[2001:db8::7]:1")),
            ("TCP6 ::ffff:192.0.2.7 ::1 1 80", Some("192.0.2.7:1")),
            ("UNKNOWN", None),
            ("UNKNOWN anything \r of \0 it", None),
            (
                "UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535",
                None,
            ),
        ] {
            check(format!("PROXY {line}\r\n").as_bytes(), source);
        }
    }

    #[test]
    fn what_is_no_line_of_version_1() {
        for line in [
            "PROXY\r\n",
            "proxy UNKNOWN\r\n",
            "PROXY UNKNOWN\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP5 192.0.2.7 10.0.0.1 1 80\r\n",
            "PROXY UDP4 192.0.2.7 10.0.0.1 1 80\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 1 80 \r\n",
            "PROXY TCP4  192.0.2.7 10.0.0.1 1 80\r\n",
            "PROXY TCP4 192.0.2.7\t10.0.0.1 1 80\r\n",
            "PROXY TCP4 192.0.2.07 10.0.0.1 1 80\r\n",
            "PROXY TCP4 192.0.2 10.0.0.1 1 80\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.256 1 80\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 01 80\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 +1 80\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 65536 80\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 1 \r\n",
            "PROXY TCP4 2001:db8::7 ::1 1 80\r\n",
            "PROXY TCP6 192.0.2.7 10.0.0.1 1 80\r\n",
            "PROXY TCP6 [2001:db8::7] ::1 1 80\r\n",
            "PROXY TCP6 fe80::7%eth0 ::1 1 80\r\n",
            "PROXY TCP4 192.0.2.\u{664} 10.0.0.1 1 80\r\n",
            "GET / HTTP/1.1\r\n",
            "\r\nPROXY UNKNOWN\r\n",
            "\n",
        ] {
            assert_eq!(parse(line.as_bytes()), Err(Malformed), "{line:?}");
        }
    }

    #[test]
    fn whether_there_is_a_header() {
        for (bytes, expected) in [
            (&b""[..], Start::Undecided),
            (b"P", Start::Undecided),
            (b"PROXY", Start::Undecided),
            (b"PROXY ", Start::Header),
            (b"PROXY nonsense", Start::Header),
            (b"PUT / HTTP/1.1", Start::Other),
            (b"\r\n", Start::Undecided),
            (b"\r\nGET", Start::Other),
            (SIGNATURE, Start::Header),
            (&SIGNATURE[..11], Start::Undecided),
        ] {
            assert_eq!(start(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_line_has_107_bytes_at_most() {
        let line = |len: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(len - 16));
        check(line(107).as_bytes(), None);
        let too_long = line(108);
        assert_eq!(parse(&too_long.as_bytes()[..106]), Ok(None));
        assert_eq!(parse(&too_long.as_bytes()[..107]), Err(Malformed));
    }

    #[test]
    fn headers_of_version_2() {
        let v4 = [&[192, 0, 2, 7, 10, 0, 0, 1][..], &[0xDC, 0x04, 1, 0xBB]].concat();
        let v6 = [
            &"2001:db8::7".parse::<Ipv6Addr>().unwrap().octets()[..],
            &[0; 16],
            &[0, 1, 0, 80],
        ]
        .concat();
        let mapped = [
            &"::ffff:192.0.2.7".parse::<Ipv6Addr>().unwrap().octets()[..],
            &[0; 16],
            &[0, 1, 0, 80],
        ]
        .concat();
        // A no-op, an empty authority and an unknown one.
        let tlvs = [&[4, 0, 1, 0][..], &[2, 0, 0], &[0xEE, 0, 1, 7]].concat();
        check(&binary(0x21, 0x11, &v4), Some("192.0.2.7:56324"));
        check(&binary(0x21, 0x12, &v4), Some("192.0.2.7:56324"));
        check(&binary(0x21, 0x21, &v6), Some("[2001:db8::7]:1"));
        check(&binary(0x21, 0x21, &mapped), Some("192.0.2.7:1"));
        let with_tlvs = [v4.as_slice(), &tlvs].concat();
        check(&binary(0x21, 0x11, &with_tlvs), Some("192.0.2.7:56324"));
        // The header has no client address.
        check(&binary(0x21, 0x31, &[b'/'; 216]), None);
        check(&binary(0x21, 0x00, b""), None);
        check(&binary(0x21, 0x00, &tlvs), None);
        check(&binary(0x20, 0x00, b""), None);
        check(&binary(0x20, 0x11, &v4), None);
        check(&binary(0x20, 0x11, b""), None);
        check(&binary(0x20, 0x00, &[3, 0, 4, 1, 2, 3, 4]), None);
        check(&binary(0x20, 0x00, &[1, 0xFF, 0xFF]), None);
        check(&binary(0x20, 0x00, &[0; MAX_HEADER_LEN - FIXED_LEN]), None);
    }

    #[test]
    fn what_is_no_header_of_version_2() {
        for (what, bytes) in [
            ("version 1", binary(0x11, 0x11, &[0; 12])),
            ("no command", binary(0x22, 0x11, &[0; 12])),
            ("no family", binary(0x21, 0x41, &[0; 216])),
            ("no transport", binary(0x21, 0x13, &[0; 12])),
            ("IPv4 cut short", binary(0x21, 0x11, &[0; 11])),
            ("IPv6 cut short", binary(0x21, 0x21, &[0; 35])),
            ("Unix cut short", binary(0x21, 0x31, &[0; 215])),
            (
                "too long",
                binary(0x21, 0x11, &[0; MAX_HEADER_LEN - FIXED_LEN + 1]),
            ),
        ] {
            assert_eq!(parse(&bytes), Err(Malformed), "{what}");
            let decided = &bytes[..FIXED_LEN];
            assert_eq!(parse(decided), Err(Malformed), "{what}, as early as known");
        }
        // Lengths that lie, and a checksum that does not hold: known at the end.
        let addresses = [0; 12];
        for tlvs in [&[4, 0, 2, 0][..], &[4, 0], &[3, 0, 4, 1, 2, 3, 4]] {
            let bytes = binary(0x21, 0x11, &[&addresses[..], tlvs].concat());
            assert_eq!(parse(&bytes), Err(Malformed), "{tlvs:?}");
            assert_eq!(parse(&bytes[..bytes.len() - 1]), Ok(None), "{tlvs:?}");
        }
        let mut signature = SIGNATURE.to_vec();
        signature[11] = b'\r';
        assert_eq!(parse(&signature), Err(Malformed));
    }
}
