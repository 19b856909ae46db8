//! Properties of whole messages, with generated ones.

use evenkeel_proto::http1::write::{
    self, ClientInfo, Forward, Marks, Persistence, ResponseEdits, Transcode, Via,
};
use evenkeel_proto::http1::{BodyDecoder, Parsed, parse_request, parse_response};
use evenkeel_proto::{BodyFraming, FieldKind, LoopId, Method, RequestHead, ResponseHead, Scheme};
use proptest::prelude::*;

const CLIENT: ClientInfo<'_> = ClientInfo {
    address: Some(b"192.0.2.1"),
    scheme: Scheme::Http,
    relayed: None,
    forward: Forward::NOTHING,
    default_host: b"app:8080",
    certificate: None,
    is_early: false,
    marks: Marks::NONE,
    loop_id: &LoopId::ZERO,
    via: Via::Kept,
};

/// Names that nothing here knows, so that all of them are carried.
fn field_lines() -> impl Strategy<Value = String> {
    let line = (
        "x-[a-z]{1,9}[A-Z0-9!~]?",
        "[ \t]?",
        "([!-~]([ -~\t]{0,20}[!-~])?)?",
    );
    let line = line.prop_map(|(name, space, value)| format!("{name}:{space}{value}\r\n"));
    proptest::collection::vec(line, 0..12).prop_map(|lines| lines.concat())
}

fn framing_line() -> impl Strategy<Value = (String, BodyFraming)> {
    prop_oneof![
        Just((String::new(), BodyFraming::None)),
        Just((
            "Transfer-Encoding:\tCHUNKED\r\n".to_owned(),
            BodyFraming::Chunked
        )),
        (1..1_000_000_000_000_000_000u64).prop_map(|bytes| {
            let line = format!("content-length:{bytes:019}\r\n");
            (line, BodyFraming::Length { bytes })
        }),
    ]
}

/// Content cut into chunks, and the same encoded.
fn chunked() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let chunks = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8);
    (
        chunks,
        any::<bool>(),
        "([Xx]-[a-z]{1,5}: [!-~]{0,9}\r\n){0,3}",
    )
        .prop_map(|(chunks, is_upper, trailer)| {
            let mut encoded = Vec::new();
            for chunk in &chunks {
                let size = if is_upper {
                    format!("{:X}\r\n", chunk.len())
                } else {
                    format!("{:04x}\r\n", chunk.len())
                };
                encoded.extend_from_slice(size.as_bytes());
                encoded.extend_from_slice(chunk);
                encoded.extend_from_slice(b"\r\n");
            }
            encoded.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
            (chunks.concat(), encoded)
        })
}

/// Strips `input`, read up to each of `cuts` in turn: content and bytes taken.
fn strip(input: &[u8], cuts: &[usize]) -> (Vec<u8>, usize) {
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    let (mut content, mut taken) = (Vec::new(), 0);
    for &cut in cuts {
        let mut piece = input[taken..cut.max(taken)].to_vec();
        let advance = decoder.strip(&mut piece).expect("a sound body");
        content.extend_from_slice(&piece[..advance.kept]);
        taken += advance.consumed;
    }
    assert!(decoder.is_done());
    (content, taken)
}

