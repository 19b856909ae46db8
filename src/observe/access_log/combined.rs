//! The format `combined` of Apache and nginx.

use evenkeel_proto::FieldKind;

use super::clock::Clock;
use super::escape::{push_number, push_quoted};
use super::record::Record;

pub(super) fn write(out: &mut Vec<u8>, record: &Record<'_>, clock: &Clock, unix_us: u64) {
    out.extend_from_slice(record.client);
    out.extend_from_slice(b" - - [");
    clock.with_second(unix_us, |second| {
        out.extend_from_slice(second.combined.as_bytes());
    });
    out.extend_from_slice(b"] \"");
    push_request_line(out, record);
    out.extend_from_slice(b"\" ");
    push_number(out, u64::from(record.status));
    out.push(b' ');
    push_number(out, record.body_bytes_out);
    for kind in [FieldKind::Referer, FieldKind::UserAgent] {
        out.extend_from_slice(b" \"");
        match record.field(kind) {
            Some(value) => push_quoted(out, value),
            None => out.push(b'-'),
        }
        out.push(b'"');
    }
    out.push(b'\n');
}

/// The request line, or what came in its place.
pub(super) fn push_request_line(out: &mut Vec<u8>, record: &Record<'_>) {
    let Some(head) = record.head else {
        return push_quoted(out, record.raw_line());
    };
    push_quoted(out, head.method_span.of(record.buf));
    out.push(b' ');
    push_quoted(out, head.target.of(record.buf));
    out.push(b' ');
    out.extend_from_slice(head.version.as_str().as_bytes());
}
