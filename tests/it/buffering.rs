//! Slow clients, which hold no slot: bodies read ahead, responses taken ahead,
//! and the least rate.

use std::time::Duration;

use evenkeel_testkit::deadline::{holds_within, until, within};
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, RawOrigin};

use crate::in_flight::{limited, occupy};
use crate::setup::{
    Site, assert_logged, assert_refused, assert_serves, figures, get, origin, pattern, site, test,
};
use crate::words;

const STATUS: &str = "[status]\nbind = \"127.0.0.1:0\"";
/// Longer than the socket buffers, so that an unread response blocks.
const LONG: u64 = 32 << 20;
/// Room for a response of that length.
const ROOMY: &str = "buffer = { response = \"64MiB\" }";

/// An origin that takes one request at a time, and the program before it.
fn one_at_a_time(upstream: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let site = Site {
        upstream,
        server: STATUS,
        ..Site::default()
    };
    let proxy = site.start(&[limited(&origin.address.to_string(), 1)]);
    (origin, proxy)
}

/// A client whose request ends in the middle of its body.
fn half_sent(proxy: &Proxy, head: &str, body: impl AsRef<[u8]>) -> RawClient {
    let mut client = proxy.client();
    let head = format!("{head} HTTP/1.1\r\nHost: a\r\n");
    client
        .send([head.as_bytes(), body.as_ref()].concat())
        .unwrap();
    client
}

fn buffered_bytes(proxy: &Proxy) -> u64 {
    figures(proxy)["buffer_bytes"].as_u64().unwrap()
}

fn buffers_refused(proxy: &Proxy) -> u64 {
    let upstream = &figures(proxy)["upstreams"][0];
    upstream["buffers_refused"].as_u64().unwrap()
}

// Requests.

#[test]
fn a_slow_upload_holds_no_slot() {
    test(|| {
        let (origin, proxy) = one_at_a_time("");
        let mut slow = half_sent(&proxy, "POST /echo", "Content-Length: 10\r\n\r\nhello");
        let mut in_chunks = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5".to_owned();
        let mut chunked = half_sent(&proxy, "PUT /echo", &in_chunks);
        until("both are held", || buffered_bytes(&proxy) > 0);
        assert_serves(&mut proxy.client());
        assert_eq!(origin.stats().requests, 1, "only the one that was whole");
        // The next request follows the body at once.
        let next = get("/ping");
        slow.send(format!("world{next}")).unwrap();
        assert_eq!(slow.read_response("POST").unwrap().text(), "helloworld");
        assert_eq!(slow.read_response("GET").unwrap().text(), "pong");
        in_chunks = format!("\r\nworld\r\n0\r\n\r\n{next}");
        chunked.send(in_chunks).unwrap();
        assert_eq!(chunked.read_response("PUT").unwrap().text(), "helloworld");
        assert_eq!(chunked.read_response("GET").unwrap().text(), "pong");
        assert_eq!(buffered_bytes(&proxy), 0);
    });
}

#[test]
fn reading_ahead_is_part_of_receiving_the_request() {
    test(|| {
        let (_origin, proxy) = one_at_a_time("");
        let mut slow = half_sent(&proxy, "POST /echo", "Content-Length: 10\r\n\r\nhello");
        until("it is held", || buffered_bytes(&proxy) > 0);
        slow.send("world").unwrap();
        slow.read_response("POST").unwrap();
        let mut lines = Vec::new();
        until("it is logged", || {
            lines = proxy.access_log_json();
            !lines.is_empty()
        });
        let line = &lines[0];
        assert!(line["head_us"].as_u64().unwrap() > 0, "{line}");
        assert!(line["queue_us"].is_null(), "{line}");
        let head_len = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n".len();
        assert_eq!(line["bytes_in"], head_len as u64 + 10, "{line}");
    });
}

#[test]
fn a_body_that_is_longer_takes_a_slot_when_its_part_is_there() {
    test(|| {
        let (origin, proxy) = one_at_a_time("buffer = { request = \"1KiB\" }");
        let body = pattern(100_000);
        let mut slow = half_sent(&proxy, "POST /echo", "Content-Length: 100000\r\n\r\n");
        slow.send(&body[..1_000]).unwrap();
        assert_serves(&mut proxy.client());
        slow.send(&body[1_000..2_000]).unwrap();
        until("it has the slot", || origin.stats().in_flight == 1);
        slow.send(&body[2_000..]).unwrap();
        let response = slow.read_response("POST").unwrap();
        assert!(response.body == body, "{} bytes", response.body.len());
        assert_serves(&mut slow);
    });
}

