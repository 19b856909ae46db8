//! Rules that no request can take, since an earlier rule takes all of their requests.
//!
//! Invariant: a rule that is named here is never found. Not all such rules are named: in doubt, a
//! rule counts as one that is found.

use std::sync::Arc;

use super::condition::{Any, Client, Not};
use super::{AllOf, Condition, HostPattern, PathPattern, RouteTable, ValuePattern};

/// Most pairs of rules that are held against one another.
const MOST_PAIRS: usize = 1_000_000;

/// A rule that is never found, and the one that takes its requests. Both by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Covered {
    /// The rule that is never found.
    pub rule: usize,
    /// The earlier rule.
    pub by: usize,
}

impl RouteTable {
    /// The rules that are never found where there are so many listeners.
    pub fn covered(&self, listeners: usize) -> Vec<Covered> {
        let mut pairs_left = MOST_PAIRS;
        let mut covered = Vec::new();
        for (rule, later) in self.rules.iter().enumerate() {
            let given = later.conditions();
            let earlier: Vec<usize> = match &self.index {
                None => (0..rule).collect(),
                Some(index) => index.rivals(given, rule),
            };
            let Some(left) = pairs_left.checked_sub(earlier.len()) else {
                break;
            };
            pairs_left = left;
            let covers = |by: &usize| {
                let mut wanted = self.rules[*by].conditions().iter();
                wanted.all(|it| Given { listeners }.implies(given, it))
            };
            let by = earlier.into_iter().find(covers);
            covered.extend(by.map(|by| Covered { rule, by }));
        }
        covered
    }
}

/// The known facts on the requests of one configuration.
#[derive(Clone, Copy)]
struct Given {
    listeners: usize,
}

impl Given {
    /// Whether each request that shows all of `given` shows `wanted`.
    fn implies(self, given: &[Condition], wanted: &Condition) -> bool {
        match wanted {
            Condition::Any(any) if any.0.iter().any(|it| self.implies_all(given, it)) => {
                return true;
            }
            Condition::Listener(all) if (0..self.listeners).all(|it| all.0.contains(&it)) => {
                return true;
            }
            _ => {}
        }
        given.iter().any(|it| match it {
            Condition::Any(any) => (any.0.iter()).all(|it| self.implies(it.conditions(), wanted)),
            it => self.one_implies(it, wanted),
        })
    }

    fn implies_all(self, given: &[Condition], wanted: &AllOf) -> bool {
        wanted.conditions().iter().all(|it| self.implies(given, it))
    }

    fn one_implies(self, given: &Condition, wanted: &Condition) -> bool {
        use Condition as C;
        match (given, wanted) {
            (C::Listener(given), C::Listener(wanted)) => within(&given.0, &wanted.0, |a, b| a == b),
            (C::Scheme(given), C::Scheme(wanted)) => given.0 == wanted.0,
            (C::Method(given), C::Method(wanted)) => {
                within(&given.0, &wanted.0, |a, b| a.eq_ignore_ascii_case(b))
            }
            (C::Host(given), C::Host(wanted)) => within(&given.0, &wanted.0, host),
            (C::Sni(given), C::Sni(wanted)) => within(&given.0, &wanted.0, host),
            (C::Alpn(given), C::Alpn(wanted)) => within(&given.0, &wanted.0, |a, b| a == b),
            (C::FirstBytes(given), C::FirstBytes(wanted)) => {
                within(&given.0, &wanted.0, |a, b| a.starts_with(b))
            }
            (C::Client(given), C::Client(wanted)) => client(given, wanted),
            (C::ClientCertificate(given), C::ClientCertificate(wanted)) => {
                within(&given.0, &wanted.0, value)
            }
            (C::Path(given), C::Path(wanted)) => within(&given.0, &wanted.0, path),
            (C::Query(given), C::Query(wanted)) => {
                given.name == wanted.name && value(&given.value, &wanted.value)
            }
            (C::Cookie(given), C::Cookie(wanted)) => {
                given.name == wanted.name && value(&given.value, &wanted.value)
            }
            (C::Header(given), C::Header(wanted)) => {
                given.name.eq_ignore_ascii_case(&wanted.name) && value(&given.value, &wanted.value)
            }
            (C::Time(given), C::Time(wanted)) => within(&given.0, &wanted.0, |a, b| a == b),
            (C::Not(given), C::Not(wanted)) => self.none_implies(given, wanted),
            _ => false,
        }
    }

