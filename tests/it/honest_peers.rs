//! Servers and clients that are odd but honest. Their messages have one reading, and are passed
//! on in normal form.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawOrigin, RawStream};

use crate::in_flight::limited;
use crate::setup::{Site, assert_logged, assert_refused, assert_serves, get, site, test};
use crate::words;

const OK: &str = "HTTP/1.1 200 OK\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const PONG: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";

fn before(origin: &RawOrigin) -> Proxy {
    before_endpoint(origin.address.to_string())
}

fn before_endpoint(endpoint: String) -> Proxy {
    Site {
        upstream: "retries = 0",
        ..Site::default()
    }
    .start(&[endpoint])
}

#[test]
fn odd_responses_are_taken() {
    test(|| {
        let many = "Set-Cookie: a=b\r\n".repeat(255);
        for (response, is_kept) in [
            (format!("{CHUNKED}5  \r\nhello\r\n0\r\n\r\n"), true),
            (
                format!("{CHUNKED}5;a=\"b;c\"\r\nhello\r\n0;d\r\n\r\n"),
                true,
            ),
            (
                "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello".to_owned(),
                true,
            ),
            (
                "HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
                true,
            ),
            (format!("\r\n{OK}Content-Length: 5\r\n\r\nhello"), true),
            (
                format!("{OK}X: a\r\n\tb\r\nContent-Length: 5\r\n\r\nhello"),
                true,
            ),
            (
                format!("{OK}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
                true,
            ),
            (format!("{OK}Content-Length: 5, 5\r\n\r\nhello"), true),
            (format!("{OK}{many}Content-Length: 5\r\n\r\nhello"), true),
            (
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n\
                 5\r\nhello\r\n0\r\n\r\n"
                    .to_owned(),
                false,
            ),
            (
                format!(
                    "{OK}Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                ),
                false,
            ),
        ] {
            let origin = RawOrigin::answering_each(response.clone()).unwrap();
            let proxy = before(&origin);
            let mut client = proxy.client();
            for _ in 0..3 {
                let answer = client.get("/").unwrap();
                let lengths = answer.fields.iter().filter(|(name, _)| {
                    name.eq_ignore_ascii_case("content-length")
                        || name.eq_ignore_ascii_case("transfer-encoding")
                });
                assert_eq!(
                    (answer.status, answer.text().as_str()),
                    (200, "hello"),
                    "{response:?}"
                );
                assert_eq!(lengths.count(), 1, "{answer:?}");
            }
            let connections = if is_kept { 1 } else { 3 };
            assert_eq!(origin.connections(), connections, "{response:?}");
        }
    });
}

#[test]
fn an_odd_head_may_come_in_pieces() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            let response = "\nHTTP/1.1 200 OK\nX: a\n b\nContent-Length: 5\n\nhello";
            if stream.read_head().is_ok() {
                for byte in response.as_bytes() {
                    stream.send([*byte]).unwrap();
                }
            }
        })
        .unwrap();
        let response = before(&origin).client().get("/").unwrap();
        assert_eq!(response.text(), "hello");
        assert_eq!(response.field("x"), Some("a b"));
    });
}

#[test]
fn trailers_that_may_not_be_any_are_left_out_of_responses() {
    test(|| {
        let body = "5\r\nhello\r\n0\r\nX-Sum: 1\r\nContent-Type: a/b\r\nX-Request-ID: c\r\n\r\n";
        let origin = RawOrigin::answering_each(format!("{CHUNKED}{body}")).unwrap();
        let proxy = before(&origin);
        let mut client = proxy.client();
        client.send(get("/")).unwrap();
        let head = client.read_head().unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let rest = "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";
        assert_eq!(client.read_len(rest.len()).unwrap(), rest.as_bytes());
        assert_eq!(client.get("/").unwrap().text(), "hello");
    });
}

#[test]
fn a_response_has_a_date() {
    test(|| {
        for (response, date) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", None),
            ("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", None),
            ("HTTP/1.1 204 No Content\r\n\r\n", None),
            (
                "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1998 12:01:00 GMT\r\nContent-Length: 0\r\n\r\n",
                Some("Thu, 01 Jan 1998 12:01:00 GMT"),
            ),
        ] {
            let origin = RawOrigin::answering_each(response).unwrap();
            let response = before(&origin).client().get("/").unwrap();
            let dates: Vec<_> = response
                .fields
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case("date"))
                .collect();
            assert_eq!(dates.len(), 1, "{response:?}");
            assert!(dates[0].1.ends_with(" GMT"), "{response:?}");
            assert!(date.is_none_or(|date| dates[0].1 == date), "{response:?}");
        }
    });
}

