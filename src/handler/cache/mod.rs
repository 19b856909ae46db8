//! Answers from a route's cache, and fills it.
//!
//! ```text
//! request ─▶ found and fresh ─────────────────────────▶ hit
//!   │        found, stale, allowed ───────────────────▶ stale (and validated behind it)
//!   │        not for a cache ─────────────────────────▶ bypass: goes to the upstream
//!   └─▶ fetch: one for all who want the key ─▶ stored, confirmed, passed on or failed
//! ```
//!
//! A fetch is an exchange of its own ([`fetch`]), so that it depends on no client.

mod fetch;
mod purge;
mod send;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_cache::freshness::{GeneratedAt, OnError};
use evenkeel_cache::incoming::{Arrival, Follower, Joined, Released};
use evenkeel_cache::report::{Forward, Unanswered, ttl};
use evenkeel_cache::storing::NotStored;
use evenkeel_cache::validate::is_withheld;
use evenkeel_cache::{Key, Object, Request, RequestDirectives, Secret, Usable};
use evenkeel_policy::Instant;
use evenkeel_proto::{Credentials, Method};

use super::proxy::forward;
use super::{RequestFacts, mirror};
use crate::cache::Cache;
use crate::cache::disk::Found;
use crate::config::{Caching, Proxying};
use crate::exchange::store_side::Purpose;
use crate::exchange::{CacheEffect, Exchange, Gone, Next, Outcome, answer};
use crate::metrics::CacheResult;
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use fetch::StartedFetch;
use send::CacheOutcome;

/// Most rounds of lookup and fetch before a request goes to an endpoint on its own. Each further
/// round follows a fetch whose result is of no use to the request.
const MAX_ROUNDS: u32 = 3;

/// Bodies from this length on, in bytes, are sent from the disk if they are there too, although
/// memory has them. The kernel sends files without a copy.
const FILE_LEN: u64 = 1024 * 1024;

/// Longest wait for a cache's disk. After it the request continues as if nothing were stored.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

/// A request on a route that has a cache.
struct Cached<'a> {
    route: usize,
    proxying: &'a Proxying,
    caching: &'a Arc<Caching>,
    cache: &'a Arc<Cache>,
}

/// The way of a request on a route with a cache.
pub(super) enum Way {
    /// To an endpoint, as on a route without a cache.
    Past,
    /// Through the cache, with the key where it is known already.
    Through(Option<Key>),
}

/// The way of a request, as far as it can be known without a wait. A request that goes past the
/// cache pays next to nothing for it.
pub(super) fn way(exchange: &mut Exchange<'_>, caching: &Arc<Caching>) -> Way {
    let request = view(exchange);
    if request.head.method != Method::Get {
        return Way::Through(None);
    }
    let cache = &exchange.context.generation().caches[caching.store];
    let key = caching.rules.key.key(cache.memory.secret(), &request);
    let now = exchange.progress.arrived();
    let uncacheable = cache.uncacheable(&key, is_known(&request), now);
    if let Some(reason) = uncacheable
        && !request.has(b"cache-control")
        && cache.disk().is_none()
        && cache.memory.find(&key, &request).is_none()
    {
        let facts = RequestFacts::new(exchange);
        match bypassed(caching, &request, &facts) {
            Some(reason) => note(exchange, CacheResult::Bypass, reason),
            None => note(exchange, CacheResult::Miss, Unanswered::NotStored(reason)),
        }
        Way::Past
    } else {
        Way::Through(Some(key))
    }
}

/// Answers the request from the route's cache, or through it. `key` is the request's key, where
/// it is known already.
///
/// # Cancellation
/// Dropping the future abandons the exchange. A fetch that it has started continues as the route
/// says.
pub(super) async fn handle(
    exchange: &mut Exchange<'_>,
    route: usize,
    proxying: &Proxying,
    caching: &Arc<Caching>,
    key: Option<Key>,
) -> Outcome {
    let cached = Cached {
        route,
        proxying,
        caching,
        cache: &exchange.context.generation().caches[caching.store],
    };
    cached.answer(exchange, key).await
}

/// The request as the cache reads it.
fn view<'a>(exchange: &Exchange<'a>) -> Request<'a> {
    Request {
        head: exchange.head,
        bytes: exchange.bytes,
        scheme: exchange.client.scheme(),
    }
}

/// Notes that the cache does not answer, and why.
fn note(exchange: &mut Exchange<'_>, result: CacheResult, reason: Unanswered) {
    let figures = &mut exchange.progress.figures;
    figures.cache = Some(result);
    figures.unanswered = Some(reason);
}

