use proptest::prelude::*;

use super::super::tests::{
    Tested, Text, any_frame, data, fields, frame, settings, uncut, what_came,
};
use super::*;
use crate::hpack::encode;

mod bounds;
mod rules;

type Client = Tested<super::Client>;

/// The flags of a head behind which nothing comes.
const ALL: u8 = flags::END_HEADERS | flags::END_STREAM;

impl Client {
    /// One whose server has begun with these settings.
    fn with(own: Settings, peer: &[Setting]) -> Self {
        let mut it = Tested::of(Connection::new(own));
        it.take(&settings(peer)).unwrap();
        it.connection.sent(it.connection.unsent().len());
        it
    }

    fn new() -> Self {
        Client::with(Settings::OF_CLIENT, &[])
    }

    /// Opens a stream whose request has no content.
    fn open(&mut self, method: Method) -> StreamId {
        self.connection.open(method, &[0x82], true).unwrap()
    }
}

impl Text for Event {
    fn text(&self) -> String {
        match self {
            Event::Head(id, it) => format!("{id} {}", it.head.status),
            Event::Interim(id, it) => format!("{id} interim {}", it.head.status),
            Event::Malformed(id, error) => format!("{id} {}", error.word()),
            Event::Readable(id) => format!("{id} readable"),
            Event::Reset(id, code) => format!("{id} reset {code:?}"),
            Event::Refused(id) => format!("{id} refused"),
            Event::Stopped(id, code) => format!("{id} stopped {code:?}"),
            Event::Writable => "writable".to_owned(),
            Event::GoAway(code) => format!("go away {code:?}"),
            Event::Capacity => "capacity".to_owned(),
            Event::Pong(payload) => format!("pong {}", payload.escape_ascii()),
        }
    }
}

/// The block of a response's head.
fn status(status: u16, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    encode::status(&mut block, status);
    block.extend(fields(more));
    block
}

/// The head of a response.
fn head(stream: u32, flags: u8, code: u16, more: &[(&str, &str)]) -> Vec<u8> {
    let flags = flags | flags::END_HEADERS;
    frame(FrameKind::Headers, flags, stream, &status(code, more))
}

fn reset(stream: u32, code: ErrorCode) -> Vec<u8> {
    frame(
        FrameKind::RstStream,
        0,
        stream,
        &code.number().to_be_bytes(),
    )
}

fn go_away(last: u32, code: ErrorCode) -> Vec<u8> {
    let payload = [last, code.number()].map(u32::to_be_bytes);
    frame(FrameKind::GoAway, 0, 0, payload.as_flattened())
}

#[test]
fn it_begins_with_the_preface_and_its_settings() {
    let mut client = Tested::of(Connection::new(Settings::OF_CLIENT));
    let bytes = client.connection.unsent().to_vec();
    let rest = bytes.strip_prefix(PREFACE).unwrap();
    let first = FrameHead::read(rest.first_chunk().unwrap());
    assert_eq!(first.kind, FrameKind::Settings);
    let (told, _) = rest[HEAD_LEN..][..first.len as usize].as_chunks::<6>();
    let told: Vec<_> = told.iter().map(|it| Setting::read(*it).unwrap()).collect();
    assert!(told.contains(&Setting::EnablePush(false)));
    assert!(told.contains(&Setting::MaxHeaderListSize(64 * 1024)));
    client.connection.sent(bytes.len());
    client.take(&settings(&[])).unwrap();
    let acks = client.sent_of(FrameKind::Settings);
    assert_eq!(acks, [(0, flags::ACK, vec![])]);
}

