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

/// A frame of any kind.
pub fn any_frame(head_block: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let with_length = [&head_block[..], &fields(&[("content-length", "3")])].concat();
    let payload = prop_oneof![
        Just(head_block),
        Just(with_length),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    (0u8..12, any::<u8>(), 0u32..8, payload).prop_map(|(kind, flags, stream, payload)| {
        let mut bytes = frame(FrameKind::Data, flags, stream, &payload);
        bytes[3] = kind;
        bytes
    })
}
