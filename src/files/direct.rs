//! Reads past the page cache (`O_DIRECT`), for what is not worth a place there.
//!
//! Of what is read once and not again for long, nothing stays in memory then:
//! no page is looked for, filled, and taken back from what is asked for often.

use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_policy::reuse::ReadHistory;
use rustix::system::sysinfo;

use super::open::OpenFile;

/// Which reads of a disk go past the page cache.
#[derive(Debug)]
pub struct DirectReads {
    history: ReadHistory,
    count: AtomicU64,
}

impl DirectReads {
    pub(super) fn new(memory_len: u64) -> Self {
        DirectReads {
            history: ReadHistory::new(memory_len),
            count: AtomicU64::new(0),
        }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes reads of a file go past the page cache until
    /// [`read_as_usual`](OpenFile::read_as_usual), if they should; whether they
    /// do. It is going to be read as a whole, and nobody else has it.
    pub(super) fn prepare(&self, file: &OpenFile) -> bool {
        let id = &file.id;
        let hash = || BuildHasherDefault::<DefaultHasher>::default().hash_one(id);
        let is_direct = file.begins_at_once
            && id.len > 0
            && !self.history.is_worth_keeping(hash(), id.len)
            && file.read_directly();
        if is_direct {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        is_direct
    }
}

/// The memory that this process may use, page cache included, in bytes: what the
/// machine has, or less where a control group says so.
pub(super) fn memory_len() -> u64 {
    let info = sysinfo();
    let of_machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(limit_of_group);
    limits.fold(of_machine, u64::min)
}

/// The limit of a control group and of those that it is in, from a line of
/// `/proc/self/cgroup` (cgroups(7)).
fn limit_of_group(line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    let (mount, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|it| it == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    smallest_limit(Path::new(mount), group, file)
}

/// The smallest number in the files of this name, from the folder of a group up
/// to where the groups are mounted. In a container the path may be one that only
/// the outside knows: then the mount itself is the group.
fn smallest_limit(mount: &Path, group: &str, file: &str) -> Option<u64> {
    let folder: PathBuf = mount.join(group.trim_start_matches('/'));
    let folders = folder.ancestors().take_while(|it| it.starts_with(mount));
    let limits = folders.filter_map(|it| fs::read_to_string(it.join(file)).ok());
    limits.filter_map(|it| it.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;

    #[test]
    fn there_is_some_memory() {
        assert!((1 << 20..1 << 60).contains(&memory_len()));
    }

    #[test]
    fn the_smallest_limit_counts_of_those_that_there_are() {
        let mount = TempDir::new().expect("a folder");
        let group = mount.join("system.slice/evenkeel.service");
        fs::create_dir_all(&group).expect("folders");
        let limit = || smallest_limit(mount.path(), "/system.slice/evenkeel.service", "memory.max");
        assert_eq!(limit(), None);
        let write = |folder: &Path, limit: &str| {
            fs::write(folder.join("memory.max"), limit).expect("a file");
        };
        write(&group, "max\n");
        assert_eq!(limit(), None);
        write(mount.path(), "3000\n");
        assert_eq!(limit(), Some(3000));
        write(&group, "4000\n");
        assert_eq!(limit(), Some(3000));
        write(&mount.join("system.slice"), "2000\n");
        assert_eq!(limit(), Some(2000));
        let outside = smallest_limit(mount.path(), "/not/here", "memory.max");
        assert_eq!(outside, Some(3000));
    }
}
