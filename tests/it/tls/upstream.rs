//! TLS to endpoints: verification, resumption and refusals.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::Running;
use evenkeel_testkit::tls::{Authority, Issued, Versions, date_time_ymd};
use evenkeel_testkit::{Proxy, ProxySetup, RawOrigin, RawStream, TempDir};
use rustls::HandshakeKind;

use super::{Issuing, TLS12, TLS13};
use crate::foreign_origins::start_nginx;
use crate::health::{assert_said, states};
use crate::reload::{SITE, reload};
use crate::setup::{Site, assert_logged, assert_refused, figures, get, origin, test};
use crate::words;

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Connections that can't be opened are answered at once.
const AT_ONCE: &str = "queue = { hold = false }\nretries = 0\n";

impl Issuing {
    /// Its authority's certificate, as a file.
    pub fn ca(&self) -> String {
        let path = self.path("ca.pem");
        fs::write(&path, self.authority.pem()).unwrap();
        path
    }

    /// The option of an upstream that trusts it.
    fn upstream(&self, more: &str) -> String {
        format!("tls = {{ ca = '{}'{more} }}\n", self.ca())
    }

    fn issued(&self, names: &[&str]) -> Issued {
        self.authority.issue(names).unwrap()
    }
}

/// An origin over TLS whose connections follow a script.
fn origin_over(
    issued: &Issued,
    versions: Versions,
    script: impl Fn(usize, RawStream) + Send + Sync + 'static,
) -> RawOrigin {
    let config = issued.serving(versions, &["http/1.1"]).unwrap();
    RawOrigin::start(move |number, stream| {
        if let Ok(stream) = stream.accept_tls(config.clone()) {
            script(number, stream);
        }
    })
    .unwrap()
}

/// The same, answering each request.
fn answering_over(issued: &Issued) -> RawOrigin {
    origin_over(issued, TLS13, |_, stream| answer_each(stream))
}

fn answer_each(mut stream: RawStream) {
    while stream.read_head().is_ok() && stream.send(ANSWER).is_ok() {}
}

fn site_with(upstream: &str, endpoint: &str) -> Proxy {
    Site {
        upstream,
        server: "[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    }
    .start(&[endpoint.to_owned()])
}

/// nginx over TLS with the certificate `a`, and where it is.
fn nginx_over_tls(issuing: &Issuing, dir: &TempDir, server: &str) -> (Running, String) {
    let socket = dir.join("tls.sock").display().to_string();
    let server = format!(
        "listen unix:{socket} ssl; ssl_certificate {}; ssl_certificate_key {}; {server}",
        issuing.path("a.crt"),
        issuing.path("a.key"),
    );
    (start_nginx(dir, "", &server), format!("unix:{socket}"))
}

/// `openssl s_server` with the certificate `a`, and where it is.
fn s_server(issuing: &Issuing, arguments: &[&str]) -> (Running, String) {
    let mut command = Command::new("openssl");
    command.args(["s_server", "-accept", "127.0.0.1:0", "-www"]);
    command.arg("-cert").arg(issuing.path("a.crt"));
    command.arg("-key").arg(issuing.path("a.key"));
    command.args(arguments);
    let mut server = Running::start(command).unwrap();
    loop {
        let line = server.line().unwrap();
        if let Some(address) = line.trim().strip_prefix("ACCEPT ") {
            return (server, address.to_owned());
        }
    }
}

/// Idle connections to the first endpoint.
fn idle(proxy: &Proxy) -> u64 {
    let figures = figures(proxy);
    let endpoint = &figures["upstreams"][0]["endpoints"][0];
    endpoint["idle"].as_u64().unwrap()
}

#[test]
fn requests_and_responses_of_any_length_reach_nginx_over_tls() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let dir = TempDir::new().unwrap();
        let body = crate::setup::pattern(3_000_000);
        fs::write(dir.join("large.bin"), &body).unwrap();
        for versions in ["TLSv1.2", "TLSv1.3"] {
            let server = format!(
                "ssl_protocols {versions}; client_max_body_size 10m; location / {{ root {at}; }}
                 location = /what {{ return 200 \"$ssl_protocol $ssl_server_name\"; }}",
                at = dir.path().display(),
            );
            let (_nginx, endpoint) = nginx_over_tls(&issuing, &dir, &server);
            let proxy = site_with(&issuing.upstream(", name = 'a.test'"), &endpoint);
            let mut client = proxy.client();
            let text = client.get("/what").unwrap().text();
            assert_eq!(text, format!("{versions} a.test"));
            for _ in 0..3 {
                assert!(client.get("/large.bin").unwrap().body == body);
            }
            let mut post =
                b"POST /large.bin HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n".to_vec();
            post.extend_from_slice(&body);
            assert_eq!(client.ask(post).unwrap().status, 405);
            let _ = fs::remove_file(dir.join("tls.sock"));
            let _ = fs::remove_file(dir.join("nginx.sock"));
        }
    });
}

