//! Writes lines to a file, a pipe or standard output.
//!
//! Invariant: no line is ever cut. If a write takes only a part of a line, the rest is written
//! first the next time.
//!
//! While lines come in full buffers, the thread collects them. It writes them past the page cache
//! in large pieces (`O_DIRECT`, open(2)). Nobody reads most of a log soon, and its pages would
//! displace files that are read. A fresh page for the log also costs more than writing to it.
//!
//! After a time, held lines are written even if they are few: past the page cache, except the
//! last block, where they are more than a few pages. If the disk is slower than the lines arrive,
//! the page cache takes them and writes them later.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_setfl};

use super::Written;
use crate::observe::access_log::HAND_OVER_LEN;

/// A file that lines are appended to.
#[derive(Debug)]
pub(super) struct FileSink {
    file: File,
    /// `None` is standard output.
    path: Option<PathBuf>,
    /// Lines that are held for a larger write.
    held: AlignedLines,
    /// The rest of a partly written line, after a failed write.
    rest: Vec<u8>,
    /// Whether the file ends within a line.
    is_line_begun: bool,
    /// Whether the file can be written past the page cache.
    is_direct: bool,
    /// End of the time without direct writes, after a slow one.
    slow_until: Option<Instant>,
    cached: Cached,
}

/// Length at which lines are written past the page cache, in bytes.
const DIRECT_LEN: usize = 1024 * 1024;
/// Least length, in bytes, for a direct write of lines that have waited long enough. A few pages
/// cost less than the wait for the disk.
const DIRECT_MIN_LEN: usize = 64 * 1024;
/// Alignment of direct writes: a multiple of the block of any disk.
const BLOCK: usize = 4096;
/// Capacity for held lines: usually enough for one more buffer of lines.
const CAPACITY: usize = DIRECT_LEN + 2 * HAND_OVER_LEN;
/// The disk is too slow if more than this waits, in bytes.
const BEHIND: usize = 4 * HAND_OVER_LEN;
/// A direct write that takes longer shows that the disk is busy. The queue in front of this
/// thread holds lines for half a second.
const SLOW_WRITE: Duration = Duration::from_millis(50);
/// Time for which all lines then go through the page cache.
const SLOW_TIME: Duration = Duration::from_secs(5);

/// Least length of the file's end that stays in the page cache, and length of each release, in
/// bytes.
const CACHED_LEN: u64 = 4 << 20;

/// The part of a file that is in the page cache because of this process.
///
/// A log is written once and seldom read. Without a limit it takes all memory that nothing else
/// needs. Each fresh page for the log costs more than writing to it, above all on a virtual
/// machine, whose host may have to find the page first. After a release the same few pages are
/// used again and again.
#[derive(Debug, Default)]
struct Cached {
    /// Start of the part that is not released yet.
    from: u64,
    /// Length of that part.
    len: u64,
}

impl FileSink {
    pub fn stdout() -> io::Result<Self> {
        // Bypasses the buffer of the standard library, which would hide how much was written.
        let file = io::stdout().as_fd().try_clone_to_owned()?.into();
        Ok(Self::new(file, None))
    }

    pub fn open(path: &Path) -> io::Result<Self> {
        let mut sink = Self::new(open(path)?, Some(path.to_owned()));
        sink.end_line_of_others();
        Ok(sink)
    }

    /// Starts our first line on a new line, if the file ends within a line. A process without
    /// room for the rest of its last line leaves a file so.
    fn end_line_of_others(&mut self) {
        let path = self.path.as_deref().filter(|_| is_regular(&self.file));
        self.is_line_begun = path.is_some_and(ends_within_a_line);
        if self.is_line_begun {
            self.rest = b"\n".to_vec();
        }
    }

    fn new(file: File, path: Option<PathBuf>) -> Self {
        FileSink {
            held: AlignedLines::default(),
            rest: Vec::new(),
            is_line_begun: false,
            // Others write to standard output too, so its flags stay as they are.
            is_direct: path.is_some() && is_regular(&file),
            slow_until: None,
            cached: Cached::new(&file),
            file,
            path,
        }
    }

    /// The buffer for new lines.
    pub fn lines(&mut self) -> &mut Vec<u8> {
        if self.held.is_empty() {
            self.held.begin(if self.is_direct {
                file_len(&self.file)
            } else {
                0
            });
        }
        &mut self.held.memory
    }

