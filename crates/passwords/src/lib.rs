//! Files of users and hashes of their passwords: `htpasswd` with bcrypt, and argon2.
//!
//! Reads lines and verifies passwords. It opens no files and keeps no passwords; who waits
//! for a verification, and on which thread, is not its business.
#![forbid(unsafe_code)]

mod file;
mod hash;
mod users;

pub use file::UserFile;
pub use hash::{Hash, HashFault};
pub use users::{BadLine, Users};
