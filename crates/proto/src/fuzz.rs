//! The assertions of the fuzz targets on any bytes.
//!
//! Each function takes one input and panics where a promise of this crate is
//! broken:
//!
//! - a refusal does not depend on how the bytes were cut up;
//! - an accepted head reads the same to a naive reader;
//! - a written message says the same as the one that was read;
//! - nothing beyond a body or a PROXY header is taken;
//! - no path of a file leaves its root;
//! - neither end of an HTTP/2 connection holds more than it may.
//!
//! The tests below replay `fuzz/corpus`.

mod chunked;
mod file;
mod http2;

use crate::forwarded::{Believed, MAX_HOPS};
use crate::http1::write::{
    self, ClientInfo, Forward, HeadReuse, Marks, Persistence, Relayed, ResponseEdits, Transcode,
    Via,
};
use crate::http1::{Parsed, parse_odd_response, parse_request, parse_response};
use crate::identity::MAX_REQUEST_ID_LEN;
use crate::proxy_protocol::{self, MAX_HEADER_LEN};
use crate::{
    BodyFraming, Field, FieldKind, LoopId, Method, RequestHead, ResponseError, ResponseHead,
    Scheme, Span, Version,
};
pub use chunked::chunked_body;
pub use file::file_request;
pub use http2::{hpack_block, http2_client, http2_server};

/// Up to here every prefix of an input is tried, beyond only some.
const ALL_PREFIXES_LEN: usize = 600;

/// Any bytes as a request's head.
pub fn request_head(data: &[u8]) {
    let mut head = RequestHead::default();
    let whole = parse_request(data, &mut head);
    let decided_at = match whole {
        Ok(Parsed::Complete) => head.wire.end,
        _ => data.len(),
    };
    let mut before = RequestHead::default();
    for len in prefixes(decided_at) {
        let part = parse_request(&data[..len], &mut before);
        assert!(
            part == Ok(Parsed::Partial) || (part.is_err() && part == whole),
            "{len} bytes: {part:?}, all: {whole:?}"
        );
    }
    if whole != Ok(Parsed::Complete) {
        check_undecided(data, whole.is_err());
        return;
    }
    let again = parse_request(&data[..head.wire.end], &mut before);
    assert_eq!((again, before.wire.framing), (whole, head.wire.framing));
    check_request(data, &head);
    check_rewritten_request(data, &head);
}

/// Any bytes as the PROXY protocol header of a connection.
pub fn proxy_header(data: &[u8]) {
    let whole = proxy_protocol::parse(data);
    let decided_at = match whole {
        Ok(Some(header)) => header.len,
        _ => data.len(),
    };
    for len in prefixes(decided_at) {
        let part = proxy_protocol::parse(&data[..len]);
        assert!(
            part == Ok(None) || (part.is_err() && part == whole),
            "{len} bytes: {part:?}, all: {whole:?}"
        );
    }
    match whole {
        Ok(Some(header)) => {
            assert!(header.len <= data.len().min(MAX_HEADER_LEN));
            assert_eq!(proxy_protocol::parse(&data[..header.len]), whole);
            let told = header.connection(data);
            if let Some((source, destination)) = told.addresses {
                for address in [source.ip(), destination.ip()] {
                    assert_eq!(address, address.to_canonical());
                }
            }
            check_rewritten_header(&told);
            // Neither of them can be taken for a request.
            let mut head = RequestHead::default();
            let as_request = parse_request(data, &mut head);
            assert_ne!(as_request, Ok(Parsed::Complete));
        }
        Ok(None) => assert!(data.len() < MAX_HEADER_LEN, "the wait is bounded"),
        Err(_) => {}
    }
}

/// A written header says the same, where no value is too long.
fn check_rewritten_header(told: &proxy_protocol::Connection<'_>) {
    let mut written = Vec::new();
    proxy_protocol::write(&mut written, proxy_protocol::Version::V2, told);
    let again = proxy_protocol::parse(&written);
    let again = again.expect("it is a header").expect("it is whole");
    assert_eq!(
        (again.len, again.addresses),
        (written.len(), told.addresses)
    );
}

