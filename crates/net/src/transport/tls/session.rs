//! A TLS connection without its socket: records in, records out.
//!
//! An idle session holds no buffer. Partial records, unread plaintext and unsent records
//! take memory only while there are any.

use std::fmt;
use std::io;
use std::sync::Arc;

use evenkeel_proto::client_hello::{self, FirstMessage};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, ReadEarlyData, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ServerConfig};

/// Most plaintext of one record, in bytes (RFC 8446 §5.1).
const RECORD_LEN: usize = 1 << 14;
/// Most that a record is longer than its plaintext: header, nonce and tag of any suite
/// that there is.
const RECORD_OVERHEAD: usize = 64;
/// Records of one write.
const RECORDS: usize = 4;
/// Most plaintext that one write takes, in bytes.
pub(super) const WRITE_LEN: usize = RECORDS * RECORD_LEN;
/// Room for the records of one write, and for handshake messages in front of them.
pub(super) const SEALED_LEN: usize = WRITE_LEN + RECORDS * RECORD_OVERHEAD + RECORD_LEN;

/// The state of a client's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hello {
    /// It has not come, or not all of it.
    Awaited,
    /// Its name is noted.
    Read,
    /// Not a ClientHello, or one that can't be parsed here.
    Unreadable,
}

/// The outcome of a handshake.
#[derive(Debug, Clone, Copy)]
pub struct Negotiated<'a> {
    /// The version, such as `TLSv1_3`.
    pub version: Option<rustls::ProtocolVersion>,
    /// The cipher suite, such as `TLS13_AES_128_GCM_SHA256`.
    pub suite: Option<rustls::CipherSuite>,
    /// The group of the key exchange, such as `X25519`.
    pub group: Option<rustls::NamedGroup>,
    /// The name that the client asked for (SNI); of connections that were accepted.
    pub server_name: Option<&'a str>,
    /// The protocol above (ALPN).
    pub protocol: Option<&'a [u8]>,
    /// Whether it goes on from an earlier connection.
    pub is_resumed: bool,
    /// The peer's certificate, followed by its issuers; empty if it showed none.
    pub peer_certificates: &'a [CertificateDer<'static>],
}

/// Why there is no TLS on a connection.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer has left.
    Gone(io::Error),
    /// The client speaks something else, such as plain HTTP.
    NotTls,
    /// The two do not agree, or the peer breaks the protocol.
    Failed(rustls::Error),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Gone(error) => error.fmt(f),
            HandshakeError::NotTls => f.write_str("not TLS"),
            HandshakeError::Failed(error) => error.fmt(f),
        }
    }
}

/// How the receiving side has ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// The peer said so (close_notify).
    Closed,
    /// The connection ended without an alert: the received bytes may be a part.
    CutOff,
    /// The first bytes are of something else.
    NotTls,
    /// A record was wrong, or the handshake failed.
    Failed(rustls::Error),
}

impl End {
    /// The end as the result of a read: 0 is a clean end.
    ///
    /// # Errors
    /// The peer has not announced the end.
    pub fn read(&self) -> io::Result<usize> {
        match self {
            End::Closed => Ok(0),
            End::CutOff => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "TLS: closed without close_notify",
            )),
            End::NotTls => Err(io::Error::new(io::ErrorKind::InvalidData, "not TLS")),
            End::Failed(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error.clone())),
        }
    }
}

/// Bytes that wait. Their memory is freed with the last of them.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    bytes: Vec<u8>,
    at: usize,
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Drops bytes from the front.
    pub fn take(&mut self, len: usize) {
        self.at += len;
        if self.at >= self.bytes.len() {
            *self = Waiting::default();
        }
    }

    /// Moves bytes into `room`; returns how many.
    pub fn take_into(&mut self, room: &mut [u8]) -> usize {
        let len = self.copy_into(room);
        self.take(len);
        len
    }

    /// Copies bytes into `room`; returns how many.
    pub fn copy_into(&self, room: &mut [u8]) -> usize {
        let len = self.rest().len().min(room.len());
        room[..len].copy_from_slice(&self.rest()[..len]);
        len
    }
}

enum Connection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

impl Connection {
    fn state(&self) -> &CommonState {
        match self {
            Connection::Server(it) => it,
            Connection::Client(it) => it,
        }
    }
}