#[test]
fn openssl_agrees_with_it() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        for version in ["-tls1_2", "-tls1_3"] {
            let (_server, endpoint) = s_server(&issuing, &[version]);
            let proxy = site_with(&issuing.upstream(", name = 'a.test'"), &endpoint);
            let response = proxy.client().get("/").unwrap();
            assert_eq!(response.status, 200);
            let text = response.text();
            assert!(text.contains("s_server -accept"), "{text}");
        }
    });
}

/// The certificate of an endpoint, and the expected outcome of a request to it.
struct Case<'a> {
    issued: Issued,
    host: &'a str,
    tls: String,
    /// `None` if the certificate is accepted, else the text in the event log.
    refusal: Option<&'a str>,
}

#[test]
fn an_endpoint_is_believed_whose_certificate_is_valid_and_for_its_name() {
    test(|| {
        let issuing = Issuing::new();
        let other = Authority::new().unwrap();
        let of_a = issuing.issued(&["a.test"]);
        let expired = issuing.authority.issue_with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        });
        let early = issuing.authority.issue_with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(4000, 1, 1);
            params.not_after = date_time_ymd(4001, 1, 1);
        });
        let revoked = issuing.authority.issue_with(&["127.0.0.1"], |params| {
            params.serial_number = Some(77_u64.into());
        });
        let crl = issuing.path("crl.pem");
        fs::write(&crl, issuing.authority.revoking(&[77]).unwrap()).unwrap();
        let crl = issuing.upstream(&format!(", crl = '{crl}'"));
        let pin = pin_of(&of_a);
        let case = |issued: &Issued, host, tls: String, refusal| Case {
            issued: issued.clone(),
            host,
            tls,
            refusal,
        };
        let of_address = issuing.issued(&["127.0.0.1"]);
        let of_localhost = issuing.issued(&["localhost"]);
        let ours = |more: &str| issuing.upstream(more);
        let other_key = pin_of(&of_address);
        for case in [
            case(&of_address, "127.0.0.1", ours(""), None),
            case(&of_localhost, "localhost", ours(""), None),
            case(&of_address, "127.0.0.1", crl.clone(), None),
            case(
                &revoked.unwrap(),
                "127.0.0.1",
                crl,
                Some("its certificate is revoked"),
            ),
            case(&of_a, "127.0.0.1", ours(", name = 'a.test'"), None),
            case(&of_address, "localhost", ours(", name = '127.0.0.1'"), None),
            case(
                &of_a,
                "127.0.0.1",
                ours(&format!(", name = 'a.test', pins = ['{pin}']")),
                None,
            ),
            case(
                &of_a,
                "127.0.0.1",
                "tls = { verify = false }\n".to_owned(),
                None,
            ),
            case(
                &of_a,
                "127.0.0.1",
                format!("tls = {{ verify = false, pins = ['{other_key}', '{pin}'] }}\n"),
                None,
            ),
            case(
                &of_a,
                "127.0.0.1",
                ours(""),
                Some("its certificate is for a.test, not for 127.0.0.1"),
            ),
            case(
                &of_a,
                "127.0.0.1",
                ours(", name = 'b.test'"),
                Some("its certificate is for a.test, not for b.test"),
            ),
            case(
                &of_address,
                "localhost",
                ours(""),
                Some("its certificate is for 127.0.0.1, not for localhost"),
            ),
            case(
                &expired.unwrap(),
                "127.0.0.1",
                ours(""),
                Some("its certificate expired on Jan  1 "),
            ),
            case(
                &early.unwrap(),
                "127.0.0.1",
                ours(""),
                Some("its certificate is not valid before Jan  1 "),
            ),
            case(
                &other.issue(&["127.0.0.1"]).unwrap(),
                "127.0.0.1",
                ours(""),
                Some("a signature is wrong: its certificate may be issued by another authority"),
            ),
            case(
                &of_a,
                "127.0.0.1",
                ours(&format!(", name = 'a.test', pins = ['{other_key}']")),
                Some("the endpoint's key is not pinned; its pin is sha256/"),
            ),
            case(
                &of_a,
                "127.0.0.1",
                format!("tls = {{ verify = false, pins = ['{other_key}'] }}\n"),
                Some("the endpoint's key is not pinned; its pin is sha256/"),
            ),
        ] {
            let Case {
                issued,
                host,
                tls,
                refusal,
            } = case;
            let origin = answering_over(&issued);
            let endpoint = format!("{host}:{}", origin.address.port());
            let proxy = site_with(&format!("{tls}{AT_ONCE}"), &endpoint);
            let mut client = proxy.client();
            let Some(text) = refusal else {
                let said = || proxy.stderr();
                assert_eq!(client.get("/").unwrap().status, 200, "{tls}{}", said());
                continue;
            };
            for _ in 0..3 {
                let response = client.get("/").unwrap();
                assert_refused(&response, words::UPSTREAM_CERTIFICATE);
                assert!(!response.text().contains("a.test"), "{response:?}");
            }
            assert_logged(&proxy, words::UPSTREAM_CERTIFICATE);
            assert_said(&proxy, &format!("no connection: {text}"));
            // Once, not for each request.
            assert_eq!(
                proxy.stderr().matches(text).count(),
                1,
                "{}",
                proxy.stderr()
            );
        }
    });
}

