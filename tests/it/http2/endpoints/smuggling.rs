//! Messages that one protocol would read otherwise than the other.

use std::io;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use evenkeel_testkit::http2::{Ends, ErrorCode};
use evenkeel_testkit::{H2Client, H2Request, RawOrigin};

use super::{over_h2, scripted};
use crate::setup::{get, test};

/// An endpoint that records its requests, and answers with the length of the content.
fn keeping() -> (RawOrigin, mpsc::Receiver<H2Request>) {
    let (sender, seen) = mpsc::channel();
    let sender = Mutex::new(sender);
    let endpoint = scripted(&[], move |_, server| {
        loop {
            let request = server.request()?;
            let text = format!("{}", request.body.len());
            server.respond(request.stream, 200, &text)?;
            let _ = sender.lock().unwrap().send(request);
        }
    });
    (endpoint, seen)
}

/// A body that the endpoint has taken is gone for another attempt. The bytes behind it are the
/// next request, and never a body.
#[test]
fn a_request_that_is_refused_after_its_body_takes_nothing_of_the_next_one() {
    for ending in ["reset", "goaway"] {
        test(move || {
            let (sender, seen) = mpsc::channel();
            let sender = Mutex::new(sender);
            let endpoint = scripted(&[], move |_, server| {
                loop {
                    let request = server.request()?;
                    let (id, path) = (request.stream, request.path().to_owned());
                    let _ = sender.lock().unwrap().send((path.clone(), request.body));
                    match path.as_str() {
                        "/first" if ending == "reset" => {
                            server.reset(id, ErrorCode::RefusedStream)?;
                        }
                        "/first" => {
                            server.go_away(0, ErrorCode::NoError)?;
                            return Ok(());
                        }
                        _ => server.respond(id, 200, "second")?,
                    }
                }
            });
            let proxy = over_h2(endpoint.address, "retries = 3");
            let mut client = proxy.client();
            client
                .send("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n")
                .unwrap();
            // The body comes in a separate read, together with the next request.
            std::thread::park_timeout(Duration::from_millis(50));
            client
                .send("12345678GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
            let first = client.read_response("POST").unwrap();
            assert_eq!(first.status, 502, "{first:?}");
            // The connection ends, or the next request is answered as such.
            if let Ok(second) = client.read_response("GET") {
                assert_eq!(second.text(), "second");
            }
            drop(client);
            let asked: Vec<_> = seen.try_iter().collect();
            let firsts = asked.iter().filter(|it| it.0 == "/first");
            assert_eq!(firsts.count(), 1, "{ending}: {asked:?}");
            assert_eq!(asked[0].1, b"12345678", "{ending}");
            // A client of HTTP/2 is answered too.
            let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
            client
                .request(1, "POST", "/first", &[], Ends::Later)
                .unwrap();
            std::thread::park_timeout(Duration::from_millis(50));
            client.data(1, b"12345678", Ends::Now).unwrap();
            assert_eq!(client.response(1).unwrap().status, 502, "{ending}");
        });
    }
}

/// No request of HTTP/1 becomes two requests, or a different one.
#[test]
fn a_request_of_http1_is_one_of_http2() {
    test(|| {
        let (endpoint, seen) = keeping();
        let proxy = over_h2(endpoint.address, "");
        let inner = "GET /evil HTTP/1.1\r\nHost: evil\r\n\r\n";
        for request in [
            format!(
                "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{inner}",
                inner.len()
            ),
            format!(
                "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\n\r\n",
                inner.len()
            ),
            format!(
                "POST /a HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\
                 Connection: Upgrade, HTTP2-Settings\r\nContent-Length: {}\r\n\r\n{inner}",
                inner.len()
            ),
            format!(
                "POST /a HTTP/1.1\r\nHost: a\r\nConnection: content-length, host\r\n\
                 Content-Length: {}\r\n\r\n{inner}",
                inner.len()
            ),
        ] {
            let response = proxy.client().ask(&request).unwrap();
            assert_eq!(response.status, 200, "{request}");
            assert_eq!(response.text(), inner.len().to_string(), "{request}");
            let asked = seen.recv().unwrap();
            assert_eq!(asked.path(), "/a");
            assert_eq!(asked.field(":authority"), Some("a"), "{asked:?}");
            assert_eq!(asked.body, inner.as_bytes());
            for name in [
                "transfer-encoding",
                "connection",
                "upgrade",
                "http2-settings",
                "host",
            ] {
                assert_eq!(asked.field(name), None, "{name} of {request}");
            }
            let lengths = asked.fields.iter().filter(|it| it.0 == "content-length");
            assert!(lengths.count() <= 1, "{asked:?}");
        }
        for request in [
            "GET / HTTP/1.1\r\nHost: a\r\n:path: /evil\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n:authority: evil\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n :path: /evil\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\nY: c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX y: b\r\n\r\n",
            "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\nab",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabX0\r\n\r\n",
        ] {
            let mut client = proxy.client();
            client.send(request).unwrap();
            let status = client.read_response("GET").unwrap().status;
            assert!(
                matches!(status, 400 | 415 | 501),
                "{status} for {request:?}"
            );
        }
        // At most the endpoint saw the head of a request that was malformed later.
        assert!(seen.try_recv().is_err(), "one of them came through");
        assert_eq!(proxy.client().get("/b").unwrap().text(), "0");
    });
}

/// Nor one of HTTP/2 on its way to HTTP/2.
#[test]
fn a_request_of_http2_stays_what_it_is() {
    test(|| {
        let (endpoint, seen) = keeping();
        let proxy = over_h2(endpoint.address, "");
        let odd: &[&[(&str, &str)]] = &[
            &[("x-a", "b\r\nc: d")],
            &[("x-a", "b\0")],
            &[("x a", "b")],
            &[("x:a", "b")],
            &[("", "b")],
            &[("X-A", "b")],
            &[("transfer-encoding", "chunked")],
            &[("connection", "x-a")],
            &[("content-length", "1"), ("content-length", "2")],
            &[("content-length", "5")],
            &[("host", "other.example")],
            &[("te", "gzip")],
        ];
        for fields in odd {
            let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
            client
                .request(1, "POST", "/odd", fields, Ends::Now)
                .unwrap();
            if let Ok(response) = client.response(1) {
                let is_refused = response.reset.is_some() || response.status == 400;
                assert!(is_refused, "{fields:?}: {response:?}");
            }
        }
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        assert_eq!(client.ask(1, "/well").unwrap().text(), "0");
        let asked = seen.recv().unwrap();
        assert_eq!(asked.path(), "/well", "an odd one came through");
    });
}

/// A response as its fields, its content, and its trailers.
type Odd = (
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// Responses that no client of HTTP/1 may read as two.
const ODD: &[Odd] = &[
    (&[(":status", "200"), ("x a", "b")], "x", &[]),
    (&[(":status", "200"), ("x:a", "b")], "x", &[]),
    (&[(":status", "200"), ("", "b")], "x", &[]),
    (&[(":status", "200"), ("x-a", "b\nc: d")], "x", &[]),
    (&[(":status", "200"), ("x-a", "b\rc: d")], "x", &[]),
    (&[(":status", "200"), ("x-a", "b\0")], "x", &[]),
    (&[(":status", "200"), ("x-a\r\nx-b", "c")], "x", &[]),
    (&[(":status", "200\r\nx-a: b")], "x", &[]),
    (&[(":status", "200 OK")], "x", &[]),
    (&[(":status", "20")], "x", &[]),
    (&[(":status", "2000")], "x", &[]),
    (&[(":status", "abc")], "x", &[]),
    (&[(":status", "099")], "x", &[]),
    (&[(":status", "+20")], "x", &[]),
    (&[(":status", "")], "x", &[]),
    (&[(":status", "200"), (":status", "200")], "x", &[]),
    (&[("x-a", "b"), (":status", "200")], "x", &[]),
    (&[(":status", "200"), (":path", "/")], "x", &[]),
    (
        &[(":status", "200"), ("transfer-encoding", "chunked")],
        "0\r\n\r\n",
        &[],
    ),
    (&[(":status", "200"), ("keep-alive", "timeout=5")], "x", &[]),
    (
        &[(":status", "200"), ("proxy-connection", "close")],
        "x",
        &[],
    ),
    (&[(":status", "200"), ("upgrade", "websocket")], "x", &[]),
    (&[(":status", "200"), ("content-length", "+1")], "x", &[]),
    (&[(":status", "200"), ("content-length", "-1")], "x", &[]),
    (&[(":status", "200"), ("content-length", "")], "x", &[]),
    (
        &[
            (":status", "200"),
            ("content-length", "18446744073709551617"),
        ],
        "x",
        &[],
    ),
    (&[(":status", "200")], "x", &[("x-t", "a\r\nb: c")]),
    (&[(":status", "200")], "x", &[(":status", "200")]),
    (&[(":status", "200")], "x", &[("X-T", "a")]),
    (
        &[(":status", "200"), ("content-length", "5")],
        "x",
        &[("x-t", "a")],
    ),
    (&[(":status", "204")], "HTTP/1.1 200 OK\r\n\r\n", &[]),
    (
        &[(":status", "204"), ("content-length", "19")],
        "HTTP/1.1 200 OK\r\n\r\n",
        &[],
    ),
    (&[(":status", "304")], "HTTP/1.1 200 OK\r\n\r\n", &[]),
    (&[(":status", "205")], "HTTP/1.1 200 OK\r\n\r\n", &[]),
];

#[test]
fn no_response_of_http2_is_read_as_two() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                let stream = request.stream;
                let at = request.path().strip_prefix("/odd/");
                let Some(at) = at.and_then(|it| it.parse::<usize>().ok()) else {
                    server.respond(stream, 200, request.path())?;
                    continue;
                };
                let (head, content, trailers) = ODD[at];
                server.headers(stream, head, Ends::Later)?;
                if trailers.is_empty() {
                    server.data(stream, content, Ends::Now)?;
                } else {
                    server.data(stream, content, Ends::Later)?;
                    server.headers(stream, trailers, Ends::Now)?;
                }
            }
        });
        let proxy = over_h2(endpoint.address, "guard = false\n");
        let mut wrong = Vec::new();
        for (at, odd) in ODD.iter().enumerate() {
            let mut client = proxy.client();
            // The next request is there already: its answer comes behind, or never.
            let both = format!("{}{}", get(&format!("/odd/{at}")), get("/next"));
            client.send(both).unwrap();
            let first = client.read_response("GET");
            match &first {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    wrong.push(format!("{odd:?}: nothing comes"));
                }
                Err(_) => continue,
                Ok(it) if it.status == 502 => {}
                Ok(it) if matches!(odd.0[0].1, "204" | "304") && it.body.is_empty() => {}
                // It has content like any other.
                Ok(it) if odd.0[0].1 == "205" && it.body == odd.1.as_bytes() => {}
                Ok(it) => wrong.push(format!("{odd:?}: {it:?}")),
            }
            match client.read_response("GET") {
                Ok(it) if it.text() == "/next" => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                it => wrong.push(format!("behind {odd:?}: {it:?}")),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(proxy.client().get("/well").unwrap().text(), "/well");
    });
}

/// Content that answers no GET is not passed on.
#[test]
fn a_head_request_has_no_content() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                if request.path() == "/empty" {
                    let head = [(":status", "200"), ("content-length", "5")];
                    server.headers(request.stream, &head, Ends::Now)?;
                } else {
                    server.respond(request.stream, 200, "HTTP/1.1 200 OK\r\n\r\n")?;
                }
            }
        });
        let proxy = over_h2(endpoint.address, "guard = false\n");
        let mut client = proxy.client();
        client
            .send("HEAD /empty HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let response = client.read_response("HEAD").unwrap();
        assert_eq!(response.field("content-length"), Some("5"));
        client
            .send("HEAD /full HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let status = client.read_response("HEAD").map(|it| it.status);
        assert!(matches!(status, Ok(200 | 502)), "{status:?}");
        if let Ok(next) = client.get("/next") {
            assert_eq!(next.text(), "HTTP/1.1 200 OK\r\n\r\n");
        }
    });
}
