//! TCP connections: carried unchanged, with slots, a queue and routes.

mod databases;
mod drains;
mod failures;
mod hello;
mod proxy_headers;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::{Proxy, RawClient, RawOrigin};
use serde_json::Value;

use crate::setup::{figures, nobody, pattern, program, test};

/// A listener of TCP with further keys, and this text behind it.
fn start(listener: &str, rest: &str) -> Proxy {
    start_logged("json", listener, rest)
}

/// The same with an access log in this format.
fn start_logged(format: &str, listener: &str, rest: &str) -> Proxy {
    Proxy::start(program(), &config(format, listener, rest)).unwrap()
}

/// The configuration of that.
fn config(format: &str, listener: &str, rest: &str) -> String {
    format!(
        "[server]\nworkers = 1\ncontrol = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"{format}\"\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n{listener}\n{rest}"
    )
}

/// The same, with one upstream for everything.
fn before(endpoints: &[String], upstream: &str) -> Proxy {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|it| {
            if it.starts_with('{') {
                it.clone()
            } else {
                format!("\"{it}\"")
            }
        })
        .collect();
    let endpoints = endpoints.join(", ");
    start(
        "",
        &format!(
            "[[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [{endpoints}]\n{upstream}"
        ),
    )
}

/// The only line of the log, once it is there.
#[track_caller]
fn line(proxy: &Proxy) -> Value {
    until("it is logged", || !proxy.access_log().is_empty());
    proxy.access_log_json()[0].clone()
}

/// An origin that echoes, until the client has closed.
fn echo() -> RawOrigin {
    saying("")
}

/// The same, which says this first.
fn saying(greeting: &'static str) -> RawOrigin {
    RawOrigin::start(move |_, mut stream| {
        let mut read = || -> std::io::Result<()> {
            stream.send(greeting)?;
            loop {
                let byte = stream.read_len(1)?;
                stream.send(byte)?;
            }
        };
        let _ = read();
    })
    .unwrap()
}

#[test]
fn bytes_go_both_ways_as_they_are() {
    test(|| {
        let origin = saying("220 ready\r\n");
        let proxy = before(&[origin.address.to_string()], "");
        let mut client = proxy.client();
        // The server begins, as those of mail do.
        assert_eq!(client.read_len(11).unwrap(), b"220 ready\r\n");
        for text in ["EHLO a\r\n", "\0\x01", "GET / HTTP/1.1\r\n\r\n"] {
            client.send(text).unwrap();
            assert_eq!(client.read_len(text.len()).unwrap(), text.as_bytes());
        }
        client.finish_sending().unwrap();
        assert!(client.is_closed());
        let line = line(&proxy);
        assert_eq!(line["end"], "tunnel", "{line}");
        assert_eq!(line["bytes_in"], 28, "{line}");
        assert_eq!(line["bytes_out"], 39, "{line}");
        assert_eq!(line["endpoint"], origin.address.to_string(), "{line}");
        let figures = figures(&proxy);
        let endpoint = &figures["upstreams"][0]["endpoints"][0];
        assert_eq!(endpoint["in_flight"], 0, "{endpoint}");
    });
}

#[test]
fn a_connection_has_a_line_in_every_format() {
    test(|| {
        for (format, expected) in [
            ("combined", "] \"-\" 0 4 \"-\" \"-\""),
            ("json", "\"end\":\"tunnel\"}"),
            ("httplog", " 0/0 \"-\""),
        ] {
            let origin = echo();
            let rest = format!(
                "[[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{}\"]",
                origin.address
            );
            let proxy = start_logged(format, "", &rest);
            let mut client = proxy.client();
            client.send("ping").unwrap();
            assert_eq!(client.read_len(4).unwrap(), b"ping");
            client.finish_sending().unwrap();
            assert!(client.is_closed());
            until("it is logged", || !proxy.access_log().is_empty());
            let line = proxy.access_log().concat();
            let line = line.trim_end();
            assert!(line.ends_with(expected), "{format}: {line}");
            assert!(!line.contains("\"raw\""), "{line}");
        }
    });
}

