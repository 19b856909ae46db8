//! Obstacles on this machine: `check` warns of them, and `run` fails with advice.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use evenkeel_net::Address;

/// Why the process can't listen somewhere, or write a file there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The port is for privileged processes, which this one is not.
    Privileged {
        /// The port.
        port: u16,
        /// The first one that is for all.
        first_free: u32,
    },
    /// The address is on no interface.
    Foreign(IpAddr),
    /// The folder of a file or of a socket is not there.
    NoFolder(PathBuf),
    /// Something else is where a folder should be.
    NotFolder(PathBuf),
    /// This user may not write to the file, or may not create one in the folder.
    NotWritable(PathBuf),
}

/// Whether an interface of this machine has the address. False if the kernel lets programs use
/// any address.
pub(super) fn has_address(ip: IpAddr) -> bool {
    let family = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
    let set = std::fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    let is_checked = set.is_ok_and(|it| it.trim() == "0");
    is_checked && UdpSocket::bind((ip, 0)).is_ok()
}

impl Obstacle {
    /// The obstacle to listening at an address, as far as it shows without listening.
    pub fn of(address: &Address) -> Option<Self> {
        let address = match address {
            Address::Unix(path) => return Self::in_folder_of(path),
            Address::Tcp(address) => address,
        };
        let port = address.port();
        let first_free = first_free_port();
        if port != 0 && u32::from(port) < first_free && !may_bind_any_port() {
            return Some(Obstacle::Privileged { port, first_free });
        }
        // A socket of UDP has no effect on others at a port of the kernel's choice.
        // With `ip_nonlocal_bind` the kernel allows any address.
        let tried = UdpSocket::bind((address.ip(), 0));
        let is_foreign = tried.is_err_and(|it| it.kind() == io::ErrorKind::AddrNotAvailable);
        is_foreign.then(|| Obstacle::Foreign(address.ip()))
    }

    /// The obstacle to creating a file, or to appending to an existing one.
    pub fn of_file(path: &Path) -> Option<Self> {
        match is_denied(path, Access::WRITE_OK) {
            Ok(is_denied) => is_denied.then(|| Obstacle::NotWritable(path.to_owned())),
            Err(_) => Self::in_folder_of(path),
        }
    }

    /// The obstacle to making files in a folder, or to making the folder and those above it.
    pub fn of_folder(path: &Path) -> Option<Self> {
        let mut folder = path;
        loop {
            match Self::in_folder(folder) {
                Ok(obstacle) => return obstacle,
                Err(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    folder = folder.parent()?;
                }
                Err(_) => return None,
            }
        }
    }

    /// The obstacle to making a file that is not there.
    fn in_folder_of(path: &Path) -> Option<Self> {
        let folder = path.parent()?;
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        match Self::in_folder(folder) {
            Ok(obstacle) => obstacle,
            Err(io::ErrorKind::NotFound) => Some(Obstacle::NoFolder(folder.to_owned())),
            Err(_) => None,
        }
    }

    /// The obstacle to making a file in a folder that is there.
    fn in_folder(folder: &Path) -> Result<Option<Self>, io::ErrorKind> {
        let is_denied = is_denied(folder, Access::WRITE_OK | Access::EXEC_OK)?;
        if std::fs::metadata(folder).is_ok_and(|it| !it.is_dir()) {
            return Ok(Some(Obstacle::NotFolder(folder.to_owned())));
        }
        Ok(is_denied.then(|| Obstacle::NotWritable(folder.to_owned())))
    }

