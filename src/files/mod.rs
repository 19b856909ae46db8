//! Files of folders: what is in memory at once, the rest by way of the disk's
//! queue.
//!
//! Per worker, but for the queues. Knows paths, open files and bytes; knows no
//! HTTP.

mod bytes;
mod cache;
mod compressed;
mod contents;
mod derive;
mod direct;
mod folder;
mod held;
pub mod io_queue;
mod memory;
mod open;
mod ring;

use std::cell::{Cell, LazyCell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::admission::Bounds;
use evenkeel_proto::coding::Coding;
use rustix::io::{Errno, pread};

use crate::config::{Action, Config};
use crate::net::timer::TICK;
use crate::net::{is_out_of_descriptors, tasks};
use cache::OpenFiles;
use compressed::CompressedFiles;
use direct::{DirectReads, Way};
use io_queue::{Begun, IoQueue, Work};
use memory::Memory;
use ring::Ring;

pub use bytes::FileBytes;
pub use compressed::Compressed;
pub use folder::{Contents, FolderEntry, Kind, MAX_ENTRIES};
use held::HeldPages;
pub use held::{AnswerMemory, HeldBytes, HeldPage, Holding, Page};
pub use io_queue::{Entry, Refused};
use open::Root;
pub use open::{Barrier, Fields, FileId, Hot, Missing, OpenFile};

/// Files up to this length are read in one piece, and with the opening where
/// that takes the disk anyway, in bytes.
pub const WHOLE_LEN: u64 = 64 * 1024;

/// Files that may wait to be compressed.
const COMPRESSING_MAX: usize = 1000;
/// How long one may, as far as can be foreseen; others are sent as they are.
const COMPRESSING_WAIT: Duration = Duration::from_millis(200);

/// What each worker keeps of compressed files, in bytes.
const COMPRESSED_LEN: usize = 32 * 1024 * 1024;

/// The queues of all disks, shared by all workers.
#[derive(Debug)]
pub struct Disks {
    /// For each route, the index of its queue where it serves files.
    of_route: Vec<Option<usize>>,
    /// One for each device.
    queues: Vec<Disk>,
    /// For files that are compressed when they are asked for, if any are: it
    /// takes the processor, and would keep the disks' queues from their disks.
    compressing: Option<IoQueue<Wanted, Fetched>>,
    /// What is held until clients have taken it.
    pub answer_memory: Arc<AnswerMemory>,
    /// Those of it that are listings.
    pages: HeldPages,
}

/// A device, and its queue.
#[derive(Debug)]
pub struct Disk {
    /// The folder that is on it, of the first route that has one there.
    pub name: String,
    /// Its queue.
    pub queue: IoQueue<Wanted, Fetched>,
    /// What of it is read past the page cache.
    pub direct_reads: Arc<DirectReads>,
}

/// What a disk is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// A route's folder.
    Root(usize),
    /// A path beneath a route's folder, for a variant: what is opened for one
    /// has its fields.
    Path(usize, u8, Box<[u8]>),
    /// Bytes of a file: from where, and how many.
    Bytes(FileId, u64, u64),
    /// A file, compressed.
    Compressed(FileId, Coding),
    /// A page about what is in a folder of a route: the folder's path, and the
    /// one that clients have for it.
    Page(usize, Box<[u8]>, Box<[u8]>),
}

/// What a disk gave.
#[derive(Debug, Clone)]
pub enum Fetched {
    /// The folder itself.
    Root(Result<Arc<Root>, Errno>),
    /// What a path leads to.
    Path(Result<Found, Missing>),
    /// A part of a file.
    Bytes(ReadBytes),
    /// What came of compressing a file.
    Compressed(Result<Compressed, Errno>),
    /// A page about a folder.
    Page(Result<Arc<HeldPage>, Missing>),
}

