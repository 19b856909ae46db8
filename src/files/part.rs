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
    /// Whether nobody else has the file before the read ends.
    pub is_only_here: bool,
    /// Decides when the turn comes whether the read goes past the page cache; `None` for a read
    /// that never does.
    pub direct_reads: Option<Arc<DirectReads>>,
    /// How it is read.
    pub way: Way,
    /// Makes the result from the bytes.
    pub fetched: fn(Arc<OpenFile>, ReadBytes) -> Fetched,
}

/// Direct I/O returns whole sectors of this length, in bytes, except at the end of the file.
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
                // The bytes may be of two versions.
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

    /// Chooses how to read, now that the turn has come.
    pub fn choose_way(&mut self) {
        if let Some(reads) = self.direct_reads.take() {
            self.way = reads.way(&self.file, self.is_only_here, self.offset, self.len);
        }
    }

    /// Room for the bytes, as the way of reading needs it.
    pub fn room(&self) -> FileBytes {
        let mut room = FileBytes::blocks(self.len);
        if !self.is_direct() {
            room.truncate(self.len);
        }
        room
    }

    /// The descriptor to read from.
    pub fn source(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Direct(direct) => direct.as_fd(),
            Way::Cached | Way::Displacing => self.file.as_fd(),
        }
    }

    pub fn is_direct(&self) -> bool {
        matches!(self.way, Way::Direct(_))
    }

    /// Whether to read on after this many bytes. Direct I/O cuts a sector short only at the end
    /// of the file.
    pub fn is_more(&self, filled: usize) -> bool {
        filled < self.len && (!self.is_direct() || filled.is_multiple_of(SECTOR_LEN))
    }

    /// The result of the read, from its bytes.
    pub fn end(mut self, bytes: ReadBytes) -> Fetched {
        // Restores the normal mode of the file.
        self.way = Way::Cached;
        (self.fetched)(self.file, bytes)
    }

    /// Reads the part, and returns the result. Blocks.
    pub fn fetch(mut self) -> Fetched {
        let bytes = self.read();
        self.end(bytes)
    }

    /// Reads the part. Blocks.
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
                // The disk has longer blocks than we expect.
                Err(Errno::INVAL) if self.is_direct() => self.way = Way::Displacing,
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(self.len.min(filled));
        Ok(bytes)
    }
}
