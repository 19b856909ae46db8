//! Forwards one request to an upstream: makes attempts until one brings a response, or HTTP
//! permits no other.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::dispatch::Pin;
use evenkeel_policy::endpoint::Tried;
use evenkeel_policy::observation::Observed;

use super::attempt::{Attempt, Attempting, Requests, Retry, UpstreamConnection};
use super::buffering::{self, ReadAhead};
use super::outcome::{Outcome, Unanswered};
use super::queueing::{Queueing, Unserved};
use super::request::RequestBody;
use super::request_key::{Keyed, with_key_or_client};
use super::sticky;
use super::variables::Values;
use super::watch::ClientWatch;
use super::{Context, Exchange, Next, answer, box_cold};
use crate::config::Proxying;
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use crate::observe::access_log::{Phase, Reason};
use crate::upstream::{Chosen, Endpoint, NoSlot, Refusal, Slot, SlotCriteria, Upstream};

/// Forwards the request, and sends the client a response: an endpoint's, or a refusal with the
/// reason. `key` is for balancers by key.
///
/// # Cancellation
/// Dropping the future abandons the exchange and frees its slot.
pub fn forward(
    exchange: &mut Exchange<'_>,
    proxying: &Proxying,
    key: u64,
) -> impl Future<Output = Outcome> {
    async move {
        let context = exchange.context;
        let upstream = context.upstream(proxying.upstream);
        exchange.progress.set_upstream(upstream.index());
        let total = exchange.patience(upstream).total;
        exchange.total_deadline = total.map_or(u64::MAX, |total| context.wheel.deadline(total));
        exchange.note_call(upstream);
        let is_closed = context
            .generation()
            .maintenance
            .has_upstream(upstream.index());
        let unanswered = match &read_with_head(exchange) {
            _ if is_closed => Unanswered::from(End::Failure(Failure::Maintenance)),
            Ok(body) => {
                let body_len = body.consumed() - exchange.head.wire.end;
                exchange.progress.figures.bytes_in += body_len as u64;
                let wanted = wanted(exchange, upstream, proxying, key);
                upstream.count_request();
                let forwarded = if body.is_whole()
                    || !buffering::reads_ahead(exchange, upstream, body)
                {
                    try_endpoints::<Requests, _>(exchange, &wanted, upstream, body, outcome).await
                } else {
                    box_cold(read_ahead(exchange, wanted, upstream, body)).await
                };
                match forwarded {
                    Ok(outcome) => return outcome,
                    Err(unanswered) => unanswered,
                }
            }
            Err(end) => Unanswered::from(*end),
        };
        let Unanswered { end, unread } = unanswered;
        if end == End::Complete {
            return box_cold(answer::pass_status(exchange)).await;
        }
        if end == End::Failure(Failure::UpstreamStale) {
            // The client repeats a request without a response.
            return Outcome::new(end, Next::Close, exchange.bytes.len());
        }
        box_cold(answer::refuse(exchange, end, unread)).await
    }
}

/// Frees the slot, as the response was relayed.
fn outcome(_slot: Slot<'_>, outcome: Outcome) -> Outcome {
    outcome
}

/// The terms of the exchange to its upstream.
pub(super) fn wanted(
    exchange: &Exchange<'_>,
    upstream: &Upstream,
    proxying: &Proxying,
    key: u64,
) -> SlotCriteria {
    let pinned = &exchange.context.pinned;
    SlotCriteria {
        key,
        pinned_to: if pinned.is_empty() {
            sticky::session(exchange, upstream)
        } else {
            let own = pinned.endpoint_of(exchange.client.session, upstream);
            own.map(Pin::Connection)
                .or_else(|| sticky::session(exchange, upstream))
        },
        lane: proxying.lane.map(|lane| lane as u32),
        priority: proxying.priority,
        arrived: exchange.progress.arrived(),
    }
}

/// The line of its key, where keys share the upstream's queue.
#[cold]
fn line_of(exchange: &Exchange<'_>, upstream: &Upstream) -> u64 {
    let Some(by) = &upstream.config().queue.fair_by else {
        return 0;
    };
    let values = Values::of(exchange);
    let address = exchange.client.remote().address;
    let room = &mut exchange.context.scratch.borrow_mut();
    let line = |key: &[u8]| upstream.line_of(key);
    with_key_or_client(Keyed::by_network(by), &values, address, room, line).unwrap_or_default()
}