/// More bytes are awaited only where no empty line has come yet.
fn check_undecided(data: &[u8], is_refused: bool) {
    let has_empty_line = data.windows(4).any(|four| four == b"\r\n\r\n");
    assert!(is_refused || !has_empty_line, "what is whole is decided");
}

fn prefixes(len: usize) -> impl Iterator<Item = usize> {
    let step = if len <= ALL_PREFIXES_LEN { 1 } else { len / 50 };
    (0..len).step_by(step)
}

fn check_request(data: &[u8], head: &RequestHead) {
    for span in [
        head.method_span,
        head.target,
        head.path_and_query,
        head.path_span,
        head.query,
        head.host,
        head.wire.upgrade.unwrap_or_default(),
    ] {
        check_span(span, head.wire.end);
    }
    let has_path = match head.method {
        Method::Connect => head.path(data).is_empty(),
        Method::Options if head.path(data) == b"*" => true,
        _ => head.path(data).starts_with(b"/"),
    };
    assert!(has_path, "{}", head.path(data).escape_ascii());
    let lines = naive_lines(&data[head.wire.start..head.wire.end]);
    let (line, fields) = lines.split_first().expect("a head has a first line");
    assert_eq!(
        line.iter().filter(|&&byte| byte == b' ').count(),
        2,
        "a request line has two spaces"
    );
    check_fields(data, head.wire.end, &head.fields, fields);
    let values = |name| values(fields, name);
    let hosts = values("host");
    assert!(hosts.len() <= 1, "Host stands more than once");
    assert!(head.version == Version::Http10 || hosts.len() == 1);
    if !head.wire.host_in_target {
        let host = hosts.first().copied().unwrap_or_default();
        assert_eq!(head.host.of(data), host);
    }
    let (codings, lengths) = (values("transfer-encoding"), values("content-length"));
    assert!(codings.len() + lengths.len() <= 1, "framing is ambiguous");
    assert_eq!(head.wire.framing, naive_framing(&codings, &lengths));
    assert!(head.version == Version::Http11 || codings.is_empty());
    if let Some(protocol) = head.wire.upgrade {
        let protocol = protocol.of(data).to_ascii_lowercase();
        assert!(!protocol.is_empty() && !protocol.starts_with(b"h2"));
    }
}

fn check_rewritten_request(data: &[u8], head: &RequestHead) {
    // Of a client, and of a proxy that is trusted as are all behind it.
    let mut believed = Believed::default();
    believed.read(data, head, |_| true);
    assert!(believed.hops.len() < MAX_HOPS);
    let relayed = Relayed {
        believed: &believed,
        proxy: None,
    };
    for relayed in [None, Some(relayed)] {
        check_request_from(data, head, relayed);
    }
}

fn check_request_from(data: &[u8], head: &RequestHead, relayed: Option<Relayed<'_>>) {
    let client = ClientInfo {
        address: Some(b"192.0.2.1"),
        scheme: Scheme::Http,
        relayed,
        forward: Forward {
            x_forwarded: true,
            forwarded: true,
            x_real_ip: true,
        },
        default_host: b"app:8080",
        certificate: None,
        is_early: false,
        marks: Marks::NONE,
        loop_id: &LoopId::ZERO,
        via: Via::Kept,
    };
    let mut out = Vec::new();
    write::request_head(&mut out, data, head, client);
    let mut written = RequestHead::default();
    let parsed = parse_request(&out, &mut written);
    if head.fields.len() + 9 > crate::http1::MAX_FIELDS {
        return;
    }
    assert_eq!(parsed, Ok(Parsed::Complete), "{}", out.escape_ascii());
    assert_eq!(written.wire.end, out.len());
    assert_eq!(written.wire.framing, head.wire.framing);
    assert_eq!(written.method_span.of(&out), head.method_span.of(data));
    let host = match head.host.of(data) {
        b"" => b"app:8080",
        host => host,
    };
    assert_eq!(written.host.of(&out), host);
    assert_eq!(written.query.of(&out), head.query.of(data));
    assert_eq!(written.wire.expect_continue, head.wire.expect_continue);
    assert_eq!(
        written.wire.upgrade.map(|protocol| protocol.of(&out)),
        head.wire.upgrade.map(|protocol| protocol.of(data))
    );
    assert_eq!(written.path(&out), head.path(data));
    assert_eq!(written.query.of(&out), head.query.of(data));
    let lines = naive_lines(&out);
    check_fields(&out, written.wire.end, &written.fields, &lines[1..]);
    check_hop(&out, &written.fields, head.wire.upgrade.is_some());
    for name in ["host", "x-forwarded-for", "forwarded", "x-real-ip"] {
        assert_eq!(values(&lines[1..], name).len(), 1, "{name}");
    }
    check_canonical(&lines[1..]);
    let kept = |fields: &[Field], buf: &[u8]| {
        fields
            .iter()
            .filter(|field| field.kind == FieldKind::Other)
            .map(|field| (field.name.of(buf).to_vec(), field.value.of(buf).to_vec()))
            .collect::<Vec<_>>()
    };
    assert_eq!(kept(&written.fields, &out), kept(&head.fields, data));
}

