//! Endpoints that speak HTTP/2, and clients of either version.
//!
//! * here: messages of both versions, and connections as they come and go.
//! * [`holding`]: an endpoint that holds requests until a test releases them.
//! * [`over_tls`]: negotiation in the handshake.
//! * [`probes`]: probes, and the health service of gRPC.
//! * [`silence`]: silent endpoints.
//! * [`sharing`]: limits, queues, retries and figures.
//! * [`features`]: the features of routes.
//! * [`reloads`]: endpoints that leave, and a program that does.
//! * [`attacks`]: endpoints that break rules.
//! * [`smuggling`]: messages that one version would read otherwise than the other.
//! * [`churn`]: connections that come and go under requests.
//! * [`foreign`]: third-party servers.
//! * [`courtesy`]: expectations of endpoints and operators beyond that.
//! * [`bounds`]: bounds on the use of shared resources, and their messages.

mod attacks;
mod bounds;
mod churn;
mod courtesy;
mod features;
mod foreign;
mod holding;
mod over_tls;
mod probes;
mod reloads;
mod sharing;
mod silence;
mod smuggling;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::http2::{Ends, ErrorCode, kind, setting};
use evenkeel_testkit::{H2Client, H2Server, OriginHandle, Proxy, RawOrigin, RawStream};

use crate::setup::{Site, assert_refused, figures, get, origin, pattern, test};
use crate::words;

const STATUS: &str = "[status]\nbind = \"127.0.0.1:0\"";

/// The program before another one that speaks HTTP/2 to it, before an ordinary origin.
struct Chain {
    origin: OriginHandle,
    behind: Proxy,
    proxy: Proxy,
}

impl Chain {
    fn new() -> Self {
        let origin = origin();
        let site = Site {
            listener: "h2c = true",
            server: STATUS,
            ..Site::default()
        };
        let behind = site.start(&[origin.address.to_string()]);
        let proxy = over_h2(behind.socket_addr("web"), "");
        Chain {
            origin,
            behind,
            proxy,
        }
    }

    /// Connections that the program behind has accepted.
    fn connections(&self) -> u64 {
        let listeners = &figures(&self.behind)["listeners"];
        listeners[0]["http2_connections"].as_u64().unwrap()
    }
}

/// The program before an endpoint that speaks HTTP/2.
fn over_h2(endpoint: SocketAddr, upstream: &str) -> Proxy {
    let upstream = format!("protocol = \"h2\"\n{upstream}");
    let site = Site {
        listener: "h2c = true",
        upstream: &upstream,
        server: STATUS,
        ..Site::default()
    };
    site.start(&[endpoint.to_string()])
}

