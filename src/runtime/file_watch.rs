//! Watched files that routes name: routes follow the content of a file when it changes.
//!
//! A file with a mistake changes nothing. The last content without a mistake stays in force.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::{WatchedNetworks, WatchedUsers, network_file, user_file};
use crate::watching::{FileWatch, Pace, WatchedFolders, WatchedPaths};

/// When a change counts.
const PACE: Pace = Pace {
    quiet: Duration::from_millis(200),
    poll: Duration::from_secs(2),
};

/// A file that is read again when it changes.
pub(super) trait Reread: Clone + Send + Sync + 'static {
    /// Its path.
    fn path(&self) -> &PathBuf;

    /// Reads the file, and has routes follow it if its content has changed. Blocks.
    fn look(&self);
}

/// Has files of a kind read again that change.
#[derive(Debug)]
pub(super) struct RereadFiles<T> {
    files: watch::Sender<Vec<T>>,
}

impl<T: Reread> RereadFiles<T> {
    /// Of these files, once [`keep`](Self::keep) runs.
    pub fn new(files: Vec<T>) -> Self {
        RereadFiles {
            files: watch::Sender::new(files),
        }
    }

    /// Watches the files of another configuration from now on.
    pub fn follow(&self, files: Vec<T>) {
        self.files.send_replace(files);
    }

    /// Watches for ever. To be run as a task of the control thread.
    pub fn keep(&self, folders: Arc<WatchedFolders>) -> impl Future<Output = ()> + use<T> {
        let mut followed = self.files.subscribe();
        async move {
            loop {
                let now = followed.borrow_and_update().clone();
                let paths = WatchedPaths {
                    files: now.iter().map(|it| it.path().clone()).collect(),
                    ..WatchedPaths::default()
                };
                let mut watch = FileWatch::begin(&folders, paths, PACE).await;
                loop {
                    // They may have changed before they were watched.
                    let files = now.clone();
                    let look = move || files.iter().for_each(Reread::look);
                    if tokio::task::spawn_blocking(look).await.is_err() {
                        // The process is ending.
                        return;
                    }
                    tokio::select! {
                        follows = followed.changed() => match follows {
                            Ok(()) => break,
                            // The process is ending.
                            Err(_) => return,
                        },
                        () = watch.changed() => {}
                    }
                }
            }
        }
    }
}

impl Reread for WatchedNetworks {
    fn path(&self) -> &PathBuf {
        &self.path
    }

    fn look(&self) {
        let WatchedNetworks { path, file } = self;
        let name = file.name();
        match network_file::read(path) {
            Ok(set) => {
                let was_mistaken = file.mistake().is_some();
                file.set_mistake(None);
                if set != *file.set() {
                    let len = set.len();
                    file.replace(set);
                    if len > 0 {
                        tracing::info!(file = name, "networks of {name}: reloaded, {len} networks");
                    } else {
                        tracing::warn!(
                            file = name,
                            "networks of {name}: reloaded, and the file has no networks"
                        );
                    }
                } else if was_mistaken {
                    tracing::info!(file = name, "networks of {name}: the file is valid again");
                }
            }
            Err(error) => {
                let mistake = error.describe(path);
                // Said once, not at each look.
                if file.mistake().is_some_and(|it| *it == mistake) {
                    return;
                }
                let len = file.set().len();
                tracing::warn!(
                    file = name,
                    "networks of {name}: {mistake}; the {len} networks read before stay in force"
                );
                file.set_mistake(Some(mistake));
            }
        }
    }
}

impl Reread for WatchedUsers {
    fn path(&self) -> &PathBuf {
        &self.path
    }

    fn look(&self) {
        let WatchedUsers { path, file } = self;
        let name = file.name();
        match user_file::read(path) {
            Ok(users) => {
                let was_mistaken = file.mistake().is_some();
                file.set_mistake(None);
                if users.digest() != file.users().digest() {
                    let len = users.len();
                    file.replace(users);
                    if len > 0 {
                        tracing::info!(file = name, "users of {name}: reloaded, {len} users");
                    } else {
                        tracing::warn!(
                            file = name,
                            "users of {name}: reloaded, and the file has no users"
                        );
                    }
                } else if was_mistaken {
                    tracing::info!(file = name, "users of {name}: the file is valid again");
                }
            }
            Err(error) => {
                let mistake = error.describe(path);
                // Said once, not at each look.
                if file.mistake().is_some_and(|it| *it == mistake) {
                    return;
                }
                let len = file.users().len();
                tracing::warn!(
                    file = name,
                    "users of {name}: {mistake}; the {len} users read before stay in force"
                );
                file.set_mistake(Some(mistake));
            }
        }
    }
}
