//! Stickiness: a cookie keeps a client at one endpoint.

use std::sync::Arc;

use evenkeel_tls::MacKey;

use super::forms::short_for;
use crate::quantity::Timeout;
use crate::setting::{Boxed, OneOrMore, Placed, options};
use crate::value::{FieldName, FilePath};

options! {
    /// A cookie that keeps a client at the endpoint that answered it first.
    pub struct StickyTable as "stickiness"
    for #[derive(Debug, Clone)] Sticky with StickyParts {
        /// Name of the cookie.
        cookie: String,
        /// The keys that sign the cookie; the first one signs new cookies. Empty if the process
        /// has a key of its own.
        keys: Vec<Arc<MacKey>>,
    } {
        /// Name of the cookie. Its value is signed, and does not reveal the endpoint.
        cookie: FieldName = Required => by_hand,
        /// Files with the keys that sign the cookie, for several machines: at least 32 random
        /// bytes each. The first key signs; cookies signed with any of them are accepted. The
        /// files are read when the configuration is loaded.
        keys: OneOrMore<Placed<FilePath>> = Optional("a key beside `server.state_file`, else one of the process") => by_hand,
        /// How long a browser keeps the cookie.
        max_age: Timeout = Optional("until it is closed"),
    }
}

short_for!(
    /// A cookie that keeps clients at an endpoint: its name, or a table.
    ShortSticky, Boxed<StickyTable>, "cookie", FieldName
);
