//! TLVs of version 2: a proxy's statements on a connection beside its
//! addresses.

use super::Malformed;

/// Longest unique id, in bytes.
pub const MAX_UNIQUE_ID_LEN: usize = 128;

/// Type and length of a TLV, in bytes.
pub(super) const TLV_HEAD_LEN: usize = 3;
/// The flags of a client and the result of its verification, in bytes.
const SSL_FIXED_LEN: usize = 5;
/// Length of a checksum, in bytes.
pub(super) const CHECKSUM_LEN: usize = 4;

/// The types of TLVs (`PP2_TYPE_*`).
pub(super) mod types {
    pub const ALPN: u8 = 0x01;
    pub const AUTHORITY: u8 = 0x02;
    pub const CRC32C: u8 = 0x03;
    pub const UNIQUE_ID: u8 = 0x05;
    pub const SSL: u8 = 0x20;
    // Within `SSL`.
    pub const SSL_VERSION: u8 = 0x21;
    pub const SSL_COMMON_NAME: u8 = 0x22;
    pub const SSL_CIPHER: u8 = 0x23;
    pub const SSL_SIGNATURE_ALGORITHM: u8 = 0x24;
    pub const SSL_KEY_ALGORITHM: u8 = 0x25;
}

/// The TLVs of a header. Of several with the same type the last counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// The protocol that client and proxy agreed on, as ALPN names it.
    pub alpn: Option<&'a [u8]>,
    /// The host that the client asked for.
    pub authority: Option<&'a [u8]>,
    /// The proxy's name for the connection: at most [`MAX_UNIQUE_ID_LEN`]
    /// bytes.
    pub unique_id: Option<&'a [u8]>,
    /// The client's TLS.
    pub ssl: Option<Ssl<'a>>,
}

/// The TLS between a client and its proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ssl<'a> {
    /// Flags: [`Ssl::ENCRYPTED`], and two about the client's certificate.
    pub client: u8,
    /// 0 where the client's certificate was verified.
    pub verify: u32,
    /// The version of TLS, as in `TLSv1.3`.
    pub version: Option<&'a [u8]>,
    /// Common name of the client's certificate.
    pub common_name: Option<&'a [u8]>,
    /// The cipher.
    pub cipher: Option<&'a [u8]>,
    /// The algorithm that signed the proxy's certificate.
    pub signature_algorithm: Option<&'a [u8]>,
    /// The algorithm of the key of the proxy's certificate.
    pub key_algorithm: Option<&'a [u8]>,
}

impl Ssl<'_> {
    /// The client connected over TLS (`PP2_CLIENT_SSL`).
    pub const ENCRYPTED: u8 = 1;

    /// Whether the client connected over TLS.
    pub fn is_encrypted(&self) -> bool {
        self.client & Ssl::ENCRYPTED != 0
    }
}

/// A type and its value.
type Tlv<'a> = (u8, &'a [u8]);

/// TLVs one after the other; an error where one does not fit.
struct Tlvs<'a>(&'a [u8]);

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<Tlv<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let Some((&[kind, high, low], rest)) = rest.split_first_chunk() else {
            return Some(Err(Malformed));
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        let Some((value, rest)) = rest.split_at_checked(len) else {
            return Some(Err(Malformed));
        };
        self.0 = rest;
        Some(Ok((kind, value)))
    }
}

/// Reads the TLVs of a whole header, which begin at `start`.
///
/// # Errors
/// [`Malformed`]: a length lies, or the checksum is another one.
pub(super) fn read(header: &[u8], start: usize) -> Result<Extensions<'_>, Malformed> {
    let mut extensions = Extensions::default();
    let mut has_checksum = false;
    let mut at = start;
    for tlv in Tlvs(&header[start..]) {
        let (kind, value) = tlv?;
        at += TLV_HEAD_LEN;
        match kind {
            types::ALPN => extensions.alpn = Some(value),
            types::AUTHORITY => extensions.authority = Some(value),
            types::UNIQUE_ID if value.len() > MAX_UNIQUE_ID_LEN => return Err(Malformed),
            types::UNIQUE_ID => extensions.unique_id = Some(value),
            types::SSL => extensions.ssl = Some(read_ssl(value)?),
            types::CRC32C => {
                let is_second = std::mem::replace(&mut has_checksum, true);
                if is_second || value != checksum(header, at) {
                    return Err(Malformed);
                }
            }
            _ => {}
        }
        at += value.len();
    }
    Ok(extensions)
}

