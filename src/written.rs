//! Files that `evenkeel init` and `evenkeel fmt` write: whole, or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file that is not there yet; with `replaces`, also over one that is.
///
/// # Errors
/// It is there, or can't be written: what was there stays.
pub fn new_file(path: &Path, bytes: &[u8], replaces: bool) -> io::Result<()> {
    if replaces && path.exists() {
        return replace(path, bytes);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let outcome = file.write_all(bytes).and_then(|()| file.sync_all());
    if outcome.is_err() {
        // A part of a configuration helps nobody.
        let _ = fs::remove_file(path);
    }
    outcome
}

/// Replaces the bytes of a file, or of the one that a link leads to. Its owner may become
/// the user of the process; its mode stays.
///
/// # Errors
/// It can't be written: what was there stays.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = path.canonicalize()?;
    let mode = fs::metadata(&path)?.permissions();
    let beside = beside(&path);
    let outcome = write_beside(&beside, bytes, mode).and_then(|()| fs::rename(&beside, &path));
    if outcome.is_err() {
        let _ = fs::remove_file(&beside);
    }
    outcome
}

fn write_beside(beside: &Path, bytes: &[u8], mode: Permissions) -> io::Result<()> {
    let mut file = File::create(beside)?;
    file.set_permissions(mode)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}
