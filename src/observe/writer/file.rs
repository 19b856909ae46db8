//! Lines into a file, a pipe or standard output.
//!
//! Where there is no room for all of a line, the rest of it waits for the next
//! time, so that no line is ever cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::{Lines, Written};

/// A file that lines are appended to.
pub(super) struct FileSink {
    file: File,
    /// `None` is standard output.
    path: Option<PathBuf>,
    /// What is missing of a line that was begun.
    rest: Vec<u8>,
    cached: Cached,
}

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
        Ok(FileSink {
            file,
            path: None,
            rest: Vec::new(),
            cached: Cached::default(),
        })
    }

    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        Ok(FileSink {
            cached: Cached::new(&file),
            file,
            path: Some(path.to_owned()),
            rest: Vec::new(),
        })
    }

    pub fn write(&mut self, lines: &Lines) -> Written {
        if let Err(error) = self.write_rest() {
            return Written {
                lost: lines.count,
                error: Some(error),
            };
        }
        let (len, error) = write_some(&mut self.file, &lines.bytes);
        if self.path.is_some() {
            self.cached.grow(&self.file, len as u64);
        }
        let Some(error) = error else {
            return Written::default();
        };
        let (written, unwritten) = lines.bytes.split_at(len);
        let is_begun = written.last().is_some_and(|&byte| byte != b'\n');
        let rest_len = match memchr::memchr(b'\n', unwritten) {
            Some(end) if is_begun => end + 1,
            _ => 0,
        };
        self.rest = unwritten[..rest_len].to_vec();
        Written {
            lost: memchr::memchr_iter(b'\n', &unwritten[rest_len..]).count() as u64,
            error: Some(error),
        }
    }

    fn write_rest(&mut self) -> io::Result<()> {
        let (len, error) = write_some(&mut self.file, &self.rest);
        self.rest.drain(..len);
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
            // Nobody renamed it: what is missing of a line belongs to it.
            if is_same(&file, &self.file) {
                self.cached = Cached::new(&file);
                return 0;
            }
            let lost = self.finish_line();
            self.cached = Cached::new(&file);
            self.file = file;
            lost
        }))
    }
}

impl Cached {
    /// Nothing, at the end of what the file holds.
    fn new(file: &File) -> Self {
        Cached {
            from: file.metadata().map_or(0, |it| it.len()),
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

fn is_same(one: &File, other: &File) -> bool {
    let of = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

fn open(path: &Path) -> io::Result<File> {
    let is_pipe = fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo());
    let mut options = OpenOptions::new();
    match is_pipe {
        // Without a reader yet, opening it only to write would wait for one;
        // and readers may come and go.
        true => options.read(true).write(true),
        false => options.create(true).append(true),
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
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn no_line_is_cut_where_there_is_no_room_for_all_of_it() {
        let (reader, writer) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("a pipe");
        let mut reader = File::from(reader);
        let mut sink = FileSink {
            file: File::from(writer),
            path: None,
            rest: Vec::new(),
            cached: Cached::default(),
        };
        let line = [&[b'x'; 999][..], b"\n"].concat();
        let lines = Lines {
            bytes: line.repeat(100),
            count: 100,
        };
        let mut read = Vec::new();
        let mut lost = 0;
        let drain = |reader: &mut File, read: &mut Vec<u8>| {
            let mut buffer = vec![0; 1 << 20];
            if let Ok(len) = reader.read(&mut buffer) {
                read.extend_from_slice(&buffer[..len]);
            }
        };
        for _ in 0..10 {
            let written = sink.write(&lines);
            assert!(written.lost > 0 && written.error.is_some());
            lost += written.lost;
            drain(&mut reader, &mut read);
        }
        assert_eq!(sink.finish_line(), 0);
        drain(&mut reader, &mut read);
        assert!(read.chunks(1000).all(|it| it == line), "a line was cut");
        assert_eq!(read.len() as u64 / 1000 + lost, 1000);
    }
}
