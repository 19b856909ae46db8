//! Flow control: what waits, what does not wait for it, and that all of it arrives.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::http2::{self, Ends, ErrorCode, kind, setting};
use evenkeel_testkit::origin::payload_byte;
use evenkeel_testkit::process::run;
use evenkeel_testkit::{H2Client, RawOrigin, TempDir};

use super::Both;
use crate::setup::{Site, pattern, test};

/// Whether a file is the start of an origin's pattern, of this length.
fn is_pattern(path: &Path, len: u64) -> bool {
    let mut file = BufReader::new(File::open(path).unwrap());
    let mut block = vec![0; 26 << 10];
    let expected: Vec<u8> = (0..26 << 10).map(payload_byte).collect();
    let mut at = 0;
    while at < len {
        let most = usize::try_from(len - at).map_or(block.len(), |it| it.min(block.len()));
        file.read_exact(&mut block[..most]).unwrap();
        if block[..most] != expected[..most] {
            return false;
        }
        at += most as u64;
    }
    file.read(&mut block).unwrap() == 0
}

#[test]
fn a_download_of_100_mb_is_whole() {
    const LEN: u64 = 100_000_000;
    within(Duration::from_secs(120), || {
        let both = Both::new();
        for url in both.urls(&format!("/custom-payload?size={LEN}")) {
            let dir = TempDir::new().unwrap();
            let file = dir.join("body");
            let mut command = Command::new("curl");
            command.args(["--silent", "--show-error", "--fail", "--insecure"]);
            command.args(["--http2", "--max-time", "50"]);
            if url.starts_with("http:") {
                command.arg("--http2-prior-knowledge");
            }
            command.arg("--output").arg(&file).arg(&url);
            let before = both.proxy.rss_bytes().unwrap();
            let output = run(command, Duration::from_secs(60)).unwrap();
            assert!(output.status.success(), "{url}: {output:?}");
            assert!(is_pattern(&file, LEN), "{url}");
            let grown = both.proxy.rss_bytes().unwrap().saturating_sub(before);
            assert!(grown < 4 << 20, "{url}: {grown} bytes more");
        }
    });
}

/// Sends as the windows allow, until they stay closed. Returns the number of bytes.
fn send_until_shut(client: &mut H2Client, stream: u32, body: &[u8]) -> usize {
    let mut sent = 0;
    client.set_step(Duration::from_secs(1));
    loop {
        let window = usize::try_from(client.send_window(stream)).unwrap_or(0);
        let len = window.min(body.len() - sent);
        assert!(sent + len < body.len(), "nothing is held back");
        if len > 0 {
            client
                .data(stream, &body[sent..sent + len], Ends::Later)
                .unwrap();
            sent += len;
        }
        if let Err(error) = client.next() {
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            client.set_step(Duration::from_secs(10));
            return sent;
        }
    }
}

/// An endpoint that does not read holds up only its own client.
#[test]
fn an_upload_waits_for_its_endpoint() {
    const LEN: usize = 64 << 20;
    // Buffers of sockets between the program and its endpoint.
    const HELD_BY_THE_KERNEL: usize = 24 << 20;
    within(Duration::from_secs(60), || {
        let (open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let got = Arc::<Mutex<Vec<u8>>>::default();
        let taken = got.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                if head.starts_with("POST") {
                    gate.lock().unwrap().recv().unwrap();
                    *taken.lock().unwrap() = stream.read_len(LEN).unwrap();
                }
                let _ = stream.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        })
        .unwrap();
        let site = Site {
            listener: "h2c = true",
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        assert_eq!(client.ask(1, "/").unwrap().text(), "ok");
        let before = proxy.rss_bytes().unwrap();

        let body = pattern(LEN as u64);
        let len = LEN.to_string();
        let fields = [("content-length", &len[..])];
        client
            .request(3, "POST", "/", &fields, Ends::Later)
            .unwrap();
        let sent = send_until_shut(&mut client, 3, &body);
        assert!(sent < HELD_BY_THE_KERNEL, "{sent} bytes");
        let grown = proxy.rss_bytes().unwrap().saturating_sub(before);
        assert!(grown < 2 << 20, "{grown} bytes are held");
        // Waiting content does not use up the connection's window.
        assert_eq!(client.ask(5, "/").unwrap().text(), "ok");

        open.send(()).unwrap();
        client.upload(3, &body[sent..], Ends::Now).unwrap();
        let response = client.response(3).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        assert!(*got.lock().unwrap() == body);
    });
}

