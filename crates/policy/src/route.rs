//! Route matching: the first rule that a request meets decides.
//!
//! A rule is a list of conditions that must all hold. A rule without any matches everything and
//! costs nothing. Rules are compiled once, when the configuration loads, and shared by every
//! worker. Matching allocates in two cases: a path is not in its normal form (see [`path`]), or a
//! regular expression is searched in a long value.
//!
//! A table of many rules has an index. The index gives the rules that the host and the path may
//! meet, in order. Only the remaining conditions of these rules are checked.
//!
//! Invariant: a request takes a route only if every server that may read its path would find the
//! same one, with all of its conditions (see `reading`). So no rule is got round by writing a
//! path another way.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

mod access;
pub mod condition;
mod cover;
pub mod explain;
mod index;
pub mod key;
pub mod network;
mod network_set;
pub mod path;
pub mod pattern;
mod reading;
mod regex_pattern;
pub mod rewriting;
mod time;

pub use access::{Access, AccessList};
pub use condition::{AllOf, Condition, ValuePattern};
pub use cover::Covered;
pub use explain::{Check, Reading, Trial};
use index::{Decided, Index, Proof, Search};
pub use key::BalanceKey;
pub use network::Network;
pub use network_set::{BadLine, NetworkFile, NetworkSet};
pub use pattern::{Glob, HostPattern, PathPattern, PatternError};
use reading::Oddity;
pub use regex_pattern::{Captures, Case, RegexError, RegexPattern};
pub use time::{Hours, TimeError, TimeWindow};

/// The facts of a request that conditions look at, in any protocol.
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
    /// The scheme of the URL that the client asked for: `http` or `https`.
    fn scheme(&self) -> &'static str;
    /// A random number: the same in all calls for one request.
    fn draw(&self) -> u64;
    /// The time in seconds since 1970: the same in all calls for one request.
    fn unix_seconds(&self) -> i64;
    /// Values of every field that an endpoint may take for one of this name, in
    /// order: `X_User` counts as `X-User`.
    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]>;
    /// The name that a client of TLS asks for (SNI); empty where there is none.
    fn sni(&self) -> &[u8] {
        b""
    }
    /// The protocols that a client of TLS offers (ALPN), in order.
    fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::empty()
    }
    /// The client's identities by its TLS certificate, each with its kind in front: `dns:a.test`,
    /// `sha256:…`. None without a certificate.
    fn client_identities(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::empty()
    }
    /// The first bytes of the connection, if they are read before a route is chosen.
    fn first_bytes(&self) -> &[u8] {
        b""
    }
}

/// The conditions of one route: a request meets all of them.
#[derive(Debug, Clone, Default)]
pub struct Rule {
    conditions: AllOf,
    /// The conditions that the table's index decides.
    decided: Decided,
}

impl Rule {
    /// A rule that asks for all of `conditions`; none of them matches
    /// everything.
    pub fn new(conditions: Vec<Condition>) -> Self {
        Self {
            conditions: AllOf::new(conditions),
            decided: Decided::default(),
        }
    }

    /// Its conditions, all of them.
    pub fn conditions(&self) -> &[Condition] {
        self.conditions.conditions()
    }

    /// Whether a request by the listener of this index may meet it.
    pub fn may_meet(&self, listener: usize) -> bool {
        self.conditions.may_meet(listener)
    }

    /// Whether every request meets it.
    pub fn matches_everything(&self) -> bool {
        self.conditions().is_empty()
    }

    /// All conditions in it, at any depth.
    pub fn every_condition(&self) -> Vec<&Condition> {
        let mut found = Vec::new();
        self.conditions.each(&mut |it| {
            found.push(it);
            true
        });
        found
    }

    /// Its conditions, without those inside a `not`.
    pub fn wanted_conditions(&self) -> Vec<&Condition> {
        let mut found = Vec::new();
        self.conditions.each(&mut |it| {
            found.push(it);
            !matches!(it, Condition::Not(_))
        });
        found
    }

    /// The regular expressions of its paths, in order, without those inside a `not`.
    pub fn path_regexes(&self) -> Vec<&RegexPattern> {
        let mut found = Vec::new();
        self.conditions.path_regexes(&mut found);
        found
    }

    /// Whether the request meets it, with its path in normal form.
    pub fn is_met_by(&self, request: &impl Facts) -> bool {
        self.holds(&RoutedRequest::new(request))
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.conditions.holds(request)
    }

    /// Whether the conditions hold that the index left open.
    fn holds_beyond<F: Facts>(&self, proof: Proof, request: &RoutedRequest<'_, F>) -> bool {
        let mut conditions = self.conditions().iter().enumerate();
        conditions.all(|(at, it)| self.decided.holds(at, proof) || it.holds(request))
    }

