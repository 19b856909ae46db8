//! A disk that answers when the test says so, and an ext4 file system on it.
//!
//! What is read of the disk is answered by this process, over `/dev/fuse` (the
//! kernel's `Documentation/filesystems/fuse`), as one file that a loop device
//! makes a disk of. It is mounted nowhere: its folder is an open file of this
//! process, and all is gone with the last process that has something of it
//! open. To make it takes root and `mkfs.ext4`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use crate::temp::TempDir;

/// A running disk; dropping it fails what waits for it.
#[derive(Debug)]
pub struct SlowDisk {
    root: OwnedFd,
    shared: Arc<Shared>,
}

/// What the disk does with reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Answers them at once.
    Serve,
    /// Lets them wait until it does something else.
    Hold,
    /// Answers them with `EIO`.
    Fail,
}

#[derive(Debug)]
struct Shared {
    device: File,
    image: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    reads: Reads,
    waiting: VecDeque<ReadRequest>,
    /// Reads that came, answered or not.
    read_count: u64,
}

#[derive(Debug)]
struct ReadRequest {
    unique: u64,
    offset: u64,
    len: usize,
}

const ROOT_NODE: u64 = 1;
const IMAGE_NODE: u64 = 2;
const IMAGE_LEN: u64 = 16 << 20;
/// Who the files belong to: nobody that the program under test runs as.
const OWNER: u32 = 12_345;
/// The kernel may keep names and attributes for as long as it likes, in
/// seconds.
const VALID_S: u64 = 1_000_000;
// Operations of `enum fuse_opcode`.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

const EIO: i32 = 5;
const ENOSYS: i32 = 38;

impl SlowDisk {
    /// Makes one with a folder of these files, which serves reads at first.
    /// The files belong to a user that no program runs as.
    ///
    /// # Errors
    /// The process may not mount, or a program for it is missing.
    pub fn start(files: &[(&str, Vec<u8>)]) -> io::Result<Self> {
        let mut options = File::options();
        let shared = Arc::new(Shared {
            device: options.read(true).write(true).open("/dev/fuse")?,
            image: image_of(files)?,
            state: Mutex::new(State {
                reads: Reads::Serve,
                waiting: VecDeque::new(),
                read_count: 0,
            }),
        });
        let device = shared.device.as_raw_fd().to_string();
        let settings = [
            ("source", "slow-disk"),
            ("fd", &device),
            ("rootmode", "40000"),
            ("user_id", "0"),
            ("group_id", "0"),
        ];
        let image = mount("fuse", &settings)?;
        // Before that there is nothing to read from the device.
        let serving = shared.clone();
        let thread = std::thread::Builder::new().name("slow disk".to_owned());
        thread.spawn(move || serving.serve())?;
        let image = format!("{}/image", path_of(&image).display());
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--read-only", &image]);
        let disk = output_of(losetup)?;
        let root = mount("ext4", &[("source", disk.trim())]);
        // It lasts for as long as it is mounted.
        let mut losetup = Command::new("losetup");
        losetup.args(["--detach", disk.trim()]);
        output_of(losetup)?;
        Ok(SlowDisk {
            root: root?,
            shared,
        })
    }

    /// The path of its folder, for every process of this user.
    pub fn root(&self) -> PathBuf {
        path_of(&self.root)
    }

    /// Says what is done with reads from now on, and with those that wait.
    pub fn set_reads(&self, reads: Reads) {
        let mut state = self.shared.lock();
        state.reads = reads;
        if reads != Reads::Hold {
            for request in std::mem::take(&mut state.waiting) {
                self.shared.answer_read(reads, &request);
            }
        }
    }

    /// How many reads wait.
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// How many reads have come so far, answered or not.
    pub fn read_count(&self) -> u64 {
        self.shared.lock().read_count
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // Its thread ends when nobody has anything of it open any more.
        self.set_reads(Reads::Fail);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the kernel until the file system is gone.
    fn serve(&self) {
        const HEADER_LEN: usize = 40;
        let mut buf = vec![0; 64 << 10];
        loop {
            let len = match (&self.device).read(&mut buf) {
                Ok(len) => len,
                // A request that was taken back.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let request = &buf[..len];
            let body = &request[HEADER_LEN.min(len)..];
            let (unique, node) = (u64_at(request, 8), u64_at(request, 16));
            self.take(u32_at(request, 4), unique, node, body);
        }
    }

    fn take(&self, operation: u32, unique: u64, node: u64, body: &[u8]) {
        match operation {
            INIT => self.reply(unique, 0, &init()),
            LOOKUP => {
                let valid = words(&[IMAGE_NODE, 0, VALID_S, VALID_S, 0]);
                self.reply(unique, 0, &[valid, attributes(IMAGE_NODE)].concat());
            }
            GETATTR => {
                let valid = words(&[VALID_S, 0]);
                self.reply(unique, 0, &[valid, attributes(node)].concat());
            }
            READ => {
                let request = ReadRequest {
                    unique,
                    offset: u64_at(body, 8),
                    len: u32_at(body, 16) as usize,
                };
                let mut state = self.lock();
                state.read_count += 1;
                match state.reads {
                    Reads::Hold => state.waiting.push_back(request),
                    reads => self.answer_read(reads, &request),
                }
            }
            FORGET | BATCH_FORGET | INTERRUPT => {}
            DESTROY => self.reply(unique, 0, &[]),
            // Among them OPEN, which the kernel then does without.
            _ => self.reply(unique, ENOSYS, &[]),
        }
    }

    fn answer_read(&self, reads: Reads, request: &ReadRequest) {
        if reads == Reads::Fail {
            return self.reply(request.unique, EIO, &[]);
        }
        let bytes = &self.image;
        let start = bytes.len().min(request.offset as usize);
        let end = bytes.len().min(start + request.len);
        self.reply(request.unique, 0, &bytes[start..end]);
    }

    fn reply(&self, unique: u64, error: i32, body: &[u8]) {
        let mut reply = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
        reply.extend((-error).to_ne_bytes());
        reply.extend(unique.to_ne_bytes());
        reply.extend(body);
        // Who asked may have gone meanwhile.
        let _ = (&self.device).write_all(&reply);
    }
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

/// Runs a program, and gives what it says.
fn output_of(mut command: Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(format!("{command:?}: {output:?}"))),
    }
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, len) = match node {
        ROOT_NODE => (0o040_755, 0),
        _ => (0o100_444, IMAGE_LEN),
    };
    let mut attributes = words(&[node, len, len.div_ceil(512), 0, 0, 0]);
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0_u32] {
        attributes.extend(word.to_ne_bytes());
    }
    attributes
}

/// `struct fuse_init_out`, of version 7.31.
fn init() -> Vec<u8> {
    // What nobody asked for is not read.
    const MAX_READAHEAD: u32 = 0;
    const MAX_WRITE: u32 = 4096;
    let mut init = Vec::new();
    for word in [7, 31, MAX_READAHEAD, 0, 0, MAX_WRITE, 1_u32] {
        init.extend(word.to_ne_bytes());
    }
    init.resize(64, 0);
    init
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}