/// Any bytes as a response's head; the first says to which request.
pub fn response_head(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let method = match first % 4 {
        0 => Method::Head,
        _ => Method::Get,
    };
    let mut head = ResponseHead::default();
    let whole = parse_response(data, method, &mut head);
    let decided_at = match whole {
        Ok(Parsed::Complete) => head.wire.end,
        _ => data.len(),
    };
    let mut before = ResponseHead::default();
    for len in prefixes(decided_at) {
        let part = parse_response(&data[..len], method, &mut before);
        assert!(
            part == Ok(Parsed::Partial) || (part.is_err() && part == whole),
            "{len} bytes: {part:?}, all: {whole:?}"
        );
    }
    check_odd_response(data, method, whole);
    if whole != Ok(Parsed::Complete) {
        check_undecided(data, whole.is_err());
        return;
    }
    check_response(data, method, &head);
    for (transcode, framing) in transcodings(&head) {
        for persistence in [Persistence::Keep, Persistence::Close] {
            check_rewritten_response(data, &head, method, transcode, persistence, framing);
        }
    }
}

/// A restated head says the same in every part. A head that needs no restating
/// says the same as before.
fn check_odd_response(data: &[u8], method: Method, strict: Result<Parsed, ResponseError>) {
    let mut head = ResponseHead::default();
    let (mut out, mut before) = (Vec::new(), Vec::new());
    let whole = parse_odd_response(data, method, &mut head, &mut out);
    if strict == Ok(Parsed::Complete) {
        let len = whole.expect("it is sound").expect("it is whole");
        assert_eq!(out, data[..len]);
    }
    for len in prefixes(data.len()) {
        let part = parse_odd_response(&data[..len], method, &mut head, &mut before);
        assert!(
            part == Ok(None) || (part == whole && (part.is_err() || out == before)),
            "{len} bytes: {part:?}, all: {whole:?}"
        );
    }
    if let Ok(Some(len)) = whole {
        assert!(len <= data.len());
        let again = parse_response(&out, method, &mut head);
        assert_eq!(again, Ok(Parsed::Complete));
        check_response(&out, method, &head);
    }
}

fn check_response(data: &[u8], method: Method, head: &ResponseHead) {
    check_span(head.reason, head.wire.end);
    let lines = naive_lines(&data[..head.wire.end]);
    let (line, fields) = lines.split_first().expect("a head has a first line");
    assert!(line.ends_with(head.reason.of(data)));
    assert!((100..1000).contains(&head.status));
    check_fields(data, head.wire.end, &head.fields, fields);
    let codings = values(fields, "transfer-encoding");
    let lengths = values(fields, "content-length");
    let bodiless = method == Method::Head || matches!(head.status, 100..200 | 204 | 304);
    let expected = match naive_framing(&codings, &naive_lengths(&codings, &lengths)) {
        _ if bodiless => BodyFraming::None,
        BodyFraming::None if lengths.is_empty() => BodyFraming::UntilClose,
        framing => framing,
    };
    assert_eq!(head.wire.framing, expected);
    let is_doubtful = !codings.is_empty() && !lengths.is_empty();
    assert!(
        !(head.wire.keep_alive && (head.wire.framing == BodyFraming::UntilClose || is_doubtful))
    );
}

