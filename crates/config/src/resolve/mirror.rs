//! Mirrors of routes.

use crate::Proxying;
use crate::quantity::Part;
use crate::written::{Mirror, MirrorParts, Names, Route};

/// The mirror of a route: `None` is a mistake, `Some(None)` none.
pub(super) fn mirror(route: &Route, names: &Names<'_>) -> Option<Option<Box<Mirror>>> {
    let table = match &route.mirror.value {
        None if route.mirror.written => return None,
        None => return Some(None),
        Some(mirror) => &mirror.0,
    };
    let Part(share) = table.share.value.as_ref()?.value;
    let parts = MirrorParts {
        proxying: Proxying {
            upstream: names.upstream(&table.upstream.value.as_ref()?.value.0)?,
            lane: None,
            // Requests that clients wait for go before copies.
            priority: 0,
        },
        share_ppm: (share * 1e6).ceil() as u32,
    };
    Some(Some(Box::new(table.resolve_with(parts)?)))
}
