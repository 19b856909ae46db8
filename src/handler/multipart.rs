//! Several parts of a body in one answer: `multipart/byteranges` (RFC 9110 §14.6).

use evenkeel_proto::ByteRange;

/// The framing around the parts of a body.
pub(super) struct Multipart {
    boundary: String,
    /// The bytes before each part.
    pub parts: Vec<Vec<u8>>,
    /// The bytes after the last part.
    pub end: Vec<u8>,
    /// Total length, in bytes.
    len: u64,
}

impl Multipart {
    /// The framing for these parts of a body of `body_len` bytes. `content_type` is the field of
    /// each part, without the end of the line; it may be empty.
    pub fn new(ranges: &[ByteRange], content_type: &[u8], body_len: u64) -> Self {
        let boundary = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let part = |(index, range): (usize, &ByteRange)| {
            let before = if index == 0 { "" } else { "\r\n" };
            let mut part = format!("{before}--{boundary}\r\n").into_bytes();
            if !content_type.is_empty() {
                part.extend_from_slice(content_type);
                part.extend_from_slice(b"\r\n");
            }
            let ByteRange { first, last } = range;
            let line = format!("Content-Range: bytes {first}-{last}/{body_len}\r\n\r\n");
            part.extend_from_slice(line.as_bytes());
            part
        };
        let parts: Vec<Vec<u8>> = ranges.iter().enumerate().map(part).collect();
        let end = format!("\r\n--{boundary}--\r\n").into_bytes();
        let len = ranges.iter().map(ByteRange::len).sum::<u64>()
            + parts.iter().map(|part| part.len() as u64).sum::<u64>()
            + end.len() as u64;
        Multipart {
            boundary,
            parts,
            end,
            len,
        }
    }

    /// Appends the fields for this body.
    pub fn push_fields(&self, out: &mut Vec<u8>) {
        let Multipart { boundary, len, .. } = self;
        let lines = format!(
            "Content-Type: multipart/byteranges; boundary={boundary}\r\nContent-Length: {len}\r\n"
        );
        out.extend_from_slice(lines.as_bytes());
    }
}
