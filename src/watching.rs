//! Watches over files that other programs change.
//!
//! Folders are watched, not files: a program replaces a file by a rename, or changes a link on
//! the way to it. Some changes cause no event, such as a change on another machine, or in a
//! folder that is made again. So the files are also looked at from time to time. Work on the disk
//! is done on threads aside.
//!
//! All watches share one event source, because the system has few: [`WatchedFolders`].

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// A folder that is never quiet is looked at after so many quiet times.
const LONGEST_UNQUIET: u32 = 5;

/// Files, and folders to which further ones may come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchedPaths {
    /// The files. A missing one may come.
    pub files: Vec<PathBuf>,
    /// The folders. Only the names in them matter.
    pub folders: Vec<PathBuf>,
    /// Folders whose every file matters.
    pub whole: Vec<PathBuf>,
}

/// When changes count.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Time without a write after which a file that is written in several steps counts as
    /// changed.
    pub quiet: Duration,
    /// How often files without events are looked at.
    pub poll: Duration,
}

/// Hears of changes of files and folders.
#[derive(Debug)]
pub struct FileWatch {
    paths: Arc<WatchedPaths>,
    pace: Pace,
    told: Arc<Notify>,
    /// `None` while it is being looked at.
    looked: Option<LastLook>,
}

/// The result of the last look.
#[derive(Debug)]
struct LastLook {
    listening: Listening,
    seen: Seen,
}

/// Files and folders as they were at a moment.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Of each file.
    files: Vec<Option<Mark>>,
    /// Of each folder the names in it.
    names: Vec<Vec<OsString>>,
    /// Of each folder of which every file matters. Its mark changes when a file replaces another.
    whole: Vec<Option<Mark>>,
    /// The files in these. A look at very many files takes long: it is made after an event, and
    /// not time and again.
    contents: Contents,
}

/// The files of each folder whose every file matters.
type Contents = Arc<Vec<Vec<Option<Mark>>>>;

/// The facts on a file that change when the file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Folders that cause events, for all watches of the process.
#[derive(Debug, Default)]
pub struct WatchedFolders {
    /// Locked first.
    system: Mutex<System>,
    /// Never locked during a call to the system, which may deliver events meanwhile.
    listeners: Arc<Mutex<Listeners>>,
}

/// The system's side.
#[derive(Debug, Default)]
struct System {
    /// `None` before the first folder, and where the system has no events.
    watcher: Option<RecommendedWatcher>,
    has_failed: bool,
    /// Each is logged once.
    unwatchable: HashSet<PathBuf>,
}

/// The listeners of each folder.
#[derive(Debug, Default)]
struct Listeners {
    folders: HashMap<PathBuf, WatchedFolder>,
    /// Folders that may have no listener any more.
    left: Vec<PathBuf>,
}

#[derive(Debug)]
struct WatchedFolder {
    identity: FolderIdentity,
    /// The folder is no longer at its path.
    is_lost: bool,
    /// By their addresses.
    listeners: HashMap<usize, Weak<Notify>>,
}

/// A listener of folders, until it is dropped.
#[derive(Debug)]
struct Listening {
    watched: Arc<WatchedFolders>,
    told: Arc<Notify>,
    folders: HashSet<PathBuf>,
}

/// Tells a folder from another one at its path: inodes are used again.
type FolderIdentity = (u64, u64, Option<SystemTime>);

impl FileWatch {
    /// Watches these from now on. Waits until files are not being written: the next reader sees
    /// them whole.
    pub async fn begin(watched: &Arc<WatchedFolders>, paths: WatchedPaths, pace: Pace) -> Self {
        let told = Arc::<Notify>::default();
        let listening = Listening {
            watched: watched.clone(),
            told: told.clone(),
            folders: HashSet::new(),
        };
        let mut watch = FileWatch {
            paths: Arc::new(paths),
            pace,
            told,
            looked: None,
        };
        let looked = watch.look(listening, None).await;
        watch.looked = Some(watch.settled(looked).await);
        watch
    }

