//! Limits, queues and retries, where exchanges share a connection; and what figures and logs
//! say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::http2::{ErrorCode, setting};
use evenkeel_testkit::{H2Client, Proxy, RawClient, TempDir};
use serde_json::Value;

use super::holding::Holding;
use super::{Chain, STATUS, echo_paths, over_h2, scripted};
use crate::in_flight::{limited, occupy};
use crate::setup::{Site, assert_refused, figures, get, origin, pattern, test};
use crate::words;

/// A figure of the first endpoint.
fn of_endpoint(proxy: &Proxy, name: &str) -> u64 {
    let figures = figures(proxy);
    let figure = &figures["upstreams"][0]["endpoints"][0][name];
    figure.as_u64().unwrap_or_else(|| panic!("{name}"))
}

/// The program before an endpoint with this many requests at a time.
fn with_limit(endpoint: &Holding, limit: u32) -> Proxy {
    let site = Site {
        listener: "h2c = true",
        upstream: "protocol = \"h2\"",
        server: STATUS,
        ..Site::default()
    };
    site.start(&[limited(&endpoint.origin.address.to_string(), limit)])
}

#[test]
fn an_endpoint_never_has_more_in_flight_than_its_limit() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let proxy = with_limit(&endpoint, 2);
        let mut clients: Vec<RawClient> = (0..10).map(|_| occupy(&proxy, "/wait")).collect();
        let mut http2 = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..10 {
            http2.get(2 * stream + 1, "/wait").unwrap();
        }
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        for stream in 0..10 {
            assert_eq!(http2.response(2 * stream + 1).unwrap().status, 200);
        }
        assert_eq!(endpoint.seen.most.load(Ordering::SeqCst), 2);
        assert_eq!(endpoint.origin.connections(), 1);
    });
}

#[test]
fn who_finds_no_room_is_refused_or_waits() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let site = Site {
            upstream: "protocol = \"h2\"\nqueue = { max = 1, timeout = \"20s\" }",
            server: STATUS,
            ..Site::default()
        };
        let proxy = site.start(&[limited(&endpoint.origin.address.to_string(), 1)]);
        let mut first = occupy(&proxy, "/hold");
        endpoint.until_held(1);
        let mut waiting = occupy(&proxy, "/hold");
        until("it waits", || {
            figures(&proxy)["upstreams"][0]["waiting"] == 1
        });
        assert_refused(&proxy.client().get("/x").unwrap(), words::QUEUE_FULL);
        endpoint.release();
        assert_eq!(first.read_response("GET").unwrap().status, 200);
        assert_eq!(waiting.read_response("GET").unwrap().status, 200);
        assert_eq!(endpoint.seen.most.load(Ordering::SeqCst), 1);
    });
}

/// A request is not passed on whose client leaves the queue, although a slot becomes free in
/// the same moment.
#[test]
fn a_client_that_leaves_takes_its_requests_out_of_the_queue() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let proxy = with_limit(&endpoint, 1);
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for n in 0..50 {
            client.get(2 * n + 1, "/hold").unwrap();
        }
        endpoint.until_held(1);
        until("they wait", || {
            figures(&proxy)["upstreams"][0]["waiting"] == 49
        });
        drop(client);
        until("nobody waits", || {
            figures(&proxy)["upstreams"][0]["waiting"] == 0
        });
        assert_eq!(of_endpoint(&proxy, "attempts"), 1);
        assert_eq!(proxy.client().get("/x").unwrap().text(), "/x");
    });
}

/// A request that one endpoint refuses or loses is tried at another.
#[test]
fn another_endpoint_is_tried() {
    test(|| {
        let refusing = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                match request.path() {
                    "/lost" => return Ok(()),
                    _ => server.reset(request.stream, ErrorCode::RefusedStream)?,
                }
            }
        });
        let good = scripted(&[], |_, server| echo_paths(server));
        let site = Site {
            listener: "h2c = true",
            upstream: "protocol = \"h2\"\nbalance = \"round-robin\"\nguard = false",
            server: STATUS,
            ..Site::default()
        };
        let proxy = site.start(&[refusing.address.to_string(), good.address.to_string()]);
        let mut client = proxy.client();
        for path in ["/refused", "/lost"] {
            for _ in 0..4 {
                let response = client.get(path).unwrap();
                assert_eq!((response.status, &*response.text()), (200, path));
            }
        }
        // Nothing was done for it, whatever its method.
        for _ in 0..4 {
            let post = "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
            assert_eq!(client.ask(post).unwrap().text(), "/refused");
        }
        // One in reach is better than none.
        let (nobody, good) = (crate::setup::nobody(), good.address.to_string());
        let proxy = site.start(&[nobody, good]);
        for _ in 0..4 {
            assert_eq!(proxy.client().get("/a").unwrap().text(), "/a");
        }
    });
}

