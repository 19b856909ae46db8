//! Endpoints that break rules or make work: each has a bound. The client gets an answer, the
//! program stays up and idle, and others are served.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::http2::{Ends, ErrorCode, block, flags, frame, kind, setting};
use evenkeel_testkit::{H2Client, H2Server, Proxy, RawClient};

use super::{STATUS, echo_paths, scripted};
use crate::setup::{Site, assert_serves, get, origin, test};

/// An endpoint's attack on a stream that asks for it.
type Attack = fn(&mut H2Server, u32) -> io::Result<()>;

/// The outcome that the client of such an exchange may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    /// An answer that names the fault: 502 or 504.
    Refusal,
    /// The endpoint's response, since it is valid.
    Answer,
    /// A response that is cut off.
    Cut,
    /// A response that is whole or cut off, as it comes.
    AnswerOrCut,
}

impl Gets {
    fn includes(self, other: Gets) -> bool {
        self == other || (self == Gets::AnswerOrCut && matches!(other, Gets::Answer | Gets::Cut))
    }
}

const OK: &[(&str, &str)] = &[(":status", "200")];

/// Sends as much of this as the program takes.
fn flood(server: &mut H2Server, piece: &[u8], times: usize) -> io::Result<()> {
    let pieces = piece.repeat(100);
    server.raw().set_step(Duration::from_secs(3));
    for _ in 0..times / 100 {
        server.raw().send(&pieces)?;
    }
    Ok(())
}

