//! Reads past the page cache (`O_DIRECT`), for what is not worth a place there.
//!
//! Of what is read once and not again for long, nothing stays in memory then:
//! no page is looked for, filled, and taken back from what is asked for often.

use std::fs::{self, File};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_policy::reuse::{ReadHistory, Worth};
use rustix::system::sysinfo;

use super::bytes::BLOCK_LEN;
use super::open::OpenFile;

/// Time for which what is free of memory is believed to be what it was.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Which reads of a disk go past the page cache.
#[derive(Debug)]
pub struct DirectReads {
    history: ReadHistory,
    count: AtomicU64,
    memory: Memory,
    /// Whether memory had room at the last look.
    has_room: AtomicBool,
    next_look: Mutex<Instant>,
}

impl DirectReads {
    pub(super) fn new(memory: Memory) -> Self {
        DirectReads {
            history: ReadHistory::new(memory.len()),
            count: AtomicU64::new(0),
            memory,
            has_room: AtomicBool::new(false),
            next_look: Mutex::new(Instant::now()),
        }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How `len` bytes of a file are to be read, from `offset` on. `is_only_here`
    /// where nobody else has the file, or gets it before they were read.
    pub(super) fn way(
        &self,
        file: &Arc<OpenFile>,
        is_only_here: bool,
        offset: u64,
        len: usize,
    ) -> Way {
        if !file.takes_direct_reads || len == 0 || !offset.is_multiple_of(BLOCK_LEN as u64) {
            return Way::Cached;
        }
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((file.id, offset));
        match self.history.worth(hash, len as u64, self.has_room()) {
            Worth::Room => Way::Cached,
            Worth::Displacing => Way::Displacing,
            Worth::Nothing => match DirectFile::new(file, is_only_here) {
                Some(direct) => {
                    self.count.fetch_add(1, Ordering::Relaxed);
                    Way::Direct(direct)
                }
                None => Way::Displacing,
            },
        }
    }

    fn has_room(&self) -> bool {
        // Somebody else may be looking.
        if let Ok(mut next_look) = self.next_look.try_lock() {
            let now = Instant::now();
            if now >= *next_look {
                *next_look = now + LOOK_INTERVAL;
                let has_room = self.memory.has_room();
                self.has_room.store(has_room, Ordering::Relaxed);
            }
        }
        self.has_room.load(Ordering::Relaxed)
    }
}

/// How a part of a file is read.
#[derive(Debug)]
pub(super) enum Way {
    /// By way of the page cache.
    Cached,
    /// Likewise, and the kernel makes room for it first.
    Displacing,
    /// Past the page cache.
    Direct(DirectFile),
}

/// An open file that is read past the page cache.
#[derive(Debug)]
pub(super) enum DirectFile {
    /// The open file itself, which nobody else has; dropped it is as before.
    Only(Arc<OpenFile>),
    /// The same file, opened once more: others have it, and read it as usual.
    Again(File),
}

impl DirectFile {
    /// `None` where there are no such reads: not every file system has them.
    pub(super) fn new(file: &Arc<OpenFile>, is_only_here: bool) -> Option<Self> {
        match is_only_here {
            true => file.read_directly().then(|| DirectFile::Only(file.clone())),
            false => file.open_again_directly().map(DirectFile::Again),
        }
    }
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            DirectFile::Only(file) => file.as_fd(),
            DirectFile::Again(file) => file.as_fd(),
        }
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        if let DirectFile::Only(file) = self {
            file.read_as_usual();
        }
    }
}

/// The memory that this process may use, page cache included: what the machine
/// has, and less where control groups say so.
#[derive(Debug)]
pub(super) struct Memory {
    groups: Vec<Group>,
}

/// What a control group says of memory.
#[derive(Debug)]
struct Group {
    limit: File,
    usage: File,
}

/// There is room as long as more than one part in so many is free: a little always
/// is, for the kernel takes pages back before there are none.
const FREE_SHARE: u64 = 16;

impl Memory {
    /// That of this process, with the control groups that it is in now.
    pub fn of_this_process() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Memory {
            groups: groups.lines().flat_map(groups_of).collect(),
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
        Memory {
            groups: groups_in(folder.path(), "/", names),
        }
    }

    /// How much there is, in bytes.
    pub fn len(&self) -> u64 {
        self.limits().map(|it| it.0).fold(u64::MAX, u64::min)
    }

    /// Whether the page cache can grow without displacing anything.
    pub fn has_room(&self) -> bool {
        self.limits().all(|(limit, free)| free > limit / FREE_SHARE)
    }

    /// Limits, and how much is free within each, in bytes.
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

/// A group and those that it is in, up to where the groups are mounted, with the
/// names of the files that have their limit and what is used of it. In a
/// container the path may be one that only the outside knows: then the mount
/// itself is the group.
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
        let of = |group: &str| Memory {
            groups: groups_in(mount.path(), group, ["memory.max", "memory.current"]),
        };
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
        let of_machine = Memory { groups: Vec::new() }.has_room();
        let memory = Memory { groups };
        assert_eq!(memory.has_room(), of_machine);
        write("usage", "30000\n");
        assert!(!memory.has_room());
        write("limit", "max\n");
        assert_eq!(memory.has_room(), of_machine);
    }
}
