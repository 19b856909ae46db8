//! Folders that files are served from, and opening files beneath them.
//!
//! The kernel refuses paths that lead out of the folder (`openat2` with `RESOLVE_BENEATH`). It
//! says without waiting where a name would have to be read from a disk (`RESOLVE_CACHED`).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, open, openat2};
use rustix::io::Errno;
use rustix::system::sysinfo;

use super::open::{Barrier, FILE_FLAGS, FileId, Missing, OpenFile, missing};
use crate::net::descriptors::{Taker, within_limit};

/// A folder that files are served from.
#[derive(Debug)]
pub struct Root {
    folder: OwnedFd,
    /// Device and inode.
    id: (u64, u64),
    /// Whether the file system keeps all files in memory, with no disk behind it.
    is_memory: bool,
    /// Length up to which reads of files on its file system start without another read of the
    /// disk.
    at_once_len: u64,
}

/// Most tries to follow a path that changes meanwhile.
const OPEN_TRIES: usize = 4;

impl Root {
    /// Opens the folder itself. Blocks.
    ///
    /// # Errors
    /// It does not exist, is no folder, or may not be searched.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(path, flags, Mode::empty())?;
        let status = fstat(&folder)?;
        Ok(Root {
            id: (status.st_dev, status.st_ino),
            is_memory: is_memory(&folder),
            at_once_len: at_once_len(&folder),
            folder,
        })
    }

    /// Whether both are the same folder.
    pub fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Opens `path` beneath the folder from memory; `None` where that takes the disk.
    pub fn open_in_memory(&self, path: &[u8]) -> Option<Result<OpenFile, Missing>> {
        match self.open_file(path, ResolveFlags::CACHED) {
            Err(Missing::Failed(Errno::AGAIN)) => None,
            opened => Some(opened),
        }
    }

    /// Opens `path` beneath the folder. Blocks.
    ///
    /// # Errors
    /// The path leads to no file that may be read.
    pub fn open_from_disk(&self, path: &[u8]) -> Result<OpenFile, Missing> {
        for _ in 1..OPEN_TRIES {
            match self.open_file(path, ResolveFlags::empty()) {
                // A rename happened while a path with `..` was followed.
                Err(Missing::Failed(Errno::AGAIN)) => {}
                opened => return opened,
            }
        }
        self.open_file(path, ResolveFlags::empty())
    }

    fn open_file(&self, path: &[u8], how: ResolveFlags) -> Result<OpenFile, Missing> {
        let opened = self.open_beneath(path, FILE_FLAGS, how)?;
        let status = fstat(&opened).map_err(missing)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Missing::Folder),
            _ => return Err(Missing::Forbidden(Barrier::NoFile)),
        }
        let id = FileId::of(&status);
        // Another file system may be mounted beneath.
        let is_on_roots = status.st_dev == self.id.0;
        Ok(OpenFile {
            file: opened.into(),
            id,
            is_memory: self.is_memory && is_on_roots,
            begins_at_once: is_on_roots && id.len <= self.at_once_len,
            // The cost of such reads on other file systems is not known.
            takes_direct_reads: is_on_roots && self.at_once_len > 0,
            is_hot: AtomicBool::new(false),
            in_memory_at: AtomicU64::new(u64::MAX),
            is_doubted: AtomicBool::new(false),
            fields: OnceLock::new(),
        })
    }

    /// Opens whatever is at `path`, which may not lead out of the folder. An empty path opens the
    /// folder itself.
    pub(super) fn open_beneath(
        &self,
        path: &[u8],
        flags: OFlags,
        how: ResolveFlags,
    ) -> Result<OwnedFd, Missing> {
        let flags = flags | OFlags::CLOEXEC;
        let how = how | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let path = if path.is_empty() { b"." } else { path };
        openat2(&self.folder, path, flags, Mode::empty(), how)
            .and_then(|opened| within_limit(opened, Taker::Exchange))
            .map_err(missing)
    }
}

/// Whether the file system of a folder keeps everything in memory. A tmpfs without swap has no
/// other place.
fn is_memory(folder: &OwnedFd) -> bool {
    // linux/magic.h.
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    match fstatfs(folder).map(|it| it.f_type) {
        Ok(RAMFS) => true,
        Ok(TMPFS) => sysinfo().totalswap == 0,
        _ => false,
    }
}

/// Length up to which reads of a folder's files start without another read of the disk. The
/// kernel needs the places of the blocks. XFS and ext4 keep them with the file; ext2 and ext3
/// keep those of the first blocks.
fn at_once_len(folder: &OwnedFd) -> u64 {
    // linux/magic.h; ext2 and ext3 have the magic of ext4.
    const XFS: i64 = 0x5846_5342;
    const EXT4: i64 = 0xef53;
    const DIRECT_BLOCKS: u64 = 12;
    match fstatfs(folder) {
        Ok(status) if status.f_type == XFS => u64::MAX,
        Ok(status) if status.f_type == EXT4 => DIRECT_BLOCKS * status.f_bsize as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use evenkeel_testkit::TempDir;

    use super::*;

    /// The name of a folder's file system.
    fn file_system(folder: &Path) -> String {
        let mut stat = Command::new("stat");
        let said = stat.args(["-f", "-c", "%T"]).arg(folder).output();
        let said = said.expect("stat runs").stdout;
        String::from_utf8_lossy(&said).trim().to_owned()
    }

    #[test]
    fn reads_begin_at_once_where_the_file_system_knows_the_place_of_the_bytes() {
        let disk = TempDir::new().expect("a folder");
        let memory = TempDir::new_in(Path::new("/dev/shm")).expect("a folder");
        assert_eq!(file_system(memory.path()), "tmpfs");
        for folder in [disk.path(), memory.path()] {
            let root = Root::open(folder).expect("the folder");
            let file_system = file_system(folder);
            for len in [1, 12 * 1024, 64 * 1024 * 1024] {
                let file = File::create(folder.join("file")).expect("a file");
                file.set_len(len).expect("room for a file of nothing");
                let opened = root.open_from_disk(b"file").expect("the file");
                let expected = match file_system.as_str() {
                    "xfs" => true,
                    // Blocks have 1 KiB or more.
                    "ext2/ext3" => len <= 12 * 1024,
                    _ => false,
                };
                assert_eq!(opened.begins_at_once, expected, "{len} bytes, {folder:?}");
                let takes_direct = matches!(file_system.as_str(), "xfs" | "ext2/ext3");
                assert_eq!(opened.takes_direct_reads, takes_direct, "{folder:?}");
            }
        }
    }
}
