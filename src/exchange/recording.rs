//! A request that is kept while it goes on, so that a copy of it can be sent elsewhere.
//!
//! A body that comes later is taken as it is read from the client. Nobody waits for the
//! copy, and the memory for it is counted with that of buffers. Per worker.

use evenkeel_proto::http1::BodyDecoder;
use tokio::sync::oneshot;

use super::Exchange;
use super::reserved::Reserved;

/// A request as its client sent it: the head, and the whole body.
#[derive(Debug)]
pub struct Recorded {
    /// Its bytes, and none of the next request.
    pub bytes: Vec<u8>,
    /// The part of them that is counted as a buffer.
    _reserved: Option<Reserved>,
}

/// Why a request was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrecorded {
    /// Its body is longer than may be kept.
    TooLong,
    /// No memory for buffers was left.
    NoMemory,
    /// Its body did not come whole.
    Cut,
}

/// A request that is recorded.
#[derive(Debug)]
pub enum Recorder {
    /// All of it is there.
    Whole(Recorded),
    /// Its body is yet to come. An end without a word is [`Unrecorded::Cut`].
    Coming(oneshot::Receiver<Result<Recorded, Unrecorded>>),
}

/// A request on its way.
#[derive(Debug)]
pub struct Recording {
    bytes: Vec<u8>,
    head_len: usize,
    /// Length of what is valid of them, behind which the decoder stands.
    valid_len: usize,
    decoder: BodyDecoder,
    /// The longest body that is kept, in bytes.
    max_len: usize,
    reserved: Reserved,
    /// Who gets it; `None` once it is over.
    reader: Option<oneshot::Sender<Result<Recorded, Unrecorded>>>,
}

impl Recording {
    /// Whether nothing more is taken.
    pub fn is_over(&self) -> bool {
        self.reader.is_none()
    }

    /// Takes what was read from the client behind the bytes before.
    pub fn take(&mut self, bytes: &[u8]) {
        if self.is_over() {
            return;
        }
        if let Some(result) = self.append(bytes) {
            self.end(result);
        }
    }

    /// The result, once there is one.
    fn append(&mut self, bytes: &[u8]) -> Option<Result<(), Unrecorded>> {
        if !self.reserved.grow(bytes.len()) {
            return Some(Err(Unrecorded::NoMemory));
        }
        self.bytes.extend_from_slice(bytes);
        let Ok(advance) = self.decoder.advance(&self.bytes[self.valid_len..]) else {
            return Some(Err(Unrecorded::Cut));
        };
        self.valid_len += advance.consumed;
        // What lies behind the body is the next request.
        if self.valid_len - self.head_len > self.max_len {
            return Some(Err(Unrecorded::TooLong));
        }
        self.decoder.is_done().then_some(Ok(()))
    }

    fn end(&mut self, result: Result<(), Unrecorded>) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let none = self.reserved.none_left();
        let reserved = std::mem::replace(&mut self.reserved, none);
        let result = result.map(|()| {
            // The next request's.
            bytes.truncate(self.valid_len);
            Recorded {
                bytes,
                _reserved: Some(reserved),
            }
        });
        if let Some(reader) = self.reader.take() {
            // Who reads it may have given up meanwhile.
            let _ = reader.send(result);
        }
    }
}

impl Exchange<'_> {
    /// Keeps its request, with a body of at most `max_len` bytes as the client sends it.
    ///
    /// # Errors
    /// It can't be kept, as far as is known by now.
    pub(crate) fn record_request(&mut self, max_len: usize) -> Result<Recorder, Unrecorded> {
        // Over HTTP/2 something else stands before the request line.
        let (head, bytes) = (self.head, &self.bytes[self.head.wire.start..]);
        let head_len = head.wire.end - head.wire.start;
        if (head.announced_len()).is_some_and(|len| len > max_len as u64) {
            return Err(Unrecorded::TooLong);
        }
        let mut decoder = BodyDecoder::new(head.wire.framing);
        let advance = decoder.advance(&bytes[head_len..]);
        let consumed = advance.map_err(|_| Unrecorded::Cut)?.consumed;
        let valid_len = head_len + consumed;
        if decoder.is_done() {
            if consumed > max_len {
                return Err(Unrecorded::TooLong);
            }
            return Ok(Recorder::Whole(Recorded {
                bytes: bytes[..valid_len].to_vec(),
                _reserved: None,
            }));
        }
        let mut reserved = Reserved::none(&self.context.buffer_memory);
        if bytes.len() - head_len > max_len {
            return Err(Unrecorded::TooLong);
        }
        if !reserved.grow(bytes.len()) {
            return Err(Unrecorded::NoMemory);
        }
        let (reader, receiver) = oneshot::channel();
        self.rare().recording = Some(Recording {
            bytes: bytes.to_vec(),
            head_len,
            valid_len,
            decoder,
            max_len,
            reserved,
            reader: Some(reader),
        });
        Ok(Recorder::Coming(receiver))
    }
}
