//! The clients of a load: each does one thing until the load is over.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use evenkeel_origin::payload_byte;

use super::ledger::{Kind, Ledger};
use super::origin::PONG;
use crate::process::run;
use crate::raw::{RawClient, Response};

/// Longest time for one answer; a waiter may be behind many others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for the client's next turn.
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// A connection that is opened again where it was to be closed.
struct Connection<'a> {
    ledger: &'a Ledger,
    kind: Kind,
    address: SocketAddr,
    open: Option<RawClient>,
}

impl<'a> Connection<'a> {
    fn new(ledger: &'a Ledger, kind: Kind, address: SocketAddr) -> Self {
        Connection {
            ledger,
            kind,
            address,
            open: None,
        }
    }

    /// Makes a request over the connection, and notes its outcome: the answer must be 200 with
    /// this text.
    fn ask(&mut self, expected: &str, ask: impl FnOnce(&mut RawClient) -> io::Result<Response>) {
        let (ledger, kind) = (self.ledger, self.kind);
        let client = match &mut self.open {
            Some(client) => client,
            None => match RawClient::connect(self.address) {
                Ok(mut client) => {
                    client.set_step(PATIENCE);
                    self.open.insert(client)
                }
                Err(error) => {
                    ledger.failed(kind, &format!("connect: {error}"));
                    return pause(Duration::from_millis(20));
                }
            },
        };
        let asked = Instant::now();
        match ask(client) {
            Ok(response) => {
                if (response.status, response.text().as_str()) == (200, expected) {
                    ledger.answered(kind);
                } else {
                    let text = response.text();
                    let said = text.lines().next().unwrap_or_default();
                    ledger.failed(kind, &format!("status {}: {said}", response.status));
                }
                let connection = response.field("connection");
                if connection.is_some_and(|it| it.eq_ignore_ascii_case("close")) {
                    ledger.announced(kind);
                    self.open = None;
                }
            }
            Err(error) => {
                let after = asked.elapsed();
                let (sent, received) = (client.bytes_sent, client.bytes_received);
                ledger.failed(
                    kind,
                    &format!("{error} after {after:?}; {sent} bytes sent, {received} received"),
                );
                ledger.closed(kind);
                self.open = None;
            }
        }
    }
}

/// Asks for a path again and again. One client in eight does so about once a second: its
/// connection is idle when something changes.
pub fn keep_alive(ledger: &Ledger, address: SocketAddr, path: &str, at: usize) {
    let mut random = fastrand::Rng::with_seed(at as u64);
    let pause_ms = if at.is_multiple_of(8) { 1_000 } else { 20 };
    let mut connection = Connection::new(ledger, Kind::KeepAlive, address);
    while !ledger.is_over() {
        connection.ask(PONG, |it| it.get(path));
        pause(Duration::from_micros(random.u64(..pause_ms * 1000)));
    }
}

/// Acts as `ab` without `-k`, with this many requests at once, and this many in a run.
pub fn per_request(
    ledger: &Ledger,
    address: SocketAddr,
    path: &str,
    at_once: usize,
    per_run: usize,
) {
    let url = format!("http://{address}{path}");
    while !ledger.is_over() {
        let mut ab = Command::new("ab");
        ab.args(["-q", "-s", "30"]);
        ab.args(["-n", &per_run.to_string()]);
        ab.args(["-c", &at_once.to_string(), &url]);
        let output = match run(ab, PATIENCE) {
            Ok(output) => output,
            Err(error) => {
                ledger.failed(Kind::PerRequest, &error.to_string());
                return;
            }
        };
        let report = String::from_utf8_lossy(&output.stdout);
        let figure = |name: &str| {
            let line = report.lines().find(|it| it.starts_with(name))?;
            line.rsplit(' ').next()?.parse::<u64>().ok()
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            ledger.failed(Kind::PerRequest, said.trim());
            continue;
        }
        let complete = figure("Complete requests:").unwrap_or_default();
        let failed = figure("Failed requests:").unwrap_or_default();
        let refused = figure("Non-2xx responses:").unwrap_or_default();
        let counts = ledger.of(Kind::PerRequest);
        let answered = complete.saturating_sub(failed + refused);
        counts.answered.fetch_add(answered, Ordering::Relaxed);
        if failed + refused > 0 {
            let why = format!("{failed} failed, {refused} not answered 200");
            ledger.failed_many(Kind::PerRequest, failed + refused, &why);
        }
    }
}

