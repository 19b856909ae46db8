//! The PROXY protocol on a listener: the client's identity, and refusals.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel_proto::proxy_protocol::{Connection, Extensions, Ssl, Version, write};
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, Response};
use serde_json::Value;

use crate::control;
use crate::setup::{
    Site, assert_logged, assert_refused, assert_refused_and_closed, figures, get, test,
};
use crate::words;

/// The first bytes of version 2.
pub const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
pub const FROM_HERE: &str = "proxy_protocol = { from = [\"127.0.0.0/8\", \"::1\"] }";

/// A header of version 1 with this source, port 4711.
pub fn line(source: &str) -> Vec<u8> {
    let family = if source.contains(':') { "TCP6" } else { "TCP4" };
    let target = if source.contains(':') {
        "::1"
    } else {
        "10.0.0.1"
    };
    format!("PROXY {family} {source} {target} 4711 80\r\n").into_bytes()
}

/// A header of version 2 with this command, family and rest.
pub fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let len = (rest.len() as u16).to_be_bytes();
    [SIGNATURE, &[command, family], &len, rest].concat()
}

/// A header of version 2 for 192.0.2.7, port 4711, with a TLV.
pub fn binary_line() -> Vec<u8> {
    let addresses = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0, 80];
    let no_op = [4, 0, 2, 0, 0];
    binary(0x21, 0x11, &[&addresses[..], &no_op].concat())
}

/// Both addresses of a connection.
fn addresses(source: &str) -> (SocketAddr, SocketAddr) {
    (source.parse().unwrap(), "10.0.0.1:80".parse().unwrap())
}

/// A header of version 2 for the same client, with a host and a checksum.
pub fn binary_with_checksum() -> Vec<u8> {
    let mut header = Vec::new();
    let connection = Connection {
        addresses: Some(addresses("192.0.2.7:4711")),
        extensions: Extensions {
            authority: Some(b"a.example"),
            ..Extensions::default()
        },
    };
    write(&mut header, Version::V2, &connection);
    header
}

fn site(listener: &str) -> (OriginHandle, Proxy) {
    Site {
        listener,
        server: "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    }
    .with_origin()
}

/// The line of the head that the origin got.
pub fn forwarded_for(response: &Response) -> Option<String> {
    let text = response.text();
    let mut lines = text.lines();
    let name = "x-forwarded-for: ";
    lines.find_map(|line| Some(line.to_ascii_lowercase().strip_prefix(name)?.to_owned()))
}

/// Waits for the given number of lines and returns the last one.
fn logged(proxy: &Proxy, count: usize) -> Value {
    until("the access log has the lines", || {
        proxy.access_log().len() >= count
    });
    let lines = proxy.access_log_json();
    assert_eq!(lines.len(), count, "{lines:?}");
    lines[count - 1].clone()
}

#[test]
fn the_header_says_who_the_client_is() {
    test(|| {
        let (_origin, proxy) = site(FROM_HERE);
        let request = get("/headers");
        for (index, (header, client)) in [
            (line("192.0.2.7"), "192.0.2.7"),
            (line("2001:db8::7"), "2001:db8::7"),
            (line("::ffff:192.0.2.7"), "192.0.2.7"),
            (binary_line(), "192.0.2.7"),
        ]
        .into_iter()
        .enumerate()
        {
            // In one segment, with a second request behind the first.
            let mut connection = proxy.client();
            let all = [&header, request.as_bytes(), request.as_bytes()].concat();
            connection.send(all).unwrap();
            for _ in 0..2 {
                let response = connection.read_response("GET").unwrap();
                assert_eq!(forwarded_for(&response).as_deref(), Some(client));
            }
            // The header holds for every request of the connection.
            let response = connection.ask(&request).unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), Some(client));
            let entry = logged(&proxy, 3 * (index + 1));
            assert_eq!(entry["client"], client);
            assert_eq!(entry["client_port"], 4711);
        }
    });
}

#[test]
fn a_header_may_come_byte_by_byte() {
    test(|| {
        let (_origin, proxy) = site(FROM_HERE);
        for (header, request) in [
            (line("192.0.2.7"), get("/headers")),
            (binary_line(), get("/headers")),
        ] {
            let mut connection = proxy.client();
            for byte in header {
                connection.send([byte]).unwrap();
            }
            // The address is known before there is a request.
            until("the connection has its client", || {
                let shown = control::ask(&proxy, "json show sessions");
                let shown: Value = serde_json::from_str(&shown).unwrap();
                let sessions = shown["sessions"].as_array().unwrap();
                sessions.iter().any(|it| it["client"] == "192.0.2.7:4711")
            });
            for byte in request.bytes() {
                connection.send([byte]).unwrap();
            }
            let response = connection.read_response("GET").unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), Some("192.0.2.7"));
        }
    });
}

#[test]
fn a_header_may_be_split_anywhere() {
    test(|| {
        let (_origin, proxy) = site(FROM_HERE);
        for header in [line("192.0.2.7"), binary_line(), binary_with_checksum()] {
            let all = [&header, get("/headers").as_bytes()].concat();
            for cut in 1..=header.len() {
                let mut connection = proxy.client();
                connection.send(&all[..cut]).unwrap();
                connection.send(&all[cut..]).unwrap();
                let response = connection.read_response("GET").unwrap();
                let client = forwarded_for(&response);
                assert_eq!(client.as_deref(), Some("192.0.2.7"), "cut at {cut}");
            }
        }
    });
}