impl Disks {
    /// A queue for each device that a route's folder is on.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(config: &Config) -> io::Result<Self> {
        let mut of_route = vec![None; config.routes.len()];
        let memory = LazyCell::new(|| Arc::new(Memory::of_this_process()));
        let mut devices = Vec::new();
        let mut queues = Vec::new();
        for (index, route) in config.routes.iter().enumerate() {
            let Action::Files(files) = &route.action else {
                continue;
            };
            // One that is not there yet has a queue of its own.
            let device = std::fs::metadata(&files.root).map(|it| it.dev()).ok();
            let known = devices
                .iter()
                .position(|it| device.is_some() && *it == device);
            let at = match known {
                Some(at) => at,
                None => {
                    devices.push(device);
                    queues.push(Disk {
                        name: files.root.display().to_string(),
                        queue: IoQueue::start(
                            "disk",
                            Bounds {
                                in_flight: config.disk.in_flight,
                                waiting: config.disk.queue_max,
                                wait: config.disk.queue_timeout,
                            },
                        )?,
                        direct_reads: Arc::new(DirectReads::new(memory.clone())),
                    });
                    queues.len() - 1
                }
            };
            of_route[index] = Some(at);
        }
        let mut actions = config.routes.iter().map(|route| &route.action);
        let compresses = actions
            .any(|action| matches!(action, Action::Files(files) if files.compression.is_some()));
        let bounds = Bounds {
            in_flight: config.server.workers.max(1),
            waiting: COMPRESSING_MAX,
            wait: COMPRESSING_WAIT,
        };
        let compressing = compresses.then(|| IoQueue::start("compress", bounds));
        Ok(Disks {
            of_route,
            queues,
            compressing: compressing.transpose()?,
            answer_memory: Arc::new(AnswerMemory::new(config.server.answer_memory)),
            pages: HeldPages::default(),
        })
    }

    /// All of them.
    pub fn all(&self) -> &[Disk] {
        &self.queues
    }

    /// A ring for this worker's reads, each disk having at most so many, if
    /// there is a disk.
    fn ring(&self, in_flight: usize) -> Option<Ring> {
        if self.queues.is_empty() {
            return None;
        }
        match Ring::start(self.queues.len() * in_flight) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::info!("files: no io_uring ({error}): threads read in its place");
                None
            }
        }
    }
}

/// One worker's files.
#[derive(Debug)]
pub struct Files {
    disks: Arc<Disks>,
    /// For each route, its folder where it serves files.
    folders: Vec<Option<Rc<Folder>>>,
    /// Where short reads go that need no thread.
    ring: Option<Ring>,
    open_files: RefCell<OpenFiles>,
    compressed: RefCell<CompressedFiles>,
    /// Where keys are put together; never held over a wait.
    key: RefCell<Vec<u8>>,
    /// Ticks for which an open file is believed to be the one.
    check_ticks: u64,
    /// Tick from which on an error may be said again.
    next_complaint: Cell<u64>,
    /// Errors that were not said.
    unsaid: Cell<u64>,
}

/// Ticks between two lines about errors of disks: a second.
const COMPLAINT_TICKS: u64 = 10;

/// The folder of a route.
#[derive(Debug)]
struct Folder {
    route: usize,
    path: PathBuf,
    /// `None` until it was opened.
    opened: RefCell<Option<Arc<Root>>>,
    /// Tick of the last look whether its path still leads to it.
    checked: Cell<u64>,
    /// Whether such a look is going on.
    is_checked: Cell<bool>,
    /// Whether it was there, and is no longer.
    is_lost: Cell<bool>,
}

/// A file.
#[derive(Debug, Clone)]
pub struct Found {
    /// It.
    pub file: Arc<OpenFile>,
    /// All of it, where it is no longer than [`WHOLE_LEN`] and was opened by way
    /// of the disk, or is asked for often.
    pub bytes: Option<FileBytes>,
}

/// What a look without waiting came to.
#[derive(Debug)]
pub enum Look {
    /// It is in memory what this path leads to.
    Known(Result<Found, Missing>),
    /// The disk has to be asked.
    Cold,
}

