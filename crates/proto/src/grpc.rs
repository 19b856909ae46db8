//! What gRPC puts into HTTP/2 ("gRPC over HTTP2", and "PROTOCOL-WEB" of the gRPC project).

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

/// The number of a status with this name.
pub fn number(name: &str) -> Option<u32> {
    let at = NAMES.iter().position(|it| *it == name)?;
    u32::try_from(at).ok()
}

/// Whether a request or a response with this `content-type` is of gRPC.
pub fn is_grpc(content_type: &[u8]) -> bool {
    follows(content_type, b"application/grpc", b"+;")
}

/// Whether a type begins with this name, and what follows may follow it.
fn follows(content_type: &[u8], name: &[u8], next: &[u8]) -> bool {
    let Some((begin, rest)) = content_type.split_at_checked(name.len()) else {
        return false;
    };
    let is_over = rest
        .first()
        .is_none_or(|it| next.contains(it) || *it == b' ');
    begin.eq_ignore_ascii_case(name) && is_over
}

/// The value of `grpc-timeout`; `None` for what is none.
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

/// The status that stands for a response which is none of gRPC ("http-grpc-status-mapping").
pub fn of_http(status: u16) -> u32 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_grpc() {
        for (value, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpcx", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_grpc(value.as_bytes()), is, "{value}");
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
        assert_eq!(number("UNAUTHENTICATED"), Some(16));
        assert_eq!(number("unavailable"), None);
    }
}
