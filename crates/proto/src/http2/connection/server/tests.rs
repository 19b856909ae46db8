use proptest::prelude::*;

use super::super::tests::{
    Tested, Text, any_frame, data, fields, frame, head, settings, uncut, what_came,
};
use super::*;
use crate::hpack::encode;

fn get(stream: u32) -> Vec<u8> {
    let all = flags::END_HEADERS | flags::END_STREAM;
    frame(FrameKind::Headers, all, stream, &head(&[]))
}

/// A request whose content is to come.
fn post(stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    frame(FrameKind::Headers, flags::END_HEADERS, stream, &head(more))
}

mod bounds;

type Server = Tested<super::Server>;

impl Server {
    /// One whose client has begun, with these settings of ours.
    fn with(own: Settings) -> Self {
        let mut it = Tested::of(Connection::new(own));
        let begin = [&PREFACE[..], &settings(&[])].concat();
        assert!(it.take(&begin).unwrap().is_empty());
        it.sent();
        it
    }

    fn new() -> Self {
        Server::with(Settings::default())
    }
}

impl Text for Event {
    fn text(&self) -> String {
        match self {
            Event::Request(id, request) => {
                let line = request.head.line(&request.bytes);
                format!("{id} {}", String::from_utf8_lossy(line))
            }
            Event::Refused(id, error) => format!("{id} {}", error.word()),
            Event::Readable(id) => format!("{id} readable"),
            Event::Reset(id, code) => format!("{id} reset {code:?}"),
            Event::Writable => "writable".to_owned(),
            Event::GoAway => "go away".to_owned(),
        }
    }
}

#[test]
fn it_begins_with_its_settings() {
    let mut connection = Connection::new(Settings::default());
    let bytes = connection.unsent().to_vec();
    connection.sent(bytes.len());
    let mut server = Tested::of(connection);
    let first = FrameHead::read(bytes.first_chunk().unwrap());
    assert_eq!(first.kind, FrameKind::Settings);
    // A client's are confirmed.
    server
        .take(&[&PREFACE[..], &settings(&[])].concat())
        .unwrap();
    assert_eq!(
        server.sent_of(FrameKind::Settings),
        [(0, flags::ACK, vec![])]
    );
}

#[test]
fn what_is_no_http2_is_found_at_its_first_byte() {
    for (bytes, code) in [
        (&b"GET / HTTP/1.1\r\n"[..], ErrorCode::Protocol),
        (&[&PREFACE[..], &get(1)].concat(), ErrorCode::Protocol),
    ] {
        let connection = Connection::new(Settings::default());
        let mut server = Tested::of(connection);
        server.sent();
        assert_eq!(server.ends(bytes), code);
    }
}

/// A head with a long field that goes into the table, and one that has it from there.
fn long_heads() -> (Vec<u8>, Vec<u8>) {
    let mut indexed = vec![0x40, 3];
    indexed.extend_from_slice(b"x-a");
    // A length of 3,000 (RFC 7541 §5.1).
    indexed.extend_from_slice(&[0x7f, 0xb9, 0x16]);
    indexed.extend_from_slice(&[b'v'; 3000]);
    let repeated = [0x80 | 62; 4];
    (
        [head(&[]), indexed].concat(),
        [&head(&[])[..], &repeated].concat(),
    )
}

#[test]
fn what_is_decoded_is_bounded_by_what_came() {
    let all = flags::END_HEADERS | flags::END_STREAM;
    let (first, next) = long_heads();
    let mut server = Server::new();
    server.told(&frame(FrameKind::Headers, all, 1, &first));
    let mut sent = first.len();
    let mut told = Vec::new();
    for stream in (3..61).step_by(2) {
        let bytes = frame(FrameKind::Headers, all, stream, &next);
        sent += bytes.len();
        told.extend(server.told(&bytes));
    }
    let begun = told.len();
    assert!((4..12).contains(&begun), "{told:?}");
    let held = server.connection.held;
    assert!(held < 64 * 1024 + 4 * sent + 16 * 1024, "{held} of {sent}");
    assert_eq!(server.connection.in_flight(), begun + 1);
    assert!(server.connection.has_waiting_blocks());
    // Each that ends makes room for another, in their order.
    let mut next_stream = 3 + 2 * begun as u32;
    for stream in (1..61).step_by(2) {
        server.connection.release(stream, ErrorCode::Cancel);
        for event in server.told(b"") {
            assert_eq!(event, format!("{next_stream} GET /"));
            next_stream += 2;
        }
    }
    assert_eq!(next_stream, 61);
    assert_eq!(
        (server.connection.held, server.connection.in_flight()),
        (0, 0)
    );
    assert!(!server.connection.has_waiting_blocks());
}

