//! The cases: which files are requested, and how.

/// The load of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Random files, all of them in the page cache.
    Memory {
        /// At once.
        connections: usize,
    },
    /// One file.
    HotFile {
        /// At once.
        connections: usize,
    },
    /// Random files, few of them in the page cache.
    Cold {
        /// At once.
        connections: usize,
    },
    /// Hot files, without and with cold ones beside.
    Beside,
    /// Thousands of connections, most of them for hot files.
    Crowd,
    /// Hot files, with more cold ones beside than can be served.
    Overload,
    /// A long time.
    Long,
}

/// The disk with the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// The machine's own disk. It may be faster than one core can ask.
    Own,
    /// One of [`slow_disk`](crate::slow_disk).
    Slow,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// As `--case` takes it.
    pub name: String,
    /// As the table shows it.
    pub title: String,
    /// The load.
    pub plan: Plan,
    /// The disk.
    pub disk: Disk,
}

impl Case {
    fn on_slow_disk(self) -> Self {
        Self {
            disk: Disk::Slow,
            ..self
        }
    }
}

/// All cases, in the order in which they run.
pub fn all() -> Vec<Case> {
    let case = |name: &str, title: &str, plan| Case {
        name: name.to_owned(),
        title: title.to_owned(),
        plan,
        disk: Disk::Own,
    };
    let memory = [16, 64, 256].map(|connections| {
        case(
            &format!("memory-{connections}"),
            &format!("random files in the page cache, {connections} connections"),
            Plan::Memory { connections },
        )
    });
    let mut cases = memory.to_vec();
    cases.extend([
        case(
            "hot-44",
            "one file of 44 B, 64 connections",
            Plan::HotFile { connections: 64 },
        ),
        case(
            "cold-64",
            "random files, memory for a quarter of them, 64 connections",
            Plan::Cold {
                connections: 64,
            },
        ),
        case(
            "cold-64-disk",
            "random files, memory for a quarter, 64 connections, a disk of 4 reads at a time that take 0.6 ms each",
            Plan::Cold {
                connections: 64,
            },
        )
        .on_slow_disk(),
        case(
            "hot-beside-cold",
            "2,000 hot files/s, 64 connections that ask for cold ones beside",
            Plan::Beside,
        ),
        case(
            "hot-beside-cold-disk",
            "2,000 hot files/s, 64 connections that ask for cold ones beside, the slow disk",
            Plan::Beside,
        )
        .on_slow_disk(),
        case(
            "crowd",
            "8,000 connections, 3,000 files/s over them, a tenth of them cold",
            Plan::Crowd,
        ),
        case(
            "overload",
            "2,000 hot files/s, twice the cold ones that the server can take beside",
            Plan::Overload,
        ),
        case(
            "overload-disk",
            "2,000 hot files/s, twice the cold ones that the slow disk can take beside",
            Plan::Overload,
        )
        .on_slow_disk(),
        case("long", "random files for long, 64 connections", Plan::Long),
    ]);
    cases
}
