//! TLS 1.2 and 1.3: a ClientHello, and the server's answer.
//!
//! The ClientHello has no key share. A server of TLS 1.3 answers with a
//! HelloRetryRequest, which is a ServerHello by its type: neither side computes a key,
//! and the server signs nothing. Certificates are not looked at.
//!
//! Source: RFC 8446 §4.1 and §6, RFC 6066 §3, RFC 5246 §7.

use super::{Dialogue, Fault, Step};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;
/// Longest ServerHello that is waited for.
const MAX_HELLO: usize = 4096;

const SUPPORTED_VERSIONS: u16 = 43;
const CIPHER_SUITES: [u16; 17] = [
    0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc009, 0xc013, 0xc00a,
    0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
];
const GROUPS: [u16; 4] = [0x001d, 0x0017, 0x0018, 0x0019];
const SIGNATURES: [u16; 11] = [
    0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0603, 0x0806, 0x0601, 0x0807, 0x0201,
];
/// The alerts user_canceled and close_notify (RFC 8446 §6.1), as warnings.
const FAREWELL: &[u8] = b"\x15\x03\x03\0\x02\x01\x5a\x15\x03\x03\0\x02\x01\0";

/// Greets a TLS server.
#[derive(Debug)]
pub struct Tls<'a> {
    server_name: Option<&'a str>,
    random: [u8; 32],
}

impl<'a> Tls<'a> {
    /// A ClientHello with this SNI. `random` stands in it as it is; it need not be secret.
    pub fn new(server_name: Option<&'a str>, random: [u8; 32]) -> Self {
        Tls {
            server_name,
            random,
        }
    }

    fn extensions(&self) -> Vec<u8> {
        let mut extensions = Vec::new();
        let mut add = |kind: u16, body: &[u8]| {
            extensions.extend_from_slice(&kind.to_be_bytes());
            extensions.extend_from_slice(&with_len(body));
        };
        if let Some(name) = self.server_name {
            let name = [&[0], &with_len(name.as_bytes())[..]].concat();
            add(0, &with_len(&name));
        }
        add(10, &with_len(&numbers(&GROUPS)));
        add(11, &[1, 0]);
        add(13, &with_len(&numbers(&SIGNATURES)));
        add(23, &[]);
        add(SUPPORTED_VERSIONS, &[4, 3, 4, 3, 3]);
        add(51, &[0, 0]);
        add(0xff01, &[0]);
        extensions
    }
}

impl Dialogue for Tls<'_> {
    fn opening(&self) -> Vec<u8> {
        let mut hello = vec![3, 3];
        hello.extend_from_slice(&self.random);
        // No session.
        hello.push(0);
        hello.extend_from_slice(&with_len(&numbers(&CIPHER_SUITES)));
        // No compression.
        hello.extend_from_slice(&[1, 0]);
        hello.extend_from_slice(&with_len(&self.extensions()));
        let message = [&[1, 0][..], &with_len(&hello)].concat();
        [&[HANDSHAKE, 3, 1][..], &with_len(&message)].concat()
    }

    fn awaited(&self) -> String {
        "ServerHello".to_owned()
    }

    fn handle_input(&mut self, input: &[u8]) -> Result<Step, Fault> {
        let unexpected = || Fault::unexpected("a ServerHello", input);
        let [kind, rest @ ..] = input else {
            return Ok(Step::Wait);
        };
        let is_record =
            matches!(*kind, ALERT | HANDSHAKE) && rest.first().is_none_or(|it| *it == 3);
        if !is_record {
            return Err(unexpected());
        }
        let Some([_, _, _, high, low]) = input.first_chunk() else {
            return Ok(Step::Wait);
        };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let record = &input[5..input.len().min(5 + len)];
        if *kind == ALERT {
            return match record {
                [1, code, ..] if *code != 0 => Ok(Step::Go {
                    consumed: 7,
                    send: Vec::new(),
                }),
                [_, code, ..] => Err(Fault::Refused { said: alert(*code) }),
                _ if len < 2 => Err(unexpected()),
                _ => Ok(Step::Wait),
            };
        }
        if record.first().is_some_and(|it| *it != SERVER_HELLO) || len < 4 {
            return Err(unexpected());
        }
        let Some([_, high, middle, low]) = record.first_chunk() else {
            return Ok(Step::Wait);
        };
        let hello_len = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        if hello_len > MAX_HELLO {
            return Err(unexpected());
        }
        // Further records of the server are not waited for.
        let hello_len = hello_len.min(len - 4);
        let Some(hello) = record.get(4..4 + hello_len) else {
            return Ok(Step::Wait);
        };
        let seen = match version(hello) {
            Some(version) => format!("ServerHello of {version}"),
            None => return Err(unexpected()),
        };
        Ok(Step::Alive {
            seen,
            farewell: FAREWELL.to_vec(),
        })
    }
}

/// The version that a server chose.
fn version(hello: &[u8]) -> Option<&'static str> {
    let (legacy, rest) = hello.split_first_chunk::<2>()?;
    let chosen = extension(rest, SUPPORTED_VERSIONS);
    let chosen = chosen.and_then(<[u8]>::first_chunk).unwrap_or(legacy);
    Some(match chosen {
        [3, 4] => "TLS 1.3",
        [3, 3] => "TLS 1.2",
        [3, 2] => "TLS 1.1",
        [3, 1] => "TLS 1.0",
        [3, 0] => "SSL 3.0",
        _ => return None,
    })
}