#[test]
fn streams_whose_heads_wait_take_content() {
    let (first, next) = long_heads();
    let all = flags::END_HEADERS | flags::END_STREAM;
    let mut server = Server::new();
    server.told(&frame(FrameKind::Headers, all, 1, &first));
    let mut stream = 3;
    while !server.connection.has_waiting_blocks() {
        server.told(&frame(FrameKind::Headers, all, stream, &next));
        stream += 2;
    }
    let right = [&next[..], &fields(&[("content-length", "5")])].concat();
    let wrong = [&next[..], &fields(&[("content-length", "6")])].concat();
    let bytes = [
        frame(FrameKind::Headers, flags::END_HEADERS, stream, &right),
        data(stream, flags::END_STREAM, b"hello"),
        frame(FrameKind::Headers, flags::END_HEADERS, stream + 2, &wrong),
        data(stream + 2, flags::END_STREAM, b"hello"),
        frame(FrameKind::Headers, flags::END_HEADERS, stream + 4, &next),
        frame(FrameKind::RstStream, 0, stream + 4, &8u32.to_be_bytes()),
        get(stream + 6),
    ];
    server.told(&bytes.concat());
    let mut told = Vec::new();
    for id in (1..stream).step_by(2) {
        server.connection.release(id, ErrorCode::Cancel);
        told.extend(server.told(b""));
    }
    let news = told.split_off(1);
    assert_eq!(
        news,
        [
            format!("{stream} GET /"),
            format!("{} reset Protocol", stream + 2),
            format!("{} GET /", stream + 6),
        ]
    );
    let mut room = [0; 9];
    assert_eq!(server.connection.read_content(stream, &mut room), 5);
    assert_eq!(
        server.connection.incoming(stream).unwrap().0,
        Direction::Ended
    );
    assert!(server.resets().contains(&(stream + 2, ErrorCode::Protocol)));
}

#[test]
fn heads_that_wait_are_forgotten_with_their_connection() {
    let (first, next) = long_heads();
    let all = flags::END_HEADERS | flags::END_STREAM;
    let mut server = Server::new();
    server.told(&frame(FrameKind::Headers, all, 1, &first));
    for stream in (3..61).step_by(2) {
        server.told(&frame(FrameKind::Headers, all, stream, &next));
    }
    server.connection.forget_waiting_blocks();
    for stream in (1..61).step_by(2) {
        server.connection.release(stream, ErrorCode::Cancel);
    }
    assert!(server.told(b"").is_empty());
    assert_eq!(server.connection.in_flight(), 0);
}

#[test]
fn a_request_is_answered() {
    let mut server = Server::new();
    assert_eq!(server.told(&get(1)), ["1 GET /"]);
    let (incoming, trailers) = server.connection.incoming(1).unwrap();
    assert_eq!((incoming, trailers), (Direction::Ended, &b""[..]));
    let mut block = Vec::new();
    encode::status(&mut block, 200);
    server.connection.send_fields(1, &block, false);
    assert_eq!(server.connection.send_content(1, b"hello", true, 9999), 5);
    let sent = server.sent();
    let kinds: Vec<_> = sent
        .iter()
        .map(|(head, _)| (head.kind, head.flags))
        .collect();
    let expected = [
        (FrameKind::Headers, flags::END_HEADERS),
        (FrameKind::Data, flags::END_STREAM),
    ];
    assert_eq!(kinds, expected);
    server.connection.release(1, ErrorCode::Internal);
    assert!(server.sent().is_empty());
    assert_eq!(server.connection.in_flight(), 0);
}

