//! The disks that files are on, each with its queue; shared by all workers.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_policy::admission::Bounds;
use evenkeel_proto::coding::Coding;
use rustix::io::Errno;

use super::Found;
use super::bytes::ReadBytes;
use super::compressed::Compressed;
use super::direct::DirectReads;
use super::figures::{DiskFigures, DiskGiven, IoCounters};
use super::folder_id::FolderId;
use super::held::{AnswerMemory, HeldPage, HeldPages};
use super::io_queue::IoQueue;
use super::memory::Memory;
use super::open::{FileId, Missing};
use super::root::Root;
use crate::config::{self, Config};
use crate::metrics::{Cell, Counter, Detail, Saved};

/// Most files in the compression queue.
const COMPRESSING_MAX: usize = 1000;
/// Longest expected wait for a compression. Files beyond it are sent uncompressed.
const COMPRESSING_WAIT: Duration = Duration::from_millis(200);

/// The queues of all disks under one configuration, shared by all workers.
///
/// A later configuration takes over the queues of the devices on which it has folders:
/// [`Disks::following`].
#[derive(Debug)]
pub struct Disks {
    /// The folder of each route that serves files.
    pub(super) of_route: Vec<Option<Place>>,
    /// One for each device.
    pub(super) queues: Vec<Disk>,
    /// Queue for compression on demand, where a route has it. Compression needs a processor, and
    /// would keep the disks' queues from their disks.
    pub(super) compressing: Option<Arc<IoQueue<DiskRequest, Fetched>>>,
    /// Memory of answers until clients have taken them.
    pub answer_memory: Arc<AnswerMemory>,
    /// The listings among them.
    pub(super) pages: Arc<HeldPages>,
    /// Folders by a hash of their settings.
    folders: HashMap<u64, FolderId>,
    /// Number of folders so far, over all configurations.
    folder_count: Arc<AtomicU32>,
}

/// The folder of a route, and its disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Index of the disk's queue.
    pub disk: usize,
    pub folder: FolderId,
}

/// A device, and its queue.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The folder that is on it, of the first route that has one there.
    pub name: String,
    /// Its queue.
    pub queue: Arc<IoQueue<DiskRequest, Fetched>>,
    /// Reads past the page cache.
    pub direct_reads: Arc<DirectReads>,
    /// Counts of the process before an upgrade; one thread raises them.
    inherited: Arc<Inherited>,
    /// Device number. `None` where the folder does not exist yet; such a folder has a queue of
    /// its own.
    device: Option<u64>,
}

/// Counts of the process before an upgrade, for one disk.
#[derive(Debug, Default)]
struct Inherited {
    counters: IoCounters,
    direct: Counter,
}

impl Disk {
    /// All counts so far, for a process that takes over.
    pub(crate) fn save(&self) -> Saved {
        let mut counters = self.queue.counters().save();
        counters.add(self.inherited.counters.save());
        Saved::named([
            ("counters", counters),
            ("direct", Saved::number(self.direct())),
        ])
    }

    /// Raises the counts of the process before to at least these.
    pub(crate) fn raise(&self, saved: &Saved) {
        self.inherited.counters.raise(saved.of("counters"));
        self.inherited.direct.raise(saved.of("direct"));
    }

    fn direct(&self) -> u64 {
        self.direct_reads.count() + self.inherited.direct.value()
    }

    /// Reads its figures.
    pub fn figures(&self, settings: &config::Disk) -> DiskFigures {
        let load = self.queue.load();
        let given = DiskGiven {
            name: self.name.clone(),
            waiting: load.waiting,
            queue_max: settings.queue_max,
            in_flight: load.in_flight,
            max_in_flight: settings.in_flight,
            direct: self.direct(),
        };
        given.with(
            [self.queue.counters(), &self.inherited.counters],
            Detail::Full,
        )
    }
}

/// A request to a disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DiskRequest {
    /// A folder.
    Root(FolderId),
    /// A path beneath a folder, for a variant: each variant has its own fields.
    Path(FolderId, u8, Box<[u8]>),
    /// Bytes of a file: from where, and how many.
    Bytes(FileId, u64, u64),
    /// A file, compressed.
    Compressed(FileId, Coding),
    /// A listing of a folder: its path beneath the root, and the path that clients see.
    Page(FolderId, Box<[u8]>, Box<[u8]>),
}

