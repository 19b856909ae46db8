//! The request's body, as the upstream's side takes it from the client's.

use evenkeel_proto::RequestHead;
use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::http1::write::Transcode;

use super::body::{BodySink, BodySource, TAILROOM};
use super::pump::Pump;
use crate::net::buffer::Buffer;

/// The body of a request, as far as it was read before the first attempt. Each attempt starts
/// from it.
#[derive(Debug)]
pub(super) struct RequestBody<'a> {
    pub head: &'a RequestHead,
    /// Begins with the head.
    pub bytes: &'a [u8],
    /// Length of the head, and of the valid part of the body that was read with it.
    pub valid_len: usize,
    /// The decoder, at the end of the valid bytes.
    pub decoder: BodyDecoder,
    /// The server name that a TCP client asks for (SNI); may be empty.
    pub server_name: Option<&'a [u8]>,
}

impl RequestBody<'_> {
    /// Whether the body was read with the head.
    pub fn is_whole(&self) -> bool {
        self.decoder.is_done()
    }

    /// Whether bytes of the client's next request were read with it.
    pub fn is_followed(&self) -> bool {
        self.is_whole() && self.bytes.len() > self.valid_len
    }

    /// Bytes of the client's buffer that belong to the request. Bytes after a whole request are
    /// another's. The bytes of an incomplete one go to the pump.
    pub fn consumed(&self) -> usize {
        if self.is_whole() {
            self.valid_len
        } else {
            self.bytes.len()
        }
    }

    /// The rest of the request: the bytes that the endpoint did not accept at once, and those
    /// still to come. Refuses a chunked body with more content than `limit_bytes`.
    pub fn rest(&self, unsent: &[u8], limit_bytes: Option<u64>) -> Pump {
        let undecoded = if self.is_whole() {
            &[][..]
        } else {
            &self.bytes[self.valid_len..]
        };
        let len = unsent.len() + undecoded.len();
        let buffer = (len > 0).then(|| {
            let mut buffer = Buffer::with_capacity(len + 2 * TAILROOM);
            let fits = buffer.append(unsent) && buffer.append(undecoded);
            debug_assert!(fits, "the buffer was made for them");
            buffer
        });
        let source = BodySource::http1(self.decoder.clone()).with_limit(limit_bytes);
        // The client's bytes are forwarded unchanged.
        let sink = BodySink::http1(Transcode::Raw);
        let pump = Pump::new(source, sink, buffer, unsent.len());
        match self.head.wire.upgrade {
            // A tunnel may begin before the body ends, and continues from there.
            Some(_) => pump.copied(),
            None => pump,
        }
    }
}
