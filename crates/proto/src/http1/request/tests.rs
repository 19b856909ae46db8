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
