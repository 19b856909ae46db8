//! Changes at the shared server since the last round.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::shared::{Fingerprint, Point, Shared};

/// A server, and how far the folder has come with it.
pub(crate) struct Sharing {
    pub(crate) server: Arc<dyn Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Changes are known up to here.
    point: Option<Point>,
    /// Names to compare in any case.
    open: BTreeSet<String>,
}

/// What this machine knows of a name's certificate at the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Nothing,
    Absent,
    Is(Fingerprint),
}

/// Changes at the server.
#[derive(Default)]
pub(crate) struct Changed {
    until: Option<Point>,
    certificates: BTreeMap<String, Fingerprint>,
    /// The server has none but those, and may have lost others.
    is_other_epoch: bool,
}

impl Sharing {
    pub(crate) fn new(server: Arc<dyn Shared>) -> Self {
        Self {
            server,
            state: Mutex::default(),
        }
    }

    /// Has certificates of these names compared in the next round.
    pub(crate) fn compare_later(&self, names: impl IntoIterator<Item = String>) {
        self.state().open.extend(names);
    }

    /// It need not be compared again until it changes.
    pub(crate) fn note_compared(&self, name: &str) {
        self.state().open.remove(name);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The changes at the server since the last round. Blocks.
    pub(crate) fn changed(&self) -> io::Result<Changed> {
        let mut changed = Changed {
            until: self.state().point.clone(),
            ..Changed::default()
        };
        loop {
            let changes = self.server.changes(changed.until.as_ref())?;
            let epoch = changes.until.epoch.clone();
            let before = changed.until.replace(changes.until);
            if before.is_none_or(|it| it.epoch != epoch) {
                changed.is_other_epoch = true;
                changed.certificates.clear();
            }
            changed.certificates.extend(changes.certificates);
            if !changes.has_more {
                return Ok(changed);
            }
        }
    }

    /// The names whose certificates have to be compared. `followed` returns the followed names:
    /// all, or those among some.
    pub(crate) fn to_compare(
        &self,
        changed: Changed,
        followed: impl Fn(Option<BTreeSet<String>>) -> BTreeSet<String>,
    ) -> Vec<(String, Known)> {
        let mut state = self.state();
        let (among, otherwise) = if changed.is_other_epoch {
            (None, Known::Absent)
        } else {
            let names = changed.certificates.keys().cloned();
            let open = std::mem::take(&mut state.open);
            (
                Some(open.into_iter().chain(names).collect()),
                Known::Nothing,
            )
        };
        state.point = changed.until;
        state.open = followed(among);
        let known = |name: &String| {
            let known = changed.certificates.get(name).map(|it| Known::Is(*it));
            (name.clone(), known.unwrap_or(otherwise))
        };
        state.open.iter().map(known).collect()
    }
}
