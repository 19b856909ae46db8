//! Rules that a server may break.

use super::*;

#[test]
fn a_head_that_breaks_the_rules_resets_its_stream() {
    let broken = |name: &str, value: &str| status(200, &[(name, value)]);
    let upper = [0x88, 0, 1, b'A', 1, b'b'];
    let many = vec![("a", "b"); 300];
    let long = "v".repeat(1000);
    let large = vec![("a", &*long); 70];
    let protocol = ErrorCode::Protocol;
    for (block, flags, word, code) in [
        (vec![], 0, "upstream-status-line", protocol),
        (fields(&[("a", "b")]), 0, "upstream-status-line", protocol),
        (vec![0x88, 0x88], 0, "upstream-status-line", protocol),
        (
            [fields(&[("a", "b")]), vec![0x88]].concat(),
            0,
            "upstream-status-line",
            protocol,
        ),
        (
            fields(&[(":status", "20")]),
            0,
            "upstream-status-line",
            protocol,
        ),
        (
            fields(&[(":status", "101")]),
            0,
            "upstream-upgrade",
            protocol,
        ),
        (upper.to_vec(), 0, "upstream-field", protocol),
        (broken("a", "b\r\nc: d"), 0, "upstream-field", protocol),
        (broken("connection", "close"), 0, "upstream-field", protocol),
        (
            broken("transfer-encoding", "chunked"),
            0,
            "upstream-field",
            protocol,
        ),
        (
            broken("content-length", "x"),
            0,
            "upstream-framing",
            protocol,
        ),
        (
            broken("content-length", "5"),
            flags::END_STREAM,
            "upstream-framing",
            protocol,
        ),
        (
            status(103, &[]),
            flags::END_STREAM,
            "upstream-framing",
            protocol,
        ),
        (
            status(200, &many),
            0,
            "upstream-too-many-fields",
            ErrorCode::Cancel,
        ),
        (
            status(200, &large),
            0,
            "upstream-head-too-large",
            ErrorCode::Cancel,
        ),
    ] {
        let mut client = Client::new();
        client.open(Method::Get);
        let mut bytes = Vec::new();
        let (mut kind, mut flags, mut rest) = (FrameKind::Headers, flags, &block[..]);
        while rest.len() > 16_384 {
            bytes.extend(frame(kind, flags, 1, &rest[..16_384]));
            (kind, flags, rest) = (FrameKind::Continuation, 0, &rest[16_384..]);
        }
        bytes.extend(frame(kind, flags | flags::END_HEADERS, 1, rest));
        assert_eq!(client.told(&bytes), [format!("1 {word}")]);
        assert_eq!(client.resets(), [(1, code)], "{word}");
        // The others go on.
        assert!(client.told(&head(1, 0, 200, &[])).is_empty());
        client.open(Method::Get);
        assert_eq!(client.told(&head(3, 0, 200, &[])), ["3 200"]);
    }
}

#[test]
fn content_has_the_length_that_was_announced() {
    use Method::{Get, Head};
    let end = flags::END_STREAM;
    for (method, code, length, content, flags, is_right) in [
        (Get, 200, "3", &b"abc"[..], end, true),
        (Get, 200, "3", b"abc", 0, true),
        (Get, 200, "3", b"ab", end, false),
        (Get, 200, "3", b"abcd", 0, false),
        (Get, 200, "0", b"a", 0, false),
        // They have none, whatever they announce.
        (Head, 200, "3", b"", end, true),
        (Head, 200, "3", b"abc", end, false),
        (Get, 204, "3", b"", end, true),
        (Get, 204, "3", b"abc", end, false),
        (Get, 304, "3", b"", end, true),
        (Get, 304, "3", b"abc", end, false),
    ] {
        let mut client = Client::new();
        client.open(method);
        client.told(&head(1, 0, code, &[("content-length", length)]));
        let told = client.told(&data(1, flags, content));
        assert_eq!(
            told == ["1 readable"],
            is_right,
            "{method:?} {code} {told:?}"
        );
        let reset = (1, ErrorCode::Protocol);
        assert_eq!(client.resets().contains(&reset), !is_right);
    }
    // Trailers come behind all of it.
    for (content, is_right) in [(b"abc", true), (b"ab ", false)] {
        let mut client = Client::new();
        client.open(Method::Get);
        client.told(&head(1, 0, 200, &[("content-length", "3")]));
        client.told(&data(1, 0, content.trim_ascii_end()));
        let told = client.told(&frame(FrameKind::Headers, ALL, 1, &fields(&[("a", "b")])));
        assert_eq!(told == ["1 readable"], is_right);
    }
}

