//! Expectations of endpoints and operators beyond the protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::http2::{Ends, ErrorCode, flags, kind};
use evenkeel_testkit::{H2Client, RawClient, TempDir};

use super::over_tls::Trusted;
use super::{over_h2, scripted};
use crate::foreign_origins::start_nginx;
use crate::health::assert_said;
use crate::in_flight::occupy;
use crate::setup::{assert_refused, figures, pattern, test};
use crate::words;

/// The status of a call comes through, whatever length its response has.
#[test]
fn trailers_come_with_a_length_too() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                let head = [
                    (":status", "200"),
                    ("content-type", "application/grpc"),
                    ("content-length", "2"),
                ];
                server.headers(request.stream, &head, Ends::Later)?;
                server.data(request.stream, "ok", Ends::Later)?;
                server.headers(request.stream, &[("grpc-status", "0")], Ends::Now)?;
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        client.request(1, "POST", "/a", &fields, Ends::Now).unwrap();
        let response = client.response(1).unwrap();
        assert_eq!(response.text(), "ok");
        let status = ("grpc-status".to_owned(), "0".to_owned());
        assert_eq!(response.trailers, [status]);
    });
}

/// An endpoint with HTTP/1.1 only refuses the offer of HTTP/2.
#[test]
fn an_endpoint_that_refuses_http2_is_not_said_to_lack_http1() {
    test(|| {
        let trusted = Trusted::new();
        let endpoint = super::over_tls::choosing(trusted.serving(&["http/1.1"]));
        let proxy = trusted.before("h2", &endpoint);
        assert_refused(&proxy.client().get("/").unwrap(), words::UPSTREAM_TLS);
        assert_said(&proxy, "it supports none of the offered protocols (ALPN)");
    });
}

#[test]
fn what_a_probe_saw_is_said() {
    test(|| {
        let closed = super::probes::said_of(|_, _| Err(std::io::ErrorKind::Other.into()));
        assert_eq!(closed, "connection closed before the answer");
        // It says that all is well, and nothing else.
        let empty = super::probes::said_of(|server, id| super::probes::ends(server, id, "0"));
        assert_eq!(empty, "malformed answer: no HealthCheckResponse");
        let odd = super::probes::said_of(|server, id| super::probes::ends(server, id, "well"));
        assert!(odd.starts_with("malformed answer"), "{odd}");
        let reset = super::probes::said_of(|server, id| server.reset(id, ErrorCode::Internal));
        assert!(reset.contains("INTERNAL_ERROR"), "{reset}");
        let refused =
            super::probes::said_of(|server, id| server.reset(id, ErrorCode::RefusedStream));
        assert!(refused.contains("REFUSED_STREAM"), "{refused}");
        let upper = super::probes::said_of(|server, id| {
            let head = [(":status", "200"), ("X-Upper", "a")];
            server.headers(id, &head, Ends::Now)
        });
        assert!(upper.starts_with("malformed answer: "), "{upper}");
    });
}

/// Each connection takes a few requests: all that come are served, as each time some are.
#[test]
fn many_at_once_are_served_where_connections_end_often() {
    test(|| {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.join("large"), pattern(1_000_000)).unwrap();
        let socket = dir.join("h2.sock").display().to_string();
        let server = format!(
            "listen unix:{socket} http2; keepalive_requests 7; root {};",
            dir.path().display(),
        );
        let _nginx = start_nginx(&dir, "", &server);
        let proxy = super::foreign::before(&format!("unix:{socket}"));
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..90 {
            client.get(2 * stream + 1, "/large").unwrap();
        }
        for stream in 0..90 {
            let response = client.response(2 * stream + 1).unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body == pattern(1_000_000), "another file");
        }
    });
}

/// Node takes no more streams on a connection that has much to send.
#[test]
fn an_endpoint_that_is_asked_too_much_is_asked_by_another_connection() {
    test(|| {
        let (_server, proxy) = super::foreign::start(
            std::process::Command::new("node"),
            &["-e", super::foreign::NODE_SERVER],
        );
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..20 {
            client.get(2 * stream + 1, "/large").unwrap();
        }
        for stream in 0..20 {
            let response = client.response(2 * stream + 1).unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body == pattern(1_000_000), "another file");
        }
    });
}

/// A frame that shows no work of the endpoint, such as WINDOW_UPDATE, causes no further PING.
#[test]
fn an_endpoint_that_takes_an_upload_is_not_asked_in_each_pause() {
    within(Duration::from_secs(60), || {
        let pings = Arc::new(AtomicUsize::new(0));
        let count = pings.clone();
        let endpoint = scripted(&[], move |_, server| {
            server.raw().set_step(Duration::from_secs(30));
            let upload = server.head()?;
            loop {
                // It opens the windows again for the received bytes.
                let frame = server.next()?;
                if frame.kind == kind::PING && !frame.has(flags::ACK) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                if frame.kind == kind::DATA && frame.has(flags::END_STREAM) {
                    server.respond(upload.stream, 200, "done")?;
                }
            }
        });
        let proxy = over_h2(
            endpoint.address,
            "timeouts = { first_byte = \"60s\", idle = \"60s\" }\n",
        );
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        client.set_step(Duration::from_secs(30));
        client.request(1, "POST", "/up", &[], Ends::Later).unwrap();
        for _ in 0..3 {
            client.data(1, [b'x'; 10_000], Ends::Later).unwrap();
            std::thread::sleep(Duration::from_millis(11_500));
        }
        client.data(1, "end", Ends::Now).unwrap();
        assert_eq!(client.response(1).unwrap().text(), "done");
        assert_eq!(pings.load(Ordering::SeqCst), 1);
    });
}

/// The end of a connection that is announced is no failure.
#[test]
fn requests_that_are_refused_in_order_are_no_failures() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            let first = server.request()?;
            server.go_away(first.stream, ErrorCode::NoError)?;
            server.respond(first.stream, 200, "well")?;
            loop {
                server.next()?;
            }
        });
        let proxy = over_h2(endpoint.address, "retries = 0\n");
        let mut clients: Vec<RawClient> = (0..3).map(|_| occupy(&proxy, "/a")).collect();
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().text(), "well");
        }
        let endpoint = &figures(&proxy)["upstreams"][0]["endpoints"][0];
        assert_eq!(endpoint["failures"], 0, "{endpoint}");
        assert_eq!(endpoint["errors_in_row"], 0, "{endpoint}");
    });
}
