//! A disk as one file of a file system (FUSE), for a loop device to use.

use std::ffi::OsStr;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};

/// The name of the one file.
pub const DISK: &str = "disk";
const DISK_NODE: INodeNo = INodeNo(2);
/// How long the kernel may believe a name and attributes.
const TTL: Duration = Duration::from_secs(1_000_000);
/// Requests that the kernel hands over at a time: more than any disk answers.
const HANDED_OVER: u16 = 256;
/// Read-ahead of the kernel, in bytes: less than a page, so that it reads only requested bytes.
const READ_AHEAD: u32 = 1;

/// The source of the file's bytes, called from any number of threads.
pub trait Disk: Send + Sync + 'static {
    /// Its length in bytes, which does not change.
    fn byte_len(&self) -> u64;

    /// Reads `len` bytes, all within its length; the answer may come later and
    /// from another thread.
    fn read(&self, offset: u64, len: usize, reply: ReplyData);

    /// Writes bytes; refused by a disk that is for reading.
    fn write(&self, _offset: u64, _bytes: &[u8], reply: ReplyWrite) {
        reply.error(Errno::EROFS);
    }
}

/// The file system.
#[derive(Debug)]
pub struct Shown<D>(pub D);

impl<D: Disk> Shown<D> {
    fn attributes(&self, node: INodeNo) -> FileAttr {
        let (kind, perm, size) = if node == DISK_NODE {
            (FileType::RegularFile, 0o600, self.0.byte_len())
        } else {
            (FileType::Directory, 0o700, 0)
        };
        FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl<D: Disk> Filesystem for Shown<D> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let handed_over = config.set_max_background(HANDED_OVER);
        let read_ahead = config.set_max_readahead(READ_AHEAD);
        let at_once = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        if handed_over.is_ok() && read_ahead.is_ok() && at_once.is_ok() {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::Unsupported))
        }
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == DISK {
            reply.entry(&TTL, &self.attributes(DISK_NODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(node));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.read(offset, len as usize, reply);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.0.write(offset, bytes, reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // The data on it need not survive.
        reply.ok();
    }
}
