//! Blocks of fields that are long, many, or held. Their cost is counted by the decoded length,
//! not by the bytes sent.

use std::time::Duration;

use evenkeel_testkit::H2Client;
use evenkeel_testkit::deadline::within;
use evenkeel_testkit::http2::{
    Ends, ErrorCode, PAYLOAD_MAX, block, block_indexed, flags, frame, headers, kind, setting,
};

use super::{FLOOR, NOISE, Target, assert_calmed, connections, is_sent};
use crate::in_flight::limited;
use crate::setup::{Site, origin, test};

/// The first field of the peer's table.
const NEWEST: u8 = 0x80 | 62;

/// A block of fields that never ends (CVE-2024-27316), by frames that are full, short, or
/// empty.
#[test]
fn continuation_without_end() {
    test(|| {
        let target = Target::new();
        for len in [PAYLOAD_MAX, 100, 1, 0] {
            let mut client = target.client();
            // A literal whose value is longer than all that comes.
            let head = b"\x00\x01a\x7f\xff\xff\xff\x07";
            client.frame(kind::HEADERS, 0, 1, head).unwrap();
            let more = frame(kind::CONTINUATION, 0, 1, &vec![b'x'; len]);
            for _ in 0..2_000 {
                if !is_sent(client.raw().send(&more)) {
                    break;
                }
            }
            assert_calmed(&mut client, &format!("frames of {len} bytes"));
            let sent = client.raw().bytes_sent;
            target.assert_holds_little(1, sent.min(64 << 10));
        }
        target.assert_serves();
    });
}

/// Whether a request was refused for its head, in whatever way. The connection goes on.
#[track_caller]
fn assert_head_refused(client: &mut H2Client, stream: u32, what: &str) {
    let response = client.response(stream);
    let response = response.unwrap_or_else(|error| panic!("{what}: {error}"));
    let is_refused = response.status == 431 || response.reset.is_some();
    assert!(is_refused, "{what}: {response:?}");
    assert_eq!(client.goes_away, None, "{what}");
    assert_eq!(client.ask(stream + 2, "/ping").unwrap().text(), "pong");
}

/// The head of a GET, with these fields of the table behind.
fn get_with(client: &H2Client, fields: &[u8]) -> Vec<u8> {
    [&block(&client.head("GET", "/headers"))[..], fields].concat()
}

/// One byte stands for a field of 4 KB, another one for a small one that costs its 32 bytes.
#[test]
fn fields_of_the_table_are_counted_as_they_are_decoded() {
    test(|| {
        let target = Target::new();
        let before = target.origin.stats().requests;
        let large = "x".repeat(3_900);
        let mut sent = 0;
        let cases = [
            ("large fields", "a", &large[..]),
            ("small fields", "a", ""),
            ("cookie crumbs", "cookie", "a"),
        ];
        for (what, name, value) in cases {
            let mut client = target.client();
            let first = get_with(&client, &block_indexed(&[(name, value)]));
            client.raw().send(headers(1, &first, Ends::Now)).unwrap();
            assert_eq!(client.response(1).unwrap().status, 200, "{what}");
            let bomb = get_with(&client, &[NEWEST; 15_000]);
            for n in 1..5 {
                let stream = 4 * n + 1;
                client
                    .raw()
                    .send(headers(stream, &bomb, Ends::Now))
                    .unwrap();
                assert_head_refused(&mut client, stream, what);
            }
            sent += client.raw().bytes_sent;
        }
        target.assert_holds_little(3, sent);
        // One request to fill each table, and four times one that shows it is in order.
        assert_eq!(target.origin.stats().requests - before, 3 * 5);
    });
}

/// Crumbs of cookies are one field to an endpoint; each costs 32 bytes beside its own.
#[test]
fn cookie_crumbs_are_joined_and_counted() {
    test(|| {
        let target = Target::new();
        let mut client = target.client();
        let crumbs = |count: usize| block(&vec![("cookie", "a=1"); count]);
        let few = get_with(&client, &crumbs(200));
        client.raw().send(headers(1, &few, Ends::Now)).unwrap();
        let response = client.response(1).unwrap();
        assert_eq!(response.status, 200);
        let text = response.text().to_ascii_lowercase();
        let joined = vec!["a=1"; 200].join("; ");
        assert!(
            text.contains(&format!("\r\ncookie: {joined}\r\n")),
            "{text}"
        );
        let many = get_with(&client, &crumbs(1_200));
        client.raw().send(headers(3, &many, Ends::Now)).unwrap();
        assert_head_refused(&mut client, 3, "crumbs");
    });
}

/// Many fields, and long ones, of HTTP/1's bounds.
#[test]
fn heads_that_are_too_large() {
    test(|| {
        let target = Target::new();
        let value = "x".repeat(1_000);
        for (what, fields) in [
            ("long fields", vec![("a", &value[..]); 40]),
            ("many fields", vec![("a", ""); 2_000]),
        ] {
            let mut client = target.client();
            let head = get_with(&client, &block(&fields));
            client.raw().send(headers(1, &head, Ends::Now)).unwrap();
            assert_head_refused(&mut client, 1, what);
        }
    });
}

