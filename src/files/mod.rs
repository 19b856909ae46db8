//! Files of folders, from memory at once, or through the queue of their disk.
//!
//! Per worker, except the queues. Knows paths, open files and bytes; knows no HTTP.
//!
//! A [`Files`] belongs to one generation of the worker. Its open files and contents are in
//! `Caches`, which the worker's generations share: a folder that stays keeps its cached files.

mod bytes;
mod cache;
mod compressed;
mod contents;
mod derive;
mod direct;
mod disks;
mod figures;
mod folder;
mod folder_id;
mod held;
pub mod io_queue;
mod memory;
mod open;
mod part;
mod ring;
mod root;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use rustix::io::Errno;

use crate::config::Config;
use crate::net::timer::TICK;
use crate::net::{is_out_of_descriptors, tasks};
use cache::{Checked, OpenFiles};
use compressed::CompressedFiles;
use direct::DirectReads;
use io_queue::{StartedWork, Work};
use part::Part;
use ring::Ring;
use root::Root;

pub use bytes::{FileBytes, ReadBytes};
pub use compressed::Compressed;
pub use disks::{Disk, DiskRequest, Disks, Fetched};
pub use figures::{DiskFigures, DiskGiven, IoCounters};
pub use folder::{Contents, FolderEntry, Kind, MAX_ENTRIES};
pub use folder_id::FolderId;
pub use held::{AnswerMemory, HeldBytes, HeldPage, Holding, Page};
pub use io_queue::{Refused, WhenFull};
pub use open::{
    Barrier, Fields, FileId, Hot, Missing, OpenFile, is_in_page_cache, read_in_page_cache,
};

/// Files up to this length, in bytes, are read in one piece. If opening the file takes the disk
/// anyway, the read goes with it.
pub const WHOLE_LEN: u64 = 64 * 1024;

/// Most bytes of compressed files that each worker keeps.
const COMPRESSED_LEN: usize = 32 * 1024 * 1024;

/// One worker's files, in one generation.
#[derive(Debug)]
pub struct Files {
    disks: Arc<Disks>,
    /// The folder of each route that serves files.
    folders: Vec<Option<Rc<Folder>>>,
    /// Reads short files without a thread.
    ring: Option<Ring>,
    /// Most reads in the ring at once.
    ring_most: usize,
    /// Ticks for which an open file is trusted to be the one at its path.
    check_ticks: u64,
    caches: Rc<Caches>,
}

/// Files that a worker keeps through all its generations.
#[derive(Debug)]
struct Caches {
    /// By the folder's id, a variant and the path.
    open_files: RefCell<OpenFiles>,
    compressed: RefCell<CompressedFiles>,
    /// Scratch buffer for keys. Invariant: never borrowed across an await.
    key: RefCell<Vec<u8>>,
    /// Tick from which on an error may be logged again.
    next_complaint: Cell<u64>,
    /// Errors that were not logged.
    unsaid: Cell<u64>,
}

/// Ticks between two lines about errors of disks: a second.
const COMPLAINT_TICKS: u64 = 10;

/// A folder that is served.
#[derive(Debug)]
struct Folder {
    id: FolderId,
    path: PathBuf,
    /// `None` until the folder is opened.
    opened: RefCell<Option<Arc<Root>>>,
    /// Tick of the last check that the path still leads to the folder.
    checked: Cell<u64>,
    /// Whether such a check is going on.
    is_checked: Cell<bool>,
    /// Whether the folder was there, and is gone.
    is_lost: Cell<bool>,
}

/// An open folder, and where it is.
struct Opened<'a> {
    folder: FolderId,
    root: Arc<Root>,
    disk: &'a Disk,
}

/// A file.
#[derive(Debug, Clone)]
pub struct Found {
    /// The open file.
    pub file: Arc<OpenFile>,
    /// The whole file, if it is no longer than [`WHOLE_LEN`] and either the disk was needed to
    /// open it, or it is asked for often.
    pub bytes: Option<FileBytes>,
}

