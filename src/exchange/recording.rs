//! Records a request while it is forwarded, so that a copy of it can be sent elsewhere.
//!
//! The rest of the body is recorded as it is read from the client. Nobody waits for the copy. Its
//! memory counts as buffer memory. Per worker.

use evenkeel_proto::http1::BodyDecoder;
use tokio::sync::oneshot;

use super::Exchange;
use super::reserved::Reserved;

/// A request as its client sent it: the head, and the whole body.
#[derive(Debug)]
pub struct Recorded {
    /// Its bytes, without those of the next request.
    pub bytes: Vec<u8>,
    /// The part of its memory that counts as buffer memory.
    _reserved: Option<Reserved>,
}

/// Why a request was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrecorded {
    /// Its body is longer than permitted.
    TooLong,
    /// No memory for buffers was left.
    NoMemory,
    /// Its body did not arrive whole.
    Cut,
}

/// A request that is being recorded.
#[derive(Debug)]
pub enum Recorder {
    /// The whole request has arrived.
    Whole(Recorded),
    /// The body is still to come. A dropped sender means [`Unrecorded::Cut`].
    Coming(oneshot::Receiver<Result<Recorded, Unrecorded>>),
}

/// A request in transit.
#[derive(Debug)]
pub struct Recording {
    bytes: Vec<u8>,
    head_len: usize,
    /// Length of the valid part, at whose end the decoder is.
    valid_len: usize,
    decoder: BodyDecoder,
    /// Longest body to record, in bytes.
    max_len: usize,
    reserved: Reserved,
    /// Receives the recording; `None` once that is over.
    reader: Option<oneshot::Sender<Result<Recorded, Unrecorded>>>,
}

impl Recording {
    /// Whether the recording is over.
    pub fn is_over(&self) -> bool {
        self.reader.is_none()
    }

    /// Adds bytes that were read from the client.
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
        // Bytes after the body belong to the next request.
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
            // The next request's bytes.
            bytes.truncate(self.valid_len);
            Recorded {
                bytes,
                _reserved: Some(reserved),
            }
        });
        if let Some(reader) = self.reader.take() {
            // The receiver may have given up.
            let _ = reader.send(result);
        }
    }
}

impl Exchange<'_> {
    /// Records the exchange's request, with a body of at most `max_len` bytes.
    ///
    /// # Errors
    /// The request can't be recorded, as far as is known by now.
    pub(crate) fn record_request(&mut self, max_len: usize) -> Result<Recorder, Unrecorded> {
        // Over HTTP/2 other text is before the request line.
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