#[test]
fn bodies_of_every_size_and_framing_are_read_ahead() {
    test(|| {
        let (_origin, proxy) = one_at_a_time("");
        let mut client = proxy.client();
        for len in [1, 100, 16_384, 50_000, 65_535, 65_536, 65_537, 300_000] {
            let body = pattern(len);
            client
                .send(format!(
                    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
                ))
                .unwrap();
            client.send(&body).unwrap();
            let response = client.read_response("POST").unwrap();
            assert!(response.body == body, "{len} bytes with a length");
            client
                .send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
                .unwrap();
            for chunk in body.chunks(10_000) {
                let size = format!("{:x}\r\n", chunk.len());
                let chunk = [size.as_bytes(), chunk, b"\r\n"].concat();
                client.send(chunk).unwrap();
            }
            client.send("0\r\n\r\n").unwrap();
            let response = client.read_response("POST").unwrap();
            assert!(response.body == body, "{len} bytes in chunks");
        }
    });
}

#[test]
fn whoever_expects_100_takes_a_slot_with_the_head() {
    test(|| {
        let (origin, proxy) = one_at_a_time("");
        let fields = "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        let mut client = half_sent(&proxy, "POST /echo", fields);
        until("it is in flight", || origin.stats().in_flight == 1);
        assert!(client.read_head().unwrap().starts_with("HTTP/1.1 100"));
        client.send("hello").unwrap();
        assert_eq!(client.read_response("POST").unwrap().text(), "hello");
    });
}

#[test]
fn whoever_waits_for_100_is_not_slow() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            // Longer than a client's rate is judged over.
            holds_within(Duration::from_secs(12), || false);
            stream.send("HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            stream.read_len(5).unwrap();
            let _ = stream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        })
        .unwrap();
        let proxy = Site::default().start(&[limited(&origin.address.to_string(), 1)]);
        let fields = "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        let mut client = half_sent(&proxy, "POST /", fields);
        client.set_step(Duration::from_secs(20));
        assert!(client.read_head().unwrap().starts_with("HTTP/1.1 100"));
        client.send("hello").unwrap();
        assert_eq!(client.read_response("POST").unwrap().status, 200);
    });
}

#[test]
fn without_buffer_a_request_takes_its_slot_with_the_head() {
    test(|| {
        for upstream in ["buffer = false", "buffer = { request = 0 }"] {
            let (origin, proxy) = one_at_a_time(upstream);
            let _slow = half_sent(&proxy, "POST /echo", "Content-Length: 10\r\n\r\nhello");
            until("it is in flight", || origin.stats().in_flight == 1);
        }
        // Nor where nothing is limited.
        let (origin, proxy) = site();
        let _slow = half_sent(&proxy, "POST /echo", "Content-Length: 10\r\n\r\nhello");
        until("it is in flight", || origin.stats().in_flight == 1);
    });
}

#[test]
fn what_is_wrong_with_a_body_is_found_before_it_takes_a_slot() {
    test(|| {
        let origin = origin();
        let proxy = Site {
            listener: "timeouts.body = \"200ms\"\nlimits.body = 1000",
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 1)]);
        let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc";
        let too_large = format!("\r\n3E8\r\n{}\r\n", "x".repeat(1000));
        for (rest, reason) in [
            ("", words::BODY_TIMEOUT),
            ("x", words::CHUNK_END),
            (&too_large, words::BODY_TOO_LARGE),
        ] {
            let mut client = half_sent(&proxy, "POST /echo", chunked);
            // The next piece comes by itself.
            until("the first is read", || proxy.client().get("/ping").is_ok());
            client.send(rest).unwrap();
            assert_refused(&client.read_response("POST").unwrap(), reason);
            assert_logged(&proxy, reason);
        }
        half_sent(&proxy, "POST /echo", chunked).reset();
        assert_logged(&proxy, words::CLIENT_GONE);
        let echoed = proxy.access_log_json().into_iter();
        let mut echoed = echoed.filter(|line| line["target"] == "/echo");
        assert!(echoed.all(|line| line["attempts"] == 0 && line["endpoint"].is_null()));
    });
}

