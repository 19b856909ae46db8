use proptest::prelude::*;

use super::*;
use crate::hpack::Decoder;
use crate::wire::BodyFraming;

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

/// The text from the request line on, and the head.
fn read(
    fields: &[(&str, &str)],
    ends: bool,
) -> Result<(String, RequestHead, RequestExtras), HeadFault> {
    let (mut out, mut head) = (Vec::new(), RequestHead::default());
    let block = block(fields);
    let mut decoder = Decoder::default();
    let mut reader = RequestReader::default();
    let asked = reader.read(decoder.block(&block), &mut out, &mut head, 16_384, ends, 1)?;
    // HTTP/1 reads the same from its text.
    let text = out[head.wire.start..].to_vec();
    let mut again = RequestHead::default();
    let parsed = http1::parse_request(&text, &mut again).unwrap();
    assert_eq!(parsed, http1::Parsed::Complete);
    let texts = |head: &RequestHead, from: &[u8]| -> Vec<Vec<u8>> {
        let spans = [
            head.method_span,
            head.target,
            head.path_and_query,
            head.path_span,
            head.query,
            head.host,
        ];
        let fields = head.fields.iter().flat_map(|it| [it.name, it.value]);
        spans
            .into_iter()
            .chain(fields)
            .map(|it| it.of(from).to_vec())
            .collect()
    };
    assert_eq!(texts(&head, &out), texts(&again, &text));
    assert_eq!(head.wire.framing, again.wire.framing);
    assert_eq!(head.wire.expect_continue, again.wire.expect_continue);
    assert_eq!(head.method, again.method);
    assert_eq!(
        (head.version, again.version),
        (Version::Http2, Version::Http11)
    );
    let kinds = |it: &RequestHead| it.fields.iter().map(|it| it.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&head), kinds(&again));
    Ok((String::from_utf8(text).unwrap(), head, asked))
}

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.test"),
    (":path", "/x?y=1"),
];

fn with<'a>(fields: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GET.into_iter().chain(fields.iter().copied()).collect()
}

#[test]
fn a_head_is_text_of_http1() {
    let (text, head, asked) = read(&with(&[("accept", "*/*"), ("x-a", "")]), true).unwrap();
    assert_eq!(
        text,
        "GET /x?y=1 HTTP/1.1\r\nhost: a.test\r\naccept: */*\r\nx-a: \r\n\r\n"
    );
    assert_eq!(head.wire.framing, BodyFraming::None);
    assert_eq!(asked.scheme, Some(Scheme::Https));
    // Without any field but these.
    assert!(read(&GET, true).is_ok());
}

#[test]
fn a_body_is_framed_as_its_head_says() {
    for (fields, ends, framing, line) in [
        (
            &[][..],
            false,
            BodyFraming::Chunked,
            "transfer-encoding: chunked\r\n",
        ),
        (
            &[("content-length", "5")],
            false,
            BodyFraming::Length { bytes: 5 },
            "",
        ),
        (&[("content-length", "0")], false, BodyFraming::None, ""),
        (&[("content-length", "0")], true, BodyFraming::None, ""),
    ] {
        let (text, head, _) = read(&with(fields), ends).unwrap();
        assert_eq!(head.wire.framing, framing);
        assert_eq!(text.contains("transfer-encoding"), !line.is_empty());
    }
    let fields = with(&[("content-length", "5")]);
    assert_eq!(read(&fields, true).err(), Some(HeadFault::Malformed));
}

#[test]
fn crumbs_are_one_cookie() {
    let fields = with(&[("cookie", "a=1"), ("accept", "*/*"), ("cookie", "b=2")]);
    let (text, ..) = read(&fields, true).unwrap();
    assert!(
        text.ends_with("accept: */*\r\ncookie: a=1; b=2\r\n\r\n"),
        "{text}"
    );
}

#[test]
fn host_and_authority_are_one() {
    let (text, ..) = read(&with(&[("host", "A.test")]), true).unwrap();
    assert_eq!(text.matches("ost:").count(), 1, "{text}");
    let other = with(&[("host", "b.test")]);
    assert_eq!(read(&other, true).err(), Some(HeadFault::Malformed));
    let bare = [GET[0], GET[1], GET[3], ("host", "b.test")];
    assert!(read(&bare, true).unwrap().0.contains("host: b.test"));
    let none = [GET[0], GET[1], GET[3]];
    let missing = HeadFault::Refused(RequestError::HostMissing);
    assert_eq!(read(&none, true).err(), Some(missing));
}

#[test]
fn what_breaks_the_rules_is_malformed() {
    let [method, scheme, authority, path] = GET;
    for fields in [
        // Pseudo-fields: unknown, missing, twice, of responses, behind others.
        with(&[(":other", "1")]),
        vec![scheme, authority, path],
        vec![method, authority, path],
        vec![method, scheme, authority],
        vec![method, scheme, authority, (":path", "")],
        vec![method, method, scheme, authority, path],
        with(&[(":path", "/")]),
        with(&[(":status", "200")]),
        vec![method, scheme, authority, ("a", "1"), path],
        // Targets of other forms.
        vec![method, scheme, authority, (":path", "http://a.test/")],
        vec![method, scheme, authority, (":path", "*")],
        vec![method, scheme, authority, (":path", "x")],
        vec![method, scheme, authority, (":path", "/a b")],
        vec![method, scheme, authority, (":path", "/ HTTP/1.1\r\nx: y")],
        vec![(":method", "GET /"), scheme, authority, path],
        vec![(":method", ""), scheme, authority, path],
        vec![method, (":scheme", "ftp"), authority, path],
        // CONNECT has an authority alone.
        vec![(":method", "CONNECT"), scheme, authority, path],
        vec![(":method", "CONNECT"), authority, path],
        vec![(":method", "CONNECT")],
        with(&[(":protocol", "websocket")]),
        // Names and values.
        with(&[("Accept", "*/*")]),
        with(&[("", "1")]),
        with(&[("a b", "1")]),
        with(&[("a:", "1")]),
        with(&[("a\r\nb", "1")]),
        with(&[("a", "1\r\nb: 2")]),
        with(&[("a", "1\n")]),
        with(&[("a", "\0")]),
        with(&[("a", " 1")]),
        with(&[("a", "1\t")]),
        // Of the connection.
        with(&[("connection", "close")]),
        with(&[("keep-alive", "1")]),
        with(&[("proxy-connection", "close")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("upgrade", "websocket")]),
        with(&[("te", "gzip")]),
    ] {
        assert_eq!(
            read(&fields, true).err(),
            Some(HeadFault::Malformed),
            "{fields:?}"
        );
    }
    assert!(read(&with(&[("te", "trailers")]), true).is_ok());
    let options = [(":method", "OPTIONS"), scheme, authority, (":path", "*")];
    assert!(read(&options, true).is_ok());
}

