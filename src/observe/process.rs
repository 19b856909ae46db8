//! The use of the machine by this process: processor, memory, descriptors.
//!
//! Read from the kernel on demand. Values that the kernel does not give are `None`.

use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The use of the machine by this process.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ProcessFigures {
    /// Processor time of all its threads, in the kernel and out of it, in
    /// microseconds; with that of the processes before an upgrade.
    pub cpu_us: u64,
    /// Memory that it has in RAM.
    pub resident_bytes: Option<u64>,
    /// Memory that it has mapped.
    pub virtual_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// Most of them at once.
    pub max_fds: Option<u64>,
}

impl ProcessFigures {
    /// Reads them.
    pub fn read() -> Self {
        let pages = memory_pages();
        let bytes = |pages: u64| pages * rustix::param::page_size() as u64;
        ProcessFigures {
            cpu_us: cpu_us(),
            resident_bytes: pages.map(|(_, resident)| bytes(resident)),
            virtual_bytes: pages.map(|(mapped, _)| bytes(mapped)),
            open_fds: open_fds(),
            max_fds: getrlimit(Resource::Nofile).current,
        }
    }
}

/// Processor time of this process so far, in microseconds.
pub(super) fn cpu_us() -> u64 {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec as u64 * 1_000_000 + cpu.tv_nsec as u64 / 1_000
}

/// Mapped and resident, from proc(5).
fn memory_pages() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut numbers = text.split_ascii_whitespace().map(|it| it.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn open_fds() -> Option<u64> {
    let folder = "/proc/self/fd";
    // Linux tells the number as the folder's size since 6.2; before that, 0.
    match fs::metadata(folder).ok()?.len() {
        // The folder itself is open while it is read.
        0 => Some((fs::read_dir(folder).ok()?.count() as u64).saturating_sub(1)),
        count => Some(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_all_of_it() {
        let before = ProcessFigures::read();
        let _more: Vec<_> = (0..50)
            .map(|_| fs::File::open("/dev/null").expect("it is there"))
            .collect();
        let after = ProcessFigures::read();
        assert!(after.cpu_us > 0);
        assert!(after.resident_bytes > Some(100_000));
        assert!(after.virtual_bytes >= after.resident_bytes);
        assert!(after.open_fds >= before.open_fds.map(|count| count + 25));
        assert!(after.max_fds >= after.open_fds);
    }
}
