//! HTTP by hand, over blocking sockets, on either side. Tests send exact bytes, and answers are
//! read strictly.
//!
//! Every read and write has a deadline ([`STEP`] unless set otherwise).

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_origin::body::{BodyReader, Framing};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use crate::deadline::STEP;

/// A connection used by hand as a client.
pub type RawClient = RawStream;

/// One side of a connection, with the bytes that were read ahead.
#[derive(Debug)]
pub struct RawStream {
    socket: Socket,
    input: Vec<u8>,
    step: Duration,
    /// Bytes sent so far.
    pub bytes_sent: u64,
    /// Bytes received so far.
    pub bytes_received: u64,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    AcceptedTls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

/// A response that has arrived whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Statuses of the informational answers before it.
    pub interim: Vec<u16>,
    /// Its status.
    pub status: u16,
    /// Its head as received, with the empty line.
    pub head: String,
    /// Its fields in order, names as received.
    pub fields: Vec<(String, String)>,
    /// Its body, without chunk framing.
    pub body: Vec<u8>,
    /// The lines of its trailer section, each with its CRLF.
    pub trailers: String,
}

impl Response {
    /// The first field of this name, compared without case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut named = self
            .fields
            .iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name));
        named.next().map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl RawStream {
    /// Connects over TCP.
    ///
    /// # Errors
    /// When that fails.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(RawStream::over(Socket::Tcp(stream)))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// When that fails.
    pub fn connect_unix(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(RawStream::over(Socket::Unix(UnixStream::connect(path)?)))
    }

    /// Connects over TLS, to a server of this name. The handshake is made right away.
    ///
    /// # Errors
    /// When the connection or the handshake fails.
    pub fn connect_tls(
        address: impl ToSocketAddrs,
        name: &str,
        config: Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let name = name.to_owned().try_into().map_err(io::Error::other)?;
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STEP))?;
        let mut tls = StreamOwned::new(connection, stream);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(RawStream::over(Socket::Tls(Box::new(tls))))
    }

    /// The state of the encryption; `None` without TLS.
    pub fn tls(&self) -> Option<&ClientConnection> {
        match &self.socket {
            Socket::Tls(tls) => Some(&tls.conn),
            Socket::Tcp(_) | Socket::Unix(_) | Socket::AcceptedTls(_) => None,
        }
    }

    /// Continues over TLS, as the server. The handshake runs at once, and begins with the bytes
    /// that were read ahead.
    ///
    /// # Errors
    /// When it is no connection of TCP in plain text, or the handshake fails.
    pub fn accept_tls(self, config: Arc<ServerConfig>) -> io::Result<Self> {
        let Socket::Tcp(stream) = self.socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        stream.set_read_timeout(Some(self.step))?;
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut first = &self.input[..];
        while !first.is_empty() {
            connection.read_tls(&mut first)?;
            connection.process_new_packets().map_err(io::Error::other)?;
        }
        let mut tls = StreamOwned::new(connection, stream);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(RawStream::over(Socket::AcceptedTls(Box::new(tls))))
    }

    /// The state of the encryption of the server's side; `None` on another.
    pub fn accepted_tls(&mut self) -> Option<&mut ServerConnection> {
        match &mut self.socket {
            Socket::AcceptedTls(tls) => Some(&mut tls.conn),
            Socket::Tcp(_) | Socket::Unix(_) | Socket::Tls(_) => None,
        }
    }

    fn over(socket: Socket) -> Self {
        RawStream {
            socket,
            input: Vec::new(),
            step: STEP,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Sets how long one read or write may take from now on.
    pub fn set_step(&mut self, step: Duration) {
        self.step = step;
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// When they cannot be sent, by the deadline or at all.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let step = Some(self.step);
        self.bytes_sent += bytes.as_ref().len() as u64;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(step)?;
                stream.write_all(bytes.as_ref())
            }
            Socket::Unix(stream) => {
                stream.set_write_timeout(step)?;
                stream.write_all(bytes.as_ref())
            }
            Socket::Tls(stream) => {
                stream.sock.set_write_timeout(step)?;
                stream.write_all(bytes.as_ref())
            }
            Socket::AcceptedTls(stream) => {
                stream.sock.set_write_timeout(step)?;
                stream.write_all(bytes.as_ref())?;
                stream.flush()
            }
        }
    }

    /// Closes the sending side alone.
    ///
    /// # Errors
    /// When the connection is broken already.
    pub fn finish_sending(&mut self) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
            Socket::Tls(stream) => {
                stream.conn.send_close_notify();
                stream.flush()
            }
            Socket::AcceptedTls(stream) => {
                stream.conn.send_close_notify();
                stream.flush()
            }
        }
    }

    /// Sends these bytes with the end of the sending side, in one segment: the other
    /// side never sees the bytes without the end behind them.
    ///
    /// # Errors
    /// When they cannot be sent, by the deadline or at all.
    pub fn send_last(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        if let Socket::Tcp(stream) = &self.socket {
            socket2::SockRef::from(stream).set_tcp_cork(true)?;
        }
        self.send(bytes)?;
        self.finish_sending()
    }

    /// Closes with a TCP reset.
    pub fn reset(self) {
        if let Socket::Tcp(stream) = &self.socket {
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }

    /// Reads once into `buf`; 0 at the end.
    fn read(&mut self, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let read = match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(buf)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(buf)
            }
            Socket::Tls(stream) => {
                stream.sock.set_read_timeout(Some(left))?;
                stream.read(buf)
            }
            Socket::AcceptedTls(stream) => {
                stream.sock.set_read_timeout(Some(left))?;
                stream.read(buf)
            }
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::TimedOut.into())
            }
            Ok(len) => {
                self.bytes_received += len as u64;
                Ok(len)
            }
            read => read,
        }
    }

    fn fill(&mut self, deadline: Instant) -> io::Result<usize> {
        let mut buf = [0; 16 << 10];
        let len = self.read(&mut buf, deadline)?;
        self.input.extend_from_slice(&buf[..len]);
        Ok(len)
    }

    fn fill_some(&mut self, deadline: Instant) -> io::Result<()> {
        match self.fill(deadline)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The first byte that is still to be read.
    ///
    /// # Errors
    /// When none comes by the deadline.
    pub fn peek_first(&mut self) -> io::Result<u8> {
        let deadline = Instant::now() + self.step;
        loop {
            match self.input.first() {
                Some(&first) => return Ok(first),
                None => self.fill_some(deadline)?,
            }
        }
    }

    /// Reads one head, request or response, with its empty line.
    ///
    /// # Errors
    /// When it is not there whole by the deadline; `UnexpectedEof` when the
    /// other side closed first.
    pub fn read_head(&mut self) -> io::Result<String> {
        let deadline = Instant::now() + self.step;
        loop {
            if let Some(at) = self.input.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head: Vec<u8> = self.input.drain(..at + 4).collect();
                return Ok(String::from_utf8_lossy(&head).into_owned());
            }
            self.fill_some(deadline)?;
        }
    }

    /// Reads exactly `len` bytes.
    ///
    /// # Errors
    /// When they are not there by the deadline.
    pub fn read_len(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + self.step;
        while self.input.len() < len {
            self.fill_some(deadline)?;
        }
        Ok(self.input.drain(..len).collect())
    }

    /// Reads and drops exactly `len` bytes, with a deadline for each piece.
    ///
    /// # Errors
    /// When the other side stops or closes before.
    pub fn skip_len(&mut self, len: u64) -> io::Result<()> {
        let mut left = len;
        let ready = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(self.input.len());
        self.input.drain(..ready);
        left -= ready as u64;
        let mut buf = vec![0; 256 << 10];
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            match self.read(&mut buf[..most], Instant::now() + self.step)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left -= read as u64,
            }
        }
        Ok(())
    }

    /// Reads until the other side closes.
    ///
    /// # Errors
    /// When it does not close by the deadline, or resets the connection.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + self.step;
        while self.fill(deadline)? > 0 {}
        Ok(std::mem::take(&mut self.input))
    }

    /// Whether the other side closes without sending anything more; a reset
    /// counts as closing.
    pub fn is_closed(&mut self) -> bool {
        match self.read_to_end() {
            Ok(rest) => rest.is_empty(),
            Err(error) => {
                self.input.is_empty()
                    && matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                    )
            }
        }
    }

    /// Reads exactly one final response, to a request with this method.
    ///
    /// # Errors
    /// When it is malformed or not whole by the deadline; `UnexpectedEof`
    /// when the other side closed before its end.
    pub fn read_response(&mut self, method: &str) -> io::Result<Response> {
        let mut interim = Vec::new();
        loop {
            let head = self.read_head()?;
            let mut response = parse_head(head)?;
            if matches!(response.status, 100..=199) && response.status != 101 {
                interim.push(response.status);
                continue;
            }
            response.interim = interim;
            self.read_response_body(method, &mut response)?;
            return Ok(response);
        }
    }

    fn read_response_body(&mut self, method: &str, response: &mut Response) -> io::Result<()> {
        let bodiless = method == "HEAD" || matches!(response.status, 101 | 204 | 304);
        let chunked = response
            .field("transfer-encoding")
            .is_some_and(|v| v.eq_ignore_ascii_case("chunked"));
        let len = response.field("content-length").map(str::parse::<u64>);
        let framing = match (bodiless, chunked, len) {
            (true, ..) => Framing::Length { len: 0 },
            (false, true, None) => Framing::Chunked,
            (false, false, Some(Ok(len))) => Framing::Length { len },
            (false, false, None) => {
                response.body = self.read_to_end()?;
                return Ok(());
            }
            _ => return Err(invalid("ambiguous length")),
        };
        let deadline = Instant::now() + self.step;
        let mut reader = BodyReader::new(framing);
        loop {
            reader
                .take(&mut self.input, &mut response.body)
                .map_err(|_| invalid("malformed body"))?;
            if reader.is_done() {
                response.trailers = String::from_utf8_lossy(&reader.trailers).into_owned();
                return Ok(());
            }
            self.fill_some(deadline)?;
        }
    }

    /// Sends a request and reads its response.
    ///
    /// # Errors
    /// As [`RawStream::send`] and [`RawStream::read_response`].
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> io::Result<Response> {
        let request = request.as_ref();
        let method = request
            .split(|&byte| byte == b' ')
            .next()
            .unwrap_or_default();
        let method = String::from_utf8_lossy(method).into_owned();
        self.send(request)?;
        self.read_response(&method)
    }

    /// Sends a GET for a path and reads its response.
    ///
    /// # Errors
    /// As [`RawStream::ask`].
    pub fn get(&mut self, path: &str) -> io::Result<Response> {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: test.example\r\n\r\n"))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn parse_head(head: String) -> io::Result<Response> {
    let mut fields = [httparse::EMPTY_HEADER; 512];
    let mut parsed = httparse::Response::new(&mut fields);
    match parsed.parse(head.as_bytes()) {
        Ok(httparse::Status::Complete(_)) => {}
        _ => return Err(invalid(&format!("malformed head {head:?}"))),
    }
    let fields = parsed
        .headers
        .iter()
        .map(|field| {
            (
                field.name.to_owned(),
                String::from_utf8_lossy(field.value).into_owned(),
            )
        })
        .collect();
    Ok(Response {
        interim: Vec::new(),
        status: parsed.code.unwrap_or_default(),
        fields,
        head,
        body: Vec::new(),
        trailers: String::new(),
    })
}