fn number(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn own_setting(number: u16, value: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// Waits for the end of the connection, and reads no frame.
fn wait(server: &mut H2Server) -> io::Result<()> {
    server.raw().read_to_end().map(|_| ())
}

const ATTACKS: &[(&str, Gets, Attack)] = &[
    ("SETTINGS without end", Gets::Refusal, |server, _| {
        let settings = own_setting(setting::INITIAL_WINDOW_SIZE, 70_000);
        flood(server, &frame(kind::SETTINGS, 0, 0, &settings), 200_000)
    }),
    ("SETTINGS with many values", Gets::Refusal, |server, _| {
        let settings = own_setting(setting::INITIAL_WINDOW_SIZE, 70_000).repeat(2_700);
        flood(server, &frame(kind::SETTINGS, 0, 0, &settings), 10_000)
    }),
    ("PING without end", Gets::Refusal, |server, _| {
        flood(server, &frame(kind::PING, 0, 0, b"attacker"), 200_000)
    }),
    ("answers to no PING", Gets::Refusal, |server, _| {
        flood(
            server,
            &frame(kind::PING, flags::ACK, 0, b"attacker"),
            200_000,
        )
    }),
    (
        "a window of the connection that is too large",
        Gets::Refusal,
        |server, _| {
            server.frame(kind::WINDOW_UPDATE, 0, 0, number(0x7fff_ffff))?;
            server.frame(kind::WINDOW_UPDATE, 0, 0, number(0x7fff_ffff))?;
            wait(server)
        },
    ),
    (
        "a window of the stream that is too large",
        Gets::Refusal,
        |server, id| {
            server.frame(kind::WINDOW_UPDATE, 0, id, number(0x7fff_ffff))?;
            server.frame(kind::WINDOW_UPDATE, 0, id, number(0x7fff_ffff))
        },
    ),
    ("WINDOW_UPDATE of nothing", Gets::Refusal, |server, _| {
        server.frame(kind::WINDOW_UPDATE, 0, 0, number(0))?;
        wait(server)
    }),
    ("WINDOW_UPDATE without end", Gets::Refusal, |server, id| {
        flood(
            server,
            &frame(kind::WINDOW_UPDATE, 0, id, &number(1)),
            200_000,
        )
    }),
    ("CONTINUATION without end", Gets::Refusal, |server, id| {
        server.frame(kind::HEADERS, 0, id, block(OK))?;
        let more = block(&[("x-a", &"b".repeat(1_000))]);
        flood(server, &frame(kind::CONTINUATION, 0, id, &more), 10_000)
    }),
    (
        "empty CONTINUATION without end",
        Gets::Refusal,
        |server, id| {
            server.frame(kind::HEADERS, 0, id, block(OK))?;
            flood(server, &frame(kind::CONTINUATION, 0, id, b""), 100_000)
        },
    ),
    ("a head of 1 MB", Gets::Refusal, |server, id| {
        let long = "x".repeat(1_000);
        let fields: Vec<_> = (0..1_000).map(|it| format!("x-{it}")).collect();
        let fields = fields.iter().map(|it| (it.as_str(), long.as_str()));
        let fields: Vec<_> = OK.iter().copied().chain(fields).collect();
        server.headers(id, &fields, Ends::Now)
    }),
    ("a head of 100 KB", Gets::Refusal, |server, id| {
        let long = "x".repeat(10_000);
        let fields: Vec<_> = (0..10).map(|it| format!("x-{it}")).collect();
        let fields = fields.iter().map(|it| (it.as_str(), long.as_str()));
        let fields: Vec<_> = OK.iter().copied().chain(fields).collect();
        server.headers(id, &fields, Ends::Now)
    }),
    ("10,000 fields", Gets::Refusal, |server, id| {
        let fields = [OK, &vec![("a", "b"); 10_000]].concat();
        server.headers(id, &fields, Ends::Now)
    }),
    ("10,000 interim responses", Gets::Refusal, |server, id| {
        let interim = block(&[(":status", "103"), ("link", "</a>")]);
        let interim = frame(kind::HEADERS, flags::END_HEADERS, id, &interim);
        flood(server, &interim, 10_000)
    }),
    (
        "an interim response that ends the stream",
        Gets::Refusal,
        |server, id| server.headers(id, &[(":status", "103")], Ends::Now),
    ),
    ("content before a head", Gets::Refusal, |server, id| {
        server.data(id, "early", Ends::Now)
    }),
    ("content behind the end", Gets::AnswerOrCut, |server, id| {
        server.respond(id, 200, "well")?;
        for _ in 0..50 {
            server.data(id, "late", Ends::Later)?;
        }
        server.headers(id, OK, Ends::Now)
    }),
    ("empty content without end", Gets::Cut, |server, id| {
        server.headers(id, OK, Ends::Later)?;
        flood(server, &frame(kind::DATA, 0, id, b""), 100_000)
    }),
    ("padding without end", Gets::Cut, |server, id| {
        server.headers(id, OK, Ends::Later)?;
        let padding = [&[255][..], &[0; 255]].concat();
        flood(
            server,
            &frame(kind::DATA, flags::PADDED, id, &padding),
            100_000,
        )
    }),
    ("more padding than there is", Gets::Cut, |server, id| {
        server.headers(id, OK, Ends::Later)?;
        server.frame(kind::DATA, flags::PADDED, id, b"\xffabc")?;
        wait(server)
    }),
    ("more content than the window", Gets::Cut, |server, id| {
        server.headers(id, OK, Ends::Later)?;
        flood(server, &frame(kind::DATA, 0, id, &[b'x'; 16_384]), 100_000)
    }),
    (
        "a stream with an even number",
        Gets::Refusal,
        |server, _| {
            server.headers(2, OK, Ends::Now)?;
            wait(server)
        },
    ),
    ("a head of no stream", Gets::Refusal, |server, _| {
        server.headers(0, OK, Ends::Now)?;
        wait(server)
    }),
    (
        "a head of a stream that was not opened",
        Gets::Refusal,
        |server, id| {
            server.headers(id + 100, OK, Ends::Now)?;
            wait(server)
        },
    ),
    (
        "content of a stream that was not opened",
        Gets::Refusal,
        |server, id| {
            server.data(id + 100, "a", Ends::Now)?;
            wait(server)
        },
    ),
    (
        "RST_STREAM of a stream that was not opened",
        Gets::Refusal,
        |server, id| {
            server.reset(id + 100, ErrorCode::Cancel)?;
            wait(server)
        },
    ),
    ("PUSH_PROMISE", Gets::Refusal, |server, id| {
        let promise = [
            &number(2)[..],
            &block(&[(":method", "GET"), (":path", "/")]),
        ]
        .concat();
        server.frame(kind::PUSH_PROMISE, flags::END_HEADERS, id, promise)?;
        wait(server)
    }),
    (
        "PUSH_PROMISE that is announced",
        Gets::Refusal,
        |server, _| {
            server.frame(kind::SETTINGS, 0, 0, own_setting(setting::ENABLE_PUSH, 1))?;
            wait(server)
        },
    ),
    (
        "GOAWAY with a number that rises",
        Gets::Answer,
        |server, id| {
            server.go_away(id, ErrorCode::NoError)?;
            server.go_away(id + 100, ErrorCode::NoError)?;
            server.respond(id, 200, "well")
        },
    ),
    ("GOAWAY without end", Gets::Refusal, |server, id| {
        let payload = [number(id), number(0)].concat();
        flood(server, &frame(kind::GOAWAY, 0, 0, &payload), 200_000)
    }),
    ("frames that are too small", Gets::Refusal, |server, _| {
        server.frame(
            kind::SETTINGS,
            0,
            0,
            own_setting(setting::MAX_FRAME_SIZE, 1),
        )?;
        wait(server)
    }),
    ("frames that may be huge", Gets::Answer, |server, id| {
        let huge = own_setting(setting::MAX_FRAME_SIZE, 0xff_ffff);
        server.frame(kind::SETTINGS, 0, 0, huge)?;
        server.respond(id, 200, "well")
    }),
    (
        "a frame that is longer than was allowed",
        Gets::Refusal,
        |server, id| {
            server
                .raw()
                .send(frame(kind::DATA, 0, id, &[b'x'; 16_385]))?;
            wait(server)
        },
    ),
    (
        "a table that shrinks to nothing",
        Gets::Answer,
        |server, id| {
            let none = own_setting(setting::HEADER_TABLE_SIZE, 0);
            server.frame(kind::SETTINGS, 0, 0, none)?;
            server.respond(id, 200, "well")
        },
    ),
    (
        "a block that can't be decoded",
        Gets::Refusal,
        |server, id| {
            let own = flags::END_HEADERS | flags::END_STREAM;
            server.frame(kind::HEADERS, own, id, [0xff; 20])?;
            wait(server)
        },
    ),
    ("half a frame", Gets::Refusal, |server, _| {
        server.raw().send([0, 0, 10, 1])?;
        Err(io::ErrorKind::Other.into())
    }),
    ("half a response", Gets::Cut, |server, id| {
        server.headers(id, OK, Ends::Later)?;
        server.data(id, "half", Ends::Later)?;
        Err(io::ErrorKind::Other.into())
    }),
    ("a reset behind half a response", Gets::Cut, |server, id| {
        server.headers(id, OK, Ends::Later)?;
        server.data(id, "half", Ends::Later)?;
        server.reset(id, ErrorCode::Internal)
    }),
    ("a reset", Gets::Refusal, |server, id| {
        server.reset(id, ErrorCode::Internal)
    }),
    (
        "a reset, and a response behind it",
        Gets::Refusal,
        |server, id| {
            server.reset(id, ErrorCode::Cancel)?;
            server.respond(id, 200, "late")
        },
    ),
    ("resets without end", Gets::Refusal, |server, id| {
        let code = number(ErrorCode::Cancel.number());
        flood(server, &frame(kind::RST_STREAM, 0, id, &code), 200_000)
    }),
    ("PRIORITY without end", Gets::Refusal, |server, id| {
        flood(
            server,
            &frame(kind::PRIORITY, 0, id, &[0, 0, 0, 1, 5]),
            200_000,
        )
    }),
    ("PRIORITY_UPDATE", Gets::Refusal, |server, id| {
        let update = [&number(id)[..], b"u=0"].concat();
        server.frame(kind::PRIORITY_UPDATE, 0, 0, update)?;
        wait(server)
    }),
    ("unknown frames without end", Gets::Refusal, |server, _| {
        flood(server, &frame(0xbe, 0, 0, b"what"), 200_000)
    }),
    ("text of HTTP/1.1", Gets::Refusal, |server, _| {
        server
            .raw()
            .send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
        wait(server)
    }),
    (
        "trailers that do not end the stream",
        Gets::Cut,
        |server, id| {
            server.headers(id, OK, Ends::Later)?;
            server.data(id, "half", Ends::Later)?;
            server.headers(id, &[("x-a", "b")], Ends::Later)
        },
    ),
    ("another head for trailers", Gets::Cut, |server, id| {
        server.headers(id, OK, Ends::Later)?;
        server.data(id, "half", Ends::Later)?;
        server.headers(id, OK, Ends::Now)
    }),
];

/// A program before an endpoint that attacks, and an ordinary one behind `/ping`.
fn attacked() -> (
    evenkeel_testkit::OriginHandle,
    evenkeel_testkit::RawOrigin,
    Proxy,
) {
    let attacker = scripted(&[], |_, server| {
        loop {
            let request = server.request()?;
            let name = request.path().strip_prefix("/attack/");
            let at = name.and_then(|it| it.parse::<usize>().ok());
            match at {
                Some(at) => ATTACKS[at].2(server, request.stream)?,
                None => server.respond(request.stream, 200, "well")?,
            }
        }
    });
    let origin = origin();
    let server = format!(
        "{STATUS}\n[[route]]\nmatch = {{ path = \"/ping\" }}\nupstream = \"other\"\n\
         [upstream.other]\nendpoints = [\"{}\"]\n",
        origin.address
    );
    let site = Site {
        listener: "h2c = true",
        server: &server,
        upstream: "protocol = \"h2\"\nguard = false\ntimeouts = { first_byte = \"4s\", idle = \"4s\" }",
        ..Site::default()
    };
    let proxy = site.start(&[attacker.address.to_string()]);
    (origin, attacker, proxy)
}

/// The outcome of an attacked exchange for its client.
fn gets(client: &mut RawClient, path: &str) -> Result<Gets, String> {
    client.set_step(Duration::from_secs(15));
    client.send(get(path)).unwrap();
    match client.read_response("GET") {
        Ok(it) if matches!(it.status, 502 | 504) => Ok(Gets::Refusal),
        Ok(it) if it.status == 200 && it.text() == "well" => Ok(Gets::Answer),
        Ok(it) => Err(format!("{} {:?}", it.status, it.text())),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err("nothing".to_owned()),
        Err(_) => Ok(Gets::Cut),
    }
}

#[test]
fn endpoints_that_break_rules_harm_nobody_else() {
    evenkeel_testkit::deadline::within(Duration::from_secs(180), || {
        let (_origin, attacker, proxy) = attacked();
        assert_serves(&mut proxy.client());
        let memory = proxy.rss_bytes().unwrap();
        let mut wrong = Vec::new();
        for (at, (name, expected, _)) in ATTACKS.iter().enumerate() {
            let (connections, cpu) = (attacker.connections(), proxy.cpu_time().unwrap());
            let got = gets(&mut proxy.client(), &format!("/attack/{at}"));
            if !got.as_ref().is_ok_and(|it| expected.includes(*it)) {
                wrong.push(format!("{name}: {got:?}, not {expected:?}"));
            }
            let opened = attacker.connections() - connections;
            if opened > 5 {
                wrong.push(format!("{name}: {opened} connections"));
            }
            assert_serves(&mut proxy.client());
            let well = proxy.client().get("/well").unwrap();
            if well.text() != "well" {
                wrong.push(format!("{name}: the next one gets {well:?}"));
            }
            let spent = proxy.cpu_time().unwrap() - cpu;
            if spent > Duration::from_secs(1) {
                wrong.push(format!("{name}: {spent:?} of work"));
            }
        }
        let cpu = proxy.cpu_time().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let idle = proxy.cpu_time().unwrap() - cpu;
        if idle > Duration::from_millis(200) {
            wrong.push(format!("{idle:?} of work in an idle second"));
        }
        let grown = proxy.rss_bytes().unwrap().saturating_sub(memory);
        if grown > 32 << 20 {
            wrong.push(format!("{grown} bytes more are held"));
        }
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), proxy.stderr());
    });
}