#[test]
fn content_comes_with_its_end_and_trailers() {
    let mut server = Server::new();
    let bytes = [
        post(1, &[]),
        data(1, 0, b"ab"),
        data(1, flags::PADDED, b"\x02cd\0\0"),
        frame(
            FrameKind::Headers,
            flags::END_HEADERS | flags::END_STREAM,
            1,
            &fields(&[("x-sum", "1"), ("content-length", "9")]),
        ),
    ];
    let told = server.told(&bytes.concat());
    assert_eq!(told, ["1 GET /", "1 readable", "1 readable", "1 readable"]);
    let mut room = [0; 3];
    assert_eq!(server.connection.read_content(1, &mut room), 3);
    assert_eq!(&room, b"abc");
    assert_eq!(server.connection.incoming(1).unwrap().0, Direction::Open);
    assert_eq!(server.connection.read_content(1, &mut room), 1);
    let (incoming, trailers) = server.connection.incoming(1).unwrap();
    // Fields that may not stand in trailers are left out.
    assert_eq!(
        (incoming, trailers),
        (Direction::Ended, &b"x-sum: 1\r\n"[..])
    );
}

#[test]
fn content_has_the_length_that_was_announced() {
    for (content, ends, is_right) in [
        (&b"abc"[..], true, true),
        (b"ab", true, false),
        (b"abcd", false, false),
        (b"abc", false, true),
    ] {
        let mut server = Server::new();
        server.told(&post(1, &[("content-length", "3")]));
        let flags = if ends { flags::END_STREAM } else { 0 };
        let told = server.told(&data(1, flags, content));
        assert_eq!(told == ["1 readable"], is_right, "{content:?}");
        let reset = (1, ErrorCode::Protocol);
        assert_eq!(server.resets().contains(&reset), !is_right);
    }
}

#[test]
fn urgent_streams_send_first() {
    let mut server = Server::new();
    for (stream, priority) in [(1, "u=5"), (3, "u=1"), (5, "u=3")] {
        let all = flags::END_HEADERS | flags::END_STREAM;
        server.told(&frame(
            FrameKind::Headers,
            all,
            stream,
            &head(&[("priority", priority)]),
        ));
        assert_eq!(server.connection.send_content(stream, b"abc", true, 1), 1);
    }
    let update = [&5u32.to_be_bytes()[..], b"u=0"].concat();
    server.told(&frame(FrameKind::PriorityUpdate, 0, 0, &update));
    let order: Vec<_> = std::iter::from_fn(|| server.connection.next_writable()).collect();
    assert_eq!(order, [5, 3, 1]);
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    let all = flags::END_HEADERS | flags::END_STREAM;
    for (bytes, code) in [
        (
            frame(FrameKind::Headers, all, 2, &head(&[])),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::Headers, all, 0, &head(&[])),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::Headers, all | flags::PADDED, 1, &[9, 1]),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::Headers, all, 1, &[0xff, 0xff]),
            ErrorCode::Compression,
        ),
        (
            frame(FrameKind::Headers, all, 1, &[0x80 | 70]),
            ErrorCode::Compression,
        ),
        (data(0, 0, b"a"), ErrorCode::Protocol),
        (data(1, 0, b"a"), ErrorCode::Protocol),
        (
            frame(FrameKind::Priority, 0, 0, &[0; 5]),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::RstStream, 0, 1, &[0; 4]),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::RstStream, 0, 0, &[0; 4]),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::RstStream, 0, 1, &[0; 3]),
            ErrorCode::FrameSize,
        ),
        (frame(FrameKind::Settings, 0, 1, b""), ErrorCode::Protocol),
        (
            frame(FrameKind::Settings, 0, 0, b"abc"),
            ErrorCode::FrameSize,
        ),
        (
            frame(FrameKind::Settings, flags::ACK, 0, &[0; 6]),
            ErrorCode::FrameSize,
        ),
        (
            frame(FrameKind::PushPromise, 0, 1, b""),
            ErrorCode::Protocol,
        ),
        (frame(FrameKind::Ping, 0, 0, &[0; 7]), ErrorCode::FrameSize),
        (frame(FrameKind::Ping, 0, 1, &[0; 8]), ErrorCode::Protocol),
        (frame(FrameKind::GoAway, 0, 1, &[0; 8]), ErrorCode::Protocol),
        (
            frame(FrameKind::GoAway, 0, 0, &[0; 7]),
            ErrorCode::FrameSize,
        ),
        (
            frame(FrameKind::WindowUpdate, 0, 0, &[0; 4]),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::WindowUpdate, 0, 1, &[0, 0, 0, 1]),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::WindowUpdate, 0, 0, &[0; 3]),
            ErrorCode::FrameSize,
        ),
        (
            frame(FrameKind::WindowUpdate, 0, 0, &[0x7f, 255, 255, 255]),
            ErrorCode::FlowControl,
        ),
        (
            frame(FrameKind::Continuation, 0, 1, b""),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::PriorityUpdate, 0, 0, &[0; 4]),
            ErrorCode::Protocol,
        ),
        (
            [frame(FrameKind::Headers, 0, 1, &head(&[])), get(3)].concat(),
            ErrorCode::Protocol,
        ),
        (
            [
                frame(FrameKind::Headers, 0, 1, b""),
                frame(FrameKind::Continuation, 0, 3, b""),
            ]
            .concat(),
            ErrorCode::Protocol,
        ),
        (vec![0x01, 0, 0, 0, 0, 0, 0, 0, 1], ErrorCode::FrameSize),
        (
            settings(&[Setting::InitialWindowSize(WINDOW_MAX)])
                .into_iter()
                .chain(frame(FrameKind::Settings, 0, 0, &[0, 2, 0, 0, 0, 2]))
                .collect(),
            ErrorCode::Protocol,
        ),
    ] {
        assert_eq!(Server::new().ends(&bytes), code, "{bytes:?}");
    }
}

