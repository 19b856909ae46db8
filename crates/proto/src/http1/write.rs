//! Writes heads: ranges of the buffer that was parsed, with edits between.
//!
//! Runs of fields that stay are copied whole, so order, case and spacing of
//! what a message carries survive; what belongs to one hop is left out.

use std::net::IpAddr;

use crate::cdn_loop::LoopId;
use crate::forwarded::Believed;
use crate::head::{
    BodyFraming, Field, FieldKind, Method, RequestHead, ResponseHead, Scheme, Span, Version,
};
use crate::identity::TraceParent;

/// What a proxy says of the client to the endpoint, and of itself.
#[derive(Debug, Clone, Copy)]
pub struct ClientInfo<'a> {
    /// Address without port; `None` where it has none, as on a Unix socket.
    pub address: Option<&'a [u8]>,
    /// By which it came.
    pub scheme: Scheme,
    /// What a trusted proxy said of it; `None` where no such proxy is in front.
    pub relayed: Option<Relayed<'a>>,
    /// Which fields tell it.
    pub forward: Forward,
    /// `Host` where it names none: that of the endpoint, which takes its own.
    pub default_host: &'a [u8],
    /// What it calls the request.
    pub marks: Marks<'a>,
    /// What the proxy calls itself.
    pub loop_id: &'a LoopId,
    /// Whether it adds to `Via`.
    pub via: Via,
}

/// What a trusted proxy said of a client, and who it is.
#[derive(Debug, Clone, Copy)]
pub struct Relayed<'a> {
    /// What is believed of its fields.
    pub believed: &'a Believed,
    /// Its own address; `None` on a Unix socket.
    pub proxy: Option<IpAddr>,
}

/// Which fields tell an endpoint of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    pub x_forwarded: bool,
    /// `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// `X-Real-IP`.
    pub x_real_ip: bool,
}

impl Relayed<'_> {
    /// Appends each proxy behind the client, as `item` writes it.
    #[cold]
    fn proxies(self, out: &mut Vec<u8>, item: impl Fn(&mut Vec<u8>, &[u8])) {
        // Where no address was told, the proxy is the client.
        let last = self.proxy.filter(|_| self.believed.client.is_some());
        for proxy in self.believed.hops.iter().rev().copied().chain(last) {
            item(out, proxy.to_string().as_bytes());
        }
    }
}

impl Forward {
    /// None of them.
    pub const NOTHING: Forward = Forward {
        x_forwarded: false,
        forwarded: false,
        x_real_ip: false,
    };
}

/// What becomes of `Via` in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The client's goes on as it is.
    Kept,
    /// A line with the client's version follows it.
    Added,
}

/// What a proxy calls a request, in place of what its client does.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks<'a> {
    /// Value of `X-Request-ID`; `None` passes the client's on.
    pub request_id: Option<&'a [u8]>,
    /// `traceparent`; `None` passes the client's on.
    pub trace: Option<TraceMark>,
}

impl Marks<'_> {
    /// Everything goes on as the client sent it.
    pub const NONE: Marks<'static> = Marks {
        request_id: None,
        trace: None,
    };
}

/// A `traceparent` in place of the client's.
#[derive(Debug, Clone, Copy)]
pub struct TraceMark {
    /// Its value.
    pub parent: TraceParent,
    /// Whether it goes on with the client's trace, so that the client's
    /// `tracestate` belongs to it.
    pub continues: bool,
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

/// How a response's head is changed on its way to the client.
#[derive(Debug, Clone, Copy)]
pub struct ResponseEdits<'a> {
    /// What becomes of the body.
    pub transcode: Transcode,
    /// What becomes of the connection.
    pub persistence: Persistence,
    /// In place of the endpoint's; `None` passes that on.
    pub request_id: Option<&'a [u8]>,
}

/// How much of a response's head stays as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// All of it.
    Whole,
    /// All of it, with a `Date` to be added: see [`dated_status_line`].
    Undated,
    /// It is to be written anew: see [`response_head`].
    Nothing,
}

