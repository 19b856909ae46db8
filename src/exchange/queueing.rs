//! Waits in an upstream's queue for a slot.

use std::future::poll_fn;
use std::task::Poll;

use super::Exchange;
use super::request::RequestBody;
use super::watch::ClientWatch;
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use crate::observe::access_log::Phase;
use crate::observe::sessions::Stage;
use crate::upstream::{Refusal, Slot, WaitFailure, Waiting};

/// The terms of a wait.
pub(super) struct Queueing<'a, 'e> {
    pub exchange: &'a mut Exchange<'e>,
    pub body: &'a RequestBody<'a>,
    pub watch: &'a mut ClientWatch,
    /// Tick at the end of the wait.
    pub deadline: u64,
}

/// Why a wait gave no slot.
pub(super) enum Unserved {
    /// Refused, as a new exchange would be now.
    Refused(Refusal),
    /// The exchange has ended.
    Ended(End),
}

impl<T: Into<End>> From<T> for Unserved {
    fn from(end: T) -> Self {
        Unserved::Ended(end.into())
    }
}

/// The end of a wait.
enum Waited<'a> {
    Granted(Slot<'a>),
    WaitFailure(WaitFailure),
    ClientGone,
    TimedOut,
}

impl Queueing<'_, '_> {
    /// Waits for a slot, until the client leaves or the time is over. A client that leaves frees
    /// its place at once.
    ///
    /// # Errors
    /// The end for the refusal.
    ///
    /// # Cancellation
    /// Safe: dropping the future frees the place.
    pub async fn wait<'s>(self, mut waiting: Waiting<'s>) -> Result<Slot<'s>, Unserved> {
        let Queueing {
            exchange,
            body,
            watch,
            deadline,
        } = self;
        let begun = clock::now();
        let _queued = exchange.side.queue();
        let (context, progress) = (exchange.context, &mut exchange.progress);
        progress.track.enter(Stage::Queue);
        let counters = &context.generation().counters.upstreams[waiting.upstream().index()];
        if progress.figures.times.queue.is_none() {
            counters.queued.add(1);
            // The number includes the exchange itself.
            let before = waiting.upstream().waiting().saturating_sub(1);
            progress.figures.queued_behind = u32::try_from(before).unwrap_or(u32::MAX);
        }
        progress.figures.phase = Phase::Queue;
        let until = deadline.min(exchange.total_deadline);
        context.wheel.set(&exchange.timer, until);
        let waited = poll_fn(|cx| {
            // After the client has left, a slot goes to others.
            if exchange.side.has_left() {
                return Poll::Ready(Waited::ClientGone);
            }
            match waiting.poll(cx) {
                Poll::Ready(Ok(slot)) => return Poll::Ready(Waited::Granted(slot)),
                Poll::Ready(Err(why)) => return Poll::Ready(Waited::WaitFailure(why)),
                Poll::Pending => {}
            }
            let is_gone = if body.is_whole() {
                watch.poll_gone(cx, &mut exchange.side).is_ready()
            } else {
                ClientWatch::poll_gone_early(cx, &mut exchange.side).is_ready()
            };
            if is_gone {
                return Poll::Ready(Waited::ClientGone);
            }
            if exchange.has_timed_out() {
                Poll::Ready(Waited::TimedOut)
            } else {
                Poll::Pending
            }
        })
        .await;
        let times = &mut exchange.progress.figures.times;
        *times.queue.get_or_insert_default() += clock::since(begun);
        match waited {
            // Nothing new may start after the cut-off.
            Waited::Granted(slot) => match context.cut_off() {
                Some(failure) => Err(failure.into()),
                None => Ok(slot),
            },
            Waited::WaitFailure(WaitFailure::Refused(refusal)) => Err(Unserved::Refused(refusal)),
            Waited::WaitFailure(WaitFailure::TimedOut) => Err(Failure::QueueTimeout.into()),
            Waited::ClientGone => Err(Failure::ClientGone.into()),
            Waited::TimedOut => {
                // The wait was for a reachable endpoint, or for room at one.
                let failure = if waiting.upstream().is_reachable() {
                    Failure::QueueTimeout
                } else {
                    Failure::NoEndpoint
                };
                // A slot may have been granted at this very moment.
                waiting
                    .leave()
                    .ok_or_else(|| exchange.timed_out(failure).into())
            }
        }
    }
}
