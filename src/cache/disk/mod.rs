//! A store of responses on a disk, shared by all workers.
//!
//! Workers ask the index, which is in memory. They read records from the page cache
//! themselves; other reads go through a queue with threads. Objects wait in a bounded
//! queue for the store's one writer (`writer`). The writer also loads the index after a
//! start, reclaims segments, and waits for the lock of the folder.
//!
//! Invariant: every record is compared with its sums when it is read. Deviation: a long
//! body is sent from its file, and is compared once after each start, before it is sent
//! for the first time.
//!
//! A disk that is full, read-only or failing pauses the store: for a while the store is
//! read and not written.

mod figures;
mod folder;
mod queue;
mod reading;
mod spool;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use evenkeel_cache::disk::Position;
use evenkeel_cache::disk::index::{Candidates, Index, Place};
use evenkeel_cache::ledger;
use evenkeel_cache::object::FilePart;
use evenkeel_cache::purge::{Fate, Purge, Purges, Strength};
use evenkeel_cache::record::Clocks;
use evenkeel_cache::{Key, Object, Request, Secret};
use evenkeel_policy::Instant;
use evenkeel_policy::admission::Bounds;
use lru::LruCache;

use crate::files::WhenFull;
use crate::files::io_queue::{IoQueue, Work};
use figures::Counters;
pub use figures::{DiskStoreFigures, NotWritten, Phase};
pub use folder::CannotOpen;
use folder::{Folder, PurgeLog};
use queue::{Job, Queue};
pub use reading::Found;
use reading::{Fetched, Reading};
use spool::Spools;
use writer::Writer;

/// Most heads of confirmed long responses that are kept in memory. For more, the endpoint is
/// asked again.
const MOST_RENEWED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The store's own folder.
    pub folder: PathBuf,
    /// Most bytes that all files take together.
    pub capacity_bytes: u64,
    /// Bounds of reads that wait for the disk.
    pub reads: Bounds,
}

/// A store on a disk. Dropped, it finishes the present write, and gives up its folder.
#[derive(Debug)]
pub struct DiskStore {
    shared: Arc<Shared>,
    reads: IoQueue<Position, Fetched>,
    /// Pieces of long bodies, by file and offset.
    parts: IoQueue<(usize, u64), Option<Arc<[u8]>>>,
    spools: Spools,
    /// Newer heads of long responses than those on the disk.
    renewed: Mutex<LruCache<Position, Object>>,
    folder: PathBuf,
}

/// State that workers and the writer share.
#[derive(Debug)]
struct Shared {
    capacity_bytes: u64,
    secret: Secret,
    purges: Arc<Purges>,
    clocks: Clocks,
    index: Index,
    /// Open files by the number of their segment. A reader keeps a clone.
    segments: RwLock<HashMap<u32, Arc<File>>>,
    queue: Queue,
    /// `None` until the store has its folder.
    log: Mutex<Option<PurgeLog>>,
    /// Bytes that other files than segments take, or may take, of the store.
    reserved: AtomicU64,
    counters: Counters,
}

impl DiskStore {
    /// Opens the store in a folder, or makes one. If another process has the folder, this
    /// one waits for it in the background: until then nothing is found or written.
    ///
    /// `clocks` are those of the process.
    ///
    /// # Errors
    /// If the folder has something else in it, or can't be used.
    pub fn open(settings: &Settings, clocks: Clocks) -> Result<Self, CannotOpen> {
        let (folder, secret) = Folder::open(&settings.folder)?;
        let shared = Arc::new(Shared {
            capacity_bytes: settings.capacity_bytes,
            secret,
            purges: Arc::default(),
            clocks,
            index: Index::new(settings.capacity_bytes),
            segments: RwLock::default(),
            queue: Queue::new(settings.capacity_bytes),
            log: Mutex::default(),
            reserved: AtomicU64::new(0),
            counters: Counters::default(),
        });
        let io = |what, error| CannotOpen::io(&settings.folder, what, error);
        let reads = IoQueue::start("cache", settings.reads);
        let reads = reads.map_err(|error| io("start a thread for", error))?;
        // Until the log is read, all marks are kept for it.
        shared.purges.hold(0);
        let parts = IoQueue::start("cache-parts", settings.reads);
        let parts = parts.map_err(|error| io("start a thread for", error))?;
        let spools = Spools::start(shared.clone());
        let spools = spools.map_err(|error| io("start a thread for", error))?;
        let mut writer = Writer::new(shared.clone(), folder);
        // At once if the folder is free: purges count from the first request on.
        writer.take_over().map_err(|error| io("take over", error))?;
        let thread = std::thread::Builder::new().name("cache-writer".into());
        let started = thread.spawn(move || writer.run());
        started.map_err(|error| io("start a thread for", error))?;
        Ok(DiskStore {
            shared,
            reads,
            parts,
            spools,
            renewed: Mutex::new(LruCache::new(MOST_RENEWED)),
            folder: settings.folder.clone(),
        })
    }

