//! Answers that come before the request's body: an endpoint's, and our own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin};

use crate::in_flight::limited;
use crate::setup::{Site, assert_refused, assert_serves, figures, get, site, test};
use crate::words::{self, Reason};

const HEAD: &str = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n";
const BODY: &str = "0123456789";
const CLOSING: &str = "HTTP/1.1 413 Too Much\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
/// Answers of our own, beside an ordinary origin.
const OWN: &str = "[[route]]\nmatch = { path = '/fixed' }\nanswer = { body = 'fixed' }\n\
    [[route]]\nmatch = { path = '/moved' }\nredirect = 'https://a.example/'";

fn with_own_answers<'a>() -> Site<'a> {
    Site {
        server: OWN,
        ..Site::default()
    }
}

#[track_caller]
fn assert_closes(client: &mut RawClient, request: &str, status: u16) {
    client.send(request).unwrap();
    let response = client.read_response("POST").unwrap();
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(response.field("connection"), Some("close"), "{response:?}");
    assert!(client.is_closed(), "the connection stays open");
}

fn count(proxy: &Proxy, name: &str) -> u64 {
    figures(proxy)["listeners"][0][name].as_u64().unwrap()
}

#[test]
fn an_endpoint_that_answers_on_the_head_gets_the_whole_body() {
    test(|| {
        let whole = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&whole);
        let origin = RawOrigin::start(move |_, mut stream| {
            while stream.read_head().is_ok() {
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                stream.send(answer).unwrap();
                if stream
                    .read_len(BODY.len())
                    .is_ok_and(|it| it == BODY.as_bytes())
                {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        for number in 1..=20 {
            client.send(HEAD).unwrap();
            assert_eq!(client.read_response("POST").unwrap().text(), "ok");
            client.send(BODY).unwrap();
            until("the body is whole", || {
                whole.load(Ordering::SeqCst) == number
            });
        }
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn the_client_outlives_an_endpoint_that_closes_after_an_early_answer() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            if stream.read_head().is_ok() {
                stream.send(CLOSING).unwrap();
                stream.finish_sending().unwrap();
                let _ = stream.read_to_end();
            }
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let large = "x".repeat(3_000_000);
        for body in [BODY, &large] {
            let len = body.len();
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
            for _ in 0..3 {
                client.send(&head).unwrap();
                // Written before the answer is read.
                client.send(body).unwrap();
                let response = client.read_response("POST").unwrap();
                assert_eq!((response.status, response.text().as_str()), (413, "big"));
            }
        }
    });
}

#[test]
fn an_endpoint_that_closes_gives_its_slot_back_before_the_body_has_come() {
    test(|| {
        let origin = RawOrigin::answering(CLOSING).unwrap();
        let proxy = Site {
            upstream: "queue = { max = 0 }\nbuffer = false",
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 1)]);
        let mut slow = proxy.client();
        slow.send(HEAD).unwrap();
        assert_eq!(slow.read_response("POST").unwrap().status, 413);
        assert_eq!(proxy.client().get("/").unwrap().status, 413);
        slow.send(BODY).unwrap();
        assert_eq!(slow.get("/").unwrap().status, 413);
    });
}

#[test]
fn own_answers_keep_the_connection_of_a_request_with_a_body() {
    test(|| {
        let (_origin, proxy) = with_own_answers().with_origin();
        let mut client = proxy.client();
        for path in ["/fixed", "/moved"] {
            for framing in ["Content-Length: 10", "Transfer-Encoding: chunked"] {
                let body = if framing.starts_with('C') {
                    BODY.to_owned()
                } else {
                    format!("a\r\n{BODY}\r\n0\r\n\r\n")
                };
                let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
                // The body behind its answer, with it, and with the next request.
                client.send(&head).unwrap();
                assert!(client.read_response("POST").unwrap().status < 400);
                client.send(&body).unwrap();
                client.send(format!("{head}{body}")).unwrap();
                assert!(client.read_response("POST").unwrap().status < 400);
                client
                    .send(format!("{head}{body}{}", get("/ping")))
                    .unwrap();
                assert!(client.read_response("POST").unwrap().status < 400);
                assert_eq!(client.read_response("GET").unwrap().text(), "pong");
            }
        }
    });
}

#[test]
fn refusals_keep_the_connection_of_a_request_with_a_body() {
    #[track_caller]
    fn assert_kept(proxy: &Proxy, reason: Reason) {
        let mut client = proxy.client();
        for _ in 0..2 {
            client.send(HEAD).unwrap();
            assert_refused(&client.read_response("POST").unwrap(), reason);
            client.send(BODY).unwrap();
        }
    }
    test(|| {
        assert_kept(&Site::default().start(&[]), words::NO_ENDPOINT);
        let site = Site {
            listener: "limits = { body = 5 }",
            ..Site::default()
        };
        assert_kept(&site.with_origin().1, words::BODY_TOO_LARGE);
    });
}

#[test]
fn a_failed_attempt_keeps_the_connection_of_a_request_whose_body_was_read() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            if stream.read_head().is_ok() {
                let _ = stream.read_len(BODY.len());
            }
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        for _ in 0..3 {
            client.send(HEAD).unwrap();
            client.send(BODY).unwrap();
            let response = client.read_response("POST").unwrap();
            assert_refused(&response, words::UPSTREAM_CLOSED);
        }
    });
}

#[test]
fn a_body_beyond_the_bounds_has_its_connection_closed() {
    test(|| {
        let site = Site {
            listener: "drain = { silence = \"300ms\", bytes = \"100KB\" }",
            server: "[status]\nbind = '127.0.0.1:0'\n[[route]]\nmatch = { path = '/x' }\nanswer = {}",
            ..Site::default()
        };
        let (_origin, proxy) = site.with_origin();
        let mut silent = proxy.client();
        silent.send(HEAD).unwrap();
        let response = silent.read_response("POST").unwrap();
        assert_eq!(response.field("connection"), None);
        assert!(
            silent.is_closed(),
            "a body that does not come is waited for"
        );
        until("the drain is counted", || count(&proxy, "drains_cut") == 1);
        assert_eq!(count(&proxy, "drains"), 1);

        let long = HEAD.replace("10", "100001");
        assert_closes(&mut proxy.client(), &long, 200);
        let mut chunked = proxy.client();
        let head = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        chunked.send(head).unwrap();
        assert_eq!(chunked.read_response("POST").unwrap().status, 200);
        let chunk = format!("2710\r\n{}\r\n", "x".repeat(10_000));
        until("it is cut", || chunked.send(&chunk).is_err());
        until("the drain is counted", || count(&proxy, "drains_cut") == 2);
    });
}

#[test]
fn a_body_that_waits_for_100_is_not_waited_for() {
    test(|| {
        let (_origin, proxy) = with_own_answers().with_origin();
        let head = "POST /fixed HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\
            Expect: 100-continue\r\n\r\n";
        assert_closes(&mut proxy.client(), head, 200);
        // It did not wait.
        let mut client = proxy.client();
        client.send(format!("{head}{BODY}")).unwrap();
        assert_eq!(client.read_response("POST").unwrap().text(), "fixed");
        assert_serves(&mut client);
    });
}

#[test]
fn a_client_that_leaves_after_an_early_answer_takes_its_exchange_with_it() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        client.send(HEAD.replace("/x", "/early")).unwrap();
        assert_eq!(client.read_response("POST").unwrap().text(), "early");
        client.reset();
        until("the endpoint is free", || origin.stats().in_flight == 0);
        assert_serves(&mut proxy.client());
    });
}
