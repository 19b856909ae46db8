//! Names the rule that a request's head breaks first.
//!
//! The grammar only says that a byte stands where it must not; people want to know which rule was
//! broken. This runs after a refusal, never on the good path.
//!
//! The search goes byte by byte. So a verdict on some bytes holds for all inputs that begin with
//! them, however they are cut up on their way.

use super::MAX_FIELDS;
use super::grammar::{is_blank, is_token_byte};
use crate::error::RequestError;

/// The finding on a head that is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// This rule is broken.
    Broken(RequestError),
    /// The broken rule depends on bytes to come, or the bytes are right so far.
    Undecided,
}

/// Finds the first rule that `head` breaks.
pub(super) fn first_fault(head: &[u8]) -> Finding {
    match Scan::new(head).head() {
        Err(Stop::Fault(error)) => Finding::Broken(error),
        Err(Stop::OutOfBytes) | Ok(()) => Finding::Undecided,
    }
}

enum Stop {
    Fault(RequestError),
    OutOfBytes,
}

struct Scan<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Scan<'a> {
    fn new(head: &'a [u8]) -> Self {
        Scan { bytes: head.iter() }
    }

    fn peek(&self) -> Result<u8, Stop> {
        self.bytes
            .as_slice()
            .first()
            .copied()
            .ok_or(Stop::OutOfBytes)
    }

    fn next(&mut self) -> Result<u8, Stop> {
        self.bytes.next().copied().ok_or(Stop::OutOfBytes)
    }

    /// Takes the bytes that `belongs` to, up to the first that does not.
    fn run(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.bytes.as_slice();
        let len = rest.iter().take_while(|&&byte| belongs(byte)).count();
        self.bytes = rest[len..].iter();
        &rest[..len]
    }

    fn line_end(&mut self, otherwise: RequestError) -> Result<(), Stop> {
        for wanted in [b'\r', b'\n'] {
            let byte = self.next()?;
            if byte == b'\n' && wanted == b'\r' {
                return Err(Stop::Fault(RequestError::BareLf));
            }
            if byte != wanted {
                return Err(fault(byte, otherwise));
            }
        }
        Ok(())
    }

    fn head(&mut self) -> Result<(), Stop> {
        if self.peek()? == b'\r' {
            self.line_end(RequestError::RequestLine)?;
        }
        self.request_line()?;
        for _ in 0..=MAX_FIELDS {
            if self.peek()? == b'\r' {
                return self.line_end(RequestError::FieldName);
            }
            self.field_line()?;
        }
        Err(Stop::Fault(RequestError::TooManyFields))
    }

    fn request_line(&mut self) -> Result<(), Stop> {
        let method = self.run(is_token_byte);
        self.space_after(method)?;
        // As the grammar has it; the rest is for the one who reads the target.
        let target = self.run(|byte| byte.is_ascii_graphic());
        if self.peek()? >= 0x80 {
            return Err(Stop::Fault(RequestError::Target));
        }
        self.space_after(target)?;
        self.version()?;
        self.line_end(RequestError::RequestLine)
    }

    fn space_after(&mut self, word: &[u8]) -> Result<(), Stop> {
        match self.next()? {
            b' ' if !word.is_empty() => Ok(()),
            byte => Err(fault(byte, RequestError::RequestLine)),
        }
    }

    /// `HTTP/` and a digit is a version, though maybe not one of ours.
    fn version(&mut self) -> Result<(), Stop> {
        for &wanted in b"HTTP/" {
            let byte = self.next()?;
            if byte != wanted {
                return Err(fault(byte, RequestError::RequestLine));
            }
        }
        match self.next()? {
            b'1' => {}
            b'0'..=b'9' => return Err(Stop::Fault(RequestError::Version)),
            byte => return Err(fault(byte, RequestError::RequestLine)),
        }
        let byte = self.next()?;
        if byte != b'.' {
            return Err(fault(byte, RequestError::Version));
        }
        match self.next()? {
            b'0'..=b'9' => Ok(()),
            byte => Err(fault(byte, RequestError::RequestLine)),
        }
    }

    fn field_line(&mut self) -> Result<(), Stop> {
        if is_blank(self.peek()?) {
            return Err(Stop::Fault(RequestError::ObsFold));
        }
        let name = self.run(is_token_byte);
        match self.next()? {
            b':' if !name.is_empty() => {}
            byte if is_blank(byte) => {
                self.run(is_blank);
                return Err(match self.next()? {
                    b':' => Stop::Fault(RequestError::SpaceBeforeColon),
                    _ => Stop::Fault(RequestError::FieldName),
                });
            }
            byte => return Err(fault(byte, RequestError::FieldName)),
        }
        self.run(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f));
        self.line_end(RequestError::FieldValue)
    }
}

