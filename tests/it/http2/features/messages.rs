//! Trailers, interim responses, bodies and their ends.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_testkit::RawStream;
use evenkeel_testkit::http2::{Ends, ErrorCode};

use super::{Endpoint, OK, Shape, ask, assert_answered, assert_plain, close, connect, path_of};
use super::{text_of, values};
use crate::setup::{assert_logged, pattern, test};
use crate::words;

/// Reads a body in chunks: its content, and the lines of its trailers.
fn read_chunks(stream: &mut RawStream) -> (Vec<u8>, String) {
    let mut content = Vec::new();
    let line = |stream: &mut RawStream| {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(stream.read_len(1).unwrap());
        }
        String::from_utf8(line).unwrap()
    };
    loop {
        let size = usize::from_str_radix(line(stream).trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        content.extend(stream.read_len(size).unwrap());
        assert_eq!(stream.read_len(2).unwrap(), b"\r\n");
    }
    let mut trailers = String::new();
    loop {
        match &*line(stream) {
            "\r\n" => return (content, trailers),
            it => trailers.push_str(it),
        }
    }
}

#[test]
fn trailers_go_both_ways() {
    test(|| {
        let seen = Arc::<Mutex<Vec<(Vec<u8>, String)>>>::default();
        let kept = seen.clone();
        let endpoint = Endpoint::scripted(move |head, stream| {
            assert_eq!(values(head, "transfer-encoding"), ["chunked"], "{head}");
            assert_eq!(values(head, "content-length"), [""; 0], "{head}");
            kept.lock().unwrap().push(read_chunks(stream));
            let body = if path_of(head) == "/empty" {
                ""
            } else {
                "5\r\nhello\r\n"
            };
            stream.send(format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                 {body}0\r\nX-Sum: 1\r\nX-Other: a b\r\n\r\n"
            ))
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        for (stream, path, sent, got) in [
            (1, "/a", &b"some content"[..], "hello"),
            (3, "/empty", b"", ""),
            (5, "/a", &pattern(60_000), "hello"),
        ] {
            let fields = [("te", "trailers"), ("trailer", "x-checked")];
            client
                .request(stream, "POST", path, &fields, Ends::Later)
                .unwrap();
            if !sent.is_empty() {
                client.data(stream, sent, Ends::Later).unwrap();
            }
            let trailers = [("x-checked", "yes"), ("x-more", "1, 2")];
            client.headers(stream, &trailers, Ends::Now).unwrap();
            let response = client.response(stream).unwrap();
            assert_answered(&response, 200, got);
            assert_plain(&response);
            let expected = [("x-sum", "1"), ("x-other", "a b")];
            let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(response.trailers, expected);
            let (content, trailers) = seen.lock().unwrap().pop().unwrap();
            assert!(content == sent, "{path}");
            assert_eq!(trailers, "x-checked: yes\r\nx-more: 1, 2\r\n");
        }
    });
}

#[test]
fn interim_responses_come_first() {
    test(|| {
        let endpoint = Endpoint::answering(|_| {
            let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n\
                         HTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\nConnection: close\r\n\r\n";
            [hints.as_bytes(), OK.as_bytes()].concat()
        });
        let proxy = Shape::default().before(endpoint.address());
        let response = connect(&proxy).ask(1, "/").unwrap();
        assert_answered(&response, 200, "ok");
        let hint = |it: &str| (103, vec![("link".to_owned(), it.to_owned())]);
        assert_eq!(response.interim, [hint("</a.css>"), hint("</b.css>")]);
    });
}

#[test]
fn a_client_is_told_to_go_on() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            assert_eq!(values(head, "expect"), ["100-continue"], "{head}");
            if path_of(head) == "/refused" {
                stream.send("HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno")?;
                return close();
            }
            stream.send("HTTP/1.1 100 Continue\r\n\r\n")?;
            let body = match values(head, "content-length")[..] {
                [len] => stream.read_len(len.parse().unwrap())?,
                _ => read_chunks(stream).0,
            };
            stream.send(text_of(200, "", body))
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        for (stream, fields) in [
            (
                1,
                &[("expect", "100-continue"), ("content-length", "5")][..],
            ),
            (3, &[("expect", "100-continue")]),
        ] {
            client
                .request(stream, "POST", "/a", fields, Ends::Later)
                .unwrap();
            client
                .until(|it| it.so_far(stream).is_some_and(|it| !it.interim.is_empty()))
                .unwrap();
            client.data(stream, "hello", Ends::Now).unwrap();
            let response = client.response(stream).unwrap();
            assert_answered(&response, 200, "hello");
            assert_eq!(response.interim, [(100, vec![])]);
        }
        let fields = [("expect", "100-continue"), ("content-length", "5")];
        client
            .request(5, "POST", "/refused", &fields, Ends::Later)
            .unwrap();
        client
            .until(|it| it.so_far(5).is_some_and(|it| it.is_whole))
            .unwrap();
        let refused = client.so_far(5).unwrap();
        assert_eq!((refused.status, &*refused.text()), (417, "no"));
        assert_eq!(refused.interim, []);
        client
            .request(7, "POST", "/a", &fields, Ends::Later)
            .unwrap();
        client.data(7, "hello", Ends::Now).unwrap();
        assert_answered(&client.response(7).unwrap(), 200, "hello");
    });
}

