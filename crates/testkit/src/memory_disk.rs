//! A file system in memory that a test fills up, or makes read-only.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use crate::deadline::STEP;
use crate::process::run;
use crate::temp::TempDir;

/// A file system in memory. Dropping it unmounts it.
#[derive(Debug)]
pub struct MemoryDisk(TempDir);

impl MemoryDisk {
    /// Mounts one of this size in bytes; `None` where `EVENKEEL_TEST_NO_MOUNT` is set, and
    /// the test is left out.
    ///
    /// # Errors
    /// The process may not mount.
    pub fn new(size: u64) -> io::Result<Option<Self>> {
        if std::env::var_os("EVENKEEL_TEST_NO_MOUNT").is_some() {
            eprintln!("left out: EVENKEEL_TEST_NO_MOUNT is set");
            return Ok(None);
        }
        let disk = Self(TempDir::new()?);
        disk.mount(&format!("size={size}"))?;
        Ok(Some(disk))
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file `filler` until there is no room left.
    ///
    /// # Errors
    /// There still is room, or the file cannot be written for another reason.
    pub fn fill(&self) -> io::Result<()> {
        let mut filler = std::fs::File::create(self.path().join("filler"))?;
        loop {
            match filler.write_all(&[0; 4096]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes room again after [`fill`](Self::fill).
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn make_room(&self) -> io::Result<()> {
        std::fs::remove_file(self.path().join("filler"))
    }

    /// Makes it read-only, for all who use it.
    ///
    /// # Errors
    /// A file is open for writing, or the process may not mount.
    pub fn make_read_only(&self) -> io::Result<()> {
        self.mount("remount,ro")
    }

    /// Makes it writable again.
    ///
    /// # Errors
    /// The process may not mount.
    pub fn make_writable(&self) -> io::Result<()> {
        self.mount("remount,rw")
    }

    fn mount(&self, options: &str) -> io::Result<()> {
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(self.path());
        let output = run(command, STEP)?;
        if output.status.success() {
            return Ok(());
        }
        let error = String::from_utf8_lossy(&output.stderr);
        let message = format!("{error}; run as root, or set EVENKEEL_TEST_NO_MOUNT=1");
        Err(io::Error::other(message))
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        // A mount that remains is left to the system.
        let _ = Command::new("umount").arg(self.path()).status();
    }
}
