//! Frames and blocks of fields as bytes, whatever they say.

use super::flags;

/// Kinds of frames (RFC 9113 §6).
pub mod kind {
    /// Content.
    pub const DATA: u8 = 0;
    /// The head of a message, or its trailers.
    pub const HEADERS: u8 = 1;
    /// Priorities, as RFC 7540 had them.
    pub const PRIORITY: u8 = 2;
    /// The end of a stream.
    pub const RST_STREAM: u8 = 3;
    /// The limits of a peer.
    pub const SETTINGS: u8 = 4;
    /// A pushed response, which the client has not requested.
    pub const PUSH_PROMISE: u8 = 5;
    /// Whether the peer is there.
    pub const PING: u8 = 6;
    /// No new streams.
    pub const GOAWAY: u8 = 7;
    /// More bytes may be sent.
    pub const WINDOW_UPDATE: u8 = 8;
    /// More of a block of fields.
    pub const CONTINUATION: u8 = 9;
    /// The priority of a stream (RFC 9218 §7.1).
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Numbers of settings (RFC 9113 §6.5.2).
pub mod setting {
    /// Bytes of the table that the sender's decoder has.
    pub const HEADER_TABLE_SIZE: u16 = 1;
    /// Whether the sender takes PUSH_PROMISE.
    pub const ENABLE_PUSH: u16 = 2;
    /// Streams that the other side may have open.
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    /// The window of a new stream, in bytes.
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    /// The longest payload, in bytes.
    pub const MAX_FRAME_SIZE: u16 = 5;
    /// The largest head, with 32 bytes for each field.
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
    /// Whether CONNECT may name a protocol.
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
}

/// The longest payload that every peer takes.
pub const PAYLOAD_MAX: usize = 16_384;

/// Whether a frame ends its side of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// It does.
    Now,
    /// More follows.
    Later,
}

impl Ends {
    pub(super) fn flag(self) -> u8 {
        match self {
            Ends::Now => flags::END_STREAM,
            Ends::Later => 0,
        }
    }
}

/// A frame as bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![a, b, c, kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload of SETTINGS.
pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let bytes = settings.iter().flat_map(|(number, value)| {
        let number = number.to_be_bytes().into_iter();
        number.chain(value.to_be_bytes())
    });
    bytes.collect()
}

/// A block of fields as frames: HEADERS, and CONTINUATION where it is long.
pub fn headers(stream: u32, block: &[u8], ends: Ends) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut rest, mut kind, mut own) = (block, kind::HEADERS, ends.flag());
    loop {
        let (part, behind) = rest.split_at(rest.len().min(PAYLOAD_MAX));
        let last = if behind.is_empty() {
            flags::END_HEADERS
        } else {
            0
        };
        bytes.extend(frame(kind, own | last, stream, part));
        if behind.is_empty() {
            return bytes;
        }
        (rest, kind, own) = (behind, kind::CONTINUATION, 0);
    }
}

/// Fields as literals without Huffman coding, which enter no table (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    literals(0, fields)
}

/// Fields as literals that enter the peer's table (RFC 7541 §6.2.1). Afterwards the last one
/// has number 62.
pub fn block_indexed(fields: &[(&str, &str)]) -> Vec<u8> {
    literals(0x40, fields)
}

fn literals(first: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(first);
        for text in [name, value] {
            number(text.len(), &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A length of seven bits, and more where they are needed (RFC 7541 §5.1).
fn number(number: usize, out: &mut Vec<u8>) {
    let Some(mut rest) = number.checked_sub(0x7f) else {
        out.push(number as u8);
        return;
    };
    out.push(0x7f);
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_bytes_they_need() {
        for (len, expected) in [
            (0, &[0][..]),
            (126, &[126]),
            (127, &[127, 0]),
            (254, &[127, 127]),
            (255, &[127, 0x80, 1]),
            (20_000, &[127, 0xa1, 0x9b, 1]),
        ] {
            let mut bytes = Vec::new();
            number(len, &mut bytes);
            assert_eq!(bytes, expected, "{len}");
        }
    }
}
