//! The chunked transfer coding (RFC 9112 §7.1), decoded piece by piece.
//!
//! ```text
//!            size > 0            all data           CRLF
//!   Size ───────────────▶ Data ───────────▶ DataEnd ──────┐
//!    ▲ │ size = 0                                         │
//!    │ └──────────▶ Trailer ── empty line ──▶ Done        │
//!    └─────────────────────────────────────────────────────┘
//! ```
//!
//! A size line or a trailer section is taken only when it is whole and valid,
//! so that no byte of a malformed one is ever passed on. Chunk extensions (§7.1.1)
//! and trailer fields that may not be any are for the reader of the body to leave
//! out: see [`BodyDecoder::restate`](super::BodyDecoder::restate).

use super::MAX_FIELDS;
use super::grammar::{self, Stop};
use crate::error::BodyError;
use crate::field::{Field, FieldKind, MAX_BODY_BYTES};
use crate::span::Span;

/// Longest trailer section, in bytes.
pub const MAX_TRAILER_LEN: usize = 8 * 1024;

/// Most digits of a chunk size: what fits 64 bits.
const MAX_SIZE_DIGITS: usize = 16;

/// Longest extension of a chunk, with the line's end, in bytes.
const MAX_EXTENSION_LEN: usize = 1024;

/// Most bytes of extensions beyond those of content: a body's limit counts content.
const MAX_EXTENSIONS_LEN: u64 = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkedState {
    Size,
    Data { remaining: u64 },
    DataEnd,
    Trailer,
    Done,
}

/// The next piece of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes of framing.
    Framing {
        /// Bytes from the start of the input.
        len: usize,
        /// Those of them in front of the line's end that are a chunk's extension
        /// or white space.
        extension_len: usize,
    },
    /// So many bytes of content.
    Data {
        /// Bytes from the start of the input.
        len: usize,
    },
    /// The trailer section; the body is over.
    End {
        /// Bytes from the start of the input.
        len: usize,
    },
    /// The input holds no whole piece: more bytes are needed.
    NeedMore,
}

/// Follows a chunked body through its framing.
#[derive(Debug, Clone)]
pub struct ChunkedDecoder {
    state: ChunkedState,
    data_bytes: u64,
    chunks: u64,
    /// Bytes of extensions so far; what is beyond 4 GiB is not counted.
    extension_bytes: u32,
    /// Whether all that was taken is in normal form.
    is_normal: bool,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        ChunkedDecoder {
            state: ChunkedState::Size,
            data_bytes: 0,
            chunks: 0,
            extension_bytes: 0,
            is_normal: true,
        }
    }
}

impl ChunkedDecoder {
    /// Content announced so far, in bytes, without framing.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Chunks announced so far.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Whether nothing has to be left out of what was taken.
    pub fn is_normal(&self) -> bool {
        self.is_normal
    }

    /// Whether the last piece was the end.
    pub fn is_done(&self) -> bool {
        self.state == ChunkedState::Done
    }

    /// Takes the next piece from the start of `input`.
    ///
    /// # Errors
    /// The rule that the body breaks; nothing of the piece was taken.
    pub fn piece(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        if input.is_empty() {
            return Ok(Piece::NeedMore);
        }
        match self.state {
            ChunkedState::Size => self.size(input),
            ChunkedState::Data { remaining } => {
                let len = remaining.min(input.len() as u64) as usize;
                let remaining = remaining - len as u64;
                self.state = match remaining {
                    0 => ChunkedState::DataEnd,
                    _ => ChunkedState::Data { remaining },
                };
                Ok(Piece::Data { len })
            }
            ChunkedState::DataEnd => match input {
                [b'\r', b'\n', ..] => {
                    self.state = ChunkedState::Size;
                    Ok(Piece::Framing {
                        len: 2,
                        extension_len: 0,
                    })
                }
                [b'\r'] => Ok(Piece::NeedMore),
                _ => Err(BodyError::ChunkEnd),
            },
            ChunkedState::Trailer => self.trailer(input),
            ChunkedState::Done => Ok(Piece::End { len: 0 }),
        }
    }

