//! Detects that a client has left while its request is being answered.

use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_proto::Version;

use super::Exchange;
use super::side::ClientSide;
use crate::config::HalfClose;
use crate::net::clock;
use crate::net::stream::Peeked;

/// A FIN within this time after the request counts as a half-close, where that is possible. A
/// later FIN means that the client has left. `docs/decisions/half-closed-clients.md` has the
/// reasons.
const HALF_CLOSE_GRACE: Duration = Duration::from_millis(100);

/// The meaning of a client's FIN before its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fin {
    /// The client has left.
    Gone,
    /// The client sends no further request, and waits for the response.
    HalfClosed,
    /// The time between the request and the FIN decides.
    Either,
}

impl Fin {
    /// The meaning for this exchange's client, by the listener's setting.
    fn of(exchange: &Exchange<'_>) -> Self {
        let listener = exchange.listener();
        let head = exchange.head;
        match listener.half_close {
            HalfClose::Serve => Fin::HalfClosed,
            HalfClose::Abort => Fin::Gone,
            // Over TCP, a client that has sent anything may wait for a response.
            HalfClose::Auto if exchange.is_tcp() => {
                if exchange.progress.figures.bytes_in > 0 {
                    Fin::HalfClosed
                } else {
                    Fin::Gone
                }
            }
            // The request promised to keep the connection.
            HalfClose::Auto if head.wire.keep_alive && head.version == Version::Http11 => Fin::Gone,
            HalfClose::Auto => Fin::Either,
        }
    }
}

/// Watches a client's connection from the end of its request on.
///
/// Invariant: a reset is detected until the end of the exchange, whatever came before. A FIN is
/// judged once for each connection. Nothing can follow it, and a later watch would judge it by a
/// later time.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientWatch {
    /// End of reading the request.
    pub request_end: Instant,
    fin: Fin,
    awaited: Awaited,
}

/// The event that a watch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// Any event.
    Anything,
    /// Only a reset, as the client's next request is there.
    Reset,
}

impl ClientWatch {
    /// Starts to watch the client of an exchange whose request is complete.
    pub fn of(exchange: &Exchange<'_>, request_end: Instant) -> Self {
        ClientWatch {
            request_end,
            fin: Fin::of(exchange),
            awaited: Awaited::Anything,
        }
    }

    /// Restarts, as the request has ended only now.
    pub fn restart(&mut self, request_end: Instant) {
        self.request_end = request_end;
        self.awaited = Awaited::Anything;
    }

    /// The client's next request has been read, so its exchange judges a FIN.
    pub fn leave_fin_to_next(&mut self) {
        self.awaited = Awaited::Reset;
    }

    /// Ready when the client has left. Costs a system call only after the client's FIN.
    pub fn poll_gone(&mut self, cx: &mut TaskContext<'_>, side: &mut ClientSide<'_>) -> Poll<()> {
        if self.awaited == Awaited::Anything && !side.is_half_closed() {
            match ready!(side.poll_end(cx)) {
                Peeked::Broken => return Poll::Ready(()),
                Peeked::End if self.is_leaving() => return Poll::Ready(()),
                Peeked::End => side.set_half_closed(),
                Peeked::Data | Peeked::Nothing => self.awaited = Awaited::Reset,
            }
        }
        side.poll_broken(cx)
    }

    /// Ready when the client has left before its whole request was read: after a reset, or after
    /// an end without bytes before it.
    pub fn poll_gone_early(cx: &mut TaskContext<'_>, side: &mut ClientSide<'_>) -> Poll<()> {
        match side.poll_end(cx) {
            Poll::Ready(Peeked::End | Peeked::Broken) => Poll::Ready(()),
            _ => side.poll_broken(cx),
        }
    }

    /// Whether a FIN now means that the client has left.
    fn is_leaving(&self) -> bool {
        match self.fin {
            Fin::Gone => true,
            Fin::HalfClosed => false,
            Fin::Either => clock::since(self.request_end) >= HALF_CLOSE_GRACE,
        }
    }
}
