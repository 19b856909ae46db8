//! What answers a request: a route's action, or a refusal where none matches.

pub(crate) mod files;
mod fixed;
pub(crate) mod last_hop;
pub(crate) mod redirect;

use std::net::{IpAddr, Ipv4Addr};

use evenkeel_policy::route::{Facts, RouteTable, Unrouted};
use evenkeel_proto::Scheme;
use evenkeel_proto::representation::Conditions;
use evenkeel_proto::{LoopId, Method, RequestHead};

use crate::config::{self, Action, Proxying};
use crate::exchange::answer::{self, Answer};
use crate::exchange::{self, Exchange, Next, Outcome, box_cold};
use crate::metrics::end::{End, Failure};
use files::Answered;
use last_hop::LastHop;

/// Answers the request.
///
/// # Cancellation
/// Dropping the future abandons the exchange.
pub async fn handle(exchange: &mut Exchange<'_>) -> Outcome {
    let (context, bytes, head) = (exchange.context, exchange.bytes, exchange.head);
    let found = {
        let facts = RequestFacts::new(exchange);
        find_route(&context.config().route_table, &context.loop_id, &facts)
    };
    let route = match found {
        Ok(route) => route,
        Err(failure) => return box_cold(refuse(exchange, failure)).await,
    };
    exchange.progress.figures.route = Some(route as u32);
    let generation = context.generation().number;
    exchange.progress.track.set_route(generation, route);
    let action = &context.config().routes[route].action;
    if let Some(last) = LastHop::of(action, head, bytes) {
        return box_cold(answer_last(exchange, last)).await;
    }
    match action {
        Action::Upstream(proxying) => {
            let key = key_of(exchange, proxying);
            exchange::forward(exchange, proxying, key).await
        }
        Action::Files(settings) => {
            let request = files::FileRequest {
                route,
                settings,
                conditions: Conditions::of(head, bytes),
            };
            match files::answer(request, exchange).await {
                Answered::Here(outcome) => outcome,
                Answered::Elsewhere(proxying) => {
                    exchange.progress.figures.source = None;
                    let key = key_of(exchange, &proxying);
                    box_cold(exchange::forward(exchange, &proxying, key)).await
                }
            }
        }
        Action::Answer(fixed) => box_cold(fixed::answer(exchange, fixed)).await,
        Action::Redirect { status, location } => {
            box_cold(redirect::answer(exchange, *status, location)).await
        }
    }
}

fn key_of(exchange: &Exchange<'_>, proxying: &Proxying) -> u64 {
    let upstream = &exchange.context.config().upstreams[proxying.upstream];
    balance_key(upstream, &RequestFacts::new(exchange))
}

/// What the balancer goes by, where it goes by something of the request.
pub(crate) fn balance_key(upstream: &config::Upstream, request: &RequestFacts<'_>) -> u64 {
    if upstream.balance.takes_key() {
        upstream.key.hash(request)
    } else {
        0
    }
}

/// The route that a request takes; `own` is the name of this process.
///
/// # Errors
/// No route takes it.
///
/// Invariant: every request to an endpoint names this process in `CDN-Loop`, so
/// that one which comes back, by whatever way, is found here.
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

/// Answers a request that must not be passed on.
async fn answer_last(exchange: &mut Exchange<'_>, last: LastHop) -> Outcome {
    let answer = Answer {
        status: last.status,
        content_type: LastHop::CONTENT_TYPE,
        body: &last.body,
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}

/// Sends an answer of the configuration. The body of a request is read and dropped
/// after it.
async fn respond(exchange: &mut Exchange<'_>, answer: &Answer<'_>) -> Outcome {
    let persistence = answer::persistence(exchange);
    match answer::send(exchange, answer, persistence).await {
        Err(failure) => Outcome::after_head(exchange, failure.into(), Next::Close),
        Ok(()) => answer::outcome(exchange, End::Complete, persistence),
    }
}

/// A request as the route table asks about it.
pub(crate) struct RequestFacts<'a> {
    /// What the head's spans are in.
    pub bytes: &'a [u8],
    pub head: &'a RequestHead,
    /// Index of the listener.
    pub listener: usize,
    /// Address of the client; `None` over a Unix socket.
    pub client: Option<IpAddr>,
    /// By which the client asked.
    pub scheme: Scheme,
}

impl<'a> RequestFacts<'a> {
    fn new(exchange: &Exchange<'a>) -> Self {
        let client = exchange.client;
        RequestFacts {
            bytes: exchange.bytes,
            head: exchange.head,
            listener: client.listener,
            client: client.remote().address,
            scheme: client.scheme(),
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

    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.head
            .fields
            .iter()
            .filter(move |field| field.is_read_as(name.as_bytes(), self.bytes))
            .map(|field| field.value.of(self.bytes))
    }
}
