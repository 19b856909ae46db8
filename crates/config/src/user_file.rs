//! Files of users: one a line, with the hash of the password.

use std::io;
use std::path::Path;

use evenkeel_passwords::{BadLine, Users};

use super::input::read_regular_file;

/// Longest file that is read, in bytes: room for some 100,000 users.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Why a file of users is not taken.
#[derive(Debug)]
pub enum ReadError {
    /// It can't be read.
    Unreadable(io::Error),
    /// This line is no user.
    Line(BadLine),
}

impl ReadError {
    /// The fault in the file at `path`, in half a sentence.
    pub fn describe(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Unreadable(error) => format!("read {path}: {error}"),
            Self::Line(BadLine { number, what, .. }) => format!("{path}:{number}: {what}"),
        }
    }
}

/// Reads a file of users. Blocks.
///
/// # Errors
/// It can't be read, or a line of it is no user.
pub fn read(path: &Path) -> Result<Users, ReadError> {
    let bytes = read_regular_file(path, MAX_FILE_BYTES).map_err(ReadError::Unreadable)?;
    Users::parse(&bytes).map_err(ReadError::Line)
}
