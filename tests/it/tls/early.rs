//! Requests before the end of the handshake (0-RTT), by `openssl s_client`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawOrigin};
use rustls::{ClientConfig, ClientConnection};

use super::{Issuing, TLS13, connect, counted};
use crate::setup::{Site, test};

/// The program before an origin that answers with the head of the request.
fn echoing(issuing: &Issuing, more: &str) -> (RawOrigin, Proxy) {
    let origin = RawOrigin::start(|_, mut stream| {
        while let Ok(head) = stream.read_head() {
            let head = format!("at the origin: {}", head.trim_end().replace("\r\n", "; "));
            let len = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{head}");
            if stream.send(answer).is_err() {
                return;
            }
        }
    })
    .unwrap();
    let proxy = Site {
        listener: &(issuing.listener(&["a"], ", early_data = true") + more),
        server: "[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    }
    .start(&[origin.address.to_string()]);
    (origin, proxy)
}

/// How `s_client` sends a request.
#[derive(Clone, Copy, PartialEq)]
enum Sends {
    /// After the handshake. It keeps its session.
    Late,
    /// At once, with the session of before.
    Early,
    /// The same, and it leaves after the handshake.
    Copy,
}

/// The output of `s_client`.
fn ask(issuing: &Issuing, proxy: &Proxy, request: &str, sends: Sends) -> String {
    let (request_file, session) = (issuing.path("request"), issuing.path("session.pem"));
    fs::write(&request_file, request).unwrap();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-servername", "a.test", "-connect"]);
    command.arg(proxy.address("web"));
    if sends != Sends::Copy {
        command.arg("-ign_eof");
    }
    if sends == Sends::Late {
        command.args(["-sess_out", &session]);
        command.stdin(fs::File::open(&request_file).unwrap());
    } else {
        command.args(["-sess_in", &session, "-early_data", &request_file]);
        command.stdin(Stdio::null());
    }
    let output = command.output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
const POST: &str =
    "POST /b HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";

/// With this client, the handshake may end before the request is processed. The client that
/// keeps still shows that it need not end.
#[test]
fn a_safe_request_before_the_end_of_the_handshake_is_taken_once() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = echoing(&issuing, "");
        let first = ask(&issuing, &proxy, GET, Sends::Late);
        assert!(first.contains("at the origin: GET /a"), "{first}");
        assert!(!first.contains("Early-Data"), "{first}");
        let early = ask(&issuing, &proxy, GET, Sends::Early);
        assert!(early.contains("Early data was accepted"), "{early}");
        assert!(early.contains("at the origin: GET /a"), "{early}");
        // A copy finds no session, and the request in it is not taken.
        let copy = ask(&issuing, &proxy, GET, Sends::Copy);
        assert!(copy.contains("Early data was rejected"), "{copy}");
        assert!(!copy.contains("at the origin"), "{copy}");
    });
}

#[test]
fn another_request_waits_for_the_end_of_the_handshake() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = echoing(&issuing, "");
        for request in [POST, &GET.replace("GET", "DELETE")] {
            ask(&issuing, &proxy, GET, Sends::Late);
            let early = ask(&issuing, &proxy, request, Sends::Early);
            assert!(early.contains("Early data was accepted"), "{early}");
            assert!(early.contains("at the origin: "), "{early}");
            assert!(!early.contains("Early-Data"), "{early}");
        }
    });
}

/// The bytes that a client gets if it sends a request within a handshake, and never ends the
/// handshake. The client waits for the end of the connection.
fn ask_and_keep_still(proxy: &Proxy, config: &Arc<ClientConfig>, request: &str) -> String {
    ask_early(proxy, config, request, |_| ())
}

/// The same; `then` is done before it reads.
fn ask_early(
    proxy: &Proxy,
    config: &Arc<ClientConfig>,
    request: &str,
    then: impl FnOnce(&mut TcpStream),
) -> String {
    connect(proxy, "a.test", config)
        .unwrap()
        .get("/first")
        .unwrap();
    let name = "a.test".try_into().unwrap();
    let mut tls = ClientConnection::new(config.clone(), name).unwrap();
    let mut early = tls.early_data().expect("a session with early data");
    early.write_all(request.as_bytes()).unwrap();
    let mut stream = TcpStream::connect(proxy.address("web")).unwrap();
    // Longer than all timeouts that may end it rightly.
    let longest = Duration::from_secs(20);
    stream.set_read_timeout(Some(longest)).unwrap();
    while tls.wants_write() {
        tls.write_tls(&mut stream).unwrap();
    }
    then(&mut stream);
    let mut records = Vec::new();
    stream.read_to_end(&mut records).unwrap();
    let (mut records, mut text) = (&records[..], String::new());
    while tls.read_tls(&mut records).unwrap() > 0 {
        tls.process_new_packets().unwrap();
        // The connection goes on, as far as this end can tell.
        let _ = tls.reader().read_to_string(&mut text);
    }
    text
}

#[test]
fn a_handshake_that_does_not_end_has_its_time_whatever_was_answered() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let timeouts = "\ntimeouts = { handshake = \"500ms\", idle = \"60s\" }\n";
        let (_origin, proxy) = echoing(&issuing, timeouts);
        let mut config = ClientConfig::clone(&issuing.client(TLS13));
        config.enable_early_data = true;
        let config = Arc::new(config);
        let get = GET.replace("Connection: close\r\n", "");
        let answer = ask_and_keep_still(&proxy, &config, &get);
        assert!(answer.contains("; Early-Data: 1"), "{answer}");
        let post = POST.replace("Connection: close\r\n", "");
        let answer = ask_and_keep_still(&proxy, &config, &post);
        assert_eq!(answer, "", "the request may be a copy");
        let late = || {
            let lines = proxy.access_log_json().into_iter();
            let late = lines.filter(|it| it["end"] == "tls-handshake-timeout");
            late.collect::<Vec<_>>()
        };
        until("both are logged", || late().len() == 2);
        for line in late() {
            assert_eq!(line["status"], 0, "{line}");
        }
        assert_eq!(counted(&proxy, "tls_failed"), 2);
    });
}

#[test]
fn a_handshake_that_goes_on_after_the_last_answer_does_not_reset_it() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = echoing(&issuing, "");
        let mut config = ClientConfig::clone(&issuing.client(TLS13));
        config.enable_early_data = true;
        let answer = ask_early(&proxy, &Arc::new(config), GET, |stream| {
            until("both are answered", || counted(&proxy, "requests") == 2);
            // The connection had time to end.
            std::thread::sleep(Duration::from_millis(100));
            const CHANGE_CIPHER_SPEC: &[u8] = &[20, 3, 3, 0, 1, 1];
            stream.write_all(CHANGE_CIPHER_SPEC).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            // This fails where the first has met a closed socket.
            stream.write_all(CHANGE_CIPHER_SPEC).unwrap();
        });
        assert!(answer.contains("at the origin: GET /a"), "{answer}");
    });
}

#[test]
fn early_data_is_off_unless_it_is_wanted() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let (_origin, proxy) = super::site(&issuing.listener(&["a"], ""));
        let first = ask(&issuing, &proxy, GET, Sends::Late);
        assert!(first.contains("Max Early Data: 0"), "{first}");
    });
}
