//! The head that a client gets.

use super::lines::{Line, copy_fields, is_copied, push_all};
use super::request_id_field;
use crate::field::{Field, FieldKind};
use crate::head::ResponseHead;
use crate::identity::MAX_REQUEST_ID_LEN;
use crate::wire::BodyFraming;

/// How a response leaves for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transcode {
    /// The body goes on as it is framed.
    Raw,
    /// A chunked body is decoded; the end of the connection ends it.
    Strip,
    /// A body that ends with the connection is put in chunks.
    Chunk,
}

/// The statement of a response's head about the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Kept, as the client's version implies.
    Keep,
    /// Kept; an HTTP/1.0 client has to be told.
    KeepTold,
    /// Closed after this response.
    Close,
    /// Becomes a tunnel: `Connection: upgrade`.
    Upgrade,
}

/// How a response's head is changed on its way to the client.
#[derive(Debug, Clone, Copy)]
pub struct ResponseEdits<'a> {
    /// The change of the body's framing.
    pub transcode: Transcode,
    /// The fate of the connection.
    pub persistence: Persistence,
    /// Replaces the endpoint's; `None` passes that one on.
    pub request_id: Option<&'a [u8]>,
    /// The value of `Strict-Transport-Security` where the endpoint sends none, at most
    /// [`STRICT_TRANSPORT_LEN_MAX`] bytes.
    pub strict_transport: Option<&'a [u8]>,
}

/// The line that has browsers come back by HTTPS (RFC 6797 §6.1), up to its value.
const STRICT_TRANSPORT: &[u8] = b"\r\nStrict-Transport-Security: ";

/// Longest value of that field.
pub const STRICT_TRANSPORT_LEN_MAX: usize = 64;

/// Appends that field to a head, unless it is there.
pub fn add_strict_transport(head: &mut Vec<u8>, value: &[u8]) {
    debug_assert!(value.len() <= STRICT_TRANSPORT_LEN_MAX);
    let name = &STRICT_TRANSPORT[..STRICT_TRANSPORT.len() - 1];
    let mut lines = head.windows(name.len());
    if !lines.any(|it| it.eq_ignore_ascii_case(name)) {
        push_all(head, [&STRICT_TRANSPORT[2..], value, b"\r\n"]);
    }
}

/// Most bytes by which [`response_head`] makes a head longer. Code that writes it in place leaves
/// as many in front.
pub const RESPONSE_HEAD_GROWTH_MAX: usize = "X-Request-ID: \r\n".len()
    + MAX_REQUEST_ID_LEN
    + "Strict-Transport-Security: \r\n".len()
    + STRICT_TRANSPORT_LEN_MAX
    + "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n".len()
    + "Transfer-Encoding: chunked\r\n".len()
    + 2 * "Connection: keep-alive\r\n".len()
    // A space in the status line, and one in each line that is restated.
    + 1
    + crate::http1::MAX_RESPONSE_FIELDS;

/// How much of a response's head stays as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadReuse {
    /// All of it.
    Whole,
    /// All of it, with a `Date` to be added: see [`dated_status_line`].
    Undated,
    /// The head has to be written again: see [`response_head`].
    Nothing,
}

