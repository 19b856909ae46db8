//! Endpoints over TLS, with HTTP/2 or with either version.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::http2::Ends;
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{H2Client, H2Server, Proxy, RawClient, RawOrigin, RawStream, TempDir};
use rustls::ServerConfig;

use super::{STATUS, echo_paths};
use crate::setup::{Site, assert_refused, figures, get, test};
use crate::tls::TLS13;
use crate::tunnels::UPGRADE;
use crate::words;

/// An authority that the program trusts.
pub struct Trusted {
    authority: Authority,
    folder: TempDir,
}

impl Trusted {
    pub fn new() -> Self {
        Trusted {
            authority: Authority::new().unwrap(),
            folder: TempDir::new().unwrap(),
        }
    }

    /// The option of an upstream that trusts it.
    pub fn keys(&self) -> String {
        let path = self.folder.join("ca.pem");
        fs::write(&path, self.authority.pem()).unwrap();
        format!("tls = {{ ca = '{}' }}\n", path.display())
    }

    /// A server at 127.0.0.1 that chooses of these protocols.
    pub fn serving(&self, alpn: &[&str]) -> Arc<ServerConfig> {
        let issued = self.authority.issue(&["127.0.0.1"]).unwrap();
        issued.serving(TLS13, alpn).unwrap()
    }

    /// The program before an endpoint, with this protocol. A failed connection is answered at
    /// once.
    pub fn before(&self, protocol: &str, endpoint: &RawOrigin) -> Proxy {
        let upstream = format!(
            "protocol = {protocol:?}\n{}retries = 0\nqueue = {{ hold = false }}\n",
            self.keys()
        );
        let site = Site {
            listener: "h2c = true",
            upstream: &upstream,
            server: STATUS,
            ..Site::default()
        };
        site.start(&[endpoint.address.to_string()])
    }
}

/// An endpoint that speaks the negotiated protocol.
pub fn choosing(config: Arc<ServerConfig>) -> RawOrigin {
    RawOrigin::start(move |_, raw| {
        let Ok(mut raw) = raw.accept_tls(config.clone()) else {
            return;
        };
        let tls = raw.accepted_tls().unwrap();
        if tls.alpn_protocol() != Some(b"h2") {
            serve_http1(raw);
        } else if let Ok(mut server) = H2Server::accept(raw, &[]) {
            let _ = echo_paths(&mut server);
        }
    })
    .unwrap()
}

/// Answers each request with the version; has an upgrade echo five bytes.
fn serve_http1(mut raw: RawStream) {
    while let Ok(head) = raw.read_head() {
        let lines = head.lines().filter_map(|it| it.split_once(": "));
        let mut upgrades = lines.filter(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
        if let Some((_, protocol)) = upgrades.next() {
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
            );
            raw.send(head).unwrap();
            let echo = raw.read_len(5).unwrap();
            let _ = raw.send(echo);
            return;
        }
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nHTTP/1.1";
        if raw.send(answer).is_err() {
            return;
        }
    }
}

