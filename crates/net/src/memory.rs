//! The allocator of the program, and memory that it keeps after a large piece of work.

use std::ffi::c_long;
use std::sync::{Mutex, PoisonError};

/// The program's allocator: mimalloc.
pub use mimalloc::MiMalloc as Allocator;

/// Returns memory that this thread has freed to the kernel.
///
/// The allocator keeps freed memory for later allocations. After a large configuration was
/// read, none as large follow: 10,000 hosts leave 60 MB. The call takes up to a few
/// milliseconds, so workers never make it. It has no effect if [`Allocator`] is not the
/// program's allocator.
pub fn give_back() {
    // SAFETY: the function has no precondition; it looks at the heap of this thread and
    // at memory that no thread uses.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// mimalloc's `mi_option_purge_delay`: for how many milliseconds it keeps free pages, in
/// case that they are wanted again. The bindings don't name it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// How many large pieces of work go on, and the delay beside them.
static LARGE_WORKS: Mutex<(usize, c_long)> = Mutex::new((0, 0));

/// Runs work that takes or frees much memory at once, such as reading a large configuration.
///
/// Freed memory goes back to the kernel at once, and does not stay scattered between live data.
/// May block for as long as [`give_back`].
///
/// Meanwhile the whole process returns freed pages at once, each by a system call of the
/// worker. In a steady state workers free none.
pub fn large_work<T>(work: impl FnOnce() -> T) -> T {
    /// Also where the work panics.
    struct Goes;
    impl Drop for Goes {
        fn drop(&mut self) {
            let mut works = LARGE_WORKS.lock().unwrap_or_else(PoisonError::into_inner);
            works.0 -= 1;
            if works.0 == 0 {
                // SAFETY: an option that there is, and the value that it had.
                unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, works.1) }
            }
        }
    }
    {
        let mut works = LARGE_WORKS.lock().unwrap_or_else(PoisonError::into_inner);
        if works.0 == 0 {
            // SAFETY: an option that there is.
            works.1 = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
            // SAFETY: as above; 0 is no delay.
            unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 0) }
        }
        works.0 += 1;
    }
    let goes = Goes;
    let outcome = work();
    // Pages that were freed earlier are only returned with a delay set.
    drop(goes);
    give_back();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it calls the allocator")]
    fn the_delay_is_that_of_before_afterwards() {
        // SAFETY: an option that there is.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        let before = delay();
        assert!(before > 0, "mimalloc has another option at this place");
        let inside = large_work(|| large_work(delay) + delay());
        assert_eq!((inside, delay()), (0, before));
        let panicked = std::panic::catch_unwind(|| large_work(|| panic!("a test")));
        assert!(panicked.is_err());
        assert_eq!(delay(), before);
    }
}
