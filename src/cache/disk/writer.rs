//! The one thread of a store that writes its files, loads the index and reclaims
//! segments.
//!
//! ```text
//!  waiting ──lock──▶ working ◀──────▶ paused
//!     │                 │  error, retry  │
//!     └────────┬────────┴────────────────┘
//!              ▼ stop
//!          stopping ──▶ closed
//! ```
//!
//! Between two objects the writer loads the entries of one segment. After an object it
//! moves records out of the segment that goes next: no more bytes than it has written. So
//! writing keeps half of its speed.

mod drain;
mod loading;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evenkeel_cache::Object;
use evenkeel_cache::disk::index::{Place, hashes};
use evenkeel_cache::disk::layout::{
    Entry, FOOTER_BYTES, FRAME_BYTES, Frame, Kind, SegmentHead, Summary, whole_len,
};
use evenkeel_cache::disk::ring::{Ring, Step};
use evenkeel_cache::disk::{Hashes, Position, Size};
use evenkeel_cache::incoming::Spooled;
use evenkeel_cache::purge::Fate;
use evenkeel_cache::record::{self, BLOCK_BYTES};

use super::Shared;
use super::figures::{NotWritten, Phase};
use super::folder::Folder;
use super::queue::{Job, Next, State};
use crate::net::clock;
use drain::Drain;

/// How often it is tried to take the folder that another process has.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// For how long a disk is left alone that is full, read-only or failing.
const PAUSE: Duration = Duration::from_secs(10);

/// How long a stopping store goes on writing waiting objects.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// A removal is on the disk after so long: a loss of power does not undo it then.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Bodies up to this length are written with one system call.
const TOGETHER_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    folder: Folder,
    /// Whether the folder is locked.
    has_folder: bool,
    /// Has no segments until the folder is locked.
    ring: Ring,
    open: Option<OpenSegment>,
    /// Numbers of segments whose entries are not in the index yet, the oldest first.
    unloaded: Vec<u32>,
    /// The newest segment at the start.
    newest_found: Option<u32>,
    drain: Option<Drain>,
    /// Bytes for one system call.
    buffer: Vec<u8>,
    /// Since when a removal is not synced.
    unsynced: Option<Instant>,
    /// When a disk that failed is tried again.
    retry_at: Option<Instant>,
    /// Whether the pause was reported, and not yet its end.
    is_reported: bool,
}

#[derive(Debug)]
struct OpenSegment {
    file: Arc<File>,
    summary: Summary,
}

/// A frame and a record to write.
struct Record<'a> {
    kind: Kind,
    hashes: Hashes,
    /// Names in `Vary`.
    names: &'a [u8],
    /// Length of the head and the body.
    len: u32,
}

