//! A request's head from a block of fields (RFC 9113 §8.1 to §8.3).
//!
//! The head becomes text of HTTP/1: the pseudo-fields, then a request line and a `host` made of
//! them, and the other fields as they came. The spans of the head go into that text. So routes,
//! logs, edits and HTTP/1 endpoints see HTTP/1. The rules of both protocols hold for everything
//! that goes on: no line can be smuggled in.
//!
//! ```text
//! :method: GET | :path: /a | :authority: b | GET /a HTTP/1.1 | host: b | accept: */* | …
//! └──────────── wire.start ───────────────▲
//! ```

mod write;

use super::fields::{self, TakeField};
use crate::error::RequestError;
use crate::field::{Field, FieldKind};
use crate::head::{Method, RequestHead, Scheme, Version};
use crate::hpack::{Block, DecodeError, Decoded};
use crate::http1::{self, MAX_FIELDS};
use crate::span::Span;

pub use write::{Form, Trailers, head_block};

/// The one protocol of an extended CONNECT that is known.
const WEBSOCKET: &[u8] = b"websocket";

/// Why a head is not read. All of its block was decoded, except after `Decoding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadFault {
    /// The connection is lost, with `COMPRESSION_ERROR`.
    Decoding(DecodeError),
    /// It breaks a rule of HTTP/2: the stream is reset with `PROTOCOL_ERROR`
    /// (RFC 9113 §8.1.1).
    Malformed,
    /// It breaks a rule of HTTP: the client gets an answer.
    Refused(RequestError),
}

impl From<DecodeError> for HeadFault {
    fn from(error: DecodeError) -> Self {
        HeadFault::Decoding(error)
    }
}

impl From<RequestError> for HeadFault {
    fn from(error: RequestError) -> Self {
        HeadFault::Refused(error)
    }
}

/// The wishes of a head that have no place in HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestExtras {
    /// The scheme; `None` where CONNECT asks for a tunnel, and has none.
    pub scheme: Option<Scheme>,
    /// Whether it opens a WebSocket by an extended CONNECT (RFC 8441). Its head has become that
    /// of an HTTP/1 handshake.
    pub opens_websocket: bool,
}

/// Reads heads of requests, one after the other.
#[derive(Debug, Default)]
pub struct RequestReader {
    /// Reused: the values of `cookie` fields, joined.
    cookies: Vec<u8>,
    /// Reused: the lines that are made of pseudo-fields.
    lines: Vec<u8>,
}

/// The pseudo-fields of a request (RFC 9113 §8.3.1).
#[derive(Debug, Default)]
struct Pseudo {
    method: Option<Span>,
    scheme: Option<Span>,
    path: Option<Span>,
    authority: Option<Span>,
    protocol: Option<Span>,
}

/// A head that is being read.
struct Reading<'a> {
    reader: &'a mut RequestReader,
    out: &'a mut Vec<u8>,
    head: &'a mut RequestHead,
    pseudo: Pseudo,
    /// Whether the lines of the pseudo-fields were written.
    has_begun: bool,
    asked: RequestExtras,
    /// Makes the key of a WebSocket handshake unique.
    nonce: u128,
}

impl RequestReader {
    /// Reads the head of a request into `out`, which is empty, and `head`. `max` is the
    /// size of the largest one, as RFC 9113 §6.5.2 counts it. `ends` says whether the stream
    /// ends with it, so that there is no body. `nonce` is another one for each request.
    ///
    /// # Errors
    /// See [`HeadFault`].
    pub fn read(
        &mut self,
        mut block: Block<'_>,
        out: &mut Vec<u8>,
        head: &mut RequestHead,
        max: usize,
        ends: bool,
        nonce: u128,
    ) -> Result<RequestExtras, HeadFault> {
        out.clear();
        self.cookies.clear();
        head.fields.clear();
        let mut reading = Reading {
            reader: self,
            out,
            head,
            pseudo: Pseudo::default(),
            has_begun: false,
            asked: RequestExtras {
                scheme: None,
                opens_websocket: false,
            },
            nonce,
        };
        match fields::read_all(&mut block, &mut reading, max)? {
            Ok(()) => reading.end(ends),
            Err(fault) => Err(fault),
        }
    }
}

