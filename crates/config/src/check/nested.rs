//! Conditions made of others: `any`, `all` and `not`.

use crate::diagnostics::Report;
use crate::written::{Match, Route};

/// Deepest nesting of matches: deeper ones are unreadable.
const MAX_DEPTH: usize = 8;

/// Reports matches that stand too deep in one another, and empty ones.
pub(super) fn check(route: &Route, report: &mut Report) {
    if let Some(wanted) = &route.r#match.value {
        check_below(wanted, 1, report);
    }
}

fn check_below(wanted: &Match, depth: usize, report: &mut Report) {
    for (key, inner) in wanted.nested() {
        if depth > MAX_DEPTH {
            report
                .mistake(
                    &inner.place,
                    format!("conditions are nested more than {MAX_DEPTH} levels deep"),
                )
                .help("write several routes instead of one");
            continue;
        }
        if inner.takes_everything() && !report.is_syntax_broken() {
            let what = match key {
                "not" => "every request meets this condition, so the route matches none",
                "any" => "every request meets this condition, so `any` has no effect",
                _ => "this condition is empty",
            };
            report
                .mistake(&inner.place, what)
                .help("write a condition, or leave it out");
        }
        check_below(inner, depth + 1, report);
    }
}
