//! Bounds on the cost of a server.

use super::*;

#[test]
fn windows_hold_in_both_directions() {
    let mut client = Client::with(
        Settings {
            stream_window: 10,
            connection_window: WINDOW_FIRST,
            ..Settings::OF_CLIENT
        },
        &[Setting::InitialWindowSize(7)],
    );
    client.connection.open(Method::Post, &[0x83], false);
    client.told(&[head(1, 0, 200, &[]), data(1, 0, &[0; 10])].concat());
    // The server may send again as much as was read.
    client.connection.read_content(1, &mut [0; 6]);
    let updates = client.sent_of(FrameKind::WindowUpdate);
    assert_eq!(updates, [(1, 0, 6u32.to_be_bytes().to_vec())]);
    // Towards the server.
    assert_eq!(
        client.connection.send_content(1, b"0123456789", true, 99),
        7
    );
    assert_eq!(client.connection.next_writable(), None);
    let told = client.told(&frame(FrameKind::WindowUpdate, 0, 1, &[0, 0, 0, 9]));
    assert_eq!(told, ["writable"]);
    assert_eq!(client.connection.next_writable(), Some(1));
    assert_eq!(client.connection.send_content(1, b"789", true, 99), 3);
    let told = client.told(&data(1, 0, &[0; 7]));
    assert_eq!(told, ["1 reset FlowControl"]);
    // All streams together.
    let mut client = Client::with(
        Settings {
            connection_window: WINDOW_FIRST,
            ..Settings::OF_CLIENT
        },
        &[],
    );
    for id in [1, 3] {
        client.open(Method::Get);
        client.told(&head(id, 0, 200, &[]));
    }
    for id in [1, 3, 1] {
        client.told(&data(id, 0, &[0; 16_384]));
    }
    assert_eq!(
        client.ends(&data(3, 0, &[0; 16_384])),
        ErrorCode::FlowControl
    );
}

#[test]
fn resets_of_what_was_opened_here_have_no_bound() {
    let mut client = Client::new();
    for _ in 0..10_000 {
        let id = client.open(Method::Get);
        let refused = reset(id, ErrorCode::RefusedStream);
        assert_eq!(client.told(&refused), [format!("{id} refused")]);
        client.connection.release(id, ErrorCode::Cancel);
        let id = client.open(Method::Get);
        let broken = head(id, 0, 200, &[("te", "trailers")]);
        assert_eq!(client.told(&broken), [format!("{id} upstream-field")]);
        client.connection.release(id, ErrorCode::Cancel);
        client.sent();
    }
}

#[test]
fn frames_that_bring_nothing_have_a_budget() {
    for flood in [
        settings(&[]),
        settings(&[Setting::MaxConcurrentStreams(1)]),
        frame(FrameKind::Ping, 0, 0, &[0; 8]),
        frame(FrameKind::Ping, flags::ACK, 0, &[0; 8]),
        frame(FrameKind::Settings, flags::ACK, 0, b""),
        data(1, 0, b""),
        data(1, flags::PADDED, &[3, 0, 0, 0]),
        frame(FrameKind::WindowUpdate, 0, 1, &1u32.to_be_bytes()),
        frame(FrameKind::Priority, 0, 9, &[0; 5]),
        frame(FrameKind::Unknown, 0, 1, b"x"),
        go_away(WINDOW_MAX, ErrorCode::NoError),
        // Of streams that were reset there, and here: remembered, and forgotten.
        reset(3, ErrorCode::Cancel),
        head(3, 0, 200, &[]),
        head(199, 0, 200, &[]),
        head(5, 0, 200, &[]),
        data(5, 0, b""),
        reset(5, ErrorCode::Cancel),
    ] {
        let few = Settings {
            max_streams: 100,
            ..Settings::OF_CLIENT
        };
        let mut client = Client::with(few, &[]);
        client.connection.open(Method::Post, &[0x83], false);
        client.told(&head(1, 0, 200, &[]));
        client.open(Method::Get);
        client.told(&reset(3, ErrorCode::Cancel));
        for _ in 0..100 {
            let id = client.open(Method::Get);
            client.connection.release(id, ErrorCode::Cancel);
        }
        client.sent();
        let mut count = 0;
        let fatal = loop {
            match client.take(&flood) {
                Ok(_) => count += 1,
                Err(fatal) => break fatal,
            }
            assert!(count <= IDLE_FRAMES.0 + 3 * 100 + 1, "{flood:?}");
        };
        assert_eq!(fatal.code, ErrorCode::EnhanceYourCalm);
        assert!(client.connection.unsent().len() <= REPLIES_MAX + 100);
    }
}

#[test]
fn interim_heads_have_a_bound() {
    let mut client = Client::new();
    client.open(Method::Get);
    let hints = head(1, 0, 103, &[]);
    for _ in 0..INTERIM_MAX {
        assert_eq!(client.told(&hints), ["1 interim 103"]);
    }
    assert_eq!(client.told(&hints), ["1 reset EnhanceYourCalm"]);
    assert!(client.told(&hints).is_empty());
}

#[test]
fn a_block_of_fields_has_a_bound() {
    // As large as a head may be.
    let long = "v".repeat(60_000);
    let block = status(200, &[("x-long", &long)]);
    let mut client = Client::new();
    client.open(Method::Get);
    let mut bytes = Vec::new();
    for (number, part) in block.chunks(16_384).enumerate() {
        let kind = match number {
            0 => FrameKind::Headers,
            _ => FrameKind::Continuation,
        };
        let flags = match number {
            3 => flags::END_HEADERS,
            _ => 0,
        };
        bytes.extend(frame(kind, flags, 1, part));
    }
    assert_eq!(client.told(&bytes), ["1 200"]);
    // Without end, and of nothing.
    for payload in [&[0x88][..], b"", &[0; 16_384]] {
        let mut client = Client::new();
        client.open(Method::Get);
        client.told(&frame(FrameKind::Headers, 0, 1, &[0x88]));
        let more = frame(FrameKind::Continuation, 0, 1, payload);
        let mut count = 1;
        while client.take(&more).is_ok() {
            count += 1;
            assert!(count <= BLOCK_FRAMES_MAX);
        }
    }
    // One that is small on the wire and large in memory.
    let mut client = Client::new();
    client.open(Method::Get);
    let mut bomb = vec![0x88, 0x40, 1, b'x', 0x7f, 0xa1, 0x1e];
    bomb.extend(vec![b'v'; 127 + 0x21 + (0x1e << 7)]);
    bomb.extend(vec![0x80 | 62; 10_000]);
    let told = client.told(&frame(FrameKind::Headers, ALL, 1, &bomb));
    assert_eq!(told, ["1 upstream-head-too-large"]);
}

#[test]
fn all_streams_may_be_given_up_at_once() {
    let many = Setting::MaxConcurrentStreams(1000);
    let mut client = Client::with(Settings::OF_CLIENT, &[many]);
    for _ in 0..1000 {
        client.open(Method::Get);
    }
    for id in (1..2000).step_by(2) {
        client.connection.release(id, ErrorCode::Cancel);
    }
    for id in (1..2000).step_by(2) {
        let bytes = [
            head(id, 0, 200, &[]),
            data(id, 0, b"abc"),
            data(id, flags::END_STREAM, b"def"),
        ];
        assert!(client.told(&bytes.concat()).is_empty());
    }
}