impl TakeField for Reading<'_> {
    type Fault = HeadFault;
    const TOO_LARGE: HeadFault = HeadFault::Refused(RequestError::HeadTooLarge);

    fn text(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn take(&mut self, field: Decoded) -> Result<(), HeadFault> {
        if self.out.get(field.name.start as usize) == Some(&b':') {
            return self.take_pseudo(field);
        }
        let start = field.name.start as usize;
        if !fields::is_well_formed(field, self.out) {
            return Err(HeadFault::Malformed);
        }
        let shift = self.begin(start)?;
        let moved = |it: Span| Span {
            start: it.start + shift,
            end: it.end + shift,
        };
        let (name, value) = (moved(field.name), moved(field.value));
        let (start, text) = (name.start as usize, name.of(self.out));
        match text {
            b"cookie" => {
                self.take_cookie(value);
                self.out.truncate(start);
                return Ok(());
            }
            b"host" if self.pseudo.authority.is_some() => {
                let authority = self.head.host.of(self.out);
                if !value.of(self.out).eq_ignore_ascii_case(authority) {
                    return Err(HeadFault::Malformed);
                }
                self.out.truncate(start);
                return Ok(());
            }
            _ => {}
        }
        let kind = FieldKind::from_name(text);
        let is_te = kind == FieldKind::HopByHop && text == b"te";
        let is_refused = is_te && !value.of(self.out).eq_ignore_ascii_case(b"trailers");
        if is_refused || fields::is_of_connection(kind, text) {
            return Err(HeadFault::Malformed);
        }
        self.push(Field { name, value, kind })
    }
}