#[test]
fn a_body_that_is_whole_in_the_buffer_is_sent_again_elsewhere() {
    test(|| {
        let cutting = RawOrigin::start(|_, mut stream| {
            // It takes the request and says nothing.
            let _ = stream.read_head().and_then(|_| stream.read_len(50_000));
        })
        .unwrap();
        let origin = origin();
        let proxy = Site {
            upstream: "balance = \"first\"",
            ..Site::default()
        }
        .start(&[
            limited(&cutting.address.to_string(), 1),
            limited(&origin.address.to_string(), 1),
        ]);
        let body = pattern(50_000);
        let mut client = half_sent(&proxy, "PUT /echo", "Content-Length: 50000\r\n\r\n");
        client.send(&body).unwrap();
        let response = client.read_response("PUT").unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.body == body);
        // One that is not idempotent may have been acted on (RFC 9110 §9.2.2).
        let mut client = half_sent(&proxy, "POST /echo", "Content-Length: 50000\r\n\r\n");
        client.send(&body).unwrap();
        let response = client.read_response("POST").unwrap();
        assert_refused(&response, words::UPSTREAM_CLOSED);
    });
}

#[test]
fn an_upload_below_the_least_rate_is_cut_off() {
    test(|| {
        let (origin, proxy) = one_at_a_time("buffer = { request = \"1KiB\", min_rate = 200 }");
        let mut slow = half_sent(&proxy, "POST /echo", "Content-Length: 100000\r\n\r\n");
        slow.send(pattern(1_500)).unwrap();
        until("it has the slot", || origin.stats().in_flight == 1);
        slow.set_step(Duration::from_secs(20));
        assert_refused(&slow.read_response("POST").unwrap(), words::CLIENT_SLOW);
        assert_logged(&proxy, words::CLIENT_SLOW);
        assert_serves(&mut proxy.client());
        let ends = &figures(&proxy)["upstreams"][0]["ends"];
        assert_eq!(ends["client-slow"], 1, "{ends}");
    });
}

// Responses.

#[test]
fn a_slow_download_holds_no_slot() {
    within(Duration::from_secs(60), || {
        for path in [
            format!("/{LONG}"),
            format!("/chunked/{LONG}"),
            format!("/close/{LONG}"),
        ] {
            let (origin, proxy) = one_at_a_time(ROOMY);
            let mut slow = occupy(&proxy, &path);
            until("the origin is through", || {
                let stats = origin.stats();
                stats.requests == 1 && stats.in_flight == 0
            });
            assert_serves(&mut proxy.client());
            assert!(buffered_bytes(&proxy) > 0, "{path}");
            let response = slow.read_response("GET").unwrap();
            assert!(response.body == pattern(LONG), "{path}");
            until("nothing is held", || buffered_bytes(&proxy) == 0);
            assert_serves(&mut slow);
            // The connection was idle while the client still read.
            let connections = if path.starts_with("/close") { 2 } else { 1 };
            assert_eq!(origin.stats().connections, connections, "{path}");
            until("it is logged", || {
                let lines = proxy.access_log_json();
                let mut long = lines.iter().filter(|line| line["target"] == *path);
                long.any(|line| {
                    line["end"] == "complete" && line["bytes_out"].as_u64() >= Some(LONG)
                })
            });
        }
    });
}

#[test]
fn an_old_client_gets_a_chunked_response_without_its_framing() {
    test(|| {
        let (origin, proxy) = one_at_a_time(ROOMY);
        let mut slow = proxy.client();
        slow.send(format!("GET /chunked/{LONG} HTTP/1.0\r\n\r\n"))
            .unwrap();
        until("the origin is through", || {
            let stats = origin.stats();
            stats.requests == 1 && stats.in_flight == 0
        });
        assert_serves(&mut proxy.client());
        assert!(slow.read_response("GET").unwrap().body == pattern(LONG));
    });
}

#[test]
fn a_client_that_leaves_a_held_response_is_noticed() {
    test(|| {
        let (origin, proxy) = one_at_a_time(ROOMY);
        let slow = occupy(&proxy, &format!("/{LONG}"));
        until("the origin is through", || {
            let stats = origin.stats();
            stats.requests == 1 && stats.in_flight == 0
        });
        until("it is held", || buffered_bytes(&proxy) > 0);
        slow.reset();
        assert_logged(&proxy, words::CLIENT_GONE);
        until("nothing is held", || buffered_bytes(&proxy) == 0);
    });
}

