//! Copies of requests for another upstream (`mirror` of a route), as nginx's `mirror` and
//! Traefik's mirroring send them.
//!
//! ```text
//! request ─┬▶ the route's upstream ─▶ the client
//!          └▶ copy, once its body has come whole ─▶ the mirror's upstream ─▶ dropped
//! ```
//!
//! A copy is an exchange of its own on its own task. It uses the upstream's balancer, queue,
//! slots, timeouts and health, and counts in its figures. It is not retried, and has no line in
//! an access log.
//!
//! Invariant: no client waits for a copy. Requests without a copy are counted by reason.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_proto::http1::{Parsed, parse_request};

use super::proxy;
use crate::config::Mirror;
use crate::exchange::identity::Identity;
use crate::exchange::{
    Client, ClientSide, Context, Exchange, Moment, Progress, Recorded, Recorder, SetField,
    Subrequest, Unrecorded,
};
use crate::metrics::end::End;
use crate::net::{clock, tasks};
use crate::observe::counters::MirrorCounters;
use crate::observe::sessions::Track;
use crate::upstream::CopyInFlight;

/// The field that marks a request as a copy.
const MARK: &str = "X-Mirrored";

/// Sends a copy of the request to its route's mirror, if the mirror takes it. To be called once
/// it is certain that the request goes to an upstream.
#[cold]
pub(super) fn copy(exchange: &mut Exchange<'_>, route: usize, mirror: &Mirror) {
    // A tunnel has no response to wait for.
    if exchange.head.wire.upgrade.is_some() || !is_drawn(mirror) {
        return;
    }
    let context = exchange.context;
    let Some(counters) = &context.generation().counters.mirrors[route] else {
        return;
    };
    let upstream = context.upstream(mirror.proxying.upstream);
    let Some(place) = upstream.begin_copy(mirror.max_in_flight) else {
        return counters.busy.add(1);
    };
    let recorder = match exchange.record_request(mirror.max_body_bytes) {
        Ok(recorder) => recorder,
        Err(why) => return count_unrecorded(counters, why),
    };
    let rare = exchange.rare.as_ref();
    let copy = RequestCopy {
        context: context.clone(),
        client: exchange.client.for_fetch(),
        // The head is the same, so the id is at the same place.
        identity: exchange.progress.identity.of_copy(exchange.head),
        moment: exchange.moment.clone(),
        route,
        user: exchange.user().map(Box::from),
        set_fields: marked(rare.and_then(|it| it.set_fields.as_deref())),
        counters: counters.clone(),
    };
    match recorder {
        Recorder::Whole(request) => {
            tasks::spawn(copy.send(request, place));
        }
        Recorder::Coming(request) => {
            // A slow client holds nobody's place meanwhile.
            drop(place);
            tasks::spawn(async move {
                match request.await.unwrap_or(Err(Unrecorded::Cut)) {
                    Ok(request) => copy.send_if_free(request).await,
                    Err(why) => count_unrecorded(&copy.counters, why),
                }
            });
        }
    }
}

fn is_drawn(mirror: &Mirror) -> bool {
    fastrand::u32(..1_000_000) < mirror.share_ppm
}

fn count_unrecorded(counters: &MirrorCounters, why: Unrecorded) {
    let counter = match why {
        Unrecorded::TooLong => &counters.too_long,
        Unrecorded::NoMemory => &counters.no_memory,
        Unrecorded::Cut => &counters.cut,
    };
    counter.add(1);
}

/// The replaced fields for an endpoint, with the mark of a copy.
fn marked(fields: Option<&[SetField]>) -> Rc<[SetField]> {
    let mark = SetField {
        name: MARK.into(),
        values: vec![b"1".to_vec()],
    };
    let fields = fields.unwrap_or_default().iter().cloned();
    fields.chain([mark]).collect()
}

/// A copy of a request, ready to send.
struct RequestCopy {
    context: Context,
    client: Client,
    identity: Identity,
    moment: Moment,
    route: usize,
    user: Option<Box<str>>,
    set_fields: Rc<[SetField]>,
    counters: Arc<MirrorCounters>,
}

impl RequestCopy {
    fn mirror(&self) -> Option<&Mirror> {
        self.context.config().routes[self.route].mirror.as_deref()
    }

    /// Sends the copy, unless too many are in flight.
    async fn send_if_free(self, request: Recorded) {
        let Some(mirror) = self.mirror() else {
            return;
        };
        let upstream = self.context.upstream(mirror.proxying.upstream);
        match upstream.begin_copy(mirror.max_in_flight) {
            Some(place) => self.send(request, place).await,
            None => self.counters.busy.add(1),
        }
    }

    /// Sends the copy, and drops the response.
    async fn send(self, request: Recorded, _place: CopyInFlight) {
        let (context, counters) = (&self.context, &self.counters);
        let Some(mirror) = self.mirror() else {
            return;
        };
        let mut head = context.heads.take();
        let is_whole = parse_request(&request.bytes, &mut head) == Ok(Parsed::Complete);
        debug_assert!(is_whole, "it was read before");
        if !is_whole {
            return;
        }
        counters.sent.add(1);
        // The body has already arrived.
        head.wire.expect_continue = false;
        let timer = context.wheel.timer();
        timer.register_task().await;
        let mut progress = Progress::new(
            context,
            &self.client,
            clock::now(),
            Default::default(),
            head.wire.end,
            &self.identity,
            Track::unlisted(),
        );
        progress.figures.route = Some(self.route as u32);
        let mut side = Subrequest::copy();
        let mut exchange = Exchange::new(
            context,
            &self.client,
            ClientSide::Subrequest(&mut side),
            timer,
            &request.bytes,
            &head,
            progress,
        );
        exchange.moment = self.moment.clone();
        let rare = exchange.rare();
        rare.user = self.user.clone();
        rare.set_fields = Some(self.set_fields.clone());
        let outcome = proxy::forward(&mut exchange, &mirror.proxying).await;
        exchange.conclude_fetch(outcome.end);
        if outcome.end != End::Complete {
            counters.failed.add(1);
        }
        context.heads.keep(head);
    }
}
