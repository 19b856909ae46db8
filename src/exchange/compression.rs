//! Content codings for an upstream's responses, on their way to the client.
//!
//! The route says which responses may be coded; the response's head and the request decide. The
//! body then goes through a [`CodedBody`] piece by piece. It holds no more than its encoder does.
//! Per worker.
//!
//! ```text
//! head ─▶ not for a coding ────────────────▶ as it is
//!   │     for one, but not this client's ──▶ as it is, with `Vary`
//!   └───▶ for this client's ───────────────▶ coded, with `Vary`, `Content-Encoding` and
//!                                            a weak `ETag`
//! ```
//!
//! A cache stores the response without our coding. Each client's response is coded on its way.

use std::sync::Arc;

use evenkeel_proto::coding::Coding;
use evenkeel_proto::http1::recode::{CodedEnd, Recoding, recode_head};
use evenkeel_proto::representation::{Codable, Conditions};
use evenkeel_proto::{Method, RequestHead, Version};

use super::Exchange;
use super::context::Context;
use super::encoder::{Encoder, level};
use crate::config::{CodedRequests, ResponseCompression};
use crate::metrics::Counter;
use crate::observe::counters::CompressionCounters;
use crate::upstream::Upstream;

pub(crate) use super::encoder::EncoderFailed;

/// Most bytes that an encoder takes at once; other connections have a turn after it.
pub(crate) const SLICE_LEN: usize = 32 * 1024;

/// Least length of encoded output, in bytes, for a chunk of its own.
const CHUNK_MIN: usize = 4 * 1024;

/// The decision on a response, from its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Unchanged.
    AsItIs,
    /// Only the head changes.
    Head(Recoding),
    /// The body gets this coding.
    Body(Coding),
}

impl Decision {
    /// The body's coding, if it gets one.
    pub fn coding(self) -> Option<Coding> {
        match self {
            Decision::Body(coding) => Some(coding),
            Decision::AsItIs | Decision::Head(_) => None,
        }
    }

    /// The changes of the head for a client that speaks `version`.
    pub fn recoding(self, version: Version) -> Option<Recoding> {
        match self {
            Decision::AsItIs => None,
            Decision::Head(recoding) => Some(recoding),
            Decision::Body(coding) => Some(Recoding::Coded {
                coding,
                end: coded_end(version),
            }),
        }
    }
}

/// The end of a coded body for a client that speaks `version`.
fn coded_end(version: Version) -> CodedEnd {
    if version.knows_chunks() {
        CodedEnd::Chunks
    } else {
        CodedEnd::Connection
    }
}

/// A response, as far as the decision needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseFacts<'r> {
    /// Its status.
    pub status: u16,
    /// Its fields.
    pub fields: Codable<'r>,
    /// The length of its body, where that is known apart from its fields.
    pub len: Option<u64>,
}

