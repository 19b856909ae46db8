//! Questions to a worker about what it alone knows: its connections, its last
//! failures, what its balancers have learned.
//!
//! A worker answers between two polls of its event loop. Nothing is asked
//! unless somebody wants to see it.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::balance::{Balance, Learned};
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Asking, Dispatcher, Outlook};
use evenkeel_policy::endpoint::EndpointId;
use tokio::sync::{mpsc, oneshot};

use super::failures::FailedExchange;
use super::sessions::{Need, SessionList};
use crate::net::descriptors::Taker;

/// Longest wait for a worker's answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A question, with the way back.
#[derive(Debug)]
pub enum Question {
    /// At most this many open connections.
    Sessions(usize, oneshot::Sender<SessionList>),
    /// The last exchanges that failed.
    Failures(oneshot::Sender<Vec<FailedExchange>>),
    /// What would become of an exchange that asks the upstream with this dispatcher.
    /// No answer comes where the worker has no such upstream.
    Outlook(
        Arc<Dispatcher>,
        Asking<'static>,
        oneshot::Sender<WorkerOutlook>,
    ),
    /// What its balancers have learned.
    Learned(oneshot::Sender<Vec<LearnedSide>>),
    /// What the worker could close first to make room.
    Spare(Need, oneshot::Sender<Option<Spare>>),
    /// To close what it could close first; the answer is whether it did.
    GiveUp(Need, oneshot::Sender<bool>),
}

/// What a worker can close to make room, in the order in which that is closed.
/// Moments are those at which its last use was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spare {
    /// Pipes that are kept for reuse.
    Pipes,
    /// An idle connection to an endpoint.
    EndpointConnection,
    /// A file that is kept open.
    File,
    /// A client's connection without a request so far.
    SilentClient(Instant),
    /// A client's connection that waits for a further request.
    IdleClient(Instant),
}

/// What would become of an exchange, were it this worker's next.
#[derive(Debug)]
pub struct WorkerOutlook {
    /// Index of the worker.
    pub worker: usize,
    /// What would become of it.
    pub outlook: Outlook,
    /// What its balancer has learned of endpoints.
    pub learned: Vec<(EndpointId, Learned)>,
}

/// What a worker's balancer of an upstream has learned, as a copy of it.
#[derive(Debug)]
pub struct LearnedSide {
    /// Name of the upstream.
    pub upstream: String,
    /// The balancer.
    pub balance: Balance,
    /// The copy.
    pub chooser: Chooser,
}

/// Where a worker is asked.
pub type Inquiry = mpsc::UnboundedSender<Question>;
/// Where it hears of it.
pub type Questions = mpsc::UnboundedReceiver<Question>;

/// A way to ask a worker.
pub fn channel() -> (Inquiry, Questions) {
    mpsc::unbounded_channel()
}

/// What a probe lacks: it takes its descriptor from those of exchanges.
const LACKING: Need = Need::Descriptor(Taker::Exchange);

/// Has the workers close what is closed first, for want of a descriptor elsewhere;
/// whether something was.
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

/// What came of asking every worker.
#[derive(Debug)]
pub struct Answers<T> {
    /// Of each worker that answered.
    pub answers: Vec<T>,
    /// Workers that have ended, or did not answer in time.
    pub silent: usize,
}

/// Asks every worker the same, and waits a second at most.
pub async fn ask<T>(
    workers: &[Inquiry],
    question: impl Fn(oneshot::Sender<T>) -> Question,
) -> Answers<T> {
    let mut waiting = Vec::with_capacity(workers.len());
    for worker in workers {
        let (reply, answer) = oneshot::channel();
        // Where the worker has ended, so has the way back.
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
