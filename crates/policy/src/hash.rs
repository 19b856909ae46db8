//! A hash for keys and endpoints: the same on every machine and in every run.

/// Mixes every bit of `value` into every bit of the result (the finalizer of
/// SplitMix64: S. Vigna, <https://prng.di.unimi.it/splitmix64.c>).
pub fn mix(value: u64) -> u64 {
    let mut value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Hash of some bytes.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut state = mix(bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}
