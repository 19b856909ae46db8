//! The format `combined` of Apache and nginx.

use evenkeel_proto::FieldKind;

use super::clock::Clock;
use super::escape::push_quoted;
use super::line::Line;
use super::record::Record;

pub(super) fn write(line: &mut Line<'_>, record: &Record<'_>, clock: &Clock, unix_us: u64) {
    line.bytes(record.client);
    line.literal(b" - - [");
    clock.with_second(unix_us, |second| {
        line.bytes(second.combined.as_bytes());
    });
    line.literal(b"] \"");
    push_request_line(line, record);
    line.literal(b"\" ");
    line.number(u64::from(record.status));
    line.byte(b' ');
    line.number(record.body_bytes_out);
    for kind in [FieldKind::Referer, FieldKind::UserAgent] {
        line.literal(b" \"");
        match record.field(kind) {
            Some(value) => push_quoted(line, value),
            None => line.byte(b'-'),
        }
        line.byte(b'"');
    }
    line.byte(b'\n');
}

/// The request line, or what came in its place.
pub(super) fn push_request_line(line: &mut Line<'_>, record: &Record<'_>) {
    let Some(head) = record.head else {
        return push_quoted(line, record.raw_line());
    };
    push_quoted(line, head.method_span.of(record.buf));
    line.byte(b' ');
    push_quoted(line, head.target.of(record.buf));
    line.byte(b' ');
    line.bytes(head.version.as_str().as_bytes());
}
