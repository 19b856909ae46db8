//! Installs missing programs of the comparisons.

use std::io;
use std::process::{Command, Stdio};

use super::proxy::NGINX_STREAM;

/// Something that must be there: its name, how to look for it, and the Debian
/// packages that have it.
pub type Needed = (&'static str, &'static [&'static str], &'static str);

const NGINX: Needed = ("nginx", &["nginx", "-v"], "nginx-light");

/// The programs for the comparison of proxies.
pub const FOR_PROXIES: [Needed; 5] = [
    NGINX,
    (
        "nginx's module for TCP",
        &["test", "-e", NGINX_STREAM],
        "libnginx-mod-stream",
    ),
    ("haproxy", &["haproxy", "-v"], "haproxy"),
    ("ab", &["ab", "-V"], "apache2-utils"),
    (
        "fonts",
        &["fc-match", "DejaVu Sans"],
        "fonts-dejavu-core fontconfig",
    ),
];
/// The programs for the comparison of file servers.
pub const FOR_FILES: [Needed; 5] = [
    NGINX,
    ("lighttpd", &["lighttpd", "-v"], "lighttpd"),
    ("fio", &["fio", "--version"], "fio"),
    ("mkfs.ext4", &["mkfs.ext4", "-V"], "e2fsprogs"),
    ("losetup", &["losetup", "--version"], "mount"),
];

/// Installs missing packages with `apt-get`, and reports it.
///
/// # Errors
/// `apt-get` can't be run, or fails.
pub fn ensure(needed: &[Needed]) -> io::Result<()> {
    for (name, probe, packages) in needed {
        if runs(probe) {
            continue;
        }
        println!("{name} is missing: apt-get install {packages}");
        let status = Command::new("apt-get")
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages.split(' '))
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null())
            .status()?;
        if !status.success() {
            let message = format!("apt-get install {packages}: {status}; try apt-get update first");
            return Err(io::Error::other(message));
        }
    }
    Ok(())
}

fn runs(probe: &[&str]) -> bool {
    Command::new(probe[0])
        .args(&probe[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