#[test]
fn a_held_response_that_the_endpoint_cuts_is_passed_on_as_far_as_it_came() {
    test(|| {
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5F5E0FF\r\n",
        ] {
            let origin = RawOrigin::start(move |_, mut stream| {
                let _ = stream.read_head();
                let _ = stream.send([head.as_bytes(), &pattern(LONG)].concat());
            })
            .unwrap();
            let site = Site {
                upstream: "buffer.response = \"100MB\"",
                server: STATUS,
                ..Site::default()
            };
            let proxy = site.start(&[limited(&origin.address.to_string(), 1)]);
            let mut slow = occupy(&proxy, "/");
            until("it is held", || buffered_bytes(&proxy) > 0);
            until("the slot is free", || {
                figures(&proxy)["upstreams"][0]["in_flight"] == 0
            });
            let (_, body) = (slow.read_head().unwrap(), slow.read_to_end().unwrap());
            let framing_len = head.split("\r\n\r\n").nth(1).unwrap().len();
            assert!(body[framing_len..] == pattern(LONG));
            assert_logged(&proxy, words::UPSTREAM_CUT);
        }
    });
}

#[test]
fn a_response_beyond_the_bound_holds_its_slot() {
    test(|| {
        for upstream in [
            "buffer = { response = \"1MiB\" }",
            "buffer = { response = 0 }",
            "buffer = false",
        ] {
            let (origin, proxy) = one_at_a_time(&format!("{upstream}\nqueue.max = 0"));
            let mut slow = occupy(&proxy, &format!("/{LONG}"));
            until("it is in flight", || origin.stats().in_flight == 1);
            let response = proxy.client().get("/ping").unwrap();
            assert_refused(&response, words::SATURATED);
            assert_eq!(buffered_bytes(&proxy), 0, "it would not free the slot");
            assert!(slow.read_response("GET").unwrap().body == pattern(LONG));
            until("the slot is free", || {
                proxy.client().get("/ping").unwrap().status == 200
            });
        }
    });
}

#[test]
fn the_end_of_a_long_response_is_taken_ahead() {
    test(|| {
        let (origin, proxy) = one_at_a_time("buffer = { response = \"16MiB\" }");
        let mut slow = occupy(&proxy, "/60000000");
        slow.read_head().unwrap();
        let mut read = slow.read_len(45_000_000).unwrap();
        until("the origin is through", || origin.stats().in_flight == 0);
        assert_serves(&mut proxy.client());
        read.extend(slow.read_len(60_000_000 - read.len()).unwrap());
        assert!(read == pattern(60_000_000));
    });
}

#[test]
fn a_download_below_the_least_rate_is_cut_off() {
    within(Duration::from_secs(60), || {
        let upstream = "buffer = { response = \"1MiB\" }\nqueue.timeout = \"50s\"";
        let (origin, proxy) = one_at_a_time(upstream);
        let mut slow = occupy(&proxy, &format!("/{LONG}"));
        until("it is in flight", || origin.stats().in_flight == 1);
        // It waits, and is served once the slow one is cut off. The bytes that
        // sockets take at first may be enough for the first window.
        let mut waiting = occupy(&proxy, "/ping");
        waiting.set_step(Duration::from_secs(50));
        assert_eq!(waiting.read_response("GET").unwrap().text(), "pong");
        assert_logged(&proxy, words::CLIENT_SLOW);
        assert!(slow.read_response("GET").is_err(), "it is not whole");
    });
}

#[test]
fn a_download_above_the_least_rate_goes_on() {
    within(Duration::from_secs(40), || {
        let upstream = "buffer = { response = 0, min_rate = \"1KiB\" }\nqueue.max = 0";
        let (_origin, proxy) = one_at_a_time(upstream);
        let mut slow = occupy(&proxy, &format!("/{LONG}"));
        slow.read_head().unwrap();
        let mut read = Vec::new();
        // The kernel takes no bytes from the proxy for longer than the window, but the client
        // takes bytes all the time.
        holds_within(Duration::from_secs(12), || {
            read.extend(slow.read_len(100).unwrap());
            false
        });
        assert_eq!(figures(&proxy)["upstreams"][0]["in_flight"], 1);
        read.extend(slow.read_len(LONG as usize - read.len()).unwrap());
        assert!(read == pattern(LONG));
    });
}

