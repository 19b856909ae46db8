//! Requests that must be refused: malformed, ambiguous, smuggling.
//!
//! Each is refused with its reason, and the connection is closed. Not one byte of it reaches
//! the origin, not even of a request hidden behind it.

use evenkeel_testkit::deadline::until;

use crate::setup::{assert_logged, assert_refused, assert_refused_and_closed, site, test};
use crate::words::{self, Reason};

/// Checks every request of a table, one after the other, at one site.
fn refuses_all(table: Vec<(&'static str, Reason)>) {
    test(move || {
        let (origin, proxy) = site();
        for (request, reason) in table {
            eprintln!("refusing ({}): {request:?}", reason.word);
            assert_refused_and_closed(&proxy, request.as_bytes(), reason);
            let bytes_received = origin.stats().bytes_received;
            assert_eq!(
                bytes_received, 0,
                "the origin received a part of {request:?}"
            );
        }
    });
}

#[test]
fn malformed_request_lines() {
    refuses_all(vec![
        ("GET\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("GET /\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("G\x01T / HTTP/1.1\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("GET / HTTP/x\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", words::REQUEST_LINE),
        ("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", words::REQUEST_LINE),
    ]);
}

#[test]
fn malformed_targets() {
    refuses_all(vec![
        ("GET no-slash HTTP/1.1\r\nHost: a\r\n\r\n", words::TARGET),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", words::TARGET),
        ("GET http:// HTTP/1.1\r\nHost: a\r\n\r\n", words::TARGET),
    ]);
}

#[test]
fn unknown_versions() {
    refuses_all(vec![
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", words::VERSION),
        ("GET / HTTP/0.9\r\nHost: a\r\n\r\n", words::VERSION),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", words::VERSION),
    ]);
}

#[test]
fn malformed_lines_and_fields() {
    refuses_all(vec![
        ("GET / HTTP/1.1\nHost: a\n\n", words::BARE_LF),
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", words::BARE_LF),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\n\r\n", words::BARE_LF),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", words::BARE_LF),
        (
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            words::SPACE_BEFORE_COLON,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX\t: y\r\n\r\n",
            words::SPACE_BEFORE_COLON,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
            words::OBS_FOLD,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tfolded\r\n\r\n",
            words::OBS_FOLD,
        ),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", words::OBS_FOLD),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", words::NUL),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", words::NUL),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
            words::FIELD_VALUE,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\x07b\r\n\r\n",
            words::FIELD_VALUE,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n",
            words::FIELD_NAME,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nno colon here\r\n\r\n",
            words::FIELD_NAME,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX(Y: z\r\n\r\n",
            words::FIELD_NAME,
        ),
    ]);
}

#[test]
fn hosts() {
    refuses_all(vec![
        ("GET / HTTP/1.1\r\n\r\n", words::HOST_MISSING),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            words::HOST_REPEATED,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
            words::HOST_REPEATED,
        ),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", words::HOST_INVALID),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", words::HOST_INVALID),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", words::HOST_INVALID),
        (
            "GET / HTTP/1.1\r\nHost: user@a\r\n\r\n",
            words::HOST_INVALID,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a:port\r\n\r\n",
            words::HOST_INVALID,
        ),
    ]);
}

/// The request that is smuggled behind another one.
macro_rules! hidden {
    () => {
        "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
    };
}

#[test]
fn ambiguous_lengths() {
    refuses_all(vec![
        post(
            &["Content-Length: 3", "Content-Length: 4"],
            words::CONTENT_LENGTH_REPEATED,
        ),
        post(
            &["Content-Length: 3", "Content-Length: 3"],
            words::CONTENT_LENGTH_REPEATED,
        ),
        post(
            &["Content-Length: 3", "content-length: 0"],
            words::CONTENT_LENGTH_REPEATED,
        ),
        post(&["Content-Length: 3, 3"], words::CONTENT_LENGTH),
        post(&["Content-Length: +3"], words::CONTENT_LENGTH),
        post(&["Content-Length: -3"], words::CONTENT_LENGTH),
        post(&["Content-Length: 0x3"], words::CONTENT_LENGTH),
        post(&["Content-Length: 3 3"], words::CONTENT_LENGTH),
        post(&["Content-Length: 3a"], words::CONTENT_LENGTH),
        post(&["Content-Length:"], words::CONTENT_LENGTH),
        post(
            &["Content-Length: 99999999999999999999"],
            words::CONTENT_LENGTH,
        ),
        post(
            &["Content-Length: 3", "Transfer-Encoding: chunked"],
            words::LENGTH_AND_CODING,
        ),
        post(
            &["Transfer-Encoding: chunked", "Content-Length: 3"],
            words::LENGTH_AND_CODING,
        ),
        post(
            &["Content-Length: 3", "Transfer-Encoding: identity"],
            words::TRANSFER_CODING,
        ),
    ]);
}