    /// Advice on how to remove it.
    pub fn advice(&self) -> String {
        match self {
            Obstacle::Privileged { first_free, .. } => format!(
                "give the process CAP_NET_BIND_SERVICE, with \
                 `AmbientCapabilities=CAP_NET_BIND_SERVICE` in its systemd unit, or choose port \
                 {first_free} or above"
            ),
            Obstacle::Foreign(_) => {
                "write an address that `ip address` lists, or only the port to listen on all \
                 addresses"
                    .to_owned()
            }
            Obstacle::NoFolder(folder) => format!("`mkdir -p {}`", folder.display()),
            Obstacle::NotFolder(_) => {
                "write the path of a folder, which may be one that does not exist yet".to_owned()
            }
            Obstacle::NotWritable(path) => {
                let made = [
                    ("/run", "RuntimeDirectory", "/run/evenkeel"),
                    ("/var/log", "LogsDirectory", "/var/log/evenkeel"),
                    ("/var/lib", "StateDirectory", "/var/lib/evenkeel"),
                ];
                let made = made.into_iter().find(|(above, ..)| path.starts_with(above));
                match made {
                    Some((_, key, folder)) => format!(
                        "`{key}=evenkeel` in the systemd unit creates the folder {folder} for its \
                         user: write a path in it"
                    ),
                    None => format!("`chown {} {}`", user(), path.display()),
                }
            }
        }
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Obstacle::Privileged { port, .. } => {
                write!(out, "this user may not listen on port {port}")
            }
            Obstacle::Foreign(ip) => write!(out, "this machine does not have the address {ip}"),
            Obstacle::NoFolder(folder) => {
                write!(out, "the folder {} does not exist", folder.display())
            }
            Obstacle::NotFolder(path) => write!(out, "{} is not a folder", path.display()),
            Obstacle::NotWritable(path) => {
                write!(out, "user {} may not write to {}", user(), path.display())
            }
        }
    }
}

/// Whether this process lacks a right to a file or folder.
fn is_denied(path: &Path, right: Access) -> Result<bool, io::ErrorKind> {
    match rustix::fs::access(path, right) {
        Ok(()) => Ok(false),
        Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => Ok(true),
        Err(error) => Err(io::Error::from(error).kind()),
    }
}

/// The user that this process runs as, by number.
pub(super) fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// An error of opening `what`, with what to do about it in its text.
pub fn explained(what: &str, error: &io::Error, obstacle: Option<Obstacle>) -> io::Error {
    let text = match (obstacle, error.kind()) {
        (Some(obstacle), _) => format!("{what}: {error}: {}", obstacle.advice()),
        (None, io::ErrorKind::AddrInUse) => format!(
            "{what}: {error}: `ss --listening --tcp --processes` shows the process that listens there"
        ),
        (None, _) => format!("{what}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

/// The first port that every process may listen on (ip(7)).
fn first_free_port() -> u32 {
    const DEFAULT: u32 = 1024;
    let set = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let set = set.ok().and_then(|it| it.trim().parse().ok());
    set.unwrap_or(DEFAULT)
}

/// Whether the process has CAP_NET_BIND_SERVICE.
fn may_bind_any_port() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_bind_service(&status)
}

/// Whether CAP_NET_BIND_SERVICE is among the effective capabilities of a
/// `/proc/PID/status`. Without a line of them nothing is warned of.
fn has_bind_service(status: &str) -> bool {
    /// `CAP_NET_BIND_SERVICE` (capabilities(7)).
    const BIT: u32 = 10;
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    set.is_none_or(|set| set >> BIT & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities() {
        for (status, expected) in [
            ("Name:\tx\nCapEff:\t0000000000000400\n", true),
            ("Name:\tx\nCapEff:\t00000000000003ff\n", false),
            ("Name:\tx\nCapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000000000\n", false),
            ("", true),
        ] {
            assert_eq!(has_bind_service(status), expected, "{status:?}");
        }
    }

    #[test]
    fn addresses_of_this_machine() {
        let of = |text: &str| Obstacle::of(&Address::Tcp(text.parse().expect("an address")));
        assert_eq!(of("127.0.0.1:18080"), None);
        assert_eq!(of("0.0.0.0:0"), None);
        let has = |text: &str| has_address(text.parse().expect("an address"));
        assert!(has("127.0.0.1") && !has("192.0.2.77"));
        let is_bound_anywhere = UdpSocket::bind(("192.0.2.77", 0)).is_ok();
        let expected = Obstacle::Foreign("192.0.2.77".parse().expect("an address"));
        assert_eq!(
            of("192.0.2.77:18080"),
            (!is_bound_anywhere).then_some(expected)
        );
    }
}
