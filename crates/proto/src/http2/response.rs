//! A response's head: as a block of fields (RFC 9113 §8.3.2), and read from one.

mod read;

use super::fields::push_fields;
use crate::hpack::encode;

pub use read::{ResponseFault, read_response};

/// The parts of a head's text that its sender needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Whether its body comes in chunks.
    pub is_chunked: bool,
}

/// Appends the block of a head that is text of HTTP/1, as it was read or written here.
/// Fields that are about a connection have no place in HTTP/2, and are left out
/// (RFC 9113 §8.2.2).
pub fn head_block(out: &mut Vec<u8>, text: &[u8]) -> Head {
    let status = status_of(text);
    encode::status(out, status);
    let is_chunked = push_fields(out, fields_of(text), |_, _| false);
    Head { status, is_chunked }
}

/// The same for an answer to an extended CONNECT; its text is that of HTTP/1. A 101 opens the
/// tunnel. Any other success does not, and must not pass for a 101.
pub fn tunnel_block(out: &mut Vec<u8>, text: &[u8]) -> Head {
    let status = match status_of(text) {
        101 => 200,
        200..300 => 502,
        status => status,
    };
    encode::status(out, status);
    let is_accept = |_, name: &[u8]| name.eq_ignore_ascii_case(ACCEPT);
    let is_chunked = push_fields(out, fields_of(text), is_accept);
    Head { status, is_chunked }
}

/// The field that only HTTP/1 has in the answer to a handshake (RFC 8441 §5).
const ACCEPT: &[u8] = b"sec-websocket-accept";

fn fields_of(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').skip(1)
}

fn status_of(text: &[u8]) -> u16 {
    let digits = text.get(STATUS_AT..STATUS_AT + 3).unwrap_or_default();
    let digit = |status: u16, byte: &u8| status * 10 + u16::from(byte.wrapping_sub(b'0') % 10);
    digits.iter().fold(0, digit)
}

/// Appends the block of trailers that are lines of HTTP/1.
pub fn trailer_block(out: &mut Vec<u8>, lines: &[u8]) {
    push_fields(out, lines.split(|&byte| byte == b'\n'), |_, _| false);
}

/// The place of the status in the first line.
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
        let head = head_block(&mut block, text);
        assert_eq!((head.status, head.is_chunked), (204, true));
        assert_eq!(
            decoded(&block),
            ":status: 204\r\ndate: now\r\nx-a: b\r\nset-cookie: a=b; c\r\nset-cookie: d\r\n\
             x-empty: \r\n"
        );
    }

    #[test]
    fn a_tunnel_is_opened_by_its_own_status_alone() {
        for (status, expected) in [(101, 200), (200, 502), (204, 502), (403, 403), (302, 302)] {
            let text = format!(
                "HTTP/1.1 {status} X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\
                 Sec-WebSocket-Protocol: a\r\n\r\n"
            );
            let mut block = Vec::new();
            assert_eq!(tunnel_block(&mut block, text.as_bytes()).status, expected);
            let expected = format!(":status: {expected}\r\nsec-websocket-protocol: a\r\n");
            assert_eq!(decoded(&block), expected);
        }
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
            let is_chunked = false;
            let head = head_block(&mut block, text.as_bytes());
            assert_eq!(head, Head { status, is_chunked });
            assert_eq!(decoded(&block), format!(":status: {status}\r\n"));
        }
    }
}
