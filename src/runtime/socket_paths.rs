//! Whether the paths of Unix listeners still lead to them.
//!
//! Another program may have removed the file, or put its own there. One for the process, on the
//! control thread.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::start::Process;
use crate::net::listen::{FileIdentity, FoundAt, SocketFile};

/// The process looks once in so many seconds.
const EVERY: u32 = 2;

/// A file that should be at its path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bound {
    listener: String,
    path: PathBuf,
    identity: FileIdentity,
}

impl Bound {
    /// The sockets of all listeners.
    fn all(process: &Process) -> Vec<Self> {
        let files = process.listeners.files();
        let bound = files.map(|(listener, file)| Bound {
            listener: listener.to_owned(),
            path: file.path().to_owned(),
            identity: file.identity(),
        });
        bound.collect()
    }
}

type Found = Vec<(Bound, FoundAt)>;

/// The files found at the paths of listeners.
#[derive(Debug, Default)]
pub(super) struct PathWatch {
    seconds: u32,
    /// Comes from a thread beside: a file system may be slow.
    found: Arc<Mutex<Option<Found>>>,
    /// Paths that do not lead to their listener, with the word for it.
    lost: HashMap<PathBuf, &'static str>,
}

impl PathWatch {
    /// Looks at once, for a caller that needs the result before it says something else. Blocks
    /// for a moment.
    pub fn look_now(&mut self, process: &Process) {
        // A look that is under way would bring an older result.
        self.found = Arc::default();
        for at in Bound::all(process) {
            let found = SocketFile::found_at(&at.path, at.identity);
            self.note(process, &at, found);
        }
    }

    /// Logs the results of the last look, and looks again. To be called once a second while the
    /// process serves, in its runtime.
    pub fn look(&mut self, process: &Process) {
        let bound = Bound::all(process);
        let found = self
            .found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        for (at, found) in found.into_iter().flatten() {
            if bound.contains(&at) {
                self.note(process, &at, found);
            }
        }
        self.seconds += 1;
        if bound.is_empty() || !self.seconds.is_multiple_of(EVERY) {
            return;
        }
        let into = self.found.clone();
        tokio::task::spawn_blocking(move || {
            let look = |at: Bound| {
                let found = SocketFile::found_at(&at.path, at.identity);
                (at, found)
            };
            let found = bound.into_iter().map(look).collect();
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        });
    }

    fn note(&mut self, process: &Process, at: &Bound, found: FoundAt) {
        let Bound { listener, path, .. } = at;
        let shown = path.display();
        let (reason, what) = match found {
            FoundAt::Own => {
                if self.lost.remove(path).is_some() {
                    tracing::info!(listener, "listener {listener}: {shown} is its socket again");
                }
                return;
            }
            FoundAt::Other => ("path-taken", "another program put its own file there"),
            FoundAt::Nothing => ("path-removed", "its file was removed"),
        };
        if self.lost.insert(path.clone(), reason) == Some(reason) {
            return;
        }
        process.sources().paths_lost.note(reason);
        tracing::error!(
            listener,
            reason,
            "listener {listener}: {reason}: {shown} is no longer its socket, because {what}; open \
             connections continue, but new ones need a restart"
        );
    }
}