/// The result of a request to a disk.
#[derive(Debug, Clone)]
pub enum Fetched {
    /// The folder itself.
    Root(Result<Arc<Root>, Errno>),
    /// The file at a path, or why there is none.
    Path(Result<Found, Missing>),
    /// A part of a file.
    Bytes(ReadBytes),
    /// The compressed file.
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
        Disks::after(None, config)
    }

    /// The disks of the next configuration. A device keeps its queue. A folder keeps its id where
    /// its settings are the same as before. Leaves `self` unchanged. May block: it looks for the
    /// folders.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn following(&self, config: &Config) -> io::Result<Self> {
        Disks::after(Some(self), config)
    }

    /// Applies the bounds of this configuration, now in force, to the queues and the memory of
    /// answers.
    pub fn keep_within(&self, config: &Config) {
        self.answer_memory.set_most(config.server.answer_memory);
        for disk in &self.queues {
            disk.queue.set_bounds(bounds(config));
        }
    }

    fn after(before: Option<&Disks>, config: &Config) -> io::Result<Self> {
        let compresses = (config.routes.iter())
            .filter_map(|it| it.action.files())
            .any(|it| it.compression.is_some());
        let compressing = before.and_then(|it| it.compressing.clone());
        let compressing = match compressing.filter(|_| compresses) {
            None if compresses => Some(Arc::new(start_compressing(config)?)),
            compressing => compressing,
        };
        let answer_memory = before.map(|it| it.answer_memory.clone());
        let mut disks = Disks {
            of_route: vec![None; config.routes.len()],
            queues: Vec::new(),
            compressing,
            answer_memory: answer_memory
                .unwrap_or_else(|| Arc::new(AnswerMemory::new(config.server.answer_memory))),
            pages: before.map(|it| it.pages.clone()).unwrap_or_default(),
            folders: HashMap::new(),
            folder_count: before.map(|it| it.folder_count.clone()).unwrap_or_default(),
        };
        let memory = LazyCell::new(|| Arc::new(Memory::of_this_process()));
        for (index, route) in config.routes.iter().enumerate() {
            let Some(files) = route.action.files() else {
                continue;
            };
            let device = std::fs::metadata(&files.root).map(|it| it.dev()).ok();
            let name = files.root.display().to_string();
            let is_it = |it: &Disk| match device {
                Some(_) => it.device == device,
                None => it.device.is_none() && it.name == name,
            };
            let at = match disks.queues.iter().position(is_it) {
                Some(at) => at,
                None => {
                    let known = before.and_then(|it| it.queues.iter().find(|it| is_it(it)));
                    let disk = match known {
                        Some(disk) => Disk {
                            name,
                            ..disk.clone()
                        },
                        None => Disk {
                            name,
                            queue: Arc::new(IoQueue::start("disk", bounds(config))?),
                            direct_reads: Arc::new(DirectReads::new(memory.clone())),
                            inherited: Arc::default(),
                            device,
                        },
                    };
                    disks.queues.push(disk);
                    disks.queues.len() - 1
                }
            };
            disks.of_route[index] = Some(Place {
                disk: at,
                folder: disks.folder_of(files, before),
            });
        }
        Ok(disks)
    }

    fn folder_of(&mut self, files: &config::Files, before: Option<&Disks>) -> FolderId {
        let key = served_with(files);
        if let Some(folder) = self.folders.get(&key) {
            return *folder;
        }
        let folder = before.and_then(|it| it.folders.get(&key).copied());
        let new = || FolderId::new(self.folder_count.fetch_add(1, Ordering::Relaxed));
        let folder = folder.unwrap_or_else(new);
        self.folders.insert(key, folder);
        folder
    }

    /// All of them.
    pub fn all(&self) -> &[Disk] {
        &self.queues
    }
}

/// Hash of every setting that a folder's open files and their fields depend on.
fn served_with(files: &config::Files) -> u64 {
    let files = config::Files {
        // Left out: the place in the configuration, on which no file depends.
        fallback: None,
        ..files.clone()
    };
    evenkeel_policy::hash::hash(format!("{files:?}").as_bytes())
}

fn bounds(config: &Config) -> Bounds {
    Bounds {
        in_flight: config.disk.in_flight,
        waiting: config.disk.queue_max,
        wait: config.disk.queue_timeout,
    }
}

fn start_compressing(config: &Config) -> io::Result<IoQueue<DiskRequest, Fetched>> {
    let bounds = Bounds {
        in_flight: config.server.workers.max(1),
        waiting: COMPRESSING_MAX,
        wait: COMPRESSING_WAIT,
    };
    IoQueue::start("compress", bounds)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_testkit::TempDir;

    use super::*;
    use crate::config::{NameLookup, load_text};

    fn config(folder: &Path, routes: &[(&str, &str)], disk: &str) -> Config {
        let routes = routes.iter().map(|(root, more)| {
            let root = folder.join(root);
            let root = root.display();
            format!("[[route]]\nfiles = {{ root = '{root}'{more} }}\n")
        });
        let routes: String = routes.collect();
        let text = format!("[[listener]]\nbind = ':0'\n{disk}\n{routes}");
        load_text("test.toml", &text, NameLookup::Skip)
            .unwrap()
            .config
    }

    fn folders(disks: &Disks) -> Vec<u32> {
        let places = disks.of_route.iter().flatten();
        places
            .map(|it| u32::from_ne_bytes(it.folder.to_bytes()))
            .collect()
    }

    #[test]
    fn devices_and_folders_go_on_by_what_they_are() {
        let folder = TempDir::new().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        let first = config(folder.path(), &[("a", ""), ("b", ""), ("away", "")], "");
        let before = Disks::start(&first).unwrap();
        assert_eq!(folders(&before), [0, 1, 2]);
        assert_eq!(before.all().len(), 2, "one is not there");
        before.all()[0].queue.counters().reads.add(3);
        // One folder moved to the front, one has other fields, and one is gone.
        let second = config(
            folder.path(),
            &[
                ("c", ""),
                ("b", ""),
                ("a", ", default_type = 'text/plain'"),
                ("away", ""),
            ],
            "[disk]\nin_flight = 2",
        );
        let after = before.following(&second).unwrap();
        assert_eq!(folders(&after), [3, 1, 4, 2]);
        let names = after.all().iter().map(|it| &*it.name);
        let expected = ["c", "away"].map(|it| folder.join(it).display().to_string());
        assert_eq!(names.collect::<Vec<_>>(), expected);
        for (before, after) in before.all().iter().zip(after.all()) {
            assert!(Arc::ptr_eq(&before.queue, &after.queue));
        }
        assert_eq!(after.all()[0].queue.counters().reads.value(), 3);
        assert!(Arc::ptr_eq(&before.answer_memory, &after.answer_memory));
        // An id is never given to a second folder.
        let third = after.following(&first).unwrap();
        assert_eq!(folders(&third), [5, 1, 2]);
        assert!(third.compressing.is_none());
    }
}
