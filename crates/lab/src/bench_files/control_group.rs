//! Control groups of the kernel, version 2 or 1, for one server: how much memory
//! it has, and how often it may read from a disk.
//!
//! Pages of files count against the group whose process had them read.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{major, minor};

/// Where version 2 is.
const UNIFIED: &str = "/sys/fs/cgroup";
/// Where version 1 is: a hierarchy for memory, another for disks.
const MEMORY: &str = "/sys/fs/cgroup/memory";
const DISKS: &str = "/sys/fs/cgroup/blkio";
/// How often a group is tried to be removed while its last process ends.
const REMOVALS_MAX: u32 = 50;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(20);

/// How often a disk may be read from.
#[derive(Debug)]
pub struct DiskLimit {
    /// Its numbers, as `MAJOR:MINOR`.
    device: String,
    reads_per_second: u32,
}

impl DiskLimit {
    /// A limit on the disk that `path` is on.
    ///
    /// # Errors
    /// It is on none.
    pub fn of(path: &Path, reads_per_second: u32) -> io::Result<Self> {
        let on = fs::metadata(path)?.dev();
        let place = format!("/sys/dev/block/{}:{}", major(on), minor(on));
        let mut disk = Path::new(&place).canonicalize()?;
        // Only whole disks have limits.
        if disk.join("partition").exists() {
            disk.pop();
        }
        let device = fs::read_to_string(disk.join("dev"))?.trim().to_owned();
        Ok(DiskLimit {
            device,
            reads_per_second,
        })
    }
}

/// Control groups that end with their owner, who ends their processes before.
#[derive(Debug, Default)]
pub struct ControlGroup {
    /// One, or with version 1 one for each of what is limited.
    folders: Vec<PathBuf>,
}

impl ControlGroup {
    /// Makes a group of at most `len` bytes, with a limit on a disk or without.
    ///
    /// # Errors
    /// The kernel's, most likely because that takes root.
    pub fn make(len: u64, disk: Option<&DiskLimit>) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-lab-{}-{number}", std::process::id());
        let mut group = Self::default();
        group.limit(&name, len, disk).map_err(|error| {
            io::Error::new(error.kind(), format!("make a control group: {error}"))
        })?;
        Ok(group)
    }

    fn limit(&mut self, name: &str, len: u64, disk: Option<&DiskLimit>) -> io::Result<()> {
        let is_version_1 = Path::new(MEMORY).join("tasks").exists();
        let (memory, disks, reads) = match is_version_1 {
            true => (
                (MEMORY, "memory.limit_in_bytes"),
                (DISKS, "blkio.throttle.read_iops_device"),
                "",
            ),
            false => {
                // On most machines they are there already.
                let _ = fs::write(format!("{UNIFIED}/cgroup.subtree_control"), "+memory +io");
                ((UNIFIED, "memory.max"), (UNIFIED, "io.max"), "riops=")
            }
        };
        self.write(name, memory, &len.to_string())?;
        if let Some(disk) = disk {
            let limit = format!("{} {reads}{}", disk.device, disk.reads_per_second);
            self.write(name, disks, &limit)?;
        }
        Ok(())
    }

    /// Sets a limit in the group's folder of a hierarchy, which is made if it is
    /// not there yet.
    fn write(
        &mut self,
        name: &str,
        (hierarchy, file): (&str, &str),
        limit: &str,
    ) -> io::Result<()> {
        let folder = Path::new(hierarchy).join(name);
        if !self.folders.contains(&folder) {
            fs::create_dir(&folder)?;
            self.folders.push(folder.clone());
        }
        fs::write(folder.join(file), limit)
    }

    /// As `pinned` takes them.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            self.folders.retain(|it| fs::remove_dir(it).is_err());
            if self.folders.is_empty() {
                return;
            }
            std::thread::sleep(REMOVAL_INTERVAL);
        }
        for folder in &self.folders {
            eprintln!("evenkeel-lab: {} is left over", folder.display());
        }
    }
}
