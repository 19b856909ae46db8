//! The watched files of the configuration: a change causes a reload.
//!
//! A task of the control thread tells when their content may have changed. `reload` then compares
//! it with the last content.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::watching::{FileWatch, Pace, WatchedFolders, WatchedPaths};

/// When a change counts.
const PACE: Pace = Pace {
    quiet: Duration::from_millis(200),
    poll: Duration::from_secs(2),
};

/// Hears of changes of the configuration's files.
#[derive(Debug)]
pub(super) struct SourceWatch {
    paths: watch::Sender<WatchedPaths>,
    changed: Arc<Notify>,
}

impl SourceWatch {
    /// Of these files, once [`keep`](Self::keep) runs.
    pub fn new(paths: WatchedPaths) -> Self {
        SourceWatch {
            paths: watch::Sender::new(paths),
            changed: Arc::default(),
        }
    }

    /// Watches for ever. To be run as a task.
    pub fn keep(&self, folders: Arc<WatchedFolders>) -> impl Future<Output = ()> + use<> {
        let (mut paths, changed) = (self.paths.subscribe(), self.changed.clone());
        async move {
            loop {
                let now = paths.borrow_and_update().clone();
                let mut watch = FileWatch::begin(&folders, now, PACE).await;
                // They may have changed before they were watched.
                changed.notify_one();
                loop {
                    tokio::select! {
                        follows = paths.changed() => match follows {
                            Ok(()) => break,
                            // The process is ending.
                            Err(_) => return,
                        },
                        () = watch.changed() => changed.notify_one(),
                    }
                }
            }
        }
    }

    /// Waits until the content of the files may have changed.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Watches the files of the newest configuration.
    pub fn follow(&self, read: WatchedPaths) {
        self.paths.send_if_modified(|paths| {
            let is_other = *paths != read;
            *paths = read;
            is_other
        });
    }

    /// Watches files with mistakes beside the files of the configuration in force: a correction may
    /// change any of them.
    pub fn follow_mistaken(&self, read: WatchedPaths) {
        self.paths.send_if_modified(|paths| {
            let has_new = [
                add(&mut paths.files, read.files),
                add(&mut paths.folders, read.folders),
            ];
            has_new.contains(&true)
        });
    }
}

/// Adds the missing ones; whether there were any.
fn add(paths: &mut Vec<PathBuf>, more: Vec<PathBuf>) -> bool {
    let before = paths.len();
    for path in more {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths.len() > before
}
