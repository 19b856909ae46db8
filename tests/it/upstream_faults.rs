//! Endpoints that refuse, lie, die or stall.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::{Origin, OriginOptions, Proxy, RawClient, RawOrigin, TempDir};

use crate::in_flight::limited;
use crate::setup::{
    Site, assert_logged, assert_refused, assert_serves, get, nobody, origin, site, test,
};
use crate::words::{self, Reason};

/// Checks that a GET is answered with the reason and that the client's
/// connection survives it.
#[track_caller]
fn assert_answered(proxy: &Proxy, reason: Reason) {
    let mut client = proxy.client();
    let response = client.get("/ping").unwrap();
    assert_refused(&response, reason);
    assert_logged(proxy, reason);
}

#[test]
fn an_endpoint_that_refuses_gives_502() {
    test(|| {
        let proxy = Site {
            upstream: "queue = { hold = false }",
            ..Site::default()
        }
        .start(&[nobody()]);
        assert_answered(&proxy, words::CONNECT_FAILED);
    });
}

#[test]
fn a_refused_connection_moves_to_another_endpoint_at_once() {
    test(|| {
        let origin = origin();
        let proxy = Site {
            upstream: "retries = 2",
            ..Site::default()
        }
        .start(&[nobody(), origin.address.to_string()]);
        let mut client = proxy.client();
        let begun = Instant::now();
        for _ in 0..20 {
            assert_serves(&mut client);
        }
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "took {:?}",
            begun.elapsed()
        );
    });
}

#[test]
fn an_upstream_without_endpoints_gives_503() {
    test(|| {
        let proxy = Site::default().start(&[]);
        assert_answered(&proxy, words::NO_ENDPOINT);
    });
}

#[test]
fn garbage_gives_502() {
    test(|| {
        for (answer, reason) in [
            ("\x16\x03\x01 not HTTP\r\n\r\n", words::UPSTREAM_STATUS_LINE),
            ("HTTP/1.1 2x0 OK\r\n\r\n", words::UPSTREAM_STATUS_LINE),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
                words::UPSTREAM_FRAMING,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc",
                words::UPSTREAM_FRAMING,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: gzip\r\n\r\nabc",
                words::UPSTREAM_FRAMING,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Le", words::UPSTREAM_CLOSED),
            ("", words::UPSTREAM_CLOSED),
        ] {
            let origin = RawOrigin::answering(answer).unwrap();
            let proxy = Site {
                upstream: "retries = 0",
                ..Site::default()
            }
            .start(&[origin.address.to_string()]);
            eprintln!("the endpoint answers {answer:?}");
            assert_answered(&proxy, reason);
        }
    });
}

#[test]
fn a_head_that_never_ends_gives_502() {
    test(|| {
        let answer = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(1 << 20));
        let origin = RawOrigin::answering(answer).unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        assert_answered(&proxy, words::UPSTREAM_HEAD_TOO_LARGE);
    });
}

#[test]
fn an_answer_cut_off_is_never_passed_off_as_complete() {
    test(|| {
        for path in [
            "/1000",
            "/chunked/1000",
            "/100000",
            "/chunked/100000",
            "/10000000",
        ] {
            let options = OriginOptions {
                cut_rate: 1.0,
                ..OriginOptions::default()
            };
            let origin = Origin::local(options).unwrap();
            let proxy = Site::default().start(&[origin.address.to_string()]);
            let mut client = proxy.client();
            client.send(get(path)).unwrap();
            match client.read_response("GET") {
                Ok(response) => assert_eq!(response.status, 502, "{path}: it looks complete"),
                Err(error) => assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                    ),
                    "{path}: {error}"
                ),
            }
            assert_logged(&proxy, words::UPSTREAM_CUT);
        }
    });
}

#[test]
fn malformed_chunks_of_an_answer_cut_the_client_off() {
    test(|| {
        for body in [
            "zz\r\nabc\r\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "\r\nabc\r\n0\r\n\r\n",
        ] {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let origin = RawOrigin::answering(format!("{head}{body}")).unwrap();
            let proxy = Site::default().start(&[origin.address.to_string()]);
            let mut client = proxy.client();
            client.send(get("/")).unwrap();
            let looks_complete = client
                .read_response("GET")
                .is_ok_and(|response| response.status == 200);
            assert!(!looks_complete, "{body:?}");
            assert_logged(&proxy, words::UPSTREAM_BODY);
        }
    });
}

#[test]
fn bytes_behind_an_answer_reach_no_other_client() {
    test(|| {
        let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong{poison}");
        let origin = RawOrigin::answering_each(answer).unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        for _ in 0..5 {
            assert_serves(&mut proxy.client());
        }
    });
}

