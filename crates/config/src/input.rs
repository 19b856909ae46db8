//! Files that the configuration consists of, or names: read up to a length.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The kinds of file that a configuration may be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds {
    /// A pipe or a device as well, which is waited for, and read once.
    Any,
    /// A regular file.
    Regular,
}

/// The bytes of a file of one of these kinds. `max` is in bytes, whole MiB.
///
/// # Errors
/// It can't be read, is of another kind, or is longer.
pub(super) fn read_up_to(path: &Path, kinds: Kinds, max: u64) -> io::Result<Vec<u8>> {
    match kinds {
        Kinds::Any => read_at_most(File::open(path)?, max),
        Kinds::Regular => read_regular_file(path, max),
    }
}

/// The bytes of a regular file, or of one that a link leads to. The call never blocks on a pipe
/// or a device. `max` is in bytes, whole MiB.
///
/// # Errors
/// The file can't be read, or is not a regular file. If it is longer, the kind is
/// [`io::ErrorKind::FileTooLarge`].
pub fn read_regular_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    // Opening a device may do something already.
    require_regular(&fs::metadata(path)?)?;
    // A pipe that has come there since is not waited for either.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(flags.bits() as i32);
    let file = options.open(path)?;
    require_regular(&file.metadata()?)?;
    read_at_most(file, max)
}

fn require_regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        Ok(())
    } else if found.is_dir() {
        Err(Errno::ISDIR.into())
    } else {
        Err(io::Error::other("it is not a file"))
    }
}

/// Reads an input to its end. Blocks.
///
/// # Errors
/// It can't be read, or has more than `max` bytes.
pub fn read_at_most(input: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let text = format!("it is larger than {} MiB", max >> 20);
        Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
    } else {
        Ok(bytes)
    }
}
