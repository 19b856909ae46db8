//! The rest of a request's body after an early answer, and the limits for reading it (`drain` of
//! a listener).

use std::time::Duration;

use evenkeel_proto::http1::BodyDecoder;

use super::{Context, Exchange, RestOfBody};
use crate::config;

/// Limits on reading further from a client.
#[derive(Debug)]
pub(crate) struct Bounds {
    silence: Duration,
    /// Tick at which the total time is used up.
    until: u64,
    bytes: u64,
}

impl Bounds {
    /// The limits of the client's listener, from now until `deadline`.
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

    /// Tick at which a silence that starts now is too long.
    pub fn silence(&self, context: &Context) -> u64 {
        context.wheel.deadline(self.silence).min(self.until)
    }

    /// Whether this many bytes are over the limit.
    pub fn are_too_many(&self, bytes_read: u64) -> bool {
        bytes_read > self.bytes
    }
}

/// Whether a body can be read to its end within the listener's limits, by its announced length.
/// `decoder` is at its present position.
pub(super) fn is_within_bounds(exchange: &Exchange<'_>, decoder: &BodyDecoder) -> bool {
    let most = exchange.listener().drain.bytes;
    decoder.is_done() || (most > 0 && decoder.unseen_len() <= most)
}

/// The state of a body that is not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// The client is sending it.
    Comes,
    /// Its client waits for 100 (Continue), and has sent none of it. It may never come (RFC 9110
    /// §10.1.1).
    MayNotCome,
}

impl Body {
    /// The fate of the body after an answer. `decoder` is at its present position.
    pub fn rest(self, exchange: &Exchange<'_>, decoder: &BodyDecoder) -> RestOfBody {
        let comes = self == Body::Comes && is_within_bounds(exchange, decoder);
        if decoder.is_done() || comes {
            RestOfBody::Read
        } else {
            RestOfBody::Unread
        }
    }
}

/// The fate of a request's body, if our own answer is sent when only the head was read.
pub(crate) fn rest_of_body(exchange: &Exchange<'_>) -> RestOfBody {
    let head = exchange.head;
    let body = if head.wire.expect_continue && exchange.bytes.len() <= head.wire.end {
        Body::MayNotCome
    } else {
        Body::Comes
    };
    body.rest(exchange, &BodyDecoder::new(head.wire.framing))
}