/// Whether a request identifies its user.
fn is_known(request: &Request<'_>) -> bool {
    request.is_authorized() || request.has(b"cookie")
}

/// Why a request goes past the cache; `None` where it goes through the cache.
fn bypassed(
    caching: &Caching,
    request: &Request<'_>,
    facts: &RequestFacts<'_>,
) -> Option<Unanswered> {
    if request.head.wire.upgrade.is_some() {
        Some(Unanswered::Upgrade)
    } else if request.head.credentials == Credentials::OfConnection {
        Some(Unanswered::ConnectionCredentials)
    } else if caching.is_bypassed_by(facts) {
        Some(Unanswered::Rule)
    } else {
        let refused = caching.rules.may_answer(request).err();
        refused.map(Unanswered::NotStored)
    }
}

/// A cache's action on a request, for `explain`.
pub(crate) struct CachePlan {
    /// The parts of the cache key: the URL, and the route's additions.
    pub key: Vec<u8>,
    /// Why the cache is not asked.
    pub bypassed: Option<Unanswered>,
    /// The present state of the cache, in a running process.
    pub now: Option<CacheNow>,
}

/// The state of a cache for a request.
pub(crate) enum CacheNow {
    /// A response of this age, and its remaining freshness in seconds; below zero for a stale
    /// one.
    Stored {
        age: Duration,
        ttl_s: i64,
        usable: Usable,
    },
    /// Nothing in memory, and a response on the disk, which was not read.
    OnDisk,
    /// Nothing: the last response was not stored.
    NotStored(NotStored),
    /// Nothing.
    Nothing,
}

/// The action of `handle` on a request. `cache` is the one of a running process.
pub(crate) fn plan(
    caching: &Caching,
    cache: Option<&Cache>,
    facts: &RequestFacts<'_>,
    now: Instant,
) -> CachePlan {
    let request = Request {
        head: facts.head,
        bytes: facts.bytes,
        scheme: facts.scheme,
    };
    let secret = cache.map_or(Secret([0; 16]), |it| *it.memory.secret());
    let key = caching.rules.key.key(&secret, &request);
    let look = |cache: &Cache| match cache.memory.find(&key, &request) {
        Some(object) => {
            let asked = RequestDirectives::of(&request);
            let stored = object.stored(now);
            CacheNow::Stored {
                age: stored.age,
                ttl_s: ttl(&stored),
                usable: caching.rules.usable(&stored, &asked),
            }
        }
        None if cache.disk().is_some_and(|it| it.has(&key, &request)) => CacheNow::OnDisk,
        None => match cache.uncacheable(&key, is_known(&request), now) {
            Some(reason) => CacheNow::NotStored(reason),
            None => CacheNow::Nothing,
        },
    };
    CachePlan {
        bypassed: bypassed(caching, &request, facts),
        now: cache.map(look),
        key: key.bytes.into(),
    }
}