fn read_ssl(value: &[u8]) -> Result<Ssl<'_>, Malformed> {
    let (fixed, rest) = value
        .split_first_chunk::<SSL_FIXED_LEN>()
        .ok_or(Malformed)?;
    let [client, verify @ ..] = *fixed;
    let mut ssl = Ssl {
        client,
        verify: u32::from_be_bytes(verify),
        ..Ssl::default()
    };
    for tlv in Tlvs(rest) {
        let (kind, value) = tlv?;
        let part = match kind {
            types::SSL_VERSION => &mut ssl.version,
            types::SSL_COMMON_NAME => &mut ssl.common_name,
            types::SSL_CIPHER => &mut ssl.cipher,
            types::SSL_SIGNATURE_ALGORITHM => &mut ssl.signature_algorithm,
            types::SSL_KEY_ALGORITHM => &mut ssl.key_algorithm,
            _ => continue,
        };
        *part = Some(value);
    }
    Ok(ssl)
}

/// The checksum of a header whose own checksum stands at `at`: that counts as zeros.
pub(super) fn checksum(header: &[u8], at: usize) -> [u8; CHECKSUM_LEN] {
    let (before, rest) = header.split_at(at);
    let behind = rest.get(CHECKSUM_LEN..).unwrap_or_default();
    let crc = [before, &[0; CHECKSUM_LEN], behind]
        .iter()
        .fold(u32::MAX, |crc, bytes| add_to_crc32c(crc, bytes));
    (!crc).to_be_bytes()
}

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) without the inversions at both ends.
/// A byte at a time: a header has a hundred.
fn add_to_crc32c(crc: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < table.len() {
            let mut crc = index as u32;
            let mut bit = 0;
            while bit < 8 {
                let is_odd = crc & 1 == 1;
                crc >>= 1;
                if is_odd {
                    crc ^= 0x82F6_3B78;
                }
                bit += 1;
            }
            table[index] = crc;
            index += 1;
        }
        table
    };
    let add = |crc: u32, byte: &u8| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    bytes.iter().fold(crc, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 appendix B.4.
    #[test]
    fn crc32c() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (bytes, expected) in [
            (&[0; 32][..], 0x8A91_36AA),
            (&[0xFF; 32], 0x62A8_AB43),
            (&ascending, 0x46DD_794E),
            (&descending, 0x113F_DB5C),
            (b"123456789", 0xE306_9283),
        ] {
            assert_eq!(!add_to_crc32c(u32::MAX, bytes), expected);
        }
    }

    #[test]
    fn tlvs_that_do_not_fit() {
        for bytes in [
            &[0x04][..],
            &[0x04, 0],
            &[0x04, 0, 1],
            &[0x04, 0xFF, 0xFF, 0],
            &[0x04, 0, 0, 0x04],
            // TLS: cut short, and a part that goes beyond it.
            &[0x20, 0, 4, 1, 0, 0, 0],
            &[0x20, 0, 9, 1, 0, 0, 0, 0, 0x21, 0, 2, b'x'],
            &[0x20, 0, 6, 1, 0, 0, 0, 0, 0x21],
            // Checksums of another length.
            &[0x03, 0, 0],
            &[0x03, 0, 5, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(read(bytes, 0), Err(Malformed), "{bytes:?}");
        }
        let id = [&[0x05, 0, 129][..], &[b'x'; 129]].concat();
        assert_eq!(read(&id, 0), Err(Malformed));
        assert!(read(&[&[0x05, 0, 128][..], &[b'x'; 128]].concat(), 0).is_ok());
    }

    #[test]
    fn unknown_ones_are_skipped() {
        let bytes = [
            0xE0, 0, 2, 1, 2, 0x30, 0, 0, 0x01, 0, 2, b'h', b'2', 0x04, 0, 1, 0,
        ];
        let extensions = read(&bytes, 0).unwrap();
        assert_eq!(extensions.alpn, Some(&b"h2"[..]));
    }
}
