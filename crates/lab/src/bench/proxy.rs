//! The proxies compared, how each is configured, and how each is started.
//!
//! Every one gets one worker on one core and a keep-alive pool large enough.
//! The peers run without any log; Evenkeel writes its access log.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::process::{BOTH_CORES, LOAD_CORE, PROXY_CORE, Process, free_address, pinned_in};

/// The program between the load and the origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nothing: the load goes to the origin.
    Direct,
    /// `evenkeel-lab relay`.
    Relay,
    /// Evenkeel.
    Evenkeel,
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Evenkeel without log, metrics and status page.
    #[value(skip)]
    Unobserved,
    /// Evenkeel with all of them, while they are read.
    #[value(skip)]
    Observed,
    /// nginx that reads files in threads.
    #[value(skip)]
    NginxThreads,
    /// lighttpd.
    #[value(skip)]
    Lighttpd,
    /// Nothing that serves: what `fio` reads from the disk.
    #[value(skip)]
    Fio,
}

impl Kind {
    /// The name in tables and plots.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay => "relay",
            Self::Evenkeel => "Evenkeel",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Unobserved => "all off",
            Self::Observed => "all on",
            Self::NginxThreads => "nginx aio",
            Self::Lighttpd => "lighttpd",
            Self::Fio => "fio",
        }
    }

    /// Whether it knows one origin only: the relay, and no proxy at all.
    pub fn has_one_origin(self) -> bool {
        matches!(self, Self::Direct | Self::Relay)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.label())
    }
}

/// The protocol that a proxy is set to. The bytes of the load are HTTP/1.1 in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Requests and responses.
    Http,
    /// Bytes to carry, and nothing to look at.
    Tcp,
}

/// A proxy that accepts connections.
#[derive(Debug)]
pub struct Proxy {
    /// Which one.
    pub kind: Kind,
    /// The address on which it accepts.
    pub address: SocketAddr,
    /// `None` for `Kind::Direct`.
    pub process: Option<Process>,
}

/// The inputs to start a proxy.
#[derive(Debug, Clone)]
pub struct Site {
    /// A folder for configurations and logs.
    pub folder: PathBuf,
    /// The program `evenkeel`.
    pub evenkeel: PathBuf,
    /// Descriptors that a process may open.
    pub descriptors: u64,
    /// The control group that proxies start in, if not in this process's.
    pub group: Option<PathBuf>,
    /// The protocol that proxies are set to.
    pub protocol: Protocol,
    /// The cores of the proxies.
    pub proxy_cores: &'static [usize],
    /// The cores of the origins and of all other processes.
    pub load_cores: &'static [usize],
}

