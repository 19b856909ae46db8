//! The PROXY protocol towards endpoints: the headers, and which clients share a connection.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use evenkeel_proto::proxy_protocol::parse;
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, RawStream};

use crate::setup::{Site, get, test};

const FROM_HERE: &str = "proxy_protocol = { from = \"127.0.0.0/8\" }";

/// An endpoint that reads a header in front of each connection. It answers each request with
/// the connection's number and the content of the header.
struct Endpoint {
    origin: RawOrigin,
    open: Arc<AtomicUsize>,
    /// The headers of connections, as they came.
    headers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Endpoint {
    fn new() -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let headers = Arc::new(Mutex::new(Vec::new()));
        let origin = {
            let (open, headers) = (open.clone(), headers.clone());
            RawOrigin::start(move |number, stream| {
                open.fetch_add(1, Ordering::SeqCst);
                serve(number, stream, &headers);
                open.fetch_sub(1, Ordering::SeqCst);
            })
        };
        Endpoint {
            origin: origin.unwrap(),
            open,
            headers,
        }
    }

    fn address(&self) -> String {
        self.origin.address.to_string()
    }

    /// The different headers so far.
    fn headers(&self) -> BTreeSet<Vec<u8>> {
        self.headers.lock().unwrap().iter().cloned().collect()
    }
}

/// Reads a header, byte by byte.
fn read_header(stream: &mut RawStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        bytes.extend(stream.read_len(1).ok()?);
        if parse(&bytes).expect("it is a header").is_some() {
            return Some(bytes);
        }
    }
}

fn serve(number: usize, mut stream: RawStream, headers: &Mutex<Vec<Vec<u8>>>) {
    let Some(bytes) = read_header(&mut stream) else {
        return;
    };
    headers.lock().unwrap().push(bytes.clone());
    let header = parse(&bytes).unwrap().unwrap();
    let told = header.connection(&bytes);
    let addresses = told
        .addresses
        .map_or("nobody".into(), |(source, destination)| {
            format!("{source} to {destination}")
        });
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or(b"-")).into_owned();
    let authority = text(told.extensions.authority);
    let id = text(told.extensions.unique_id);
    while let Ok(head) = stream.read_head() {
        let body = format!("{number}: {addresses} {authority} {id}");
        let len = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}");
        if stream.send(answer).is_err() || head.starts_with("GET /close ") {
            return;
        }
    }
}

/// A site with one such endpoint, and these lines of listener and upstream.
fn site(listener: &str, upstream: &str) -> (Endpoint, Proxy) {
    let endpoint = Endpoint::new();
    let site = Site {
        listener,
        upstream,
        ..Site::default()
    };
    let proxy = site.start(&[endpoint.address()]);
    (endpoint, proxy)
}

/// The endpoint's answer about the connection.
#[track_caller]
fn ask(client: &mut RawClient) -> String {
    client.ask(get("/")).unwrap().text()
}

#[test]
fn endpoints_are_told_the_client() {
    test(|| {
        for version in ["v1", "v2"] {
            let upstream = format!("proxy_protocol = \"{version}\"");
            let (endpoint, proxy) = site("request_id = \"keep\"", &upstream);
            let request = "GET / HTTP/1.1\r\nHost: a.example:81\r\nX-Request-ID: id-7\r\n\r\n";
            let told = proxy.client().ask(request).unwrap().text();
            let (addresses, rest) = told
                .rsplit_once(&format!(" to {}", proxy.address("web")))
                .unwrap();
            assert!(addresses.starts_with("0: 127.0.0.1:"), "{told}");
            let expected = if version == "v1" {
                " - -"
            } else {
                " a.example id-7"
            };
            assert_eq!(rest, expected, "{told}");
            assert_eq!(endpoint.headers().len(), 1);
        }
    });
}

#[test]
fn a_header_that_came_is_passed_on() {
    test(|| {
        for version in ["v1", "v2"] {
            let upstream = format!("proxy_protocol = \"{version}\"");
            let (_endpoint, proxy) = site(FROM_HERE, &upstream);
            for (header, expected) in [
                (
                    "TCP4 192.0.2.7 10.0.0.1 4711 80",
                    "192.0.2.7:4711 to 10.0.0.1:80",
                ),
                (
                    "TCP6 2001:db8::7 ::1 4711 80",
                    "[2001:db8::7]:4711 to [::1]:80",
                ),
                (
                    "TCP6 2001:db8::7 ::ffff:10.0.0.1 1 2",
                    "[2001:db8::7]:1 to 10.0.0.1:2",
                ),
            ] {
                let all = format!("PROXY {header}\r\n{}", get("/"));
                let told = proxy.client().ask(all).unwrap().text();
                assert!(told.contains(expected), "{version}: {told}");
            }
        }
    });
}

#[test]
fn a_client_without_an_address_is_nobody() {
    test(|| {
        for version in ["v1", "v2"] {
            let endpoint = Endpoint::new();
            let site = Site {
                bind: "unix:$DIR/web.sock",
                upstream: &format!("proxy_protocol = \"{version}\""),
                ..Site::default()
            };
            let proxy = site.start(&[endpoint.address()]);
            let mut client = RawClient::connect_unix(proxy.path("web.sock")).unwrap();
            assert!(ask(&mut client).starts_with("0: nobody "));
        }
    });
}