/// An origin that follows a script: for answers that no server would give.
///
/// Each connection runs the script on its own thread, with its number counted from 0; the
/// connection closes when the script returns.
#[derive(Debug)]
pub struct RawOrigin {
    /// The address that it listens on.
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RawOrigin {
    /// Starts on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(script: impl Fn(usize, RawStream) + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let connections = Arc::new(AtomicUsize::new(0));
        let stopping = Arc::new(AtomicBool::new(false));
        let script = Arc::new(script);
        let thread = {
            let (connections, stopping) = (Arc::clone(&connections), Arc::clone(&stopping));
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if stopping.load(Ordering::SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let number = connections.fetch_add(1, Ordering::SeqCst);
                    let script = Arc::clone(&script);
                    std::thread::spawn(move || {
                        let _ = stream.set_nodelay(true);
                        script(number, RawStream::over(Socket::Tcp(stream)));
                    });
                }
            })
        };
        Ok(RawOrigin {
            address,
            connections,
            stopping,
            thread: Some(thread),
        })
    }

    /// Starts one that reads a request's head and sends `answer`, whatever
    /// was asked, then closes.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn answering(answer: impl Into<Vec<u8>>) -> io::Result<Self> {
        let answer = answer.into();
        RawOrigin::start(move |_, mut stream| {
            if stream.read_head().is_ok() {
                let _ = stream.send(&answer);
            }
        })
    }

    /// Starts one that sends `answer` for each request's head that it reads,
    /// whatever was asked, until the connection ends.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn answering_each(answer: impl Into<Vec<u8>>) -> io::Result<Self> {
        let answer = answer.into();
        RawOrigin::start(
            move |_, mut stream| {
                while stream.read_head().is_ok() && stream.send(&answer).is_ok() {}
            },
        )
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for RawOrigin {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread out of accept.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
