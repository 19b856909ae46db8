//! A stream: the state of one request and its response (RFC 9113 §5.1).

use super::frame::ErrorCode;
use crate::head::{Method, RequestHead};
use crate::wire::BodyFraming;

/// Number of a stream.
pub type StreamId = u32;

/// One direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// More may come.
    Open,
    /// All of it came.
    Ended,
    /// It was cut off.
    Reset(ErrorCode),
}

/// How soon a response is sent, of all responses of a connection (RFC 9218 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// 0 comes first, 7 last.
    pub urgency: u8,
    /// Whether parts of it are useful, so that it takes turns with others.
    pub is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Priority {
            urgency: 3,
            is_incremental: false,
        }
    }
}

impl Priority {
    /// The priority of a request that asks for none. Such a client may not know of priorities.
    /// Its streams take turns, so that a long response holds up no short one (RFC 9218 §10).
    pub const UNTOLD: Priority = Priority {
        urgency: 3,
        is_incremental: true,
    };

    /// Reads the value of a `priority` field. Items that are not understood count as left out.
    pub fn read(value: &[u8]) -> Self {
        let mut priority = Priority::default();
        for item in crate::field::list_items(value) {
            match item {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }

    /// The priority that a request asks for.
    pub fn of(head: &RequestHead, buf: &[u8]) -> Self {
        let mut fields = head.fields.iter();
        let field = fields.find(|it| it.is_named(b"priority", buf));
        field.map_or(Priority::UNTOLD, |it| Priority::read(it.value.of(buf)))
    }
}

/// The state of a stream that is open, or whose exchange has not ended yet.
#[derive(Debug)]
pub(super) struct Stream {
    /// The message of the peer.
    pub incoming: Direction,
    /// The message to the peer.
    pub outgoing: Direction,
    /// Content that came and was not read yet.
    pub content: Vec<u8>,
    /// Bytes at the front of it that were read.
    pub read: usize,
    /// The lines of its trailers.
    pub trailers: Vec<u8>,
    /// Bytes that the peer may still send; negative after the window was made smaller.
    pub receive_window: i64,
    /// Bytes that were read, and that no window update has given back to the peer.
    pub uncredited: u32,
    /// Bytes that may be sent to the peer.
    pub send_window: i64,
    /// Bytes of content that are still to come, where the head says how many.
    pub expected: Option<u64>,
    /// Whether an exchange waits to send.
    pub waits: bool,
    /// When it had its last turn to send, if it takes turns; else its first.
    pub turn: u64,
    pub priority: Priority,
    /// The head of a response, while it is still to come.
    pub awaited: Option<Awaited>,
    /// Whether the peer has reset it.
    pub is_cancelled: bool,
    /// Whether the block of its head was not decoded yet.
    pub is_deferred: bool,
    /// Bytes of its head and its trailers.
    pub held: usize,
}

/// A response whose head is still to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    /// The method of its request.
    pub method: Method,
    /// Interim responses that came before it.
    pub interim: u32,
}

impl Stream {
    /// Holds the content to what the head says of it.
    pub fn expect(&mut self, framing: BodyFraming) {
        self.expected = match framing {
            BodyFraming::None => Some(0),
            BodyFraming::Length { bytes } => Some(bytes),
            BodyFraming::Chunked | BodyFraming::UntilClose => None,
        };
    }

    /// Takes the content that came before the head into account. `false` where it is not of the
    /// length that the head says.
    pub fn holds_to_length(&mut self) -> bool {
        let Some(expected) = &mut self.expected else {
            return true;
        };
        match expected.checked_sub(self.content.len() as u64) {
            Some(rest) => *expected = rest,
            None => return false,
        }
        *expected == 0 || self.incoming != Direction::Ended
    }

    /// Content that can be read.
    pub fn unread(&self) -> &[u8] {
        &self.content[self.read..]
    }

    /// Takes content that came. `false` where it is more than the head has said.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        if let Some(expected) = &mut self.expected {
            match expected.checked_sub(bytes.len() as u64) {
                Some(rest) => *expected = rest,
                None => return false,
            }
        }
        // Read content is dropped once it is half of the buffer.
        if self.read * 2 >= self.content.len() {
            self.content.drain(..self.read);
            self.read = 0;
        }
        self.content.extend_from_slice(bytes);
        true
    }

    /// Takes content out: how many bytes went into `room`.
    pub fn read_into(&mut self, room: &mut [u8]) -> usize {
        let len = room.len().min(self.unread().len());
        room[..len].copy_from_slice(&self.content[self.read..self.read + len]);
        self.read += len;
        if self.read == self.content.len() {
            self.content.clear();
            self.read = 0;
        }
        len
    }

    /// Whether neither side sends any more.
    pub fn is_closed(&self) -> bool {
        self.incoming != Direction::Open && self.outgoing != Direction::Open
    }
}

/// The streams of a connection, by their numbers, which grow.
#[derive(Debug, Default)]
pub(super) struct Streams(Vec<(StreamId, Box<Stream>)>);

impl Streams {
    fn position(&self, id: StreamId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, |it| it.0)
    }

    pub fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        let position = self.position(id).ok()?;
        Some(&mut self.0[position].1)
    }

    pub fn insert(&mut self, id: StreamId, stream: Stream) {
        if let Err(position) = self.position(id) {
            self.0.insert(position, (id, Box::new(stream)));
        }
    }

    pub fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let position = self.position(id).ok()?;
        Some(*self.0.remove(position).1)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes of memory that they hold.
    pub fn memory(&self) -> usize {
        let own = |it: &(StreamId, Box<Stream>)| {
            size_of::<Stream>() + it.1.content.capacity() + it.1.trailers.capacity()
        };
        let table = self.0.capacity() * size_of::<(StreamId, Box<Stream>)>();
        table + self.0.iter().map(own).sum::<usize>()
    }

    /// Gives memory back that is for more streams than there are.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (StreamId, &mut Stream)> {
        self.0.iter_mut().map(|(id, stream)| (*id, &mut **stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read() {
        for (value, urgency, is_incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i=?1,u=2", 2, true),
            ("u=8", 3, false),
            ("u=1;x, i=?0", 3, false),
        ] {
            let expected = Priority {
                urgency,
                is_incremental,
            };
            assert_eq!(Priority::read(value.as_bytes()), expected, "{value}");
        }
    }
}
