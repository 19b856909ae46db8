//! The fate of the rest of a request's body when its answer comes first, and the
//! bounds within which that rest is read (`drain` of a listener).

use std::time::Duration;

use evenkeel_proto::http1::BodyDecoder;

use super::{Context, Exchange, RestOfBody};
use crate::config;

/// How much longer a client is read from.
#[derive(Debug)]
pub(crate) struct Bounds {
    silence: Duration,
    /// Tick at which it has taken too long in all.
    until: u64,
    bytes: u64,
}

impl Bounds {
    /// The bounds of the client's listener, from now on and until `deadline`.
    pub fn new(context: &Context, deadline: u64) -> Self {
        let config::Drain {
            silence,
            total,
            bytes,
        } = context.listener().drain;
        Bounds {
            silence,
            until: context.wheel.deadline(total).min(deadline),
            bytes,
        }
    }

    /// Tick at which a silence that begins now is too long.
    pub fn silence(&self, context: &Context) -> u64 {
        context.wheel.deadline(self.silence).min(self.until)
    }

    /// Whether so many bytes are more than are read.
    pub fn are_too_many(&self, bytes_read: u64) -> bool {
        bytes_read > self.bytes
    }
}

/// Whether a body that stands at `decoder` can be read to its end within the
/// listener's bounds, as far as its announced length tells.
pub(super) fn is_within_bounds(exchange: &Exchange<'_>, decoder: &BodyDecoder) -> bool {
    let most = exchange.listener().drain.bytes;
    decoder.is_done() || (most > 0 && decoder.unseen_len() <= most)
}

/// A body that is not read to its end yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// It is on its way.
    Comes,
    /// Its client asked for a 100, and has sent nothing of it without one: it may
    /// never come (RFC 9110 §10.1.1).
    MayNotCome,
}

impl Body {
    /// What becomes of it after an answer. It stands at `decoder`.
    pub fn rest(self, exchange: &Exchange<'_>, decoder: &BodyDecoder) -> RestOfBody {
        let comes = self == Body::Comes && is_within_bounds(exchange, decoder);
        if decoder.is_done() || comes {
            RestOfBody::Read
        } else {
            RestOfBody::Unread
        }
    }
}

/// What becomes of the body of a request of which nothing was read beyond the head,
/// if an answer of our own is sent first.
pub(crate) fn rest_of_body(exchange: &Exchange<'_>) -> RestOfBody {
    let head = exchange.head;
    let body = if head.wire.expect_continue && exchange.bytes.len() <= head.wire.end {
        Body::MayNotCome
    } else {
        Body::Comes
    };
    body.rest(exchange, &BodyDecoder::new(head.wire.framing))
}
