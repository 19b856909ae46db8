//! The present.

use std::mem::MaybeUninit;
use std::time::Duration;

use evenkeel_policy::Instant;

/// The present, by the clock that never goes back (`CLOCK_MONOTONIC`). Answered
/// without a system call where the kernel lets the processor's counter be read.
pub fn now() -> Instant {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call writes nothing but `time`.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr()) };
    debug_assert_eq!(outcome, 0, "every Linux has this clock");
    // SAFETY: it was written: the call fails for a clock that is not there, or
    // memory that is not the program's.
    let time = unsafe { time.assume_init() };
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// How long ago a moment was.
pub fn since(moment: Instant) -> Duration {
    now().duration_since(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_as_that_of_std_does() {
        let theirs = std::time::Instant::now();
        let begun = now();
        std::thread::sleep(Duration::from_millis(20));
        let ours = since(begun);
        let most = theirs.elapsed();
        assert!(
            Duration::from_millis(20) <= ours && ours <= most,
            "{ours:?}"
        );
    }
}
