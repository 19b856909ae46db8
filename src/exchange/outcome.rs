//! The outcome of an exchange, for the client's side.

use evenkeel_proto::http1::BodyDecoder;

use super::pump::Unread;
use super::{Exchange, Next};
use crate::metrics::end::End;
use crate::net::buffer::Buffer;

/// What an exchange came to.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// What becomes of the client's connection.
    pub next: Next,
    /// Bytes of the client's buffer that belong to this exchange.
    pub consumed: usize,
    /// Bytes read beyond the request's body, in a buffer of their own, where
    /// the body was longer than the client's buffer.
    pub leftover: Option<Buffer>,
    /// Where the request's body stands that is to be read and dropped before the
    /// next request, or before the connection is closed.
    pub unread: Option<Box<BodyDecoder>>,
}

impl Outcome {
    /// An exchange that leaves nothing behind in another buffer.
    pub fn new(end: End, next: Next, consumed: usize) -> Self {
        Outcome {
            end,
            next,
            consumed,
            leftover: None,
            unread: None,
        }
    }

    /// An exchange that read no more of its request than the head.
    pub fn after_head(exchange: &Exchange<'_>, end: End, next: Next) -> Self {
        Outcome::new(end, next, exchange.head.wire.end)
    }

    /// The same, of a request whose body was read as far as `unread` tells.
    pub(super) fn with_unread(self, unread: Unread) -> Self {
        let Unread { decoder, leftover } = unread;
        let is_whole = decoder.is_done();
        Outcome {
            leftover,
            unread: (!is_whole).then(|| Box::new(decoder)),
            ..self
        }
    }
}

/// No response has begun, and there is no further attempt.
pub(super) struct Unanswered {
    /// With which to refuse.
    pub end: End,
    /// As for [`super::answer::refuse`]; `None` where nothing of the body was read
    /// beyond the request as it was handed on.
    pub unread: Option<Box<Unread>>,
}

impl<T: Into<End>> From<T> for Unanswered {
    fn from(end: T) -> Self {
        Unanswered {
            end: end.into(),
            unread: None,
        }
    }
}