#[test]
fn bodies_have_the_ends_of_their_responses() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            let answer = match path_of(head) {
                "/until-close" => "HTTP/1.1 200 OK\r\n\r\nhello",
                "/http1.0" => "HTTP/1.0 200 OK\r\n\r\nhello",
                "/empty-until-close" => "HTTP/1.1 200 OK\r\n\r\n",
                "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
                "/head-chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "/204" => "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n",
                "/304" => {
                    "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\nETag: \"a\"\r\n\r\n"
                }
                "/empty" => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                "/empty-chunked" => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                }
                _ => OK,
            };
            stream.send(answer)?;
            if answer.contains("Length") || answer.contains("chunked") || answer.contains("204") {
                Ok(())
            } else {
                close()
            }
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        let cases = [
            ("GET", "/until-close", 200, "hello", None),
            ("GET", "/http1.0", 200, "hello", None),
            ("GET", "/empty-until-close", 200, "", None),
            ("HEAD", "/head", 200, "", Some("1000")),
            ("HEAD", "/head-chunked", 200, "", None),
            ("GET", "/204", 204, "", None),
            ("GET", "/304", 304, "", Some("1000")),
            ("GET", "/empty", 200, "", Some("0")),
            ("GET", "/empty-chunked", 200, "", None),
            ("OPTIONS", "/ok", 200, "ok", Some("2")),
            ("PATCH", "/ok", 200, "ok", Some("2")),
        ];
        for (index, (method, path, status, text, len)) in cases.into_iter().enumerate() {
            let response = ask(&mut client, 2 * index as u32 + 1, method, path, &[]);
            assert_answered(&response, status, text);
            assert_plain(&response);
            assert_eq!(response.field("content-length"), len, "{path}");
        }
    });
}

#[test]
fn a_response_that_is_cut_off_resets_its_stream_alone() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            let answer = match path_of(head) {
                "/chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
                "/chunks" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
                "/size" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n1",
                "/trailers" => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\nX-A"
                }
                "/bad" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
                "/length" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
                _ => return stream.send(OK),
            };
            stream.send(answer)?;
            if path_of(head) == "/bad" {
                // The beginning has gone to the client by then.
                std::thread::park_timeout(Duration::from_millis(100));
                stream.send("zz\r\n")?;
            }
            close()
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        let mut stream = 1;
        for path in ["/chunk", "/chunks", "/size", "/trailers", "/bad", "/length"] {
            client.get(stream, path).unwrap();
            client.get(stream + 2, "/ok").unwrap();
            let response = client.response(stream).unwrap();
            let end = (response.is_whole, response.reset);
            assert_eq!(end, (false, Some(ErrorCode::Internal)), "{path}");
            assert_eq!((response.status, &*response.text()), (200, "hel"), "{path}");
            assert_answered(&client.response(stream + 2).unwrap(), 200, "ok");
            assert_answered(&client.ask(stream + 4, "/ok").unwrap(), 200, "ok");
            stream += 6;
        }
        assert_eq!(client.goes_away, None);
        assert_logged(&proxy, words::UPSTREAM_CUT);
        assert_logged(&proxy, words::UPSTREAM_BODY);
    });
}

