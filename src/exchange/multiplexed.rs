//! A connection that carries many exchanges at once, for tests.
//!
//! It stands for protocols such as HTTP/2. A frame is the number of its stream, its
//! kind, its length and its bytes. The protocol knows neither windows nor priorities.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_proto::http1::{Parsed, parse_response};
use evenkeel_proto::{Method, ResponseHead};

use crate::net::pipe::Pipe;
use crate::net::stream::{Follow, Stream};

/// Length of what comes before the bytes of a frame.
const FRAME_HEAD_LEN: usize = 4;
/// Most bytes of a frame.
const FRAME_LEN_MAX: usize = 255 * 256;

/// The meaning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Head = b'H',
    Data = b'D',
    /// Nothing more comes.
    End = b'E',
    /// The exchange is given up.
    Reset = b'R',
}

/// A frame, as it is sent.
pub fn frame(stream: u8, kind: FrameKind, bytes: &[u8]) -> Vec<u8> {
    let [high, low] = (bytes.len() as u16).to_be_bytes();
    [&[stream, kind as u8, high, low], bytes].concat()
}

/// Takes the first frame off: its stream, its kind and its bytes. `None` where it is
/// not there as a whole.
pub fn take_frame(bytes: &mut Vec<u8>) -> Option<(u8, FrameKind, Vec<u8>)> {
    let [stream, kind, high, low] = *bytes.first_chunk()?;
    let end = FRAME_HEAD_LEN + usize::from(u16::from_be_bytes([high, low]));
    if bytes.len() < end {
        return None;
    }
    let kind = match kind {
        b'H' => FrameKind::Head,
        b'D' => FrameKind::Data,
        b'E' => FrameKind::End,
        b'R' => FrameKind::Reset,
        _ => panic!("no such frame: {kind}"),
    };
    let rest = bytes.split_off(end);
    let frame = std::mem::replace(bytes, rest);
    Some((stream, kind, frame[FRAME_HEAD_LEN..].to_vec()))
}

/// Frames of one stream that were read and not taken.
#[derive(Debug, Default)]
struct Incoming {
    head: Option<Vec<u8>>,
    content: VecDeque<u8>,
    is_over: bool,
    is_reset: bool,
}

/// The connection, which all its streams share.
#[derive(Debug)]
pub struct MultiplexedConnection {
    stream: Stream,
    unread: Vec<u8>,
    unsent: Vec<u8>,
    streams: BTreeMap<u8, Incoming>,
}

impl MultiplexedConnection {
    pub fn new(stream: Stream) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(MultiplexedConnection {
            stream,
            unread: Vec::new(),
            unsent: Vec::new(),
            streams: BTreeMap::new(),
        }))
    }

    /// Reads all frames that are there, and sends what waits to be sent.
    pub fn go_on(&mut self, cx: &Context<'_>) {
        let mut room = [0; 4096];
        while let Poll::Ready(Ok(len @ 1..)) = self.stream.poll_read(cx, &mut room) {
            self.unread.extend_from_slice(&room[..len]);
        }
        while let Some((stream, kind, bytes)) = take_frame(&mut self.unread) {
            let incoming = self.streams.entry(stream).or_default();
            match kind {
                FrameKind::Head => incoming.head = Some(bytes),
                FrameKind::Data => incoming.content.extend(bytes),
                FrameKind::End => incoming.is_over = true,
                FrameKind::Reset => incoming.is_reset = true,
            }
        }
        while !self.unsent.is_empty()
            && let Some(Ok(len)) = self.stream.try_write(&self.unsent, Follow::Anything)
        {
            self.unsent.drain(..len);
        }
    }

    /// The heads that came since the last time, and their streams.
    pub fn take_heads(&mut self) -> Vec<(u8, Vec<u8>)> {
        let streams = self.streams.iter_mut();
        streams
            .filter_map(|(id, incoming)| Some((*id, incoming.head.take()?)))
            .collect()
    }
}

/// One stream of a connection. Dropping it before its end resets it.
#[derive(Debug)]
pub struct MultiplexedStream {
    connection: Rc<RefCell<MultiplexedConnection>>,
    id: u8,
    /// A head that is not sent yet.
    kept_head: RefCell<Option<Vec<u8>>>,
    has_ended: bool,
}

impl Drop for MultiplexedStream {
    fn drop(&mut self) {
        if !self.has_ended {
            self.send(FrameKind::Reset, b"");
        }
    }
}

