//! Many exchanges at once on one connection of a client, which speaks HTTP/2.

use std::cell::RefCell;
use std::collections::BTreeMap;

use evenkeel_proto::hpack::{Decoder, encode};
use evenkeel_proto::http2::frame::{FrameHead, HEAD_LEN, PREFACE, flags};
use evenkeel_proto::http2::{ErrorCode, FrameKind as Kind};

use super::*;
use crate::client::serve_http2;
use crate::net::tasks::Task;

/// A part of a stream's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    Head,
    Data,
    /// Nothing more comes.
    End,
    /// The exchange is given up.
    Reset,
}

/// A frame that came to the client.
type Frame = (u8, FrameKind, String);

/// A connection with many streams, and two to the endpoint, which are idle at first.
struct Multiplexing {
    worker: Rc<Worker>,
    client: Stream,
    decoder: Decoder,
    unread: Vec<u8>,
    /// Bytes of content that the client has yet to send on each stream.
    unsent: BTreeMap<u8, usize>,
    endpoints: [Stream; 2],
    /// The bytes that came on each of them.
    arrived: [String; 2],
    driver: Pin<Box<dyn Future<Output = ()>>>,
    /// Exchanges that have begun since the last turn.
    begun: Rc<RefCell<Vec<Task>>>,
    serving: Vec<Task>,
    time: Time,
}

/// The bytes of a frame.
fn frame(kind: Kind, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let head = FrameHead {
        len: payload.len() as u32,
        kind,
        flags,
        stream: stream.into(),
    };
    [&head.bytes(), payload].concat()
}

impl Multiplexing {
    fn new() -> Self {
        let time = Time::begin();
        let worker = Rc::new(worker());
        let (client, of_client) = Stream::pair();
        let endpoints = [(); 2].map(|()| {
            let (endpoint, of_endpoint) = Stream::pair();
            keep_idle(&worker, of_endpoint);
            endpoint
        });
        let begun = Rc::<RefCell<Vec<Task>>>::default();
        let spawned = begun.clone();
        let spawn = move |task| spawned.borrow_mut().push(task);
        let driver = serve_http2(&worker, of_client, Peer::Tcp(CLIENT), spawn);
        let mut it = Multiplexing {
            driver,
            worker,
            client,
            decoder: Decoder::default(),
            unread: Vec::new(),
            unsent: BTreeMap::new(),
            endpoints,
            arrived: Default::default(),
            begun,
            serving: Vec::new(),
            time,
        };
        let settings = frame(Kind::Settings, 0, 0, &[]);
        it.client_writes(&[&PREFACE[..], &settings].concat());
        it
    }

