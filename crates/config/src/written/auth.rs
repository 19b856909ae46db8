//! Who may use a route: those who show that they are somebody.

use crate::quantity::Timeout;
use crate::reserved::RequestField;
use crate::setting::{Placed, options};
use crate::tree::Node;
use crate::value::{FieldName, FieldValue, FilePath, ProbePath, Text};

options! {
    /// How clients show who they are: by a password (`basic`), or as another server says
    /// (`forward`).
    pub struct AuthTable as "authentication" {
        /// By a password (HTTP Basic): the file of users, with `USER:HASH` a line, as
        /// `htpasswd -B` makes it. Hashes are of bcrypt, or of argon2 (argon2id, argon2i).
        /// The file is read again when it changes. An absolute path, or one from the folder
        /// of the configuration file.
        basic: Placed<FilePath> = RequiredWithout("forward"),
        /// With `basic`: what browsers show when they ask for the password, and what they
        /// keep it for.
        realm: FieldValue = Optional("the route's `name`, else `evenkeel`"),
        /// As another server says: the name of its `[upstream.NAME]`. Each request is shown
        /// to it first. With 2xx the request goes on; any other answer is the client's.
        forward: Placed<Text> = Optional("no other server"),
        /// With `forward`: the path that is asked for, such as `/api/verify`.
        path: ProbePath = Optional("has to be written with `forward`"),
        /// With `forward`: fields of its answer that the request to the endpoint gets. A
        /// client's own fields of these names are always removed.
        copy: Vec<Placed<RequestField>> = Default("[]"),
        /// With `forward`: the field of its answer that names the user, for logs and
        /// `{user}`.
        user: FieldName = Depends(user_default, "`Remote-User`, with `forward`"),
        /// With `forward`: how long its answer may take. Then the client gets 504
        /// `auth-timeout`.
        timeout: Timeout = Depends(timeout_default, "`5s`, with `forward`"),
    }
}

fn user_default(auth: &Node) -> Option<String> {
    auth.entry("forward").map(|_| "'Remote-User'".into())
}

fn timeout_default(auth: &Node) -> Option<String> {
    auth.entry("forward").map(|_| "'5s'".into())
}
