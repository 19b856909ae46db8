//! The outcome of an exchange, for the client's side.

use evenkeel_proto::http1::BodyDecoder;

use super::pump::Unread;
use super::{Exchange, Next};
use crate::metrics::end::End;
use crate::net::buffer::Buffer;

/// The outcome of an exchange.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The next state of the client's connection.
    pub next: Next,
    /// Bytes of the client's buffer that belong to this exchange.
    pub consumed: usize,
    /// Bytes read beyond the request's body, in a separate buffer, if the body was longer than
    /// the client's buffer.
    pub leftover: Option<Buffer>,
    /// The position in a request's body whose rest is to be read and dropped, before the next
    /// request or before the close.
    pub unread: Option<Box<BodyDecoder>>,
}

impl Outcome {
    /// An exchange without bytes in another buffer.
    pub fn new(end: End, next: Next, consumed: usize) -> Self {
        Outcome {
            end,
            next,
            consumed,
            leftover: None,
            unread: None,
        }
    }

    /// An exchange that read only the head of its request.
    pub fn after_head(exchange: &Exchange<'_>, end: End, next: Next) -> Self {
        Outcome::new(end, next, exchange.head.wire.end)
    }

    /// The same, with the body read up to `unread`.
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

/// The failure of all attempts, before any response.
pub(super) struct Unanswered {
    /// The end for the refusal.
    pub end: End,
    /// The same as for [`super::answer::refuse`]. `None` if no more of the body was read than the
    /// given request has.
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
