//! Open files, and reading what is in memory of them.
//!
//! The kernel says without waiting which pages would have to be read from a
//! disk, by `cachestat` and `RWF_NOWAIT`.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags, Stat, fcntl_setfl, fstat, open};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::bytes::FileBytes;
use crate::net::descriptors::{Taker, within_limit};
use crate::net::is_out_of_descriptors;

/// Nothing waits for the other end of a pipe that somebody put there.
pub(super) const FILE_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Identifies one version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
    /// Length in bytes.
    pub len: u64,
    /// Last change of the contents, in nanoseconds since 1970.
    modified_ns: u64,
    /// Last change of anything, likewise: it can't be set at will.
    changed_ns: u64,
}

/// A time of last change, in seconds since 1970; `None` where the time says nothing.
///
/// Reproducible builds set 0 or 1 for every file, and so do file systems without times.
pub(super) fn telling_time(seconds: i64) -> Option<u64> {
    u64::try_from(seconds).ok().filter(|&seconds| seconds > 1)
}

impl FileId {
    pub(super) fn of(status: &Stat) -> Self {
        let since_1970 = |seconds: i64, ns: u64| {
            let seconds = u64::try_from(seconds).unwrap_or(0);
            seconds.saturating_mul(1_000_000_000).saturating_add(ns)
        };
        FileId {
            device: status.st_dev,
            inode: status.st_ino,
            len: status.st_size as u64,
            modified_ns: since_1970(status.st_mtime, status.st_mtime_nsec),
            changed_ns: since_1970(status.st_ctime, status.st_ctime_nsec),
        }
    }

    /// Whether the contents are the same, as far as length and time of last change show. The file
    /// may have got another name or other permissions meanwhile, or have been deleted.
    fn has_contents_of(&self, other: &Self) -> bool {
        let changed_ns = other.changed_ns;
        FileId {
            changed_ns,
            ..*self
        } == *other
    }

    /// Last change of the contents, in nanoseconds since 1970; `None` where the time says
    /// nothing: 0, 1 or before 1970.
    pub fn modified_ns(&self) -> Option<u64> {
        let seconds = (self.modified_ns / 1_000_000_000) as i64;
        telling_time(seconds).map(|_| self.modified_ns)
    }

    /// When the file became what it is, in nanoseconds since 1970. This is the last change of
    /// anything (ctime) where the time of the contents says nothing.
    pub fn settled_ns(&self) -> u64 {
        self.modified_ns().unwrap_or(self.changed_ns)
    }
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) file: File,
    /// The version that was opened.
    pub id: FileId,
    /// Whether the file system keeps all files in memory, with no disk behind it.
    pub(super) is_memory: bool,
    /// Whether a read starts without a wait for the disk when only the file's bytes are missing
    /// from memory.
    pub begins_at_once: bool,
    /// Whether it may be read past the page cache.
    pub(super) takes_direct_reads: bool,
    /// Whether the last read found all of the file in memory.
    pub(super) is_hot: AtomicBool,
    /// Tick in which all of the file was found in memory.
    pub(super) in_memory_at: AtomicU64,
    /// Whether a read showed that the file is no longer the version that was opened.
    pub(super) is_doubted: AtomicBool,
    /// Built with the first answer.
    pub fields: OnceLock<Fields>,
}

/// Fields of answers with a file, ready to send: lines with their line ends.
#[derive(Debug)]
pub struct Fields {
    /// All fields, in this order: `Vary`, `ETag`, the other fields of a 304, the fields of every
    /// answer with bytes of the file, and the field of an answer with the whole file.
    pub text: Box<[u8]>,
    /// End of `Vary`.
    pub vary_end: usize,
    /// The part that is the value of `ETag`; empty where there is none.
    pub entity_tag: Range<usize>,
    /// End of the line of `ETag`.
    pub tag_end: usize,
    /// End of the fields that a 304 has too.
    pub shared_end: usize,
    /// End of the fields that answers with a part of the file have.
    pub content_end: usize,
    /// Value of `Last-Modified`, in seconds since 1970, where there is one.
    pub modified: Option<u64>,
}

