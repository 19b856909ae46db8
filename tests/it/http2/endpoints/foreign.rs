//! Third-party servers of HTTP/2. A test fails if its server is missing.

use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::Running;
use evenkeel_testkit::{H2Client, Proxy, TempDir};

use super::STATUS;
use crate::foreign_origins::start_nginx;
use crate::setup::{Site, figures, pattern, test};

/// The program before a server that speaks HTTP/2 without TLS.
pub fn before(endpoint: &str) -> Proxy {
    let site = Site {
        listener: "h2c = true\nlimits = { head = \"64KiB\" }",
        upstream: "protocol = \"h2\"",
        server: STATUS,
        ..Site::default()
    };
    site.start(&[endpoint.to_owned()])
}

/// Starts a server that prints its port, and the program before it.
pub fn start(mut command: Command, args: &[&str]) -> (Running, Proxy) {
    command.args(args);
    let mut server = Running::start(command).unwrap();
    let port = server.line().unwrap();
    let proxy = before(&format!("127.0.0.1:{port}"));
    (server, proxy)
}

/// Clients that ask for `/echo`, `/large` and `/small` at once; each gets its own answer.
fn exchange(proxy: &Proxy) {
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let mut client = proxy.client();
                for round in 0..8 {
                    let body = pattern(1 + 40_000 * round + number);
                    let head = format!(
                        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    let response = client.ask([head.as_bytes(), &body].concat()).unwrap();
                    assert_eq!(response.status, 200, "{response:?}");
                    assert!(response.body == body, "another body");
                    let response = client.get("/large").unwrap();
                    assert!(response.body == pattern(1_000_000), "another file");
                }
            });
        }
    });
    let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
    for stream in 0..20 {
        client.get(2 * stream + 1, "/small").unwrap();
    }
    for stream in 0..20 {
        let response = client.response(2 * stream + 1).unwrap();
        assert!(response.body == pattern(100_000), "another file");
    }
    let endpoint = &figures(proxy)["upstreams"][0]["endpoints"][0];
    assert_eq!(endpoint["connects"], 1, "{endpoint}");
    assert_eq!(endpoint["failures"], 0, "{endpoint}");
}

pub const NODE_SERVER: &str = r#"
const http2 = require('http2');
const large = Buffer.alloc(1000000);
for (let i = 0; i < large.length; i++) large[i] = 97 + i % 26;
const server = http2.createServer();
server.on('stream', (stream, headers) => {
  if (headers[':path'] === '/echo') {
    stream.respond({ ':status': 200 }, { waitForTrailers: true });
    stream.on('wantTrailers', () => stream.sendTrailers({ 'x-checked': 'yes' }));
    stream.pipe(stream);
  } else if (headers[':path'] === '/hints') {
    stream.additionalHeaders({ ':status': 103, link: '</a.css>' });
    stream.respond({ ':status': 200 });
    stream.end('hinted');
  } else if (headers[':path'] === '/early') {
    stream.respond({ ':status': 413 });
    stream.end('too much');
  } else {
    const file = headers[':path'] === '/small' ? large.subarray(0, 100000) : large;
    stream.respond({ ':status': 200, 'content-length': file.length });
    stream.end(file);
  }
  stream.on('error', () => {});
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"#;

#[test]
fn node() {
    within(Duration::from_secs(60), || {
        let (_server, proxy) = start(Command::new("node"), &["-e", NODE_SERVER]);
        exchange(&proxy);
        let mut client = proxy.client();
        let response = client.get("/hints").unwrap();
        assert_eq!((response.interim, response.status), (vec![103], 200));
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        let response = client.ask(1, "/echo").unwrap();
        assert_eq!(
            response.trailers,
            [("x-checked".to_owned(), "yes".to_owned())]
        );
        // The rest of the request is not needed.
        let mut client = proxy.client();
        client
            .send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
            .unwrap();
        assert_eq!(client.read_response("POST").unwrap().status, 413);
    });
}

const GO_SERVER: &str = r#"
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
)

func main() {
	large := make([]byte, 1000000)
	for i := range large {
		large[i] = byte('a' + i%26)
	}
	http.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	http.HandleFunc("/small", func(w http.ResponseWriter, r *http.Request) { w.Write(large[:100000]) })
	http.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) { w.Write(large) })
	http.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) { 
		fmt.Fprint(w, r.Proto, " ", r.Host)
		if long := r.Header.Get("X-Long"); long != "" {
			fmt.Fprint(w, " ", len(long))
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := &http.Server{Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	panic(server.Serve(listener))
}
"#;

/// Go compiles its server first.
#[test]
fn go() {
    within(Duration::from_secs(150), || {
        let dir = TempDir::new().unwrap();
        let (source, server) = (dir.join("main.go"), dir.join("server"));
        std::fs::write(&source, GO_SERVER).unwrap();
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&server).arg(&source);
        let built = evenkeel_testkit::process::run(build, Duration::from_secs(120)).unwrap();
        assert!(built.status.success(), "{built:?}");
        let (_server, proxy) = start(Command::new(&server), &[]);
        exchange(&proxy);
        let text = proxy.client().get("/who").unwrap().text();
        assert_eq!(text, "HTTP/2.0 test.example");
        // A head of several frames.
        let long = "x".repeat(50_000);
        let request = format!("GET /who HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n");
        let text = proxy.client().ask(request).unwrap().text();
        assert_eq!(text, "HTTP/2.0 a 50000");
    });
}

/// Its connections end after seven requests each: none is lost, whatever its method.
#[test]
fn nginx() {
    test(|| {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.join("large"), pattern(1_000_000)).unwrap();
        let socket = dir.join("h2.sock").display().to_string();
        let server = format!(
            "listen unix:{socket} http2; client_max_body_size 10m; keepalive_requests 7;
             root {at}; location = /post {{ return 200 \"$server_protocol\"; }}",
            at = dir.path().display(),
        );
        let _nginx = start_nginx(&dir, "", &server);
        let proxy = before(&format!("unix:{socket}"));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let mut client = proxy.client();
                    for _ in 0..20 {
                        let post =
                            "POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
                        let response = client.ask(post).unwrap();
                        assert_eq!((response.status, &*response.text()), (200, "HTTP/2.0"));
                    }
                    let response = client.get("/large").unwrap();
                    assert!(response.body == pattern(1_000_000), "another file");
                });
            }
        });
    });
}
