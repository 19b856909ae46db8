//! Both ends of a connection, joined in memory.

use super::tests::Text;
use super::*;
use crate::head::{Method, Scheme};
use crate::http2::request::{Form, Trailers};
use crate::http2::{request, response};

/// A client, its server, and their events.
struct Pair {
    client: client::Connection,
    server: server::Connection,
    client_events: Vec<client::Event>,
    server_events: Vec<server::Event>,
    now_ms: u64,
}

const FORM: Form<'_> = Form {
    scheme: Scheme::Https,
    trailers: Trailers::Accepted,
    protocol: None,
};

impl Pair {
    fn with(client: Settings, server: Settings) -> Self {
        let mut it = Pair {
            client: client::Connection::new(client),
            server: server::Connection::new(server),
            client_events: Vec::new(),
            server_events: Vec::new(),
            now_ms: 0,
        };
        it.join();
        it.client_events.clear();
        it.server_events.clear();
        it
    }

    fn new() -> Self {
        Pair::with(Settings::OF_CLIENT, Settings::default())
    }

    /// Moves bytes until neither has any.
    fn join(&mut self) {
        loop {
            let to_server = self.client.unsent().to_vec();
            let to_client = self.server.unsent().to_vec();
            if to_server.is_empty() && to_client.is_empty() {
                return;
            }
            self.client.sent(to_server.len());
            self.server.sent(to_client.len());
            self.server_events
                .extend(take(&mut self.server, &to_server, self.now_ms));
            self.client_events
                .extend(take(&mut self.client, &to_client, self.now_ms));
        }
    }

    /// The events of both since the last call: the client's first.
    fn told(&mut self) -> (Vec<String>, Vec<String>) {
        self.join();
        let client = self.client_events.drain(..).map(|it| it.text()).collect();
        let server = self.server_events.drain(..).map(|it| it.text()).collect();
        (client, server)
    }

    fn open(&mut self, text: &str, ends: bool) -> StreamId {
        let mut block = Vec::new();
        let method = request::head_block(&mut block, text.as_bytes(), FORM);
        self.client.open(method, &block, ends).unwrap()
    }

    fn get(&mut self) -> StreamId {
        self.open("GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n", true)
    }

    /// Sends the head of a response.
    fn answer(&mut self, id: StreamId, text: &str, ends: bool) {
        let mut block = Vec::new();
        response::head_block(&mut block, text.as_bytes());
        self.server.send_fields(id, &block, ends);
    }
}

/// All events of these bytes.
fn take<R: Role<Head: Default>>(
    connection: &mut Core<R>,
    mut bytes: &[u8],
    now_ms: u64,
) -> Vec<R::Event> {
    let mut room = || (Vec::new(), Box::default());
    std::iter::from_fn(|| connection.next(&mut bytes, now_ms, &mut room).unwrap()).collect()
}

/// All content that can be read.
fn content<R: Role>(connection: &mut Core<R>, id: StreamId) -> Vec<u8> {
    let (mut content, mut room) = (Vec::new(), [0; 1000]);
    loop {
        match connection.read_content(id, &mut room) {
            0 => return content,
            len => content.extend_from_slice(&room[..len]),
        }
    }
}

fn trailers(lines: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    response::trailer_block(&mut block, lines);
    block
}

