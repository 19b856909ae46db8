//! How the kernel shares the cores between our threads.

use rustix::process::{getpriority_process, setpriority_process};

/// The time that a thread runs before another one gets its turn, in
/// nanoseconds: the shortest that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// Asks for short slices of CPU time for the calling thread: they come sooner.
///
/// A scrape of the metrics or a full buffer of the access log takes
/// milliseconds. A request on the same core does not wait that long.
///
/// From Linux 6.12 on a thread that wakes with a shorter slice than the running
/// one gets the core at once ("complete EEVDF", sched_setattr(2)). Older
/// kernels take the call and ignore the slice. If the call fails, everything
/// works as before. Other policies than the usual one are the operator's
/// choice, and stay.
pub fn ask_for_short_slices() {
    set_slice(libc::SCHED_OTHER);
}

/// The same, for a thread that never interrupts another when it is woken
/// (`SCHED_BATCH`, sched(7)).
///
/// A worker that wakes it goes on, and has handed over more by the time it
/// waits. The thread's share of the processor is the same.
pub fn ask_for_short_slices_in_turn() {
    set_slice(libc::SCHED_BATCH);
}

fn set_slice(policy: libc::c_int) {
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
    // SAFETY: the kernel writes at most `LEN` bytes, which are all integers,
    // and keeps no pointer.
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
    attributes.sched_policy = policy as u32;
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

/// How much less the work of some threads counts than a worker's on a busy
/// processor: about a tenth.
const NICE: i32 = 10;

/// Lets the workers go before the calling thread. A process that is further back
/// already stays there.
pub fn step_back() {
    // On Linux the priority is a thread's, and `None` the one that calls.
    let set = getpriority_process(None).and_then(|own| {
        if own < NICE {
            setpriority_process(None, NICE)
        } else {
            Ok(())
        }
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

    /// A figure of the calling thread in `/proc/thread-self/sched`.
    fn number(name: &str) -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        let (_, number) = line.split_once(':')?;
        number.trim().parse::<u64>().ok()
    }

    #[test]
    fn a_thread_gets_the_slice_that_it_asked_for() {
        // Of Linux 6.12 and later, where it was built to tell.
        let Some(before) = number("se.slice") else {
            return;
        };
        ask_for_short_slices();
        let after = number("se.slice");
        assert!(before > SLICE_NS, "{before} ns before");
        assert_eq!(after, Some(SLICE_NS));
    }

    #[test]
    fn a_thread_that_waits_for_its_turn_keeps_its_share() {
        // SAFETY: it takes a number and gives one.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        step_back();
        assert_eq!(policy(), libc::SCHED_OTHER);
        ask_for_short_slices_in_turn();
        assert_eq!(policy(), libc::SCHED_BATCH);
        assert_eq!(getpriority_process(None), Ok(NICE));
        // A thread with another policy keeps it.
        ask_for_short_slices();
        assert_eq!(policy(), libc::SCHED_BATCH);
    }
}
