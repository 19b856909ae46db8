//! Many exchanges at once on one connection of a client.
//!
//! The protocol between them is that of `exchange::multiplexed`, which stands for those
//! that come. Everything above the client's side is the program's own.

use std::cell::RefCell;

use evenkeel_proto::http1::{Parsed, parse_request};
use evenkeel_proto::{RequestHead, Scheme};

use super::*;
use crate::exchange::identity::Identity;
use crate::exchange::multiplexed::{
    FrameKind, MultiplexedConnection, MultiplexedStream, frame, take_frame,
};
use crate::exchange::remote::Remote;
use crate::exchange::{Client, ClientSide, Context, Exchange, Progress};
use crate::handler;
use crate::observe::sessions::Accepted;

/// A connection with many streams, and two to the endpoint, which are idle at first.
struct Multiplexing {
    worker: Rc<Worker>,
    client: Stream,
    unread: Vec<u8>,
    connection: Rc<RefCell<MultiplexedConnection>>,
    endpoints: [Stream; 2],
    /// What came on each of those.
    arrived: [String; 2],
    serving: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    time: Time,
}

/// A frame that came to the client.
type Frame = (u8, FrameKind, String);

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
        Multiplexing {
            worker,
            client,
            unread: Vec::new(),
            connection: MultiplexedConnection::new(of_client),
            endpoints,
            arrived: Default::default(),
            serving: Vec::new(),
            time,
        }
    }

    /// Goes on with all exchanges until they wait.
    fn run(&mut self) {
        let (wakes, waker) = Wakes::of_new_waker();
        let cx = &mut TaskContext::from_waker(&waker);
        loop {
            let before = wakes.count();
            self.connection.borrow_mut().go_on(cx);
            let heads = self.connection.borrow_mut().take_heads();
            for (id, head) in heads {
                let stream = MultiplexedStream::new(self.connection.clone(), id);
                let serving = serve(self.worker.clone(), stream, head);
                self.serving.push(Box::pin(serving));
            }
            self.serving
                .retain_mut(|it| it.as_mut().poll(cx).is_pending());
            self.connection.borrow_mut().go_on(cx);
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

    fn client_sends(&mut self, stream: u8, kind: FrameKind, bytes: &str) {
        let frame = frame(stream, kind, bytes.as_bytes());
        let sent = self.client.try_write(&frame, Follow::Anything);
        assert_eq!(sent.and_then(Result::ok), Some(frame.len()));
        self.run();
    }

    fn client_asks(&mut self, stream: u8, path: &str) {
        let head = format!("GET {path} HTTP/1.1\r\nHost: example.com\r\n\r\n");
        self.client_sends(stream, FrameKind::Head, &head);
    }

    /// The frames that have come to the client.
    fn client_received(&mut self) -> Vec<Frame> {
        let (text, _) = received(&mut self.client);
        self.unread.extend(text.into_bytes());
        let frames = std::iter::from_fn(|| take_frame(&mut self.unread));
        frames
            .map(|(stream, kind, bytes)| (stream, kind, String::from_utf8(bytes).unwrap()))
            .collect()
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

/// One exchange, on a stream that has brought this head.
async fn serve(worker: Rc<Worker>, mut stream: MultiplexedStream, bytes: Vec<u8>) {
    let listener = worker.listeners.all().remove(0);
    let context = Context::new(worker.clone(), &listener);
    let mut head = RequestHead::default();
    assert_eq!(parse_request(&bytes, &mut head), Ok(Parsed::Complete));
    let peer = Remote::from(CLIENT);
    let session = worker.sessions.open(Accepted {
        address: peer.address,
        port: peer.port,
        listener: listener.id(),
        tick: worker.wheel.now(),
    });
    let client = Client::new(peer, Scheme::Http, listener, session);
    let progress = Progress::new(
        &context,
        &client,
        clock::now(),
        Duration::ZERO,
        head.wire.end,
        &Identity::NONE,
        worker.sessions.wake(session),
    );
    let timer = worker.wheel.timer();
    timer.register_task().await;
    let side = ClientSide::Multiplexed(&mut stream);
    let mut exchange = Exchange::new(&context, &client, side, timer, &bytes, &head, progress);
    let outcome = handler::handle(&mut exchange).await;
    exchange.conclude(outcome.end);
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
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: example.com\r\nContent-Length: 6\r\n\r\n");
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
    let head = "POST /one HTTP/1.1\r\nHost: example.com\r\nContent-Length: 6\r\n\r\n";
    it.client_sends(1, FrameKind::Head, head);
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
fn interim_responses_go_to_clients_that_know_them() {
    let mut it = Multiplexing::new();
    it.client_asks(1, "/one");
    let of_http10 = "GET /three HTTP/1.0\r\nHost: example.com\r\n\r\n";
    it.client_sends(3, FrameKind::Head, of_http10);
    let (one, three) = (it.endpoint_of("/one"), it.endpoint_of("/three"));
    for endpoint in [one, three] {
        it.endpoint_sends(endpoint, "HTTP/1.1 103 Early Hints\r\n\r\n");
    }
    let early = (1, FrameKind::Head, "103\n".to_owned());
    assert_eq!(it.client_received(), [early]);
    for (stream, endpoint) in [(1, one), (3, three)] {
        it.endpoint_sends(endpoint, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let ok = whole(stream, "200\ncontent-length: 2\n", "ok");
        assert_eq!(it.client_received(), ok);
    }
}

#[test]
fn a_tunnel_passes_the_end_of_each_direction_on() {
    let mut it = Multiplexing::new();
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let head = format!("GET /one HTTP/1.1\r\nHost: example.com\r\n{upgrade}");
    it.client_sends(1, FrameKind::Head, &head);
    let one = it.endpoint_of("/one");
    it.endpoint_sends(
        one,
        &format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}hello"),
    );
    let [head, data, end] = whole(1, "101\nupgrade: echo\n", "hello");
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
    assert_eq!(kinds, [(1, Reset), (3, Head), (3, Data), (3, Reset)]);
    assert_eq!(failures(&it.worker), [End::Failure(Failure::UpstreamCut)]);
    assert_eq!(exchanges(&it.worker), 2);
}
