//! Third-party clients. A test fails if its client is missing.

use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::process::{Running, python, run};
use evenkeel_testkit::{Proxy, TempDir};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderValue};
use hyper_util::rt::TokioIo;

use crate::setup::{Site, pattern, site, test};

/// Runs a client to its end and returns its standard output.
#[track_caller]
pub fn output_of(mut command: Command, args: &[&str]) -> String {
    command.args(args);
    let output = run(command, Duration::from_secs(25)).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{args:?}: {}: {stderr}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
pub fn curl(args: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "20"]);
    output_of(command, args)
}

#[test]
fn curl_gets() {
    test(|| {
        let (origin, proxy) = site();
        assert_eq!(
            curl(&[&proxy.url("/ping"), &proxy.url("/5"), &proxy.url("/3")]),
            "pongabcdeabc"
        );
        assert_eq!(
            curl(&[&proxy.url("/chunked/100000")]).into_bytes(),
            pattern(100_000)
        );
        assert_eq!(curl(&["--http1.0", &proxy.url("/chunked/5")]), "abcde");
        assert_eq!(curl(&["--http1.0", &proxy.url("/5")]), "abcde");
        assert_eq!(curl(&[&proxy.url("/close/5")]), "abcde");
        let head = curl(&["--head", &proxy.url("/large-payload")]);
        assert!(
            head.to_lowercase().contains("content-length: 200000"),
            "{head}"
        );
        assert_eq!(origin.stats().in_flight, 0);
    });
}

#[test]
fn curl_posts() {
    test(|| {
        let (_origin, proxy) = site();
        let dir = TempDir::new().unwrap();
        let file = dir.join("body");
        std::fs::write(&file, pattern(3_000_000)).unwrap();
        let data = format!("@{}", file.display());
        let echo = proxy.url("/echo");
        // Above a megabyte curl sends Expect: 100-continue by itself.
        let with_length = curl(&["--data-binary", &data, &echo]);
        assert!(with_length.into_bytes() == pattern(3_000_000));
        let in_chunks = curl(&[
            "-H",
            "Transfer-Encoding: chunked",
            "--data-binary",
            &data,
            &echo,
        ]);
        assert!(in_chunks.into_bytes() == pattern(3_000_000));
        let expecting = curl(&["-H", "Expect: 100-continue", "--data", "hello", &echo]);
        assert_eq!(expecting, "hello");
        assert_eq!(curl(&["--data", "x", &proxy.url("/early")]), "early");
    });
}

const HTTP_CLIENT: &str = r#"
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=15)
for _ in range(20):
    connection.request("GET", "/ping")
    response = connection.getresponse()
    assert response.status == 200 and response.read() == b"pong"
body = b"0123456789" * 20000
connection.request("POST", "/echo", body=body)
assert connection.getresponse().read() == body
connection.request("POST", "/echo", body=iter([body, b"", body]), encode_chunked=True,
                   headers={"Transfer-Encoding": "chunked"})
assert connection.getresponse().read() == body + body
connection.request("HEAD", "/large-payload")
response = connection.getresponse()
assert response.getheader("Content-Length") == "200000" and response.read() == b""
for path, status, length in [("/status/204", 204, 0), ("/status/304", 304, 0),
                             ("/chunked/100000", 200, 100000), ("/nowhere", 404, None)]:
    connection.request("GET", path)
    response = connection.getresponse()
    data = response.read()
    assert response.status == status, (path, response.status)
    assert length is None or len(data) == length, (path, len(data))
print("done")
"#;

#[test]
fn python_http_client() {
    test(|| {
        let (_origin, proxy) = site();
        let printed = output_of(python(), &["-c", HTTP_CLIENT, proxy.address("web")]);
        assert_eq!(printed.trim(), "done");
    });
}

const WEBSOCKET_SERVER: &str = r#"
from websockets.sync.server import serve
def echo(connection):
    for message in connection:
        connection.send(message)
with serve(echo, "127.0.0.1", 0, max_size=None) as server:
    print(server.socket.getsockname()[1], flush=True)
    server.serve_forever()
"#;

const WEBSOCKET_CLIENT: &str = r#"
import sys
from websockets.sync.client import connect
with connect("ws://" + sys.argv[1] + "/chat", max_size=None, open_timeout=10) as connection:
    for message in ["hello", b"\x00\x01", "x" * 1000000]:
        connection.send(message)
        assert connection.recv(timeout=10) == message
    assert connection.ping().wait(10)
print("done")
"#;

#[test]
fn websockets_both_ends() {
    test(|| {
        let mut server = python();
        server.args(["-c", WEBSOCKET_SERVER]);
        let mut server = Running::start(server).unwrap();
        let port = server.line().unwrap();
        let proxy = Site::default().start(&[format!("127.0.0.1:{port}")]);
        let printed = output_of(python(), &["-c", WEBSOCKET_CLIENT, proxy.address("web")]);
        assert_eq!(printed.trim(), "done");
    });
}

#[test]
fn hyper_client() {
    test(|| {
        let (_origin, proxy) = site();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(ask_with_hyper(&proxy));
    });
}

async fn ask_with_hyper(proxy: &Proxy) {
    type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;
    let stream = tokio::net::TcpStream::connect(proxy.socket_addr("web"))
        .await
        .unwrap();
    let handshake = hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let plain = |body: Vec<u8>| Full::new(Bytes::from(body)).boxed_unsync();

    for len in [0, 10, 100_000] {
        sender.ready().await.unwrap();
        let request = hyper::Request::post("/echo")
            .header("host", "a")
            .body(plain(pattern(len)));
        let response = sender.send_request(request.unwrap()).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body == pattern(len), "{len} bytes");
    }

    sender.ready().await.unwrap();
    let trailers = async {
        let value = HeaderValue::from_static("yes");
        Some(Ok(HeaderMap::from_iter([(
            "x-checked".parse().unwrap(),
            value,
        )])))
    };
    let body = Full::new(Bytes::from(pattern(50_000)))
        .with_trailers(trailers)
        .boxed_unsync();
    let request = hyper::Request::post("/echo")
        .header("host", "a")
        .header("transfer-encoding", "chunked")
        .header("trailer", "x-checked")
        .body(body);
    let response = sender.send_request(request.unwrap()).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-checked"], "yes");
    assert!(collected.to_bytes() == pattern(50_000));

    drop(sender);
    connection.await.unwrap().unwrap();
}

#[test]
fn ab_with_and_without_keep_alive() {
    test(|| {
        let (origin, proxy) = site();
        for args in [&["-k"][..], &[][..]] {
            let mut ab = Command::new("ab");
            ab.args(["-q", "-n", "2000", "-c", "20"]).args(args);
            let report = output_of(ab, &[&proxy.url("/medium-payload")]);
            assert!(report.contains("Complete requests:      2000"), "{report}");
            assert!(report.contains("Failed requests:        0"), "{report}");
            assert!(!report.contains("Non-2xx"), "{report}");
        }
        assert_eq!(origin.stats().requests, 4000);
    });
}

#[test]
fn wrk_reports_no_errors() {
    test(|| {
        let (origin, proxy) = site();
        let args = ["-t1", "-c16", "-d1s", &proxy.url("/ping")];
        let report = output_of(Command::new("wrk"), &args);
        assert!(report.contains("Requests/sec"), "{report}");
        assert!(!report.contains("Socket errors"), "{report}");
        assert!(!report.contains("Non-2xx"), "{report}");
        assert!(origin.stats().requests > 100, "{report}");
    });
}
