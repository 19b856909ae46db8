//! The first message of a client that speaks TLS, for conditions of routes.
//!
//! Conditions need the name of the server (SNI, RFC 6066 §3) and the offered protocols (ALPN, RFC
//! 7301). Nothing is decrypted and nothing answered. A message that is spread over several
//! segments or records is put together (RFC 8446 §5.1).

/// The kind of a connection's first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstMessage {
    /// More bytes are needed to tell.
    Partial,
    /// The wishes of a client of TLS.
    ClientHello(ClientHello),
    /// Something else, or a malformed ClientHello.
    Other,
}

/// The wishes of a ClientHello for the connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientHello {
    /// The name of the server; empty where the client gives none.
    pub server_name: Box<[u8]>,
    /// The protocols offered, each behind a byte that says its length.
    pub protocols: Box<[u8]>,
}

/// Longest ClientHello that is read, in bytes.
pub const MAX_LEN: usize = 64 * 1024;
/// Most bytes of a connection that are needed to read one: each record has a header.
pub const MAX_WIRE_LEN: usize = MAX_LEN + MAX_RECORDS * RECORD_HEADER_LEN;
/// Most records that it may be spread over. Only an attacker makes longer chains.
const MAX_RECORDS: usize = 64;
const RECORD_HEADER_LEN: usize = 5;
/// Longest content of a record (RFC 8446 §5.1).
const MAX_RECORD_LEN: usize = 1 << 14;

const HANDSHAKE_RECORD: u8 = 22;
/// The first byte of every version of TLS, and of SSL 3.
const MAJOR_VERSION: u8 = 3;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const ALPN: u16 = 16;

/// Reads what a client has sent so far.
pub fn read(bytes: &[u8]) -> FirstMessage {
    match whole_message(bytes) {
        Ok(None) => FirstMessage::Partial,
        Ok(Some(message)) => match hello(&message) {
            Some(hello) => FirstMessage::ClientHello(hello),
            None => FirstMessage::Other,
        },
        Err(NoHello) => FirstMessage::Other,
    }
}

/// The bytes are not the beginning of a ClientHello.
struct NoHello;

/// The body of the first message, once all of it is there. Nothing is copied before: a message
/// may come byte by byte, and is read again for each of them.
fn whole_message(bytes: &[u8]) -> Result<Option<Vec<u8>>, NoHello> {
    let mut fragments = [&[][..]; MAX_RECORDS];
    let mut rest = bytes;
    let mut len = 0;
    let mut head = Vec::with_capacity(4);
    for at in 0..MAX_RECORDS {
        let Some(Record { content, behind }) = record(rest)? else {
            return Ok(None);
        };
        fragments[at] = content;
        len += content.len();
        rest = behind;
        head.extend(content.iter().take(4 - head.len()));
        if head.first().is_some_and(|&it| it != CLIENT_HELLO) {
            return Err(NoHello);
        }
        if let &[_, high, middle, low] = &head[..] {
            let body_len = u32::from_be_bytes([0, high, middle, low]) as usize;
            if body_len > MAX_LEN {
                return Err(NoHello);
            }
            if len >= 4 + body_len {
                let mut message = fragments[..=at].concat();
                message.truncate(4 + body_len);
                message.drain(..4);
                return Ok(Some(message));
            }
        }
    }
    Err(NoHello)
}

/// A record, as far as it is there.
struct Record<'a> {
    content: &'a [u8],
    behind: &'a [u8],
}

/// The record that `bytes` begin with; `None` before its header is whole.
fn record(bytes: &[u8]) -> Result<Option<Record<'_>>, NoHello> {
    let kind = bytes.first().is_none_or(|&it| it == HANDSHAKE_RECORD);
    let version = bytes.get(1).is_none_or(|&it| it == MAJOR_VERSION);
    if !kind || !version {
        return Err(NoHello);
    }
    let Some((header, rest)) = bytes.split_at_checked(RECORD_HEADER_LEN) else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
    // A handshake message has no empty fragments.
    if len == 0 || len > MAX_RECORD_LEN {
        return Err(NoHello);
    }
    let (content, behind) = rest.split_at(len.min(rest.len()));
    Ok(Some(Record { content, behind }))
}

