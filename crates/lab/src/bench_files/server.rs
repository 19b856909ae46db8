//! The servers compared, how each is configured, and how each is started.
//!
//! Every one gets one worker on one core, and connections that it keeps. The
//! peers run without any log; Evenkeel writes its access log.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Setting;
use super::control_group::{ControlGroup, DiskLimit};
use crate::bench::process::Process;
use crate::bench::proxy::{Kind, Proxy, access_log, nginx_frame};
use crate::bench::rounds::{Stage, load};

/// The share of the files for which there is memory.
const MEMORY_SHARE: f64 = 0.25;
/// What a group gets at least, in bytes: a program needs some for itself.
const MEMORY_MIN: u64 = 64 << 20;
/// What is asked for before cold files are measured, over what there is memory
/// for: from then on, as much leaves the page cache as comes in.
const FILL: f64 = 1.2;

/// How much memory a server and the files that it reads may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// All that there is.
    Everything,
    /// As much as a quarter of the files.
    Quarter {
        /// As often as the disk can be read from; `None` is as often as it takes.
        reads_per_second: Option<u32>,
    },
}

impl Room {
    /// For a quarter of the files, on the disk as it is.
    pub const QUARTER: Self = Self::Quarter {
        reads_per_second: None,
    };
}

/// Servers that accept, each in a control group if its room is limited.
///
/// The fields are in the order in which they must end.
pub struct Servers {
    /// In the order of the table.
    pub stage: Stage,
    groups: Vec<ControlGroup>,
}

impl Servers {
    /// Starts one of each kind.
    ///
    /// # Errors
    /// One of them can't be started; the message names it.
    pub fn start(setting: &Setting, kinds: &[Kind], room: Room) -> io::Result<Self> {
        let mut proxies = Vec::new();
        let mut groups = Vec::new();
        let root = setting.set.root();
        let disk = match room {
            Room::Quarter {
                reads_per_second: Some(count),
            } => Some(DiskLimit::of(root, count)?),
            _ => None,
        };
        for kind in kinds {
            let mut site = setting.site.clone();
            if room != Room::Everything {
                let group = ControlGroup::make(memory_len(setting), disk.as_ref())?;
                site.groups = group.folders().to_vec();
                groups.push(group);
            }
            let descriptors = site.descriptors;
            proxies.push(match kind {
                Kind::Fio => Proxy {
                    kind: *kind,
                    address: SocketAddr::from(([127, 0, 0, 1], 0)),
                    process: None,
                },
                _ => site.start_configured(
                    *kind,
                    &folder_name(*kind),
                    |address, folder| match kind {
                        Kind::Nginx => nginx(address, root, folder, descriptors, ""),
                        Kind::NginxThreads => {
                            nginx(address, root, folder, descriptors, "aio threads;")
                        }
                        Kind::Lighttpd => lighttpd(address, root, folder, descriptors),
                        _ => evenkeel(address, root, folder),
                    },
                )?,
            });
        }
        let stage = Stage::of(proxies);
        Ok(Self { stage, groups })
    }

    /// The control groups of `kind`, where its room is limited.
    pub fn groups(&self, kind: Kind) -> &[PathBuf] {
        let at = self.stage.proxies.iter().position(|it| it.kind == kind);
        let group = at.and_then(|at| self.groups.get(at));
        group.map_or(&[], ControlGroup::folders)
    }
}

/// The memory for a quarter of the files, in bytes.
pub fn memory_len(setting: &Setting) -> u64 {
    let len = setting.set.total_len() as f64 * MEMORY_SHARE;
    (len as u64).max(MEMORY_MIN)
}

/// What has to be read until a quarter's room is full, in bytes.
pub fn filling_len(setting: &Setting) -> u64 {
    (memory_len(setting) as f64 * FILL) as u64
}

/// Takes all files out of the page cache, and fills the server's memory with
/// random ones: not those with which a measurement begins, which would find
/// either all or nothing of what it asks for.
///
/// # Errors
/// The load's.
pub fn refill(setting: &Setting, server: &Proxy) -> io::Result<()> {
    setting.set.evict()?;
    let mut arguments = setting.asking(64, 0.0);
    arguments.push(format!(
        "--count={}",
        filling_len(setting) / setting.mean_len()
    ));
    arguments.push("--seed=1".into());
    arguments.push("--refusable".into());
    load(server.address, &arguments)?;
    // The hot ones are hot from the beginning.
    let mut arguments = setting.asking(16, 1.0);
    arguments.push("--count=2000".into());
    load(server.address, &arguments)?;
    Ok(())
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
/// when it has none left. Of many thousand files per second it fails some unless
/// a process may open some 100,000 here; no setting changes that.
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
