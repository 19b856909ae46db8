//! A Redis or Valkey server that several processes share.

use super::forms::short_for;
use crate::cache_value::RedisUrl;
use crate::setting::{OneOrMore, Placed, options};
use crate::value::FilePath;

options! {
    /// A Redis or Valkey server that several processes share.
    pub struct SharedTable as "the shared server" {
        /// The URL of the server: `redis://USER:PASSWORD@HOST:PORT/DATABASE`, `rediss://…` for
        /// TLS, or `unix:PATH`. Only the host is required. No output shows the password.
        url: RedisUrl = Required,
        /// PEM files with the authorities to trust for the server's certificate. They are read
        /// at each connection.
        ca: OneOrMore<Placed<FilePath>> = Optional("the authorities that the system trusts"),
    }
}

short_for!(
    /// A server that several processes share: its URL, or a table.
    Shared, SharedTable, "url", RedisUrl
);
