//! Files that the configuration consists of, or names: read up to a length.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of a file, which may be a pipe: it is read once. `max` is in bytes, whole
/// MiB.
///
/// # Errors
/// It can't be read, or is longer.
pub(super) fn read_up_to(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        Err(io::Error::other(format!(
            "it is larger than {} MiB",
            max >> 20
        )))
    } else {
        Ok(bytes)
    }
}