#[test]
fn what_comes_at_a_wrong_time_resets_its_stream() {
    for (bytes, code) in [
        // Content before the head, and nothing at all.
        (data(1, 0, b"a"), ErrorCode::Protocol),
        (data(1, flags::END_STREAM, b""), ErrorCode::Protocol),
        // A head behind the head, and trailers with a pseudo-field.
        (
            [head(1, 0, 200, &[]), head(1, 0, 200, &[])].concat(),
            ErrorCode::Protocol,
        ),
        (
            [head(1, 0, 200, &[]), head(1, flags::END_STREAM, 200, &[])].concat(),
            ErrorCode::Protocol,
        ),
        // Behind the end.
        (
            [head(1, flags::END_STREAM, 200, &[]), data(1, 0, b"a")].concat(),
            ErrorCode::StreamClosed,
        ),
        (
            [
                head(1, flags::END_STREAM, 200, &[]),
                head(1, flags::END_STREAM, 200, &[]),
            ]
            .concat(),
            ErrorCode::StreamClosed,
        ),
        (
            frame(FrameKind::WindowUpdate, 0, 1, &[0; 4]),
            ErrorCode::Protocol,
        ),
        (
            frame(FrameKind::WindowUpdate, 0, 1, &[0x7f, 255, 255, 255]),
            ErrorCode::FlowControl,
        ),
    ] {
        let mut client = Client::new();
        client.open(Method::Get);
        let told = client.told(&bytes);
        assert_eq!(told.last(), Some(&format!("1 reset {code:?}")));
        assert_eq!(client.resets(), [(1, code)], "{bytes:?}");
    }
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    let protocol = ErrorCode::Protocol;
    for (bytes, code) in [
        (frame(FrameKind::PushPromise, 4, 1, &[0; 4]), protocol),
        (settings(&[Setting::EnablePush(true)]), protocol),
        (
            frame(FrameKind::PriorityUpdate, 0, 0, b"\0\0\0\x01u=1"),
            protocol,
        ),
        // Streams that were not opened.
        (head(2, 0, 200, &[]), protocol),
        (head(3, 0, 200, &[]), protocol),
        (head(0, 0, 200, &[]), protocol),
        (data(2, 0, b"a"), protocol),
        (data(3, 0, b"a"), protocol),
        (reset(2, ErrorCode::Cancel), protocol),
        (reset(3, ErrorCode::Cancel), protocol),
        (
            frame(FrameKind::WindowUpdate, 0, 3, &[0, 0, 0, 1]),
            protocol,
        ),
        (frame(FrameKind::GoAway, 0, 1, &[0; 8]), protocol),
        (
            frame(FrameKind::GoAway, 0, 0, &[0; 7]),
            ErrorCode::FrameSize,
        ),
        (frame(FrameKind::Ping, 0, 0, &[0; 7]), ErrorCode::FrameSize),
        (
            frame(FrameKind::Headers, ALL, 1, &[0x80 | 70]),
            ErrorCode::Compression,
        ),
        (
            [
                frame(FrameKind::Headers, 0, 1, &[0x88]),
                frame(FrameKind::Ping, 0, 0, &[0; 8]),
            ]
            .concat(),
            protocol,
        ),
        (vec![0x01, 0, 0, 0, 0, 0, 0, 0, 1], ErrorCode::FrameSize),
    ] {
        let mut client = Client::new();
        client.open(Method::Get);
        assert_eq!(client.ends(&bytes), code, "{bytes:?}");
        assert_eq!(client.connection.capacity(), 0);
    }
    // SETTINGS come first.
    let mut client = Tested::of(Connection::new(Settings::OF_CLIENT));
    client.connection.sent(usize::MAX);
    assert_eq!(client.ends(&head(1, 0, 200, &[])), protocol);
    let mut client = Tested::of(Connection::new(Settings::OF_CLIENT));
    client.connection.sent(usize::MAX);
    assert_eq!(
        client.ends(b"HTTP/1.1 400 Bad Request\r\n"),
        ErrorCode::FrameSize
    );
}

#[test]
fn what_comes_for_a_stream_that_was_given_up_is_passed_over() {
    let mut client = Client::new();
    // More than are remembered.
    for _ in 0..200 {
        let id = client.open(Method::Get);
        client.connection.release(id, ErrorCode::Cancel);
    }
    // The table goes on: a field is put into it, and used by another stream.
    let added = [&[0x88, 0x40, 1, b'x', 3][..], b"abc"].concat();
    for id in (1..400).step_by(2) {
        let bytes = [
            frame(FrameKind::Headers, flags::END_HEADERS, id, &added),
            data(id, 0, &[0; 16_384]),
            data(id, flags::END_STREAM, b""),
            reset(id, ErrorCode::Cancel),
            frame(FrameKind::WindowUpdate, 0, id, &[0, 0, 0, 9]),
        ];
        assert!(client.told(&bytes.concat()).is_empty(), "{id}");
    }
    client.open(Method::Get);
    let block = [0x88, 0x80 | 62];
    let mut events = client
        .take(&frame(FrameKind::Headers, ALL, 401, &block))
        .unwrap();
    let Some(Event::Head(401, response)) = events.pop() else {
        panic!("a response");
    };
    assert!(
        response
            .bytes
            .ends_with(b"x: abc\r\ncontent-length: 0\r\n\r\n")
    );
}
