//! Mirrors: another upstream that gets a copy of each request.

use super::forms::short_for;
use crate::Proxying;
use crate::quantity::{Part, Size};
use crate::setting::{Bounded, Boxed, Placed, options};
use crate::value::Text;

options! {
    /// Another upstream, which gets a copy of each request. Its responses are dropped.
    pub struct MirrorTable as "a mirror"
    for #[derive(Debug, Clone)] Mirror with MirrorParts {
        /// How copies go to the upstream.
        proxying: Proxying,
        /// How many of a million requests are copied.
        share_ppm: u32,
    } {
        /// The name of the upstream that gets the copies.
        upstream: Placed<Text> = Required => by_hand,
        /// The part of the requests to copy, drawn for each request.
        share: Placed<Part> = Default("1") => by_hand,
        /// The longest body of a request to copy. The body is held in `server.buffer_memory`
        /// until it is complete.
        max_body as max_body_bytes: Size<usize> = Default("'1MiB'"),
        /// Most copies that each worker has in flight to the upstream. Further requests are not
        /// copied.
        max_in_flight: Bounded<u32, 1, 1_000_000> = Default("256"),
    }
}

short_for!(
    /// A mirror: the name of its upstream, or a table.
    ShortMirror, Boxed<MirrorTable>, "upstream", Text
);
