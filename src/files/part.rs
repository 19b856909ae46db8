//! Reads of parts of files: by a thread, by the ring, past the page cache.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::{Errno, pread};

use super::Found;
use super::bytes::{FileBytes, ReadBytes};
use super::direct::{DirectReads, Way};
use super::disks::Fetched;
use super::open::{Missing, OpenFile};

/// A part of a file that is to be read.
#[derive(Debug)]
pub(super) struct Part {
    pub file: Arc<OpenFile>,
    pub offset: u64,
    /// In bytes.
    pub len: usize,
    /// Whether nobody else has the file, or gets it before it was read.
    pub is_only_here: bool,
    /// What decides how it is read when its turn has come, where that is not by
    /// way of the page cache in any case.
    pub direct_reads: Option<Arc<DirectReads>>,
    /// How it is read.
    pub way: Way,
    /// What is made of its bytes.
    pub fetched: fn(Arc<OpenFile>, ReadBytes) -> Fetched,
}

/// What direct I/O gives at least, unless the file ends, in bytes.
const SECTOR_LEN: usize = 512;

impl Part {
    pub fn of(file: Arc<OpenFile>, offset: u64, len: usize) -> Self {
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

    /// All of a file that is no longer than [`WHOLE_LEN`](super::WHOLE_LEN) and was just opened.
    pub fn whole(file: Arc<OpenFile>) -> Self {
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
    pub fn choose_way(&mut self) {
        if let Some(reads) = self.direct_reads.take() {
            self.way = reads.way(&self.file, self.is_only_here, self.offset, self.len);
        }
    }

    /// Room for its bytes, according to how it is read.
    pub fn room(&self) -> FileBytes {
        let mut room = FileBytes::blocks(self.len);
        if !self.is_direct() {
            room.truncate(self.len);
        }
        room
    }

    /// What it is read from.
    pub fn source(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Direct(direct) => direct.as_fd(),
            Way::Cached | Way::Displacing => self.file.as_fd(),
        }
    }

    pub fn is_direct(&self) -> bool {
        matches!(self.way, Way::Direct(_))
    }

    /// Whether more is to be read after so many bytes. What direct I/O leaves
    /// out of a sector is not there.
    pub fn is_more(&self, filled: usize) -> bool {
        filled < self.len && (!self.is_direct() || filled.is_multiple_of(SECTOR_LEN))
    }

    /// What is made of what its read came to.
    pub fn end(mut self, bytes: ReadBytes) -> Fetched {
        // The file is as it was before.
        self.way = Way::Cached;
        (self.fetched)(self.file, bytes)
    }

    /// What is made of it, once it was read. Blocks.
    pub fn fetch(mut self) -> Fetched {
        let bytes = self.read();
        self.end(bytes)
    }

    /// Reads it. Blocks.
    pub fn read(&mut self) -> ReadBytes {
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