    fn size(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        let mut size = 0u64;
        let mut digits = 0;
        for &byte in input {
            let Some(digit) = (byte as char).to_digit(16) else {
                break;
            };
            digits += 1;
            if digits > MAX_SIZE_DIGITS {
                return Err(BodyError::ChunkSize);
            }
            size = size << 4 | u64::from(digit);
        }
        let extension_len = match &input[digits..] {
            [] => return Ok(Piece::NeedMore),
            [b'\r'] if digits > 0 => return Ok(Piece::NeedMore),
            [b'\r', b'\n', ..] if digits > 0 => 0,
            behind @ [b';' | b' ' | b'\t', ..] if digits > 0 => match extension_len(behind)? {
                Some(len) => len,
                None => return Ok(Piece::NeedMore),
            },
            _ => return Err(BodyError::ChunkSize),
        };
        self.data_bytes = self
            .data_bytes
            .checked_add(size)
            .filter(|&total| total <= MAX_BODY_BYTES)
            .ok_or(BodyError::ChunkSize)?;
        self.chunks += 1;
        self.state = match size {
            0 => ChunkedState::Trailer,
            remaining => ChunkedState::Data { remaining },
        };
        if extension_len > 0 {
            self.is_normal = false;
            self.extension_bytes = self.extension_bytes.saturating_add(extension_len as u32);
            if u64::from(self.extension_bytes) > self.data_bytes + MAX_EXTENSIONS_LEN {
                return Err(BodyError::ChunkExtension);
            }
        }
        Ok(Piece::Framing {
            len: digits + extension_len + 2,
            extension_len,
        })
    }

    fn trailer(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        let len = match input {
            [b'\r', b'\n', ..] => 2,
            [b'\r'] => 0,
            _ => self.trailer_len(input)?,
        };
        if len == 0 {
            return if input.len() < MAX_TRAILER_LEN {
                Ok(Piece::NeedMore)
            } else {
                Err(BodyError::TrailerTooLarge)
            };
        }
        self.state = ChunkedState::Done;
        Ok(Piece::End { len })
    }

    /// Length of a trailer section with fields, 0 while it is not whole.
    fn trailer_len(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        // What comes after the limit may be the next message.
        let input = &input[..input.len().min(MAX_TRAILER_LEN)];
        let mut fields = Vec::new();
        let len = match grammar::field_lines(input, 0, &mut fields, MAX_FIELDS) {
            Ok(end) => end,
            Err(Stop::Short) => return Ok(0),
            Err(Stop::Odd) => return Err(BodyError::Trailer),
            Err(Stop::TooManyFields) => return Err(BodyError::TrailerTooLarge),
        };
        self.is_normal &= !fields.iter().any(|field| is_forbidden(field, input));
        Ok(len)
    }
}

/// Length of what stands between a chunk's size and the line's end: white space,
/// and extensions (RFC 9112 §7.1.1). `None` while the line is not whole.
///
/// ```text
/// *( BWS ";" BWS token [ BWS "=" BWS ( token / quoted-string ) ] ) BWS CRLF
/// ```
#[cold]
fn extension_len(input: &[u8]) -> Result<Option<usize>, BodyError> {
    // What comes after the limit may be content.
    let limited = &input[..input.len().min(MAX_EXTENSION_LEN)];
    match extension_end(limited) {
        Ok(end) => Ok(Some(end)),
        Err(Stop::Short) if limited.len() < MAX_EXTENSION_LEN => Ok(None),
        Err(_) => Err(BodyError::ChunkExtension),
    }
}

fn extension_end(input: &[u8]) -> Result<usize, Stop> {
    let mut at = grammar::blanks_end(input, 0);
    while input.get(at) == Some(&b';') {
        at = token(input, grammar::blanks_end(input, at + 1))?;
        at = grammar::blanks_end(input, at);
        if input.get(at) == Some(&b'=') {
            let value = grammar::blanks_end(input, at + 1);
            at = match input.get(value) {
                Some(b'"') => quoted_end(input, value + 1)?,
                _ => token(input, value)?,
            };
            at = grammar::blanks_end(input, at);
        }
    }
    grammar::line_end(input, at)?;
    Ok(at)
}

/// Takes the token at `at`, behind which there must be a byte.
fn token(input: &[u8], at: usize) -> Result<usize, Stop> {
    let end = grammar::token_end(input, at);
    match input.get(end) {
        None => Err(Stop::Short),
        Some(_) if end == at => Err(Stop::Odd),
        Some(_) => Ok(end),
    }
}

