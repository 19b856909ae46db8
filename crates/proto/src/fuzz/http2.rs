//! Any bytes as the frames of a peer over HTTP/2, at both ends of a connection.

use std::fmt::Debug;

use crate::hpack::{Decoder, TABLE_SIZE, encode};
use crate::http1::{Parsed, parse_request, parse_response};
use crate::http2::connection::{Core, Role};
use crate::http2::frame::{PAYLOAD_MAX, PREFACE, Setting};
use crate::http2::{ErrorCode, FrameHead, FrameKind, Settings, StreamId, client, server};
use crate::{BodyFraming, Method, RequestHead, ResponseHead};

/// They are small, so that short inputs reach the bounds.
const SETTINGS: Settings = Settings {
    max_head: 500,
    max_streams: 4,
    stream_window: 40,
    connection_window: 65_535,
};

/// Most memory of a connection: content of the streams, a block in several frames, a partial
/// frame, the table, and unsent bytes. Vectors may have twice as much room.
const MEMORY_MAX: usize =
    2 * (4 * (40 + 500) + 1000 + PAYLOAD_MAX as usize + 2 * TABLE_SIZE as usize + SENT_MAX) + 4096;

/// More than any input makes it send: each reply is to a frame, and no longer than that frame.
const SENT_MAX: usize = 64 * 1024;

/// Any bytes behind the first bytes of a client. The first two say how they are cut up and what
/// the server does.
pub fn http2_server(data: &[u8]) {
    let new = || server::Connection::new(SETTINGS);
    check(data, PREFACE, new, |connection, event, seed| match event {
        server::Event::Request(id, request) => {
            let text = &request.bytes[request.head.wire.start..];
            let mut head = RequestHead::default();
            assert_eq!(parse_request(text, &mut head), Ok(Parsed::Complete));
            assert_eq!(head.wire.framing, request.head.wire.framing);
            assert_eq!(head.wire.end, text.len());
            connection.send_fields(id, &[0x88], seed & 1 != 0);
            connection.send_content(id, &[b'a'; 100], seed & 2 != 0, 50);
            Some(id)
        }
        server::Event::Refused(id, _) | server::Event::Readable(id) => Some(id),
        server::Event::Reset(id, _) => Some(id),
        server::Event::Writable | server::Event::GoAway => None,
    });
}

/// The same, behind the first bytes of a server.
pub fn http2_client(data: &[u8]) {
    let methods = [Method::Get, Method::Head, Method::Connect];
    let new = || {
        let mut connection = client::Connection::new(SETTINGS);
        for (number, method) in methods.into_iter().enumerate() {
            let id = connection.open(method, &[0x82], number == 0);
            assert_eq!(id, Some(2 * number as u32 + 1));
        }
        connection
    };
    check(data, b"", new, |connection, event, seed| match event {
        client::Event::Head(id, response) | client::Event::Interim(id, response) => {
            let method = methods.get(id as usize / 2).copied().unwrap_or_default();
            check_response(&response, method);
            connection.send_content(id, &[b'a'; 100], seed & 2 != 0, 50);
            Some(id)
        }
        client::Event::Malformed(id, _) | client::Event::Readable(id) => Some(id),
        client::Event::Reset(id, _) | client::Event::Refused(id) => Some(id),
        client::Event::Stopped(id, _) => Some(id),
        client::Event::Capacity => {
            let is_open = connection.open(Method::Get, &[0x82], true).is_some();
            assert!(is_open || connection.capacity() == 0);
            None
        }
        client::Event::Writable | client::Event::GoAway(_) | client::Event::Pong(_) => None,
    });
}

/// HTTP/1 reads the same from its text.
fn check_response(response: &client::Response, method: Method) {
    let framing = response.head.wire.framing;
    if method == Method::Connect && matches!(response.head.status, 200..300) {
        assert!(matches!(
            framing,
            BodyFraming::UntilClose | BodyFraming::None
        ));
        return;
    }
    let mut head = ResponseHead::default();
    let parsed = parse_response(&response.bytes, method, &mut head);
    assert_eq!(parsed, Ok(Parsed::Complete));
    assert_eq!(head.wire.end, response.bytes.len());
    assert_eq!(head.wire.framing, framing);
}