#[test]
fn what_comes_for_a_closed_stream_is_told_or_passed_over() {
    let mut server = Server::new();
    server.told(&get(1));
    // Its sender has ended it.
    assert_eq!(server.told(&data(1, 0, b"a")), ["1 reset StreamClosed"]);
    assert_eq!(server.resets(), [(1, ErrorCode::StreamClosed)]);
    // The stream was reset here: frames on their way are passed over.
    assert!(server.told(&data(1, 0, b"a")).is_empty());
    server.connection.release(1, ErrorCode::Cancel);
    assert!(server.told(&data(1, 0, b"a")).is_empty());
    assert!(server.told(&get(1)).is_empty());
    assert!(server.resets().is_empty());
    // It was served, and is forgotten.
    server.told(&get(3));
    server.connection.send_fields(3, &[0x88], true);
    server.connection.release(3, ErrorCode::Cancel);
    server.sent();
    assert!(server.told(&data(3, 0, b"a")).is_empty());
    assert_eq!(server.resets(), [(3, ErrorCode::StreamClosed)]);
    let mut other = Server::new();
    other.told(&get(5));
    other.connection.send_fields(5, &[0x88], true);
    other.connection.release(5, ErrorCode::Cancel);
    assert_eq!(other.ends(&get(5)), ErrorCode::StreamClosed);
}

#[test]
fn nothing_begins_behind_the_end() {
    let mut server = Server::new();
    server.told(&get(1));
    server.connection.shut_down();
    assert!(server.told(&get(3)).is_empty());
    assert_eq!(server.resets(), [(3, ErrorCode::RefusedStream)]);
    server.connection.send_fields(1, &[0x88], true);
    assert_eq!(server.sent().len(), 1);
}

#[test]
fn a_peer_that_knows_of_the_end_is_told_where_it_is() {
    let mut server = Server::new();
    server.told(&get(1));
    server.connection.begin_shutdown();
    server.connection.begin_shutdown();
    // A request on its way is served.
    assert_eq!(server.told(&get(3)), ["3 GET /"]);
    let sent = server.sent();
    let kinds: Vec<_> = sent.iter().map(|it| it.0.kind).collect();
    assert_eq!(kinds, [FrameKind::GoAway, FrameKind::Ping]);
    assert_eq!(sent[0].1[..4], WINDOW_MAX.to_be_bytes());
    let ping = sent[1].1.clone();
    server.told(&frame(FrameKind::Ping, flags::ACK, 0, b"whatever"));
    assert!(!server.connection.is_shut_down());
    server.told(&frame(FrameKind::Ping, flags::ACK, 0, &ping));
    assert!(server.connection.is_shut_down());
    let away = server.sent_of(FrameKind::GoAway);
    assert_eq!(away[0].2[..4], 3u32.to_be_bytes());
    server.told(&get(5));
    assert_eq!(server.resets(), [(5, ErrorCode::RefusedStream)]);
}