/// Appends the head that the client gets for `head`, with `date` where it has
/// none.
pub fn response_head(
    out: &mut Vec<u8>,
    buf: &[u8],
    head: &ResponseHead,
    edits: ResponseEdits<'_>,
    date: Option<&[u8]>,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&status_digits(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason.of(buf));
    out.extend_from_slice(b"\r\n");
    let has = |kind| head.fields.iter().any(|field| field.kind == kind);
    if let Some(date) = date.filter(|_| !has(FieldKind::Date)) {
        date_field(out, date);
    }
    copy_fields(out, buf, &head.fields, head.wire.end, |field| {
        response_line(field, head, edits)
    });
    if let Some(value) = edits.strict_transport {
        add_strict_transport(out, value);
    }
    if let Some(id) = edits.request_id {
        request_id_field(out, id);
    }
    if edits.transcode == Transcode::Chunk {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if head.status == UPGRADE_REQUIRED && has(FieldKind::Upgrade) {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    }
    connection_field(out, edits.persistence);
    out.extend_from_slice(b"\r\n");
}

/// 426 names the protocols that the client may change to (RFC 9110 §15.5.22).
const UPGRADE_REQUIRED: u16 = 426;

fn date_field(out: &mut Vec<u8>, date: &[u8]) {
    push_all(out, [b"Date: ", date, b"\r\n"]);
}

/// The treatment of a field line of a response.
fn response_line(field: &Field, head: &ResponseHead, edits: ResponseEdits<'_>) -> Line {
    match field.kind {
        FieldKind::Connection | FieldKind::HopByHop | FieldKind::KeepAlive => Line::Leave,
        FieldKind::Upgrade => {
            let is_told = edits.persistence == Persistence::Upgrade;
            Line::copy_if(is_told || head.status == UPGRADE_REQUIRED)
        }
        FieldKind::ContentLength => Line::Restate,
        // The answer to a HEAD need not name the coding that a GET would have
        // had (RFC 9110 §9.3.2), and to HTTP/1.0 it must not (RFC 9112 §6.1).
        FieldKind::TransferEncoding => {
            if head.wire.framing == BodyFraming::Chunked && edits.transcode == Transcode::Raw {
                Line::Restate
            } else {
                Line::Leave
            }
        }
        FieldKind::RequestId => Line::copy_if(edits.request_id.is_none()),
        _ => Line::Copy,
    }
}

/// How much of the head [`response_head`] would write as it came: that can stay
/// where it is.
pub fn kept_of_response_head(
    buf: &[u8],
    head: &ResponseHead,
    edits: ResponseEdits<'_>,
) -> HeadReuse {
    /// The beginning of `HTTP/1.1 200 `.
    const VERSION: &[u8] = b"HTTP/1.1";
    /// The start of a reason, behind the one space that is written.
    const REASON_START: u32 = b"HTTP/1.1 200 ".len() as u32;
    let mut is_dated = false;
    let is_kept = head.reason.start == REASON_START
        && buf.get(VERSION.len() - 1) == VERSION.last()
        && edits.transcode == Transcode::Raw
        && edits.persistence == Persistence::Keep
        && edits.request_id.is_none()
        && edits.strict_transport.is_none()
        && head.status != UPGRADE_REQUIRED
        && head.fields.iter().all(|field| {
            is_dated |= field.kind == FieldKind::Date;
            let line = response_line(field, head, edits);
            is_copied(buf, field, &line)
        });
    match (is_kept, is_dated) {
        (true, true) => HeadReuse::Whole,
        (true, false) => HeadReuse::Undated,
        (false, _) => HeadReuse::Nothing,
    }
}

/// Appends the replacement for the status line of a head that is [`HeadReuse::Undated`]; gives the
/// length of the replaced line.
pub fn dated_status_line(out: &mut Vec<u8>, buf: &[u8], head: &ResponseHead, date: &[u8]) -> usize {
    let len = match head.fields.first() {
        Some(field) => field.name.start as usize,
        None => head.wire.end.saturating_sub(b"\r\n".len()),
    };
    out.extend_from_slice(&buf[..len]);
    date_field(out, date);
    len
}

/// Appends a `Connection` field where one is needed.
pub fn connection_field(out: &mut Vec<u8>, persistence: Persistence) {
    out.extend_from_slice(match persistence {
        Persistence::Keep => b"" as &[u8],
        Persistence::KeepTold => b"Connection: keep-alive\r\n",
        Persistence::Close => b"Connection: close\r\n",
        Persistence::Upgrade => b"Connection: upgrade\r\n",
    });
}

/// A status code in three digits.
pub fn status_digits(status: u16) -> [u8; 3] {
    let digit = |place: u16| b'0' + (status / place % 10) as u8;
    [digit(100), digit(10), digit(1)]
}
