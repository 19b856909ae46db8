//! The program under test: started from its binary with a configuration,
//! watched from outside, ended by its process id.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::deadline::{self, STEP, holds_within};
use crate::raw::RawClient;
use crate::temp::TempDir;

/// How the program is started, beside its configuration.
#[derive(Debug, Clone, Default)]
pub struct ProxySetup {
    /// Most open files (`ulimit -n`); `None` leaves the limit alone.
    pub open_files: Option<u32>,
    /// A program and its arguments that starts it in its own place, such as
    /// `setpriv`; empty for none.
    pub through: Vec<String>,
    /// Further arguments.
    pub args: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
}

/// Time to read a program's last output.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// The name of the status page among the listeners.
const STATUS_PAGE: &str = "the status page";

/// A running program; killed on drop.
#[derive(Debug)]
pub struct Proxy {
    child: Child,
    pid: Pid,
    status: Option<ExitStatus>,
    stderr: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    dir: TempDir,
    addresses: HashMap<String, String>,
}

impl Proxy {
    /// Starts the program and waits until every listener listens.
    ///
    /// `$DIR` in the configuration stands for a new folder, in which `access.log` is looked
    /// for.
    ///
    /// # Errors
    /// When it does not start or does not listen in time; the error carries the output of
    /// standard error.
    pub fn start(binary: impl AsRef<Path>, config: &str) -> io::Result<Self> {
        Proxy::start_with(binary, config, &ProxySetup::default())
    }

    /// Starts the program in a given way.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub fn start_with(
        binary: impl AsRef<Path>,
        config: &str,
        setup: &ProxySetup,
    ) -> io::Result<Self> {
        let dir = TempDir::new()?;
        let config = config.replace("$DIR", &dir.path().display().to_string());
        let config_path = dir.join("evenkeel.toml");
        std::fs::write(&config_path, &config)?;
        let mut command = command(binary.as_ref(), setup);
        command
            .args(["run", "--config"])
            .arg(&config_path)
            .args(&setup.args);
        // The environment of the tests must not decide where the program logs.
        command.env_remove("container");
        command.envs(setup.env.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        deadline::note_started(pid);
        let stderr = Arc::new(Mutex::new(String::new()));
        let reader = child.stderr.take().map(|pipe| {
            let captured = Arc::clone(&stderr);
            std::thread::spawn(move || capture(pipe, &captured))
        });
        let addresses = HashMap::new();
        let mut proxy = Proxy {
            child,
            pid,
            status: None,
            stderr,
            reader,
            dir,
            addresses,
        };
        proxy.await_listening(config.matches("[[listener]]").count())?;
        Ok(proxy)
    }

    /// Waits until `count` listeners have said where they listen.
    fn await_listening(&mut self, count: usize) -> io::Result<()> {
        let listening = holds_within(STEP, || {
            self.addresses = listening_addresses(&self.stderr());
            self.listener_count() >= count || self.has_ended()
        });
        if listening && self.listener_count() >= count {
            return Ok(());
        }
        if self.has_ended()
            && let Some(reader) = self.reader.take()
        {
            // Its last lines may still be in the pipe.
            let _ = reader.join();
        }
        let said = self.stderr();
        Err(io::Error::other(format!(
            "not listening ({:?}); it said:\n{said}",
            self.status
        )))
    }

    fn listener_count(&self) -> usize {
        let listeners = self.addresses.keys();
        listeners.filter(|name| *name != STATUS_PAGE).count()
    }

    /// The address of a listener: `IP:PORT` or `unix:PATH`.
    ///
    /// # Panics
    /// When there is no such listener.
    pub fn address(&self, listener: &str) -> &str {
        self.addresses.get(listener).unwrap_or_else(|| {
            panic!("no listener {listener:?} among {:?}", self.addresses);
        })
    }

    /// The address of the status page.
    ///
    /// # Panics
    /// When there is none.
    pub fn status_address(&self) -> SocketAddr {
        self.address(STATUS_PAGE).parse().expect("over TCP")
    }

    /// The address of a TCP listener.
    ///
    /// # Panics
    /// When there is no such listener, or it is a Unix socket.
    pub fn socket_addr(&self, listener: &str) -> SocketAddr {
        self.address(listener).parse().expect("a TCP listener")
    }

    /// Connects to the listener `web`.
    ///
    /// # Panics
    /// When it does not accept.
    pub fn client(&self) -> RawClient {
        RawClient::connect(self.socket_addr("web")).expect("the listener accepts")
    }

    /// The URL of a path on the listener `web`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address("web"))
    }

    /// The folder that `$DIR` stands for.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A path in that folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Its output on standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The access log's complete lines so far.
    pub fn access_log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("access.log")).unwrap_or_default();
        let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        complete.lines().map(str::to_owned).collect()
    }

    /// The access log's lines as JSON objects.
    ///
    /// # Panics
    /// When a line is not JSON.
    pub fn access_log_json(&self) -> Vec<serde_json::Value> {
        let parse = |line: &String| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("log line {line:?}: {error}"))
        };
        self.access_log().iter().map(parse).collect()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time used, user and system.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Fields after the command's name, which may itself contain spaces.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<u64> = after_name
            .split_whitespace()
            .skip(1)
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        let ticks = fields.get(10).unwrap_or(&0) + fields.get(11).unwrap_or(&0);
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_millis(ticks * 1000 / ticks_per_second))
    }

    /// Resident memory, in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn rss_bytes(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap_or("0");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        Ok(kib * 1024)
    }

    /// Open file descriptors.
    ///
    /// # Errors
    /// When it has ended.
    pub fn open_files(&self) -> io::Result<usize> {
        Ok(self.descriptors()?.count())
    }

    /// Open file descriptors that are an end of a pipe.
    ///
    /// # Errors
    /// When it has ended.
    pub fn open_pipe_ends(&self) -> io::Result<usize> {
        let targets = self
            .descriptors()?
            .filter_map(|it| it.ok()?.path().read_link().ok());
        let is_pipe = |target: &PathBuf| target.to_string_lossy().starts_with("pipe:");
        Ok(targets.filter(is_pipe).count())
    }

    fn descriptors(&self) -> io::Result<std::fs::ReadDir> {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
    }

    /// Sends TERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends a signal, unless it has been waited for.
    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = rustix::process::kill_process(self.pid, signal);
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.status = Some(status);
            deadline::note_ended(self.pid);
        }
        self.status.is_some()
    }

    /// Waits until it has ended, at most `limit`, and until its last output has been read.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        if holds_within(limit, || self.has_ended())
            && let Some(reader) = &self.reader
        {
            // A successor still has the pipe open.
            holds_within(LAST_WORDS, || reader.is_finished());
        }
        self.status
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if !self.has_ended() {
            // It may end by itself in between; then there is nothing to do.
            let _ = self.child.kill();
            let _ = self.child.wait();
            deadline::note_ended(self.pid);
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if std::thread::panicking() {
            eprintln!("the proxy said:\n{}", self.stderr());
            eprintln!("its access log:\n{}", self.access_log().join("\n"));
        }
    }
}

