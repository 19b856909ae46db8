//! One look at an endpoint from outside: a connection that opens, or a request
//! whose answer is as it should be.
//!
//! The answer may be garbage, endless, or never come: at most 64 KiB of head
//! and as much of body are read, and the whole probe is under its timeout.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::time::{Duration, Instant};

use evenkeel_proto::http1::{BodyDecoder, Parsed, parse_odd_response, parse_response};
use evenkeel_proto::proxy_protocol::own_header;
use evenkeel_proto::{BodyError, BodyFraming, Method, ResponseError, ResponseHead};
use rustix::io::Errno;

use crate::config::{Probe, ProbeRequest};
use crate::net::Address;
use crate::net::connect::{connect_when_there_is_room, reason};
use crate::net::lacks_descriptor;
use crate::net::stream::{Follow, Stream};

/// Most that is read of a head, and of a body.
const MAX_BYTES: usize = 64 * 1024;
const READ_BYTES: usize = 8 * 1024;
const USER_AGENT: &str = concat!("evenkeel-probe/", env!("CARGO_PKG_VERSION"));

/// A probe that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// From the attempt to connect to the answer that was looked for.
    pub elapsed: Duration,
    /// Status of the answer; `None` where nothing was asked.
    pub status: Option<u16>,
}

/// What came back, in a few words.
impl std::fmt::Display for Passed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Some(status) => write!(out, "status {status}"),
            None => out.write_str("connection opened"),
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
    Closed,
    /// Nothing came within this time, or not all that was waited for.
    Timeout {
        /// The probe's timeout.
        timeout: Duration,
        /// What was waited for.
        awaited: Awaited,
    },
    /// The answer's head is no HTTP.
    Head(ResponseError),
    /// The answer's body is not framed as its head says.
    Body(BodyError),
    /// A status that is not expected.
    Status(u16),
    /// The body lacks what it must contain.
    Content {
        /// What was looked for.
        wanted: String,
    },
}

/// What a probe waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// A connection.
    Connection,
    /// An answer.
    Answer,
}

impl ProbeFailure {
    /// Whether the cause is on this side, such as a lack of descriptors or of
    /// ports, so that it says nothing about the endpoint.
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

impl std::fmt::Display for ProbeFailure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProbeFailure::Connect(error) | ProbeFailure::Broken(error) => {
                out.write_str(&reason(error))
            }
            ProbeFailure::Closed => out.write_str("connection closed before the answer"),
            ProbeFailure::Timeout { timeout, awaited } => {
                let what = match awaited {
                    Awaited::Connection => "connection",
                    Awaited::Answer => "answer",
                };
                write!(out, "no {what} within {timeout:?}")
            }
            ProbeFailure::Head(error) => write!(out, "malformed answer: {error}"),
            ProbeFailure::Body(error) => write!(out, "malformed answer: {error}"),
            ProbeFailure::Status(status) => write!(out, "status {status}"),
            ProbeFailure::Content { wanted } => {
                write!(out, "body does not contain {wanted:?}")
            }
        }
    }
}

impl std::error::Error for ProbeFailure {}

/// Probes the endpoint at `address`, which is called `name`.
///
/// # Errors
/// Why it does not pass.
///
/// # Cancellation
/// Dropping the future closes the connection.
pub async fn probe(address: &Address, probe: &Probe, name: &str) -> Result<Passed, ProbeFailure> {
    let begun = Instant::now();
    let address = probed_address(address, probe);
    let awaited = Cell::new(Awaited::Connection);
    let work = async {
        let mut stream = connect_when_there_is_room(&address, || true)
            .await
            .map_err(ProbeFailure::Connect)?;
        if let Some(version) = probe.proxy_protocol {
            // Where it can't be sent, the answer tells.
            let _ = send(&mut stream, own_header(version)).await;
        }
        awaited.set(Awaited::Answer);
        match &probe.request {
            Some(request) => ask(&mut stream, request, &host(request, probe.port, name)).await,
            None => Ok(None),
        }
    };
    let status = match tokio::time::timeout(probe.timeout, work).await {
        Ok(outcome) => outcome?,
        Err(_) => {
            return Err(ProbeFailure::Timeout {
                timeout: probe.timeout,
                awaited: awaited.get(),
            });
        }
    };
    Ok(Passed {
        elapsed: begun.elapsed(),
        status,
    })
}

