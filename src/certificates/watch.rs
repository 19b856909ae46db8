//! The files of certificates, watched: where they change, they are read again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::ServedTls;
use crate::watching::{FileWatch, Pace, WatchedFolders, WatchedPaths};

/// When a change counts: a chain and its key are often written one after the other.
const PACE: Pace = Pace {
    quiet: Duration::from_millis(200),
    poll: Duration::from_secs(2),
};

/// How often it is looked whether certificates end, though no file changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);

/// Has certificates read again whose files change.
#[derive(Debug)]
pub struct CertificateWatch(watch::Sender<Vec<Arc<ServedTls>>>);

impl CertificateWatch {
    /// Of these listeners, once [`keep`](Self::keep) runs.
    pub fn new(served: &[Option<Arc<ServedTls>>]) -> Self {
        CertificateWatch(watch::Sender::new(
            served.iter().flatten().cloned().collect(),
        ))
    }

    /// Watches those of another configuration from now on.
    pub fn follow(&self, served: &[Option<Arc<ServedTls>>]) {
        self.0
            .send_replace(served.iter().flatten().cloned().collect());
    }

    /// Watches for ever. To be run as a task of the control thread.
    pub fn keep(&self, folders: Arc<WatchedFolders>) -> impl Future<Output = ()> + use<> {
        let mut served = self.0.subscribe();
        async move {
            loop {
                let now = served.borrow_and_update().clone();
                if now.is_empty() {
                    match served.changed().await {
                        Ok(()) => continue,
                        Err(_) => return,
                    }
                }
                let Some(known) = aside(now.clone(), |_| {}).await else {
                    return;
                };
                let mut watch = FileWatch::begin(&folders, known.clone(), PACE).await;
                loop {
                    // They may have changed before they were watched.
                    let read = aside(now.clone(), ServedTls::look).await;
                    // Folders may have come with them.
                    if read != Some(known.clone()) {
                        break;
                    }
                    tokio::select! {
                        follows = served.changed() => match follows {
                            Ok(()) => break,
                            // The process is ending.
                            Err(_) => return,
                        },
                        () = watch.changed() => {}
                        () = sleep(LOOK_INTERVAL) => {}
                    }
                }
            }
        }
    }
}

/// Does something with each on a thread beside this one, and says where their files are
/// then. `None` where the process is ending.
async fn aside(served: Vec<Arc<ServedTls>>, each: fn(&ServedTls)) -> Option<WatchedPaths> {
    let work = move || {
        served.iter().for_each(|it| each(it));
        paths(&served)
    };
    tokio::task::spawn_blocking(work).await.ok()
}

fn paths(served: &[Arc<ServedTls>]) -> WatchedPaths {
    let mut all = WatchedPaths::default();
    for one in served {
        let WatchedPaths { files, folders } = one.watched();
        all.files.extend(files);
        all.folders.extend(folders);
    }
    all
}
