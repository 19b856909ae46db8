use proptest::prelude::*;

use super::*;
use crate::hpack::Decoder;

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        // As it is, in whatever case.
        block.extend([0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// The text, and the head.
fn read(
    fields: &[(&str, &str)],
    method: Method,
    ends: bool,
) -> Result<(String, ResponseHead), ResponseFault> {
    let (mut out, mut head) = (b"of before".to_vec(), ResponseHead::default());
    let block = block(fields);
    let mut decoder = Decoder::default();
    read_response(
        decoder.block(&block),
        &mut out,
        &mut head,
        16_384,
        method,
        ends,
    )?;
    // HTTP/1 reads the same from its text.
    let mut again = ResponseHead::default();
    let parsed = http1::parse_response(&out, method, &mut again).unwrap();
    assert_eq!(parsed, http1::Parsed::Complete);
    assert_eq!((head.status, head.version), (again.status, Version::Http2));
    assert_eq!((head.reason, head.wire.end), (again.reason, again.wire.end));
    assert_eq!(head.wire.end, out.len());
    let is_tunnel = method == Method::Connect && (200..300).contains(&head.status);
    if !is_tunnel {
        assert_eq!(head.wire.framing, again.wire.framing);
        assert_eq!(head.fields, again.fields);
    }
    Ok((String::from_utf8(out).unwrap(), head))
}

#[test]
fn a_head_is_text_of_http1() {
    let fields = [
        (":status", "200"),
        ("content-type", "a/b"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("content-length", "5"),
    ];
    let (text, head) = read(&fields, Method::Get, false).unwrap();
    assert_eq!(
        text,
        "HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
         content-length: 5\r\n\r\n"
    );
    assert_eq!(head.status, 200);
    assert_eq!(head.wire.framing, BodyFraming::Length { bytes: 5 });
    for (status, reason) in [
        ("103", "Early Hints"),
        ("204", "No Content"),
        ("404", "Not Found"),
        ("999", "Status"),
    ] {
        let (text, head) = read(&[(":status", status)], Method::Get, false).unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} {reason}\r\n")));
        assert_eq!(head.reason.of(text.as_bytes()), reason.as_bytes());
        assert_eq!(head.status.to_string(), status);
    }
}

#[test]
fn a_body_is_framed_as_its_head_says() {
    use BodyFraming::{Chunked, Length, None, UntilClose};
    use Method::{Connect, Get, Head};
    for (method, status, length, ends, framing, line) in [
        (Get, "200", "", false, Chunked, "transfer-encoding: chunked"),
        (Get, "200", "", true, None, "content-length: 0"),
        (Get, "200", "0", true, None, "content-length: 0"),
        (Get, "200", "0", false, None, "content-length: 0"),
        (Get, "200", "7", false, Length { bytes: 7 }, ""),
        (Get, "103", "", false, None, ""),
        (Get, "204", "", true, None, ""),
        (Get, "204", "7", false, None, ""),
        (Get, "304", "7", true, None, ""),
        (Get, "304", "", true, None, ""),
        (Head, "200", "7", true, None, ""),
        (Head, "200", "", true, None, ""),
        (Connect, "200", "", false, UntilClose, ""),
        (Connect, "200", "7", false, UntilClose, ""),
        (Connect, "200", "", true, None, ""),
        (
            Connect,
            "404",
            "",
            false,
            Chunked,
            "transfer-encoding: chunked",
        ),
    ] {
        let mut fields = vec![(":status", status)];
        if !length.is_empty() {
            fields.push(("content-length", length));
        }
        let (text, head) = read(&fields, method, ends).unwrap();
        let case = format!("{method:?} {status} {length:?} {ends}: {text}");
        assert_eq!(head.wire.framing, framing, "{case}");
        let lines = text.lines().skip(1).filter(|it| !it.is_empty());
        let lines: Vec<_> = lines.filter(|it| !it.ends_with(" 7")).collect();
        assert_eq!(lines.concat(), line, "{case}");
    }
}

#[test]
fn what_breaks_the_rules_is_refused() {
    use ResponseError::{Field, Framing, StatusLine, TooManyFields, Upgrade};
    let status = (":status", "200");
    for (fields, ends, error) in [
        (vec![], true, StatusLine),
        (vec![("a", "b")], true, StatusLine),
        (vec![("a", "b"), status], true, StatusLine),
        (vec![status, status], true, StatusLine),
        (vec![status, ("a", "b"), status], true, StatusLine),
        (vec![status, (":path", "/")], true, StatusLine),
        (vec![(":path", "/"), status], true, StatusLine),
        (vec![status, (":other", "1")], true, StatusLine),
        (vec![(":status", "")], true, StatusLine),
        (vec![(":status", "20")], true, StatusLine),
        (vec![(":status", "2000")], true, StatusLine),
        (vec![(":status", "099")], true, StatusLine),
        (vec![(":status", "2x0")], true, StatusLine),
        (vec![(":status", "+20")], true, StatusLine),
        (vec![(":status", "200 OK")], true, StatusLine),
        (vec![(":status", "101")], false, Upgrade),
        (vec![(":status", "103")], true, Framing),
        (vec![status, ("Accept", "1")], true, Field),
        (vec![status, ("", "1")], true, Field),
        (vec![status, ("a b", "1")], true, Field),
        (vec![status, ("a:", "1")], true, Field),
        (vec![status, ("a\r\nb", "1")], true, Field),
        (vec![status, ("a", "1\r\nb: 2")], true, Field),
        (vec![status, ("a", "1\n")], true, Field),
        (vec![status, ("a", "\0")], true, Field),
        (vec![status, ("a", " 1")], true, Field),
        (vec![status, ("a", "1\t")], true, Field),
        (vec![status, ("connection", "close")], true, Field),
        (vec![status, ("keep-alive", "1")], true, Field),
        (vec![status, ("proxy-connection", "close")], true, Field),
        (vec![status, ("transfer-encoding", "chunked")], false, Field),
        (vec![status, ("upgrade", "websocket")], true, Field),
        (vec![status, ("te", "trailers")], true, Field),
        (vec![status, ("content-length", "x")], false, Framing),
        (vec![status, ("content-length", "5")], true, Framing),
        (
            vec![status, ("content-length", "5"), ("content-length", "6")],
            false,
            Framing,
        ),
        (
            [vec![status], vec![("a", "1"); MAX_RESPONSE_FIELDS + 1]].concat(),
            true,
            TooManyFields,
        ),
    ] {
        let refused = Some(ResponseFault::Refused(error));
        assert_eq!(
            read(&fields, Method::Get, ends).err(),
            refused,
            "{fields:?}"
        );
    }
    // A server may do the same as by HTTP/1.
    let same = [status, ("content-length", "5"), ("content-length", "5")];
    let (_, head) = read(&same, Method::Get, false).unwrap();
    assert_eq!(head.wire.framing, BodyFraming::Length { bytes: 5 });
}

#[test]
fn a_head_that_is_too_large_leaves_the_table_right() {
    let mut decoder = Decoder::default();
    let (mut out, mut head) = (Vec::new(), ResponseHead::default());
    let mut read = |sent: &[u8], out: &mut Vec<u8>| {
        let block = decoder.block(sent);
        read_response(block, out, &mut head, 1000, Method::Get, true)
    };
    let long = "v".repeat(100);
    let mut sent = vec![0x88];
    for number in 0..40 {
        let name = format!("x-{number}");
        // With a place in the table.
        sent.extend([0x40, name.len() as u8]);
        sent.extend_from_slice(name.as_bytes());
        sent.push(long.len() as u8);
        sent.extend_from_slice(long.as_bytes());
    }
    let too_large = ResponseFault::Refused(ResponseError::HeadTooLarge);
    assert_eq!(read(&sent, &mut out), Err(too_large));
    assert!(out.capacity() < 4000, "{}", out.capacity());
    read(&[0x88, 0x80 | 62], &mut out).unwrap();
    let line = format!("x-39: {long}\r\n");
    assert!(String::from_utf8(out).unwrap().contains(&line));
}

proptest! {
    #[test]
    fn no_line_is_smuggled_in(
        fields in proptest::collection::vec(("[:a-zA-Z\\-\r\n ]{0,9}", "[ -~\r\n\t]{0,20}"), 0..6),
        status in "200|[0-9\r\n ]{3,4}",
        ends in any::<bool>(),
    ) {
        let mut all = vec![(":status", &*status)];
        all.extend(fields.iter().map(|(name, value)| (&**name, &**value)));
        // It compares with what HTTP/1 reads.
        let read = read(&all, Method::Get, ends);
        if let Ok((text, head)) = read {
            prop_assert_eq!(text.matches("\r\n").count(), head.fields.len() + 2);
            prop_assert!(!text.replace("\r\n", "").contains(['\r', '\n']));
        }
    }
}