impl Fields {
    /// The value of `ETag`; empty where there is none.
    pub fn entity_tag(&self) -> &[u8] {
        &self.text[self.entity_tag.clone()]
    }

    /// Fields of answers with this status, whether or not bytes of the file follow. A refusal has
    /// none of the caching fields of the file. A file that is sent with a 404 has no version of
    /// its own.
    pub fn shared(&self, status: u16) -> &[u8] {
        match status {
            404 => &self.text[..self.vary_end],
            412 | 416 => &self.text[..self.tag_end],
            _ => &self.text[..self.shared_end],
        }
    }

    /// Fields that describe the bytes of the file, and the length of the whole file.
    pub fn whole(&self) -> &[u8] {
        &self.text[self.shared_end..]
    }

    /// Fields that describe the bytes of the file.
    pub fn content(&self) -> &[u8] {
        &self.text[self.shared_end..self.content_end]
    }
}

/// Why a path does not lead to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Nothing.
    Absent,
    /// A folder.
    Folder,
    /// Something that may not be read.
    Forbidden(Barrier),
    /// The process is at its limit of open files.
    NoDescriptor,
    /// Answers to clients are at their memory limit (`server.answer_memory`).
    NoMemory,
    /// The folder itself can't be opened.
    NoRoot(Errno),
    /// A disk's error, or another that has nothing to do with the path.
    Failed(Errno),
}

/// Why something may not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// A link leads out of the folder. An absolute link always does.
    LeadsOut,
    /// Links lead to each other, or are too many.
    Links,
    /// The process has no permission.
    NoPermission,
    /// A pipe, a device, a socket.
    NoFile,
}

impl fmt::Display for Barrier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Barrier::LeadsOut => "a link leads out of the folder",
            Barrier::Links => "too many links",
            Barrier::NoPermission => "permission denied",
            Barrier::NoFile => "it is a pipe, a device or a socket",
        })
    }
}

/// The outcome of a read that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hot {
    /// This many bytes were in memory: all that the read wanted, or all up to the end of the
    /// file.
    Read(usize),
    /// The bytes are on the disk.
    Cold,
}

pub(super) fn missing(error: Errno) -> Missing {
    match error {
        // Some file systems do not know every name.
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => {
            Missing::Absent
        }
        Errno::XDEV => Missing::Forbidden(Barrier::LeadsOut),
        Errno::LOOP => Missing::Forbidden(Barrier::Links),
        Errno::ACCESS | Errno::PERM => Missing::Forbidden(Barrier::NoPermission),
        // A socket.
        Errno::NXIO => Missing::Forbidden(Barrier::NoFile),
        error if is_out_of_descriptors(error) => Missing::NoDescriptor,
        error => Missing::Failed(error),
    }
}

impl OpenFile {
    /// Reads the whole file into `room`, if all of it is in memory. With room for one byte more
    /// than the file had, the result shows whether the file has grown.
    ///
    /// # Errors
    /// The errors of read(2).
    pub fn read_whole_in_memory(&self, room: &mut [u8]) -> io::Result<Hot> {
        self.read_in_memory(0, room, self.id.len as usize)
    }