/// The parts of a ClientHello that conditions need; `None` where it is malformed (RFC 8446
/// §4.1.2).
///
/// A message that a server may read in another way is malformed: a second name or offer, and
/// bytes that no length covers.
fn hello(message: &[u8]) -> Option<ClientHello> {
    let mut hello = ClientHello::default();
    let mut rest = Reader(message);
    rest.take(2 + 32)?;
    rest.prefixed(1)?;
    rest.prefixed(2)?;
    rest.prefixed(1)?;
    // SSL 3 and the first clients of TLS 1.0 send no extensions.
    if rest.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = Reader(rest.prefixed(2)?);
    let (mut is_named, mut is_offering) = (false, false);
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut data = Reader(extensions.prefixed(2)?);
        if kind == usize::from(SERVER_NAME) {
            let is_first = !std::mem::replace(&mut is_named, true);
            hello.server_name = is_first.then(|| server_name(&mut data))??.into();
        } else if kind == usize::from(ALPN) {
            let is_first = !std::mem::replace(&mut is_offering, true);
            let protocols = is_first.then(|| data.prefixed(2))??;
            let mut names = Reader(protocols);
            while !names.0.is_empty() {
                names.prefixed(1)?;
            }
            hello.protocols = protocols.into();
        } else {
            continue;
        }
        data.end()?;
    }
    rest.end()?;
    Some(hello)
}

/// The host of a list of names, which has at most one name of a kind (RFC 6066 §3).
fn server_name<'a>(data: &mut Reader<'a>) -> Option<&'a [u8]> {
    let mut names = Reader(data.prefixed(2)?);
    let mut host = None;
    while !names.0.is_empty() {
        let kind = names.take(1)?;
        let name = names.prefixed(2)?;
        if kind == [HOST_NAME] && host.replace(name).is_some() {
            return None;
        }
    }
    Some(host.unwrap_or_default())
}

/// Bytes that are still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Nothing, where nothing is left.
    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }

    /// A number of so many bytes.
    fn number(&mut self, len: usize) -> Option<usize> {
        let bytes = self.take(len)?;
        Some(bytes.iter().fold(0, |sum, &it| sum << 8 | usize::from(it)))
    }

    /// The bytes behind a length of so many bytes.
    fn prefixed(&mut self, len: usize) -> Option<&'a [u8]> {
        let len = self.number(len)?;
        self.take(len)
    }
}

impl ClientHello {
    /// One that names this server and offers these protocols; `None` for neither.
    pub fn new(server_name: &str, protocols: &[String]) -> Option<Self> {
        let prefixed = |it: &String| {
            let name = &it.as_bytes()[..it.len().min(usize::from(u8::MAX))];
            [&[name.len() as u8], name].concat()
        };
        let hello = ClientHello {
            server_name: server_name.as_bytes().into(),
            protocols: protocols.iter().flat_map(prefixed).collect(),
        };
        (hello != ClientHello::default()).then_some(hello)
    }

    /// The protocols offered, in order.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Reader(&self.protocols);
        std::iter::from_fn(move || rest.prefixed(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefixed(len: usize, bytes: &[u8]) -> Vec<u8> {
        let number = bytes.len().to_be_bytes();
        [&number[number.len() - len..], bytes].concat()
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &prefixed(2, data)].concat()
    }

    fn named(name: &[u8]) -> Vec<u8> {
        let entry = [&[HOST_NAME][..], &prefixed(2, name)].concat();
        extension(SERVER_NAME, &prefixed(2, &entry))
    }

    fn offering(protocols: &[&[u8]]) -> Vec<u8> {
        let names = protocols.iter().flat_map(|it| prefixed(1, it));
        extension(ALPN, &prefixed(2, &names.collect::<Vec<_>>()))
    }

    /// The message with these extensions, without records.
    fn message(extensions: &[u8]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &prefixed(1, &[9; 32]),
            &prefixed(2, &[0x13, 0x01]),
            &prefixed(1, &[0]),
            &prefixed(2, extensions),
        ];
        [&[CLIENT_HELLO][..], &prefixed(3, &body.concat())].concat()
    }

