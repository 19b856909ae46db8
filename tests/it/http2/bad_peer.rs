//! The bad peer of gRPC's tests of interoperability: a server that breaks off calls, or asks
//! for courtesy, with the client of grpc-go
//! (<https://github.com/grpc/grpc/blob/master/doc/negative-http2-interop-test-descriptions.md>).
//!
//! Evenkeel is between the two: each side checks Evenkeel as it would check the other side.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::http2::{Ends, ErrorCode, Frame, PAYLOAD_MAX, flags, kind, setting};
use evenkeel_testkit::process::{repository, run};
use evenkeel_testkit::{H2Server, Proxy, RawOrigin, RawStream};

use crate::setup::Site;

const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// The bytes that the client asks for in each call.
const RESPONSE_LEN: usize = 314_159;

/// The server's reaction to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Goaway,
    RstAfterHeader,
    RstDuringData,
    RstAfterData,
    Ping,
    MaxStreams,
}

impl Case {
    /// The client's name of the case.
    fn name(self) -> &'static str {
        match self {
            Case::Goaway => "goaway",
            Case::RstAfterHeader => "rst_after_header",
            Case::RstDuringData => "rst_during_data",
            Case::RstAfterData => "rst_after_data",
            Case::Ping => "ping",
            Case::MaxStreams => "max_streams",
        }
    }

    fn settings(self) -> &'static [(u16, u32)] {
        match self {
            Case::MaxStreams => &[(setting::MAX_CONCURRENT_STREAMS, 1)],
            _ => &[],
        }
    }
}

/// The observations of the server.
#[derive(Debug, Default)]
struct Seen {
    /// For each answered call, the number of its connection.
    connections: Vec<usize>,
    /// PINGs that were sent and acknowledged.
    pings: (usize, usize),
    /// Violations by the client.
    faults: Vec<String>,
}

struct BadPeer {
    origin: RawOrigin,
    seen: Arc<Mutex<Seen>>,
}

impl BadPeer {
    fn start(case: Case) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let notes = seen.clone();
        let origin = RawOrigin::start(move |number, raw| {
            // It ends as its peer closes.
            let _ = serve(case, number, raw, &notes);
        })
        .unwrap();
        BadPeer { origin, seen }
    }
}

/// A message with a payload of this many bytes (`SimpleResponse`).
fn message() -> Vec<u8> {
    let len = varint(RESPONSE_LEN);
    let payload = [&[0x12][..], &len, &vec![0; RESPONSE_LEN]].concat();
    let response = [&[0x0a][..], &varint(payload.len()), &payload].concat();
    let len = (response.len() as u32).to_be_bytes();
    [&[0][..], &len, &response].concat()
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A connection, and the frames sent on it.
struct Serving<'a> {
    case: Case,
    server: H2Server,
    /// Bytes of content, of all streams.
    sent: u64,
    seen: &'a Mutex<Seen>,
}

fn serve(case: Case, number: usize, raw: RawStream, seen: &Mutex<Seen>) -> io::Result<()> {
    let mut it = Serving {
        case,
        server: H2Server::accept(raw, case.settings())?,
        sent: 0,
        seen,
    };
    loop {
        let stream = it.server.request()?.stream;
        let answered = it.answer(stream);
        it.note_frames(stream);
        answered?;
        seen.lock().unwrap().connections.push(number);
    }
}

