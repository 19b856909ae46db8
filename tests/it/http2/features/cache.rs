//! Caches of routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use evenkeel_testkit::Proxy;
use evenkeel_testkit::deadline::until;

use super::{Endpoint, Shape, ask, ask_both, assert_answered, assert_plain, connect, path_of};
use super::{text_of, values};
use crate::setup::{pattern, test};

const CACHED: Shape<'static> = Shape {
    server: "",
    listener: "",
    route: "upstream = 'app'\ncache = {}",
    upstream: "",
    tables: "",
};

/// The cache results in the access log, line by line.
fn results(proxy: &Proxy, count: usize) -> Vec<String> {
    until("the lines are written", || {
        proxy.access_log().len() >= count
    });
    let lines = proxy.access_log_json();
    let word = |line: &serde_json::Value| line["cache"].as_str().unwrap_or("-").to_owned();
    lines.iter().map(word).collect()
}

#[test]
fn a_miss_a_hit_a_stale_and_a_revalidated_response() {
    test(|| {
        let endpoint = Endpoint::answering(|head| match path_of(head) {
            "/fresh" => text_of(200, "Cache-Control: max-age=60\r\n", pattern(300_000)),
            "/stale" => {
                let fields =
                    "Cache-Control: max-age=60, stale-while-revalidate=600\r\nAge: 100\r\n";
                text_of(200, fields, "stale")
            }
            _ if values(head, "if-none-match") == ["\"a\""] => {
                b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nCache-Control: no-cache\r\n\r\n"
                    .to_vec()
            }
            _ => text_of(200, "Cache-Control: no-cache\r\nETag: \"a\"\r\n", "checked"),
        });
        let proxy = CACHED.before(endpoint.address());
        let mut client = connect(&proxy);
        for stream in [1, 3] {
            let response = client.ask(stream, "/fresh").unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body == pattern(300_000));
            assert_plain(&response);
        }
        for stream in [5, 7] {
            assert_answered(&client.ask(stream, "/checked").unwrap(), 200, "checked");
        }
        for stream in [9, 11] {
            assert_answered(&client.ask(stream, "/stale").unwrap(), 200, "stale");
        }
        let expected = ["miss", "hit", "miss", "revalidated", "miss", "stale"];
        assert_eq!(results(&proxy, 6), expected);
    });
}

#[test]
fn a_stored_response_is_the_same_by_http1() {
    test(|| {
        let endpoint = Endpoint::answering(|_| {
            let fields = "Cache-Control: max-age=60\r\nETag: \"a\"\r\nSet-Thing: a\r\n";
            text_of(200, fields, pattern(200_000))
        });
        let proxy = CACHED.before(endpoint.address());
        let mut client = connect(&proxy);
        assert_eq!(client.ask(1, "/a").unwrap().status, 200);
        let cases = [
            ("GET", vec![], 200, 200_000),
            ("HEAD", vec![], 200, 0),
            ("GET", vec![("range", "bytes=100-1099")], 206, 1_000),
            ("GET", vec![("range", "bytes=-5")], 206, 5),
            ("GET", vec![("range", "bytes=100000-")], 206, 100_000),
            ("GET", vec![("range", "bytes=300000-")], 416, 0),
            ("HEAD", vec![("range", "bytes=0-9")], 200, 0),
            ("GET", vec![("if-none-match", "\"a\"")], 304, 0),
            (
                "GET",
                vec![("range", "bytes=0-9"), ("if-range", "\"b\"")],
                200,
                200_000,
            ),
        ];
        for (index, (method, fields, status, len)) in cases.iter().enumerate() {
            let stream = 2 * index as u32 + 3;
            let response = ask_both(&proxy, &mut client, stream, method, "/a", fields);
            assert_eq!(response.status, *status, "{method} {fields:?}");
            if *status != 416 {
                assert_eq!(response.body.len(), *len, "{method} {fields:?}");
            }
            if *method == "HEAD" {
                assert_eq!(response.field("content-length"), Some("200000"));
            }
        }
        assert_eq!(endpoint.count(), 1);
    });
}

#[test]
fn many_streams_that_ask_for_the_same_are_one_fetch() {
    test(|| {
        let is_let = Arc::new(AtomicBool::new(false));
        let gate = is_let.clone();
        let endpoint = Endpoint::scripted(move |_, stream| {
            until("it may answer", || gate.load(SeqCst));
            let body = pattern(200_000);
            stream.send(text_of(200, "Cache-Control: max-age=60\r\n", body))
        });
        let proxy = CACHED.before(endpoint.address());
        let mut client = connect(&proxy);
        let streams: Vec<u32> = (0..50).map(|it| 2 * it + 1).collect();
        for stream in &streams {
            client.get(*stream, "/a").unwrap();
        }
        client.ping().unwrap();
        until("it is asked", || endpoint.count() == 1);
        is_let.store(true, SeqCst);
        for stream in &streams {
            let response = client.response(*stream).unwrap();
            assert_eq!((response.status, response.reset), (200, None));
            assert!(response.body == pattern(200_000), "{stream}");
        }
        assert_eq!(endpoint.count(), 1);
    });
}

/// A response of unknown length is sent while it comes, and stored.
#[test]
fn a_chunked_response_is_stored() {
    test(|| {
        let endpoint = Endpoint::answering(|_| {
            let body = "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
            format!("{head}{body}").into_bytes()
        });
        let proxy = CACHED.before(endpoint.address());
        let mut client = connect(&proxy);
        for stream in [1, 3] {
            assert_answered(&client.ask(stream, "/a").unwrap(), 200, "hello world");
        }
        let head = ask(&mut client, 5, "HEAD", "/a", &[]);
        assert_answered(&head, 200, "");
        assert_eq!(head.field("content-length"), Some("11"));
        assert_eq!(endpoint.count(), 1);
    });
}