    /// Writes `count` lines of the buffer, or holds them for a larger write. `are_many`: they
    /// filled a buffer; `waiting`: bytes in the queue after them.
    pub fn write(&mut self, count: u64, are_many: bool, waiting: usize) -> Written {
        let is_held = are_many || self.held.lines > 0;
        self.held.lines += count;
        match self.held.bytes().len() {
            ..DIRECT_LEN if self.is_direct && is_held => Written::default(),
            _ if waiting > BEHIND => self.flush_cached(),
            DIRECT_LEN.. if self.may_be_direct() => self.write_direct(),
            _ => self.flush(),
        }
    }

    /// Number of held lines.
    pub fn held(&self) -> u64 {
        self.held.lines
    }

    /// Writes the held lines. If they are long, the whole blocks go past the page cache, and the
    /// rest goes through it.
    pub fn flush(&mut self) -> Written {
        if self.may_be_direct() && self.held.bytes().len() >= DIRECT_MIN_LEN {
            let written = self.write_direct();
            if written.error.is_some() {
                return written;
            }
        }
        self.flush_cached()
    }

    /// Whether the next write may go past the page cache.
    fn may_be_direct(&self) -> bool {
        self.is_direct && self.slow_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Writes the held lines through the page cache.
    fn flush_cached(&mut self) -> Written {
        let held = std::mem::take(&mut self.held);
        let written = self.put(held.bytes(), held.lines);
        self.held = held.cleared();
        written
    }

    fn put(&mut self, bytes: &[u8], lines: u64) -> Written {
        if let Err(error) = self.write_rest() {
            return Written {
                lost: lines,
                error: Some(error),
            };
        }
        let (len, error) = write_some(&mut self.file, bytes);
        self.wrote(bytes, len, error)
    }

    /// Writes the whole blocks of the held lines past the page cache.
    fn write_direct(&mut self) -> Written {
        let is_aligned = self.held.is_aligned(file_len(&self.file));
        // Otherwise another process has written to the file or truncated it.
        if !is_aligned || !self.rest.is_empty() {
            return self.flush_cached();
        }
        let mut held = std::mem::take(&mut self.held);
        let (before, blocks) = held.blocks();
        let (mut len, mut error) = write_some(&mut self.file, before);
        if error.is_none() {
            let direct_len;
            let started = Instant::now();
            (direct_len, error) = self.write_blocks(blocks);
            len += direct_len;
            if started.elapsed() > SLOW_WRITE {
                self.slow_until = Some(Instant::now() + SLOW_TIME);
            }
        }
        let is_failed = error.is_some();
        let written = self.wrote(held.bytes(), len, error);
        if is_failed {
            self.held = held.cleared()
        } else {
            held.keep_from(len);
            self.held = held;
        }
        written
    }

    fn write_blocks(&mut self, blocks: &[u8]) -> (usize, Option<io::Error>) {
        if fcntl_setfl(&self.file, OFlags::APPEND | OFlags::DIRECT).is_err() {
            self.is_direct = false;
            return write_some(&mut self.file, blocks);
        }
        let (len, error) = write_some(&mut self.file, blocks);
        let error = fcntl_setfl(&self.file, OFlags::APPEND)
            .err()
            .map_or(error, |errno| Some(errno.into()));
        match error {
            // Some file systems refuse only the write itself.
            Some(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.is_direct = false;
                let (more, error) = write_some(&mut self.file, &blocks[len..]);
                (len + more, error)
            }
            error => (len, error),
        }
    }

    /// Handles a write of `len` of these bytes. After an error the unwritten lines are lost,
    /// except the rest of a partly written line.
    fn wrote(&mut self, bytes: &[u8], len: usize, error: Option<io::Error>) -> Written {
        let (written, unwritten) = bytes.split_at(len);
        if let Some(last) = written.last() {
            self.is_line_begun = *last != b'\n';
        }
        if self.path.is_some() {
            self.cached.grow(&self.file, len as u64);
        }
        let Some(error) = error else {
            return Written::default();
        };
        let rest_len = match memchr::memchr(b'\n', unwritten) {
            Some(end) if self.is_line_begun => end + 1,
            _ => 0,
        };
        self.rest = unwritten[..rest_len].to_vec();
        Written {
            lost: memchr::memchr_iter(b'\n', &unwritten[rest_len..]).count() as u64,
            error: Some(error),
        }
    }

    fn write_rest(&mut self) -> io::Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let (len, error) = write_some(&mut self.file, &self.rest);
        self.rest.drain(..len);
        self.is_line_begun = !self.rest.is_empty();
        error.map_or(Ok(()), Err)
    }

    /// Writes the rest of a partly written line, or gives it up. Returns the number of lost
    /// lines: one or none.
    pub fn finish_line(&mut self) -> u64 {
        let is_lost = self.write_rest().is_err();
        self.rest.clear();
        u64::from(is_lost)
    }