#[test]
fn a_header_that_lies_is_refused() {
    test(|| {
        let timeouts = "timeouts = { head = \"300ms\" }";
        let (origin, proxy) = site(&format!("{FROM_HERE}\n{timeouts}"));
        let addresses = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0, 80];
        let with = |tlvs: &[u8]| binary(0x21, 0x11, &[&addresses[..], tlvs].concat());
        let mut wrong = binary_with_checksum();
        wrong[16] ^= 1;
        for header in [
            // A TLV beyond the header, one cut short, TLS that is cut short.
            with(&[4, 0, 9, 0, 0]),
            with(&[4, 0]),
            with(&[0x20, 0, 2, 1, 0]),
            wrong,
            // More than 4 KiB.
            binary(0x21, 0x11, &[0; 4081]),
        ] {
            assert_refused_and_closed(&proxy, &header, words::PROXY_HEADER);
        }
        // The bytes that follow are not part of the header, which is still incomplete.
        let mut longer = with(&[]);
        longer[15] += 200;
        let all = [&longer, get("/ping").as_bytes()].concat();
        assert_refused_and_closed(&proxy, &all, words::PROXY_HEADER_TIMEOUT);
        let mut cut = proxy.client();
        cut.send_last(&binary_with_checksum()[..30]).unwrap();
        assert!(cut.read_to_end().is_ok());
        assert_logged(&proxy, words::CLIENT_GONE);
        assert_eq!(origin.stats().requests, 0);
    });
}

#[test]
fn tls_in_front_is_told() {
    test(|| {
        let (_origin, proxy) = site(FROM_HERE);
        for (flags, scheme) in [(1, "https"), (0, "http")] {
            let mut header = Vec::new();
            let connection = Connection {
                addresses: Some(addresses("192.0.2.7:4711")),
                extensions: Extensions {
                    ssl: Some(Ssl {
                        client: flags,
                        version: Some(b"TLSv1.3"),
                        ..Ssl::default()
                    }),
                    ..Extensions::default()
                },
            };
            write(&mut header, Version::V2, &connection);
            let all = [&header, get("/headers").as_bytes()].concat();
            let head = proxy.client().ask(all).unwrap().text().to_lowercase();
            assert!(
                head.contains(&format!("x-forwarded-proto: {scheme}\r\n")),
                "{head}"
            );
        }
    });
}

#[test]
fn a_header_that_is_optional_may_be_missing() {
    test(|| {
        let timeouts = "timeouts = { head = \"500ms\" }";
        let optional = FROM_HERE.replace(" }", ", optional = true }");
        let (_origin, proxy) = site(&format!("{optional}\n{timeouts}"));
        let get = get("/headers");
        let put = get
            .replace("GET", "PUT")
            .replace("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n");
        let lines_first = format!("\r\n{get}");
        for request in [&get, &put, &lines_first] {
            let response = proxy.client().ask(request).unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), Some("127.0.0.1"));
            // The first byte alone may begin a header.
            let mut connection = proxy.client();
            connection.send(&request[..1]).unwrap();
            until("the connection is looked at", || {
                let shown = control::ask(&proxy, "json show sessions");
                shown.contains("127.0.0.1:")
            });
            connection.send(&request[1..]).unwrap();
            let response = connection.read_response("GET").unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), Some("127.0.0.1"));
        }
        for header in [line("192.0.2.7"), binary_with_checksum()] {
            let all = [&header, get.as_bytes()].concat();
            for cut in 1..=header.len() {
                let mut connection = proxy.client();
                connection.send(&all[..cut]).unwrap();
                connection.send(&all[cut..]).unwrap();
                let response = connection.read_response("GET").unwrap();
                let client = forwarded_for(&response);
                assert_eq!(client.as_deref(), Some("192.0.2.7"), "cut at {cut}");
            }
        }
        // A malformed one is no request.
        let malformed = binary(0x22, 0x11, &[0; 12]);
        assert_refused_and_closed(&proxy, &malformed, words::PROXY_HEADER);
        assert_refused_and_closed(&proxy, b"PROXY me\r\n", words::PROXY_HEADER);
        assert_refused_and_closed(&proxy, &SIGNATURE[..4], words::PROXY_HEADER_TIMEOUT);
        // Silence is that of any client.
        let before = proxy.access_log().len();
        assert!(proxy.client().is_closed());
        assert_eq!(proxy.access_log().len(), before);
    });
}

#[test]
fn a_connection_of_the_proxy_itself_keeps_its_address() {
    test(|| {
        let (_origin, proxy) = site(FROM_HERE);
        for header in [
            b"PROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UNKNOWN 192.0.2.7 10.0.0.1 1 80\r\n".to_vec(),
            binary(0x20, 0x00, b""),
            binary(0x20, 0x11, &[1; 12]),
            binary(0x21, 0x00, b""),
            binary(0x21, 0x31, &[0; 216]),
        ] {
            let all = [&header, get("/headers").as_bytes()].concat();
            let response = proxy.client().ask(all).unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), Some("127.0.0.1"));
        }
    });
}

