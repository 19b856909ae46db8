//! Changes of an endpoint by an operator, from any source of commands.

use std::net::IpAddr;

use evenkeel_policy::endpoint::Admin;

use crate::discovery::{AdminChange, EndpointChange};
use crate::net::clock;
use crate::observe::figures::Sources;
use crate::upstream::change::log_change;

/// A change of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Ready, drain or stop.
    Admin(Admin),
    /// A new weight.
    Weight(u32),
}

impl Operation {
    /// The same, in its saved form.
    pub fn change(self, by: &str) -> EndpointChange {
        let change = EndpointChange {
            by: by.to_owned(),
            ..EndpointChange::default()
        };
        match self {
            Operation::Admin(admin) => EndpointChange {
                admin: Some(AdminChange::from(admin)),
                ..change
            },
            Operation::Weight(weight) => EndpointChange {
                weight: Some(weight),
                ..change
            },
        }
    }
}

/// The author of a change, for the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    /// A process of this user.
    Control { uid: Option<u32> },
    /// A client with the token, at this address.
    Page { from: Option<IpAddr> },
}

impl std::fmt::Display for Operator {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("by the operator, ")?;
        match self {
            Operator::Control { uid: Some(uid) } => {
                write!(out, "over the control socket as uid {uid}")
            }
            Operator::Control { uid: None } => out.write_str("over the control socket"),
            Operator::Page { from: Some(from) } => write!(out, "on the status page from {from}"),
            Operator::Page { from: None } => out.write_str("on the status page from this machine"),
        }
    }
}

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unknown {
    /// No upstream has this name.
    Upstream(String),
    /// That upstream has no endpoint of this name.
    Endpoint(String, String),
    /// No cache has this name.
    Cache(String),
    /// No route has a cache.
    AnyCache,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unknown::Upstream(upstream) => write!(out, "there is no upstream `{upstream}`"),
            Unknown::Endpoint(upstream, endpoint) => {
                write!(out, "upstream `{upstream}` has no endpoint `{endpoint}`")
            }
            Unknown::Cache(cache) => write!(out, "there is no cache `{cache}`"),
            Unknown::AnyCache => out.write_str("no route has a cache"),
        }
    }
}

/// Changes an endpoint. Returns a sentence with its new state. Names are those of the
/// configuration.
///
/// # Errors
/// The endpoint does not exist.
pub(super) fn operate(
    sources: &Sources,
    upstream: &str,
    endpoint: &str,
    operation: Operation,
    operator: Operator,
) -> Result<String, Unknown> {
    let upstreams = &sources.config.upstreams;
    let of_name = upstreams.iter().position(|it| it.name == upstream);
    let index = of_name.ok_or_else(|| Unknown::Upstream(upstream.to_owned()))?;
    let dispatcher = &sources.dispatchers[index];
    let members = dispatcher.members();
    let unknown = || Unknown::Endpoint(upstream.to_owned(), endpoint.to_owned());
    let state = members.named(endpoint).ok_or_else(unknown)?;
    let now = clock::now();
    let is_now = match operation {
        Operation::Admin(admin) => {
            if let Some(change) = dispatcher.set_admin(state, admin, now) {
                log_change(upstream, endpoint, &change, Some(&operator.to_string()));
            }
            match admin {
                Admin::Ready => "ready".to_owned(),
                Admin::Drain => match state.in_flight() {
                    0 => "drained: it gets no new requests".to_owned(),
                    count => format!(
                        "drained: it gets no new requests, and finishes {count} in flight (`show \
                         sessions`)"
                    ),
                },
                Admin::Stop => "stopped".to_owned(),
            }
        }
        Operation::Weight(weight) => {
            dispatcher.set_weight(state, weight, now);
            tracing::info!(
                upstream,
                endpoint,
                "upstream {upstream}: endpoint {endpoint} now has weight {weight}, set {operator}"
            );
            format!("at weight {weight}")
        }
    };
    Ok(format!("endpoint {upstream}/{endpoint} is {is_now}"))
}

/// Those of these upstreams in which no endpoint takes requests.
pub(super) fn left_empty<'a>(sources: &Sources, changed: &[&'a str]) -> Vec<&'a str> {
    let figures = sources.read();
    let is_empty = |name: &&str| {
        let mut upstreams = figures.upstreams.iter();
        upstreams.any(|it| it.name == *name && it.eligible == 0)
    };
    changed.iter().copied().filter(is_empty).collect()
}

/// The warning about an upstream in which no endpoint takes requests.
pub(super) fn nobody_left(upstream: &str) -> String {
    format!("no endpoint of `{upstream}` takes requests now")
}
