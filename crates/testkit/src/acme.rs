//! Pebble, an issuer of certificates by ACME for tests, and the name server that it asks.
//!
//! `scripts/need pebble` puts both programs into `.go/bin`.

use std::fs::{self, File};
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::deadline::{STEP, holds_within};
use crate::process::{Running, free_port, repository, run};
use crate::temp::TempDir;
use crate::tls::Authority;

/// Pebble, at free ports of 127.0.0.1.
#[derive(Debug)]
pub struct Pebble {
    dir: TempDir,
    port: u16,
    management_port: u16,
    running: Running,
    /// The name server that says that every name is at 127.0.0.1, and the port at which its
    /// records are set.
    names: Option<(Running, u16)>,
}

/// How Pebble is started.
#[derive(Debug, Clone, Default)]
pub struct PebbleSetup {
    /// The port at which it asks for the answers of HTTP-01.
    pub http_port: u16,
    /// The port at which it asks for the answers of TLS-ALPN-01.
    pub tls_port: u16,
    /// The port of the name server at 127.0.0.1 that it asks. Without one, every name is at
    /// 127.0.0.1.
    pub dns_port: Option<u16>,
    /// External accounts, by key identifier, with their keys in base64url. Without one, none
    /// is needed.
    pub external_accounts: Vec<(String, String)>,
    /// Variables of its environment, such as `PEBBLE_WFE_NONCEREJECT`.
    pub environment: Vec<(String, String)>,
}

impl Pebble {
    /// Starts one that finds every name at 127.0.0.1, and asks for answers at these ports.
    ///
    /// # Errors
    /// It cannot be started, or does not listen in time.
    pub fn start(http_port: u16, tls_port: u16) -> io::Result<Self> {
        Self::start_with(&PebbleSetup {
            http_port,
            tls_port,
            ..PebbleSetup::default()
        })
    }