impl MultiplexedStream {
    pub fn new(connection: Rc<RefCell<MultiplexedConnection>>, id: u8) -> Self {
        MultiplexedStream {
            connection,
            id,
            kept_head: RefCell::default(),
            has_ended: false,
        }
    }

    fn with<T>(&self, cx: &Context<'_>, look: impl FnOnce(&mut Incoming) -> T) -> T {
        let mut connection = self.connection.borrow_mut();
        connection.go_on(cx);
        look(connection.streams.entry(self.id).or_default())
    }

    fn send(&self, kind: FrameKind, bytes: &[u8]) {
        let frame = frame(self.id, kind, bytes);
        self.connection.borrow_mut().unsent.extend(frame);
    }

    /// Keeps a head that was parsed out of `bytes`, in the place of one before: its
    /// status, and the fields that are not about a connection.
    pub(super) fn keep_head(&self, bytes: &[u8], head: &ResponseHead) {
        let mut text = format!("{}\n", head.status).into_bytes();
        for field in &head.fields {
            let name = field.name.of(bytes).to_ascii_lowercase();
            if !matches!(&name[..], b"connection" | b"transfer-encoding") {
                text.extend([&name[..], b": ", field.value.of(bytes), b"\n"].concat());
            }
        }
        self.kept_head.replace(Some(text));
    }

    /// Sends the head that was kept.
    pub(super) fn send_kept_head(&self) {
        if let Some(text) = self.kept_head.take() {
            self.send(FrameKind::Head, &text);
        }
    }

    /// Says that nothing more comes, once.
    pub(super) fn end(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
            self.send(FrameKind::End, b"");
        }
    }

    /// Sends the head in text at the front of `bytes`, and what follows it.
    pub fn poll_write_text(
        &mut self,
        cx: &Context<'_>,
        bytes: &[u8],
        head_len: usize,
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        let mut head = ResponseHead::default();
        let parsed = parse_response(&bytes[..head_len], Method::Get, &mut head);
        assert_eq!(parsed, Ok(Parsed::Complete), "all of it is written at once");
        self.keep_head(bytes, &head);
        self.send_kept_head();
        let written = self.poll_write(cx, &bytes[head_len..], follow);
        written.map_ok(|len| head_len + len)
    }

    pub fn can_splice(&self) -> bool {
        false
    }

    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let is_ready = self.with(cx, |it| !it.content.is_empty() || it.is_over || it.is_reset);
        if is_ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    pub fn poll_read(&mut self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        self.with(cx, |it| {
            if it.is_reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let len = it.content.len().min(room.len());
            if len == 0 && !it.is_over {
                return Poll::Pending;
            }
            for (to, byte) in room.iter_mut().zip(it.content.drain(..len)) {
                *to = byte;
            }
            Poll::Ready(Ok(len))
        })
    }

    pub fn poll_read_into(
        &mut self,
        _: &Context<'_>,
        _: &mut Pipe,
        _: u64,
    ) -> Poll<io::Result<usize>> {
        unreachable!("it can't splice")
    }

    pub fn poll_write_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.with(cx, |_| Poll::Ready(()))
    }

    pub fn poll_write(
        &mut self,
        cx: &Context<'_>,
        bytes: &[u8],
        follow: Follow,
    ) -> Poll<io::Result<usize>> {
        let written = self.try_write(bytes, follow);
        self.with(cx, |it| match written {
            Some(Ok(_)) if it.is_reset => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(written) => Poll::Ready(written),
            None => Poll::Pending,
        })
    }

    pub fn try_write(&mut self, bytes: &[u8], follow: Follow) -> Option<io::Result<usize>> {
        assert_eq!(
            *self.kept_head.borrow(),
            None,
            "a head goes before its content"
        );
        let now = &bytes[..bytes.len().min(FRAME_LEN_MAX)];
        if !now.is_empty() {
            self.send(FrameKind::Data, now);
        }
        if follow == Follow::Close && now.len() == bytes.len() {
            self.end();
        }
        Some(Ok(now.len()))
    }

    pub fn poll_write_from(
        &mut self,
        _: &Context<'_>,
        _: &mut Pipe,
        _: Follow,
    ) -> Poll<io::Result<usize>> {
        unreachable!("it can't splice")
    }

    pub fn poll_broken(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.with(cx, |it| it.is_reset) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    pub fn close_notify(&mut self) -> io::Result<()> {
        self.end();
        Ok(())
    }
}
