//! Reads past the page cache (`O_DIRECT`), for bytes that are not worth a place in it.
//!
//! Files that are read once do not stay in memory then. The kernel finds and fills no page for
//! them, and evicts no page of a file that is asked for often.

use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_policy::reuse::{ReadHistory, Worth};

use super::bytes::BLOCK_LEN;
use super::memory::Memory;
use super::open::OpenFile;

/// Which reads of a disk go past the page cache.
#[derive(Debug)]
pub struct DirectReads {
    history: ReadHistory,
    count: AtomicU64,
    memory: Arc<Memory>,
}

impl DirectReads {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        DirectReads {
            history: ReadHistory::new(memory.len()),
            count: AtomicU64::new(0),
            memory,
        }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How to read `len` bytes of a file from `offset` on. `is_only_here` says that nobody else
    /// has the file before the read ends.
    pub(super) fn way(
        &self,
        file: &Arc<OpenFile>,
        is_only_here: bool,
        offset: u64,
        len: usize,
    ) -> Way {
        if !file.takes_direct_reads || len == 0 || !offset.is_multiple_of(BLOCK_LEN as u64) {
            return Way::Cached;
        }
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((file.id, offset));
        match self.history.worth(hash, len as u64, self.memory.has_room()) {
            Worth::Room => Way::Cached,
            Worth::Displacing => Way::Displacing,
            Worth::Nothing => match DirectFile::new(file, is_only_here) {
                Some(direct) => {
                    self.count.fetch_add(1, Ordering::Relaxed);
                    Way::Direct(direct)
                }
                None => Way::Displacing,
            },
        }
    }
}

/// How a part of a file is read.
#[derive(Debug)]
pub(super) enum Way {
    /// Through the page cache.
    Cached,
    /// Through the page cache, where the kernel has to make room first.
    Displacing,
    /// Past the page cache.
    Direct(DirectFile),
}

/// An open file that is read past the page cache.
#[derive(Debug)]
pub(super) enum DirectFile {
    /// The open file itself, which nobody else has. Dropped, it returns to normal reads.
    Only(Arc<OpenFile>),
    /// The same file, opened once more, because others have it and read it as usual.
    Again(File),
}

impl DirectFile {
    /// `None` where the file system has no such reads.
    pub(super) fn new(file: &Arc<OpenFile>, is_only_here: bool) -> Option<Self> {
        if is_only_here {
            file.read_directly().then(|| DirectFile::Only(file.clone()))
        } else {
            file.open_again_directly().map(DirectFile::Again)
        }
    }
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            DirectFile::Only(file) => file.as_fd(),
            DirectFile::Again(file) => file.as_fd(),
        }
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        if let DirectFile::Only(file) = self {
            file.read_as_usual();
        }
    }
}
