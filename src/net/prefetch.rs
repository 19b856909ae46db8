//! Asking for memory before it is needed.
//!
//! With hundreds of exchanges in flight, what one left behind when it began to
//! wait is no longer in the processor's nearest caches when it goes on. Looked
//! at piece by piece, each piece is a wait of its own; asked for at once, they
//! come together, and while a system call takes its time.

/// Length of a cache line of all processors that are asked, in bytes.
pub const LINE_LEN: usize = 64;

/// Has the cache lines of `value` fetched, of its first `most` bytes. Worth it
/// where a few dozen of them are looked at soon, one after the other.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T, most: usize) {
    let len = size_of_val(value).min(most);
    prefetch_lines((&raw const *value).addr(), len.div_ceil(LINE_LEN));
}

/// Has so many cache lines fetched from `address` on, whatever is there.
#[inline(always)]
pub fn prefetch_lines(address: usize, count: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..count {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::without_provenance(address.wrapping_add(line * LINE_LEN));
        // SAFETY: it changes nothing that a program can see, whatever the
        // address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, count);
}
