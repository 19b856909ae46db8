use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

/// In Miri, which is slow, one input of so many, and only short ones.
const MIRI_SAMPLE: usize = 16;
const MIRI_LEN: usize = 256;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Runs a target over its corpus.
fn replay(target: &str, run: fn(&[u8])) {
    let mut count = 0;
    for entry in std::fs::read_dir(folder().join("corpus").join(target)).unwrap() {
        let path = entry.unwrap().path();
        count += 1;
        let input = std::fs::read(&path).unwrap();
        if cfg!(miri) && (count % MIRI_SAMPLE != 0 || input.len() > MIRI_LEN) {
            continue;
        }
        eprintln!("{}", path.display());
        run(&input);
    }
    assert!(count > 10, "{target} has {count} inputs");
}

#[test]
fn every_target_is_replayed() {
    let here = [
        "chunked_body",
        "file_request",
        "hpack_block",
        "http2_client",
        "http2_server",
        "proxy_header",
        "request_head",
        "response_head",
    ];
    // By the program, in `observe::access_log::fuzz`.
    let elsewhere = ["access_log_line"];
    let replayed: BTreeSet<_> = here.into_iter().chain(elsewhere).map(Into::into).collect();
    for list in ["corpus", "fuzz_targets"] {
        let entries = std::fs::read_dir(folder().join(list)).unwrap();
        let names = entries.map(|entry| entry.unwrap().path());
        let names: BTreeSet<_> = names
            .map(|path| path.file_stem().unwrap().to_owned())
            .collect();
        assert_eq!(names, replayed, "{list}");
    }
}

#[test]
fn request_heads() {
    replay("request_head", super::request_head);
}

#[test]
fn proxy_headers() {
    replay("proxy_header", super::proxy_header);
}

#[test]
fn response_heads() {
    replay("response_head", super::response_head);
}

#[test]
fn file_requests() {
    replay("file_request", super::file_request);
}

#[test]
fn chunked_bodies() {
    replay("chunked_body", super::chunked_body);
}

#[test]
fn hpack_blocks() {
    replay("hpack_block", super::hpack_block);
}

#[test]
fn http2_servers() {
    replay("http2_server", super::http2_server);
}

#[test]
fn http2_clients() {
    replay("http2_client", super::http2_client);
}

/// A frame of any kind and flags, or bytes that are none.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let head = prop_oneof![
        Just(b"\x82\x86\x84\x01\x01a".to_vec()),
        Just(b"\x88".to_vec()),
        Just(b"\x88\x0f\x0d\x011".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..60),
    ];
    let frame = (0u8..12, any::<u8>(), 0u8..8, head).prop_map(|(kind, flags, stream, payload)| {
        let head = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        [&head[..], &payload].concat()
    });
    prop_oneof![9 => frame, 1 => proptest::collection::vec(any::<u8>(), 0..20)]
}

proptest! {
    /// Any input: nothing panics, and the memory of a connection is bounded.
    #[test]
    fn either_end_takes_any_frames(
        seed in any::<u8>(),
        step in 0u8..40,
        frames in proptest::collection::vec(any_frame(), 0..30),
    ) {
        let data = [&[seed, step][..], &frames.concat()].concat();
        super::http2_server(&data);
        super::http2_client(&data);
        super::hpack_block(&data[1..]);
    }
}