fn pin_of(issued: &Issued) -> String {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let certificate = CertificateDer::from_pem_slice(issued.chain.as_bytes()).unwrap();
    evenkeel_tls::Pin::of(&certificate).unwrap().to_string()
}

#[test]
fn the_system_says_who_vouches_where_no_file_does() {
    test(|| {
        let issuing = Issuing::new();
        let origin = answering_over(&issuing.issued(&["127.0.0.1"]));
        let endpoints = [origin.address.to_string()];
        let upstream = format!("tls = true\n{AT_ONCE}");
        let site = Site {
            upstream: &upstream,
            ..Site::default()
        };
        for (ca, status) in [
            (issuing.ca(), 200),
            (write_pem(&issuing, &Authority::new().unwrap()), 502),
        ] {
            let setup = ProxySetup {
                env: vec![("SSL_CERT_FILE".to_owned(), ca)],
                ..ProxySetup::default()
            };
            let proxy = site.start_with(&endpoints, &setup);
            assert_eq!(proxy.client().get("/").unwrap().status, status);
        }
    });
}

fn write_pem(issuing: &Issuing, authority: &Authority) -> String {
    let path = issuing.path("other.pem");
    fs::write(&path, authority.pem()).unwrap();
    path
}

#[test]
fn an_endpoint_without_tls_gets_nothing_of_a_request() {
    test(|| {
        let issuing = Issuing::new();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = seen.clone();
        let plain = RawOrigin::start(move |_, mut stream| {
            let _ = stream.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            let came = stream.read_to_end().unwrap_or_default();
            noted.lock().unwrap().extend(came);
        });
        let plain = plain.unwrap();
        let upstream = format!("{}{AT_ONCE}", issuing.upstream(""));
        let proxy = site_with(&upstream, &plain.address.to_string());
        let response = proxy.client().get("/secret").unwrap();
        assert_refused(&response, words::UPSTREAM_TLS);
        assert_logged(&proxy, words::UPSTREAM_TLS);
        assert_said(&proxy, "no connection: it does not speak TLS");
        drop(plain);
        let seen = seen.lock().unwrap();
        assert!(!seen.windows(6).any(|it| it == b"secret"), "{seen:?}");
    });
}