impl Cached<'_> {
    async fn answer(&self, exchange: &mut Exchange<'_>, key: Option<Key>) -> Outcome {
        let request = view(exchange);
        if let Some(from) = &self.caching.purge_from
            && purge::is_purge(exchange)
        {
            return if from.contains(exchange.client.peer.address) {
                purge::answer(self, exchange).await
            } else {
                purge::refuse(exchange).await
            };
        }
        let facts = RequestFacts::new(exchange);
        if let Some(reason) = bypassed(self.caching, &request, &facts) {
            return self.forward(exchange, CacheResult::Bypass, reason).await;
        }
        let asked = RequestDirectives::of(&request);
        let key = key.unwrap_or_else(|| {
            let secret = self.cache.memory.secret();
            self.caching.rules.key.key(secret, &request)
        });
        let mut is_confirmable = true;
        // A response that was fetched for this very request answers it, whatever it says of
        // reuse.
        let mut fetched = None;
        for _ in 0..MAX_ROUNDS {
            let now = exchange.progress.arrived();
            let found = match self.cache.memory.find(&key, &request) {
                Some(object) if self.is_better_sent_from_disk(&object) => {
                    let found = match self.find_on_disk(exchange, &key, &request).await {
                        Ok(found) => found.filter(|it| it.is_same(&object)),
                        Err(outcome) => return outcome,
                    };
                    Some(found.unwrap_or(Found::of(object)))
                }
                Some(object) => Some(Found::of(object)),
                None if self.cache.disk().is_none() => None,
                None => match self.find_on_disk(exchange, &key, &request).await {
                    Ok(found) => found,
                    Err(outcome) => return outcome,
                },
            };
            if let Some((born, why, is_first)) = fetched.take()
                && let Some(found) = found.as_ref().filter(|it| it.object.born() == born)
            {
                let told = CacheOutcome::fetched(&found.object, now, why, is_first);
                return send::stored(exchange, found, &told).await;
            }
            let stale = match found {
                None => None,
                Some(found) => match self.use_for(&found.object, &asked, &key, now) {
                    Use::Serve(told) => return send::stored(exchange, &found, &told).await,
                    Use::Refresh(told) => {
                        self.refresh(exchange, &key, &found);
                        return send::stored(exchange, &found, &told).await;
                    }
                    Use::Validate(on_error) => Some((found, on_error)),
                },
            };
            if asked.only_if_cached {
                let end = End::Failure(Failure::NotCached);
                note(exchange, CacheResult::Miss, Unanswered::NotCached);
                return answer::refuse(exchange, end, None).await;
            }
            if let Some(reason) = self.goes_alone(&request, &asked, &key, now) {
                return self.forward(exchange, CacheResult::Miss, reason).await;
            }
            let (asked_about, long) = if is_confirmable {
                self.asked_about(&key, stale.as_ref().map(|(found, _)| found))
            } else {
                (Vec::new(), None)
            };
            let fallback = stale.as_ref().filter(|(_, it)| *it == OnError::Serve);
            let why = match &stale {
                Some((found, _)) if self.is_fresh(&found.object, now) => Forward::Request,
                Some(_) => Forward::Stale,
                None if asked_about.is_empty() => Forward::UriMiss,
                None => Forward::VaryMiss,
            };
            let answering = stale.as_ref().filter(|_| is_confirmable);
            let answering = answering.map(|(found, _)| &found.object);
            let joined = match self.cache.fetches.join(&key, self.caching.waiters) {
                Joined::Alone => {
                    return self
                        .forward(exchange, CacheResult::Miss, Unanswered::NotShared)
                        .await;
                }
                Joined::Follow(follower) => Following {
                    follower,
                    begun: None,
                },
                Joined::Lead(mut fetch) => {
                    let follower = fetch.follow();
                    let purpose = Purpose {
                        asked_about,
                        long,
                        may_serve_stale: fallback.is_some(),
                        is_background: false,
                        is_partial: is_partial(&request),
                    };
                    let begun = fetch::begin(exchange, self, fetch, answering, purpose);
                    Following {
                        follower,
                        begun: Some(begun),
                    }
                }
            };
            let fallback = fallback.map(|(found, _)| found);
            let is_first = joined.begun.is_some();
            match self.follow(exchange, joined, fallback, why).await {
                Followed::Answered(outcome) => return outcome,
                Followed::Stale(found) => {
                    let told = CacheOutcome::stale(&found.object, now);
                    return send::stored(exchange, &found, &told).await;
                }
                Followed::Alone(reason) => {
                    return self.forward(exchange, CacheResult::Miss, reason).await;
                }
                Followed::LookAgain => {}
                Followed::Stored(born) => fetched = Some((born, why, is_first)),
                Followed::AskPlainly => is_confirmable = false,
            }
        }
        self.forward(exchange, CacheResult::Miss, Unanswered::NotShared)
            .await
    }

    /// Whether the kernel sends the object's body without a copy, if it is on the disk too.
    fn is_better_sent_from_disk(&self, object: &Object) -> bool {
        object.body_len() >= FILE_LEN && self.cache.disk().is_some()
    }

    /// The response on the disk for a request.
    ///
    /// # Errors
    /// The end of the exchange, if it ends meanwhile.
    async fn find_on_disk(
        &self,
        exchange: &mut Exchange<'_>,
        key: &Key,
        request: &Request<'_>,
    ) -> Result<Option<Found>, Outcome> {
        exchange.set_timeout(DISK_PATIENCE);
        let finding = self.cache.find_on_disk(key, request, clock::now());
        match exchange.while_client_stays(finding).await {
            Ok(found) => Ok(found),
            Err(Gone::Client) => Err(gone(exchange)),
            Err(Gone::TimedOut) => match exchange.context.cut_off() {
                None => Ok(None),
                Some(failure) => Err(answer::refuse(exchange, failure.into(), None).await),
            },
        }
    }

    /// The use of a stored object for a request.
    fn use_for(&self, object: &Object, asked: &RequestDirectives, key: &Key, now: Instant) -> Use {
        match self.caching.rules.usable(&object.stored(now), asked) {
            Usable::Fresh => Use::Serve(CacheOutcome::hit(object, now)),
            Usable::Accepted => Use::Serve(CacheOutcome::stale(object, now)),
            Usable::WhileRevalidating if self.cache.has_failed(key, now) => {
                Use::Serve(CacheOutcome::stale(object, now))
            }
            Usable::WhileRevalidating => Use::Refresh(CacheOutcome::stale(object, now)),
            Usable::AfterValidation { on_error } => {
                if on_error == OnError::Serve && self.cache.has_failed(key, now) {
                    Use::Serve(CacheOutcome::stale(object, now))
                } else {
                    Use::Validate(on_error)
                }
            }
        }
    }

    fn is_fresh(&self, object: &Object, now: Instant) -> bool {
        let nothing = RequestDirectives::default();
        self.caching.rules.usable(&object.stored(now), &nothing) == Usable::Fresh
    }

    /// Why a request without a usable stored response goes to an endpoint without a shared fetch.
    /// `None` where it fetches.
    fn goes_alone(
        &self,
        request: &Request<'_>,
        asked: &RequestDirectives,
        key: &Key,
        now: Instant,
    ) -> Option<Unanswered> {
        if request.head.method != Method::Get {
            return Some(Unanswered::Forward(Forward::Method));
        }
        if asked.no_store {
            return Some(Unanswered::NotStored(NotStored::RequestNoStore));
        }
        if let Some(reason) = self.cache.uncacheable(key, is_known(request), now) {
            return Some(Unanswered::NotStored(reason));
        }
        let least = self.caching.min_uses;
        let is_rare = least > 1 && self.cache.uses.count(key, now) < least;
        is_rare.then_some(Unanswered::MinUses)
    }

    /// Starts the validation of an object in the background, unless a fetch is under way.
    fn refresh(&self, exchange: &Exchange<'_>, key: &Key, found: &Found) {
        let Some(fetch) = self.cache.fetches.lead(key) else {
            return;
        };
        let (asked_about, long) = self.asked_about(key, Some(found));
        let purpose = Purpose {
            asked_about,
            long,
            may_serve_stale: true,
            is_background: true,
            is_partial: false,
        };
        fetch::begin(exchange, self, fetch, Some(&found.object), purpose);
    }

    /// The responses that an endpoint may confirm: the variants in memory, after a response found
    /// only on the disk. Returns the latter too, if its body is in a file.
    fn asked_about(&self, key: &Key, found: Option<&Found>) -> (Vec<Object>, Option<Found>) {
        let mut asked_about = self.cache.memory.variants(key);
        let is_in_memory = |found: &&Found| asked_about.iter().any(|it| found.is_same(it));
        let Some(found) = found.filter(|it| !is_in_memory(it)) else {
            return (asked_about, None);
        };
        asked_about.insert(0, found.object.clone());
        let long = found.body.is_some().then(|| found.clone());
        (asked_about, long)
    }

    /// Forwards the request past the cache.
    async fn forward(
        &self,
        exchange: &mut Exchange<'_>,
        result: CacheResult,
        reason: Unanswered,
    ) -> Outcome {
        note(exchange, result, reason);
        if let Some(effect) = self.effect(&view(exchange)) {
            exchange.rare().cache_effect = Some(effect);
        }
        if let Some(mirror) = &exchange.context.config().routes[self.route].mirror {
            mirror::copy(exchange, self.route, mirror);
        }
        forward(exchange, self.proxying).await
    }

    /// The effect on the cache of the response to a request that goes past it.
    fn effect(&self, request: &Request<'_>) -> Option<CacheEffect> {
        let head_of = match request.head.method {
            Method::Get => return None,
            Method::Head => {
                let secret = self.cache.memory.secret();
                Some(self.caching.rules.key.key(secret, request))
            }
            _ => None,
        };
        let (cache, caching) = (self.cache.clone(), self.caching.clone());
        Some(CacheEffect::new(cache, caching, head_of))
    }

    /// Waits for the head of a fetched response, and answers with it.
    async fn follow(
        &self,
        exchange: &mut Exchange<'_>,
        following: Following,
        fallback: Option<&Found>,
        why: Forward,
    ) -> Followed {
        let Following { follower, begun } = following;
        let _counted = self.cache.follow();
        // The client that started the fetch has no other way, unless there is a stale response.
        let patience = match (&begun, fallback) {
            (Some(_), None) => Duration::MAX,
            _ => self.caching.wait,
        };
        exchange.set_timeout(patience);
        let head = std::future::poll_fn(|cx| follower.poll_head(cx.waker()));
        let head = exchange.while_client_stays(head).await;
        if let Some(begun) = &begun {
            begun.note(exchange);
        }
        let released = match head {
            Err(Gone::Client) => return Followed::Answered(gone(exchange)),
            Err(Gone::TimedOut) => {
                return match (exchange.context.cut_off(), fallback) {
                    (Some(failure), _) => {
                        let end = End::Failure(failure);
                        Followed::Answered(answer::refuse(exchange, end, None).await)
                    }
                    (None, Some(found)) => Followed::Stale(found.clone()),
                    (None, None) => Followed::Alone(Unanswered::Wait),
                };
            }
            Ok(Ok(arrival)) => {
                return self
                    .answer_arriving(exchange, follower, begun, &arrival, why)
                    .await;
            }
            Ok(Err(released)) => released,
        };
        match released {
            Released::NotStored(reason) => Followed::Alone(Unanswered::NotStored(reason)),
            Released::Found => Followed::LookAgain,
            Released::Unconfirmed => Followed::AskPlainly,
            Released::Renewed { object, body } if object.answers(&view(exchange)) => {
                let told = CacheOutcome::renewed(
                    &object,
                    exchange.progress.arrived(),
                    why,
                    begun.is_some(),
                );
                Followed::Answered({
                    let found = Found {
                        body,
                        ..Found::of(object)
                    };
                    send::stored(exchange, &found, &told).await
                })
            }
            Released::Renewed { .. } => Followed::LookAgain,
            Released::Failed(code) => match (fallback, failure_of(code)) {
                (None, Some(end)) => {
                    // The failure is the same as without the cache.
                    let figures = &mut exchange.progress.figures;
                    figures.upstream = Some(self.proxying.upstream as u32);
                    figures.is_fetched = true;
                    Followed::Answered(answer::refuse(exchange, end, None).await)
                }
                (Some(found), _) => Followed::Stale(found.clone()),
                (None, None) => Followed::Alone(Unanswered::FetchFailed),
            },
        }
    }

    /// Answers with a response as it arrives.
    async fn answer_arriving(
        &self,
        exchange: &mut Exchange<'_>,
        follower: Follower,
        begun: Option<StartedFetch>,
        arrival: &Arrival,
        why: Forward,
    ) -> Followed {
        let request = view(exchange);
        let is_first = begun.is_some();
        if !is_first && !arrival.head.answers(&request) {
            return Followed::Alone(Unanswered::Forward(Forward::VaryMiss));
        }
        if is_partial(&request) {
            // The parts for the client are known only once the whole body is there.
            exchange.set_timeout(self.caching.wait);
            let end = std::future::poll_fn(|cx| follower.poll_end(cx.waker()));
            return match exchange.while_client_stays(end).await {
                Ok(true) => Followed::Stored(arrival.born()),
                Ok(false) | Err(Gone::TimedOut) => Followed::Alone(Unanswered::NotShared),
                Err(Gone::Client) => Followed::Answered(gone(exchange)),
            };
        }
        let told = CacheOutcome::arriving(&follower, arrival, why, is_first);
        let outcome = send::arriving(exchange, follower, arrival, &told).await;
        if let Some(begun) = &begun {
            begun.note(exchange);
        }
        Followed::Answered(outcome)
    }
}

