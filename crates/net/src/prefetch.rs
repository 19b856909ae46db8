//! Prefetching of memory before it is needed.
//!
//! With hundreds of exchanges in flight, an exchange's memory has left the processor's nearest
//! caches when the exchange goes on. Accessed one by one, each cache line is a wait of its own.
//! Prefetched together, the lines arrive in parallel, and during a system call.

/// Length of a cache line of all processors that are asked, in bytes.
const LINE_LEN: usize = 64;

/// Memory to be fetched: the number of its cache lines above its address.
#[derive(Debug, Clone, Copy)]
pub struct PrefetchHint(usize);

impl PrefetchHint {
    /// No memory.
    pub const NONE: Self = PrefetchHint(0);

    const ADDRESS_BITS: u32 = 48;
    const ADDRESS: usize = (1 << Self::ADDRESS_BITS) - 1;

    /// The memory of `value`, at most its first `most` bytes.
    pub fn of<T: ?Sized>(value: &T, most: usize) -> Self {
        let address = (&raw const *value).addr() & Self::ADDRESS;
        let count = size_of_val(value).min(most).div_ceil(LINE_LEN);
        PrefetchHint(count << Self::ADDRESS_BITS | address)
    }

    /// Prefetches the lines, whatever they hold by now. It pays off for a few dozen lines that
    /// are soon accessed one after the other.
    #[inline(always)]
    pub fn fetch(self) {
        for line in 0..self.0 >> Self::ADDRESS_BITS {
            fetch_line((self.0 & Self::ADDRESS) + line * LINE_LEN);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch_line(address: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: it changes nothing that a program can see, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn fetch_line(address: usize) {
    // SAFETY: it changes nothing that a program can see, whatever the address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fetch_line(_address: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_has_an_address_and_cache_lines() {
        let value = [0_u8; 1000];
        let hint = PrefetchHint::of(&value, 640);
        assert_eq!(hint.0 >> PrefetchHint::ADDRESS_BITS, 10);
        assert_eq!(hint.0 & PrefetchHint::ADDRESS, (&raw const value).addr());
    }
}
