//! The present.

use std::mem::MaybeUninit;
use std::time::Duration;

use evenkeel_policy::Instant;

#[cfg(feature = "simulation")]
thread_local! {
    static STANDING: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// Stops the clock of this thread at a moment.
#[cfg(feature = "simulation")]
pub fn stand_at(moment: Instant) {
    STANDING.set(Some(moment));
}

/// Starts the clock of this thread again.
#[cfg(feature = "simulation")]
pub fn go_on() {
    STANDING.set(None);
}

/// The present, by the clock that never goes back (`CLOCK_MONOTONIC`). Answered
/// without a system call where the kernel lets the processor's counter be read.
pub fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(moment) = STANDING.get() {
        return moment;
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call writes nothing but `time`.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr()) };
    assert_eq!(outcome, 0, "every Linux has this clock");
    // SAFETY: it was written, for the call did not fail.
    moment(unsafe { time.assume_init() })
}

/// Invariant: the clock stands still at its end, after five centuries, and never
/// goes back.
fn moment(time: libc::timespec) -> Instant {
    let nanos = (time.tv_sec as u64).saturating_mul(1_000_000_000);
    Instant::from_nanos(nanos.saturating_add(time.tv_nsec as u64))
}

/// How long ago a moment was.
pub fn since(moment: Instant) -> Duration {
    now().duration_since(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stands_still_at_its_end() {
        let at = |tv_sec, tv_nsec| moment(libc::timespec { tv_sec, tv_nsec });
        assert_eq!(at(2, 7), Instant::from_nanos(2_000_000_007));
        let last = u64::MAX / 1_000_000_000;
        assert!(at(last as i64, 0) < at(last as i64 + 1, 0));
        assert_eq!(at(i64::MAX, 999_999_999), Instant::from_nanos(u64::MAX));
    }

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
