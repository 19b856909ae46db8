//! The checks of what compresses responses.

use evenkeel_proto::coding::{Gain, gain_of};

use crate::CodedRequests;
use crate::action::files::{check_codings, check_not_empty};
use crate::diagnostics::Report;
use crate::written::{File, ResponseCompressionTable, Route};

/// Reports contradictions and doubts about the compression of responses, and about requests
/// with a content coding.
pub(super) fn check(file: &File, report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    for route in file.route.value.iter().flatten() {
        check_route(route, report);
        if let Some(compression) = route.compression() {
            check_table(compression, report);
        }
    }
}

/// Both keys apply only to exchanges with an upstream.
fn check_route(route: &Route, report: &mut Report) {
    let mut actions = route.actions().into_iter().filter(|it| it.is_written);
    let Some(action) = actions
        .next()
        .filter(|_| route.upstreams().next().is_none())
    else {
        return;
    };
    let key = action.key;
    if route.compression().is_some() {
        let help = match key {
            "files" => "for files, write `compress` in `files`",
            _ => "leave `compress` out",
        };
        report
            .mistake(
                &route.compress.place,
                format!("`compress` needs `upstream`, but this route has `{key}`"),
            )
            .related(action.place, "this answers the route's requests")
            .help(help);
    }
    if route.coded_requests.value == Some(CodedRequests::Refuse) {
        report
            .mistake(
                &route.coded_requests.place,
                format!("`coded_requests` needs `upstream`, but this route has `{key}`"),
            )
            .related(action.place, "this answers the route's requests")
            .help("leave it out");
    }
}

fn check_table(it: &ResponseCompressionTable, report: &mut Report) {
    check_codings(&it.codings, report);
    check_not_empty(&it.codings, report);
    check_not_empty(&it.types, report);
    for prefix in it.types.value.iter().flatten() {
        let name = &prefix.value.0;
        let why = match gain_of(name.as_bytes()) {
            Gain::Possible => continue,
            Gain::CompressedAlready => "is already compressed",
            Gain::Framed => "is sent in pieces that must arrive without delay",
        };
        report
            .warning(&prefix.place, format!("content of type `{name}` {why}"))
            .help("such responses are never compressed: leave it out");
    }
}
