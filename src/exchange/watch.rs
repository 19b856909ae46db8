//! Notices that a client has left while its request is being answered.

use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_proto::Version;

use super::Exchange;
use super::side::ClientSide;
use crate::config::HalfClose;
use crate::net::clock;
use crate::net::stream::Peeked;

/// A client that may have closed its sending side alone has done so if its FIN
/// comes this soon after its request; later, it has left. The reasons are in
/// `docs/decisions/half-closed-clients.md`.
const HALF_CLOSE_GRACE: Duration = Duration::from_millis(100);

/// The meaning of a client's FIN before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fin {
    /// It has left.
    Gone,
    /// It sends no further request, and waits for the answer.
    HalfClosed,
    /// That depends on how soon after its request the FIN comes.
    Either,
}

impl Fin {
    /// That of this exchange's client, by the listener's setting.
    fn of(exchange: &Exchange<'_>) -> Self {
        let listener = exchange.listener();
        let head = exchange.head;
        match listener.half_close {
            HalfClose::Serve => Fin::HalfClosed,
            HalfClose::Abort => Fin::Gone,
            // Over TCP, whoever has said something may wait for what is said to it.
            HalfClose::Auto if exchange.is_tcp() => {
                if exchange.progress.figures.bytes_in > 0 {
                    Fin::HalfClosed
                } else {
                    Fin::Gone
                }
            }
            // It said that its connection goes on.
            HalfClose::Auto if head.wire.keep_alive && head.version == Version::Http11 => Fin::Gone,
            HalfClose::Auto => Fin::Either,
        }
    }
}

/// Watches a client's connection from the end of its request on.
///
/// Invariant: a reset is noticed until the end of the exchange, whatever came
/// before it. A FIN is judged once for a connection: nothing more comes behind it,
/// and whoever watches next would judge it by a later time.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientWatch {
    /// When the request's last byte had been read.
    pub request_end: Instant,
    fin: Fin,
    awaited: Awaited,
}

/// The news that a watch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// Anything.
    Anything,
    /// A reset: the client's next request is there.
    Reset,
}

impl ClientWatch {
    /// Begins to watch the client of an exchange whose request is complete.
    pub fn of(exchange: &Exchange<'_>, request_end: Instant) -> Self {
        ClientWatch {
            request_end,
            fin: Fin::of(exchange),
            awaited: Awaited::Anything,
        }
    }

    /// Begins anew, for the request has ended only now.
    pub fn restart(&mut self, request_end: Instant) {
        self.request_end = request_end;
        self.awaited = Awaited::Anything;
    }

    /// The client's next request has been read, so that a FIN is that one's to judge.
    pub fn leave_fin_to_next(&mut self) {
        self.awaited = Awaited::Reset;
    }

    /// Ready when the client has left. Costs a system call only when it has ended its
    /// side.
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

    /// Ready when the client has left before all of its request was read: there is
    /// a reset, or an end and nothing before it.
    pub fn poll_gone_early(cx: &mut TaskContext<'_>, side: &mut ClientSide<'_>) -> Poll<()> {
        match side.poll_end(cx) {
            Poll::Ready(Peeked::End | Peeked::Broken) => Poll::Ready(()),
            _ => side.poll_broken(cx),
        }
    }

    /// Whether a FIN that comes now is that of a client that leaves.
    fn is_leaving(&self) -> bool {
        match self.fin {
            Fin::Gone => true,
            Fin::HalfClosed => false,
            Fin::Either => clock::since(self.request_end) >= HALF_CLOSE_GRACE,
        }
    }
}
