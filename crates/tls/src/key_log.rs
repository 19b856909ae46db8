//! A file with the secrets of connections, for debugging.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use data_encoding::HEXLOWER;
use rustix::fs::OFlags;
use rustls::KeyLog;

/// A file in the form of `SSLKEYLOGFILE` (RFC 9850), which Wireshark reads.
///
/// Safety: anyone who can read it can decrypt the connections of all clients.
pub struct KeyLogFile {
    file: Mutex<File>,
    /// Called for the first line that can't be written.
    on_failure: fn(&io::Error),
    has_failed: AtomicBool,
}

impl KeyLogFile {
    /// Appends to a file. A new file is readable by its user only. `on_failure` is called for
    /// the first line that can't be written, on the thread of its connection.
    ///
    /// # Errors
    /// The file can't be opened.
    pub fn open(path: &Path, on_failure: fn(&io::Error)) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // A pipe without a reader is not waited for.
        let options = options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = options.create(true).append(true).mode(0o600).open(path)?;
        Ok(Self {
            file: Mutex::new(file),
            on_failure,
            has_failed: AtomicBool::new(false),
        })
    }
}

impl fmt::Debug for KeyLogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLogFile").finish_non_exhaustive()
    }
}

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let (random, secret) = (HEXLOWER.encode(client_random), HEXLOWER.encode(secret));
        let line = format!("{label} {random} {secret}\n");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // In one piece: several processes may append.
        if let Err(error) = file.write_all(line.as_bytes())
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            (self.on_failure)(&error);
        }
    }
}