/// Where a probe of the endpoint at `address` connects to: a port of its own, or
/// where exchanges go.
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

/// The value of `Host`: a Unix socket has no name that could stand there.
fn host(request: &ProbeRequest, port: Option<u16>, name: &str) -> String {
    if let Some(host) = &request.host {
        return host.clone();
    }
    if name.starts_with("unix:") {
        return "localhost".to_owned();
    }
    match (port, name.rsplit_once(':')) {
        (Some(port), Some((host, _))) => format!("{host}:{port}"),
        _ => name.to_owned(),
    }
}

/// The request as sent.
fn request_bytes(request: &ProbeRequest, host: &str) -> Vec<u8> {
    let ProbeRequest { method, path, .. } = request;
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    let mut field = |name: &str, value: &str| {
        text.push_str(name);
        text.push_str(": ");
        text.push_str(value);
        text.push_str("\r\n");
    };
    let is_named = |name: &str| {
        let mut names = request.headers.iter().map(|(name, _)| name);
        names.any(|it| it.eq_ignore_ascii_case(name))
    };
    if !is_named("User-Agent") {
        field("User-Agent", USER_AGENT);
    }
    // RFC 9110 §8.6: without it an empty body looks forgotten.
    if ["POST", "PUT", "PATCH"].contains(&method.as_str()) {
        field("Content-Length", "0");
    }
    for (name, value) in &request.headers {
        field(name, value);
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Asks, and looks at the answer as far as that takes.
async fn ask(
    stream: &mut Stream,
    request: &ProbeRequest,
    host: &str,
) -> Result<Option<u16>, ProbeFailure> {
    // Where it can't be sent whole, there may be an answer all the same.
    let _ = send(stream, &request_bytes(request, host)).await;
    let mut buffer = Vec::new();
    let head = read_head(stream, &mut buffer, request).await?;
    if !request.expect.iter().any(|it| it.contains(&head.status)) {
        return Err(ProbeFailure::Status(head.status));
    }
    if let Some(wanted) = &request.body {
        buffer.drain(..head.wire.end);
        find_in_body(stream, buffer, head.wire.framing, wanted).await?;
    }
    Ok(Some(head.status))
}

async fn send(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let len = poll_fn(|cx| stream.poll_write(cx, bytes, Follow::Anything)).await?;
        bytes = &bytes[len..];
    }
    Ok(())
}

/// Reads what is there, at most up to `max` bytes in `buffer`; 0 is the end.
async fn read(stream: &mut Stream, buffer: &mut Vec<u8>, max: usize) -> io::Result<usize> {
    let start = buffer.len();
    buffer.resize(max.min(start + READ_BYTES), 0);
    let read = poll_fn(|cx| stream.poll_read(cx, &mut buffer[start..])).await;
    buffer.truncate(start + *read.as_ref().unwrap_or(&0));
    read
}

/// Reads the head of the final response into `buffer`, with what comes of its
/// body.
async fn read_head(
    stream: &mut Stream,
    buffer: &mut Vec<u8>,
    request: &ProbeRequest,
) -> Result<ResponseHead, ProbeFailure> {
    let method = Method::from_token(request.method.as_bytes());
    let mut head = ResponseHead::default();
    // Interim responses count.
    let mut dropped = 0;
    loop {
        let parsed = if buffer.is_empty() {
            Parsed::Partial
        } else {
            parse(buffer, method, &mut head).map_err(ProbeFailure::Head)?
        };
        match parsed {
            Parsed::Complete if head.status == 101 => {
                return Err(ProbeFailure::Head(ResponseError::Upgrade));
            }
            Parsed::Complete if head.status < 200 => {
                dropped += head.wire.end;
                buffer.drain(..head.wire.end);
            }
            Parsed::Complete => return Ok(head),
            Parsed::Partial if dropped + buffer.len() >= MAX_BYTES => {
                return Err(ProbeFailure::Head(ResponseError::HeadTooLarge));
            }
            Parsed::Partial => match read(stream, buffer, MAX_BYTES - dropped).await {
                Ok(0) => return Err(ProbeFailure::Closed),
                Ok(_) => {}
                Err(error) => return Err(ProbeFailure::Broken(error)),
            },
        }
    }
}

/// Looks for a head at the front of `buffer`, and puts an odd one right: a probe
/// takes what an exchange does.
fn parse(
    buffer: &mut Vec<u8>,
    method: Method,
    head: &mut ResponseHead,
) -> Result<Parsed, ResponseError> {
    if let Ok(parsed) = parse_response(buffer, method, head) {
        return Ok(parsed);
    }
    let mut restated = Vec::new();
    match parse_odd_response(buffer, method, head, &mut restated)? {
        Some(len) => {
            buffer.splice(..len, restated);
            Ok(Parsed::Complete)
        }
        None => Ok(Parsed::Partial),
    }
}

/// Reads the body, which begins with `input`, until `wanted` was found.
async fn find_in_body(
    stream: &mut Stream,
    mut input: Vec<u8>,
    framing: BodyFraming,
    wanted: &str,
) -> Result<(), ProbeFailure> {
    let mut decoder = BodyDecoder::new(framing);
    let mut content = Vec::new();
    let mut taken = 0;
    loop {
        input.truncate(MAX_BYTES - taken);
        let advance = decoder.strip(&mut input).map_err(ProbeFailure::Body)?;
        let start = content.len().saturating_sub(wanted.len());
        content.extend_from_slice(&input[..advance.kept]);
        if memchr::memmem::find(&content[start..], wanted.as_bytes()).is_some() {
            return Ok(());
        }
        input.drain(..advance.consumed);
        taken += advance.consumed;
        if decoder.is_done() || taken + input.len() >= MAX_BYTES {
            break;
        }
        match read(stream, &mut input, MAX_BYTES - taken).await {
            Ok(0) if matches!(framing, BodyFraming::UntilClose) => break,
            Ok(0) => return Err(ProbeFailure::Closed),
            Ok(_) => {}
            Err(error) => return Err(ProbeFailure::Broken(error)),
        }
    }
    Err(ProbeFailure::Content {
        wanted: wanted.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::ops::RangeInclusive;
    use std::os::unix::net::{UnixListener, UnixStream};

    use evenkeel_testkit::TempDir;

    use super::*;
    use crate::net::poller::Poller;
    use crate::net::tasks::Tasks;

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
            request,
            proxy_protocol: None,
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
                probed = probe(address, settings, name) => probed.map_err(|it| it.to_string()),
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
        passed.map(|it| it.status)
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
                Err("malformed answer: the endpoint changed to a protocol that nobody asked for"),
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
            // It was there: what is said after it is of no interest.
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
    fn what_is_sent() {
        let mut request = request(200..=200, None);
        let bytes = |request: &ProbeRequest, port, name: &str| {
            String::from_utf8(request_bytes(request, &host(request, port, name))).unwrap()
        };
        let agent = format!("User-Agent: {USER_AGENT}\r\n");
        assert_eq!(
            bytes(&request, None, "app:8080"),
            format!("GET /healthz HTTP/1.1\r\nHost: app:8080\r\nConnection: close\r\n{agent}\r\n")
        );
        for (port, name, host) in [
            (Some(81), "app:8080", "app:81"),
            (Some(81), "[::1]:8080", "[::1]:81"),
            (None, "unix:/run/app.sock", "localhost"),
        ] {
            let sent = bytes(&request, port, name);
            assert!(sent.contains(&format!("\r\nHost: {host}\r\n")), "{sent}");
        }
        request.method = "POST".into();
        request.host = Some("app.example".into());
        request.headers = vec![
            ("user-agent".into(), "mine".into()),
            ("X-A".into(), "b".into()),
        ];
        let sent = bytes(&request, Some(81), "app:8080");
        let fields = "Content-Length: 0\r\nuser-agent: mine\r\nX-A: b\r\n\r\n";
        assert!(
            sent.contains("Host: app.example\r\n") && sent.ends_with(fields),
            "{sent}"
        );
        assert!(!sent.contains(USER_AGENT), "{sent}");
    }

    #[test]
    fn content_is_found_across_two_reads() {
        let tasks = Tasks::of_this_thread().unwrap();
        let found = tasks.run_until(async {
            let (stream, mut other) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            let mut stream = Stream::new(stream.into()).unwrap();
            other.write_all(b"ell").unwrap();
            drop(other);
            let begun = b"is it all w".to_vec();
            find_in_body(&mut stream, begun, BodyFraming::UntilClose, "all well").await
        });
        found.unwrap().unwrap();
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
        assert_eq!(passed.status, None);
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
        assert_eq!(run(&address, &settings, &name).unwrap().status, Some(200));
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