#[test]
fn a_side_that_has_sent_everything_still_gets_everything() {
    test(|| {
        const LEN: usize = 4 << 20;
        let (came, arrived) = channel();
        let origin = RawOrigin::start(move |number, mut stream| {
            if number == 0 {
                // It waits for the client's end before it answers.
                let all = stream.read_to_end().unwrap();
                stream.send(format!("{} bytes", all.len())).unwrap();
            } else {
                // It closes first, and the client goes on.
                stream.send("done").unwrap();
                stream.finish_sending().unwrap();
                came.send(stream.read_to_end().unwrap().len()).unwrap();
            }
        })
        .unwrap();
        let proxy = before(&[origin.address.to_string()], "");
        let mut client = proxy.client();
        client.send(pattern(LEN as u64)).unwrap();
        client.finish_sending().unwrap();
        assert_eq!(client.read_to_end().unwrap(), b"4194304 bytes");
        let mut client = proxy.client();
        assert_eq!(client.read_to_end().unwrap(), b"done");
        client.send(pattern(LEN as u64)).unwrap();
        client.finish_sending().unwrap();
        assert_eq!(arrived.recv_timeout(STEP).unwrap(), LEN);
    });
}

#[test]
fn a_reset_is_passed_on_behind_the_data() {
    test(|| {
        // Less than the socket buffers hold: a reset drops unsent bytes.
        const LEN: usize = 20_000;
        let (came, arrived) = channel();
        let origin = RawOrigin::start(move |number, mut stream| {
            if number == 0 {
                let read = stream.read_len(LEN).map(|it| it.len());
                let end = stream.read_len(1).map_err(|it| it.kind());
                came.send((read.ok(), end.err())).unwrap();
            } else {
                stream.send(pattern(LEN as u64)).unwrap();
                stream.reset();
            }
        })
        .unwrap();
        let proxy = before(&[origin.address.to_string()], "");
        let mut client = proxy.client();
        client.send(pattern(LEN as u64)).unwrap();
        // Bytes of a client that has already left are not carried.
        until("it is carried", || origin.connections() == 1);
        client.reset();
        let expected = (Some(LEN), Some(ErrorKind::ConnectionReset));
        assert_eq!(arrived.recv_timeout(STEP).unwrap(), expected);
        assert_eq!(line(&proxy)["end"], "client-gone");
        let mut client = TcpStream::connect(proxy.socket_addr("web")).unwrap();
        client.set_read_timeout(Some(STEP)).unwrap();
        let mut all = vec![0; LEN];
        client.read_exact(&mut all).unwrap();
        let end = client.read(&mut [0]).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        until("it is logged", || proxy.access_log().len() == 2);
        assert_eq!(proxy.access_log_json()[1]["end"], "upstream-cut");
    });
}

/// The kernel reports a reset only once: to the next operation, which may be a splice, or a
/// write to the side that is gone.
#[test]
fn a_reset_amid_bulk_is_no_end() {
    test(|| {
        const LEN: u64 = 8_000_000;
        const ROUNDS: usize = 10;
        let origin = RawOrigin::start(move |number, mut stream| {
            if number < ROUNDS {
                // It reads a part of the bytes that the client keeps sending.
                stream.send(b"a").unwrap();
                let _ = stream.read_len(100_000);
            } else {
                let _ = stream.send(pattern(LEN));
            }
            stream.reset();
        })
        .unwrap();
        let proxy = before(&[origin.address.to_string()], "");
        for round in 0..2 * ROUNDS {
            let mut client = TcpStream::connect(proxy.socket_addr("web")).unwrap();
            client.set_read_timeout(Some(STEP)).unwrap();
            client.set_write_timeout(Some(STEP)).unwrap();
            if round < ROUNDS {
                // Some of it, at least, comes behind the reset.
                let _ = client.write_all(&pattern(LEN));
            }
            let ended = std::io::copy(&mut client, &mut std::io::sink());
            // One of our writes may have got the error: then the next one fails as well.
            let is_reset = match ended {
                Ok(_) => round < ROUNDS && client.write_all(b"x").is_err(),
                Err(error) => error.kind() == ErrorKind::ConnectionReset,
            };
            assert!(is_reset, "round {round}");
        }
        until("they are logged", || proxy.access_log().len() == 2 * ROUNDS);
        for line in proxy.access_log_json() {
            assert_eq!(line["end"], "upstream-cut");
        }
    });
}

#[test]
fn a_client_waits_for_a_slot_and_may_be_refused_one() {
    test(|| {
        let origin = saying("hi");
        let endpoint = format!("{{ address = \"{}\", max_in_flight = 1 }}", origin.address);
        let proxy = before(&[endpoint], "queue = { max = 1, timeout = \"20s\" }");
        let mut first = proxy.client();
        assert_eq!(first.read_len(2).unwrap(), b"hi");
        let mut second = proxy.client();
        second.send("early").unwrap();
        let waiting = || figures(&proxy)["upstreams"][0]["waiting"] == 1;
        until("the second one waits", waiting);
        // There is no room for a third client.
        let mut third = proxy.client();
        assert!(third.is_closed());
        assert_eq!(line(&proxy)["end"], "queue-full");
        drop(first);
        assert_eq!(second.read_len(7).unwrap(), b"hiearly");
        drop(second);
        until("both are logged", || proxy.access_log().len() == 3);
        let queued = &proxy.access_log_json()[2];
        assert_eq!(queued["reason"], "queued", "{queued}");
        // A client that leaves gives its place up.
        let mut first = proxy.client();
        assert_eq!(first.read_len(2).unwrap(), b"hi");
        let second = proxy.client();
        until("the second one waits", waiting);
        drop(second);
        until("its place is free", || !waiting());
    });
}