#[test]
fn a_response_is_read() {
    let mut client = Client::new();
    let id = client.open(Method::Get);
    let sent = client.sent_of(FrameKind::Headers);
    assert_eq!(sent, [(1, ALL, vec![0x82])]);
    let bytes = [
        head(1, 0, 103, &[("link", "</a>")]),
        head(1, 0, 200, &[("x-a", "b")]),
        data(1, 0, b"ab"),
        data(1, flags::PADDED, b"\x02cd\0\0"),
        frame(
            FrameKind::Headers,
            ALL,
            1,
            &fields(&[("x-sum", "1"), ("content-length", "9")]),
        ),
    ];
    let told = client.told(&bytes.concat());
    let expected = [
        "1 interim 103",
        "1 200",
        "1 readable",
        "1 readable",
        "1 readable",
    ];
    assert_eq!(told, expected);
    let mut room = [0; 9];
    assert_eq!(client.connection.read_content(id, &mut room), 4);
    assert_eq!(&room[..4], b"abcd");
    // Fields that may not stand in trailers are left out.
    let ended = (Direction::Ended, &b"x-sum: 1\r\n"[..]);
    assert_eq!(client.connection.incoming(id), Some(ended));
    client.connection.release(id, ErrorCode::Cancel);
    assert!(client.resets().is_empty());
    assert_eq!(client.connection.in_flight(), 0);
}

#[test]
fn streams_are_opened_as_far_as_both_sides_allow() {
    let mut client = Tested::of(Connection::new(Settings {
        max_streams: 150,
        ..Settings::OF_CLIENT
    }));
    // The peer has not given a limit yet.
    assert_eq!(client.connection.capacity(), 100);
    for number in 0..100 {
        assert_eq!(client.open(Method::Get), 2 * number + 1);
    }
    assert_eq!(client.connection.open(Method::Get, &[0x82], true), None);
    // The peer gives no limit, so that there is none.
    assert_eq!(client.told(&settings(&[])), ["capacity"]);
    assert_eq!(client.connection.capacity(), 50);
    for (max, told, capacity) in [
        (120, &[][..], 20),
        (0, &[], 0),
        (100, &["capacity"], 0),
        (101, &["capacity"], 1),
        (1000, &["capacity"], 50),
    ] {
        let found = client.told(&settings(&[Setting::MaxConcurrentStreams(max)]));
        assert_eq!(found, told);
        assert_eq!(client.connection.capacity(), capacity, "{max}");
    }
    client.connection.release(1, ErrorCode::Cancel);
    assert_eq!(client.connection.capacity(), 51);
    client.connection.shut_down();
    assert_eq!(client.connection.open(Method::Get, &[0x82], true), None);
    let away = client.connection.unsent();
    assert!(away.ends_with(&go_away(0, ErrorCode::NoError)));
}

#[test]
fn numbers_of_streams_run_out() {
    let mut client = Client::new();
    client.connection.last_stream = WINDOW_MAX - 4;
    assert_eq!(client.connection.capacity(), 2);
    assert_eq!(client.open(Method::Get), WINDOW_MAX - 2);
    assert_eq!(client.open(Method::Get), WINDOW_MAX);
    assert_eq!(client.connection.open(Method::Get, &[0x82], true), None);
}

#[test]
fn go_away_refuses_what_is_behind_it() {
    let mut client = Client::new();
    for _ in 0..4 {
        client.open(Method::Get);
    }
    client.told(&head(7, 0, 200, &[]));
    let told = client.told(&go_away(WINDOW_MAX, ErrorCode::NoError));
    assert_eq!(told, ["go away NoError"]);
    assert_eq!(client.connection.capacity(), 0);
    assert_eq!(client.connection.open(Method::Get, &[0x82], true), None);
    // A response that has begun is not whole, and can't be tried again.
    let told = client.told(&go_away(3, ErrorCode::EnhanceYourCalm));
    let expected = [
        "go away EnhanceYourCalm",
        "5 refused",
        "7 reset RefusedStream",
    ];
    assert_eq!(told, expected);
    // It never grows, and says nothing twice.
    let told = client.told(&go_away(5, ErrorCode::NoError));
    assert_eq!(told, ["go away NoError"]);
    assert!(
        client
            .told(&head(5, flags::END_STREAM, 200, &[]))
            .is_empty()
    );
    let told = client.told(&head(3, flags::END_STREAM, 200, &[]));
    assert_eq!(told, ["3 200"]);
    for id in [3, 5, 7] {
        client.connection.release(id, ErrorCode::Cancel);
    }
    assert!(client.resets().is_empty());
}

