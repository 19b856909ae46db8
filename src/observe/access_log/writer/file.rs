//! Lines into a file, a pipe or standard output.
//!
//! Where there is no room for all of a line, the rest of it waits for the next
//! time, so that no line is ever cut.
//!
//! Lines that come in full buffers are many, and are written past the page
//! cache, in large pieces (`O_DIRECT`, open(2)): nobody reads most of a log
//! soon, what it takes of the page cache is taken from files that are read, and
//! a page that is new to the cache costs more than what is written to it. So are
//! those that have waited long enough, at once and but for the last block, where
//! they are more than a few pages. Where the disk is slower than the lines come,
//! the page cache takes them, and lets go of them later.

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
    /// Lines that wait for more.
    held: Held,
    /// What is missing of a line that was begun, after a write that failed.
    rest: Vec<u8>,
    /// Whether the file ends within a line.
    is_line_begun: bool,
    /// Whether it can be written past the page cache.
    is_direct: bool,
    /// Until when it is not, for such a write took long.
    slow_until: Option<Instant>,
    cached: Cached,
}

/// What is written past the page cache at a time, in bytes.
const DIRECT_LEN: usize = 1024 * 1024;
/// What is worth such a write when it has waited long enough, in bytes: a few
/// pages cost less than the wait for the disk.
const DIRECT_MIN_LEN: usize = 64 * 1024;
/// What such writes begin and end at: a multiple of the block of any disk.
const BLOCK: usize = 4096;
/// Room for what is held: with the lines of one more buffer, most of the time.
const CAPACITY: usize = DIRECT_LEN + 2 * HAND_OVER_LEN;
/// With more than this waiting, in bytes, the disk is too slow for it.
const BEHIND: usize = 4 * HAND_OVER_LEN;
/// A write past the page cache that takes longer shows that the disk has much
/// else to do: the queue in front of this thread holds half a second.
const SLOW_WRITE: Duration = Duration::from_millis(50);
/// How long the page cache takes everything then.
const SLOW_TIME: Duration = Duration::from_secs(5);

/// How much of a file stays in the page cache behind its end, at least, and
/// how much is let go at a time, in bytes.
const CACHED_LEN: u64 = 4 << 20;

/// What of a file is in the page cache, as far as it was written from here.
///
/// A log is written once and seldom read. Left alone it takes all memory that
/// nothing else needs, and each page that is new to the log costs more than
/// what is written to it: much more on a virtual machine, whose host may have
/// to find it first. Let go, the same few pages are used again and again.
#[derive(Debug, Default)]
struct Cached {
    /// Where what is not let go yet begins.
    from: u64,
    /// Bytes behind it.
    len: u64,
}

impl FileSink {
    pub fn stdout() -> io::Result<Self> {
        // Without the buffer of the standard library, which would hide how
        // much was written.
        let file = io::stdout().as_fd().try_clone_to_owned()?.into();
        Ok(Self::new(file, None))
    }

    pub fn open(path: &Path) -> io::Result<Self> {
        let mut sink = Self::new(open(path)?, Some(path.to_owned()));
        sink.end_line_of_others();
        Ok(sink)
    }

    /// Where the file ends within a line, as a process leaves it that had no
    /// room for the rest, the first of ours begins on a line of its own.
    fn end_line_of_others(&mut self) {
        let path = self.path.as_deref().filter(|_| is_regular(&self.file));
        self.is_line_begun = path.is_some_and(ends_within_a_line);
        if self.is_line_begun {
            self.rest = b"\n".to_vec();
        }
    }

    fn new(file: File, path: Option<PathBuf>) -> Self {
        FileSink {
            held: Held::default(),
            rest: Vec::new(),
            is_line_begun: false,
            // The flags of standard output are not ours to set: others write
            // there too.
            is_direct: path.is_some() && is_regular(&file),
            slow_until: None,
            cached: Cached::new(&file),
            file,
            path,
        }
    }

    /// Where lines are to be put.
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

    /// Writes what was put there, so many lines, or holds it for a larger
    /// write. `are_many`: they filled a buffer; `waiting`: what waits behind
    /// them, in bytes.
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