/// The outcome of a look that does not wait.
#[derive(Debug)]
pub enum Look {
    /// The answer was in memory: the file, or why there is none.
    Known(Result<Found, Missing>),
    /// The disk has to be asked.
    Cold,
}

impl Files {
    /// The files of a worker whose first configuration this is.
    pub fn new(config: &Config, disks: Arc<Disks>) -> Self {
        let caches = Caches {
            open_files: RefCell::new(OpenFiles::new(open_files_most(config))),
            compressed: RefCell::new(CompressedFiles::new(
                COMPRESSED_LEN,
                disks.answer_memory.clone(),
            )),
            key: RefCell::default(),
            next_complaint: Cell::new(0),
            unsaid: Cell::new(0),
        };
        Files::with(None, config, disks, Rc::new(caches))
    }

    /// The files of the same worker under its next configuration, whose disks
    /// [follow](Disks::following) the present ones. Folders that stay keep their open files,
    /// their contents and their compressed files.
    pub fn following(&self, config: &Config, disks: Arc<Disks>) -> Self {
        let caches = self.caches.clone();
        let files = Files::with(Some(self), config, disks, caches);
        let stay = files.folders.iter().flatten().map(|it| it.id.to_bytes());
        let stay: HashSet<_> = stay.collect();
        let mut open_files = files.caches.open_files.borrow_mut();
        open_files.set_most(open_files_most(config));
        open_files.retain(|key| key.first_chunk().is_some_and(|id| stay.contains(id)));
        drop(open_files);
        files
    }

    fn with(
        before: Option<&Files>,
        config: &Config,
        disks: Arc<Disks>,
        caches: Rc<Caches>,
    ) -> Self {
        let known = before.iter().flat_map(|it| it.folders.iter().flatten());
        let mut folders: HashMap<_, _> = known.map(|it| (it.id, it.clone())).collect();
        let routes = config.routes.iter().zip(&disks.of_route);
        let of_routes = routes.map(|(route, place)| {
            let (files, place) = route.action.files().zip(place.as_ref())?;
            let folder = folders
                .entry(place.folder)
                .or_insert_with(|| Rc::new(Folder::new(place.folder, files.root.clone())));
            Some(folder.clone())
        });
        let of_routes = of_routes.collect();
        let settings = &config.disk;
        let ring_most = disks.all().len() * settings.in_flight;
        let known = before.filter(|it| it.ring_most >= ring_most && ring_most > 0);
        Files {
            folders: of_routes,
            ring: match known {
                Some(before) => before.ring.clone(),
                None => start_ring(ring_most),
            },
            ring_most: known.map_or(ring_most, |it| it.ring_most),
            disks,
            check_ticks: (settings.check_interval.as_millis() / TICK.as_millis()) as u64,
            caches,
        }
    }

    /// Logs which file could not be read, and why; without `path`, the folder itself. Logs only
    /// the first of many errors in a second, and counts the others in the next line. `now` in
    /// ticks.
    #[cold]
    pub fn complain(&self, route: usize, path: Option<&[u8]>, error: &dyn fmt::Display, now: u64) {
        if now < self.caches.next_complaint.get() {
            self.caches.unsaid.set(self.caches.unsaid.get() + 1);
            return;
        }
        self.caches.next_complaint.set(now + COMPLAINT_TICKS);
        let root = self.folder(route).map(|folder| folder.path.display());
        let root = root.map(|root| root.to_string()).unwrap_or_default();
        let what = match path {
            Some(path) => format!("read {root}/{}", String::from_utf8_lossy(path)),
            None => format!("open the folder {root}"),
        };
        match self.caches.unsaid.take() {
            0 => tracing::error!("files: {what}: {error}"),
            more => tracing::error!("files: {what}: {error}; {more} more since the last such line"),
        }
    }

    /// Closes half of the open files, for want of descriptors. Returns whether any were open.
    pub fn make_room(&self) -> bool {
        self.caches.open_files.borrow_mut().shrink()
    }

    /// Counts the memory of answers until clients have taken them.
    pub fn answer_memory(&self) -> &Arc<AnswerMemory> {
        &self.disks.answer_memory
    }

