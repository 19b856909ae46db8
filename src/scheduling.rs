//! How the kernel shares the cores between our threads.

use rustix::process::{getpriority_process, setpriority_process};

/// What a worker runs for before another thread gets its turn, in nanoseconds:
/// the shortest that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// Asks for short slices of CPU time, which come sooner, for the calling
/// thread: a scrape of the metrics or a full buffer of the access log takes
/// milliseconds, and a request does not wait that long where they share a core.
///
/// From Linux 6.12 on a thread that wakes with a shorter slice than the running
/// one gets the core at once ("complete EEVDF", sched_setattr(2)). Older
/// kernels take the call and do nothing with the slice; where it fails
/// everything works as before. Other policies than the usual one are the
/// operator's choice, and stay.
pub fn ask_for_short_slices() {
    const CALLING_THREAD: libc::pid_t = 0;
    const NO_FLAGS: libc::c_uint = 0;
    const LEN: usize = size_of::<libc::sched_attr>();
    let mut attributes = libc::sched_attr {
        size: LEN as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes no more than `LEN` bytes, all of which are
    // integers, and keeps no pointer.
    let got = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            CALLING_THREAD,
            &raw mut attributes,
            LEN as libc::c_uint,
            NO_FLAGS,
        )
    };
    if got != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the kernel reads the structure, whose `size` is its own.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            CALLING_THREAD,
            &raw const attributes,
            NO_FLAGS,
        )
    };
}

/// How much less the work of some threads counts than a worker's where a
/// processor can't do both: about a tenth.
const NICE: i32 = 10;

/// Lets the workers go before the calling thread. A process that is further back
/// already stays there.
pub fn step_back() {
    // On Linux the priority is a thread's, and `None` the one that calls.
    let set = getpriority_process(None).and_then(|own| match own < NICE {
        true => setpriority_process(None, NICE),
        false => Ok(()),
    });
    if let Err(error) = set {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a");
        tracing::warn!("the {name} thread keeps its priority: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_the_slice_that_it_asked_for() {
        let slice = || {
            let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
            let line = text.lines().find(|line| line.starts_with("se.slice"))?;
            let (_, number) = line.split_once(':')?;
            number.trim().parse::<u64>().ok()
        };
        // Of Linux 6.12 and later, where it was built to tell.
        let Some(before) = slice() else { return };
        ask_for_short_slices();
        let after = slice();
        assert!(before > SLICE_NS, "{before} ns before");
        assert_eq!(after, Some(SLICE_NS));
    }
}
