//! HTTP/2 by hand, as a client: it sends any frame, and reads the answers.
//!
//! Frames are sent unchecked: a test may break every rule. [`next`](H2Client::next) reads the
//! answers frame by frame and notes them: it decodes heads, gathers content by stream, and
//! answers SETTINGS and PING. Only [`response`](H2Client::response) opens windows, so that a
//! test may leave them shut.

mod frames;
mod server;

use std::collections::BTreeMap;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use evenkeel_proto::http2::frame::{ErrorCode, PREFACE, flags};
pub use frames::{
    Ends, PAYLOAD_MAX, block, block_indexed, frame, headers, kind, setting, settings,
};

pub use server::{H2Request, H2Server};

use evenkeel_proto::hpack::Decoder;
use rustls::ClientConfig;

use crate::raw::RawStream;

/// Bytes of a frame's head.
const HEAD_LEN: usize = 9;

/// The window of a stream and of a connection at its beginning.
const WINDOW_FIRST: i64 = 65_535;

/// A frame as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its kind: see [`kind`].
    pub kind: u8,
    /// Its flags: see [`flags`].
    pub flags: u8,
    /// Its stream; 0 for the connection.
    pub stream: u32,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Whether it has this flag.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The four bytes of its payload from here on, as a number; 0 where they are missing.
    fn number(&self, from: usize) -> u32 {
        let bytes = self.payload.get(from..).and_then(|it| it.first_chunk());
        bytes.map_or(0, |it| u32::from_be_bytes(*it))
    }

    /// The payload of DATA or HEADERS without padding and priority.
    fn content(&self) -> io::Result<&[u8]> {
        let mut rest = &self.payload[..];
        let mut padding = 0;
        if self.has(flags::PADDED) {
            let (len, behind) = rest.split_first().ok_or(invalid("no padding"))?;
            (rest, padding) = (behind, usize::from(*len));
        }
        if self.kind == kind::HEADERS && self.has(flags::PRIORITY) {
            rest = rest.get(5..).ok_or(invalid("no priority"))?;
        }
        let len = rest.len().checked_sub(padding);
        Ok(&rest[..len.ok_or(invalid("more padding than payload"))?])
    }
}

/// The part of a response that has arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct H2Response {
    /// Informational answers before it, each with its fields.
    pub interim: Vec<(u16, Fields)>,
    /// Its status; 0 before its head has come.
    pub status: u16,
    /// Its fields in order, without those that begin with a colon.
    pub fields: Fields,
    /// Its content so far.
    pub body: Vec<u8>,
    /// Its trailers.
    pub trailers: Fields,
    /// Whether its end has come.
    pub is_whole: bool,
    /// The code with which the stream was reset.
    pub reset: Option<ErrorCode>,
}

/// Names and values, in their order.
pub type Fields = Vec<(String, String)>;

impl H2Response {
    /// The first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut named = self.fields.iter().filter(|(key, _)| key == name);
        named.next().map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn is_over(&self) -> bool {
        self.is_whole || self.reset.is_some()
    }

    fn note_fields(&mut self, mut fields: Fields, ends: bool) -> io::Result<()> {
        self.is_whole |= ends;
        if self.status != 0 {
            self.trailers = fields;
            return Ok(());
        }
        let status = fields.iter().position(|(name, _)| name == ":status");
        let status = status.ok_or(invalid("a response without a status"))?;
        let (_, status) = fields.remove(status);
        let status = status.parse().map_err(|_| invalid("status"))?;
        if matches!(status, 100..=199) {
            self.interim.push((status, fields));
        } else {
            self.status = status;
            self.fields = fields;
        }
        Ok(())
    }
}

/// The end that the peer has announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoAway {
    /// The last stream that is served.
    pub last: u32,
    /// Why.
    pub code: ErrorCode,
    /// The debug text behind it.
    pub text: Vec<u8>,
}

/// A block of fields that comes in several frames.
#[derive(Debug)]
struct Gathering {
    stream: u32,
    ends: bool,
    bytes: Vec<u8>,
}

