//! The cases: what is asked for how.

use super::server::Room;

/// With what a slow solid-state disk takes, or one that a cloud limits. The disk
/// of a virtual machine may well give more than one core can ask it for.
const LIMITED: Room = Room::Quarter {
    reads_per_second: Some(6_000),
};

/// What a case does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Random files, all of them in the page cache.
    Memory {
        /// At once.
        connections: usize,
        /// Requests per second over all of them; `None` is as many as it takes.
        per_second: Option<u32>,
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
        /// Memory, and how often the disk can be read from.
        room: Room,
    },
    /// Hot files, without and with cold ones beside.
    Beside(Room),
    /// Thousands of connections, most of them for hot files.
    Crowd,
    /// Hot files, with more cold ones beside than can be served.
    Overload(Room),
    /// A long time.
    Long,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// As `--case` takes it.
    pub name: String,
    /// As the table shows it.
    pub title: String,
    /// What it does.
    pub plan: Plan,
}

/// All cases, in the order in which they run.
pub fn all() -> Vec<Case> {
    let case = |name: &str, title: &str, plan| Case {
        name: name.to_owned(),
        title: title.to_owned(),
        plan,
    };
    let memory = [16, 64, 256].map(|connections| Case {
        name: format!("memory-{connections}"),
        title: format!("random files in the page cache, {connections} connections"),
        plan: Plan::Memory {
            connections,
            per_second: None,
        },
    });
    let mut cases = memory.to_vec();
    cases.extend([
        case(
            "memory-64-paced",
            "random files in the page cache, 64 connections, 4,000 files/s over them",
            // lighttpd keeps each file open for up to three seconds.
            Plan::Memory {
                connections: 64,
                per_second: Some(4_000),
            },
        ),
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
                room: Room::QUARTER,
            },
        ),
        case(
            "cold-64-disk",
            "random files, memory for a quarter, a disk that takes 6,000 reads/s, 64 connections",
            Plan::Cold {
                connections: 64,
                room: LIMITED,
            },
        ),
        case(
            "hot-beside-cold",
            "2,000 hot files/s, 64 connections that ask for cold ones beside",
            Plan::Beside(Room::QUARTER),
        ),
        case(
            "hot-beside-cold-disk",
            "2,000 hot files/s, 64 connections that ask for cold ones beside, a disk that takes 6,000 reads/s",
            Plan::Beside(LIMITED),
        ),
        case(
            "crowd",
            "8,000 connections, 3,000 files/s over them, a tenth of them cold",
            Plan::Crowd,
        ),
        case(
            "overload",
            "2,000 hot files/s, twice the cold ones that the server can take beside",
            Plan::Overload(Room::QUARTER),
        ),
        case(
            "overload-disk",
            "2,000 hot files/s, twice the cold ones that a disk of 6,000 reads/s can take beside",
            Plan::Overload(LIMITED),
        ),
        case("long", "random files for long, 64 connections", Plan::Long),
    ]);
    cases
}
