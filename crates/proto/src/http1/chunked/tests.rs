use super::super::{BodyDecoder, MAX_FIELDS};
use super::*;
use crate::wire::BodyFraming;

/// Strips `body` in pieces of so many bytes: content, bytes taken, and
/// whether the end was seen.
fn strip(body: &[u8], piece_len: usize) -> Result<(Vec<u8>, usize, bool), BodyError> {
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    let (mut content, mut taken) = (Vec::new(), 0);
    for read in (0..body.len()).step_by(piece_len) {
        if decoder.is_done() {
            break;
        }
        let end = (read + piece_len).min(body.len());
        let mut input = body[taken..end].to_vec();
        let advance = decoder.strip(&mut input)?;
        content.extend_from_slice(&input[..advance.kept]);
        taken += advance.consumed;
    }
    Ok((content, taken, decoder.is_done()))
}

#[test]
#[cfg_attr(miri, ignore = "an interpreter takes minutes for so much")]
fn decodes() {
    let huge = format!("0\r\nA: {}\r\n\r\n", "b".repeat(MAX_TRAILER_LEN - 7));
    for (body, content, rest_len) in [
        ("0\r\n\r\n", "", 0),
        ("3\r\nabc\r\n0\r\n\r\n", "abc", 0),
        ("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "abcde", 0),
        ("0000003\r\nabc\r\n000\r\n\r\nGET /", "abc", 5),
        ("A\r\n0123456789\r\n0\r\n\r\n0\r\n\r\n", "0123456789", 5),
        ("1\r\n\r\r\n0\r\nX: y\r\nEtag: z\r\n\r\nrest", "\r", 4),
        (huge.as_str(), "", 0),
    ] {
        for piece_len in [usize::MAX, 1, 2, 3, 7] {
            let expected = (content.as_bytes().to_vec(), body.len() - rest_len, true);
            assert_eq!(
                strip(body.as_bytes(), piece_len),
                Ok(expected),
                "{}",
                &body[..body.len().min(60)]
            );
        }
    }
}

#[test]
fn refuses() {
    use BodyError::*;
    let huge = format!("0\r\nA: {}\r\n\r\n", "b".repeat(MAX_TRAILER_LEN - 6));
    let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
    let long_extension = format!("3;{}\r\nabc", "a".repeat(MAX_EXTENSION_LEN - 2));
    let many_bare = many.replacen("b\r\n", "b\n", 1);
    for (body, error) in [
        ("\r\n", ChunkSize),
        ("x\r\n", ChunkSize),
        ("0x3\r\nabc\r\n", ChunkSize),
        ("+3\r\nabc\r\n", ChunkSize),
        (" 3\r\nabc\r\n", ChunkSize),
        ("3_0\r\n", ChunkSize),
        ("3\nabc\r\n", ChunkSize),
        ("3\rabc\r\n", ChunkSize),
        ("00000000000000003\r\nabc\r\n", ChunkSize),
        ("10000000000000003\r\nabc\r\n", ChunkSize),
        ("8000000000000000\r\n", ChunkSize),
        ("ffffffffffffffff\r\n", ChunkSize),
        ("1\r\na\r\n7fffffffffffffff\r\n", ChunkSize),
        ("3;\r\nabc\r\n", ChunkExtension),
        ("3;a=b\nabc\r\n", ChunkExtension),
        ("3;a\rb\r\nabc\r\n", ChunkExtension),
        ("3 \nabc\r\n", ChunkExtension),
        ("3 a\r\nabc\r\n", ChunkExtension),
        ("3;a=\r\nabc\r\n", ChunkExtension),
        ("3;a;\r\nabc\r\n", ChunkExtension),
        ("3;a=\"b\nc\"\r\nabc\r\n", ChunkExtension),
        ("3;a=\"b\\\r\nc\"\r\nabc\r\n", ChunkExtension),
        ("3;a=\"b\"c\r\nabc\r\n", ChunkExtension),
        (long_extension.as_str(), ChunkExtension),
        ("2\r\nabc\r\n", ChunkEnd),
        ("3\r\nabc\n0\r\n", ChunkEnd),
        ("3\r\nabc\rx", ChunkEnd),
        ("3\r\nabc0\r\n", ChunkEnd),
        ("0\r\n\n", Trailer),
        ("0\r\n\rx", Trailer),
        ("0\r\nno colon\r\n\r\n", Trailer),
        ("0\r\nX : y\r\n\r\n", Trailer),
        ("0\r\nX: y\r\n z\r\n\r\n", Trailer),
        ("0\r\nX: y\n\r\n", Trailer),
        ("0\r\nX: y\nZ: ", Trailer),
        ("0\r\nX: \0\r\n\r\n", Trailer),
        (huge.as_str(), TrailerTooLarge),
        (many.as_str(), TrailerTooLarge),
        (many_bare.as_str(), Trailer),
    ] {
        for piece_len in [usize::MAX, 1, 2, 3, 7] {
            assert_eq!(
                strip(body.as_bytes(), piece_len),
                Err(error),
                "{}",
                &body[..body.len().min(60)]
            );
        }
    }
}

/// Restates `body` in pieces of so many bytes.
fn restate(body: &[u8], piece_len: usize) -> (Vec<u8>, bool) {
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    let (mut out, mut taken) = (Vec::new(), 0);
    for read in (0..body.len()).step_by(piece_len) {
        let end = read.saturating_add(piece_len).min(body.len());
        let mut input = body[taken..end].to_vec();
        let advance = decoder.restate(&mut input).unwrap();
        out.extend_from_slice(&input[..advance.kept]);
        taken += advance.consumed;
    }
    assert!(decoder.is_done());
    (out, decoder.is_normal())
}

#[test]
fn leaves_out_what_does_not_go_on() {
    let long = "a".repeat(MAX_EXTENSION_LEN - 3);
    let long = format!("3;{long}\r\nabc\r\n0\r\n\r\n");
    for (body, restated) in [
        ("3  \r\nabc\r\n0\t\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        ("3;a\r\nabc\r\n0;b=c\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        (
            "3 ; a = \"x;\\\"\\\\ y\t\u{e9}\" ;b; c=d \r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
            "3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
        ),
        (long.as_str(), "3\r\nabc\r\n0\r\n\r\n"),
        (
            "1\r\na\r\n0\r\nA: b\r\nHost: c\r\nContent_Length: 3\r\nD:e \r\nX-Real.IP: f\r\n\r\n",
            "1\r\na\r\n0\r\nA: b\r\nD:e \r\n\r\n",
        ),
        ("0\r\nSet-Cookie: a\r\n\r\n", "0\r\n\r\n"),
        ("0;a\r\nX: y\r\nremote_user: a\r\n\r\n", "0\r\nX: y\r\n\r\n"),
    ] {
        for piece_len in [usize::MAX, 1, 2, 3, 7] {
            let (out, is_normal) = restate(body.as_bytes(), piece_len);
            assert_eq!(out, restated.as_bytes(), "{body:?}");
            assert!(!is_normal);
            let again = restate(&out, piece_len);
            assert_eq!(again, (out, true));
        }
    }
}

#[test]
fn no_trailer_names_what_only_a_head_may() {
    for name in [
        "Max_Forwards",
        "Proxy_Authorization",
        "Keep_Alive",
        "CDN_Loop",
        "X-Client-IP",
        "X_Cluster_Client_IP",
        "CF-Connecting-IP",
        "True-Client-IP",
        "X-Forwarded-User",
        "X-Forwarded-Prefix",
        "X-Auth-Request-User",
        "X-Original-URI",
        "X-Original-Host",
        "X-HTTP-Method",
        "Remote-Addr",
        "SSL-Client-S-DN",
        "X-WebAuth-User",
        "X-Host",
        "Client-IP",
        "authorization",
        "Content-Length",
        "Transfer_Encoding",
        "Date",
        "Forwarded",
        "Host",
        "Max-Forwards",
        "Remote-User",
        "Remote_User",
        "X-Forwarded-For",
        "X-HTTP-Method-Override",
        "X-Original-URL",
        "X-Real-IP",
        "X-Request-ID",
        "x_real_ip",
    ] {
        let body = format!("0\r\n{name}: a\r\n\r\n");
        let (out, _) = restate(body.as_bytes(), usize::MAX);
        assert_eq!(out, b"0\r\n\r\n", "{name}");
    }
}

#[test]
fn extensions_are_bounded_by_content() {
    let piece = |len: usize| format!("{len:x};{}\r\n{}\r\n", "a".repeat(999), "b".repeat(len));
    // 16 KiB and one byte of content for each byte of an extension.
    let restated = |body: String| {
        let mut body = body.into_bytes();
        BodyDecoder::new(BodyFraming::Chunked).restate(&mut body)
    };
    assert!(restated(piece(1).repeat(16)).is_ok());
    assert_eq!(
        restated(piece(1).repeat(17)),
        Err(BodyError::ChunkExtension)
    );
    assert!(restated(piece(1_000).repeat(100)).is_ok());
}

#[test]
fn announces_what_is_to_come() {
    let mut decoder = ChunkedDecoder::default();
    assert_eq!(
        decoder.piece(b"ff\r\nabc"),
        Ok(Piece::Framing {
            len: 4,
            extension_len: 0
        })
    );
    assert_eq!(decoder.data_bytes(), 255);
    assert_eq!(decoder.piece(b""), Ok(Piece::NeedMore));
    assert_eq!(decoder.piece(b"abc"), Ok(Piece::Data { len: 3 }));
}
