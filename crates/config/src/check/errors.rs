//! The checks of error pages.

use crate::diagnostics::Report;
use crate::setting::Bounded;
use crate::written::{ErrorPageTable, Errors, File, Route};

/// Reports what is wrong or doubtful about the error pages of routes.
pub(super) fn check(file: &File, report: &mut Report) {
    for route in file.route.value.iter().flatten() {
        check_overlaps(route, report);
        let pages = route.errors.value.iter().flat_map(|it| &it.0);
        for page in pages.filter_map(|it| it.value.as_ref()) {
            check_page(&page.0, report);
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
                .mistake(&page.place, format!("errors of `{}` have another page", page.name))
                .related(&earlier.place, "by this")
                .help("a page for fewer errors goes before one for more: write ranges of different lengths, or ranges that do not overlap");
        }
    }
}

fn check_page(page: &ErrorPageTable, report: &mut Report) {
    if page.body.written && page.file.written {
        report
            .mistake(
                &page.file.place,
                "an error page with both `body` and `file`",
            )
            .related(&page.body.place, "the other one")
            .help("a page has one body: write one of them");
    }
    let status = page.status.value.map(Bounded::get);
    if let Some(status @ (204 | 304)) = status {
        report
            .mistake(
                &page.status.place,
                format!("an answer with status {status} has no body"),
            )
            .help("write another status, or leave it out");
    }
}