#[test]
fn a_connection_serves_one_client_alone() {
    test(|| {
        let (endpoint, proxy) = site("", "proxy_protocol = \"v2\"");
        let mut clients: Vec<_> = (0..3).map(|_| proxy.client()).collect();
        let first: Vec<_> = clients.iter_mut().map(ask).collect();
        let different: BTreeSet<_> = first.iter().collect();
        assert_eq!(different.len(), 3, "{first:?}");
        // Each keeps its own.
        for _ in 0..3 {
            let again: Vec<_> = clients.iter_mut().map(ask).collect();
            assert_eq!(again, first);
        }
        assert_eq!(endpoint.origin.connections(), 3);
        // It goes with its client.
        clients.remove(1);
        until("it is closed", || endpoint.open.load(Ordering::SeqCst) == 2);
        let last = ask(&mut proxy.client());
        assert!(last.starts_with("3: "), "{last}");
        until("it is closed", || endpoint.open.load(Ordering::SeqCst) == 2);
        // A connection that the endpoint closes is opened again, with a header.
        let client = &mut clients[0];
        assert_eq!(client.ask(get("/close")).unwrap().text(), first[0]);
        until("it is closed", || endpoint.open.load(Ordering::SeqCst) == 1);
        let anew = ask(client);
        let told = |text: &str| text.split_once(' ').unwrap().1.to_owned();
        assert_eq!((told(&anew), &anew[..2]), (told(&first[0]), "4:"));
        drop(clients);
        until("all are closed", || {
            endpoint.open.load(Ordering::SeqCst) == 0
        });
    });
}

#[test]
fn clients_of_a_trusted_proxy_share_no_connection() {
    test(|| {
        let trusted = "trusted_proxies = [\"127.0.0.1\"]";
        let (endpoint, proxy) = site(trusted, "proxy_protocol = \"v2\"");
        let mut client = proxy.client();
        for (number, address) in ["192.0.2.7", "192.0.2.8", "2001:db8::7"].iter().enumerate() {
            let request =
                format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {address}\r\n\r\n");
            let told = client.ask(request).unwrap().text();
            let told = told.replace(['[', ']'], "");
            assert!(
                told.starts_with(&format!("{number}: {address}:0 to ")),
                "{told}"
            );
            until("it is closed", || endpoint.open.load(Ordering::SeqCst) == 0);
        }
    });
}

#[test]
fn idle_connections_give_way_where_there_is_a_limit() {
    test(|| {
        let endpoint = Endpoint::new();
        let site = Site {
            upstream: "proxy_protocol = \"v2\"",
            ..Site::default()
        };
        let limited = format!(
            "{{ address = \"{}\", max_in_flight = 1 }}",
            endpoint.address()
        );
        let proxy = site.start(&[limited]);
        let (mut one, mut other) = (proxy.client(), proxy.client());
        for turn in 0..3 {
            for client in [&mut one, &mut other] {
                let told = ask(client);
                assert!(told.contains(": 127.0.0.1:"), "{turn}: {told}");
            }
        }
        until("one is left", || endpoint.open.load(Ordering::SeqCst) <= 1);
        assert_eq!(endpoint.origin.connections(), 6);
    });
}

#[test]
fn probes_are_nobodys() {
    test(|| {
        for (version, expected) in [
            ("v1", b"PROXY UNKNOWN\r\n".as_slice()),
            ("v2", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"),
        ] {
            for health in [
                "{ path = \"/\", interval = \"50ms\" }",
                "{ interval = \"50ms\" }",
            ] {
                let upstream = format!("proxy_protocol = \"{version}\"\nhealth = {health}");
                let (endpoint, proxy) = site("", &upstream);
                until("it is probed", || endpoint.origin.connections() >= 3);
                until("the header is there", || !endpoint.headers().is_empty());
                let headers = endpoint.headers();
                assert_eq!(headers.iter().collect::<Vec<_>>(), [expected], "{health}");
                assert!(ask(&mut proxy.client()).contains("127.0.0.1:"));
            }
        }
    });
}

/// A request that is sent again tells of its client again.
#[test]
fn each_attempt_has_its_header() {
    test(|| {
        let failing = RawOrigin::start(|_, mut stream| {
            assert!(read_header(&mut stream).is_some());
        });
        let failing = failing.unwrap();
        let endpoint = Endpoint::new();
        let site = Site {
            upstream: "proxy_protocol = \"v2\"\nbalance = \"first\"",
            ..Site::default()
        };
        let proxy = site.start(&[failing.address.to_string(), endpoint.address()]);
        let told = ask(&mut proxy.client());
        assert!(told.starts_with("0: 127.0.0.1:"), "{told}");
        assert_eq!(failing.connections(), 1);
    });
}

#[test]
fn a_tunnel_begins_with_a_header() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            let header = read_header(&mut stream).unwrap();
            let told = parse(&header).unwrap().unwrap().addresses.unwrap();
            stream.read_head().unwrap();
            let head =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
            stream.send(format!("{head}{}", told.0.ip())).unwrap();
            let _ = stream.read_to_end();
        });
        let origin = origin.unwrap();
        let site = Site {
            upstream: "proxy_protocol = \"v2\"",
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
        assert_eq!(client.ask(request).unwrap().status, 101);
        assert_eq!(client.read_len(9).unwrap(), b"127.0.0.1");
    });
}
