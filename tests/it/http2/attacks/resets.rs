//! Streams that are opened and cut off, by the client or by its provocation, and more of
//! them than an endpoint can take.

use evenkeel_testkit::H2Client;
use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::http2::{Ends, ErrorCode, block, frame, headers, kind};
use std::time::{Duration, Instant};

use super::{Target, assert_calmed, is_sent};
use crate::in_flight::limited;
use crate::setup::{Site, origin, test};

/// Resets at once, and in a second.
const RESETS: (u64, u64) = (200, 20);

/// Streams of a connection that are served at once.
const STREAMS: u64 = 100;

/// Most streams that a connection can have reset in this time.
fn most_resets(begun: Instant) -> u64 {
    RESETS.0 + RESETS.1 * (begun.elapsed().as_secs() + 1)
}

/// Opens a stream and resets it, again and again (CVE-2023-44487).
#[test]
fn rapid_reset() {
    test(|| {
        let target = Target::new();
        let before = target.origin.stats().requests;
        let mut client = target.client();
        let head = block(&client.head("GET", "/slow/5000"));
        let begun = Instant::now();
        let cancel = ErrorCode::Cancel.number().to_be_bytes();
        for n in 0..200 {
            let batch = (0..50).flat_map(|m| {
                let stream = 2 * (50 * n + m) + 1;
                let mut both = headers(stream, &head, Ends::Now);
                both.extend(frame(kind::RST_STREAM, 0, stream, &cancel));
                both
            });
            if !is_sent(client.raw().send(batch.collect::<Vec<u8>>())) {
                break;
            }
            if client.ping().is_err() {
                break;
            }
        }
        assert_calmed(&mut client, "resets");
        let stats = target.origin.stats();
        let most = most_resets(begun) + STREAMS;
        assert!(stats.requests - before <= most, "{stats:?}");
        assert!(stats.max_in_flight <= STREAMS, "{stats:?}");
        target.assert_serves();
        until("nothing goes on", || target.origin.stats().in_flight == 0);
    });
}

/// Makes the program reset streams (MadeYouReset, CVE-2025-8671): each provocation, again and
/// again, while the requested work goes on.
#[test]
fn resets_that_are_provoked() {
    type Provocation = fn(u32) -> Vec<u8>;
    let zero: Provocation = |it| frame(kind::WINDOW_UPDATE, 0, it, &[0; 4]);
    let overflow: Provocation =
        |it| frame(kind::WINDOW_UPDATE, 0, it, &0x7fff_ffffu32.to_be_bytes());
    let data: Provocation = |it| frame(kind::DATA, 0, it, b"more");
    let head: Provocation = |it| headers(it, &block(&[("a", "b")]), Ends::Now);
    let priority: Provocation = |it| frame(kind::PRIORITY, 0, it, b"\0\0\0\0");
    let cases = [
        ("WINDOW_UPDATE of 0", zero, Ends::Now),
        ("a window that is too large", overflow, Ends::Now),
        ("DATA behind the end", data, Ends::Now),
        ("HEADERS behind the end", head, Ends::Now),
        ("PRIORITY that is too short", priority, Ends::Now),
        ("more DATA than was announced", data, Ends::Later),
    ];
    within(Duration::from_secs(60), move || {
        let target = Target::new();
        for (what, provoke, ends) in cases {
            let before = target.origin.stats().requests;
            let mut client = target.client();
            let begun = Instant::now();
            let resets = provoked(&mut client, provoke, ends);
            assert!(resets <= most_resets(begun), "{what}: {resets}");
            assert_calmed(&mut client, what);
            let stats = target.origin.stats();
            let most = most_resets(begun) + STREAMS;
            assert!(stats.requests - before <= most, "{what}: {stats:?}");
            assert!(stats.max_in_flight <= STREAMS, "{what}: {stats:?}");
            until("nothing goes on", || target.origin.stats().in_flight == 0);
        }
        target.assert_serves();
    });
}

/// Opens streams and provokes their resets until the connection ends. Returns the number of
/// resets.
fn provoked(client: &mut H2Client, provoke: fn(u32) -> Vec<u8>, ends: Ends) -> u64 {
    let head = client.head("POST", "/slow/5000");
    let length = [("content-length", "2")];
    let fields = match ends {
        Ends::Now => head.to_vec(),
        Ends::Later => [&head[..], &length].concat(),
    };
    let head = block(&fields);
    let mut opened = 0;
    for n in 0..40 {
        let batch = (0..25).flat_map(|m| {
            let stream = 2 * (25 * n + m) + 1;
            let mut both = headers(stream, &head, ends);
            both.extend(provoke(stream));
            both
        });
        if !is_sent(client.raw().send(batch.collect::<Vec<u8>>())) || client.ping().is_err() {
            break;
        }
        opened = 25 * (n + 1);
    }
    let streams = (0..opened + 25).map(|n| 2 * n + 1);
    let was_reset = |it: &u32| client.so_far(*it).is_some_and(|it| it.reset.is_some());
    streams.filter(was_reset).count() as u64
}

/// A client that cancels now and then, as browsers do, is not cut off.
#[test]
fn a_client_may_change_its_mind() {
    test(|| {
        let target = Target::new();
        let mut client = target.client();
        for n in 0..150 {
            let stream = 4 * n + 1;
            client.get(stream, "/slow/5000").unwrap();
            client.reset(stream, ErrorCode::Cancel).unwrap();
            assert_eq!(client.ask(stream + 2, "/ping").unwrap().text(), "pong");
        }
        assert_eq!(client.goes_away, None);
        until("nothing goes on", || target.origin.stats().in_flight == 0);
    });
}

/// More work than an endpoint can take waits in the queue, and excess requests are refused.
/// Nothing is lost, and the endpoint gets no more than its limit.
#[test]
fn more_work_than_an_endpoint_can_take() {
    test(|| {
        let origin = origin();
        let proxy = Site {
            listener: "h2c = true",
            upstream: "queue = { max = 50 }",
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 2)]);
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for n in 0..80 {
            client.get(2 * n + 1, "/slow/50").unwrap();
        }
        let (mut served, mut refused) = (0, 0);
        for n in 0..80 {
            let response = client.response(2 * n + 1).unwrap();
            match (response.status, response.reset) {
                (200, None) => served += 1,
                (503, None) => refused += 1,
                other => panic!("{n}: {other:?}"),
            }
        }
        assert_eq!((served, refused), (52, 28));
        let stats = origin.stats();
        assert_eq!((stats.requests, stats.max_in_flight), (52, 2));
        assert_eq!(client.ask(201, "/ping").unwrap().text(), "pong");
    });
}

/// Streams beyond the limit are refused, so that clients can request them again. The others are
/// served.
#[test]
fn streams_beyond_the_limit_are_refused() {
    test(|| {
        let target = Target::new();
        let mut client = target.client();
        let count = STREAMS as u32 + 50;
        let head = block(&client.head("GET", "/slow/500"));
        let all = (0..count).flat_map(|n| headers(2 * n + 1, &head, Ends::Now));
        client.raw().send(all.collect::<Vec<u8>>()).unwrap();
        let mut refused = 0;
        for n in 0..count {
            let response = client.response(2 * n + 1).unwrap();
            match response.reset {
                Some(code) => {
                    assert_eq!(code, ErrorCode::RefusedStream);
                    refused += 1;
                }
                None => assert_eq!(response.text(), "pong"),
            }
        }
        assert_eq!(refused, 50);
        assert_eq!(target.origin.stats().max_in_flight, STREAMS);
        assert_eq!(client.ask(2 * count + 1, "/ping").unwrap().text(), "pong");
    });
}