#[test]
fn a_handshake_has_the_time_of_a_connection() {
    test(|| {
        let issuing = Issuing::new();
        let silent = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_to_end();
        });
        let silent = silent.unwrap();
        let tls = issuing.upstream("");
        let upstream = format!("{tls}{AT_ONCE}timeouts = {{ connect = '300ms' }}");
        let proxy = site_with(&upstream, &silent.address.to_string());
        for _ in 0..3 {
            let response = proxy.client().get("/").unwrap();
            assert_eq!(response.status, 504);
            assert!(response.text().contains("in time"), "{response:?}");
        }
        assert_said(
            &proxy,
            "can't be reached: the TLS handshake did not end in time",
        );
        // One that closes at once is no such one.
        let closing = RawOrigin::start(|_, _| {}).unwrap();
        let proxy = site_with(&format!("{tls}{AT_ONCE}"), &closing.address.to_string());
        assert_refused(&proxy.client().get("/").unwrap(), words::UPSTREAM_TLS);
        assert_said(&proxy, "no connection: the TLS handshake failed: ");
    });
}

#[test]
fn another_endpoint_is_tried_where_a_handshake_fails() {
    test(|| {
        let issuing = Issuing::new();
        let wrong = answering_over(&issuing.issued(&["b.test"]));
        let plain = RawOrigin::answering_each(ANSWER).unwrap();
        let right = answering_over(&issuing.issued(&["a.test"]));
        let upstream = format!(
            "{}balance = 'first'\n",
            issuing.upstream(", name = 'a.test'")
        );
        for failing in [wrong.address, plain.address] {
            let site = Site {
                upstream: &upstream,
                server: "[status]\nbind = \"127.0.0.1:0\"",
                ..Site::default()
            };
            let proxy = site.start(&[failing.to_string(), right.address.to_string()]);
            // No byte was sent, so a request that is not idempotent is tried again too.
            let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
            for _ in 0..3 {
                assert_eq!(proxy.client().ask(post).unwrap().status, 200);
            }
            assert_eq!(states(&proxy)[0], "unreachable");
        }
    });
}

#[test]
fn an_endpoint_is_back_once_its_certificate_is_good() {
    test(|| {
        let issuing = Issuing::new();
        let config = issuing.issued(&["b.test"]).serving(TLS13, &[]).unwrap();
        let serving = Arc::new(Mutex::new(config));
        let shared = serving.clone();
        let origin = RawOrigin::start(move |_, stream| {
            let config = shared.lock().unwrap().clone();
            if let Ok(stream) = stream.accept_tls(config) {
                answer_each(stream);
            }
        });
        let upstream = format!("{}{AT_ONCE}", issuing.upstream(", name = 'a.test'"));
        let origin = origin.unwrap();
        let proxy = site_with(&upstream, &origin.address.to_string());
        let mut client = proxy.client();
        for _ in 0..3 {
            assert_refused(&client.get("/").unwrap(), words::UPSTREAM_CERTIFICATE);
        }
        assert_said(&proxy, "can't be reached: its certificate is not accepted");
        *serving.lock().unwrap() = issuing.issued(&["a.test"]).serving(TLS13, &[]).unwrap();
        assert_said(&proxy, "is reachable again");
        assert_eq!(client.get("/").unwrap().status, 200);
        let said = proxy.stderr();
        assert_eq!(said.matches("is reachable again").count(), 1, "{said}");
    });
}

/// An origin whose connections each carry one request; how each began.
fn noting(issued: &Issued, versions: Versions) -> (RawOrigin, Receiver<HandshakeKind>) {
    let (sender, kinds): (Sender<HandshakeKind>, _) = channel();
    let sender = Mutex::new(sender);
    let origin = origin_over(issued, versions, move |_, mut stream| {
        if stream.read_head().is_err() {
            return;
        }
        let tls = stream.accepted_tls().unwrap();
        assert_eq!(tls.alpn_protocol(), Some(&b"http/1.1"[..]));
        let kind = tls.handshake_kind().unwrap();
        sender.lock().unwrap().send(kind).unwrap();
        let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        stream.send(closing).unwrap();
        stream.finish_sending().unwrap();
    });
    (origin, kinds)
}

