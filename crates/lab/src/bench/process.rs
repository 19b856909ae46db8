//! Processes of a benchmark: started on a core, measured, and ended.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};

/// The core of the proxies.
pub const PROXY_CORE: usize = 0;
/// The core of the load and the origins.
pub const LOAD_CORE: usize = 1;
/// The cores of all of them, in runs without separate cores.
pub const BOTH_CORES: [usize; 2] = [PROXY_CORE, LOAD_CORE];

/// How long a process may take to answer after its start, or to end.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Looks at a process's memory that count, and the time between two.
const MEMORY_LOOKS: usize = 21;
const MEMORY_INTERVAL: Duration = Duration::from_millis(250);

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts this very program with `arguments` on `cores`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start_lab<S: AsRef<OsStr>>(cores: &[usize], arguments: &[S]) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let mut command = pinned(cores, &program)?;
        command.args(arguments);
        Self::start(command)
    }

    /// Starts a command made by `pinned`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let child = command.spawn()?;
        Ok(Self { child })
    }

    /// Waits until it accepts connections on `address`.
    ///
    /// # Errors
    /// It ended first, or took too long.
    pub fn wait_for(&mut self, address: SocketAddr) -> io::Result<()> {
        let accepts = || TcpStream::connect(address).is_ok();
        self.wait_until(accepts, &format!("does not accept on {address}"))
    }

    /// Waits until it is ready; `failing` names the failure if it never is.
    ///
    /// # Errors
    /// It ended first, or took too long.
    pub fn wait_until(&mut self, is_ready: impl Fn() -> bool, failing: &str) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_ready() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(failing));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Its input and output, if they were to be written and read; once.
    pub fn take_pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take())
    }

    /// Lets everything else on its core go first.
    ///
    /// # Errors
    /// The kernel's.
    pub fn yield_to_others(&self) -> io::Result<()> {
        const LAST: i32 = 19;
        let pid = Pid::from_child(&self.child);
        Ok(setpriority_process(Some(pid), LAST)?)
    }

    /// Its input, if that was to be written; once.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The threads of it alone whose names begin so.
    #[must_use]
    pub fn threads_named(&self, beginning: &str) -> Vec<Thread> {
        let pid = self.child.id();
        let of_name = threads(pid).into_iter().filter(|thread| {
            let name = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm"));
            name.is_ok_and(|name| name.starts_with(beginning))
        });
        of_name.map(|thread| Thread { pid, thread }).collect()
    }

    /// CPU time used so far by it and its descendants, all threads together.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.tree()
            .iter()
            .map(|pid| cpu_time_of(*pid))
            .sum::<Duration>()
    }

    /// Memory held by it and its descendants.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let mut memory = Memory::default();
        for pid in self.tree() {
            memory.add(pid);
        }
        memory
    }

    /// Runs `work`, and returns the memory held towards its end: the median of the last
    /// readings. A single reading varies by a buffer.
    pub fn memory_during<T>(&self, work: impl FnOnce() -> T) -> (T, Memory) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut last = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    last.push_back(self.memory());
                    if last.len() > MEMORY_LOOKS {
                        last.pop_front();
                    }
                    std::thread::sleep(MEMORY_INTERVAL);
                }
                let mut looks = Vec::from(last);
                looks.sort_by_key(|memory| memory.pss);
                looks.get(looks.len() / 2).copied().unwrap_or_default()
            });
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            (done, looks.join().unwrap_or_default())
        })
    }

    fn tree(&self) -> Vec<u32> {
        let mut pids = vec![self.child.id()];
        let mut at = 0;
        while at < pids.len() {
            pids.extend(children(pids[at]));
            at += 1;
        }
        pids
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // It may have ended by itself; then there is nothing to signal.
        let _ = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A thread of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    pid: u32,
    thread: u32,
}