    /// Reopens the file. Returns the number of lines lost by that; `None` where there is no file.
    /// After an error the old file stays in use.
    pub fn reopen(&mut self) -> Option<io::Result<u64>> {
        let opened = open(self.path.as_deref()?);
        Some(opened.map(|file| {
            self.cached = Cached::new(&file);
            // The file was not renamed, so the rest of a line belongs to it.
            if is_same(&file, &self.file) {
                return 0;
            }
            let lost = self.finish_line();
            self.is_direct = is_regular(&file);
            self.file = file;
            self.end_line_of_others();
            lost
        }))
    }
}

impl Cached {
    /// Starts at the end of the file, with nothing in the page cache.
    fn new(file: &File) -> Self {
        Cached {
            from: file_len(file),
            len: 0,
        }
    }

    /// Notes a write. The part in the page cache is at most twice `CACHED_LEN` long. At that
    /// length the advice covers the older half, and the half released before. The kernel starts
    /// to write the former to the disk, and drops the latter, which it has written by now.
    fn grow(&mut self, file: &File, len: u64) {
        self.len += len;
        if self.len < 2 * CACHED_LEN {
            return;
        }
        let from = self.from.saturating_sub(CACHED_LEN);
        let until = self.from + self.len - CACHED_LEN;
        // This is only advice: if the kernel does not take it, nothing is lost.
        let _ = fadvise(file, from, NonZeroU64::new(until - from), Advice::DontNeed);
        self.len -= until - self.from;
        self.from = until;
    }
}

/// Lines in memory with the alignment of the file: block boundaries are at the same places in
/// both.
#[derive(Debug, Default)]
struct AlignedLines {
    memory: Vec<u8>,
    /// Offset of the first block.
    base: usize,
    /// Offset of the first line.
    start: usize,
    /// Number of lines that end in the memory.
    lines: u64,
}

impl AlignedLines {
    /// Starts empty, for a write at this end of the file.
    fn begin(&mut self, file_len: u64) {
        self.memory.clear();
        self.memory.reserve(CAPACITY);
        self.base = self.memory.as_ptr().align_offset(BLOCK);
        self.start = self.base + file_len as usize % BLOCK;
        self.memory.resize(self.start, 0);
        self.lines = 0;
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Whether the memory still fits the end of the file. The file may have grown, and very long
    /// lines may have moved the memory.
    fn is_aligned(&self, file_len: u64) -> bool {
        self.memory.as_ptr().align_offset(BLOCK) == self.base
            && (self.start - self.base) as u64 == file_len % BLOCK as u64
    }

    /// The bytes before the first whole block, and the whole blocks.
    fn blocks(&self) -> (&[u8], &[u8]) {
        let first = (self.start - self.base).next_multiple_of(BLOCK) + self.base;
        let len = (self.memory.len() - first) / BLOCK * BLOCK;
        (
            &self.memory[self.start..first],
            &self.memory[first..first + len],
        )
    }

    /// Keeps the bytes after the first `len`, which end at a block boundary.
    fn keep_from(&mut self, len: usize) {
        self.memory.copy_within(self.start + len.., self.base);
        let rest_len = self.memory.len() - self.start - len;
        self.memory.truncate(self.base + rest_len);
        self.start = self.base;
        self.lines = memchr::memchr_iter(b'\n', self.bytes()).count() as u64;
    }

    /// The memory, without its lines.
    fn cleared(mut self) -> Self {
        self.memory.truncate(self.start);
        self.lines = 0;
        self
    }
}

fn file_len(file: &File) -> u64 {
    file.metadata().map_or(0, |it| it.len())
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|it| it.is_file())
}

fn is_same(one: &File, other: &File) -> bool {
    let of = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether the last line of a file has no end; `false` for an unreadable file.
fn ends_within_a_line(path: &Path) -> bool {
    let last = || -> io::Result<u8> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        Ok(last[0])
    };
    last().is_ok_and(|last| last != b'\n')
}

fn open(path: &Path) -> io::Result<File> {
    let is_pipe = fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo());
    let mut options = OpenOptions::new();
    if is_pipe {
        // An open for writing alone would wait for a reader, and readers come and go.
        options.read(true).write(true)
    } else {
        options.create(true).append(true)
    };
    options.open(path)
}

/// Writes as much as possible. Returns the length, and the error that stopped it.
fn write_some(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut len = 0;
    while len < bytes.len() {
        match file.write(&bytes[len..]) {
            Ok(0) => return (len, Some(io::ErrorKind::WriteZero.into())),
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (len, Some(error)),
        }
    }
    (len, None)
}

#[cfg(test)]
mod tests;
