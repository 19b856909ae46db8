//! Control groups of the kernel, version 2 or 1, for one server: how much memory
//! it has.
//!
//! Pages of files count against the group whose process had them read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The mount point of version 2.
const UNIFIED: &str = "/sys/fs/cgroup";
/// The mount point of the memory controller of version 1.
const MEMORY: &str = "/sys/fs/cgroup/memory";
/// How often a group is tried to be removed while its last process ends.
const REMOVALS_MAX: u32 = 50;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(20);

/// A control group that ends with its owner, who ends its processes before.
#[derive(Debug)]
pub struct ControlGroup {
    folder: PathBuf,
}

impl ControlGroup {
    /// Makes a group of at most `len` bytes.
    ///
    /// # Errors
    /// The kernel's, most likely because that takes root.
    pub fn make(len: u64) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-lab-{}-{number}", std::process::id());
        let (hierarchy, file) = if Path::new(MEMORY).join("tasks").exists() {
            (MEMORY, "memory.limit_in_bytes")
        } else {
            // On most machines it is there already.
            let _ = fs::write(format!("{UNIFIED}/cgroup.subtree_control"), "+memory");
            (UNIFIED, "memory.max")
        };
        let folder = Path::new(hierarchy).join(name);
        let limit = || {
            fs::create_dir(&folder)?;
            fs::write(folder.join(file), len.to_string())
        };
        limit().map_err(|error: io::Error| {
            io::Error::new(error.kind(), format!("make a control group: {error}"))
        })?;
        Ok(Self { folder })
    }

    /// As `pinned` takes it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(REMOVAL_INTERVAL);
        }
        eprintln!("evenkeel-lab: {} is left over", self.folder.display());
    }
}
