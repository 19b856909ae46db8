//! Servers that hang, go, refuse or talk nonsense: they cost hits, and nothing else.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use evenkeel_testkit::deadline::within;
use rustix::process::Signal;

use super::*;

/// The time of a lookup. One that takes a client's time is a fault.
#[track_caller]
fn timed_find(machine: &Machine, path: &str) -> (Result<Object, &'static str>, Duration) {
    let begun = Instant::now();
    let found = machine.find(path, "");
    (found, begun.elapsed())
}

#[track_caller]
fn downs(machine: &Machine) -> Vec<(&'static str, u64)> {
    machine.figures().downs.occurred().iter().collect()
}

#[test]
fn a_server_that_hangs_costs_hits_alone() {
    within(Duration::from_secs(60), || {
        let mut server = Server::redis();
        server.start(&[]);
        let one = Machine::start(default_settings(&at_socket(server.socket(), "")));
        one.until_up();
        assert_eq!(one.put("/a", &Content::default()), "stored");
        server.signal(Signal::STOP);
        let begun = Instant::now();
        let mut slow = 0;
        while begun.elapsed() < Duration::from_secs(10) {
            let (found, time) = timed_find(&one, "/a");
            // The deadline is 50 ms; the rest is this machine's.
            assert!(time < Duration::from_millis(500), "{time:?}");
            match found.unwrap_err() {
                "slow" => slow += 1,
                word => assert_eq!(word, "down"),
            }
        }
        assert!((1..=5).contains(&slow), "{slow}");
        assert_eq!(downs(&one), [("slow", 1)]);
        let failure = one.figures().failure.unwrap();
        assert!(failure.starts_with("slow: no answer within"), "{failure}");
        server.signal(Signal::CONT);
        one.until_up();
        assert!(one.find("/a", "").is_ok());
        assert_eq!(one.figures().ups, 2);
    });
}

#[test]
fn a_server_that_hangs_while_nobody_asks_is_noticed() {
    test(|| {
        let (server, [one]) = machines(Server::redis());
        server.signal(Signal::STOP);
        one.until_down(Outcome::Slow);
        server.signal(Signal::CONT);
        one.until_up();
    });
}

#[test]
fn responses_that_wait_to_be_stored_are_bounded() {
    test(|| {
        let (server, [one]) = machines(Server::redis());
        server.signal(Signal::STOP);
        let body = vec![b'x'; 1 << 19];
        let content = Content {
            body: &body,
            ..Content::default()
        };
        let object = one.object("/a", &content);
        let mut most = 0;
        for _ in 0..64 {
            one.shared.put(&object);
            most = most.max(one.figures().store_queue_bytes);
        }
        let stores = one.figures().stores.occurred();
        let full = stores.iter().find(|(word, _)| *word == "full");
        assert!(full.is_some_and(|(_, count)| count >= 32), "{stores:?}");
        assert!(((15 << 20)..=(16 << 20)).contains(&most), "{most}");
        server.signal(Signal::CONT);
        until("nothing waits", || one.figures().store_queue_bytes == 0);
    });
}

#[test]
fn a_server_that_restarts_is_used_again() {
    test(|| {
        let (mut server, [one, other]) = machines(Server::redis());
        assert_eq!(one.put("/a", &Content::default()), "stored");
        server.stop();
        for machine in [&one, &other] {
            machine.until_down(Outcome::Connection);
            let (found, time) = timed_find(machine, "/a");
            assert_eq!(found.unwrap_err(), "down");
            assert!(time < Duration::from_millis(20), "{time:?}");
            assert_eq!(machine.put("/a", &Content::default()), "down");
        }
        server.start(&[]);
        for machine in [&one, &other] {
            machine.until_up();
            assert_eq!(machine.find("/a", "").unwrap_err(), "absent");
            assert_eq!(downs(machine), [("connection", 1)]);
        }
        assert_eq!(one.put("/a", &Content::default()), "stored");
        assert!(other.find("/a", "").is_ok());
    });
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    test(|| {
        let mut server = Server::redis();
        let one = Machine::start(settings(&at_socket(server.socket(), "")));
        one.until_down(Outcome::Connection);
        server.start(&[]);
        one.until_up();
        assert_eq!(one.put("/a", &Content::default()), "stored");
        assert_eq!(one.figures().purged_unknown, 0);
    });
}

