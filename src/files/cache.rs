//! Files that are kept open, the last used of them: to open one is a third of
//! what it takes to answer with it.

use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::rc::Weak;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lru::{DefaultHasher, LruCache};

use super::contents::{Contents, KeptContents};
use super::open::{Missing, OpenFile};
use super::root::Root;
use super::{FileBytes, WHOLE_LEN};

/// One worker's open files, by what they were asked for as.
///
/// A file is kept from the second time on that it is asked for within a while:
/// where there are far more files than may be open, to keep each of them once
/// costs more than it brings.
#[derive(Debug)]
pub(super) struct OpenFiles {
    kept: LruCache<Box<[u8]>, CachedFile>,
    contents: KeptContents,
    hasher: DefaultHasher,
    /// Hashes of recent requests for files that are not kept.
    seen: Box<[u16]>,
}

#[derive(Debug)]
pub(super) struct CachedFile {
    pub file: Arc<OpenFile>,
    /// Tick at which the path was known to lead to it.
    checked: u64,
    /// Tick at which it was known to be unchanged.
    compared: u64,
    /// How often it was asked for since a tick.
    asked: u32,
    asked_since: u64,
    /// All of it, where that is kept.
    contents: Weak<Contents>,
}

/// A kept file compared with what its path leads to, without the disk.
#[derive(Debug)]
pub(super) enum Checked {
    /// The path leads to the kept file, unchanged.
    Same,
    /// The path leads to this file.
    Other(Arc<OpenFile>),
    /// The path leads to no file.
    Missing(Missing),
    /// The disk has to be asked where the path leads.
    Cold,
    /// The kept file may have changed, and no descriptor is left to open another.
    Outdated,
}

/// A file that is asked for this often within `OFTEN_TICKS` is asked for often. A limit of three
/// would let chance alone fill the memory for contents: of 200,000 files asked for at random,
/// 60,000 a second, 37 in each second.
const OFTEN: u32 = 5;
const OFTEN_TICKS: u64 = 10;
/// A file that changed within this time may change again with the same time stamp, as coarse as
/// its file system keeps it. Its bytes are not kept.
const SETTLING_TIME: Duration = Duration::from_secs(2);
/// Most bytes of contents that each worker keeps.
const CONTENTS_LEN: usize = 32 * 1024 * 1024;

impl CachedFile {
    /// A file to which its path leads in the tick `now`.
    fn new(file: Arc<OpenFile>, now: u64) -> Self {
        CachedFile {
            file,
            checked: now,
            compared: now,
            asked: 0,
            asked_since: now,
            contents: Weak::new(),
        }
    }

    /// Whether the path is still trusted to lead to the file, for `ticks` after a check.
    fn is_path_believed(&self, now: u64, ticks: u64) -> bool {
        now < self.checked + ticks && !self.file.is_doubted()
    }

    /// Notes that the path was followed and leads to the file, unchanged.
    fn confirm(&mut self, now: u64) {
        self.checked = now;
        self.compared = now;
    }

    /// Whether the file is still the version that was opened. Checked once in each tick, with one
    /// system call.
    fn is_unchanged(&mut self, now: u64) -> bool {
        let is_unchanged = self.compared == now || self.file.is_unchanged();
        if is_unchanged {
            self.compared = now;
        }
        is_unchanged
    }

    /// Whether the path, in the folder of `root`, leads to the file. Follows the path where the
    /// last check is older than `ticks`.
    ///
    /// The file may have been overwritten in place. The next tick shows that here, and a read
    /// shows it before. Kept contents are the old version, whole.
    pub fn check(&mut self, root: &Root, path: &[u8], now: u64, ticks: u64) -> Checked {
        if self.is_path_believed(now, ticks) && self.is_unchanged(now) {
            return Checked::Same;
        }
        match root.open_in_memory(path) {
            Some(Ok(found)) if found.id == self.file.id && !self.file.is_doubted() => {
                self.confirm(now);
                Checked::Same
            }
            Some(Ok(found)) => Checked::Other(Arc::new(found)),
            // An old version is better than none.
            Some(Err(Missing::NoDescriptor))
                if !self.file.is_doubted() && self.is_unchanged(now) =>
            {
                Checked::Same
            }
            Some(Err(Missing::NoDescriptor)) => Checked::Outdated,
            Some(Err(missing)) => Checked::Missing(missing),
            None => Checked::Cold,
        }
    }