#[test]
fn sessions_are_resumed() {
    test(|| {
        let issuing = Issuing::new();
        let issued = issuing.issued(&["a.test"]);
        for versions in [TLS12, TLS13] {
            let (first, firsts) = noting(&issued, versions);
            let (second, seconds) = noting(&issued, versions);
            let upstream = format!(
                "{}balance = 'round-robin'\n",
                issuing.upstream(", name = 'a.test'")
            );
            let site = Site {
                upstream: &upstream,
                ..Site::default()
            };
            let proxy = site.start(&[first.address.to_string(), second.address.to_string()]);
            let mut client = proxy.client();
            for _ in 0..6 {
                assert_eq!(client.get("/").unwrap().status, 200);
            }
            // Each endpoint's own, though all have one name.
            for kinds in [firsts, seconds] {
                let kinds: Vec<_> = kinds.try_iter().map(kind_word).collect();
                assert_eq!(kinds, ["full", "resumed", "resumed"]);
            }
        }
    });
}

fn kind_word(kind: HandshakeKind) -> &'static str {
    match kind {
        HandshakeKind::Resumed => "resumed",
        _ => "full",
    }
}

#[test]
fn an_idle_connection_is_kept_until_its_endpoint_ends_it() {
    test(|| {
        let issuing = Issuing::new();
        // Connections of all workers are looked at from outside: there the end shows.
        for (limit, is_closed) in [("", false), (", max_in_flight = 1", true)] {
            let (sender, asked_to_close) = channel::<()>();
            let asked_to_close = Mutex::new(asked_to_close);
            let issued = issuing.issued(&["127.0.0.1"]);
            let origin = origin_over(&issued, TLS13, move |number, mut stream| {
                while stream.read_head().is_ok() {
                    stream.send(ANSWER).unwrap();
                    // A message of the protocol that comes late.
                    stream
                        .accepted_tls()
                        .unwrap()
                        .refresh_traffic_keys()
                        .unwrap();
                    stream.send("").unwrap();
                    if number == 0 && asked_to_close.lock().unwrap().try_recv().is_ok() {
                        stream.finish_sending().unwrap();
                        if is_closed {
                            return;
                        }
                    }
                }
            });
            let endpoint = format!("{{ address = '{}'{limit} }}", origin.address);
            let proxy = site_with(&issuing.upstream(""), &endpoint);
            let mut client = proxy.client();
            for _ in 0..5 {
                assert_eq!(client.get("/").unwrap().status, 200);
            }
            until("it is idle", || idle(&proxy) == 1);
            assert_eq!(origin.connections(), 1);
            sender.send(()).unwrap();
            assert_eq!(client.get("/").unwrap().status, 200);
            until("it is known as stale", || idle(&proxy) == 0);
            let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
            assert_eq!(client.ask(post).unwrap().status, 200);
            assert_eq!(origin.connections(), 2);
        }
    });
}

#[test]
fn a_response_that_is_cut_off_is_not_passed_on_as_complete() {
    test(|| {
        let issuing = Issuing::new();
        let issued = issuing.issued(&["127.0.0.1"]);
        for versions in [TLS12, TLS13] {
            for is_whole in [true, false] {
                // Its end is that of the connection.
                let origin = origin_over(&issued, versions, move |_, mut stream| {
                    if stream.read_head().is_err() {
                        return;
                    }
                    stream.send("HTTP/1.1 200 OK\r\n\r\npart").unwrap();
                    if is_whole {
                        stream.finish_sending().unwrap();
                    }
                });
                let proxy = site_with(&issuing.upstream(""), &origin.address.to_string());
                let mut client = proxy.client();
                client.send(get("/")).unwrap();
                let head = client.read_head().unwrap();
                assert!(head.contains("chunked"), "{head}");
                let rest = client.read_to_end_or_reset();
                let is_ended = rest.ends_with(b"0\r\n\r\n");
                assert_eq!(is_ended, is_whole, "{rest:?}");
                if !is_whole {
                    assert_logged(&proxy, words::UPSTREAM_CUT);
                }
            }
        }
    });
}

/// Reads all bytes, however the other side ends.
trait ReadAny {
    fn read_to_end_or_reset(&mut self) -> Vec<u8>;
}

impl ReadAny for RawStream {
    fn read_to_end_or_reset(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(byte) = self.read_len(1) {
            all.extend(byte);
            if all.ends_with(b"0\r\n\r\n") {
                break;
            }
        }
        all
    }
}