#[test]
fn what_breaks_http_is_refused() {
    for (fields, error) in [
        (
            with(&[("content-length", "x")]),
            RequestError::ContentLength,
        ),
        (
            with(&[("content-length", "1"), ("content-length", "1")]),
            RequestError::ContentLengthRepeated,
        ),
        (with(&[("expect", "magic")]), RequestError::Expectation),
        (
            vec![GET[0], GET[1], (":authority", "u@a.test"), GET[3]],
            RequestError::HostInvalid,
        ),
        (with(&vec![("a", "1"); 128]), RequestError::TooManyFields),
    ] {
        let refused = Some(HeadFault::Refused(error));
        assert_eq!(read(&fields, false).err(), refused, "{fields:?}");
    }
}

#[test]
fn tunnels_have_their_own_form() {
    let plain = [(":method", "CONNECT"), (":authority", "a.test:443")];
    let (text, head, asked) = read(&plain, false).unwrap();
    assert!(text.starts_with("CONNECT a.test:443 HTTP/1.1\r\nhost: a.test:443\r\n"));
    assert_eq!((head.method, asked.scheme), (Method::Connect, None));

    let mut extended = GET.to_vec();
    extended[0].1 = "CONNECT";
    extended.push((":protocol", "websocket"));
    let (text, head, asked) = read(&extended, false).unwrap();
    assert_eq!(
        text,
        "GET /x?y=1 HTTP/1.1\r\nhost: a.test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAQ==\r\n\r\n"
    );
    assert!(asked.opens_websocket && head.wire.upgrade.is_some());
    assert_eq!(head.wire.framing, BodyFraming::None);
    extended.push(("content-length", "1"));
    assert_eq!(read(&extended, false).unwrap_err(), HeadFault::Malformed);
    // No other protocol is known.
    let other = [&extended[..4], &[(":protocol", "connect-udp")]].concat();
    let refused = HeadFault::Refused(RequestError::Target);
    assert_eq!(read(&other, false).unwrap_err(), refused);
}

#[test]
fn keys_of_websockets_are_sixteen_bytes() {
    assert_eq!(&websocket_key(0), b"AAAAAAAAAAAAAAAAAAAAAA==");
    assert_eq!(&websocket_key(u128::MAX), b"/////////////////////w==");
    assert_eq!(&websocket_key(1 << 127 | 3), b"gAAAAAAAAAAAAAAAAAAAAw==");
}

#[test]
fn a_head_that_is_too_large_leaves_the_table_right() {
    let mut decoder = Decoder::default();
    let mut reader = RequestReader::default();
    let (mut out, mut head) = (Vec::new(), RequestHead::default());
    let long = "v".repeat(100);
    let fields: Vec<_> = (0..40)
        .map(|number| (format!("x-{number}"), long.clone()))
        .collect();
    let mut sent = block(&GET);
    for (name, value) in &fields {
        // With a place in the table.
        sent.extend([0x40, name.len() as u8]);
        sent.extend_from_slice(name.as_bytes());
        sent.push(value.len() as u8);
        sent.extend_from_slice(value.as_bytes());
    }
    let refused = reader.read(decoder.block(&sent), &mut out, &mut head, 1000, true, 1);
    let too_large = HeadFault::Refused(RequestError::HeadTooLarge);
    assert_eq!(refused, Err(too_large));
    assert!(out.capacity() < 4000, "{}", out.capacity());
    let mut next = block(&GET);
    next.push(0x80 | 62);
    reader
        .read(decoder.block(&next), &mut out, &mut head, 1000, true, 1)
        .unwrap();
    assert!(out.ends_with(format!("x-39: {long}\r\n\r\n").as_bytes()));
}

proptest! {
    #[test]
    fn no_line_is_smuggled_in(
        fields in proptest::collection::vec(("[:a-zA-Z\\-\r\n ]{0,9}", "[ -~\r\n\t]{0,20}"), 0..6),
        path in "[ -~\r\n]{0,20}",
        authority in "[ -~\r\n]{0,20}",
        ends in any::<bool>(),
    ) {
        let mut all = vec![
            (":method", "POST"), (":scheme", "http"), (":authority", &*authority), (":path", &*path),
        ];
        all.extend(fields.iter().map(|(name, value)| (&**name, &**value)));
        // It compares with what HTTP/1 reads.
        if let Ok((text, head, _)) = read(&all, ends) {
            prop_assert_eq!(text.matches("\r\n").count(), head.fields.len() + 2);
            prop_assert!(!text.replace("\r\n", "").contains(['\r', '\n']));
        }
    }
}