/// Takes a quoted string (RFC 9110 §5.6.4) from behind its first quote.
fn quoted_end(input: &[u8], mut at: usize) -> Result<usize, Stop> {
    loop {
        match *input.get(at).ok_or(Stop::Short)? {
            b'"' => return Ok(at + 1),
            b'\\' => match *input.get(at + 1).ok_or(Stop::Short)? {
                byte if is_text(byte) => at += 2,
                _ => return Err(Stop::Odd),
            },
            byte if is_text(byte) => at += 1,
            _ => return Err(Stop::Odd),
        }
    }
}

/// No control byte but a tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// Leaves the fields of a whole trailer section out that may not be trailers;
/// gives the length of what is left at its front.
#[cold]
pub(super) fn restate_trailer(section: &mut [u8]) -> usize {
    let mut fields = Vec::new();
    if grammar::field_lines(section, 0, &mut fields, MAX_FIELDS) != Ok(section.len()) {
        debug_assert!(false, "it was taken as a whole section");
        return section.len();
    }
    let last_line = section.len() - b"\r\n".len();
    let starts = fields.iter().map(|field| field.name.start as usize);
    let ends = starts.skip(1).chain([last_line]);
    let lines: Vec<Span> = std::iter::zip(&fields, ends)
        .filter(|(field, _)| !is_forbidden(field, section))
        .map(|(field, end)| Span::new(field.name.start as usize, end))
        .chain([Span::new(last_line, section.len())])
        .collect();
    let mut kept = 0;
    for line in lines {
        section.copy_within(line.start as usize..line.end as usize, kept);
        kept += line.len();
    }
    kept
}