/// Places of a record that was written, and of the next one.
#[derive(Debug, Clone, Copy)]
struct Written {
    place: Place,
    next: Position,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, folder: Folder) -> Self {
        let ring = Ring::new(shared.capacity_bytes, []);
        Writer {
            shared,
            folder,
            has_folder: false,
            ring,
            open: None,
            unloaded: Vec::new(),
            newest_found: None,
            drain: None,
            buffer: Vec::new(),
            unsynced: None,
            retry_at: None,
            is_reported: false,
        }
    }

    /// Takes the folder, if it is free.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn take_over(&mut self) -> io::Result<()> {
        if !self.folder.try_lock()? {
            return Ok(());
        }
        {
            let mut log = self.shared.log();
            *log = Some(self.folder.purge_log(&self.shared.purges)?);
        }
        self.find_segments()?;
        self.has_folder = true;
        self.shared.queue.set_phase(Phase::Working);
        Ok(())
    }

    /// Works until the store is to stop.
    pub fn run(mut self) {
        let is_stopping = |state: &State| state.phase() == Phase::Stopping;
        while !self.has_folder && !self.shared.queue.wait_for(LOCK_INTERVAL, is_stopping) {
            if let Err(error) = self.take_over() {
                self.report(&error);
            }
        }
        let mut stop_at = None;
        while self.has_folder {
            let is_written = match self.shared.queue.next(self.patience()) {
                Next::Object(job) => self.write_object(job),
                Next::Removal(key) => self.write_removal(key),
                Next::RemoveAll => self.remove_all(),
                Next::MakeRoom => {
                    self.make_room_for_spools();
                    true
                }
                Next::Pause(error) => {
                    self.pause(&error);
                    false
                }
                Next::Nothing => true,
                Next::Stop => break,
            };
            if self.shared.queue.phase() == Phase::Stopping {
                let stop_at = *stop_at.get_or_insert_with(|| Instant::now() + LAST_WRITES);
                if !is_written || Instant::now() >= stop_at {
                    break;
                }
            } else {
                self.load_next();
            }
            self.sync_if_due();
            self.retry_if_due();
        }
        self.close();
    }

    /// How long it may wait for something to write.
    fn patience(&self) -> Option<Duration> {
        if !self.unloaded.is_empty() {
            return Some(Duration::ZERO);
        }
        let sync_at = self.unsynced.map(|since| since + SYNC_INTERVAL);
        let first = sync_at.into_iter().chain(self.retry_at).min();
        first.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Writes the object of a job, unless it is not to be any more. Whether the disk works.
    fn write_object(&mut self, job: Job) -> bool {
        let shared = self.shared.clone();
        let result = self.try_write_object(&job);
        let is_working = result.is_ok();
        match result {
            Ok(Ok(())) => {
                shared.counters.written.add(1);
                self.report_end();
                if let Some(spooled) = job.spooled {
                    let key = spooled.key().clone();
                    if spooled.stored().is_err() {
                        shared.queue.remove(&shared.index, &key);
                    }
                }
            }
            Ok(Err(reason)) => {
                shared.queue.not_written();
                shared.counters.not_written(reason);
            }
            Err(error) => {
                shared.counters.not_written(NotWritten::Paused);
                // First, so that a caller that waits until it is idle then sees it paused.
                self.pause(&error);
                shared.queue.not_written();
            }
        }
        is_working
    }

    fn try_write_object(&mut self, job: &Job) -> io::Result<Result<(), NotWritten>> {
        let shared = self.shared.clone();
        let object = &job.object;
        // Marks of purges that came meanwhile may be forgotten already.
        let is_known = shared.purges.knows(object.seen());
        if !is_known || shared.purges.judge(&shared.secret, object) == Fate::Gone {
            return Ok(Err(NotWritten::Purged));
        }
        let names = evenkeel_cache::vary::names(object.selector());
        let set = match names.as_slice() {
            b"" => None,
            names => match shared.index.names().id_of(names) {
                None => return Ok(Err(NotWritten::Vary)),
                set => set,
            },
        };
        let spooled = job.spooled.as_ref();
        let body_len = spooled.map_or(object.body_len(), |it| it.body_len);
        let head_len = record::head_len_with(object, body_len);
        let len = head_len.and_then(|head_len| u32::try_from(head_len as u64 + body_len).ok());
        let (Some(head_len), Some(len)) = (head_len, len) else {
            return Ok(Err(NotWritten::TooLong));
        };
        let record = Record {
            kind: Kind::Record,
            hashes: hashes(&shared.secret, job.key, object.selector()),
            names: &names,
            len,
        };
        let Some(position) = self.make_room(&record)? else {
            return Ok(Err(NotWritten::TooLong));
        };
        let written = self.write(&record, position, |writer, at| match spooled {
            None => writer.fill_with_object(object, at + head_len as u64),
            Some(spooled) => writer.fill_with_spooled(spooled, at + head_len as u64),
        })?;
        let is_added = shared.queue.written(written.next, || {
            shared.index.insert(&written.place, set);
        });
        self.move_some(whole_len(len));
        Ok(if is_added {
            Ok(())
        } else {
            Err(NotWritten::Purged)
        })
    }

    /// Writes a removal. Whether the disk works.
    fn write_removal(&mut self, key: u64) -> bool {
        let record = Record {
            kind: Kind::Removal,
            hashes: Hashes { key, slot: key },
            names: b"",
            len: 0,
        };
        let written = self.make_room(&record).and_then(|position| {
            // A frame alone always has room.
            let position = position.ok_or(io::ErrorKind::StorageFull)?;
            self.write(&record, position, |_, _| Ok(()))
        });
        match written {
            Ok(written) => {
                self.shared.queue.written(written.next, || {});
                self.unsynced.get_or_insert_with(Instant::now);
                self.report_end();
                true
            }
            Err(error) => {
                self.shared.queue.put_back(key);
                self.pause(&error);
                false
            }
        }
    }

    /// Removes all segments. Whether the disk works.
    fn remove_all(&mut self) -> bool {
        self.drain = None;
        let sealed = self.seal();
        while let Some(segment) = self.ring.oldest() {
            self.reclaim(segment);
        }
        if let Err(error) = &sealed {
            self.pause(error);
        }
        sealed.is_ok()
    }

    /// Makes room for a record; gives its position. `None` if it is too long.
    fn make_room(&mut self, record: &Record<'_>) -> io::Result<Option<Position>> {
        let len = whole_len(record.len);
        loop {
            let summary = self.open.as_ref().map_or(FOOTER_BYTES as u64, |open| {
                open.summary.len_with(record.names)
            });
            match self.ring.step(len, summary) {
                Step::Append(position) => return Ok(Some(position)),
                Step::Seal => {
                    // The segment that goes next goes before: there is room for one.
                    while self.drain.is_some() {
                        self.end_drain();
                    }
                    self.seal()?;
                }
                Step::Begin { segment } => self.begin(segment)?,
                Step::Reclaim { segment } => self.reclaim(segment),
                Step::Refuse => return Ok(None),
            }
        }
    }

    /// Writes a frame and its record. No lookup finds the record yet.
    ///
    /// `fill` gets the offset of the record. It adds the bytes for that place to the buffer, and
    /// writes later bytes to the segment.
    fn write(
        &mut self,
        record: &Record<'_>,
        position: Position,
        fill: impl FnOnce(&mut Self, u64) -> io::Result<()>,
    ) -> io::Result<Written> {
        let frame = Frame {
            kind: record.kind,
            hashes: record.hashes,
            position,
            len: record.len,
        };
        self.buffer.clear();
        frame.push(&mut self.buffer);
        let record_at = position.offset + self.buffer.len() as u64;
        // The frame comes last: without it nothing is there.
        let written = fill(self, record_at).and_then(|()| self.flush(position.offset));
        if let (Err(_), Some(open)) = (&written, &self.open) {
            // The next frame goes to the same place, and nothing is to lie behind it.
            let _ = open.file.set_len(position.offset);
        }
        written?;
        let len = frame.whole_len();
        let place = Place {
            hashes: record.hashes,
            position,
            size: Size::of(FRAME_BYTES as u64 + u64::from(record.len)),
            is_verified: true,
        };
        if let Some(open) = &mut self.open {
            open.summary.add(&Entry {
                hashes: record.hashes,
                kind: record.kind,
                position,
                size: place.size,
                names: record.names,
            });
        }
        self.ring.append(len);
        self.count_bytes();
        Ok(Written {
            place,
            next: Position {
                offset: position.offset + len,
                ..position
            },
        })
    }

    /// Writes what the buffer has to its place in the open segment.
    fn flush(&mut self, offset: u64) -> io::Result<()> {
        if let Some(open) = &self.open {
            open.file.write_all_at(&self.buffer, offset)?;
        }
        Ok(())
    }

    /// Head and body of an object, whose body is to lie at `at`. A short one joins the
    /// head in the buffer.
    fn fill_with_object(&mut self, object: &Object, mut at: u64) -> io::Result<()> {
        record::push_head(&mut self.buffer, object, &self.shared.clocks, clock::now());
        if object.body_len() <= TOGETHER_BYTES {
            for block in record::blocks(object) {
                self.buffer.extend_from_slice(block);
            }
            return Ok(());
        }
        if let Some(open) = &self.open {
            for block in record::blocks(object) {
                open.file.write_all_at(block, at)?;
                at += block.len() as u64;
            }
        }
        Ok(())
    }

    /// The same for one whose body lies in a spool.
    fn fill_with_spooled(&mut self, spooled: &Spooled, at: u64) -> io::Result<()> {
        let len = spooled.body_len;
        let (Some(open), Some((file, _))) = (&self.open, spooled.spool.written()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut sums = Vec::with_capacity((len / BLOCK_BYTES as u64) as usize + 1);
        let mut block = vec![0; BLOCK_BYTES];
        for start in (0..len).step_by(BLOCK_BYTES) {
            let block = &mut block[..BLOCK_BYTES.min((len - start) as usize)];
            file.read_exact_at(block, start)?;
            sums.push(record::sum(block));
            open.file.write_all_at(block, at + start)?;
        }
        let clocks = &self.shared.clocks;
        record::push_head_with(
            &mut self.buffer,
            &spooled.object,
            len,
            &sums,
            clocks,
            clock::now(),
        );
        Ok(())
    }

    /// Reclaims segments until other files of the store have room.
    fn make_room_for_spools(&mut self) {
        self.ring.reserve(self.shared.reserved.load(Relaxed));
        while let Some(segment) = self.ring.excess() {
            self.drain = None;
            self.reclaim(segment);
        }
    }

    fn begin(&mut self, segment: u32) -> io::Result<()> {
        self.ring.reserve(self.shared.reserved.load(Relaxed));
        let purges = self.shared.purges.count();
        let head = SegmentHead { segment, purges }.bytes();
        let file = Arc::new(self.folder.make_segment(segment, &head)?);
        self.shared.set_segment(segment, Some(file.clone()));
        self.open = Some(OpenSegment {
            file,
            summary: Summary::default(),
        });
        self.ring.begin(purges);
        let next = Position {
            segment,
            offset: head.len() as u64,
        };
        let index = &self.shared.index;
        self.shared.queue.set_next(next, || index.begin(segment));
        self.count_bytes();
        self.hold_purges();
        self.begin_drain();
        Ok(())
    }

    /// Ends the open segment with its summary.
    fn seal(&mut self) -> io::Result<()> {
        let (Some(open), Some(segment)) = (&self.open, self.ring.open()) else {
            return Ok(());
        };
        let position = Position {
            segment,
            offset: self.ring.open_bytes(),
        };
        let summary = open.summary.bytes(position);
        open.file.write_all_at(&summary, position.offset)?;
        let bytes = position.offset + summary.len() as u64;
        // A try that failed may have left more.
        open.file.set_len(bytes)?;
        open.file.sync_data()?;
        self.unsynced = None;
        self.open = None;
        self.ring.seal(bytes);
        self.count_bytes();
        Ok(())
    }

    fn sync_if_due(&mut self) {
        let is_due = self
            .unsynced
            .is_some_and(|since| since.elapsed() >= SYNC_INTERVAL);
        if is_due && let Some(open) = &self.open {
            let synced = open.file.sync_data();
            self.unsynced = None;
            if let Err(error) = synced {
                self.pause(&error);
            }
        }
    }

    /// The disk has failed: it is left alone for a while.
    fn pause(&mut self, error: &io::Error) {
        self.report(error);
        let gone = self.shared.queue.set_phase(Phase::Paused);
        for _ in 0..gone {
            self.shared.counters.not_written(NotWritten::Paused);
        }
        self.retry_at = Some(Instant::now() + PAUSE);
    }

    /// Says once that the disk has failed.
    fn report(&mut self, error: &io::Error) {
        if !self.is_reported {
            self.is_reported = true;
            tracing::warn!(
                "cache: writing to {} is paused: {error}; the next tries follow every {} s",
                self.folder,
                PAUSE.as_secs()
            );
        }
    }

    /// Says that a disk works again that had failed.
    fn report_end(&mut self) {
        if self.is_reported {
            self.is_reported = false;
            tracing::info!("cache: writing to {} goes on", self.folder);
        }
    }

    /// Has the next write try a failed disk again.
    fn retry_if_due(&mut self) {
        if self.retry_at.is_some_and(|at| Instant::now() >= at) {
            self.retry_at = None;
            self.shared.queue.set_phase(Phase::Working);
        }
    }

    fn count_bytes(&self) {
        self.shared.counters.bytes.set(self.ring.bytes());
    }

    /// Keeps the marks of purges that records on the disk may need.
    fn hold_purges(&self) {
        let oldest = self.ring.purges().unwrap_or(u64::MAX);
        self.shared.purges.hold(oldest);
    }

    /// Gives up the folder.
    fn close(mut self) {
        if self.open.is_some() {
            self.drain = None;
            // Without its summary the segment is read record by record.
            if let Err(error) = self.seal() {
                self.report(&error);
            }
        }
        // From here on the next process writes the log.
        *self.shared.log() = None;
        if let Err(error) = self.folder.unlock() {
            tracing::warn!("cache: unlock {}: {error}", self.folder);
        }
        let shared = self.shared.clone();
        drop(self);
        let gone = shared.queue.set_phase(Phase::Closed);
        for _ in 0..gone {
            shared.counters.not_written(NotWritten::NoFolder);
        }
    }
}