    /// How many files are kept open.
    pub fn open_count(&self) -> usize {
        self.caches.open_files.borrow().len()
    }

    /// Looks for `path` in the folder of `route` without waiting for a disk. `variant` separates
    /// entries with the same file and different fields. `now` in ticks.
    pub fn look(&self, route: usize, variant: u8, path: &[u8], now: u64) -> Look {
        let known = |file| Look::Known(Ok(Found { file, bytes: None }));
        let Some(folder) = self.folder(route) else {
            return Look::Known(Err(Missing::Absent));
        };
        let opened = folder.opened.borrow();
        let Some(root) = opened.as_ref() else {
            return Look::Cold;
        };
        let mut key = self.caches.key.borrow_mut();
        key.clear();
        key.extend_from_slice(&folder.id.to_bytes());
        key.push(variant);
        key.extend_from_slice(path);
        let mut open_files = self.caches.open_files.borrow_mut();
        if let Some(kept) = open_files.get(&key) {
            let file = kept.file.clone();
            match kept.check(root, path, now, self.check_ticks) {
                Checked::Same => {
                    let bytes = match kept.contents(now) {
                        None if kept.is_asked_often(now) => open_files.keep_contents(&key, now),
                        contents => contents,
                    };
                    return Look::Known(Ok(Found { file, bytes }));
                }
                Checked::Other(file) => {
                    open_files.put(&key, file.clone(), now);
                    return known(file);
                }
                Checked::Missing(missing) => {
                    open_files.remove(&key);
                    return Look::Known(Err(missing));
                }
                Checked::Cold => {
                    open_files.remove(&key);
                    return Look::Cold;
                }
                Checked::Outdated => open_files.remove(&key),
            }
        }
        let opened = match root.open_in_memory(path) {
            Some(Err(Missing::NoDescriptor)) if open_files.shrink() => root.open_in_memory(path),
            opened => opened,
        };
        match opened {
            None => Look::Cold,
            Some(Err(missing)) => Look::Known(Err(missing)),
            Some(Ok(file)) => {
                let file = Arc::new(file);
                open_files.offer(&key, &file, now);
                known(file)
            }
        }
    }

    /// Has the disk look for `path` in the folder of `route`. `variant` as for
    /// [`look`](Self::look).
    ///
    /// # Errors
    /// The disk's queue takes no more.
    ///
    /// # Cancellation
    /// Work that no other request waits for is dropped.
    pub async fn fetch(
        &self,
        route: usize,
        variant: u8,
        path: &[u8],
    ) -> Result<Result<Found, Missing>, Refused> {
        let Opened { folder, root, disk } = match self.root(route).await? {
            Ok(found) => found,
            Err(missing) => return Ok(Err(missing)),
        };
        let path: Box<[u8]> = path.into();
        let wanted = DiskRequest::Path(folder, variant, path.clone());
        let (ring, direct_reads) = (self.ring.clone(), disk.direct_reads.clone());
        let load = Work::Blocking(Box::new(move |begun| {
            load(&root, &path, direct_reads, ring.as_ref(), begun)
        }));
        let fetched = disk.queue.run(wanted, WhenFull::Refuse, load);
        Ok(match fetched.await? {
            Fetched::Path(found) => found,
            _ => Err(Missing::Absent),
        })
    }

    /// Has the disk read `len` bytes of a file of `route`, from `offset` on. The result is
    /// shorter where the file ends before.
    ///
    /// # Errors
    /// The disk's queue takes no more, or the disk has an error.
    ///
    /// # Cancellation
    /// As for [`fetch`](Self::fetch).
    pub async fn read(
        &self,
        route: usize,
        file: &Arc<OpenFile>,
        offset: u64,
        len: u64,
        when_full: WhenFull,
    ) -> Result<ReadBytes, Refused> {
        let Some(disk) = self.disk(route) else {
            return Err(Refused);
        };
        let wanted = DiskRequest::Bytes(file.id, offset, len);
        let part = Part {
            is_only_here: !file.is_shared(),
            direct_reads: Some(disk.direct_reads.clone()),
            ..Part::of(file.clone(), offset, len as usize)
        };
        let ring = self.ring.as_ref().filter(|ring| ring.takes(file));
        let work = match ring.cloned() {
            Some(ring) => ring.work(part),
            None => Work::blocking(move || part.fetch()),
        };
        Ok(match disk.queue.run(wanted, when_full, work).await? {
            Fetched::Bytes(bytes) => bytes,
            _ => Err(Errno::IO),
        })
    }