/// Appends the head that an endpoint gets for `head`.
pub fn request_head(out: &mut Vec<u8>, buf: &[u8], head: &RequestHead, client: ClientInfo<'_>) {
    request_line(out, buf, head);
    let host = head.host.of(buf);
    let own_host = head.host_in_target || host.is_empty();
    if own_host {
        let host = match host.is_empty() {
            true => client.default_host,
            false => host,
        };
        push_all(out, [b"Host: ", host, b"\r\n"]);
    }
    let upgrade = head.upgrade.is_some();
    let hops_left = head.hops_left(buf).filter(|&hops| hops > 0);
    let marks = client.marks;
    copy_fields(out, buf, &head.fields, head.end, |field| match field.kind {
        FieldKind::Host if own_host => Line::Leave,
        FieldKind::Host | FieldKind::ContentLength | FieldKind::TransferEncoding => Line::Restate,
        FieldKind::Connection
        | FieldKind::HopByHop
        | FieldKind::KeepAlive
        | FieldKind::Forwarded => Line::Leave,
        FieldKind::ProxyClaim => Line::copy_if(
            client.relayed.is_some() && !(client.forward.x_real_ip && is_real_ip(buf, field)),
        ),
        FieldKind::Upgrade => Line::copy_if(upgrade),
        FieldKind::Expect => Line::copy_if(head.expect_continue && !field.value.is_empty()),
        FieldKind::MaxForwards => Line::copy_if(hops_left.is_none()),
        FieldKind::RequestId => Line::copy_if(marks.request_id.is_none()),
        FieldKind::TraceParent => Line::copy_if(marks.trace.is_none()),
        FieldKind::TraceState => Line::copy_if(marks.trace.is_none_or(|it| it.continues)),
        _ => Line::Copy,
    });
    if upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    }
    if let Some(hops) = hops_left {
        let hops = (hops - 1).to_string();
        push_all(out, [b"Max-Forwards: ", hops.as_bytes(), b"\r\n"]);
    }
    if let Some(id) = marks.request_id {
        request_id_field(out, id);
    }
    if let Some(trace) = marks.trace {
        push_all(out, [b"traceparent: ", &trace.parent.text(), b"\r\n"]);
    }
    forwarded_fields(out, buf, host, &client);
    if client.via == Via::Added {
        out.extend_from_slice(match head.version {
            Version::Http10 => b"Via: 1.0 evenkeel\r\n",
            Version::Http11 => b"Via: 1.1 evenkeel\r\n",
        });
    }
    out.extend_from_slice(client.loop_id.end_of_head());
}

