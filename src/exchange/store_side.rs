//! The client's side of a fetch: the cache, which takes an endpoint's response for all followers.
//!
//! Otherwise the exchange is like any other: it waits in the queue, is retried and has timeouts.
//! It ends when nobody wants the response any more.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use evenkeel_cache::freshness::{Lifetime, is_failure};
use evenkeel_cache::incoming::{Arrival, Fetch, Released};
use evenkeel_cache::object::StoredHead;
use evenkeel_cache::storing::{NotStored, Received};
use evenkeel_cache::validate::{Renewal, Renewed, confirmed};
use evenkeel_cache::{Object, Request, Response, Rules};
use evenkeel_policy::Instant;
use evenkeel_proto::{BodyFraming, RequestHead, ResponseHead, Scheme};

use super::Progress;
use crate::cache::Cache;
use crate::cache::disk::Found;
use crate::config::Caching;
use crate::metrics::end::End;
use crate::net::clock;
use crate::net::pipe::Pipe;
use crate::net::stream::Follow;
use crate::observe::access_log::Figures;
use crate::upstream::Endpoint;

/// The request of a fetch.
#[derive(Debug)]
pub struct FetchRequest {
    /// Its head.
    pub head: Box<RequestHead>,
    /// The buffer of the head's spans.
    pub bytes: Vec<u8>,
    /// The scheme of the client's request.
    pub scheme: Scheme,
}

impl FetchRequest {
    /// The request as a cache reads it.
    pub fn view(&self) -> Request<'_> {
        Request {
            head: &self.head,
            bytes: &self.bytes,
            scheme: self.scheme,
        }
    }
}

/// The purpose of a fetch.
#[derive(Debug)]
pub struct Purpose {
    /// The stored responses that the endpoint is asked to confirm, the newest first.
    pub asked_about: Vec<Object>,
    /// The first of them with its file, if its body is in a file.
    pub long: Option<Found>,
    /// Whether a stale response may be served if the endpoints fail.
    pub may_serve_stale: bool,
    /// Whether the fetch has no followers, as the stored response was served.
    pub is_background: bool,
    /// Whether the client's request has conditions or ranges. It then can't use a response that
    /// is not stored.
    pub is_partial: bool,
}

/// Results of a fetch, for the log line of the client that started it.
#[derive(Debug, Default)]
pub struct FetchNotes {
    /// The figures of the fetch.
    pub figures: Option<Figures>,
    /// The endpoint of the last attempt.
    pub endpoint: Option<Rc<Endpoint>>,
}

/// The cache's side of an exchange.
#[derive(Debug)]
pub struct StoreSide {
    cache: Arc<Cache>,
    caching: Arc<Caching>,
    request: Rc<FetchRequest>,
    purpose: Purpose,
    notes: Rc<RefCell<FetchNotes>>,
    asked: Instant,
    /// `None` once there are no followers.
    fetch: Option<Fetch>,
    /// The last head, and its meaning.
    taken: RefCell<Option<StoreDecision>>,
}

/// The meaning of a head.
#[derive(Debug)]
enum StoreDecision {
    /// An interim response.
    Interim,
    /// A response that is stored.
    Stored(Arrival),
    /// A response that is not stored.
    Passed(Arrival, NotStored),
    /// A stored response is still valid; with its file, if its body is in one.
    Renewed(Renewed, Option<Found>),
    /// A stored response is still valid, but none of those in the question.
    Unconfirmed,
    /// The endpoint fails, and the stored response is served.
    Failed,
}

impl StoreSide {
    /// The side of a fetch that starts now, with the route's cache settings.
    pub fn new(
        cache: Arc<Cache>,
        caching: Arc<Caching>,
        request: Rc<FetchRequest>,
        purpose: Purpose,
        notes: Rc<RefCell<FetchNotes>>,
        fetch: Fetch,
    ) -> Self {
        StoreSide {
            cache,
            caching,
            request,
            purpose,
            notes,
            asked: clock::now(),
            fetch: Some(fetch),
            taken: RefCell::default(),
        }
    }

    fn rules(&self) -> &Rules {
        &self.caching.rules
    }