fn command(binary: &Path, setup: &ProxySetup) -> Command {
    let limit = match setup.open_files {
        Some(limit) => format!("ulimit -n {limit} && "),
        None => String::new(),
    };
    if limit.is_empty() && setup.through.is_empty() {
        return Command::new(binary);
    }
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limit}exec \"$@\""), "sh"])
        .args(&setup.through)
        .arg(binary);
    command
}

fn capture(pipe: impl io::Read, captured: &Mutex<String>) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while pipe.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        let text = String::from_utf8_lossy(&line);
        captured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_str(&text);
        line.clear();
    }
}

/// Reads lines `listener NAME: listening on ADDR`, wherever in a line they
/// stand (a time may come first).
fn listening_addresses(stderr: &str) -> HashMap<String, String> {
    let find = |line: &str| {
        let (before, address) = line.split_once(": listening on ")?;
        let name = if before.ends_with("status page") {
            STATUS_PAGE
        } else {
            before.rsplit_once("listener ")?.1
        };
        let address = address.split_whitespace().next()?;
        Some((name.to_owned(), address.to_owned()))
    };
    stderr.lines().filter_map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_where_listeners_listen() {
        let said = "starting\nlistener web: listening on 127.0.0.1:4000\n\
            12:00:00 listener api: listening on unix:run/api.sock\n";
        let found = listening_addresses(said);
        assert_eq!(found["web"], "127.0.0.1:4000");
        assert_eq!(found["api"], "unix:run/api.sock");
        assert_eq!(found.len(), 2);
    }
}