#[test]
fn connections_of_tcp_go_on_over_tls() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let issued = issuing.issued(&["127.0.0.1"]);
        let origin = origin_over(&issued, TLS13, |_, mut stream| {
            assert_eq!(stream.accepted_tls().unwrap().alpn_protocol(), None);
            let question = stream.read_len(5).unwrap();
            stream.send([b"you said ", &question[..]].concat()).unwrap();
            stream.finish_sending().unwrap();
        });
        let upstream = issuing.upstream("");
        let listener = "protocol = 'tcp'\n";
        let over_tls = format!("{listener}{}", issuing.listener(&["a"], ""));
        for listener in [listener, &over_tls] {
            let site = Site {
                listener,
                upstream: &upstream,
                ..Site::default()
            };
            let proxy = site.start(&[origin.address.to_string()]);
            let mut client = if listener.contains("tls") {
                super::connect(&proxy, "a.test", &issuing.client(TLS13)).unwrap()
            } else {
                proxy.client()
            };
            client.send("hello").unwrap();
            assert_eq!(client.read_to_end().unwrap(), b"you said hello");
        }
    });
}

#[test]
fn the_proxy_header_goes_out_before_the_handshake() {
    test(|| {
        let issuing = Issuing::new();
        let config = issuing.issued(&["127.0.0.1"]).serving(TLS13, &[]).unwrap();
        let (sender, lines) = channel();
        let sender = Mutex::new(sender);
        let origin = RawOrigin::start(move |_, mut stream| {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                match stream.read_len(1) {
                    Ok(byte) => line.extend(byte),
                    Err(_) => return,
                }
            }
            let line = String::from_utf8(line).unwrap();
            sender.lock().unwrap().send(line).unwrap();
            if let Ok(mut stream) = stream.accept_tls(config.clone())
                && stream.read_head().is_ok()
            {
                stream.send(ANSWER).unwrap();
            }
        });
        let origin = origin.unwrap();
        let upstream = format!("{}proxy_protocol = 'v1'\n", issuing.upstream(""));
        let proxy = site_with(&upstream, &origin.address.to_string());
        assert_eq!(proxy.client().get("/").unwrap().status, 200);
        let line = lines.recv().unwrap();
        assert!(
            line.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "),
            "{line}"
        );
        let site = Site {
            listener: "protocol = 'tcp'",
            upstream: &upstream,
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        assert_eq!(proxy.client().get("/").unwrap().status, 200);
        let line = lines.recv().unwrap();
        assert!(
            line.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "),
            "{line}"
        );
    });
}

#[test]
fn an_endpoint_may_ask_for_a_certificate() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        issuing.issue("shown", &["proxy.test"]);
        let dir = TempDir::new().unwrap();
        let server = format!(
            "ssl_verify_client on; ssl_client_certificate {};
             location / {{ return 200 $ssl_client_serial; }}",
            issuing.ca(),
        );
        let (_nginx, endpoint) = nginx_over_tls(&issuing, &dir, &server);
        let without = issuing.upstream(", name = 'a.test'");
        let proxy = site_with(&without, &endpoint);
        assert_eq!(proxy.client().get("/").unwrap().status, 400);
        let certificate = format!(
            "certificate = {{ chain = '{}', key = '{}' }}",
            issuing.path("shown.crt"),
            issuing.path("shown.key")
        );
        let with = issuing.upstream(&format!(", name = 'a.test', {certificate}"));
        // Each request has its own connection.
        let proxy = site_with(&format!("{with}pool = {{ max_idle = 0 }}\n"), &endpoint);
        let serial = || {
            let response = proxy.client().get("/").unwrap();
            assert_eq!(response.status, 200, "{}", response.text());
            response.text()
        };
        let first = serial();
        issuing.issue("shown", &["proxy.test"]);
        until("the new one is shown", || serial() != first);
        let second = serial();
        // Half a change leaves the last good pair in use.
        fs::write(issuing.path("shown.key"), "nothing").unwrap();
        assert_said(&proxy, "the previous files stay in use");
        assert_eq!(serial(), second);
    });
}

