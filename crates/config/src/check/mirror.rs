//! The checks of mirrors.

use super::check_upstream_name;
use crate::diagnostics::Report;
use crate::quantity::Part;
use crate::setting::Placed;
use crate::written::{File, MirrorTable, Names, Route};

/// Reports contradictions and doubts in the mirrors of routes.
pub(super) fn check(file: &File, names: &Names<'_>, report: &mut Report) {
    for route in file.route.value.iter().flatten() {
        check_action(route, report);
        if let Some(mirror) = &route.mirror.value {
            check_mirror(&mirror.0, route, names, report);
        }
    }
}

/// Copies are of requests that go to an upstream.
fn check_action(route: &Route, report: &mut Report) {
    let has_upstream = route.upstream.written || route.split.written;
    if route.mirror.written && !has_upstream && !report.is_syntax_broken() {
        report
            .mistake(&route.mirror.place, "`mirror` without `upstream`")
            .help("`mirror` copies requests to an `upstream` or a `split`; this route has neither");
    }
}

fn check_mirror(mirror: &MirrorTable, route: &Route, names: &Names<'_>, report: &mut Report) {
    if let Some(Placed {
        value: Part(part),
        place,
    }) = &mirror.share.value
        && *part == 0.0
    {
        report
            .mistake(place, "a share of 0 matches no request")
            .help("0.01 is one in a hundred; to copy none, leave `mirror` out");
    }
    let Some(upstream) = &mirror.upstream.value else {
        return;
    };
    if report.is_syntax_broken() {
        return;
    }
    check_upstream_name("mirror", upstream, names, report);
    let name = &upstream.value.0;
    if let Some(own) = route.upstreams().find(|it| it.value.0 == *name) {
        report
            .warning(
                &upstream.place,
                format!("`{name}` gets each of these requests twice"),
            )
            .related(&own.place, "it is the route's upstream")
            .help("name another upstream, or leave `mirror` out");
    }
}
