//! A name server of Debian's, for names that change.

use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::deadline::{STEP, holds_within};
use crate::process::{Running, free_port};
use crate::temp::TempDir;

/// `dnsmasq`, at a free port of 127.0.0.1.
#[derive(Debug)]
pub struct NameServer {
    /// Where it listens, or will.
    pub port: u16,
    dir: TempDir,
    running: Option<Running>,
}

impl NameServer {
    /// One that does not run yet.
    ///
    /// # Errors
    /// It can't have a folder, or a port.
    pub fn new() -> io::Result<Self> {
        Ok(NameServer {
            port: free_port()?,
            dir: TempDir::new()?,
            running: None,
        })
    }

    /// Answers with these lines of a file of hosts, and these further arguments, whatever
    /// it answered before.
    ///
    /// # Errors
    /// It can't be started, or does not listen in time.
    pub fn start(&mut self, hosts: &str, args: &[String]) -> io::Result<()> {
        self.stop();
        let file = self.dir.join("hosts");
        std::fs::write(&file, hosts)?;
        let mut command = Command::new("dnsmasq");
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
        ]);
        command.args([
            "--no-hosts",
            "--bind-interfaces",
            "--listen-address=127.0.0.1",
        ]);
        command.args(["--user=", "--group=", "--pid-file=", "--log-queries"]);
        command.args(["--local=/test/", "--log-async=100"]);
        command.arg(format!("--log-facility={}", self.log().display()));
        command.arg(format!("--port={}", self.port));
        command.arg(format!("--addn-hosts={}", file.display()));
        command.args(args);
        self.running = Some(Running::start(command)?);
        let port = self.port;
        let answers = holds_within(STEP, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        if answers {
            return Ok(());
        }
        let why = "dnsmasq does not listen";
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// Answers with these lines from now on. The server that runs reads them, and answers
    /// all the while.
    ///
    /// # Errors
    /// They can't be written.
    pub fn change(&self, hosts: &str) -> io::Result<()> {
        std::fs::write(self.dir.join("hosts"), hosts)?;
        if let Some(running) = &self.running {
            running.signal(rustix::process::Signal::HUP);
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.dir.join("dns.log")
    }

    /// How often it was asked for the name.
    pub fn count(&self, name: &str) -> usize {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let asked = format!("query[A] {name} ");
        log.lines().filter(|it| it.contains(&asked)).count()
    }

    /// Ends, and answers nothing.
    pub fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.terminate();
            running.wait(Duration::from_secs(10));
        }
    }
}