    fn in_records(message: &[u8], len: usize) -> Vec<u8> {
        let record = |piece: &[u8]| {
            let header = [HANDSHAKE_RECORD, MAJOR_VERSION, 1];
            [&header[..], &prefixed(2, piece)].concat()
        };
        message.chunks(len).flat_map(record).collect()
    }

    fn hello_of(bytes: &[u8]) -> ClientHello {
        match read(bytes) {
            FirstMessage::ClientHello(hello) => hello,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hello_in_pieces_is_partial_until_its_last_byte() {
        let extensions = [named(b"a.test"), offering(&[b"h2", b"http/1.1"])].concat();
        for record_len in [1 << 14, 100, 7] {
            let bytes = in_records(&message(&extensions), record_len);
            for len in 0..bytes.len() {
                assert_eq!(read(&bytes[..len]), FirstMessage::Partial, "{len}");
            }
            let followed = [&bytes[..], b"more"].concat();
            for bytes in [&bytes, &followed] {
                let hello = hello_of(bytes);
                assert_eq!(&*hello.server_name, b"a.test");
                let protocols: Vec<_> = hello.protocols().collect();
                assert_eq!(protocols, [&b"h2"[..], b"http/1.1"]);
            }
        }
    }

    #[test]
    fn a_hello_may_be_long_and_say_nothing() {
        let long = extension(21, &vec![0; 20 * 1024]);
        let bytes = in_records(&message(&[long, named(b"b.test")].concat()), 1 << 14);
        assert_eq!(&*hello_of(&bytes).server_name, b"b.test");
        let bytes = in_records(&message(&[]), 1 << 14);
        assert_eq!(hello_of(&bytes), ClientHello::default());
        assert_eq!(hello_of(&bytes).protocols().count(), 0);
    }

    #[test]
    fn what_is_no_hello_is_told_at_once() {
        for bytes in [
            &b"GET / HTTP/1.1"[..],
            b"\x16\x02",
            b"\x17\x03\x03",
            // An empty record, and one that is too long.
            b"\x16\x03\x01\x00\x00",
            b"\x16\x03\x01\x40\x01",
            // A ServerHello, and a ClientHello of 16 MiB.
            b"\x16\x03\x01\x00\x04\x02\x00\x00\x01",
            b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        ] {
            assert_eq!(read(bytes), FirstMessage::Other, "{bytes:02x?}");
        }
        // In too many records.
        let bytes = in_records(&message(&named(b"a.test")), 1);
        assert_eq!(read(&bytes), FirstMessage::Other);
    }

    #[test]
    fn lengths_that_lie_are_malformed() {
        let lying = [
            // A name of 65,535 bytes; a list of names, and an extension, that end early.
            extension(SERVER_NAME, b"\x00\x09\x00\xff\xffa.test"),
            extension(SERVER_NAME, b"\xff\xff\x00\x00\x06a.test"),
            b"\x00\x00\xff\xff".to_vec(),
            extension(ALPN, b"\x00\x03\x09h2"),
            // A name that ends early, bytes behind a list, a second name and a second
            // offer.
            extension(SERVER_NAME, b"\x00\x09\x00\x00\x05a.test"),
            extension(SERVER_NAME, b"\x00\x09\x00\x00\x06a.test\0"),
            extension(SERVER_NAME, b"\x00\x08\x00\x00\x01a\x00\x00\x01b"),
            extension(ALPN, b"\x00\x03\x02h2\0"),
            [named(b"a.test"), named(b"b.test")].concat(),
            [offering(&[b"h2"]), offering(&[b"h2"])].concat(),
        ];
        for extensions in lying {
            let bytes = in_records(&message(&extensions), 1 << 14);
            assert_eq!(read(&bytes), FirstMessage::Other, "{extensions:02x?}");
        }
        let mut longer = message(&named(b"a.test"));
        longer.push(0);
        longer[3] += 1;
        assert_eq!(read(&in_records(&longer, 1 << 14)), FirstMessage::Other);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 0..400usize,
        ) {
            read(&bytes);
            let whole = message(&[named(b"a.test"), bytes].concat());
            let records = in_records(&whole, 50);
            read(&records[..cut.min(records.len())]);
        }
    }
}