#[test]
fn figures_tell_of_connections_and_of_their_use() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let proxy = over_h2(endpoint.origin.address, "");
        let mut client = proxy.client();
        for _ in 0..6 {
            assert_eq!(client.get("/a").unwrap().text(), "/a");
        }
        assert_eq!(of_endpoint(&proxy, "connects"), 1);
        assert_eq!(of_endpoint(&proxy, "reuses"), 5);
        assert_eq!(of_endpoint(&proxy, "attempts"), 6);
        assert_eq!(of_endpoint(&proxy, "connect_failures"), 0);
        until("it is idle", || of_endpoint(&proxy, "idle") == 1);
        let mut held: Vec<RawClient> = (0..5).map(|_| occupy(&proxy, "/hold")).collect();
        endpoint.until_held(5);
        assert_eq!(of_endpoint(&proxy, "in_flight"), 5);
        until("it is not idle", || of_endpoint(&proxy, "idle") == 0);
        endpoint.release();
        for client in &mut held {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        until("nothing is in flight", || {
            of_endpoint(&proxy, "in_flight") == 0
        });
        assert_eq!(of_endpoint(&proxy, "connects"), 1);
        assert_eq!(of_endpoint(&proxy, "reuses"), 10);
        for name in ["stale", "displaced", "failures", "pinned"] {
            assert_eq!(of_endpoint(&proxy, name), 0, "{name}");
        }
        assert!(of_endpoint(&proxy, "bytes_in") > 0);
        assert!(of_endpoint(&proxy, "bytes_out") > 0);
    });
}

/// Simultaneous exchanges wait for one connection, whichever of them opens it.
#[test]
fn one_connection_is_opened_for_all_that_come_at_once() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let proxy = over_h2(endpoint.origin.address, "");
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..80 {
            client.get(2 * stream + 1, "/wait").unwrap();
        }
        for stream in 0..80 {
            assert_eq!(client.response(2 * stream + 1).unwrap().status, 200);
        }
        assert_eq!(endpoint.origin.connections(), 1);
        assert_eq!(of_endpoint(&proxy, "connects"), 1);
        assert_eq!(of_endpoint(&proxy, "reuses"), 79);
    });
}

#[test]
fn the_access_log_tells_of_each_exchange() {
    test(|| {
        let endpoint = Holding::start(&[], usize::MAX);
        let proxy = over_h2(endpoint.origin.address, "");
        let mut client = proxy.client();
        client.get("/one").unwrap();
        client.get("/wait").unwrap();
        until("two lines", || proxy.access_log_json().len() == 2);
        let lines = proxy.access_log_json();
        let of_first = &lines[0];
        assert_eq!(of_first["end"], "complete", "{of_first}");
        assert!(of_first["connect_us"].is_u64(), "{of_first}");
        assert_eq!(of_first["endpoint"], endpoint.origin.address.to_string());
        let of_next = &lines[1];
        assert_eq!(of_next["connect_us"], Value::Null, "{of_next}");
        assert!(of_next["first_byte_us"].as_u64().unwrap() >= 40_000);
        assert_eq!(of_next["attempts"], 1, "{of_next}");
    });
}

