//! gRPC-Web to gRPC and back ("PROTOCOL-WEB" of the gRPC project): trailers stand at the end
//! of the body, and bodies may be base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_proto::grpc::Dialect;
use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::http2::client::Connection;
use evenkeel_proto::http2::{Direction, StreamId};
use evenkeel_proto::{BodyError, BodyFraming};

/// Content that is encoded at once, in bytes; a multiple of three.
const PART_LEN: usize = 12 * 1024;

/// The flag of a part of a body that has the trailers.
const TRAILERS: u8 = 0x80;

/// The treatment of the length in a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Kept,
    Dropped,
}

/// Appends the text of a head, translated from one side's dialect to the other's.
pub(super) fn translate_head(
    out: &mut Vec<u8>,
    text: &[u8],
    from: Dialect,
    to: Dialect,
    length: Length,
) {
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let colon = memchr::memchr(b':', line).unwrap_or(0);
        let (name, value) = (&line[..colon], line[colon..].get(1..).unwrap_or_default());
        if name.eq_ignore_ascii_case(b"content-type") {
            let value = value.trim_ascii();
            if Dialect::of(value) == Some(from) {
                out.extend_from_slice(b"content-type: ");
                out.extend_from_slice(to.name());
                out.extend_from_slice(&value[from.name().len()..]);
                out.extend_from_slice(b"\r\n");
                continue;
            }
        }
        let is_length = name.eq_ignore_ascii_case(b"content-length");
        if is_length && length == Length::Dropped {
            continue;
        }
        if to != Dialect::Grpc && name.eq_ignore_ascii_case(b"trailer") {
            // The trailers stand in the body.
            continue;
        }
        out.extend_from_slice(line);
    }
}

/// How far the body of a response was read, as chunks of HTTP/1.
#[derive(Debug)]
pub(super) struct WebReading {
    dialect: Dialect,
    /// Translated bytes, the first of which were read.
    out: Vec<u8>,
    read: usize,
    is_over: bool,
}