#[test]
fn a_426_says_to_which_protocol() {
    test(|| {
        let origin = RawOrigin::answering_each(
            "HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.2\r\nConnection: Upgrade\r\n\
             Content-Length: 0\r\n\r\n",
        )
        .unwrap();
        let proxy = before(&origin);
        let mut client = proxy.client();
        for _ in 0..2 {
            let response = client.get("/").unwrap();
            assert_eq!(response.status, 426);
            assert_eq!(response.field("upgrade"), Some("TLS/1.2"));
            assert_eq!(response.field("connection"), Some("upgrade"));
        }
    });
}

/// Waits as long as a read may take, which brings nothing.
fn pause(stream: &mut RawStream) {
    assert!(stream.read_len(1).is_err());
}

#[test]
fn an_interim_response_begins_the_wait_anew() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            stream.set_step(Duration::from_millis(500));
            for _ in 0..5 {
                stream.send("HTTP/1.1 102 Processing\r\n\r\n").unwrap();
                pause(&mut stream);
            }
            let _ = stream.send(PONG);
        })
        .unwrap();
        let proxy = Site {
            upstream: "retries = 0\ntimeouts = { first_byte = \"2s\" }",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_serves(&mut client);
    });
}

/// An origin whose second response on a connection is replaced by `garbage`.
fn desynchronised(garbage: &'static str) -> RawOrigin {
    RawOrigin::start(move |_, mut stream| {
        for response in [PONG, garbage] {
            if stream.read_head().is_ok() {
                stream.send(response).unwrap();
            }
        }
    })
    .unwrap()
}

#[test]
fn bytes_of_an_earlier_exchange_do_not_fail_the_next() {
    test(|| {
        let origin = desynchronised("left over\r\n");
        let proxy = before(&origin);
        let mut client = proxy.client();
        for connections in [1, 2, 3] {
            assert_serves(&mut client);
            assert_eq!(origin.connections(), connections);
        }
        // A request that may have had an effect is not sent twice.
        let response = client
            .ask("POST /ping HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        assert_refused(&response, words::UPSTREAM_STATUS_LINE);
        assert_eq!(origin.connections(), 3);
    });
}

#[test]
fn an_empty_line_before_a_close_is_no_answer() {
    test(|| {
        let origin = desynchronised("\r\n");
        let proxy = before(&origin);
        let mut client = proxy.client();
        assert_serves(&mut client);
        assert_serves(&mut client);
        assert_eq!(origin.connections(), 2);
    });
}

#[test]
fn garbage_on_a_new_connection_is_the_endpoint_s_fault() {
    test(|| {
        let origin = RawOrigin::answering_each("garbage\r\n").unwrap();
        let proxy = before(&origin);
        let response = proxy.client().get("/").unwrap();
        assert_refused(&response, words::UPSTREAM_STATUS_LINE);
        assert_eq!(origin.connections(), 1);
    });
}

/// The bytes of a request at the endpoint, up to `end`.
fn received(request: &[&str], end: &'static str) -> String {
    received_by(request, end, str::to_owned)
}

/// The same of an endpoint that the configuration has as `endpoint` says.
fn received_by(request: &[&str], end: &'static str, endpoint: fn(&str) -> String) -> String {
    let seen = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&seen);
    let origin = RawOrigin::start(move |_, mut stream| {
        let mut text = stream.read_head().unwrap();
        while !text.ends_with(end) {
            let byte = stream.read_len(1).unwrap();
            text.push(byte[0].into());
        }
        *kept.lock().unwrap() = text;
        stream.send(PONG).unwrap();
    })
    .unwrap();
    let proxy = before_endpoint(endpoint(&origin.address.to_string()));
    let mut client = proxy.client();
    for piece in request {
        client.send(piece).unwrap();
    }
    assert_eq!(client.read_response("POST").unwrap().text(), "pong");
    let seen = seen.lock().unwrap();
    seen.clone()
}

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn chunks_reach_the_endpoint_in_normal_form() {
    test(|| {
        for pieces in [
            &["3 ;a=\"b\\\"c\" ; d \r\nabc\r\n0;e\r\nX: y\r\nHost: b\r\nremote_user: c\r\n\r\n"][..],
            &[
                "3 ",
                ";a",
                "\r",
                "\nabc\r\n0\t\r\nX: y\r\nX-Real-IP: 1",
                "92.0.2.1\r\n\r\n",
            ],
        ] {
            let request: Vec<_> = [&[POST][..], pieces].concat();
            // The body with the head, behind it, and read before it is sent.
            let whole = request.concat();
            let ahead: fn(&str) -> String = |address| limited(address, 1);
            for (request, endpoint) in [
                (&[whole.as_str()][..], str::to_owned as fn(&str) -> String),
                (&request, str::to_owned),
                (&request, ahead),
            ] {
                let text = received_by(request, "0\r\nX: y\r\n\r\n", endpoint);
                let body = "\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n";
                assert!(text.ends_with(body), "{text}");
            }
        }
    });
}

