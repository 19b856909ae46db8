//! Third-party origins. A test fails if its origin is missing.

use std::process::Command;

use evenkeel_testkit::process::{Peer, Running};
use evenkeel_testkit::{Proxy, TempDir};

use crate::setup::{Site, pattern, test};
use evenkeel_testkit::process::python;

/// Starts an origin that prints its port, and the program before it.
fn before(mut command: Command, args: &[&str]) -> (Running, Proxy) {
    command.args(args);
    let mut origin = Running::start(command).unwrap();
    let port = origin.line().unwrap();
    let proxy = Site::default().start(&[format!("127.0.0.1:{port}")]);
    (origin, proxy)
}

/// A folder with a large and a small file.
fn files() -> TempDir {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.join("small.txt"), "small\n").unwrap();
    std::fs::write(dir.join("large.bin"), pattern(5_000_000)).unwrap();
    dir
}

const HTTP_SERVER: &str = r#"
import http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = sys.argv[2]
    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def __init__(self, *args):
        super().__init__(*args, directory=sys.argv[1])
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

#[test]
fn python_http_server() {
    test(|| {
        for version in ["HTTP/1.0", "HTTP/1.1"] {
            let files = files();
            let folder = files.path().display().to_string();
            let (_origin, proxy) = before(python(), &["-c", HTTP_SERVER, &folder, version]);
            let mut client = proxy.client();
            for _ in 0..5 {
                assert_eq!(
                    client.get("/small.txt").unwrap().text(),
                    "small\n",
                    "{version}"
                );
                assert!(client.get("/large.bin").unwrap().body == pattern(5_000_000));
                assert_eq!(client.get("/nowhere").unwrap().status, 404);
                let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
                assert_eq!(client.ask(request).unwrap().text(), "hello");
            }
        }
    });
}

const NODE_SERVER: &str = r#"
const http = require('http');
const server = http.createServer((request, response) => {
  if (request.url === '/echo') {
    response.writeHead(200, { 'Trailer': 'X-Checked' });
    request.on('data', data => response.write(data));
    request.on('end', () => {
      response.addTrailers({ 'X-Checked': String(request.trailers['x-checked']) });
      response.end();
    });
  } else if (request.url === '/hints') {
    response.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' });
    response.end('after the hints');
  } else {
    response.end('node\n');
  }
});
server.on('upgrade', (request, socket) => {
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n');
  socket.pipe(socket);
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"#;

#[test]
fn node_http() {
    test(|| {
        let (_origin, proxy) = before(Command::new("node"), &["-e", NODE_SERVER]);
        let mut client = proxy.client();
        for _ in 0..5 {
            assert_eq!(client.get("/").unwrap().text(), "node\n");
        }
        let request = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
                       Trailer: X-Checked\r\n\r\n5\r\nhello\r\n0\r\nX-Checked: yes\r\n\r\n";
        let response = client.ask(request).unwrap();
        assert_eq!(response.text(), "hello");
        assert_eq!(response.trailers, "X-Checked: yes\r\n");
        let response = client.get("/hints").unwrap();
        assert_eq!(
            (response.interim.as_slice(), response.text().as_str()),
            ([103].as_slice(), "after the hints")
        );
        let request =
            "GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        assert_eq!(client.ask(request).unwrap().status, 101);
        client.send("through the tunnel").unwrap();
        assert_eq!(client.read_len(18).unwrap(), b"through the tunnel");
    });
}

/// Starts nginx with a server of these lines, at `nginx.sock` in the folder.
pub fn start_nginx(dir: &TempDir, http: &str, server: &str) -> Running {
    let at = dir.path().display();
    let text = format!(
        "daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/error.log;
         user root;
         events {{ worker_connections 64; }}
         http {{
           access_log off; {http}
           client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;
           fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
           server {{ listen unix:{at}/nginx.sock; {server} }}
         }}"
    );
    Running::start_peer(Peer::Nginx, dir, &text, &dir.join("nginx.sock")).unwrap()
}

#[test]
fn nginx() {
    test(|| {
        let dir = files();
        let http = "keepalive_requests 3;
            gzip on; gzip_min_length 1; gzip_proxied any; gzip_types *;";
        let _origin = start_nginx(&dir, http, &format!("root {};", dir.path().display()));
        let socket = dir.join("nginx.sock");
        let proxy = Site::default().start(&[format!("unix:{}", socket.display())]);
        let mut client = proxy.client();
        // Its connections end after three requests each.
        for _ in 0..20 {
            assert_eq!(client.get("/small.txt").unwrap().text(), "small\n");
        }
        assert!(client.get("/large.bin").unwrap().body == pattern(5_000_000));
        let ask = |fields: &str| format!("GET /large.bin HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let response = client.ask(ask("Range: bytes=26-28")).unwrap();
        assert_eq!((response.status, response.text().as_str()), (206, "abc"));
        let modified = response.field("last-modified").unwrap().to_owned();
        let response = client
            .ask(ask(&format!("If-Modified-Since: {modified}")))
            .unwrap();
        assert_eq!(response.status, 304);
        let response = client.ask(ask("Accept-Encoding: gzip")).unwrap();
        assert_eq!(response.field("content-encoding"), Some("gzip"));
        assert_eq!(response.field("transfer-encoding"), Some("chunked"));
        let response = client
            .ask("HEAD /large.bin HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_eq!(response.field("content-length"), Some("5000000"));
        assert_eq!(client.get("/small.txt").unwrap().text(), "small\n");
    });
}