    /// Starts one.
    ///
    /// # Errors
    /// It cannot be started, or does not listen in time.
    pub fn start_with(setup: &PebbleSetup) -> io::Result<Self> {
        let dir = TempDir::new()?;
        let mut names = None;
        let dns_port = match setup.dns_port {
            Some(port) => port,
            None => {
                let port = free_port()?;
                names = Some(start_names(&dir, port)?);
                port
            }
        };
        let authority = Authority::new()?;
        fs::write(dir.join("ca.pem"), authority.pem())?;
        let issued = authority.issue(&["127.0.0.1", "localhost"])?;
        let (chain, key) = issued.write(dir.path(), "pebble")?;
        let (port, management_port) = (free_port()?, free_port()?);
        let accounts = setup.external_accounts.iter().cloned();
        let accounts = accounts.map(|(id, key)| (id, Value::from(key)));
        let config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management_port}"),
            "certificate": chain,
            "privateKey": key,
            "httpPort": setup.http_port,
            "tlsPort": setup.tls_port,
            "externalAccountBindingRequired": !setup.external_accounts.is_empty(),
            "externalAccountMACKeys": Value::Object(accounts.collect()),
            "keyAlgorithm": "ecdsa",
            "profiles": {
                "default": { "description": "90 days", "validityPeriod": 7_776_000 },
                "short": { "description": "6 days", "validityPeriod": 518_400 },
            },
        } });
        fs::write(dir.join("pebble.json"), config.to_string())?;
        let mut command = Command::new(program("pebble"));
        command.arg("-config").arg(dir.join("pebble.json"));
        command.args(["-dnsserver", &format!("127.0.0.1:{dns_port}"), "-strict"]);
        // No pauses, no nonces that are refused by chance, every challenge is run.
        command.env("PEBBLE_VA_NOSLEEP", "1");
        command.env("PEBBLE_WFE_NONCEREJECT", "0");
        command.env("PEBBLE_AUTHZREUSE", "0");
        command.envs(setup.environment.iter().cloned());
        let running = start_logged(command, &dir.join("pebble.log"))?;
        for port in [port, management_port] {
            wait_for("pebble", port)?;
        }
        Ok(Self {
            dir,
            port,
            management_port,
            running,
            names,
        })
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://127.0.0.1:{}/dir", self.port)
    }

    /// The port of its directory, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of 127.0.0.1 at which the records of its own name server are set, with requests
    /// such as `POST /set-txt` (pebble-challtestsrv).
    pub fn names_port(&self) -> Option<u16> {
        self.names.as_ref().map(|it| it.1)
    }

    /// The file of the authority that vouches for its own certificate, as PEM.
    pub fn ca_path(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// The root of the certificates that it issues, as PEM.
    ///
    /// # Errors
    /// It does not answer.
    pub fn root(&self) -> io::Result<String> {
        self.manage("roots/0", None)
    }

    /// Answers with this from now on, when it is asked when to renew a certificate (RFC 9773).
    ///
    /// # Errors
    /// It does not answer, or does not know the certificate.
    pub fn suggest_renewal(&self, certificate: &str, suggestion: &Value) -> io::Result<()> {
        let body = json!({
            "certificate": certificate,
            "ariResponse": suggestion.to_string(),
        });
        self.manage("set-renewal-info/", Some(&body)).map(drop)
    }

    /// How often a text stands in its log.
    pub fn count(&self, text: &str) -> usize {
        let log = fs::read_to_string(self.dir.join("pebble.log")).unwrap_or_default();
        log.matches(text).count()
    }

    /// The orders that were placed.
    pub fn orders(&self) -> usize {
        self.count("Added order ")
    }

    /// The accounts that were made.
    pub fn accounts(&self) -> usize {
        self.count(" accounts in memory")
    }

    /// Ends it. It forgets accounts and orders.
    pub fn stop(&mut self) {
        self.running.terminate();
        self.running.wait(STEP);
    }

    fn manage(&self, path: &str, body: Option<&Value>) -> io::Result<String> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--cacert"]);
        command.arg(self.ca_path());
        if let Some(body) = body {
            command.args(["--data", &body.to_string()]);
        }
        command.arg(format!("https://127.0.0.1:{}/{path}", self.management_port));
        let output = run(command, STEP)?;
        if output.status.success() {
            String::from_utf8(output.stdout).map_err(io::Error::other)
        } else {
            let error = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("pebble: {path}: {error}")))
        }
    }
}

/// Starts a name server that says that every name is at 127.0.0.1.
fn start_names(dir: &TempDir, port: u16) -> io::Result<(Running, u16)> {
    let management_port = free_port()?;
    let mut command = Command::new(program("pebble-challtestsrv"));
    command.args(["-dnsserver", &format!("127.0.0.1:{port}")]);
    command.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]);
    for other in ["-http01", "-https01", "-doh", "-tlsalpn01"] {
        command.args([other, ""]);
    }
    command.args(["-management", &format!("127.0.0.1:{management_port}")]);
    let running = start_logged(command, &dir.join("names.log"))?;
    wait_for("pebble-challtestsrv", port)?;
    wait_for("pebble-challtestsrv", management_port)?;
    Ok((running, management_port))
}

/// Starts a program that writes more than a pipe holds.
fn start_logged(mut command: Command, log: &Path) -> io::Result<Running> {
    let file = File::create(log)?;
    command.stderr(Stdio::from(file.try_clone()?));
    Running::start_to(command, file.into())
}

fn wait_for(name: &str, port: u16) -> io::Result<()> {
    if holds_within(STEP, || TcpStream::connect(("127.0.0.1", port)).is_ok()) {
        return Ok(());
    }
    let message = format!("{name} does not listen");
    Err(io::Error::new(io::ErrorKind::TimedOut, message))
}

/// A program that `scripts/need pebble` has built.
fn program(name: &str) -> PathBuf {
    repository().join(".go/bin").join(name)
}