/// All that a connection carries may be reset at once.
#[test]
fn an_endpoint_that_resets_all_is_not_asked_for_ever() {
    test(|| {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let endpoint = scripted(&[], move |_, server| {
            let mut held = Vec::new();
            loop {
                let request = server.request()?;
                count.fetch_add(1, Ordering::SeqCst);
                if request.path() == "/well" {
                    server.respond(request.stream, 200, "well")?;
                    continue;
                }
                held.push(request.stream);
                if held.len() >= 50 {
                    for stream in held.drain(..) {
                        server.reset(stream, ErrorCode::Cancel)?;
                    }
                }
            }
        });
        let upstream = "guard = false\ntimeouts = { first_byte = \"3s\" }\n";
        let proxy = super::over_h2(endpoint.address, upstream);
        assert_eq!(proxy.client().get("/well").unwrap().text(), "well");
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..100 {
            client.get(2 * stream + 1, "/reset").unwrap();
        }
        for stream in 0..100 {
            let status = client.response(2 * stream + 1).unwrap().status;
            assert!(matches!(status, 502 | 504), "{status}");
        }
        let requests = requests.load(Ordering::SeqCst);
        assert!(requests <= 401, "{requests} requests");
        assert_eq!(proxy.client().get("/well").unwrap().text(), "well");
        assert!(endpoint.connections() <= 2, "{}", endpoint.connections());
    });
}