    /// Whether none of `wanted` holds where none of `given` does.
    fn none_implies(self, Not(given): &Not, Not(wanted): &Not) -> bool {
        within(wanted, given, |wanted, given| {
            self.implies_all(wanted.conditions(), given)
        })
    }
}

/// Whether each of `given` is one of `wanted`, by `is`.
fn within<T>(given: &[T], wanted: &[T], is: impl Fn(&T, &T) -> bool) -> bool {
    given.iter().all(|a| wanted.iter().any(|b| is(a, b)))
}

/// Whether every host of `given` is one of `wanted`.
fn host(given: &HostPattern, wanted: &HostPattern) -> bool {
    match (given, wanted) {
        (HostPattern::Exact(name), wanted) => wanted.matches(name),
        (HostPattern::Suffix(given), HostPattern::Suffix(wanted)) => {
            let end = given.len().checked_sub(wanted.len());
            end.is_some_and(|at| given[at..].eq_ignore_ascii_case(wanted))
        }
        (HostPattern::Regex(given), HostPattern::Regex(wanted)) => given == wanted,
        _ => false,
    }
}

/// Whether every path of `given` is one of `wanted`.
fn path(given: &PathPattern, wanted: &PathPattern) -> bool {
    match (given, wanted) {
        (PathPattern::Exact(path), wanted) => wanted.matches(path),
        (PathPattern::Glob(given), PathPattern::Glob(wanted)) => {
            given.to_string() == wanted.to_string()
        }
        (PathPattern::Regex(given), PathPattern::Regex(wanted)) => given == wanted,
        (given, PathPattern::Prefix(prefix)) => {
            given.front().is_some_and(|it| it.starts_with(prefix))
        }
        _ => false,
    }
}

/// Whether a request with a value of `given` has one of `wanted`.
fn value(given: &ValuePattern, wanted: &ValuePattern) -> bool {
    match (given, wanted) {
        (ValuePattern::Absent, wanted) => matches!(wanted, ValuePattern::Absent),
        (_, ValuePattern::Present) => true,
        (ValuePattern::Exact(text), wanted) => {
            wanted.accepts(std::iter::once(text.iter().copied()))
        }
        (ValuePattern::Glob(given), ValuePattern::Glob(wanted)) => {
            given.to_string() == wanted.to_string()
        }
        (ValuePattern::Regex(given), ValuePattern::Regex(wanted)) => given == wanted,
        _ => false,
    }
}

fn client(given: &Client, wanted: &Client) -> bool {
    let mut files = given.files().iter();
    files.all(|it| wanted.files().iter().any(|wanted| Arc::ptr_eq(it, wanted)))
        && within(given.networks(), wanted.networks(), |a, b| b.covers(a))
}

/// A host that the first condition on one takes; empty where none is known.
pub(super) fn witness_of_host(conditions: &[Condition]) -> Vec<u8> {
    witness(conditions, |it| match it {
        Condition::Host(host) => host.0.first().map(HostPattern::example),
        _ => None,
    })
}

/// The text that every path begins with that the first item of the first condition on the path
/// takes. Empty where it is not known.
pub(super) fn witness_of_path(conditions: &[Condition]) -> Vec<u8> {
    witness(conditions, |it| match it {
        Condition::Path(path) => path.0.first().and_then(PathPattern::front),
        _ => None,
    })
}

/// The first that is found `of` a condition, or of the first alternative of one.
///
/// Invariant: a request that meets all of `conditions` may have it. So a rule that takes all
/// of these requests takes it too.
fn witness(conditions: &[Condition], of: fn(&Condition) -> Option<Vec<u8>>) -> Vec<u8> {
    let first = conditions.iter().find_map(|it| match it {
        Condition::Any(Any(any)) => {
            let first = any.first().map(|it| witness(it.conditions(), of));
            first.filter(|it| !it.is_empty())
        }
        it => of(it),
    });
    first.unwrap_or_default()
}
