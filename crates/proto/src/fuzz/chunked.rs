//! A chunked body, beside a decoder that is written for clearness.

use super::ALL_PREFIXES_LEN;
use crate::field::MAX_BODY_BYTES;
use crate::http1::BodyDecoder;
use crate::http1::chunked::MAX_TRAILER_LEN;
use crate::{BodyError, BodyFraming};

/// Any bytes as a chunked body; the first two say how it is cut up.
pub fn chunked_body(data: &[u8]) {
    let Some((&[seed, step], body)) = data.split_first_chunk() else {
        return;
    };
    let whole = decode(body, |_| usize::MAX, How::Strip);
    let mut state = u32::from(seed) | 1;
    let uneven = decode(
        body,
        |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as usize % (usize::from(step) + 1) + 1
        },
        How::Strip,
    );
    assert_eq!(uneven, whole);
    if body.len() <= ALL_PREFIXES_LEN {
        assert_eq!(decode(body, |_| 1, How::Strip), whole);
    }
    let passed = decode(body, |_| usize::from(step) + 1, How::Advance);
    assert_eq!((passed.consumed, passed.end), (whole.consumed, whole.end));
    assert_eq!(passed.content, body[..passed.consumed]);
    let restated = decode(body, |_| usize::from(step) + 1, How::Restate);
    assert_eq!(
        (restated.consumed, restated.end),
        (whole.consumed, whole.end)
    );
    if whole.end == Ok(true) {
        let again = decode(&restated.content, |_| usize::MAX, How::Strip);
        assert_eq!(again.content, whole.content);
        let twice = decode(&restated.content, |_| usize::MAX, How::Restate);
        assert_eq!(twice.content, restated.content);
    }
    assert_eq!(whole, naive_chunked(body), "{}", body.escape_ascii());
    if whole.end == Ok(true) {
        let again = decode(&body[..whole.consumed], |_| usize::MAX, How::Strip);
        assert_eq!(again, whole);
    }
}

#[derive(Clone, Copy)]
enum How {
    Strip,
    Advance,
    Restate,
}

/// The outcome of decoding a body.
#[derive(Debug, PartialEq)]
struct Decoded {
    /// Bytes taken, framing included. 0 after a mistake: the bytes taken before
    /// it depend on the pieces.
    consumed: usize,
    /// The decoded content; empty after a mistake.
    content: Vec<u8>,
    /// Whether the end was reached, or the mistake.
    end: Result<bool, BodyError>,
}

impl Decoded {
    fn refused(error: BodyError) -> Self {
        Decoded {
            consumed: 0,
            content: Vec::new(),
            end: Err(error),
        }
    }
}

/// Decodes as a connection does: bytes that were not taken are given again with
/// more.
fn decode(body: &[u8], mut piece_len: impl FnMut(usize) -> usize, how: How) -> Decoded {
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    let (mut consumed, mut read) = (0, 0);
    let mut content = Vec::new();
    while read < body.len() && !decoder.is_done() {
        read = read.saturating_add(piece_len(read)).min(body.len());
        let mut input = body[consumed..read].to_vec();
        let advance = match how {
            How::Strip => decoder.strip(&mut input),
            How::Advance => decoder.advance(&input),
            How::Restate => decoder.restate(&mut input),
        };
        let advance = match advance {
            Ok(advance) => advance,
            Err(error) => return Decoded::refused(error),
        };
        assert!(advance.kept <= advance.consumed && advance.consumed <= input.len());
        content.extend_from_slice(&input[..advance.kept]);
        consumed += advance.consumed;
    }
    Decoded {
        consumed,
        content,
        end: Ok(decoder.is_done()),
    }
}

/// A second decoder, written for clearness and with everything at hand.
fn naive_chunked(body: &[u8]) -> Decoded {
    let mut decoded = Decoded {
        consumed: 0,
        content: Vec::new(),
        end: Ok(false),
    };
    let mut total = 0u64;
    loop {
        let rest = &body[decoded.consumed..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_hexdigit());
        let digits = &rest[..digits.count()];
        let size_text = std::str::from_utf8(digits).expect("hexadecimal digits are text");
        if digits.len() > 16 {
            return Decoded::refused(BodyError::ChunkSize);
        }
        let after = &rest[digits.len()..];
        let extension_len = match (digits, after) {
            (_, []) | ([_, ..], [b'\r']) => return decoded,
            ([_, ..], [b'\r', b'\n', ..]) => 0,
            ([_, ..], [b';' | b' ' | b'\t', ..]) => match naive_extension(after) {
                Ok(Some(len)) => len,
                Ok(None) => return decoded,
                Err(error) => return Decoded::refused(error),
            },
            _ => return Decoded::refused(BodyError::ChunkSize),
        };
        let size = u64::from_str_radix(size_text, 16).expect("16 digits fit");
        total = match total.checked_add(size) {
            Some(total) if total <= MAX_BODY_BYTES => total,
            _ => return Decoded::refused(BodyError::ChunkSize),
        };
        decoded.consumed += digits.len() + extension_len + 2;
        if size == 0 {
            return naive_trailer(body, decoded);
        }
        let rest = &body[decoded.consumed..];
        let len = size.min(rest.len() as u64) as usize;
        decoded.content.extend_from_slice(&rest[..len]);
        decoded.consumed += len;
        match &rest[len..] {
            [] | [b'\r'] => return decoded,
            [b'\r', b'\n', ..] => decoded.consumed += 2,
            _ => return Decoded::refused(BodyError::ChunkEnd),
        }
    }
}

/// Extensions, too: they end with the first CR or LF, whatever is in them.
fn naive_extension(after: &[u8]) -> Result<Option<usize>, BodyError> {
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    let line = [b"1", after].concat();
    let taken = match decoder.advance(&line) {
        Err(error @ BodyError::ChunkExtension) => return Err(error),
        // Bytes behind the line do not matter here.
        Err(_) => true,
        Ok(advance) => advance.consumed > 0,
    };
    let len = memchr::memchr2(b'\r', b'\n', after);
    assert!(!taken || len.is_some_and(|len| after[len..].starts_with(b"\r\n")));
    Ok(len.filter(|_| taken))
}

/// Decodes trailers. The naive decoder trusts the other one on the kind of a
/// mistake, but not on the end: the section ends with the first empty line.
fn naive_trailer(body: &[u8], mut decoded: Decoded) -> Decoded {
    let rest = &body[decoded.consumed..];
    let len = if rest.starts_with(b"\r\n") {
        Some(2)
    } else {
        memchr::memmem::find(rest, b"\r\n\r\n").map(|end| end + 4)
    };
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    let mut section = b"0\r\n".to_vec();
    section.extend_from_slice(rest);
    if let Err(error) = decoder.advance(&section) {
        assert!(matches!(
            error,
            BodyError::Trailer | BodyError::TrailerTooLarge
        ));
        return Decoded::refused(error);
    }
    if let Some(len) = len {
        assert!(len <= MAX_TRAILER_LEN);
        let mut section = [b"0\r\n", &rest[..len]].concat();
        let restated = BodyDecoder::new(BodyFraming::Chunked).restate(&mut section);
        let section = section[..restated.expect("it is sound").kept].to_ascii_lowercase();
        for name in ["content-length:", "transfer-encoding:", "host:", "cookie:"] {
            let at = memchr::memmem::find(&section, name.as_bytes());
            assert!(at.is_none_or(|at| at > 0 && section[at - 1] != b'\n'));
        }
        decoded.consumed += len;
        decoded.end = Ok(true);
    }
    decoded
}
