//! Compression of responses on their way from an upstream to the client.

use evenkeel_proto::coding::Coding;

use super::Switch;
use super::files::TYPES;
use crate::file_value::TypePrefix;
use crate::quantity::Length;
use crate::setting::{Bounded, Placed, options};

options! {
    /// Which responses of an upstream are compressed for the client, and how.
    pub struct ResponseCompressionTable as "the compression of responses"
    for #[derive(Debug, Clone)] ResponseCompression {
        /// Beginnings of the media types to compress. Formats that are already compressed, such
        /// as images, video and archives, are always sent unchanged.
        types: Vec<Placed<TypePrefix>> = Default(TYPES),
        /// The smallest body to compress, where its length is known. Smaller bodies gain
        /// nothing.
        min as min_bytes: Length = Default("'1KiB'"),
        /// Codings, in order of preference.
        codings: Vec<Placed<Coding>> = Default("['zstd', 'br', 'gzip']"),
        /// Effort of gzip, from the fastest to the smallest.
        gzip_level: Bounded<u32, 1, 9> = Default("4"),
        /// Effort of Brotli. Levels above 6 take many megabytes for each response.
        br_level: Bounded<u32, 0, 6> = Default("4"),
        /// Effort of zstd. Levels above 6 take many megabytes for each response.
        zstd_level: Bounded<u32, 1, 6> = Default("3"),
        /// Most responses that each worker compresses at once, over all routes. Further
        /// responses are sent uncompressed. Each takes up to 1.5 MiB of memory, and 3 MiB at
        /// the highest effort.
        at_once: Bounded<usize, 1, 1_000_000> = Default("256"),
        /// Most requests in the upstream's queue for which responses are still compressed. With
        /// more, responses are sent uncompressed, which leaves the cores to the waiting
        /// requests.
        off_above_queue: Bounded<usize, 0, 1_000_000> = Default("100"),
    }
}

/// Whether responses are compressed: a table, `true` for one with its defaults, or `false`.
pub type RouteCompression = Switch<ResponseCompressionTable>;
