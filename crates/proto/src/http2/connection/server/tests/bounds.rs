//! Bounds on the cost of a client.

use super::*;

#[test]
fn windows_hold_in_both_directions() {
    let mut server = Server::with(Settings {
        stream_window: 10,
        connection_window: WINDOW_FIRST,
        ..Settings::default()
    });
    server.told(&post(1, &[]));
    server.told(&data(1, 0, &[0; 10]));
    // The client may send again as much as was read.
    let mut room = [0; 6];
    server.connection.read_content(1, &mut room);
    let updates = server.sent_of(FrameKind::WindowUpdate);
    assert_eq!(updates, [(1, 0, 6u32.to_be_bytes().to_vec())]);
    let told = server.told(&data(1, 0, &[0; 7]));
    assert_eq!(told, ["1 reset FlowControl"]);

    // Towards the client.
    server.told(&get(3));
    let long = vec![0; 100_000];
    assert_eq!(
        server.connection.send_content(3, &long, true, 1 << 20),
        65_535
    );
    assert_eq!(server.connection.next_writable(), None);
    let more = 1000u32.to_be_bytes();
    server.told(&frame(FrameKind::WindowUpdate, 0, 3, &more));
    assert_eq!(server.connection.next_writable(), None);
    let told = server.told(&frame(FrameKind::WindowUpdate, 0, 0, &more));
    assert_eq!(told, ["writable"]);
    assert_eq!(server.connection.next_writable(), Some(3));
    assert_eq!(
        server.connection.send_content(3, &long, true, 1 << 20),
        1000
    );
    let sent = server.sent_of(FrameKind::Data);
    assert!(sent.iter().all(|it| it.2.len() <= PAYLOAD_MAX as usize));
    assert_eq!(sent.iter().map(|it| it.2.len()).sum::<usize>(), 66_535);
}

#[test]
fn a_smaller_window_holds_streams_back_that_were_open() {
    let mut server = Server::new();
    server.told(&get(1));
    server.connection.send_content(1, &[0; 1000], false, 9999);
    server.told(&settings(&[Setting::InitialWindowSize(500)]));
    assert_eq!(server.connection.send_content(1, &[0; 10], false, 9999), 0);
    server.told(&settings(&[Setting::InitialWindowSize(1005)]));
    assert_eq!(server.connection.next_writable(), Some(1));
    assert_eq!(server.connection.send_content(1, &[0; 10], false, 9999), 5);
    let most = settings(&[Setting::InitialWindowSize(WINDOW_MAX)]);
    server.told(&frame(
        FrameKind::WindowUpdate,
        0,
        1,
        &2000u32.to_be_bytes(),
    ));
    assert_eq!(server.ends(&most), ErrorCode::FlowControl);
}

#[test]
fn a_reset_makes_no_room_until_the_work_has_ended() {
    let mut server = Server::with(Settings {
        max_streams: 2,
        ..Settings::default()
    });
    let cancel = |stream| frame(FrameKind::RstStream, 0, stream, &8u32.to_be_bytes());
    server.told(&[get(1), get(3)].concat());
    assert_eq!(server.told(&cancel(1)), ["1 reset Cancel"]);
    assert!(server.told(&get(5)).is_empty());
    assert_eq!(server.resets(), [(5, ErrorCode::RefusedStream)]);
    server.connection.release(1, ErrorCode::Cancel);
    assert_eq!(server.told(&get(7)), ["7 GET /"]);
}

#[test]
fn resets_have_a_budget_whoever_makes_them() {
    // Rapid reset.
    let mut server = Server::new();
    let mut count = 0;
    loop {
        let id = 2 * count + 1;
        let cancel = frame(FrameKind::RstStream, 0, id, &8u32.to_be_bytes());
        match server.take(&[get(id), cancel].concat()) {
            Ok(_) => server.connection.release(id, ErrorCode::Cancel),
            Err(fatal) => {
                assert_eq!(fatal.code, ErrorCode::EnhanceYourCalm);
                break;
            }
        }
        count += 1;
        assert!(count <= RESETS.0);
    }
    assert_eq!(count, RESETS.0);
    // Frames that make the server reset (MadeYouReset).
    for provoke in [
        |id| frame(FrameKind::WindowUpdate, 0, id, &[0; 4]),
        |id| data(id, flags::END_STREAM, b"more than nothing"),
        |id| frame(FrameKind::Priority, 0, id, b"four"),
    ] {
        let mut server = Server::new();
        let mut count = 0;
        let fatal = loop {
            let id = 2 * count + 1;
            let begin = post(id, &[("content-length", "0")]);
            if let Err(fatal) = server.take(&[begin, provoke(id)].concat()) {
                break fatal;
            }
            server.connection.release(id, ErrorCode::Cancel);
            count += 1;
            assert!(count <= RESETS.0);
        };
        assert_eq!(fatal.code, ErrorCode::EnhanceYourCalm);
    }
    // A client that leaves now and then is not punished.
    let mut server = Server::new();
    for count in 0..1000 {
        server.now_ms += 100;
        let id = 2 * count + 1;
        let cancel = frame(FrameKind::RstStream, 0, id, &8u32.to_be_bytes());
        server.take(&[get(id), cancel].concat()).unwrap();
        server.connection.release(id, ErrorCode::Cancel);
    }
}

