//! Limits on what an endpoint has in flight, and clients that leave.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin};

use crate::setup::{
    Site, assert_logged, assert_refused, assert_serves, figures, get, origin, program, site, test,
};
use crate::words;

/// An endpoint with a limit.
pub fn limited(address: &str, max_in_flight: u32) -> String {
    format!("{{ address = \"{address}\", max_in_flight = {max_in_flight} }}")
}

pub fn occupy(proxy: &Proxy, path: &str) -> RawClient {
    let mut client = proxy.client();
    client.send(get(path)).unwrap();
    client
}

#[test]
fn a_full_upstream_answers_503_and_serves_again_when_there_is_room() {
    test(|| {
        let origin = origin();
        let proxy = Site {
            upstream: "queue = { max = 0 }",
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 2)]);
        let mut busy = [occupy(&proxy, "/slow/500"), occupy(&proxy, "/slow/500")];
        until("two are in flight", || origin.stats().in_flight == 2);
        let mut client = proxy.client();
        let response = client.get("/ping").unwrap();
        assert_refused(&response, words::SATURATED);
        assert_logged(&proxy, words::SATURATED);
        for busy in &mut busy {
            assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
        }
        assert_serves(&mut client);
        assert_eq!(origin.stats().max_in_flight, 2);
    });
}

#[test]
fn the_limit_is_never_exceeded() {
    test(|| {
        let origins = [origin(), origin()];
        let endpoints = origins
            .each_ref()
            .map(|origin| limited(&origin.address.to_string(), 3));
        let proxy = Site::default().start(&endpoints);
        let mut clients: Vec<RawClient> = (0..20).map(|_| occupy(&proxy, "/slow/200")).collect();
        let statuses: Vec<u16> = clients
            .iter_mut()
            .map(|client| client.read_response("GET").unwrap().status)
            .collect();
        let served = statuses.iter().filter(|&&status| status == 200).count();
        assert!(served >= 6, "{statuses:?}");
        for origin in &origins {
            assert_eq!(origin.stats().max_in_flight, 3);
        }
    });
}

#[test]
fn a_client_that_leaves_gives_up_its_slot_at_once() {
    test(|| {
        let origin = origin();
        let proxy = Site::default().start(&[limited(&origin.address.to_string(), 1)]);
        let leaving = occupy(&proxy, "/slow/20000");
        until("the request is in flight", || origin.stats().in_flight == 1);
        let begun = Instant::now();
        leaving.reset();
        until("the upstream request is abandoned", || {
            origin.stats().aborted == 1
        });
        until("the slot is free", || {
            proxy
                .client()
                .get("/ping")
                .is_ok_and(|response| response.status == 200)
        });
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "took {:?}",
            begun.elapsed()
        );
        assert_logged(&proxy, words::CLIENT_GONE);
    });
}

#[test]
fn a_client_that_closes_gives_up_its_slot_at_once_too() {
    test(|| {
        let origin = origin();
        let proxy = Site::default().start(&[limited(&origin.address.to_string(), 1)]);
        let leaving = occupy(&proxy, "/slow/20000");
        until("the request is in flight", || origin.stats().in_flight == 1);
        drop(leaving);
        until("the upstream request is abandoned", || {
            origin.stats().aborted == 1
        });
        until("the slot is free", || {
            proxy
                .client()
                .get("/ping")
                .is_ok_and(|response| response.status == 200)
        });
    });
}

#[test]
fn a_client_that_leaves_during_its_answer_stops_it() {
    test(|| {
        let (origin, proxy) = site();
        let mut leaving = occupy(&proxy, "/10000000000");
        leaving.read_head().unwrap();
        leaving.skip_len(1_000_000).unwrap();
        drop(leaving);
        until("the upstream request is abandoned", || {
            origin.stats().in_flight == 0
        });
        assert_eq!(origin.stats().aborted, 1);
        assert_serves(&mut proxy.client());
    });
}

#[test]
fn a_client_that_leaves_during_a_silence_in_its_answer_stops_it() {
    test(|| {
        let (origin, proxy) = site();
        let mut leaving = occupy(&proxy, "/drip/10/60000");
        leaving.read_head().unwrap();
        leaving.read_len(1).unwrap();
        leaving.reset();
        until("the upstream request is abandoned", || {
            origin.stats().aborted == 1
        });
        assert_logged(&proxy, words::CLIENT_GONE);
    });
}

#[test]
fn a_client_that_leaves_during_its_request_stops_it() {
    test(|| {
        let (origin, proxy) = site();
        let mut leaving = proxy.client();
        let head = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nhello";
        leaving.send(head).unwrap();
        until("the request is in flight", || origin.stats().in_flight == 1);
        drop(leaving);
        until("the upstream request is abandoned", || {
            origin.stats().in_flight == 0
        });
        assert_eq!(origin.stats().aborted, 1);
    });
}