#[test]
fn the_end_is_put_on_the_last_frame() {
    let ends = |server: &mut Server| {
        let sent = server.sent();
        let frames = sent.iter().map(|(head, _)| {
            let ends = head.has(flags::END_STREAM);
            (head.kind, head.stream, ends)
        });
        frames.collect::<Vec<_>>()
    };
    let mut server = Server::new();
    server.told(&[get(1), get(3), get(5)].concat());
    server.sent();
    server.connection.send_fields(1, &[0x88], false);
    server.connection.end(1);
    server.connection.send_fields(3, &[0x88], false);
    server.connection.send_content(3, b"a", false, 9);
    server.connection.send_fields(5, &[0x88], false);
    server.connection.end(3);
    server.connection.end(3);
    let expected = [
        (FrameKind::Headers, 1, true),
        (FrameKind::Headers, 3, false),
        (FrameKind::Data, 3, false),
        (FrameKind::Headers, 5, false),
        (FrameKind::Data, 3, true),
    ];
    assert_eq!(ends(&mut server), expected);
    // A sent frame is not changed any more.
    server.connection.end(5);
    assert_eq!(ends(&mut server), [(FrameKind::Data, 5, true)]);
    // A part of an earlier frame was sent.
    server.told(&get(7));
    server.connection.send_fields(7, &[0x88], false);
    server.connection.send_content(7, b"abc", false, 9);
    server.connection.sent(3);
    server.connection.end(7);
    let last = &server.connection.unsent()[server.connection.unsent().len() - 12..];
    assert_eq!(
        FrameHead::read(last.first_chunk().unwrap()).flags,
        flags::END_STREAM
    );
}

#[test]
fn streams_take_turns_unless_they_are_told_not_to() {
    for (priorities, expected) in [
        ([None, None], [1, 3, 1, 3]),
        ([Some("u=3"), Some("u=3")], [1, 1, 1, 1]),
        ([Some("i"), Some("i")], [1, 3, 1, 3]),
        ([Some("i"), Some("u=2")], [3, 3, 3, 3]),
    ] {
        let mut server = Server::new();
        for (stream, priority) in [1, 3].into_iter().zip(priorities) {
            let more = priority.map(|it| ("priority", it));
            let all = flags::END_HEADERS | flags::END_STREAM;
            let block = head(more.as_slice());
            server.told(&frame(FrameKind::Headers, all, stream, &block));
            server.connection.send_content(stream, b"abcdef", true, 1);
        }
        let turns: Vec<_> = (0..4)
            .map(|_| {
                let id = server.connection.next_writable().unwrap();
                assert!(!server.connection.can_send(id, 0));
                id
            })
            .collect();
        assert_eq!(turns, expected, "{priorities:?}");
    }
}

/// The events of these bytes, and the bytes sent for them.
fn outcome(bytes: &[u8], cuts: &[usize]) -> (Vec<String>, Vec<u8>) {
    let mut connection = Connection::new(Settings::default());
    let mut events = Vec::new();
    let mut room = || (Vec::new(), Box::default());
    let mut start = 0;
    let ends = cuts.iter().copied().chain([bytes.len()]);
    'all: for end in ends {
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
    events.extend([1, 3].map(|id| what_came(&mut connection, id)));
    (events, unsent)
}

proptest! {
    /// However bytes are cut up on their way, the outcome is the same.
    #[test]
    fn cuts_change_nothing(
        frames in proptest::collection::vec(any_frame(head(&[])), 0..12),
        mut cuts in proptest::collection::vec(0usize..160, 0..12),
    ) {
        let bytes = [&PREFACE[..], &settings(&[]), &post(1, &[]), &frames.concat()].concat();
        cuts.sort_unstable();
        let whole = outcome(&bytes, &[]);
        let cut = outcome(&bytes, &cuts);
        prop_assert_eq!(uncut(whole.0), uncut(cut.0));
        prop_assert_eq!(whole.1, cut.1);
    }
}