    fn folder(&self, route: usize) -> Option<&Rc<Folder>> {
        self.folders.get(route)?.as_ref()
    }

    fn disk(&self, route: usize) -> Option<&Disk> {
        let place = self.disks.of_route.get(route)?.as_ref()?;
        self.disks.queues.get(place.disk)
    }

    /// The open folder of `route`, and its disk.
    async fn root(&self, route: usize) -> Result<Result<Opened<'_>, Missing>, Refused> {
        let folder = self.folder(route).cloned();
        let (Some(folder), Some(disk)) = (folder, self.disk(route)) else {
            return Ok(Err(Missing::Absent));
        };
        let opened = folder.opened.borrow().clone();
        let opened = match opened {
            Some(root) => Ok(root),
            None => self.open_root(&folder, disk).await?,
        };
        let folder = folder.id;
        let opened = opened.map(|root| Opened { folder, root, disk });
        Ok(opened.map_err(|error| {
            if is_out_of_descriptors(error) {
                Missing::NoDescriptor
            } else {
                Missing::NoRoot(error)
            }
        }))
    }

    async fn open_root(
        &self,
        folder: &Rc<Folder>,
        disk: &Disk,
    ) -> Result<Result<Arc<Root>, Errno>, Refused> {
        let path = folder.path.clone();
        let open = Work::blocking(move || Fetched::Root(Root::open(&path).map(Arc::new)));
        let wanted = DiskRequest::Root(folder.id);
        let fetched = disk.queue.run(wanted, WhenFull::Refuse, open);
        let Fetched::Root(opened) = fetched.await? else {
            return Ok(Err(Errno::IO));
        };
        if let Ok(root) = &opened {
            if folder.is_lost.replace(false) {
                tracing::info!("files: {} is back", folder.path.display());
            }
            let before = folder.opened.replace(Some(root.clone()));
            if before.is_some_and(|before| !before.is_same(root)) {
                self.caches.open_files.borrow_mut().clear();
            }
        }
        Ok(opened)
    }

    /// Checks that the paths of folders still lead to them, as a deployment may have replaced a
    /// folder. Skips folders that were checked a short while ago. To be called regularly; `now`
    /// in ticks.
    pub fn check_folders(self: &Rc<Self>, now: u64) {
        for (route, folder) in self.folders.iter().enumerate() {
            let Some(folder) = folder else { continue };
            let is_due = now >= folder.checked.get() + self.check_ticks;
            if !is_due || folder.opened.borrow().is_none() || folder.is_checked.replace(true) {
                continue;
            }
            let (files, folder) = (self.clone(), folder.clone());
            tasks::spawn(async move {
                let Some(disk) = files.disk(route) else {
                    return;
                };
                // A busy disk is asked again later. Other errors say nothing of the folder.
                if let Ok(Err(error @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS))) =
                    files.open_root(&folder, disk).await
                {
                    let path = folder.path.display();
                    tracing::warn!("files: {path} can no longer be opened: {error}");
                    folder.opened.replace(None);
                    folder.is_lost.set(true);
                    files.caches.open_files.borrow_mut().clear();
                }
                folder.checked.set(now);
                folder.is_checked.set(false);
            });
        }
    }
}

/// Most files that a worker keeps open.
fn open_files_most(config: &Config) -> usize {
    config.disk.open_files / config.server.workers.max(1)
}

impl Folder {
    fn new(id: FolderId, path: PathBuf) -> Self {
        Folder {
            id,
            path,
            opened: RefCell::default(),
            checked: Cell::new(0),
            is_checked: Cell::new(false),
            is_lost: Cell::new(false),
        }
    }
}