/// Chunks and their trailers come in pieces that end anywhere.
#[test]
fn chunks_that_come_byte_by_byte_are_whole() {
    test(|| {
        let endpoint = Endpoint::scripted(|_, stream| {
            stream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            let body = "5;a=b\r\nhello\r\n00c\r\n, you others\r\n0\r\nX-Sum: 1\r\nX-B: 2\r\n\r\n";
            for byte in body.as_bytes() {
                stream.send([*byte])?;
                std::thread::park_timeout(Duration::from_millis(2));
            }
            Ok(())
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        for stream in [1, 3] {
            client.get(stream, "/").unwrap();
        }
        for stream in [1, 3] {
            let response = client.response(stream).unwrap();
            assert_answered(&response, 200, "hello, you others");
            assert_eq!(response.trailers.len(), 2, "{response:?}");
        }
    });
}

/// Chunks of these sizes, cut anywhere, come whole through small windows, with others
/// beside them.
fn assert_chunks_are_whole(sizes: [usize; 4], window: u32) {
    test(move || {
        let endpoint = Endpoint::scripted(move |head, stream| {
            let seed: u64 = path_of(head)[1..].parse().unwrap();
            let mut random = fastrand::Rng::with_seed(seed);
            let body = pattern(150_000);
            let mut rest = &body[..];
            let mut sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            while !rest.is_empty() {
                let most = sizes[random.usize(..4)];
                let (part, behind) = rest.split_at(random.usize(1..=most).min(rest.len()));
                rest = behind;
                sent.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                sent.extend_from_slice(part);
                sent.extend_from_slice(b"\r\n");
            }
            sent.extend_from_slice(b"0\r\nX-Sum: 1\r\n\r\n");
            let mut rest = &sent[..];
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(random.usize(1..=9_000).min(rest.len()));
                rest = behind;
                stream.send(part)?;
            }
            Ok(())
        });
        let proxy = Shape::default().before(endpoint.address());
        let own = [(
            evenkeel_testkit::http2::setting::INITIAL_WINDOW_SIZE,
            window,
        )];
        let address = proxy.socket_addr("web");
        let mut client = evenkeel_testkit::H2Client::connect_with(address, &own).unwrap();
        let streams: Vec<u32> = (0..10).map(|it| 2 * it + 1).collect();
        for stream in &streams {
            client.get(*stream, &format!("/{stream}")).unwrap();
        }
        for stream in &streams {
            let response = client.response(*stream).unwrap();
            assert_eq!(response.reset, None, "seed {stream}");
            assert!(response.body == pattern(150_000), "seed {stream}");
            assert_eq!(response.trailers.len(), 1, "seed {stream}");
        }
    });
}

#[test]
fn chunks_of_all_sizes_go_through_small_windows() {
    assert_chunks_are_whole([5_000, 10_000, 20_000, 40_000], 7_777);
}

/// Each frame that the client gets is credited by itself, as a simple client does. It gets
/// no shorter frames than the program sends.
#[test]
fn short_chunks_may_be_credited_one_by_one() {
    assert_chunks_are_whole([1, 20, 500, 40_000], 1_777);
}

#[test]
fn bodies_wait_for_a_slow_endpoint() {
    test(|| {
        let (open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let endpoint = Endpoint::scripted(move |head, stream| {
            gate.lock().unwrap().recv().unwrap();
            let body = match values(head, "content-length")[..] {
                [len] => stream.read_len(len.parse().unwrap())?,
                _ => read_chunks(stream).0,
            };
            stream.send(text_of(200, "", body))
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        let body = pattern(500_000);
        for (stream, fields) in [(1, &[][..]), (3, &[("content-length", "500000")])] {
            client
                .request(stream, "POST", "/", fields, Ends::Later)
                .unwrap();
            client.data(stream, &body[..60_000], Ends::Later).unwrap();
            open.send(()).unwrap();
            client.upload(stream, &body[60_000..], Ends::Now).unwrap();
            let response = client.response(stream).unwrap();
            assert_eq!((response.status, response.reset), (200, None));
            assert!(response.body == body);
        }
    });
}

/// A request that its client cuts off is no whole request at the endpoint.
#[test]
fn a_request_that_is_reset_ends_the_exchange() {
    test(|| {
        let (told, ends) = channel();
        let told = Mutex::new(told);
        let endpoint = Endpoint::scripted(move |head, stream| {
            if path_of(head) == "/ok" {
                return stream.send(OK);
            }
            let rest = stream.read_to_end();
            told.lock().unwrap().send(rest.unwrap_or_default()).unwrap();
            close()
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        for (stream, fields) in [(1, &[][..]), (5, &[("content-length", "10")])] {
            // Longer than the part that is read before the request takes a slot.
            client
                .request(stream, "POST", "/a", fields, Ends::Later)
                .unwrap();
            client.data(stream, "abc", Ends::Later).unwrap();
            client.ping().unwrap();
            std::thread::park_timeout(Duration::from_millis(100));
            client.reset(stream, ErrorCode::Cancel).unwrap();
            assert_answered(&client.ask(stream + 2, "/ok").unwrap(), 200, "ok");
        }
        assert_logged(&proxy, words::CLIENT_GONE);
        // If the endpoint had got the request, its body has no end.
        for rest in ends.try_iter() {
            let text = String::from_utf8_lossy(&rest);
            assert!(!text.ends_with("0\r\n\r\n"), "{text}");
        }
    });
}