impl Files {
    /// Those of one of the workers of this configuration.
    pub fn new(config: &Config, disks: Arc<Disks>) -> Self {
        let routes = config.routes.iter().enumerate();
        let folders = routes.map(|(route, settings)| match &settings.action {
            Action::Files(files) => Some(Rc::new(Folder {
                route,
                path: files.root.clone(),
                opened: RefCell::default(),
                checked: Cell::new(0),
                is_checked: Cell::new(false),
                is_lost: Cell::new(false),
            })),
            _ => None,
        });
        let settings = &config.disk;
        Files {
            ring: disks.ring(settings.in_flight),
            folders: folders.collect(),
            open_files: RefCell::new(OpenFiles::new(
                settings.open_files / config.server.workers.max(1),
            )),
            compressed: RefCell::new(CompressedFiles::new(
                COMPRESSED_LEN,
                disks.answer_memory.clone(),
            )),
            disks,
            key: RefCell::default(),
            next_complaint: Cell::new(0),
            unsaid: Cell::new(0),
            check_ticks: (settings.check_interval.as_millis() / TICK.as_millis()) as u64,
        }
    }

    /// Says which file could not be read, and why, or the folder itself where
    /// there is no `path`: of many in a second the first, and how many more they
    /// were with the next. `now` in ticks.
    #[cold]
    pub fn complain(&self, route: usize, path: Option<&[u8]>, error: &dyn fmt::Display, now: u64) {
        if now < self.next_complaint.get() {
            self.unsaid.set(self.unsaid.get() + 1);
            return;
        }
        self.next_complaint.set(now + COMPLAINT_TICKS);
        let root = self.folder(route).map(|folder| folder.path.display());
        let root = root.map(|root| root.to_string()).unwrap_or_default();
        let what = match path {
            Some(path) => format!("read {root}/{}", String::from_utf8_lossy(path)),
            None => format!("open the folder {root}"),
        };
        match self.unsaid.take() {
            0 => tracing::error!("files: {what}: {error}"),
            more => tracing::error!("files: {what}: {error}; {more} more since the last such line"),
        }
    }

    /// Closes half of the files that are kept open, for want of descriptors;
    /// whether there were any.
    pub fn make_room(&self) -> bool {
        self.open_files.borrow_mut().shrink()
    }

    /// Where it is counted what is held until clients have taken it.
    pub fn answer_memory(&self) -> &Arc<AnswerMemory> {
        &self.disks.answer_memory
    }

    /// How many files are kept open.
    pub fn open_count(&self) -> usize {
        self.open_files.borrow().len()
    }