#[test]
fn conditions_go_by_the_client_that_is_told() {
    test(|| {
        let config = format!(
            "[server]\nworkers = 1\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n{FROM_HERE}\n\
             [[route]]\nmatch = {{ client = \"192.0.2.0/24\" }}\nanswer = {{ body = \"told\" }}\n\
             [[route]]\nmatch = {{ client = \"127.0.0.0/8\" }}\nanswer = {{ body = \"socket\" }}\n"
        );
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        for (header, body) in [
            (line("192.0.2.7"), "told"),
            (b"PROXY UNKNOWN\r\n".to_vec(), "socket"),
        ] {
            let response = proxy.client().ask([&header, get("/").as_bytes()].concat());
            assert_eq!(response.unwrap().text(), body);
        }
        // A client in neither network matches no route.
        let other = [&line("198.51.100.1"), get("/").as_bytes()].concat();
        assert_eq!(proxy.client().ask(other).unwrap().status, 404);
    });
}

#[test]
fn what_begins_otherwise_is_refused() {
    test(|| {
        let (origin, proxy) = site(FROM_HERE);
        let request = get("/ping");
        for begins in [
            request.clone().into_bytes(),
            b"PROXY TCP4 192.0.2.7\r\n".to_vec(),
            b"PROXY UNKNOWN\n".to_vec(),
            [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200]].concat(),
            binary(0x22, 0x11, &[0; 12]),
            binary(0x21, 0x11, &[0; 4]),
            b"\x16\x03\x01\x02\x00".to_vec(),
        ] {
            let all = [&begins, request.as_bytes()].concat();
            assert_refused_and_closed(&proxy, &all, words::PROXY_HEADER);
        }
        let lines = logged(&proxy, 7);
        assert_eq!(lines["client"], "127.0.0.1", "{lines}");
        let ends = &figures(&proxy)["listeners"][0]["ends"];
        assert_eq!(ends["proxy-header"], 7, "{ends}");
        assert_eq!(origin.stats().requests, 0);
        // A second header is no request.
        let twice = [line("192.0.2.7"), line("192.0.2.8")].concat();
        assert_refused_and_closed(&proxy, &twice, words::REQUEST_LINE);
    });
}

#[test]
fn a_header_that_does_not_come_is_not_waited_for() {
    test(|| {
        let timeouts = "timeouts = { head = \"300ms\" }";
        let (_origin, proxy) = site(&format!("{FROM_HERE}\n{timeouts}"));
        for begins in [b"".as_slice(), b"PROXY TCP4 192.0", SIGNATURE] {
            assert_refused_and_closed(&proxy, begins, words::PROXY_HEADER_TIMEOUT);
        }
        logged(&proxy, 3);
        let ends = &figures(&proxy)["listeners"][0]["ends"];
        assert_eq!(ends["proxy-header-timeout"], 3, "{ends}");
        // The header came, and the request behind it does not.
        let mut connection = proxy.client();
        connection.send(line("192.0.2.7")).unwrap();
        assert!(connection.is_closed());
        assert_eq!(proxy.access_log().len(), 3);
    });
}

#[test]
fn a_connection_without_a_byte_is_no_exchange() {
    test(|| {
        let (_origin, proxy) = site(FROM_HERE);
        drop(proxy.client());
        let mut cut = proxy.client();
        cut.send("PROXY TCP4").unwrap();
        drop(cut);
        assert_logged(&proxy, words::CLIENT_GONE);
        assert_eq!(proxy.access_log().len(), 1);
    });
}

#[test]
fn others_are_served_without_a_header() {
    test(|| {
        let (_origin, proxy) = site("proxy_protocol = { from = [\"192.0.2.0/24\", \"unix\"] }");
        let response = proxy.client().get("/headers").unwrap();
        assert_eq!(forwarded_for(&response).as_deref(), Some("127.0.0.1"));
        // A header from other peers is refused.
        let all = [&line("192.0.2.7"), get("/headers").as_bytes()].concat();
        let response = proxy.client().ask(all).unwrap();
        assert_refused(&response, words::REQUEST_LINE);
    });
}

#[test]
fn a_proxy_may_be_on_a_unix_socket() {
    test(|| {
        let (_origin, proxy) = Site {
            bind: "unix:$DIR/web.sock",
            listener: "proxy_protocol = { from = \"unix\" }",
            ..Site::default()
        }
        .with_origin();
        let connect = || RawClient::connect_unix(Path::new(&proxy.path("web.sock"))).unwrap();
        for (header, client) in [
            (line("192.0.2.7"), Some("192.0.2.7")),
            (binary_line(), Some("192.0.2.7")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
        ] {
            let all = [&header, get("/headers").as_bytes()].concat();
            let response = connect().ask(all).unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), client);
        }
        let response = connect().ask(get("/headers")).unwrap();
        assert_refused(&response, words::PROXY_HEADER);
    });
}
