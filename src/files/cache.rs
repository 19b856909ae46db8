//! Files that are kept open, the last used of them: to open one is a third of
//! what it takes to answer with it.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::{DefaultHasher, LruCache};

use super::open::OpenFile;

/// One worker's open files, by what they were asked for as.
///
/// A file is kept from the second time on that it is asked for within a while:
/// where there are far more files than may be open, to keep each of them once
/// costs more than it brings.
#[derive(Debug)]
pub(super) struct OpenFiles {
    kept: LruCache<Box<[u8]>, Kept>,
    hasher: DefaultHasher,
    /// Of what was asked for of late and is not kept.
    seen: Box<[u16]>,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub file: Arc<OpenFile>,
    /// Tick at which the path was known to lead to it.
    checked: Cell<u64>,
    /// Tick at which it was known to be unchanged.
    compared: Cell<u64>,
}

impl Kept {
    /// A file to which its path leads in the tick `now`.
    fn new(file: Arc<OpenFile>, now: u64) -> Self {
        Kept {
            file,
            checked: Cell::new(now),
            compared: Cell::new(now),
        }
    }

    /// Whether its path is believed to lead to it still, for so many ticks.
    pub fn is_path_believed(&self, now: u64, ticks: u64) -> bool {
        now < self.checked.get() + ticks && !self.file.is_doubted()
    }

    /// Its path was followed and leads to it, unchanged.
    pub fn confirm(&self, now: u64) {
        self.checked.set(now);
        self.compared.set(now);
    }

    /// Whether it still is what it was when it was opened, as far as was seen in
    /// this tick: one system call for each.
    pub fn is_unchanged(&self, now: u64) -> bool {
        let is_unchanged = self.compared.get() == now || self.file.is_unchanged();
        if is_unchanged {
            self.compared.set(now);
        }
        is_unchanged
    }
}

/// Traces of what was asked for, for each file that may be kept.
const SEEN_PER_FILE: usize = 4;

impl OpenFiles {
    pub fn new(most: usize) -> Self {
        let most = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        OpenFiles {
            kept: LruCache::new(most),
            hasher: DefaultHasher::default(),
            seen: vec![0; (most.get() * SEEN_PER_FILE).next_power_of_two()].into(),
        }
    }

    /// What is kept under this key.
    pub fn get(&mut self, key: &[u8]) -> Option<&Kept> {
        self.kept.get(key)
    }

    /// Keeps a file, if it was asked for before. `now` in ticks.
    pub fn offer(&mut self, key: &[u8], file: &Arc<OpenFile>, now: u64) {
        let hash = self.hasher.hash_one(key);
        let at = hash as usize & (self.seen.len() - 1);
        // Not what an empty place holds.
        let trace = (hash >> 48) as u16 | 1;
        if std::mem::replace(&mut self.seen[at], trace) == trace {
            self.put(key, file.clone(), now);
        }
    }

    /// Keeps a file in place of another. `now` in ticks.
    pub fn put(&mut self, key: &[u8], file: Arc<OpenFile>, now: u64) {
        self.kept.put(key.into(), Kept::new(file, now));
    }

    /// Closes what is kept under this key, once nobody uses it any more.
    pub fn remove(&mut self, key: &[u8]) {
        self.kept.pop(key);
    }

    /// Closes everything.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// Closes the half that was not used for longest; whether there was any.
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
