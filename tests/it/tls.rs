//! TLS with clients: handshakes, certificates, and refusals.

mod acme;
mod clients;
mod early;
mod peers;
mod tickets;
mod upstream;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::tls::{Authority, Versions};
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, RawOrigin, TempDir};
use rustls::ClientConfig;

use crate::setup::{Site, assert_logged, figures, get, pattern, test};
use crate::words;

pub const TLS13: Versions = &[&rustls::version::TLS13];
const TLS12: Versions = &[&rustls::version::TLS12];

/// The longest time of a test with an issuer.
const LIMIT: Duration = Duration::from_secs(90);

/// An authority, and a folder with the certificates that it issued.
pub struct Issuing {
    authority: Authority,
    folder: TempDir,
}

impl Issuing {
    pub fn new() -> Self {
        Issuing {
            authority: Authority::new().unwrap(),
            folder: TempDir::new().unwrap(),
        }
    }

    /// Issues a certificate, as the files `STEM.crt` and `STEM.key`.
    pub fn issue(&self, stem: &str, names: &[&str]) {
        let issued = self.authority.issue(names).unwrap();
        issued.write(self.folder.path(), stem).unwrap();
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The option of a listener with these certificates.
    pub fn listener(&self, stems: &[&str], more: &str) -> String {
        let tables = stems.iter().map(|stem| {
            let (chain, key) = (
                self.path(&format!("{stem}.crt")),
                self.path(&format!("{stem}.key")),
            );
            format!("{{ chain = '{chain}', key = '{key}' }}")
        });
        let tables: Vec<_> = tables.collect();
        format!("tls = {{ certificates = [{}]{more} }}", tables.join(", "))
    }

    pub fn client(&self, versions: Versions) -> Arc<ClientConfig> {
        self.authority.trusting(versions).unwrap()
    }
}

fn site(listener: &str) -> (OriginHandle, Proxy) {
    Site {
        listener,
        server: "[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    }
    .with_origin()
}

fn connect(proxy: &Proxy, name: &str, config: &Arc<ClientConfig>) -> std::io::Result<RawClient> {
    RawClient::connect_tls(proxy.address("web"), name, config.clone())
}

/// A counter of the listener.
fn counted(proxy: &Proxy, name: &str) -> u64 {
    let figures = figures(proxy);
    let listeners = figures["listeners"].as_array().unwrap();
    let of_web = listeners.iter().find(|it| it["name"] == "web").unwrap();
    of_web[name].as_u64().unwrap()
}

#[test]
fn requests_and_responses_of_any_length_go_over_tls() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = site(&issuing.listener(&["a"], ""));
        for versions in [TLS13, TLS12] {
            let config = issuing.client(versions);
            let mut client = connect(&proxy, "a.test", &config).unwrap();
            for len in [0, 1, 16_384, 16_385, 3_000_000] {
                let response = client.get(&format!("/custom-payload?size={len}")).unwrap();
                assert_eq!(response.status, 200);
                assert!(response.body == pattern(len), "{len}");
            }
            for len in [0, 1, 16_385, 1_000_000] {
                let mut request =
                    format!("POST /echo HTTP/1.1\r\nHost: a.test\r\nContent-Length: {len}\r\n\r\n")
                        .into_bytes();
                request.extend(pattern(len));
                let response = client.ask(request).unwrap();
                assert!(response.body == pattern(len), "{len}");
            }
        }
        assert_eq!(counted(&proxy, "tls_handshakes"), 2);
        assert_eq!(counted(&proxy, "tls_failed"), 0);
        assert_eq!(counted(&proxy, "connections"), 2);
    });
}

#[test]
fn endpoints_hear_of_the_encryption() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = site(&issuing.listener(&["a"], ""));
        let mut client = connect(&proxy, "a.test", &issuing.client(TLS13)).unwrap();
        let text = client.get("/headers").unwrap().text().to_ascii_lowercase();
        assert!(text.contains("x-forwarded-proto: https\r\n"), "{text}");
    });
}