impl Site {
    /// One in the folder of the figures.
    ///
    /// # Errors
    /// Its own folder in there can't be made.
    pub fn new(out: &Path, evenkeel: &Path) -> io::Result<Self> {
        let folder = out.join("run");
        std::fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            evenkeel: evenkeel.to_owned(),
            descriptors: crate::socket::raise_descriptor_limit(),
            group: None,
            protocol: Protocol::Http,
            proxy_cores: &[PROXY_CORE],
            load_cores: &[LOAD_CORE],
        })
    }

    /// A copy in which proxies and origins share cores.
    pub fn with_shared_cores(self) -> Self {
        Self {
            proxy_cores: &BOTH_CORES,
            load_cores: &BOTH_CORES,
            ..self
        }
    }

    /// The same where proxies take the load for this.
    pub fn with_protocol(&self, protocol: Protocol) -> Self {
        Self {
            protocol,
            ..self.clone()
        }
    }

    /// Starts a proxy before `origins` and waits until it accepts.
    ///
    /// # Errors
    /// It can't be started; the message names it.
    pub fn start(&self, kind: Kind, origins: &[SocketAddr]) -> io::Result<Proxy> {
        if kind == Kind::Direct {
            let address = origins[0];
            let process = None;
            return Ok(Proxy {
                kind,
                address,
                process,
            });
        }
        if kind == Kind::Relay {
            let started = free_address().and_then(|address| {
                let (listen, to) = (address.to_string(), origins[0].to_string());
                let arguments = ["relay", "--listen", &listen, "--to", &to];
                let mut process = Process::start_lab(self.proxy_cores, &arguments)?;
                process.wait_for(address)?;
                Ok(Proxy {
                    kind,
                    address,
                    process: Some(process),
                })
            });
            return started.map_err(|error| io::Error::other(format!("start {kind}: {error}")));
        }
        let descriptors = self.descriptors;
        self.start_configured(kind, kind.label(), |address, folder| {
            let log = access_log(folder, "combined");
            match (kind, self.protocol) {
                (Kind::Nginx, Protocol::Http) => nginx(address, origins, folder, descriptors, ""),
                (Kind::Nginx, Protocol::Tcp) => nginx_tcp(address, origins, folder, descriptors),
                (Kind::Haproxy, Protocol::Http) => {
                    haproxy(address, origins, descriptors, "roundrobin", "")
                }
                (Kind::Haproxy, Protocol::Tcp) => haproxy_tcp(address, origins, descriptors),
                (_, Protocol::Http) => evenkeel(address, origins, &log),
                (_, Protocol::Tcp) => evenkeel_tcp(address, origins, &log),
            }
        })
    }

    /// Starts a program with the configuration that `config` makes from its address and the
    /// folder `name`, and waits until it accepts.
    ///
    /// # Errors
    /// It can't be started; the message names it, with the first line of its output, if there
    /// is one.
    pub fn start_configured(
        &self,
        kind: Kind,
        name: &str,
        config: impl FnOnce(SocketAddr, &Path) -> String,
    ) -> io::Result<Proxy> {
        let folder = self.folder.join(name);
        let started = free_address().and_then(|address| {
            fs::create_dir_all(&folder)?;
            let folder = folder.canonicalize()?;
            let path = folder.join("config");
            fs::write(&path, config(address, &folder))?;
            let mut process = self.start_process(kind, &folder, &path)?;
            process.wait_for(address)?;
            Ok(Proxy {
                kind,
                address,
                process: Some(process),
            })
        });
        started.map_err(|error| {
            let output = fs::read_to_string(folder.join("output")).unwrap_or_default();
            let reason = output.lines().next().map(str::to_owned);
            let reason = reason.unwrap_or_else(|| error.to_string());
            io::Error::other(format!("start {name}: {reason}"))
        })
    }

    fn start_process(&self, kind: Kind, folder: &Path, config: &Path) -> io::Result<Process> {
        let program = match kind {
            Kind::Nginx | Kind::NginxThreads => Path::new("nginx"),
            Kind::Haproxy => Path::new("haproxy"),
            Kind::Lighttpd => Path::new("lighttpd"),
            _ => &self.evenkeel,
        };
        let mut command = pinned_in(self.group.as_deref(), self.proxy_cores, program)?;
        match kind {
            Kind::Nginx | Kind::NginxThreads => command.arg("-p").arg(folder).arg("-c").arg(config),
            Kind::Lighttpd => command.arg("-D").arg("-f").arg(config),
            Kind::Haproxy => command.arg("-db").arg("-q").arg("-f").arg(config),
            _ => command.arg("run").arg("--config").arg(config),
        };
        let output = fs::File::create(folder.join("output"))?;
        command.stdout(output.try_clone()?).stderr(output);
        Process::start(command)
    }
}

/// Evenkeel's configuration; `observation` sets its logs and status.
pub fn evenkeel(address: SocketAddr, origins: &[SocketAddr], observation: &str) -> String {
    evenkeel_with(address, origins, "", observation)
}

/// Evenkeel's configuration as a carrier of connections.
fn evenkeel_tcp(address: SocketAddr, origins: &[SocketAddr], observation: &str) -> String {
    evenkeel_with(address, origins, "protocol = \"tcp\"\n", observation)
}

/// `listener` has further settings of the listener.
fn evenkeel_with(
    address: SocketAddr,
    origins: &[SocketAddr],
    listener: &str,
    observation: &str,
) -> String {
    let endpoints: Vec<String> = origins
        .iter()
        .map(|at| format!("{:?}", at.to_string()))
        .collect();
    let endpoints = endpoints.join(", ");
    format!(
        r#"[server]
workers = 1

[[listener]]
name = "web"
bind = "{address}"
{listener}
{observation}
[[route]]
upstream = "app"

[upstream.app]
balance = "round-robin"
endpoints = [ {endpoints} ]
"#
    )
}

/// An access log in the folder.
pub fn access_log(folder: &Path, format: &str) -> String {
    let path = folder.join(LOG_FILE);
    format!("[access_log]\npath = {path:?}\nformat = \"{format}\"\n")
}

/// The name of Evenkeel's access log in its folder.
pub const LOG_FILE: &str = "access.log";

