//! The memory that this process may use, and whether there is room in it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::system::sysinfo;

/// Time for which the last look at free memory stays valid.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// There is room while more than one part in this many is free. A little always is: the kernel
/// reclaims pages before there are none.
const FREE_SHARE: u64 = 16;

/// The memory that this process may use, page cache included: that of the machine, or less where
/// control groups limit it.
#[derive(Debug)]
pub(super) struct Memory {
    groups: Vec<Group>,
    /// Whether there was room at the last look.
    had_room: AtomicBool,
    next_look: Mutex<Instant>,
}

/// The memory limit of a control group, and its use.
#[derive(Debug)]
struct Group {
    limit: File,
    usage: File,
}

impl Memory {
    /// The memory of this process, with its present control groups.
    pub fn of_this_process() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Memory::of(groups.lines().flat_map(groups_of).collect())
    }

    fn of(groups: Vec<Group>) -> Self {
        Memory {
            groups,
            had_room: AtomicBool::new(false),
            next_look: Mutex::new(Instant::now()),
        }
    }

    /// None at all.
    #[cfg(test)]
    pub fn none() -> Self {
        let folder = evenkeel_testkit::TempDir::new().expect("a folder");
        let names = ["limit", "usage"];
        for name in names {
            fs::write(folder.join(name), "0").expect("a file");
        }
        Memory::of(groups_in(folder.path(), "/", names))
    }

    /// How much there is, in bytes.
    pub fn len(&self) -> u64 {
        self.limits().map(|it| it.0).fold(u64::MAX, u64::min)
    }

    /// Whether the page cache can grow without evictions, as of a moment ago.
    pub fn has_room(&self) -> bool {
        // Another thread may be looking.
        if let Ok(mut next_look) = self.next_look.try_lock() {
            let now = Instant::now();
            if now >= *next_look {
                *next_look = now + LOOK_INTERVAL;
                self.had_room.store(self.look(), Ordering::Relaxed);
            }
        }
        self.had_room.load(Ordering::Relaxed)
    }

    /// Whether there is room within each limit.
    fn look(&self) -> bool {
        self.limits().all(|(limit, free)| free > limit / FREE_SHARE)
    }

    /// The limits, and the free bytes within each.
    fn limits(&self) -> impl Iterator<Item = (u64, u64)> {
        let info = sysinfo();
        let unit = u64::from(info.mem_unit);
        let len = |units: u64| units.saturating_mul(unit);
        let of_machine = (len(info.totalram as u64), len(info.freeram as u64));
        let of_groups = self.groups.iter().filter_map(|group| {
            let limit = number_in(&group.limit)?;
            let usage = number_in(&group.usage)?;
            Some((limit, limit.saturating_sub(usage)))
        });
        std::iter::once(of_machine).chain(of_groups)
    }
}

/// The control groups of a line of `/proc/self/cgroup` (cgroups(7)).
fn groups_of(line: &str) -> Vec<Group> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    match controllers {
        "" => groups_in(
            Path::new("/sys/fs/cgroup"),
            group,
            ["memory.max", "memory.current"],
        ),
        _ if controllers.split(',').any(|it| it == "memory") => groups_in(
            Path::new("/sys/fs/cgroup/memory"),
            group,
            ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        ),
        _ => Vec::new(),
    }
}

/// A group and its parents, up to the mount of the groups, with the names of the files for limit
/// and use. In a container the path may be valid only outside of it; then the mount itself is the
/// group.
fn groups_in(mount: &Path, group: &str, [limit, usage]: [&str; 2]) -> Vec<Group> {
    let folder: PathBuf = mount.join(group.trim_start_matches('/'));
    let folders = folder.ancestors().take_while(|it| it.starts_with(mount));
    let open = |folder: &Path| {
        Some(Group {
            limit: File::open(folder.join(limit)).ok()?,
            usage: File::open(folder.join(usage)).ok()?,
        })
    };
    folders.filter_map(open).collect()
}

/// The number in a file of a control group; `None` for `max`, which is no limit.
fn number_in(file: &File) -> Option<u64> {
    let mut text = [0; 32];
    let len = file.read_at(&mut text, 0).ok()?;
    str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;

    #[test]
    fn there_is_some_memory() {
        let memory = Memory::of_this_process();
        assert!((1 << 20..1 << 60).contains(&memory.len()));
    }

    #[test]
    fn the_smallest_limit_counts_of_those_that_there_are() {
        let mount = TempDir::new().expect("a folder");
        let group = mount.join("system.slice/evenkeel.service");
        fs::create_dir_all(&group).expect("folders");
        let write = |folder: &Path, limit: &str, usage: &str| {
            fs::write(folder.join("memory.max"), limit).expect("a file");
            fs::write(folder.join("memory.current"), usage).expect("a file");
        };
        let names = ["memory.max", "memory.current"];
        let of = |group: &str| Memory::of(groups_in(mount.path(), group, names));
        let here = || of("/system.slice/evenkeel.service");
        let of_machine = here().len();
        assert!(here().groups.is_empty());
        write(&group, "max\n", "1\n");
        assert_eq!(here().len(), of_machine);
        write(mount.path(), "32000\n", "1\n");
        let memory = here();
        assert_eq!(memory.len(), 32_000);
        write(&group, "40000\n", "1\n");
        assert_eq!(memory.len(), 32_000);
        write(&mount.join("system.slice"), "20000\n", "1\n");
        assert_eq!(here().len(), 20_000);
        assert_eq!(of("/not/here").len(), 32_000);
    }

    #[test]
    fn there_is_room_as_long_as_each_limit_leaves_some() {
        let mount = TempDir::new().expect("a folder");
        let write = |name: &str, text: &str| {
            fs::write(mount.join(name), text).expect("a file");
        };
        write("limit", "32000\n");
        write("usage", "29999\n");
        let groups = groups_in(mount.path(), "/", ["limit", "usage"]);
        assert_eq!(groups.len(), 1);
        let of_machine = Memory::of(Vec::new()).look();
        let memory = Memory::of(groups);
        assert_eq!(memory.look(), of_machine);
        write("usage", "30000\n");
        assert!(!memory.look());
        write("limit", "max\n");
        assert_eq!(memory.look(), of_machine);
    }
}
