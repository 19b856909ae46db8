//! The checks of stickiness.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::diagnostics::Report;
use crate::written::{File, Route, StickyTable};

/// Reports contradictions and doubts in the stickiness of routes.
pub(super) fn check(file: &File, report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    let server = file.server.value.as_ref();
    let has_state_file = server.is_none_or(|it| it.state_file.written);
    for route in file.route.value.iter().flatten() {
        let Some(sticky) = &route.sticky.value else {
            continue;
        };
        let place = &route.sticky.place;
        if route.upstreams().next().is_none() && route.actions().iter().any(|it| it.is_written) {
            report
                .mistake(place, "`sticky` without `upstream`")
                .help("it keeps a client at an endpoint, but this route has no upstream");
        } else if !sticky.0.keys.written && !has_state_file {
            report
                .warning(
                    place,
                    "the key of this cookie is lost on a restart: clients then go to new endpoints",
                )
                .help("write `keys`, or a `state_file` in [server]: the key is stored beside it");
        }
        check_table(&sticky.0, report);
        check_others(route, file, report);
    }
}

fn check_table(table: &StickyTable, report: &mut Report) {
    let max_age = table.max_age.value.as_ref();
    if max_age.is_some_and(|it| it.0 < Duration::from_secs(1)) {
        report
            .mistake(
                &table.max_age.place,
                "a browser counts in whole seconds, and would not keep this cookie",
            )
            .help("write 1s or more, or leave `max_age` out");
    }
}

/// Warns of an earlier route that writes the same cookie for another upstream.
fn check_others(route: &Route, file: &File, report: &mut Report) {
    let cookie_of = |it: &Route| {
        let table = &it.sticky.value.as_ref()?.0;
        Some(table.cookie.value.as_ref()?.0.clone())
    };
    let upstreams_of = |it: &Route| {
        let names: BTreeSet<_> = it.upstreams().map(|it| it.value.0.clone()).collect();
        (!names.is_empty()).then_some(names)
    };
    let (Some(cookie), Some(upstreams)) = (cookie_of(route), upstreams_of(route)) else {
        return;
    };
    let mut earlier =
        (file.route.value.iter().flatten()).take_while(|it| !std::ptr::eq(*it, route));
    let other = earlier.find(|it| {
        let is_other = upstreams_of(it).is_some_and(|it| it != upstreams);
        is_other && cookie_of(it).is_some_and(|it| it == cookie)
    });
    if let Some(other) = other {
        report
            .warning(
                &route.sticky.place,
                format!(
                    "two upstreams share the cookie `{cookie}`: each would replace the cookie of \
                    the other"
                ),
            )
            .related(&other.sticky.place, "the other is here")
            .help("give each upstream a cookie with its own name");
    }
}