    /// Waits until they have changed, and are quiet since.
    ///
    /// # Cancellation
    /// Once the future was dropped, nothing more is heard.
    pub async fn changed(&mut self) {
        let Some(mut before) = self.looked.take() else {
            return std::future::pending().await;
        };
        loop {
            let told = timeout(self.pace.poll, self.told.notified()).await.is_ok();
            if told {
                self.settle().await;
            }
            let contents = (!told).then(|| before.seen.contents.clone());
            let now = self.look(before.listening, contents).await;
            if now.seen == before.seen {
                before = now;
                continue;
            }
            // Without an event, a file may be half written.
            let now = if told { now } else { self.settled(now).await };
            self.looked = Some(now);
            return;
        }
    }

    /// Waits until no more events come, or for long enough.
    async fn settle(&self) {
        let deadline = Instant::now() + self.pace.quiet * LONGEST_UNQUIET;
        loop {
            let next = (Instant::now() + self.pace.quiet).min(deadline);
            let more = timeout_at(next, self.told.notified()).await;
            if more.is_err() || Instant::now() >= deadline {
                return;
            }
        }
    }

    /// Looks again until no file was written just now, or for long enough.
    async fn settled(&self, mut looked: LastLook) -> LastLook {
        for _ in 0..LONGEST_UNQUIET {
            if !looked.seen.is_fresh(self.pace.quiet) {
                break;
            }
            tokio::time::sleep(self.pace.quiet).await;
            let contents = looked.seen.contents.clone();
            looked = self.look(looked.listening, Some(contents)).await;
        }
        looked
    }

    /// Looks at everything, or at all but the `contents` of folders.
    async fn look(&self, mut listening: Listening, contents: Option<Contents>) -> LastLook {
        let paths = self.paths.clone();
        let looked = tokio::task::spawn_blocking(move || {
            listening.follow(folders_of(&paths));
            let seen = Seen::now(&paths, contents);
            LastLook { listening, seen }
        });
        match looked.await {
            Ok(looked) => looked,
            // The process is ending.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Seen {
    fn now(paths: &WatchedPaths, contents: Option<Contents>) -> Self {
        let files = paths.files.iter().map(|it| Mark::of(it));
        let names = paths.folders.iter().map(|it| names_in(it));
        let whole = paths.whole.iter().map(|it| Mark::of(it));
        let marks_in = |folder: &PathBuf| {
            let names = names_in(folder);
            names.iter().map(|it| Mark::of(&folder.join(it))).collect()
        };
        let contents = contents.unwrap_or_else(|| {
            let contents = paths.whole.iter().map(marks_in);
            Arc::new(contents.collect())
        });
        Seen {
            files: files.collect(),
            names: names.collect(),
            whole: whole.collect(),
            contents,
        }
    }

    /// Whether a file was written within this time: more may come.
    fn is_fresh(&self, quiet: Duration) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let mut files = self.files.iter().flatten();
        files.any(|it| it.written().abs_diff(now) < quiet.as_nanos())
    }
}

impl Mark {
    /// When the file was written last, in nanoseconds since 1970.
    fn written(&self) -> u128 {
        let (seconds, nanos) = self.modified;
        u128::try_from(seconds).unwrap_or(0) * 1_000_000_000 + nanos.unsigned_abs() as u128
    }

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

impl Listening {
    /// Hears of these folders from now on, and of no other. A folder that was made again is
    /// watched again.
    fn follow(&mut self, wanted: HashMap<PathBuf, FolderIdentity>) {
        let watched = self.watched.clone();
        let mut system = lock(&watched.system);
        let (end, begin) = self.change(wanted);
        let Some(watcher) = system.watcher(&watched.listeners) else {
            return;
        };
        for folder in end {
            // The watch of a removed folder is gone as well.
            let _ = watcher.unwatch(&folder);
        }
        let mut failed = Vec::new();
        for folder in begin {
            if let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive) {
                // The next look tries again.
                lock(&watched.listeners).folders.remove(&folder);
                self.folders.remove(&folder);
                failed.push((folder, error));
            }
        }
        for (folder, error) in failed {
            if system.unwatchable.insert(folder.clone()) {
                let shown = folder.display();
                tracing::warn!(
                    "the folder {shown} can't be watched ({error}): its files are checked \
                     periodically"
                );
            }
        }
    }