#[test]
fn a_connection_that_fails_moves_on_with_all_of_its_bytes() {
    test(|| {
        let origin = echo();
        let endpoints = [nobody(), nobody(), origin.address.to_string()];
        let proxy = before(&endpoints, "balance = \"round-robin\"");
        for _ in 0..20 {
            let mut client = proxy.client();
            client.send("all of it").unwrap();
            assert_eq!(client.read_len(9).unwrap(), b"all of it");
        }
        until("all are logged", || proxy.access_log().len() == 20);
        for line in proxy.access_log_json() {
            assert_eq!(line["endpoint"], origin.address.to_string(), "{line}");
        }
    });
}

#[test]
fn an_endpoint_that_closes_at_once_does_not_attract_all() {
    test(|| {
        let broken = RawOrigin::start(|_, _| {}).unwrap();
        let origins = [echo(), echo()];
        let mut endpoints: Vec<_> = origins.iter().map(|it| it.address.to_string()).collect();
        endpoints.push(broken.address.to_string());
        for balance in ["least-connections", "adaptive"] {
            let (proxy, before) = (
                before(&endpoints, &format!("balance = \"{balance}\"")),
                broken.connections(),
            );
            let mut answered = 0;
            for _ in 0..200 {
                let mut client = proxy.client();
                client.send("a").unwrap();
                answered += usize::from(client.read_len(1).is_ok());
            }
            assert!(
                answered >= 150,
                "{answered} of 200 were answered: {balance}"
            );
            let attracted = broken.connections() - before;
            assert!(attracted <= 50, "{attracted}: {balance}");
            let closed = |it: &Value| it["end"] == "upstream-closed";
            until("it is logged", || {
                proxy
                    .access_log_json()
                    .iter()
                    .filter(|it| closed(it))
                    .count()
                    > 0
            });
        }
    });
}

#[test]
fn a_later_tier_is_used_when_the_first_one_has_nothing() {
    test(|| {
        let (first, second) = (saying("1"), saying("2"));
        let at = |address: &str, tier| format!("{{ address = \"{address}\", tier = {tier} }}");
        let (first, second) = (first.address.to_string(), second.address.to_string());
        let proxy = before(&[at(&first, 0), at(&second, 1)], "");
        for _ in 0..5 {
            assert_eq!(proxy.client().read_len(1).unwrap(), b"1");
        }
        let proxy = before(&[at(&nobody(), 0), at(&second, 1)], "");
        for _ in 0..5 {
            assert_eq!(proxy.client().read_len(1).unwrap(), b"2");
        }
    });
}

#[test]
fn silence_and_length_have_bounds() {
    test(|| {
        let origin = echo();
        let address = [origin.address.to_string()];
        for (timeouts, end) in [
            ("tcp_idle = \"200ms\"", "tunnel-idle"),
            ("total = \"300ms\"", "total-timeout"),
        ] {
            let proxy = before(&address, &format!("timeouts = {{ {timeouts} }}"));
            let mut client = proxy.client();
            client.send("a").unwrap();
            assert_eq!(client.read_len(1).unwrap(), b"a");
            assert!(client.is_closed());
            assert_eq!(line(&proxy)["end"], end);
        }
    });
}

#[test]
fn what_answers_requests_takes_no_connection() {
    test(|| {
        let proxy = start(
            "",
            "[[listener]]\nbind = \"127.0.0.1:0\"\n[[route]]\nanswer = { status = 204 }",
        );
        assert!(proxy.client().is_closed());
        assert_eq!(line(&proxy)["end"], "no-route");
    });
}

#[test]
fn a_client_of_a_unix_socket_is_carried_too() {
    test(|| {
        let origin = echo();
        let rest = format!(
            "[[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{}\"]",
            origin.address
        );
        let proxy = start(
            "",
            &format!("[[listener]]\nbind = \"unix:$DIR/tcp.sock\"\nprotocol = \"tcp\"\n{rest}"),
        );
        let mut client = RawClient::connect_unix(proxy.path("tcp.sock")).unwrap();
        client.send("hello").unwrap();
        assert_eq!(client.read_len(5).unwrap(), b"hello");
    });
}
