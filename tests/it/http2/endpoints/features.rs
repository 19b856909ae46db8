//! The features of routes, before endpoints that speak HTTP/2.

use std::sync::{Arc, Mutex};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::http2::Ends;
use evenkeel_testkit::{H2Client, H2Request, Proxy, RawOrigin};

use super::scripted;
use crate::setup::{get, pattern, program, test};

/// An endpoint that records its requests.
struct Asked {
    origin: RawOrigin,
    requests: Arc<Mutex<Vec<H2Request>>>,
}

impl Asked {
    fn start(name: &'static str) -> Self {
        let requests = Arc::<Mutex<Vec<H2Request>>>::default();
        let kept = requests.clone();
        let origin = scripted(&[], move |_, server| {
            loop {
                let request = server.request()?;
                let stream = request.stream;
                kept.lock().unwrap().push(request.clone());
                let (status, fields): (_, &[(&str, &str)]) = match request.path() {
                    "/cached" => ("200", &[("cache-control", "max-age=60")]),
                    "/verify" if request.field("cookie") == Some("s=kim") => {
                        ("200", &[("remote-user", "kim")])
                    }
                    "/verify" => ("403", &[]),
                    _ => ("200", &[]),
                };
                let head = [
                    &[
                        (":status", status),
                        ("content-type", "text/plain"),
                        ("x-name", name),
                    ],
                    fields,
                ]
                .concat();
                server.headers(stream, &head, Ends::Later)?;
                let body = match request.path() {
                    "/zipped" => "long ".repeat(10_000),
                    _ => format!("{} of {}", request.body.len(), request.path()),
                };
                server.data(stream, body, Ends::Now)?;
            }
        });
        Asked { origin, requests }
    }

    fn address(&self) -> String {
        self.origin.address.to_string()
    }

    fn requests(&self, path: &str) -> Vec<H2Request> {
        let requests = self.requests.lock().unwrap();
        let such = requests.iter().filter(|it| it.path() == path);
        such.cloned().collect()
    }
}

/// A program whose routes do all that, before two endpoints, a copy and a verifier.
struct Shop {
    apps: [Asked; 2],
    copy: Asked,
    verifier: Asked,
    proxy: Proxy,
}

impl Shop {
    fn new() -> Self {
        let apps = [Asked::start("one"), Asked::start("two")];
        let (copy, verifier) = (Asked::start("copy"), Asked::start("verifier"));
        let endpoints = apps.each_ref().map(Asked::address);
        let config = format!(
            "[server]\nworkers = 1\n[access_log]\npath = '$DIR/access.log'\nformat = 'json'\n\
             [status]\nbind = '127.0.0.1:0'\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\nh2c = true\n\
             [[route]]\nmatch = {{ path = '/cached' }}\nupstream = 'app'\n\
             cache = {{ heuristic = true }}\n\
             [[route]]\nmatch = {{ path = '/zipped' }}\nupstream = 'app'\ncompress = true\n\
             [[route]]\nmatch = {{ path = '/copied' }}\nupstream = 'app'\nmirror = 'copy'\n\
             [[route]]\nmatch = {{ path = '/private' }}\nupstream = 'app'\n\
             auth = {{ forward = 'verifier', path = '/verify', copy = ['Remote-User'] }}\n\
             [[route]]\nmatch = {{ path = '/sticky' }}\nupstream = 'app'\nsticky = 'node'\n\
             [[route]]\nupstream = 'buffered'\n\
             [upstream.app]\nendpoints = {endpoints:?}\nprotocol = 'h2'\n\
             balance = 'round-robin'\n\
             [upstream.buffered]\nendpoints = {endpoints:?}\nprotocol = 'h2'\n\
             buffer = {{ request = '1MiB', response = '1MiB' }}\n\
             [upstream.copy]\nendpoints = [{:?}]\nprotocol = 'h2'\n\
             [upstream.verifier]\nendpoints = [{:?}]\nprotocol = 'h2'\n",
            copy.address(),
            verifier.address(),
        );
        Shop {
            proxy: Proxy::start(program(), &config).unwrap(),
            apps,
            copy,
            verifier,
        }
    }

    /// Requests for a path at the endpoints of the application.
    fn asked(&self, path: &str) -> Vec<H2Request> {
        let of_app = self.apps.iter().flat_map(|it| it.requests(path));
        of_app.collect()
    }
}

#[test]
fn a_response_is_cached() {
    test(|| {
        let shop = Shop::new();
        let mut client = shop.proxy.client();
        for _ in 0..5 {
            assert_eq!(client.get("/cached").unwrap().text(), "0 of /cached");
        }
        assert_eq!(shop.asked("/cached").len(), 1);
    });
}