#[test]
fn a_reset_says_whether_anything_was_done() {
    let refused = ErrorCode::RefusedStream;
    for (before, code, expected) in [
        (vec![], refused, "1 refused"),
        (vec![], ErrorCode::Cancel, "1 reset Cancel"),
        (vec![], ErrorCode::NoError, "1 reset NoError"),
        (head(1, 0, 103, &[]), refused, "1 reset RefusedStream"),
        (head(1, 0, 200, &[]), refused, "1 reset RefusedStream"),
        (head(1, 0, 200, &[]), ErrorCode::NoError, "1 reset NoError"),
    ] {
        let mut client = Client::new();
        let id = client
            .connection
            .open(Method::Post, &[0x83], false)
            .unwrap();
        client.told(&before);
        assert_eq!(client.told(&reset(id, code)), [expected]);
        assert!(client.told(&reset(id, code)).is_empty());
        let outgoing = client.connection.outgoing(id);
        assert_eq!(outgoing, Some(Direction::Reset(code)));
        assert_eq!(client.connection.send_content(id, b"abc", false, 99), 0);
        client.connection.release(id, ErrorCode::Cancel);
        assert!(client.resets().is_empty());
    }
}

#[test]
fn a_whole_response_stays_one() {
    for (ends, expected) in [(false, &["1 stopped NoError"][..]), (true, &[])] {
        let mut client = Client::new();
        let id = client.connection.open(Method::Post, &[0x83], ends).unwrap();
        let bytes = [
            head(1, 0, 413, &[]),
            data(1, flags::END_STREAM, b"too much"),
            reset(1, ErrorCode::NoError),
        ];
        let told = client.told(&bytes.concat());
        assert_eq!(told[..2], ["1 413", "1 readable"]);
        assert_eq!(told[2..], *expected);
        assert_eq!(client.connection.read_content(id, &mut [0; 99]), 8);
        let ended = (Direction::Ended, &b""[..]);
        assert_eq!(client.connection.incoming(id), Some(ended));
    }
}

/// A client has left them all, and their endpoint sends on in small frames until it hears of it.
#[test]
fn content_that_comes_late_is_no_flood() {
    let mut client = Client::new();
    let ids = (0..50).map(|_| client.open(Method::Get));
    let ids: Vec<_> = ids.collect();
    for &id in &ids {
        client.told(&head(id, 0, 200, &[]));
    }
    for &id in &ids {
        client.connection.release(id, ErrorCode::Cancel);
    }
    for &id in &ids {
        for _ in 0..500 {
            client.take(&data(id, 0, b"x")).unwrap();
        }
    }
    // Their windows bound it.
    let windows = 50 * u64::from(Settings::OF_CLIENT.stream_window);
    let most = windows / 10_000 + 10_000;
    let flood = (0..most).find(|_| client.take(&data(ids[0], 0, &[0; 10_000])).is_err());
    assert!(
        flood.is_some_and(|it| it > windows / 10_000 - 10),
        "{flood:?}"
    );
}

#[test]
fn a_stream_that_is_given_up_is_reset() {
    for (answer, code) in [
        (vec![], ErrorCode::Cancel),
        (head(1, 0, 200, &[]), ErrorCode::Cancel),
        // The rest of the request is of no use.
        (head(1, flags::END_STREAM, 200, &[]), ErrorCode::NoError),
    ] {
        let mut client = Client::new();
        client
            .connection
            .open(Method::Post, &[0x83], false)
            .unwrap();
        client.told(&answer);
        client.connection.release(1, ErrorCode::Cancel);
        assert_eq!(client.resets(), [(1, code)]);
    }
}

