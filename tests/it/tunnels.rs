//! Upgraded connections, and CONNECT, which is not offered.

use std::time::Duration;

use evenkeel_testkit::RawOrigin;
use evenkeel_testkit::deadline::until;

use crate::setup::{Site, assert_logged, assert_refused, assert_serves, get, site, test};
use crate::words::{CONNECT_METHOD, UPSTREAM_UPGRADE};

const UPGRADE: &str = "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
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
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        assert!(client.is_closed());
        until("the tunnel is closed", || origin.stats().in_flight == 0);
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
