//! A request's head as a block of fields (RFC 9113 §8.3.1).

use super::super::fields::{name_and_value, push_fields};
use crate::field::FieldKind;
use crate::head::{Method, Scheme};
use crate::hpack::encode;

/// The parts of a head that have no place in HTTP/1.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    /// The scheme of the URL that is asked for.
    pub scheme: Scheme,
    /// Whether the sender takes trailers.
    pub trailers: Trailers,
    /// The protocol of an extended CONNECT (RFC 8441 §4), which then replaces the method. Only a
    /// peer that [allows it](crate::http2::client::Connection::allows_extended_connect) takes
    /// one.
    pub protocol: Option<&'a [u8]>,
}

/// Whether the sender of a request takes trailers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trailers {
    /// `te: trailers` is sent.
    Accepted,
    /// Nothing is said of them.
    Untold,
}

/// Numbers of the static table.
const AUTHORITY: u8 = 1;
const METHOD: u8 = 2;
const PATH: u8 = 4;
const SCHEME: u8 = 6;

/// Appends the block of a head that is text of HTTP/1, as
/// [`request_head`](crate::http1::write::request_head) writes it. Gives the method that the
/// block has: [`open`](crate::http2::client::Connection::open) wants to know it.
///
/// Fields that are about a connection are left out, and `Host` is `:authority`.
pub fn head_block(out: &mut Vec<u8>, text: &[u8], form: Form<'_>) -> Method {
    let lines = text.split(|&byte| byte == b'\n');
    let mut fields = lines.clone();
    let line = fields.next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (mut method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    if form.protocol.is_some() {
        method = b"CONNECT";
    }
    let kind = Method::from_token(method);
    let is_plain_connect = kind == Method::Connect && form.protocol.is_none();
    encode::with_static_name(out, METHOD, method);
    if let Some(protocol) = form.protocol {
        encode::field(out, b":protocol", protocol);
    }
    if is_plain_connect {
        encode::with_static_name(out, AUTHORITY, target);
    } else {
        encode::with_static_name(out, SCHEME, form.scheme.as_str().as_bytes());
        if let Some(host) = host(fields.clone()) {
            encode::with_static_name(out, AUTHORITY, host);
        }
        encode::with_static_name(out, PATH, target);
    }
    push_fields(out, fields, |kind, name| {
        // RFC 8441 §5: `:protocol` takes over its purpose.
        let is_key = form.protocol.is_some() && name.eq_ignore_ascii_case(b"sec-websocket-key");
        kind == FieldKind::Host || is_key
    });
    if form.trailers == Trailers::Accepted {
        encode::field(out, b"te", b"trailers");
    }
    kind
}

/// The value of `Host`, unless that is empty.
fn host<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let mut fields = lines.filter_map(name_and_value);
    let field = fields.find(|(name, _)| name.eq_ignore_ascii_case(b"host"));
    field.map(|it| it.1).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::Decoder;

    const PLAIN: Form<'_> = Form {
        scheme: Scheme::Https,
        trailers: Trailers::Untold,
        protocol: None,
    };

    fn block(text: &str, form: Form<'_>) -> (Method, String) {
        let mut block = Vec::new();
        let method = head_block(&mut block, text.as_bytes(), form);
        let mut decoder = Decoder::default();
        let mut block = decoder.block(&block);
        let mut text = Vec::new();
        while block.next(&mut text).unwrap().is_some() {}
        (method, String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_head_loses_what_is_about_its_connection() {
        let text = "POST /a?b=c HTTP/1.1\r\nAccept: */*\r\nHost: a.test:8080\r\n\
            Connection: close, x-a\r\nKeep-Alive: timeout=3\r\nTransfer-Encoding: chunked\r\n\
            TE: gzip\r\nUpgrade: h2c\r\nProxy-Connection: close\r\nCookie: a=b; c=d\r\n\
            X-Empty:\r\nContent-Length: 3\r\n\r\n";
        let (method, found) = block(text, PLAIN);
        let expected = ":method: POST\r\n:scheme: https\r\n:authority: a.test:8080\r\n\
            :path: /a?b=c\r\naccept: */*\r\ncookie: a=b; c=d\r\nx-empty: \r\n\
            content-length: 3\r\n";
        assert_eq!((method, &*found), (Method::Post, expected));
        let form = Form {
            scheme: Scheme::Http,
            trailers: Trailers::Accepted,
            ..PLAIN
        };
        let expected = expected.replace("https", "http") + "te: trailers\r\n";
        assert_eq!(block(text, form).1, expected);
    }

    #[test]
    fn targets_have_their_forms() {
        for (text, method, expected) in [
            (
                "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                Method::Get,
                ":method: GET\r\n:scheme: https\r\n:authority: a\r\n:path: /\r\n",
            ),
            (
                "OPTIONS * HTTP/1.1\r\nHost: \r\n\r\n",
                Method::Options,
                ":method: OPTIONS\r\n:scheme: https\r\n:path: *\r\n",
            ),
            (
                "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
                Method::Connect,
                ":method: CONNECT\r\n:authority: a.test:443\r\n",
            ),
        ] {
            let (found, text) = block(text, PLAIN);
            assert_eq!((found, &*text), (method, expected));
        }
    }

    #[test]
    fn an_upgrade_is_an_extended_connect() {
        let text = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\
            Connection: upgrade\r\nSec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n\r\n";
        let form = Form {
            protocol: Some(b"websocket"),
            ..PLAIN
        };
        let expected = ":method: CONNECT\r\n:protocol: websocket\r\n:scheme: https\r\n\
            :authority: a\r\n:path: /chat\r\nsec-websocket-version: 13\r\n";
        assert_eq!(block(text, form), (Method::Connect, expected.to_owned()));
    }

    #[test]
    fn a_request_is_read_back() {
        let text = "PUT /x HTTP/1.1\r\nhost: a.test\r\naccept: */*\r\ncontent-length: 5\r\n\r\n";
        let mut block = Vec::new();
        head_block(&mut block, text.as_bytes(), PLAIN);
        let mut decoder = Decoder::default();
        let (mut out, mut head) = (Vec::new(), crate::RequestHead::default());
        let mut reader = super::super::RequestReader::default();
        let read = reader.read(decoder.block(&block), &mut out, &mut head, 9999, false, 1);
        read.unwrap();
        assert_eq!(&out[head.wire.start..], text.as_bytes());
    }
}
