//! The servers compared, how each is configured, and how each is started.
//!
//! Every one gets one worker on one core, and connections that it keeps. The
//! peers run without any log; Evenkeel writes its access log.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::Setting;
use super::control_group::ControlGroup;
use crate::bench::process::Process;
use crate::bench::proxy::{Kind, Proxy, Site, access_log, nginx_frame};
use crate::bench::rounds::{Stage, load};

/// The share of the files for which there is memory.
const MEMORY_SHARE: f64 = 0.25;
/// Least memory of a group, in bytes: the program itself needs some.
const MEMORY_MIN: u64 = 64 << 20;
/// How many files are asked for before cold ones are measured, over all there
/// are. While it is less, the kernel still remembers more and more names and
/// inodes, which take the memory that files had.
const FILL: f64 = 1.5;
/// Seed of the filling requests.
const FILL_SEED: u64 = 1;

/// Starts all servers, each with as much memory as there is.
///
/// # Errors
/// One of them can't be started; the message names it.
pub fn start_all(setting: &Setting) -> io::Result<Stage> {
    let servers = setting.servers();
    let start = |kind: &Kind| start(setting, &setting.site, *kind);
    let started: io::Result<_> = servers.iter().map(start).collect();
    Ok(Stage::of(started?))
}

/// A server with memory for a quarter of the files, which is as full as after a
/// long time.
///
/// One at a time: what one has read into the page cache is there for all. The
/// fields are in the order in which they must end.
pub struct Filled {
    pub proxy: Proxy,
    _group: ControlGroup,
}

impl Filled {
    /// Starts it and fills its memory. A slow disk is fast during the filling.
    ///
    /// # Errors
    /// It can't be started, or no control group can be made; the message says which.
    pub fn start(setting: &Setting, kind: Kind) -> io::Result<Self> {
        forget_files()?;
        setting.slow_down(false)?;
        let group = ControlGroup::make(memory_len(setting))?;
        let mut site = setting.site.clone();
        site.group = Some(group.folder().to_owned());
        let proxy = start(setting, &site, kind)?;
        fill(setting, &proxy)?;
        setting.slow_down(true)?;
        Ok(Self {
            proxy,
            _group: group,
        })
    }
}

/// Makes the kernel drop its file caches: pages, names and inodes, and the blocks behind them.
fn forget_files() -> io::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
}

fn start(setting: &Setting, site: &Site, kind: Kind) -> io::Result<Proxy> {
    let root = setting.set.root();
    let descriptors = site.descriptors;
    let configure = |address: SocketAddr, folder: &Path| match kind {
        Kind::Nginx => nginx(address, root, folder, descriptors, ""),
        Kind::NginxThreads => nginx(address, root, folder, descriptors, "aio threads;"),
        Kind::Lighttpd => lighttpd(address, root, folder, descriptors),
        _ => evenkeel(address, root, folder),
    };
    site.start_configured(kind, &folder_name(kind), configure)
}

/// The memory for a quarter of the files, in bytes.
fn memory_len(setting: &Setting) -> u64 {
    let len = setting.set.total_len() as f64 * MEMORY_SHARE;
    (len as u64).max(MEMORY_MIN)
}

/// Requests random files to fill the cache. They differ from the first files of a measurement,
/// which would otherwise find either all or none of its files.
fn fill(setting: &Setting, server: &Proxy) -> io::Result<()> {
    let files = (f64::from(setting.set.count()) * FILL) as u64;
    let mut arguments = setting.asking(64, 0.0);
    arguments.push(format!("--count={files}"));
    arguments.push(format!("--seed={FILL_SEED}"));
    arguments.push("--refusable".into());
    load(server.address, &arguments).map(drop)
}

/// The memory of a server's own, in bytes.
pub fn own_memory(server: &Proxy) -> u64 {
    let memory = server.process.as_ref().map(Process::memory);
    memory.map_or(0, |memory| memory.private_dirty)
}

fn folder_name(kind: Kind) -> String {
    format!("files-{}", kind.label().replace(' ', "-"))
}

fn evenkeel(address: SocketAddr, root: &Path, folder: &Path) -> String {
    let log = access_log(folder, "combined");
    format!(
        r#"[server]
workers = 1

[[listener]]
name = "web"
bind = "{address}"

{log}
[[route]]
files = {{ root = {root:?} }}
"#
    )
}

/// `reading` is the directive that says who reads; empty for its own event
/// loop.
fn nginx(
    address: SocketAddr,
    root: &Path,
    folder: &Path,
    descriptors: u64,
    reading: &str,
) -> String {
    let root = root.display();
    let http = format!(
        "  types {{ image/jpeg jpg; }}
  sendfile on;
  tcp_nopush on;
  directio off;
  {reading}
  open_file_cache max=10000;
  open_file_cache_valid 60s;
  server {{
    listen {address} backlog=4096;
    root {root};
  }}
"
    );
    nginx_frame(folder, descriptors, &http)
}

/// A connection can carry no more requests than it says here; 0 is one.
///
/// It keeps a descriptor of each file for up to three seconds, and answers 403
/// when it has none left; no setting changes that.
fn lighttpd(address: SocketAddr, root: &Path, folder: &Path, descriptors: u64) -> String {
    let (ip, port) = (address.ip(), address.port());
    // It refuses connections beyond half of its descriptors anyway.
    let connections = descriptors / 2;
    let folder = folder.display();
    format!(
        r#"server.bind = "{ip}"
server.port = {port}
server.document-root = {root:?}
server.errorlog = "{folder}/error.log"
server.modules = ()
server.event-handler = "linux-sysepoll"
server.network-backend = "sendfile"
server.stat-cache-engine = "simple"
server.listen-backlog = 4096
server.max-fds = {descriptors}
server.max-connections = {connections}
server.max-keep-alive-requests = 65535
server.max-keep-alive-idle = 600
server.max-write-idle = 600
mimetype.assign = ( ".jpg" => "image/jpeg", ".bin" => "application/octet-stream" )
"#
    )
}
