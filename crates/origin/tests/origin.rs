//! The test origin itself, over real sockets.

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use evenkeel_origin::{
    Origin, OriginHandle, OriginListener, OriginOptions, OriginStats, payload_byte,
};

const DEADLINE: Duration = Duration::from_secs(10);

fn connect(origin: &OriginHandle) -> TcpStream {
    let stream = TcpStream::connect(origin.socket_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends a request and reads until the origin closes.
fn ask(origin: &OriginHandle, request: &str) -> String {
    let mut stream = connect(origin);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn page(origin: &OriginHandle, path: &str) -> String {
    ask(
        origin,
        &format!("GET {path} HTTP/1.1\r\nHost: o\r\nConnection: close\r\n\r\n"),
    )
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn pages() {
    let origin = Origin::local(OriginOptions::default()).unwrap();
    let body = |path: &str| {
        page(&origin, path)
            .split_once("\r\n\r\n")
            .unwrap()
            .1
            .to_owned()
    };
    let pattern = |len| {
        (0..len)
            .map(|at| char::from(payload_byte(at)))
            .collect::<String>()
    };
    assert_eq!(body("/ping"), "pong");
    assert_eq!(body("/medium-payload"), pattern(20_000));
    assert_eq!(body("/large-payload"), pattern(200_000));
    assert_eq!(body("/custom-payload?size=5"), "abcde");
    assert_eq!(body("/100000"), pattern(100_000));
    assert_eq!(body("/drip/3/1"), "abc");
    assert_eq!(body("/close/7"), "abcdefg");
    assert_eq!(
        body("/chunked/3"),
        "3\r\nabc\r\n0\r\nX-Origin-Trailer: 3\r\n\r\n"
    );
    assert!(body("/headers").starts_with("GET /headers HTTP/1.1\r\nHost: o\r\n"));
    assert!(body("/events/2/1").contains("id: 1\ndata: event 1\n\n"));
    assert!(page(&origin, "/status/204").starts_with("HTTP/1.1 204 No Content\r\n"));
    assert!(page(&origin, "/status/103").starts_with("HTTP/1.1 103 Early Hints\r\n"));
    assert!(page(&origin, "/nowhere").starts_with("HTTP/1.1 404 "));
    let stats: OriginStats = serde_json::from_str(&body("/origin/stats")).unwrap();
    assert_eq!((stats.requests, stats.in_flight), (13, 0));
}

#[test]
fn echoes_both_framings_and_keeps_the_connection() {
    let origin = Origin::local(OriginOptions::default()).unwrap();
    let mut stream = connect(&origin);
    let requests = "POST /echo HTTP/1.1\r\nHost: o\r\nContent-Length: 3\r\n\r\nabc\
         POST /echo HTTP/1.1\r\nHost: o\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nde\r\n1\r\nf\r\n0\r\nX-T: y\r\n\r\n\
         POST /early HTTP/1.1\r\nHost: o\r\nContent-Length: 2\r\n\r\nxx\
         GET /upgrade HTTP/1.1\r\nHost: o\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\ntunnelled";
    stream.write_all(requests.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\ntunnelled"), "{answer}");
    assert!(
        answer.contains("Content-Length: 3\r\n\r\nabcHTTP/1.1 200"),
        "{answer}"
    );
    assert!(
        answer.contains("\r\n\r\n3\r\ndef\r\n0\r\nX-T: y\r\n\r\nHTTP/1.1 200"),
        "{answer}"
    );
    assert!(answer.contains("\r\n\r\nearlyHTTP/1.1 101"), "{answer}");
}

#[test]
fn one_thread_serves_in_order_of_arrival() {
    let options = OriginOptions {
        threads: 1,
        service: Some("fixed:20ms".parse().unwrap()),
        ..OriginOptions::default()
    };
    let origin = Origin::local(options).unwrap();
    let begun = Instant::now();
    let mut waiting = Vec::new();
    for count in 1..=5 {
        let mut stream = connect(&origin);
        stream.write_all(b"GET /ping HTTP/1.0\r\n\r\n").unwrap();
        until("the request has arrived", || {
            origin.stats().requests == count
        });
        waiting.push(std::thread::spawn(move || {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            Instant::now()
        }));
    }
    let done: Vec<Instant> = waiting
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(done.is_sorted(), "answered out of order");
    assert!(
        done[4] - begun >= Duration::from_millis(95),
        "served at once"
    );
    assert!(origin.stats().max_in_flight > 1);
}

#[test]
fn faults() {
    let always = |set: fn(&mut OriginOptions)| {
        let mut options = OriginOptions::default();
        set(&mut options);
        Origin::local(options).unwrap()
    };
    assert!(page(&always(|o| o.fail_rate = 1.0), "/ping").starts_with("HTTP/1.1 500 "));
    assert_eq!(page(&always(|o| o.reset_rate = 1.0), "/ping"), "");
    assert!(page(&always(|o| o.garbage_rate = 1.0), "/ping").contains("not HTTP"));
    let cut = page(&always(|o| o.cut_rate = 1.0), "/1000");
    assert_eq!(cut.split_once("\r\n\r\n").unwrap().1.len(), 500);
    let cut = page(&always(|o| o.cut_rate = 1.0), "/chunked/1000");
    assert!(!cut.contains("\r\n0\r\n"));

    let stalling = always(|o| o.stall_rate = 1.0);
    let mut stream = connect(&stalling);
    stream
        .write_all(b"GET /ping HTTP/1.1\r\nHost: o\r\n\r\n")
        .unwrap();
    until("the request is in flight", || {
        stalling.stats().in_flight == 1
    });
    drop(stream);
    until("the abort is noticed", || stalling.stats().aborted == 1);
    until("the request is over", || stalling.stats().in_flight == 0);
}

#[test]
fn goes_down_and_comes_back_on_the_same_port() {
    let origin = Origin::local(OriginOptions::default()).unwrap();
    let mut open = connect(&origin);
    until("the connection is accepted", || {
        origin.stats().open_connections == 1
    });
    origin.refuse();
    match open.read(&mut [0; 1]) {
        Ok(len) => assert_eq!(len, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    let address = origin.socket_addr().unwrap();
    until("connections are refused", || {
        TcpStream::connect(address).is_err()
    });
    origin.serve();
    until("connections are accepted", || {
        TcpStream::connect(address).is_ok()
    });
    assert!(page(&origin, "/ping").ends_with("pong"));
}

#[test]
fn a_unix_socket_goes_down_and_comes_back() {
    let path = std::env::temp_dir().join(format!("evenkeel-origin-{}.sock", std::process::id()));
    let listen = format!("unix:{}", path.display()).parse().unwrap();
    let listener = OriginListener::bind(&listen).unwrap();
    let origin = Origin::start(OriginOptions::default(), listener).unwrap();
    let connect = || std::os::unix::net::UnixStream::connect(&path);
    connect().unwrap();
    origin.refuse();
    until("connections are refused", || connect().is_err());
    origin.serve();
    until("connections are accepted", || connect().is_ok());
    let mut stream = connect().unwrap();
    stream.write_all(b"GET /ping HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("pong"));
    origin.shutdown();
    std::fs::remove_file(&path).unwrap();
}