impl Serving<'_> {
    fn answer(&mut self, stream: u32) -> io::Result<()> {
        self.ping()?;
        let head = [(":status", "200"), GRPC];
        self.server.headers(stream, &head, Ends::Later)?;
        self.ping()?;
        let message = message();
        let content = match self.case {
            Case::RstAfterHeader => &[][..],
            Case::RstDuringData => &message[..message.len() / 2],
            _ => &message[..],
        };
        self.content(stream, content)?;
        if let Case::RstAfterHeader | Case::RstDuringData | Case::RstAfterData = self.case {
            return self.server.reset(stream, ErrorCode::NoError);
        }
        let trailers = [("grpc-status", "0")];
        self.server.headers(stream, &trailers, Ends::Now)?;
        self.ping()?;
        if self.case == Case::Goaway {
            self.server.go_away(stream, ErrorCode::NoError)?;
        }
        if self.case == Case::Ping {
            while self.pings_left() > 0 {
                self.server.next()?;
            }
        }
        Ok(())
    }

    /// Sends content as the windows allow.
    fn content(&mut self, stream: u32, mut content: &[u8]) -> io::Result<()> {
        let before = self.sent;
        while !content.is_empty() {
            let of_connection = 65_535 + self.credit(0) - self.sent as i64;
            let of_stream = self.initial_window() + self.credit(stream);
            let room = of_connection.min(of_stream - (self.sent - before) as i64);
            if room <= 0 {
                self.server.next()?;
                continue;
            }
            let len = content.len().min(room as usize).min(PAYLOAD_MAX);
            let (part, rest) = content.split_at(len);
            self.server.data(stream, part, Ends::Later)?;
            self.sent += len as u64;
            content = rest;
            self.ping()?;
        }
        Ok(())
    }

    /// The bytes that the client has allowed beyond the first window.
    fn credit(&self, stream: u32) -> i64 {
        let frames = self.server.frames.iter();
        let updates = frames.filter(|it| it.kind == kind::WINDOW_UPDATE && it.stream == stream);
        updates.map(|it| i64::from(number(&it.payload))).sum()
    }

    fn initial_window(&self) -> i64 {
        let frames = self.server.frames.iter();
        let settings = frames.filter(|it| it.kind == kind::SETTINGS && !it.has(flags::ACK));
        let all = settings.flat_map(|it| it.payload.chunks_exact(6));
        let mut own = all.filter(|it| it[..2] == setting::INITIAL_WINDOW_SIZE.to_be_bytes());
        own.next_back()
            .map_or(65_535, |it| i64::from(number(&it[2..])))
    }

    fn ping(&mut self) -> io::Result<()> {
        if self.case != Case::Ping {
            return Ok(());
        }
        self.seen.lock().unwrap().pings.0 += 1;
        self.server.frame(kind::PING, 0, 0, [7; 8])
    }

    /// PINGs without an answer.
    fn pings_left(&self) -> usize {
        let frames = self.server.frames.iter();
        let answers = frames.filter(|it| is_pong(it)).count();
        let mut seen = self.seen.lock().unwrap();
        seen.pings.1 = answers;
        seen.pings.0 - answers
    }

    /// Checks the frames up to the end of a stream. If only one stream is allowed, no later one
    /// may have begun.
    fn note_frames(&self, stream: u32) {
        let begins = |it: &&Frame| it.kind == kind::HEADERS && it.stream > stream;
        let begun = self.server.frames.iter().filter(begins).count();
        if self.case == Case::MaxStreams && begun > 0 {
            let fault = format!("{begun} streams beside {stream}");
            self.seen.lock().unwrap().faults.push(fault);
        }
    }
}

/// The number at the front of a payload.
fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}

fn is_pong(it: &Frame) -> bool {
    it.kind == kind::PING && it.has(flags::ACK)
}

/// Runs a case of the client; returns its output if it does not pass.
fn outcome(case: Case, address: SocketAddr) -> Result<(), String> {
    let mut command = Command::new(repository().join(".go/bin/interop-bad-peer-client"));
    command.arg(format!("--server_host={}", address.ip()));
    command.arg(format!("--server_port={}", address.port()));
    command.arg(format!("--test_case={}", case.name()));
    let output = run(command, Duration::from_secs(30)).unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn proxy(peer: &BadPeer) -> Proxy {
    let site = Site {
        listener: "h2c = true",
        upstream: "protocol = \"h2\"",
        ..Site::default()
    };
    site.start(&[peer.origin.address.to_string()])
}

/// Runs a case of the client through the program, and returns the server's observations.
#[track_caller]
fn passes(case: Case) -> Seen {
    let peer = BadPeer::start(case);
    let proxy = proxy(&peer);
    let outcome = outcome(case, proxy.socket_addr("web"));
    assert_eq!(outcome, Ok(()), "{case:?}");
    let seen = std::mem::take(&mut *peer.seen.lock().unwrap());
    assert!(seen.faults.is_empty(), "{seen:?}");
    seen
}

fn test(body: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(60), body);
}

#[test]
fn a_call_after_goaway_goes_by_another_connection() {
    test(|| {
        let seen = passes(Case::Goaway);
        let [first, second] = seen.connections[..] else {
            panic!("two calls: {seen:?}");
        };
        assert_ne!(first, second, "{seen:?}");
    });
}

#[test]
fn a_call_that_is_reset_behind_its_head_fails() {
    test(|| drop(passes(Case::RstAfterHeader)));
}

#[test]
fn a_call_that_is_reset_behind_its_message_fails() {
    test(|| drop(passes(Case::RstAfterData)));
}

/// grpc-go's client wants `UNKNOWN` here, and gets `INTERNAL` of the server itself: its own
/// table has that for `NO_ERROR`. The description of the case wants no more than a failure.
#[test]
fn a_call_that_is_reset_within_its_message_fails_as_it_does_without_the_program() {
    test(|| {
        let peer = BadPeer::start(Case::RstDuringData);
        let proxy = proxy(&peer);
        for address in [peer.origin.address, proxy.socket_addr("web")] {
            let said = outcome(Case::RstDuringData, address).unwrap_err();
            assert!(said.contains("_, Internal, want _, Unknown"), "{said}");
        }
    });
}

#[test]
fn pings_between_all_frames_are_acknowledged() {
    test(|| {
        let seen = passes(Case::Ping);
        let (sent, acknowledged) = seen.pings;
        assert!(sent > 10, "{seen:?}");
        assert_eq!(sent, acknowledged, "{seen:?}");
    });
}

/// Sixteen calls, fifteen of them at once. They use several connections.
#[test]
fn an_endpoint_that_allows_one_stream_has_one_on_each_connection() {
    test(|| {
        let seen = passes(Case::MaxStreams);
        assert_eq!(seen.connections.len(), 16, "{seen:?}");
    });
}
