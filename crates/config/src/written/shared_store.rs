//! A server of Redis or Valkey that several processes share.

use super::forms::short_for;
use crate::cache_value::RedisUrl;
use crate::setting::{OneOrMore, Placed, options};
use crate::value::FilePath;

options! {
    /// A server of Redis or Valkey that several processes share.
    pub struct SharedTable as "the shared server" {
        /// Its URL: `redis://USER:PASSWORD@HOST:PORT/DATABASE`, of which the host alone is
        /// needed, `rediss://…` for TLS, or `unix:PATH`. No output shows the password.
        url: RedisUrl = Required,
        /// PEM files with the authorities that may vouch for its certificate. They are read
        /// at each connection.
        ca: OneOrMore<Placed<FilePath>> = Optional("the authorities that the system trusts"),
    }
}

short_for!(
    /// A server that several processes share: its URL, or a table.
    Shared, SharedTable, "url", RedisUrl
);