/// An unread response holds up no other one, and later continues where it stopped.
#[test]
fn a_slow_reader_does_not_hold_others_up() {
    const LEN: usize = 100_000_000;
    test(|| {
        let both = Both::new();
        for mut client in [both.client(), both.tls_client()] {
            client.credit(0, 1 << 30).unwrap();
            client
                .get(1, &format!("/custom-payload?size={LEN}"))
                .unwrap();
            client
                .until(|it| it.so_far(1).is_some_and(|it| it.body.len() == 65_535))
                .unwrap();
            let begun = Instant::now();
            for n in 1..=200 {
                let response = client.ask(2 * n + 1, "/custom-payload?size=1000").unwrap();
                assert_eq!(response.body.len(), 1000);
            }
            let taken = begun.elapsed();
            assert!(taken < Duration::from_secs(5), "{taken:?}");
            assert_eq!(client.so_far(1).unwrap().body.len(), 65_535);

            client.credit(1, 1_000_000).unwrap();
            client
                .until(|it| it.so_far(1).is_some_and(|it| it.body.len() == 1_065_535))
                .unwrap();
            assert!(client.so_far(1).unwrap().body == pattern(1_065_535));
            client.reset(1, ErrorCode::Cancel).unwrap();
            assert_eq!(client.ask(1001, "/ping").unwrap().text(), "pong");
        }
    });
}

/// No byte more comes than the windows allow, of the stream and of the connection.
#[test]
fn no_more_comes_than_windows_allow() {
    test(|| {
        let both = Both::new();
        let address = both.proxy.socket_addr("web");
        let first = [(setting::INITIAL_WINDOW_SIZE, 10)];
        let mut client = H2Client::connect_with(address, &first).unwrap();
        client.get(1, "/custom-payload?size=200000").unwrap();
        let len = |client: &H2Client| client.so_far(1).map_or(0, |it| it.body.len());
        client.until(|it| len(it) == 10).unwrap();
        for (stream, more, expected) in [(1, 1, 11), (0, 1 << 20, 11), (1, 99_989, 100_000)] {
            client.credit(stream, more).unwrap();
            client.until(|it| len(it) >= expected).unwrap();
            client.ping().unwrap();
            assert_eq!(len(&client), expected, "{stream}: {more}");
        }
        // A smaller initial window takes unused room back, a larger one adds room.
        for (window, expected) in [(0, 100_000), (1_010, 101_000)] {
            let payload = http2::settings(&[(setting::INITIAL_WINDOW_SIZE, window)]);
            client.frame(kind::SETTINGS, 0, 0, payload).unwrap();
            client.until(|it| len(it) >= expected).unwrap();
            client.ping().unwrap();
            assert_eq!(len(&client), expected, "{window}");
        }
        client.credit(1, 1 << 20).unwrap();
        let response = client.response(1).unwrap();
        assert!(response.body == pattern(200_000));
    });
}

/// A response that comes before the end of its request is complete, and the rest of the request
/// is not needed (RFC 9113 §8.1).
#[test]
fn an_early_response_ends_the_upload() {
    test(|| {
        let both = Both::new();
        let mut client = both.client();
        for (stream, fields) in [(1, &[][..]), (3, &[("content-length", "50000000")])] {
            client
                .request(stream, "POST", "/early", fields, Ends::Later)
                .unwrap();
            client.data(stream, [b'x'; 60_000], Ends::Later).unwrap();
            client
                .until(|it| it.so_far(stream).is_some_and(|it| it.is_whole))
                .unwrap();
            assert_eq!(client.so_far(stream).unwrap().text(), "early");
            client
                .until(|it| it.so_far(stream).is_some_and(|it| it.reset.is_some()))
                .unwrap();
            let response = client.response(stream).unwrap();
            assert_eq!(response.reset, Some(ErrorCode::NoError));
        }
        // The bytes sent on both streams are credited to the connection's window again.
        client
            .request(5, "POST", "/echo", &[], Ends::Later)
            .unwrap();
        let body = pattern(3_000_000);
        client.upload(5, &body, Ends::Now).unwrap();
        assert!(client.response(5).unwrap().body == body);
    });
}

/// More requests at once would only wait in the queue, and for others too.
#[test]
fn a_client_may_have_as_many_streams_as_are_served() {
    test(|| {
        let origin = crate::setup::origin();
        let site = Site {
            listener: "h2c = true",
            ..Site::default()
        };
        let endpoint = format!("{{ address = \"{}\", max_in_flight = 6 }}", origin.address);
        let proxy = site.start(&[endpoint]);
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        let allowed = |client: &H2Client| client.settings[&setting::MAX_CONCURRENT_STREAMS];
        client.ask(1, "/ping").unwrap();
        assert_eq!(allowed(&client), 100);
        for stream in 0..40 {
            client.get(3 + 2 * stream, "/slow/300").unwrap();
        }
        client.until(|it| allowed(it) <= 6).unwrap();
        assert!(allowed(&client) >= 4, "none is left: {}", allowed(&client));
        // Requests already on their way are still served.
        for stream in 0..40 {
            assert_eq!(client.response(3 + 2 * stream).unwrap().status, 200);
        }
        client.until(|it| allowed(it) == 100).unwrap();
    });
}
