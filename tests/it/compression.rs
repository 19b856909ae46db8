//! Responses of upstreams that are compressed on their way to the client.

use std::io::Read;
use std::process::Command;
use std::sync::{Arc, Mutex};

use evenkeel_proto::coding::Coding;
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{Proxy, RawOrigin, RawStream, Response, TempDir};

use crate::setup::{ask_status, assert_logged, assert_refused, figures, origin, program, test};
use crate::words;

mod cached;
mod streaming;

/// An origin that records its requests.
struct Origin {
    raw: RawOrigin,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// `answer` gets each head, and the connection to answer on; it says whether that goes
    /// on.
    fn scripted(answer: impl Fn(&str, &mut RawStream) -> bool + Send + Sync + 'static) -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let asked = heads.clone();
        let raw = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                asked.lock().unwrap().push(head.clone());
                if !answer(&head, &mut stream) {
                    return;
                }
            }
        });
        Origin {
            raw: raw.unwrap(),
            heads,
        }
    }

    /// Answers each request with these bytes.
    fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::scripted(move |_, stream| stream.send(&answer).is_ok())
    }

    fn last_head(&self) -> String {
        self.heads.lock().unwrap().last().unwrap().clone()
    }

    /// The program before it, with these lines in the route.
    fn behind(&self, route: &str) -> Proxy {
        self.behind_upstream(route, "")
    }

    /// The same, with these lines in the upstream, and one request at a time.
    fn behind_one(&self, route: &str, upstream: &str) -> Proxy {
        let endpoint = format!("{{ address = '{}', max_in_flight = 1 }}", self.raw.address);
        self.behind_endpoint(route, upstream, &endpoint)
    }

    /// The same, with these lines in the upstream.
    fn behind_upstream(&self, route: &str, upstream: &str) -> Proxy {
        self.behind_endpoint(route, upstream, &format!("'{}'", self.raw.address))
    }

    fn behind_endpoint(&self, route: &str, upstream: &str, endpoint: &str) -> Proxy {
        self.behind_listener("", route, upstream, endpoint)
    }

    /// The program before it, for clients of TLS that trust the authority.
    fn behind_tls(&self, route: &str, authority: &Authority, folder: &TempDir) -> Proxy {
        let issued = authority.issue(&["a.test"]).unwrap();
        issued.write(folder.path(), "a").unwrap();
        let [chain, key] = ["a.crt", "a.key"].map(|it| folder.join(it).display().to_string());
        let listener =
            format!("tls = {{ certificates = [{{ chain = '{chain}', key = '{key}' }}] }}");
        self.behind_listener(&listener, route, "", &format!("'{}'", self.raw.address))
    }

    fn behind_listener(
        &self,
        listener: &str,
        route: &str,
        upstream: &str,
        endpoint: &str,
    ) -> Proxy {
        let config = format!(
            "[server]\nworkers = 1\n[status]\nbind = '127.0.0.1:0'\n\
             [access_log]\npath = '$DIR/access.log'\nformat = 'json'\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n{listener}\n\
             [[route]]\nname = 'app'\nupstream = 'app'\n{route}\n\
             [upstream.app]\nendpoints = [{endpoint}]\n{upstream}\n"
        );
        Proxy::start(program(), &config).unwrap()
    }
}

/// Text of this length that compresses, but not to nothing.
fn text(len: usize) -> Vec<u8> {
    let words = ["proxy", "body", "of", "some", "words", "<p>", "</p>", "\n"];
    let mut random = fastrand::Rng::with_seed(11);
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        text.extend_from_slice(words[random.usize(..words.len())].as_bytes());
        text.extend_from_slice(random.u32(..1000).to_string().as_bytes());
        text.push(b' ');
    }
    text.truncate(len);
    text
}

