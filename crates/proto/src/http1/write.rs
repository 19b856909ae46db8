//! Writes heads: ranges of the buffer that was parsed, with edits between.
//!
//! Runs of fields that stay are copied whole, so order, case and spacing of
//! what a message carries survive; what belongs to one hop is left out.

use crate::head::{BodyFraming, Field, FieldKind, RequestHead, ResponseHead, Version};

/// What a proxy says of the client to the endpoint.
#[derive(Debug, Clone, Copy)]
pub struct ClientInfo<'a> {
    /// Address without port: for `X-Forwarded-For`.
    pub address: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'static str,
}

/// How a response leaves for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transcode {
    /// The body goes on as it is framed.
    Raw,
    /// A chunked body is decoded, its end is that of the connection.
    Strip,
    /// A body that ends with the connection is put in chunks.
    Chunk,
}

/// What a response's head says about the client's connection.
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

/// Appends the head that an endpoint gets for `head`.
pub fn request_head(out: &mut Vec<u8>, buf: &[u8], head: &RequestHead, client: ClientInfo<'_>) {
    request_line(out, buf, head);
    let host = head.host.of(buf);
    let own_host = head.host_in_target || host.is_empty();
    if own_host {
        out.extend_from_slice(b"Host: ");
        out.extend_from_slice(host);
        out.extend_from_slice(b"\r\n");
    }
    let upgrade = head.upgrade.is_some();
    copy_fields(out, buf, &head.fields, head.end, |field| match field.kind {
        FieldKind::Host => !own_host,
        FieldKind::Connection | FieldKind::HopByHop | FieldKind::Forwarded => false,
        FieldKind::Upgrade => upgrade,
        FieldKind::Expect => head.expect_continue,
        _ => true,
    });
    if upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    }
    forwarded_fields(out, host, client);
    out.extend_from_slice(match head.version {
        Version::Http10 => b"Via: 1.0 evenkeel\r\n\r\n",
        Version::Http11 => b"Via: 1.1 evenkeel\r\n\r\n",
    });
}

fn request_line(out: &mut Vec<u8>, buf: &[u8], head: &RequestHead) {
    out.extend_from_slice(head.method_span.of(buf));
    out.push(b' ');
    let path = head.path_and_query.of(buf);
    if !matches!(path.first(), Some(b'/' | b'*')) {
        out.push(b'/');
    }
    out.extend_from_slice(path);
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// `X-Forwarded-*` as everybody reads them, `Forwarded` by RFC 7239.
fn forwarded_fields(out: &mut Vec<u8>, host: &[u8], client: ClientInfo<'_>) {
    for part in [
        b"X-Forwarded-For: ",
        client.address,
        b"\r\nX-Forwarded-Proto: ",
        client.scheme.as_bytes(),
    ] {
        out.extend_from_slice(part);
    }
    if !host.is_empty() {
        out.extend_from_slice(b"\r\nX-Forwarded-Host: ");
        out.extend_from_slice(host);
    }
    let (open, close): (&[u8], &[u8]) = match client.address.contains(&b':') {
        true => (b"\r\nForwarded: for=\"[", b"]\""),
        false => (b"\r\nForwarded: for=", b""),
    };
    for part in [
        open,
        client.address,
        close,
        b";proto=",
        client.scheme.as_bytes(),
    ] {
        out.extend_from_slice(part);
    }
    if !host.is_empty() {
        out.extend_from_slice(b";host=\"");
        out.extend_from_slice(host);
        out.push(b'"');
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the head that the client gets for `head`.
pub fn response_head(
    out: &mut Vec<u8>,
    buf: &[u8],
    head: &ResponseHead,
    transcode: Transcode,
    persistence: Persistence,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&status_digits(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason.of(buf));
    out.extend_from_slice(b"\r\n");
    let upgrade = persistence == Persistence::Upgrade;
    let chunked = head.framing == BodyFraming::Chunked && transcode == Transcode::Raw;
    copy_fields(out, buf, &head.fields, head.end, |field| match field.kind {
        FieldKind::Connection | FieldKind::HopByHop => false,
        FieldKind::Upgrade => upgrade,
        // A HEAD or 304 answer names the coding that a GET would have had.
        FieldKind::TransferEncoding => chunked || head.framing == BodyFraming::None,
        _ => true,
    });
    if transcode == Transcode::Chunk {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    connection_field(out, persistence);
    out.extend_from_slice(b"\r\n");
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

/// Copies the lines of the fields that `keep` says yes to, run by run.
fn copy_fields(
    out: &mut Vec<u8>,
    buf: &[u8],
    fields: &[Field],
    head_end: usize,
    keep: impl Fn(&Field) -> bool,
) {
    let lines_end = head_end.saturating_sub(2);
    let mut run_start = None;
    for field in fields {
        let line_start = field.name.start as usize;
        match (keep(field), run_start) {
            (true, None) => run_start = Some(line_start),
            (false, Some(start)) => {
                out.extend_from_slice(&buf[start..line_start]);
                run_start = None;
            }
            _ => {}
        }
    }
    if let Some(start) = run_start {
        out.extend_from_slice(&buf[start..lines_end]);
    }
}