    /// Looks for `path` in the folder of `route` without waiting for a disk.
    /// `variant` tells apart what has the same file but other fields. `now` in
    /// ticks.
    pub fn look(&self, route: usize, variant: u8, path: &[u8], now: u64) -> Look {
        let known = |file| Look::Known(Ok(Found { file, bytes: None }));
        let Some(folder) = self.folder(route) else {
            return Look::Known(Err(Missing::Absent));
        };
        let opened = folder.opened.borrow();
        let Some(root) = opened.as_ref() else {
            return Look::Cold;
        };
        let mut key = self.key.borrow_mut();
        key.clear();
        key.extend_from_slice(&(route as u32).to_ne_bytes());
        key.push(variant);
        key.extend_from_slice(path);
        let mut open_files = self.open_files.borrow_mut();
        if let Some(kept) = open_files.get(&key) {
            let file = kept.file.clone();
            let is_believed = kept.is_path_believed(now, self.check_ticks);
            // Its bytes may have been written over: that is seen here with the
            // next tick, and before that where they are read. Kept contents are
            // the old version, whole.
            let is_still_it = (is_believed && kept.is_unchanged(now))
                || match root.open_in_memory(path) {
                    Some(Ok(found)) if found.id == file.id && !file.is_doubted() => {
                        kept.confirm(now);
                        true
                    }
                    Some(Ok(found)) => {
                        let file = Arc::new(found);
                        open_files.put(&key, file.clone(), now);
                        return known(file);
                    }
                    // Better an old one than none.
                    Some(Err(Missing::NoDescriptor)) => {
                        !file.is_doubted() && kept.is_unchanged(now)
                    }
                    Some(Err(missing)) => {
                        open_files.remove(&key);
                        return Look::Known(Err(missing));
                    }
                    None => {
                        open_files.remove(&key);
                        return Look::Cold;
                    }
                };
            if is_still_it {
                let bytes = match kept.contents(now) {
                    None if kept.is_asked_often(now) => open_files.keep_contents(&key, now),
                    contents => contents,
                };
                return Look::Known(Ok(Found { file, bytes }));
            }
            open_files.remove(&key);
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
    /// Nothing is left behind but what others wait for too.
    pub async fn fetch(
        &self,
        route: usize,
        variant: u8,
        path: &[u8],
    ) -> Result<Result<Found, Missing>, Refused> {
        let (root, disk) = match self.root(route).await? {
            Ok(found) => found,
            Err(missing) => return Ok(Err(missing)),
        };
        let path: Box<[u8]> = path.into();
        let wanted = Wanted::Path(route, variant, path.clone());
        let (ring, direct_reads) = (self.ring.clone(), disk.direct_reads.clone());
        let load = Work::Blocking(Box::new(move |begun| {
            load(&root, &path, direct_reads, ring.as_ref(), begun)
        }));
        let fetched = disk.queue.run(wanted, Entry::IfRoom, load);
        Ok(match fetched.await? {
            Fetched::Path(found) => found,
            _ => Err(Missing::Absent),
        })
    }

    /// Has the disk read `len` bytes of a file of `route`, from `offset` on;
    /// fewer come where it ends before.
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
        entry: Entry,
    ) -> Result<ReadBytes, Refused> {
        let Some(disk) = self.disk(route) else {
            return Err(Refused);
        };
        let wanted = Wanted::Bytes(file.id, offset, len);
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
        Ok(match disk.queue.run(wanted, entry, work).await? {
            Fetched::Bytes(bytes) => bytes,
            _ => Err(Errno::IO),
        })
    }

    fn folder(&self, route: usize) -> Option<&Rc<Folder>> {
        self.folders.get(route)?.as_ref()
    }

    fn disk(&self, route: usize) -> Option<&Disk> {
        let at = *self.disks.of_route.get(route)?;
        self.disks.queues.get(at?)
    }

    /// The open folder of `route`, and its disk.
    async fn root(&self, route: usize) -> Result<Result<(Arc<Root>, &Disk), Missing>, Refused> {
        let folder = self.folder(route).cloned();
        let (Some(folder), Some(disk)) = (folder, self.disk(route)) else {
            return Ok(Err(Missing::Absent));
        };
        let opened = folder.opened.borrow().clone();
        let opened = match opened {
            Some(root) => Ok(root),
            None => self.open_root(&folder, disk).await?,
        };
        Ok(opened
            .map(|root| (root, disk))
            .map_err(|error| match is_out_of_descriptors(error) {
                true => Missing::NoDescriptor,
                false => Missing::NoRoot(error),
            }))
    }

    async fn open_root(
        &self,
        folder: &Rc<Folder>,
        disk: &Disk,
    ) -> Result<Result<Arc<Root>, Errno>, Refused> {
        let path = folder.path.clone();
        let open = Work::blocking(move || Fetched::Root(Root::open(&path).map(Arc::new)));
        let wanted = Wanted::Root(folder.route);
        let fetched = disk.queue.run(wanted, Entry::IfRoom, open);
        let Fetched::Root(opened) = fetched.await? else {
            return Ok(Err(Errno::IO));
        };
        if let Ok(root) = &opened {
            if folder.is_lost.replace(false) {
                tracing::info!("files: {} is there again", folder.path.display());
            }
            let before = folder.opened.replace(Some(root.clone()));
            if before.is_some_and(|before| !before.is_same(root)) {
                self.open_files.borrow_mut().clear();
            }
        }
        Ok(opened)
    }

    /// Looks whether the folders' paths still lead to them, those that were not
    /// looked at for long: a deployment may have put others in their places.
    /// To be called now and then; `now` in ticks.
    pub fn check_folders(self: &Rc<Self>, now: u64) {
        for folder in self.folders.iter().flatten() {
            let is_due = now >= folder.checked.get() + self.check_ticks;
            if !is_due || folder.opened.borrow().is_none() || folder.is_checked.replace(true) {
                continue;
            }
            let (files, folder) = (self.clone(), folder.clone());
            tasks::spawn(async move {
                let Some(disk) = files.disk(folder.route) else {
                    return;
                };
                // A disk that is busy is asked again later; other errors than
                // these say nothing of the folder.
                if let Ok(Err(error @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS))) =
                    files.open_root(&folder, disk).await
                {
                    let path = folder.path.display();
                    tracing::warn!("files: {path} can't be opened any more: {error}");
                    folder.opened.replace(None);
                    folder.is_lost.set(true);
                    files.open_files.borrow_mut().clear();
                }
                folder.checked.set(now);
                folder.is_checked.set(false);
            });
        }
    }
}