#[test]
fn slots_come_back_whatever_ends_an_exchange() {
    test(|| {
        let origin = origin();
        let proxy = Site::default().start(&[limited(&origin.address.to_string(), 1)]);
        for round in 0..5 {
            let mut client = proxy.client();
            assert_serves(&mut client);
            assert_eq!(
                client.get("/status/500").unwrap().status,
                500,
                "round {round}"
            );
            assert_eq!(
                client
                    .ask("HEAD /5 HTTP/1.1\r\nHost: a\r\n\r\n")
                    .unwrap()
                    .status,
                200
            );
            let mut leaving = occupy(&proxy, "/drip/10/60000");
            leaving.read_head().unwrap();
            leaving.reset();
            until("the origin is idle", || {
                origin.stats().in_flight == 0 || {
                    // A drip notices at its next byte; being gone is counted at once.
                    origin.stats().aborted == round + 1
                }
            });
            until("the slot is free", || {
                proxy
                    .client()
                    .get("/ping")
                    .is_ok_and(|response| response.status == 200)
            });
        }
    });
}

/// A site with several workers, each of which serves some of the clients.
fn with_workers(upstream: &str, endpoint: &str, max_in_flight: u32) -> Proxy {
    let site = Site {
        upstream,
        server: "[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    };
    let config = site.config(&[limited(endpoint, max_in_flight)]);
    let config = config.replace("workers = 1", "workers = 4");
    Proxy::start(program(), &config).unwrap()
}

/// A server with one thread, which serves one connection at a time: others wait until that
/// connection is closed.
#[test]
fn an_idle_connection_is_there_for_every_worker() {
    test(|| {
        let thread = Mutex::new(());
        let origin = RawOrigin::start(move |_, mut stream| {
            let _thread = thread.lock().unwrap();
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";
            while stream.read_head().is_ok() && stream.send(answer).is_ok() {}
        })
        .unwrap();
        let proxy = with_workers("", &origin.address.to_string(), 1);
        (0..40).for_each(|_| assert_serves(&mut proxy.client()));
        assert_eq!(origin.connections(), 1);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| assert_serves(&mut proxy.client())));
            }
        });
        assert_eq!(origin.connections(), 1);
        // Each worker counts the idle connections that it watches.
        let idle = || figures(&proxy)["upstreams"][0]["endpoints"][0]["idle"].as_u64();
        until("one is idle", || idle() == Some(1));
    });
}

#[test]
fn idle_connections_are_no_more_than_the_pool_keeps() {
    test(|| {
        for (max_idle, kept) in [(0, 0), (2, 2), (100, 3)] {
            let origin = origin();
            let upstream = format!("pool = {{ max_idle = {max_idle} }}");
            let proxy = with_workers(&upstream, &origin.address.to_string(), 3);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let response = proxy.client().get("/slow/200").unwrap();
                        assert_eq!(response.status, 200);
                    });
                }
            });
            assert_eq!(origin.stats().max_in_flight, 3);
            until("the rest is closed", || {
                origin.stats().open_connections == kept
            });
        }
    });
}

#[test]
fn an_idle_connection_that_the_endpoint_closed_is_found_by_its_worker() {
    test(|| {
        let origin = origin();
        let upstream = "pool = { idle_timeout = \"60s\" }";
        let proxy = with_workers(upstream, &origin.address.to_string(), 2);
        let idle = || figures(&proxy)["upstreams"][0]["endpoints"][0]["idle"].as_u64();
        assert_serves(&mut proxy.client());
        until("it is idle", || idle() == Some(1));
        origin.refuse();
        until("it is closed here too", || idle() == Some(0));
        origin.serve();
        assert_serves(&mut proxy.client());
    });
}

/// Announces a long body, and sends as much of it as anybody takes.
fn stuck_upload(proxy: &Proxy) -> RawClient {
    let mut client = proxy.client();
    client.set_step(Duration::from_millis(300));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n";
    client.send(head).unwrap();
    let sent = client.send(vec![b'x'; 100_000_000]);
    assert!(sent.is_err(), "nobody takes all of it");
    client
}

#[test]
fn a_client_that_resets_a_stuck_upload_gives_up_its_place() {
    test(|| {
        // It takes no more than its socket does.
        let stuck = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_head();
            std::thread::park();
        })
        .unwrap();
        let proxy = Site {
            upstream: "buffer = false",
            server: "[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        }
        .start(&[limited(&stuck.address.to_string(), 1)]);
        let upstream = || figures(&proxy)["upstreams"][0].clone();
        let sending = stuck_upload(&proxy);
        let waiting = stuck_upload(&proxy);
        until("one waits", || upstream()["waiting"] == 1);
        waiting.reset();
        until("none waits", || upstream()["waiting"] == 0);
        assert_eq!(upstream()["endpoints"][0]["in_flight"], 1);
        sending.reset();
        until("the slot is free", || {
            upstream()["endpoints"][0]["in_flight"] == 0
        });
    });
}

#[test]
fn a_fin_behind_pipelined_requests_is_the_last_one_s() {
    test(|| {
        let (_origin, proxy) = site();
        let last = "GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        for first in [get("/slow/50"), get("/slow/50").repeat(3)] {
            let mut client = proxy.client();
            client.send(format!("{first}{last}")).unwrap();
            client.finish_sending().unwrap();
            let answered = String::from_utf8(client.read_to_end().unwrap()).unwrap();
            let count = first.matches("GET ").count() + 1;
            assert_eq!(
                answered.matches("HTTP/1.1 200").count(),
                count,
                "{answered}"
            );
        }
    });
}
