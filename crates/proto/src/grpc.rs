//! The parts of gRPC in HTTP/2 ("gRPC over HTTP2", and "PROTOCOL-WEB" of the gRPC project).

use std::time::Duration;

/// Names of the statuses, by their numbers.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a status; `unknown` for a number that has none.
pub fn name(status: u32) -> &'static str {
    let name = usize::try_from(status).ok().and_then(|it| NAMES.get(it));
    name.unwrap_or(&"unknown")
}

/// The dialect of a request, by its `content-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// gRPC over HTTP/2.
    Grpc,
    /// gRPC-Web: the trailers stand in the body.
    Web,
    /// The same, with bodies in base64.
    WebText,
}

impl Dialect {
    const ALL: [Dialect; 3] = [Dialect::Grpc, Dialect::Web, Dialect::WebText];

    /// The dialect of this `content-type`; `None` for one of something else.
    pub fn of(content_type: &[u8]) -> Option<Self> {
        let mut all = Dialect::ALL.into_iter();
        all.find(|it| follows(content_type, it.name(), b"+;"))
    }

    /// How its `content-type` begins; `+proto` or the like may follow.
    pub fn name(self) -> &'static [u8] {
        match self {
            Dialect::Grpc => b"application/grpc",
            Dialect::Web => b"application/grpc-web",
            Dialect::WebText => b"application/grpc-web-text",
        }
    }
}

/// Whether a type begins with this name, and the next byte may follow it.
fn follows(content_type: &[u8], name: &[u8], next: &[u8]) -> bool {
    let Some((begin, rest)) = content_type.split_at_checked(name.len()) else {
        return false;
    };
    let is_over = rest
        .first()
        .is_none_or(|it| next.contains(it) || *it == b' ');
    begin.eq_ignore_ascii_case(name) && is_over
}

/// The value of `grpc-timeout`; `None` for a malformed one.
pub fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |number: u64, digit: &u8| number * 10 + u64::from(digit - b'0');
    let number = digits.iter().fold(0, digit);
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The status that stands for an answer of this proxy with a status of HTTP.
///
/// As in "http-grpc-status-mapping", except for limits: a client that has used up its allowance
/// gets a status that says so.
pub fn of_http(status: u16) -> u32 {
    match status {
        400 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        413 | 429 => RESOURCE_EXHAUSTED,
        502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// Whether a status shows that something is wrong with the server.
pub fn is_server_fault(status: u32) -> bool {
    matches!(status, UNKNOWN | INTERNAL | UNAVAILABLE | DATA_LOSS)
}

const UNKNOWN: u32 = 2;
/// The time that the client allows is over.
pub const DEADLINE_EXCEEDED: u32 = 4;
const PERMISSION_DENIED: u32 = 7;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;
const DATA_LOSS: u32 = 15;
const UNAUTHENTICATED: u32 = 16;

/// How many statuses have a name.
pub const STATUSES: usize = NAMES.len();

/// Appends text as `grpc-message` has it: percent-encoded.
pub fn push_message(out: &mut Vec<u8>, text: &str) {
    for &byte in text.as_bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                out.extend([
                    b'%',
                    HEX[usize::from(byte >> 4)],
                    HEX[usize::from(byte & 15)],
                ]);
            }
            _ => out.push(byte),
        }
    }
}

/// The value of a field in lines, such as a trailer section's.
pub fn value_in_lines<'a>(lines: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut lines = lines.split(|&byte| byte == b'\n');
    lines.find_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        let is_it = line[..colon].eq_ignore_ascii_case(name);
        is_it.then(|| line[colon + 1..].trim_ascii())
    })
}

/// The number in a value of `grpc-status`.
pub fn status(value: &[u8]) -> Option<u32> {
    // A sign is none of it.
    let digits = value.iter().all(u8::is_ascii_digit).then_some(value)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_grpc() {
        use Dialect::{Grpc, Web, WebText};
        for (value, dialect) in [
            ("application/grpc", Some(Grpc)),
            ("application/grpc+proto", Some(Grpc)),
            ("Application/gRPC; charset=utf-8", Some(Grpc)),
            ("application/grpc-web", Some(Web)),
            ("application/grpc-web+proto", Some(Web)),
            ("application/grpc-web-text", Some(WebText)),
            ("application/grpcx", None),
            ("application/grpc-webx", None),
            ("application/json", None),
            ("", None),
        ] {
            assert_eq!(Dialect::of(value.as_bytes()), dialect, "{value}");
        }
    }

    #[test]
    fn timeouts_have_units() {
        for (value, ms) in [
            ("1S", Some(1000)),
            ("2H", Some(7_200_000)),
            ("3M", Some(180_000)),
            ("250m", Some(250)),
            ("5000u", Some(5)),
            ("99999999n", Some(99)),
            ("0S", Some(0)),
            ("", None),
            ("S", None),
            ("123456789S", None),
            ("-1S", None),
            ("1s", None),
            ("1.5S", None),
        ] {
            let found = timeout(value.as_bytes()).map(|it| it.as_millis());
            assert_eq!(found, ms, "{value}");
        }
    }

    #[test]
    fn statuses_have_names() {
        assert_eq!(
            (name(0), name(14), name(17)),
            ("OK", "UNAVAILABLE", "unknown")
        );
    }
}
