//! Headers as they are written to endpoints.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::tlv::{self, CHECKSUM_LEN, MAX_UNIQUE_ID_LEN, TLV_HEAD_LEN, types};
use super::{Extensions, FIXED_LEN, SIGNATURE, Ssl};

/// Longest value of a TLV that is written, in bytes.
///
/// Invariant: whatever is said, a header stays below `MAX_HEADER_LEN`.
const MAX_VALUE_LEN: usize = 255;
/// A length as it is written, in bytes.
const LEN_LEN: usize = 2;

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 1: a line of text. It has no TLVs.
    V1,
    /// Version 2.
    V2,
}

/// A connection of a client.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connection<'a> {
    /// The client's address, and the address that it connected to; `None` where
    /// no IP address is known.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Further facts on the connection. A value that is too long is left out.
    pub extensions: Extensions<'a>,
}

/// Both addresses in the same family.
enum Pair {
    V4([u8; 8]),
    V6([Ipv6Addr; 2]),
}

/// Appends the header of a client's connection to `out`; version 2 has a checksum.
pub fn write(out: &mut Vec<u8>, version: Version, connection: &Connection<'_>) {
    match version {
        Version::V1 => write_line(out, connection.addresses),
        Version::V2 => write_binary(out, connection),
    }
}

/// The header of a connection of the proxy's own, such as a probe.
pub fn own_header(version: Version) -> &'static [u8] {
    match version {
        Version::V1 => b"PROXY UNKNOWN\r\n",
        Version::V2 => b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    }
}

fn write_line(out: &mut Vec<u8>, addresses: Option<(SocketAddr, SocketAddr)>) {
    let Some((source, destination)) = addresses else {
        out.extend_from_slice(own_header(Version::V1));
        return;
    };
    let (source_port, destination_port) = (source.port(), destination.port());
    let (source, destination) = (source.ip().to_canonical(), destination.ip().to_canonical());
    let line = if source.is_ipv4() && destination.is_ipv4() {
        format!("PROXY TCP4 {source} {destination} {source_port} {destination_port}\r\n")
    } else {
        let (source, destination) = (mapped(source), mapped(destination));
        format!("PROXY TCP6 {source} {destination} {source_port} {destination_port}\r\n")
    };
    out.extend_from_slice(line.as_bytes());
}

fn write_binary(out: &mut Vec<u8>, connection: &Connection<'_>) {
    let start = out.len();
    out.extend_from_slice(SIGNATURE);
    let pair = connection.addresses.map(Pair::of);
    let family = match pair {
        None => 0x00,
        Some(Pair::V4(_)) => 0x11,
        Some(Pair::V6(_)) => 0x21,
    };
    // The length is put in place at the end.
    out.extend_from_slice(&[0x21, family, 0, 0]);
    match pair {
        None => {}
        Some(Pair::V4(octets)) => out.extend_from_slice(&octets),
        Some(Pair::V6(pair)) => pair
            .iter()
            .for_each(|address| out.extend_from_slice(&address.octets())),
    }
    if let Some((source, destination)) = connection.addresses {
        out.extend_from_slice(&source.port().to_be_bytes());
        out.extend_from_slice(&destination.port().to_be_bytes());
    }
    let extensions = &connection.extensions;
    write_tlv(out, types::ALPN, extensions.alpn, MAX_VALUE_LEN);
    write_tlv(out, types::AUTHORITY, extensions.authority, MAX_VALUE_LEN);
    write_tlv(
        out,
        types::UNIQUE_ID,
        extensions.unique_id,
        MAX_UNIQUE_ID_LEN,
    );
    if let Some(ssl) = &extensions.ssl {
        write_ssl(out, ssl);
    }
    let empty = [0; CHECKSUM_LEN];
    write_tlv(out, types::CRC32C, Some(&empty), CHECKSUM_LEN);
    let header = &mut out[start..];
    put_len(&mut header[FIXED_LEN - LEN_LEN..]);
    let at = header.len() - CHECKSUM_LEN;
    let checksum = tlv::checksum(header, at);
    header[at..].copy_from_slice(&checksum);
}

fn write_ssl(out: &mut Vec<u8>, ssl: &Ssl<'_>) {
    let start = out.len();
    out.extend_from_slice(&[types::SSL, 0, 0, ssl.client]);
    out.extend_from_slice(&ssl.verify.to_be_bytes());
    for (kind, value) in [
        (types::SSL_VERSION, ssl.version),
        (types::SSL_COMMON_NAME, ssl.common_name),
        (types::SSL_CIPHER, ssl.cipher),
        (types::SSL_SIGNATURE_ALGORITHM, ssl.signature_algorithm),
        (types::SSL_KEY_ALGORITHM, ssl.key_algorithm),
    ] {
        write_tlv(out, kind, value, MAX_VALUE_LEN);
    }
    put_len(&mut out[start + TLV_HEAD_LEN - LEN_LEN..]);
}

fn write_tlv(out: &mut Vec<u8>, kind: u8, value: Option<&[u8]>, max: usize) {
    if let Some(value) = value.filter(|it| it.len() <= max) {
        let [high, low] = (value.len() as u16).to_be_bytes();
        out.extend_from_slice(&[kind, high, low]);
        out.extend_from_slice(value);
    }
}

/// Writes the length of the rest of `field` to its front.
fn put_len(field: &mut [u8]) {
    let len = field.len() - LEN_LEN;
    field[..LEN_LEN].copy_from_slice(&(len as u16).to_be_bytes());
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl Pair {
    fn of((source, destination): (SocketAddr, SocketAddr)) -> Self {
        match (source.ip().to_canonical(), destination.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let [a, b, c, d] = source.octets();
                let [e, f, g, h] = destination.octets();
                Pair::V4([a, b, c, d, e, f, g, h])
            }
            (source, destination) => Pair::V6([mapped(source), mapped(destination)]),
        }
    }
}
