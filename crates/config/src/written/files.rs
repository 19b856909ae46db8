//! Files of a folder, and the disks that they are read from.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_proto::coding::Coding;

use super::{QueueAnswer, QueueAnswerTable, Switch};
use crate::Proxying;
use crate::file_value::{
    Candidate, Ending, FileName, FolderPath, Front, InnerPath, MediaType, TypePrefix,
};
use crate::quantity::{DurationValue, Length, Size, Timeout};
use crate::setting::{Bounded, Map, OneOrMore, Placed, options};
use crate::value::{FieldValue, Path, Text};

options! {
    /// Limits on the reads from each disk, and on what is kept of requested files. A read never
    /// blocks other requests.
    pub struct DiskTable as "the disks"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] Disk with DiskParts {
        /// Most reads that may wait, for each device.
        queue_max: usize,
        /// Longest expected wait of a read that is let into the queue.
        queue_timeout: Duration,
    } {
        /// Most reads at once, for each device.
        in_flight: Bounded<usize, 1, 64> = Default("4"),
        /// The queue of reads, for each device.
        queue: DiskQueue = Default("{}") => by_hand,
        /// Most files to keep open, over all workers.
        open_files: Bounded<usize, 16, 1_000_000> = Default("8192"),
        /// How long an open file is served before its path is checked again. A file that has
        /// been replaced is served for at most this long.
        check_interval: DurationValue = Default("'1s'"),
    }
}

options! {
    /// The queue of reads of a disk.
    pub struct DiskQueue as "the queue of a disk" {
        /// Most reads that wait; 0 for no queue.
        max: Bounded<usize, 0, 1_000_000> = Default("1000"),
        /// Longest wait. A read whose expected wait is longer is refused.
        timeout: Timeout = Default("'1s'"),
    }
}

options! {
    /// Files of a folder, for GET and HEAD.
    pub struct FilesTable as "a folder of files"
    for #[derive(Debug, Clone)] Files with FilesParts {
        /// The folder, as an absolute path.
        root: PathBuf,
        /// The prefix to remove from the request's path before the lookup in the folder, such
        /// as `/img`; without a slash at its end, and empty for no prefix.
        strip: String,
        /// The upstream for requests without a file; `None` for a 404.
        fallback: Option<Proxying>,
        /// Compression of files on request; `None` for none.
        compression: Option<Compression>,
        /// The answer when the disk can take no more reads.
        overload: QueueAnswer,
    } {
        /// The folder: an absolute path, or one from the folder of the configuration file.
        /// Links that lead out of the folder are not followed.
        root: Placed<FolderPath> = Required => by_hand,
        /// The prefix to remove from the request's path before the lookup in the folder: with
        /// `/img`, the file for `/img/a.png` is `a.png`.
        strip: Front = Optional("nothing") => by_hand,
        /// Names of index files, which stand for the folder that they are in. The first that
        /// exists is used.
        index: Vec<FileName> = Default("['index.html']"),
        /// The paths to look up in the folder, one after the other. The first that exists is
        /// the answer. `$path` stands for the request's path, without the prefix of `strip`.
        /// For a folder its index file is the answer.
        r#try as candidates: OneOrMore<Candidate> = Default("['$path']"),
        /// The name of the upstream for requests without a file.
        upstream: Placed<Text> = Optional("the answer is 404") => by_hand,
        /// The file in the folder to send as the body of a 404.
        not_found: InnerPath = Optional("a short text"),
        /// Whether a folder without an index file is answered with a list of its files.
        listing as is_listed: bool = Default("false"),
        /// Whether to serve names that begin with a dot. `/.well-known/` is always served.
        hidden as shows_hidden: bool = Default("false"),
        /// `Content-Type` by the ending of a name, without dot and in lower case, where it
        /// differs from the usual one.
        types: Map<Ending, MediaType> = Default("{}"),
        /// `Content-Type` of files without a known ending.
        default_type: MediaType = Default("'application/octet-stream'"),
        /// `Cache-Control` by a pattern of the file's path in the folder, with a slash in
        /// front, written as in `match.path`. The first pattern that matches counts, in the
        /// order written.
        cache_control: Map<Path, FieldValue> = Default("{}"),
        /// The codings of compressed copies beside the files, in order of preference:
        /// `a.css.br`, `a.css.zst` and `a.css.gz` beside `a.css`. A copy is sent to clients
        /// that accept its coding.
        precompressed: Vec<Placed<Coding>> = Default("[]"),
        /// Which files to compress on request: a table, or `true` for one with its defaults.
        compress: Compress = Optional("none") => by_hand,
        /// The answer when the disk can take no more reads; see `disk`.
        overload: QueueAnswerTable = Default("{}") => by_hand,
    }
}

options! {
    /// Which files to compress on request.
    pub struct CompressTable as "the compression of files"
    for #[derive(Debug, Clone)] Compression {
        /// Beginnings of the media types to compress.
        types: Vec<TypePrefix> = Default(TYPES),
        /// The smallest file to compress. Smaller files gain nothing.
        min as min_bytes: Length = Default("'1KiB'"),
        /// The largest file to compress. Larger files are better compressed in advance; see
        /// `precompressed`.
        max as max_bytes: Size = Default("'1MiB'"),
        /// Codings, in order of preference.
        codings: Vec<Placed<Coding>> = Default("['zstd', 'br', 'gzip']"),
    }
}

/// Text, and formats without compression of their own.
pub(super) const TYPES: &str = "[
    'text/', 'application/javascript', 'application/json', 'application/ld+json',
    'application/manifest+json', 'application/geo+json', 'application/xml',
    'application/xhtml+xml', 'application/atom+xml', 'application/rss+xml',
    'application/wasm', 'application/toml', 'application/yaml', 'image/svg+xml',
    'image/x-icon', 'image/vnd.microsoft.icon', 'font/ttf', 'font/otf',
]";

/// Which files to compress on request.
pub type Compress = Switch<CompressTable>;
