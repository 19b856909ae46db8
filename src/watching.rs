//! Files that others change, and when they did.
//!
//! Folders are watched, not files: whoever replaces a file renames another one to its
//! name, or changes a link on the way to it. Not everything is told, such as what happens
//! on another machine, or to a folder that is made anew. So the files are looked at from
//! time to time as well. Work on the disk is done on threads aside.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// How often files are looked at of which nothing is told.
const POLL: Duration = Duration::from_secs(2);
/// A folder in which something happens all the time is looked at after so many times of
/// quiet that were waited for.
const LONGEST_UNQUIET: u32 = 5;

/// Files, and folders to which further ones may come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchedPaths {
    /// The files. One that is missing may come.
    pub files: Vec<PathBuf>,
    /// The folders.
    pub folders: Vec<PathBuf>,
}

/// Hears of changes of files and folders.
#[derive(Debug)]
pub struct FileWatch {
    paths: Arc<WatchedPaths>,
    /// What is written in several steps has changed when this long nothing more is
    /// written.
    quiet: Duration,
    told: Arc<Told>,
    /// `None` while it is being looked at.
    looked: Option<Looked>,
}

/// What the system tells.
#[derive(Debug, Default)]
struct Told {
    anything: Notify,
    /// Folders that are no longer where they were.
    lost: Mutex<HashSet<PathBuf>>,
}

/// What was seen last.
#[derive(Debug)]
struct Looked {
    folders: Folders,
    seen: Seen,
}

/// Files and folders as they were at a moment.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Of each file.
    files: Vec<Option<Mark>>,
    /// Of each folder the names in it.
    names: Vec<Vec<OsString>>,
}

/// What changes where a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Folders that the system tells of.
#[derive(Debug)]
struct Folders {
    /// `None` where it tells of none.
    watcher: Option<RecommendedWatcher>,
    watched: HashMap<PathBuf, FolderIdentity>,
    /// Said once of each.
    unwatchable: HashSet<PathBuf>,
}

/// Tells a folder from another one at its path: inodes are used again.
type FolderIdentity = (u64, u64, Option<SystemTime>);

impl FileWatch {
    /// Watches these from now on. A change counts once nothing more is written for
    /// `quiet`.
    pub async fn begin(paths: WatchedPaths, quiet: Duration) -> Self {
        let mut watch = FileWatch {
            paths: Arc::new(paths),
            quiet,
            told: Arc::default(),
            looked: None,
        };
        watch.looked = Some(watch.look(Folders::new(&watch.told)).await);
        watch
    }

    /// Waits until they have changed, and are quiet since.
    ///
    /// # Cancellation
    /// Dropping the future loses the changes since the call before.
    pub async fn changed(&mut self) {
        let mut before = match self.looked.take() {
            Some(looked) => looked,
            None => self.look(Folders::new(&self.told)).await,
        };
        loop {
            if timeout(POLL, self.told.anything.notified()).await.is_ok() {
                self.settle().await;
            }
            let now = self.look(before.folders).await;
            let is_changed = now.seen != before.seen;
            before = now;
            if is_changed {
                self.looked = Some(before);
                return;
            }
        }
    }

    /// Waits until nothing happens any more, or for long enough.
    async fn settle(&self) {
        let deadline = Instant::now() + self.quiet * LONGEST_UNQUIET;
        loop {
            let next = (Instant::now() + self.quiet).min(deadline);
            let more = timeout_at(next, self.told.anything.notified()).await;
            if more.is_err() || Instant::now() >= deadline {
                return;
            }
        }
    }

    async fn look(&self, mut folders: Folders) -> Looked {
        let (paths, told) = (self.paths.clone(), self.told.clone());
        let looked = tokio::task::spawn_blocking(move || {
            folders.follow(&paths, &told);
            let seen = Seen::now(&paths);
            Looked { folders, seen }
        });
        match looked.await {
            Ok(looked) => looked,
            // The process is ending.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Seen {
    fn now(paths: &WatchedPaths) -> Self {
        let files = paths.files.iter().map(|it| Mark::of(it));
        let names = paths.folders.iter().map(|it| names_in(it));
        Seen {
            files: files.collect(),
            names: names.collect(),
        }
    }
}

impl Mark {
    /// `None` where nothing is there, or can't be seen.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Mark {
            device: found.dev(),
            inode: found.ino(),
            len: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

fn names_in(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|it| it.file_name()).collect();
    names.sort();
    names
}

impl Folders {
    fn new(told: &Arc<Told>) -> Self {
        let told = told.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            told.note(event);
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::warn!("folders can't be watched ({error}): files are looked at each {POLL:?}");
        });
        Folders {
            watcher: watcher.ok(),
            watched: HashMap::new(),
            unwatchable: HashSet::new(),
        }
    }

    /// Watches the folders that these are in now. One that was made anew is watched anew.
    fn follow(&mut self, paths: &WatchedPaths, told: &Told) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let lost = std::mem::take(&mut *told.lost.lock().unwrap_or_else(PoisonError::into_inner));
        let wanted = folders_of(paths);
        self.watched.retain(|folder, identity| {
            let stays = !lost.contains(folder) && wanted.get(folder) == Some(identity);
            if !stays {
                // Where it is gone, so is its watch.
                let _ = watcher.unwatch(folder);
            }
            stays
        });
        for (folder, identity) in wanted {
            if self.watched.contains_key(&folder) {
                continue;
            }
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(folder, identity);
                }
                Err(error) => {
                    if self.unwatchable.insert(folder.clone()) {
                        let shown = folder.display();
                        tracing::warn!(
                            "the folder {shown} can't be watched ({error}): its files are looked \
                             at each {POLL:?}"
                        );
                    }
                }
            }
        }
    }
}

