//! The program of a suite, and what an operator asks of it.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::deadline::holds_within;
use crate::process::run;
use crate::proxy::Proxy;

/// Longest time for something that an operator asks for.
const PATIENCE: Duration = Duration::from_secs(40);

/// The beginning of every configuration in a suite.
pub const OPERATED: &str = "[server]\nworkers = 2\ncontrol = \"$DIR/control.sock\"\n\
     [status]\nbind = \"127.0.0.1:0\"\n";

/// The program, with a control socket and a status page. Dropped, it is killed, with all
/// that have taken over from it.
#[derive(Debug)]
pub struct Site {
    program: PathBuf,
    proxy: Proxy,
}

impl Site {
    /// Starts the program with a configuration that begins with [`OPERATED`].
    ///
    /// # Errors
    /// It does not start.
    pub fn start(program: &Path, config: &str) -> io::Result<Self> {
        Ok(Site {
            program: program.to_owned(),
            proxy: Proxy::start(program, config)?,
        })
    }

    /// The address of the listener of this name.
    pub fn address(&self, listener: &str) -> SocketAddr {
        self.proxy.socket_addr(listener)
    }

    /// The address of the status page.
    pub fn status_address(&self) -> SocketAddr {
        self.proxy.status_address()
    }

    /// The folder that `$DIR` stands for.
    pub fn path(&self, name: &str) -> PathBuf {
        self.proxy.path(name)
    }

    /// The event log so far.
    pub fn events(&self) -> String {
        self.proxy.stderr()
    }

    /// Puts another configuration in the file's place.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, config: &str) -> io::Result<()> {
        let config = config.replace("$DIR", &self.proxy.dir().display().to_string());
        std::fs::write(self.path("evenkeel.toml"), config)
    }

    /// Sends a command to the control socket, and returns the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub fn ask(&self, command: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(self.path("control.sock"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Sends a command to the control socket, and returns the answer as JSON.
    ///
    /// # Errors
    /// There is no answer, or it is an error message.
    pub fn json(&self, command: &str) -> io::Result<Value> {
        let answer = self.ask(&format!("json {command}"))?;
        serde_json::from_str(&answer).map_err(|_| io::Error::other(answer))
    }

    /// Runs `evenkeel` with these arguments and the control socket.
    ///
    /// # Errors
    /// It can't be run, or takes too long.
    pub fn evenkeel(&self, arguments: &[&str]) -> io::Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        command.arg("--socket").arg(self.path("control.sock"));
        run(command, PATIENCE)
    }

    /// Sends the process at work a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.at_work(), signal);
    }

    /// The processes of this program so far, in order.
    pub fn processes(&self) -> Vec<u32> {
        let events = self.events();
        let takes_over = events.lines().filter_map(|it| {
            let (_, rest) = it.split_once("upgrade: process ")?;
            rest.split_once(" has taken over")?.0.parse().ok()
        });
        std::iter::once(self.proxy.pid())
            .chain(takes_over)
            .collect()
    }

    /// The process that accepts.
    pub fn at_work(&self) -> u32 {
        self.processes().pop().unwrap_or_else(|| self.proxy.pid())
    }

    /// Its processes that still run.
    pub fn running(&self) -> Vec<u32> {
        let mut processes = self.processes();
        processes.retain(|it| is_running(*it));
        processes
    }

    /// Waits until a condition holds, and says whether it came to.
    pub fn comes_to(&self, condition: impl FnMut() -> bool) -> bool {
        holds_within(PATIENCE, condition)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let processes = self.processes();
        // The first one is the child of this process: it is waited for as such.
        for pid in processes.into_iter().skip(1) {
            send(pid, Signal::KILL);
        }
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|it| !it.contains(") Z "))
}