/// An endpoint may give no window at first.
#[test]
fn a_body_waits_for_the_window_of_the_endpoint() {
    const SHUT: &[(u16, u32)] = &[(setting::INITIAL_WINDOW_SIZE, 0)];
    test(|| {
        let opened = Arc::new(AtomicUsize::new(0));
        let count = opened.clone();
        let endpoint = scripted(SHUT, move |_, server| {
            let head = server.head()?;
            // The program knows of the settings once it has acknowledged them.
            std::thread::sleep(Duration::from_millis(300));
            count.store(1, Ordering::SeqCst);
            let more = [(setting::INITIAL_WINDOW_SIZE, 20_000)];
            let payload = more.iter().flat_map(|(number, value): &(u16, u32)| {
                [&number.to_be_bytes()[..], &value.to_be_bytes()].concat()
            });
            let payload: Vec<u8> = payload.collect();
            server.frame(evenkeel_testkit::http2::kind::SETTINGS, 0, 0, payload)?;
            let mut len = 0;
            while len < 300_000 {
                let frame = server.next()?;
                if frame.kind == evenkeel_testkit::http2::kind::DATA {
                    len += frame.payload.len();
                }
            }
            server.respond(head.stream, 200, &len.to_string())?;
            server.next().map(|_| ())
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        let mut request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n".to_vec();
        request.extend(pattern(300_000));
        assert_eq!(client.ask(request).unwrap().text(), "300000");
        assert_eq!(opened.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_body_is_asked_for_by_100() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let head = server.head()?;
                if head.field("expect").is_some() {
                    let interim = [(":status", "100")];
                    server.headers(head.stream, &interim, evenkeel_testkit::http2::Ends::Later)?;
                }
                let mut len = head.body.len();
                while len < 5 {
                    let frame = server.next()?;
                    if frame.kind == evenkeel_testkit::http2::kind::DATA {
                        len += frame.payload.len();
                    }
                }
                server.respond(head.stream, 200, "got it")?;
                while server.whole().is_some() {}
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        client.send(head).unwrap();
        assert!(client.read_head().unwrap().starts_with("HTTP/1.1 100 "));
        client.send("hello").unwrap();
        assert_eq!(client.read_response("POST").unwrap().text(), "got it");
    });
}

#[test]
fn clients_of_http10_are_served() {
    test(|| {
        let chain = Chain::new();
        let mut client = chain.proxy.client();
        client.send("GET /chunked/5 HTTP/1.0\r\n\r\n").unwrap();
        let all = client.read_to_end().unwrap();
        let all = String::from_utf8_lossy(&all);
        assert!(all.ends_with("\r\n\r\nabcde"), "{all}");
        assert!(!all.to_lowercase().contains("transfer-encoding"), "{all}");
    });
}

#[test]
fn an_endpoint_at_a_unix_socket_speaks_http2() {
    test(|| {
        let origin = origin();
        let dir = TempDir::new().unwrap();
        let bind = format!("unix:{}", dir.join("h2.sock").display());
        let behind = Site {
            bind: &bind,
            listener: "h2c = true",
            server: STATUS,
            ..Site::default()
        };
        let behind = behind.start(&[origin.address.to_string()]);
        let site = Site {
            upstream: "protocol = \"h2\"",
            server: STATUS,
            ..Site::default()
        };
        let proxy = site.start(&[bind]);
        let mut client = proxy.client();
        for _ in 0..3 {
            assert_eq!(client.get("/ping").unwrap().text(), "pong");
        }
        let listeners = &figures(&behind)["listeners"];
        assert_eq!(listeners[0]["http2_connections"], 1);
    });
}

/// An endpoint that announces its stream limit late: the streams that it refuses are not lost.
#[test]
fn a_few_more_than_the_endpoint_takes_are_served() {
    const TWO: &[(u16, u32)] = &[(setting::MAX_CONCURRENT_STREAMS, 2)];
    test(|| {
        let endpoint = Holding::start(TWO, 2);
        let proxy = over_h2(endpoint.origin.address, "");
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..4 {
            client.get(2 * stream + 1, "/wait").unwrap();
        }
        for stream in 0..4 {
            assert_eq!(client.response(2 * stream + 1).unwrap().status, 200);
        }
    });
}

/// An endpoint that never allows a stream is given up after a while.
#[test]
fn an_endpoint_that_takes_no_stream_is_given_up() {
    const NONE: &[(u16, u32)] = &[(setting::MAX_CONCURRENT_STREAMS, 0)];
    test(|| {
        let endpoint = Holding::start(NONE, 0);
        let proxy = over_h2(endpoint.origin.address, "");
        let before = proxy.cpu_time().unwrap();
        let response = proxy.client().get("/a").unwrap();
        assert_eq!(response.status, 502, "{response:?}");
        let opened = endpoint.origin.connections();
        assert!(opened <= 8, "{opened} connections");
        std::thread::sleep(Duration::from_secs(1));
        let spent = proxy.cpu_time().unwrap() - before;
        assert!(spent < Duration::from_millis(500), "{spent:?}");
        assert_eq!(endpoint.origin.connections(), opened);
    });
}

/// A silent endpoint holds up no other one.
#[test]
fn an_endpoint_without_a_preface_ends_by_the_time_of_the_first_byte() {
    test(|| {
        let silent = evenkeel_testkit::RawOrigin::start(|_, mut raw| {
            let _ = raw.read_to_end();
        })
        .unwrap();
        let proxy = over_h2(
            silent.address,
            "retries = 0\ntimeouts = { first_byte = \"1s\" }\n",
        );
        let mut client = proxy.client();
        client.send(get("/a")).unwrap();
        let response = client.read_response("GET").unwrap();
        assert_refused(&response, words::FIRST_BYTE_TIMEOUT);
        assert_eq!(silent.connections(), 1);
    });
}

#[test]
fn an_endpoint_that_closes_at_once_is_given_up() {
    test(|| {
        let closing = evenkeel_testkit::RawOrigin::start(|_, raw| drop(raw)).unwrap();
        let proxy = over_h2(closing.address, "");
        let before = proxy.cpu_time().unwrap();
        let response = proxy.client().get("/a").unwrap();
        assert_refused(&response, words::UPSTREAM_CLOSED);
        let opened = closing.connections();
        assert!(opened <= 6, "{opened} connections");
        std::thread::sleep(Duration::from_millis(500));
        let spent = proxy.cpu_time().unwrap() - before;
        assert!(spent < Duration::from_millis(500), "{spent:?}");
        assert_eq!(closing.connections(), opened);
        crate::setup::assert_logged(&proxy, words::UPSTREAM_CLOSED);
    });
}