// Memory.

#[test]
fn without_memory_bodies_stream_and_are_counted() {
    test(|| {
        let origin = origin();
        let site = Site {
            upstream: "queue.max = 0\nbuffer = { request = \"64KiB\", response = \"64MiB\" }",
            server: "buffer_memory = \"4KiB\"\n[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let proxy = site.start(&[limited(&origin.address.to_string(), 1)]);
        let mut slow = half_sent(&proxy, "POST /echo", "Content-Length: 10000\r\n\r\nhello");
        until("it has the slot", || origin.stats().in_flight == 1);
        assert_eq!(buffers_refused(&proxy), 1);
        slow.send(vec![b'x'; 9_995]).unwrap();
        assert_eq!(slow.read_response("POST").unwrap().body.len(), 10_000);
        let mut slow = occupy(&proxy, &format!("/{LONG}"));
        until("it is counted", || buffers_refused(&proxy) == 2);
        let response = proxy.client().get("/ping").unwrap();
        assert_refused(&response, words::SATURATED);
        assert!(slow.read_response("GET").unwrap().body == pattern(LONG));
        assert_eq!(buffered_bytes(&proxy), 0);
        until("it is said", || {
            let said = proxy.stderr();
            said.contains("upstream app: the memory for buffers is used up")
        });
    });
}

#[test]
fn memory_that_runs_out_in_the_middle_loses_nothing() {
    test(|| {
        let origin = origin();
        let site = Site {
            upstream: ROOMY,
            server: "buffer_memory = \"300KiB\"\n[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let proxy = site.start(&[limited(&origin.address.to_string(), 1)]);
        for path in [format!("/{LONG}"), format!("/chunked/{LONG}")] {
            let before = buffers_refused(&proxy);
            let mut slow = occupy(&proxy, &path);
            until("none is left", || buffers_refused(&proxy) > before);
            assert!(
                slow.read_response("GET").unwrap().body == pattern(LONG),
                "{path}"
            );
            assert_serves(&mut slow);
            assert_eq!(buffered_bytes(&proxy), 0);
        }
        let body = pattern(400_000);
        let mut client = half_sent(&proxy, "POST /echo", "Content-Length: 400000\r\n\r\n");
        client.send(&body).unwrap();
        assert!(client.read_response("POST").unwrap().body == body);
    });
}

// Exceptions.

#[test]
fn events_are_not_taken_ahead() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
            let mut sent = stream.send(head);
            while sent.is_ok() {
                sent = stream.send([b'e'; 100_000]);
            }
        })
        .unwrap();
        let site = Site {
            upstream: "queue.max = 0\nbuffer.response = \"64MiB\"",
            server: STATUS,
            ..Site::default()
        };
        let proxy = site.start(&[limited(&origin.address.to_string(), 1)]);
        let mut slow = occupy(&proxy, "/events");
        slow.read_head().unwrap();
        assert_refused(&proxy.client().get("/ping").unwrap(), words::SATURATED);
        assert_eq!(buffered_bytes(&proxy), 0);
    });
}

#[test]
fn a_client_that_has_closed_its_sending_side_gets_all_of_a_long_response() {
    test(|| {
        let body = pattern(LONG);
        let origin = RawOrigin::start(move |_, mut stream| {
            let _ = stream.read_head();
            // Much longer than it takes to tell half a close from a whole one.
            stream.set_step(Duration::from_millis(300));
            let _ = stream.read_len(1);
            stream.set_step(Duration::from_secs(10));
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
            let _ = stream.send(head);
            let _ = stream.send(&body);
            let _ = stream.read_head();
        })
        .unwrap();
        let proxy = Site {
            upstream: ROOMY,
            server: STATUS,
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 1)]);
        let mut client = proxy.client();
        client.send("GET / HTTP/1.0\r\n\r\n").unwrap();
        client.finish_sending().unwrap();
        until("it is off the endpoint", || {
            buffered_bytes(&proxy) > LONG / 2
        });
        let received = client.read_to_end().unwrap();
        assert!(received.ends_with(&pattern(LONG)[LONG as usize - 100..]));
    });
}
