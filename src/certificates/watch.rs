//! The files of certificates, watched: where they change, they are read again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::of_files::OfFiles;
use super::{ServedTls, Tickets, UpstreamTls};
use crate::watching::{FileWatch, Pace, WatchedFolders, WatchedPaths};

/// When a change counts: a chain and its key are often written one after the other.
const PACE: Pace = Pace {
    quiet: Duration::from_millis(200),
    poll: Duration::from_secs(2),
};

/// How often it is looked whether certificates end, though no file changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);

/// Each of a configuration.
type Each = Vec<Arc<dyn OfFiles>>;

/// Has certificates read again whose files change.
#[derive(Debug)]
pub struct CertificateWatch(watch::Sender<Each>);

impl CertificateWatch {
    /// Of these listeners, upstreams and tickets, once [`keep`](Self::keep) runs.
    pub fn new(
        served: &[Option<Arc<ServedTls>>],
        upstreams: impl Iterator<Item = Arc<UpstreamTls>>,
        tickets: &Arc<Tickets>,
    ) -> Self {
        CertificateWatch(watch::Sender::new(each(served, upstreams, tickets)))
    }

    /// Watches those of another configuration from now on.
    pub fn follow(
        &self,
        served: &[Option<Arc<ServedTls>>],
        upstreams: impl Iterator<Item = Arc<UpstreamTls>>,
        tickets: &Arc<Tickets>,
    ) {
        self.0.send_replace(each(served, upstreams, tickets));
    }

    /// Watches for ever. To be run as a task of the control thread.
    pub fn keep(&self, folders: Arc<WatchedFolders>) -> impl Future<Output = ()> + use<> {
        let mut followed = self.0.subscribe();
        async move {
            loop {
                let now = followed.borrow_and_update().clone();
                if now.is_empty() {
                    match followed.changed().await {
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
                    let read = aside(now.clone(), |it| it.look()).await;
                    // Folders may have come with them.
                    if read != Some(known.clone()) {
                        break;
                    }
                    tokio::select! {
                        follows = followed.changed() => match follows {
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

fn each(
    served: &[Option<Arc<ServedTls>>],
    upstreams: impl Iterator<Item = Arc<UpstreamTls>>,
    tickets: &Arc<Tickets>,
) -> Each {
    let served = served.iter().flatten().cloned();
    let served = served.map(|it| -> Arc<dyn OfFiles> { it });
    let upstreams = upstreams.map(|it| -> Arc<dyn OfFiles> { it });
    let tickets = tickets.has_files().then(|| tickets.clone());
    let tickets = tickets.map(|it| -> Arc<dyn OfFiles> { it });
    served.chain(upstreams).chain(tickets).collect()
}

/// Does something with each on a thread beside this one, and says where their files are
/// then. `None` where the process is ending.
async fn aside(all: Each, each: fn(&dyn OfFiles)) -> Option<WatchedPaths> {
    let work = move || {
        all.iter().for_each(|it| each(&**it));
        paths(&all)
    };
    tokio::task::spawn_blocking(work).await.ok()
}

fn paths(each: &[Arc<dyn OfFiles>]) -> WatchedPaths {
    let mut all = WatchedPaths::default();
    for one in each {
        let WatchedPaths { files, folders } = one.watched();
        all.files.extend(files);
        all.folders.extend(folders);
    }
    all
}
