//! Idle connections that endpoints close: how long they are kept, and requests
//! that meet one that is being closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::{Proxy, RawClient, RawOrigin};

use crate::in_flight::limited;
use crate::setup::{Site, assert_logged, assert_refused, figures, test};
use crate::words;

const STATUS: &str = "[status]\nbind = \"127.0.0.1:0\"";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
const PUT: &str = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";

fn ends(proxy: &Proxy, word: &str) -> u64 {
    let figures = figures(proxy);
    figures["upstreams"][0]["ends"][word].as_u64().unwrap_or(0)
}

/// An endpoint that answers the first request of each connection with this, and
/// closes at the second one.
fn closing_at_the_second(answer: &str) -> RawOrigin {
    let answer = answer.to_owned();
    let origin = RawOrigin::start(move |_, mut stream| {
        if stream.read_head().is_ok() && stream.send(&answer).is_ok() {
            let _ = stream.read_head();
        }
    });
    origin.unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[track_caller]
fn assert_ok(client: &mut RawClient, request: &str) {
    client.send(request).unwrap();
    assert_eq!(client.read_response("GET").unwrap().text(), "ok");
}

#[test]
fn a_client_repeats_a_post_that_met_a_connection_being_closed() {
    test(|| {
        let origin = closing_at_the_second(OK);
        let proxy = Site {
            server: STATUS,
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_ok(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.send(POST).unwrap();
        assert_eq!(client.read_to_end().unwrap(), b"", "no answer");
        assert_logged(&proxy, words::UPSTREAM_STALE);
        let lines = proxy.access_log_json();
        assert_eq!(lines[1]["status"], 0);
        assert_eq!(ends(&proxy, "upstream-stale"), 1);
        assert_eq!(ends(&proxy, "upstream-closed"), 0);
        // On a new connection all is well.
        assert_ok(&mut proxy.client(), POST);
        // A request that may be repeated is repeated, without the client.
        let mut client = proxy.client();
        assert_ok(&mut client, PUT);
        assert_ok(&mut client, PUT);
    });
}

#[test]
fn the_first_request_of_a_client_is_answered() {
    test(|| {
        let origin = closing_at_the_second(OK);
        let proxy = Site::default().start(&[origin.address.to_string()]);
        assert_ok(&mut proxy.client(), PUT);
        let mut client = proxy.client();
        client.send(POST).unwrap();
        let response = client.read_response("POST").unwrap();
        assert_refused(&response, words::UPSTREAM_CLOSED);
    });
}

#[test]
fn a_post_that_met_a_connection_being_closed_is_answered_where_that_is_wanted() {
    test(|| {
        let origin = closing_at_the_second(OK);
        let proxy = Site {
            upstream: "pool = { close_on_stale = false }",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_ok(&mut client, PUT);
        client.send(POST).unwrap();
        let response = client.read_response("POST").unwrap();
        assert_refused(&response, words::UPSTREAM_CLOSED);
    });
}

#[test]
fn half_an_answer_is_no_reason_to_repeat() {
    test(|| {
        let served = Arc::new(AtomicUsize::new(0));
        let origin = RawOrigin::start(move |_, mut stream| {
            while stream.read_head().is_ok() {
                let _ = stream.read_len(4);
                let answer = match served.fetch_add(1, Ordering::SeqCst) {
                    0 => OK,
                    _ => "HTTP/1.1 200",
                };
                if stream.send(answer).is_err() || answer != OK {
                    return;
                }
            }
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_ok(&mut client, POST);
        client.send(POST).unwrap();
        let response = client.read_response("POST").unwrap();
        assert_refused(&response, words::UPSTREAM_CLOSED);
    });
}

#[test]
fn a_request_that_is_being_worked_on_is_not_repeated() {
    test(|| {
        for request in [POST, PUT] {
            let origin = RawOrigin::start(|_, mut stream| {
                for answer in [OK, "HTTP/1.1 102 Processing\r\n\r\n"] {
                    if stream.read_head().is_err() || stream.read_len(4).is_err() {
                        return;
                    }
                    stream.send(answer).unwrap();
                }
            })
            .unwrap();
            let proxy = Site {
                upstream: "retries = 0",
                ..Site::default()
            }
            .start(&[origin.address.to_string()]);
            let mut client = proxy.client();
            assert_ok(&mut client, request);
            client.send(request).unwrap();
            let response = client.read_response("POST").unwrap();
            assert_refused(&response, words::UPSTREAM_CLOSED);
            assert_eq!(origin.connections(), 1);
        }
    });
}

#[test]
fn a_client_s_own_connection_is_let_go_once_its_endpoint_has_closed_it() {
    test(|| {
        let is_let_go = Arc::new(AtomicBool::new(false));
        let let_go = is_let_go.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            if stream.read_head().is_ok() && stream.send(OK).is_ok() {
                stream.set_step(Duration::from_secs(60));
                stream.finish_sending().unwrap();
                let _ = stream.read_to_end();
                let_go.store(true, Ordering::SeqCst);
            }
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let request = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: NTLM a\r\n\r\n";
        assert_ok(&mut client, request);
        until("it is let go", || is_let_go.load(Ordering::SeqCst));
        assert_ok(&mut client, request);
    });
}

/// Number of connections for two requests. The second comes after `pause`, and the first answer
/// has this field.
#[track_caller]
fn connections_with(field: &str, limit: Option<u32>) -> usize {
    let answer = format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 2\r\n\r\nok");
    let origin = RawOrigin::answering_each(answer).unwrap();
    let address = origin.address.to_string();
    let entry = limit.map_or(address.clone(), |limit| limited(&address, limit));
    let proxy = Site::default().start(&[entry]);
    let mut client = proxy.client();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let response = client.read_response("GET").unwrap();
        assert_eq!(response.field("keep-alive"), None, "it is for one hop");
    }
    origin.connections()
}

#[test]
fn a_connection_that_is_about_to_be_closed_is_not_kept() {
    test(|| {
        for limit in [None, Some(4)] {
            for (field, connections) in [
                ("", 1),
                ("Keep-Alive: timeout=0\r\n", 2),
                ("Keep-Alive: timeout=1\r\n", 2),
                ("keep-alive: max=5, TIMEOUT = 1\r\n", 2),
                ("Keep-Alive: timeout=1, timeout=60\r\n", 2),
                ("Keep-Alive: timeout=60\r\nKeep-Alive: timeout=1\r\n", 1),
                ("Keep-Alive: timeout=60, max=100\r\n", 1),
                ("Keep-Alive: timeout=99999999999999999999\r\n", 1),
                ("Keep-Alive: timeout=1s\r\n", 1),
                ("Keep-Alive: timeout=-1\r\n", 1),
                ("Keep-Alive: timeout\r\n", 1),
                ("Keep-Alive: max=1\r\n", 1),
            ] {
                let found = connections_with(field, limit);
                assert_eq!(found, connections, "{field:?} {limit:?}");
            }
        }
    });
}

#[test]
fn an_idle_connection_is_closed_a_second_before_its_endpoint_would() {
    test(|| {
        for limit in [None, Some(4)] {
            let is_closed = Arc::new(AtomicBool::new(false));
            let origin = {
                let is_closed = is_closed.clone();
                RawOrigin::start(move |_, mut stream| {
                    stream.set_step(Duration::from_secs(60));
                    while stream.read_head().is_ok() {
                        let answer =
                            "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=3\r\nContent-Length: 2\r\n\r\nok";
                        stream.send(answer).unwrap();
                    }
                    is_closed.store(true, Ordering::SeqCst);
                })
            }
            .unwrap();
            let address = origin.address.to_string();
            let entry = limit.map_or(address.clone(), |limit| limited(&address, limit));
            let proxy = Site::default().start(&[entry]);
            let mut client = proxy.client();
            assert_eq!(client.get("/").unwrap().text(), "ok");
            let is_kept = !holds_within(Duration::from_millis(1_500), || {
                is_closed.load(Ordering::SeqCst)
            });
            assert!(is_kept, "{limit:?}");
            until("it is closed", || is_closed.load(Ordering::SeqCst));
        }
    });
}
