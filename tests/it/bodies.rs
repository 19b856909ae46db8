//! Bodies both ways: lengths, chunks, trailers, early answers, large bodies
//! in constant memory.

use std::time::Duration;

use evenkeel_testkit::RawOrigin;
use evenkeel_testkit::deadline::{STEP, until, within};

use crate::setup::{Site, assert_serves, get, pattern, site, test};

const MEMORY_MAX: u64 = 64 << 20;
const LARGE: u64 = 1 << 30;

#[test]
fn bodies_of_every_size_arrive_whole() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        for len in [
            0, 1, 100, 4_000, 16_383, 16_384, 16_385, 65_536, 81_920, 200_000, 1_000_003,
        ] {
            // The length of the body before decides what is expected of the next one.
            for before in [1, 1_000_003] {
                client.get(&format!("/{before}")).unwrap();
                let response = client.get(&format!("/{len}")).unwrap();
                let told = response.field("content-length");
                assert_eq!(told, Some(len.to_string().as_str()));
                let is_whole = response.body == pattern(len);
                assert!(is_whole, "{len} bytes with a length, after {before}");
            }
            let response = client.get(&format!("/chunked/{len}")).unwrap();
            assert!(response.body == pattern(len), "{len} bytes in chunks");
            assert_eq!(response.trailers, format!("X-Origin-Trailer: {len}\r\n"));
        }
    });
}

#[test]
fn request_bodies_of_every_size_arrive_whole() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        for len in [0, 1, 100, 4_000, 16_384, 65_536, 200_000, 1_000_003] {
            let body = pattern(len);
            let response = client.ask(with_length(&body)).unwrap();
            assert!(response.body == body, "{len} bytes with a length");
            let response = client.ask(in_chunks(&body, 1000)).unwrap();
            assert!(response.body == body, "{len} bytes in chunks");
            assert_eq!(response.trailers, "X-Checked: yes\r\n");
        }
    });
}

#[test]
fn the_upstream_connection_is_kept_after_a_body_of_any_size() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        for len in [1, 16_384, 100_000, 1_000_003, 100_000, 1] {
            let body = pattern(len);
            for request in [in_chunks(&body, 1000), with_length(&body)] {
                client.ask(request).unwrap();
                let connections = origin.stats().connections;
                assert_eq!(connections, 1, "another connection by {len} bytes");
            }
        }
    });
}

/// A request to echo a body with its length.
fn with_length(body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A request to echo a body in chunks of a length, with a trailer.
fn in_chunks(body: &[u8], chunk_len: usize) -> Vec<u8> {
    let mut request = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
        Trailer: X-Checked\r\n\r\n"
        .to_vec();
    for chunk in body.chunks(chunk_len) {
        request.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\nX-Checked: yes\r\n\r\n");
    request
}

#[test]
fn an_answer_is_passed_on_as_it_arrives() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client.send(get("/events")).unwrap();
        client.read_head().unwrap();
        // The stream is endless: its first event has to come before its end.
        let first = String::from_utf8(client.read_len(24).unwrap()).unwrap();
        assert!(first.contains("data: event 0"), "{first:?}");
    });
}

#[test]
fn a_request_is_passed_on_as_it_arrives() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        client
            .send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello")
            .unwrap();
        until("the origin has the head", || origin.stats().requests == 1);
        client.send("world").unwrap();
        assert_eq!(client.read_response("POST").unwrap().text(), "helloworld");
    });
}

#[test]
fn an_early_answer_reaches_a_client_that_still_sends() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client
            .send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nx")
            .unwrap();
        let response = client.read_response("POST").unwrap();
        assert_eq!(response.text(), "early");
    });
}

#[test]
fn after_an_early_answer_and_a_whole_body_the_next_request_is_served() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client
            .send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello")
            .unwrap();
        let response = client.read_response("POST").unwrap();
        assert_eq!(response.text(), "early");
        client.send("world").unwrap();
        assert_serves(&mut client);
    });
}

#[test]
fn an_early_refusal_by_an_origin_that_closes_is_delivered() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            stream.read_head().unwrap();
            let answer =
                "HTTP/1.1 413 Too Much\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbig!";
            stream.send(answer).unwrap();
            stream.finish_sending().unwrap();
            let _ = stream.read_to_end();
        })
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx")
            .unwrap();
        let response = client.read_response("POST").unwrap();
        assert_eq!((response.status, response.text().as_str()), (413, "big!"));
    });
}

