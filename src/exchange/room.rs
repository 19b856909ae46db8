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

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use evenkeel_policy::Instant;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::{Context, box_cold};
use crate::net::clock;
use crate::net::descriptors::Taker;
use crate::net::lacks_descriptor;
use crate::net::pipe::Pipe;
use crate::net::timer::TICK;
use crate::observe::inquiry::{Inquiry, Question, Spare};
use crate::observe::sessions::{Closable, Need};
use crate::upstream::Upstream;

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

/// A worker's knowledge of room.
#[derive(Debug)]
pub struct Room {
    /// The worker's index.
    worker: usize,
    /// The way to each worker, this one included.
    workers: Vec<Inquiry>,
    /// For each worker, the tick before which it is not asked: it did not answer
    /// in time.
    not_before: Vec<Cell<u64>>,
    /// Of needs for which nothing could be closed: when that was, and how many
    /// clients were idle here.
    full: RefCell<HashMap<Need, (Instant, usize)>>,
}

impl Room {
    /// Of one of these workers, by index.
    pub fn new(worker: usize, workers: Vec<Inquiry>) -> Self {
        Room {
            worker,
            not_before: workers.iter().map(|_| Cell::new(0)).collect(),
            workers,
            full: RefCell::default(),
        }
    }
}

/// Closes what is closed first of all workers; whether something was. Somebody
/// else may take the room.
///
/// # Cancellation
/// Connections that were told to close do so all the same.
pub async fn make(context: &Context, need: Need) -> bool {
    let room = &context.room;
    let idle = context.sessions.idle_count();
    let looked = room.full.borrow().get(&need).copied();
    if looked.is_some_and(|(at, found)| found == idle && clock::since(at) < LOOK_INTERVAL) {
        return false;
    }
    let asked = ask_others(context, need);
    let own = spare(context, need).map(|it| (it, room.worker));
    let others = asked.await.into_iter();
    let others = others.filter_map(|(worker, spare)| Some((spare?, worker)));
    let Some((_, worker)) = others.chain(own).min() else {
        room.full.borrow_mut().insert(need, (clock::now(), idle));
        return false;
    };
    if worker == room.worker {
        return give_up(context, need).await;
    }
    let (reply, answer) = oneshot::channel();
    // Where the worker has ended, so has the way back.
    let _ = room.workers[worker].send(Question::GiveUp(need, reply));
    let deadline = context.wheel.deadline(ANSWER_TIME);
    let answer = in_time(context, answer, deadline).await;
    answer.unwrap_or(false)
}

/// The same for an exchange that lacks a descriptor.
pub async fn make_for_exchange(context: &Context) -> bool {
    make(context, Need::Descriptor(Taker::Exchange)).await
}

/// Does what takes a descriptor for an exchange, and again as long as there is none
/// and something can be closed.
///
/// # Errors
/// As `take`.
pub async fn with_descriptor<T, F>(context: &Context, take: impl Fn() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    for _ in 1..TRIES {
        let taken = take().await;
        let is_lacking = taken.as_ref().is_err_and(lacks_descriptor);
        if !is_lacking || !box_cold(make_for_exchange(context)).await {
            return taken;
        }
    }
    take().await
}

/// Asks each other worker, all at once, what it could close first: the answers that
/// come in time.
fn ask_others(context: &Context, need: Need) -> impl Future<Output = Vec<(usize, Option<Spare>)>> {
    let room = &context.room;
    let others = room.workers.iter().enumerate();
    let others = others.filter(|(worker, _)| {
        let is_asked = context.wheel.now() >= room.not_before[*worker].get();
        is_asked && *worker != room.worker
    });
    let asked: Vec<_> = others
        .map(|(worker, inquiry)| {
            let (reply, answer) = oneshot::channel();
            let _ = inquiry.send(Question::Spare(need, reply));
            (worker, answer)
        })
        .collect();
    async move {
        let mut answers = Vec::with_capacity(asked.len());
        let deadline = context.wheel.deadline(ANSWER_TIME);
        for (worker, answer) in asked {
            match in_time(context, answer, deadline).await {
                Some(answer) => answers.push((worker, answer)),
                None => room.not_before[worker].set(context.wheel.deadline(SILENT_TIME)),
            }
        }
        answers
    }
}

/// Another worker's answer, if it comes before the wheel is at `deadline`.
async fn in_time<T>(
    context: &Context,
    mut answer: oneshot::Receiver<T>,
    deadline: u64,
) -> Option<T> {
    let timer = context.wheel.timer();
    context.wheel.set(&timer, deadline);
    poll_fn(|cx| {
        timer.register(cx);
        match Pin::new(&mut answer).poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.ok()),
            Poll::Pending if context.wheel.has_fired(&timer) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// What this worker could close first.
pub fn spare(context: &Context, need: Need) -> Option<Spare> {
    if let Need::Descriptor(taker) = need {
        if Pipe::kept_count() > 0 {
            return Some(Spare::Pipes);
        }
        if idle_pools(context, taker).any(|(idle, ..)| idle > 0) {
            return Some(Spare::EndpointConnection);
        }
        if context.files.open_count() > 0 {
            return Some(Spare::File);
        }
    }
    let closable = context.sessions.first_closable(need, context.wheel.now())?;
    let since = clock::now() - TICK * closable.age().ticks();
    Some(match closable {
        Closable::Silent(_) => Spare::SilentClient(since),
        Closable::Idle(_) => Spare::IdleClient(since),
    })
}

/// Closes what this worker could close first; whether something was.
pub async fn give_up(context: &Context, need: Need) -> bool {
    match (spare(context, need), need) {
        (None, _) => false,
        (Some(Spare::Pipes), _) => Pipe::close_kept(),
        (Some(Spare::EndpointConnection), Need::Descriptor(taker)) => close_idle(context, taker),
        (Some(Spare::File), _) => context.files.make_room(),
        (Some(_), _) => {
            if context.sessions.tell_first(need, context.wheel.now()) == 0 {
                return false;
            }
            // They are woken, and each either leaves or has a request.
            let deadline = context.wheel.deadline(TICK);
            while context.sessions.told_count() > 0 && context.wheel.now() < deadline {
                yield_now().await;
            }
            true
        }
    }
}

/// How many idle connections there are to each endpoint of each upstream whose
/// descriptors a taker may have.
fn idle_pools(context: &Context, taker: Taker) -> impl Iterator<Item = (usize, &Upstream, usize)> {
    context.upstreams.iter().flat_map(move |upstream| {
        let endpoints = 0..upstream.config().endpoints.len();
        endpoints.map(move |endpoint| {
            let idle = upstream.idle_count_for(endpoint, taker);
            (idle, upstream, endpoint)
        })
    })
}

/// Closes some idle connections to the endpoint that has most of them.
fn close_idle(context: &Context, taker: Taker) -> bool {
    let most = idle_pools(context, taker).max_by_key(|(idle, ..)| *idle);
    let Some((idle, upstream, endpoint)) = most else {
        return false;
    };
    let closed = upstream.close_oldest_idle(endpoint, (idle / CLOSED_PART).max(1), taker);
    let counters = &context.counters.upstreams[upstream.index()];
    let counters = counters.endpoints[endpoint].get_or_init();
    counters.displaced.add(closed as u64);
    closed > 0
}