    /// Whether the fetch fails where it would have to wait, as there is a stored response to
    /// serve.
    pub(super) fn may_serve_stale(&self) -> bool {
        self.purpose.may_serve_stale
    }

    /// Takes a head at the front of `bytes`, which arrived at `unix_s`. It replaces an earlier
    /// head.
    pub(super) fn take_head(&self, bytes: &[u8], head: &ResponseHead, unix_s: u64) {
        let taken = if head.status < 200 {
            StoreDecision::Interim
        } else {
            self.judge(&Response { head, bytes }, unix_s)
        };
        self.taken.replace(Some(taken));
    }

    fn judge(&self, response: &Response<'_>, unix_s: u64) -> StoreDecision {
        let received = Received {
            asked: self.asked,
            arrived: clock::now(),
            unix_s,
        };
        let (rules, secret) = (self.rules(), self.cache.memory.secret());
        let request = &self.request.view();
        if response.head.status == 304
            && let Some(fetch) = &self.fetch
            && !self.purpose.asked_about.is_empty()
        {
            let asked_about = &self.purpose.asked_about;
            let renewed = confirmed(asked_about, response).and_then(|object| {
                let long = self.purpose.long.as_ref();
                let long = long.filter(|_| std::ptr::eq(object, &raw const asked_about[0]));
                let renewal = Renewal {
                    rules,
                    secret,
                    key: fetch.key(),
                    request,
                    response,
                    received: &received,
                    seen: fetch.seen(),
                };
                Some(StoreDecision::Renewed(
                    renewal.apply(object)?,
                    long.cloned(),
                ))
            });
            return renewed.unwrap_or(StoreDecision::Unconfirmed);
        }
        if self.purpose.may_serve_stale && is_failure(response.head.status) {
            return StoreDecision::Failed;
        }
        let announced_len = match response.head.wire.framing {
            BodyFraming::None => Some(0),
            BodyFraming::Length { bytes } => Some(bytes),
            _ => None,
        };
        let arrival = |head, lifetime| Arrival {
            head,
            lifetime,
            received,
            announced_len,
        };
        let stored = self.may_store(rules, request, response, &received, announced_len);
        let stored = stored.and_then(|lifetime| {
            let head = StoredHead::of(secret, request, response, unix_s);
            Ok(arrival(head.ok_or(NotStored::VaryStar)?, lifetime))
        });
        match stored {
            Ok(arrival) => StoreDecision::Stored(arrival),
            Err(reason) => {
                let head = StoredHead::passing(response);
                StoreDecision::Passed(arrival(head, Lifetime::default()), reason)
            }
        }
    }

    fn may_store(
        &self,
        rules: &Rules,
        request: &Request<'_>,
        response: &Response<'_>,
        received: &Received,
        announced_len: Option<u64>,
    ) -> Result<Lifetime, NotStored> {
        let lifetime = rules.may_store(request, response, received)?;
        announced_len.map_or(Ok(()), |len| self.cache.takes(len))?;
        Ok(lifetime)
    }

    /// Passes the response with the last head to the followers.
    pub(super) fn begin_response(&mut self, progress: &Progress<'_>) {
        let taken = self.taken.take();
        if matches!(taken, None | Some(StoreDecision::Interim)) {
            return;
        }
        self.note(progress.figures, progress.endpoint.clone());
        let now = clock::now();
        let Some(fetch) = &mut self.fetch else {
            return;
        };
        let released = match taken {
            None | Some(StoreDecision::Interim) => return,
            Some(StoreDecision::Stored(arrival)) => {
                self.cache.note_stored(fetch.key());
                let announced = arrival.announced_len;
                fetch.arrive(arrival);
                let more = announced.unwrap_or(0);
                return self.cache.spool_if_needed(fetch, more, announced);
            }
            Some(StoreDecision::Passed(arrival, reason)) => {
                if !is_failure(arrival.head.status) {
                    self.cache.note_not_stored(fetch.key(), reason, now);
                }
                if !self.purpose.is_partial && !self.purpose.is_background {
                    return fetch.pass(arrival, reason);
                }
                Released::NotStored(reason)
            }
            Some(StoreDecision::Renewed(renewed, long)) => {
                self.cache.note_stored(fetch.key());
                match renewed.may_keep {
                    Ok(()) => self
                        .cache
                        .renew(fetch.key(), &renewed.object, long.as_ref()),
                    Err(_) => self.cache.remove(fetch.key()),
                }
                Released::Renewed {
                    object: renewed.object,
                    body: long.and_then(|it| it.body),
                }
            }
            Some(StoreDecision::Unconfirmed) => Released::Unconfirmed,
            Some(StoreDecision::Failed) => {
                self.cache.note_failed(fetch.key(), now);
                Released::Failed(None)
            }
        };
        if let Some(fetch) = self.fetch.take() {
            fetch.release(released);
        }
    }

