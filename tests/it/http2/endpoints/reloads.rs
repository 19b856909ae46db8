//! Endpoints that leave, and a program that does, while exchanges share a connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{H2Server, RawOrigin};

use super::echo_paths;
use super::holding::Holding;
use crate::in_flight::occupy;
use crate::reload::{SITE, reload};
use crate::setup::{Site, test};
use crate::upgrade::{Successors, is_running};

const H2: Site<'_> = Site {
    upstream: "protocol = \"h2\"",
    ..SITE
};

#[test]
fn an_endpoint_that_leaves_serves_what_it_has() {
    test(|| {
        let (one, other) = (
            Holding::start(&[], usize::MAX),
            Holding::start(&[], usize::MAX),
        );
        let proxy = H2.start(&[one.origin.address.to_string()]);
        let mut held = [occupy(&proxy, "/hold/a"), occupy(&proxy, "/hold/b")];
        one.until_held(2);
        reload(&proxy, &H2.config(&[other.origin.address.to_string()]));
        assert_eq!(proxy.client().get("/new").unwrap().text(), "/new");
        assert_eq!(other.origin.connections(), 1);
        assert_eq!(one.open(), 1);
        one.release();
        for (client, path) in held.iter_mut().zip(["/hold/a", "/hold/b"]) {
            assert_eq!(client.read_response("GET").unwrap().text(), path);
        }
        until("the connection is closed", || one.open() == 0);
        assert_eq!(one.seen.goaways.load(Ordering::SeqCst), 1);
        assert_eq!(one.origin.connections(), 1);
    });
}

/// An endpoint that speaks both versions; the first bytes decide.
fn either() -> RawOrigin {
    RawOrigin::start(|_, mut raw| {
        if raw.peek_first().is_ok_and(|it| it == b'P') {
            if let Ok(mut server) = H2Server::accept(raw, &[]) {
                let _ = echo_paths(&mut server);
            }
            return;
        }
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nHTTP/1.1";
        while raw.read_head().is_ok() && raw.send(answer).is_ok() {}
    })
    .unwrap()
}

#[test]
fn what_is_spoken_to_endpoints_may_change() {
    test(|| {
        let endpoint = either();
        let endpoints = [endpoint.address.to_string()];
        let proxy = SITE.start(&endpoints);
        let mut client = proxy.client();
        for (site, expected) in [
            (SITE, "HTTP/1.1"),
            (H2, "/path"),
            (SITE, "HTTP/1.1"),
            (H2, "/path"),
        ] {
            reload(&proxy, &site.config(&endpoints));
            for _ in 0..2 {
                assert_eq!(client.get("/path").unwrap().text(), expected);
            }
        }
    });
}

#[test]
fn a_program_that_drains_ends_what_it_has() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let mut proxy = H2.start(&[endpoint.origin.address.to_string()]);
        let mut held = [occupy(&proxy, "/hold/a"), occupy(&proxy, "/hold/b")];
        endpoint.until_held(2);
        proxy.terminate();
        until("it drains", || proxy.stderr().contains("drain"));
        endpoint.release();
        for client in &mut held {
            let response = client.read_response("GET").unwrap();
            assert_eq!(response.status, 200);
        }
        let status = proxy.wait(Duration::from_secs(5));
        assert!(status.is_some_and(|it| it.success()), "{status:?}");
        until("the connection is closed", || endpoint.open() == 0);
    });
}

/// A connection that is idle, or would be for long, holds up no end.
#[test]
fn a_program_that_drains_does_not_wait_for_idle_connections() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let mut proxy = H2.start(&[endpoint.origin.address.to_string()]);
        assert_eq!(proxy.client().get("/a").unwrap().status, 200);
        proxy.terminate();
        let status = proxy.wait(Duration::from_secs(5));
        assert!(status.is_some_and(|it| it.success()), "{status:?}");
    });
}

#[test]
fn another_process_takes_over_while_streams_are_open() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let proxy = H2.start(&[endpoint.origin.address.to_string()]);
        let mut held = [occupy(&proxy, "/hold/a"), occupy(&proxy, "/hold/b")];
        endpoint.until_held(2);
        let first = proxy.pid();
        let successors = Successors(&proxy);
        successors.upgrade();
        assert_eq!(proxy.client().get("/new").unwrap().text(), "/new");
        assert_eq!(endpoint.origin.connections(), 2);
        endpoint.release();
        for client in &mut held {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        until("the old one has ended", || !is_running(first));
        assert_eq!(proxy.client().get("/next").unwrap().text(), "/next");
        until("its connection is closed", || endpoint.open() == 1);
    });
}