impl<'a> Exchange<'a> {
    /// The route's settings for compression, if it has any and the response goes to a client.
    pub(crate) fn compression(&self) -> Option<&'a ResponseCompression> {
        let compression = self.route()?.compression.as_deref()?;
        (!self.side.is_store()).then_some(compression)
    }

    /// Whether the route refuses a request with a coded body.
    pub(crate) fn has_refused_coding(&self) -> bool {
        let coded = self.route().map(|it| it.coded_requests);
        coded == Some(CodedRequests::Refuse) && is_coded(self.head, self.bytes)
    }

    /// Decides on a response.
    #[cold]
    pub(crate) fn decide_coding(
        &self,
        settings: &ResponseCompression,
        response: ResponseFacts<'_>,
    ) -> Decision {
        let conditions = Conditions::of(self.head, self.bytes);
        if response.status == 304 {
            return self.decide_unmodified(settings, &conditions, response.fields);
        }
        if response.status == 206 && response.fields.is_of(&settings.types) {
            // A part is never coded, but a request for the whole body might get a coding.
            return Decision::Head(Recoding::Negotiated);
        }
        let (types, min) = (&settings.types, settings.min_bytes);
        let ResponseFacts {
            status,
            fields,
            len,
        } = response;
        if !fields.gains(status, types, min, len) {
            return Decision::AsItIs;
        }
        let coding = conditions.coding(self.bytes, &settings.codings);
        let Some(coding) = coding.filter(|_| !self.is_too_busy(settings)) else {
            return Decision::Head(Recoding::Negotiated);
        };
        if self.head.method == Method::Head {
            let end = CodedEnd::Connection;
            return Decision::Head(Recoding::Coded { coding, end });
        }
        Decision::Body(coding)
    }

    /// For a 304: gives the entity tag that the client knows, a weak one if the body had a
    /// coding.
    fn decide_unmodified(
        &self,
        settings: &ResponseCompression,
        conditions: &Conditions,
        fields: Codable<'_>,
    ) -> Decision {
        if conditions.has_weak_form(self.bytes, fields.entity_tag) {
            Decision::Head(Recoding::Confirmed)
        } else if fields.is_of(&settings.types) || !fields.has_type() {
            Decision::Head(Recoding::Negotiated)
        } else {
            Decision::AsItIs
        }
    }

    /// Whether the upstream's queue, or the number of compressed responses, is above its limit in
    /// the settings.
    fn is_too_busy(&self, settings: &ResponseCompression) -> bool {
        let waiting: usize = self.upstreams_of_route().map(|it| it.waiting()).sum();
        let is_full = self.context.encoders.in_use() >= settings.at_once;
        let is_busy = is_full || waiting > settings.off_above_queue;
        if is_busy {
            self.count_compression(|it| &it.skipped);
        }
        is_busy
    }

    fn upstreams_of_route(&self) -> impl Iterator<Item = &'a Upstream> {
        let route = self.route().into_iter();
        let upstreams = route.flat_map(|it| it.action.upstreams());
        upstreams.map(|it| self.context.upstream(it))
    }

    fn compression_counters(&self) -> Option<&Arc<CompressionCounters>> {
        let route = self.progress.figures.route? as usize;
        let counters = &self.context.generation().counters;
        counters.compression[route].as_ref()
    }

    fn count_compression(&self, counter: impl Fn(&CompressionCounters) -> &Counter) {
        if let Some(counters) = self.compression_counters() {
            counter(counters).add(1);
        }
    }

    /// Starts a coded body for this exchange's client. `len` is the length of the plain body,
    /// where that is known; the body then has exactly this length.
    ///
    /// # Errors
    /// No memory for an encoder.
    pub(crate) fn coded_body(
        &self,
        coding: Coding,
        len: Option<u64>,
    ) -> Result<CodedBody<'a>, EncoderFailed> {
        let settings = self.compression().ok_or(EncoderFailed)?;
        let encoder = self.context.encoders.take(coding, settings, len)?;
        self.count_compression(|it| match coding {
            Coding::Gzip => &it.gzip,
            Coding::Brotli => &it.br,
            Coding::Zstd => &it.zstd,
        });
        Ok(CodedBody {
            context: self.context,
            encoder: Some(encoder),
            level: level(coding, settings),
            framing: coded_end(self.head.version),
            pending: Vec::new(),
            counters: self.compression_counters().cloned(),
        })
    }
}

/// The coding that a request prefers, among those of a route, for `explain`.
pub(crate) fn wanted_coding(
    settings: &ResponseCompression,
    head: &RequestHead,
    bytes: &[u8],
) -> Option<Coding> {
    Conditions::of(head, bytes).coding(bytes, &settings.codings)
}

/// Whether the body of a request has a content coding.
pub(crate) fn is_coded(head: &RequestHead, bytes: &[u8]) -> bool {
    let mut fields = head.fields.iter();
    fields.any(|it| {
        let value = it.value.of(bytes).trim_ascii();
        it.is_read_as(b"content-encoding", bytes)
            && !value.is_empty()
            && !value.eq_ignore_ascii_case(b"identity")
    })
}