/// The means by which an attack's requests last.
#[derive(Debug, Clone, Copy)]
enum HeldBy {
    /// No window is there for their responses.
    Window,
    /// They wait for an endpoint.
    Queue,
}

/// The extra content of such requests, beside the minimum.
#[derive(Debug, Clone, Copy)]
enum Brings {
    Nothing,
    /// Fields of the table in their heads.
    Fields,
    /// Fields of the table in their trailers.
    Trailers,
}

/// Makes connections with requests that last. Returns the memory that they hold, and the bytes
/// sent for them.
fn held_by_requests(held_by: HeldBy, brings: Brings) -> (u64, u64) {
    const STREAMS: u32 = 100;
    let connections = connections();
    let origin = origin();
    let endpoint = limited(&origin.address.to_string(), 2);
    let answer = "[[route]]\nmatch = { path = \"/answer\" }\nanswer = { body = \"abc\" }";
    let site = Site {
        listener: "h2c = true",
        upstream: "queue = { max = 200000, timeout = \"60s\" }",
        server: answer,
        ..Site::default()
    };
    let target = Target::before(origin, site.start(&[endpoint]));
    let path = match held_by {
        HeldBy::Window => "/answer",
        HeldBy::Queue => "/slow/60000",
    };
    let fields = match brings {
        Brings::Fields => &[NEWEST; 7][..],
        Brings::Nothing | Brings::Trailers => &[],
    };
    let (method, ends) = match brings {
        // `:method` by its number: GET, or POST.
        Brings::Nothing | Brings::Fields => (0x82, Ends::Now),
        Brings::Trailers => (0x83, Ends::Later),
    };
    let path = [&[0x04, path.len() as u8][..], path.as_bytes()].concat();
    let least = [&[method, 0x86][..], &path, &[0x01, 1, b'a']].concat();
    let value = "x".repeat(3_900);
    let mut clients = Vec::new();
    let mut sent = 0;
    for _ in 0..connections {
        let mut client = target.client_with(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
        let fill = get_with(&client, &block_indexed(&[("a", &value)]));
        let mut all = headers(1, &fill, Ends::Now);
        for n in 1..STREAMS {
            all.extend(headers(2 * n + 1, &[&least, fields].concat(), ends));
            if let Brings::Trailers = brings {
                all.extend(headers(2 * n + 1, &[NEWEST; 7], Ends::Now));
            }
        }
        let _ = is_sent(client.raw().send(all));
        sent += client.raw().bytes_sent;
        clients.push(client);
    }
    for client in &mut clients {
        // The program has read all of it, or has closed.
        let _ = client.ping();
    }
    (target.held(), sent)
}

/// Requests that last, and need few bytes because their fields are in the table. Their memory
/// is bounded by the bytes sent.
#[test]
fn fields_of_the_table_that_are_held() {
    within(Duration::from_secs(200), || {
        let (connections, mut found) = (connections(), Vec::new());
        for held_by in [HeldBy::Window, HeldBy::Queue] {
            let (beside, _) = held_by_requests(held_by, Brings::Nothing);
            for brings in [Brings::Fields, Brings::Trailers] {
                let (held, sent) = held_by_requests(held_by, brings);
                let by_fields = held.saturating_sub(beside);
                let most = connections * FLOOR + 4 * sent + NOISE;
                eprintln!(
                    "{held_by:?} {brings:?}: {} bytes for each connection, {} of them by \
                     fields, {} sent",
                    held / connections,
                    by_fields / connections,
                    sent / connections,
                );
                if by_fields > most {
                    found.push((held_by, brings, by_fields, sent));
                }
            }
        }
        assert!(found.is_empty(), "more than 64 KiB and 4 for 1: {found:?}");
    });
}

/// Heads that never end: only the received part is held.
#[test]
fn heads_that_never_end() {
    within(Duration::from_secs(60), || {
        let connections = connections();
        let target = Target::new();
        let mut clients = Vec::new();
        let mut sent = 0;
        for _ in 0..connections {
            let mut client = target.client();
            let part = vec![b'x'; 8_000];
            client.frame(kind::HEADERS, 0, 1, &part).unwrap();
            client.frame(kind::CONTINUATION, 0, 1, &part).unwrap();
            let begun = frame(kind::CONTINUATION, flags::END_HEADERS, 1, &[0; 16_000]);
            client.raw().send(&begun[..15_000]).unwrap();
            sent += client.raw().bytes_sent;
            clients.push(client);
        }
        target.assert_serves();
        target.assert_holds_little(connections, sent);
    });
}

/// A block that can't be decoded ends the connection, and does no other harm.
#[test]
fn blocks_that_are_broken() {
    test(|| {
        let target = Target::new();
        for (what, bytes) in [
            ("a field of no table", &[0xff, 0x80, 0x01][..]),
            ("a number without end", &[0xff; 40]),
            ("a string that is cut off", &[0x00, 0x05, b'a']),
            ("a table that is too large", &[0x3f, 0xff, 0xff, 0x03]),
        ] {
            let mut client = target.client();
            client.raw().send(headers(1, bytes, Ends::Now)).unwrap();
            let end = client.end().unwrap().map(|it| it.code);
            assert_eq!(end, Some(ErrorCode::Compression), "{what}");
        }
        target.assert_serves();
    });
}