    /// Notes the wanted folders. Gives the folders whose watch ends, and the folders whose watch
    /// begins. A folder that was made again is in both.
    fn change(&mut self, wanted: HashMap<PathBuf, FolderIdentity>) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let key = Arc::as_ptr(&self.told) as usize;
        let mut listeners = lock(&self.watched.listeners);
        let left = self.folders.iter().filter(|it| !wanted.contains_key(*it));
        listeners.leave(key, left);
        let mut end = listeners.unused();
        let mut begin = Vec::new();
        for (folder, identity) in &wanted {
            let known = listeners.folders.entry(folder.clone());
            let known = known.or_insert_with(|| {
                begin.push(folder.clone());
                WatchedFolder {
                    identity: *identity,
                    is_lost: false,
                    listeners: HashMap::new(),
                }
            });
            if known.is_lost || known.identity != *identity {
                (known.is_lost, known.identity) = (false, *identity);
                end.push(folder.clone());
                begin.push(folder.clone());
            }
            known.listeners.insert(key, Arc::downgrade(&self.told));
        }
        drop(listeners);
        self.folders = wanted.into_keys().collect();
        (end, begin)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // The system is called when another listener changes its folders.
        let key = Arc::as_ptr(&self.told) as usize;
        lock(&self.watched.listeners).leave(key, self.folders.iter());
    }
}

impl System {
    fn watcher(&mut self, listeners: &Arc<Mutex<Listeners>>) -> Option<&mut RecommendedWatcher> {
        if self.watcher.is_none() && !self.has_failed {
            let listeners = listeners.clone();
            let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
                lock(&listeners).tell(event);
            });
            match watcher {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(error) => {
                    self.has_failed = true;
                    tracing::warn!(
                        "folders can't be watched ({error}): files are checked periodically"
                    );
                }
            }
        }
        self.watcher.as_mut()
    }
}

impl Listeners {
    fn leave<'a>(&mut self, key: usize, folders: impl Iterator<Item = &'a PathBuf>) {
        for folder in folders {
            if let Some(of) = self.folders.get_mut(folder) {
                of.listeners.remove(&key);
                if of.listeners.is_empty() {
                    self.left.push(folder.clone());
                }
            }
        }
    }

    /// Forgets the folders without listeners, and gives them.
    fn unused(&mut self) -> Vec<PathBuf> {
        let mut left = std::mem::take(&mut self.left);
        left.retain(|folder| {
            let of = self.folders.get(folder);
            let is_unused = of.is_some_and(|it| it.listeners.is_empty());
            if is_unused {
                self.folders.remove(folder);
            }
            is_unused
        });
        left
    }

    fn tell(&mut self, event: notify::Result<Event>) {
        let Ok(Event { kind, paths, .. }) = event else {
            return self.tell_all();
        };
        if is_only_read(kind) {
            return;
        }
        if paths.is_empty() {
            // Events were missed.
            return self.tell_all();
        }
        let is_of_name = matches!(
            kind,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
        );
        for path in &paths {
            if let Some(itself) = self.folders.get_mut(path) {
                itself.is_lost |= is_of_name;
                itself.tell();
            }
            if let Some(folder) = path.parent().and_then(|it| self.folders.get(it)) {
                folder.tell();
            }
        }
    }

    fn tell_all(&self) {
        self.folders.values().for_each(WatchedFolder::tell);
    }
}