    /// Reads `len` bytes at `offset`, if they are in memory. Reads more where `room` is longer
    /// and the bytes come along.
    fn read_in_memory(&self, offset: u64, room: &mut [u8], len: usize) -> io::Result<Hot> {
        let mut flags = if self.is_memory {
            // A memory file system has no reads without waiting, and needs none.
            ReadWriteFlags::empty()
        } else {
            ReadWriteFlags::NOWAIT
        };
        let is_believed = self.is_memory || self.is_hot.load(Ordering::Relaxed);
        if !is_believed && self.counted_in_memory(offset, len as u64) == Some(false) {
            return Ok(Hot::Cold);
        }
        let mut filled = 0;
        while filled < len {
            let mut rest = [IoSliceMut::new(&mut room[filled..])];
            let at = offset + filled as u64;
            match preadv2(&self.file, &mut rest, at, flags) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(Errno::INTR) => {}
                // Not every file system has reads without waiting.
                Err(Errno::OPNOTSUPP)
                    if self.counted_in_memory(offset, len as u64) == Some(true) =>
                {
                    flags = ReadWriteFlags::empty();
                }
                Err(Errno::AGAIN | Errno::OPNOTSUPP) => {
                    self.is_hot.store(false, Ordering::Relaxed);
                    return Ok(Hot::Cold);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.is_hot.store(true, Ordering::Relaxed);
        Ok(Hot::Read(filled))
    }

    /// Whether all of this part is in memory, so that sending it takes no disk. The answer for a
    /// whole file stays valid for the rest of the tick `now`: the kernel displaces pages that
    /// were just used last.
    pub fn is_in_memory(&self, offset: u64, len: u64, now: u64) -> bool {
        let is_whole = (offset, len) == (0, self.id.len);
        if self.is_memory || (is_whole && self.in_memory_at.load(Ordering::Relaxed) == now) {
            return true;
        }
        let is_in_memory = self.is_found_in_memory(offset, len);
        if is_in_memory && is_whole {
            self.in_memory_at.store(now, Ordering::Relaxed);
        }
        is_in_memory
    }

    fn is_found_in_memory(&self, offset: u64, len: u64) -> bool {
        if self.counted_in_memory(offset, len) != Some(true) {
            return false;
        }
        // A page that is being read counts as present, and a send would wait for it.
        len == 0 || self.can_be_read(offset + len - 1)
    }

    /// Whether a byte can be read without waiting, as far as its file system
    /// can tell.
    fn can_be_read(&self, at: u64) -> bool {
        let mut byte = [0];
        let mut room = [IoSliceMut::new(&mut byte)];
        let read = preadv2(&self.file, &mut room, at, ReadWriteFlags::NOWAIT);
        matches!(read, Ok(_) | Err(Errno::OPNOTSUPP))
    }

    /// Reads this part where the kernel does not say whether it is in memory, but can read it
    /// without waiting.
    pub fn read_untold(&self, offset: u64, len: u64) -> Option<FileBytes> {
        if self.counted_in_memory(offset, len).is_some() {
            return None;
        }
        self.bytes_in_memory(offset, len as usize, 0)
    }

    /// The whole file, where it is in memory and its length has not changed.
    pub(super) fn whole_in_memory(&self) -> Option<FileBytes> {
        // One byte more shows whether the file has grown.
        self.bytes_in_memory(0, self.id.len as usize, 1)
    }

    /// This part, where it can be read without waiting and `beyond` bytes more
    /// would find no more.
    fn bytes_in_memory(&self, offset: u64, len: usize, beyond: usize) -> Option<FileBytes> {
        let mut bytes = FileBytes::room(len + beyond);
        match self.read_in_memory(offset, bytes.room_mut(), len) {
            Ok(Hot::Read(read)) if read == len => {
                bytes.truncate(len);
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Whether all of this part is in memory; `None` where the kernel does not say.
    ///
    /// A read with `RWF_NOWAIT` alone would say so too. But it starts to read missing pages, and
    /// so bypasses the queue of the disk.
    fn counted_in_memory(&self, offset: u64, len: u64) -> Option<bool> {
        let len = len.min(self.id.len.saturating_sub(offset));
        let pages = pages_in_memory(&self.file, offset, len)?;
        Some(pages >= page_count(offset, len))
    }

    /// Makes reads go past the page cache. Returns whether they do: not every file system has
    /// direct reads.
    pub(super) fn read_directly(&self) -> bool {
        fcntl_setfl(&self.file, FILE_FLAGS | OFlags::DIRECT).is_ok()
    }

    /// Opens the same file once more, for reads past the page cache; `None` where that fails.
    pub(super) fn open_again_directly(&self) -> Option<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = FILE_FLAGS | OFlags::CLOEXEC | OFlags::DIRECT;
        let opened = open(path, flags, Mode::empty());
        let opened = opened.and_then(|it| within_limit(it, Taker::Exchange));
        opened.ok().map(File::from)
    }

    /// Makes reads go through the page cache again.
    pub(super) fn read_as_usual(&self) {
        // This was the state when the file was opened.
        let set = fcntl_setfl(&self.file, FILE_FLAGS);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// Whether somebody else has the file too: another exchange, or the cache of open files.
    pub fn is_shared(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Marks the file as possibly outdated, so that its path is followed again.
    pub fn doubt(&self) {
        self.is_doubted.store(true, Ordering::Relaxed);
    }

    /// Whether the file was marked by [`doubt`](Self::doubt).
    pub fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed)
    }

    /// Whether the file is still the version that was opened, under its name, as far as the file
    /// itself shows. Costs a system call.
    pub fn is_unchanged(&self) -> bool {
        fstat(&self.file).is_ok_and(|status| FileId::of(&status) == self.id)
    }

    /// Whether the contents are still those of the version that was opened, whatever became of
    /// the name. Costs a system call.
    pub fn has_same_contents(&self) -> bool {
        fstat(&self.file).is_ok_and(|status| FileId::of(&status).has_contents_of(&self.id))
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// How many pages of the page cache hold this part of a file.
fn page_count(offset: u64, len: u64) -> u64 {
    let page_len = rustix::param::page_size() as u64;
    match len {
        0 => 0,
        len => (offset + len - 1) / page_len - offset / page_len + 1,
    }
}

/// Reads into `room` from `offset` up to the end of the file, if all of it is in memory. Returns
/// the number of bytes.
pub fn read_in_page_cache(file: &File, offset: u64, room: &mut [u8]) -> Option<usize> {
    let len = room.len() as u64;
    if let Some(pages) = pages_in_memory(file, offset, len)
        && pages < page_count(offset, len)
    {
        // Pages beyond the end of the file are never in memory.
        let rest = file.metadata().ok()?.len().saturating_sub(offset);
        if pages < page_count(offset, len.min(rest)) {
            return None;
        }
    }
    preadv2(
        file,
        &mut [IoSliceMut::new(room)],
        offset,
        ReadWriteFlags::NOWAIT,
    )
    .ok()
}

/// Whether a part of a file is known to be in memory, so that sending it takes no disk.
pub fn is_in_page_cache(file: &File, offset: u64, len: u64) -> bool {
    if pages_in_memory(file, offset, len) != Some(page_count(offset, len)) {
        return false;
    }
    // A page that is being read counts as present, and a send would wait for it.
    let mut byte = [0];
    let room = &mut [IoSliceMut::new(&mut byte)];
    let last = offset + len.saturating_sub(1);
    len == 0 || preadv2(file, room, last, ReadWriteFlags::NOWAIT).is_ok()
}

/// How many pages of this part of a file are in memory (cachestat(2), Linux 6.5). `None` where
/// the kernel does not say: it is older, or another user owns the file and this process may not
/// write it.
fn pages_in_memory(file: &File, offset: u64, len: u64) -> Option<u64> {
    /// The same for every architecture that Rust has a libc for.
    const SYS_CACHESTAT: libc::c_long = 451;
    const NO_FLAGS: libc::c_uint = 0;
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct CacheStat {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    if len == 0 {
        // The kernel takes a length of 0 as the whole file.
        return Some(0);
    }
    let range = Range { offset, len };
    let mut found = CacheStat::default();
    // SAFETY: both structures are as the kernel declares them; it reads the one
    // and writes the other, and keeps no pointer.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut found,
            NO_FLAGS,
        )
    };
    (result == 0).then_some(found.cached)
}
