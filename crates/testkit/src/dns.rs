//! Name servers of Debian's: one for names that change, and one that takes updates.

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
    /// The port that it listens on, or will listen on.
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

/// BIND, at a free port of 127.0.0.1. It serves its own zones, and accepts updates of them (RFC
/// 2136) that are signed by its keys (RFC 8945).
#[derive(Debug)]
pub struct Bind {
    /// The port at which it listens.
    pub port: u16,
    _running: Running,
    _dir: TempDir,
}

/// A key that signs updates.
#[derive(Debug, Clone, Copy)]
pub struct TsigKey {
    /// Its name.
    pub name: &'static str,
    /// Its algorithm, such as `hmac-sha256`.
    pub algorithm: &'static str,
    /// The secret, in base64.
    pub secret: &'static str,
}

impl Bind {
    /// Starts it with these zones: their names, and lines of records beside the zone's own.
    ///
    /// # Errors
    /// It can't be started, or does not listen in time.
    pub fn start(zones: &[(&str, &str)], keys: &[TsigKey]) -> io::Result<Self> {
        let (dir, port) = (TempDir::new()?, free_port()?);
        let folder = dir.path().display();
        // With recursion, aliases are followed from one zone to another.
        let mut config = format!(
            "options {{ directory \"{folder}\"; pid-file none; session-keyfile none; \
             listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; \
             recursion yes; dnssec-validation no; notify no; }};\n\
             controls {{ }};\n"
        );
        let mut may_update = String::new();
        for key in keys {
            let TsigKey {
                name,
                algorithm,
                secret,
            } = key;
            config.push_str(&format!(
                "key \"{name}\" {{ algorithm {algorithm}; secret \"{secret}\"; }};\n"
            ));
            may_update.push_str(&format!("key \"{name}\"; "));
        }
        for (zone, records) in zones {
            let file = dir.join(&format!("{zone}.zone"));
            let of_zone = "$TTL 60\n@ SOA ns admin 1 60 60 600 60\n@ NS ns\nns A 127.0.0.1\n";
            std::fs::write(&file, format!("{of_zone}{records}\n"))?;
            config.push_str(&format!(
                "zone \"{zone}\" {{ type primary; file \"{}\"; allow-update {{ {may_update}}}; }};\n",
                file.display()
            ));
        }
        let file = dir.join("named.conf");
        std::fs::write(&file, config)?;
        let log = std::fs::File::create(dir.join("named.log"))?;
        let mut command = Command::new("named");
        command.args(["-g", "-n", "1", "-c"]).arg(&file).stderr(log);
        let running = Running::start(command)?;
        // Zones are loaded before it listens over TCP.
        if holds_within(STEP, || TcpStream::connect(("127.0.0.1", port)).is_ok()) {
            return Ok(Bind {
                port,
                _running: running,
                _dir: dir,
            });
        }
        let log = std::fs::read_to_string(dir.join("named.log")).unwrap_or_default();
        let why = format!("named does not listen: {log}");
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }
}