    /// Goes on with all exchanges until they wait.
    fn run(&mut self) {
        let (wakes, waker) = Wakes::of_new_waker();
        let cx = &mut TaskContext::from_waker(&waker);
        loop {
            let before = wakes.count();
            assert!(self.driver.as_mut().poll(cx).is_pending(), "it goes on");
            self.serving.append(&mut self.begun.borrow_mut());
            self.serving
                .retain_mut(|it| it.as_mut().poll(cx).is_pending());
            assert!(self.driver.as_mut().poll(cx).is_pending(), "it goes on");
            if wakes.count() == before {
                return;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / TICK.as_millis() {
            self.time.tick(&self.worker);
            self.run();
        }
    }

    fn client_writes(&mut self, bytes: &[u8]) {
        let sent = self.client.try_write(bytes, Follow::Anything);
        assert_eq!(sent.and_then(Result::ok), Some(bytes.len()));
        self.run();
    }

    /// A head is a line with method and path, and lines of fields.
    fn client_sends(&mut self, stream: u8, kind: FrameKind, bytes: &str) {
        let bytes = match kind {
            FrameKind::Head => {
                let len = bytes.split_once("content-length: ");
                let len = len.map_or(0, |(_, len)| len.trim().parse().unwrap());
                self.unsent.insert(stream, len);
                let is_tunnel = bytes.starts_with("CONNECT ");
                let ends = if len == 0 && !is_tunnel {
                    flags::END_STREAM
                } else {
                    0
                };
                let flags = flags::END_HEADERS | ends;
                frame(Kind::Headers, flags, stream, &request_block(bytes))
            }
            FrameKind::Data => {
                let left = self.unsent.get_mut(&stream).unwrap();
                let ends = *left == bytes.len();
                *left = left.saturating_sub(bytes.len());
                let flags = if ends { flags::END_STREAM } else { 0 };
                frame(Kind::Data, flags, stream, bytes.as_bytes())
            }
            FrameKind::End => frame(Kind::Data, flags::END_STREAM, stream, b""),
            FrameKind::Reset => {
                let code = ErrorCode::Cancel.number().to_be_bytes();
                frame(Kind::RstStream, 0, stream, &code)
            }
        };
        self.client_writes(&bytes);
    }

    fn client_asks(&mut self, stream: u8, path: &str) {
        self.client_sends(stream, FrameKind::Head, &format!("GET {path}\n"));
    }

    /// The frames of streams that have come to the client. The date of a response is left
    /// out.
    fn client_received(&mut self) -> Vec<Frame> {
        let mut room = [0; 4096];
        let cx = &TaskContext::from_waker(Waker::noop());
        while let Poll::Ready(Ok(len @ 1..)) = self.client.poll_read(cx, &mut room) {
            self.unread.extend_from_slice(&room[..len]);
        }
        let mut frames = Vec::new();
        while let Some(head) = self.unread.first_chunk().map(FrameHead::read) {
            let whole = HEAD_LEN + head.len as usize;
            let frame: Vec<u8> = self.unread.drain(..whole).collect();
            let (stream, payload) = (head.stream as u8, &frame[HEAD_LEN..]);
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            match head.kind {
                Kind::Headers => {
                    let text = self.response_text(payload);
                    frames.push((stream, FrameKind::Head, text));
                }
                Kind::Data if payload.is_empty() => {}
                Kind::Data => frames.push((stream, FrameKind::Data, text(payload))),
                Kind::RstStream => frames.push((stream, FrameKind::Reset, String::new())),
                _ => continue,
            }
            if head.kind != Kind::RstStream && head.has(flags::END_STREAM) {
                frames.push((stream, FrameKind::End, String::new()));
            }
        }
        frames
    }

    /// A head as a line with its status, and lines of fields.
    fn response_text(&mut self, block: &[u8]) -> String {
        let mut text = Vec::new();
        let mut block = self.decoder.block(block);
        while block.next(&mut text).unwrap().is_some() {}
        let text = String::from_utf8(text).unwrap();
        let lines = text.lines().filter(|it| !it.starts_with("date: "));
        let lines = lines.map(|it| it.trim_start_matches(":status: ").to_owned() + "\n");
        lines.collect()
    }

    /// The endpoint's connection that a request with this path has come on.
    fn endpoint_of(&mut self, path: &str) -> usize {
        for (endpoint, arrived) in self.endpoints.iter_mut().zip(&mut self.arrived) {
            *arrived += &received(endpoint).0;
        }
        let line = format!(" {path} HTTP/1.1\r\n");
        let mut arrived = self.arrived.iter();
        let found = arrived.position(|text| text.contains(&line));
        found.expect("the endpoint has it")
    }

    fn endpoint_sends(&mut self, endpoint: usize, bytes: &str) {
        send(&mut self.endpoints[endpoint], bytes);
        self.run();
    }

    fn endpoint_closes(&mut self, endpoint: usize) {
        let (other, _) = Stream::pair();
        drop(std::mem::replace(&mut self.endpoints[endpoint], other));
        self.run();
    }
}

/// The block of a head: see [`Multiplexing::client_sends`].
fn request_block(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let (method, path) = lines.next().and_then(|it| it.split_once(' ')).unwrap();
    let mut block = Vec::new();
    for (name, value) in [
        (":method", method),
        (":scheme", "http"),
        (":authority", "example.com"),
        (":path", path),
    ] {
        encode::field(&mut block, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in lines.filter_map(|it| it.rsplit_once(": ")) {
        encode::field(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

fn whole(stream: u8, head: &str, content: &str) -> [Frame; 3] {
    [
        (stream, FrameKind::Head, head.to_owned()),
        (stream, FrameKind::Data, content.to_owned()),
        (stream, FrameKind::End, String::new()),
    ]
}

#[test]
fn exchanges_of_one_connection_are_answered_as_their_answers_come() {
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    it.client_asks(3, "/three");
    let (one, three) = (it.endpoint_of("/one"), it.endpoint_of("/three"));
    assert_ne!(
        one, three,
        "each exchange has a connection of its own there"
    );
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n0\r\n\r\n";
    it.endpoint_sends(three, chunked);
    assert_eq!(it.client_received(), whole(3, "200\n", "three"));
    it.endpoint_sends(one, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none");
    assert_eq!(
        it.client_received(),
        whole(1, "200\ncontent-length: 3\n", "one")
    );
    assert_eq!(exchanges(&it.worker), 2);
    assert_eq!(failures(&it.worker), []);
    assert!(it.serving.is_empty());
}

#[test]
fn bodies_of_one_connection_come_in_pieces_between_each_other() {
    let mut it = Multiplexing::new();
    for (stream, path) in [(1, "/one"), (3, "/three")] {
        let head = format!("POST {path}\ncontent-length: 6\n");
        it.client_sends(stream, FrameKind::Head, &head);
    }
    let (one, three) = (it.endpoint_of("/one"), it.endpoint_of("/three"));
    it.client_sends(1, FrameKind::Data, "one");
    it.client_sends(3, FrameKind::Data, "three,");
    it.client_sends(1, FrameKind::Data, "two");
    assert_eq!(received(&mut it.endpoints[one]).0, "onetwo");
    assert_eq!(received(&mut it.endpoints[three]).0, "three,");
    for endpoint in [one, three] {
        it.endpoint_sends(endpoint, "HTTP/1.1 204 No Content\r\n\r\n");
    }
    let ends = [(1, "204\n"), (3, "204\n")].map(|(stream, head)| {
        let [head, _, end] = whole(stream, head, "");
        [head, end]
    });
    assert_eq!(it.client_received(), ends.concat());
}

#[test]
fn responses_of_one_connection_come_in_pieces_between_each_other() {
    use FrameKind::{Data, End, Head};
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    it.client_asks(3, "/three");
    let (one, three) = (it.endpoint_of("/one"), it.endpoint_of("/three"));
    it.endpoint_sends(one, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\none");
    it.endpoint_sends(
        three,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    it.endpoint_sends(three, "5\r\nthree\r\n");
    it.endpoint_sends(one, "two");
    it.endpoint_sends(three, "4\r\nfour\r\n0\r\n\r\n");
    it.endpoint_sends(one, "six");
    let expected = [
        (1, Head, "200\ncontent-length: 9\n"),
        (1, Data, "one"),
        (3, Head, "200\n"),
        (3, Data, "three"),
        (1, Data, "two"),
        (3, Data, "four"),
        (3, End, ""),
        (1, Data, "six"),
        (1, End, ""),
    ];
    let expected = expected.map(|(stream, kind, text)| (stream, kind, text.to_owned()));
    assert_eq!(it.client_received(), expected);
    assert_eq!(failures(&it.worker), []);
    assert!(it.serving.is_empty());
}

#[test]
fn a_body_is_ended_when_its_end_comes_without_content() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n";
    let until_close = "HTTP/1.1 200 OK\r\n\r\nthree";
    for (begin, end) in [(chunked, Some("0\r\n\r\n")), (until_close, None)] {
        let mut it = Multiplexing::new();
        it.client_asks(3, "/three");
        let three = it.endpoint_of("/three");
        it.endpoint_sends(three, begin);
        let [head, data, ended] = whole(3, "200\n", "three");
        assert_eq!(it.client_received(), [head, data]);
        match end {
            Some(end) => it.endpoint_sends(three, end),
            None => it.endpoint_closes(three),
        }
        assert_eq!(it.client_received(), [ended]);
        assert_eq!(failures(&it.worker), []);
        assert!(it.serving.is_empty());
    }
}

#[test]
fn an_answer_without_content_is_ended_before_the_rest_of_its_request() {
    let mut it = Multiplexing::new();
    it.client_sends(1, FrameKind::Head, "POST /one\ncontent-length: 6\n");
    it.client_sends(1, FrameKind::Data, "one");
    let one = it.endpoint_of("/one");
    it.endpoint_sends(one, "HTTP/1.1 204 No Content\r\n\r\n");
    let [head, _, end] = whole(1, "204\n", "");
    assert_eq!(it.client_received(), [head, end]);
    it.client_sends(1, FrameKind::Data, "two");
    assert_eq!(received(&mut it.endpoints[one]), ("two".to_owned(), false));
    assert_eq!(it.client_received(), []);
    assert!(it.serving.is_empty());
}

#[test]
fn a_refused_response_leaves_one_head() {
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    let one = it.endpoint_of("/one");
    it.endpoint_sends(
        one,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    );
    let frames = it.client_received();
    let [
        (1, FrameKind::Head, head),
        (1, FrameKind::Data, _),
        (1, FrameKind::End, _),
    ] = &frames[..]
    else {
        panic!("{frames:?}");
    };
    assert!(head.starts_with("502\n"), "{head}");
    assert_eq!(failures(&it.worker), [End::Failure(Failure::UpstreamBody)]);
}

#[test]
fn interim_responses_go_before_the_final_one() {
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    let one = it.endpoint_of("/one");
    it.endpoint_sends(one, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    let early = (1, FrameKind::Head, "103\nlink: </a>\n".to_owned());
    assert_eq!(it.client_received(), [early]);
    it.endpoint_sends(one, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let ok = whole(1, "200\ncontent-length: 2\n", "ok");
    assert_eq!(it.client_received(), ok);
}

#[test]
fn trailers_end_a_response() {
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    let one = it.endpoint_of("/one");
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    it.endpoint_sends(one, &format!("{head}3\r\none\r\n0\r\nX-Sum: 1\r\n\r\n"));
    let [head, data, end] = whole(1, "200\n", "one");
    let trailers = (1, FrameKind::Head, "x-sum: 1\n".to_owned());
    assert_eq!(it.client_received(), [head, data, trailers, end]);
}

#[test]
fn a_tunnel_passes_the_end_of_each_direction_on() {
    let mut it = Multiplexing::new();
    let head = "CONNECT /one\n:protocol: websocket\nsec-websocket-version: 13\n";
    it.client_sends(1, FrameKind::Head, head);
    let one = it.endpoint_of("/one");
    it.endpoint_sends(
        one,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: x\r\n\r\nhello",
    );
    let [head, data, end] = whole(1, "200\n", "hello");
    assert_eq!(it.client_received(), [head, data]);
    it.endpoints[one].close_notify().unwrap();
    it.run();
    assert_eq!(it.client_received(), [end]);
    it.client_sends(1, FrameKind::Data, "bye");
    it.client_sends(1, FrameKind::End, "");
    assert_eq!(received(&mut it.endpoints[one]), ("bye".to_owned(), true));
    assert!(it.serving.is_empty());
    assert_eq!(it.client_received(), []);
}

#[test]
fn an_exchange_times_out_without_the_others_of_its_connection() {
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    it.pass(Duration::from_secs(1));
    it.client_asks(3, "/three");
    it.pass(Duration::from_millis(1_200));
    let frames = it.client_received();
    let [
        (1, FrameKind::Head, head),
        (1, FrameKind::Data, text),
        (1, FrameKind::End, _),
    ] = &frames[..]
    else {
        panic!("{frames:?}");
    };
    assert!(head.starts_with("504\n"), "{head}");
    assert!(text.contains("first-byte-timeout"), "{text}");
    let three = it.endpoint_of("/three");
    it.endpoint_sends(three, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(
        it.client_received(),
        whole(3, "200\ncontent-length: 2\n", "ok")
    );
    let failed = [End::Failure(Failure::FirstByteTimeout)];
    assert_eq!(failures(&it.worker), failed);
}

#[test]
fn an_exchange_is_given_up_without_the_others_of_its_connection() {
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    it.client_asks(3, "/three");
    let (one, three) = (it.endpoint_of("/one"), it.endpoint_of("/three"));
    it.client_sends(1, FrameKind::Reset, "");
    let (_, is_closed) = received(&mut it.endpoints[one]);
    assert!(is_closed, "its answer is nobody's");
    it.endpoint_sends(three, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\npart");
    it.endpoint_closes(three);
    // A part of an answer does not pass for the whole.
    let frames = it.client_received();
    let kinds: Vec<_> = frames.iter().map(|(id, kind, _)| (*id, *kind)).collect();
    use FrameKind::{Data, Head, Reset};
    assert_eq!(kinds, [(3, Head), (3, Data), (3, Reset)]);
    assert_eq!(failures(&it.worker), [End::Failure(Failure::UpstreamCut)]);
    assert_eq!(exchanges(&it.worker), 2);
}
