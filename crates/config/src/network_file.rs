//! Files of networks: one network or address a line.

use std::io;
use std::path::Path;

use evenkeel_policy::route::{BadLine, NetworkSet};

use super::input::read_regular_file;

/// Longest file that is read, in bytes: room for some millions of networks.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Why a file of networks is not taken.
#[derive(Debug)]
pub enum ReadError {
    /// It can't be read.
    Unreadable(io::Error),
    /// This line is no network.
    Line(BadLine),
}

impl ReadError {
    /// The fault in the file at `path`, in half a sentence.
    pub fn describe(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Unreadable(error) => format!("read {path}: {error}"),
            Self::Line(BadLine { number, what }) => format!("{path}:{number}: {what}"),
        }
    }
}

/// Reads a file of networks. Blocks.
///
/// # Errors
/// It can't be read, or a line of it is no network.
pub fn read(path: &Path) -> Result<NetworkSet, ReadError> {
    let bytes = read_regular_file(path, MAX_FILE_BYTES).map_err(ReadError::Unreadable)?;
    NetworkSet::parse(&bytes).map_err(ReadError::Line)
}
