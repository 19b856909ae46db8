//! Error pages: their files, and where others come from.

use crate::Proxying;
use crate::diagnostics::Report;
use crate::surroundings::{Surroundings, read_body};
use crate::written::{ErrorPage, ErrorPageParts, ErrorPageTable, Names, PageSource, Route};

/// The error pages of a route, those for the fewest errors first: `None` is a mistake.
pub(super) fn pages(
    route: &Route,
    names: &Names<'_>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Box<[ErrorPage]>> {
    let written = route.errors.value.iter().flat_map(|it| &it.0);
    // Each is read, so that every mistake is reported.
    let pages: Vec<_> = written
        .map(|it| {
            let table = &it.value.as_ref()?.0;
            let body = match read_body(&table.file, surroundings.folder, report)? {
                Some((_, body)) => body,
                None if table.upstream.written => Vec::new(),
                None => table.body.value.as_ref()?.0.clone().into_bytes(),
            };
            let source = if table.upstream.written {
                Some(source(table, names)?)
            } else {
                None
            };
            table.resolve_with(ErrorPageParts {
                errors: it.key.clone()?,
                body,
                source,
            })
        })
        .collect();
    let mut pages: Vec<_> = pages.into_iter().collect::<Option<_>>()?;
    pages.sort_by_key(|it| it.errors.breadth());
    Some(pages.into())
}

fn source(table: &ErrorPageTable, names: &Names<'_>) -> Option<PageSource> {
    let upstream = table.upstream.value.as_ref()?;
    Some(PageSource {
        proxying: Proxying {
            upstream: names.upstream(&upstream.value.0)?,
            lane: None,
            priority: 0,
        },
        path: table.path.value.as_ref()?.0.clone(),
        timeout: table.timeout.value.as_ref()?.0,
    })
}
