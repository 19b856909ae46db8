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
    /// How much is asked of each disk at once, and what is kept of files that
    /// were asked for. Nothing else waits while one is read.
    pub struct DiskTable as "the disks"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] Disk with DiskParts {
        /// Reads that may wait, for each device.
        queue_max: usize,
        /// Longest wait that is expected of a read which is let into the queue.
        queue_timeout: Duration,
    } {
        /// Reads at once, for each device.
        in_flight: Bounded<usize, 1, 64> = Default("4"),
        /// Where reads wait, for each device.
        queue: DiskQueue = Default("{}") => by_hand,
        /// Files kept open, over all workers.
        open_files: Bounded<usize, 16, 1_000_000> = Default("8192"),
        /// How long an open file is believed to be the one that its path leads
        /// to: a file that has been replaced is served for so long at most.
        check_interval: DurationValue = Default("'1s'"),
    }
}

options! {
    /// Where reads wait.
    pub struct DiskQueue as "the queue of a disk" {
        /// Most reads that wait; 0 is no queue.
        max: Bounded<usize, 0, 1_000_000> = Default("1000"),
        /// Longest wait: a read that is expected to wait for longer is not let
        /// in.
        timeout: Timeout = Default("'1s'"),
    }
}

options! {
    /// Files of a folder, for GET and HEAD.
    pub struct FilesTable as "a folder of files"
    for #[derive(Debug, Clone)] Files with FilesParts {
        /// The folder, as an absolute path.
        root: PathBuf,
        /// What is taken off the front of a request's path before it is looked for
        /// in the folder, such as `/img`; without a slash at its end, and empty for
        /// nothing.
        strip: String,
        /// Where a request goes that no file is found for; `None` is a 404.
        fallback: Option<Proxying>,
        /// What is compressed here; `None` for nothing.
        compression: Option<Compression>,
        /// What is answered where the disk can take no more.
        overload: QueueAnswer,
    } {
        /// The folder: an absolute path, or one from the folder of the
        /// configuration file. A link that leads out of it is not followed.
        root: Placed<FolderPath> = Required => by_hand,
        /// What is taken off the front of a request's path before it is looked
        /// for in the folder: with `/img`, the file for `/img/a.png` is `a.png`.
        strip: Front = Optional("nothing") => by_hand,
        /// Names of the files that stand for the folder that they are in; the
        /// first that is there.
        index: Vec<FileName> = Default("['index.html']"),
        /// What is looked for in the folder, one after the other; the first that
        /// is there is the answer. `$path` stands for the request's path, without
        /// what is stripped. Of a folder it is the index file.
        r#try as candidates: OneOrMore<Candidate> = Default("['$path']"),
        /// The name of the upstream that takes the requests for which nothing
        /// is found.
        upstream: Placed<Text> = Optional("the answer is 404") => by_hand,
        /// The file in the folder that is the body of a 404.
        not_found: InnerPath = Optional("a short text"),
        /// Whether a folder without index file is answered with a list of what
        /// is in it.
        listing as is_listed: bool = Default("false"),
        /// Whether names that begin with a dot are served. `/.well-known/` always is.
        hidden as shows_hidden: bool = Default("false"),
        /// `Content-Type` by the ending of a name, without dot and in lower
        /// case, where it is not the usual one.
        types: Map<Ending, MediaType> = Default("{}"),
        /// `Content-Type` of what has no known ending.
        default_type: MediaType = Default("'application/octet-stream'"),
        /// `Cache-Control` by pattern of the file's path in the folder, with a
        /// slash in front, written as in `match.path`: the first that matches,
        /// in the order written.
        cache_control: Map<Path, FieldValue> = Default("{}"),
        /// Compressed copies that stand beside the files, such as `a.css.br`,
        /// `a.css.zst` and `a.css.gz` beside `a.css`: in order of preference,
        /// those that are sent to clients that take them.
        precompressed: Vec<Placed<Coding>> = Default("[]"),
        /// Which files are compressed when they are asked for: a table, or
        /// `true` for one with its defaults.
        compress: Compress = Optional("none") => by_hand,
        /// What is answered where the disk can take no more; see `disk`.
        overload: QueueAnswerTable = Default("{}") => by_hand,
    }
}

options! {
    /// Which files are compressed when they are asked for.
    pub struct CompressTable as "the compression of files"
    for #[derive(Debug, Clone)] Compression {
        /// Beginnings of the media types that gain by it.
        types: Vec<TypePrefix> = Default(TYPES),
        /// The smallest file; what is smaller gains nothing.
        min as min_bytes: Length = Default("'1KiB'"),
        /// The largest file; what is larger is better compressed once, see
        /// `precompressed`.
        max as max_bytes: Size = Default("'1MiB'"),
        /// Codings, in order of preference.
        codings: Vec<Placed<Coding>> = Default("['zstd', 'br', 'gzip']"),
    }
}

/// Text, and what is stored without compression of its own.
pub(super) const TYPES: &str = "[
    'text/', 'application/javascript', 'application/json', 'application/ld+json',
    'application/manifest+json', 'application/geo+json', 'application/xml',
    'application/xhtml+xml', 'application/atom+xml', 'application/rss+xml',
    'application/wasm', 'application/toml', 'application/yaml', 'image/svg+xml',
    'image/x-icon', 'image/vnd.microsoft.icon', 'font/ttf', 'font/otf',
]";

/// Which files are compressed when they are asked for.
pub type Compress = Switch<CompressTable>;
