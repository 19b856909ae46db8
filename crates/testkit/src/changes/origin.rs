//! An origin that counts connections, closes, requests and uploads.
//!
//! Each connection has a thread. Counts are kept by the local address of the connection, so
//! that one origin stands for many endpoints.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_origin::body::{BodyReader, Framing};
use evenkeel_origin::payload_byte;

/// The default answer: to a request that is not slow, no upload and no WebSocket.
pub const PONG: &str = "pong";

/// The answer of RFC 6455 to the key of its example, which the clients send.
const WEBSOCKET_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The counts of an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Connections accepted.
    pub connections: u64,
    /// Connections closed by the other side.
    pub closed: u64,
    /// Requests whose head came.
    pub requests: u64,
    /// Uploads that came to their end, each byte as it should be.
    pub uploads_whole: u64,
    /// Uploads that did not.
    pub uploads_broken: u64,
}

type Tallies = Mutex<HashMap<IpAddr, Tally>>;

/// A running origin, until dropped.
///
/// Paths: `/upload` takes a body, `/slow/MS` takes its time, `/ws` is a WebSocket that echoes,
/// and everything else is answered [`PONG`]. A prefix is ignored, as in `/app/slow/20`.
#[derive(Debug)]
pub struct CountingOrigin {
    /// The port that it listens on.
    pub port: u16,
    tallies: Arc<Tallies>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CountingOrigin {
    /// Listens on a free port of every address of this machine.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = listener.local_addr()?.port();
        let tallies = Arc::<Tallies>::default();
        let is_stopping = Arc::<AtomicBool>::default();
        let thread = {
            let (tallies, is_stopping) = (tallies.clone(), is_stopping.clone());
            std::thread::spawn(move || accept(&listener, &tallies, &is_stopping))
        };
        Ok(CountingOrigin {
            port,
            tallies,
            is_stopping,
            thread: Some(thread),
        })
    }

    /// It, as an endpoint at this address of the machine.
    pub fn at(&self, address: Ipv4Addr) -> String {
        format!("{address}:{}", self.port)
    }

    /// The counts of this address.
    pub fn tally(&self, address: Ipv4Addr) -> Tally {
        let tallies = lock(&self.tallies);
        tallies
            .get(&IpAddr::V4(address))
            .copied()
            .unwrap_or_default()
    }

    /// The counts of all addresses together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for tally in lock(&self.tallies).values() {
            total.connections += tally.connections;
            total.closed += tally.closed;
            total.requests += tally.requests;
            total.uploads_whole += tally.uploads_whole;
            total.uploads_broken += tally.uploads_broken;
        }
        total
    }
}

impl Drop for CountingOrigin {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the thread out of accept.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(tallies: &Tallies) -> MutexGuard<'_, HashMap<IpAddr, Tally>> {
    tallies.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, tallies: &Arc<Tallies>, is_stopping: &AtomicBool) {
    for stream in listener.incoming() {
        if is_stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(address) = stream.local_addr().as_ref().map(SocketAddr::ip) else {
            continue;
        };
        let tallies = tallies.clone();
        std::thread::spawn(move || {
            let count = |change: fn(&mut Tally)| change(lock(&tallies).entry(address).or_default());
            count(|it| it.connections += 1);
            let _ = stream.set_nodelay(true);
            // It ends when the other side closes, which is counted.
            let _ = serve(Connection::new(stream), &count);
            count(|it| it.closed += 1);
        });
    }
}

/// A connection, with the bytes that were read ahead.
struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
}