/// State of a TLS connection between two calls.
pub(super) struct Session {
    connection: Connection,
    /// Received bytes that are incomplete: a part of a record, or of a handshake message.
    incoming: Vec<u8>,
    /// Plaintext that has not been read yet.
    pub received: Waiting,
    /// Records that the kernel has not taken.
    pub outgoing: Waiting,
    /// Bytes of plaintext in `outgoing` that their writer does not know to be written.
    pub unconfirmed: usize,
    /// How the receiving side has ended.
    pub end: Option<End>,
    /// The client has sent something before the end of the handshake, and it was taken.
    pub has_early_data: bool,
    server_name: Option<Box<str>>,
    hello: Hello,
    /// The received part of the first message, since rustls drops its records one by one.
    first: Vec<u8>,
    /// Nothing more can be written.
    is_closed: bool,
    is_aborted: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Destination of a record's content.
struct Sink<'a> {
    room: &'a mut [u8],
    filled: usize,
    has_early_data: &'a mut bool,
    received: &'a mut Waiting,
    outgoing: &'a mut Waiting,
}

impl Sink<'_> {
    fn take_plaintext(&mut self, plaintext: &[u8]) {
        let free = &mut self.room[self.filled..];
        let len = plaintext.len().min(free.len());
        free[..len].copy_from_slice(&plaintext[..len]);
        self.filled += len;
        self.received.push(&plaintext[len..]);
    }
}

/// Result of a step through records.
enum Step {
    Again,
    /// No progress is possible without further records.
    Blocked,
    Closed,
}

/// A side that may get early data.
trait TakesEarlyData: Sized {
    fn take(early: ReadEarlyData<'_, '_, Self>, sink: &mut Sink<'_>) -> Result<(), rustls::Error>;
}

impl TakesEarlyData for ServerConnectionData {
    fn take(
        mut early: ReadEarlyData<'_, '_, Self>,
        sink: &mut Sink<'_>,
    ) -> Result<(), rustls::Error> {
        while let Some(record) = early.next_record() {
            *sink.has_early_data = true;
            sink.take_plaintext(record?.payload);
        }
        Ok(())
    }
}

impl TakesEarlyData for ClientConnectionData {
    fn take(_: ReadEarlyData<'_, '_, Self>, _: &mut Sink<'_>) -> Result<(), rustls::Error> {
        Err(general("early data from a server"))
    }
}

/// Does what rustls asks for. Returns how many bytes are done with, and what follows.
fn step<Data: TakesEarlyData>(
    status: UnbufferedStatus<'_, '_, Data>,
    sink: &mut Sink<'_>,
) -> (usize, Result<Step, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = state.and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                sink.take_plaintext(record.payload);
            }
            Ok(Step::Again)
        }
        ConnectionState::ReadEarlyData(early) => Data::take(early, sink).map(|()| Step::Again),
        ConnectionState::EncodeTlsData(mut message) => {
            let mut encoded = Vec::new();
            if let Err(EncodeError::InsufficientSize(it)) = message.encode(&mut encoded) {
                encoded.resize(it.required_size, 0);
                message.encode(&mut encoded).map_err(general)?;
            }
            sink.outgoing.push(&encoded);
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Ok(Step::Again)
        }
        ConnectionState::PeerClosed | ConnectionState::Closed => Ok(Step::Closed),
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Ok(Step::Blocked),
        state => Err(general(format!("unexpected state {state:?}"))),
    });
    (discard, step)
}

fn general(error: impl fmt::Display) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

impl Session {
    /// Of a client that was accepted.
    ///
    /// # Errors
    /// The configuration can't be used.
    pub fn accept(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        UnbufferedServerConnection::new(config).map(|it| Session::new(Connection::Server(it)))
    }