/// A connection of HTTP/2 that is used by hand.
#[derive(Debug)]
pub struct H2Client {
    raw: RawStream,
    scheme: &'static str,
    decoder: Decoder,
    gathering: Option<Gathering>,
    responses: BTreeMap<u32, H2Response>,
    /// Content that may be sent, on the connection.
    window: i64,
    /// The changes to the windows of streams.
    windows: BTreeMap<u32, i64>,
    step: Duration,
    /// The latest value of each of the peer's settings.
    pub settings: BTreeMap<u16, u32>,
    /// The last GOAWAY that came.
    pub goes_away: Option<GoAway>,
}

impl H2Client {
    /// Connects with prior knowledge, and sends the preface and default SETTINGS.
    ///
    /// # Errors
    /// When that fails.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        H2Client::connect_with(address, &[])
    }

    /// The same with these settings: see [`setting`].
    ///
    /// # Errors
    /// When that fails.
    pub fn connect_with(address: impl ToSocketAddrs, own: &[(u16, u32)]) -> io::Result<Self> {
        let mut it = H2Client::over(RawStream::connect(address)?);
        it.begin(own)?;
        Ok(it)
    }

    /// Connects over TLS to a server of this name. ALPN offers `h2` alone.
    ///
    /// # Errors
    /// When that fails, or the server does not choose HTTP/2.
    pub fn connect_tls(
        address: impl ToSocketAddrs,
        name: &str,
        config: &ClientConfig,
    ) -> io::Result<Self> {
        let mut config = config.clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let raw = RawStream::connect_tls(address, name, Arc::new(config))?;
        if raw.tls().and_then(|it| it.alpn_protocol()) != Some(b"h2") {
            return Err(invalid("the server does not choose h2"));
        }
        let mut it = H2Client::over(raw);
        it.begin(&[])?;
        Ok(it)
    }

    /// A connection on which nothing was sent yet.
    pub fn over(raw: RawStream) -> Self {
        let scheme = if raw.tls().is_some() { "https" } else { "http" };
        H2Client {
            raw,
            scheme,
            decoder: Decoder::default(),
            gathering: None,
            responses: BTreeMap::new(),
            window: WINDOW_FIRST,
            windows: BTreeMap::new(),
            step: crate::deadline::STEP,
            settings: BTreeMap::new(),
            goes_away: None,
        }
    }

    /// The connection below it. Bytes sent there go out unchanged.
    pub fn raw(&mut self) -> &mut RawStream {
        &mut self.raw
    }

    /// The same, for good.
    pub fn into_raw(self) -> RawStream {
        self.raw
    }

    /// Sets how long one read or write may take from now on.
    pub fn set_step(&mut self, step: Duration) {
        self.step = step;
        self.raw.set_step(step);
    }

    /// Sends the preface and SETTINGS.
    ///
    /// # Errors
    /// When they can't be sent.
    pub fn begin(&mut self, own: &[(u16, u32)]) -> io::Result<()> {
        let first = [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &settings(own))].concat();
        self.raw.send(first)
    }

    /// Sends a frame unchanged, valid or not.
    ///
    /// # Errors
    /// When it can't be sent.
    pub fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: impl AsRef<[u8]>,
    ) -> io::Result<()> {
        self.raw.send(frame(kind, flags, stream, payload.as_ref()))
    }

    /// Sends these fields unchanged: a head, or trailers. They are literals without Huffman
    /// coding, and enter no table.
    ///
    /// # Errors
    /// When they can't be sent.
    pub fn headers(&mut self, stream: u32, fields: &[(&str, &str)], ends: Ends) -> io::Result<()> {
        let frames = headers(stream, &block(fields), ends);
        self.raw.send(frames)
    }

    /// Sends the head of a request to `test.example`, with these fields behind.
    ///
    /// # Errors
    /// When it can't be sent.
    pub fn request(
        &mut self,
        stream: u32,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        ends: Ends,
    ) -> io::Result<()> {
        let own = self.head(method, path);
        self.headers(stream, &[&own, fields].concat(), ends)
    }

    /// The fields of a request to `test.example`.
    pub fn head<'a>(&self, method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
        [
            (":method", method),
            (":scheme", self.scheme),
            (":path", path),
            (":authority", "test.example"),
        ]
    }

    /// Sends a GET for a path.
    ///
    /// # Errors
    /// When it can't be sent.
    pub fn get(&mut self, stream: u32, path: &str) -> io::Result<()> {
        self.request(stream, "GET", path, &[], Ends::Now)
    }

    /// Sends a GET for a path, and reads the response.
    ///
    /// # Errors
    /// As [`H2Client::response`].
    pub fn ask(&mut self, stream: u32, path: &str) -> io::Result<H2Response> {
        self.get(stream, path)?;
        self.response(stream)
    }

    /// Sends content in frames of at most 16 KiB, whatever the windows say.
    ///
    /// # Errors
    /// When it can't be sent.
    pub fn data(&mut self, stream: u32, bytes: impl AsRef<[u8]>, ends: Ends) -> io::Result<()> {
        let mut rest = bytes.as_ref();
        loop {
            let (part, behind) = rest.split_at(rest.len().min(PAYLOAD_MAX));
            rest = behind;
            let flags = if rest.is_empty() { ends.flag() } else { 0 };
            self.window -= part.len() as i64;
            *self.windows.entry(stream).or_default() -= part.len() as i64;
            self.frame(kind::DATA, flags, stream, part)?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends content as the windows allow, and reads frames while they are shut.
    ///
    /// # Errors
    /// When they stay shut for the time of a step, or the stream is reset.
    pub fn upload(&mut self, stream: u32, bytes: impl AsRef<[u8]>, ends: Ends) -> io::Result<()> {
        let mut rest = bytes.as_ref();
        loop {
            let window = self.send_window(stream).max(0);
            let most = usize::try_from(window).unwrap_or(usize::MAX);
            let (part, behind) = rest.split_at(rest.len().min(most));
            if behind.is_empty() {
                return self.data(stream, part, ends);
            }
            if !part.is_empty() {
                self.data(stream, part, Ends::Later)?;
            }
            rest = behind;
            self.next()?;
            if self.responses.get(&stream).is_some_and(|it| it.is_over()) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// Content that may be sent on a stream now.
    pub fn send_window(&self, stream: u32) -> i64 {
        let first = self.settings.get(&setting::INITIAL_WINDOW_SIZE);
        let first = first.map_or(WINDOW_FIRST, |it| i64::from(*it));
        let own = first + self.windows.get(&stream).copied().unwrap_or_default();
        own.min(self.window)
    }

    /// Lets the peer send this many more bytes: on a stream, or on the connection if `stream`
    /// is 0.
    ///
    /// # Errors
    /// When that can't be sent.
    pub fn credit(&mut self, stream: u32, bytes: u32) -> io::Result<()> {
        self.frame(kind::WINDOW_UPDATE, 0, stream, bytes.to_be_bytes())
    }

    /// Resets a stream.
    ///
    /// # Errors
    /// When that can't be sent.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) -> io::Result<()> {
        let code = code.number().to_be_bytes();
        self.frame(kind::RST_STREAM, 0, stream, code)
    }

    /// Sends a PING, and reads frames until it is answered: the peer has then read all
    /// that was sent before.
    ///
    /// # Errors
    /// When no answer comes.
    pub fn ping(&mut self) -> io::Result<()> {
        let payload = *b"in order";
        self.frame(kind::PING, 0, 0, payload)?;
        loop {
            let it = self.next()?;
            if it.kind == kind::PING && it.has(flags::ACK) && it.payload == payload {
                return Ok(());
            }
        }
    }

    /// Reads the next frame, and notes its content.
    ///
    /// # Errors
    /// When it is not complete within a step; `UnexpectedEof` when the peer has closed.
    #[expect(
        clippy::should_implement_trait,
        reason = "it gives frames as they come, and errors that need no end"
    )]
    pub fn next(&mut self) -> io::Result<Frame> {
        let frame = read_frame(&mut self.raw)?;
        self.note(&frame)?;
        Ok(frame)
    }

    /// Reads frames until the response of a stream is whole or reset, and takes it out. All
    /// content that comes meanwhile opens the windows again.
    ///
    /// # Errors
    /// As [`H2Client::next`].
    pub fn response(&mut self, stream: u32) -> io::Result<H2Response> {
        while !self.has_response(stream) {
            let frame = self.next()?;
            let len = frame.payload.len() as u32;
            if frame.kind == kind::DATA && len > 0 {
                self.credit(0, len)?;
                if !frame.has(flags::END_STREAM) {
                    self.credit(frame.stream, len)?;
                }
            }
        }
        Ok(self.responses.remove(&stream).unwrap_or_default())
    }

    /// Whether the response of a stream is complete or reset, as far as frames were read.
    pub fn has_response(&self, stream: u32) -> bool {
        self.responses.get(&stream).is_some_and(H2Response::is_over)
    }

    /// The part of a stream's response that was read, and not taken.
    pub fn so_far(&self, stream: u32) -> Option<&H2Response> {
        self.responses.get(&stream)
    }

    /// Reads frames until the condition holds.
    ///
    /// # Errors
    /// As [`H2Client::next`], and when it does not hold within a step.
    pub fn until(&mut self, mut condition: impl FnMut(&H2Client) -> bool) -> io::Result<()> {
        let deadline = Instant::now() + self.step;
        while !condition(self) {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.next()?;
        }
        Ok(())
    }

    /// Reads until the peer closes. Returns the last GOAWAY.
    ///
    /// # Errors
    /// When it does not close within a step after its last frame.
    pub fn end(&mut self) -> io::Result<Option<GoAway>> {
        loop {
            match self.next() {
                Ok(_) => {}
                Err(error) if is_end(&error) => return Ok(self.goes_away.clone()),
                Err(error) => return Err(error),
            }
        }
    }

    fn note(&mut self, frame: &Frame) -> io::Result<()> {
        match frame.kind {
            kind::DATA => {
                let ends = frame.has(flags::END_STREAM);
                let response = self.responses.entry(frame.stream).or_default();
                response.body.extend_from_slice(frame.content()?);
                response.is_whole |= ends;
                Ok(())
            }
            kind::HEADERS => {
                let ends = frame.has(flags::END_STREAM);
                let bytes = frame.content()?;
                self.note_block(frame, ends, bytes.to_vec())
            }
            kind::CONTINUATION => {
                let begun = self.gathering.take();
                let begun = begun.filter(|it| it.stream == frame.stream);
                let begun = begun.ok_or(invalid("CONTINUATION of nothing"))?;
                let bytes = [&begun.bytes[..], &frame.payload].concat();
                self.note_block(frame, begun.ends, bytes)
            }
            kind::RST_STREAM => {
                let code = ErrorCode::from_number(frame.number(0));
                self.responses.entry(frame.stream).or_default().reset = Some(code);
                Ok(())
            }
            kind::SETTINGS if !frame.has(flags::ACK) => {
                for it in frame.payload.as_chunks::<6>().0 {
                    let number = u16::from_be_bytes([it[0], it[1]]);
                    let value = u32::from_be_bytes([it[2], it[3], it[4], it[5]]);
                    self.settings.insert(number, value);
                }
                self.answer(kind::SETTINGS, &[])
            }
            kind::PING if !frame.has(flags::ACK) => self.answer(kind::PING, &frame.payload),
            kind::WINDOW_UPDATE => {
                let more = i64::from(frame.number(0));
                match frame.stream {
                    0 => self.window += more,
                    stream => *self.windows.entry(stream).or_default() += more,
                }
                Ok(())
            }
            kind::GOAWAY => {
                self.goes_away = Some(GoAway {
                    last: frame.number(0),
                    code: ErrorCode::from_number(frame.number(4)),
                    text: frame.payload.get(8..).unwrap_or_default().to_vec(),
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Answers a frame. A peer that has closed meanwhile may have said why: that is still
    /// to be read.
    fn answer(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        match self.frame(kind, flags::ACK, 0, payload) {
            Err(error) if is_end(&error) => Ok(()),
            sent => sent,
        }
    }

    fn note_block(&mut self, frame: &Frame, ends: bool, bytes: Vec<u8>) -> io::Result<()> {
        let stream = frame.stream;
        if !frame.has(flags::END_HEADERS) {
            self.gathering = Some(Gathering {
                stream,
                ends,
                bytes,
            });
            return Ok(());
        }
        let fields = decoded(&mut self.decoder, &bytes)?;
        let response = self.responses.entry(stream).or_default();
        response.note_fields(fields, ends)
    }
}

/// Reads a frame, whatever it says.
fn read_frame(raw: &mut RawStream) -> io::Result<Frame> {
    let head = raw.read_len(HEAD_LEN)?;
    let len = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let stream = [head[5] & 0x7f, head[6], head[7], head[8]];
    Ok(Frame {
        kind: head[3],
        flags: head[4],
        stream: u32::from_be_bytes(stream),
        payload: raw.read_len(len)?,
    })
}

/// The fields of a block.
fn decoded(decoder: &mut Decoder, block: &[u8]) -> io::Result<Fields> {
    let mut fields = Fields::new();
    let mut block = decoder.block(block);
    let mut text = Vec::new();
    while let Some(it) = block
        .next(&mut text)
        .map_err(|_| invalid("fields that can't be decoded"))?
    {
        let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fields.push((of(it.name.of(&text)), of(it.value.of(&text))));
    }
    Ok(fields)
}

/// Whether the peer has closed, in whatever way.
pub fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::RawOrigin;

    /// A scripted server, and a client's reading of its responses.
    #[test]
    fn responses_are_read_whatever_their_frames() {
        let long = "x".repeat(20_000);
        let sent_long = long.clone();
        let server = RawOrigin::start(move |_, mut stream| {
            let first = PREFACE.len() + HEAD_LEN;
            let begun = stream.read_len(first).unwrap();
            assert!(begun.starts_with(PREFACE));
            let hints = headers(
                1,
                &block(&[(":status", "103"), ("link", "</a>")]),
                Ends::Later,
            );
            let head = block(&[(":status", "200"), ("long", &sent_long)]);
            let more = [
                frame(kind::SETTINGS, 0, 0, &settings(&[(4, 10)])),
                hints,
                headers(1, &head, Ends::Later),
                frame(kind::DATA, flags::PADDED, 1, b"\x02abc\0\0"),
                frame(kind::RST_STREAM, 0, 3, &8u32.to_be_bytes()),
                frame(kind::WINDOW_UPDATE, 0, 1, &7u32.to_be_bytes()),
                headers(1, &block(&[("sum", "1")]), Ends::Now),
                frame(kind::GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x0bcalm"),
            ];
            stream.send(more.concat()).unwrap();
            let _ = stream.finish_sending();
            let _ = stream.read_to_end();
        })
        .unwrap();
        let mut client = H2Client::connect(server.address).unwrap();
        let response = client.response(1).unwrap();
        assert_eq!(
            response.interim,
            [(103, vec![("link".into(), "</a>".into())])]
        );
        assert_eq!(response.status, 200);
        assert_eq!(response.field("long"), Some(&long[..]));
        assert_eq!(response.text(), "abc");
        assert_eq!(response.trailers, [("sum".into(), "1".into())]);
        assert_eq!(client.response(3).unwrap().reset, Some(ErrorCode::Cancel));
        assert_eq!(client.send_window(1), 17);
        let end = client.end().unwrap().unwrap();
        assert_eq!((end.last, end.code), (1, ErrorCode::EnhanceYourCalm));
        assert_eq!(end.text, b"calm");
    }
}
