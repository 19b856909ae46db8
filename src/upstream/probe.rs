//! One probe of an endpoint: one look at it from outside.
//!
//! A probe opens a connection, sends a request and checks the answer (`http`),
//! or says the first words of another protocol (`talk`). The whole probe is
//! under its timeout, except for a farewell.

mod http;
mod http2;
mod talk;

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::time::{Duration, Instant};

use evenkeel_proto::grpc;
use evenkeel_proto::probe::{self as protocol, Fault};
use evenkeel_proto::proxy_protocol::own_header;
use evenkeel_proto::{BodyError, ResponseError};
use evenkeel_tls::HandshakeFault;
use rustix::io::Errno;

use self::talk::{HealthyServer, leave, talk};
use crate::certificates::{Alpn, EndpointTls, has_chosen_http2};
use crate::config::{Check, EndpointProtocol, Probe};
use crate::net::Address;
use crate::net::connect::{connect_when_there_is_room, reason};
use crate::net::lacks_descriptor;
use crate::net::stream::{Follow, Stream};

const READ_BYTES: usize = 8 * 1024;

/// A probe that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// From the attempt to connect to the end of the wanted answer.
    pub elapsed: Duration,
    /// The endpoint's answer.
    pub answer: Answer,
}

/// The answer of an endpoint that is well. Displayed in a few words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// No answer: the connection opened.
    Opened,
    /// A status of HTTP.
    Status(u16),
    /// An answer of another protocol, in a few words.
    Words(String),
}

impl Answer {
    /// Status of the answer, if it has one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Answer::Status(status) => Some(*status),
            Answer::Opened | Answer::Words(_) => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Opened => out.write_str("connection opened"),
            Answer::Status(status) => write!(out, "status {status}"),
            Answer::Words(words) => out.write_str(words),
        }
    }
}

/// Why a probe failed. Displayed in a few words, such as `connection refused`.
#[derive(Debug)]
pub enum ProbeFailure {
    /// No connection could be opened.
    Connect(io::Error),
    /// The connection broke.
    Broken(io::Error),
    /// The connection was closed before the answer was there.
    Closed {
        /// The awaited part.
        awaited: Awaited,
        /// The bytes that came.
        came: ReceivedExcerpt,
    },
    /// Nothing came within this time, or not all of the awaited part.
    Timeout {
        /// The probe's timeout.
        timeout: Duration,
        /// The awaited part.
        awaited: Awaited,
        /// The bytes that came.
        came: ReceivedExcerpt,
    },
    /// The answer's head is no HTTP.
    Head(ResponseError),
    /// The answer's body is not framed as its head says.
    Body(BodyError),
    /// A status that is not expected.
    Status(u16),
    /// The body lacks a required text.
    Content {
        /// The text that was looked for.
        wanted: String,
    },
    /// The connection of HTTP/2 broke.
    Http2(&'static str),
    /// The answer lacks a required part, or has a forbidden one.
    Malformed(&'static str),
    /// A call of gRPC ended with this status.
    Grpc {
        /// Value of `grpc-status`.
        status: u32,
    },
    /// The service says that it does not serve.
    NotServing {
        /// Its status; `None` for an answer without one.
        status: Option<u64>,
    },
    /// The connection could not be secured.
    Tls(HandshakeFault),
    /// An answer of another protocol than HTTP: it says that the server is not
    /// well, or is malformed.
    Fault(Fault),
}

/// The part that a probe waits for. Displayed without an article.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// A connection.
    Connection,
    /// An answer.
    Answer,
    /// This part of an answer, in words or in quotes.
    Words(String),
}

impl fmt::Display for Awaited {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Awaited::Connection => "connection",
            Awaited::Answer => "answer",
            Awaited::Words(words) => words,
        })
    }
}

/// The beginning of the bytes that came instead. Displayed as an addition, or
/// as nothing where nothing came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceivedExcerpt(String);

impl ReceivedExcerpt {
    fn begin_of(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return ReceivedExcerpt::default();
        }
        ReceivedExcerpt(protocol::excerpt(bytes))
    }
}

