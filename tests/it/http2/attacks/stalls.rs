//! Clients that take nothing, or send nothing: deadlines for progress.

use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::http2::{Ends, ErrorCode, PREFACE, kind, setting};
use evenkeel_testkit::{H2Client, Proxy};

use super::{Target, connections};
use crate::setup::{Site, figures, program, test};

/// Deadlines that a test can wait for.
const SHORT: &str = "timeouts = { head = \"500ms\", body = \"1s\", idle = \"1s\" }";

fn target() -> Target {
    Target::with(&Site {
        listener: SHORT,
        ..Site::default()
    })
}

/// Responses that no window is there for end by the deadline for progress; others on the
/// same connection do not.
#[test]
fn streams_that_are_stalled_by_shut_windows() {
    test(|| {
        let target = target();
        let mut client = target.client_with(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
        let begun = Instant::now();
        for n in 0..50 {
            client.get(2 * n + 1, "/large-payload").unwrap();
        }
        for n in 0..50 {
            let stream = 2 * n + 1;
            client
                .until(|it| it.so_far(stream).is_some_and(|it| it.reset.is_some()))
                .unwrap();
        }
        let taken = begun.elapsed();
        assert!(taken >= Duration::from_millis(900), "{taken:?}");
        assert!(taken < Duration::from_secs(5), "{taken:?}");
        // A response without content needs no window.
        client
            .request(201, "HEAD", "/ping", &[], Ends::Now)
            .unwrap();
        assert_eq!(client.response(201).unwrap().status, 200);
        until("no endpoint waits", || target.origin.stats().in_flight == 0);
    });
}

/// Beyond a number of streams whose clients take nothing, those give way that have taken
/// nothing for the longest.
#[test]
fn streams_that_are_stalled_are_limited() {
    /// Streams that a worker lets wait.
    const MOST: usize = 4096;
    const EACH: usize = 100;
    test(|| {
        let config = "[server]\nworkers = 1\n\
             [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\
             [status]\nbind = \"127.0.0.1:0\"\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\nh2c = true\n\
             [[route]]\nanswer = { status = 200, body = \"some text\" }\n";
        let proxy = Proxy::start(program(), config).unwrap();
        let stalled = || {
            let windows = [(setting::INITIAL_WINDOW_SIZE, 0)];
            let mut client = H2Client::connect_with(proxy.socket_addr("web"), &windows).unwrap();
            for n in 0..EACH {
                client.get(stream(n), "/").unwrap();
            }
            let has_all = |it: &H2Client| it.so_far(stream(EACH - 1)).is_some();
            client.until(has_all).unwrap();
            client
        };
        let mut first = stalled();
        // No stalled connection is closed before a second is over.
        std::thread::park_timeout(Duration::from_millis(1200));
        let mut others: Vec<_> = (1..MOST / EACH).map(|_| stalled()).collect();
        let displaced = || {
            figures(&proxy)["listeners"][0]["http2_displaced"]
                .as_u64()
                .unwrap()
        };
        assert_eq!(displaced(), 0);
        others.push(stalled());
        others.push(stalled());
        let ended = |it: &H2Client| it.so_far(stream(EACH - 1)).unwrap().reset.is_some();
        first.until(ended).unwrap();
        for n in 0..EACH {
            let reset = first.so_far(stream(n)).unwrap().reset;
            assert_eq!(reset, Some(ErrorCode::EnhanceYourCalm), "{n}");
        }
        until("it is counted", || displaced() >= EACH as u64);
        until("they are logged", || proxy.access_log().len() >= EACH);
        for line in proxy.access_log_json() {
            assert_eq!(line["end"], "client-stalled");
        }
        // The others are served as soon as they read.
        for client in &mut others[MOST / EACH / 2..] {
            client.credit(stream(0), 100).unwrap();
            assert_eq!(client.response(stream(0)).unwrap().text(), "some text");
        }
    });
}

fn stream(n: usize) -> u32 {
    2 * n as u32 + 1
}

/// A slow reader that reads does not count as stalled.
#[test]
fn a_slow_reader_is_not_cut_off() {
    test(|| {
        let target = target();
        let mut client = target.client_with(&[(setting::INITIAL_WINDOW_SIZE, 1000)]);
        client.get(1, "/custom-payload?size=6000").unwrap();
        for n in 1..=6 {
            let len = |it: &H2Client| it.so_far(1).map_or(0, |it| it.body.len());
            client.until(|it| len(it) == 1000 * n).unwrap();
            assert_eq!(client.so_far(1).unwrap().reset, None, "{n}");
            if n < 6 {
                // More than half of the time that a silence may take.
                std::thread::park_timeout(Duration::from_millis(600));
                client.credit(1, 1000).unwrap();
            }
        }
        assert!(client.so_far(1).unwrap().is_whole);
    });
}

/// Windows are open, and nothing is read off the socket: the connection ends, and meanwhile
/// holds little.
#[test]
fn connections_that_nobody_reads() {
    within(Duration::from_secs(60), || {
        let connections = connections() / 2;
        let target = target();
        let mut clients = Vec::new();
        let mut sent = 0;
        for _ in 0..connections {
            let windows = [(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)];
            let mut client = target.client_with(&windows);
            client.credit(0, 0x7fff_0000).unwrap();
            for n in 0..20 {
                client
                    .get(2 * n + 1, "/custom-payload?size=10000000")
                    .unwrap();
            }
            sent += client.raw().bytes_sent;
            clients.push(client);
        }
        target.assert_holds_little(connections, sent);
        until("no endpoint waits", || target.origin.stats().in_flight == 0);
        target.assert_serves();
    });
}

/// Uploads that stop half-way are answered or reset by their deadline. Others go on.
#[test]
fn uploads_that_stop() {
    test(|| {
        let target = target();
        let mut client = target.client();
        for stream in [1, 3] {
            let length = [("content-length", "10")];
            client
                .request(stream, "POST", "/echo", &length, Ends::Later)
                .unwrap();
            client.data(stream, b"part", Ends::Later).unwrap();
        }
        assert_eq!(client.ask(5, "/ping").unwrap().text(), "pong");
        for stream in [1, 3] {
            let response = client.response(stream).unwrap();
            let is_ended = response.status == 408 || response.reset.is_some();
            assert!(is_ended, "{response:?}");
        }
        until("no endpoint waits", || target.origin.stats().in_flight == 0);
    });
}

/// Connections that never get as far as a request are closed, whatever they have sent.
#[test]
fn connections_that_say_nothing() {
    test(|| {
        let target = target();
        for (what, bytes) in [
            ("half of a preface", &PREFACE[..10]),
            ("a preface", &PREFACE[..]),
            (
                "half of a frame",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0",
            ),
        ] {
            let mut client = H2Client::over(target.proxy.client());
            client.raw().send(bytes).unwrap();
            let begun = Instant::now();
            let end = client.end();
            assert!(end.is_ok(), "{what}: {end:?}");
            let taken = begun.elapsed();
            assert!(taken < Duration::from_secs(5), "{what}: {taken:?}");
        }
        // An idle connection after its preface, and a connection with half a head.
        let mut idle = target.client();
        idle.end().unwrap();
        let mut half = target.client();
        half.frame(kind::HEADERS, 0, 1, b"\x82").unwrap();
        half.end().unwrap();
        // One that is kept awake by frames that ask for nothing is no better.
        let mut awake = target.client();
        awake.set_step(Duration::from_millis(200));
        let begun = Instant::now();
        while awake.ping().is_ok() {
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "kept open by PING"
            );
            std::thread::park_timeout(Duration::from_millis(100));
        }
    });
}