impl Reading<'_> {
    fn push(&mut self, field: Field) -> Result<(), HeadFault> {
        if self.head.fields.len() == MAX_FIELDS {
            return Err(RequestError::TooManyFields.into());
        }
        self.head.fields.push(field);
        Ok(())
    }

    fn take_pseudo(&mut self, field: Decoded) -> Result<(), HeadFault> {
        if self.has_begun || !http1::is_field_text(field.value.of(self.out)) {
            return Err(HeadFault::Malformed);
        }
        let pseudo = &mut self.pseudo;
        let own = match field.name.of(self.out) {
            b":method" => &mut pseudo.method,
            b":path" => &mut pseudo.path,
            b":authority" => &mut pseudo.authority,
            b":scheme" => &mut pseudo.scheme,
            b":protocol" => &mut pseudo.protocol,
            _ => return Err(HeadFault::Malformed),
        };
        match own.replace(field.value) {
            None => Ok(()),
            Some(_) => Err(HeadFault::Malformed),
        }
    }

    /// Several fields are one (RFC 9113 §8.2.3).
    fn take_cookie(&mut self, value: Span) {
        let cookies = &mut self.reader.cookies;
        if !cookies.is_empty() {
            cookies.extend_from_slice(b"; ");
        }
        cookies.extend_from_slice(value.of(self.out));
    }

    /// Writes the request line and `host` at `start`, once all pseudo-fields are there. Gives by
    /// how much the text behind them has moved.
    fn begin(&mut self, start: usize) -> Result<u32, HeadFault> {
        if self.has_begun {
            return Ok(0);
        }
        self.has_begun = true;
        let Pseudo {
            method,
            scheme,
            path,
            authority,
            protocol,
        } = self.pseudo;
        let text = |span: Span| span.of(self.out);
        let method = method.ok_or(HeadFault::Malformed)?;
        self.head.method = Method::from_token(text(method));
        let is_websocket = protocol.is_some_and(|it| text(it) == WEBSOCKET);
        let is_plain_connect = self.head.method == Method::Connect && protocol.is_none();
        let target = match (is_plain_connect, path, scheme, authority) {
            (true, None, None, Some(authority)) => authority,
            (true, ..) => return Err(HeadFault::Malformed),
            (false, Some(path), Some(_), _) if !path.is_empty() => path,
            _ => return Err(HeadFault::Malformed),
        };
        if protocol.is_some() && (self.head.method != Method::Connect || authority.is_none()) {
            return Err(HeadFault::Malformed);
        }
        if !http1::is_token(text(method)) || !http1::is_target(text(target)) {
            return Err(HeadFault::Malformed);
        }
        let is_path = text(target).first() == Some(&b'/');
        let is_of_server = self.head.method == Method::Options && text(target) == b"*";
        if !is_plain_connect && !is_path && !is_of_server {
            return Err(HeadFault::Malformed);
        }
        self.asked = RequestExtras {
            scheme: match scheme.map(text) {
                None => None,
                Some(b"http") => Some(Scheme::Http),
                Some(b"https") => Some(Scheme::Https),
                Some(_) => return Err(HeadFault::Malformed),
            },
            opens_websocket: is_websocket,
        };
        let name: &[u8] = if is_websocket {
            // In HTTP/1 this is a request for an upgrade (RFC 8441 §5).
            self.head.method = Method::Get;
            b"GET"
        } else {
            text(method)
        };
        let lines = &mut self.reader.lines;
        lines.clear();
        lines.extend_from_slice(name);
        lines.push(b' ');
        lines.extend_from_slice(text(target));
        lines.extend_from_slice(b" HTTP/1.1\r\n");
        let fields_at = lines.len();
        if let Some(authority) = authority {
            lines.extend_from_slice(b"host: ");
            lines.extend_from_slice(text(authority));
            lines.extend_from_slice(b"\r\n");
        }
        let (shift, name_len) = (lines.len(), name.len());
        self.out.splice(start..start, lines.drain(..));
        self.head.wire.start = start;
        // The text follows the rules of this version.
        self.head.version = Version::Http11;
        self.head.method_span = Span::new(start, start + name_len);
        let target_at = start + name_len + 1;
        self.head.target = Span::new(target_at, target_at + target.len());
        if let Some(authority) = authority {
            let name_at = start + fields_at;
            let value_at = name_at + b"host: ".len();
            let value = Span::new(value_at, value_at + authority.len());
            self.head.host = value;
            self.push(Field {
                name: Span::new(name_at, name_at + b"host".len()),
                value,
                kind: FieldKind::Host,
            })?;
        }
        Ok(shift as u32)
    }

    /// All fields are there.
    fn end(mut self, ends: bool) -> Result<RequestExtras, HeadFault> {
        self.begin(self.out.len())?;
        if !self.reader.cookies.is_empty() {
            let cookies = std::mem::take(&mut self.reader.cookies);
            let pushed = self.append(b"cookie", &cookies, FieldKind::Other);
            self.reader.cookies = cookies;
            pushed?;
        }
        let has_length = |it: &Field| it.kind == FieldKind::ContentLength;
        let is_tunnel = self.head.method == Method::Connect || self.asked.opens_websocket;
        if self.asked.opens_websocket {
            self.ask_for_websocket()?;
        }
        if !ends && !is_tunnel && !self.head.fields.iter().any(has_length) {
            self.append(
                b"transfer-encoding",
                b"chunked",
                FieldKind::TransferEncoding,
            )?;
        }
        self.out.extend_from_slice(b"\r\n");
        self.head.wire.end = self.out.len();
        http1::read_head(self.out, self.head)?;
        self.head.version = Version::Http2;
        let announced = self.head.announced_len();
        if ends && announced.is_some_and(|it| it > 0) {
            return Err(HeadFault::Malformed);
        }
        Ok(self.asked)
    }

    /// Adds the fields that a handshake has in HTTP/1 and not in HTTP/2. The handshake has no
    /// content: all that follows is the tunnel's.
    fn ask_for_websocket(&mut self) -> Result<(), HeadFault> {
        const KEY: &[u8] = b"sec-websocket-key";
        let mut fields = self.head.fields.iter();
        if fields.any(|it| it.kind == FieldKind::ContentLength || it.name.of(self.out) == KEY) {
            return Err(HeadFault::Malformed);
        }
        let key = websocket_key(self.nonce);
        self.append(b"connection", b"upgrade", FieldKind::Connection)?;
        self.append(b"upgrade", WEBSOCKET, FieldKind::Upgrade)?;
        self.append(KEY, &key, FieldKind::Other)
    }

    /// Adds a line behind the others.
    fn append(&mut self, name: &[u8], value: &[u8], kind: FieldKind) -> Result<(), HeadFault> {
        let field = fields::push_line(self.out, name, value, kind);
        self.push(field)
    }
}

/// A key of a handshake: 16 bytes in base64 (RFC 6455 §4.1).
fn websocket_key(nonce: u128) -> [u8; 24] {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut key = [b'='; 24];
    for (index, digit) in key.iter_mut().take(22).enumerate() {
        let bits = nonce.checked_shr(122_u32.wrapping_sub(6 * index as u32));
        // The last digit has two bits of the sixteen bytes.
        let bits = bits.unwrap_or(nonce << 4) & 0x3f;
        *digit = ALPHABET[bits as usize];
    }
    key
}

#[cfg(test)]
mod tests;