/// Sends a message over a WebSocket again and again, which must come back.
pub fn web_socket(ledger: &Ledger, address: SocketAddr, at: usize) {
    let kind = Kind::WebSocket;
    let mut random = fastrand::Rng::with_seed(at as u64);
    let mut client = match open_web_socket(address) {
        Ok(client) => client,
        Err(error) => return ledger.failed(kind, &format!("handshake: {error}")),
    };
    let mut number = 0_u64;
    loop {
        let is_last = ledger.is_over();
        if let Err(error) = echo(&mut client, &format!("message {number} of {at}")) {
            ledger.failed(kind, &format!("message {number}: {error}"));
            return ledger.closed(kind);
        }
        ledger.answered(kind);
        if is_last {
            ledger.alive.fetch_add(1, Ordering::Relaxed);
            return;
        }
        number += 1;
        pause(Duration::from_millis(random.u64(20..200)));
    }
}

fn open_web_socket(address: SocketAddr) -> io::Result<RawClient> {
    let mut client = RawClient::connect(address)?;
    let response = client.ask(
        "GET /ws HTTP/1.1\r\nHost: test.example\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    )?;
    if response.status == 101 {
        Ok(client)
    } else {
        Err(io::Error::other(format!("status {}", response.status)))
    }
}

/// Sends a text in a masked frame. The echo has no mask.
fn echo(client: &mut RawClient, text: &str) -> io::Result<()> {
    const MASK: [u8; 4] = [7, 77, 177, 27];
    let len = text.len() as u8;
    let mut frame = vec![0x81, 0x80 | len];
    frame.extend(MASK);
    let masked = text.bytes().zip(MASK.iter().cycle());
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    client.send(&frame)?;
    let reply = client.read_len(2 + text.len())?;
    if reply[..2] == [0x81, len] && reply[2..] == *text.as_bytes() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{:?} came back",
            reply.escape_ascii().to_string()
        )))
    }
}

/// Sends a body a piece at a time, over about this time, again and again.
pub fn upload(ledger: &Ledger, address: SocketAddr, time: Duration, at: usize) {
    const PIECE_LEN: usize = 3_000;
    const PIECE_INTERVAL: Duration = Duration::from_millis(40);
    let pieces = (time.as_millis() / PIECE_INTERVAL.as_millis()) as usize;
    let body: Vec<u8> = (0..(pieces * PIECE_LEN) as u64).map(payload_byte).collect();
    let len = body.len();
    let is_chunked = at % 2 == 1;
    let mut connection = Connection::new(ledger, Kind::Upload, address);
    while !ledger.is_over() {
        connection.ask(&format!("whole {len}"), |client| {
            let framing = if is_chunked {
                "Transfer-Encoding: chunked".to_owned()
            } else {
                format!("Content-Length: {len}")
            };
            client.send(format!(
                "POST /upload HTTP/1.1\r\nHost: test.example\r\n{framing}\r\n\r\n"
            ))?;
            for piece in body.chunks(PIECE_LEN) {
                if is_chunked {
                    client.send(format!("{:x}\r\n", piece.len()))?;
                }
                client.send(piece)?;
                if is_chunked {
                    client.send("\r\n")?;
                }
                pause(PIECE_INTERVAL);
            }
            if is_chunked {
                client.send("0\r\n\r\n")?;
            }
            client.read_response("POST")
        });
    }
}

/// Asks for what takes its time at an endpoint that serves few at once.
pub fn waiter(ledger: &Ledger, address: SocketAddr, at: usize) {
    let path = format!("/waiting/slow/{}", 20 + at);
    let mut connection = Connection::new(ledger, Kind::Waiter, address);
    while !ledger.is_over() {
        connection.ask(PONG, |it| it.get(&path));
    }
}

/// Uses a listener while it exists: accepted connections must be served.
pub fn guest(ledger: &Ledger, address: SocketAddr) {
    while !ledger.is_over() {
        if let Ok(mut client) = RawClient::connect(address) {
            match client.get("/ping") {
                Ok(response) if response.status == 200 => ledger.answered(Kind::Guest),
                Ok(response) => {
                    ledger.failed(Kind::Guest, &format!("status {}", response.status));
                }
                // Its handshake was under way as the last socket was closed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    ledger.closed(Kind::Guest);
                }
                Err(error) => ledger.failed(Kind::Guest, &error.to_string()),
            }
        }
        pause(Duration::from_millis(2));
    }
}