/// Checks the first part of the body, so that no malformed request reaches an endpoint.
fn read_with_head<'a>(exchange: &Exchange<'a>) -> Result<RequestBody<'a>, End> {
    let (head, bytes) = (exchange.head, exchange.bytes);
    let mut decoder = exchange.request_decoder(head.wire.framing);
    let consumed = decoder.advance(&bytes[head.wire.end..])?.consumed;
    let announced = head.announced_len().or_else(|| decoder.announced_bytes());
    if !exchange
        .listener()
        .limits
        .allow_body(announced.unwrap_or(0))
    {
        return Err(Failure::BodyTooLarge.into());
    }
    Ok(RequestBody {
        head,
        bytes,
        valid_len: head.wire.end + consumed,
        decoder,
        server_name: None,
    })
}

/// Reads the body before a slot is taken, as far as `buffer.request` permits. Then continues as
/// with a body that came with its head.
///
/// # Errors
/// The same as for [`try_endpoints`].
async fn read_ahead(
    exchange: &mut Exchange<'_>,
    mut wanted: SlotCriteria,
    upstream: &Upstream,
    body: &RequestBody<'_>,
) -> Result<Outcome, Unanswered> {
    let read = ReadAhead::read(exchange, upstream, body).await?;
    // Its place in the queue counts from now.
    wanted.arrived = exchange.progress.arrived();
    let Some(ahead) = read else {
        return try_endpoints::<Requests, _>(exchange, &wanted, upstream, body, outcome).await;
    };
    let tried = {
        let body = ahead.body(body);
        try_endpoints::<Requests, _>(exchange, &wanted, upstream, &body, outcome).await
    };
    match tried {
        Ok(mut outcome) => {
            ahead.settle(body, &mut outcome);
            Ok(outcome)
        }
        Err(unanswered) => Err(ReadAhead::unanswered(
            unanswered,
            Some(ahead),
            &mut exchange.progress,
        )),
    }
}

/// Tries one endpoint after another, until an attempt does not fail. `finished` turns that
/// attempt and its slot into the result.
///
/// # Errors
/// No response has begun.
pub(super) fn try_endpoints<'u, A: Attempting, T>(
    exchange: &mut Exchange<'_>,
    wanted: &SlotCriteria,
    upstream: &'u Upstream,
    body: &RequestBody<'_>,
    finished: impl FnOnce(Slot<'u>, A::Done) -> T,
) -> impl Future<Output = Result<T, Unanswered>> {
    async move {
        let mut watch = ClientWatch::of(exchange, wanted.arrived);
        if body.is_followed() {
            watch.leave_fin_to_next();
        }
        let mut attempts = Attempts::new(upstream);
        loop {
            let slot = 'slot: {
                if let Some(slot) = attempts.kept.take() {
                    break 'slot slot;
                }
                let waiting = {
                    let acquired = poll_fn(|cx| {
                        let now = attempts.now(wanted);
                        let tried = attempts.tried.entries();
                        let line = || line_of(exchange, upstream);
                        Poll::Ready(upstream.acquire(wanted, tried, now, cx.waker(), line))
                    });
                    match acquired.await {
                        Ok(slot) => break 'slot slot,
                        Err(NoSlot::Waits(_)) if exchange.side.is_impatient() => {
                            let end = End::Failure(Failure::Saturated);
                            return Err(attempts.failure_behind(end).into());
                        }
                        Err(NoSlot::Waits(waiting)) => waiting,
                        Err(NoSlot::Refused(refusal)) => {
                            return Err(attempts.failure_behind(refused_end(refusal)).into());
                        }
                    }
                };
                let deadline = attempts.queue_deadline(exchange.context);
                let queue = Queueing {
                    exchange: &mut *exchange,
                    body,
                    watch: &mut watch,
                    deadline,
                };
                match box_cold(queue.wait(waiting)).await {
                    Ok(slot) => slot,
                    Err(Unserved::Refused(refusal)) => {
                        return Err(attempts.failure_behind(refused_end(refusal)).into());
                    }
                    Err(Unserved::Ended(end)) => return Err(end.into()),
                }
            };
            count_attempt(exchange, &slot, attempts.connection);
            let attempt = A::attempt(exchange, &slot, body, attempts.connection, &mut watch);
            let (end, retry, blamed, unread) = match attempt.await {
                Attempt::Finished(done) => return Ok(finished(slot, done)),
                Attempt::Failed {
                    end,
                    retry,
                    is_blamed,
                    unread,
                } => (end, retry, is_blamed, unread),
            };
            let context = exchange.context;
            let is_in_order = matches!(retry, Retry::Untouched | Retry::Ended);
            if end.is_endpoint_fault() && !is_in_order {
                slot.counters().failures.add(1);
            }
            if blamed {
                slot.observe(Observed::Failed, clock::now());
            }
            let retry = match retry {
                // Nobody waits for a copy.
                Retry::Elsewhere if exchange.side.is_copy() => Retry::Never,
                retry => retry,
            };
            match attempts.go_on(context, slot, end, retry) {
                GoOn::Yes => {}
                // Yields to other tasks before the next round.
                GoOn::Around => tokio::task::yield_now().await,
                GoOn::Busy => {
                    exchange.progress.figures.attempts -= 1;
                    tokio::task::yield_now().await;
                }
                GoOn::No => return Err(Unanswered { end, unread }),
            }
        }
    }
}

