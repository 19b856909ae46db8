//! Other programs that a test runs: servers beside the proxy, clients before
//! it.

use std::io::{self, BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::deadline::{self, STEP};
use crate::temp::TempDir;

/// A program like ours, which listens where its configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
}

/// A server that runs until dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: Pid,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts a program.
    ///
    /// # Errors
    /// When it cannot be started; the error names it.
    pub fn start(command: Command) -> io::Result<Self> {
        Self::start_to(command, Stdio::piped())
    }

    /// Starts a program whose standard output goes elsewhere.
    ///
    /// # Errors
    /// When it cannot be started; the error names it.
    pub fn start_to(mut command: Command, stdout: Stdio) -> io::Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(stdout).spawn();
        let mut child = child.map_err(|error| named(&command, &error))?;
        let pid = Pid::from_child(&child);
        deadline::note_started(pid);
        let stdout = child.stdout.take().map(BufReader::new);
        Ok(Running { child, pid, stdout })
    }

    /// Starts a peer with this configuration, in the foreground, and waits
    /// until it accepts connections at the Unix socket `listens_at`. Its files
    /// are in `dir`.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen in time.
    pub fn start_peer(
        peer: Peer,
        dir: &TempDir,
        config: &str,
        listens_at: &Path,
    ) -> io::Result<Self> {
        let file = dir.join("peer.conf");
        std::fs::write(&file, config)?;
        let mut command;
        match peer {
            Peer::Nginx => {
                command = Command::new("nginx");
                command.arg("-e").arg(dir.join("error.log")).arg("-c");
            }
            Peer::Haproxy => {
                command = Command::new("haproxy");
                command.args(["-q", "-db", "-f"]);
            }
        }
        command.arg(&file);
        let running = Running::start(command)?;
        if deadline::holds_within(STEP, || UnixStream::connect(listens_at).is_ok()) {
            Ok(running)
        } else {
            let message = format!("{peer:?} does not listen");
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        }
    }

    /// Waits for the next line that it writes to standard output.
    ///
    /// # Errors
    /// When it ends first, or writes none within [`STEP`] (it is killed).
    pub fn line(&mut self) -> io::Result<String> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut stdout = self.stdout.take().ok_or_else(ended)?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.read_line(&mut line);
            let _ = sender.send((read, line, stdout));
        });
        match receiver.recv_timeout(STEP) {
            Ok((read, line, stdout)) => {
                self.stdout = Some(stdout);
                if read? == 0 {
                    Err(ended())
                } else {
                    Ok(line.trim_end().to_owned())
                }
            }
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Sends it TERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // One that is gone and not yet waited for keeps its id.
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Waits until it has ended by itself; `None` when it has not in time.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        deadline::holds_within(limit, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        deadline::note_ended(self.pid);
    }
}

/// Runs a program to its end.
///
/// # Errors
/// When it cannot be started, or has to be killed after `limit`.
pub fn run(mut command: Command, limit: Duration) -> io::Result<Output> {
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| named(command, &error))?;
    let pid = Pid::from_child(&child);
    let (sender, receiver) = channel();
    // The thread that waits for the process also reaps it, so the process id is valid until its
    // message has been received.
    std::thread::spawn(move || {
        let _ = sender.send(child.wait_with_output());
    });
    match receiver.recv_timeout(limit) {
        Ok(output) => output,
        Err(_) => {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{command:?} within {limit:?}"),
            ))
        }
    }
}

/// The Python with the modules of `tests/it/requirements.txt`.
pub fn python() -> Command {
    let own = || repository().join(".venv/bin/python");
    let path = std::env::var_os("EVENKEEL_TEST_PYTHON").map_or_else(own, PathBuf::from);
    Command::new(path)
}

/// The folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A free port of 127.0.0.1, over TCP and UDP. The port is not held, but no other call in this
/// process returns it.
///
/// # Errors
/// None was found.
pub fn free_port() -> io::Result<u16> {
    // Below the ports of outgoing connections: programs start after this returns.
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| fastrand::u16(..COUNT).into());
    let mut ports = std::iter::repeat_with(|| FIRST + NEXT.fetch_add(1, Relaxed) % COUNT);
    let is_free = |port: &u16| {
        UdpSocket::bind(("127.0.0.1", *port)).is_ok()
            && TcpListener::bind(("127.0.0.1", *port)).is_ok()
    };
    let port = ports.by_ref().take(1_000).find(is_free);
    port.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}

fn named(command: &Command, error: &io::Error) -> io::Error {
    let advice = if error.kind() == io::ErrorKind::NotFound {
        " (run `make setup`)"
    } else {
        ""
    };
    let program = command.get_program();
    io::Error::new(error.kind(), format!("start {program:?}: {error}{advice}"))
}