/// Takes `head`, a whole head, and returns the head for the client.
pub(crate) fn recoded(head: &[u8], recoding: Recoding) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.len() + 128);
    recode_head(&mut out, head, recoding);
    out
}

/// A body that goes through an encoder, framed for the client.
#[derive(Debug)]
pub(crate) struct CodedBody<'c> {
    context: &'c Context,
    /// `None` once the encoder is idle again.
    encoder: Option<Encoder>,
    level: u32,
    framing: CodedEnd,
    /// Encoded bytes that are too few for a chunk.
    pending: Vec<u8>,
    counters: Option<Arc<CompressionCounters>>,
}

impl CodedBody<'_> {
    /// Whether the client still lacks bytes that were taken.
    pub fn is_holding(&self) -> bool {
        self.encoder.as_ref().is_some_and(Encoder::is_holding)
    }

    /// Takes a piece of the body, at most [`SLICE_LEN`] long. Appends the output to `out`.
    /// Returns the length of the piece.
    ///
    /// # Errors
    /// No memory: the body can't continue.
    pub fn take(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<usize, EncoderFailed> {
        let piece = &body[..body.len().min(SLICE_LEN)];
        if let Some(counters) = &self.counters {
            counters.in_bytes.add(piece.len() as u64);
        }
        let encoder = self.encoder.as_mut().ok_or(EncoderFailed)?;
        encoder.take(piece, &mut self.pending)?;
        if self.pending.len() >= CHUNK_MIN {
            self.push_chunk(out);
        }
        Ok(piece.len())
    }

    /// Appends the encoder's pending bytes to `out`.
    ///
    /// # Errors
    /// The same as for [`take`](Self::take).
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFailed> {
        let encoder = self.encoder.as_mut().ok_or(EncoderFailed)?;
        encoder.flush(&mut self.pending)?;
        self.push_chunk(out);
        Ok(())
    }

    /// Appends the end of the body to `out`.
    ///
    /// # Errors
    /// The same as for [`take`](Self::take).
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFailed> {
        let encoder = self.encoder.as_mut().ok_or(EncoderFailed)?;
        encoder.finish(&mut self.pending)?;
        self.push_chunk(out);
        if self.framing == CodedEnd::Chunks {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        Ok(())
    }

    /// Appends the pending output to `out`, as a chunk if the body is chunked.
    fn push_chunk(&mut self, out: &mut Vec<u8>) {
        let len = self.pending.len();
        if len == 0 {
            return;
        }
        if let Some(counters) = &self.counters {
            counters.out_bytes.add(len as u64);
        }
        if self.framing == CodedEnd::Chunks {
            out.extend_from_slice(format!("{len:x}\r\n").as_bytes());
        }
        out.append(&mut self.pending);
        if self.framing == CodedEnd::Chunks {
            out.extend_from_slice(b"\r\n");
        }
    }
}

impl Drop for CodedBody<'_> {
    fn drop(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            self.context.encoders.put(encoder, self.level);
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::http1::{Parsed, parse_request};

    use super::*;

    #[test]
    fn what_a_request_has_for_a_body() {
        for (line, expected) in [
            ("Accept-Encoding: gzip", false),
            ("Content-Encoding: gzip", true),
            ("content_encoding: gzip", true),
            ("Content-Encoding: identity", false),
            ("Content-Encoding: identity, br", true),
            ("Content-Encoding:", false),
            ("Content-Encoding: x", true),
        ] {
            let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").into_bytes();
            let mut head = RequestHead::default();
            assert_eq!(parse_request(&bytes, &mut head), Ok(Parsed::Complete));
            assert_eq!(is_coded(&head, &bytes), expected, "{line}");
        }
    }
}
