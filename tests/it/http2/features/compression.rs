//! Responses that are compressed on their way.

use std::io::Read;

use evenkeel_testkit::http2::H2Response;

use super::{Endpoint, Shape, ask, assert_plain, connect, path_of, text_of};
use crate::setup::test;

/// Text of this length that compresses, but not to nothing.
fn text(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        text.extend_from_slice(format!("<p>{} of it</p>\n", random.u32(..1000)).as_bytes());
    }
    text.truncate(len);
    text
}

#[track_caller]
fn assert_coded(response: &H2Response, coding: &str, expected: &[u8]) {
    let fields = &response.fields;
    assert_eq!((response.status, response.reset), (200, None), "{fields:?}");
    assert_eq!(
        response.field("content-encoding"),
        Some(coding),
        "{fields:?}"
    );
    assert_plain(response);
    let mut out = Vec::new();
    let body = &response.body[..];
    match coding {
        "gzip" => flate2::read::GzDecoder::new(body).read_to_end(&mut out),
        _ => zstd::stream::read::Decoder::new(body).and_then(|mut it| it.read_to_end(&mut out)),
    }
    .unwrap();
    assert!(out == expected, "{coding}: {} bytes", out.len());
}

fn endpoint(fields: &'static str) -> Endpoint {
    Endpoint::answering(move |head| {
        let (form, len) = path_of(head)[1..].split_once('/').unwrap();
        let body = text(len.parse().unwrap());
        let fields = format!("Content-Type: text/html\r\n{fields}");
        if form == "length" {
            return text_of(200, &fields, body);
        }
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{fields}\r\n");
        let mut answer = head.into_bytes();
        for chunk in body.chunks(7_001) {
            answer.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            answer.extend_from_slice(chunk);
            answer.extend_from_slice(b"\r\n");
        }
        answer.extend_from_slice(b"0\r\n\r\n");
        answer
    })
}

const LENS: [usize; 4] = [2_000, 30_000, 200_000, 2_000_000];

#[test]
fn responses_of_endpoints() {
    test(|| {
        let endpoint = endpoint("");
        let shape = Shape {
            route: "upstream = 'app'\ncompress = true",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let mut stream = 1;
        for len in LENS {
            let body = text(len);
            for form in ["length", "chunked"] {
                let path = format!("/{form}/{len}");
                for coding in ["gzip", "zstd"] {
                    let response = ask(
                        &mut client,
                        stream,
                        "GET",
                        &path,
                        &[("accept-encoding", coding)],
                    );
                    assert_coded(&response, coding, &body);
                    assert_eq!(response.field("content-length"), None);
                    stream += 2;
                }
                let plain = client.ask(stream, &path).unwrap();
                assert_plain(&plain);
                assert!(plain.body == body, "{path}");
                stream += 2;
            }
        }
    });
}

#[test]
fn stored_responses() {
    test(|| {
        let endpoint = endpoint("Cache-Control: max-age=60\r\nETag: \"a\"\r\n");
        let shape = Shape {
            route: "upstream = 'app'\ncompress = true\ncache = true",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let mut stream = 1;
        for len in LENS {
            let body = text(len);
            for form in ["length", "chunked"] {
                let path = format!("/{form}/{len}");
                // The first is a miss; the second is coded, and kept so.
                for coding in ["gzip", "zstd", "gzip"] {
                    let response = ask(
                        &mut client,
                        stream,
                        "GET",
                        &path,
                        &[("accept-encoding", coding)],
                    );
                    assert_coded(&response, coding, &body);
                    stream += 2;
                }
                let plain = client.ask(stream, &path).unwrap();
                assert!(plain.body == body, "{path}");
                assert_plain(&plain);
                stream += 2;
                let fields = [("accept-encoding", "gzip"), ("range", "bytes=10-19")];
                let part = ask(&mut client, stream, "GET", &path, &fields);
                assert_eq!((part.status, &part.body[..]), (206, &body[10..20]));
                stream += 2;
            }
        }
        assert_eq!(endpoint.count(), 2 * LENS.len());
    });
}

/// A coded response that is cut off at the endpoint is not ended as if it were whole.
#[test]
fn a_coded_response_that_is_cut_off() {
    test(|| {
        let endpoint = Endpoint::scripted(|_, stream| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked";
            stream.send(format!("{head}\r\n\r\n2710\r\n"))?;
            stream.send(text(10_000))?;
            stream.send("\r\n")?;
            super::close()
        });
        let shape = Shape {
            route: "upstream = 'app'\ncompress = true",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let response = ask(&mut client, 1, "GET", "/a", &[("accept-encoding", "gzip")]);
        let end = (response.is_whole, response.reset);
        let code = evenkeel_testkit::http2::ErrorCode::Internal;
        assert_eq!(end, (false, Some(code)), "{:?}", response.fields);
    });
}