    fn note(&self, figures: Figures, endpoint: Option<Rc<Endpoint>>) {
        self.notes.replace(FetchNotes {
            figures: Some(figures),
            endpoint,
        });
    }

    /// Takes a part of the body.
    fn poll_append(&mut self, waker: &Waker, bytes: &[u8]) -> Poll<usize> {
        match &mut self.fetch {
            Some(fetch) => {
                let most = match self.caching.rules.max_body_bytes {
                    0 => u64::MAX,
                    most => most,
                };
                let before = fetch.given_up();
                self.cache.spool_if_needed(fetch, bytes.len() as u64, None);
                let appended = fetch.poll_append(bytes, most, waker);
                if before.is_none()
                    && let Some(reason) = fetch.given_up()
                {
                    // Nobody waits for the next part.
                    self.cache
                        .note_not_stored(fetch.key(), reason, clock::now());
                }
                appended
            }
            // Nobody wants the response.
            None => Poll::Ready(bytes.len()),
        }
    }

    /// Ready when nobody wants the response any more.
    pub(super) fn poll_broken(&self, cx: &TaskContext<'_>) -> Poll<()> {
        match &self.fetch {
            None => Poll::Ready(()),
            Some(_) if self.purpose.is_background => Poll::Pending,
            Some(fetch) if self.caching.finish && fetch.is_storing() => Poll::Pending,
            Some(fetch) => fetch.poll_abandoned(cx.waker()),
        }
    }

    /// Notes the figures of the exchange, which has ended.
    pub fn conclude(mut self, figures: Figures, endpoint: Option<Rc<Endpoint>>) {
        let end = figures.end;
        self.note(figures, endpoint);
        let Some(fetch) = self.fetch.take() else {
            return;
        };
        let now = clock::now();
        let key = fetch.key().clone();
        if end == End::Complete && fetch.has_arrived() {
            match self.cache.finish(fetch) {
                Ok(()) => {}
                Err(reason) => self.cache.note_not_stored(&key, reason, now),
            }
        } else {
            if self.purpose.may_serve_stale || self.purpose.is_background {
                self.cache.note_failed(&key, now);
            }
            fetch.release(Released::Failed(u16::try_from(end.index()).ok()));
        }
    }
}

/// The methods of a carrier: see `Carrier`. The request has no body.
impl StoreSide {
    pub(super) fn can_splice(&self) -> bool {
        false
    }

    pub(super) fn poll_read_ready(&self, _: &TaskContext<'_>) -> Poll<()> {
        Poll::Pending
    }

    pub(super) fn poll_read(&self, _: &TaskContext<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(0))
    }

    pub(super) fn poll_read_into(
        &self,
        _: &TaskContext<'_>,
        _: &mut Pipe,
        _: u64,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    pub(super) fn poll_write_ready(&self, _: &TaskContext<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    pub(super) fn poll_write(
        &mut self,
        cx: &TaskContext<'_>,
        bytes: &[u8],
        _: Follow,
    ) -> Poll<io::Result<usize>> {
        self.poll_append(cx.waker(), bytes).map(Ok)
    }

    pub(super) fn try_write(&mut self, bytes: &[u8], _: Follow) -> Option<io::Result<usize>> {
        match self.poll_append(Waker::noop(), bytes) {
            Poll::Ready(len) => Some(Ok(len)),
            Poll::Pending => None,
        }
    }

    pub(super) fn poll_write_from(
        &self,
        _: &TaskContext<'_>,
        _: &mut Pipe,
        _: Follow,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    pub(super) fn close_notify(&self) -> io::Result<()> {
        Ok(())
    }
}
