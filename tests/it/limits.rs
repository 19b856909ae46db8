//! Limits on what a client may send and how long it may take.

use std::time::Duration;

use evenkeel_testkit::deadline::{holds_within, until};

use crate::setup::{
    Site, assert_logged, assert_refused, assert_refused_and_closed, assert_serves, test,
};
use crate::words;

const LIMITS: &str = "limits = { head = \"4KiB\", target = \"1KiB\", body = 1000 }";

fn request_with_head_len(len: usize) -> Vec<u8> {
    let (before, after) = ("GET /ping HTTP/1.1\r\nHost: a\r\nX: ", "\r\n\r\n");
    let filler = "x".repeat(len - before.len() - after.len());
    format!("{before}{filler}{after}").into_bytes()
}

#[test]
fn a_head_may_be_as_large_as_the_limit_and_no_larger() {
    test(|| {
        let (origin, proxy) = Site {
            listener: LIMITS,
            ..Site::default()
        }
        .with_origin();
        let response = proxy.client().ask(request_with_head_len(4096)).unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        let bytes_received = origin.stats().bytes_received;
        assert_refused_and_closed(&proxy, &request_with_head_len(4097), words::HEAD_TOO_LARGE);
        let endless = [
            b"GET /ping HTTP/1.1\r\nHost: a\r\nX: ".as_slice(),
            &[b'x'; 100_000],
        ]
        .concat();
        assert_refused_and_closed(&proxy, &endless, words::HEAD_TOO_LARGE);
        // An empty line before a request is no part of its head.
        let after_empty_line = |len| [b"\r\n".as_slice(), &request_with_head_len(len)].concat();
        assert_refused_and_closed(&proxy, &after_empty_line(4097), words::HEAD_TOO_LARGE);
        assert_eq!(origin.stats().bytes_received, bytes_received);
    });
}

#[test]
fn a_target_may_be_as_long_as_the_limit_and_no_longer() {
    test(|| {
        let (origin, proxy) = Site {
            listener: LIMITS,
            ..Site::default()
        }
        .with_origin();
        let request = |len: usize| {
            let target = format!("/ping?{}", "x".repeat(len - "/ping?".len()));
            format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
        };
        assert_eq!(proxy.client().ask(request(1024)).unwrap().status, 200);
        let requests = origin.stats().requests;
        let refused = words::TARGET_TOO_LONG;
        assert_refused_and_closed(&proxy, request(1025).as_bytes(), refused);
        let after_empty_line = format!("\r\n{}", request(1025));
        assert_refused_and_closed(&proxy, after_empty_line.as_bytes(), refused);
        assert_eq!(origin.stats().requests, requests);
    });
}

#[test]
fn a_body_may_be_as_large_as_the_limit_and_no_larger() {
    test(|| {
        let (origin, proxy) = Site {
            listener: LIMITS,
            ..Site::default()
        }
        .with_origin();
        let body = "x".repeat(1000);
        let head = "POST /echo HTTP/1.1\r\nHost: a\r\n";
        let whole = format!("{head}Content-Length: 1000\r\n\r\n{body}");
        assert_eq!(proxy.client().ask(whole).unwrap().status, 200);
        let requests = origin.stats().requests;
        let too_large = format!("{head}Content-Length: 1001\r\n\r\n{body}x");
        let mut client = proxy.client();
        let response = client.ask(too_large).unwrap();
        assert_refused(&response, words::BODY_TOO_LARGE);
        assert_logged(&proxy, words::BODY_TOO_LARGE);
        assert_eq!(origin.stats().requests, requests);
        // Its body was read.
        assert_serves(&mut client);
    });
}

#[test]
fn a_chunked_body_is_counted_as_it_comes() {
    test(|| {
        let (origin, proxy) = Site {
            listener: LIMITS,
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        let head = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = format!("1f4\r\n{}\r\n", "x".repeat(500));
        client.send(format!("{head}{chunk}{chunk}")).unwrap();
        until("the origin has the head", || origin.stats().requests == 1);
        client.send("1\r\nx\r\n0\r\n\r\n").unwrap();
        let response = client.read_response("POST").unwrap();
        assert_refused(&response, words::BODY_TOO_LARGE);
        assert_serves(&mut client);
        until("the origin's request is broken off", || {
            origin.stats().aborted == 1
        });
        assert_logged(&proxy, words::BODY_TOO_LARGE);
    });
}

const PATIENCE: &str = "timeouts = { head = \"300ms\", body = \"300ms\", idle = \"60s\" }";

#[test]
fn a_head_that_does_not_come_is_not_waited_for() {
    test(|| {
        let (origin, proxy) = Site {
            listener: PATIENCE,
            ..Site::default()
        }
        .with_origin();
        assert_refused_and_closed(&proxy, b"GET /ping HTTP/1.1\r\nHos", words::HEAD_TIMEOUT);
        assert_eq!(origin.stats().bytes_received, 0);
    });
}

#[test]
fn a_head_that_drips_is_not_waited_for() {
    test(|| {
        let (_origin, proxy) = Site {
            listener: PATIENCE,
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        client.send("GET /ping HTTP/1.1\r\nX: ").unwrap();
        // Each byte is progress, but the head as a whole still has a deadline.
        let refused = holds_within(Duration::from_secs(10), || client.send("x").is_err());
        assert!(refused, "a head that never ends is read for ever");
        assert_logged(&proxy, words::HEAD_TIMEOUT);
    });
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    test(|| {
        let (origin, proxy) = Site {
            listener: PATIENCE,
            ..Site::default()
        }
        .with_origin();
        let request = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello";
        assert_refused_and_closed(&proxy, request.as_bytes(), words::BODY_TIMEOUT);
        until("nothing is in flight", || origin.stats().in_flight == 0);
    });
}

#[test]
fn a_silent_client_is_with_the_kernel_for_a_second() {
    test(|| {
        for (setting, is_with_kernel) in [("", true), ("defer_accept = false\n", false)] {
            let listener = format!("{setting}limits.connections = 1");
            let (_origin, proxy) = Site {
                listener: &listener,
                ..Site::default()
            }
            .with_origin();
            // The one worker accepts them in this order.
            let mut silent = proxy.client();
            let mut second = proxy.client();
            assert_serves(&mut second);
            // An open idle connection is closed for the second client.
            assert_eq!(silent.get("/ping").is_ok(), is_with_kernel, "{setting:?}");
        }
    });
}

/// A client that writes its whole request before it reads still gets the reason of its refusal.
/// The rest of its request is read, however long.
#[test]
fn a_large_upload_that_is_refused_ends_with_the_answer() {
    test(|| {
        let (_origin, proxy) = Site {
            listener: "limits.body = \"1KiB\"",
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        let len = 16 * 1024 * 1024;
        let head = format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
        client.send(head.as_bytes()).unwrap();
        client.send(vec![b'x'; len]).unwrap();
        assert_eq!(client.read_response("POST").unwrap().status, 413);
    });
}
