//! Makes room for another connection or file, when descriptors or a listener's connections run
//! out.
//!
//! Owns the order in which resources are closed ([`Spare`]): unused pipes, idle connections to
//! endpoints, and cached open files. Client connections follow: those without a request so far,
//! the oldest first, then the longest idle ones. A worker that needs room asks all workers for
//! their first resource, and has the first of these closed. Per worker. Keeps no record while
//! there is room.
//!
//! Some descriptor numbers are reserved from clients ([`crate::net::descriptors`]). Closing an
//! idle connection with such a number makes no room for a client. So it is closed only for takers
//! that may have its number.
//!
//! Invariant: no connection with a whole request is closed, nor one with an unread request.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::box_cold;
use super::context::Worker;
use crate::net::clock;
use crate::net::descriptors::Taker;
use crate::net::lacks_descriptor;
use crate::net::pipe::Pipe;
use crate::net::timer::TICK;
use crate::observe::inquiry::{Question, Spare};
use crate::observe::sessions::{Closable, Need};
use crate::upstream::Endpoint;

/// Time for the answers of other workers.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// Time for which a worker that did not answer is not asked.
const SILENT_TIME: Duration = Duration::from_secs(1);
/// Most closes in vain before a need is refused: the connection got a request first, or another
/// taker used the room.
pub const TRIES: usize = 16;
/// Time without a further search, after a search in vain. New connections without room are
/// refused meanwhile, and newly idle ones are found after it.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// The share of idle connections to an endpoint that is closed at once: one in this many.
const CLOSED_PART: usize = 64;

/// Closes the first resource of all workers. Returns whether one was closed. Another taker may
/// use the room.
///
/// # Cancellation
/// Connections that were told to close still do so.
pub async fn make(worker: &Worker, need: Need) -> bool {
    let room = &worker.room;
    let idle = worker.sessions.idle_count();
    let looked = room.full.borrow().get(&need).copied();
    if looked.is_some_and(|(at, found)| found == idle && clock::since(at) < LOOK_INTERVAL) {
        return false;
    }
    let asked = ask_others(worker, need);
    let own = spare(worker, need).map(|it| (it, room.worker));
    let others = asked.await.into_iter();
    let others = others.filter_map(|(index, spare)| Some((spare?, index)));
    let Some((_, index)) = others.chain(own).min() else {
        room.full.borrow_mut().insert(need, (clock::now(), idle));
        return false;
    };
    if index == room.worker {
        return give_up(worker, need).await;
    }
    let (reply, answer) = oneshot::channel();
    // If the worker has ended, the answer's channel is closed too.
    let _ = room.workers[index].send(Question::GiveUp(need, reply));
    let deadline = worker.wheel.deadline(ANSWER_TIME);
    let answer = in_time(worker, answer, deadline).await;
    answer.unwrap_or(false)
}

/// The same for an exchange that lacks a descriptor.
pub async fn make_for_exchange(worker: &Worker) -> bool {
    make(worker, Need::Descriptor(Taker::Exchange)).await
}

/// Runs `take`, which needs a descriptor for an exchange. Repeats it while there is none and a
/// resource can be closed.
///
/// # Errors
/// Those of `take`.
pub async fn with_descriptor<T, F>(worker: &Worker, take: impl Fn() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    for _ in 1..TRIES {
        let taken = take().await;
        let is_lacking = taken.as_ref().is_err_and(lacks_descriptor);
        if !is_lacking || !box_cold(make_for_exchange(worker)).await {
            return taken;
        }
    }
    take().await
}

