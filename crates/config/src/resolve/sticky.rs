//! Stickiness: the files of its keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_tls::MacKey;

use super::{report_key, warn_of_readers};
use crate::Sticky;
use crate::diagnostics::Report;
use crate::surroundings::{Surroundings, absolute};
use crate::written::{File, Route, StickyParts};

/// The file of the process's own key of sticky cookies, beside its state file.
pub fn own_sticky_key(state_file: &Path) -> PathBuf {
    let mut path = state_file.as_os_str().to_owned();
    path.push(".sticky-key");
    path.into()
}

/// Warns if other users may read the process's own key beside its state file, and a route has
/// no other key.
pub(super) fn warn_of_own_key(file: &File, surroundings: Surroundings<'_>, report: &mut Report) {
    let state_file = (file.server.value.as_ref()).and_then(|it| it.state_file.value.as_ref());
    let routes = &mut file.route.value.iter().flatten();
    let without_keys = routes.find(|it| {
        let sticky = it.sticky.value.as_ref();
        sticky.is_some_and(|it| !it.0.keys.written)
    });
    if let (Some(state_file), Some(route)) = (state_file, without_keys) {
        let path = own_sticky_key(&surroundings.folder.join(&state_file.0));
        let secret = "the key of sticky cookies beside the state file";
        warn_of_readers(&path, &route.sticky.place, secret, report);
    }
}

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
