//! Tunnels: WebSockets by extended CONNECT (RFC 8441), and CONNECT, which is not offered.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use evenkeel_testkit::http2::{Ends, ErrorCode, setting};
use evenkeel_testkit::{H2Client, RawStream};

use super::{Endpoint, OK, Shape, assert_answered, assert_plain, close, connect, path_of};
use super::{text_of, values};
use crate::setup::{assert_logged, pattern, test};
use crate::words;

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\
                         Sec-WebSocket-Protocol: chat\r\n\r\n";

/// Asks for a WebSocket.
fn open(client: &mut H2Client, stream: u32, path: &str) {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test.example"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "chat"),
        ("origin", "http://test.example"),
    ];
    client.headers(stream, &fields, Ends::Later).unwrap();
}

/// Waits until the tunnel is open.
#[track_caller]
fn await_open(client: &mut H2Client, stream: u32) {
    let has_head = |it: &H2Client| it.so_far(stream).is_some_and(|it| it.status > 0);
    client.until(has_head).unwrap();
    let response = client.so_far(stream).unwrap();
    assert_eq!((response.status, response.reset), (200, None));
    assert!(!response.is_whole);
    assert_plain(response);
    assert_eq!(response.field("sec-websocket-protocol"), Some("chat"));
    assert_eq!(response.field("sec-websocket-accept"), None);
}

/// Waits until these bytes have come through the tunnel.
#[track_caller]
fn await_bytes(client: &mut H2Client, stream: u32, expected: &[u8]) {
    let len = expected.len();
    client
        .until(|it| it.so_far(stream).is_some_and(|it| it.body.len() >= len))
        .unwrap();
    assert!(client.so_far(stream).unwrap().body == expected);
}

fn accept(head: &str, stream: &mut RawStream) -> std::io::Result<()> {
    assert!(head.starts_with("GET /"), "{head}");
    assert_eq!(values(head, "host"), ["test.example"], "{head}");
    assert_eq!(values(head, "upgrade"), ["websocket"], "{head}");
    assert_eq!(values(head, "sec-websocket-version"), ["13"], "{head}");
    assert_eq!(values(head, "sec-websocket-protocol"), ["chat"], "{head}");
    assert_eq!(values(head, "transfer-encoding"), [""; 0], "{head}");
    let connection = values(head, "connection").join(",").to_ascii_lowercase();
    assert!(connection.contains("upgrade"), "{head}");
    let [key] = values(head, "sec-websocket-key")[..] else {
        panic!("{head}");
    };
    assert_eq!((key.len(), key.ends_with("==")), (24, true), "{head}");
    stream.send(SWITCHING)
}

#[test]
fn bytes_go_both_ways_until_either_side_ends() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            if path_of(head) == "/ok" {
                return stream.send(OK);
            }
            accept(head, stream)?;
            let hello = stream.read_len(5)?;
            stream.send([b"you said ", &hello[..]].concat())?;
            if path_of(head) == "/client-ends" {
                let rest = stream.read_to_end()?;
                stream.send([b", then ", &rest[..]].concat())?;
            }
            close()
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        client.ping().unwrap();
        let offered = client.settings.get(&setting::ENABLE_CONNECT_PROTOCOL);
        assert_eq!(offered, Some(&1));
        open(&mut client, 1, "/client-ends");
        open(&mut client, 3, "/endpoint-ends");
        for stream in [1, 3] {
            await_open(&mut client, stream);
        }
        assert_answered(&client.ask(5, "/ok").unwrap(), 200, "ok");
        client.data(1, "hello", Ends::Later).unwrap();
        await_bytes(&mut client, 1, b"you said hello");
        client.data(1, "bye", Ends::Now).unwrap();
        let response = client.response(1).unwrap();
        assert_answered(&response, 200, "you said hello, then bye");
        client.data(3, "there", Ends::Later).unwrap();
        client
            .until(|it| it.so_far(3).is_some_and(|it| it.is_whole))
            .unwrap();
        assert_eq!(client.so_far(3).unwrap().text(), "you said there");
        client.data(3, "", Ends::Now).unwrap();
        assert_answered(&client.ask(7, "/ok").unwrap(), 200, "ok");
        let logged = || proxy.access_log_json();
        evenkeel_testkit::deadline::until("all are logged", || logged().len() == 4);
        let log = logged();
        let tunnels = log.iter().filter(|it| it["end"] == "tunnel");
        assert_eq!(tunnels.count(), 2, "{log:?}");
    });
}

#[test]
fn much_goes_both_ways_at_once() {
    const LEN: u64 = 1_000_000;
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            accept(head, stream)?;
            let mut left = LEN as usize;
            while left > 0 {
                let part = stream.read_len(left.min(10_000))?;
                left -= part.len();
                stream.send(part)?;
            }
            close()
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        open(&mut client, 1, "/echo");
        await_open(&mut client, 1);
        client.credit(0, 1 << 30).unwrap();
        client.credit(1, 1 << 30).unwrap();
        client.upload(1, pattern(LEN), Ends::Now).unwrap();
        let response = client.response(1).unwrap();
        assert_eq!((response.is_whole, response.reset), (true, None));
        assert!(response.body == pattern(LEN), "{}", response.body.len());
    });
}