/// A figure of the only endpoint.
fn of_endpoint(proxy: &Proxy, name: &str) -> u64 {
    let figures = figures(proxy);
    let figure = &figures["upstreams"][0]["endpoints"][0][name];
    figure.as_u64().unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn exchanges_share_a_connection_of_tls() {
    test(|| {
        let trusted = Trusted::new();
        for protocol in ["h2", "auto"] {
            let endpoint = choosing(trusted.serving(&["h2", "http/1.1"]));
            let proxy = trusted.before(protocol, &endpoint);
            let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
            for stream in 0..20 {
                client.get(2 * stream + 1, "/path").unwrap();
            }
            for stream in 0..20 {
                let response = client.response(2 * stream + 1).unwrap();
                assert_eq!(response.text(), "/path", "{protocol}");
            }
            assert_eq!(proxy.client().get("/other").unwrap().text(), "/other");
            assert_eq!(endpoint.connections(), 1, "{protocol}");
            assert_eq!(of_endpoint(&proxy, "connects"), 1, "{protocol}");
            assert_eq!(of_endpoint(&proxy, "reuses"), 20, "{protocol}");
        }
    });
}

/// The endpoint gets a request with the scheme `https`.
#[test]
fn the_scheme_is_that_of_the_connection() {
    test(|| {
        let trusted = Trusted::new();
        let config = trusted.serving(&["h2"]);
        let endpoint = RawOrigin::start(move |_, raw| {
            let raw = raw.accept_tls(config.clone()).unwrap();
            let mut server = H2Server::accept(raw, &[]).unwrap();
            while let Ok(request) = server.request() {
                let scheme = request.field(":scheme").unwrap_or("none").to_owned();
                let body = request.body.len();
                let text = format!("{scheme} {body}");
                let _ = server.respond(request.stream, 200, &text);
            }
        })
        .unwrap();
        let proxy = trusted.before("h2", &endpoint);
        let mut request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n".to_vec();
        request.resize(request.len() + 400_000, b'x');
        let response = proxy.client().ask(request).unwrap();
        assert_eq!(response.text(), "https 400000");
    });
}

#[test]
fn an_endpoint_that_can_not_choose_http2_is_told_of() {
    test(|| {
        let trusted = Trusted::new();
        let endpoint = choosing(trusted.serving(&["http/1.1"]));
        let proxy = trusted.before("h2", &endpoint);
        assert_refused(&proxy.client().get("/").unwrap(), words::UPSTREAM_TLS);
        until("the log says so", || {
            proxy
                .stderr()
                .contains("no connection: it refuses the TLS handshake")
        });
    });
}

#[test]
fn an_endpoint_that_chooses_http1_has_connections_of_it() {
    test(|| {
        let trusted = Trusted::new();
        for alpn in [&["http/1.1"][..], &[]] {
            let endpoint = choosing(trusted.serving(alpn));
            let proxy = trusted.before("auto", &endpoint);
            // Ten at once, and no two can share a connection.
            let mut clients: Vec<RawClient> = (0..10).map(|_| proxy.client()).collect();
            for client in &mut clients {
                client.send(get("/")).unwrap();
            }
            for client in &mut clients {
                assert_eq!(client.read_response("GET").unwrap().text(), "HTTP/1.1");
            }
            let opened = endpoint.connections();
            assert!(opened <= 10, "{opened}");
            // One after the other, over those.
            for _ in 0..10 {
                assert_eq!(proxy.client().get("/").unwrap().text(), "HTTP/1.1");
            }
            assert_eq!(endpoint.connections(), opened, "{alpn:?}");
            assert_eq!(of_endpoint(&proxy, "connects"), opened as u64);
            assert_eq!(of_endpoint(&proxy, "reuses"), 20 - opened as u64);
        }
    });
}

/// An endpoint may be replaced by one that chooses otherwise.
#[test]
fn what_an_endpoint_chooses_may_change() {
    test(|| {
        let trusted = Trusted::new();
        let choices = [
            trusted.serving(&["http/1.1"]),
            trusted.serving(&["h2"]),
            trusted.serving(&["http/1.1"]),
        ];
        let at = Arc::new(AtomicUsize::new(0));
        let now = at.clone();
        let endpoint = RawOrigin::start(move |_, raw| {
            let config = choices[now.load(Ordering::SeqCst)].clone();
            let mut raw = raw.accept_tls(config).unwrap();
            if raw.accepted_tls().unwrap().alpn_protocol() == Some(b"h2") {
                let mut server = H2Server::accept(raw, &[]).unwrap();
                let request = server.request().unwrap();
                server.respond(request.stream, 200, "HTTP/2").unwrap();
                server
                    .go_away(request.stream, evenkeel_testkit::http2::ErrorCode::NoError)
                    .unwrap();
                while server.next().is_ok() {}
            } else {
                raw.read_head().unwrap();
                raw.send(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\nHTTP/1.1",
                )
                .unwrap();
            }
        })
        .unwrap();
        let proxy = trusted.before("auto", &endpoint);
        for (step, spoken) in ["HTTP/1.1", "HTTP/2", "HTTP/1.1"].iter().enumerate() {
            at.store(step, Ordering::SeqCst);
            let response = proxy.client().get("/").unwrap();
            assert_eq!(response.text(), *spoken);
        }
    });
}

#[test]
fn an_upgrade_goes_over_http1_where_the_endpoint_chooses() {
    test(|| {
        let trusted = Trusted::new();
        let endpoint = choosing(trusted.serving(&["h2", "http/1.1"]));
        let proxy = trusted.before("auto", &endpoint);
        assert_eq!(proxy.client().get("/a").unwrap().text(), "/a");
        let mut client = proxy.client();
        client.send(UPGRADE).unwrap();
        assert_eq!(client.read_response("GET").unwrap().status, 101);
        client.send("hello").unwrap();
        assert_eq!(client.read_len(5).unwrap(), b"hello");
        // The same by a client of HTTP/2.
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        let head = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":path", "/upgrade"),
            (":authority", "test.example"),
            ("sec-websocket-version", "13"),
        ];
        client.headers(1, &head, Ends::Later).unwrap();
        client.data(1, "hello", Ends::Later).unwrap();
        client
            .until(|it| it.so_far(1).is_some_and(|it| it.body == b"hello"))
            .unwrap();
        assert_eq!(client.so_far(1).unwrap().status, 200);
        assert_eq!(proxy.client().get("/b").unwrap().text(), "/b");
        assert_eq!(endpoint.connections(), 3);
    });
}