/// The lengths that count: one of several equal ones, none beside a coding.
fn naive_lengths<'a>(codings: &[&[u8]], lengths: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let items: Vec<_> = lengths
        .iter()
        .flat_map(|length| length.split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let number = |item: &[u8]| {
        let text = std::str::from_utf8(item).expect("digits are text");
        text.parse::<u64>().expect("a length is a number")
    };
    assert!(items.windows(2).all(|two| number(two[0]) == number(two[1])));
    match codings {
        [] => items.into_iter().take(1).collect(),
        _ => Vec::new(),
    }
}

/// The ways in which a response may leave, and the framing that it then has.
fn transcodings(head: &ResponseHead) -> Vec<(Transcode, BodyFraming)> {
    let mut ways = vec![(Transcode::Raw, head.wire.framing)];
    match head.wire.framing {
        BodyFraming::Chunked => ways.push((Transcode::Strip, BodyFraming::UntilClose)),
        BodyFraming::UntilClose => ways.push((Transcode::Chunk, BodyFraming::Chunked)),
        BodyFraming::None | BodyFraming::Length { .. } => {}
    }
    ways
}

fn check_rewritten_response(
    data: &[u8],
    head: &ResponseHead,
    method: Method,
    transcode: Transcode,
    persistence: Persistence,
    framing: BodyFraming,
) {
    let mut out = Vec::new();
    let edits = ResponseEdits {
        transcode,
        persistence,
        request_id: None,
        strict_transport: None,
    };
    write::response_head(&mut out, data, head, edits, None);
    let longest = ResponseEdits {
        request_id: Some(&[b'a'; MAX_REQUEST_ID_LEN]),
        strict_transport: Some(&[b's'; write::STRICT_TRANSPORT_LEN_MAX]),
        ..edits
    };
    let mut long = Vec::new();
    write::response_head(&mut long, data, head, longest, Some(&[b'd'; 29]));
    assert!(long.len() <= head.wire.end + write::RESPONSE_HEAD_GROWTH_MAX);
    let kept = write::kept_of_response_head(data, head, edits);
    if head.status == 426 {
        // The head is written again in any case.
        return;
    }
    let is_same = out == data[..head.wire.end];
    assert!(kept == HeadReuse::Nothing || is_same);
    // A field that is left out and one that is added may be alike.
    assert!(kept != HeadReuse::Nothing || !is_same || persistence != Persistence::Keep);
    let is_dated = head.fields.iter().any(|it| it.kind == FieldKind::Date);
    assert!(kept == HeadReuse::Nothing || is_dated == (kept == HeadReuse::Whole));
    if head.fields.len() + 2 > crate::http1::MAX_RESPONSE_FIELDS {
        return;
    }
    let mut written = ResponseHead::default();
    let parsed = parse_response(&out, method, &mut written);
    assert_eq!(parsed, Ok(Parsed::Complete), "{}", out.escape_ascii());
    assert_eq!((written.wire.end, written.status), (out.len(), head.status));
    assert_eq!(written.reason.of(&out), head.reason.of(data));
    assert_eq!(written.wire.framing, framing);
    let closes = persistence == Persistence::Close || framing == BodyFraming::UntilClose;
    assert_eq!(written.wire.keep_alive, !closes);
    let lines = naive_lines(&out);
    let connections = values(&lines[1..], "connection");
    assert_eq!(!connections.is_empty(), persistence == Persistence::Close);
    assert!(values(&lines[1..], "upgrade").is_empty());
    check_canonical(&lines[1..]);
}

fn check_span(span: Span, end: usize) {
    assert!(span.start <= span.end && span.end as usize <= end);
}

