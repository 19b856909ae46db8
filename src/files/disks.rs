//! The disks that files are on, each with its queue; shared by all workers.

use std::cell::LazyCell;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::admission::Bounds;
use evenkeel_proto::coding::Coding;
use rustix::io::Errno;

use super::Found;
use super::bytes::ReadBytes;
use super::compressed::Compressed;
use super::direct::DirectReads;
use super::figures::{DiskFigures, DiskGiven};
use super::held::{AnswerMemory, HeldPage, HeldPages};
use super::io_queue::IoQueue;
use super::memory::Memory;
use super::open::{FileId, Missing};
use super::root::Root;
use crate::config::{self, Config};
use crate::metrics::Detail;

/// Files that may wait to be compressed.
const COMPRESSING_MAX: usize = 1000;
/// How long one may, as far as can be foreseen; others are sent as they are.
const COMPRESSING_WAIT: Duration = Duration::from_millis(200);

/// The queues of all disks, shared by all workers.
#[derive(Debug)]
pub struct Disks {
    /// For each route, the index of its queue where it serves files.
    pub(super) of_route: Vec<Option<usize>>,
    /// One for each device.
    pub(super) queues: Vec<Disk>,
    /// For files that are compressed when they are asked for, if any are: it
    /// takes the processor, and would keep the disks' queues from their disks.
    pub(super) compressing: Option<IoQueue<DiskRequest, Fetched>>,
    /// What is held until clients have taken it.
    pub answer_memory: Arc<AnswerMemory>,
    /// Those of it that are listings.
    pub(super) pages: HeldPages,
}

/// A device, and its queue.
#[derive(Debug)]
pub struct Disk {
    /// The folder that is on it, of the first route that has one there.
    pub name: String,
    /// Its queue.
    pub queue: IoQueue<DiskRequest, Fetched>,
    /// What of it is read past the page cache.
    pub direct_reads: Arc<DirectReads>,
}

impl Disk {
    /// Reads its figures.
    pub fn figures(&self, settings: &config::Disk) -> DiskFigures {
        let load = self.queue.load();
        let given = DiskGiven {
            name: self.name.clone(),
            waiting: load.waiting,
            queue_max: settings.queue_max,
            in_flight: load.in_flight,
            max_in_flight: settings.in_flight,
            direct: self.direct_reads.count(),
        };
        given.with([self.queue.counters()], Detail::Full)
    }
}

/// What a disk is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DiskRequest {
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
            let Some(files) = route.action.files() else {
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
        let mut files = config.routes.iter().filter_map(|it| it.action.files());
        let compresses = files.any(|it| it.compression.is_some());
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
}
