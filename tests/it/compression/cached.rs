//! A cache stores the response as it came, and each client gets it in its own coding.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::streaming::read_chunk;
use super::{Origin, TEXT, assert_fields, decoded, get, text, with_length};
use crate::setup::test;

const STORED: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";

#[test]
fn each_client_gets_its_own_coding_of_one_stored_response() {
    test(|| {
        // Longer than the part that is copied behind a head, and short ones.
        for len in [2000, 30_000, 200_000, 2_000_000] {
            let body = text(len);
            let origin = Origin::answering(with_length(&format!("{TEXT}{STORED}"), &body));
            let proxy = origin.behind("compress = true\ncache = true");
            let mut client = proxy.client();
            for coding in ["br", "gzip", "zstd", "br"] {
                let request = get(&format!("Accept-Encoding: {coding}\r\n"));
                let response = client.ask(request).unwrap();
                assert_fields(
                    &response,
                    &[
                        ("content-encoding", coding),
                        ("transfer-encoding", "chunked"),
                        ("vary", "Accept-Encoding"),
                        ("etag", "W/\"v1\""),
                    ],
                );
                let found = decoded(&response.body, coding);
                assert!(found == body, "{coding} {len}: {}", found.len());
            }
            let response = client.ask(get("")).unwrap();
            assert!(response.body == body, "{len}");
            let len_text = len.to_string();
            assert_fields(
                &response,
                &[
                    ("content-length", &len_text),
                    ("vary", "Accept-Encoding"),
                    ("etag", "\"v1\""),
                ],
            );
            assert_eq!(origin.heads.lock().unwrap().len(), 1, "one for all: {len}");
            // A range refers to the stored body.
            let request = get("Accept-Encoding: br\r\nRange: bytes=10-19\r\n");
            let response = client.ask(request).unwrap();
            assert_eq!((response.status, &response.body[..]), (206, &body[10..20]));
            assert_eq!(response.field("vary"), Some("Accept-Encoding"));
            let request = get("Accept-Encoding: br\r\nRange: bytes=9999999-\r\n");
            let response = client.ask(request).unwrap();
            assert_eq!(response.status, 416);
            assert_fields(&response, &[("content-length", "0"), ("etag", "\"v1\"")]);
            // The weak tag names no part.
            let lines = "Accept-Encoding: br\r\nRange: bytes=10-19\r\nIf-Range: W/\"v1\"\r\n";
            let response = client.ask(get(lines)).unwrap();
            assert_eq!(response.status, 200);
            assert!(decoded(&response.body, "br") == body);
            // It does confirm.
            let lines = "Accept-Encoding: br\r\nIf-None-Match: W/\"v1\"\r\n";
            let response = client.ask(get(lines)).unwrap();
            assert_eq!(response.status, 304);
            assert_fields(
                &response,
                &[("etag", "W/\"v1\""), ("vary", "Accept-Encoding")],
            );
            let head = get("Accept-Encoding: gzip\r\n").replace("GET", "HEAD");
            let response = client.ask(head).unwrap();
            assert_fields(
                &response,
                &[
                    ("content-encoding", "gzip"),
                    ("vary", "Accept-Encoding"),
                    ("etag", "W/\"v1\""),
                ],
            );
            let request = "GET / HTTP/1.0\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\r\n";
            let response = proxy.client().ask(request).unwrap();
            assert_fields(
                &response,
                &[
                    ("content-encoding", "gzip"),
                    ("vary", "Accept-Encoding"),
                    ("etag", "W/\"v1\""),
                ],
            );
            assert!(decoded(&response.body, "gzip") == body);
            assert_eq!(origin.heads.lock().unwrap().len(), 1, "one for all: {len}");
        }
    });
}

#[test]
fn what_is_fetched_for_a_cache_arrives_at_once() {
    test(|| {
        let (go_on, told) = channel::<()>();
        let told = Mutex::new(told);
        let origin = Origin::scripted(move |_, stream| {
            let chunked = "Transfer-Encoding: chunked\r\n";
            let head = format!("HTTP/1.1 200 OK\r\n{TEXT}{STORED}{chunked}\r\n");
            stream.send(format!("{head}5\r\nfirst\r\n")).unwrap();
            let told = told.lock().unwrap();
            told.recv().is_ok() && stream.send("6\r\nsecond\r\n0\r\n\r\n").is_ok()
        });
        let proxy = origin.behind("compress.min = 0\ncache = true");
        let mut client = proxy.client();
        client.send(get("Accept-Encoding: gzip\r\n")).unwrap();
        let head = client.read_head().unwrap();
        assert!(head.contains("Content-Encoding: gzip"), "{head}");
        // The first chunk already has all bytes that came.
        let first = read_chunk(&mut client);
        let mut out = [0; 5];
        let mut decoder = flate2::read::GzDecoder::new(&first[..]);
        std::io::Read::read_exact(&mut decoder, &mut out).unwrap();
        assert_eq!(&out, b"first");
        go_on.send(()).unwrap();
        let response = proxy.client().ask(get("Accept-Encoding: br\r\n")).unwrap();
        assert_eq!(decoded(&response.body, "br"), b"firstsecond");
        assert_eq!(origin.heads.lock().unwrap().len(), 1);
    });
}

#[test]
fn a_long_response_lies_on_the_disk_as_it_came() {
    test(|| {
        let body = text(4_000_000);
        let fields = format!("{TEXT}{STORED}");
        let origin = Origin::answering(with_length(&fields, &body));
        let config = format!(
            "[server]\nworkers = 1\n[cache.main]\nmemory = '1MiB'\n\
             disk = {{ path = '$DIR/cache', size = '64MiB' }}\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
             [[route]]\nupstream = 'app'\ncompress = true\ncache = 'main'\n\
             [upstream.app]\nendpoints = ['{}']\n",
            origin.raw.address
        );
        let proxy = evenkeel_testkit::Proxy::start(crate::setup::program(), &config).unwrap();
        let mut client = proxy.client();
        for coding in ["gzip", "br", "zstd"] {
            let request = get(&format!("Accept-Encoding: {coding}\r\n"));
            let response = client.ask(request).unwrap();
            assert_eq!(response.field("content-encoding"), Some(coding));
            assert!(decoded(&response.body, coding) == body, "{coding}");
        }
        assert!(client.ask(get("")).unwrap().body == body);
        assert_eq!(origin.heads.lock().unwrap().len(), 1);
    });
}