impl Thread {
    /// The thread that calls.
    #[must_use]
    pub fn current() -> Self {
        Self {
            pid: std::process::id(),
            thread: gettid().as_raw_nonzero().get().cast_unsigned(),
        }
    }

    /// Time so far in which it could run, and others had the CPU.
    #[must_use]
    pub fn waited_for_cpu(self) -> Duration {
        Duration::from_nanos(schedstat(self.pid, self.thread)[1])
    }
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// Resident.
    pub rss: u64,
    /// Resident, shared pages counted by their share.
    pub pss: u64,
    /// Private pages that were written to.
    pub private_dirty: u64,
}

impl Memory {
    fn add(&mut self, pid: u32) {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
            return;
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(kib)) = (words.next(), words.next()) else {
                continue;
            };
            let bytes = kib.parse::<u64>().unwrap_or(0) * 1024;
            match name {
                "Rss:" => self.rss += bytes,
                "Pss:" => self.pss += bytes,
                "Private_Dirty:" => self.private_dirty += bytes,
                _ => {}
            }
        }
    }
}

/// The output of a command.
///
/// # Errors
/// The command can't be started, or fails; the message has its error output.
pub fn output_of(command: &mut Command) -> io::Result<Vec<u8>> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let program = command.get_program().to_string_lossy();
    let said = String::from_utf8_lossy(&output.stderr);
    let message = format!("{program} ended with {}: {}", output.status, said.trim());
    Err(io::Error::other(message))
}

/// Restricts the current thread to these cores.
///
/// # Errors
/// The machine has none of them.
pub fn stay_on(cores: &[usize]) -> io::Result<()> {
    Ok(sched_setaffinity(None, &set_of(cores))?)
}

/// Cores as the kernel takes them.
pub fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    set
}

/// A command that runs `program` on `cores`; arguments are yet to be added.
///
/// # Errors
/// This program's own path can't be found.
pub fn pinned(cores: &[usize], program: &Path) -> io::Result<Command> {
    pinned_in(None, cores, program)
}

/// A command like that of `pinned`, in the control group of this folder.
///
/// # Errors
/// This program's own path can't be found.
pub fn pinned_in(group: Option<&Path>, cores: &[usize], program: &Path) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::null());
    command.arg("pinned");
    command.args(cores.iter().map(|core| format!("--core={core}")));
    if let Some(group) = group {
        command.arg("--group").arg(group);
    }
    command.arg("--").arg(program);
    Ok(command)
}

/// A free loopback address, below the range from which the kernel takes the ports of outgoing
/// connections.
///
/// # Errors
/// There is none left.
pub fn free_address() -> io::Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 18_000;
    const COUNT: u16 = 12_000;
    let offset = (std::process::id() % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (offset.wrapping_add(step)) % COUNT;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(io::Error::from(io::ErrorKind::AddrInUse))
}

fn children(pid: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for thread in threads(pid) {
        let path = format!("/proc/{pid}/task/{thread}/children");
        let text = fs::read_to_string(path).unwrap_or_default();
        children.extend(text.split_whitespace().flat_map(str::parse::<u32>));
    }
    children
}

/// The threads of a process; empty if the process is gone.
fn threads(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let names = tasks.flatten().map(|task| task.file_name());
    names
        .filter_map(|name| name.to_str()?.parse::<u32>().ok())
        .collect()
}

fn cpu_time_of(pid: u32) -> Duration {
    let threads = threads(pid).into_iter();
    Duration::from_nanos(threads.map(|thread| schedstat(pid, thread)[0]).sum())
}

/// The scheduler's own counts of running and of waiting for a CPU, in nanoseconds; the
/// kernel's accounting ticks are too coarse for a run of a second.
fn schedstat(pid: u32, thread: u32) -> [u64; 2] {
    let path = format!("/proc/{pid}/task/{thread}/schedstat");
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut counts = text.split_whitespace().map(|it| it.parse().unwrap_or(0));
    [(); 2].map(|()| counts.next().unwrap_or(0))
}