/// Streams that clients give up are not the endpoint's fault: their connection stays.
#[test]
fn a_thousand_clients_may_leave() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            loop {
                let request = server.request()?;
                if request.path() == "/well" {
                    server.respond(request.stream, 200, "well")?;
                }
            }
        });
        let proxy = super::over_h2(endpoint.address, "");
        let mut left = 0;
        for _ in 0..10 {
            let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
            for stream in 0..100 {
                client.get(2 * stream + 1, "/left").unwrap();
                left += 1;
            }
            client.ping().unwrap();
        }
        assert_eq!(left, 1_000);
        evenkeel_testkit::deadline::until("all are gone", || super::in_flight(&proxy) == 0);
        assert_eq!(proxy.client().get("/well").unwrap().text(), "well");
    });
}

/// An endpoint that reads nothing takes no more memory than its streams have.
#[test]
fn an_endpoint_that_reads_nothing_holds_little() {
    test(|| {
        let endpoint = scripted(&[], |_, server| {
            std::thread::sleep(Duration::from_secs(6));
            echo_paths(server)
        });
        let upstream =
            "guard = false\nretries = 0\ntimeouts = { first_byte = \"3s\", idle = \"3s\" }\n";
        let proxy = super::over_h2(endpoint.address, upstream);
        let before = proxy.rss_bytes().unwrap();
        let mut client = H2Client::connect(proxy.socket_addr("web")).unwrap();
        for stream in 0..50 {
            let id = 2 * stream + 1;
            client.request(id, "POST", "/up", &[], Ends::Later).unwrap();
            client.data(id, [b'x'; 1_000], Ends::Later).unwrap();
        }
        client.ping().unwrap();
        let grown = proxy.rss_bytes().unwrap().saturating_sub(before);
        assert!(grown < 16 << 20, "{grown} bytes");
    });
}