#[test]
fn curl_and_openssl_agree_with_it() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = site(&issuing.listener(&["a"], ""));
        fs::write(issuing.path("ca.pem"), issuing.authority.pem()).unwrap();
        let address = proxy.address("web");
        let port = address.rsplit(':').next().unwrap();
        for version in ["1.2", "1.3"] {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--http1.1", "--max-time", "10"]);
            curl.args(["--cacert", &issuing.path("ca.pem")]);
            curl.args([
                format!("--tlsv{version}"),
                "--tls-max".to_owned(),
                version.to_owned(),
            ]);
            curl.arg("--connect-to")
                .arg(format!("a.test:443:127.0.0.1:{port}"));
            curl.args([
                "--write-out",
                "%{http_code} %{ssl_verify_result} %{num_connects}\n",
            ]);
            curl.args([
                "--output",
                "/dev/null",
                "https://a.test/custom-payload?size=5",
            ]);
            curl.args([
                "--output",
                "/dev/null",
                "https://a.test/custom-payload?size=6",
            ]);
            let output = curl.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(text, "200 0 1\n200 0 0\n", "{error}");
        }
        for (offered, agreed) in [("http/1.1,h2", "h2"), ("http/1.1", "http/1.1")] {
            let (output, _) = s_client(&proxy, &["-servername", "a.test", "-alpn", offered]);
            let agreed = format!("ALPN protocol: {agreed}\n");
            assert!(output.contains(&agreed), "{output}");
        }
        // Broken versions are refused.
        for old in ["-tls1", "-tls1_1"] {
            let (output, _) = s_client(&proxy, &[old, "-cipher", "ALL:@SECLEVEL=0"]);
            assert!(!output.contains("BEGIN CERTIFICATE"), "{output}");
        }
    });
}

/// The output of `openssl s_client`, without a request.
fn s_client(proxy: &Proxy, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", proxy.address("web"), "-showcerts"]);
    command.args(arguments);
    command.stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_name_that_a_client_asks_for_chooses_the_certificate() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("first", &["first.test"]);
        issuing.issue("exact", &["a.many.test"]);
        issuing.issue("wild", &["*.many.test"]);
        let stems = ["first", "exact", "wild"];
        let (_origin, proxy) = site(&issuing.listener(&stems, ""));
        let config = issuing.client(TLS13);
        for name in ["first.test", "a.many.test", "b.many.test", "B.Many.Test"] {
            let mut client = connect(&proxy, name, &config).unwrap();
            assert_eq!(client.get("/ping").unwrap().status, 200, "{name}");
        }
        // The client does not take the first one for the name that it wants.
        assert!(connect(&proxy, "c.b.many.test", &config).is_err());
        let listener = issuing.listener(&stems, ", unknown_name = 'refuse'");
        let (_origin, proxy) = site(&listener);
        assert!(connect(&proxy, "a.many.test", &config).is_ok());
        let (_, error) = s_client(&proxy, &["-servername", "other.test"]);
        assert!(error.contains("unrecognized name"), "{error}");
        let (_, error) = s_client(&proxy, &["-noservername"]);
        assert!(error.contains("unrecognized name"), "{error}");
        until("both are counted", || counted(&proxy, "tls_failed") == 2);
    });
}

#[test]
fn plain_http_is_told_that_the_port_speaks_tls() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = site(&issuing.listener(&["a"], ""));
        let mut client = proxy.client();
        client.send(get("/")).unwrap();
        let answer = String::from_utf8(client.read_to_end().unwrap()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("not-tls"), "{answer}");
        assert_logged(&proxy, words::NOT_TLS);
        assert_eq!(counted(&proxy, "tls_failed"), 1);
    });
}