/// An endpoint that runs a script on each connection, with the connection's number.
fn scripted(
    settings: &'static [(u16, u32)],
    script: impl Fn(usize, &mut H2Server) -> io::Result<()> + Send + Sync + 'static,
) -> RawOrigin {
    let accepted = move |number, raw: RawStream| {
        if let Ok(mut server) = H2Server::accept(raw, settings) {
            // It ends as the program closes.
            let _ = script(number, &mut server);
        }
    };
    RawOrigin::start(accepted).unwrap()
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

/// Answers each request with its path.
fn echo_paths(server: &mut H2Server) -> io::Result<()> {
    loop {
        let request = server.request()?;
        server.respond(request.stream, 200, request.path())?;
    }
}

#[test]
fn requests_of_both_versions_are_passed_on() {
    test(|| {
        let chain = Chain::new();
        let mut http1 = chain.proxy.client();
        let mut http2 = H2Client::connect(chain.proxy.socket_addr("web")).unwrap();
        let mut streams = (1..).step_by(2);
        for (path, expected) in [
            ("/ping", b"pong".to_vec()),
            ("/5", b"abcde".to_vec()),
            ("/chunked/5", b"abcde".to_vec()),
            ("/close/5", b"abcde".to_vec()),
            ("/custom-payload?size=300000", pattern(300_000)),
            ("/chunked/3000000", pattern(3_000_000)),
        ] {
            let response = http1.get(path).unwrap();
            assert_eq!(response.status, 200, "{path}");
            assert!(response.body == expected, "{path}: HTTP/1");
            let response = http2.ask(streams.next().unwrap(), path).unwrap();
            assert_eq!(response.status, 200, "{path}");
            assert!(response.body == expected, "{path}: HTTP/2");
        }
        for (path, status) in [
            ("/status/204", 204),
            ("/status/304", 304),
            ("/status/404", 404),
        ] {
            assert_eq!(http1.get(path).unwrap().status, status, "{path}");
            let response = http2.ask(streams.next().unwrap(), path).unwrap();
            assert_eq!(response.status, status, "{path}");
        }
        let head = "HEAD /large-payload HTTP/1.1\r\nHost: a\r\n\r\n";
        http1.send(head).unwrap();
        let head = http1.read_response("HEAD").unwrap();
        assert_eq!(head.field("content-length"), Some("200000"));
        assert_eq!(http1.get("/ping").unwrap().text(), "pong");
        assert_eq!(chain.origin.stats().in_flight, 0);
        assert_eq!(chain.connections(), 1);
    });
}

#[test]
fn bodies_and_trailers_go_both_ways() {
    test(|| {
        let chain = Chain::new();
        let body = pattern(500_000);
        let mut http1 = chain.proxy.client();
        let mut head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n".to_vec();
        head.extend(&body);
        assert!(http1.ask(head).unwrap().body == body);
        let chunked = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\n\r\n";
        assert_eq!(http1.ask(chunked).unwrap().text(), "abc0123456789abcdef");
        let mut http2 = H2Client::connect(chain.proxy.socket_addr("web")).unwrap();
        http2.request(1, "POST", "/echo", &[], Ends::Later).unwrap();
        http2.upload(1, &body, Ends::Now).unwrap();
        assert!(http2.response(1).unwrap().body == body);
    });
}

#[test]
fn trailers_are_those_of_the_other_side() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                let sum = request.trailers.iter().find(|it| it.0 == "x-sum");
                let sum = sum.map_or("none", |it| &it.1).to_owned();
                server.headers(request.stream, &[(":status", "200")], Ends::Later)?;
                server.data(request.stream, &request.body, Ends::Later)?;
                server.headers(request.stream, &[("x-sum", &sum)], Ends::Now)?;
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut http1 = proxy.client();
        let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n0\r\nX-Sum: 17\r\n\r\n";
        http1.send(request).unwrap();
        let head = http1.read_head().unwrap();
        assert!(
            head.to_lowercase().contains("transfer-encoding: chunked"),
            "{head}"
        );
        let expected = "3\r\nabc\r\n0\r\nx-sum: 17\r\n\r\n";
        assert_eq!(http1.read_len(expected.len()).unwrap(), expected.as_bytes());
        let mut http2 = H2Client::connect(proxy.socket_addr("web")).unwrap();
        http2.request(1, "POST", "/", &[], Ends::Later).unwrap();
        http2.data(1, "abc", Ends::Later).unwrap();
        http2.headers(1, &[("x-sum", "18")], Ends::Now).unwrap();
        let response = http2.response(1).unwrap();
        assert_eq!(response.text(), "abc");
        assert_eq!(response.trailers, [("x-sum".to_owned(), "18".to_owned())]);
    });
}