#[test]
fn a_later_minor_version_is_answered_as_1_1() {
    test(|| {
        let text = received(&["GET / HTTP/1.2\r\nHost: a\r\n\r\n"], "\r\n\r\n");
        assert!(text.starts_with("GET / HTTP/1.1\r\n"), "{text}");
    });
}

#[test]
fn an_expectation_needs_a_body() {
    test(|| {
        for fields in [
            "Expect: 100-continue\r\n",
            "Expect: 100-continue\r\nContent-Length: 0\r\n",
            "Expect:\r\n",
        ] {
            let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let text = received(&[&request], "\r\n\r\n");
            assert!(!text.to_lowercase().contains("expect"), "{text}");
        }
    });
}

#[test]
fn a_client_that_waits_for_100_is_not_to_blame() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_head();
            // It never asks for the body.
            let _ = stream.read_head();
        })
        .unwrap();
        let proxy = Site {
            listener: "timeouts = { body = \"100ms\" }",
            upstream: "retries = 0\ntimeouts = { first_byte = \"400ms\" }",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        let response = proxy.client().ask(head).unwrap();
        assert_refused(&response, words::FIRST_BYTE_TIMEOUT);
        assert_logged(&proxy, words::FIRST_BYTE_TIMEOUT);
        // Once it sends, it is the client's turn.
        let mut client = proxy.client();
        client.send(format!("{head}ab")).unwrap();
        let response = client.read_response("POST").unwrap();
        assert_refused(&response, words::BODY_TIMEOUT);
    });
}

#[test]
fn a_request_without_host_names_the_endpoint() {
    test(|| {
        for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\n\r\n"] {
            let text = received(&[request], "\r\n\r\n");
            let hosts: Vec<_> = text.lines().filter(|it| it.starts_with("Host:")).collect();
            assert_eq!(hosts.len(), 1, "{text}");
            assert!(hosts[0].starts_with("Host: 127.0.0.1:"), "{text}");
            assert!(!text.contains("X-Forwarded-Host"), "{text}");
        }
    });
}

#[test]
fn max_forwards_is_counted_down_and_ends_here() {
    test(|| {
        for method in ["TRACE", "OPTIONS"] {
            let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 2\r\n\r\n");
            let text = received(&[&request], "\r\n\r\n");
            assert!(text.contains("\r\nMax-Forwards: 1\r\n"), "{text}");
        }
        let (origin, proxy) = site();
        let last = "Max-Forwards: 0\r\nCookie: secret\r\nX: y\r\n\r\n";
        let mut client = proxy.client();
        let trace = format!("TRACE /a?b HTTP/1.1\r\nHost: a\r\n{last}");
        let response = client.ask(trace).unwrap();
        assert_eq!(response.field("content-type"), Some("message/http"));
        let seen = "TRACE /a?b HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\nX: y\r\n";
        assert_eq!((response.status, response.text().as_str()), (200, seen));
        let options = format!("OPTIONS * HTTP/1.1\r\nHost: a\r\n{last}");
        assert_eq!(client.ask(options).unwrap().status, 204);
        assert_eq!(origin.stats().requests, 0);
        // No other method counts.
        let get = format!("GET /ping HTTP/1.1\r\nHost: a\r\n{last}");
        assert_eq!(client.ask(get).unwrap().text(), "pong");
    });
}

#[test]
fn an_empty_line_behind_a_body_leaves_the_connection_idle() {
    test(|| {
        let site = Site {
            listener: "timeouts = { head = \"300ms\" }",
            ..Site::default()
        };
        let (_origin, proxy) = site.with_origin();
        let mut client = proxy.client();
        let post = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi\r\n";
        assert_eq!(client.ask(post).unwrap().text(), "hi");
        client.send("\r\n").unwrap();
        // Another one begins a head, and has been too late for it.
        let mut late = proxy.client();
        late.send("GET").unwrap();
        assert_eq!(late.read_response("GET").unwrap().status, 408);
        assert_serves(&mut client);
        until("one line is logged as late", || {
            let log = proxy.access_log_json();
            log.iter().filter(|line| line["status"] == 408).count() == 1
        });
    });
}