#[test]
fn what_is_no_handshake_is_refused_and_counted() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let listener = issuing.listener(&["a"], "");
        let listener = format!("{listener}\ntimeouts = {{ handshake = '300ms' }}");
        let (_origin, proxy) = site(&listener);
        for (number, garbage) in [
            &b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10"[..],
            b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
            b"\0\0\0\0\0\0\0\0",
        ]
        .into_iter()
        .enumerate()
        {
            let mut client = proxy.client();
            client.send(garbage).unwrap();
            let _ = client.read_to_end();
            until("it is counted", || {
                counted(&proxy, "tls_failed") == number as u64 + 1
            });
        }
        assert_logged(&proxy, words::TLS_HANDSHAKE);
        // The beginning of a ClientHello, and no more.
        let mut slow = proxy.client();
        slow.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            .unwrap();
        assert!(slow.is_closed());
        assert_logged(&proxy, words::TLS_HANDSHAKE_TIMEOUT);
        assert_eq!(counted(&proxy, "tls_failed"), 4);
        // A client that sends nothing has no line.
        let mut silent = proxy.client();
        assert!(silent.is_closed());
        assert_eq!(counted(&proxy, "tls_failed"), 4);
        let lines = proxy.access_log();
        assert_eq!(lines.len(), 4, "{lines:?}");
    });
}

#[test]
fn a_response_that_was_cut_off_is_not_passed_off_as_complete() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let listener = issuing.listener(&["a"], "");
        for fields in ["Content-Length: 10\r\n", "Transfer-Encoding: chunked\r\n"] {
            let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n3\r\nabc\r\n");
            let origin = RawOrigin::start(move |_, mut stream| {
                stream.read_head().unwrap();
                stream.send(&answer).unwrap();
            });
            let origin = origin.unwrap();
            let site = Site {
                listener: &listener,
                ..Site::default()
            };
            let proxy = site.start(&[origin.address.to_string()]);
            let mut client = connect(&proxy, "a.test", &issuing.client(TLS13)).unwrap();
            client.send(get("/")).unwrap();
            // A clean end would be close_notify.
            let error = client.read_to_end().unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{fields}");
        }
    });
}

#[test]
fn a_clean_close_says_so() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let listener = issuing.listener(&["a"], "");
        let listener = format!("{listener}\ntimeouts = {{ idle = '200ms' }}");
        let (_origin, proxy) = site(&listener);
        let config = issuing.client(TLS13);
        let mut client = connect(&proxy, "a.test", &config).unwrap();
        let request = "GET /custom-payload?size=3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        client.send(request).unwrap();
        assert!(!client.read_to_end().unwrap().is_empty());
        // One that was idle for too long.
        let mut client = connect(&proxy, "a.test", &config).unwrap();
        assert_eq!(client.get("/ping").unwrap().status, 200);
        assert!(client.read_to_end().unwrap().is_empty());
    });
}

#[test]
fn a_client_resumes_its_session() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = site(&issuing.listener(&["a"], ""));
        for versions in [TLS13, TLS12] {
            let config = issuing.client(versions);
            for kind in [
                rustls::HandshakeKind::Full,
                rustls::HandshakeKind::Resumed,
                rustls::HandshakeKind::Resumed,
            ] {
                let mut client = connect(&proxy, "a.test", &config).unwrap();
                assert_eq!(client.get("/ping").unwrap().status, 200);
                let tls = client.tls().unwrap();
                assert_eq!(tls.handshake_kind(), Some(kind));
                if versions == TLS13 {
                    // A group that no quantum computer breaks.
                    let group = tls.negotiated_key_exchange_group().unwrap().name();
                    assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
                }
            }
        }
        assert_eq!(counted(&proxy, "tls_handshakes"), 6);
        assert_eq!(counted(&proxy, "tls_resumed"), 4);
    });
}