/// The floods that endpoints may send to a probe.
const FLOODS: &[(&str, Attack)] = &[
    ("interim responses", |server, id| {
        let interim = block(&[(":status", "103"), ("link", "</a>")]);
        let interim = frame(kind::HEADERS, flags::END_HEADERS, id, &interim);
        flood(server, &interim, 1_000_000)
    }),
    ("content", |server, id| {
        server.headers(id, OK, Ends::Later)?;
        loop {
            server.data(id, [b'x'; 1_000], Ends::Later)?;
            server.raw().set_step(Duration::from_millis(1));
            if server.raw().peek_first().is_ok() {
                server.raw().set_step(Duration::from_secs(3));
                server.next()?;
            }
        }
    }),
    ("PING", |server, _| {
        flood(server, &frame(kind::PING, 0, 0, b"attacker"), 1_000_000)
    }),
    ("fields", |server, id| {
        server.frame(kind::HEADERS, 0, id, block(OK))?;
        let more = block(&[("x-a", &"b".repeat(1_000))]);
        flood(server, &frame(kind::CONTINUATION, 0, id, &more), 100_000)
    }),
    ("nothing", |server, _| wait(server)),
];

#[test]
fn probes_have_an_end_whatever_comes() {
    evenkeel_testkit::deadline::within(Duration::from_secs(60), || {
        for (what, attack) in FLOODS {
            let endpoint = scripted(&[], move |_, server| {
                let request = server.request()?;
                attack(server, request.stream)
            });
            let health = "guard = false\nhealth = { interval = \"600ms\", timeout = \"500ms\", \
                          path = \"/x\", body = \"well\" }";
            let proxy = super::over_h2(endpoint.address, health);
            let before = proxy.rss_bytes().unwrap();
            let said = "is down after 1 failed probe";
            evenkeel_testkit::deadline::until(what, || {
                proxy.stderr().contains(said) && endpoint.connections() >= 4
            });
            let grown = proxy.rss_bytes().unwrap().saturating_sub(before);
            assert!(grown < 16 << 20, "{what}: {grown} bytes");
        }
    });
}