proptest! {
    #[test]
    fn what_is_written_of_a_request_reads_the_same(
        method in "[A-Z]{1,8}",
        path in "/[!-\"$-~]{0,30}",
        lines in field_lines(),
        (framing_line, framing) in framing_line(),
    ) {
        prop_assume!(method != "CONNECT");
        let request = format!("{method} {path} HTTP/1.1\r\n{framing_line}Host: h\r\n{lines}\r\n");
        let (mut head, mut again) = (RequestHead::default(), RequestHead::default());
        prop_assert_eq!(parse_request(request.as_bytes(), &mut head), Ok(Parsed::Complete));
        prop_assert_eq!(head.wire.framing, framing);
        let mut out = Vec::new();
        write::request_head(&mut out, request.as_bytes(), &head, CLIENT);
        prop_assert_eq!(parse_request(&out, &mut again), Ok(Parsed::Complete));
        prop_assert_eq!(again.wire.framing, framing);
        prop_assert_eq!(again.wire.end, out.len());
        prop_assert_eq!(again.target.of(&out), path.as_bytes());
        let text = String::from_utf8(out).expect("all of it is ASCII");
        prop_assert!(text.contains(&lines));
        // A second hop adds nothing to the carried fields and loses none.
        let mut twice = Vec::new();
        write::request_head(&mut twice, text.as_bytes(), &again, CLIENT);
        prop_assert!(String::from_utf8(twice).expect("ASCII").contains(&lines));
    }

    #[test]
    fn what_is_written_of_a_response_reads_the_same(
        status in 200u16..1000,
        reason in "[ -~]{0,20}",
        lines in field_lines(),
        (framing_line, framing) in framing_line(),
    ) {
        prop_assume!(status != 204 && status != 304);
        let response = format!("HTTP/1.1 {status} {reason}\r\n{lines}{framing_line}\r\n");
        let (mut head, mut again) = (ResponseHead::default(), ResponseHead::default());
        let bytes = response.as_bytes();
        prop_assert_eq!(parse_response(bytes, Method::Get, &mut head), Ok(Parsed::Complete));
        let (transcode, expected) = match framing {
            BodyFraming::None => (Transcode::Chunk, BodyFraming::Chunked),
            framing => (Transcode::Raw, framing),
        };
        let mut out = Vec::new();
        let edits = ResponseEdits {
            transcode,
            persistence: Persistence::Keep,
            request_id: None,
        strict_transport: None,
        };
        write::response_head(&mut out, bytes, &head, edits, None);
        prop_assert_eq!(parse_response(&out, Method::Get, &mut again), Ok(Parsed::Complete));
        prop_assert_eq!(again.wire.framing, expected);
        prop_assert_eq!(again.status, status);
        prop_assert_eq!(again.reason.of(&out), reason.as_bytes());
        prop_assert!(again.wire.keep_alive);
        prop_assert!(String::from_utf8(out).expect("ASCII").contains(&lines));
    }

    #[test]
    fn stripping_undoes_the_chunks_however_they_are_cut(
        (content, encoded) in chunked(),
        rest in proptest::collection::vec(any::<u8>(), 0..50),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let input = [encoded.as_slice(), &rest].concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.push(input.len());
        cuts.sort_unstable();
        prop_assert_eq!(strip(&input, &cuts), (content, encoded.len()));
    }

    #[test]
    fn advancing_stops_at_the_end(
        (_, encoded) in chunked(),
        rest in proptest::collection::vec(any::<u8>(), 0..50),
        bytes in 0u64..300,
    ) {
        let input = [encoded.as_slice(), &rest].concat();
        for (framing, len) in [
            (BodyFraming::Chunked, encoded.len()),
            (BodyFraming::Length { bytes }, input.len().min(bytes as usize)),
            (BodyFraming::None, 0),
        ] {
            let mut decoder = BodyDecoder::new(framing);
            let advance = decoder.advance(&input).expect("a sound body");
            prop_assert_eq!(advance.consumed, len);
            if decoder.is_done() {
                let after = decoder.advance(&rest).expect("nothing is read any more");
                prop_assert_eq!(after.consumed, 0);
            }
        }
    }

    #[test]
    fn every_case_of_a_name_is_known(mask in any::<u32>()) {
        for (name, kind) in [
            ("host", FieldKind::Host),
            ("content-length", FieldKind::ContentLength),
            ("transfer-encoding", FieldKind::TransferEncoding),
            ("connection", FieldKind::Connection),
            ("http2-settings", FieldKind::HopByHop),
            ("x-forwarded-proto", FieldKind::Forwarded),
        ] {
            let spelled: Vec<u8> = name
                .bytes()
                .enumerate()
                .map(|(index, byte)| match mask >> index & 1 {
                    1 => byte.to_ascii_uppercase(),
                    _ => byte,
                })
                .collect();
            prop_assert_eq!(FieldKind::from_name(&spelled), kind);
        }
    }
}