/// The lines of a head, split by CRLF and by nothing else.
fn naive_lines(head: &[u8]) -> Vec<&[u8]> {
    let text = head.strip_suffix(b"\r\n\r\n").expect("a head ends so");
    let mut lines = Vec::new();
    let mut start = 0;
    for end in memchr::memmem::find_iter(text, b"\r\n") {
        lines.push(&text[start..end]);
        start = end + 2;
    }
    lines.push(&text[start..]);
    for line in &lines {
        let is_control = |&&byte: &&u8| matches!(byte, 0..=8 | 10..=31 | 127);
        assert_eq!(line.iter().find(is_control), None, "a control byte");
        assert!(!line.is_empty(), "an empty line within a head");
    }
    lines
}

/// The spans of the fields match their lines.
fn check_fields(data: &[u8], end: usize, fields: &[Field], lines: &[&[u8]]) {
    assert_eq!(fields.len(), lines.len());
    for (field, line) in std::iter::zip(fields, lines) {
        check_span(field.name, end);
        check_span(field.value, end);
        let (name, mut value) = naive_field(line);
        if name.eq_ignore_ascii_case(b"content-length") {
            // Of a list of equal lengths the first counts.
            let first = value.split(|&byte| byte == b',').next();
            value = first.unwrap_or(value).trim_ascii();
        }
        assert_eq!((field.name.of(data), field.value.of(data)), (name, value));
        assert!(name.iter().all(|byte| byte.is_ascii_graphic()));
        assert!(!name.is_empty());
    }
}

fn naive_field(line: &[u8]) -> (&[u8], &[u8]) {
    let colon = line.iter().position(|&byte| byte == b':');
    let (name, value) = line.split_at(colon.expect("a field line has a colon"));
    (name, value[1..].trim_ascii())
}

fn values<'a>(lines: &[&'a [u8]], name: &str) -> Vec<&'a [u8]> {
    lines
        .iter()
        .map(|line| naive_field(line))
        .filter(|(line_name, _)| line_name.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, value)| value)
        .collect()
}

fn naive_framing(codings: &[&[u8]], lengths: &[&[u8]]) -> BodyFraming {
    if let [coding] = codings {
        assert!(coding.eq_ignore_ascii_case(b"chunked"));
        return BodyFraming::Chunked;
    }
    let [length] = lengths else {
        return BodyFraming::None;
    };
    assert!(length.iter().all(u8::is_ascii_digit));
    let length = std::str::from_utf8(length).expect("digits are text");
    match length.parse().expect("a length fits") {
        0 => BodyFraming::None,
        bytes => BodyFraming::Length { bytes },
    }
}

/// Nothing that is for one hop, and no name that passes for another's.
fn check_hop(data: &[u8], fields: &[Field], upgrade: bool) {
    for field in fields {
        let name = field.name.of(data);
        match field.kind {
            FieldKind::HopByHop | FieldKind::KeepAlive => {
                panic!("{} was passed on", name.escape_ascii())
            }
            FieldKind::Connection | FieldKind::Upgrade => assert!(upgrade),
            _ => {}
        }
        let plain = String::from_utf8_lossy(name)
            .to_ascii_lowercase()
            .replace(['_', '.', '~', '!', '\'', '*', '+'], "-");
        let guarded = ["content-length", "transfer-encoding", "x-forwarded-for"];
        if guarded.contains(&plain.as_str()) {
            assert!(plain.eq_ignore_ascii_case(&String::from_utf8_lossy(name)));
        }
    }
}

/// Framing fields have one spelling.
fn check_canonical(lines: &[&[u8]]) {
    for line in lines {
        let (name, value) = naive_field(line);
        let frames = name.eq_ignore_ascii_case(b"content-length")
            || name.eq_ignore_ascii_case(b"transfer-encoding");
        if frames {
            assert_eq!(line[name.len()..], [b": ", value].concat());
            assert!(value == b"0" || !value.starts_with(b"0"));
        }
    }
}

#[cfg(test)]
mod tests;