/// A response with these fields, and the length of this body.
fn with_length(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

const TEXT: &str = "Content-Type: text/html; charset=utf-8\r\n";

/// Decodes a whole body.
#[track_caller]
fn decoded(body: &[u8], coding: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let read = match coding {
        "gzip" => flate2::read::GzDecoder::new(body).read_to_end(&mut out),
        "br" => brotli::Decompressor::new(body, 4096).read_to_end(&mut out),
        "zstd" => zstd::stream::read::Decoder::new(body)
            .and_then(|mut decoder| decoder.read_to_end(&mut out)),
        _ => panic!("no coding {coding}"),
    };
    assert!(read.is_ok(), "{coding}: {read:?}");
    out
}

/// A GET with these lines.
fn get(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n")
}

#[track_caller]
fn ask(proxy: &Proxy, lines: &str) -> Response {
    proxy.client().ask(get(lines)).unwrap()
}

/// The fields of a response that are about its coding and what follows from it.
fn about_coding(response: &Response) -> Vec<(String, String)> {
    const NAMES: [&str; 10] = [
        "content-encoding",
        "content-length",
        "transfer-encoding",
        "vary",
        "etag",
        "accept-ranges",
        "content-md5",
        "digest",
        "repr-digest",
        "content-digest",
    ];
    let fields = response.fields.iter();
    let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    fields
        .filter(|(name, _)| NAMES.contains(&name.as_str()))
        .collect()
}

#[track_caller]
fn assert_fields(response: &Response, expected: &[(&str, &str)]) {
    let mut found = about_coding(response);
    found.sort();
    let mut expected: Vec<_> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    expected.sort();
    assert_eq!(found, expected, "{}", response.head);
}

#[test]
fn bodies_of_every_length_and_framing_arrive_whole() {
    test(|| {
        for len in [1024, 1025, 16_384, 100_000, 300_000, 3_000_000] {
            let body = text(len);
            let chunks: Vec<u8> = (body.chunks(7777))
                .flat_map(|it| [format!("{:x}\r\n", it.len()).as_bytes(), it, b"\r\n"].concat())
                .collect();
            let head = format!("HTTP/1.1 200 OK\r\n{TEXT}");
            let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
            let to_the_end = format!("{head}\r\n").into_bytes();
            let answers = [
                with_length(TEXT, &body),
                [&chunked[..], &chunks, b"0\r\nX-Trailer: a\r\n\r\n"].concat(),
                [&to_the_end[..], &body].concat(),
            ];
            for (framing, answer) in answers.into_iter().enumerate() {
                let ends = framing == 2;
                let origin = Origin::scripted(move |_, stream| {
                    let _ = stream.send(&answer);
                    !ends
                });
                let proxy = origin.behind("compress = true");
                let mut client = proxy.client();
                for coding in ["gzip", "br", "zstd", "gzip", "zstd"] {
                    let request = get(&format!("Accept-Encoding: {coding}\r\n"));
                    let response = client.ask(request).unwrap();
                    assert_fields(
                        &response,
                        &[
                            ("content-encoding", coding),
                            ("transfer-encoding", "chunked"),
                            ("vary", "Accept-Encoding"),
                        ],
                    );
                    assert!(response.trailers.is_empty(), "{response:?}");
                    let found = decoded(&response.body, coding);
                    assert!(found == body, "{coding} {len} {framing}: {}", found.len());
                    assert!(response.body.len() < len * 6 / 10, "{coding} {len}");
                }
            }
        }
    });
}

#[test]
fn the_head_says_what_became_of_the_body() {
    test(|| {
        let body = text(4000);
        let fields = format!(
            "{TEXT}ETag: \"v1\"\r\nAccept-Ranges: bytes\r\nContent-MD5: a\r\nDigest: b\r\n\
             Repr-Digest: c\r\nContent-Digest: d\r\nVary: Cookie\r\nX-Other: e\r\n"
        );
        let origin = Origin::answering(with_length(&fields, &body));
        let proxy = origin.behind("compress = { codings = ['br', 'gzip'] }");
        let coded = ask(&proxy, "Accept-Encoding: gzip, br\r\n");
        // A strong tag would stand for other bytes.
        assert_fields(
            &coded,
            &[
                ("content-encoding", "br"),
                ("transfer-encoding", "chunked"),
                ("vary", "Cookie, Accept-Encoding"),
                ("etag", "W/\"v1\""),
            ],
        );
        assert_eq!(coded.field("x-other"), Some("e"));
        assert_eq!(decoded(&coded.body, "br"), body);
        // Caches must know that others get another one.
        let plain = ask(&proxy, "");
        assert_fields(
            &plain,
            &[
                ("content-length", "4000"),
                ("vary", "Cookie, Accept-Encoding"),
                ("etag", "\"v1\""),
                ("accept-ranges", "bytes"),
                ("content-md5", "a"),
                ("digest", "b"),
                ("repr-digest", "c"),
                ("content-digest", "d"),
            ],
        );
        assert_eq!(plain.body, body);
    });
}

#[test]
fn what_a_client_accepts_decides() {
    test(|| {
        let body = text(4000);
        let origin = Origin::answering(with_length(TEXT, &body));
        let proxy = origin.behind("compress = { codings = ['zstd', 'br', 'gzip'] }");
        for (lines, coding) in [
            ("", None),
            ("Accept-Encoding:\r\n", None),
            ("Accept-Encoding: identity\r\n", None),
            ("Accept-Encoding: deflate\r\n", None),
            ("Accept-Encoding: gzip;q=0\r\n", None),
            ("Accept-Encoding: gzip;q=0.5, identity\r\n", None),
            ("Accept-Encoding: gzip\r\n", Some("gzip")),
            ("Accept-Encoding: x-gzip\r\n", Some("gzip")),
            ("Accept-Encoding: *\r\n", Some("zstd")),
            ("Accept-Encoding: gzip, deflate, br, zstd\r\n", Some("zstd")),
            ("Accept-Encoding: gzip, br;q=0.9\r\n", Some("gzip")),
            (
                "Accept-Encoding: br\r\nAccept-Encoding: zstd;q=0\r\n",
                Some("br"),
            ),
        ] {
            let response = ask(&proxy, lines);
            assert_eq!(response.field("content-encoding"), coding, "{lines}");
            assert_eq!(response.field("vary"), Some("Accept-Encoding"), "{lines}");
            match coding {
                None => assert_eq!(response.body, body, "{lines}"),
                Some(coding) => assert_eq!(decoded(&response.body, coding), body, "{lines}"),
            }
        }
    });
}

#[test]
fn what_must_not_be_compressed_stays_as_it_is() {
    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    test(|| {
        let body = String::from_utf8(text(4000)).unwrap();
        let long = |fields: &str| format!("Content-Length: 4000\r\n{fields}\r\n{body}");
        for (status, rest) in [
            ("200 OK", long("")),
            ("200 OK", long("Content-Type: image/png\r\n")),
            ("200 OK", long("Content-Type: video/mp4\r\n")),
            ("200 OK", long("Content-Type: application/zip\r\n")),
            ("200 OK", long(&format!("{TEXT}Content-Encoding: gzip\r\n"))),
            ("200 OK", long(&format!("{TEXT}Content-Encoding: x\r\n"))),
            (
                "200 OK",
                long(&format!("{TEXT}Cache-Control: public, No-Transform\r\n")),
            ),
            (
                "200 OK",
                format!("Content-Type: text/event-stream\r\n{CHUNKED}"),
            ),
            (
                "416 Range Not Satisfiable",
                long(&format!("{TEXT}Content-Range: bytes */9\r\n")),
            ),
            (
                "200 OK",
                format!("{TEXT}Content-Length: 1023\r\n\r\n{}", &body[..1023]),
            ),
            ("200 OK", format!("{TEXT}Content-Length: 0\r\n\r\n")),
            ("204 No Content", format!("{TEXT}\r\n")),
        ] {
            let answer = format!("HTTP/1.1 {status}\r\n{rest}");
            let (head, content) = answer.split_once("\r\n\r\n").unwrap();
            let origin = Origin::answering(answer.clone());
            // These types are never compressed, even if the list names them.
            let proxy =
                origin.behind("compress.types = ['text/', 'image/', 'video/', 'application/']");
            let mut client = proxy.client();
            for _ in 0..2 {
                let request = get("Accept-Encoding: gzip, br, zstd\r\n");
                let response = client.ask(request).unwrap();
                assert_eq!(response.field("vary"), None, "{head}");
                let expected = head.contains("Content-Encoding: ");
                let is_coded = response.field("content-encoding").is_some();
                assert_eq!(is_coded, expected, "{head}");
                if content.len() > 1000 {
                    assert_eq!(response.text(), content, "{head}");
                }
            }
            let compression = &figures(&proxy)["routes"][0]["compression"];
            assert_eq!(compression["in_bytes"], 0, "{head}");
        }
    });
}

#[test]
fn parts_are_no_whole() {
    test(|| {
        let body = text(4000);
        let origin = Origin::scripted(move |head, stream| {
            let answer = if head.contains("Range:") {
                let part = String::from_utf8_lossy(&body[..2000]);
                format!(
                    "HTTP/1.1 206 Partial Content\r\n{TEXT}Content-Range: bytes 0-1999/4000\r\n\
                     ETag: \"v1\"\r\nContent-Length: 2000\r\n\r\n{part}"
                )
                .into_bytes()
            } else {
                with_length(&format!("{TEXT}ETag: \"v1\"\r\n"), &body)
            };
            stream.send(answer).is_ok()
        });
        let proxy = origin.behind("compress = true");
        let response = ask(&proxy, "Accept-Encoding: gzip\r\nRange: bytes=0-1999\r\n");
        assert_eq!(response.status, 206);
        assert_fields(
            &response,
            &[
                ("content-length", "2000"),
                ("etag", "\"v1\""),
                ("vary", "Accept-Encoding"),
            ],
        );
        assert_eq!(response.body, text(4000)[..2000]);
        // The tag of a compressed response names no part of this one.
        let lines = "Accept-Encoding: gzip\r\nRange: bytes=0-1\r\nIf-Range: W/\"v1\"\r\n";
        ask(&proxy, lines);
        assert!(origin.last_head().contains("If-Range: W/\"v1\"\r\n"));
    });
}

#[test]
fn a_head_says_what_a_get_would_bring() {
    test(|| {
        let origin = Origin::scripted(|head, stream| {
            let fields = format!("{TEXT}ETag: \"v1\"\r\nAccept-Ranges: bytes\r\n");
            let answer = with_length(&fields, &text(4000));
            let len = if head.starts_with("HEAD ") {
                answer.len() - 4000
            } else {
                answer.len()
            };
            stream.send(&answer[..len]).is_ok()
        });
        let proxy = origin.behind("compress = true");
        let mut client = proxy.client();
        let head = get("Accept-Encoding: br\r\n").replace("GET", "HEAD");
        for _ in 0..2 {
            let response = client.ask(&head).unwrap();
            assert_fields(
                &response,
                &[
                    ("content-encoding", "br"),
                    ("vary", "Accept-Encoding"),
                    ("etag", "W/\"v1\""),
                ],
            );
            let response = client.ask(get("Accept-Encoding: br\r\n")).unwrap();
            assert_eq!(decoded(&response.body, "br"), text(4000));
        }
        let response = client.ask(get("").replace("GET", "HEAD")).unwrap();
        assert_fields(
            &response,
            &[
                ("content-length", "4000"),
                ("vary", "Accept-Encoding"),
                ("etag", "\"v1\""),
                ("accept-ranges", "bytes"),
            ],
        );
    });
}

#[test]
fn what_a_client_has_is_confirmed_by_its_weak_tag() {
    test(|| {
        let origin = Origin::scripted(|head, stream| {
            let answer = if head.contains("If-None-Match:") {
                b"HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n\r\n".to_vec()
            } else {
                with_length(&format!("{TEXT}ETag: \"v1\"\r\n"), &text(4000))
            };
            stream.send(answer).is_ok()
        });
        let proxy = origin.behind("compress = true");
        let mut client = proxy.client();
        let first = client.ask(get("Accept-Encoding: gzip\r\n")).unwrap();
        let tag = first.field("etag").unwrap().to_owned();
        assert_eq!(tag, "W/\"v1\"");
        for (tag, told) in [
            ("W/\"v1\"", "W/\"v1\""),
            ("\"v0\", W/\"v1\"", "W/\"v1\""),
            ("\"v1\"", "\"v1\""),
        ] {
            let lines = format!("Accept-Encoding: gzip\r\nIf-None-Match: {tag}\r\n");
            let response = client.ask(get(&lines)).unwrap();
            assert_eq!(response.status, 304);
            let sent = format!("If-None-Match: {tag}\r\n");
            assert!(origin.last_head().contains(&sent), "{}", origin.last_head());
            assert_fields(&response, &[("etag", told), ("vary", "Accept-Encoding")]);
        }
    });
}

#[test]
fn clients_of_http_1_0_get_it_to_the_end_of_the_connection() {
    test(|| {
        let body = text(200_000);
        let origin = Origin::answering(with_length(TEXT, &body));
        let proxy = origin.behind("compress = true");
        for coding in ["gzip", "br", "zstd"] {
            let request = format!(
                "GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\
                 Accept-Encoding: {coding}\r\n\r\n"
            );
            let response = proxy.client().ask(request).unwrap();
            assert_fields(
                &response,
                &[("content-encoding", coding), ("vary", "Accept-Encoding")],
            );
            assert_eq!(response.field("connection"), Some("close"));
            assert_eq!(decoded(&response.body, coding), body);
        }
    });
}

#[test]
fn the_edits_of_a_route_and_compression_go_together() {
    test(|| {
        let body = text(4000);
        let origin = Origin::answering(with_length(&format!("{TEXT}ETag: \"a\"\r\n"), &body));
        let proxy = origin.behind(
            "compress = true\n\
             response_headers = { set = { Vary = \"Origin\", ETag = '\"b\"' }, add = { X-A = \"1\" } }",
        );
        let response = ask(&proxy, "Accept-Encoding: gzip\r\n");
        assert_fields(
            &response,
            &[
                ("content-encoding", "gzip"),
                ("transfer-encoding", "chunked"),
                ("vary", "Origin, Accept-Encoding"),
                ("etag", "W/\"b\""),
            ],
        );
        assert_eq!(response.field("x-a"), Some("1"));
        assert_eq!(decoded(&response.body, "gzip"), body);
    });
}

#[test]
fn settings_of_a_route() {
    test(|| {
        let body = text(4000);
        let origin = Origin::answering(with_length(TEXT, &body));
        let accept = "Accept-Encoding: gzip, br, zstd\r\n";
        for (route, coding) in [
            ("", None),
            ("compress = false", None),
            ("compress.types = ['application/']", None),
            ("compress.min = 4001", None),
            ("compress.min = 4000", Some("zstd")),
            ("compress.codings = ['gzip']", Some("gzip")),
            ("compress.types = ['TEXT/HTML']", Some("zstd")),
        ] {
            let response = ask(&origin.behind(route), accept);
            assert_eq!(response.field("content-encoding"), coding, "{route}");
            let vary = coding.map(|_| "Accept-Encoding");
            assert_eq!(response.field("vary"), vary, "{route}");
        }
        let len = |route: &str, coding: &str| {
            let lines = format!("Accept-Encoding: {coding}\r\n");
            ask(&origin.behind(route), &lines).body.len()
        };
        for coding in ["gzip", "br", "zstd"] {
            let least = len(&format!("compress.{coding}_level = 1"), coding);
            let most = len(&format!("compress.{coding}_level = 6"), coding);
            assert!(most < least, "{coding}: {most} {least}");
        }
    });
}

#[test]
fn compressed_requests_are_refused_where_that_is_written() {
    test(|| {
        let origin = origin();
        let config = |route: &str| {
            format!(
                "[server]\nworkers = 1\n[access_log]\npath = '$DIR/access.log'\nformat = 'json'\n\
                 [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
                 [[route]]\nname = 'app'\nupstream = 'app'\n{route}\n\
                 [upstream.app]\nendpoints = ['{}']\n",
                origin.address
            )
        };
        let post = |coding: &str| {
            format!(
                "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\
                 Content-Encoding: {coding}\r\n\r\nabc"
            )
        };
        let passing = Proxy::start(program(), &config("")).unwrap();
        let response = passing.client().ask(post("gzip")).unwrap();
        assert_eq!((response.status, response.text()), (200, "abc".to_owned()));
        let refusing = Proxy::start(program(), &config("coded_requests = 'refuse'")).unwrap();
        let mut client = refusing.client();
        let response = client.ask(post("gzip")).unwrap();
        assert_refused(&response, words::CODED_REQUEST);
        assert_eq!(response.field("accept-encoding"), Some("identity"));
        // The connection goes on.
        let response = client.ask(post("identity")).unwrap();
        assert_eq!((response.status, response.text()), (200, "abc".to_owned()));
        assert_logged(&refusing, words::CODED_REQUEST);
        assert_eq!(origin.stats().requests, 2);
        let explained = explained(&refusing, &["Content-Encoding: br"]);
        assert!(explained.contains("coded-request"), "{explained}");
    });
}

/// The output of `explain` for a request with these fields.
fn explained(proxy: &Proxy, fields: &[&str]) -> String {
    let mut explain = Command::new(program());
    explain.args(["explain", "--config"]);
    explain.arg(proxy.path("evenkeel.toml"));
    for field in fields {
        explain.args(["-H", field]);
    }
    let output = explain.args(["GET", &proxy.url("/")]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn operators_see_what_is_compressed() {
    test(|| {
        let body = text(40_000);
        let origin = Origin::answering(with_length(TEXT, &body));
        let proxy = origin.behind("compress = true");
        let mut out_len = 0;
        for coding in ["gzip", "br", "br", "zstd", "zstd", "zstd"] {
            let response = ask(&proxy, &format!("Accept-Encoding: {coding}\r\n"));
            out_len += response.body.len();
        }
        ask(&proxy, "");
        let text = ask_status(&proxy, "/metrics", "").text();
        for (metric, value) in [
            ("gzip_total", 1),
            ("br_total", 2),
            ("zstd_total", 3),
            ("skipped_total", 0),
            ("in_bytes_total", 6 * 40_000),
            ("out_bytes_total", out_len),
        ] {
            let line = format!("evenkeel_route_compression_{metric}{{route=\"app\"}} {value}\n");
            assert!(text.contains(&line), "{line}");
        }
        let explained = |fields: &[&str]| self::explained(&proxy, fields);
        let said = explained(&["Accept-Encoding: gzip, br"]);
        assert!(
            said.contains("compression: br, for responses of these types with 1024 bytes or more"),
            "{said}"
        );
        let said = explained(&[]);
        let none = "compression: none, because the request accepts none of zstd, br, gzip";
        assert!(said.contains(none), "{said}");
    });
}

#[test]
fn a_queue_switches_it_off() {
    test(|| {
        let body = text(4000);
        let held = Arc::new(Mutex::new(()));
        let guard = held.clone();
        let answer = with_length(TEXT, &body);
        let origin = Origin::scripted(move |_, stream| {
            drop(guard.lock().unwrap());
            stream.send(&answer).is_ok()
        });
        let proxy = origin.behind_one(
            "compress.off_above_queue = 1",
            "queue = { max = 10, timeout = '20s' }",
        );
        let lock = held.lock().unwrap();
        let request = get("Accept-Encoding: gzip\r\n");
        let mut clients: Vec<_> = (0..4).map(|_| proxy.client()).collect();
        for client in &mut clients {
            client.send(&request).unwrap();
        }
        until("they wait", || {
            figures(&proxy)["upstreams"][0]["queued"] == 3
        });
        drop(lock);
        let mut coded = 0;
        for client in &mut clients {
            let response = client.read_response("GET").unwrap();
            assert_eq!(response.field("vary"), Some("Accept-Encoding"));
            match response.field("content-encoding") {
                Some(coding) => {
                    assert_eq!(decoded(&response.body, coding), body);
                    coded += 1;
                }
                None => assert_eq!(response.body, body),
            }
        }
        // With 3 and 2 of them in the queue it was off.
        assert_eq!(coded, 2);
        let compression = &figures(&proxy)["routes"][0]["compression"];
        assert_eq!(compression["skipped"], 2);
    });
}

#[test]
fn no_more_are_compressed_at_once_than_the_settings_say() {
    test(|| {
        let held = Arc::new(Mutex::new(()));
        let guard = held.clone();
        let origin = Origin::scripted(move |_, stream| {
            let chunked = "Transfer-Encoding: chunked\r\n";
            let head = format!("HTTP/1.1 200 OK\r\n{TEXT}{chunked}\r\n5\r\nfirst\r\n");
            stream.send(head).unwrap();
            drop(guard.lock().unwrap());
            stream.send("0\r\n\r\n").is_ok()
        });
        let proxy = origin.behind("compress.at_once = 2");
        let lock = held.lock().unwrap();
        let mut clients: Vec<_> = (0..3).map(|_| proxy.client()).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            client.send(get("Accept-Encoding: gzip\r\n")).unwrap();
            let head = client.read_head().unwrap();
            let is_coded = head.contains("Content-Encoding: gzip\r\n");
            assert_eq!(is_coded, index < 2, "{head}");
            assert!(head.contains("Vary: Accept-Encoding\r\n"), "{head}");
        }
        drop(lock);
        // The first ones are over, or left: there is room again.
        drop(clients);
        until("there is room", || {
            let head = ask(&proxy, "Accept-Encoding: gzip\r\n").head;
            head.contains("Content-Encoding: gzip\r\n")
        });
        let compression = &figures(&proxy)["routes"][0]["compression"];
        assert!(compression["skipped"].as_u64().unwrap() >= 1);
    });
}

#[test]
fn every_coding_has_its_name() {
    let names = Coding::ALL.map(Coding::name);
    assert_eq!(names, ["gzip", "br", "zstd"], "`decoded` knows them");
}