    /// The secret that keys are hashed with, here and in the memory above.
    pub fn secret(&self) -> Secret {
        self.shared.secret
    }

    /// The purges, here and in the memory above.
    pub fn purges(&self) -> &Arc<Purges> {
        &self.shared.purges
    }

    /// Whether there is a record for a request, as far as the index knows. Counts nothing.
    pub fn has(&self, key: &Key, request: &Request<'_>) -> bool {
        !self.candidates(key, request).is_empty()
    }

    fn candidates(&self, key: &Key, request: &Request<'_>) -> Candidates {
        if self.shared.queue.is_closed() {
            return Candidates::new();
        }
        self.shared.index.find(&self.shared.secret, key, request)
    }

    /// Records that may answer a request. Asks no disk.
    pub fn look_up(&self, key: &Key, request: &Request<'_>) -> Candidates {
        let found = self.candidates(key, request);
        if found.is_empty() {
            self.shared.counters.misses.add(1);
        }
        found
    }

    /// Reads the first of some records that is whole, is of this key, and was not purged.
    /// `None` also if the disk has too much to do.
    ///
    /// # Cancellation
    /// A read that nobody waits for is not begun.
    pub async fn fetch(&self, key: &Key, candidates: Candidates, now: Instant) -> Option<Found> {
        if candidates.is_empty() {
            // The lookup has counted it.
            return None;
        }
        for candidate in candidates {
            let found = self.read(Reading {
                shared: self.shared.clone(),
                place: candidate.place,
                now,
            });
            let Some(mut found) = found.await else {
                continue;
            };
            if found.body.is_some() {
                self.renew_found(&mut found);
            }
            let object = &found.object;
            if *object.key() != *key.bytes || *object.selector() != *candidate.selector {
                // Another one with the same hash.
                continue;
            }
            match self.shared.purges.judge(&self.shared.secret, object) {
                Fate::Alive => {
                    self.shared.counters.hits.add(1);
                    return Some(found);
                }
                Fate::Gone => {
                    self.shared.index.drop_one(&candidate.place);
                }
            }
        }
        self.shared.counters.misses.add(1);
        None
    }

    /// An endpoint has confirmed a long response: this is its head from now on. The head is kept
    /// in memory. After a restart the endpoint is asked again.
    pub fn renew(&self, position: Position, object: Object) {
        self.renewed().put(position, object);
    }

    fn renewed(&self) -> MutexGuard<'_, LruCache<Position, Object>> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a long response its newest head.
    fn renew_found(&self, found: &mut Found) {
        if let Some(object) = self.renewed().get(&found.position)
            && object.key() == found.object.key()
            && object.selector() == found.object.selector()
        {
            found.object = object.clone();
        }
    }

    async fn read(&self, reading: Reading) -> Option<Found> {
        let place = reading.place;
        let fetched = match reading.in_page_cache() {
            Some(fetched) => fetched,
            None => {
                let work = Work::blocking(move || reading.fetch());
                let read = self.reads.run(place.position, WhenFull::Refuse, work);
                read.await.ok()?
            }
        };
        self.shared.settle(&place, fetched)
    }

    /// Reads a piece of a body that is not in the page cache. `None` if the disk fails, or
    /// has too much to do.
    ///
    /// # Cancellation
    /// A read that nobody waits for is not begun.
    pub async fn read_part(&self, part: &FilePart, from: u64, len: usize) -> Option<Arc<[u8]>> {
        let (file, offset) = (part.file.clone(), part.offset + from);
        let place = (Arc::as_ptr(&file) as usize, offset);
        let work = Work::blocking(move || {
            let mut bytes = vec![0; len];
            let read = file.read_exact_at(&mut bytes, offset);
            read.ok().map(|()| Arc::<[u8]>::from(bytes))
        });
        let read = self.parts.run(place, WhenFull::Admit, work).await;
        read.ok().flatten()
    }