/// The configuration of nginx, with the fastest buffers in CPU time per request.
///
/// It allocates buffers for each request, and several small ones cause page faults.
/// `multi_accept` gained nothing. Tried, in microseconds:
///
/// | buffering | buffers | 300 KB over 10 connections | 1 KB over 64 |
/// |---|---|---|---|
/// | on | `proxy_buffers` 16 of 64k | 148 | 14.5 |
/// | on | 64 of 16k | 170 | 15 |
/// | on | 4 of 256k | 138 | 15 |
/// | on | defaults | 258 | 15.7 |
/// | off | 64k | 79 | 15 |
/// | off | 256k | 58 | 13.2 |
///
/// `balancing` is the directive for the balancer; empty for nginx's default.
pub fn nginx(
    address: SocketAddr,
    origins: &[SocketAddr],
    folder: &Path,
    descriptors: u64,
    balancing: &str,
) -> String {
    let servers = nginx_servers(origins);
    let http = format!(
        "  proxy_http_version 1.1;
  proxy_set_header Connection \"\";
  proxy_buffering off;
  proxy_buffer_size 256k;
  proxy_buffers 4 256k;
  proxy_busy_buffers_size 512k;
  proxy_max_temp_file_size 0;
  upstream app {{
    {balancing}
{servers}    keepalive 512;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
  }}
  server {{
    listen {address} backlog=4096;
    location / {{ proxy_pass http://app; }}
  }}
"
    );
    nginx_frame(folder, descriptors, &http)
}

/// Path of nginx's module for TCP in Debian's package.
pub const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// The configuration of nginx for TCP, with the fastest buffers. At 1 KB all cost the same.
///
/// | buffers | microseconds of CPU per exchange of 4 MB over 4 connections |
/// |---|---|
/// | 16k (default) | 1,091 |
/// | 64k | 765 |
/// | 256k | 670 |
fn nginx_tcp(
    address: SocketAddr,
    origins: &[SocketAddr],
    folder: &Path,
    descriptors: u64,
) -> String {
    let servers = nginx_servers(origins);
    let main = nginx_main(folder, descriptors);
    format!(
        "load_module {NGINX_STREAM};
{main}stream {{
  proxy_buffer_size 256k;
  proxy_timeout 600s;
  upstream app {{
{servers}  }}
  server {{
    listen {address} backlog=4096;
    proxy_pass app;
  }}
}}
"
    )
}

fn nginx_servers(origins: &[SocketAddr]) -> String {
    let server = |at| format!("    server {at};\n");
    origins.iter().map(server).collect()
}

/// One worker without any log.
fn nginx_main(folder: &Path, descriptors: u64) -> String {
    let folder = folder.display();
    format!(
        "daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile {descriptors};
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{
  worker_connections {descriptors};
  use epoll;
}}
"
    )
}

/// The frame of every nginx configuration around its directives of `http`: one worker, no log,
/// keep-alive connections, and folders of its own.
pub fn nginx_frame(folder: &Path, descriptors: u64, http: &str) -> String {
    let main = nginx_main(folder, descriptors);
    let folder = folder.display();
    format!(
        "{main}http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
{http}}}
"
    )
}

/// The configuration of HAProxy, with the fastest buffers in CPU time per request.
///
/// `option splice-auto` was no faster with either of the first two. Tried, in microseconds:
///
/// | `tune.bufsize` | 300 KB over 10 connections | 1 KB over 64 |
/// |---|---|---|
/// | 16384 (default) | 97 | 15.7 |
/// | 32768 | 103 | 14.8 |
/// | 65536 | 71 | 15 |
/// | 262144 | 169 | 19.7 |
///
/// `balance` is the algorithm, `server` the text behind each server's address.
pub fn haproxy(
    address: SocketAddr,
    origins: &[SocketAddr],
    descriptors: u64,
    balance: &str,
    server: &str,
) -> String {
    let mode = "mode http
  option http-keep-alive
  http-reuse always
  timeout http-keep-alive 600s
  timeout http-request 600s";
    haproxy_with(address, origins, descriptors, mode, balance, server)
}

/// The configuration of HAProxy for TCP, with the fastest buffers. At 1 KB all cost the same.
///
/// | `tune.bufsize` | microseconds of CPU per exchange of 4 MB over 4 connections | with `option splice-auto` |
/// |---|---|---|
/// | 16384 (default) | 1,041 | 1,175 |
/// | 65536 | 743 | 784 |
fn haproxy_tcp(address: SocketAddr, origins: &[SocketAddr], descriptors: u64) -> String {
    haproxy_with(address, origins, descriptors, "mode tcp", "roundrobin", "")
}

/// `mode` is the mode and its settings.
fn haproxy_with(
    address: SocketAddr,
    origins: &[SocketAddr],
    descriptors: u64,
    mode: &str,
    balance: &str,
    server: &str,
) -> String {
    let servers: String = origins
        .iter()
        .enumerate()
        .map(|(at, origin)| format!("  server o{at} {origin} {server}\n"))
        .collect();
    // A connection takes a descriptor on either side, and some are its own.
    let maxconn = descriptors / 2 - 100;
    format!(
        "global
  nbthread 1
  maxconn {maxconn}
  tune.bufsize 65536

defaults
  {mode}
  maxconn {maxconn}
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout queue 600s

frontend web
  bind {address} backlog 4096
  default_backend app

backend app
  balance {balance}
{servers}"
    )
}
