//! Asking for memory before it is needed.
//!
//! With hundreds of exchanges in flight, what one left behind when it began to
//! wait is no longer in the processor's nearest caches when it goes on. Looked
//! at piece by piece, each piece is a wait of its own; asked for at once, they
//! come together, and while a system call takes its time.

/// Has the cache lines of `value` fetched, of its first `most` bytes. Worth it
/// where a few dozen of them are looked at soon, one after the other.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T, most: usize) {
    /// That of all processors with this instruction, in bytes.
    #[cfg(target_arch = "x86_64")]
    const LINE_LEN: usize = 64;

    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of_val(value).min(most)).step_by(LINE_LEN) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = (&raw const *value).cast::<i8>().wrapping_add(offset);
        // SAFETY: it changes nothing that a program can see, whatever the
        // address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, most);
}
