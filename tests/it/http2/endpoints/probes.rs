//! Probes over HTTP/2, and of the health service of gRPC.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::http2::{Ends, ErrorCode};
use evenkeel_testkit::{H2Server, Proxy, RawOrigin};

use super::over_tls::{Trusted, choosing};
use super::{over_h2, scripted};
use crate::health::{assert_said, site_with, states};
use crate::setup::{figures, get, test};

/// The result of the first endpoint's last probe.
fn last_answer(proxy: &Proxy) -> String {
    let figures = figures(proxy);
    let probe = &figures["upstreams"][0]["endpoints"][0]["last_probe"];
    probe["answer"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_path_is_asked_for_over_http2() {
    test(|| {
        let status = Arc::new(AtomicU32::new(200));
        let now = status.clone();
        let (sender, seen) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = scripted(&[], move |_, server| {
            loop {
                let request = server.request()?;
                if request.path() == "/healthz" {
                    let status = now.load(Ordering::SeqCst) as u16;
                    server.respond(request.stream, status, "all is well")?;
                    let _ = sender.lock().unwrap().send(request);
                } else {
                    server.respond(request.stream, 200, request.path())?;
                }
            }
        });
        let health = "health = { interval = \"500ms\", fall = 2, path = \"/healthz\", \
                      body = \"is well\", headers = { \"X-Probe\" = \"yes\" } }";
        let proxy = over_h2(endpoint.address, health);
        until("it is up", || states(&proxy) == ["up"]);
        let probe = seen.recv().unwrap();
        let authority = endpoint.address.to_string();
        for (name, value) in [
            (":method", Some("GET")),
            (":scheme", Some("http")),
            (":authority", Some(&*authority)),
            ("x-probe", Some("yes")),
            ("connection", None),
            ("host", None),
            ("content-length", None),
        ] {
            assert_eq!(probe.field(name), value, "{name}");
        }
        let agent = probe.field("user-agent").unwrap();
        assert!(agent.starts_with("evenkeel-probe/"), "{agent}");
        assert_eq!(proxy.client().get("/a").unwrap().text(), "/a");
        status.store(500, Ordering::SeqCst);
        assert_said(&proxy, "is down after 2 failed probes: status 500");
        status.store(200, Ordering::SeqCst);
        assert_said(&proxy, "is up after 2 probes");
        assert_eq!(proxy.client().get("/b").unwrap().text(), "/b");
    });
}

/// An endpoint's reaction to a health check.
pub type Script = fn(&mut H2Server, u32) -> io::Result<()>;

const HEAD: &[(&str, &str)] = &[(":status", "200"), ("content-type", "application/grpc")];

/// A response with this message and this status.
fn answers(server: &mut H2Server, stream: u32, message: &[u8], status: &str) -> io::Result<()> {
    server.headers(stream, HEAD, Ends::Later)?;
    server.data(stream, message, Ends::Later)?;
    server.headers(stream, &[("grpc-status", status)], Ends::Now)
}

/// A response that is trailers alone.
pub fn ends(server: &mut H2Server, stream: u32, status: &str) -> io::Result<()> {
    let head = [HEAD, &[("grpc-status", status)]].concat();
    server.headers(stream, &head, Ends::Now)
}

/// An endpoint that does this when it is asked how it is.
fn checked(script: Script) -> RawOrigin {
    scripted(&[], move |_, server| {
        loop {
            let request = server.request()?;
            script(server, request.stream)?;
        }
    })
}

/// Each answer, with the text about it.
const ANSWERS: &[(&str, Script, &str)] = &[
    (
        "NOT_SERVING",
        |server, id| answers(server, id, b"\0\0\0\0\x02\x08\x02", "0"),
        "the service is NOT_SERVING",
    ),
    (
        "UNKNOWN",
        |server, id| answers(server, id, b"\0\0\0\0\0", "0"),
        "the service is UNKNOWN",
    ),
    (
        "SERVICE_UNKNOWN",
        |server, id| answers(server, id, b"\0\0\0\0\x02\x08\x03", "0"),
        "SERVICE_UNKNOWN: the server has no such service",
    ),
    (
        "no such method",
        |server, id| ends(server, id, "12"),
        "grpc-status 12 (UNIMPLEMENTED)",
    ),
    (
        "no such service",
        |server, id| ends(server, id, "5"),
        "grpc-status 5 (NOT_FOUND)",
    ),
    (
        "an error in trailers",
        |server, id| answers(server, id, b"", "14"),
        "grpc-status 14 (UNAVAILABLE)",
    ),
    (
        "a status that has no name",
        |server, id| ends(server, id, "99"),
        "grpc-status 99 (unknown)",
    ),
    (
        "garbage",
        |server, id| answers(server, id, b"garbage", "0"),
        "malformed answer: no HealthCheckResponse",
    ),
    (
        "no message",
        |server, id| answers(server, id, b"", "0"),
        "malformed answer: no HealthCheckResponse",
    ),
    (
        "a page",
        |server, id| server.respond(id, 404, "<html>"),
        "status 404",
    ),
    ("nothing", |_, _| Ok(()), "no answer within 2s"),
    (
        "ENHANCE_YOUR_CALM",
        |server, _| {
            server.go_away(0, ErrorCode::EnhanceYourCalm)?;
            Err(io::ErrorKind::Other.into())
        },
        "HTTP/2: it reports excessive load (ENHANCE_YOUR_CALM)",
    ),
    (
        "a broken frame",
        |server, _| server.frame(6, 0, 0, b"short"),
        "HTTP/2: PING",
    ),
];

/// The text about an endpoint with this reaction to a health check.
pub fn said_of(script: Script) -> String {
    let endpoint = checked(script);
    let health = "protocol = \"h2\"\nhealth = { interval = \"10s\", timeout = \"2s\", \
                  protocol = \"grpc\", service = \"shop\" }";
    let proxy = site_with(health, &[endpoint.address.to_string()]);
    let line = "is down after 1 failed probe: ";
    assert_said(&proxy, line);
    let said = proxy.stderr();
    let (_, rest) = said.split_once(line).unwrap();
    let (words, _) = rest.split_once(" (0 of 1 left)").unwrap();
    words.to_owned()
}

#[test]
fn what_a_service_answers_is_said() {
    within(Duration::from_secs(120), || {
        let mut wrong = Vec::new();
        for (what, script, expected) in ANSWERS {
            let said = said_of(*script);
            if said != *expected {
                wrong.push(format!("{what}: {said:?} is said, not {expected:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn a_service_goes_down_and_up() {
    test(|| {
        let serving = Arc::new(AtomicU32::new(1));
        let now = serving.clone();
        let (sender, seen) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = scripted(&[], move |_, server| {
            loop {
                let request = server.request()?;
                let stream = request.stream;
                if !request.path().starts_with("/grpc.health") {
                    server.respond(stream, 200, "app")?;
                    continue;
                }
                let message = [0, 0, 0, 0, 2, 8, now.load(Ordering::SeqCst) as u8];
                answers(server, stream, &message, "0")?;
                let _ = sender.lock().unwrap().send(request);
            }
        });
        let health = "health = { interval = \"500ms\", fall = 2, protocol = \"grpc\", \
                      service = \"shop.Basket\" }";
        let proxy = over_h2(endpoint.address, health);
        until("it is up", || states(&proxy) == ["up"]);
        until("the status page says so", || {
            last_answer(&proxy) == "SERVING"
        });
        let asked = seen.recv().unwrap();
        assert_eq!(asked.field(":path"), Some("/grpc.health.v1.Health/Check"));
        assert_eq!(asked.field("content-type"), Some("application/grpc"));
        assert_eq!(asked.field("te"), Some("trailers"));
        assert_eq!(asked.body, b"\0\0\0\0\x0d\x0a\x0bshop.Basket");
        serving.store(2, Ordering::SeqCst);
        assert_said(
            &proxy,
            "is down after 2 failed probes: the service is NOT_SERVING",
        );
        until("the status page says so", || {
            last_answer(&proxy) == "the service is NOT_SERVING"
        });
        serving.store(1, Ordering::SeqCst);
        assert_said(&proxy, "is up after 2 probes");
        assert_eq!(proxy.client().ask(get("/")).unwrap().text(), "app");
    });
}

/// The health service may listen elsewhere, beside an upstream of any protocol.
#[test]
fn a_service_is_asked_at_a_port_of_its_own() {
    test(|| {
        let (sender, seen) = mpsc::channel();
        let sender = Mutex::new(sender);
        let health = scripted(&[], move |_, server| {
            loop {
                let request = server.request()?;
                answers(server, request.stream, b"\0\0\0\0\x02\x08\x01", "0")?;
                let _ = sender.lock().unwrap().send(request);
            }
        });
        let origin = crate::setup::origin();
        let keys = format!(
            "health = {{ interval = \"500ms\", protocol = \"grpc\", port = {} }}",
            health.address.port()
        );
        let proxy = site_with(&keys, &[origin.address.to_string()]);
        until("it is up", || states(&proxy) == ["up"]);
        let asked = seen.recv().unwrap();
        let authority = health.address.to_string();
        assert_eq!(asked.field(":authority"), Some(&*authority));
        // The server as a whole.
        assert_eq!(asked.body, b"\0\0\0\0\0");
        assert_eq!(proxy.client().get("/ping").unwrap().text(), "pong");
    });
}

/// A separate port speaks HTTP/1.1, as those for metrics and health usually do.
#[test]
fn a_path_at_a_port_of_its_own_is_asked_for_over_http1() {
    test(|| {
        let app = scripted(&[], |_, server| super::echo_paths(server));
        let health = RawOrigin::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        let keys = format!(
            "health = {{ interval = \"500ms\", path = \"/x\", port = {} }}",
            health.address.port()
        );
        let proxy = over_h2(app.address, &keys);
        until("it is up", || states(&proxy) == ["up"]);
        until("it was asked", || last_answer(&proxy) == "status 200");
        assert_eq!(proxy.client().get("/a").unwrap().text(), "/a");
    });
}

#[test]
fn probes_over_tls_speak_what_the_endpoint_chooses() {
    test(|| {
        let trusted = Trusted::new();
        for (alpn, protocol) in [
            (&["h2", "http/1.1"][..], "auto"),
            (&["h2"], "h2"),
            (&["http/1.1"], "auto"),
            (&[], "auto"),
        ] {
            let endpoint = choosing(trusted.serving(alpn));
            let keys = format!(
                "protocol = {protocol:?}\n{}health = {{ interval = \"500ms\", path = \"/x\" }}",
                trusted.keys()
            );
            let proxy = site_with(&keys, &[endpoint.address.to_string()]);
            until(&format!("{alpn:?} is up"), || {
                last_answer(&proxy) == "status 200" && states(&proxy) == ["up"]
            });
        }
        // One that can't choose it.
        let endpoint = choosing(trusted.serving(&["http/1.1"]));
        let keys = format!(
            "{}health = {{ interval = \"500ms\", protocol = \"grpc\" }}",
            trusted.keys()
        );
        let proxy = site_with(&keys, &[endpoint.address.to_string()]);
        assert_said(
            &proxy,
            "is down after 1 failed probe: it refuses the TLS handshake",
        );
    });
}

/// Each probe has a separate connection, and closes it properly.
#[test]
fn a_probe_says_that_it_leaves() {
    test(|| {
        let (sender, ended) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = scripted(&[], move |_, server| {
            let request = server.request()?;
            server.respond(request.stream, 200, "")?;
            while server.next().is_ok() {}
            let goes_away = server
                .frames
                .iter()
                .any(|it| it.kind == evenkeel_testkit::http2::kind::GOAWAY);
            let _ = sender.lock().unwrap().send(goes_away);
            Ok(())
        });
        let health = "health = { interval = \"500ms\", path = \"/x\" }";
        let _proxy = over_h2(endpoint.address, health);
        for _ in 0..3 {
            assert!(ended.recv().unwrap(), "it left without a word");
        }
    });
}
