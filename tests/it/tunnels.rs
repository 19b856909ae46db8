//! Upgraded connections, and CONNECT, which is not offered.

use std::sync::mpsc::channel;
use std::time::Duration;

use evenkeel_testkit::RawOrigin;
use evenkeel_testkit::deadline::{STEP, until};
use serde_json::json;

use crate::setup::{
    Site, assert_logged, assert_refused, assert_serves, figures, get, pattern, site, test,
};
use crate::words::{CONNECT_METHOD, TUNNEL_IDLE, UPSTREAM_UPGRADE};

/// A request for a tunnel, which the test origin opens.
pub const UPGRADE: &str = "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                       Upgrade: echo-protocol\r\n\r\n";

#[test]
fn an_upgraded_connection_carries_bytes_both_ways() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        let response = client.ask(UPGRADE).unwrap();
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.field("upgrade"), Some("echo-protocol"));
        for text in ["hello", "GET / HTTP/1.1\r\n\r\n", "\0\x01\r\n"] {
            client.send(text).unwrap();
            assert_eq!(client.read_len(text.len()).unwrap(), text.as_bytes());
        }
        let large = vec![b'x'; 1 << 20];
        for piece in large.chunks(64 << 10) {
            client.send(piece).unwrap();
            assert_eq!(client.read_len(piece.len()).unwrap(), piece);
        }
        client.finish_sending().unwrap();
        assert!(client.is_closed());
        until("the tunnel is closed", || origin.stats().in_flight == 0);
        until("it is logged", || !proxy.access_log().is_empty());
        assert_eq!(proxy.access_log_json()[0]["end"], "tunnel");
    });
}

#[test]
fn bytes_sent_along_with_the_upgrade_are_not_lost() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client.send(format!("{UPGRADE}early bytes")).unwrap();
        assert_eq!(client.read_response("GET").unwrap().status, 101);
        assert_eq!(client.read_len(11).unwrap(), b"early bytes");
    });
}

/// A request for a tunnel, with a body of five bytes.
const UPGRADE_WITH_BODY: &str = "POST /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                                 Upgrade: echo-protocol\r\nContent-Length: 5\r\n\r\n";
const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                         Upgrade: echo-protocol\r\n\r\n";

#[test]
fn bytes_sent_along_with_the_body_of_an_upgrade_are_not_lost() {
    test(|| {
        let (head_came, head_at_origin) = channel();
        let origin = RawOrigin::start(move |_, mut stream| {
            stream.read_head().unwrap();
            head_came.send(()).unwrap();
            assert_eq!(stream.read_len(5).unwrap(), b"hello");
            stream.send(SWITCHING).unwrap();
            let echo = stream.read_len(11).unwrap();
            stream.send(echo).unwrap();
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        client.send(UPGRADE_WITH_BODY).unwrap();
        head_at_origin.recv().unwrap();
        client.send("helloearly bytes").unwrap();
        assert_eq!(client.read_response("POST").unwrap().status, 101);
        assert_eq!(client.read_len(11).unwrap(), b"early bytes");
    });
}

#[test]
fn a_tunnel_that_begins_before_the_end_of_the_request_loses_nothing() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            stream.send(SWITCHING).unwrap();
            let echo = stream.read_len(16).unwrap();
            stream.send(echo).unwrap();
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        for request in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
            let mut client = proxy.client();
            let head = UPGRADE_WITH_BODY.replace("Content-Length: 5", request);
            // The beginning of a chunk's size or of the body.
            client.send(format!("{head}2")).unwrap();
            assert_eq!(client.read_response("POST").unwrap().status, 101);
            client.send("\r\nab\r\n0\r\n\r\n1234").unwrap();
            let echo = client.read_len(16).unwrap();
            assert_eq!(echo, b"2\r\nab\r\n0\r\n\r\n1234");
        }
    });
}

#[test]
fn a_long_body_goes_on_in_a_tunnel_that_begins_before_its_end() {
    test(|| {
        const LEN: u64 = 16 << 20;
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            // The proxy has read more by then than it could write.
            std::thread::park_timeout(Duration::from_millis(500));
            stream.send(SWITCHING).unwrap();
            let is_whole = stream.read_len(LEN as usize).unwrap() == pattern(LEN);
            stream
                .send(if is_whole { "whole" } else { "torn!" })
                .unwrap();
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let len = format!("Content-Length: {LEN}");
        client
            .send(UPGRADE_WITH_BODY.replace("Content-Length: 5", &len))
            .unwrap();
        client.send(pattern(LEN)).unwrap();
        assert_eq!(client.read_response("POST").unwrap().status, 101);
        assert_eq!(client.read_len(5).unwrap(), b"whole");
    });
}

#[test]
fn the_last_bytes_of_an_endpoint_outlive_its_end_of_the_tunnel() {
    test(|| {
        const LEN: usize = 2 << 20;
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            stream.send(SWITCHING).unwrap();
            stream.send(vec![b'x'; LEN]).unwrap();
            // Its bytes are with the proxy when it closes, some of the client's
            // unread.
            std::thread::park_timeout(Duration::from_millis(300));
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        // The client takes nothing while the tunnel fills.
        for _ in 0..50 {
            client.send("y").unwrap();
            std::thread::park_timeout(Duration::from_millis(10));
        }
        client.skip_len(LEN as u64).unwrap();
    });
}

#[test]
fn a_client_that_leaves_its_tunnel_closes_it() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        drop(client);
        until("the tunnel is closed", || origin.stats().in_flight == 0);
    });
}

#[test]
fn a_silent_tunnel_ends_with_its_timeout() {
    test(|| {
        let upstream = "timeouts = { idle = \"300ms\" }";
        let (origin, proxy) = Site {
            upstream,
            server: "[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        assert!(client.is_closed());
        until("the tunnel is closed", || origin.stats().in_flight == 0);
        assert_logged(&proxy, TUNNEL_IDLE);
        let ends = &figures(&proxy)["listeners"][0]["ends"];
        assert_eq!(ends, &json!({"tunnel-idle": 1}));
    });
}

#[test]
fn a_tunnel_that_the_stop_cuts_is_no_success() {
    test(|| {
        let (_origin, mut proxy) = Site {
            server: "drain_timeout = \"300ms\"",
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
        let line = &proxy.access_log_json()[0];
        assert_eq!(
            (&line["status"], &line["end"]),
            (&json!(101), &json!("stopped"))
        );
        assert!(proxy.stderr().contains("(stopped 1)"), "{}", proxy.stderr());
    });
}

#[test]
fn a_refused_upgrade_is_an_ordinary_answer() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let request =
            "GET /ping HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(client.ask(request).unwrap().text(), "pong");
        assert_serves(&mut client);
    });
}

#[test]
fn an_upgrade_that_nobody_asked_for_is_not_passed_on() {
    test(|| {
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        let origin = RawOrigin::answering(answer).unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let response = proxy.client().ask(get("/")).unwrap();
        assert_refused(&response, UPSTREAM_UPGRADE);
        assert_logged(&proxy, UPSTREAM_UPGRADE);
    });
}

#[test]
fn connect_is_refused() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        client.set_step(Duration::from_secs(5));
        let request = "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n";
        let response = client.ask(request).unwrap();
        assert_refused(&response, CONNECT_METHOD);
        assert_logged(&proxy, CONNECT_METHOD);
        assert_eq!(origin.stats().bytes_received, 0);
    });
}