/// The endpoint gets a request with the fields of HTTP/2.
#[test]
fn a_request_has_the_fields_of_http2() {
    test(|| {
        let (sender, seen) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = scripted(&[], move |_, server| {
            loop {
                let request = server.request()?;
                server.respond(request.stream, 200, "")?;
                sender.lock().unwrap().send(request).unwrap();
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        let request = "PUT /a?b HTTP/1.1\r\nHost: site.test\r\nConnection: x-hop\r\nX-Hop: 1\r\n\
            Keep-Alive: 3\r\nTE: gzip\r\nX-Kept: Yes\r\nContent-Length: 2\r\n\r\nab";
        assert_eq!(client.ask(request).unwrap().status, 200);
        let request = seen.recv().unwrap();
        for (name, value) in [
            (":method", Some("PUT")),
            (":scheme", Some("http")),
            (":authority", Some("site.test")),
            (":path", Some("/a?b")),
            ("x-kept", Some("Yes")),
            ("content-length", Some("2")),
            ("te", Some("trailers")),
            ("x-forwarded-for", Some("127.0.0.1")),
            ("host", None),
            ("connection", None),
            ("keep-alive", None),
            ("x-hop", None),
            ("transfer-encoding", None),
        ] {
            assert_eq!(request.field(name), value, "{name}");
        }
        assert_eq!(request.body, b"ab");
    });
}

#[test]
fn exchanges_share_a_connection_as_far_as_the_endpoint_allows() {
    const LIMIT: &[(u16, u32)] = &[(setting::MAX_CONCURRENT_STREAMS, 3)];
    test(|| {
        let (waiting, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (of_endpoint, released) = (waiting.clone(), release.clone());
        let endpoint = scripted(LIMIT, move |_, server| {
            let mut held = Vec::new();
            server.raw().set_step(Duration::from_millis(20));
            loop {
                if released.load(Ordering::SeqCst) > 0 {
                    for stream in held.drain(..) {
                        server.respond(stream, 200, "")?;
                    }
                }
                match server.raw().peek_first() {
                    Ok(_) => server.next()?,
                    Err(error) if is_timeout(&error) => continue,
                    Err(error) => return Err(error),
                };
                while let Some(request) = server.whole() {
                    if request.path() == "/first" {
                        server.respond(request.stream, 200, "")?;
                    } else if held.len() == 3 {
                        server.reset(request.stream, ErrorCode::RefusedStream)?;
                    } else {
                        held.push(request.stream);
                        of_endpoint.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        });
        let proxy = over_h2(endpoint.address, "");
        // The limit is known then.
        assert_eq!(proxy.client().get("/first").unwrap().status, 200);
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..9 {
            client.get(2 * stream + 1, "/held").unwrap();
        }
        until("all have reached it", || {
            waiting.load(Ordering::SeqCst) == 9
        });
        assert_eq!(endpoint.connections(), 3);
        release.store(1, Ordering::SeqCst);
        for stream in 0..9 {
            assert_eq!(client.response(2 * stream + 1).unwrap().status, 200);
        }
    });
}

/// RFC 9113 §8.7: a request that was not processed may be tried again, whatever its method.
#[test]
fn what_the_endpoint_refuses_is_tried_again() {
    test(|| {
        let refused = Arc::new(AtomicUsize::new(0));
        let count = refused.clone();
        let endpoint = scripted(&[], move |number, server| {
            loop {
                let request = server.request()?;
                match request.path() {
                    "/refused" if count.fetch_add(1, Ordering::SeqCst) < 2 => {
                        server.reset(request.stream, ErrorCode::RefusedStream)?;
                    }
                    // Not even the first one was served.
                    "/leaving" if number == 0 => {
                        server.go_away(request.stream - 2, ErrorCode::NoError)?;
                    }
                    _ => server.respond(
                        request.stream,
                        200,
                        &String::from_utf8_lossy(&request.body),
                    )?,
                }
            }
        });
        // There is no budget for retries, and `retries` allows none.
        let proxy = over_h2(endpoint.address, "retries = 0\n");
        let mut client = proxy.client();
        for path in ["/refused", "/leaving"] {
            let request =
                format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
            let response = client.ask(request).unwrap();
            assert_eq!((response.status, &*response.text()), (200, "abc"), "{path}");
        }
        assert_eq!(refused.load(Ordering::SeqCst), 3);
        assert_eq!(endpoint.connections(), 2);
    });
}

/// Streams up to the number of a GOAWAY are served to their end.
#[test]
fn exchanges_go_on_where_the_endpoint_takes_no_more() {
    test(|| {
        let endpoint = scripted(&[], |number, server| {
            if number > 0 {
                return echo_paths(server);
            }
            let first = server.request()?;
            server.headers(first.stream, &[(":status", "200")], Ends::Later)?;
            server.data(first.stream, "be", Ends::Later)?;
            server.go_away(first.stream, ErrorCode::NoError)?;
            // The rest waits until another was served.
            std::thread::sleep(Duration::from_millis(300));
            server.data(first.stream, "gun", Ends::Now)?;
            server.next().map(|_| ())
        });
        let proxy = over_h2(endpoint.address, "");
        let mut begun = proxy.client();
        begun.send(get("/begun")).unwrap();
        begun.read_head().unwrap();
        until("the other goes elsewhere", || {
            let response = proxy.client().get("/other").unwrap();
            response.text() == "/other" && endpoint.connections() == 2
        });
        assert_eq!(begun.read_len(10).unwrap(), b"2\r\nbe\r\n3\r\n");
        assert_eq!(begun.read_len(10).unwrap(), b"gun\r\n0\r\n\r\n");
    });
}

#[test]
fn a_request_on_a_lost_connection_is_repeated_where_http_allows_it() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                if request.path() == "/lost" {
                    return Ok(());
                }
                server.respond(request.stream, 200, request.path())?;
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        assert_eq!(client.get("/first").unwrap().status, 200);
        let post =
            "POST /lost HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_refused(&proxy.client().ask(post).unwrap(), words::UPSTREAM_CLOSED);
        assert_eq!(endpoint.connections(), 1);
        // Each attempt loses its connection.
        assert_refused(&client.get("/lost").unwrap(), words::UPSTREAM_CLOSED);
        assert!(endpoint.connections() > 1, "it was not tried again");
        assert_eq!(client.get("/next").unwrap().text(), "/next");
    });
}

/// A head that HTTP/2 forbids reaches no client: it would be read in another way there.
#[test]
fn heads_that_are_no_heads_are_refused() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                let odd: &[(&str, &str)] = match request.path() {
                    "/break" => &[(":status", "200"), ("x-a", "b\r\nset-cookie: c")],
                    "/upper" => &[(":status", "200"), ("X-A", "b")],
                    "/coding" => &[(":status", "200"), ("transfer-encoding", "chunked")],
                    "/connection" => &[(":status", "200"), ("connection", "close")],
                    "/status" => &[("x-a", "b")],
                    "/switch" => &[(":status", "101")],
                    "/lengths" => &[
                        (":status", "200"),
                        ("content-length", "1"),
                        ("content-length", "2"),
                    ],
                    _ => &[(":status", "200")],
                };
                server.headers(request.stream, odd, Ends::Later)?;
                server.data(request.stream, "a", Ends::Now)?;
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        for path in [
            "/break",
            "/upper",
            "/coding",
            "/connection",
            "/status",
            "/switch",
            "/lengths",
        ] {
            let response = client.get(path).unwrap();
            assert_eq!(response.status, 502, "{path}: {response:?}");
            assert_eq!(client.get("/well").unwrap().text(), "a", "behind {path}");
        }
        assert_eq!(endpoint.connections(), 1);
    });
}

/// Content must have the length that its head announces. Otherwise the client sees an error.
#[test]
fn content_of_another_length_is_cut_off() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                let head = [(":status", "200"), ("content-length", "3")];
                server.headers(request.stream, &head, Ends::Later)?;
                let content = request.path().trim_start_matches('/').to_owned();
                server.data(request.stream, content, Ends::Now)?;
            }
        });
        let proxy = over_h2(endpoint.address, "");
        for content in ["a", "abcd"] {
            let mut client = proxy.client();
            client.send(get(&format!("/{content}"))).unwrap();
            let all = client.read_to_end().unwrap_or_default();
            let all = String::from_utf8_lossy(&all);
            let body = all.split_once("\r\n\r\n").map_or("", |it| it.1);
            assert!(body.len() < 3 || all.starts_with("HTTP/1.1 502"), "{all}");
        }
        assert_eq!(proxy.client().get("/abc").unwrap().text(), "abc");
    });
}