#[test]
fn frames_that_bring_nothing_have_a_budget() {
    for flood in [
        settings(&[]),
        frame(FrameKind::Ping, 0, 0, &[0; 8]),
        data(1, 0, b""),
        frame(FrameKind::WindowUpdate, 0, 1, &1u32.to_be_bytes()),
        frame(FrameKind::Priority, 0, 9, &[0; 5]),
        frame(FrameKind::PriorityUpdate, 0, 0, &[0, 0, 0, 1]),
        frame(FrameKind::Unknown, 0, 1, b"x"),
        frame(FrameKind::Ping, flags::ACK, 0, &[0; 8]),
        frame(FrameKind::Settings, flags::ACK, 0, b""),
        frame(FrameKind::GoAway, 0, 0, &[0; 8]),
        data(1, flags::PADDED, &[3, 0, 0, 0]),
        // Of a stream that was reset: decoded for the table alone.
        get(3),
    ] {
        let mut server = Server::new();
        server.told(&[post(1, &[]), get(3)].concat());
        server.connection.release(3, ErrorCode::Cancel);
        let mut count = 0;
        let fatal = loop {
            match server.take(&flood) {
                Ok(_) => count += 1,
                Err(fatal) => break fatal,
            }
            assert!(count <= IDLE_FRAMES.0 + 1, "{flood:?}");
        };
        assert_eq!(fatal.code, ErrorCode::EnhanceYourCalm);
        assert!(server.connection.unsent().len() <= REPLIES_MAX + 100);
    }
    // A download earns the updates of its window.
    let mut server = Server::new();
    server.told(&get(1));
    for _ in 0..10_000 {
        let sent = server
            .connection
            .send_content(1, &[0; 16_384], false, 1 << 20);
        let more = (sent as u32).to_be_bytes();
        for stream in [0, 1] {
            server
                .take(&frame(FrameKind::WindowUpdate, 0, stream, &more))
                .unwrap();
        }
        server.sent();
    }
}

#[test]
fn a_block_of_fields_has_a_bound() {
    let long = head(&[("x-long", &"v".repeat(14_000))]);
    let (first, rest) = long.split_at(10);
    // In two frames, it is one head.
    let mut server = Server::new();
    let two = [
        frame(FrameKind::Headers, flags::END_STREAM, 1, first),
        frame(FrameKind::Continuation, flags::END_HEADERS, 1, rest),
    ];
    assert_eq!(server.told(&two.concat()), ["1 GET /"]);
    // Without end, and of nothing.
    for payload in [&[0x82][..], b"", &[0; 16_000]] {
        let mut server = Server::new();
        server.told(&frame(FrameKind::Headers, 0, 1, first));
        let more = frame(FrameKind::Continuation, 0, 1, payload);
        let mut count = 1;
        while server.take(&more).is_ok() {
            count += 1;
            assert!(count <= BLOCK_FRAMES_MAX);
        }
    }
    // One that is small on the wire and large in memory.
    let mut server = Server::new();
    let mut bomb = head(&[]);
    bomb.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    bomb.extend(vec![b'v'; 127 + 0x21 + (0x1e << 7)]);
    bomb.extend(vec![0x80 | 62; 10_000]);
    let all = flags::END_HEADERS | flags::END_STREAM;
    let told = server.told(&frame(FrameKind::Headers, all, 1, &bomb));
    assert_eq!(told, ["1 head-too-large"]);
}

#[test]
fn content_that_nobody_wants_does_not_use_up_the_connection() {
    let mut server = Server::with(Settings {
        connection_window: WINDOW_FIRST,
        ..Settings::default()
    });
    let mut id = 1;
    // Each is released with its unread content.
    for _ in 0..100 {
        server.now_ms += 1000;
        server.told(&post(id, &[]));
        server.told(&data(id, 0, &[0; 16_384]));
        server.connection.release(id, ErrorCode::Cancel);
        server.told(&data(id, 0, &[0; 16_384]));
        id += 2;
    }
}

#[test]
fn content_earns_as_much_room_as_it_took() {
    for is_read in [true, false] {
        let mut server = Server::with(Settings {
            connection_window: WINDOW_FIRST,
            ..Settings::default()
        });
        let mut told = 0;
        for id in (1..401).step_by(2) {
            server.told(&[post(id, &[]), data(id, 0, &[0; 10_000])].concat());
            if is_read {
                assert_eq!(server.connection.read_content(id, &mut [0; 20_000]), 10_000);
            }
            server.connection.send_fields(id, &[0x88], true);
            server.connection.release(id, ErrorCode::Cancel);
            let updates = server.sent_of(FrameKind::WindowUpdate).into_iter();
            let of_connection = updates.filter(|it| it.0 == 0);
            told += of_connection
                .map(|it| u32::from_be_bytes(it.2.try_into().unwrap()))
                .sum::<u32>();
        }
        assert!(told <= 200 * 10_000, "{told}");
        assert!(told + WINDOW_FIRST > 200 * 10_000, "{told}");
    }
}

#[test]
fn answers_go_behind_what_waits_to_be_sent() {
    let mut server = Server::new();
    server.told(&get(1));
    let more = 1_000_000u32.to_be_bytes();
    for stream in [0, 1] {
        server.told(&frame(FrameKind::WindowUpdate, 0, stream, &more));
    }
    let sent = server
        .connection
        .send_content(1, &[0; 500_000], false, 1 << 20);
    assert_eq!(sent, 500_000);
    server.told(&frame(FrameKind::Ping, 0, 0, &[7; 8]));
    assert_eq!(server.sent_of(FrameKind::Ping).len(), 1);
}

#[test]
fn content_that_was_read_is_let_go() {
    let mut server = Server::new();
    server.told(&post(1, &[]));
    server.told(&data(1, 0, b"a"));
    for _ in 0..1000 {
        server.told(&data(1, 0, &[0; 10_000]));
        // One byte stays.
        assert_eq!(server.connection.read_content(1, &mut [0; 10_000]), 10_000);
        assert!(server.connection.memory() < 200_000);
        server.sent();
    }
}
