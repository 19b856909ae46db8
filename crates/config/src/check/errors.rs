//! The checks of error pages.

use super::check_upstream_name;
use crate::diagnostics::Report;
use crate::setting::Bounded;
use crate::written::{ErrorPageTable, Errors, File, Names, Route};

/// Reports contradictions and doubts in the error pages of routes.
pub(super) fn check(file: &File, names: &Names<'_>, report: &mut Report) {
    for route in file.route.value.iter().flatten() {
        check_overlaps(route, report);
        let pages = route.errors.value.iter().flat_map(|it| &it.0);
        for page in pages.filter_map(|it| it.value.as_ref()) {
            check_page(&page.0, report);
            check_source(&page.0, route, names, report);
        }
    }
}

/// No error has two pages that are for equally many errors.
fn check_overlaps(route: &Route, report: &mut Report) {
    let pages: Vec<_> = route.errors.value.iter().flat_map(|it| &it.0).collect();
    for (index, page) in pages.iter().enumerate() {
        let Some(Errors::Statuses(own)) = &page.key else {
            continue;
        };
        let earlier = pages[..index].iter().find(|it| match &it.key {
            Some(Errors::Statuses(other)) => {
                other.start() <= own.end()
                    && own.start() <= other.end()
                    && own.clone().count() == other.clone().count()
            }
            _ => false,
        });
        if let Some(earlier) = earlier {
            report
                .mistake(
                    &page.place,
                    format!("errors of `{}` already have another page", page.name),
                )
                .related(&earlier.place, "here")
                .help(
                    "where ranges overlap, the shorter one is used: write ranges of different \
                    lengths, or ranges that do not overlap",
                );
        }
    }
}

fn check_page(page: &ErrorPageTable, report: &mut Report) {
    let bodies = [
        ("body", page.body.written, &page.body.place),
        ("file", page.file.written, &page.file.place),
        ("upstream", page.upstream.written, &page.upstream.place),
    ];
    let mut written = bodies.iter().filter(|(_, is_written, _)| *is_written);
    match (written.next(), written.next()) {
        (Some((one, _, first)), Some((other, _, place))) => {
            report
                .mistake(
                    place,
                    format!("an error page with both `{one}` and `{other}`"),
                )
                .related(first, "the other one")
                .help("a page has one body: write one of them");
        }
        (None, _) if !report.is_syntax_broken() => {
            report
                .mistake(&page.file.place, "an error page needs the key `file`")
                .help("write `file`, `body`, or `upstream` and `path`");
        }
        _ => {}
    }
    let status = page.status.value.map(Bounded::get);
    if let Some(status @ (204 | 304)) = status {
        report
            .mistake(
                &page.status.place,
                format!("an answer with status {status} cannot have a body"),
            )
            .help("write another status, or leave it out");
    }
}

/// Checks where a page comes from that is asked for.
fn check_source(page: &ErrorPageTable, route: &Route, names: &Names<'_>, report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    if !page.upstream.written {
        let others = [
            ("path", page.path.written, &page.path.place),
            ("timeout", page.timeout.written, &page.timeout.place),
        ];
        for (key, _, place) in others.into_iter().filter(|(_, written, _)| *written) {
            report
                .mistake(place, format!("`{key}` needs `upstream`"))
                .help("leave it out, or name the upstream that serves the page");
        }
        return;
    }
    if !page.path.written {
        report
            .mistake(&page.upstream.place, "`upstream` without `path`")
            .help("write the path of the page, as in path = \"/sorry.html\"");
    }
    let Some(upstream) = &page.upstream.value else {
        return;
    };
    check_upstream_name("upstream", upstream, names, report);
    let name = &upstream.value.0;
    if let Some(own) = route.upstreams().find(|it| it.value.0 == *name) {
        report
            .warning(
                &upstream.place,
                format!("while `{name}` fails, it cannot serve the page for its own errors"),
            )
            .related(&own.place, "requests of this route go to the same upstream")
            .help("name another upstream, or a `file`");
    }
}
