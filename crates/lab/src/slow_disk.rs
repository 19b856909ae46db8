//! A disk that takes its time: a few reads at a time go on, each for as long, and
//! the others wait.
//!
//! A virtual machine's own disk may give more than one core can ask it for, and
//! the kernel's limits on how often a disk is read make nobody wait who reads
//! less often. Here a file system of this program's (FUSE) shows a file, of which
//! so many threads read as the disk has channels, and a loop device of the
//! kernel's makes a disk of it, with ext4 on it. Its bytes are in memory, and writes
//! take no time.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use rustix::process::setpriority_process;

use crate::bench::process::{LOAD_CORE, Process, output_of, pinned};

/// Reads that go on at a time.
const CHANNELS: usize = 4;
/// How long each takes.
pub const READ_TIME: Duration = Duration::from_micros(600);

/// Where the bytes are: in memory, for nothing else is to have an influence on how
/// long a read takes.
const MEMORY: &str = "/dev/shm";

/// The one file that is shown.
const DISK: &str = "disk";
const DISK_NODE: INodeNo = INodeNo(2);
/// For how long the kernel may believe what it was told of that.
const TTL: Duration = Duration::from_secs(3600);

/// What `evenkeel-lab slow-disk` is told.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What is on the disk.
    image: PathBuf,
    /// The folder in which it is shown, as `disk`.
    at: PathBuf,
}

/// Shows the file until the folder is unmounted. Each line of its input says from
/// now on how long a read takes, in microseconds.
///
/// # Errors
/// The kernel's, most likely because it takes root.
pub fn run(options: &Options) -> io::Result<()> {
    const FIRST: i32 = -20;
    // Whoever waits for the disk is on other cores, but the load is on this one.
    setpriority_process(None, FIRST)?;
    // The threads have it from this one: not 50 us late.
    fs::write("/proc/self/timerslack_ns", "1")?;
    let image = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&options.image)?;
    let len = image.metadata()?.len();
    let read_us = Arc::new(AtomicU64::new(0));
    let told = read_us.clone();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if let Ok(us) = line.parse() {
                told.store(us, Ordering::Relaxed);
            }
        }
    });
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("evenkeel-lab".into())];
    config.n_threads = Some(CHANNELS);
    config.clone_fd = true;
    let shown = Shown {
        image,
        len,
        read_us,
    };
    fuser::mount(shown, &options.at, &config)
}

struct Shown {
    image: File,
    len: u64,
    /// How long a read takes.
    read_us: Arc<AtomicU64>,
}

impl Shown {
    fn attributes(&self, node: INodeNo) -> FileAttr {
        let (kind, perm, size) = match node {
            DISK_NODE => (FileType::RegularFile, 0o600, self.len),
            _ => (FileType::Directory, 0o700, 0),
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

impl Filesystem for Shown {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What the kernel hands over at a time: more than go on.
        const HANDED_OVER: u16 = 256;
        let handed_over = config.set_max_background(HANDED_OVER);
        let at_once = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        match handed_over.is_ok() && at_once.is_ok() {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == DISK {
            true => reply.entry(&TTL, &self.attributes(DISK_NODE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(node));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
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
        let begun = Instant::now();
        let mut bytes = vec![0; len as usize];
        let read = self.image.read_exact_at(&mut bytes, offset);
        let whole = Duration::from_micros(self.read_us.load(Ordering::Relaxed));
        sleep(whole.saturating_sub(begun.elapsed()));
        match read {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
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
        match self.image.write_all_at(bytes, offset) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Nobody relies on what is on it.
        reply.ok();
    }
}

/// Starts the process that shows `image` in the folder `shown`; gives its input
/// too.
fn show(image: &Path, shown: &Path) -> io::Result<(Process, ChildStdin)> {
    let mut command = pinned(&[LOAD_CORE], &std::env::current_exe()?)?;
    command.arg("slow-disk").args([image, shown]);
    command.stdin(Stdio::piped());
    let mut process = Process::start(command)?;
    let input = process.take_input();
    let input = input.ok_or_else(|| io::Error::other("the slow disk has no input"))?;
    let disk = shown.join(DISK);
    process.wait_until(|| disk.exists(), "the slow disk is not shown")?;
    Ok((process, input))
}

/// A file system on a slow disk, there until it is dropped.
#[derive(Debug)]
pub struct SlowDisk {
    root: PathBuf,
    shown: PathBuf,
    /// What the process is told.
    input: ChildStdin,
    _process: Process,
}

impl SlowDisk {
    /// Makes one with room for `len` bytes and mounts it below `folder`. Reads take
    /// no time at first.
    ///
    /// # Errors
    /// The kernel's, most likely because it takes root; the message says of what.
    pub fn attach(folder: &Path, len: u64) -> io::Result<Self> {
        let shown = folder.join("shown");
        let root = folder.join("root");
        // What a run left that was killed.
        for mount in [&root, &shown] {
            let _ = output_of(Command::new("umount").arg("--lazy").arg(mount));
        }
        fs::create_dir_all(&shown)?;
        fs::create_dir_all(&root)?;
        let image = Path::new(MEMORY).join(format!("evenkeel-lab-{}", std::process::id()));
        File::create(&image)?.set_len(len)?;
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        let made = output_of(make.arg(&image));
        let process = made.and_then(|_| show(&image, &shown));
        // It is there as long as the process has it open.
        fs::remove_file(&image)?;
        let (process, input) = process?;
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show", "--direct-io=on"]);
        let device = output_of(attach.arg(shown.join(DISK)))?;
        let device = String::from_utf8_lossy(&device).trim().to_owned();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "ext4", "-o", "noatime", &device])
            .arg(&root);
        let mounted = output_of(&mut mount);
        // When nobody uses it any more.
        output_of(Command::new("losetup").args(["--detach", &device]))?;
        mounted?;
        Ok(Self {
            root,
            shown,
            input,
            _process: process,
        })
    }

    /// How long a read takes from now on.
    ///
    /// # Errors
    /// The process has ended.
    pub fn set_read_time(&self, time: Duration) -> io::Result<()> {
        let mut input = &self.input;
        writeln!(input, "{}", time.as_micros())
    }

    /// Where its files are.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        for mount in [&self.root, &self.shown] {
            if let Err(error) = output_of(Command::new("umount").arg(mount)) {
                eprintln!("evenkeel-lab: {error}");
            }
        }
    }
}
