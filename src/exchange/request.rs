//! The request's body, as the upstream's side takes it from the client's.

use evenkeel_proto::RequestHead;
use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::http1::write::Transcode;

use super::body::{BodySink, BodySource, TAILROOM};
use super::pump::Pump;
use crate::net::buffer::Buffer;

/// The body of a request, as far as it was read before the first attempt: where an
/// attempt takes it from.
#[derive(Debug)]
pub(super) struct RequestBody<'a> {
    pub head: &'a RequestHead,
    /// Begins with the head.
    pub bytes: &'a [u8],
    /// Length of the head and of that part of the body which was read with it
    /// and is valid.
    pub valid_len: usize,
    /// Stands behind the valid bytes.
    pub decoder: BodyDecoder,
    /// Of a connection of TCP, the name that its client asks for (SNI); may be empty.
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

    /// Bytes of the client's buffer that are its own: what follows a whole one
    /// is another's, what is there of one that is not goes to the pump.
    pub fn consumed(&self) -> usize {
        if self.is_whole() {
            self.valid_len
        } else {
            self.bytes.len()
        }
    }

    /// The rest of the request: what the endpoint did not take at once, and
    /// what is still to come. A chunked body of more content than `limit_bytes` is
    /// refused.
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
        // What the client sent goes on as it is.
        let sink = BodySink::http1(Transcode::Raw);
        let pump = Pump::new(source, sink, buffer, unsent.len());
        match self.head.wire.upgrade {
            // A tunnel may begin before it ends, and goes on from there.
            Some(_) => pump.copied(),
            None => pump,
        }
    }
}
