//! The format `combined` of Apache and nginx.

use super::clock::Seconds;
use super::escape::push_quoted;
use super::line::Line;
use super::record::{Record, Request};

pub(super) fn write(line: &mut Line<'_>, record: &Record<'_>, seconds: &mut Seconds) {
    line.bytes(record.client);
    line.literal(b" - - [");
    line.bytes(seconds.of(record.unix_us).combined.as_bytes());
    line.literal(b"] \"");
    push_request_line(line, record);
    line.literal(b"\" ");
    line.number(u64::from(record.figures.status));
    line.byte(b' ');
    line.number(record.figures.body_bytes_out);
    for value in [record.referer, record.user_agent] {
        line.literal(b" \"");
        match value {
            Some(value) => push_text(line, record, value),
            None => line.byte(b'-'),
        }
        line.byte(b'"');
    }
    line.byte(b'\n');
}

/// The request line, or what came in its place.
pub(super) fn push_request_line(line: &mut Line<'_>, record: &Record<'_>) {
    match record.request {
        Request::Refused(raw) => push_text(line, record, raw),
        Request::Read {
            method,
            target,
            version,
            ..
        } => {
            push_text(line, record, method);
            line.byte(b' ');
            push_text(line, record, target);
            line.byte(b' ');
            line.bytes(version.as_str().as_bytes());
        }
    }
}

#[inline]
fn push_text(line: &mut Line<'_>, record: &Record<'_>, text: &[u8]) {
    match record.is_plain {
        true => line.bytes(text),
        false => push_quoted(line, text),
    }
}
