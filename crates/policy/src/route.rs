//! Route matching: the first rule that a request meets decides.
//!
//! A rule is a list of conditions that must all hold; a rule without any
//! matches everything and costs nothing. Rules are compiled once, when the
//! configuration loads, and shared by every worker. Matching allocates only
//! where a path is not in its normal form (see [`path`]).

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

pub mod condition;
pub mod explain;
pub mod key;
pub mod network;
pub mod path;
pub mod pattern;

pub use condition::{Condition, ValuePattern};
pub use explain::{Check, Trial};
pub use key::BalanceKey;
pub use network::Network;
pub use pattern::{Glob, HostPattern, PathPattern, PatternError};

/// What a request shows to the matcher, whichever protocol it came by.
pub trait Facts {
    /// Index of the listener that accepted the connection.
    fn listener(&self) -> usize;
    /// Method, as sent.
    fn method(&self) -> &[u8];
    /// Host without port, as sent.
    fn host(&self) -> &[u8];
    /// Path without query, as sent.
    fn path(&self) -> &[u8];
    /// Query without `?`, empty where there is none.
    fn query(&self) -> &[u8];
    /// Address of the client; an IPv4 address is never mapped into IPv6.
    fn client(&self) -> IpAddr;
    /// Values of every field with this name (compared without case), in order.
    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]>;
}

/// What one route asks of a request: every condition in it.
#[derive(Debug, Default)]
pub struct Rule {
    conditions: Vec<Condition>,
}

impl Rule {
    /// A rule that asks for all of `conditions`; none of them matches
    /// everything.
    pub fn new(mut conditions: Vec<Condition>) -> Self {
        conditions.sort_by_key(Condition::cost);
        Self { conditions }
    }

    /// Whether every request meets it.
    pub fn matches_everything(&self) -> bool {
        self.conditions.is_empty()
    }
}

/// The compiled matcher.
#[derive(Debug, Default)]
pub struct RouteTable {
    rules: Vec<Rule>,
}

impl RouteTable {
    /// A matcher that tries `rules` in this order.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { rules }
    }

    /// Index of the first rule that matches, or `None`.
    pub fn find(&self, request: &impl Facts) -> Option<usize> {
        let request = Request::new(request);
        self.rules
            .iter()
            .position(|rule| rule.conditions.iter().all(|it| it.holds(&request)))
    }
}

/// One request during one search: what is worked out at most once for all
/// rules, and only when a rule asks.
pub(crate) struct Request<'a, F> {
    pub(crate) facts: &'a F,
    normal_path: OnceCell<Cow<'a, [u8]>>,
}

impl<'a, F: Facts> Request<'a, F> {
    fn new(facts: &'a F) -> Self {
        Self {
            facts,
            normal_path: OnceCell::new(),
        }
    }

    /// The path in its normal form.
    pub(crate) fn path(&self) -> &[u8] {
        self.normal_path
            .get_or_init(|| path::normalise(self.facts.path()))
    }
}

#[cfg(test)]
mod tests;