#[test]
fn an_endpoint_that_does_not_answer_gives_504() {
    test(|| {
        let options = OriginOptions {
            stall_rate: 1.0,
            ..OriginOptions::default()
        };
        let origin = Origin::local(options).unwrap();
        let proxy = Site {
            upstream: "timeouts = { first_byte = \"300ms\" }",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        assert_answered(&proxy, words::FIRST_BYTE_TIMEOUT);
        until("the request is abandoned", || origin.stats().in_flight == 0);
    });
}

#[test]
fn an_interim_answer_and_then_nothing_gives_504() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            if stream.read_head().is_ok() {
                let _ = stream.send("HTTP/1.1 103 Early Hints\r\n\r\n");
                // Until the proxy gives up.
                let _ = stream.read_head();
            }
        })
        .unwrap();
        let proxy = Site {
            upstream: "timeouts = { first_byte = \"300ms\" }",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let response = proxy.client().ask(get("/")).unwrap();
        assert_eq!(
            (response.interim.as_slice(), response.status),
            (&[103][..], 504)
        );
        assert_logged(&proxy, words::FIRST_BYTE_TIMEOUT);
    });
}

/// An origin that sends interim responses as long as the client reads them, except for `/ping`.
fn flooding() -> RawOrigin {
    RawOrigin::start(|_, mut stream| {
        while let Ok(head) = stream.read_head() {
            if head.starts_with("GET /ping ") {
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";
                stream.send(answer).unwrap();
                continue;
            }
            let burst = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n".repeat(1_000);
            while stream.send(&burst).is_ok() {}
        }
    })
    .unwrap()
}

/// A client that reads none of them can keep its exchange no longer than others.
#[test]
fn a_client_that_takes_no_interim_answer_runs_into_the_total_timeout() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_head();
            let hint = format!(
                "HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n",
                "x".repeat(8_000)
            );
            while stream.send(&hint).is_ok() {}
        })
        .unwrap();
        let dir = TempDir::new().unwrap();
        let web = dir.join("web.sock");
        let proxy = Site {
            bind: &format!("unix:{}", web.display()),
            upstream: "interim = { count = 100000, bytes = \"100MiB\" }\ntimeouts = { total = \"600ms\" }",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let mut client = RawClient::connect_unix(&web).unwrap();
        client.send(get("/")).unwrap();
        assert_logged(&proxy, words::TOTAL_TIMEOUT);
        // No answer stands behind the half of a head.
        let taken = client.read_to_end().unwrap();
        assert!(!taken.windows(12).any(|it| it == b"HTTP/1.1 504"));
    });
}

#[test]
fn interim_answers_without_end_are_ended() {
    test(|| {
        let origin = flooding();
        for (bounds, most) in [
            ("", 1_000),
            ("interim = { count = 10 }", 10),
            ("interim = { bytes = 1000 }", 22),
        ] {
            let proxy = Site {
                upstream: bounds,
                ..Site::default()
            }
            .start(&[origin.address.to_string()]);
            let mut client = proxy.client();
            let response = client.ask(get("/")).unwrap();
            assert_refused(&response, words::UPSTREAM_INTERIM);
            assert!((1..=most).contains(&response.interim.len()), "{bounds:?}");
            assert_logged(&proxy, words::UPSTREAM_INTERIM);
            assert_serves(&mut client);
            // A client of HTTP/1.0, which gets no interim responses.
            let response = proxy.client().ask("GET / HTTP/1.0\r\n\r\n").unwrap();
            assert_refused(&response, words::UPSTREAM_INTERIM);
        }
    });
}

#[test]
fn an_endpoint_that_hangs_is_blamed_though_its_requests_had_to_wait() {
    test(|| {
        let hanging =
            RawOrigin::start(|_, mut stream| while stream.read_head().is_ok() {}).unwrap();
        let well = origin();
        let endpoints = [hanging.address.to_string(), well.address.to_string()];
        let proxy = Site {
            upstream: "timeouts = { total = \"400ms\" }",
            ..Site::default()
        }
        .start(&endpoints.map(|address| limited(&address, 1)));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let mut client = proxy.client();
                    while !is_over.load(Ordering::Relaxed) {
                        client.get("/slow/20").unwrap();
                    }
                });
            }
            let is_blamed = holds_within(Duration::from_secs(15), || {
                proxy.stderr().contains("is out for")
            });
            is_over.store(true, Ordering::Relaxed);
            assert!(is_blamed, "{}", proxy.stderr());
        });
    });
}

