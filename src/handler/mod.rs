//! Answers requests: by the action of a route, or by a refusal where no route matches.
//!
//! Each action has a file here, with its `Handler`. The table of actions is in the
//! configuration; [`with_action!`] calls the handler of one.

mod access;
mod auth;
pub(crate) mod cache;
mod connection;
pub(crate) mod files;
mod fixed;
mod last_hop;
mod mirror;
mod multipart;
mod proxy;
pub(crate) mod redirect;
pub(crate) mod split;
mod step;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use evenkeel_policy::route::{Facts, RouteTable, Unrouted};
use evenkeel_proto::Scheme;
use evenkeel_proto::{LoopId, Method, RequestHead};

use crate::config::{self, Action, Config, Proxying, Split, with_action};
use crate::exchange::answer::{self, Answer};
use crate::exchange::{Exchange, Moment, Next, Outcome, TlsClient, box_cold};
use crate::metrics::end::{End, Failure};
pub(crate) use access::access_of;
pub(crate) use connection::ConnectionFacts;
pub use connection::handle_connection;
use files::FilesPlan;
use last_hop::LastHop;
pub(crate) use proxy::balance_key;
pub use step::{AnswerStep, RedirectStep};

/// Answers requests, or forwards them, as the settings of an action say.
trait Handler {
    /// Answers the request. The index is the one of its route.
    ///
    /// A cold handler boxes its future, so that it does not grow the hot one.
    ///
    /// # Cancellation
    /// Dropping the future abandons the exchange.
    fn handle<'a>(
        &'a self,
        route: usize,
        exchange: &mut Exchange<'a>,
    ) -> impl Future<Output = Outcome>;

    /// The action of `handle` on such a request, for `explain`.
    fn plan<'a>(&'a self, request: &RequestFacts<'a>) -> Plan<'a>;

    /// A summary in a few words, for the status page.
    fn label(&self, config: &Config) -> String;

    /// Whether the handler forwards requests, so that `Max-Forwards` applies.
    fn passes_on(&self) -> bool {
        false
    }
}