    /// The kept contents, if there are any, for an answer in the tick `now`.
    pub fn contents(&self, now: u64) -> Option<FileBytes> {
        self.contents.upgrade().map(|contents| contents.take(now))
    }

    /// Counts a request. Returns whether the file is asked for often.
    pub fn is_asked_often(&mut self, now: u64) -> bool {
        if now >= self.asked_since + OFTEN_TICKS {
            (self.asked, self.asked_since) = (0, now);
        }
        self.asked += 1;
        self.asked >= OFTEN
    }

    /// Whether the contents may be kept: they are short, and the next change of the file will
    /// have another time stamp.
    fn may_be_remembered(&self) -> bool {
        let settled = SystemTime::UNIX_EPOCH + Duration::from_nanos(self.file.id.settled_ns());
        self.file.id.len <= WHOLE_LEN && settled.elapsed().is_ok_and(|ago| ago > SETTLING_TIME)
    }
}

/// Slots for traces of requests, for each file that may be kept.
const SEEN_PER_FILE: usize = 4;

fn nothing_seen(most: NonZeroUsize) -> Box<[u16]> {
    vec![0; (most.get() * SEEN_PER_FILE).next_power_of_two()].into()
}

impl OpenFiles {
    pub fn new(most: usize) -> Self {
        let most = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        OpenFiles {
            kept: LruCache::new(most),
            contents: KeptContents::new(CONTENTS_LEN),
            hasher: DefaultHasher::default(),
            seen: nothing_seen(most),
        }
    }

    /// The file that is kept under this key.
    pub fn get(&mut self, key: &[u8]) -> Option<&mut CachedFile> {
        self.kept.get_mut(key)
    }

    /// Keeps the contents of the open file under this key, where there is room, and returns them.
    /// `now` in ticks.
    pub fn keep_contents(&mut self, key: &[u8], now: u64) -> Option<FileBytes> {
        let kept = self.kept.peek_mut(key)?;
        // Contents that can't be kept now are not tried again with each request.
        kept.asked = 0;
        let len = kept.file.id.len as usize;
        if !kept.may_be_remembered() || !self.contents.make_room(len, now) {
            return None;
        }
        let bytes = kept.file.whole_in_memory()?;
        kept.contents = self.contents.keep(bytes.clone(), now);
        Some(bytes)
    }

    /// Keeps a file, if it was asked for before. `now` in ticks.
    pub fn offer(&mut self, key: &[u8], file: &Arc<OpenFile>, now: u64) {
        let hash = self.hasher.hash_one(key);
        let at = hash as usize & (self.seen.len() - 1);
        // Differs from an empty slot.
        let trace = (hash >> 48) as u16 | 1;
        if std::mem::replace(&mut self.seen[at], trace) == trace {
            self.put(key, file.clone(), now);
        }
    }

    /// Keeps a file in place of another. `now` in ticks.
    pub fn put(&mut self, key: &[u8], file: Arc<OpenFile>, now: u64) {
        self.kept.put(key.into(), CachedFile::new(file, now));
    }

    /// Drops the entry of this key. Its file is closed with its last user.
    pub fn remove(&mut self, key: &[u8]) {
        self.kept.pop(key);
    }

    /// Closes everything.
    pub fn clear(&mut self) {
        self.kept.clear();
        self.contents.clear();
    }

    /// Keeps at most this many files from now on.
    pub fn set_most(&mut self, most: usize) {
        let most = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        if most != self.kept.cap() {
            self.kept.resize(most);
            self.seen = nothing_seen(most);
        }
    }

    /// Closes the files whose keys are not to be kept.
    pub fn retain(&mut self, is_kept: impl Fn(&[u8]) -> bool) {
        let keys = self.kept.iter().map(|(key, _)| key);
        let gone: Vec<_> = keys.filter(|key| !is_kept(key)).cloned().collect();
        for key in gone {
            self.kept.pop(&key);
        }
    }

    /// Closes the least recently used half. Returns whether any were open.
    pub fn shrink(&mut self) -> bool {
        let len = self.kept.len();
        for _ in 0..len.div_ceil(2) {
            self.kept.pop_lru();
        }
        len > 0
    }

    /// How many files are open.
    pub fn len(&self) -> usize {
        self.kept.len()
    }
}
