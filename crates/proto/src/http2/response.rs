//! A response's head: as a block of fields (RFC 9113 §8.3.2), and read from one.

mod read;

use super::fields::push_fields;
use crate::hpack::encode;

pub use read::{ResponseFault, read_response};

/// Appends the block of a head that is text of HTTP/1, as it was read or written here. Gives
/// its status. Fields that are about a connection have no place in HTTP/2, and are left out
/// (RFC 9113 §8.2.2).
pub fn head_block(out: &mut Vec<u8>, text: &[u8]) -> u16 {
    let mut lines = text.split(|&byte| byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let digits = line.get(STATUS_AT..STATUS_AT + 3).unwrap_or_default();
    let digit = |status: u16, byte: &u8| status * 10 + u16::from(byte.wrapping_sub(b'0') % 10);
    let status = digits.iter().fold(0, digit);
    encode::status(out, status);
    push_fields(out, lines, |_, _| false);
    status
}

/// Appends the block of trailers that are lines of HTTP/1.
pub fn trailer_block(out: &mut Vec<u8>, lines: &[u8]) {
    push_fields(out, lines.split(|&byte| byte == b'\n'), |_, _| false);
}

/// Where the status stands in the first line.
const STATUS_AT: usize = b"HTTP/1.1 ".len();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::Decoder;

    fn decoded(block: &[u8]) -> String {
        let mut decoder = Decoder::default();
        let mut block = decoder.block(block);
        let mut text = Vec::new();
        while block.next(&mut text).unwrap().is_some() {}
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_head_loses_what_is_about_its_connection() {
        let text =
            b"HTTP/1.1 204 No Content\r\nDate: now\r\nConnection: close, x-a\r\nX-A:  b \r\n\
            Keep-Alive: timeout=3\r\nTransfer-Encoding: chunked\r\nUpgrade: h2c\r\n\
            Proxy-Connection: close\r\nSet-Cookie: a=b; c\r\nset-cookie:d\r\nX-Empty:\r\n\r\n";
        let mut block = Vec::new();
        assert_eq!(head_block(&mut block, text), 204);
        assert_eq!(
            decoded(&block),
            ":status: 204\r\ndate: now\r\nx-a: b\r\nset-cookie: a=b; c\r\nset-cookie: d\r\n\
             x-empty: \r\n"
        );
    }

    #[test]
    fn trailers_are_fields() {
        let mut block = Vec::new();
        trailer_block(&mut block, b"grpc-status: 0\r\nX-Sum: 1:2\r\n");
        assert_eq!(decoded(&block), "grpc-status: 0\r\nx-sum: 1:2\r\n");
    }

    #[test]
    fn statuses_are_those_of_the_text() {
        for status in [100, 103, 200, 206, 404, 418, 500, 503, 999] {
            let text = format!("HTTP/1.1 {status} Whatever\r\n\r\n");
            let mut block = Vec::new();
            assert_eq!(head_block(&mut block, text.as_bytes()), status);
            assert_eq!(decoded(&block), format!(":status: {status}\r\n"));
        }
    }
}