fn check<R: Role<Head: Default, Event: Debug>>(
    data: &[u8],
    begin: &[u8],
    new: impl Fn() -> Core<R>,
    act: impl Fn(&mut Core<R>, R::Event, u8) -> Option<StreamId>,
) {
    let Some((&[seed, step], data)) = data.split_first_chunk() else {
        return;
    };
    let bytes = [begin, &settings(), data].concat();
    let whole = read(new(), &bytes, bytes.len());
    assert_eq!(read(new(), &bytes, usize::from(step) + 1), whole);
    let mut connection = new();
    let (mut rest, mut seed) = (&bytes[..], u32::from(seed));
    let mut room = || (Vec::new(), Box::default());
    let mut now_ms = 0;
    loop {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let choice = (seed >> 24) as u8;
        now_ms += u64::from(choice);
        let event = match connection.next(&mut rest, now_ms, &mut room) {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(fatal) => {
                check_last(connection.unsent(), fatal.code);
                return;
            }
        };
        let id = act(&mut connection, event, choice);
        if let Some(id) = id.filter(|_| choice & 4 != 0) {
            connection.read_content(id, &mut [0; 30]);
        }
        if let Some(id) = id.filter(|_| choice & 0x30 == 0) {
            connection.release(id, ErrorCode::Cancel);
        }
        if let Some(id) = connection.next_writable() {
            connection.send_content(id, b"abc", true, 10);
        }
        if choice & 8 != 0 {
            connection.sent(usize::from(choice));
        }
        assert!(connection.in_flight() <= SETTINGS.max_streams as usize);
        let sent = connection.unsent().len();
        assert!(connection.memory() <= MEMORY_MAX + 2 * sent, "{sent}");
    }
    connection.shrink();
    assert!(rest.is_empty());
}

/// The outcome of bytes in pieces of this length: all events but for content, and the sent bytes.
fn read<R: Role<Head: Default, Event: Debug>>(
    mut connection: Core<R>,
    bytes: &[u8],
    step: usize,
) -> (Vec<String>, Vec<u8>) {
    let mut told = Vec::new();
    let mut room = || (Vec::new(), Box::default());
    for mut part in bytes.chunks(step.max(1)) {
        loop {
            match connection.next(&mut part, 0, &mut room) {
                Ok(Some(event)) => told.push(format!("{event:?}")),
                Ok(None) => break,
                Err(fatal) => {
                    told.push(format!("{fatal:?}"));
                    told.retain(|it| !it.starts_with("Readable"));
                    return (told, connection.unsent().to_vec());
                }
            }
        }
    }
    told.retain(|it| !it.starts_with("Readable"));
    (told, connection.unsent().to_vec())
}

fn settings() -> Vec<u8> {
    let mut payload = Vec::new();
    Setting::InitialWindowSize(60).push(&mut payload);
    let head = FrameHead {
        len: payload.len() as u32,
        kind: FrameKind::Settings,
        flags: 0,
        stream: 0,
    };
    [&head.bytes()[..], &payload].concat()
}

/// A connection that ends says so last.
fn check_last(unsent: &[u8], code: ErrorCode) {
    let frame = unsent.last_chunk::<17>().expect("a frame");
    let head = FrameHead::read(frame.first_chunk().expect("its head"));
    assert_eq!((head.kind, head.len), (FrameKind::GoAway, 8));
    assert_eq!(frame[13..], code.number().to_be_bytes());
}

/// Any bytes as blocks of fields; the first says where the second block begins.
pub fn hpack_block(data: &[u8]) {
    let Some((&at, data)) = data.split_first() else {
        return;
    };
    let (one, two) = data.split_at(data.len().min(usize::from(at)));
    let mut decoder = Decoder::default();
    let (mut expected, mut again) = (Vec::new(), Vec::new());
    for coded in [one, two] {
        let mut block = decoder.block(coded);
        let (mut out, mut count) = (Vec::new(), 0);
        while let Ok(Some(field)) = block.next(&mut out) {
            count += 1;
            let (name, value) = (field.name.of(&out), field.value.of(&out));
            assert!(out.ends_with(&[name, b": ", value, b"\r\n"].concat()));
            encode::field(&mut again, name, value);
            let name = name.to_ascii_lowercase();
            expected.extend([&name[..], b": ", value, b"\r\n"].concat());
        }
        // Each takes a byte at least, and gives no more than itself and the table have.
        assert!(count <= coded.len());
        assert!(out.len() <= (count + 1) * (usize::from(TABLE_SIZE) + 40) + 2 * coded.len());
    }
    assert!(decoder.memory() <= 8 * usize::from(TABLE_SIZE));
    let mut out = Vec::new();
    let mut decoder = Decoder::default();
    let mut block = decoder.block(&again);
    while block.next(&mut out).expect("it was encoded here").is_some() {}
    assert_eq!(out, expected);
}
