//! Why a request takes its route: every rule up to that one, condition by
//! condition. The conditions are asked as [`RouteTable::find`] asks them.

use super::reading::{self, Oddity};
use super::{AllOf, Condition, Facts, RouteTable, RoutedRequest};

/// A rule held against a request.
#[derive(Debug)]
pub struct Trial<'a> {
    /// Index of the rule.
    pub rule: usize,
    /// Each of its conditions.
    pub checks: Vec<Check<'a>>,
}

/// A condition held against a request.
#[derive(Debug)]
pub struct Check<'a> {
    /// The condition.
    pub condition: &'a Condition,
    /// The values of the request that the condition looks at.
    pub found: Vec<Vec<u8>>,
    /// Whether it holds.
    pub holds: bool,
    /// For a condition made of others: each alternative, held against the
    /// request.
    pub alternatives: Vec<Vec<Check<'a>>>,
}

impl<'a> Check<'a> {
    fn all<F: Facts>(all: &'a AllOf, request: &RoutedRequest<'_, F>) -> Vec<Self> {
        let checks = all.conditions().iter().map(|condition| Check {
            condition,
            found: condition.found(request),
            holds: condition.holds(request),
            alternatives: (condition.alternatives().iter())
                .map(|it| Self::all(it, request))
                .collect(),
        });
        checks.collect()
    }
}

/// A way in which servers read a path, and what it finds.
#[derive(Debug, PartialEq, Eq)]
pub struct Reading {
    /// The path as they have it.
    pub path: Vec<u8>,
    /// Index of the rule, if one matches.
    pub rule: Option<usize>,
}

impl Trial<'_> {
    /// Whether the request meets the rule.
    pub fn matches(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }
}

impl RouteTable {
    /// Every reading of the path, where there are several and a rule looks at
    /// the path; the first is its normal form. None where there are more than are
    /// told apart.
    pub fn readings(&self, facts: &impl Facts) -> Vec<Reading> {
        let request = RoutedRequest::new(facts);
        let found = self.first(&request);
        let is_ambiguous = reading::oddity(facts.path()) == Oddity::Ambiguous;
        if !is_ambiguous || !self.compares_path(&request, found) {
            return Vec::new();
        }
        let readings = reading::readings(facts.path()).unwrap_or_default();
        readings
            .into_iter()
            .map(|path| Reading {
                rule: self.first(&RoutedRequest::read_as(facts, path.clone())),
                path,
            })
            .collect()
    }

    /// The rules in their order, up to the first that matches; all of them
    /// where none does.
    pub fn explain(&self, request: &impl Facts) -> Vec<Trial<'_>> {
        let request = RoutedRequest::new(request);
        let mut trials = Vec::new();
        for (rule, conditions) in self.rules.iter().map(|it| &it.conditions).enumerate() {
            let trial = Trial {
                rule,
                checks: Check::all(conditions, &request),
            };
            let is_last = trial.matches();
            trials.push(trial);
            if is_last {
                break;
            }
        }
        trials
    }
}
