//! A disk that answers on a test's command, and an ext4 file system on it.
//!
//! This process answers the reads of the disk ([`shown_disk`]), and a loop device makes a disk
//! of it. It is mounted nowhere: its folder is an open file of this process. Everything
//! disappears with the last process that has a part of it open. Creating it takes root and
//! `mkfs.ext4`.
//!
//! [`shown_disk`]: crate::shown_disk

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{Config, Errno, ReplyData, Session, SessionACL};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use crate::shown_disk::{DISK, Disk, Shown};
use crate::temp::TempDir;

/// A running disk; dropping it fails what waits for it.
#[derive(Debug)]
pub struct SlowDisk {
    root: OwnedFd,
    gate: Arc<Gate>,
}

/// The disk's treatment of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Answers them at once.
    Serve,
    /// Lets them wait until it does something else.
    Hold,
    /// Answers them with `EIO`.
    Fail,
}

/// The bytes of the disk, and the reads that wait for them.
#[derive(Debug)]
struct Gate {
    image: Vec<u8>,
    state: Mutex<GateState>,
}

#[derive(Debug)]
struct GateState {
    reads: Reads,
    waiting: VecDeque<WaitingRead>,
    /// Reads that came, answered or not.
    read_count: u64,
}

#[derive(Debug)]
struct WaitingRead {
    offset: u64,
    len: usize,
    reply: ReplyData,
}

const IMAGE_LEN: u64 = 16 << 20;
/// Owner of the files: a user that the program under test never runs as.
const OWNER: u32 = 12_345;

impl SlowDisk {
    /// Makes one with a folder of these files, which serves reads at first.
    /// The files belong to a user that no program runs as.
    ///
    /// # Errors
    /// The process may not mount, or a program for it is missing.
    pub fn start(files: &[(&str, Vec<u8>)]) -> io::Result<Self> {
        let gate = Arc::new(Gate {
            image: image_of(files)?,
            state: Mutex::new(GateState {
                reads: Reads::Serve,
                waiting: VecDeque::new(),
                read_count: 0,
            }),
        });
        let shown = show(gate.clone())?;
        let image = format!("{}/{DISK}", path_of(&shown).display());
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--read-only", &image]);
        let disk = output_of(losetup)?;
        let root = mount("ext4", &[("source", disk.trim())]);
        // The device lasts as long as it is mounted.
        let mut losetup = Command::new("losetup");
        losetup.args(["--detach", disk.trim()]);
        output_of(losetup)?;
        Ok(SlowDisk { root: root?, gate })
    }

    /// The path of its folder, for every process of this user.
    pub fn root(&self) -> PathBuf {
        path_of(&self.root)
    }

    /// Sets the treatment of later reads, and of those that wait.
    pub fn set_reads(&self, reads: Reads) {
        let mut state = self.gate.lock();
        state.reads = reads;
        if reads != Reads::Hold {
            for request in std::mem::take(&mut state.waiting) {
                self.gate.answer(reads, request);
            }
        }
    }

    /// How many reads wait.
    pub fn waiting(&self) -> usize {
        self.gate.lock().waiting.len()
    }

    /// How many reads have come so far, answered or not.
    pub fn read_count(&self) -> u64 {
        self.gate.lock().read_count
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // Its thread ends when no part of it is open any more.
        self.set_reads(Reads::Fail);
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, reads: Reads, read: WaitingRead) {
        if reads == Reads::Fail {
            return read.reply.error(Errno::EIO);
        }
        let bytes = &self.image;
        let start = bytes.len().min(read.offset as usize);
        let end = bytes.len().min(start + read.len);
        read.reply.data(&bytes[start..end]);
    }
}

impl Disk for Arc<Gate> {
    fn byte_len(&self) -> u64 {
        self.image.len() as u64
    }

    fn read(&self, offset: u64, len: usize, reply: ReplyData) {
        let read = WaitingRead { offset, len, reply };
        let mut state = self.lock();
        state.read_count += 1;
        match state.reads {
            Reads::Hold => state.waiting.push_back(read),
            reads => self.answer(reads, read),
        }
    }
}

/// Mounts the disk's file system nowhere, and serves it until it is gone.
fn show(gate: Arc<Gate>) -> io::Result<OwnedFd> {
    let mut options = File::options();
    let device = options.read(true).write(true).open("/dev/fuse")?;
    let number = device.as_raw_fd().to_string();
    let settings = [
        ("source", "slow-disk"),
        ("fd", &number),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
    ];
    let mounted = mount("fuse", &settings)?;
    // Before that there is nothing to read from the device.
    let config = Config::default();
    let session = Session::from_fd(Shown(gate), device.into(), SessionACL::All, config)?;
    let thread = std::thread::Builder::new().name("slow disk".to_owned());
    thread.spawn(move || session.run())?;
    Ok(mounted)
}

/// The image of a file system with these files.
fn image_of(files: &[(&str, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let dir = TempDir::new()?;
    let folder = dir.join("files");
    std::fs::create_dir(&folder)?;
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::write(&path, bytes)?;
        chown(&path, Some(OWNER), Some(OWNER))?;
    }
    let image = dir.join("image");
    File::create(&image)?.set_len(IMAGE_LEN)?;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-O", "^has_journal", "-d"]);
    mkfs.args([&folder, &image]);
    output_of(mkfs)?;
    std::fs::read(&image)
}

/// Mounts a file system nowhere, for reading.
fn mount(name: &str, settings: &[(&str, &str)]) -> io::Result<OwnedFd> {
    let system = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&system, "ro")?;
    for (key, value) in settings {
        fsconfig_set_string(&system, *key, *value)?;
    }
    fsconfig_create(&system)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(fsmount(&system, flags, MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}

/// A path of something that this process has open, for every process of this
/// user.
fn path_of(opened: &OwnedFd) -> PathBuf {
    let folder = format!("/proc/{}/fd", std::process::id());
    Path::new(&folder).join(opened.as_raw_fd().to_string())
}

/// Runs a program, and returns its output.
fn output_of(mut command: Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(io::Error::other(format!("{command:?}: {output:?}")))
    }
}