#[test]
fn certificates_are_read_again_when_their_files_change() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = site(&issuing.listener(&["a"], ""));
        let mut config = (*issuing.client(TLS13)).clone();
        // A resumed session keeps the certificate that it began with.
        config.resumption = rustls::client::Resumption::disabled();
        let config = Arc::new(config);
        let shown = |name: &str| {
            let client = connect(&proxy, name, &config).ok()?;
            let certificates = client.tls()?.peer_certificates()?;
            Some(certificates[0].to_vec())
        };
        let first = shown("a.test").unwrap();
        // An open connection goes on.
        let mut open = connect(&proxy, "a.test", &config).unwrap();
        issuing.issue("a", &["a.test", "b.test"]);
        until("the new one is served", || shown("b.test").is_some());
        let second = shown("a.test").unwrap();
        assert_ne!(first, second);
        assert_eq!(open.get("/ping").unwrap().status, 200);
        // The key of another one leaves the last good pair in use.
        let other = issuing.authority.issue(&["a.test", "c.test"]).unwrap();
        fs::write(issuing.path("a.key"), &other.key).unwrap();
        until("it is said", || proxy.stderr().contains("stays in use"));
        assert_eq!(shown("a.test").unwrap(), second);
        fs::write(issuing.path("a.crt"), &other.chain).unwrap();
        until("it is whole again", || shown("c.test").is_some());
    });
}

#[test]
fn certificates_of_a_folder_are_read_again_when_their_files_change() {
    test(|| {
        let issuing = Issuing::new();
        let folder = issuing.folder.path().join("served");
        fs::create_dir_all(folder.join("certbot")).unwrap();
        let write = |path: &str, names: &[&str]| {
            let issued = issuing.authority.issue(names).unwrap();
            // As renewals come: written beside, and renamed.
            let beside = folder.join("new");
            fs::write(&beside, issued.chain + &issued.key).unwrap();
            fs::rename(&beside, folder.join(path)).unwrap();
        };
        write("bundle.pem", &["a.test"]);
        write("certbot/fullchain.pem", &["b.test"]);
        fs::copy(
            folder.join("certbot/fullchain.pem"),
            folder.join("certbot/privkey.pem"),
        )
        .unwrap();
        let listener = format!(
            "tls = {{ certificates = [{{ folder = '{}' }}], unknown_name = 'refuse' }}",
            folder.display()
        );
        let (_origin, proxy) = site(&listener);
        let config = issuing.client(TLS13);
        let is_served = |name: &str| connect(&proxy, name, &config).is_ok();
        assert!(is_served("a.test") && is_served("b.test"));
        write("bundle.pem", &["a.test", "new.a.test"]);
        until("the renewed bundle is served", || is_served("new.a.test"));
        write("certbot/fullchain.pem", &["b.test", "new.b.test"]);
        fs::copy(
            folder.join("certbot/fullchain.pem"),
            folder.join("certbot/privkey.pem"),
        )
        .unwrap();
        until("the renewed pair is served", || is_served("new.b.test"));
    });
}

#[test]
fn plain_http_is_redirected_and_browsers_are_told_to_stay() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let listener = issuing.listener(&["a"], ", hsts = { max_age = '1d', subdomains = true }");
        let plain = "[[listener]]\nname = \"plain\"\nbind = \"127.0.0.1:0\"\n\
                     redirect_to_https = true\ntrusted_proxies = [\"127.0.0.1\"]";
        let (_origin, proxy) = site(&format!("{listener}\n{plain}"));
        let mut client = RawClient::connect(proxy.address("plain")).unwrap();
        for (method, target) in [("GET", "/a/b?c"), ("POST", "/nothing/is/there")] {
            let request = format!(
                "{method} {target} HTTP/1.1\r\nHost: a.test:8080\r\nContent-Length: 0\r\n\r\n"
            );
            let response = client.ask(request).unwrap();
            assert_eq!(response.status, 308, "{method}");
            let location = response.field("location").unwrap();
            assert_eq!(location, format!("https://a.test{target}"));
            assert!(response.field("strict-transport-security").is_none());
        }
        // The proof that a host is ours is looked for by plain HTTP.
        let challenge = client.get("/.well-known/acme-challenge/a").unwrap();
        assert_eq!(challenge.status, 404);
        // A proxy in front has taken the encryption off.
        let request = "GET /ping HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\n\
                       X-Forwarded-Proto: https\r\n\r\n";
        assert_eq!(client.ask(request).unwrap().status, 200);
        let mut client = connect(&proxy, "a.test", &issuing.client(TLS13)).unwrap();
        for path in ["/ping", "/no-such-page", "/close"] {
            let response = client.get(path).unwrap();
            let told = response.field("strict-transport-security");
            assert_eq!(told, Some("max-age=86400; includeSubDomains"), "{path}");
        }
    });
}

