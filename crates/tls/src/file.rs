//! Files read whole: within a size, and without waiting for a pipe or a device.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, stat};
use zeroize::Zeroizing;

use crate::error::{Error, Fault};

/// The most that is read of a certificate with its chain and key, in bytes.
pub(crate) const MAX_CERTIFICATE: u64 = 1 << 20;
/// The most that is read of a bundle of authorities or of a revocation list, in bytes.
pub(crate) const MAX_BUNDLE: u64 = 64 << 20;

/// Tells whether a file is another one, or was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of the file that a path leads to.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&stat(path)?))
    }
}

impl From<&Stat> for Stamp {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the fields have other types on other machines"
    )]
    fn from(found: &Stat) -> Self {
        Self {
            device: found.st_dev as u64,
            inode: found.st_ino as u64,
            len: found.st_size as u64,
            modified: (found.st_mtime as i64, found.st_mtime_nsec as i64),
            changed: (found.st_ctime as i64, found.st_ctime_nsec as i64),
        }
    }
}

/// The bytes of a regular file, with its stamp from before it was read.
///
/// The bytes may be a private key: their buffer is zeroed when it is dropped, and is never
/// reallocated while it grows.
///
/// # Errors
/// The file cannot be read, is no regular file, or has more than `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> Result<(Zeroizing<Vec<u8>>, Stamp), Error> {
    let fault = |fault| Error::new(path, fault);
    let unreadable = |error: io::Error| fault(Fault::Unreadable(error));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(path, flags, Mode::empty()).map_err(|it| unreadable(it.into()))?;
    let found = fstat(&file).map_err(|it| unreadable(it.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(fault(Fault::NotRegular));
    }
    let stamp = Stamp::from(&found);
    if stamp.len > max {
        return Err(fault(Fault::TooLarge { max }));
    }
    // A byte more shows the end of the file without another read.
    let len = stamp.len as usize;
    let mut bytes = Zeroizing::new(vec![0; len + 1]);
    let mut file = File::from(file);
    let mut filled = 0;
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(error)),
        }
        if filled > len {
            let grows = "it grew while it was read";
            return Err(unreadable(io::Error::other(grows)));
        }
    }
    bytes.truncate(filled);
    Ok((bytes, stamp))
}
