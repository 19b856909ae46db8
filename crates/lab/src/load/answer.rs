//! Reads the head of an answer: its status and how long its body is.

use memchr::memmem;

/// The parts of a response's head that the generator needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Length of the head: the index at which the body begins.
    pub len: usize,
    /// The three digits of the status.
    pub status: u16,
    /// `None` when there is no `Content-Length`.
    pub body_len: Option<u64>,
    /// Whether the server says that it closes the connection.
    pub close: bool,
}

/// The content of the bytes received so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The whole head.
    Complete(Head),
    /// Only its beginning.
    Partial,
    /// Not HTTP/1.
    Invalid,
}

/// Reads a head from the beginning of `input`.
#[must_use]
pub fn parse(input: &[u8]) -> Parsed {
    let Some(end) = memmem::find(input, b"\r\n\r\n") else {
        return Parsed::Partial;
    };
    let mut head = Head {
        len: end + 4,
        status: 0,
        body_len: None,
        close: false,
    };
    if !input.starts_with(b"HTTP/1.") {
        return Parsed::Invalid;
    }
    match input.get(9..12).map(std::str::from_utf8) {
        Some(Ok(digits)) => match digits.parse() {
            Ok(status) => head.status = status,
            Err(_) => return Parsed::Invalid,
        },
        _ => return Parsed::Invalid,
    }
    for line in input[..end].split(|byte| *byte == b'\n').skip(1) {
        read_field(line, &mut head);
    }
    Parsed::Complete(head)
}

fn read_field(line: &[u8], head: &mut Head) {
    // Both names begin with a `c`; most others are passed over on that byte.
    if !matches!(line.first(), Some(b'c' | b'C')) {
        return;
    }
    if let Some(value) = field(line, b"content-length:") {
        head.body_len = std::str::from_utf8(value)
            .ok()
            .and_then(|digits| digits.parse().ok());
    } else if let Some(value) = field(line, b"connection:") {
        head.close = value.eq_ignore_ascii_case(b"close");
    }
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_heads() {
        let head = |len, status, body_len, close| {
            Parsed::Complete(Head {
                len,
                status,
                body_len,
                close,
            })
        };
        let cases: [(&[u8], Parsed); 5] = [
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\nxx",
                head(39, 200, Some(44), false),
            ),
            (
                b"HTTP/1.0 503 no\r\nconnection: Close\r\n\r\n",
                head(38, 503, None, true),
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Len", Parsed::Partial),
            (b"SSH-2.0\r\n\r\n", Parsed::Invalid),
            (b"HTTP/1.1 2x0 OK\r\n\r\n", Parsed::Invalid),
        ];
        for (input, expected) in cases {
            assert_eq!(parse(input), expected, "{}", input.escape_ascii());
        }
    }
}
