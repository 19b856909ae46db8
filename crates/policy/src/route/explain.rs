//! Why a request takes its route: every rule up to that one, condition by
//! condition. The conditions are asked as [`RouteTable::find`] asks them.

use super::{Condition, Facts, Request, RouteTable};

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
    /// What the request has of what the condition looks at.
    pub found: Vec<Vec<u8>>,
    /// Whether it holds.
    pub holds: bool,
}

impl Trial<'_> {
    /// Whether the request meets the rule.
    pub fn matches(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }
}

impl RouteTable {
    /// The rules in their order, up to the first that matches; all of them
    /// where none does.
    pub fn explain(&self, request: &impl Facts) -> Vec<Trial<'_>> {
        let request = Request::new(request);
        let mut trials = Vec::new();
        for (rule, conditions) in self.rules.iter().map(|it| &it.conditions).enumerate() {
            let checks = conditions.iter().map(|condition| Check {
                condition,
                found: condition.found(&request),
                holds: condition.holds(&request),
            });
            let trial = Trial {
                rule,
                checks: checks.collect(),
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