#[test]
fn a_peer_is_asked_whether_it_is_there() {
    let mut client = Client::new();
    client.connection.ping(*b"12345678");
    let asked = client.sent_of(FrameKind::Ping);
    assert_eq!(asked, [(0, 0, b"12345678".to_vec())]);
    let answer = frame(FrameKind::Ping, flags::ACK, 0, b"12345678");
    assert_eq!(client.told(&answer), ["pong 12345678"]);
    // Its own are answered.
    client.told(&frame(FrameKind::Ping, 0, 0, b"whatever"));
    let answers = client.sent_of(FrameKind::Ping);
    assert_eq!(answers, [(0, flags::ACK, b"whatever".to_vec())]);
}

#[test]
fn tunnels_are_opened_where_the_peer_takes_them() {
    let mut client = Client::new();
    assert!(!client.connection.allows_extended_connect());
    client.told(&settings(&[Setting::EnableConnectProtocol(true)]));
    assert!(client.connection.allows_extended_connect());
    let id = client.connection.open(Method::Connect, &[0x82], false);
    assert_eq!(id, Some(1));
    let bytes = [
        head(1, 0, 200, &[("content-length", "1")]),
        data(1, 0, b"abc"),
    ];
    assert_eq!(client.told(&bytes.concat()), ["1 200", "1 readable"]);
    assert_eq!(client.connection.send_content(1, b"def", false, 99), 3);
    let bytes = data(1, flags::END_STREAM, b"abc");
    assert_eq!(client.told(&bytes), ["1 readable"]);
    client.connection.end(1);
    client.connection.release(1, ErrorCode::Cancel);
    assert!(client.resets().is_empty());
}

#[test]
fn a_smaller_table_is_confirmed_in_the_next_block() {
    let mut client = Client::new();
    for (size, expected) in [
        (4096, &[0x82][..]),
        (65_536, &[0x82]),
        (4095, &[0x20, 0x82]),
        (0, &[0x20, 0x82]),
    ] {
        client.told(&settings(&[Setting::HeaderTableSize(size)]));
        client.open(Method::Get);
        client.open(Method::Get);
        let sent = client.sent_of(FrameKind::Headers);
        assert_eq!(sent[0].2, expected, "{size}");
        assert_eq!(sent[1].2, [0x82]);
    }
}

/// The events of these bytes, and the bytes sent for them.
fn outcome(bytes: &[u8], cuts: &[usize]) -> (Vec<String>, Vec<u8>) {
    let mut client = Client::new();
    for method in [Method::Get, Method::Head] {
        client.connection.open(method, &[0x82], false);
    }
    let connection = &mut client.connection;
    let mut events = Vec::new();
    let mut room = || (Vec::new(), Box::default());
    let mut start = 0;
    'all: for end in cuts.iter().copied().chain([bytes.len()]) {
        let end = end.clamp(start, bytes.len());
        let mut part = &bytes[start..end];
        start = end;
        loop {
            match connection.next(&mut part, 0, &mut room) {
                Ok(Some(event)) => events.push(event.text()),
                Ok(None) => break,
                Err(fatal) => {
                    events.push(format!("{fatal:?}"));
                    break 'all;
                }
            }
        }
    }
    let unsent = connection.unsent().to_vec();
    events.extend([1, 3].map(|id| what_came(connection, id)));
    (events, unsent)
}

proptest! {
    /// However bytes are cut up on their way, the outcome is the same.
    #[test]
    fn cuts_change_nothing(
        frames in proptest::collection::vec(any_frame(status(200, &[])), 0..12),
        mut cuts in proptest::collection::vec(0usize..160, 0..12),
    ) {
        cuts.sort_unstable();
        let bytes = [head(1, 0, 200, &[]), frames.concat()].concat();
        let whole = outcome(&bytes, &[]);
        let cut = outcome(&bytes, &cuts);
        prop_assert_eq!(uncut(whole.0), uncut(cut.0));
        prop_assert_eq!(whole.1, cut.1);
    }
}
