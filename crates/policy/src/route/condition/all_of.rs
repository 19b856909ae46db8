//! Conditions that must hold together.

use super::Condition;
use crate::route::{Facts, RegexPattern, RoutedRequest};

/// Conditions that must all hold, in the order in which they are asked. Without any it
/// holds for every request.
#[derive(Debug, Clone, Default)]
pub struct AllOf(Box<[Condition]>);

impl AllOf {
    /// All of `conditions`; cheap ones are checked first.
    pub fn new(mut conditions: Vec<Condition>) -> Self {
        conditions.sort_by_key(Condition::rank);
        Self(conditions.into())
    }

    /// The conditions.
    pub fn conditions(&self) -> &[Condition] {
        &self.0
    }

    /// Shows every condition to `look`, which says whether to go deeper.
    pub(in crate::route) fn each<'t>(&'t self, look: &mut impl FnMut(&'t Condition) -> bool) {
        for condition in &self.0 {
            if look(condition) {
                let alternatives = condition.alternatives().iter();
                alternatives.for_each(|it| it.each(look));
            }
        }
    }

    pub(in crate::route) fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.0.iter().all(|it| it.holds(request))
    }

    /// Whether the path is compared until it is known if all of it holds.
    pub(in crate::route) fn compares_path<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        for condition in &self.0 {
            if condition.compares_path(request) {
                return true;
            }
            if !condition.holds(request) {
                return false;
            }
        }
        false
    }

    /// Whether one of the conditions is on the path, at any depth.
    pub(in crate::route) fn has_path(&self) -> bool {
        self.0.iter().any(Condition::has_path)
    }

    /// Whether a request by the listener of this index may meet all of them.
    pub(in crate::route) fn may_meet(&self, listener: usize) -> bool {
        self.0.iter().all(|it| match it {
            Condition::Listener(wanted) => wanted.0.contains(&listener),
            Condition::Any(any) => any.0.iter().any(|it| it.may_meet(listener)),
            Condition::Not(not) => !not.0.iter().any(|it| it.is_listener(listener)),
            _ => true,
        })
    }

    /// Whether it asks for the listener of this index, and nothing else.
    fn is_listener(&self, listener: usize) -> bool {
        self.0.iter().all(|it| match it {
            Condition::Listener(wanted) => wanted.0.contains(&listener),
            _ => false,
        })
    }

    /// The regular expressions of its paths, in order.
    pub(in crate::route) fn path_regexes<'t>(&'t self, found: &mut Vec<&'t RegexPattern>) {
        for condition in &self.0 {
            match condition {
                Condition::Path(path) => found.extend(path.regexes()),
                Condition::Any(any) => any.0.iter().for_each(|it| it.path_regexes(found)),
                _ => {}
            }
        }
    }
}
