//! Keys that sign data which a client keeps and sends back.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use aws_lc_rs::{hmac, rand};

use crate::error::{Error, Fault};
use crate::file;

/// Fewer bytes can be guessed.
const MIN_LEN: usize = 32;

/// A key of HMAC-SHA-256 (RFC 2104).
pub struct MacKey(hmac::Key);

/// Does not print the key.
impl std::fmt::Debug for MacKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("MacKey")
    }
}

impl MacKey {
    /// Length of a tag, in bytes: half of the hash.
    pub const TAG_LEN: usize = 16;

    /// Reads it from a file with at least 32 random bytes. Blocks.
    ///
    /// # Errors
    /// The file can't be used.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (bytes, _) = file::read(path, 1 << 20)?;
        let found = bytes.len() as u64;
        if bytes.len() < MIN_LEN {
            return Err(Error::new(path, Fault::ShortKey { found }));
        }
        Ok(Self::of(&bytes))
    }

    /// A new key of this process alone.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn generate() -> io::Result<Self> {
        Ok(Self::of(&random()?))
    }

    /// Reads the key from a file, or makes the file, which then only its owner can read.
    /// Blocks.
    ///
    /// # Errors
    /// The file can be neither read nor made.
    pub fn read_or_make(path: &Path) -> io::Result<Self> {
        if !path.try_exists()? {
            make(path)?;
        }
        Self::read(path).map_err(io::Error::other)
    }

    fn of(bytes: &[u8]) -> Self {
        MacKey(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The tag of these texts. Texts that are cut elsewhere have another one.
    #[must_use]
    pub fn tag(&self, texts: &[&[u8]]) -> [u8; Self::TAG_LEN] {
        let mut context = hmac::Context::with_key(&self.0);
        for text in texts {
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text);
        }
        let mut tag = [0; Self::TAG_LEN];
        tag.copy_from_slice(&context.sign().as_ref()[..Self::TAG_LEN]);
        tag
    }
}

/// Makes the file of a key, with its content or not at all. One that is there by then stays.
fn make(path: &Path) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    let written = file
        .write_all(&random()?)
        .and_then(|()| file.sync_all())
        .and_then(|()| match std::fs::hard_link(&unfinished, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        });
    std::fs::remove_file(&unfinished)?;
    written
}

fn random() -> io::Result<[u8; MIN_LEN]> {
    let mut bytes = [0; MIN_LEN];
    rand::fill(&mut bytes).map_err(|_| io::Error::other("the system gives no random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_again() {
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        let path = dir.join("sticky.key");
        let made = MacKey::read_or_make(&path).unwrap();
        let read = MacKey::read_or_make(&path).unwrap();
        assert_eq!(made.tag(&[b"a", b"b"]), read.tag(&[b"a", b"b"]));
        assert_ne!(made.tag(&[b"a", b"b"]), made.tag(&[b"ab"]));
        assert_ne!(made.tag(&[b"a"]), MacKey::generate().unwrap().tag(&[b"a"]));
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 1, "nothing unfinished is left");
        std::fs::write(&path, [0; 31]).unwrap();
        assert!(MacKey::read_or_make(&path).is_err());
    }
}
