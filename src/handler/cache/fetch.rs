//! Fetches for a cache. Each fetch is an exchange on its own task, with the cache in place of a
//! client.

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_cache::Object;
use evenkeel_cache::incoming::{Fetch, Released};
use evenkeel_cache::object::push_line;
use evenkeel_cache::validate::{is_withheld, push_conditions};
use evenkeel_proto::Scheme;
use evenkeel_proto::http1::{Parsed, parse_request};

use super::super::{mirror, proxy::forward};
use super::Cached;
use crate::exchange::store_side::{FetchNotes, FetchRequest, Purpose, StoreSide};
use crate::exchange::{ClientSide, Exchange, Progress};
use crate::net::{clock, tasks};
use crate::observe::access_log::Times;
use crate::observe::sessions::Track;

/// A fetch that a client's request has started.
pub(super) struct StartedFetch(Rc<RefCell<FetchNotes>>);

impl StartedFetch {
    /// Puts the state of the fetch into the log line of its client's exchange.
    pub fn note(&self, exchange: &mut Exchange<'_>) {
        let notes = self.0.borrow();
        let Some(fetched) = &notes.figures else {
            return;
        };
        let progress = &mut exchange.progress;
        let figures = &mut progress.figures;
        figures.upstream = fetched.upstream;
        figures.reason = fetched.reason;
        figures.attempts = fetched.attempts;
        figures.queued_behind = fetched.queued_behind;
        figures.times = Times {
            head: figures.times.head,
            ..fetched.times
        };
        figures.responded = fetched.responded;
        figures.phase = figures.phase.max(fetched.phase);
        figures.is_fetched = true;
        progress.endpoint = notes.endpoint.clone();
    }
}

/// Starts the fetch that an exchange needs. `answering` is a stored response that would answer
/// the exchange.
pub(super) fn begin(
    exchange: &Exchange<'_>,
    cached: &Cached<'_>,
    fetch: Fetch,
    answering: Option<&Object>,
    purpose: Purpose,
) -> StartedFetch {
    let notes = Rc::<RefCell<FetchNotes>>::default();
    let request = request(exchange, answering, &purpose.asked_about);
    let Some(request) = request.map(Rc::new) else {
        // The fetch is dropped, and so has failed.
        return StartedFetch(notes);
    };
    let (cache, caching) = (cached.cache.clone(), cached.caching.clone());
    let is_shared = answering.is_none() && cache.shared().is_some();
    let of_side = notes.clone();
    let context = exchange.context.clone();
    let client = exchange.client.for_fetch();
    let identity = exchange.progress.identity.of_copy(&request.head);
    let (route, proxying) = (cached.route, *cached.proxying);
    let user = exchange.user().map(Box::from);
    let rare = exchange.rare.as_ref();
    let set_fields = rare.and_then(|it| it.set_fields.clone());
    tasks::spawn(async move {
        if is_shared
            && cache
                .find_shared(fetch.key(), &request.view())
                .await
                .is_some()
        {
            return fetch.release(Released::Found);
        }
        let mut side = StoreSide::new(cache, caching, request.clone(), purpose, of_side, fetch);
        let timer = context.wheel.timer();
        timer.register_task().await;
        let mut progress = Progress::new(
            &context,
            &client,
            clock::now(),
            Default::default(),
            request.head.wire.end,
            &identity,
            Track::unlisted(),
        );
        progress.figures.route = Some(route as u32);
        let mut exchange = Exchange::new(
            &context,
            &client,
            ClientSide::Store(&mut side),
            timer,
            &request.bytes,
            &request.head,
            progress,
        );
        if user.is_some() || set_fields.is_some() {
            let rare = exchange.rare();
            (rare.user, rare.set_fields) = (user, set_fields);
        }
        if let Some(mirror) = &context.config().routes[route].mirror {
            mirror::copy(&mut exchange, route, mirror);
        }
        let outcome = forward(&mut exchange, &proxying).await;
        let (figures, endpoint) = exchange.conclude_fetch(outcome.end);
        side.conclude(figures, endpoint);
    });
    StartedFetch(notes)
}

/// The request of a fetch: a GET with the client's fields, except conditions and ranges, which
/// the cache answers itself. `None` if it is too long.
fn request(
    exchange: &Exchange<'_>,
    answering: Option<&Object>,
    asked_about: &[Object],
) -> Option<FetchRequest> {
    let (head, from) = (exchange.head, exchange.bytes);
    let mut bytes = Vec::with_capacity(head.wire.end + 256);
    bytes.extend_from_slice(b"GET ");
    bytes.extend_from_slice(head.path(from));
    if head.has_query() {
        bytes.push(b'?');
        bytes.extend_from_slice(head.query.of(from));
    }
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    push_line(&mut bytes, b"Host", head.host.of(from));
    for field in &head.fields {
        let name = field.name.of(from);
        if !field.kind.is_of_one_message() && !is_withheld(name) {
            push_line(&mut bytes, name, field.value.of(from));
        }
    }
    push_conditions(&mut bytes, answering, asked_about);
    bytes.extend_from_slice(b"\r\n");
    let mut head = exchange.context.heads.take();
    let is_whole = parse_request(&bytes, &mut head) == Ok(Parsed::Complete);
    let scheme: Scheme = exchange.client.scheme();
    is_whole.then_some(FetchRequest {
        head,
        bytes,
        scheme,
    })
}