#[test]
fn unknown_transfer_codings() {
    refuses_all(vec![
        post(&["Transfer-Encoding: gzip"], words::TRANSFER_CODING),
        post(
            &["Transfer-Encoding: gzip, chunked"],
            words::TRANSFER_CODING,
        ),
        post(
            &["Transfer-Encoding: chunked, gzip"],
            words::TRANSFER_CODING,
        ),
        post(
            &["Transfer-Encoding: chunked, chunked"],
            words::TRANSFER_CODING,
        ),
        post(&["Transfer-Encoding: identity"], words::TRANSFER_CODING),
        post(&["Transfer-Encoding: xchunked"], words::TRANSFER_CODING),
        post(&["Transfer-Encoding: \"chunked\""], words::TRANSFER_CODING),
        post(&["Transfer-Encoding: chunked;a=b"], words::TRANSFER_CODING),
        post(
            &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
            words::TRANSFER_CODING,
        ),
        post(
            &["Transfer-Encoding: chunked", "Transfer-Encoding: x"],
            words::TRANSFER_CODING,
        ),
        post(&["Transfer-Encoding:"], words::TRANSFER_CODING),
        post(&["Transfer-Encoding: chunked\x0b"], words::FIELD_VALUE),
        post(&["Transfer-Encoding : chunked"], words::SPACE_BEFORE_COLON),
        post(&["X: y\rTransfer-Encoding: chunked"], words::FIELD_VALUE),
        post(&["X: y\nTransfer-Encoding: chunked"], words::BARE_LF),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            words::TRANSFER_CODING,
        ),
    ]);
}

/// A POST with these field lines, whose body hides a request. The texts live
/// as long as the tests do.
fn post(fields: &[&str], reason: Reason) -> (&'static str, Reason) {
    let fields = fields.join("\r\n");
    let request = format!(
        "POST /echo HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n0\r\n\r\n{}",
        hidden!()
    );
    (request.leak(), reason)
}

#[test]
fn malformed_chunks() {
    refuses_all(vec![
        chunked("\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("x\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("0x3\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("+3\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("-3\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked(" 3\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("3 \nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("3 a\r\nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("3_0\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("10000000000000003\r\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("3\nabc\r\n0\r\n\r\n", words::CHUNK_SIZE),
        chunked("3;a=\r\nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("3;a\nb\r\nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("3;a\rb\r\nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("3;a=\"b\r\nc\"\r\nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("3;\r\nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("3;\nabc\r\n0\r\n\r\n", words::CHUNK_EXTENSION),
        chunked("2\r\nabc\r\n0\r\n\r\n", words::CHUNK_END),
        chunked("3\r\nabc\n0\r\n\r\n", words::CHUNK_END),
        chunked("3\r\nabc0\r\n\r\n", words::CHUNK_END),
    ]);
}

#[test]
fn malformed_trailers() {
    refuses_all(vec![
        chunked("0\r\nno colon\r\n\r\n", words::TRAILER),
        chunked("0\r\nX : y\r\n\r\n", words::TRAILER),
        chunked("0\r\nX: y\n\r\n", words::TRAILER),
        chunked("0\r\nX: y\r\n z\r\n\r\n", words::TRAILER),
    ]);
}

/// A chunked POST with this body.
fn chunked(body: &str, reason: Reason) -> (&'static str, Reason) {
    let head = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    (format!("{head}{body}{}", hidden!()).leak(), reason)
}

#[test]
fn a_mistake_later_in_a_body_breaks_off_the_upstream_request() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        client
            .send(
                "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            )
            .unwrap();
        until("the origin has the head", || origin.stats().requests == 1);
        client
            .send(format!("zz\r\n0\r\n\r\n{}", hidden!()))
            .unwrap();
        let response = client.read_response("POST").unwrap();
        assert_refused(&response, words::CHUNK_SIZE);
        assert!(client.is_closed());
        until("the origin's request is broken off", || {
            origin.stats().aborted == 1
        });
        assert_eq!(origin.stats().requests, 1, "the hidden request got through");
        assert_logged(&proxy, words::CHUNK_SIZE);
    });
}

#[test]
fn what_was_served_before_a_mistake_stays_served() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        let first = "GET /5 HTTP/1.1\r\nHost: a\r\n\r\n";
        client
            .send(format!(
                "{first}GET / HTTP/1.1\r\nHost : a\r\n\r\n{}",
                hidden!()
            ))
            .unwrap();
        assert_eq!(client.read_response("GET").unwrap().text(), "abcde");
        let response = client.read_response("GET").unwrap();
        assert_refused(&response, words::SPACE_BEFORE_COLON);
        assert!(client.is_closed());
        assert_eq!(origin.stats().requests, 1);
    });
}

#[test]
fn an_unknown_method_is_passed_on() {
    test(|| {
        let (_origin, proxy) = site();
        let response = proxy
            .client()
            .ask("BREW /headers HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert!(response.text().starts_with("BREW /headers HTTP/1.1\r\n"));
    });
}

#[test]
fn an_empty_line_before_a_request_is_passed_over() {
    // RFC 9112 section 2.2: a server should ignore at least one.
    test(|| {
        let (_origin, proxy) = site();
        let response = proxy
            .client()
            .ask("\r\nGET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_eq!(response.text(), "pong");
    });
}