    /// Lines that are held.
    pub fn held(&self) -> u64 {
        self.held.lines
    }

    /// Writes what is held: if it is much, past the page cache but for the last
    /// block, which it does not fill.
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

    /// Writes what is held through the page cache.
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

    /// Writes past the page cache: of what is held, the whole blocks.
    fn write_direct(&mut self) -> Written {
        let is_aligned = self.held.is_aligned(file_len(&self.file));
        // Otherwise somebody else writes to the file, or cut it off.
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
            // A file system that says so only now.
            Some(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.is_direct = false;
                let (more, error) = write_some(&mut self.file, &blocks[len..]);
                (len + more, error)
            }
            error => (len, error),
        }
    }

    /// So much of these lines was written. If that is not all of it the rest is
    /// lost, but for the end of a line that was begun.
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

    /// Writes what is missing of a line; if that can't be done, it is lost.
    /// Gives the number of lines that are: one or none.
    pub fn finish_line(&mut self) -> u64 {
        let is_lost = self.write_rest().is_err();
        self.rest.clear();
        u64::from(is_lost)
    }

    /// Opens the file anew, and gives the number of lines that are lost by it;
    /// `None` where there is no file. On an error the old one goes on.
    pub fn reopen(&mut self) -> Option<io::Result<u64>> {
        let opened = open(self.path.as_deref()?);
        Some(opened.map(|file| {
            self.cached = Cached::new(&file);
            // Nobody renamed it: what is missing of a line belongs to it.
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
    /// Nothing, at the end of what the file holds.
    fn new(file: &File) -> Self {
        Cached {
            from: file_len(file),
            len: 0,
        }
    }

    /// More was written. Twice the length that stays is the most: the kernel
    /// then begins to write the older half to the disk, and lets go what it has
    /// written, which is what it was told to before.
    fn grow(&mut self, file: &File, len: u64) {
        self.len += len;
        if self.len < 2 * CACHED_LEN {
            return;
        }
        let from = self.from.saturating_sub(CACHED_LEN);
        let until = self.from + self.len - CACHED_LEN;
        // Advice: where the kernel does not take it, nothing is lost.
        let _ = fadvise(file, from, NonZeroU64::new(until - from), Advice::DontNeed);
        self.len -= until - self.from;
        self.from = until;
    }
}

/// Lines in memory that is aligned as the file will be: its blocks are in the
/// same places in both.
#[derive(Debug, Default)]
struct Held {
    memory: Vec<u8>,
    /// Where the first block begins.
    base: usize,
    /// Where the lines begin.
    start: usize,
    /// How many lines end in it.
    lines: u64,
}

impl Held {
    /// Nothing, to be written at this end of the file.
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

    /// Whether the file still ends where it did, and the memory is where it
    /// was: lines of unusual length may have moved it.
    fn is_aligned(&self, file_len: u64) -> bool {
        self.memory.as_ptr().align_offset(BLOCK) == self.base
            && (self.start - self.base) as u64 == file_len % BLOCK as u64
    }

    /// What is before the first whole block, and the whole blocks.
    fn blocks(&self) -> (&[u8], &[u8]) {
        let first = (self.start - self.base).next_multiple_of(BLOCK) + self.base;
        let len = (self.memory.len() - first) / BLOCK * BLOCK;
        (
            &self.memory[self.start..first],
            &self.memory[first..first + len],
        )
    }

    /// Leaves what follows the first `len` bytes, which ended with a block.
    fn keep_from(&mut self, len: usize) {
        self.memory.copy_within(self.start + len.., self.base);
        let rest_len = self.memory.len() - self.start - len;
        self.memory.truncate(self.base + rest_len);
        self.start = self.base;
        self.lines = memchr::memchr_iter(b'\n', self.bytes()).count() as u64;
    }

    /// The memory without the lines.
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

/// Whether the last line of a file has no end. Of one that can't be read it is
/// not known.
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
        // Without a reader yet, opening it only to write would wait for one;
        // and readers may come and go.
        options.read(true).write(true)
    } else {
        options.create(true).append(true)
    };
    options.open(path)
}

/// Writes as much as goes, and says how much and what stopped it.
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