#[test]
fn a_client_that_leaves_ends_its_stream_alone() {
    test(|| {
        let (sender, reset) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = scripted(&[], move |_, server| {
            let left = server.request()?;
            let code = server.reset_of(left.stream)?;
            sender.lock().unwrap().send(code).unwrap();
            echo_paths(server)
        });
        let proxy = over_h2(endpoint.address, "");
        let mut leaving = proxy.client();
        leaving.send(get("/left")).unwrap();
        until("the endpoint has it", || in_flight(&proxy) == 1);
        drop(leaving);
        assert_eq!(reset.recv().unwrap(), ErrorCode::Cancel);
        assert_eq!(proxy.client().get("/other").unwrap().text(), "/other");
        assert_eq!(endpoint.connections(), 1);
    });
}

fn in_flight(proxy: &Proxy) -> u64 {
    figures(proxy)["upstreams"][0]["in_flight"]
        .as_u64()
        .unwrap()
}

/// RFC 9113 §8.1: the rest of an answered request is not needed.
#[test]
fn an_answer_before_the_end_of_its_request_is_passed_on() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.head()?;
                server.respond(request.stream, 413, "too much")?;
                server.reset(request.stream, ErrorCode::NoError)?;
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
            .unwrap();
        let response = client.read_response("POST").unwrap();
        assert_eq!((response.status, &*response.text()), (413, "too much"));
    });
}