/// A connection of HTTP/2 has no tunnels here: an upgrade is not passed on.
#[test]
fn an_upgrade_is_not_passed_on_over_http2() {
    test(|| {
        let endpoint = super::scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                let upgrade = request.field("upgrade").unwrap_or("none").to_owned();
                server.respond(request.stream, 200, &upgrade)?;
            }
        });
        let proxy = super::over_h2(endpoint.address, "");
        let mut client = proxy.client();
        let response = client.ask(UPGRADE).unwrap();
        assert_eq!((response.status, &*response.text()), (200, "none"));
        assert_eq!(client.get("/next").unwrap().text(), "none");
    });
}

/// An endpoint over TLS gets a proper end of the connection, and no cut.
#[test]
fn an_idle_connection_of_tls_is_closed_in_order() {
    test(|| {
        let trusted = Trusted::new();
        let config = trusted.serving(&["h2"]);
        let (sender, ended) = std::sync::mpsc::channel();
        let sender = std::sync::Mutex::new(sender);
        let endpoint = RawOrigin::start(move |_, raw| {
            let raw = raw.accept_tls(config.clone()).unwrap();
            let mut server = H2Server::accept(raw, &[]).unwrap();
            let request = server.request().unwrap();
            server.respond(request.stream, 200, "").unwrap();
            let end = server.raw().read_to_end().map_err(|it| it.kind());
            let has_goaway = end.as_ref().is_ok_and(|bytes| {
                let goaway = [0, 0, 8, evenkeel_testkit::http2::kind::GOAWAY];
                bytes.windows(4).any(|it| it == goaway)
            });
            let end = end.map(|_| has_goaway);
            sender.lock().unwrap().send(end).unwrap();
        })
        .unwrap();
        let upstream = format!(
            "protocol = \"h2\"\npool = {{ idle_timeout = \"300ms\" }}\n{}",
            trusted.keys()
        );
        let site = Site {
            upstream: &upstream,
            ..Site::default()
        };
        let proxy = site.start(&[endpoint.address.to_string()]);
        assert_eq!(proxy.client().get("/").unwrap().status, 200);
        assert_eq!(ended.recv().unwrap(), Ok(true));
    });
}