#[test]
fn bytes_along_with_either_head_are_not_lost() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
            stream.send([SWITCHING, "welcome "].concat())?;
            let early = stream.read_len(11)?;
            stream.send(early)?;
            close()
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        open(&mut client, 1, "/chat");
        client.data(1, "early bytes", Ends::Later).unwrap();
        let is_whole = |it: &H2Client| it.so_far(1).is_some_and(|it| it.is_whole);
        client.until(is_whole).unwrap();
        assert_eq!(client.so_far(1).unwrap().text(), "welcome early bytes");
    });
}

#[test]
fn a_tunnel_that_is_cut_off_ends_at_the_other_side() {
    test(|| {
        let (told, ended) = channel();
        let told = Mutex::new(told);
        let endpoint = Endpoint::scripted(move |head, stream| {
            if path_of(head) == "/ok" {
                return stream.send(OK);
            }
            accept(head, stream)?;
            stream.send("hello")?;
            if path_of(head) == "/client" {
                let end = stream.read_to_end();
                told.lock().unwrap().send(end.map(|it| it.len())).unwrap();
            }
            close()
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        open(&mut client, 1, "/client");
        await_bytes(&mut client, 1, b"hello");
        client.reset(1, ErrorCode::Cancel).unwrap();
        let end = ended
            .recv_timeout(evenkeel_testkit::deadline::STEP)
            .unwrap();
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        assert_answered(&client.ask(3, "/ok").unwrap(), 200, "ok");
        // A whole connection is lost.
        open(&mut client, 5, "/client");
        await_bytes(&mut client, 5, b"hello");
        client.into_raw().reset();
        let end = ended
            .recv_timeout(evenkeel_testkit::deadline::STEP)
            .unwrap();
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    });
}

#[test]
fn what_is_no_101_opens_no_tunnel() {
    test(|| {
        let endpoint = Endpoint::answering(|head| match path_of(head) {
            "/200" => text_of(200, "X-A: b\r\n", "fine"),
            "/204" => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            "/chunked" => {
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n"
                    .to_vec()
            }
            "/403" => text_of(403, "X-A: b\r\n", "not you"),
            "/302" => text_of(302, "Location: /a\r\n", ""),
            _ => OK.into(),
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        let cases = [
            ("/403", 403),
            ("/200", 502),
            ("/302", 302),
            ("/chunked", 502),
            ("/204", 502),
        ];
        for (index, (path, status)) in cases.into_iter().enumerate() {
            let stream = 4 * index as u32 + 1;
            open(&mut client, stream, path);
            client
                .data(stream, "bytes of a tunnel", Ends::Later)
                .unwrap();
            let is_whole = |it: &H2Client| it.so_far(stream).is_some_and(|it| it.is_whole);
            client.until(is_whole).unwrap();
            let response = client.so_far(stream).unwrap();
            assert_eq!(response.status, status, "{path}");
            assert_plain(response);
            if status == 403 {
                assert_eq!(response.text(), "not you");
                assert_eq!(response.field("x-a"), Some("b"));
            }
            let other = client.ask(stream + 2, "/ok").unwrap();
            assert_answered(&other, 200, "ok");
        }
        // Bytes sent into the tunnel never become a request at the endpoint.
        for head in endpoint.heads.lock().unwrap().iter() {
            assert!(head.starts_with("GET /"), "{head}");
        }
    });
}

#[test]
fn an_endpoint_that_closes_or_is_not_there() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            if path_of(head) == "/ok" {
                return stream.send(OK);
            }
            close()
        });
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        open(&mut client, 1, "/chat");
        let is_whole = |it: &H2Client| it.so_far(1).is_some_and(|it| it.is_whole);
        client.until(is_whole).unwrap();
        assert_eq!(client.so_far(1).unwrap().status, 502);
        assert_answered(&client.ask(3, "/ok").unwrap(), 200, "ok");
    });
}

#[test]
fn connect_is_refused_on_its_stream_alone() {
    test(|| {
        let endpoint = Endpoint::answering(|_| OK.into());
        let proxy = Shape::default().before(endpoint.address());
        let mut client = connect(&proxy);
        for (stream, ends) in [(1, Ends::Now), (5, Ends::Later)] {
            let fields = [(":method", "CONNECT"), (":authority", "test.example:443")];
            client.headers(stream, &fields, ends).unwrap();
            let is_whole = |it: &H2Client| it.so_far(stream).is_some_and(|it| it.is_whole);
            client.until(is_whole).unwrap();
            assert_eq!(client.so_far(stream).unwrap().status, 501);
            assert_answered(&client.ask(stream + 2, "/").unwrap(), 200, "ok");
        }
        assert_logged(&proxy, words::CONNECT_METHOD);
        assert_eq!(endpoint.count(), 2);
    });
}