#[test]
fn an_endpoint_that_speaks_http1_is_told_of() {
    test(|| {
        let origin = origin();
        let proxy = over_h2(origin.address.to_string().parse().unwrap(), "");
        assert_refused(
            &proxy.client().get("/ping").unwrap(),
            words::UPSTREAM_CLOSED,
        );
        until("the log says why", || {
            proxy.stderr().contains("connection of HTTP/2 lost")
        });
    });
}

#[test]
fn an_idle_connection_is_closed() {
    test(|| {
        let (sender, gone) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = scripted(&[], move |_, server| {
            let ended = echo_paths(server);
            let goes_away = server.frames.iter().any(|it| it.kind == kind::GOAWAY);
            sender.lock().unwrap().send(goes_away).unwrap();
            ended
        });
        let proxy = over_h2(endpoint.address, "pool = { idle_timeout = \"300ms\" }\n");
        assert_eq!(proxy.client().get("/a").unwrap().text(), "/a");
        assert!(gone.recv().unwrap(), "it was closed without a word");
        assert_eq!(proxy.client().get("/b").unwrap().text(), "/b");
    });
}

/// Content is taken as fast as the client takes it, and no faster.
#[test]
fn a_client_that_does_not_read_holds_the_endpoint_back() {
    test(|| {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let endpoint = RawOrigin::start(move |_, raw: RawStream| {
            let mut server = H2Server::accept(raw, &[]).unwrap();
            let request = server.request().unwrap();
            let mut window = 0i64;
            let _ = server.headers(request.stream, &[(":status", "200")], Ends::Later);
            for it in &server.frames {
                if it.kind == kind::SETTINGS && it.payload.len() >= 6 {
                    window = 128 * 1024;
                }
            }
            loop {
                while window >= 16_384 {
                    if server
                        .data(request.stream, [b'x'; 16_384], Ends::Later)
                        .is_err()
                    {
                        return;
                    }
                    window -= 16_384;
                    count.fetch_add(16_384, Ordering::SeqCst);
                }
                match server.next() {
                    Ok(it) if it.kind == kind::WINDOW_UPDATE && it.stream == request.stream => {
                        let more = it.payload.first_chunk().map(|it| u32::from_be_bytes(*it));
                        window += i64::from(more.unwrap_or(0));
                    }
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        })
        .unwrap();
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        client.send(get("/endless")).unwrap();
        client.read_head().unwrap();
        let mut before = 0;
        until("it stands still", || {
            std::thread::sleep(Duration::from_millis(300));
            let now = sent.load(Ordering::SeqCst);
            std::mem::replace(&mut before, now) == now
        });
        assert!(before < 16 << 20, "{before} bytes were taken");
        // It goes on as the client does.
        client.skip_len(before as u64).unwrap();
        until("more comes", || sent.load(Ordering::SeqCst) > before);
    });
}