/// The steps that an action would take for a request.
pub(crate) enum Plan<'a> {
    /// Answer at once.
    Answer(AnswerStep),
    /// Send the client elsewhere.
    Redirect(RedirectStep),
    /// Send the client to a location that depends on the request.
    RedirectTo(&'a config::Redirect),
    /// Look for files.
    Files(FilesPlan<'a>),
    /// Ask an upstream.
    Forward(Proxying),
    /// Ask one of several upstreams.
    Split(&'a Split),
}

/// Answers the request.
///
/// # Cancellation
/// Dropping the future abandons the exchange.
pub async fn handle(exchange: &mut Exchange<'_>) -> Outcome {
    let (context, bytes, head) = (exchange.context, exchange.bytes, exchange.head);
    if context.generation().acme.is_some() && head.path(bytes).starts_with(CHALLENGES) {
        return box_cold(prove(exchange)).await;
    }
    answer_by_route(exchange).await
}

/// The same, without the check for ACME challenges.
async fn answer_by_route(exchange: &mut Exchange<'_>) -> Outcome {
    let context = exchange.context;
    let found = {
        let facts = RequestFacts::new(exchange);
        let found = find_route(&context.config().route_table, &context.loop_id, &facts);
        exchange.moment = facts.moment;
        found
    };
    if exchange.listener().redirect_to_https.is_some() {
        let facts = RequestFacts::new(exchange);
        if let Some(redirect) = redirect_to_https(exchange.listener(), &facts, &found) {
            return box_cold(redirect::answer(exchange, redirect)).await;
        }
    }
    let route = match found {
        Ok(route) => route,
        Err(failure) => return box_cold(refuse(exchange, failure)).await,
    };
    exchange.progress.figures.route = Some(route as u32);
    let generation = context.generation().number;
    exchange.progress.track.set_route(generation, route);
    if let Some(pending_check) = access::pending_check(exchange, route)
        && let Some(outcome) = pending_check.await
    {
        return outcome;
    }
    // Looked up again, so that the future does not grow.
    let route = exchange.progress.figures.route.unwrap_or_default() as usize;
    exchange.keep_to_bandwidth(route);
    let (context, bytes, head) = (exchange.context, exchange.bytes, exchange.head);
    let config::Route {
        action,
        cache,
        mirror,
        ..
    } = &context.config().routes[route];
    if exchange.check_path().is_err() {
        return box_cold(refuse(exchange, Failure::AmbiguousPath)).await;
    }
    if exchange.has_refused_coding() {
        return box_cold(refuse(exchange, Failure::CodedRequest)).await;
    }
    if let Some(last) = last_hop(action, head, bytes) {
        return box_cold(answer_last(exchange, last)).await;
    }
    if let (Some(caching), Action::Upstream(proxying)) = (cache, action)
        && let cache::Way::Through(key) = cache::way(exchange, caching)
    {
        return box_cold(cache::handle(exchange, route, proxying, caching, key)).await;
    }
    if let Some(mirror) = mirror {
        mirror::copy(exchange, route, mirror);
    }
    with_action!(action, it => it.handle(route, exchange).await)
}

/// Prefix of the paths where certificate authorities look for the proof that we control a host
/// (RFC 8555 §8.3). They start with plain HTTP.
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";

/// Answers an ACME challenge, where one is pending for the host.
async fn prove(exchange: &mut Exchange<'_>) -> Outcome {
    let Some(proof) = proof(exchange).await else {
        return answer_by_route(exchange).await;
    };
    let answer = Answer {
        content_type: "application/octet-stream",
        body: proof.as_bytes(),
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}

/// The proof for a certificate authority that we control a host, where this process or another
/// one with the same storage has a pending challenge.
async fn proof(exchange: &Exchange<'_>) -> Option<Arc<str>> {
    let (context, bytes, head) = (exchange.context, exchange.bytes, exchange.head);
    if !matches!(head.method, Method::Get | Method::Head) {
        return None;
    }
    let token = head.path(bytes).strip_prefix(CHALLENGES)?;
    let acme = context.generation().acme.as_ref()?;
    acme.key_authorization(std::str::from_utf8(token).ok()?)
        .await
}

/// The listener's redirect of a request, whatever its route; `found` is the result of the route
/// lookup.
pub(crate) fn redirect_to_https<'a>(
    listener: &'a config::Listener,
    request: &RequestFacts<'_>,
    found: &Result<usize, Failure>,
) -> Option<&'a config::Redirect> {
    let is_redirected = match found {
        Ok(_) => !request.path().starts_with(CHALLENGES),
        Err(Failure::NoRoute) => true,
        Err(_) => false,
    };
    let redirect = listener.redirect_to_https.as_ref()?;
    (is_redirected && request.scheme == Scheme::Http).then_some(redirect)
}

/// The action of [`handle`] on a request whose route has this action.
pub(crate) fn plan<'a>(action: &'a Action, request: &RequestFacts<'a>) -> Plan<'a> {
    match last_hop(action, request.head, request.bytes) {
        Some(last) => Plan::Answer(last.step()),
        None => with_action!(action, it => it.plan(request)),
    }
}

/// A summary of an action, for the status page.
pub(crate) fn label(action: &Action, config: &Config) -> String {
    with_action!(action, it => it.label(config))
}

/// The answer to a request that may not be forwarded, where the action would forward it.
fn last_hop(action: &Action, head: &RequestHead, bytes: &[u8]) -> Option<LastHop> {
    if with_action!(action, it => it.passes_on()) {
        LastHop::of(head, bytes)
    } else {
        None
    }
}

/// The route of a request; `own` is the name of this process.
///
/// # Errors
/// No route matches.
///
/// Invariant: every request to an endpoint names this process in `CDN-Loop`. A request that comes
/// back, by whatever way, is detected here.
pub(crate) fn find_route(
    table: &RouteTable,
    own: &LoopId,
    request: &RequestFacts<'_>,
) -> Result<usize, Failure> {
    let head = request.head;
    if head.method == Method::Connect {
        return Err(Failure::ConnectMethod);
    }
    if head.has_cdn_loop && own.is_named_in(head, request.bytes) {
        return Err(Failure::Loop);
    }
    table.find(request).map_err(|unrouted| match unrouted {
        Unrouted::NoRoute => Failure::NoRoute,
        Unrouted::AmbiguousPath => Failure::AmbiguousPath,
        Unrouted::NulInPath => Failure::BadPath,
    })
}

async fn refuse(exchange: &mut Exchange<'_>, failure: Failure) -> Outcome {
    answer::refuse(exchange, End::Failure(failure), None).await
}

/// Answers a request that must not be forwarded.
async fn answer_last(exchange: &mut Exchange<'_>, last: LastHop) -> Outcome {
    let answer = Answer {
        status: last.status,
        content_type: LastHop::CONTENT_TYPE,
        body: &last.body,
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}

/// Sends an answer of the configuration. Reads and drops the body of the request after it.
async fn respond(exchange: &mut Exchange<'_>, answer: &Answer<'_>) -> Outcome {
    let persistence = answer::persistence(exchange);
    match answer::send(exchange, answer, persistence).await {
        Err(failure) => Outcome::after_head(exchange, failure.into(), Next::Cut),
        Ok(()) => answer::outcome(exchange, End::Complete, persistence),
    }
}

/// A request, as far as the route table asks about it.
pub(crate) struct RequestFacts<'a> {
    /// The buffer of the head's spans.
    pub bytes: &'a [u8],
    pub head: &'a RequestHead,
    /// Index of the listener.
    pub listener: usize,
    /// Address of the client; `None` over a Unix socket.
    pub client: Option<IpAddr>,
    /// The scheme of the client's request.
    pub scheme: Scheme,
    /// The client's TLS facts.
    pub tls: Option<&'a TlsClient>,
    /// Facts for routing that are not in the request.
    pub moment: Moment,
}

impl<'a> RequestFacts<'a> {
    fn new(exchange: &Exchange<'a>) -> Self {
        let client = exchange.client;
        RequestFacts {
            bytes: exchange.bytes,
            head: exchange.head,
            listener: exchange.context.listener_index(),
            client: client.remote().address,
            scheme: client.scheme(),
            tls: client.tls(),
            moment: exchange.moment.clone(),
        }
    }
}

impl Facts for RequestFacts<'_> {
    fn listener(&self) -> usize {
        self.listener
    }

    fn method(&self) -> &[u8] {
        self.head.method_span.of(self.bytes)
    }

    fn host(&self) -> &[u8] {
        self.head.host_name(self.bytes)
    }

    fn path(&self) -> &[u8] {
        self.head.path(self.bytes)
    }

    fn query(&self) -> &[u8] {
        self.head.query.of(self.bytes)
    }

    fn client(&self) -> IpAddr {
        // A process of this machine, on a Unix socket.
        self.client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    fn scheme(&self) -> &'static str {
        self.scheme.as_str()
    }

    fn draw(&self) -> u64 {
        self.moment.draw()
    }

    fn unix_seconds(&self) -> i64 {
        self.moment.unix_seconds()
    }

    fn sni(&self) -> &[u8] {
        self.tls.map_or(&[], |it| it.server_name.as_bytes())
    }

    fn client_identities(&self) -> impl Iterator<Item = &[u8]> {
        self.tls.into_iter().flat_map(TlsClient::identities)
    }

    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.head
            .fields
            .iter()
            .filter(move |field| field.is_read_as(name.as_bytes(), self.bytes))
            .map(|field| field.value.of(self.bytes))
    }
}