    /// Whether it compares the path of the request: earlier conditions hold.
    fn compares_path<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.conditions.compares_path(request)
    }
}

/// The compiled matcher.
#[derive(Debug, Clone, Default)]
pub struct RouteTable {
    rules: Box<[Rule]>,
    /// `None` where the rules are so few that each is tried.
    index: Option<Index>,
}

impl RouteTable {
    /// Most rules that are tried in order, without an index: to hash a host costs
    /// as much as to compare a few.
    const LINEAR_UP_TO: usize = 8;

    /// A matcher that tries `rules` in this order.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self::indexed_above(Self::LINEAR_UP_TO, rules)
    }

    /// The same; up to so many rules are tried in order, of all and of a host.
    fn indexed_above(linear_up_to: usize, rules: Vec<Rule>) -> Self {
        let mut rules = rules.into_boxed_slice();
        let is_indexed = rules.len() > linear_up_to;
        Self {
            index: is_indexed.then(|| Index::new(&mut rules, linear_up_to)),
            rules,
        }
    }

    /// Index of the first rule that matches.
    ///
    /// # Errors
    /// No rule matches, or the path alone does not tell which.
    pub fn find(&self, facts: &impl Facts) -> Result<usize, Unrouted> {
        let request = RoutedRequest::new(facts);
        let found = self.first(&request);
        match request.normal_path.get() {
            None if reading::has_nul(facts.path()) => Err(Unrouted::NulInPath),
            None | Some(Cow::Borrowed(_)) => found.ok_or(Unrouted::NoRoute),
            Some(Cow::Owned(_)) => self.find_by_every_reading(&request, found),
        }
    }

    fn first<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.rules.iter().position(|rule| rule.holds(request));
        };
        let rules = &self.rules;
        let mut search =
            Search::new(|number, proof| rules[number as usize].holds_beyond(proof, request));
        index.offer(request, &mut search);
        search.finish()
    }

    /// Whether a rule compares the path, of the rules up to the one that is `found`.
    ///
    /// Invariant: the readings of a path matter only where this holds. The index may look at the
    /// path for more rules than that.
    fn compares_path<F: Facts>(
        &self,
        request: &RoutedRequest<'_, F>,
        found: Option<usize>,
    ) -> bool {
        let until = found.map_or(self.rules.len(), |found| found + 1);
        match &self.index {
            None => self.rules[..until]
                .iter()
                .any(|it| it.compares_path(request)),
            Some(index) => index.any_of_host(request.facts.host(), |number| {
                let number = number as usize;
                number < until && self.rules[number].compares_path(request)
            }),
        }
    }

    /// The rule that every reading of the path finds; the normal form has `found`.
    #[cold]
    #[inline(never)]
    fn find_by_every_reading<F: Facts>(
        &self,
        request: &RoutedRequest<'_, F>,
        found: Option<usize>,
    ) -> Result<usize, Unrouted> {
        let facts = request.facts;
        match reading::oddity(facts.path()) {
            Oddity::Nothing => {}
            Oddity::Ambiguous if !self.compares_path(request, found) => {}
            Oddity::Ambiguous => {
                let readings = reading::readings(facts.path())
                    .map_err(|reading::TooMany| Unrouted::AmbiguousPath)?;
                let mut others = readings.into_iter().skip(1);
                let is_found = |path| self.first(&RoutedRequest::read_as(facts, path)) == found;
                if !others.all(is_found) {
                    return Err(Unrouted::AmbiguousPath);
                }
            }
            Oddity::Nul => return Err(Unrouted::NulInPath),
        }
        found.ok_or(Unrouted::NoRoute)
    }
}

/// Why a request takes no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrouted {
    /// No rule matches.
    NoRoute,
    /// Servers read the path in several ways, and not all of them are known to
    /// find the same rule.
    AmbiguousPath,
    /// The path holds an encoded NUL, at which some servers end it.
    NulInPath,
}

/// One request during one search: values that are worked out at most once for all rules, and only
/// on demand.
pub(crate) struct RoutedRequest<'a, F> {
    pub(crate) facts: &'a F,
    /// Empty until a condition or the index looks at the path. Borrowed where there is no other
    /// reading.
    normal_path: OnceCell<Cow<'a, [u8]>>,
}

impl<'a, F: Facts> RoutedRequest<'a, F> {
    fn new(facts: &'a F) -> Self {
        Self {
            facts,
            normal_path: OnceCell::new(),
        }
    }

    /// The request as a server has it that reads its path as `path`.
    fn read_as(facts: &'a F, path: Vec<u8>) -> Self {
        Self {
            facts,
            normal_path: OnceCell::from(Cow::Owned(path)),
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
