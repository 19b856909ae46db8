//! Authentication of a route: by password, or by another server.

use crate::quantity::Timeout;
use crate::reserved::RequestField;
use crate::setting::{Placed, options};
use crate::tree::Node;
use crate::value::{FieldName, FieldValue, FilePath, ProbePath, Text};

options! {
    /// How clients authenticate: with a password (`basic`), or at another server (`forward`).
    pub struct AuthTable as "authentication" {
        /// Authentication with a password (HTTP Basic): the file of users, with `USER:HASH` a
        /// line, as `htpasswd -B` makes it. Hashes are of bcrypt, or of argon2 (argon2id,
        /// argon2i). The file is read again when it changes. An absolute path, or one from the
        /// folder of the configuration file.
        basic: Placed<FilePath> = RequiredWithout("forward"),
        /// With `basic`: the realm. Browsers show it when they ask for the password, and keep
        /// the password for it.
        realm: FieldValue = Optional("the route's `name`, else `evenkeel`"),
        /// Authentication by another server: the name of its `[upstream.NAME]`. Each request is
        /// first shown to that server. After a 2xx the request goes on; any other answer goes
        /// to the client.
        forward: Placed<Text> = Optional("no other server"),
        /// With `forward`: the path to request, such as `/api/verify`.
        path: ProbePath = Optional("has to be written with `forward`"),
        /// With `forward`: fields of the server's answer to add to the request to the endpoint.
        /// The client's own fields of these names are always removed.
        copy: Vec<Placed<RequestField>> = Default("[]"),
        /// With `forward`: the field of the server's answer that names the user, for logs and
        /// `{user}`.
        user: FieldName = Depends(user_default, "`Remote-User`, with `forward`"),
        /// With `forward`: the longest wait for the server's answer. After it the client gets
        /// 504 `auth-timeout`.
        timeout: Timeout = Depends(timeout_default, "`5s`, with `forward`"),
    }
}

fn user_default(auth: &Node) -> Option<String> {
    auth.entry("forward").map(|_| "'Remote-User'".into())
}

fn timeout_default(auth: &Node) -> Option<String> {
    auth.entry("forward").map(|_| "'5s'".into())
}