/// The use of a stored object.
enum Use {
    Serve(CacheOutcome),
    /// Serve it, and validate it in the background.
    Refresh(CacheOutcome),
    Validate(OnError),
}

/// A request that follows a fetch.
struct Following {
    follower: Follower,
    /// The fetch that the request has started, if it is the first.
    begun: Option<StartedFetch>,
}

/// The result of following a fetch.
enum Followed {
    Answered(Outcome),
    /// The endpoints fail: serve this stale response.
    Stale(Found),
    /// The request goes to an endpoint alone, for this reason.
    Alone(Unanswered),
    LookAgain,
    /// The fetched response is stored; it was new at this moment.
    Stored(GeneratedAt),
    /// Ask the endpoint again, without conditions.
    AskPlainly,
}

/// The client has left.
fn gone(exchange: &Exchange<'_>) -> Outcome {
    let end = End::Failure(Failure::ClientGone);
    Outcome::new(end, Next::Close, exchange.bytes.len())
}

/// Whether a request has conditions or ranges, which the cache answers itself.
fn is_partial(request: &Request<'_>) -> bool {
    let mut fields = request.head.fields.iter();
    fields.any(|field| is_withheld(field.name.of(request.bytes)))
}

/// Why a fetch failed, where the failure holds for all followers.
fn failure_of(code: Option<u16>) -> Option<End> {
    use Failure::{ClientGone, GenerationTimeout, Stopped};
    let end = End::all().nth(code?.into())?;
    let is_for_all = !matches!(
        end,
        End::Complete | End::Tunnel | End::Failure(ClientGone | GenerationTimeout | Stopped)
    );
    is_for_all.then_some(end)
}