#[test]
fn a_wrong_password_is_said_once() {
    test(|| {
        let mut server = Server::redis();
        server.start(&["--requirepass", "right"]);
        for (options, is_right) in [("", false), ("?pass=wrong", false), ("?pass=right", true)] {
            let one = Machine::start(settings(&at_socket(server.socket(), options)));
            if is_right {
                one.until_up();
                assert_eq!(one.put("/a", &Content::default()), "stored");
                continue;
            }
            until("it was tried again", || one.figures().probes >= 3);
            one.until_down(Outcome::Password);
            assert_eq!(downs(&one), [("password", 1)]);
            assert_eq!(one.find("/a", "").unwrap_err(), "down");
        }
    });
}

/// A server that answers every command with this text.
fn speaking(answer: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                let mut read = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut read) {
                    let commands = read[..len].iter().filter(|byte| **byte == b'*').count();
                    if stream
                        .write_all(answer.repeat(commands).as_bytes())
                        .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Answers that a Redis server never gives, and an answer of one that can't serve.
#[test]
fn a_server_that_talks_nonsense_is_not_used() {
    test(|| {
        let endless = "x".repeat(1 << 20);
        for (answer, word) in [
            ("HTTP/1.1 400 Bad Request\r\n\r\n", Outcome::Protocol),
            ("\0\u{1}\u{2}garbage\r\n", Outcome::Protocol),
            ("+OK\r\n", Outcome::Protocol),
            ("$-1\r\n", Outcome::Protocol),
            (":1\r\n", Outcome::Protocol),
            ("*0\r\n", Outcome::Log),
            ("*1\r\n*2\r\n$1\r\na\r\n*0\r\n", Outcome::Protocol),
            ("*9000000000000000000\r\n", Outcome::Slow),
            ("$9000000000000000000\r\n", Outcome::Slow),
            (&endless, Outcome::Protocol),
            ("", Outcome::Slow),
            ("-LOADING Redis is loading\r\n", Outcome::Loading),
            ("-NOAUTH Authentication required.\r\n", Outcome::Password),
            ("-READONLY You can't write\r\n", Outcome::ReadOnly),
            ("-OOM command not allowed\r\n", Outcome::Memory),
            ("-NOPERM no permissions\r\n", Outcome::Forbidden),
            ("-ERR something else\r\n", Outcome::Refused),
        ] {
            let address = speaking(answer.to_owned());
            let one = Machine::start(settings(&format!("redis://{address}")));
            let shown: String = answer.chars().take(20).collect();
            until(&format!("{shown:?} is {}", word.word()), || {
                let failure = one.figures().failure.unwrap_or_default();
                failure.starts_with(word.word())
            });
            assert!(!one.figures().up && one.find("/a", "").is_err());
        }
    });
}

#[test]
fn whatever_lies_in_the_place_of_a_response_is_a_miss() {
    test(|| {
        let (server, [one]) = machines(Server::redis());
        let mut connection = connect(&server);
        let name = name_of(&one, "/a");
        assert_eq!(one.put("/a", &Content::default()), "stored");
        let value: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
        let mut put = |value: &[u8]| {
            let mut command = redis::cmd("SET");
            command.arg(&name).arg(value).arg("PX").arg(50_000);
            command.exec(&mut connection).unwrap();
            one.find("/a", "").err()
        };
        assert_eq!(put(&value), None);
        for at in 0..value.len() {
            let mut changed = value.clone();
            changed[at] ^= 1 << (at % 8);
            let word = put(&changed).unwrap();
            let words = ["damaged", "foreign", "version", "purged"];
            assert!(words.contains(&word), "byte {at}: {word}");
            assert!(put(&value[..at]).is_some(), "{at} bytes");
        }
        let mut longer = value.clone();
        longer.push(b'x');
        assert_eq!(put(&longer), Some("damaged"));
        assert_eq!(put(b"something else"), Some("foreign"));
        let before = one.figures().received_bytes;
        assert_eq!(put(&vec![b'x'; 4 << 20]), Some("long"));
        let read = one.figures().received_bytes - before;
        assert!(read < 2 << 20, "{read}");
        // Of another version: as a record says, and as its name says.
        let start = value.windows(4).position(|it| it == b"EvkR").unwrap();
        let mut newer = value.clone();
        newer[start + 4] += 1;
        assert_eq!(put(&newer), Some("version"));
        // Of another key.
        assert_eq!(one.put("/b", &Content::default()), "stored");
        let other = redis::cmd("GET")
            .arg(name_of(&one, "/b"))
            .query::<Vec<u8>>(&mut connect(&server));
        assert_eq!(put(&other.unwrap()), Some("foreign"));
        // Of another type, and without an end.
        let mut connection = connect(&server);
        redis::cmd("DEL").arg(&name).exec(&mut connection).unwrap();
        redis::cmd("LPUSH")
            .arg(&name)
            .arg("x")
            .exec(&mut connection)
            .unwrap();
        for _ in 0..10 {
            assert_eq!(one.find("/a", "").unwrap_err(), "foreign");
        }
        redis::cmd("SET")
            .arg(&name)
            .arg(&value)
            .exec(&mut connection)
            .unwrap();
        assert_eq!(one.find("/a", "").unwrap_err(), "foreign");
        assert!(one.figures().up && downs(&one).is_empty());
    });
}

#[test]
fn a_server_that_stores_nothing_still_gives_hits() {
    test(|| {
        let (server, [one]) = machines(Server::redis());
        assert_eq!(one.put("/a", &Content::default()), "stored");
        let mut connection = connect(&server);
        let mut ask = |command: &[&str]| {
            let mut asked = redis::cmd(command[0]);
            asked.arg(&command[1..]);
            asked.exec(&mut connection).unwrap();
        };
        ask(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_eq!(one.put("/b", &Content::default()), "memory");
        assert!(one.find("/a", "").is_ok());
        // A purge waits until the server takes it, and holds here meanwhile.
        one.shared
            .purge(Purge::Url(b"http://example.com/a"), Strength::Hard);
        assert_eq!(one.find("/a", "").unwrap_err(), "purged");
        assert_eq!(one.figures().purges_waiting, 1);
        ask(&["CONFIG", "SET", "maxmemory", "0"]);
        until("it is in the log", || one.figures().purges_waiting == 0);
        assert_eq!(one.put("/b", &Content::default()), "stored");
        ask(&["ACL", "SETUSER", "default", "-eval"]);
        assert_eq!(one.put("/c", &Content::default()), "forbidden");
        assert!(one.find("/b", "").is_ok());
        ask(&["ACL", "SETUSER", "default", "+eval"]);
        assert!(downs(&one).is_empty(), "{:?}", downs(&one));
        // It reports that to the machines that wait for purges.
        ask(&["REPLICAOF", "127.0.0.1", "1"]);
        until("it is asked again", || one.figures().ups == 2);
        assert_eq!(one.put("/c", &Content::default()), "read_only");
        assert!(one.find("/b", "").is_ok());
    });
}

#[test]
fn the_thread_ends_with_the_tier() {
    test(|| {
        let (server, [one]) = machines(Server::redis());
        let mut connection = connect(&server);
        let mut clients = || {
            let mut list = redis::cmd("CLIENT");
            let list: String = list.arg("LIST").query(&mut connection).unwrap();
            list.lines().count()
        };
        assert_eq!(clients(), 4);
        drop(one);
        until("its connections are closed", || clients() == 1);
    });
}
