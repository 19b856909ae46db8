//! Frames by hand, for the tests of both roles.

use proptest::prelude::*;

use super::*;
use crate::hpack::encode;

/// A frame of these bytes.
pub fn frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = FrameHead {
        len: payload.len() as u32,
        kind,
        flags,
        stream,
    };
    [&head.bytes()[..], payload].concat()
}

/// SETTINGS.
pub fn settings(settings: &[Setting]) -> Vec<u8> {
    let mut payload = Vec::new();
    for it in settings {
        it.push(&mut payload);
    }
    frame(FrameKind::Settings, 0, 0, &payload)
}

/// A block of these fields.
pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        encode::field(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

/// The block of a request, with further fields.
pub fn head(more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    // GET, http, /.
    block.extend([0x82, 0x86, 0x84]);
    encode::with_static_name(&mut block, 1, b"a.test");
    block.extend(fields(more));
    block
}

/// DATA.
pub fn data(stream: u32, flags: u8, content: &[u8]) -> Vec<u8> {
    frame(FrameKind::Data, flags, stream, content)
}

/// Takes frames apart.
pub fn frames(mut bytes: &[u8]) -> Vec<(FrameHead, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk() {
        let head = FrameHead::read(head);
        let (payload, rest) = rest.split_at(head.len as usize);
        frames.push((head, payload.to_vec()));
        bytes = rest;
    }
    frames
}

/// The code of a RST_STREAM.
pub fn code(payload: &[u8]) -> ErrorCode {
    ErrorCode::from_number(u32::from_be_bytes(payload.try_into().unwrap()))
}

/// The text of an event.
pub trait Text: std::fmt::Debug {
    /// In words.
    fn text(&self) -> String;
}

/// An end of a connection.
pub struct Tested<R> {
    pub connection: Core<R>,
    pub now_ms: u64,
}

impl<R> Tested<R>
where
    R: Role<Event: Text, Head: Default>,
{
    pub fn of(connection: Core<R>) -> Self {
        Tested {
            connection,
            now_ms: 0,
        }
    }

    /// All events of these bytes.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<Vec<R::Event>, Fatal> {
        let mut events = Vec::new();
        let mut room = || (Vec::new(), Box::default());
        while let Some(event) = self.connection.next(&mut bytes, self.now_ms, &mut room)? {
            events.push(event);
        }
        assert!(bytes.is_empty());
        Ok(events)
    }

    /// The same, as text.
    pub fn told(&mut self, bytes: &[u8]) -> Vec<String> {
        let events = self.take(bytes).unwrap();
        events.into_iter().map(|it| it.text()).collect()
    }

    /// The code with which these bytes end the connection.
    pub fn ends(&mut self, bytes: &[u8]) -> ErrorCode {
        let fatal = self.take(bytes).unwrap_err();
        let frames = self.sent();
        let (head, payload) = frames.last().unwrap();
        assert_eq!(head.kind, FrameKind::GoAway);
        assert_eq!(payload[4..], fatal.code.number().to_be_bytes());
        fatal.code
    }

    /// The frames that were sent since the last time.
    pub fn sent(&mut self) -> Vec<(FrameHead, Vec<u8>)> {
        let frames = frames(self.connection.unsent());
        let len = self.connection.unsent().len();
        self.connection.sent(len);
        frames
    }

    /// The frames of this kind among them: stream, flags and payload.
    pub fn sent_of(&mut self, kind: FrameKind) -> Vec<(u32, u8, Vec<u8>)> {
        let frames = self
            .sent()
            .into_iter()
            .filter(|(head, _)| head.kind == kind);
        frames
            .map(|(head, payload)| (head.stream, head.flags, payload))
            .collect()
    }

    /// The resets among them.
    pub fn resets(&mut self) -> Vec<(u32, ErrorCode)> {
        let frames = self.sent_of(FrameKind::RstStream).into_iter();
        frames
            .map(|(stream, _, payload)| (stream, code(&payload)))
            .collect()
    }
}

/// A frame of any kind.
pub fn any_frame(head_block: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let with_length = [&head_block[..], &fields(&[("content-length", "3")])].concat();
    let payload = prop_oneof![
        Just(head_block),
        Just(with_length),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    // Meaningful values come often.
    let kind = prop_oneof![0u8..12, Just(0), Just(1)];
    let flags = prop_oneof![any::<u8>(), Just(0), Just(1), Just(4), Just(5)];
    let stream = prop_oneof![0u32..8, Just(1), Just(3)];
    (kind, flags, stream, payload).prop_map(|(kind, flags, stream, payload)| {
        let mut bytes = frame(FrameKind::Data, flags, stream, &payload);
        bytes[3] = kind;
        bytes
    })
}

/// The events that do not depend on how bytes are cut up. Content may be told in more steps, and
/// before it is found to be too long.
pub fn uncut(mut told: Vec<String>) -> Vec<String> {
    told.retain(|it| !it.ends_with("readable"));
    told
}

/// The content of a stream, and how it ends.
pub fn what_came<R: Role>(connection: &mut Core<R>, id: StreamId) -> String {
    let mut room = [0; 1000];
    let len = match connection.incoming(id) {
        // Of content that is too long, a part may have come.
        Some((Direction::Reset(_), _)) | None => 0,
        Some(_) => connection.read_content(id, &mut room),
    };
    let content = room[..len].escape_ascii().to_string();
    format!("{content} {:?}", connection.incoming(id))
}