/// Asks all other workers at once for their first resource. Returns the answers that come in
/// time.
fn ask_others(worker: &Worker, need: Need) -> impl Future<Output = Vec<(usize, Option<Spare>)>> {
    let room = &worker.room;
    let others = room.workers.iter().enumerate();
    let others = others.filter(|(index, _)| {
        let is_asked = worker.wheel.now() >= room.not_before[*index].get();
        is_asked && *index != room.worker
    });
    let asked: Vec<_> = others
        .map(|(index, inquiry)| {
            let (reply, answer) = oneshot::channel();
            let _ = inquiry.send(Question::Spare(need, reply));
            (index, answer)
        })
        .collect();
    async move {
        let mut answers = Vec::with_capacity(asked.len());
        let deadline = worker.wheel.deadline(ANSWER_TIME);
        for (index, answer) in asked {
            match in_time(worker, answer, deadline).await {
                Some(answer) => answers.push((index, answer)),
                None => room.not_before[index].set(worker.wheel.deadline(SILENT_TIME)),
            }
        }
        answers
    }
}

/// Another worker's answer, if it comes before the wheel reaches `deadline`.
async fn in_time<T>(worker: &Worker, mut answer: oneshot::Receiver<T>, deadline: u64) -> Option<T> {
    let timer = worker.wheel.timer();
    worker.wheel.set(&timer, deadline);
    poll_fn(|cx| {
        timer.register(cx);
        match Pin::new(&mut answer).poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.ok()),
            Poll::Pending if worker.wheel.has_fired(&timer) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The first resource that this worker can close.
pub fn spare(worker: &Worker, need: Need) -> Option<Spare> {
    if let Need::Descriptor(taker) = need {
        if Pipe::kept_count() > 0 {
            return Some(Spare::Pipes);
        }
        if most_idle(worker, taker).is_some_and(|(idle, _)| idle > 0) {
            return Some(Spare::EndpointConnection);
        }
        if worker.generation.get().files.open_count() > 0 {
            return Some(Spare::File);
        }
    }
    let closable = worker.sessions.first_closable(need, worker.wheel.now())?;
    let since = clock::now() - TICK * closable.age().ticks();
    Some(match closable {
        Closable::Silent(_) => Spare::SilentClient(since),
        Closable::Idle(_) => Spare::IdleClient(since),
    })
}

/// Closes this worker's first resource. Returns whether one was closed.
pub async fn give_up(worker: &Worker, need: Need) -> bool {
    match (spare(worker, need), need) {
        (None, _) => false,
        (Some(Spare::Pipes), _) => Pipe::close_kept(),
        (Some(Spare::EndpointConnection), Need::Descriptor(taker)) => {
            let has_closed = close_idle(worker, taker);
            // The driver of an HTTP/2 connection closes it.
            yield_now().await;
            has_closed
        }
        (Some(Spare::File), _) => worker.generation.get().files.make_room(),
        (Some(_), _) => {
            if worker.sessions.tell_first(need, worker.wheel.now()) == 0 {
                return false;
            }
            // They are woken. Each either leaves or has a request.
            let deadline = worker.wheel.deadline(TICK);
            while worker.sessions.told_count() > 0 && worker.wheel.now() < deadline {
                yield_now().await;
            }
            true
        }
    }
}

/// The endpoint with the most idle connections on this worker whose descriptors a taker may have,
/// and their number.
fn most_idle(worker: &Worker, taker: Taker) -> Option<(usize, Rc<Endpoint>)> {
    let upstreams = worker.upstreams.all().into_iter();
    let most = upstreams.filter_map(|upstream| {
        let endpoint = upstream.max_endpoint_by_key(|it| it.idle_count_for(taker))?;
        Some((endpoint.idle_count_for(taker), endpoint))
    });
    most.max_by_key(|(idle, _)| *idle)
}

/// Closes some idle connections to the endpoint with the most of them.
fn close_idle(worker: &Worker, taker: Taker) -> bool {
    let Some((idle, endpoint)) = most_idle(worker, taker) else {
        return false;
    };
    let closed = endpoint.close_oldest_idle((idle / CLOSED_PART).max(1), taker);
    endpoint.counters().displaced.add(closed as u64);
    closed > 0
}