#[test]
fn operators_see_what_is_served_and_what_ends() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test", "b.test", "127.0.0.1"]);
        let ending = |stem: &str, seconds_left: i64| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let now = rcgen::date_time_ymd(1970, 1, 1) + now;
            let issued = issuing.authority.issue_with(&["ends.test"], |params| {
                params.not_before = now - Duration::from_secs(90 * 86_400);
                params.not_after =
                    now - Duration::from_secs(10) + Duration::from_secs((seconds_left + 10) as u64);
            });
            issued.unwrap().write(issuing.folder.path(), stem).unwrap();
        };
        ending("soon", 3 * 86_400 + 1_800);
        ending("past", -5);
        let site = Site {
            listener: &issuing.listener(&["a", "soon", "past"], ""),
            server: "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let (_origin, proxy) = site.with_origin();
        for (sample, expected) in [
            ("certificates", 3),
            ("certificates_expired", 1),
            ("certificates_ending", 1),
            ("certificates_unreadable", 0),
        ] {
            assert_eq!(counted(&proxy, sample), expected, "{sample}");
        }
        until("it is said", || {
            let said = proxy.stderr();
            said.contains("past.crt has expired") && said.contains("soon.crt expires in 3d00h")
        });
        let shown = |json: bool| {
            let mut command = Command::new(crate::setup::program());
            command
                .args(["certificates", "--config"])
                .arg(proxy.path("evenkeel.toml"));
            command.args(json.then_some("--json"));
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let text = shown(false);
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[1].contains("expired") && lines[1].contains("past.crt"),
            "{text}"
        );
        assert!(
            lines[2].contains("3d00h") && lines[2].contains("soon.crt"),
            "{text}"
        );
        assert!(lines[3].contains("a.test, b.test, 127.0.0.1"), "{text}");
        assert!(
            text.contains("ECDSA P-256") && text.contains("CN=Test Authority"),
            "{text}"
        );
        fs::write(issuing.path("a.key"), "nothing").unwrap();
        until("the broken one is shown", || shown(false).contains("a.key"));
        assert_eq!(counted(&proxy, "certificates_unreadable"), 1);
        let json: serde_json::Value = serde_json::from_str(&shown(true)).unwrap();
        assert_eq!(json["certificates"].as_array().unwrap().len(), 3);
        assert_eq!(json["unreadable"][0]["is_kept"], true);
        assert!(!shown(true).contains("PRIVATE"));
    });
}

#[test]
fn tcp_is_carried_from_tls() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let listener = issuing.listener(&["a"], "");
        let listener = format!("{listener}\nprotocol = 'tcp'");
        let origin = RawOrigin::start(|_, mut stream| {
            let question = stream.read_len(5).unwrap();
            stream.send([b"you said ", &question[..]].concat()).unwrap();
        });
        let origin = origin.unwrap();
        let site = Site {
            listener: &listener,
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        for versions in [TLS13, TLS12] {
            let mut client = connect(&proxy, "a.test", &issuing.client(versions)).unwrap();
            client.send("hello").unwrap();
            assert_eq!(client.read_to_end().unwrap(), b"you said hello");
        }
        // Its endpoint may learn the name that was asked for.
        let origin = RawOrigin::start(|_, mut stream| {
            let fixed = stream.read_len(16).unwrap();
            let rest = stream.read_len(usize::from(fixed[15])).unwrap();
            stream.send([fixed, rest].concat()).unwrap();
        })
        .unwrap();
        let site = Site {
            upstream: "proxy_protocol = 'v2'",
            ..site
        };
        let told = site.start(&[origin.address.to_string()]);
        let mut client = connect(&told, "a.test", &issuing.client(TLS13)).unwrap();
        client.send("hello").unwrap();
        let header = client.read_to_end().unwrap();
        let parsed = evenkeel_proto::proxy_protocol::parse(&header)
            .unwrap()
            .unwrap();
        let authority = parsed.connection(&header).extensions.authority;
        assert_eq!(authority, Some(&b"a.test"[..]));
        // A connection without TLS is closed silently.
        let mut plain = TcpStream::connect(proxy.address("web")).unwrap();
        plain
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        plain.write_all(b"hello").unwrap();
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    });
}