fn request_line(out: &mut Vec<u8>, buf: &[u8], head: &RequestHead) {
    out.extend_from_slice(head.method_span.of(buf));
    out.push(b' ');
    let target = match head.method {
        Method::Connect => head.target.of(buf),
        _ => head.path_and_query.of(buf),
    };
    if matches!(target.first(), None | Some(b'?')) {
        out.extend_from_slice(head.path(buf));
    }
    out.extend_from_slice(target);
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// `X-Forwarded-*` as everybody reads them, `Forwarded` by RFC 7239.
fn forwarded_fields(out: &mut Vec<u8>, buf: &[u8], host: &[u8], client: &ClientInfo<'_>) {
    let Forward {
        x_forwarded,
        forwarded,
        x_real_ip,
    } = client.forward;
    let told = |span: fn(&Believed) -> Span| match client.relayed {
        Some(relayed) => span(relayed.believed).of(buf),
        None => &[],
    };
    let host = match told(|it| it.host) {
        [] => host,
        told => told,
    };
    if x_forwarded {
        if let Some(address) = client.address {
            push_all(out, [b"X-Forwarded-For: ", address, b""]);
            if let Some(relayed) = client.relayed {
                relayed.proxies(out, |out, proxy| push_all(out, [b", ", proxy, b""]));
            }
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(match client.scheme {
            Scheme::Http => b"X-Forwarded-Proto: http\r\n" as &[u8],
            Scheme::Https => b"X-Forwarded-Proto: https\r\n",
        });
        if !host.is_empty() {
            push_all(out, [b"X-Forwarded-Host: ", host, b"\r\n"]);
        }
        let port = told(|it| it.port);
        if !port.is_empty() {
            push_all(out, [b"X-Forwarded-Port: ", port, b"\r\n"]);
        }
    }
    if forwarded {
        out.extend_from_slice(b"Forwarded: ");
        forwarded_for(out, client.address);
        out.extend_from_slice(match client.scheme {
            Scheme::Http => b";proto=http" as &[u8],
            Scheme::Https => b";proto=https",
        });
        if !host.is_empty() {
            push_all(out, [b";host=\"", host, b"\""]);
        }
        if let Some(relayed) = client.relayed {
            relayed.proxies(out, |out, proxy| {
                out.extend_from_slice(b", ");
                forwarded_for(out, Some(proxy));
            });
        }
        out.extend_from_slice(b"\r\n");
    }
    if let Some(address) = client.address.filter(|_| x_real_ip) {
        push_all(out, [b"X-Real-IP: ", address, b"\r\n"]);
    }
}

/// An address as `Forwarded` has it (RFC 7239 section 6).
fn forwarded_for(out: &mut Vec<u8>, address: Option<&[u8]>) {
    match address {
        Some(address) if address.contains(&b':') => push_all(out, [b"for=\"[", address, b"]\""]),
        Some(address) => push_all(out, [b"for=", address, b""]),
        None => out.extend_from_slice(b"for=unknown"),
    }
}

/// In line, so that of what is constant each piece is a store or two.
#[inline(always)]
fn push_all(out: &mut Vec<u8>, parts: [&[u8]; 3]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends the field that names a request.
pub fn request_id_field(out: &mut Vec<u8>, id: &[u8]) {
    push_all(out, [b"X-Request-ID: ", id, b"\r\n"]);
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
    copy_fields(out, buf, &head.fields, head.end, |field| {
        response_line(field, head, edits)
    });
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

/// What becomes of a field line of a response.
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
            match head.framing == BodyFraming::Chunked && edits.transcode == Transcode::Raw {
                true => Line::Restate,
                false => Line::Leave,
            }
        }
        FieldKind::RequestId => Line::copy_if(edits.request_id.is_none()),
        _ => Line::Copy,
    }
}

/// How much of the head [`response_head`] would write as it came: that can stay
/// where it is.
pub fn kept_of_response_head(buf: &[u8], head: &ResponseHead, edits: ResponseEdits<'_>) -> Kept {
    /// What `HTTP/1.1 200 ` begins with.
    const VERSION: &[u8] = b"HTTP/1.1";
    /// Where a reason begins, behind the one space that is written.
    const REASON_START: u32 = b"HTTP/1.1 200 ".len() as u32;
    let mut is_dated = false;
    let is_kept = head.reason.start == REASON_START
        && buf.get(VERSION.len() - 1) == VERSION.last()
        && edits.transcode == Transcode::Raw
        && edits.persistence == Persistence::Keep
        && edits.request_id.is_none()
        && head.status != UPGRADE_REQUIRED
        && head.fields.iter().all(|field| {
            is_dated |= field.kind == FieldKind::Date;
            let line = response_line(field, head, edits);
            is_copied(buf, field, &line)
        });
    match (is_kept, is_dated) {
        (true, true) => Kept::Whole,
        (true, false) => Kept::Undated,
        (false, _) => Kept::Nothing,
    }
}

/// Appends what stands in the place of the status line of a head that is
/// [`Kept::Undated`]; gives the length of that line.
pub fn dated_status_line(out: &mut Vec<u8>, buf: &[u8], head: &ResponseHead, date: &[u8]) -> usize {
    let len = match head.fields.first() {
        Some(field) => field.name.start as usize,
        None => head.end.saturating_sub(b"\r\n".len()),
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

/// What becomes of a field line.
enum Line {
    /// It goes on as it came.
    Copy,
    /// It is left out.
    Leave,
    /// It goes on in the one spelling that nobody reads differently: what
    /// frames or routes must not depend on how a tab or a zero is taken.
    Restate,
}

impl Line {
    fn copy_if(wanted: bool) -> Self {
        match wanted {
            true => Line::Copy,
            false => Line::Leave,
        }
    }
}

/// Copies the lines of the fields as `decide` says, run by run.
fn copy_fields(
    out: &mut Vec<u8>,
    buf: &[u8],
    fields: &[Field],
    head_end: usize,
    decide: impl Fn(&Field) -> Line,
) {
    let lines_end = head_end.saturating_sub(2);
    let mut run_start = None;
    for field in fields {
        let line_start = field.name.start as usize;
        let line = decide(field);
        if is_copied(buf, field, &line) {
            run_start.get_or_insert(line_start);
            continue;
        }
        if let Some(start) = run_start.take() {
            out.extend_from_slice(&buf[start..line_start]);
        }
        if matches!(line, Line::Restate) {
            restate(out, buf, field);
        }
    }
    if let Some(start) = run_start {
        out.extend_from_slice(&buf[start..lines_end]);
    }
}

/// Whether a field is `X-Real-IP`, in any spelling that an endpoint takes for it.
fn is_real_ip(buf: &[u8], field: &Field) -> bool {
    field.is_read_as(b"x-real-ip", buf)
}

/// Whether a line goes on as it came.
fn is_copied(buf: &[u8], field: &Field, line: &Line) -> bool {
    match line {
        Line::Copy => true,
        Line::Leave => false,
        Line::Restate => is_plain(buf, field),
    }
}

/// Whether [`restate`] would write the line as it is.
fn is_plain(buf: &[u8], field: &Field) -> bool {
    let (name_end, value_end) = (field.name.end as usize, field.value.end as usize);
    buf[name_end..].starts_with(b": ")
        && field.value.start as usize == name_end + 2
        && buf[value_end..].starts_with(b"\r\n")
        && value_to_restate(buf, field).len() == field.value.len()
}

fn restate(out: &mut Vec<u8>, buf: &[u8], field: &Field) {
    let value = value_to_restate(buf, field);
    for part in [field.name.of(buf), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// A length loses leading zeros: some would read it as octal.
fn value_to_restate<'a>(buf: &'a [u8], field: &Field) -> &'a [u8] {
    let value = field.value.of(buf);
    if field.kind != FieldKind::ContentLength {
        return value;
    }
    let zeros = value.iter().take_while(|&&byte| byte == b'0').count();
    &value[zeros.min(value.len().saturating_sub(1))..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{parse_request, parse_response};

    const CLIENT: ClientInfo<'_> = ClientInfo {
        address: Some(b"192.0.2.1"),
        scheme: Scheme::Http,
        relayed: None,
        forward: Forward {
            x_forwarded: true,
            forwarded: true,
            x_real_ip: false,
        },
        default_host: b"app:8080",
        marks: Marks::NONE,
        loop_id: &LOOP_ID,
        via: Via::Kept,
    };
    const LOOP_ID: LoopId = LoopId::ZERO;

    fn written(request: &str) -> String {
        let mut head = RequestHead::default();
        parse_request(request.as_bytes(), &mut head).unwrap();
        let mut out = Vec::new();
        request_head(&mut out, request.as_bytes(), &head, CLIENT);
        String::from_utf8(out).unwrap()
    }

    /// What stands behind the fields of a request from `host`.
    fn added(host: &str) -> String {
        format!(
            "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: {host}\r\n\
             Forwarded: for=192.0.2.1;proto=http;host=\"{host}\"\r\nCDN-Loop: evenkeel-000000000\r\n\r\n"
        )
    }

    #[test]
    fn writes_request_heads() {
        for (request, expected) in [
            (
                "GET /a?b HTTP/1.1\r\nhost: h\r\nX-a:1\r\nY: \t2 \r\n\r\n",
                "GET /a?b HTTP/1.1\r\nhost: h\r\nX-a:1\r\nY: \t2 \r\n",
            ),
            (
                "POST / HTTP/1.1\r\nHost:h\r\ncontent-length:\t0012 \r\nA: b\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: h\r\ncontent-length: 12\r\nA: b\r\n",
            ),
            (
                "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 000\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n",
            ),
            (
                "POST / HTTP/1.1\r\nHost: h\r\nA: b\r\nTransfer-Encoding:\tchunked\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: h\r\nA: b\r\nTransfer-Encoding: chunked\r\n",
            ),
            (
                "GET / HTTP/1.1\r\nHost: h\r\nConnection: x-a, host\r\nX-A: 1\r\nKeep-Alive: 5\r\n\
                 TE: trailers\r\nProxy: p\r\nX_Forwarded_For: 6\r\nForwarded: for=6\r\n\
                 Content_Length: 6\r\nTransfer.Encoding: chunked\r\nUpgrade: websocket\r\n\
                 HTTP2-Settings: A\r\nB: 2\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: h\r\nB: 2\r\n",
            ),
            (
                "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nHost: h\r\n\r\n",
                "GET / HTTP/1.1\r\nUpgrade: websocket\r\nHost: h\r\nConnection: upgrade\r\n",
            ),
            (
                "GET http://h?q HTTP/1.1\r\nA: b\r\nHost: evil\r\n\r\n",
                "GET /?q HTTP/1.1\r\nHost: h\r\nA: b\r\n",
            ),
            (
                "OPTIONS http://h HTTP/1.1\r\nHost: h\r\n\r\n",
                "OPTIONS * HTTP/1.1\r\nHost: h\r\n",
            ),
        ] {
            assert_eq!(written(request), format!("{expected}{}", added("h")));
        }
    }

    #[test]
    fn marks_stand_in_the_place_of_the_client_s() {
        let parent = TraceParent {
            trace_id: 1,
            parent_id: 2,
            flags: TraceParent::SAMPLED,
        };
        let own_trace = "traceparent: 00-00000000000000000000000000000001-0000000000000002-01\r\n";
        let trace = |continues| Some(TraceMark { parent, continues });
        let request = "GET / HTTP/1.1\r\nHost: h\r\nX-REQUEST-ID: a\r\nx-request-id: b\r\n\
                       traceparent: x\r\nTraceState: c=1\r\ntracestate: d=2\r\n\r\n";
        let theirs = &request["GET / HTTP/1.1\r\nHost: h\r\n".len()..request.len() - 2];
        let ids = "X-REQUEST-ID: a\r\nx-request-id: b\r\n";
        let states = "TraceState: c=1\r\ntracestate: d=2\r\n";
        let own_id = "X-Request-ID: id\r\n";
        for (request_id, trace, expected) in [
            (None, None, theirs.to_owned()),
            (
                Some(&b"id"[..]),
                None,
                format!("traceparent: x\r\n{states}{own_id}"),
            ),
            (None, trace(true), format!("{ids}{states}{own_trace}")),
            (Some(b"id"), trace(false), format!("{own_id}{own_trace}")),
        ] {
            let client = ClientInfo {
                marks: Marks { request_id, trace },
                ..CLIENT
            };
            let mut head = RequestHead::default();
            parse_request(request.as_bytes(), &mut head).unwrap();
            let mut out = Vec::new();
            request_head(&mut out, request.as_bytes(), &head, client);
            let out = String::from_utf8(out).unwrap();
            let start = "GET / HTTP/1.1\r\nHost: h\r\n";
            assert_eq!(out, format!("{start}{expected}{}", added("h")));
        }
    }

    #[test]
    fn writes_connect_and_http_1_0() {
        assert_eq!(
            written("CONNECT h:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
            format!("CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n{}", added("h:1"))
        );
        assert_eq!(
            written("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"),
            "GET / HTTP/1.1\r\nHost: app:8080\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: http\r\n\
             Forwarded: for=192.0.2.1;proto=http\r\nCDN-Loop: evenkeel-000000000\r\n\r\n"
        );
    }

    #[test]
    fn brackets_an_ipv6_client() {
        let client = ClientInfo {
            address: Some(b"2001:db8::1"),
            scheme: Scheme::Https,
            ..CLIENT
        };
        let mut out = Vec::new();
        forwarded_fields(&mut out, b"", b"", &client);
        assert_eq!(
            out,
            b"X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Proto: https\r\n\
              Forwarded: for=\"[2001:db8::1]\";proto=https\r\n"
        );
    }

    /// Field lines that an endpoint gets of the client, for a request with `fields`
    /// from a trusted proxy at `10.0.0.1`.
    fn relayed(fields: &str, forward: Forward) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let (buf, mut head) = (request.as_bytes(), RequestHead::default());
        parse_request(buf, &mut head).unwrap();
        let mut believed = Believed::default();
        believed.read(buf, &head, |it| it.to_string().starts_with("10."));
        let proxy: IpAddr = "10.0.0.1".parse().unwrap();
        let address = believed.client.unwrap_or(proxy).to_string();
        let client = ClientInfo {
            address: Some(address.as_bytes()),
            scheme: believed.scheme.unwrap_or(Scheme::Http),
            relayed: Some(Relayed {
                believed: &believed,
                proxy: Some(proxy),
            }),
            forward,
            ..CLIENT
        };
        let mut out = Vec::new();
        request_head(&mut out, buf, &head, client);
        let out = String::from_utf8(out).unwrap();
        let out = out.strip_prefix("GET / HTTP/1.1\r\nHost: h\r\n").unwrap();
        let own_end = "CDN-Loop: evenkeel-000000000\r\n\r\n";
        out.strip_suffix(own_end).unwrap().to_owned()
    }

    #[test]
    fn what_a_trusted_proxy_says_is_believed_and_added_to() {
        let all = Forward {
            x_real_ip: true,
            ..CLIENT.forward
        };
        assert_eq!(
            relayed(
                "X-Forwarded-For: 198.51.100.9, 2001:db8::1, 10.0.0.2\r\nX-Forwarded-Proto: https\r\n\
                 X-Forwarded-Host: www.example\r\nX-Forwarded-Port: 8443\r\n\
                 X-Forwarded-Prefix: /a\r\nX_Real_IP: 198.51.100.9\r\n\
                 X_Forwarded_Prefix: /b\r\nTrue_Client.IP: a\r\n",
                all
            ),
            "X-Forwarded-Prefix: /a\r\n\
             X-Forwarded-For: 2001:db8::1, 10.0.0.2, 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\
             X-Forwarded-Host: www.example\r\nX-Forwarded-Port: 8443\r\n\
             Forwarded: for=\"[2001:db8::1]\";proto=https;host=\"www.example\", for=10.0.0.2, for=10.0.0.1\r\n\
             X-Real-IP: 2001:db8::1\r\n"
        );
        let named = Forward {
            x_forwarded: true,
            ..Forward::NOTHING
        };
        assert_eq!(
            relayed(
                "X-Real-IP: 192.0.2.9\r\nX-Forwarded-For: rubbish\r\n",
                named
            ),
            "X-Real-IP: 192.0.2.9\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: h\r\n"
        );
        assert_eq!(
            relayed("Forwarded: for=192.0.2.1\r\n", Forward::NOTHING),
            ""
        );
    }

    #[test]
    fn claims_of_a_client_go_no_further() {
        for name in [
            "X-Real-IP",
            "x_real_ip",
            "X-Forwarded-Prefix",
            "X_Forwarded_Prefix",
            "X-Forwarded-Ssl",
            "X-Forwarded-Scheme",
            "X-Forwarded-Server",
            "X-Forwarded-User",
            "X-Forwarded",
            "X-Scheme",
            "X-Original-URL",
            "X-Rewrite-URL",
            "True-Client-IP",
            "True_Client_IP",
            "CF-Connecting-IP",
            "CF-Connecting-IPv6",
            "Fastly-Client-IP",
            "Fly-Client-IP",
            "X-Client-IP",
            "Client-IP",
            "X-Cluster-Client-IP",
            "X-Azure-ClientIP",
            "WL-Proxy-Client-IP",
            "Front-End-Https",
            "Front_End.Https",
            "Forwarded-For",
            "Remote-Addr",
            "X-Remote-User",
            "WL-Proxy-SSL",
            "CloudFront-Forwarded-Proto",
            "Fly-Forwarded-Proto",
            "X-Vercel-Forwarded-For",
            "X-Nf-Client-Connection-Ip",
            "X-Real-Scheme",
            "HTTPS",
            "X-Host",
            "X-HTTPS",
            "X-Remote-Addr",
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{name}: a\r\n\r\n");
            let expected = format!("GET / HTTP/1.1\r\nHost: h\r\n{}", added("h"));
            assert_eq!(written(&request), expected, "{name}");
        }
        for name in [
            "X-Requested-With",
            "Content-Type",
            "Accept-Zip",
            "X-Forward",
            "Cf-Visitor",
            "Host-For",
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{name}: a\r\n\r\n");
            assert!(
                written(&request).contains(&format!("{name}: a\r\n")),
                "{name}"
            );
        }
    }

    #[test]
    fn writes_response_heads() {
        use Method::{Get, Head};
        use Persistence::{Close, Keep, KeepTold, Upgrade};
        use Transcode::{Chunk, Raw, Strip};
        for (method, transcode, persistence, response, expected) in [
            (
                Get,
                Raw,
                Keep,
                "HTTP/1.0 200 Quite Fine\r\nA:b\r\nConnection: close\r\ncontent-length: 5\r\nSet-Cookie: x\r\n\r\n",
                "HTTP/1.1 200 Quite Fine\r\nA:b\r\ncontent-length: 5\r\nSet-Cookie: x\r\n\r\n",
            ),
            (
                Get,
                Raw,
                Close,
                "HTTP/1.1 200\r\nContent-Length:05\r\n\r\n",
                "HTTP/1.1 200 \r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
            ),
            (
                Get,
                Raw,
                Keep,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n",
            ),
            (
                Get,
                Strip,
                Close,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n",
                "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n",
            ),
            (
                Get,
                Chunk,
                Keep,
                "HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nA: b\r\n\r\n",
                "HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n",
            ),
            (
                Head,
                Raw,
                KeepTold,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n",
            ),
            (
                Head,
                Raw,
                Keep,
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            ),
            (
                Get,
                Raw,
                Keep,
                "HTTP/1.1 204 No\r\nContent-Length: 5\r\nA: b\r\n\r\n",
                "HTTP/1.1 204 No\r\nA: b\r\n\r\n",
            ),
            (
                Get,
                Raw,
                Close,
                "HTTP/1.1 426 No\r\nConnection: upgrade\r\nUpgrade: x/2\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 426 No\r\nUpgrade: x/2\r\nContent-Length: 0\r\nConnection: upgrade\r\nConnection: close\r\n\r\n",
            ),
            (
                Get,
                Raw,
                Keep,
                "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\ncontent-length: 3\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
            ),
            (
                Get,
                Raw,
                Keep,
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            ),
            (
                Get,
                Raw,
                Upgrade,
                "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
                "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            ),
        ] {
            let mut head = ResponseHead::default();
            parse_response(response.as_bytes(), method, &mut head).unwrap();
            let mut out = Vec::new();
            let edits = ResponseEdits {
                transcode,
                persistence,
                request_id: None,
            };
            response_head(&mut out, response.as_bytes(), &head, edits, None);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
            let kept = kept_of_response_head(response.as_bytes(), &head, edits);
            let is_same = kept != Kept::Nothing;
            assert_eq!(is_same, response == expected, "{response}");
            check_dated(response.as_bytes(), &head, edits, kept);
        }
    }

    /// A response goes on with a `Date`: its own, or the one that is added.
    fn check_dated(response: &[u8], head: &ResponseHead, edits: ResponseEdits<'_>, kept: Kept) {
        let date = b"Sat, 21 Nov 2026 09:05:01 GMT";
        let mut written = Vec::new();
        response_head(&mut written, response, head, edits, Some(date));
        let count = memchr::memmem::find_iter(&written, b"\r\nDate: ").count();
        assert_eq!(count, 1, "{}", written.escape_ascii());
        if kept == Kept::Undated {
            let mut out = Vec::new();
            let len = dated_status_line(&mut out, response, head, date);
            out.extend_from_slice(&response[len..]);
            assert_eq!(out, written);
        }
    }

    #[test]
    fn a_date_of_the_endpoint_s_stays() {
        let response = b"HTTP/1.1 200 OK\r\ndate: x\r\nContent-Length: 0\r\n\r\n";
        let mut head = ResponseHead::default();
        parse_response(response, Method::Get, &mut head).unwrap();
        let mut out = Vec::new();
        response_head(&mut out, response, &head, KEPT, Some(b"y"));
        assert_eq!(out, response);
        assert_eq!(kept_of_response_head(response, &head, KEPT), Kept::Whole);
    }

    const KEPT: ResponseEdits<'_> = ResponseEdits {
        transcode: Transcode::Raw,
        persistence: Persistence::Keep,
        request_id: None,
    };

    #[test]
    fn a_minor_version_is_not_passed_on() {
        let response = b"HTTP/1.7 200 OK\r\nContent-Length: 0\r\n\r\n";
        let mut head = ResponseHead::default();
        parse_response(response, Method::Get, &mut head).unwrap();
        assert_eq!(kept_of_response_head(response, &head, KEPT), Kept::Nothing);
    }

    #[test]
    fn counts_the_proxies_that_a_request_may_pass() {
        for (method, sent, expected) in [
            ("TRACE", "max-forwards: 3\r\n", Some("Max-Forwards: 2\r\n")),
            (
                "OPTIONS",
                "Max-Forwards: 1\r\nMax-Forwards: 7\r\n",
                Some("Max-Forwards: 0\r\n"),
            ),
            ("TRACE", "Max-Forwards: -1\r\n", None),
            ("GET", "Max-Forwards: 3\r\n", None),
        ] {
            let fields = written(&format!("{method} / HTTP/1.1\r\nHost: h\r\n{sent}\r\n"));
            let found: Vec<_> = fields
                .split_inclusive('\n')
                .filter(|line| line.to_ascii_lowercase().starts_with("max-forwards"))
                .collect();
            assert_eq!(found, [expected.unwrap_or(sent)], "{method} {sent:?}");
        }
    }

    #[test]
    fn an_expectation_goes_on_with_a_body_alone() {
        let expect = "Expect: 100-continue\r\nExpect:\r\n";
        for (framing, is_passed) in [
            ("Content-Length: 3\r\n", true),
            ("Transfer-Encoding: chunked\r\n", true),
            ("Content-Length: 0\r\n", false),
            ("", false),
        ] {
            let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{expect}{framing}\r\n");
            let count = written(&request).matches("Expect").count();
            assert_eq!(count, usize::from(is_passed), "{framing:?}");
        }
    }

    #[test]
    fn writes_three_digits() {
        assert_eq!(
            [100, 404, 999].map(status_digits),
            [*b"100", *b"404", *b"999"]
        );
    }
}
