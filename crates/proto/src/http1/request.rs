//! A request's head: its lines, and the rules that they have to keep.

use super::authority;
use super::diagnose::{self, Finding};
use super::fields::{self, Framing, FramingError};
use super::grammar::{self, Stop};
use super::{MAX_FIELDS, Parsed};
use crate::error::RequestError;
use crate::field::{FieldKind, list_items};
use crate::head::{Credentials, Method, RequestHead, Version};
use crate::span::Span;
use crate::wire::BodyFraming;

/// Reads a request's head from the start of `buf` into `head`.
///
/// Limits on length are the caller's: it knows how much it buffered.
///
/// # Errors
/// The first rule of RFC 9112 or RFC 9110 §7.2 that the head breaks. The
/// connection must then be closed: what follows can't be told apart.
pub fn parse_request(buf: &[u8], head: &mut RequestHead) -> Result<Parsed, RequestError> {
    match read_lines(buf, head) {
        Ok(()) => {}
        Err(Stop::Short) => return Ok(Parsed::Partial),
        Err(Stop::Odd | Stop::TooManyFields) => return refusal(buf),
    }
    read_fields(buf, head)?;
    read_target(buf, head)?;
    Ok(Parsed::Complete)
}

/// `method SP target SP version` and the fields (RFC 9112 §3), behind one
/// empty line at most (§2.2).
fn read_lines(buf: &[u8], head: &mut RequestHead) -> Result<(), Stop> {
    head.wire.start = match buf.first() {
        Some(b'\r') => grammar::line_end(buf, 0)?,
        _ => 0,
    };
    head.method_span = Span::new(head.wire.start, grammar::token_end(buf, head.wire.start));
    let target_start = grammar::word_end(buf, head.method_span, b' ')?;
    head.target = Span::new(target_start, grammar::target_end(buf, target_start));
    let version_start = grammar::word_end(buf, head.target, b' ')?;
    let (version, end) = grammar::version(buf, version_start)?;
    let fields_start = grammar::line_end(buf, end)?;
    head.version = version;
    head.method = Method::from_token(head.method_span.of(buf));
    head.wire.end = grammar::field_lines(buf, fields_start, &mut head.fields, MAX_FIELDS)?;
    Ok(())
}

/// Why `buf` is refused; `Partial` while that depends on bytes to come.
fn refusal(buf: &[u8]) -> Result<Parsed, RequestError> {
    match diagnose::first_fault(buf) {
        Finding::Broken(error) => Err(error),
        Finding::Undecided => Ok(Parsed::Partial),
    }
}

/// Everything that fields decide: framing, persistence, expectation, host.
fn read_fields(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let mut host = None;
    let mut has_connection = false;
    let mut has_framing = false;
    let mut upgrade = Asked::Nothing;
    let mut expects_continue = false;
    head.credentials = Credentials::OfRequest;
    head.has_cdn_loop = false;
    for field in &head.fields {
        match field.kind {
            FieldKind::Host if host.is_some() => return Err(RequestError::HostRepeated),
            FieldKind::Host => host = Some(field.value),
            FieldKind::Connection => has_connection = true,
            FieldKind::ContentLength | FieldKind::TransferEncoding => has_framing = true,
            FieldKind::Upgrade => upgrade = upgrade.and(buf, field.value),
            // Of several the one that holds for longest counts.
            FieldKind::Authorization if head.credentials == Credentials::OfRequest => {
                head.credentials = Credentials::of(field.value.of(buf));
            }
            FieldKind::CdnLoop => head.has_cdn_loop = true,
            FieldKind::Expect => {
                let value = field.value.of(buf);
                if !value.is_empty() {
                    if !value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(RequestError::Expectation);
                    }
                    expects_continue = head.version == Version::Http11;
                }
            }
            _ => {}
        }
    }
    head.host = host.unwrap_or_default();
    if host.is_none() && head.version == Version::Http11 {
        return Err(RequestError::HostMissing);
    }
    if !head.host.is_empty() && authority::read(head.host.of(buf)).is_none() {
        return Err(RequestError::HostInvalid);
    }
    head.wire.keep_alive = head.version == Version::Http11;
    head.wire.upgrade = None;
    if has_connection {
        let options =
            fields::connection_options(buf, &mut head.fields).ok_or(RequestError::TooManyFields)?;
        head.wire.keep_alive = !options.close && (head.wire.keep_alive || options.keep_alive);
        if let (true, Version::Http11, Asked::For(protocol)) =
            (options.upgrade, head.version, upgrade)
        {
            head.wire.upgrade = Some(protocol);
        }
    }
    head.wire.framing = if has_framing {
        request_framing(buf, head)?
    } else {
        BodyFraming::None
    };
    // There is nothing to wait for without a body (RFC 9110 §10.1.1).
    head.wire.expect_continue = expects_continue && head.wire.framing != BodyFraming::None;
    Ok(())
}

