//! Headers of the PROXY protocol: written headers read back the same, and a header that was
//! tampered with is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_proto::proxy_protocol::{
    Connection, Extensions, Header, MAX_HEADER_LEN, MAX_UNIQUE_ID_LEN, Malformed, Ssl, Version,
    own_header, parse, write,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The place of the length in version 2.
const LEN_AT: usize = 14;

fn address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![
        any::<u32>().prop_map(|it| IpAddr::from(Ipv4Addr::from(it))),
        any::<u128>().prop_map(|it| IpAddr::from(Ipv6Addr::from(it))),
        any::<u32>().prop_map(|it| IpAddr::from(Ipv4Addr::from(it).to_ipv6_mapped())),
    ];
    (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn value(max: usize) -> impl Strategy<Value = Option<Vec<u8>>> {
    option::of(vec(any::<u8>(), 0..=max))
}

/// Flags, verification, and the texts of a client's TLS.
type SslValues = (u8, u32, [Option<Vec<u8>>; 5]);

/// The values of a header's TLVs.
#[derive(Debug, Clone)]
struct Values {
    alpn: Option<Vec<u8>>,
    authority: Option<Vec<u8>>,
    unique_id: Option<Vec<u8>>,
    ssl: Option<SslValues>,
}

impl Values {
    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            alpn: self.alpn.as_deref(),
            authority: self.authority.as_deref(),
            unique_id: self.unique_id.as_deref(),
            ssl: self.ssl.as_ref().map(|(client, verify, parts)| {
                let [
                    version,
                    common_name,
                    cipher,
                    signature_algorithm,
                    key_algorithm,
                ] = parts.each_ref().map(Option::as_deref);
                Ssl {
                    client: *client,
                    verify: *verify,
                    version,
                    common_name,
                    cipher,
                    signature_algorithm,
                    key_algorithm,
                }
            }),
        }
    }
}

fn values() -> impl Strategy<Value = Values> {
    let parts = std::array::from_fn::<_, 5, _>(|_| value(255));
    let ssl = option::of((any::<u8>(), any::<u32>(), parts));
    (value(255), value(255), value(MAX_UNIQUE_ID_LEN), ssl).prop_map(
        |(alpn, authority, unique_id, ssl)| Values {
            alpn,
            authority,
            unique_id,
            ssl,
        },
    )
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn header(version: Version, connection: &Connection<'_>) -> Vec<u8> {
    let mut bytes = b"before".to_vec();
    write(&mut bytes, version, connection);
    bytes.split_off(b"before".len())
}

/// The header in front of other bytes; each part of it is undecided.
fn parsed(header: &[u8]) -> Header {
    for len in 0..header.len() {
        assert_eq!(parse(&header[..len]), Ok(None), "{len} bytes");
    }
    let parsed = parse(&[header, b"GET / HTTP/1.1\r\n"].concat());
    let parsed = parsed.expect("it is a header").expect("it is whole");
    assert_eq!(parsed.len, header.len());
    parsed
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        addresses in option::of((address(), address())),
        values in values(),
    ) {
        let extensions = values.extensions();
        for version in [Version::V1, Version::V2] {
            let bytes = header(version, &Connection { addresses, extensions });
            prop_assert!(bytes.len() <= MAX_HEADER_LEN);
            let parsed = parsed(&bytes);
            let told = parsed.connection(&bytes);
            let canonical = |(source, destination)| (canonical(source), canonical(destination));
            prop_assert_eq!(told.addresses, addresses.map(canonical));
            let expected = match version {
                Version::V1 => Extensions::default(),
                Version::V2 => extensions,
            };
            prop_assert_eq!(told.extensions, expected);
        }
    }

    /// The checksum covers the addresses.
    #[test]
    fn no_address_can_be_another(
        addresses in (address(), address()),
        values in values(),
        at in any::<prop::sample::Index>(),
        change in 1..=255_u8,
    ) {
        let connection = Connection { addresses: Some(addresses), extensions: values.extensions() };
        let mut bytes = header(Version::V2, &connection);
        let is_ipv4 = bytes[13] == 0x11;
        bytes[16 + at.index(if is_ipv4 { 12 } else { 36 })] ^= change;
        prop_assert_eq!(parse(&bytes), Err(Malformed));
    }

    #[test]
    fn lengths_that_lie(
        values in values(),
        len in any::<u16>(),
        rest in vec(any::<u8>(), 0..64),
    ) {
        let addresses = None;
        let mut bytes = header(Version::V2, &Connection { addresses, extensions: values.extensions() });
        let real = bytes.len();
        bytes[LEN_AT..LEN_AT + 2].copy_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&rest);
        let told = 16 + usize::from(len);
        let parsed = parse(&bytes);
        if told > MAX_HEADER_LEN {
            prop_assert_eq!(parsed, Err(Malformed));
        } else if told > bytes.len() {
            prop_assert_eq!(parsed, Ok(None));
        } else if let Ok(Some(header)) = parsed {
            // Only where no checksum is within it.
            prop_assert!(told == real || told <= real - 7);
            prop_assert_eq!(header.len, told);
        }
    }
}

#[test]
fn headers_of_the_proxy_itself() {
    for version in [Version::V1, Version::V2] {
        assert_eq!(parsed(own_header(version)).addresses, None);
    }
}

/// The lines that the specification has, and version 2 byte by byte.
#[test]
fn headers_as_others_write_them() {
    let connection = |source: &str, destination: &str| Connection {
        addresses: Some((source.parse().unwrap(), destination.parse().unwrap())),
        extensions: Extensions::default(),
    };
    for (source, destination, line) in [
        (
            "192.168.0.1:56324",
            "192.168.0.11:443",
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
        ),
        (
            "[2001:db8::7]:1",
            "10.0.0.1:80",
            "PROXY TCP6 2001:db8::7 ::ffff:10.0.0.1 1 80\r\n",
        ),
    ] {
        let bytes = header(Version::V1, &connection(source, destination));
        assert_eq!(String::from_utf8(bytes).unwrap(), line);
    }
    let bytes = header(Version::V2, &connection("192.0.2.7:4711", "10.0.0.1:80"));
    let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13".to_vec();
    expected.extend_from_slice(&[192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0, 80, 3, 0, 4]);
    assert_eq!(bytes[..expected.len()], expected);
    assert_eq!(bytes.len(), expected.len() + 4);
}

#[test]
fn values_that_are_too_long_are_left_out() {
    let long = [b'x'; 256];
    let extensions = Extensions {
        alpn: Some(&long),
        authority: Some(&long),
        unique_id: Some(&long[..=MAX_UNIQUE_ID_LEN]),
        ssl: Some(Ssl {
            client: Ssl::ENCRYPTED,
            common_name: Some(&long),
            ..Ssl::default()
        }),
    };
    let addresses = None;
    let bytes = header(
        Version::V2,
        &Connection {
            addresses,
            extensions,
        },
    );
    let read = parsed(&bytes).connection(&bytes).extensions;
    let ssl = read.ssl.unwrap();
    assert!(ssl.is_encrypted());
    assert_eq!(
        (read.alpn, read.authority, read.unique_id, ssl.common_name),
        (None, None, None, None)
    );
}
