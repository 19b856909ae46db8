//! Files that `evenkeel init` and `evenkeel fmt` write: whole, or not at all.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Writes a file that is not there yet.
///
/// # Errors
/// It is there, or can't be written: what was there stays.
pub fn new_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let outcome = file.write_all(bytes).and_then(|()| file.sync_all());
    if outcome.is_err() {
        // A part of a configuration helps nobody.
        let _ = fs::remove_file(path);
    }
    outcome
}

/// Replaces the bytes of a regular file, or of the one that a link leads to. Owner, group and
/// mode stay.
///
/// # Errors
/// It can't be written, or is no regular file: what was there stays.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = path.canonicalize()?;
    let before = fs::metadata(&path)?;
    if !before.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let beside = beside(&path);
    let outcome = write_beside(&beside, bytes, &before).and_then(|()| fs::rename(&beside, &path));
    if outcome.is_err() {
        let _ = fs::remove_file(&beside);
    }
    match outcome {
        // A mount, such as a single file of a container.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => write_in_place(&path, bytes),
        outcome => outcome,
    }
}

fn write_beside(beside: &Path, bytes: &[u8], like: &Metadata) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(beside).map_err(|error| {
        let folder = beside.parent().unwrap_or(beside);
        let text = format!("make a file in {}: {error}", folder.display());
        io::Error::new(error.kind(), text)
    })?;
    let created = file.metadata()?;
    if (created.uid(), created.gid()) != (like.uid(), like.gid()) {
        std::os::unix::fs::fchown(&file, Some(like.uid()), Some(like.gid())).map_err(|error| {
            let text = format!("keep its owner {}:{}: {error}", like.uid(), like.gid());
            io::Error::new(error.kind(), text)
        })?;
    }
    file.write_all(bytes)?;
    file.set_permissions(fs::Permissions::from_mode(like.mode() & 0o7777))?;
    file.sync_all()
}

fn write_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

/// A name that nobody can know before.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}", fastrand::u64(..)));
    name.into()
}