impl WatchedFolder {
    fn tell(&self) {
        let listeners = self.listeners.values().filter_map(Weak::upgrade);
        listeners.for_each(|it| it.notify_one());
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_only_read(kind: EventKind) -> bool {
    let EventKind::Access(access) = kind else {
        return false;
    };
    !matches!(access, AccessKind::Close(AccessMode::Write))
}

/// The existing folders of `paths`, with their absolute paths, as events have them.
///
/// They are the folders of the files, also where links lead, and the folders themselves. A
/// missing folder is replaced by the nearest existing one above it.
fn folders_of(paths: &WatchedPaths) -> HashMap<PathBuf, FolderIdentity> {
    let of_files = paths.files.iter().flat_map(|file| {
        let real = fs::canonicalize(file).ok();
        [Some(folder_of(file)), real.as_deref().map(folder_of)]
    });
    let folders = paths.folders.iter().chain(&paths.whole).cloned();
    let folders = of_files.flatten().chain(folders);
    let there = folders.filter_map(|folder| folder.ancestors().find_map(existing));
    there.collect()
}

fn existing(folder: &Path) -> Option<(PathBuf, FolderIdentity)> {
    let is_here = folder.as_os_str().is_empty();
    let folder = if is_here { Path::new(".") } else { folder };
    let folder = std::path::absolute(folder).ok()?;
    let found = fs::metadata(&folder).ok().filter(fs::Metadata::is_dir)?;
    let identity = (found.dev(), found.ino(), found.created().ok());
    Some((folder, identity))
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
            whole: Vec::new(),
        };
        let pace = Pace {
            quiet: Duration::from_millis(20),
            // Events have to tell all of it.
            poll: Duration::from_secs(60),
        };
        FileWatch::begin(&Arc::default(), paths, pace).await
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
            // Changes of other files in the folder do not matter.
            fs::write(dir.join("b.toml"), "1").unwrap();
            let heard = timeout(Duration::from_millis(300), watch.changed()).await;
            assert!(heard.is_err());
        });
    }

    #[test]
    fn what_is_being_written_is_waited_for() {
        let dir = TempDir::new().unwrap();
        let file = dir.join("blocked.txt");
        fs::write(&file, "").unwrap();
        let paths = WatchedPaths {
            files: vec![file.clone()],
            ..WatchedPaths::default()
        };
        let pace = Pace {
            quiet: Duration::from_secs(1),
            poll: Duration::from_secs(60),
        };
        runtime().block_on(async {
            let folders = Arc::default();
            let begin = FileWatch::begin(&folders, paths, pace);
            let write = async {
                tokio::time::sleep(pace.quiet / 4).await;
                fs::write(&file, "192.0.2.1").unwrap();
            };
            let (watch, ()) = tokio::join!(begin, write);
            let seen = &watch.looked.as_ref().unwrap().seen.files;
            assert_eq!(seen[0].unwrap().len, 9, "the file was still empty");
        });
    }

    #[test]
    fn a_path_may_be_relative() {
        let dir = TempDir::new().unwrap();
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let file = up
            .join(dir.path().strip_prefix("/").unwrap())
            .join("a.toml");
        runtime().block_on(async {
            let mut watch = begun(std::slice::from_ref(&file), &[]).await;
            fs::write(&file, "1").unwrap();
            hears(&mut watch, "written").await;
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
            // The link's target is watched as well.
            fs::write(dir.join("..2/a.toml"), "3").unwrap();
            hears(&mut watch, "the target").await;
        });
    }

    #[test]
    fn every_file_of_a_whole_folder_matters() {
        let dir = TempDir::new().unwrap();
        let (file, beside) = (dir.join("a"), dir.join(".a.new"));
        fs::write(&file, "1").unwrap();
        runtime().block_on(async {
            let mut watch = begun(&[], &[]).await;
            let paths = WatchedPaths {
                whole: vec![dir.path().to_owned()],
                ..WatchedPaths::default()
            };
            let watched = watch.looked.as_ref().unwrap().listening.watched.clone();
            watch = FileWatch::begin(&watched, paths.clone(), watch.pace).await;
            fs::write(&file, "22").unwrap();
            hears(&mut watch, "of a file that is written over").await;
            fs::write(&beside, "333").unwrap();
            hears(&mut watch, "of a new file").await;
            fs::rename(&beside, &file).unwrap();
            hears(&mut watch, "of a file that takes another's place").await;
            // Without an event, such as for another machine, a rename shows.
            let before = Seen::now(&paths, None);
            fs::write(&beside, "4444").unwrap();
            fs::rename(&beside, &file).unwrap();
            let now = Seen::now(&paths, Some(before.contents.clone()));
            assert_ne!(now, before);
        });
    }

    #[test]
    fn several_watches_share_a_folder() {
        let dir = TempDir::new().unwrap();
        let files = [dir.join("a"), dir.join("b")];
        runtime().block_on(async {
            let mut first = begun(&files[..1], &[]).await;
            let watched = first.looked.as_ref().unwrap().listening.watched.clone();
            let paths = WatchedPaths {
                files: files[1..].to_vec(),
                ..WatchedPaths::default()
            };
            let mut second = FileWatch::begin(&watched, paths, first.pace).await;
            fs::write(&files[0], "1").unwrap();
            hears(&mut first, "of the first").await;
            fs::write(&files[1], "1").unwrap();
            hears(&mut second, "of the second").await;
            drop(first);
            fs::write(&files[1], "22").unwrap();
            hears(&mut second, "of the second alone").await;
            assert_eq!(lock(&watched.listeners).folders.len(), 1);
            drop(second);
            assert_eq!(lock(&watched.listeners).unused().len(), 1);
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
