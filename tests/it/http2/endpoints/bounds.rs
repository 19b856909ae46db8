//! Bounds on the resources that one exchange, client or endpoint can take from others, and the
//! messages about faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::http2::{ErrorCode, block, block_indexed, flags, frame, kind, setting};
use evenkeel_testkit::{H2Client, H2Server, Proxy, ProxySetup, RawClient, RawOrigin};

use super::holding::Holding;
use super::over_tls::Trusted;
use super::{Chain, STATUS, over_h2, scripted};
use crate::health::assert_said;
use crate::in_flight::occupy;
use crate::reload::{SITE, reload};
use crate::setup::{Site, assert_refused, figures, origin, test};
use crate::words;

/// Clients that do not read hold up no others at the same endpoint.
#[test]
fn downloads_that_stand_still_leave_room_for_others() {
    test(|| {
        let chain = Chain::new();
        assert_eq!(chain.proxy.client().get("/ping").unwrap().text(), "pong");
        // One client, without a window.
        let shut = [(setting::INITIAL_WINDOW_SIZE, 0)];
        let mut stalled = H2Client::connect_with(chain.proxy.socket_addr("web"), &shut).unwrap();
        for stream in 0..80 {
            let path = "/custom-payload?size=2000000";
            stalled.get(2 * stream + 1, path).unwrap();
        }
        until("all are in flight", || super::in_flight(&chain.proxy) == 80);
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..3 {
            let mut client = chain.proxy.client();
            client.set_step(Duration::from_secs(4));
            let response = client.get("/custom-payload?size=100000").unwrap();
            assert_eq!(response.body.len(), 100_000);
        }
    });
}

/// The most memory that a program has had, in bytes.
fn peak(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
    let line = status.lines().find(|it| it.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Heads that are long once they are decoded, by the table of the decoder.
#[test]
fn interim_responses_hold_little_memory() {
    const STREAMS: usize = 10;
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            let mut held = Vec::new();
            loop {
                let request = server.request()?;
                if request.path() == "/well" {
                    server.respond(request.stream, 200, "well")?;
                    continue;
                }
                held.push(request.stream);
                if held.len() < STREAMS {
                    continue;
                }
                let status = block(&[(":status", "103")]);
                let long = "x".repeat(4_000);
                let first = block_indexed(&[("link", &long)]);
                let mut frames = Vec::new();
                for (at, stream) in held.drain(..).enumerate() {
                    for count in 0..990 {
                        let mut head = status.clone();
                        match (at, count) {
                            (0, 0) => head.extend(&first),
                            _ => head.extend([0xbe; 15]),
                        }
                        frames.extend(frame(kind::HEADERS, flags::END_HEADERS, stream, &head));
                    }
                }
                server.raw().send(frames)?;
            }
        });
        let proxy = over_h2(endpoint.address, "guard = false\nretries = 0\n");
        assert_eq!(proxy.client().get("/well").unwrap().text(), "well");
        let before = peak(&proxy);
        let mut clients: Vec<RawClient> = (0..STREAMS).map(|_| occupy(&proxy, "/bomb")).collect();
        for client in &mut clients {
            let _ = client.read_response("GET");
        }
        let grown = peak(&proxy) - before;
        assert!(grown < 64 << 20, "{grown} bytes");
        assert_eq!(proxy.client().get("/well").unwrap().text(), "well");
    });
}

/// An endpoint that allows one stream to a connection, and many that come at once.
#[test]
fn a_burst_is_served_by_an_endpoint_that_allows_few_streams() {
    const ONE: &[(u16, u32)] = &[(setting::MAX_CONCURRENT_STREAMS, 1)];
    test(|| {
        let endpoint = Holding::start(ONE, 1);
        let proxy = over_h2(endpoint.origin.address, "");
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..50 {
            client.get(2 * stream + 1, "/wait").unwrap();
        }
        let statuses: Vec<_> = (0..50)
            .map(|stream| client.response(2 * stream + 1).unwrap().status)
            .collect();
        let failed = statuses.iter().filter(|it| **it != 200).count();
        let refused = endpoint.seen.refused.load(Ordering::SeqCst);
        assert_eq!(failed, 0, "of 50; {refused} were refused on the way");
    });
}

