//! Questions to a worker about facts that only it has: its connections, its last failures, and
//! what its balancers have learned.
//!
//! A worker answers between two polls of its event loop. It does no work for this unless someone
//! asks.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::balance::{Balance, Learned};
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Dispatcher, Outlook, SlotRequest};
use evenkeel_policy::endpoint::EndpointId;
use tokio::sync::{mpsc, oneshot};

use super::failures::FailedExchange;
use super::sessions::{Need, SessionList};
use crate::net::descriptors::Taker;

/// Longest wait for a worker's answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A question, with the channel for the answer.
#[derive(Debug)]
pub enum Question {
    /// At most this many open connections.
    Sessions(usize, oneshot::Sender<SessionList>),
    /// The last exchanges that failed.
    Failures(oneshot::Sender<Vec<FailedExchange>>),
    /// The fate of an exchange with these terms at the upstream of this dispatcher. A worker
    /// without that upstream gives no answer.
    Outlook(
        Arc<Dispatcher>,
        SlotRequest<'static>,
        oneshot::Sender<WorkerOutlook>,
    ),
    /// Copies of its balancers, with the state that they have learned.
    Learned(oneshot::Sender<Vec<LearnedSide>>),
    /// The first resource that the worker could close to make room.
    Spare(Need, oneshot::Sender<Option<Spare>>),
    /// An order to close that resource. The answer says whether it was closed.
    GiveUp(Need, oneshot::Sender<bool>),
}

/// Resources that a worker can close to make room, in the order of closing. The instant is the
/// end of the last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spare {
    /// Pipes that are kept for reuse.
    Pipes,
    /// An idle connection to an endpoint.
    EndpointConnection,
    /// A file that is kept open.
    File,
    /// A client's connection that has not sent a whole request.
    SilentClient(Instant),
    /// A client's connection that waits for a further request.
    IdleClient(Instant),
}

/// The fate of an exchange, if it were this worker's next.
#[derive(Debug)]
pub struct WorkerOutlook {
    /// Index of the worker.
    pub worker: usize,
    /// The fate.
    pub outlook: Outlook,
    /// Measurements of endpoints by its balancer.
    pub learned: Vec<(EndpointId, Learned)>,
}

/// A copy of a worker's balancer of an upstream.
#[derive(Debug)]
pub struct LearnedSide {
    /// Name of the upstream.
    pub upstream: String,
    /// The balancer.
    pub balance: Balance,
    /// The copy.
    pub chooser: Chooser,
}

/// Sends questions to a worker.
pub type Inquiry = mpsc::UnboundedSender<Question>;
/// Receives questions in a worker.
pub type Questions = mpsc::UnboundedReceiver<Question>;

/// A channel of questions for a worker.
pub fn channel() -> (Inquiry, Questions) {
    mpsc::unbounded_channel()
}

/// The need of a probe, which takes its descriptor from the share of exchanges.
const LACKING: Need = Need::Descriptor(Taker::Exchange);

/// Has the worker with the first resource in order close it, for want of a descriptor elsewhere.
/// Returns whether one was closed.
pub async fn make_room(workers: &[Inquiry]) -> bool {
    let mut first: Option<(Spare, &Inquiry)> = None;
    for worker in workers {
        let spare = |reply| Question::Spare(LACKING, reply);
        let answer = ask(std::slice::from_ref(worker), spare).await.answers;
        let Some(Some(spare)) = answer.first() else {
            continue;
        };
        if first.is_none_or(|(least, _)| *spare < least) {
            first = Some((*spare, worker));
        }
    }
    let Some((_, worker)) = first else {
        return false;
    };
    let give_up = |reply| Question::GiveUp(LACKING, reply);
    let answer = ask(std::slice::from_ref(worker), give_up).await.answers;
    answer.first() == Some(&true)
}

/// The answers of all workers.
#[derive(Debug)]
pub struct Answers<T> {
    /// The answers that came.
    pub answers: Vec<T>,
    /// Workers that have ended, or did not answer in time.
    pub silent: usize,
}

/// Asks every worker the same question, and waits a second at most.
pub async fn ask<T>(
    workers: &[Inquiry],
    question: impl Fn(oneshot::Sender<T>) -> Question,
) -> Answers<T> {
    let mut waiting = Vec::with_capacity(workers.len());
    for worker in workers {
        let (reply, answer) = oneshot::channel();
        // If the worker has ended, the answer's channel is closed too.
        let _ = worker.send(question(reply));
        waiting.push(answer);
    }
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut answers = Vec::with_capacity(waiting.len());
    for answer in waiting {
        if let Ok(Ok(answer)) = tokio::time::timeout_at(deadline, answer).await {
            answers.push(answer);
        }
    }
    Answers {
        silent: workers.len() - answers.len(),
        answers,
    }
}