#[test]
fn an_endpoint_that_refuses_after_the_handshake_has_the_word_for_it() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let ca = issuing.ca();
        let asking = [
            "-tls1_3",
            "-Verify",
            "1",
            "-verify_return_error",
            "-CAfile",
            &ca,
        ];
        let (_server, endpoint) = s_server(&issuing, &asking);
        let upstream = format!("{}{AT_ONCE}", issuing.upstream(", name = 'a.test'"));
        let proxy = site_with(&upstream, &endpoint);
        let response = proxy.client().get("/").unwrap();
        assert_refused(&response, words::UPSTREAM_TLS);
        assert_logged(&proxy, words::UPSTREAM_TLS);
    });
}

#[test]
fn authorities_are_read_again_when_their_file_changes() {
    test(|| {
        let issuing = Issuing::new();
        let other = Authority::new().unwrap();
        let origin = answering_over(&other.issue(&["127.0.0.1"]).unwrap());
        let upstream = format!(
            "{}{AT_ONCE}pool = {{ max_idle = 0 }}\n",
            issuing.upstream("")
        );
        let proxy = site_with(&upstream, &origin.address.to_string());
        let status = || proxy.client().get("/").unwrap().status;
        assert_eq!(status(), 502);
        fs::write(issuing.path("ca.pem"), other.pem()).unwrap();
        until("it is believed", || status() == 200);
        fs::write(issuing.path("ca.pem"), "nothing").unwrap();
        assert_said(&proxy, "the previous files stay in use");
        assert_eq!(status(), 200);
        // No session outlives its authority.
        fs::write(issuing.path("ca.pem"), issuing.authority.pem()).unwrap();
        until("it is not believed any more", || status() == 502);
    });
}

#[test]
fn probes_go_over_tls() {
    test(|| {
        let issuing = Issuing::new();
        let (sender, probes) = channel();
        let sender = Mutex::new(sender);
        let origin = origin_over(&issuing.issued(&["a.test"]), TLS13, move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                let _ = sender.lock().unwrap().send(head);
                let _ = stream.send(ANSWER);
            }
        });
        let endpoint = origin.address.to_string();
        for check in ["path = '/well'", "protocol = 'tcp'", "protocol = 'tls'"] {
            let health = format!("health = {{ {check}, interval = '100ms', fall = 2 }}\n");
            let good = format!("{}{health}", issuing.upstream(", name = 'a.test'"));
            let proxy = site_with(&good, &endpoint);
            until("it is up", || states(&proxy) == ["up"]);
            if check.contains("well") {
                let head: String = probes.recv().unwrap();
                assert!(head.starts_with("GET /well HTTP/1.1\r\n"), "{head}");
            }
            if check.contains("'tls'") {
                continue;
            }
            let bad = format!("{}{health}", issuing.upstream(", name = 'b.test'"));
            let proxy = site_with(&bad, &endpoint);
            assert_said(&proxy, "its certificate is for a.test, not for b.test");
            assert_eq!(states(&proxy), ["down"]);
        }
    });
}

#[test]
fn a_probe_at_a_port_of_its_own_is_in_plain_text() {
    test(|| {
        let issuing = Issuing::new();
        let endpoint = answering_over(&issuing.issued(&["127.0.0.1"]));
        let plain = origin();
        let address = plain.address.to_string();
        let (_, port) = address.rsplit_once(':').unwrap();
        let health = format!("health = {{ path = '/ping', port = {port}, interval = '100ms' }}");
        let upstream = format!("{}{health}", issuing.upstream(""));
        let proxy = site_with(&upstream, &endpoint.address.to_string());
        until("it is up", || states(&proxy) == ["up"]);
        assert_eq!(proxy.client().get("/").unwrap().status, 200);
    });
}

