//! The watched files of certificates: a change has them read again. Other certificates are
//! ordered.

use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::of_files::FileBacked;
use super::{Acme, ServedTls, Tickets, UpstreamTls};
use crate::watching::{FileWatch, Pace, WatchedFolders, WatchedPaths};

/// When a change counts: a chain and its key are often written one after the other.
const PACE: Pace = Pace {
    quiet: Duration::from_millis(200),
    poll: Duration::from_secs(2),
};

/// How often the ends of certificates are checked without a change of a file.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);

/// Each of a configuration.
type Each = Vec<Arc<dyn FileBacked>>;

/// Has certificates read again whose files change, and others ordered.
#[derive(Debug)]
pub struct CertificateWatch {
    each: watch::Sender<Each>,
    /// Notified too when certificates were read again: others may be lacking then.
    served: watch::Sender<Served>,
}

/// Each listener with TLS.
type Served = Vec<Arc<ServedTls>>;

impl CertificateWatch {
    /// Of these listeners, upstreams and tickets, once [`keep`](Self::keep) runs.
    pub fn new(
        served: &[Option<Arc<ServedTls>>],
        upstreams: impl Iterator<Item = Arc<UpstreamTls>>,
        tickets: &Arc<Tickets>,
    ) -> Self {
        CertificateWatch {
            each: watch::Sender::new(each(served, upstreams, tickets)),
            served: watch::Sender::new(served.iter().flatten().cloned().collect()),
        }
    }

    /// Watches the files of another configuration from now on.
    pub fn follow(
        &self,
        served: &[Option<Arc<ServedTls>>],
        upstreams: impl Iterator<Item = Arc<UpstreamTls>>,
        tickets: &Arc<Tickets>,
    ) {
        self.each.send_replace(each(served, upstreams, tickets));
        let served = served.iter().flatten().cloned();
        self.served.send_replace(served.collect());
    }

    /// Orders certificates and renews them, for ever. To be run as a task of the control
    /// thread.
    pub fn order(&self) -> impl Future<Output = ()> + use<> {
        let mut followed = self.served.subscribe();
        let each = self.each.clone();
        async move {
            let mut before: Option<Arc<Acme>> = None;
            loop {
                let Some((acme, names)) = ordered(&followed.borrow_and_update()) else {
                    match followed.changed().await {
                        Ok(()) => continue,
                        Err(_) => return,
                    }
                };
                acme.follow(names);
                if let Some(before) = before.filter(|it| !Arc::ptr_eq(it, &acme)) {
                    acme.take_over(&before);
                }
                before = Some(acme.clone());
                let mut keeping = pin!(acme.keep());
                let mut demands = acme.demands();
                loop {
                    tokio::select! {
                        () = &mut keeping => {}
                        () = changed(&mut demands) => {
                            // Their certificates may exist already. Missing ones are ordered
                            // after a look at the files.
                            each.send_modify(|_| {});
                            continue;
                        }
                        follows = followed.changed() => if follows.is_err() {
                            // The process is ending.
                            return;
                        }
                    }
                    // An order under way goes on, unless all settings are new.
                    match ordered(&followed.borrow_and_update()) {
                        Some((next, names)) if Arc::ptr_eq(&next, &acme) => acme.follow(names),
                        _ => break,
                    }
                }
            }
        }
    }

    /// Watches for ever. To be run as a task of the control thread.
    pub fn keep(&self, folders: Arc<WatchedFolders>) -> impl Future<Output = ()> + use<> {
        let mut followed = self.each.subscribe();
        let served = self.served.clone();
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
                    served.send_modify(|_| {});
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

/// Waits for ever without a sender.
async fn changed(told: &mut Option<watch::Receiver<()>>) {
    let told = async { told.as_mut()?.changed().await.ok() };
    if told.await.is_none() {
        pending().await
    }
}

/// All that these listeners order, and of whom.
fn ordered(served: &Served) -> Option<(Arc<Acme>, Vec<String>)> {
    let acme = served.iter().find_map(|it| it.acme())?.clone();
    let names = served.iter().flat_map(|it| it.ordered());
    let names: BTreeSet<_> = names.collect();
    Some((acme, names.into_iter().collect()))
}

fn each(
    served: &[Option<Arc<ServedTls>>],
    upstreams: impl Iterator<Item = Arc<UpstreamTls>>,
    tickets: &Arc<Tickets>,
) -> Each {
    let served = served.iter().flatten().cloned();
    let served = served.map(|it| -> Arc<dyn FileBacked> { it });
    let upstreams = upstreams.map(|it| -> Arc<dyn FileBacked> { it });
    let tickets = tickets.has_files().then(|| tickets.clone());
    let tickets = tickets.map(|it| -> Arc<dyn FileBacked> { it });
    served.chain(upstreams).chain(tickets).collect()
}

/// Calls `each` with all of them on a thread beside this one, and gives the paths of their files
/// then. `None` where the process is ending.
async fn aside(all: Each, each: fn(&dyn FileBacked)) -> Option<WatchedPaths> {
    let work = move || {
        all.iter().for_each(|it| each(&**it));
        paths(&all)
    };
    tokio::task::spawn_blocking(work).await.ok()
}

fn paths(each: &[Arc<dyn FileBacked>]) -> WatchedPaths {
    let mut all = WatchedPaths::default();
    for one in each {
        let WatchedPaths {
            files,
            folders,
            whole,
        } = one.watched();
        all.files.extend(files);
        all.folders.extend(folders);
        all.whole.extend(whole);
    }
    all
}