    /// To a server of this name.
    ///
    /// # Errors
    /// The configuration can't be used.
    pub fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let connection = UnbufferedClientConnection::new(config, name)?;
        let mut session = Session::new(Connection::Client(connection));
        // The first message stands in `outgoing` from here on.
        session.process(&mut [], &mut []);
        Ok(session)
    }

    fn new(connection: Connection) -> Self {
        Session {
            connection,
            incoming: Vec::new(),
            received: Waiting::default(),
            outgoing: Waiting::default(),
            unconfirmed: 0,
            end: None,
            has_early_data: false,
            server_name: None,
            hello: Hello::Awaited,
            first: Vec::new(),
            is_closed: false,
            is_aborted: false,
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.state().is_handshaking()
    }

    /// Whether data goes over it: the handshake is over, or the client did not wait for that.
    pub fn is_open(&self) -> bool {
        self.has_early_data || !self.is_handshaking()
    }

    /// Bytes that came and wait to be read, or to be understood.
    pub fn buffered(&self) -> usize {
        self.received.rest().len() + self.incoming.len()
    }

    /// Memory of its buffers.
    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        let held = [&self.incoming, &self.received.bytes, &self.outgoing.bytes];
        held.iter().map(|it| it.capacity()).sum()
    }

    pub fn negotiated(&self) -> Negotiated<'_> {
        let state = self.connection.state();
        Negotiated {
            version: state.protocol_version(),
            suite: state.negotiated_cipher_suite().map(|it| it.suite()),
            group: state.negotiated_key_exchange_group().map(|it| it.name()),
            server_name: self.server_name.as_deref(),
            protocol: state.alpn_protocol(),
            is_resumed: state.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
            peer_certificates: state.peer_certificates().unwrap_or_default(),
        }
    }

    /// Moves the rest of earlier records to the front of `scratch`, so that further bytes can
    /// follow. Returns its length.
    pub fn begin_read(&self, scratch: &mut Vec<u8>, more: usize) -> usize {
        let kept = self.incoming.len();
        if scratch.len() < kept + more {
            scratch.resize(kept + more, 0);
        }
        scratch[..kept].copy_from_slice(&self.incoming);
        kept
    }

    /// Processes `records`, which begin with the rest of earlier ones. Plaintext goes into
    /// `room`, and the part without room into `received`. Returns how much went into `room`.
    pub fn receive(&mut self, records: &mut [u8], room: &mut [u8]) -> usize {
        if self.hello == Hello::Awaited && self.end.is_none() {
            self.look_at_first(records);
        }
        let (used, filled) = if self.end.is_none() {
            self.process(records, room)
        } else {
            (records.len(), 0)
        };
        self.refuse_unread();
        self.incoming.clear();
        if used < records.len() {
            self.incoming.extend_from_slice(&records[used..]);
        } else {
            self.incoming = Vec::new();
        }
        filled
    }

    /// Notes which name a client asks for; no later message tells it again.
    fn look_at_first(&mut self, records: &[u8]) {
        if !matches!(self.connection, Connection::Server(_)) {
            return;
        }
        let come = if self.first.is_empty() {
            records
        } else {
            self.first
                .extend_from_slice(&records[self.incoming.len()..]);
            &self.first
        };
        match client_hello::read(come) {
            FirstMessage::ClientHello(hello) => {
                let name = String::from_utf8_lossy(&hello.server_name);
                self.server_name = (!name.is_empty()).then(|| name.into());
                self.hello = Hello::Read;
            }
            FirstMessage::Other if records.first().is_some_and(u8::is_ascii_alphabetic) => {
                self.end = Some(End::NotTls);
            }
            // rustls reports the fault, or accepts the message.
            FirstMessage::Other => self.hello = Hello::Unreadable,
            FirstMessage::Partial => {
                if self.first.is_empty() {
                    self.first = records.to_vec();
                }
                return;
            }
        }
        self.first = Vec::new();
    }

    /// Refuses a client whose first message only rustls could parse, such as one in very many
    /// records. Routes would not see the name that its certificate was chosen by.
    fn refuse_unread(&mut self) {
        if self.hello == Hello::Unreadable && self.end.is_none() && self.is_open() {
            let why = "the ClientHello is spread over too many records";
            self.end = Some(End::Failed(rustls::Error::General(why.to_owned())));
        }
    }

    /// Returns how many bytes of `records` are done with, and how much of `room` is filled.
    fn process(&mut self, records: &mut [u8], room: &mut [u8]) -> (usize, usize) {
        let (mut used, mut refusal) = (0, None);
        let mut sink = Sink {
            room,
            filled: 0,
            has_early_data: &mut self.has_early_data,
            received: &mut self.received,
            outgoing: &mut self.outgoing,
        };
        loop {
            // Also after a failure, to get the alert for the peer: rustls keeps offsets into
            // these bytes, and panics without them.
            let left = &mut records[used..];
            let (discard, step) = match &mut self.connection {
                Connection::Server(it) => step(it.process_tls_records(left), &mut sink),
                Connection::Client(it) => step(it.process_tls_records(left), &mut sink),
            };
            used += discard;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Blocked) => break,
                Ok(Step::Closed) => {
                    self.end.get_or_insert(End::Closed);
                    break;
                }
                Err(error) if self.end.is_none() => {
                    refusal = evenkeel_tls::resolver::refusal(&error);
                    self.end = Some(End::Failed(error));
                }
                Err(_) => break,
            }
        }
        if let Some(alert) = refusal {
            *sink.outgoing = Waiting::default();
            sink.outgoing.push(&alert);
        }
        (used, sink.filled)
    }

    /// Writes records for `bytes`, at most [`WRITE_LEN`], into `sealed`, behind those in
    /// `outgoing`. Notes in `ends` where each record ends. Returns their length.
    ///
    /// # Errors
    /// The connection can't be written to any more.
    /// Nothing more can be written.
    pub fn seal(
        &mut self,
        bytes: &[u8],
        sealed: &mut [u8],
        ends: &mut Vec<usize>,
    ) -> io::Result<usize> {
        let mut filled = 0;
        ends.clear();
        for record in bytes.chunks(RECORD_LEN) {
            filled += self.write(Message::Data(record), &mut sealed[filled..])?;
            ends.push(filled);
        }
        Ok(filled)
    }

    /// Notes that `sent` bytes of the records for `len` bytes of plaintext were sent. Plaintext
    /// in complete records counts as written; the rest waits. `None` if no record is complete.
    pub fn note_partly_sent(
        &mut self,
        len: usize,
        sent: usize,
        ends: &[usize],
    ) -> Option<io::Result<usize>> {
        let whole = ends.iter().filter(|&&end| end <= sent).count();
        let written = (whole * RECORD_LEN).min(len);
        self.unconfirmed = len - written;
        (written > 0).then_some(Ok(written))
    }

    /// Appends the closing alert to `outgoing`. Does nothing if it was sent before, or can't be
    /// sent.
    pub fn say_close(&mut self) {
        if self.is_closed || self.is_aborted || !self.is_open() {
            return;
        }
        let mut alert = vec![0; self.outgoing.rest().len() + 2 * RECORD_OVERHEAD];
        if let Ok(len) = self.write(Message::Close, &mut alert) {
            self.outgoing.push(&alert[..len]);
        }
        self.is_closed = true;
    }

    /// Ends the connection without an alert, so that the peer does not take a cut-off message
    /// for complete.
    pub fn abort(&mut self) {
        self.is_aborted = true;
    }

    /// Writes a record into `sealed`, behind those in `outgoing`; returns their length.
    fn write(&mut self, message: Message<'_>, sealed: &mut [u8]) -> io::Result<usize> {
        let has_failed = matches!(self.end, Some(End::Failed(_) | End::NotTls));
        if self.is_closed || has_failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut sink = Sink {
            room: &mut [],
            filled: 0,
            has_early_data: &mut self.has_early_data,
            received: &mut self.received,
            outgoing: &mut self.outgoing,
        };
        loop {
            // A part of a message may be left there: rustls keeps offsets into it.
            let left = &mut self.incoming[..];
            let (discard, written) = match &mut self.connection {
                Connection::Server(it) => {
                    write(it.process_tls_records(left), &mut sink, message, sealed)
                }
                Connection::Client(it) => {
                    write(it.process_tls_records(left), &mut sink, message, sealed)
                }
            };
            self.incoming.drain(..discard);
            match written? {
                Written::Whole(len) => return Ok(len),
                Written::NotYet(Step::Again) => {}
                // The peer sends nothing more, and still reads.
                Written::NotYet(Step::Closed) if self.end.is_none() => self.end = Some(End::Closed),
                Written::NotYet(Step::Closed | Step::Blocked) => {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
    }
}

/// Content of a record to write.
#[derive(Clone, Copy)]
enum Message<'a> {
    Data(&'a [u8]),
    /// Nothing more comes.
    Close,
}

enum Written {
    Whole(usize),
    NotYet(Step),
}

/// Writes a record once rustls is ready for it. Returns also how many received bytes are done
/// with.
fn write<Data: TakesEarlyData>(
    status: UnbufferedStatus<'_, '_, Data>,
    sink: &mut Sink<'_>,
    message: Message<'_>,
    sealed: &mut [u8],
) -> (usize, io::Result<Written>) {
    match status {
        UnbufferedStatus {
            state: Ok(ConnectionState::WriteTraffic(mut traffic)),
            discard,
        } => {
            let waiting = sink.outgoing.take_into(sealed);
            let room = &mut sealed[waiting..];
            let written = match message {
                Message::Data(bytes) => traffic.encrypt(bytes, room),
                Message::Close => traffic.queue_close_notify(room),
            };
            let written = written.map(|len| Written::Whole(waiting + len));
            (discard, written.map_err(io::Error::other))
        }
        status => {
            let (discard, step) = step(status, sink);
            (discard, step.map(Written::NotYet).map_err(io::Error::other))
        }
    }
}