/// A request's head, as far as it matters here.
struct Head {
    path: String,
    framing: Framing,
    is_upgrade: bool,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Connection {
            stream,
            input: Vec::new(),
        }
    }

    /// Reads on.
    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                self.input.extend_from_slice(&buffer[..len]);
                Ok(())
            }
        }
    }

    fn head(&mut self) -> io::Result<Head> {
        loop {
            if let Some(end) = self.input.windows(4).position(|it| it == b"\r\n\r\n") {
                let head: Vec<u8> = self.input.drain(..end + 4).collect();
                return parse(&head).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            self.fill()?;
        }
    }

    /// Reads a body to its end; its length, and whether each byte was as it should be.
    fn body(&mut self, framing: Framing) -> io::Result<(u64, bool)> {
        let mut reader = BodyReader::new(framing);
        let (mut len, mut is_right) = (0, true);
        let mut data = Vec::new();
        loop {
            let taken = reader.take(&mut self.input, &mut data);
            taken.map_err(|_| io::ErrorKind::InvalidData)?;
            for byte in data.drain(..) {
                is_right &= byte == payload_byte(len);
                len += 1;
            }
            if reader.is_done() {
                return Ok((len, is_right));
            }
            self.fill()?;
        }
    }

    fn answer(&mut self, text: &str) -> io::Result<()> {
        let len = text.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{text}");
        self.stream.write_all(answer.as_bytes())
    }

    /// Echoes each message of a WebSocket; payloads are short.
    fn echo(&mut self) -> io::Result<()> {
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Accept: {WEBSOCKET_ACCEPT}\r\n\r\n"
        );
        self.stream.write_all(answer.as_bytes())?;
        loop {
            while self.input.len() < 2 {
                self.fill()?;
            }
            // After opcode and length there is the mask of four bytes.
            let len = usize::from(self.input[1] & 0x7F);
            while self.input.len() < 6 + len {
                self.fill()?;
            }
            let frame: Vec<u8> = self.input.drain(..6 + len).collect();
            let mut reply = vec![frame[0], len as u8];
            let mask = frame[2..6].iter().cycle();
            reply.extend(frame[6..].iter().zip(mask).map(|(byte, mask)| byte ^ mask));
            self.stream.write_all(&reply)?;
        }
    }
}

fn parse(head: &[u8]) -> Option<Head> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut fields);
    request.parse(head).ok()?;
    let field = |name: &str| {
        let mut fields = request.headers.iter();
        let found = fields.find(|it| it.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let framing = match (field("transfer-encoding"), field("content-length")) {
        (Some(_), _) => Framing::Chunked,
        (None, Some(len)) => Framing::Length {
            len: len.parse().ok()?,
        },
        (None, None) => Framing::Length { len: 0 },
    };
    Some(Head {
        path: request.path?.to_owned(),
        framing,
        is_upgrade: field("upgrade").is_some(),
    })
}

fn serve(mut connection: Connection, count: &dyn Fn(fn(&mut Tally))) -> io::Result<()> {
    loop {
        let head = connection.head()?;
        count(|it| it.requests += 1);
        let mut words = head.path.rsplit('/');
        let last = words.next().unwrap_or_default();
        if last == "upload" {
            let read = connection.body(head.framing);
            match read {
                Ok((_, true)) => count(|it| it.uploads_whole += 1),
                _ => count(|it| it.uploads_broken += 1),
            }
            let (len, is_right) = read?;
            let said = if is_right { "whole" } else { "broken" };
            connection.answer(&format!("{said} {len}"))?;
        } else if head.is_upgrade {
            return connection.echo();
        } else {
            connection.body(head.framing)?;
            if words.next() == Some("slow") {
                let time_ms = last.parse().unwrap_or_default();
                std::thread::sleep(Duration::from_millis(time_ms));
            }
            connection.answer(PONG)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::until;
    use crate::raw::RawClient;

    #[test]
    fn counts_what_comes_to_each_address() {
        let origin = CountingOrigin::start().unwrap();
        let [one, two] = [1, 2].map(|at| Ipv4Addr::new(127, 0, 0, at));
        let mut client = RawClient::connect(origin.at(one)).unwrap();
        assert_eq!(client.get("/a/slow/1").unwrap().text(), PONG);
        let upload = "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
        for (body, answer) in [("abc", "whole 3"), ("axc", "broken 3")] {
            let response = client.ask(format!("{upload}{body}")).unwrap();
            assert_eq!(response.text(), answer);
        }
        drop(client);
        until("it is closed", || origin.tally(one).closed == 1);
        let expected = Tally {
            connections: 1,
            closed: 1,
            requests: 3,
            uploads_whole: 1,
            uploads_broken: 1,
        };
        assert_eq!(origin.tally(one), expected);
        assert_eq!(origin.tally(two), Tally::default());
        assert_eq!(origin.total(), expected);
    }
}