#[test]
fn clients_that_wait_for_100_in_vain_blame_nobody() {
    test(|| {
        // They read bodies as they come, as many servers do.
        let start = || {
            RawOrigin::start(|_, mut stream| {
                while let Ok(head) = stream.read_head() {
                    if head.starts_with("GET ") {
                        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";
                        stream.send(answer).unwrap();
                    }
                }
            })
            .unwrap()
        };
        let origins = [start(), start()];
        let addresses = origins.each_ref().map(|it| it.address.to_string());
        let proxy = Site {
            upstream: "balance = \"round-robin\"\ntimeouts = { first_byte = \"100ms\" }",
            ..Site::default()
        }
        .start(&addresses);
        // One of the endpoints gets the waiting requests.
        for _ in 0..12 {
            let mut client = proxy.client();
            assert_serves(&mut client);
            let fields = "Content-Length: 4\r\nExpect: 100-continue\r\n";
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let response = client.ask(head).unwrap();
            assert_refused(&response, words::FIRST_BYTE_TIMEOUT);
        }
        let said = proxy.stderr();
        assert!(!said.contains("is out for"), "{said}");
    });
}

#[test]
fn clients_that_stop_in_the_middle_of_their_body_blame_nobody() {
    test(|| {
        for answer in [
            "",
            "HTTP/1.1 408 Slow\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 500 Slow\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ] {
            // As servers with a timeout for bodies do.
            let start = || {
                RawOrigin::start(move |_, mut stream| {
                    if stream.read_head().is_ok() {
                        stream.set_step(Duration::from_millis(600));
                        let _ = stream.read_len(100);
                        let _ = stream.send(answer);
                    }
                })
                .unwrap()
            };
            let origins = [start(), start()];
            let addresses = origins.each_ref().map(|it| it.address.to_string());
            let proxy = Site::default().start(&addresses);
            let mut clients: Vec<_> = (0..20).map(|_| proxy.client()).collect();
            for client in &mut clients {
                let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf";
                client.send(head).unwrap();
            }
            for client in &mut clients {
                let status = client.read_response("POST").unwrap().status;
                assert!([408, 500, 502].contains(&status), "{status}");
            }
            let said = proxy.stderr();
            assert!(!said.contains("is out for"), "{said}");
        }
    });
}

#[test]
fn an_answer_that_stalls_midway_is_cut() {
    test(|| {
        let upstream = "timeouts = { idle = \"300ms\" }";
        let (origin, proxy) = Site {
            upstream,
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        client.send(get("/drip/10/60000")).unwrap();
        let error = client.read_response("GET").unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
        ));
        until("the request is abandoned", || origin.stats().aborted == 1);
        assert_logged(&proxy, words::UPSTREAM_STALLED);
    });
}

#[test]
fn an_exchange_has_a_time_limit_in_all() {
    test(|| {
        let upstream = "timeouts = { total = \"300ms\" }";
        let (_origin, proxy) = Site {
            upstream,
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        client.send(get("/drip/1000/50")).unwrap();
        assert!(client.read_response("GET").is_err());
        assert_logged(&proxy, words::TOTAL_TIMEOUT);
    });
}

/// An address of 127.0.0.1 where connections wait for ever, because its backlog is full. Bind
/// the returned values to a name, so that it stays full.
fn tarpit() -> (String, TcpListener, Vec<std::net::TcpStream>) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let patience = Duration::from_millis(100);
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, patience) {
        waiting.push(stream);
    }
    (address.to_string(), listener, waiting)
}

#[test]
fn the_limit_in_all_covers_connecting_and_leaves_the_other_timeouts_alone() {
    test(|| {
        let (one, _held, _waiting) = tarpit();
        let (other, _held_too, _waiting_too) = tarpit();
        let proxy = Site {
            listener: "timeouts = { idle = \"500ms\" }",
            upstream: "retries = 3\ntimeouts = { connect = \"5s\", total = \"300ms\" }",
            ..Site::default()
        }
        .start(&[one, other]);
        let mut client = proxy.client();
        client.send(get("/")).unwrap();
        assert_refused(&client.read_response("GET").unwrap(), words::TOTAL_TIMEOUT);
        assert_logged(&proxy, words::TOTAL_TIMEOUT);
        // The connection is idle now, and the idle timeout applies.
        assert!(client.is_closed(), "it is kept for ever");
    });
}