impl fmt::Display for ReceivedExcerpt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(out, ", only {}", self.0)
    }
}

/// How far a probe has come, for the words of its timeout.
struct Progress(RefCell<(Awaited, ReceivedExcerpt)>);

impl Progress {
    fn note(&self, awaited: String, came: &[u8]) {
        self.set(Awaited::Words(awaited), ReceivedExcerpt::begin_of(came));
    }

    fn set(&self, awaited: Awaited, came: ReceivedExcerpt) {
        *self.0.borrow_mut() = (awaited, came);
    }
}

impl ProbeFailure {
    /// Whether the cause is on this side, such as a lack of descriptors or of
    /// ports. Such a failure says nothing about the endpoint.
    pub fn is_local(&self) -> bool {
        let ProbeFailure::Connect(error) = self else {
            return false;
        };
        matches!(
            Errno::from_io_error(error),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL)
        )
    }
}

impl ProbeFailure {
    /// Whether no descriptor was left for it.
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, ProbeFailure::Connect(error) if lacks_descriptor(error))
    }
}

impl fmt::Display for ProbeFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeFailure::Connect(error) | ProbeFailure::Broken(error) => {
                out.write_str(&reason(error))
            }
            ProbeFailure::Closed { awaited, came } => {
                let text = awaited.to_string();
                let article = if text.starts_with('"') { "" } else { "the " };
                write!(out, "connection closed before {article}{text}{came}")
            }
            ProbeFailure::Timeout {
                timeout,
                awaited,
                came,
            } => write!(out, "no {awaited} within {timeout:?}{came}"),
            ProbeFailure::Head(error) => write!(out, "malformed answer: {error}"),
            ProbeFailure::Body(error) => write!(out, "malformed answer: {error}"),
            ProbeFailure::Status(status) => write!(out, "status {status}"),
            ProbeFailure::Content { wanted } => {
                write!(out, "body does not contain {wanted:?}")
            }
            ProbeFailure::Http2(why) => write!(out, "HTTP/2: {why}"),
            ProbeFailure::Malformed(why) => write!(out, "malformed answer: {why}"),
            ProbeFailure::Grpc { status } => {
                write!(out, "grpc-status {status} ({})", grpc::name(*status))
            }
            ProbeFailure::NotServing { status } => out.write_str(match status {
                Some(0) => "the service is UNKNOWN",
                Some(2) => "the service is NOT_SERVING",
                Some(3) => "SERVICE_UNKNOWN: the server has no such service",
                _ => "malformed answer: no HealthCheckResponse",
            }),
            ProbeFailure::Tls(fault) => fault.fmt(out),
            ProbeFailure::Fault(fault) => fault.fmt(out),
        }
    }
}

impl std::error::Error for ProbeFailure {}

/// Probes the endpoint at `address`, which is called `name`, over the `tls` of its
/// upstream unless the probe goes elsewhere.
///
/// # Errors
/// Why it does not pass.
///
/// # Cancellation
/// Dropping the future closes the connection.
pub async fn probe(
    address: &Address,
    probe: &Probe,
    name: &str,
    tls: Option<&EndpointTls>,
) -> Result<Passed, ProbeFailure> {
    let begun = Instant::now();
    let address = probed_address(address, probe);
    let progress = Progress(RefCell::new((
        Awaited::Connection,
        ReceivedExcerpt::default(),
    )));
    let work = async {
        let mut stream = connect_when_there_is_room(&address, || true)
            .await
            .map_err(ProbeFailure::Connect)?;
        let header = probe.proxy_protocol.map_or(&[][..], own_header);
        if let Some(tls) = tls.filter(|_| probe.takes_tls) {
            let handshake = "TLS handshake".to_owned();
            progress.set(Awaited::Words(handshake), ReceivedExcerpt::default());
            let alpn = match &probe.check {
                Check::Http(_) => probe.http.into(),
                Check::Grpc { .. } => Alpn::Http2,
                _ => Alpn::Nothing,
            };
            let encrypted = tls.encrypt(stream, alpn, header).await;
            stream = encrypted.map_err(ProbeFailure::Tls)?;
        } else {
            // If sending fails, the answer shows it.
            let _ = send(&mut stream, header).await;
        }
        progress.set(Awaited::Answer, ReceivedExcerpt::default());
        let seen = look(&mut stream, probe, name, &progress).await?;
        Ok((stream, seen))
    };
    let (mut stream, seen) = match tokio::time::timeout(probe.timeout, work).await {
        Ok(outcome) => outcome?,
        Err(_) => {
            let (awaited, came) = progress.0.into_inner();
            return Err(ProbeFailure::Timeout {
                timeout: probe.timeout,
                awaited,
                came,
            });
        }
    };
    let elapsed = begun.elapsed();
    leave(&mut stream, &seen.farewell).await;
    Ok(Passed {
        elapsed,
        answer: seen.answer,
    })
}

