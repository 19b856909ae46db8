//! Heads of responses whose body gets a content coding on its way (RFC 9110 §8.4), or
//! would get one for another client.

use super::edit::{lines, name_of};
use crate::coding::Coding;
use crate::field::list_items;

/// The statement of a head about the coding of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recoding {
    /// The body goes on as it is, and other clients may get it in a coding.
    Negotiated,
    /// A 304: no body, and the client has the body with a coding.
    Confirmed,
    /// The body has this coding.
    Coded {
        /// The coding.
        coding: Coding,
        /// How the client knows the body's end.
        end: CodedEnd,
    },
}

/// How a client knows the end of a body whose length is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodedEnd {
    /// The body is sent in chunks.
    Chunks,
    /// The connection ends, or there is no body.
    Connection,
}

/// Fields that hold for the bytes as they were: their length, their parts, their digests,
/// and how they were framed.
const OF_BYTES: [&str; 9] = [
    "content-length",
    "content-encoding",
    "accept-ranges",
    "content-md5",
    "digest",
    "content-digest",
    "repr-digest",
    "transfer-encoding",
    "trailer",
];

/// Appends `head` to `out` as `recoding` says. `head` is a whole head whose lines end in
/// CRLF.
///
/// A strong `ETag` becomes a weak one: it stood for other bytes, and both forms still
/// match where `If-None-Match` is compared.
pub fn recode_head(out: &mut Vec<u8>, head: &[u8], recoding: Recoding) {
    let mut lines = lines(head);
    out.extend_from_slice(lines.next().unwrap_or_default());
    let mut vary = None;
    let mut is_named = false;
    for line in lines.take_while(|it| *it != b"\r\n") {
        let name = name_of(line);
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let is_coded = matches!(recoding, Recoding::Coded { .. });
        if is_coded && OF_BYTES.iter().any(|it| is(it)) {
            continue;
        }
        if recoding != Recoding::Negotiated && is("etag") {
            push_weak(out, line);
            continue;
        }
        out.extend_from_slice(line);
        if is("vary") {
            is_named |= varies(line);
            vary = Some(out.len() - b"\r\n".len());
        }
    }
    match vary {
        _ if is_named => {}
        Some(end) => {
            let appended = b", Accept-Encoding";
            out.extend_from_slice(appended);
            out[end..].rotate_right(appended.len());
        }
        None => out.extend_from_slice(b"Vary: Accept-Encoding\r\n"),
    }
    if let Recoding::Coded { coding, end } = recoding {
        out.extend_from_slice(b"Content-Encoding: ");
        out.extend_from_slice(coding.name().as_bytes());
        out.extend_from_slice(b"\r\n");
        if end == CodedEnd::Chunks {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether a line of `Vary` names `Accept-Encoding`, or everything.
fn varies(line: &[u8]) -> bool {
    let value = &line[name_of(line).len() + 1..];
    list_items(value).any(|it| it == b"*" || it.eq_ignore_ascii_case(b"accept-encoding"))
}

/// Writes a line of `ETag` with its value weak.
fn push_weak(out: &mut Vec<u8>, line: &[u8]) {
    let (name, value) = line.split_at(name_of(line).len() + 1);
    let tag = value.trim_ascii();
    out.extend_from_slice(name);
    out.push(b' ');
    if tag.starts_with(b"\"") {
        out.extend_from_slice(b"W/");
    }
    out.extend_from_slice(tag);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recoded(fields: &str, recoding: Recoding) -> String {
        let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", fields.replace('\n', "\r\n"));
        let mut out = b"before".to_vec();
        recode_head(&mut out, head.as_bytes(), recoding);
        let text = String::from_utf8(out).expect("ASCII");
        let text = text.strip_prefix("beforeHTTP/1.1 200 OK\r\n");
        let text = text.expect("what was there").replace("\r\n", "\n");
        text.strip_suffix('\n').expect("the empty line").to_owned()
    }

    #[test]
    fn what_held_for_the_bytes_goes() {
        let coded = Recoding::Coded {
            coding: Coding::Brotli,
            end: CodedEnd::Chunks,
        };
        let found = recoded(
            "Server: a\nContent-Length: 10\nCONTENT-MD5: x\nAccept-Ranges: bytes\n\
             etag:\"v1\"\nDigest: a\nContent-Digest: b\nRepr-Digest: c\nTrailer: d\n\
             Content-Encoding: identity\nContent-Type: text/html\n",
            coded,
        );
        assert_eq!(
            found,
            "Server: a\netag: W/\"v1\"\nContent-Type: text/html\nVary: Accept-Encoding\n\
             Content-Encoding: br\nTransfer-Encoding: chunked\n"
        );
        let found = recoded(
            "ETag: W/\"v1\"\nVary: *\n",
            Recoding::Coded {
                coding: Coding::Gzip,
                end: CodedEnd::Connection,
            },
        );
        assert_eq!(found, "ETag: W/\"v1\"\nVary: *\nContent-Encoding: gzip\n");
    }

    #[test]
    fn what_is_not_coded_stays() {
        let fields = "Content-Length: 10\nETag: \"v1\"\nAccept-Ranges: bytes\n";
        let found = recoded(fields, Recoding::Negotiated);
        assert_eq!(found, format!("{fields}Vary: Accept-Encoding\n"));
        let found = recoded("ETag: \"v1\"\nDate: x\n", Recoding::Confirmed);
        assert_eq!(found, "ETag: W/\"v1\"\nDate: x\nVary: Accept-Encoding\n");
    }

    #[test]
    fn vary_is_added_to() {
        for (before, after) in [
            ("", "Vary: Accept-Encoding\n"),
            ("Vary: Cookie\n", "Vary: Cookie, Accept-Encoding\n"),
            (
                "vary: Cookie\nA: b\nVary: Origin\nC: d\n",
                "vary: Cookie\nA: b\nVary: Origin, Accept-Encoding\nC: d\n",
            ),
            ("Vary: a, ACCEPT-ENCODING\n", "Vary: a, ACCEPT-ENCODING\n"),
            (
                "Vary: accept-encoding\nVary: a\n",
                "Vary: accept-encoding\nVary: a\n",
            ),
            ("Vary: *\n", "Vary: *\n"),
        ] {
            assert_eq!(recoded(before, Recoding::Negotiated), after, "{before}");
        }
    }
}