#[test]
fn an_exchange_goes_through_whole() {
    let mut pair = Pair::new();
    let text = "POST /a?b HTTP/1.1\r\nHost: a.test\r\nAccept: */*\r\n\
                Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    let id = pair.open(text, false);
    pair.join();
    let Some(server::Event::Request(1, request)) = pair.server_events.pop() else {
        panic!("a request");
    };
    let start = request.head.wire.start;
    assert_eq!(
        String::from_utf8_lossy(&request.bytes[start..]),
        "POST /a?b HTTP/1.1\r\nhost: a.test\r\naccept: */*\r\nexpect: 100-continue\r\n\
         te: trailers\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    pair.answer(id, "HTTP/1.1 100 Continue\r\n\r\n", false);
    assert_eq!(pair.told().0, ["1 interim 100"]);
    assert_eq!(pair.client.send_content(id, b"hello", false, 99), 5);
    pair.client
        .send_fields(id, &trailers(b"X-Sum: 5\r\n"), true);
    pair.answer(id, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", false);
    pair.answer(id, "HTTP/1.1 200 OK\r\nServer: x\r\n\r\n", false);
    pair.server.send_content(id, b"world!", false, 99);
    pair.server
        .send_fields(id, &trailers(b"Grpc-Status: 0\r\n"), true);
    pair.join();
    let Some(client::Event::Head(1, response)) = pair.client_events.get(1) else {
        panic!("a response: {:?}", pair.client_events);
    };
    assert_eq!(
        String::from_utf8_lossy(&response.bytes),
        "HTTP/1.1 200 OK\r\nserver: x\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let (client, server) = pair.told();
    assert_eq!(
        client,
        ["1 interim 103", "1 200", "1 readable", "1 readable"]
    );
    assert_eq!(server, ["1 readable", "1 readable"]);
    assert_eq!(content(&mut pair.server, id), b"hello");
    assert_eq!(content(&mut pair.client, id), b"world!");
    let ended = (Direction::Ended, &b"x-sum: 5\r\n"[..]);
    assert_eq!(pair.server.incoming(id), Some(ended));
    let ended = (Direction::Ended, &b"grpc-status: 0\r\n"[..]);
    assert_eq!(pair.client.incoming(id), Some(ended));
    pair.client.release(id, ErrorCode::Cancel);
    pair.server.release(id, ErrorCode::Internal);
    assert_eq!(pair.told(), (vec![], vec![]));
}

#[test]
fn a_websocket_is_opened_by_an_extended_connect() {
    let mut pair = Pair::new();
    assert!(pair.client.allows_extended_connect());
    let text = b"GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\
                 Connection: upgrade\r\nSec-WebSocket-Key: abc\r\n\r\n";
    let form = Form {
        protocol: Some(b"websocket"),
        ..FORM
    };
    let mut block = Vec::new();
    let method = request::head_block(&mut block, text, form);
    let id = pair.client.open(method, &block, false).unwrap();
    assert_eq!(pair.told().1, ["1 GET /chat"]);
    let mut block = Vec::new();
    let text = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                 Connection: upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n";
    response::tunnel_block(&mut block, text);
    pair.server.send_fields(id, &block, false);
    pair.server.send_content(id, b"to client", false, 99);
    pair.client.send_content(id, b"to server", false, 99);
    let (client, server) = pair.told();
    assert_eq!(client, ["1 200", "1 readable"]);
    assert_eq!(server, ["1 readable"]);
    assert_eq!(content(&mut pair.client, id), b"to client");
    assert_eq!(content(&mut pair.server, id), b"to server");
}

#[test]
fn either_end_resets_a_stream() {
    let mut pair = Pair::new();
    let (one, two, three) = (pair.get(), pair.get(), pair.get());
    pair.told();
    pair.client.release(one, ErrorCode::Cancel);
    pair.server.release(two, ErrorCode::Internal);
    pair.answer(three, "HTTP/1.1 204 No\r\n\r\n", true);
    let (client, server) = pair.told();
    assert_eq!(client, ["3 reset Internal", "5 204"]);
    assert_eq!(server, ["1 reset Cancel"]);
    // Frames that cross a reset on their way are passed over.
    pair.answer(one, "HTTP/1.1 200 OK\r\n\r\n", true);
    pair.server.release(one, ErrorCode::Internal);
    assert_eq!(pair.told(), (vec![], vec![]));
}

#[test]
fn streams_beyond_the_limit_of_the_server_are_refused() {
    let few = Settings {
        max_streams: 2,
        ..Settings::default()
    };
    let mut pair = Pair {
        client: client::Connection::new(Settings::OF_CLIENT),
        server: server::Connection::new(few),
        client_events: Vec::new(),
        server_events: Vec::new(),
        now_ms: 0,
    };
    // The client has not seen the limit.
    for _ in 0..3 {
        pair.get();
    }
    let (client, server) = pair.told();
    assert!(client.contains(&"5 refused".to_owned()), "{client:?}");
    let requests: Vec<_> = server.iter().filter(|it| *it != "writable").collect();
    assert_eq!(requests, ["1 GET /a", "3 GET /a"]);
    assert_eq!(pair.client.capacity(), 0);
    pair.client.release(5, ErrorCode::Cancel);
    assert_eq!(pair.client.capacity(), 0);
    pair.answer(1, "HTTP/1.1 204 No\r\n\r\n", true);
    pair.told();
    pair.server.release(1, ErrorCode::Internal);
    pair.client.release(1, ErrorCode::Cancel);
    assert_eq!(pair.client.capacity(), 1);
    pair.get();
    assert_eq!(pair.told().1, ["7 GET /a"]);
}

/// Sends all of this, as far as the windows allow; gives the rest.
fn send_some<'a, R: Role>(connection: &mut Core<R>, id: StreamId, rest: &'a [u8]) -> &'a [u8] {
    &rest[connection.send_content(id, rest, true, 100)..]
}

#[test]
fn content_goes_through_tiny_windows_both_ways() {
    let tiny = |it: Settings| Settings {
        stream_window: 17,
        connection_window: WINDOW_FIRST,
        ..it
    };
    let mut pair = Pair::with(tiny(Settings::OF_CLIENT), tiny(Settings::default()));
    let sent: Vec<u8> = (0..100_000u32).map(|it| it as u8).collect();
    let id = pair.open("PUT / HTTP/1.1\r\nHost: a\r\n\r\n", false);
    pair.told();
    pair.answer(id, "HTTP/1.1 200 OK\r\n\r\n", false);
    let (mut to_server, mut to_client) = (&sent[..], &sent[..]);
    let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
    for _ in 0..50_000 {
        to_server = send_some(&mut pair.client, id, to_server);
        to_client = send_some(&mut pair.server, id, to_client);
        // Small steps take time.
        pair.now_ms += 100;
        pair.join();
        let (server, client) = (content(&mut pair.server, id), content(&mut pair.client, id));
        assert!(server.len() <= 17 && client.len() <= 17);
        at_server.extend(server);
        at_client.extend(client);
        if to_server.is_empty() && to_client.is_empty() {
            break;
        }
    }
    assert!(at_server == sent && at_client == sent);
    let end = Some((Direction::Ended, &b""[..]));
    assert_eq!(pair.server.incoming(id), end);
    assert_eq!(pair.client.incoming(id), end);
}

#[test]
fn a_server_leaves_in_two_steps_without_losing_a_stream() {
    let mut pair = Pair::new();
    let one = pair.get();
    pair.told();
    pair.server.begin_shutdown();
    // It crosses the first GOAWAY on its way, and is served.
    let two = pair.get();
    let to_server = pair.client.unsent().to_vec();
    pair.client.sent(to_server.len());
    let served = take(&mut pair.server, &to_server, 0);
    assert_eq!(served.len(), 1);
    let (client, _) = pair.told();
    assert_eq!(client, ["go away NoError", "go away NoError"]);
    assert!(pair.server.is_shut_down());
    assert_eq!(pair.client.capacity(), 0);
    for id in [one, two] {
        pair.answer(id, "HTTP/1.1 204 No\r\n\r\n", true);
    }
    assert_eq!(pair.told().0, ["1 204", "3 204"]);
}

#[test]
fn a_server_that_leaves_at_once_refuses_what_it_has_not_seen() {
    let mut pair = Pair::new();
    let one = pair.get();
    pair.told();
    pair.server.shut_down();
    let two = pair.get();
    let (client, server) = pair.told();
    assert_eq!(client, ["go away NoError", "3 refused"]);
    assert!(server.is_empty());
    pair.client.release(two, ErrorCode::Cancel);
    pair.answer(one, "HTTP/1.1 204 No\r\n\r\n", true);
    assert_eq!(pair.told().0, ["1 204"]);
}

#[test]
fn a_head_larger_than_a_frame_goes_through() {
    let mut pair = Pair::new();
    let id = pair.get();
    pair.told();
    let text = format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\n\r\n", "v".repeat(50_000));
    pair.answer(id, &text, true);
    assert_eq!(pair.told().0, ["1 200"]);
    assert_eq!(pair.client.open(Method::Get, &[0x82], true), Some(3));
}