impl Told {
    fn note(&self, event: notify::Result<Event>) {
        // An error is looked at as well: something was missed.
        if let Ok(Event { kind, paths, .. }) = event {
            if is_only_read(kind) {
                return;
            }
            if matches!(
                kind,
                EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
            ) {
                let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
                lost.extend(paths);
            }
        }
        self.anything.notify_one();
    }
}

fn is_only_read(kind: EventKind) -> bool {
    let EventKind::Access(access) = kind else {
        return false;
    };
    !matches!(access, AccessKind::Close(AccessMode::Write))
}

/// The folders that are there, each once: those of the files, also where links lead, and
/// the folders themselves. In place of one that is missing the folder to which it may come.
fn folders_of(paths: &WatchedPaths) -> HashMap<PathBuf, FolderIdentity> {
    let of_files = paths.files.iter().flat_map(|file| {
        let real = fs::canonicalize(file).ok();
        [Some(folder_of(file)), real.as_deref().map(folder_of)]
    });
    let folders = of_files.flatten().chain(paths.folders.iter().cloned());
    let there = folders.filter_map(|folder| folder.ancestors().find_map(existing));
    there.collect()
}

fn existing(folder: &Path) -> Option<(PathBuf, FolderIdentity)> {
    let is_here = folder.as_os_str().is_empty();
    let folder = if is_here { Path::new(".") } else { folder };
    let found = fs::metadata(folder).ok().filter(fs::Metadata::is_dir)?;
    let identity = (found.dev(), found.ino(), found.created().ok());
    Some((folder.to_owned(), identity))
}

fn folder_of(file: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use evenkeel_testkit::TempDir;

    use super::*;

    /// Longest time that a change may take to be heard of.
    const STEP: Duration = Duration::from_secs(10);

    fn runtime() -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap()
    }

    async fn begun(files: &[PathBuf], folders: &[PathBuf]) -> FileWatch {
        let paths = WatchedPaths {
            files: files.to_vec(),
            folders: folders.to_vec(),
        };
        FileWatch::begin(paths, Duration::from_millis(20)).await
    }

    async fn hears(watch: &mut FileWatch, what: &str) {
        let heard = timeout(STEP, watch.changed()).await;
        assert!(heard.is_ok(), "{what}");
    }

    #[test]
    fn files_are_written_renamed_and_made_anew() {
        let dir = TempDir::new().unwrap();
        let (file, new) = (dir.join("a.toml"), dir.join("new"));
        fs::write(&file, "1").unwrap();
        runtime().block_on(async {
            let mut watch = begun(std::slice::from_ref(&file), &[]).await;
            fs::write(&file, "2").unwrap();
            hears(&mut watch, "written").await;
            fs::write(&new, "3").unwrap();
            fs::rename(&new, &file).unwrap();
            hears(&mut watch, "renamed").await;
            fs::remove_file(&file).unwrap();
            hears(&mut watch, "removed").await;
            fs::write(&file, "3").unwrap();
            hears(&mut watch, "made anew").await;
            // What others do in the folder is nothing.
            fs::write(dir.join("b.toml"), "1").unwrap();
            let heard = timeout(Duration::from_millis(300), watch.changed()).await;
            assert!(heard.is_err());
        });
    }

    #[test]
    fn links_on_the_way_are_changed() {
        let dir = TempDir::new().unwrap();
        // As Kubernetes mounts a config map.
        for (name, text) in [("..1", "1"), ("..2", "2")] {
            fs::create_dir(dir.join(name)).unwrap();
            fs::write(dir.join(name).join("a.toml"), text).unwrap();
        }
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/a.toml", dir.join("a.toml")).unwrap();
        runtime().block_on(async {
            let mut watch = begun(&[dir.join("a.toml")], &[]).await;
            symlink("..2", dir.join("..data_tmp")).unwrap();
            fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
            hears(&mut watch, "the link").await;
            // What the link leads to is watched as well.
            fs::write(dir.join("..2/a.toml"), "3").unwrap();
            hears(&mut watch, "the target").await;
        });
    }

    #[test]
    fn a_folder_is_made_anew() {
        let dir = TempDir::new().unwrap();
        let folder = dir.join("conf.d");
        let file = folder.join("a.toml");
        runtime().block_on(async {
            let mut watch = begun(std::slice::from_ref(&file), std::slice::from_ref(&folder)).await;
            for turn in 0..3 {
                fs::create_dir(&folder).unwrap();
                fs::write(&file, "1").unwrap();
                hears(&mut watch, &format!("{turn}: made")).await;
                fs::write(folder.join("b.toml"), "1").unwrap();
                hears(&mut watch, &format!("{turn}: another file")).await;
                fs::remove_dir_all(&folder).unwrap();
                hears(&mut watch, &format!("{turn}: removed")).await;
            }
        });
    }
}