/// The rule broken by a byte that stands where it must not.
fn fault(byte: u8, otherwise: RequestError) -> Stop {
    Stop::Fault(match byte {
        0 => RequestError::Nul,
        b'\n' => RequestError::BareLf,
        _ => otherwise,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use RequestError::*;

    #[test]
    fn names_the_first_broken_rule() {
        for (head, error) in [
            ("\n", BareLf),
            ("\r\n\n", BareLf),
            ("\r\n\r", RequestLine),
            ("\rG", RequestLine),
            (" ", RequestLine),
            ("\x16", RequestLine),
            ("\0", Nul),
            ("GET\n", BareLf),
            ("GET\r", RequestLine),
            ("GET /\0", Nul),
            ("GET /\x7f", RequestLine),
            ("GET  ", RequestLine),
            ("GET /  ", RequestLine),
            ("GET / HTTP/2", Version),
            ("GET / HTTP/1x", Version),
            ("GET / HTTP/1.x", RequestLine),
            ("GET / h", RequestLine),
            ("GET / HTTP/1.1 ", RequestLine),
            ("GET / HTTP/1.1\n", BareLf),
            ("GET / HTTP/1.1\rA", RequestLine),
            ("GET / HTTP/1.1\r\n ", ObsFold),
            ("GET / HTTP/1.1\r\n\t", ObsFold),
            ("GET / HTTP/1.1\r\n:", FieldName),
            ("GET / HTTP/1.1\r\nA(", FieldName),
            ("GET / HTTP/1.1\r\nA \t:", SpaceBeforeColon),
            ("GET / HTTP/1.1\r\nA \tb", FieldName),
            ("GET / HTTP/1.1\r\nA\r", FieldName),
            ("GET / HTTP/1.1\r\nA\n", BareLf),
            ("GET / HTTP/1.1\r\nA: b\n", BareLf),
            ("GET / HTTP/1.1\r\nA: b\rc", FieldValue),
            ("GET / HTTP/1.1\r\nA: b\r\r", FieldValue),
            ("GET / HTTP/1.1\r\nA: \x0c", FieldValue),
            ("GET / HTTP/1.1\r\nA: \0", Nul),
            ("GET / HTTP/1.1\r\nA: b\r\n\n", BareLf),
            ("GET / HTTP/1.1\r\nA: b\r\n\rc", FieldName),
        ] {
            let broken = Finding::Broken(error);
            assert_eq!(first_fault(head.as_bytes()), broken, "{head:?}");
            let longer = format!("{head}\n\0 x: y\r\n\r\n");
            assert_eq!(first_fault(longer.as_bytes()), broken, "{longer:?}");
            for len in 0..head.len() {
                let before = first_fault(&head.as_bytes()[..len]);
                assert_eq!(before, Finding::Undecided, "{len} bytes of {head:?}");
            }
        }
    }

    #[test]
    fn a_target_is_ascii() {
        assert_eq!(first_fault(b"GET /a"), Finding::Undecided);
        for more in [&b"\xe9"[..], b"\xe9 HTTP/1.1\r\nA(", "\u{e9}".as_bytes()] {
            let head = [b"GET /a", more].concat();
            assert_eq!(first_fault(&head), Finding::Broken(Target));
        }
    }

    #[test]
    fn counts_fields() {
        let head = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
        let most = head(MAX_FIELDS);
        assert_eq!(first_fault(most.as_bytes()), Finding::Undecided);
        let more = head(MAX_FIELDS + 1);
        assert_eq!(first_fault(more.as_bytes()), Finding::Broken(TooManyFields));
    }
}
