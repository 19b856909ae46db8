//! Bodies on their way through an encoder: at once, within bounds, and cut off.

use std::io::Read;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{RawClient, TempDir};

use super::{Origin, TEXT, decoded, get, text, with_length};
use crate::setup::{assert_logged, figures, test};
use crate::tls::TLS13;
use crate::words;

/// Decodes the available part of a body.
fn decoded_so_far(body: &[u8], coding: &str) -> Vec<u8> {
    let mut out = Vec::new();
    // A decoder returns the available bytes, and then an error for the missing end.
    let _ = match coding {
        "gzip" => flate2::read::GzDecoder::new(body).read_to_end(&mut out),
        "br" => brotli::Decompressor::new(body, 4096).read_to_end(&mut out),
        _ => zstd::stream::read::Decoder::new(body)
            .and_then(|mut decoder| decoder.read_to_end(&mut out)),
    };
    out
}

/// Reads one chunk; an empty one is the last.
pub fn read_chunk(client: &mut RawClient) -> Vec<u8> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(client.read_len(1).unwrap());
    }
    let digits = std::str::from_utf8(line.trim_ascii()).unwrap();
    let len = usize::from_str_radix(digits, 16).unwrap();
    let mut chunk = client.read_len(len + 2).unwrap();
    chunk.truncate(len);
    chunk
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[test]
fn what_an_origin_sends_arrives_at_once() {
    test(|| {
        let (authority, folder) = (Authority::new().unwrap(), TempDir::new().unwrap());
        for (coding, is_tls) in [
            ("gzip", false),
            ("br", false),
            ("zstd", false),
            ("gzip", true),
        ] {
            let (go_on, told) = channel::<()>();
            let told: Mutex<Receiver<()>> = Mutex::new(told);
            let origin = Origin::scripted(move |_, stream| {
                let head = format!("HTTP/1.1 200 OK\r\n{TEXT}{CHUNKED}\r\n");
                let told = told.lock().unwrap();
                stream.send(head).unwrap();
                for piece in ["first ", "second ", "third "] {
                    if told.recv().is_err() {
                        return false;
                    }
                    stream.send(chunk(piece)).unwrap();
                }
                told.recv().is_ok() && stream.send("0\r\n\r\n").is_ok()
            });
            let (proxy, mut client);
            if is_tls {
                proxy = origin.behind_tls("compress = true", &authority, &folder);
                let trusting = authority.trusting(TLS13).unwrap();
                let connected = RawClient::connect_tls(proxy.address("web"), "a.test", trusting);
                client = connected.unwrap();
            } else {
                proxy = origin.behind("compress = true");
                client = proxy.client();
            }
            client
                .send(get(&format!("Accept-Encoding: {coding}\r\n")))
                .unwrap();
            // The head does not wait for the body.
            let head = client.read_head().unwrap();
            assert!(
                head.contains(&format!("Content-Encoding: {coding}")),
                "{head}"
            );
            let (mut body, mut expected) = (Vec::new(), String::new());
            for piece in ["first ", "second ", "third "] {
                go_on.send(()).unwrap();
                expected.push_str(piece);
                while decoded_so_far(&body, coding) != expected.as_bytes() {
                    body.extend(read_chunk(&mut client));
                }
            }
            go_on.send(()).unwrap();
            loop {
                let chunk = read_chunk(&mut client);
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
            }
            assert_eq!(decoded(&body, coding), expected.as_bytes());
        }
    });
}

/// Length of a body that takes more than memory should.
const LONG: usize = 50 << 20;

/// An origin with a body of [`LONG`] in pieces. It counts the bytes that were taken.
fn long_origin(pieces: usize, sent: &Arc<AtomicU64>) -> Origin {
    let piece = text(LONG / pieces);
    let sent = sent.clone();
    Origin::scripted(move |_, stream| {
        let len = piece.len() * pieces;
        let head = format!("HTTP/1.1 200 OK\r\n{TEXT}Content-Length: {len}\r\n\r\n");
        if stream.send(head).is_err() {
            return false;
        }
        stream.set_step(Duration::from_secs(60));
        for _ in 0..pieces {
            for part in piece.chunks(64 << 10) {
                if stream.send(part).is_err() {
                    return false;
                }
                sent.fetch_add(part.len() as u64, SeqCst);
            }
        }
        true
    })
}

#[test]
fn a_long_body_takes_little_memory() {
    test(|| {
        for coding in ["gzip", "br", "zstd"] {
            let sent = Arc::default();
            let origin = long_origin(50, &sent);
            let proxy = origin.behind("compress = true");
            let before = proxy.rss_bytes().unwrap();
            let mut client = proxy.client();
            client.set_step(Duration::from_secs(60));
            let request = get(&format!("Accept-Encoding: {coding}\r\n"));
            client.send(request).unwrap();
            client.read_head().unwrap();
            let mut body = Vec::new();
            let mut most = 0;
            loop {
                let chunk = read_chunk(&mut client);
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
                most = most.max(proxy.rss_bytes().unwrap());
            }
            let grown = most.saturating_sub(before);
            assert!(grown < 16 << 20, "{coding}: {} KiB more", grown >> 10);
            let found = decoded(&body, coding);
            assert_eq!(found.len(), text(LONG / 50).len() * 50, "{coding}");
            let piece = text(LONG / 50);
            assert!(found.chunks(piece.len()).all(|it| it == piece), "{coding}");
        }
    });
}