    /// Has an object written, if it can be: it waits for its turn. Says why it can't.
    ///
    /// # Errors
    /// If it is not written, for whatever reason is known at once.
    pub fn insert(&self, key: &Key, object: Object) -> Result<(), NotWritten> {
        let pushed = self.shared.queue.push(Job {
            key: key.hash,
            object,
            spooled: None,
        });
        pushed.inspect_err(|reason| self.shared.counters.not_written(*reason))
    }

    /// Removes all records of a key, now and after a restart.
    pub fn remove(&self, key: &Key) {
        self.shared.queue.remove(&self.shared.index, key);
    }

    /// Purges present responses, and responses of requests under way, also in the memory above.
    /// When it returns without error, no such object comes back, whatever happens to the process.
    /// Blocks: not for workers.
    ///
    /// # Errors
    /// If the purge can't be written to the disk. It counts until the process ends.
    pub fn purge(&self, what: Purge<'_>, strength: Strength) -> io::Result<()> {
        let Shared { purges, secret, .. } = &*self.shared;
        match &mut *self.shared.log() {
            Some(log) => {
                let next = purges.next(secret, what, strength);
                let written = log.append(std::slice::from_ref(&next), purges);
                purges.apply(next);
                written
            }
            None => {
                // Goes to the log when the store has its folder.
                purges.purge(secret, what, strength);
                Ok(())
            }
        }
    }

    /// The place up to which the log of purges that machines share was applied here, if it is
    /// known. Blocks.
    pub fn shared_position(&self) -> Option<ledger::Position> {
        folder::shared_position(&self.folder)
    }

    /// Keeps the place up to which that log was applied, for the next process. Blocks.
    pub fn note_shared_position(&self, position: ledger::Position) {
        // Without its folder a store has purges that only this process knows.
        if let Some(log) = &*self.shared.log()
            && let Err(error) = log.note_shared(position)
        {
            tracing::debug!(
                "cache: a purge cannot be marked as done, so it may be repeated: {error}"
            );
        }
    }

    /// Gives up the folder to a process that waits for it: writes waiting objects, seals the
    /// segment and unlocks. Nothing is found from then on.
    pub fn hand_over(&self) {
        self.shared.queue.stop();
    }

    /// Waits until the folder is given up; whether it is.
    pub fn wait_until_closed(&self, most: Duration) -> bool {
        self.shared
            .queue
            .wait_for(most, |state| state.phase() == Phase::Closed)
    }

    /// Waits until all is written that was inserted, and the index is loaded; whether it
    /// is.
    pub fn wait_until_idle(&self, most: Duration) -> bool {
        let queue = &self.shared.queue;
        queue.wait_for(most, |state| {
            state.is_idle() && !self.shared.index.is_loading()
        })
    }

    /// Its figures.
    pub fn figures(&self) -> DiskStoreFigures {
        self.shared.figures()
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.shared.queue.stop();
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Option<PurgeLog>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open file of a segment.
    fn segment(&self, segment: u32) -> Option<Arc<File>> {
        let segments = self.segments.read();
        let segments = segments.unwrap_or_else(PoisonError::into_inner);
        segments.get(&segment).cloned()
    }

    /// Sets the open file of a segment, or removes it.
    fn set_segment(&self, segment: u32, file: Option<Arc<File>>) {
        let segments = self.segments.write();
        let mut segments = segments.unwrap_or_else(PoisonError::into_inner);
        match file {
            Some(file) => segments.insert(segment, file),
            None => segments.remove(&segment),
        };
    }

    /// Ends a read: drops a record that is damaged or can't be read.
    fn settle(&self, place: &Place, fetched: Fetched) -> Option<Found> {
        match fetched {
            Fetched::Found(found) => Some(found),
            Fetched::Reclaimed => None,
            Fetched::Damaged(damage) => {
                // One read may serve many waiters: it counts once.
                if self.index.drop_one(place) {
                    self.counters.damaged.add(1);
                    tracing::debug!("cache: a record on the disk is damaged: {}", damage.word());
                }
                None
            }
            Fetched::Failed(error) => {
                if self.index.drop_one(place) {
                    self.counters.failed_reads.add(1);
                    tracing::warn!("cache: a record on the disk can't be read: {error}");
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
