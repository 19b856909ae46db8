//! Frames that bring nothing: a budget of them, and no answers without end.

use std::time::{Duration, Instant};

use evenkeel_testkit::H2Client;
use evenkeel_testkit::http2::{Ends, flags, frame, headers, kind, setting, settings};

use super::{Target, assert_calmed, is_sent};
use crate::setup::test;

/// Frames that a client may send at once for nothing. It earns more by content.
const AT_ONCE: usize = 1_000;

/// Frames to send before the next look at the answers.
const BATCH: usize = 50;

/// Sends a frame again and again, until the program ends the connection. Returns the number of
/// frames; `None` if it did not end.
fn flood(client: &mut H2Client, frame: &[u8], most: usize) -> Option<usize> {
    let batch = frame.repeat(BATCH);
    let mut sent = 0;
    while sent < most {
        if !is_sent(client.raw().send(&batch)) || client.ping().is_err() {
            return Some(sent);
        }
        sent += BATCH;
    }
    None
}

#[test]
fn frames_that_bring_nothing() {
    test(|| {
        let target = Target::new();
        let more = 1u32.to_be_bytes();
        let mut unbounded = Vec::new();
        let table = settings(&[(setting::HEADER_TABLE_SIZE, 100)]);
        for (what, frame) in [
            ("SETTINGS", frame(kind::SETTINGS, 0, 0, b"")),
            ("SETTINGS of a value", frame(kind::SETTINGS, 0, 0, &table)),
            (
                "their acknowledgement",
                frame(kind::SETTINGS, flags::ACK, 0, b""),
            ),
            ("PING", frame(kind::PING, 0, 0, &[0; 8])),
            (
                "its acknowledgement",
                frame(kind::PING, flags::ACK, 0, &[0; 8]),
            ),
            ("empty DATA", frame(kind::DATA, 0, 1, b"")),
            (
                "DATA of padding",
                frame(kind::DATA, flags::PADDED, 1, b"\x01\0"),
            ),
            ("WINDOW_UPDATE", frame(kind::WINDOW_UPDATE, 0, 0, &more)),
            (
                "WINDOW_UPDATE of a stream",
                frame(kind::WINDOW_UPDATE, 0, 1, &more),
            ),
            ("PRIORITY", frame(kind::PRIORITY, 0, 1, b"\0\0\0\x03\x10")),
            (
                "PRIORITY of no stream yet",
                frame(kind::PRIORITY, 0, 9, b"\0\0\0\x03\x10"),
            ),
            (
                "PRIORITY_UPDATE",
                frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"),
            ),
            (
                "RST_STREAM of what has ended",
                frame(kind::RST_STREAM, 0, 3, &[0, 0, 0, 8]),
            ),
            ("GOAWAY", frame(kind::GOAWAY, 0, 0, &[0; 8])),
            ("an unknown frame", frame(0xfa, 0, 0, b"")),
        ] {
            let mut client = target.client();
            client
                .request(1, "POST", "/echo", &[], Ends::Later)
                .unwrap();
            assert_eq!(client.ask(3, "/ping").unwrap().text(), "pong");
            let begun = Instant::now();
            let sent = flood(&mut client, &frame, 20 * AT_ONCE);
            let Some(sent) = sent else {
                unbounded.push(what);
                continue;
            };
            // Time brings more, at a hundred a second.
            let most = AT_ONCE + 100 * begun.elapsed().as_secs() as usize + 200;
            assert!(sent <= most, "{what}: {sent}");
            assert_calmed(&mut client, what);
        }
        assert!(unbounded.is_empty(), "no bound: {unbounded:?}");
        target.assert_serves();
        target.assert_holds_little(15, 0);
    });
}

/// A client that honestly sends many small frames is served: its content earns them.
#[test]
fn frames_that_content_earns_are_no_flood() {
    test(|| {
        let target = Target::new();
        let mut client = target.client();
        client.credit(0, 1 << 30).unwrap();
        client.get(1, "/custom-payload?size=10000000").unwrap();
        let mut taken = 0;
        // About as many updates as frames of content, each for half of one.
        while !client.has_response(1) {
            let frame = client.next().unwrap();
            let len = frame.payload.len() as u32;
            if frame.kind == kind::DATA && len > 0 {
                taken += len as usize;
                let half = len / 2;
                if half > 0 {
                    client.credit(1, half).unwrap();
                }
                client.credit(1, len - half).unwrap();
            }
        }
        assert_eq!(taken, 10_000_000);
        assert_eq!(client.ask(3, "/ping").unwrap().text(), "pong");
    });
}

/// Unread answers are bounded, and so is their memory.
#[test]
fn answers_that_nobody_reads() {
    test(|| {
        let target = Target::new();
        let mut clients = Vec::new();
        let mut sent = 0;
        for n in 0..20 {
            let mut client = target.client();
            let frame = match n % 2 {
                0 => frame(kind::PING, 0, 0, &[0; 8]),
                _ => frame(kind::SETTINGS, 0, 0, b""),
            };
            let batch = frame.repeat(1_000);
            client.set_step(Duration::from_millis(200));
            for _ in 0..20 {
                // A program that reads no more is as good as one that closes.
                if client.raw().send(&batch).is_err() {
                    break;
                }
            }
            sent += client.raw().bytes_sent;
            clients.push(client);
        }
        target.assert_holds_little(20, sent);
        for client in &mut clients {
            client.set_step(Duration::from_secs(10));
            assert_calmed(client, "answers");
        }
        target.assert_serves();
    });
}

/// Thousands of requests in one packet. Some are served, the others are refused, and other
/// connections do not wait for them.
#[test]
fn thousands_of_streams_in_one_packet() {
    const STREAMS: u32 = 3_000;
    test(|| {
        let target = Target::new();
        let head = target.client().head("GET", "/ping");
        let block = evenkeel_testkit::http2::block(&head);
        let all = (0..STREAMS).flat_map(|n| headers(2 * n + 1, &block, Ends::Now));
        let all: Vec<u8> = all.collect();

        let mut attackers: Vec<H2Client> = (0..10).map(|_| target.client()).collect();
        let mut other = target.proxy.client();
        other.get("/ping").unwrap();
        let mut worst = Duration::ZERO;
        for attacker in &mut attackers {
            // As much as the sockets take at once.
            attacker.set_step(Duration::from_millis(20));
            let _ = attacker.raw().send(&all);
            let begun = Instant::now();
            assert_eq!(other.get("/ping").unwrap().text(), "pong");
            worst = worst.max(begun.elapsed());
        }
        assert!(worst < Duration::from_millis(500), "{worst:?}");
        let sent = attackers.iter_mut().map(|it| it.raw().bytes_sent).sum();
        target.assert_holds_little(10, sent);
        assert!(target.origin.stats().max_in_flight <= 1_001);
        for attacker in &mut attackers {
            attacker.set_step(Duration::from_secs(10));
            assert_calmed(attacker, "streams");
        }
        target.assert_serves();
    });
}