/// Whether to make another attempt.
enum GoOn {
    Yes,
    /// At an endpoint that was already tried.
    Around,
    /// At any endpoint with room: there was no attempt yet.
    Busy,
    No,
}

/// Pause before an exchange retries an endpoint that refused a connection: the first and the
/// longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Endpoints that an exchange has tried, and skips for now.
///
/// Invariant: each endpoint is held, so that its id is not reused meanwhile. Few exchanges have
/// any.
#[derive(Default)]
struct TriedEndpoints(Option<Box<TriedAndHeld>>);

#[derive(Default)]
struct TriedAndHeld {
    entries: Vec<Tried>,
    /// The endpoints of `entries`, in the same order.
    held: Vec<Rc<Endpoint>>,
}

impl TriedEndpoints {
    fn entries(&self) -> &[Tried] {
        self.0.as_ref().map_or(&[], |it| &it.entries)
    }

    /// Adds the slot's endpoint.
    fn add(&mut self, slot: &Slot<'_>, tried: Tried) {
        let TriedAndHeld { entries, held } = &mut **self.0.get_or_insert_default();
        entries.push(tried);
        held.push(slot.endpoint().clone());
    }

    /// Removes all entries except these.
    fn keep(&mut self, is_kept: impl Fn(&Tried) -> bool) {
        if let Some(tried) = &mut self.0 {
            let mut kept = tried.entries.iter().map(&is_kept);
            tried.held.retain(|_| kept.next().unwrap_or(true));
            tried.entries.retain(is_kept);
        }
    }
}

/// Most times that an endpoint may report an untouched request, before this counts as a retry.
const UNTOUCHED_MAX: u32 = 3;
/// The same for connections that end while they serve others: each of them made progress.
const ENDED_MAX: u32 = 100;

/// The attempts of one exchange so far.
struct Attempts<'a> {
    upstream: &'a Upstream,
    tried: TriedEndpoints,
    /// The pause after the next refused connection.
    pause: Duration,
    retries_left: u32,
    /// Number of untouched requests so far.
    untouched: u32,
    /// Whether no attempt was made yet.
    is_first: bool,
    last_failure: Option<End>,
    connection: UpstreamConnection,
    /// The slot for the next attempt, where it stays at its endpoint.
    kept: Option<Slot<'a>>,
    /// The tick until which it may wait for a slot, after its first wait.
    queue_deadline: Option<u64>,
}

impl<'a> Attempts<'a> {
    fn new(upstream: &'a Upstream) -> Self {
        Attempts {
            upstream,
            tried: TriedEndpoints::default(),
            pause: FIRST_PAUSE,
            retries_left: upstream.config().retries,
            untouched: 0,
            is_first: true,
            last_failure: None,
            connection: UpstreamConnection::AnyIdle,
            kept: None,
            queue_deadline: None,
        }
    }

    /// The present time; for the first attempt, that of the request.
    fn now(&mut self, wanted: &SlotCriteria) -> Instant {
        if std::mem::take(&mut self.is_first) {
            wanted.arrived
        } else {
            clock::now()
        }
    }

    fn queue_deadline(&mut self, context: &Context) -> u64 {
        let timeout = self.upstream.config().queue.timeout;
        *self
            .queue_deadline
            .get_or_insert_with(|| context.wheel.deadline(timeout))
    }

    /// An earlier failure, where `end` says only that there is no slot.
    fn failure_behind(&self, end: End) -> End {
        match end {
            End::Failure(Failure::NoEndpoint | Failure::Saturated | Failure::Busy) => {
                self.last_failure.unwrap_or(end)
            }
            end => end,
        }
    }