#[test]
fn a_large_response_takes_constant_memory() {
    within(Duration::from_secs(120), || {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client.send(get(&format!("/{LARGE}"))).unwrap();
        assert!(client.read_head().unwrap().starts_with("HTTP/1.1 200 "));
        // A reader that stops must stop the origin too, not fill the proxy.
        client.skip_len(LARGE / 4).unwrap();
        assert_stays_small(&proxy);
        client.skip_len(LARGE - LARGE / 4).unwrap();
        assert_stays_small(&proxy);
        assert_serves(&mut client);
    });
}

#[test]
fn a_large_request_takes_constant_memory() {
    within(Duration::from_secs(120), || {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        let head = format!("POST /ping HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n");
        client.send(head).unwrap();
        let piece = vec![b'x'; 1 << 20];
        for count in 0..LARGE / piece.len() as u64 {
            client.send(&piece).unwrap();
            if count % 128 == 0 {
                assert_stays_small(&proxy);
            }
        }
        assert_eq!(client.read_response("POST").unwrap().text(), "pong");
        assert!(origin.stats().bytes_received >= LARGE);
        assert_stays_small(&proxy);
    });
}

#[track_caller]
fn assert_stays_small(proxy: &evenkeel_testkit::Proxy) {
    let rss_bytes = proxy.rss_bytes().unwrap();
    assert!(rss_bytes < MEMORY_MAX, "{rss_bytes} bytes resident");
}

#[test]
fn a_client_that_does_not_read_is_not_waited_for_in_memory() {
    within(Duration::from_secs(60), || {
        let (origin, proxy) = site();
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = proxy.client();
            client.set_step(STEP);
            client.send(get(&format!("/{LARGE}"))).unwrap();
            client.read_head().unwrap();
            clients.push(client);
        }
        assert_eq!(origin.stats().in_flight, 20);
        assert_stays_small(&proxy);
        assert_serves(&mut proxy.client());
    });
}

/// Clients that do not read keep their bytes in pipes, and there are not enough pipes for all.
/// Clients that leave take theirs with them.
#[test]
fn many_clients_that_read_late_get_their_answers_whole() {
    within(Duration::from_secs(60), || {
        let (_origin, proxy) = site();
        let len = 6_000_000;
        let asking = || {
            let mut client = proxy.client();
            client.send(get(&format!("/{len}"))).unwrap();
            client
        };
        // Each pipe has two ends.
        let ends = || proxy.open_pipe_ends().unwrap();
        let leaving: Vec<_> = (0..40).map(|_| asking()).collect();
        until("they wait", || ends() >= 2 * 40);
        drop(leaving);
        until("they are gone", || ends() < 40);
        let mut clients: Vec<_> = (0..100).map(|_| asking()).collect();
        until("no pipe is left", || ends() >= 2 * 64);
        let body = pattern(len);
        for client in &mut clients {
            assert!(client.read_response("GET").unwrap().body == body);
            assert_serves(client);
        }
    });
}

#[test]
fn a_long_head_after_a_long_body_is_read_to_its_end() {
    test(|| {
        let padding = "x".repeat(40_000);
        let head =
            format!("HTTP/1.1 200 OK\r\nX-Long: {padding}\r\nContent-Length: 100000\r\n\r\n");
        let answer = [head.as_bytes(), &pattern(100_000)].concat();
        let origin = RawOrigin::answering_each(answer).unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        for _ in 0..3 {
            let response = client.get("/").unwrap();
            assert_eq!(response.field("x-long").map(str::len), Some(40_000));
            assert!(response.body == pattern(100_000));
        }
    });
}

#[test]
fn an_answer_survives_an_endpoint_that_closes_without_reading_the_request() {
    test(|| {
        let origin = RawOrigin::answering(
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
        )
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        for _ in 0..10 {
            let mut client = proxy.client();
            client
                .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 800001\r\n\r\n")
                .unwrap();
            for _ in 0..10 {
                client.send([b'x'; 80_000]).unwrap();
            }
            let response = client.read_response("POST").unwrap();
            assert_eq!((response.status, response.text().as_str()), (403, "no"));
            client.send("x").unwrap();
            assert_eq!(client.get("/").unwrap().status, 403);
        }
    });
}