/// The protocols that the `Upgrade` fields of a request ask for.
#[derive(Clone, Copy)]
enum Asked {
    Nothing,
    For(Span),
    ForWhatIsIgnored,
}

impl Asked {
    /// Deviation: an offer of HTTP or TLS is ignored, as RFC 9110 §7.8 allows.
    /// An endpoint that took `h2c` would be asked for what no route has seen.
    /// So are several fields: which of them is meant should not be a guess.
    fn and(self, buf: &[u8], value: Span) -> Self {
        let is_ignored = |protocol: &[u8]| {
            ["h2", "http/", "tls/"].iter().any(|start| {
                protocol
                    .get(..start.len())
                    .is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()))
            })
        };
        match self {
            Asked::Nothing if value.is_empty() => Asked::ForWhatIsIgnored,
            Asked::Nothing if !list_items(value.of(buf)).any(is_ignored) => Asked::For(value),
            _ => Asked::ForWhatIsIgnored,
        }
    }
}

fn request_framing(buf: &[u8], head: &RequestHead) -> Result<BodyFraming, RequestError> {
    match fields::framing(buf, &head.fields) {
        Ok(Framing::Chunked) if head.version == Version::Http10 => {
            Err(RequestError::TransferCoding)
        }
        Ok(Framing::Chunked) => Ok(BodyFraming::Chunked),
        Ok(Framing::Length { bytes: 0 } | Framing::Unstated) => Ok(BodyFraming::None),
        Ok(Framing::Length { bytes }) => Ok(BodyFraming::Length { bytes }),
        Err(FramingError::Length) => Err(RequestError::ContentLength),
        Err(FramingError::Repeated) => Err(RequestError::ContentLengthRepeated),
        Err(FramingError::Both) => Err(RequestError::LengthAndCoding),
        Err(FramingError::Coding) => Err(RequestError::TransferCoding),
    }
}

/// Splits the target by its form (RFC 9112 §3.2).
fn read_target(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let target = head.target.of(buf);
    let query_mark = query_mark(target)?;
    head.wire.host_in_target = false;
    head.path_and_query = head.target;
    if head.method == Method::Connect {
        // RFC 9110 §9.3.6: there is no default port.
        if authority::read(target)
            .and_then(|target| target.port)
            .is_none()
        {
            return Err(RequestError::Target);
        }
        head.host = head.target;
        head.wire.host_in_target = true;
        head.path_and_query = Span::default();
    } else if target.first() != Some(&b'/') && (target != b"*" || head.method != Method::Options) {
        read_absolute_form(buf, head)?;
    }
    let whole = head.path_and_query;
    let end = whole.end as usize;
    (head.path_span, head.query) = match query_mark {
        Some(mark) => {
            let mark = head.target.start as usize + mark;
            let path = Span::new(whole.start as usize, mark);
            (path, Span::new(mark + 1, end))
        }
        None => (whole, Span::new(end, end)),
    };
    Ok(())
}