/// A part of a file that is to be read.
#[derive(Debug)]
struct Part {
    file: Arc<OpenFile>,
    offset: u64,
    /// In bytes.
    len: usize,
    /// Whether nobody else has the file, or gets it before it was read.
    is_only_here: bool,
    /// What decides how it is read when its turn has come, where that is not by
    /// way of the page cache in any case.
    direct_reads: Option<Arc<DirectReads>>,
    /// How it is read.
    way: Way,
    /// What is made of its bytes.
    fetched: fn(Arc<OpenFile>, ReadBytes) -> Fetched,
}

/// What a read came to.
pub type ReadBytes = Result<FileBytes, Errno>;

/// What direct I/O gives at least, unless the file ends, in bytes.
const SECTOR_LEN: usize = 512;

impl Part {
    fn of(file: Arc<OpenFile>, offset: u64, len: usize) -> Self {
        Part {
            file,
            offset,
            len,
            is_only_here: false,
            direct_reads: None,
            way: Way::Cached,
            fetched: |_, bytes| Fetched::Bytes(bytes),
        }
    }

    /// All of a file that is no longer than [`WHOLE_LEN`] and was just opened.
    fn whole(file: Arc<OpenFile>) -> Self {
        let fetched = |file: Arc<OpenFile>, bytes: ReadBytes| {
            if !file.has_same_contents() {
                // What was read may be of two versions.
                file.doubt();
            }
            let found = |bytes| Found {
                file,
                bytes: Some(bytes),
            };
            Fetched::Path(bytes.map(found).map_err(Missing::Failed))
        };
        let len = file.id.len as usize;
        Part {
            fetched,
            is_only_here: true,
            ..Part::of(file, 0, len)
        }
    }

    /// Its turn has come.
    fn choose_way(&mut self) {
        if let Some(reads) = self.direct_reads.take() {
            self.way = reads.way(&self.file, self.is_only_here, self.offset, self.len);
        }
    }

    /// Room for its bytes, according to how it is read.
    fn room(&self) -> FileBytes {
        let mut room = FileBytes::blocks(self.len);
        if !self.is_direct() {
            room.truncate(self.len);
        }
        room
    }

    /// What it is read from.
    fn source(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Direct(direct) => direct.as_fd(),
            Way::Cached | Way::Displacing => self.file.as_fd(),
        }
    }

    fn is_direct(&self) -> bool {
        matches!(self.way, Way::Direct(_))
    }

    /// Whether more is to be read after so many bytes. What direct I/O leaves
    /// out of a sector is not there.
    fn is_more(&self, filled: usize) -> bool {
        filled < self.len && (!self.is_direct() || filled.is_multiple_of(SECTOR_LEN))
    }

    /// What is made of what its read came to.
    fn end(mut self, bytes: ReadBytes) -> Fetched {
        // The file is as it was before.
        self.way = Way::Cached;
        (self.fetched)(self.file, bytes)
    }

    /// What is made of it, once it was read. Blocks.
    fn fetch(mut self) -> Fetched {
        let bytes = self.read();
        self.end(bytes)
    }

    /// Reads it. Blocks.
    fn read(&mut self) -> ReadBytes {
        self.choose_way();
        let mut bytes = self.room();
        let mut filled = 0;
        while self.is_more(filled) {
            let at = self.offset + filled as u64;
            let room = &mut bytes.room_mut()[filled..];
            match pread(self.source(), room, at) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(Errno::INTR) => {}
                // Its blocks are longer than those that we know.
                Err(Errno::INVAL) if self.is_direct() => self.way = Way::Displacing,
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(self.len.min(filled));
        Ok(bytes)
    }
}

/// Opens a file, and has it read where it is short. Blocks.
fn load(
    root: &Root,
    path: &[u8],
    direct_reads: Arc<DirectReads>,
    ring: Option<&Ring>,
    begun: Begun<Wanted, Fetched>,
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
    // Long, on a file system that is not for the ring, or given back by it.
    if let Some((part, begun)) = left {
        begun.finish(&part.fetch());
    }
}