#[test]
fn no_connection_outlives_the_tls_that_it_was_opened_under() {
    test(|| {
        let issuing = Issuing::new();
        let config = issuing.issued(&["127.0.0.1"]).serving(TLS13, &[]).unwrap();
        // Speaks both: the first byte of a handshake is no letter.
        let origin = RawOrigin::start(move |_, mut stream| {
            let is_tls = stream.peek_first().is_ok_and(|it| it == 0x16);
            let word = if is_tls { "secured" } else { "plain" };
            let stream = if is_tls {
                stream.accept_tls(config.clone())
            } else {
                Ok(stream)
            };
            let Ok(mut stream) = stream else { return };
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{word}",
                word.len()
            );
            while stream.read_head().is_ok() && stream.send(&answer).is_ok() {}
        });
        let origin = origin.unwrap();
        let endpoints = [origin.address.to_string()];
        for limit in [None, Some(3)] {
            let endpoints = endpoints.clone().map(|it| match limit {
                Some(limit) => format!("{{ address = '{it}', max_in_flight = {limit} }}"),
                None => it,
            });
            let plain = SITE;
            let tls = issuing.upstream("");
            let secured = Site {
                upstream: &tls,
                ..SITE
            };
            let proxy = plain.start(&endpoints);
            let mut client = proxy.client();
            for _ in 0..3 {
                assert_eq!(client.get("/").unwrap().text(), "plain");
                reload(&proxy, &secured.config(&endpoints));
                until("it is secured", || {
                    client.get("/").unwrap().text() == "secured"
                });
                for _ in 0..3 {
                    assert_eq!(client.get("/").unwrap().text(), "secured");
                }
                reload(&proxy, &plain.config(&endpoints));
                until("it is plain", || client.get("/").unwrap().text() == "plain");
            }
        }
    });
}

#[test]
fn what_is_wrong_is_said_before_the_start() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let ca = issuing.ca();
        fs::write(issuing.path("empty.pem"), "").unwrap();
        let start = |tls: &str, endpoint: &str| -> io::Result<String> {
            let site = Site {
                upstream: tls,
                ..Site::default()
            };
            let config = site.config(&[endpoint.to_owned()]);
            let proxy = Proxy::start(crate::setup::program(), &config)?;
            Ok(proxy.stderr())
        };
        let (missing, empty) = (issuing.path("missing.pem"), issuing.path("empty.pem"));
        let (chain, other) = (issuing.path("a.crt"), issuing.path("ca.pem"));
        for (tls, endpoint, expected) in [
            (
                format!("tls = {{ ca = '{missing}' }}"),
                "127.0.0.1:9",
                "missing.pem",
            ),
            (
                format!("tls = {{ ca = '{empty}' }}"),
                "127.0.0.1:9",
                "empty.pem",
            ),
            (
                format!(
                    "tls = {{ ca = '{ca}', certificate = {{ chain = '{chain}', key = '{other}' }} }}"
                ),
                "127.0.0.1:9",
                "ca.pem",
            ),
            (
                format!("tls = {{ ca = '{ca}', pins = ['sha1/x'] }}"),
                "127.0.0.1:9",
                "is not a valid pin",
            ),
            (
                format!("tls = {{ ca = '{ca}', name = 'a.test:443' }}"),
                "127.0.0.1:9",
                "not a valid host name",
            ),
            (
                format!("tls = {{ ca = '{ca}', verify = false }}"),
                "127.0.0.1:9",
                "this has no effect",
            ),
            (
                format!("tls = {{ ca = '{ca}' }}"),
                "unix:/run/a.sock",
                "Unix socket",
            ),
        ] {
            let error = start(&tls, endpoint).expect_err(&tls).to_string();
            assert!(error.contains(expected), "{tls}\n{error}");
        }
        let said = start("tls = { verify = false }", "127.0.0.1:9").unwrap();
        assert!(said.contains("are not verified"), "{said}");
    });
}

#[test]
fn a_client_that_leaves_ends_a_handshake() {
    test(|| {
        let issuing = Issuing::new();
        let (sender, ends) = channel();
        let sender = Mutex::new(sender);
        let silent = RawOrigin::start(move |_, mut stream| {
            stream.set_step(Duration::from_secs(20));
            let _ = stream.read_to_end();
            let _ = sender.lock().unwrap().send(());
        });
        let silent = silent.unwrap();
        let tls = issuing.upstream("");
        let upstream = format!("{tls}{AT_ONCE}timeouts = {{ connect = '1m' }}");
        let proxy = site_with(&upstream, &silent.address.to_string());
        let mut client = proxy.client();
        client.send(get("/")).unwrap();
        until("it connects", || silent.connections() == 1);
        client.reset();
        ends.recv().unwrap();
        assert_logged(&proxy, words::CLIENT_GONE);
    });
}