/// Starts a worker's ring for at most this many reads; `None` if there is none.
fn start_ring(most: usize) -> Option<Ring> {
    if most == 0 {
        return None;
    }
    match Ring::start(most) {
        Ok(ring) => Some(ring),
        Err(error) => {
            tracing::info!("files: no io_uring ({error}): threads read files instead");
            None
        }
    }
}

/// Opens a file, and reads it where it is short. Blocks.
fn load(
    root: &Root,
    path: &[u8],
    direct_reads: Arc<DirectReads>,
    ring: Option<&Ring>,
    begun: StartedWork<DiskRequest, Fetched>,
) {
    let file = match root.open_from_disk(path) {
        Ok(file) => Arc::new(file),
        Err(missing) => return begun.finish(&Fetched::Path(Err(missing))),
    };
    if file.id.len > WHOLE_LEN {
        return begun.finish(&Fetched::Path(Ok(Found { file, bytes: None })));
    }
    let mut part = Part::whole(file);
    part.direct_reads = Some(direct_reads);
    let left = match ring.filter(|ring| ring.takes(&part.file)) {
        Some(ring) => ring.begin(part, begun),
        None => Some((part, begun)),
    };
    // The ring does not take the file, or has returned the read.
    if let Some((part, begun)) = left {
        begun.finish(&part.fetch());
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;
    use crate::config::{NameLookup, load_text};

    #[test]
    fn what_is_kept_of_a_folder_that_stays_is_kept() {
        let tasks = tasks::Tasks::of_this_thread().unwrap();
        let done = tasks.run_until(async move { goes_on() });
        done.unwrap();
    }

    fn goes_on() {
        let folder = TempDir::new().unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(folder.join(name)).unwrap();
            std::fs::write(folder.join(name).join("file"), name).unwrap();
        }
        let config = |names: &[&str], most: usize| {
            let routes = names.iter().map(|name| {
                let root = folder.join(name);
                format!("[[route]]\nfiles = {{ root = '{}' }}\n", root.display())
            });
            let routes: String = routes.collect();
            let text = format!(
                "[server]\nworkers = 1\n[disk]\nopen_files = {most}\n\
                 [[listener]]\nbind = ':0'\n{routes}"
            );
            let loaded = load_text("test.toml", &text, NameLookup::Skip);
            loaded.unwrap().config
        };
        let first = config(&["a", "b"], 100);
        let disks = Arc::new(Disks::start(&first).unwrap());
        let files = Files::new(&first, disks.clone());
        for folder in files.folders.iter().flatten() {
            let root = Root::open(&folder.path).unwrap();
            folder.opened.replace(Some(Arc::new(root)));
        }
        let file = |files: &Files, route: usize| match files.look(route, 0, b"file", 1) {
            Look::Known(Ok(found)) => Some(found.file),
            Look::Known(Err(_)) | Look::Cold => None,
        };
        // The cache keeps a file from its second request on.
        for route in [0, 1, 0, 1] {
            assert!(file(&files, route).is_some());
        }
        assert_eq!(files.open_count(), 2);
        let kept = file(&files, 1).unwrap();
        // The routes change places, and one goes.
        let second = config(&["b"], 50);
        let disks = Arc::new(disks.following(&second).unwrap());
        let later = files.following(&second, disks.clone());
        assert_eq!(later.open_count(), 1);
        assert!(Arc::ptr_eq(&file(&later, 0).unwrap(), &kept));
        // An exchange of the first generation still finds its own folder.
        assert!(Arc::ptr_eq(&file(&files, 1).unwrap(), &kept));
        assert!(file(&files, 0).is_some_and(|it| !Arc::ptr_eq(&it, &kept)));
        let disks = Arc::new(disks.following(&first).unwrap());
        let again = later.following(&first, disks);
        assert!(file(&again, 0).is_none(), "it is to be opened anew");
        assert!(Arc::ptr_eq(&file(&again, 1).unwrap(), &kept));
    }
}
