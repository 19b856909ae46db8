//! A slow disk: it serves a few reads at a time, each for a fixed time, and the others wait.
//!
//! A virtual machine's own disk may be faster than one core can ask. The kernel's limits on
//! read rates delay no reader below the rate. So a file system of this program (FUSE) shows one
//! file, which as many threads read as the disk has channels. A loop device of the kernel makes
//! a disk of that file, with ext4 on it. Its bytes are in memory, and writes take no time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use evenkeel_testkit::shown_disk::{DISK, Disk, Shown};
use fuser::{Config, MountOption, ReplyData, ReplyWrite};
use rustix::process::setpriority_process;

use crate::bench::process::{LOAD_CORE, Process, output_of, pinned};

/// Reads that go on at a time.
const CHANNELS: usize = 4;
/// How long each takes.
pub const READ_TIME: Duration = Duration::from_micros(600);

/// The folder of the bytes: in memory, so that only the set time determines how long a read
/// takes.
const MEMORY: &str = "/dev/shm";

/// Options of `evenkeel-lab slow-disk`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The image of the disk.
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
    // The tasks that wait for the disk are on other cores, but the load is on this one.
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
    let disk = TimedDisk {
        image,
        len,
        read_us,
    };
    fuser::mount(Shown(disk), &options.at, &config)
}

/// The bytes, and how long a read of them takes.
struct TimedDisk {
    image: File,
    len: u64,
    read_us: Arc<AtomicU64>,
}

impl Disk for TimedDisk {
    fn byte_len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, len: usize, reply: ReplyData) {
        let begun = Instant::now();
        let mut bytes = vec![0; len];
        let read = self.image.read_exact_at(&mut bytes, offset);
        let whole = Duration::from_micros(self.read_us.load(Ordering::Relaxed));
        sleep(whole.saturating_sub(begun.elapsed()));
        match read {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8], reply: ReplyWrite) {
        match self.image.write_all_at(bytes, offset) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }
}

/// Starts the process that shows `image` in the folder `shown`; returns its standard input too.
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
    /// Standard input of the process, for commands.
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
        // Clean up after a run that was killed.
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
        // The image exists as long as the process has it open.
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
        // The device is detached after its last use.
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

    /// The folder of its files.
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
