//! Error pages: their files.

use crate::diagnostics::Report;
use crate::surroundings::{Surroundings, read_body};
use crate::written::{ErrorPage, ErrorPageParts, Route};

/// The error pages of a route, those for the fewest errors first: `None` is a mistake.
pub(super) fn pages(
    route: &Route,
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
                None => table.body.value.as_ref()?.0.clone().into_bytes(),
            };
            let errors = it.key.clone()?;
            table.resolve_with(ErrorPageParts { errors, body })
        })
        .collect();
    let mut pages: Vec<_> = pages.into_iter().collect::<Option<_>>()?;
    pages.sort_by_key(|it| it.errors.breadth());
    Some(pages.into())
}