/// RFC 9110 §6.5.1: what frames, routes, authenticates or says how to read the
/// content has no place behind it. Nor has what names a client, a user or another
/// method or target. An endpoint may merge trailers into the head, where CGI and
/// its like read every byte but letters and digits as `_`.
fn is_forbidden(field: &Field, buf: &[u8]) -> bool {
    const FORBIDDEN: [&str; 21] = [
        "age",
        "cache-control",
        "content-encoding",
        "content-range",
        "content-type",
        "cookie",
        "expires",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "location",
        "pragma",
        "range",
        "retry-after",
        "set-cookie",
        "trailer",
        "vary",
        "www-authenticate",
        "x-method-override",
    ];
    /// Of what a proxy says of a client, and of what overrides a request.
    const STARTS: [&str; 9] = [
        "remote-",
        "ssl-client",
        "x-auth-",
        "x-client-",
        "x-http-method",
        "x-original-",
        "x-remote-",
        "x-rewrite-",
        "x-webauth-",
    ];
    let hyphenated = |byte: &u8| {
        if byte.is_ascii_alphanumeric() {
            byte.to_ascii_lowercase()
        } else {
            b'-'
        }
    };
    let name: Vec<u8> = field.name.of(buf).iter().map(hyphenated).collect();
    let is_head_field = !matches!(
        FieldKind::from_name(&name),
        FieldKind::Other | FieldKind::UserAgent | FieldKind::Referer
    );
    is_head_field
        || FORBIDDEN.iter().any(|known| known.as_bytes() == name)
        || STARTS
            .iter()
            .any(|start| name.starts_with(start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::{BodyDecoder, MAX_FIELDS};
    use super::*;
    use crate::wire::BodyFraming;

    /// Strips `body` in pieces of so many bytes: content, bytes taken, and
    /// whether the end was seen.
    fn strip(body: &[u8], piece_len: usize) -> Result<(Vec<u8>, usize, bool), BodyError> {
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let (mut content, mut taken) = (Vec::new(), 0);
        for read in (0..body.len()).step_by(piece_len) {
            if decoder.is_done() {
                break;
            }
            let end = (read + piece_len).min(body.len());
            let mut input = body[taken..end].to_vec();
            let advance = decoder.strip(&mut input)?;
            content.extend_from_slice(&input[..advance.kept]);
            taken += advance.consumed;
        }
        Ok((content, taken, decoder.is_done()))
    }

    #[test]
    fn decodes() {
        let huge = format!("0\r\nA: {}\r\n\r\n", "b".repeat(MAX_TRAILER_LEN - 7));
        for (body, content, rest_len) in [
            ("0\r\n\r\n", "", 0),
            ("3\r\nabc\r\n0\r\n\r\n", "abc", 0),
            ("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "abcde", 0),
            ("0000003\r\nabc\r\n000\r\n\r\nGET /", "abc", 5),
            ("A\r\n0123456789\r\n0\r\n\r\n0\r\n\r\n", "0123456789", 5),
            ("1\r\n\r\r\n0\r\nX: y\r\nEtag: z\r\n\r\nrest", "\r", 4),
            (huge.as_str(), "", 0),
        ] {
            for piece_len in [usize::MAX, 1, 2, 3, 7] {
                let expected = (content.as_bytes().to_vec(), body.len() - rest_len, true);
                assert_eq!(
                    strip(body.as_bytes(), piece_len),
                    Ok(expected),
                    "{}",
                    &body[..body.len().min(60)]
                );
            }
        }
    }

    #[test]
    fn refuses() {
        use BodyError::*;
        let huge = format!("0\r\nA: {}\r\n\r\n", "b".repeat(MAX_TRAILER_LEN - 6));
        let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        let long_extension = format!("3;{}\r\nabc", "a".repeat(MAX_EXTENSION_LEN - 2));
        let many_bare = many.replacen("b\r\n", "b\n", 1);
        for (body, error) in [
            ("\r\n", ChunkSize),
            ("x\r\n", ChunkSize),
            ("0x3\r\nabc\r\n", ChunkSize),
            ("+3\r\nabc\r\n", ChunkSize),
            (" 3\r\nabc\r\n", ChunkSize),
            ("3_0\r\n", ChunkSize),
            ("3\nabc\r\n", ChunkSize),
            ("3\rabc\r\n", ChunkSize),
            ("00000000000000003\r\nabc\r\n", ChunkSize),
            ("10000000000000003\r\nabc\r\n", ChunkSize),
            ("8000000000000000\r\n", ChunkSize),
            ("ffffffffffffffff\r\n", ChunkSize),
            ("1\r\na\r\n7fffffffffffffff\r\n", ChunkSize),
            ("3;\r\nabc\r\n", ChunkExtension),
            ("3;a=b\nabc\r\n", ChunkExtension),
            ("3;a\rb\r\nabc\r\n", ChunkExtension),
            ("3 \nabc\r\n", ChunkExtension),
            ("3 a\r\nabc\r\n", ChunkExtension),
            ("3;a=\r\nabc\r\n", ChunkExtension),
            ("3;a;\r\nabc\r\n", ChunkExtension),
            ("3;a=\"b\nc\"\r\nabc\r\n", ChunkExtension),
            ("3;a=\"b\\\r\nc\"\r\nabc\r\n", ChunkExtension),
            ("3;a=\"b\"c\r\nabc\r\n", ChunkExtension),
            (long_extension.as_str(), ChunkExtension),
            ("2\r\nabc\r\n", ChunkEnd),
            ("3\r\nabc\n0\r\n", ChunkEnd),
            ("3\r\nabc\rx", ChunkEnd),
            ("3\r\nabc0\r\n", ChunkEnd),
            ("0\r\n\n", Trailer),
            ("0\r\n\rx", Trailer),
            ("0\r\nno colon\r\n\r\n", Trailer),
            ("0\r\nX : y\r\n\r\n", Trailer),
            ("0\r\nX: y\r\n z\r\n\r\n", Trailer),
            ("0\r\nX: y\n\r\n", Trailer),
            ("0\r\nX: y\nZ: ", Trailer),
            ("0\r\nX: \0\r\n\r\n", Trailer),
            (huge.as_str(), TrailerTooLarge),
            (many.as_str(), TrailerTooLarge),
            (many_bare.as_str(), Trailer),
        ] {
            for piece_len in [usize::MAX, 1, 2, 3, 7] {
                assert_eq!(
                    strip(body.as_bytes(), piece_len),
                    Err(error),
                    "{}",
                    &body[..body.len().min(60)]
                );
            }
        }
    }

    /// Restates `body` in pieces of so many bytes.
    fn restate(body: &[u8], piece_len: usize) -> (Vec<u8>, bool) {
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let (mut out, mut taken) = (Vec::new(), 0);
        for read in (0..body.len()).step_by(piece_len) {
            let end = read.saturating_add(piece_len).min(body.len());
            let mut input = body[taken..end].to_vec();
            let advance = decoder.restate(&mut input).unwrap();
            out.extend_from_slice(&input[..advance.kept]);
            taken += advance.consumed;
        }
        assert!(decoder.is_done());
        (out, decoder.is_normal())
    }

    #[test]
    fn leaves_out_what_does_not_go_on() {
        let long = "a".repeat(MAX_EXTENSION_LEN - 3);
        let long = format!("3;{long}\r\nabc\r\n0\r\n\r\n");
        for (body, restated) in [
            ("3  \r\nabc\r\n0\t\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            ("3;a\r\nabc\r\n0;b=c\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            (
                "3 ; a = \"x;\\\"\\\\ y\t\u{e9}\" ;b; c=d \r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
                "3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
            ),
            (long.as_str(), "3\r\nabc\r\n0\r\n\r\n"),
            (
                "1\r\na\r\n0\r\nA: b\r\nHost: c\r\nContent_Length: 3\r\nD:e \r\nX-Real.IP: f\r\n\r\n",
                "1\r\na\r\n0\r\nA: b\r\nD:e \r\n\r\n",
            ),
            ("0\r\nSet-Cookie: a\r\n\r\n", "0\r\n\r\n"),
            ("0;a\r\nX: y\r\nremote_user: a\r\n\r\n", "0\r\nX: y\r\n\r\n"),
        ] {
            for piece_len in [usize::MAX, 1, 2, 3, 7] {
                let (out, is_normal) = restate(body.as_bytes(), piece_len);
                assert_eq!(out, restated.as_bytes(), "{body:?}");
                assert!(!is_normal);
                let again = restate(&out, piece_len);
                assert_eq!(again, (out, true));
            }
        }
    }

    #[test]
    fn no_trailer_names_what_only_a_head_may() {
        for name in [
            "Max_Forwards",
            "Proxy_Authorization",
            "Keep_Alive",
            "CDN_Loop",
            "X-Client-IP",
            "X_Cluster_Client_IP",
            "CF-Connecting-IP",
            "True-Client-IP",
            "X-Forwarded-User",
            "X-Forwarded-Prefix",
            "X-Auth-Request-User",
            "X-Original-URI",
            "X-Original-Host",
            "X-HTTP-Method",
            "Remote-Addr",
            "SSL-Client-S-DN",
            "X-WebAuth-User",
            "X-Host",
            "Client-IP",
            "authorization",
            "Content-Length",
            "Transfer_Encoding",
            "Date",
            "Forwarded",
            "Host",
            "Max-Forwards",
            "Remote-User",
            "Remote_User",
            "X-Forwarded-For",
            "X-HTTP-Method-Override",
            "X-Original-URL",
            "X-Real-IP",
            "X-Request-ID",
            "x_real_ip",
        ] {
            let body = format!("0\r\n{name}: a\r\n\r\n");
            let (out, _) = restate(body.as_bytes(), usize::MAX);
            assert_eq!(out, b"0\r\n\r\n", "{name}");
        }
    }

    #[test]
    fn extensions_are_bounded_by_content() {
        let piece = |len: usize| format!("{len:x};{}\r\n{}\r\n", "a".repeat(999), "b".repeat(len));
        // 16 KiB and one byte of content for each byte of an extension.
        let restated = |body: String| {
            let mut body = body.into_bytes();
            BodyDecoder::new(BodyFraming::Chunked).restate(&mut body)
        };
        assert!(restated(piece(1).repeat(16)).is_ok());
        assert_eq!(
            restated(piece(1).repeat(17)),
            Err(BodyError::ChunkExtension)
        );
        assert!(restated(piece(1_000).repeat(100)).is_ok());
    }

    #[test]
    fn announces_what_is_to_come() {
        let mut decoder = ChunkedDecoder::default();
        assert_eq!(
            decoder.piece(b"ff\r\nabc"),
            Ok(Piece::Framing {
                len: 4,
                extension_len: 0
            })
        );
        assert_eq!(decoder.data_bytes(), 255);
        assert_eq!(decoder.piece(b""), Ok(Piece::NeedMore));
        assert_eq!(decoder.piece(b"abc"), Ok(Piece::Data { len: 3 }));
    }
}
