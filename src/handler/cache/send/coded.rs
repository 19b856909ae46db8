//! Sends stored responses with a content coding, which they get on their way to each client.

use evenkeel_cache::object::FilePart;
use evenkeel_proto::coding::Coding;
use evenkeel_proto::http1::write::Persistence;
use evenkeel_proto::representation::Codable;

use super::{Framing, Sending, file_part, read_part};
use crate::exchange::answer::{self, put};
use crate::exchange::compression::{CodedBody, Decision, EncoderFailed, ResponseFacts, SLICE_LEN};
use crate::exchange::{Exchange, Next};
use crate::metrics::end::Failure;
use crate::net::stream::Follow;

/// Length of encoded output, in bytes, at which it is sent before more is encoded.
const OUT_MIN: usize = 16 * 1024;
/// Bytes of a file that are read at once.
const READ_LEN: u64 = 256 * 1024;

/// Decides whether a response with these fields gets a coding. `len` is the length of its body,
/// where that is known.
pub(super) fn decide<'r>(
    exchange: &Exchange<'_>,
    status: u16,
    fields: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    len: Option<u64>,
) -> Decision {
    let Some(settings) = exchange.compression() else {
        return Decision::AsItIs;
    };
    let fields = Codable::of(fields);
    let response = ResponseFacts {
        status,
        fields,
        len,
    };
    exchange.decide_coding(settings, response)
}

/// Whether the body ends with the client's connection.
fn ends_with_connection(exchange: &Exchange<'_>, decision: Decision) -> bool {
    decision.coding().is_some() && !exchange.head.version.knows_chunks()
}

/// The persistence of the client's connection after a stored response.
pub(super) fn persistence(exchange: &Exchange<'_>, decision: Decision) -> Persistence {
    if ends_with_connection(exchange, decision) {
        Persistence::Close
    } else {
        answer::persistence(exchange)
    }
}

/// The next state of the client's connection after a failed response.
pub(super) fn next_of_failed(exchange: &Exchange<'_>, decision: Decision) -> Next {
    if ends_with_connection(exchange, decision) {
        Next::Abort
    } else {
        Next::Cut
    }
}

impl From<EncoderFailed> for Failure {
    fn from(_: EncoderFailed) -> Self {
        Failure::CompressionFailed
    }
}

impl Sending<'_> {
    /// Sends the whole body with a coding.
    pub(super) async fn coded(
        &self,
        exchange: &mut Exchange<'_>,
        coding: Coding,
    ) -> Result<(), Failure> {
        let lines = |out: &mut Vec<u8>| out.extend_from_slice(self.object.lines());
        let out = self.head(exchange, self.object.status(), lines);
        let mut writer = Writer {
            body: exchange.coded_body(coding, Some(self.body_len))?,
            head_len: out.len(),
            out,
        };
        let mut position = 0;
        while position < self.body_len {
            let read;
            let piece = match self.body {
                Some(body) => {
                    let len = READ_LEN.min(self.body_len - position);
                    read = read_part(exchange, body, position, len).await?;
                    &read[..]
                }
                None => self.object.body_at(position),
            };
            if piece.is_empty() {
                return Err(Failure::FileFailed);
            }
            position += piece.len() as u64;
            writer.take(exchange, piece).await?;
        }
        writer.body.finish(&mut writer.out)?;
        let follow = exchange.follow(self.persistence);
        writer.put(exchange, follow).await
    }
}

/// A coded body, and the part of it that is still to be sent.
struct Writer<'c> {
    body: CodedBody<'c>,
    out: Vec<u8>,
    /// Bytes at the front of `out` that belong to the head.
    head_len: usize,
}

impl Writer<'_> {
    async fn take(&mut self, exchange: &mut Exchange<'_>, mut piece: &[u8]) -> Result<(), Failure> {
        while !piece.is_empty() {
            let taken = self.body.take(piece, &mut self.out)?;
            piece = &piece[taken..];
            if self.out.len() >= OUT_MIN {
                self.put(exchange, Follow::More).await?;
            }
            if taken == SLICE_LEN {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn put(&mut self, exchange: &mut Exchange<'_>, follow: Follow) -> Result<(), Failure> {
        let sent = put(exchange, &self.out, self.head_len, follow).await;
        self.out.clear();
        self.head_len = 0;
        sent
    }
}

/// The form in which an arriving response goes to a client.
pub(super) enum Outgoing<'c> {
    /// Unchanged.
    Plain(Framing),
    /// With a coding.
    Coded(CodedBody<'c>),
}

impl<'c> Outgoing<'c> {
    pub fn new(
        exchange: &Exchange<'c>,
        decision: Decision,
        framing: Framing,
        len: Option<u64>,
    ) -> Result<Self, Failure> {
        Ok(match decision.coding() {
            None => Outgoing::Plain(framing),
            Some(coding) => Outgoing::Coded(exchange.coded_body(coding, len)?),
        })
    }

    /// Whether the client still lacks bytes that were pushed.
    pub fn is_holding(&self) -> bool {
        match self {
            Outgoing::Plain(_) => false,
            Outgoing::Coded(coded) => coded.is_holding(),
        }
    }

    /// Appends a part of the body to `out`. Lets other tasks run after much work.
    pub async fn push(&mut self, out: &mut Vec<u8>, mut body: &[u8]) -> Result<(), Failure> {
        match self {
            Outgoing::Plain(framing) => framing.push(out, body),
            Outgoing::Coded(coded) => {
                while !body.is_empty() {
                    let taken = coded.take(body, out)?;
                    body = &body[taken..];
                    if taken == SLICE_LEN {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the encoder's pending bytes to `out`.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        match self {
            Outgoing::Coded(coded) if coded.is_holding() => Ok(coded.flush(out)?),
            _ => Ok(()),
        }
    }

    /// Appends the end of the body to `out`.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        match self {
            Outgoing::Plain(Framing::Chunks) => out.extend_from_slice(b"0\r\n\r\n"),
            Outgoing::Plain(_) => {}
            Outgoing::Coded(coded) => coded.finish(out)?,
        }
        Ok(())
    }

    /// Sends a part of a body in a file, from `from` to the end of `part`. `before` has the bytes
    /// before it, and the length of the head among them. Afterwards `before` has the bytes that
    /// follow the part.
    pub async fn spooled(
        &mut self,
        exchange: &mut Exchange<'_>,
        before: (&mut Vec<u8>, usize),
        part: &FilePart,
        from: u64,
    ) -> Result<(), Failure> {
        let (bytes, head_len) = before;
        let len = part.len - from;
        match self {
            Outgoing::Plain(framing) => {
                framing.begin(bytes, len);
                put(exchange, bytes, head_len, Follow::More).await?;
                bytes.clear();
                file_part(exchange, part, from, len).await?;
                framing.end(bytes);
            }
            Outgoing::Coded(_) => {
                put(exchange, bytes, head_len, Follow::More).await?;
                bytes.clear();
                let mut position = from;
                while position < part.len {
                    let len = READ_LEN.min(part.len - position);
                    let read = read_part(exchange, part, position, len).await?;
                    position += len;
                    self.push(bytes, &read).await?;
                    put(exchange, bytes, 0, Follow::Anything).await?;
                    bytes.clear();
                }
            }
        }
        Ok(())
    }
}