/// The body of an extension of a ServerHello, from its random on.
fn extension(hello: &[u8], wanted: u16) -> Option<&[u8]> {
    let session_len = usize::from(*hello.get(32)?);
    // The session, its length, the cipher suite, the compression and the length of all
    // extensions.
    let mut rest = hello.get(33 + session_len + 3 + 2..)?;
    loop {
        let (kind, tail) = rest.split_first_chunk()?;
        let (len, tail) = tail.split_first_chunk()?;
        let len = usize::from(u16::from_be_bytes(*len));
        let body = tail.get(..len)?;
        if u16::from_be_bytes(*kind) == wanted {
            return Some(body);
        }
        rest = &tail[len..];
    }
}

/// The name of an alert (RFC 8446 §6).
fn alert(code: u8) -> String {
    let name = match code {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        109 => "missing_extension",
        110 => "unsupported_extension",
        112 => "unrecognized_name",
        116 => "certificate_required",
        120 => "no_application_protocol",
        code => return format!("alert {code}"),
    };
    format!("alert {name}")
}

fn numbers(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_be_bytes()).collect()
}

/// Bytes after their length in two bytes.
fn with_len(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{end_of, play};
    use super::*;

    fn begin() -> Tls<'static> {
        Tls::new(Some("db.example"), [7; 32])
    }

    fn record(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3][..], &with_len(body)].concat()
    }

    fn hello(legacy: [u8; 2], extensions: &[u8]) -> Vec<u8> {
        let mut hello = legacy.to_vec();
        hello.extend_from_slice(&[9; 32]);
        hello.extend_from_slice(&[2, 1, 1, 0x13, 0x01, 0]);
        if !extensions.is_empty() {
            hello.extend_from_slice(&with_len(extensions));
        }
        [&[SERVER_HELLO, 0][..], &with_len(&hello)].concat()
    }

    #[test]
    fn the_opening() {
        let opening = begin().opening();
        assert_eq!(opening[..3], [HANDSHAKE, 3, 1]);
        let len = opening.len();
        assert_eq!(
            usize::from(opening[3]) << 8 | usize::from(opening[4]),
            len - 5
        );
        assert_eq!(opening[5..7], [1, 0]);
        assert_eq!(
            usize::from(opening[7]) << 8 | usize::from(opening[8]),
            len - 9
        );
        let name = b"\0\0\0\x0f\0\x0d\0\0\x0adb.example";
        assert!(memchr::memmem::find(&opening, name).is_some());
        let without = Tls::new(None, [7; 32]).opening();
        assert_eq!(without.len(), len - name.len());
    }

    #[test]
    fn answers() {
        let ok = |seen: &str| Some(Ok(seen.to_owned()));
        let refused = |said: &str| Some(Err(format!("refused: {said}")));
        let unexpected = || Some(Err("expected a ServerHello, got ".to_owned()));
        let other = b"\xff\x01\0\x01\0";
        let newest = [&other[..], b"\0\x2b\0\x02\x03\x04"].concat();
        let with_more = [hello([3, 3], other), vec![11, 0, 0, 1, 0]].concat();
        let whole = hello([3, 3], &newest);
        let split = [
            record(HANDSHAKE, &whole[..20]),
            record(HANDSHAKE, &whole[20..]),
        ]
        .concat();
        for (said, expected) in [
            (record(HANDSHAKE, &whole), ok("ServerHello of TLS 1.3")),
            (record(HANDSHAKE, &with_more), ok("ServerHello of TLS 1.2")),
            (
                record(HANDSHAKE, &hello([3, 1], b"")),
                ok("ServerHello of TLS 1.0"),
            ),
            // The rest of it would say that it is 1.3.
            (split, ok("ServerHello of TLS 1.2")),
            (record(ALERT, &[2, 112]), refused("alert unrecognized_name")),
            (record(ALERT, &[2, 40]), refused("alert handshake_failure")),
            (record(ALERT, &[2, 200]), refused("alert 200")),
            (record(ALERT, &[1, 0]), refused("alert close_notify")),
            (
                [record(ALERT, &[1, 112]), record(HANDSHAKE, &whole)].concat(),
                ok("ServerHello of TLS 1.3"),
            ),
            (record(ALERT, &[2]), unexpected()),
            (record(HANDSHAKE, &[1, 0, 0, 0]), unexpected()),
            (record(HANDSHAKE, &[]), unexpected()),
            (record(HANDSHAKE, &[SERVER_HELLO, 1, 0, 0, 0]), unexpected()),
            (record(HANDSHAKE, &[SERVER_HELLO, 0, 0, 0]), unexpected()),
            (record(HANDSHAKE, &hello([9, 9], b"")), unexpected()),
            (record(23, b"data"), unexpected()),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), unexpected()),
            (b"220 mx ESMTP\r\n".to_vec(), unexpected()),
            (b"\x16\x03".to_vec(), None),
            (Vec::new(), None),
        ] {
            let shown = said.escape_ascii().to_string();
            assert_eq!(end_of(begin, &said), expected, "{shown}");
        }
        let outcome = play(begin, &record(HANDSHAKE, &whole));
        assert_eq!(outcome.end.unwrap().unwrap().1, FAREWELL);
    }
}
