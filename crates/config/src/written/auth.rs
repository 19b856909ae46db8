//! Who may use a route: those who show that they are somebody.

use crate::setting::{Placed, options};
use crate::value::{FieldValue, FilePath};

options! {
    /// How clients show who they are.
    pub struct AuthTable as "authentication" {
        /// By a password (HTTP Basic): the file of users, with `USER:HASH` a line, as
        /// `htpasswd -B` makes it. Hashes are of bcrypt, or of argon2 (argon2id, argon2i).
        /// The file is read again when it changes. An absolute path, or one from the folder
        /// of the configuration file.
        basic: Placed<FilePath> = Required,
        /// With `basic`: what browsers show when they ask for the password, and what they
        /// keep it for.
        realm: FieldValue = Optional("the route's `name`, else `evenkeel`"),
    }
}