#[test]
fn a_response_is_compressed() {
    test(|| {
        let shop = Shop::new();
        let mut client = shop.proxy.client();
        let request = "GET /zipped HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
        let response = client.ask(request).unwrap();
        assert_eq!(response.field("content-encoding"), Some("gzip"));
        assert!(response.body.len() < 5_000, "{}", response.body.len());
        let response = client.get("/zipped").unwrap();
        assert_eq!(response.text(), "long ".repeat(10_000));
    });
}

#[test]
fn a_request_is_copied() {
    test(|| {
        let shop = Shop::new();
        let mut client = shop.proxy.client();
        let post = "POST /copied HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(client.ask(post).unwrap().text(), "5 of /copied");
        let chunked = "POST /copied HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n4;x\r\nmore\r\n0\r\n\r\n";
        assert_eq!(client.ask(chunked).unwrap().text(), "7 of /copied");
        assert_eq!(client.get("/copied").unwrap().text(), "0 of /copied");
        until("all were copied", || {
            shop.copy.requests("/copied").len() == 3
        });
        let mut bodies: Vec<_> = shop
            .copy
            .requests("/copied")
            .into_iter()
            .map(|it| it.body)
            .collect();
        bodies.sort();
        assert_eq!(bodies, [&b""[..], b"abcmore", b"hello"]);
    });
}

#[test]
fn another_server_says_who_may_come_in() {
    test(|| {
        let shop = Shop::new();
        let mut client = shop.proxy.client();
        let known =
            "POST /private HTTP/1.1\r\nHost: a\r\nCookie: s=kim\r\nContent-Length: 2\r\n\r\nab";
        for _ in 0..3 {
            assert_eq!(client.ask(known).unwrap().text(), "2 of /private");
        }
        assert_eq!(client.get("/private").unwrap().status, 403);
        let asked = shop.asked("/private");
        assert_eq!(asked.len(), 3);
        assert_eq!(asked[0].field("remote-user"), Some("kim"));
        let verified = shop.verifier.requests("/verify");
        assert_eq!(verified.len(), 4);
        assert!(verified.iter().all(|it| it.body.is_empty()));
        assert_eq!(shop.verifier.origin.connections(), 1);
    });
}

#[test]
fn a_client_stays_at_its_endpoint() {
    test(|| {
        let shop = Shop::new();
        let mut client = shop.proxy.client();
        let first = client.get("/sticky").unwrap();
        let cookie = first.field("set-cookie").unwrap();
        let cookie = cookie.split(';').next().unwrap();
        let request = format!("GET /sticky HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n");
        for _ in 0..6 {
            let response = shop.proxy.client().ask(&request).unwrap();
            assert_eq!(response.field("x-name"), first.field("x-name"));
        }
    });
}

#[test]
fn a_body_is_read_ahead_whatever_its_framing() {
    test(|| {
        let shop = Shop::new();
        let mut client = shop.proxy.client();
        let body = pattern(300_000);
        let mut counted = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n".to_vec();
        counted.extend(&body);
        assert_eq!(client.ask(counted).unwrap().text(), "300000 of /a");
        let mut chunked =
            b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for piece in body.chunks(7_001) {
            chunked.extend(format!("{:x};e=1\r\n", piece.len()).as_bytes());
            chunked.extend(piece);
            chunked.extend(b"\r\n");
        }
        chunked.extend(b"0\r\nX-T: 1\r\n\r\n");
        assert_eq!(client.ask(chunked).unwrap().text(), "300000 of /b");
        let of_b = shop.asked("/b").remove(0);
        assert!(of_b.body == body, "another body");
        let mut client = H2Client::connect(shop.proxy.socket_addr("web")).unwrap();
        client.request(1, "POST", "/c", &[], Ends::Later).unwrap();
        client.upload(1, &body, Ends::Now).unwrap();
        assert_eq!(client.response(1).unwrap().text(), "300000 of /c");
        assert!(shop.asked("/c").remove(0).body == body, "another body");
    });
}

/// A body may come in pieces that have nothing to do with its chunks.
#[test]
fn chunks_may_come_byte_by_byte() {
    test(|| {
        let endpoint = Asked::start("app");
        let proxy = super::over_h2(endpoint.origin.address, "");
        let mut client = proxy.client();
        let request = "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
            3;name=\"a b\"\r\nabc\r\n0a\r\n0123456789\r\n1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n";
        let head_len = request.find("\r\n\r\n").unwrap() + 4;
        client.send(&request[..head_len]).unwrap();
        for byte in request[head_len..].bytes() {
            client.send([byte]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(client.read_response("POST").unwrap().text(), "14 of /p");
        let asked = endpoint.requests("/p").remove(0);
        assert_eq!(asked.body, b"abc0123456789x");
        assert_eq!(asked.trailers, [("x-sum".to_owned(), "1".to_owned())]);
        assert_eq!(client.ask(get("/q")).unwrap().text(), "0 of /q");
    });
}