#[test]
fn a_client_that_does_not_read_holds_the_origin_back() {
    test(|| {
        let sent = Arc::<AtomicU64>::default();
        let origin = long_origin(50, &sent);
        let proxy = origin.behind_upstream("compress = true", "buffer = { response = 0 }");
        let mut client = proxy.client();
        client.send(get("Accept-Encoding: gzip\r\n")).unwrap();
        client.read_head().unwrap();
        let mut last = 0;
        // The sockets' buffers fill up; then no bytes move.
        until("it stands", || {
            let now = sent.load(SeqCst);
            let stands = now == last && now > 0;
            last = now;
            std::thread::sleep(Duration::from_millis(200));
            stands
        });
        assert!(last < (LONG as u64) * 9 / 10, "{last}");
        // It goes on where it stood.
        while !read_chunk(&mut client).is_empty() {}
        assert_eq!(sent.load(SeqCst), (text(LONG / 50).len() * 50) as u64);
    });
}

#[test]
fn a_slow_client_holds_no_slot() {
    test(|| {
        let sent = Arc::<AtomicU64>::default();
        let origin = long_origin(50, &sent);
        let proxy = origin.behind_one("compress = true", "buffer = { response = \"64MiB\" }");
        let mut client = proxy.client();
        client.set_step(Duration::from_secs(60));
        client.send(get("Accept-Encoding: zstd\r\n")).unwrap();
        client.read_head().unwrap();
        until("the endpoint is free", || {
            let upstream = &figures(&proxy)["upstreams"][0];
            upstream["in_flight"] == 0 && sent.load(SeqCst) > (LONG as u64) / 2
        });
        assert!(figures(&proxy)["buffer_bytes"].as_u64().unwrap() > 0);
        let mut body = Vec::new();
        loop {
            let chunk = read_chunk(&mut client);
            if chunk.is_empty() {
                break;
            }
            body.extend(chunk);
        }
        let piece = text(LONG / 50);
        let found = decoded(&body, "zstd");
        assert_eq!(found.len(), piece.len() * 50);
        assert!(found.chunks(piece.len()).all(|it| it == piece));
        until("nothing is held", || figures(&proxy)["buffer_bytes"] == 0);
    });
}

#[test]
fn a_client_that_leaves_ends_it() {
    test(|| {
        let sent = Arc::<AtomicU64>::default();
        let origin = long_origin(50, &sent);
        let proxy = origin.behind_upstream("compress = true", "buffer = { response = 0 }");
        for coding in ["gzip", "br", "zstd"] {
            let before = sent.load(SeqCst);
            let mut client = proxy.client();
            client
                .send(get(&format!("Accept-Encoding: {coding}\r\n")))
                .unwrap();
            client.read_head().unwrap();
            read_chunk(&mut client);
            client.reset();
            until("the endpoint is free", || {
                figures(&proxy)["upstreams"][0]["in_flight"] == 0
            });
            assert!(sent.load(SeqCst) - before < LONG as u64, "{coding}");
        }
        assert_logged(&proxy, words::CLIENT_GONE);
    });
}

#[test]
fn a_body_that_is_cut_off_is_not_passed_off_as_whole() {
    test(|| {
        for coding in ["gzip", "br", "zstd"] {
            for (fields, version) in [
                ("Content-Length: 9000\r\n", "1.1"),
                (CHUNKED, "1.1"),
                ("Content-Length: 9000\r\n", "1.0"),
            ] {
                let origin = Origin::scripted(move |_, stream| {
                    let head = format!("HTTP/1.1 200 OK\r\n{TEXT}{fields}\r\n");
                    let body = String::from_utf8(text(4000)).unwrap();
                    let body = match fields {
                        CHUNKED => chunk(&body),
                        _ => body,
                    };
                    let _ = stream.send(head + &body);
                    false
                });
                let proxy = origin.behind("compress = true");
                let request = get(&format!("Accept-Encoding: {coding}\r\n"));
                let request = request.replace("HTTP/1.1", &format!("HTTP/{version}"));
                let response = proxy.client().ask(request);
                assert!(response.is_err(), "{coding} {fields}: {response:?}");
                assert_logged(&proxy, words::UPSTREAM_CUT);
            }
        }
    });
}

#[test]
fn others_are_served_while_a_body_is_compressed() {
    test(|| {
        let ends = Arc::<AtomicBool>::default();
        let until_then = ends.clone();
        let piece = text(1 << 20);
        let origin = Origin::scripted(move |head, stream| {
            if !head.starts_with("GET /long") {
                return stream.send(with_length(TEXT, b"short")).is_ok();
            }
            let head = format!("HTTP/1.1 200 OK\r\n{TEXT}\r\n");
            let _ = stream.send(head);
            while !until_then.load(SeqCst) && stream.send(&piece).is_ok() {}
            false
        });
        let proxy = origin.behind("compress.br_level = 6");
        let mut reader = proxy.client();
        reader.set_step(Duration::from_secs(60));
        let request = get("Accept-Encoding: br\r\nConnection: close\r\n");
        let request = request.replace("GET /", "GET /long");
        reader.send(request).unwrap();
        let reading = std::thread::spawn(move || reader.read_to_end().unwrap().len());
        let mut client = proxy.client();
        let is_quick = holds_within(Duration::from_secs(10), || {
            for _ in 0..20 {
                let started = std::time::Instant::now();
                let response = client.ask(get("")).unwrap();
                assert_eq!(response.text(), "short");
                assert!(
                    started.elapsed() < Duration::from_secs(1),
                    "it held the worker"
                );
            }
            true
        });
        assert!(is_quick);
        ends.store(true, SeqCst);
        assert!(reading.join().unwrap() > 0);
    });
}