#[test]
fn a_client_that_leaves_while_its_endpoint_is_connected_to_gives_up_its_slot() {
    test(|| {
        let (address, _held, _waiting) = tarpit();
        let endpoint = format!("{{ address = \"{address}\", max_in_flight = 1 }}");
        let proxy = Site {
            upstream: "timeouts = { connect = \"20s\" }\nqueue = { max = 0 }",
            ..Site::default()
        }
        .start(&[endpoint]);
        let mut leaving = proxy.client();
        leaving.send(get("/")).unwrap();
        let mut other = proxy.client();
        until("the slot is taken", || {
            other.set_step(Duration::from_millis(200));
            other.get("/").is_ok_and(|response| response.status == 503)
        });
        leaving.reset();
        assert_logged(&proxy, words::CLIENT_GONE);
    });
}

#[test]
fn a_stale_connection_is_retried_on_a_fresh_one() {
    test(|| {
        // Each connection serves one request, says that it stays open, and
        // closes on the next request.
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let origin = RawOrigin::start(move |_, mut stream| {
            stream.read_head().unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            stream
                .send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong")
                .unwrap();
            let _ = stream.read_head();
        })
        .unwrap();
        let proxy = Site {
            upstream: "retries = 1",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        for _ in 0..10 {
            assert_serves(&mut client);
        }
        assert_eq!(requests.load(Ordering::SeqCst), 10);
    });
}

#[test]
fn a_connection_that_closed_while_idle_is_not_used() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        assert_serves(&mut client);
        origin.refuse();
        until("the origin has closed", || {
            origin.stats().open_connections == 0
        });
        origin.serve();
        until("the origin is back", || {
            std::net::TcpStream::connect(origin.socket_addr().unwrap()).is_ok()
        });
        assert_serves(&mut client);
    });
}

#[test]
fn a_post_that_may_have_arrived_is_not_repeated() {
    test(|| {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let origin = RawOrigin::start(move |_, mut stream| {
            if stream.read_head().is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
        let address = origin.address.to_string();
        let proxy = Site {
            upstream: "retries = 3",
            ..Site::default()
        }
        .start(&[address]);
        let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
        let response = proxy.client().ask(request).unwrap();
        assert_refused(&response, words::UPSTREAM_CLOSED);
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_reset_gives_502_and_the_next_request_is_served() {
    test(|| {
        let origin = RawOrigin::start(|number, mut stream| {
            if stream.read_head().is_err() {
                return;
            }
            match number {
                0 => stream.reset(),
                _ => stream
                    .send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong")
                    .unwrap(),
            }
        })
        .unwrap();
        let proxy = Site {
            upstream: "retries = 0",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        assert_answered(&proxy, words::UPSTREAM_CLOSED);
        assert_serves(&mut proxy.client());
    });
}

#[test]
fn retries_stay_within_their_budget() {
    test(|| {
        let origins: Vec<_> = (0..3)
            .map(|_| {
                RawOrigin::start(|_, mut stream| {
                    // It read the request, and may have acted on it.
                    let _ = stream.read_head();
                })
                .unwrap()
            })
            .collect();
        let addresses: Vec<_> = origins.iter().map(|it| it.address.to_string()).collect();
        let proxy = Site {
            upstream: "guard = false",
            ..Site::default()
        }
        .start(&addresses);
        const REQUESTS: usize = 200;
        let mut client = proxy.client();
        let begun = Instant::now();
        for _ in 0..REQUESTS {
            let response = client.get("/").unwrap();
            assert_refused(&response, words::UPSTREAM_CLOSED);
        }
        let attempts: usize = origins.iter().map(RawOrigin::connections).sum();
        let earned = REQUESTS / 5 + 10 * (11 + begun.elapsed().as_secs() as usize);
        assert!(attempts > REQUESTS + REQUESTS / 5 - 5, "{attempts}");
        assert!(attempts <= REQUESTS + earned, "{attempts} attempts");
    });
}

#[test]
fn the_budget_of_retries_is_shared_by_all_workers() {
    test(|| {
        // Each connection is lost before a byte of the answer.
        let lost = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_head();
        })
        .unwrap();
        let well = origin();
        let endpoints = [lost.address.to_string(), well.address.to_string()];
        let site = Site {
            upstream: "balance = \"round-robin\"\nguard = false",
            ..Site::default()
        };
        let config = site.config(&endpoints);
        let config = config.replace("workers = 1", "workers = 16");
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        // Connections are spread over the workers. A share of the budget would
        // be six retries for each.
        let mut clients: Vec<_> = (0..90).map(|_| proxy.client()).collect();
        for client in &mut clients {
            client.send(get("/ping")).unwrap();
        }
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
    });
}