/// The result of a look at an endpoint that is well.
struct Seen {
    answer: Answer,
    /// The bytes to send before the connection is closed.
    farewell: Vec<u8>,
}

impl From<Answer> for Seen {
    fn from(answer: Answer) -> Self {
        Seen {
            answer,
            farewell: Vec::new(),
        }
    }
}

impl From<HealthyServer> for Seen {
    fn from(well: HealthyServer) -> Self {
        Seen {
            answer: Answer::Words(well.seen),
            farewell: well.farewell,
        }
    }
}

/// Whether an endpoint that is asked by HTTP is asked by HTTP/2.
fn speaks_http2(stream: &Stream, probe: &Probe) -> bool {
    match probe.http {
        EndpointProtocol::Http1 => false,
        EndpointProtocol::Http2 => true,
        EndpointProtocol::Either => has_chosen_http2(stream),
    }
}

/// Looks at an endpoint over an open connection.
async fn look(
    stream: &mut Stream,
    probe: &Probe,
    name: &str,
    progress: &Progress,
) -> Result<Seen, ProbeFailure> {
    Ok(match &probe.check {
        Check::Connect => Answer::Opened.into(),
        Check::Http(request) => {
            let host = http::host(request.host.as_deref(), probe.port, name);
            let status = if speaks_http2(stream, probe) {
                http2::ask(stream, request, &host).await?
            } else {
                http::ask(stream, request, &host).await?
            };
            Answer::Status(status).into()
        }
        Check::Grpc { service, host } => {
            let host = http::host(host.as_deref(), probe.port, name);
            http2::ask_grpc(stream, service, &host).await?.into()
        }
        Check::Bytes { send, receive } => {
            let mut dialogue = protocol::Bytes { send, receive };
            talk(stream, &mut dialogue, progress).await?.into()
        }
        Check::Postgres { user } => {
            let mut dialogue = protocol::Postgres::new(user);
            talk(stream, &mut dialogue, progress).await?.into()
        }
        Check::Mysql { user } => {
            let mut dialogue = protocol::Mysql::new(user);
            talk(stream, &mut dialogue, progress).await?.into()
        }
        Check::Redis => talk(stream, &mut protocol::Redis, progress).await?.into(),
        Check::Smtp => {
            let mut dialogue = protocol::Smtp::default();
            talk(stream, &mut dialogue, progress).await?.into()
        }
        Check::Tls { server_name } => {
            let random = std::array::from_fn(|_| fastrand::u8(..));
            let mut dialogue = protocol::Tls::new(server_name.as_deref(), random);
            talk(stream, &mut dialogue, progress).await?.into()
        }
    })
}

/// The address that a probe of the endpoint at `address` connects to: a port of
/// its own, or that of exchanges.
pub fn probed_address(address: &Address, probe: &Probe) -> Address {
    match (address, probe.port) {
        (Address::Tcp(address), Some(port)) => {
            let mut address = *address;
            address.set_port(port);
            Address::Tcp(address)
        }
        _ => address.clone(),
    }
}