/// The output of `evenkeel check` for a configuration in this folder, and whether it passes.
fn checked(dir: &TempDir, config: &str) -> (bool, String) {
    let file = dir.join("evenkeel.toml");
    let config = config.replace("$DIR", &dir.path().display().to_string());
    fs::write(&file, config).unwrap();
    let mut command = Command::new(crate::setup::program());
    let output = command.args(["check", "--config"]).arg(&file).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), text)
}

#[test]
fn what_is_wrong_with_a_certificate_is_said_before_the_start() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        issuing.issue("b", &["b.test"]);
        fs::copy(issuing.path("b.key"), issuing.path("a.key")).unwrap();
        let dir = TempDir::new().unwrap();
        let check = |listener: &str| {
            let site = Site {
                listener,
                ..Site::default()
            };
            checked(&dir, &site.config(&["127.0.0.1:9".to_owned()]))
        };
        let (is_good, text) = check(&issuing.listener(&["b"], ""));
        assert!(is_good, "{text}");
        for (listener, expected) in [
            (issuing.listener(&["a"], ""), "a.key"),
            (issuing.listener(&["missing"], ""), "missing.crt"),
            (
                "tls = { certificates = [{ }] }".to_owned(),
                "names no certificate",
            ),
            ("tls = { }".to_owned(), "certificates"),
            (
                issuing.listener(&["b"], ", client = { ca = 'missing.pem' }"),
                "missing.pem",
            ),
            (
                issuing.listener(&["b"], ", ciphers = ['ECDHE-ECDSA-AES128-GCM-SHA25']"),
                "did you mean",
            ),
            (
                issuing.listener(
                    &["b"],
                    ", preset = 'modern', ciphers = ['ECDHE-ECDSA-AES128-GCM-SHA256']",
                ),
                "TLS 1.2",
            ),
        ] {
            let (is_good, text) = check(&listener);
            assert!(!is_good && text.contains(expected), "{listener}\n{text}");
            assert!(!text.contains("PRIVATE KEY"), "{text}");
        }
    });
}

/// The secrets that a client logs.
#[derive(Debug, Default)]
struct Secrets(Mutex<Vec<String>>);

impl rustls::KeyLog for Secrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |it: &[u8]| it.iter().map(|it| format!("{it:02x}")).collect::<String>();
        let line = format!("{label} {} {}", hex(client_random), hex(secret));
        self.0.lock().unwrap().push(line);
    }
}

#[test]
fn secrets_are_logged_where_that_is_asked_for() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let log = issuing.folder.join("keys.log");
        let more = format!(", key_log = '{}'", log.display());
        let (_origin, proxy) = site(&issuing.listener(&["a"], &more));
        for versions in [TLS13, TLS12] {
            let secrets = Arc::new(Secrets::default());
            let mut config = ClientConfig::clone(&issuing.client(versions));
            config.key_log = secrets.clone();
            let mut client = connect(&proxy, "a.test", &Arc::new(config)).unwrap();
            assert_eq!(client.get("/ping").unwrap().status, 200);
            let written = fs::read_to_string(&log).unwrap();
            let secrets = secrets.0.lock().unwrap();
            assert!(!secrets.is_empty(), "{versions:?}");
            for line in &*secrets {
                assert!(written.lines().any(|it| it == line), "{line}: {written}");
            }
        }
        let mode = fs::metadata(&log).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}
