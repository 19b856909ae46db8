//! HTTP/2 by hand, as a server: what an endpoint says, and when, is the test's.

use std::collections::BTreeMap;
use std::io;

use evenkeel_proto::hpack::Decoder;

use super::frames::{Ends, PAYLOAD_MAX, block, frame, headers, kind, settings};
use super::{ErrorCode, Fields, Frame, PREFACE, decoded, flags, invalid, read_frame};
use crate::raw::RawStream;

/// The part of a request that has arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct H2Request {
    /// Its stream.
    pub stream: u32,
    /// Its fields in order, including those that begin with a colon.
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

impl H2Request {
    /// The first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut named = self.fields.iter().filter(|(key, _)| key == name);
        named.next().map(|(_, value)| value.as_str())
    }

    /// The path that is asked for.
    pub fn path(&self) -> &str {
        self.field(":path").unwrap_or_default()
    }
}

/// A connection of HTTP/2 that was accepted.
#[derive(Debug)]
pub struct H2Server {
    raw: RawStream,
    decoder: Decoder,
    requests: BTreeMap<u32, H2Request>,
    /// Frames that came.
    pub frames: Vec<Frame>,
}

impl H2Server {
    /// Reads the preface of a client, and sends these settings.
    ///
    /// # Errors
    /// When something else comes.
    pub fn accept(mut raw: RawStream, own: &[(u16, u32)]) -> io::Result<Self> {
        if raw.read_len(PREFACE.len())? != PREFACE {
            return Err(invalid("no preface of HTTP/2"));
        }
        raw.send(frame(kind::SETTINGS, 0, 0, &settings(own)))?;
        Ok(H2Server {
            raw,
            decoder: Decoder::default(),
            requests: BTreeMap::new(),
            frames: Vec::new(),
        })
    }

    /// The connection below it. Bytes sent there go out unchanged.
    pub fn raw(&mut self) -> &mut RawStream {
        &mut self.raw
    }

    /// Reads the next frame. SETTINGS and PING are answered, and content opens the windows
    /// again.
    ///
    /// # Errors
    /// When it is not whole within a step; `UnexpectedEof` when the peer has closed.
    #[expect(
        clippy::should_implement_trait,
        reason = "it gives frames as they come, and errors that need no end"
    )]
    pub fn next(&mut self) -> io::Result<&Frame> {
        let it = read_frame(&mut self.raw)?;
        self.note(&it)?;
        self.frames.push(it);
        self.frames.last().ok_or(invalid("no frame"))
    }

    fn note(&mut self, it: &Frame) -> io::Result<()> {
        let ends = it.has(flags::END_STREAM);
        match it.kind {
            kind::HEADERS => {
                if !it.has(flags::END_HEADERS) {
                    return Err(invalid("a head of several frames"));
                }
                let fields = decoded(&mut self.decoder, it.content()?)?;
                let request = self.requests.entry(it.stream).or_default();
                request.stream = it.stream;
                request.is_whole = ends;
                if request.fields.is_empty() {
                    request.fields = fields;
                } else {
                    request.trailers = fields;
                }
            }
            kind::DATA => {
                let content = it.content()?;
                let request = self.requests.entry(it.stream).or_default();
                request.body.extend_from_slice(content);
                request.is_whole = ends;
                let len = it.payload.len() as u32;
                if len > 0 {
                    self.frame(kind::WINDOW_UPDATE, 0, 0, len.to_be_bytes())?;
                    if !ends {
                        self.frame(kind::WINDOW_UPDATE, 0, it.stream, len.to_be_bytes())?;
                    }
                }
            }
            kind::RST_STREAM => {
                let code = ErrorCode::from_number(it.number(0));
                self.requests.entry(it.stream).or_default().reset = Some(code);
            }
            kind::SETTINGS if !it.has(flags::ACK) => {
                self.frame(kind::SETTINGS, flags::ACK, 0, [])?;
            }
            kind::PING if !it.has(flags::ACK) => {
                self.frame(kind::PING, flags::ACK, 0, &it.payload)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads until a request is whole, and takes it out.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn request(&mut self) -> io::Result<H2Request> {
        self.take(|it| it.is_whole)
    }

    /// Reads until the head of a request is there, and takes it out: what follows of it is
    /// another one, without fields.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn head(&mut self) -> io::Result<H2Request> {
        self.take(|it| !it.fields.is_empty())
    }

    /// Takes out a request that has arrived completely.
    pub fn whole(&mut self) -> Option<H2Request> {
        self.find(|it| it.is_whole)
    }

    fn take(&mut self, is_wanted: impl Fn(&H2Request) -> bool) -> io::Result<H2Request> {
        loop {
            if let Some(found) = self.find(&is_wanted) {
                return Ok(found);
            }
            self.next()?;
        }
    }

    fn find(&mut self, is_wanted: impl Fn(&H2Request) -> bool) -> Option<H2Request> {
        let found = self.requests.values().find(|it| is_wanted(it));
        let stream = found?.stream;
        self.requests.remove(&stream)
    }

    /// Reads until a stream is reset.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn reset_of(&mut self, stream: u32) -> io::Result<ErrorCode> {
        loop {
            let request = self.requests.get(&stream);
            if let Some(code) = request.and_then(|it| it.reset) {
                return Ok(code);
            }
            self.next()?;
        }
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

    /// Sends these fields unchanged: a head, or trailers.
    ///
    /// # Errors
    /// When they can't be sent.
    pub fn headers(&mut self, stream: u32, fields: &[(&str, &str)], ends: Ends) -> io::Result<()> {
        self.raw.send(headers(stream, &block(fields), ends))
    }

    /// Sends content, whatever the windows say.
    ///
    /// # Errors
    /// When it can't be sent.
    pub fn data(&mut self, stream: u32, bytes: impl AsRef<[u8]>, ends: Ends) -> io::Result<()> {
        let mut parts = bytes.as_ref().chunks(PAYLOAD_MAX).peekable();
        if parts.peek().is_none() {
            return self.frame(kind::DATA, ends.flag(), stream, []);
        }
        while let Some(part) = parts.next() {
            let flags = match parts.peek() {
                None => ends.flag(),
                Some(_) => 0,
            };
            self.frame(kind::DATA, flags, stream, part)?;
        }
        Ok(())
    }

    /// Sends a whole response of this status.
    ///
    /// # Errors
    /// When it can't be sent.
    pub fn respond(&mut self, stream: u32, status: u16, body: &str) -> io::Result<()> {
        let status = status.to_string();
        self.headers(stream, &[(":status", &status)], Ends::Later)?;
        self.data(stream, body, Ends::Now)
    }

    /// Resets a stream.
    ///
    /// # Errors
    /// When that can't be sent.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) -> io::Result<()> {
        let code = code.number().to_be_bytes();
        self.frame(kind::RST_STREAM, 0, stream, code)
    }

    /// Serves no stream behind `last`.
    ///
    /// # Errors
    /// When that can't be sent.
    pub fn go_away(&mut self, last: u32, code: ErrorCode) -> io::Result<()> {
        let payload = [last.to_be_bytes(), code.number().to_be_bytes()].concat();
        self.frame(kind::GOAWAY, 0, 0, payload)
    }
}