async fn send(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let len = poll_fn(|cx| stream.poll_write(cx, bytes, Follow::Anything)).await?;
        bytes = &bytes[len..];
    }
    Ok(())
}

/// Reads available bytes, at most up to `max` bytes in `buffer`; 0 is the end.
async fn read(stream: &mut Stream, buffer: &mut Vec<u8>, max: usize) -> io::Result<usize> {
    let start = buffer.len();
    buffer.resize(max.min(start + READ_BYTES), 0);
    let read = poll_fn(|cx| stream.poll_read(cx, &mut buffer[start..])).await;
    buffer.truncate(start + *read.as_ref().unwrap_or(&0));
    read
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::ops::RangeInclusive;
    use std::os::unix::net::UnixListener;

    use evenkeel_testkit::TempDir;

    use super::http::MAX_BYTES;
    use super::*;
    use crate::config::ProbeRequest;
    use crate::net::poller::Poller;

    fn request(expect: RangeInclusive<u16>, body: Option<&str>) -> ProbeRequest {
        ProbeRequest {
            method: "GET".into(),
            path: "/healthz".into(),
            host: None,
            headers: Vec::new(),
            expect: vec![expect],
            body: body.map(str::to_owned),
        }
    }

    fn settings(request: Option<ProbeRequest>) -> Probe {
        Probe {
            interval: Duration::from_secs(2),
            timeout: Duration::from_millis(300),
            port: None,
            check: request.map_or(Check::Connect, Check::Http),
            proxy_protocol: None,
            takes_tls: true,
            http: EndpointProtocol::Http1,
        }
    }

    fn run(address: &Address, settings: &Probe, name: &str) -> Result<Passed, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let poller = Poller::of_this_thread().unwrap();
        runtime.block_on(async {
            tokio::select! {
                failed = poller.serve() => panic!("{failed:?}"),
                probed = probe(address, settings, name, None) => probed.map_err(|it| it.to_string()),
            }
        })
    }

    /// Reads until the empty line, sends the pieces, and closes.
    fn answer(mut stream: impl Read + Write, pieces: &[&[u8]]) -> String {
        let mut asked = Vec::new();
        let mut byte = [0];
        while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|len| len > 0) {
            asked.push(byte[0]);
        }
        for piece in pieces {
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        String::from_utf8(asked).unwrap()
    }

    /// The outcome of a probe that gets this answer.
    fn outcome(settings: &Probe, pieces: Vec<Vec<u8>>) -> Result<Option<u16>, String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            answer(stream, &pieces)
        });
        let passed = run(&Address::Tcp(address), settings, "app:80");
        server.join().unwrap();
        passed.map(|it| it.answer.status())
    }

    #[test]
    fn answers() {
        let any = || request(200..=399, None);
        let with_body = || request(200..=200, Some("all well"));
        let long = "x".repeat(MAX_BYTES);
        let late = format!("HTTP/1.1 200 OK\r\n\r\n{}all well", &long[8..]);
        let too_late = format!("HTTP/1.1 200 OK\r\n\r\n{long}all well");
        let endless_head = format!("HTTP/1.1 200 OK\r\nX: {long}");
        let interim = "HTTP/1.1 100 Continue\r\n\r\n";
        let many_interim = interim.repeat(MAX_BYTES / interim.len() + 1);
        for (request, answer, expected) in [
            (
                any(),
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                Ok(200),
            ),
            (any(), "HTTP/1.0 204 No Content\r\n\r\n", Ok(204)),
            (any(), "HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", Ok(302)),
            (
                any(),
                "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
                Ok(200),
            ),
            (any(), "HTTP/1.1 503 No\r\n\r\n", Err("status 503")),
            (any(), "HTTP/1.1 400 No\r\n\r\n", Err("status 400")),
            (any(), "", Err("connection closed before the answer")),
            (
                any(),
                "HTTP/1.1 200 OK\r\nX: y",
                Err("connection closed before the answer"),
            ),
            (
                any(),
                "SSH-2.0-OpenSSH_9.6\r\n",
                Err("malformed answer: the endpoint's status line is malformed"),
            ),
            (
                any(),
                "HTTP/1.1 101 Switching\r\n\r\n",
                Err(
                    "malformed answer: the endpoint switched to a protocol that the client did \
                    not request",
                ),
            ),
            (
                any(),
                endless_head.as_str(),
                Err("malformed answer: the head of the endpoint's answer is too large"),
            ),
            (
                any(),
                many_interim.as_str(),
                Err("malformed answer: the head of the endpoint's answer is too large"),
            ),
            (
                with_body(),
                "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n: all well",
                Ok(200),
            ),
            (
                with_body(),
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                 5\r\nall w\r\n3\r\nell\r\n0\r\n\r\n",
                Ok(200),
            ),
            // The text was found: later bytes do not matter.
            (
                with_body(),
                "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nall well",
                Ok(200),
            ),
            (with_body(), late.as_str(), Ok(200)),
            (
                with_body(),
                too_late.as_str(),
                Err("body does not contain \"all well\""),
            ),
            (
                with_body(),
                "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nall well",
                Err("body does not contain \"all well\""),
            ),
            (
                with_body(),
                "HTTP/1.1 204 No Content\r\n\r\nall well",
                Err("status 204"),
            ),
            (
                with_body(),
                "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nall",
                Err("connection closed before the answer"),
            ),
            (
                with_body(),
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nall well",
                Err("malformed answer: a chunk size is malformed"),
            ),
        ] {
            let settings = settings(Some(request));
            let shown = &answer[..answer.len().min(80)];
            let expected = expected.map(Some).map_err(str::to_owned);
            let whole = outcome(&settings, vec![answer.into()]);
            assert_eq!(whole, expected, "{shown:?}");
            // Again in pieces: one byte, then the rest.
            let (first, rest) = answer.split_at(answer.len().min(1));
            let pieces = vec![first.into(), rest.into()];
            assert_eq!(outcome(&settings, pieces), expected, "{shown:?} in pieces");
        }
    }

    #[test]
    fn silence_ends_with_the_timeout() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let begun = Instant::now();
        let settings = settings(Some(request(200..=200, None)));
        let failure = run(&address, &settings, "app:80").unwrap_err();
        assert_eq!(failure, "no answer within 300ms");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn connections() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let open = listener.local_addr().unwrap();
        let passed = run(&Address::Tcp(open), &settings(None), "app:80").unwrap();
        assert_eq!(passed.answer, Answer::Opened);
        // By its own port.
        let mut elsewhere = open;
        elsewhere.set_port(1);
        let mut by_port = settings(None);
        by_port.port = Some(open.port());
        assert!(run(&Address::Tcp(elsewhere), &by_port, "app:1").is_ok());
        drop(listener);
        let failure = run(&Address::Tcp(open), &settings(None), "app:80");
        assert_eq!(failure.unwrap_err(), "connection refused");
    }

    #[test]
    fn unix_sockets() {
        let dir = TempDir::new().unwrap();
        let path = dir.join("app.sock");
        let address = Address::Unix(path.clone());
        let settings = settings(Some(request(200..=200, Some("ok"))));
        let name = address.to_string();
        let failure = run(&address, &settings, &name).unwrap_err();
        assert_eq!(failure, "no such file or directory");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            answer(stream, &[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])
        });
        let passed = run(&address, &settings, &name).unwrap();
        assert_eq!(passed.answer, Answer::Status(200));
        assert!(server.join().unwrap().contains("Host: localhost\r\n"));
    }

    #[test]
    fn a_lack_on_this_side_is_no_failure_of_the_endpoint() {
        let local = |errno: Errno| ProbeFailure::Connect(errno.into()).is_local();
        assert!(local(Errno::MFILE) && local(Errno::ADDRNOTAVAIL));
        assert!(!local(Errno::CONNREFUSED) && !local(Errno::HOSTUNREACH));
        assert!(!ProbeFailure::Broken(Errno::MFILE.into()).is_local());
    }
}
