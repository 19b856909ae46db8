//! The surroundings of the file: the folders, files and names that its values refer to.

use std::io;
use std::path::{Path, PathBuf};

use super::diagnostics::Report;
use super::input::read_regular_file;
use super::setting::Field;
use super::tree::SourcePlace;
use super::value::FilePath;

/// Largest file that is read for an answer, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Whether to look up the names of endpoints, and to check this machine's limits for the
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameLookup {
    /// With the system's resolver; blocks. A name without an address is a warning, because the
    /// running process looks it up again.
    System,
    /// By the running process, for as long as it runs.
    Later,
    /// Not at all: such an endpoint gets the address 0.0.0.0, and every folder,
    /// address and port is believed to be there. For checks.
    Skip,
}

/// The surroundings of the file: the folders, files and names that its values refer to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    /// The folder of the configuration file, where other files are.
    pub folder: &'a Path,
    /// How names are looked up.
    pub lookup: NameLookup,
}

/// Reads the file with the body of an answer; `None` is a mistake, `Some(None)` no
/// file.
pub(super) fn read_body(
    file: &Field<FilePath>,
    folder: &Path,
    report: &mut Report,
) -> Option<Option<(PathBuf, Vec<u8>)>> {
    let Some(written) = &file.value else {
        return Some(None);
    };
    let path = folder.join(&written.0);
    match read_file(&path) {
        Ok(body) => Some(Some((path, body))),
        Err(error) => {
            report
                .mistake(&file.place, format!("read {}: {error}", path.display()))
                .help("the file is read when the configuration is loaded, from the folder of the configuration file");
            None
        }
    }
}

/// The bytes of a file that a setting names.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    read_regular_file(path, MAX_FILE_BYTES)
}

/// A path of the configuration as an absolute one, so that it stays the same wherever
/// the process works.
pub(super) fn absolute(
    path: &Path,
    place: &SourcePlace,
    folder: &Path,
    report: &mut Report,
) -> Option<PathBuf> {
    let path = folder.join(path);
    match std::path::absolute(&path) {
        Ok(path) => Some(path),
        Err(error) => {
            let what = format!("find the folder {}: {error}", path.display());
            report.mistake(place, what).help("write an absolute path");
            None
        }
    }
}