impl WebReading {
    pub fn new(dialect: Dialect) -> Self {
        WebReading {
            dialect,
            out: Vec::new(),
            read: 0,
            is_over: false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn has_more(&self) -> bool {
        self.read < self.out.len()
    }

    /// Reads the available bytes into `room`: how many.
    pub fn read(&mut self, protocol: &mut Connection, id: StreamId, room: &mut [u8]) -> usize {
        let mut at = 0;
        while at < room.len() && (self.has_more() || self.fill(protocol, id)) {
            let unread = &self.out[self.read..];
            let len = unread.len().min(room.len() - at);
            room[at..at + len].copy_from_slice(&unread[..len]);
            self.read += len;
            at += len;
        }
        at
    }

    /// Makes the next chunk. `false` while there is none.
    fn fill(&mut self, protocol: &mut Connection, id: StreamId) -> bool {
        self.out.clear();
        self.read = 0;
        let len = protocol.readable_len(id).min(PART_LEN);
        if len > 0 {
            let mut part = vec![0; len];
            let len = protocol.read_content(id, &mut part);
            self.push_chunk(&part[..len]);
            return true;
        }
        match protocol.incoming(id) {
            Some((Direction::Ended, trailers)) if !self.is_over => {
                self.is_over = true;
                let mut part = vec![TRAILERS];
                part.extend((trailers.len() as u32).to_be_bytes());
                part.extend_from_slice(trailers);
                self.push_chunk(&part);
                self.out.extend_from_slice(b"0\r\n\r\n");
                true
            }
            _ => false,
        }
    }

    fn push_chunk(&mut self, part: &[u8]) {
        let encoded;
        let part = if self.dialect == Dialect::WebText {
            encoded = STANDARD.encode(part);
            encoded.as_bytes()
        } else {
            part
        };
        self.out
            .extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        self.out.extend_from_slice(part);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// How far the body of a request in base64 was written.
#[derive(Debug)]
pub(super) struct TextWriting {
    decoder: BodyDecoder,
    /// The beginning of four characters.
    rest: Vec<u8>,
    /// Decoded bytes that are still to be sent.
    pending: Vec<u8>,
    sent: usize,
    /// Bytes that were taken and are written once more.
    kept_back: usize,
}

impl TextWriting {
    pub fn new(framing: BodyFraming) -> Self {
        TextWriting {
            decoder: BodyDecoder::new(framing),
            rest: Vec::new(),
            pending: Vec::new(),
            sent: 0,
            kept_back: 0,
        }
    }

    /// Sends pending bytes. Whether all of them were sent.
    pub fn flush(&mut self, protocol: &mut Connection, id: StreamId, room: usize) -> bool {
        let ends = self.decoder.is_done();
        let unsent = &self.pending[self.sent..];
        if !unsent.is_empty() || ends {
            self.sent += protocol.send_content(id, unsent, ends, room);
        }
        if self.sent < self.pending.len() {
            return false;
        }
        self.pending.clear();
        self.sent = 0;
        true
    }

    /// Takes bytes as HTTP/1 frames them: how many. Their content is to be [sent](Self::flush).
    ///
    /// # Errors
    /// The framing is malformed, or the content is no base64.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let known = std::mem::take(&mut self.kept_back);
        let mut content = bytes[known..].to_vec();
        let advance = self.decoder.strip(&mut content)?;
        self.rest.extend_from_slice(&content[..advance.kept]);
        let whole = self.rest.len() / 4 * 4;
        for part in self.rest[..whole].chunks(4) {
            // Each part may end in padding: they were encoded one by one.
            let decoded = STANDARD.decode(part).map_err(|_| BodyError::Base64)?;
            self.pending.extend(decoded);
        }
        self.rest.drain(..whole);
        if self.decoder.is_done() && !self.rest.is_empty() {
            return Err(BodyError::Base64);
        }
        Ok(known + advance.consumed)
    }

    /// Some of the `taken` bytes could not be sent. Gives how many are reported as taken, so that
    /// the writer comes again.
    pub fn keep_back_one(&mut self, taken: usize) -> usize {
        self.kept_back = taken.min(1);
        taken - self.kept_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_translated() {
        let text =
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc-web-text+proto\r\n\
            Content-Length: 8\r\nX-A: b\r\n\r\n";
        let mut out = Vec::new();
        translate_head(
            &mut out,
            text,
            Dialect::WebText,
            Dialect::Grpc,
            Length::Dropped,
        );
        let expected = "POST /a HTTP/1.1\r\nHost: a\r\ncontent-type: application/grpc+proto\r\n\
            X-A: b\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let text = b"HTTP/1.1 200 \r\ncontent-type: application/grpc\r\n\
            trailer: grpc-status\r\n\r\n";
        let mut out = Vec::new();
        translate_head(&mut out, text, Dialect::Grpc, Dialect::Web, Length::Kept);
        assert_eq!(
            out,
            b"HTTP/1.1 200 \r\ncontent-type: application/grpc-web\r\n\r\n"
        );
    }

    #[test]
    fn base64_is_decoded_however_it_is_cut() {
        let encoded = [STANDARD.encode("first"), STANDARD.encode("second!")].concat();
        for cut in 0..encoded.len() {
            let mut writing = TextWriting::new(BodyFraming::Length {
                bytes: encoded.len() as u64,
            });
            let (begin, end) = encoded.as_bytes().split_at(cut);
            assert_eq!(writing.take(begin).unwrap(), begin.len());
            assert_eq!(writing.take(end).unwrap(), end.len());
            assert_eq!(writing.pending, b"firstsecond!", "{cut}");
        }
        let mut writing = TextWriting::new(BodyFraming::Length { bytes: 4 });
        assert!(writing.take(b"a*b=").is_err());
    }
}
