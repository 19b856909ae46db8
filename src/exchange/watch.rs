//! Notices that a client has left while its request is being answered.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_policy::Instant;

use crate::net::clock;
use crate::net::stream::{Peeked, Stream};

/// A client that closes its sending side this soon after its request has only
/// said that no further request comes; later, it has left. The reasons are in
/// `docs/decisions/half-closed-clients.md`.
const HALF_CLOSE_GRACE: Duration = Duration::from_millis(100);

/// Watches a client's connection from the end of its request on.
#[derive(Debug)]
pub(super) struct ClientWatch {
    /// When the request's last byte had been read.
    pub request_end: Instant,
    /// Whether there is still something to be noticed.
    is_on: bool,
}

impl ClientWatch {
    /// Begins to watch.
    pub fn new(request_end: Instant) -> Self {
        ClientWatch {
            request_end,
            is_on: true,
        }
    }

    /// Ready when the client has left. Costs a system call only when its
    /// connection became readable: by its next request, or by its end.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>, client: &Stream) -> Poll<()> {
        if !self.is_on {
            return Poll::Pending;
        }
        let is_gone = match ready!(client.poll_peek(cx)) {
            Peeked::End => clock::since(self.request_end) >= HALF_CLOSE_GRACE,
            Peeked::Broken => true,
            Peeked::Data | Peeked::Nothing => false,
        };
        self.is_on = is_gone;
        match is_gone {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}
