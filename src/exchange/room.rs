//! Room for another connection or file, where descriptors or a listener's
//! connections run out.
//!
//! Owns the order in which things are closed ([`Spare`]): unused pipes, idle
//! connections to endpoints, and files that are kept open. Clients follow: those
//! without a request so far, the oldest first, then those idle for longest. A
//! worker that needs room asks all workers what they could close first, and has
//! the first of it closed. Per worker. Nothing is noted while there is room.
//!
//! An idle connection to an endpoint may have a number that is kept from clients
//! ([`crate::net::descriptors`]): closing it makes no room for one of them, so it
//! is closed only for those that may have its number.
//!
//! Invariant: no connection with a whole request is closed, nor one whose request
//! waits to be read.

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

/// How long other workers have to answer.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// How long a worker that did not is left alone.
const SILENT_TIME: Duration = Duration::from_secs(1);
/// How often something is closed in vain before the need is refused: a request
/// came first, or somebody else took the room.
pub const TRIES: usize = 16;
/// How long a worker that found nothing to close looks no further. New connections
/// that find no room are refused meanwhile, and what becomes idle is found after it.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Of idle connections to endpoints, this part is closed at once.
const CLOSED_PART: usize = 64;

/// Closes what is closed first of all workers; whether something was. Somebody
/// else may take the room.
///
/// # Cancellation
/// Connections that were told to close do so all the same.
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
    // Where the worker has ended, so has the way back.
    let _ = room.workers[index].send(Question::GiveUp(need, reply));
    let deadline = worker.wheel.deadline(ANSWER_TIME);
    let answer = in_time(worker, answer, deadline).await;
    answer.unwrap_or(false)
}

/// The same for an exchange that lacks a descriptor.
pub async fn make_for_exchange(worker: &Worker) -> bool {
    make(worker, Need::Descriptor(Taker::Exchange)).await
}

/// Does what takes a descriptor for an exchange, and again as long as there is none
/// and something can be closed.
///
/// # Errors
/// As `take`.
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

/// Asks each other worker, all at once, what it could close first: the answers that
/// come in time.
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

/// Another worker's answer, if it comes before the wheel is at `deadline`.
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

/// What this worker could close first.
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

/// Closes what this worker could close first; whether something was.
pub async fn give_up(worker: &Worker, need: Need) -> bool {
    match (spare(worker, need), need) {
        (None, _) => false,
        (Some(Spare::Pipes), _) => Pipe::close_kept(),
        (Some(Spare::EndpointConnection), Need::Descriptor(taker)) => {
            let has_closed = close_idle(worker, taker);
            // One of HTTP/2 is closed by its driver.
            yield_now().await;
            has_closed
        }
        (Some(Spare::File), _) => worker.generation.get().files.make_room(),
        (Some(_), _) => {
            if worker.sessions.tell_first(need, worker.wheel.now()) == 0 {
                return false;
            }
            // They are woken, and each either leaves or has a request.
            let deadline = worker.wheel.deadline(TICK);
            while worker.sessions.told_count() > 0 && worker.wheel.now() < deadline {
                yield_now().await;
            }
            true
        }
    }
}

/// The endpoint to which this worker has most idle connections whose descriptors a
/// taker may have, and how many they are.
fn most_idle(worker: &Worker, taker: Taker) -> Option<(usize, Rc<Endpoint>)> {
    let upstreams = worker.upstreams.all().into_iter();
    let most = upstreams.filter_map(|upstream| {
        let endpoint = upstream.max_endpoint_by_key(|it| it.idle_count_for(taker))?;
        Some((endpoint.idle_count_for(taker), endpoint))
    });
    most.max_by_key(|(idle, _)| *idle)
}

/// Closes some idle connections to the endpoint that has most of them.
fn close_idle(worker: &Worker, taker: Taker) -> bool {
    let Some((idle, endpoint)) = most_idle(worker, taker) else {
        return false;
    };
    let closed = endpoint.close_oldest_idle((idle / CLOSED_PART).max(1), taker);
    endpoint.counters().displaced.add(closed as u64);
    closed > 0
}