/// An idle connection with HTTP/2 is one, whatever it was used for.
#[test]
fn idle_connections_are_as_many_as_the_pool_keeps() {
    const ONE: &[(u16, u32)] = &[(setting::MAX_CONCURRENT_STREAMS, 1)];
    test(|| {
        let endpoint = Holding::start(ONE, usize::MAX);
        let proxy = over_h2(endpoint.origin.address, "pool = { max_idle = 2 }\n");
        let mut held = Vec::<RawClient>::new();
        for count in 1..=8 {
            held.push(occupy(&proxy, "/hold"));
            endpoint.until_held(count);
        }
        assert_eq!(endpoint.open(), 8);
        endpoint.release();
        for client in &mut held {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        until("the rest is closed", || endpoint.open() <= 2);
    });
}

/// Connections that no stream may be opened on are of no use.
#[test]
fn connections_without_streams_are_not_kept() {
    const NONE: &[(u16, u32)] = &[(setting::MAX_CONCURRENT_STREAMS, 0)];
    test(|| {
        let endpoint = Holding::start(NONE, 0);
        let proxy = over_h2(endpoint.origin.address, "guard = false\n");
        for _ in 0..10 {
            assert_eq!(proxy.client().get("/a").unwrap().status, 502);
        }
        until("they are closed", || endpoint.open() <= 1);
    });
}

/// When descriptors run out, idle connections to endpoints are closed first.
#[test]
fn an_idle_connection_gives_way_to_another() {
    const ONE: &[(u16, u32)] = &[(setting::MAX_CONCURRENT_STREAMS, 1)];
    test(|| {
        let endpoint = Holding::start(ONE, usize::MAX);
        let other = origin();
        let server = format!(
            "{STATUS}\n[[route]]\nmatch = {{ path = \"/ping\" }}\nupstream = \"other\"\n\
             [upstream.other]\nendpoints = [\"{}\"]\n",
            other.address
        );
        let setup = ProxySetup {
            open_files: Some(120),
            ..ProxySetup::default()
        };
        let site = Site {
            listener: "defer_accept = false\ntimeouts.head = \"60s\"",
            upstream: "protocol = \"h2\"",
            server: &server,
            ..Site::default()
        };
        let proxy = site.start_with(&[endpoint.origin.address.to_string()], &setup);
        let mut held = Vec::<RawClient>::new();
        for count in 1..=16 {
            held.push(occupy(&proxy, "/hold"));
            endpoint.until_held(count);
        }
        endpoint.release();
        for client in &mut held {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        let displaced = || {
            let endpoint = &figures(&proxy)["upstreams"][0]["endpoints"][0];
            endpoint["displaced"].as_u64().unwrap()
        };
        let open = || figures(&proxy)["listeners"][0]["open"].as_u64().unwrap();
        let mut silent = Vec::new();
        until("some gave way", || {
            let before = open();
            silent.push(proxy.client());
            until("it is accepted", || open() > before);
            displaced() > 0
        });
        let listener = &figures(&proxy)["listeners"][0];
        assert_eq!(listener["connections_displaced"], 0);
        assert_eq!(listener["connections_no_descriptor"], 0);
        let gone = displaced();
        assert!(gone <= 3, "{gone} connections had to go for one client");
        until("they are closed", || endpoint.open() as u64 == 16 - gone);
        // An exchange gets one too.
        let response = proxy.client().get("/ping").unwrap();
        assert_eq!(response.text(), "pong");
    });
}

/// A connection that is there too late is not kept.
#[test]
fn a_connection_that_comes_after_a_reload_is_closed() {
    test(|| {
        let trusted = Trusted::new();
        let config = trusted.serving(&["h2"]);
        let ended = Arc::new(AtomicUsize::new(0));
        let count = ended.clone();
        let endpoint = RawOrigin::start(move |number, raw| {
            if number == 0 {
                std::thread::sleep(Duration::from_millis(500));
            }
            let mut server =
                H2Server::accept(raw.accept_tls(config.clone()).unwrap(), &[]).unwrap();
            server.raw().set_step(Duration::from_secs(20));
            let _ = super::echo_paths(&mut server);
            if number == 0 {
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
        let endpoints = [endpoint.address.to_string()];
        let site = |tls: &str| {
            let upstream = format!("protocol = \"h2\"\n{tls}");
            Site {
                upstream: &upstream,
                ..SITE
            }
            .config(&endpoints)
        };
        let proxy = Proxy::start(crate::setup::program(), &site(&trusted.keys())).unwrap();
        let mut client = occupy(&proxy, "/first");
        until("it connects", || endpoint.connections() == 1);
        reload(&proxy, &site("tls = { verify = false }"));
        assert_eq!(proxy.client().get("/next").unwrap().text(), "/next");
        assert_eq!(client.read_response("GET").unwrap().text(), "/first");
        let is_closed = holds_within(Duration::from_secs(8), || ended.load(Ordering::SeqCst) == 1);
        assert!(is_closed, "it stays open");
    });
}

/// A stream that the endpoint resets is no connection that had gone stale.
#[test]
fn an_endpoint_that_resets_streams_is_blamed() {
    test(|| {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let endpoint = scripted(&[], move |_, server| {
            loop {
                let request = server.request()?;
                if request.path() == "/well" {
                    server.respond(request.stream, 200, "well")?;
                } else {
                    count.fetch_add(1, Ordering::SeqCst);
                    server.reset(request.stream, ErrorCode::Internal)?;
                }
            }
        });
        let proxy = over_h2(endpoint.address, "retries = 0\n");
        let mut client = proxy.client();
        assert_eq!(client.get("/well").unwrap().text(), "well");
        let response = client.get("/reset").unwrap();
        assert_refused(&response, words::UPSTREAM_CLOSED);
        assert_eq!(requests.load(Ordering::SeqCst), 1, "retries = 0");
        let post = "POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(client.ask(post).unwrap().status, 502);
        let endpoint = &figures(&proxy)["upstreams"][0]["endpoints"][0];
        assert_eq!(endpoint["errors_in_row"], 2, "{endpoint}");
    });
}

/// An endpoint without ALPN has not chosen HTTP/2.
#[test]
fn an_endpoint_that_chooses_nothing_is_told_of() {
    test(|| {
        let trusted = Trusted::new();
        let endpoint = super::over_tls::choosing(trusted.serving(&[]));
        let proxy = trusted.before("h2", &endpoint);
        assert_refused(&proxy.client().get("/").unwrap(), words::UPSTREAM_TLS);
        assert_said(&proxy, "no connection: ");
        assert!(proxy.stderr().contains("ALPN"), "{}", proxy.stderr());
    });
}

/// The message about a wrong `protocol` names the mistake.
#[test]
fn an_endpoint_that_answers_in_http1_is_named() {
    test(|| {
        let endpoint = RawOrigin::answering("HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let proxy = over_h2(endpoint.address, "retries = 0\n");
        assert_eq!(proxy.client().get("/").unwrap().status, 502);
        assert_said(&proxy, "connection of HTTP/2 lost");
        let said = proxy.stderr();
        assert!(said.contains("HTTP/1.1"), "{said}");
    });
}
