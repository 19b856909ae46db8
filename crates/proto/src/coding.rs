//! Content codings (RFC 9110 §8.4.1).

/// How the bytes of a representation are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// `gzip` (RFC 1952).
    Gzip,
    /// `br` (RFC 7932).
    Brotli,
    /// `zstd` (RFC 8878).
    Zstd,
}

impl Coding {
    /// Every one.
    pub const ALL: [Coding; 3] = [Coding::Gzip, Coding::Brotli, Coding::Zstd];

    /// As `Content-Encoding` says it.
    pub fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
        }
    }

    /// The ending of a file that is compressed so.
    pub fn ending(self) -> &'static str {
        match self {
            Coding::Gzip => ".gz",
            Coding::Brotli => ".br",
            Coding::Zstd => ".zst",
        }
    }
}

/// The gain of compression for a media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gain {
    /// Compression may make a body smaller.
    Possible,
    /// The type has compression of its own.
    CompressedAlready,
    /// The type is a stream of pieces, each of which its reader waits for.
    Framed,
}

/// Beginnings of types that are compressed by what they are.
const COMPRESSED: [&[u8]; 26] = [
    b"video/",
    b"audio/",
    b"image/jpeg",
    b"image/jpg",
    b"image/png",
    b"image/apng",
    b"image/gif",
    b"image/webp",
    b"image/avif",
    b"image/heic",
    b"image/heif",
    b"image/jxl",
    b"image/jp2",
    b"font/woff",
    b"application/font-woff",
    b"application/x-font-woff",
    b"application/zip",
    b"application/gzip",
    b"application/x-gzip",
    b"application/zstd",
    b"application/x-7z-compressed",
    b"application/x-bzip",
    b"application/x-xz",
    b"application/x-rar",
    b"application/vnd.rar",
    b"application/java-archive",
];

/// Beginnings of types whose pieces must not wait for others.
const FRAMED: [&[u8]; 3] = [
    b"text/event-stream",
    b"application/grpc",
    b"multipart/x-mixed-replace",
];

/// The gain of compression for this media type, whatever a configuration says. Case does not
/// count.
pub fn gain_of(media_type: &[u8]) -> Gain {
    let begins = |with: &&[u8]| {
        let front = media_type.get(..with.len());
        front.is_some_and(|it| it.eq_ignore_ascii_case(with))
    };
    if COMPRESSED.iter().any(begins) {
        Gain::CompressedAlready
    } else if FRAMED.iter().any(begins) {
        Gain::Framed
    } else {
        Gain::Possible
    }
}