/// Where the query of a target begins, if it has one.
fn query_mark(target: &[u8]) -> Result<Option<usize>, RequestError> {
    let Some(mark) = memchr::memchr2(b'?', b'#', target) else {
        return Ok(None);
    };
    // A fragment is for the client alone.
    match memchr::memchr(b'#', &target[mark..]) {
        Some(_) => Err(RequestError::Target),
        None => Ok(Some(mark)),
    }
}

/// `http://authority/path?query`: the authority overrules `Host`.
fn read_absolute_form(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let target = head.target.of(buf);
    let scheme_len = [&b"http://"[..], b"https://"]
        .iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
        .map(|scheme| scheme.len())
        .ok_or(RequestError::Target)?;
    let rest = &target[scheme_len..];
    let authority_len = rest
        .iter()
        .position(|&byte| byte == b'/' || byte == b'?')
        .unwrap_or(rest.len());
    let authority = &rest[..authority_len];
    if authority::read(authority).is_none() {
        return Err(RequestError::Target);
    }
    let start = head.target.start as usize + scheme_len;
    head.host = Span::new(start, start + authority_len);
    head.wire.host_in_target = true;
    head.path_and_query = Span::new(start + authority_len, head.target.end as usize);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::MAX_FIELDS;

    /// Parses whole, then byte by byte: no prefix says something else.
    fn parse(request: &[u8]) -> Result<RequestHead, RequestError> {
        let mut head = RequestHead::default();
        let whole = parse_request(request, &mut head);
        let end = match whole {
            Ok(Parsed::Complete) => head.wire.end,
            _ => request.len(),
        };
        let mut part_head = RequestHead::default();
        for len in 0..end {
            let part = parse_request(&request[..len], &mut part_head);
            let agrees = part == Ok(Parsed::Partial) || (part.is_err() && part == whole);
            assert!(
                agrees,
                "{len} bytes of {}: {part:?}",
                request.escape_ascii()
            );
        }
        let only = parse_request(&request[..end], &mut part_head);
        assert_eq!(only, whole, "{}", request.escape_ascii());
        match whole? {
            Parsed::Complete => Ok(head),
            Parsed::Partial => panic!("{} is not whole", request.escape_ascii()),
        }
    }

    /// A POST with these lines and an HTTP/1.1 request hidden behind it.
    fn post(lines: &str) -> Result<RequestHead, RequestError> {
        let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
        parse(format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n{hidden}").as_bytes())
    }

    fn get(target: &str, lines: &str) -> Result<RequestHead, RequestError> {
        parse(format!("GET {target} HTTP/1.1\r\n{lines}\r\n").as_bytes())
    }

    #[test]
    fn refuses_malformed_heads() {
        use RequestError::*;
        let long = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(MAX_FIELDS + 1)
        );
        let options = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n",
            "a,".repeat(MAX_FIELDS + 1)
        );
        for (request, error) in [
            ("GET /\r\nHost: a\r\n\r\n", RequestLine),
            ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", RequestLine),
            ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            ("G@T / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", BareLf),
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", BareLf),
            ("GET / HTTP/1.1\r\nHost: a\nno colon\r\n\r\n", BareLf),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", BareLf),
            ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", SpaceBeforeColon),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", FieldName),
            ("GET / HTTP/1.1\r\n: a\r\n\r\n", FieldName),
            ("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", ObsFold),
            ("GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", Nul),
            ("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", FieldValue),
            ("GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", FieldValue),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Version),
            ("GET / http/1.1\r\nHost: a\r\n\r\n", RequestLine),
            (long.as_str(), TooManyFields),
            (options.as_str(), TooManyFields),
        ] {
            assert_eq!(parse(request.as_bytes()).err(), Some(error), "{request:?}");
        }
    }

    #[test]
    fn refuses_a_part_that_shows_it() {
        use RequestError::*;
        let mut head = RequestHead::default();
        for (part, error) in [
            ("\n", BareLf),
            ("\r\n\r", RequestLine),
            ("GET / HTTP/1.1\n", BareLf),
            ("GET / HTTP/1.1\r\nHost: a\nX", BareLf),
            ("GET / HTTP/1.1\r\nHost :", SpaceBeforeColon),
            ("GET / HTTP/1.1\r\n ", ObsFold),
        ] {
            let refused = parse_request(part.as_bytes(), &mut head);
            assert_eq!(refused, Err(error), "{part:?}");
        }
    }

    #[test]
    fn refuses_ambiguous_framing() {
        use RequestError::*;
        for (lines, error) in [
            (
                "Content-Length: 3\r\nContent-Length: 3",
                ContentLengthRepeated,
            ),
            (
                "Content-Length: 3\r\ncontent-length: 4",
                ContentLengthRepeated,
            ),
            ("Content-Length: 3, 3", ContentLength),
            ("Content-Length: +5", ContentLength),
            ("Content-Length: -5", ContentLength),
            ("Content-Length: 0x5", ContentLength),
            ("Content-Length: 5 5", ContentLength),
            ("Content-Length: 5.0", ContentLength),
            ("Content-Length:", ContentLength),
            ("Content-Length: \u{0665}", ContentLength),
            ("Content-Length: 9223372036854775808", ContentLength),
            ("Content-Length: 18446744073709551621", ContentLength),
            ("Content-Length: 00000000000000000005", ContentLength),
            (
                "Content-Length: 5\r\nTransfer-Encoding: chunked",
                LengthAndCoding,
            ),
            (
                "Transfer-Encoding: chunked\r\nContent-Length: 5",
                LengthAndCoding,
            ),
            ("Transfer-Encoding: chunked, identity", TransferCoding),
            ("Transfer-Encoding: identity, chunked", TransferCoding),
            ("Transfer-Encoding: gzip, chunked", TransferCoding),
            ("Transfer-Encoding: chunked, chunked", TransferCoding),
            ("Transfer-Encoding: chunked,", TransferCoding),
            ("Transfer-Encoding: xchunked", TransferCoding),
            ("Transfer-Encoding: \"chunked\"", TransferCoding),
            ("Transfer-Encoding: chunked;q=1", TransferCoding),
            ("Transfer-Encoding:", TransferCoding),
            ("Transfer-Encoding: chunked\u{a0}", TransferCoding),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
                TransferCoding,
            ),
            (
                "Transfer-Encoding: chunked\r\nTransfer-encoding: chunked",
                TransferCoding,
            ),
            ("Transfer-Encoding : chunked", SpaceBeforeColon),
            ("Transfer-Encoding\t: chunked", SpaceBeforeColon),
            ("Transfer-Encoding\n: chunked", BareLf),
            ("Transfer-Encoding: \x0bchunked", FieldValue),
            ("Transfer-Encoding: chunked\x0c", FieldValue),
            ("X: y\rTransfer-Encoding: chunked", FieldValue),
            ("X: y\nTransfer-Encoding: chunked", BareLf),
            (" Transfer-Encoding: chunked", ObsFold),
            ("Transfer-Encoding:\r\n chunked", ObsFold),
        ] {
            assert_eq!(post(lines).err(), Some(error), "{lines:?}");
        }
        let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(parse(old).err(), Some(TransferCoding));
    }

    #[test]
    fn reads_framing() {
        let length = |bytes| BodyFraming::Length { bytes };
        for (lines, framing) in [
            ("X: y", BodyFraming::None),
            ("Content-Length: 0", BodyFraming::None),
            ("Content-Length: 5", length(5)),
            ("content-LENGTH:\t 005 ", length(5)),
            (
                "Content-Length: 9223372036854775807",
                length(i64::MAX as u64),
            ),
            ("Transfer-Encoding: Chunked", BodyFraming::Chunked),
            ("transfer-encoding:chunked\t", BodyFraming::Chunked),
            // Not the fields that they look like; nor are they passed on.
            ("Content_Length: 5", BodyFraming::None),
            ("Transfer_Encoding: chunked", BodyFraming::None),
            // Connection can't take the framing away.
            (
                "Content-Length: 5\r\nConnection: content-length, host",
                length(5),
            ),
            (
                "Connection: transfer-encoding\r\nTransfer-Encoding: chunked",
                BodyFraming::Chunked,
            ),
        ] {
            assert_eq!(
                post(lines).map(|head| head.wire.framing),
                Ok(framing),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn reads_targets() {
        for (request_line, host, path, query) in [
            ("GET / HTTP/1.1", "a", "/", ""),
            ("GET /p/q?x=y?z HTTP/1.1", "a", "/p/q", "x=y?z"),
            ("GET //b/p HTTP/1.1", "a", "//b/p", ""),
            ("GET http://b/p?q HTTP/1.1", "b", "/p", "q"),
            ("GET HTTPS://b:8/ HTTP/1.1", "b:8", "/", ""),
            ("GET http://b HTTP/1.1", "b", "/", ""),
            ("GET http://b? HTTP/1.1", "b", "/", ""),
            ("GET http://[::1]?q HTTP/1.1", "[::1]", "/", "q"),
            ("OPTIONS * HTTP/1.1", "a", "*", ""),
            ("OPTIONS http://b HTTP/1.1", "b", "*", ""),
            ("OPTIONS http://b? HTTP/1.1", "b", "/", ""),
            ("OPTIONS http://b?q HTTP/1.1", "b", "/", "q"),
            ("CONNECT b:443 HTTP/1.1", "b:443", "", ""),
        ] {
            let request = format!("\r\n{request_line}\r\nHost: a\r\n\r\n").into_bytes();
            let head = parse(&request).unwrap();
            let [of_host, of_query] = [head.host, head.query].map(|span| span.of(&request));
            assert_eq!(
                [of_host, head.path(&request), of_query],
                [host, path, query].map(str::as_bytes),
                "{request_line}"
            );
            assert_eq!(head.wire.host_in_target, host != "a", "{request_line}");
        }
    }

    #[test]
    fn refuses_targets() {
        for request_line in [
            "GET * HTTP/1.1",
            "GET p HTTP/1.1",
            "GET ftp://a/ HTTP/1.1",
            "GET http:// HTTP/1.1",
            "GET http:///p HTTP/1.1",
            "GET http://user@a/ HTTP/1.1",
            "GET http://a:x/ HTTP/1.1",
            "GET http://a\\b/ HTTP/1.1",
            "GET /#fragment HTTP/1.1",
            "GET /caf\u{e9} HTTP/1.1",
            "CONNECT /p HTTP/1.1",
            "CONNECT a HTTP/1.1",
            "CONNECT a: HTTP/1.1",
            "CONNECT http://a:80/ HTTP/1.1",
        ] {
            let request = format!("{request_line}\r\nHost: a\r\n\r\n");
            let error = parse(request.as_bytes()).err();
            assert_eq!(error, Some(RequestError::Target), "{request_line}");
        }
        let broken = b"GET /caf\xe9 HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(parse(broken).err(), Some(RequestError::Target));
    }

    #[test]
    fn checks_hosts() {
        use RequestError::*;
        for (lines, error) in [
            ("Host: a\r\n", None),
            ("Host:\r\n", None),
            ("Host: [::1]:80\r\n", None),
            ("", Some(HostMissing)),
            ("Host: a\r\nhost: a\r\n", Some(HostRepeated)),
            ("Host: a, b\r\n", Some(HostInvalid)),
            ("Host: a:port\r\n", Some(HostInvalid)),
            ("Host: a/b\r\n", Some(HostInvalid)),
            ("Host: u@a\r\n", Some(HostInvalid)),
        ] {
            assert_eq!(get("/", lines).err(), error, "{lines:?}");
        }
        // The target's authority does not make up for a bad Host.
        assert_eq!(get("http://b/", "Host: a b\r\n").err(), Some(HostInvalid));
        assert!(parse(b"GET / HTTP/1.0\r\n\r\n").is_ok());
    }

    #[test]
    fn decides_persistence() {
        for (version, lines, keep_alive) in [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: keep-alive, CLOSE\r\n", false),
            ("1.1", "Connection: x\r\nConnection: close\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            let request = format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
            let head = parse(request.as_bytes()).unwrap();
            assert_eq!(head.wire.keep_alive, keep_alive, "{request:?}");
        }
    }

    #[test]
    fn takes_upgrades_but_to_http() {
        for (lines, protocol) in [
            (
                "Connection: Upgrade\r\nUpgrade: websocket\r\n",
                Some("websocket"),
            ),
            ("Upgrade: websocket\r\n", None),
            ("Connection: upgrade\r\n", None),
            ("Connection: upgrade\r\nUpgrade:\r\n", None),
            (
                "Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\n",
                None,
            ),
            ("Connection: upgrade\r\nUpgrade: websocket, H2C\r\n", None),
            ("Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n", None),
            ("Connection: upgrade\r\nUpgrade: TLS/1.0\r\n", None),
            (
                "Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
                None,
            ),
            (
                "Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
                None,
            ),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes();
            let head = parse(&request).unwrap();
            let found = head.wire.upgrade.map(|span| span.of(&request));
            assert_eq!(found, protocol.map(str::as_bytes), "{lines:?}");
        }
        let old = b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(parse(old).unwrap().wire.upgrade, None);
    }

    #[test]
    fn knows_credentials_that_hold_for_the_connection() {
        use Credentials::{OfConnection, OfRequest};
        for (lines, expected) in [
            ("", OfRequest),
            ("Authorization: Basic bnRsbTo=", OfRequest),
            ("Authorization: Bearer ntlm", OfRequest),
            ("Authorization: NTL", OfRequest),
            ("Authorization:", OfRequest),
            ("X-Authorization: NTLM a", OfRequest),
            ("Authorization: NTLM TlRMTVNTUAABAAAA", OfConnection),
            ("authorization:ntlm a", OfConnection),
            ("AUTHORIZATION: negotiate YII=", OfConnection),
            ("Authorization: Nego2 a", OfConnection),
            (
                "Authorization: Basic a\r\nAuthorization: NTLM b\r\nAuthorization: Basic c",
                OfConnection,
            ),
        ] {
            let lines = match lines {
                "" => "Host: a\r\n".into(),
                lines => format!("Host: a\r\n{lines}\r\n"),
            };
            let credentials = get("/", &lines).map(|head| head.credentials);
            assert_eq!(credentials, Ok(expected), "{lines}");
        }
    }

    #[test]
    fn reads_expectations() {
        let expects = |lines: &str| post(lines).map(|head| head.wire.expect_continue);
        let body = "Transfer-Encoding: chunked";
        let with_body = |line| expects(&format!("{body}\r\n{line}"));
        assert_eq!(with_body("Expect: 100-Continue"), Ok(true));
        assert_eq!(with_body("Expect:"), Ok(false));
        assert_eq!(expects("Expect: 100-Continue"), Ok(false));
        assert_eq!(
            expects("Expect: 100-Continue\r\nContent-Length: 0"),
            Ok(false)
        );
        assert_eq!(expects("X: y"), Ok(false));
        assert_eq!(expects("Expect: x"), Err(RequestError::Expectation));
        let old = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n";
        assert!(!parse(old).unwrap().wire.expect_continue);
    }

    #[test]
    fn a_head_used_again_keeps_nothing() {
        let mut head = RequestHead::default();
        let first = b"CONNECT b:1 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(parse_request(first, &mut head), Ok(Parsed::Complete));
        let second = b"GET /p HTTP/1.0\r\n\r\n";
        assert_eq!(parse_request(second, &mut head), Ok(Parsed::Complete));
        assert_eq!(format!("{head:?}"), format!("{:?}", parse(second).unwrap()));
    }
}