    /// Decides on the next attempt.
    fn go_on(&mut self, context: &Context, slot: Slot<'a>, end: End, retry: Retry) -> GoOn {
        if retry == Retry::WhereThereIsRoom {
            // A full backlog means a busy endpoint: it is neither a failure nor a retry.
            let now = clock::now();
            // The same check as in `Slot::connect`, so that exactly one of the two waits for
            // room.
            if slot.has_room_elsewhere(now) {
                self.refused_by(&slot, now);
            }
            return GoOn::Busy;
        }
        let most = match retry {
            Retry::Untouched => UNTOUCHED_MAX,
            Retry::Ended => ENDED_MAX,
            _ => 0,
        };
        if self.untouched < most {
            // This costs nothing: the exchange keeps its slot.
            self.untouched += 1;
            self.last_failure = Some(end);
            self.connection = UpstreamConnection::AnyIdle;
            self.kept = Some(slot);
            return GoOn::Yes;
        }
        let is_held = self.is_held(context, end);
        let is_allowed = match retry {
            Retry::OnNewConnection => true,
            Retry::Elsewhere | Retry::Untouched | Retry::Ended => self.retries_left > 0 || is_held,
            _ => false,
        };
        if !is_allowed {
            return GoOn::No;
        }
        let now = clock::now();
        // An endpoint without connections is soon found unreachable. For a held exchange, that
        // bounds the attempts.
        if !is_held && !self.upstream.may_retry(now) {
            let counters = &context.generation().counters.upstreams[self.upstream.index()];
            counters.retries_refused.add(1);
            return GoOn::No;
        }
        self.last_failure = Some(end);
        if retry == Retry::OnNewConnection {
            // A stale connection says nothing of the endpoint: the exchange keeps its slot.
            self.connection = UpstreamConnection::New;
            self.kept = Some(slot);
            return GoOn::Yes;
        }
        self.connection = UpstreamConnection::AnyIdle;
        self.retries_left = self.retries_left.saturating_sub(1);
        if is_unreachable(end) {
            self.refused_by(&slot, now)
        } else {
            let endpoint = slot.id();
            self.tried.add(&slot, Tried::Sent { endpoint });
        }
        if self.upstream.has_untried(self.tried.entries(), now) {
            return GoOn::Yes;
        }
        // No endpoint is left: starts another round over all of them.
        self.tried.keep(|it| matches!(it, Tried::Refused { .. }));
        GoOn::Around
    }

    /// Skips the endpoint, as nothing was sent to it. It is tried again after a pause, or once a
    /// connection to it opens.
    fn refused_by(&mut self, slot: &Slot<'_>, now: Instant) {
        let endpoint = slot.id();
        self.tried.keep(|it| it.endpoint() != endpoint);
        self.tried.add(slot, slot.refused_until(now + self.pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Whether the exchange waits in the queue and does not fail: no endpoint can be reached, and
    /// none has received a part of it.
    fn is_held(&mut self, context: &Context, end: End) -> bool {
        let queue = &self.upstream.config().queue.settings;
        is_unreachable(end)
            && queue.hold
            && queue.max > 0
            && context.wheel.now() < self.queue_deadline(context)
    }
}

fn is_unreachable(end: End) -> bool {
    use Failure::{ConnectFailed, ConnectTimeout, UpstreamCertificate, UpstreamTls};
    matches!(
        end,
        End::Failure(ConnectFailed | ConnectTimeout | UpstreamCertificate | UpstreamTls)
    )
}

fn count_attempt(exchange: &mut Exchange<'_>, slot: &Slot<'_>, connection: UpstreamConnection) {
    let (context, progress) = (exchange.context, &mut exchange.progress);
    progress.endpoint = Some(slot.endpoint().clone());
    progress.figures.attempts += 1;
    // The connect time so far belongs to an earlier endpoint.
    progress.figures.times.connect = None;
    let track = &progress.track;
    track.set_attempt(slot.id(), progress.figures.attempts);
    progress.figures.phase = Phase::Connect;
    progress.figures.reason = Some(match slot.chosen() {
        _ if connection == UpstreamConnection::New => Reason::Kept,
        _ if progress.figures.attempts > 1 => Reason::Retry,
        Chosen::First => Reason::Picked,
        Chosen::Next => Reason::Next,
        Chosen::Granted => Reason::Queued,
        Chosen::Trial => Reason::Trial,
        Chosen::Pinned => Reason::Pinned,
        Chosen::Sticky => Reason::Sticky,
    });
    slot.counters().attempts.add(1);
    if progress.figures.attempts > 1 {
        let upstream = slot.upstream().index();
        context.generation().counters.upstreams[upstream]
            .retries
            .add(1);
    }
}

/// The end of an exchange that an upstream refuses.
pub(crate) fn refused_end(refusal: Refusal) -> End {
    End::Failure(match refusal {
        Refusal::Saturated => Failure::Saturated,
        Refusal::QueueFull => Failure::QueueFull,
        Refusal::NoEndpoint => Failure::NoEndpoint,
        Refusal::Busy => Failure::Busy,
    })
}
