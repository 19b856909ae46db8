//! Stickiness: the files of its keys.

use std::sync::Arc;

use evenkeel_tls::MacKey;

use super::{report_key, warn_of_readers};
use crate::Sticky;
use crate::diagnostics::Report;
use crate::surroundings::{Surroundings, absolute};
use crate::written::{Route, StickyParts};

/// The stickiness of a route: `None` is a mistake, `Some(None)` none.
pub(super) fn sticky(
    route: &Route,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<Box<Sticky>>> {
    let Some(sticky) = &route.sticky.value else {
        return Some(None);
    };
    let table = &sticky.0;
    let written = table.keys.value.iter().flat_map(|it| &it.0);
    let keys: Vec<_> = written
        .map(|it| {
            let path = absolute(&it.value.0, &it.place, surroundings.folder, report)?;
            warn_of_readers(&path, &it.place, "the key of sticky cookies", report);
            match MacKey::read(&path) {
                Ok(key) => Some(Arc::new(key)),
                Err(error) => {
                    report_key(&path, &it.place, &error, 32, report);
                    None
                }
            }
        })
        .collect();
    let sticky = table.resolve_with(StickyParts {
        cookie: table.cookie.value.as_ref()?.0.clone(),
        keys: keys.into_iter().collect::<Option<_>>()?,
    })?;
    Some(Some(Box::new(sticky)))
}
