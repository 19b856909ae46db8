//! Clients that close their sending side before their answer: some wait for it,
//! others have left.

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, RawOrigin};

use crate::in_flight::{limited, occupy};
use crate::setup::{Site, assert_logged, assert_serves, get, origin, test};
use crate::words;

const HTTP_1_0: &str = "GET /slow/100 HTTP/1.0\r\n\r\n";
const HTTP_1_0_KEPT: &str = "GET /slow/100 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
const CLOSING: &str = "GET /slow/100 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const KEPT: &str = "GET /slow/100 HTTP/1.1\r\nHost: a\r\n\r\n";

/// A site with one slot and this setting of its listener.
fn site(listener: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let proxy = Site {
        listener,
        ..Site::default()
    }
    .start(&[limited(&origin.address.to_string(), 1)]);
    (origin, proxy)
}

/// A client that sends this, and a FIN with it.
fn half_closed(proxy: &Proxy, request: &str) -> RawClient {
    let mut client = proxy.client();
    client.send_last(request).unwrap();
    client
}

#[track_caller]
fn assert_served(proxy: &Proxy, request: &str) {
    let mut client = half_closed(proxy, request);
    let response = client.read_response("GET").unwrap();
    assert_eq!(response.text(), "pong", "{request:?}");
    assert!(client.is_closed(), "{request:?}");
}

/// Checks that the only slot is free again long before the answer.
#[track_caller]
fn assert_abandoned(proxy: &Proxy, request: &str) {
    let request = request.replace("/slow/100", "/slow/20000");
    let _gone = half_closed(proxy, &request);
    assert_logged(proxy, words::CLIENT_GONE);
    assert_serves(&mut proxy.client());
}

#[test]
fn a_client_whose_connection_ends_with_the_answer_gets_it() {
    test(|| {
        let (_origin, proxy) = site("");
        for request in [HTTP_1_0, HTTP_1_0_KEPT, CLOSING] {
            assert_served(&proxy, request);
        }
    });
}

#[test]
fn a_client_that_keeps_its_connection_has_left_with_its_fin() {
    test(|| {
        let (_origin, proxy) = site("");
        assert_abandoned(&proxy, KEPT);
    });
}

#[test]
fn a_setting_decides_for_all() {
    test(|| {
        let (_origin, proxy) = site("half_close = \"serve\"");
        for request in [HTTP_1_0, HTTP_1_0_KEPT, CLOSING, KEPT] {
            assert_served(&proxy, request);
        }
        for request in [HTTP_1_0, CLOSING, KEPT] {
            let (_origin, proxy) = site("half_close = \"abort\"");
            assert_abandoned(&proxy, request);
        }
    });
}

#[test]
fn a_client_that_leaves_frees_its_place_in_the_queue() {
    test(|| {
        let (origin, proxy) = site("");
        let mut busy = occupy(&proxy, "/slow/500");
        until("one is in flight", || origin.stats().in_flight == 1);
        let _gone = half_closed(&proxy, &get("/slow/20000"));
        assert_logged(&proxy, words::CLIENT_GONE);
        let mut waiting = half_closed(&proxy, CLOSING);
        assert_eq!(busy.read_response("GET").unwrap().status, 200);
        assert_eq!(waiting.read_response("GET").unwrap().status, 200);
        assert_eq!(origin.stats().requests, 2);
    });
}

#[test]
fn a_reset_behind_a_fin_or_another_request_is_noticed() {
    test(|| {
        let (origin, proxy) = site("");
        for (behind, count) in [("", 1), (KEPT, 2)] {
            let request = CLOSING.replace("/slow/100", "/slow/20000") + behind;
            let leaving = half_closed(&proxy, &request);
            until("it is in flight", || origin.stats().in_flight == 1);
            leaving.reset();
            until("its request is abandoned", || {
                origin.stats().aborted == count
            });
        }
    });
}

#[test]
fn a_tunnel_passes_a_fin_on() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            let switch = "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
            stream.send(switch).unwrap();
            let all = stream.read_to_end().unwrap();
            stream.send(all).unwrap();
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        client
            .send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
            .unwrap();
        client.read_head().unwrap();
        client.send("all of it").unwrap();
        client.finish_sending().unwrap();
        assert_eq!(client.read_to_end().unwrap(), b"all of it");
    });
}
