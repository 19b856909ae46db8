//! The format `combined` of Apache and nginx.

use super::clock::Seconds;
use super::escape::{push_quoted, push_word};
use super::line::Line;
use super::record::{Basics, LoggedRequest};

pub(super) fn write(line: &mut Line<'_>, basics: &Basics<'_>, seconds: &mut Seconds) {
    line.bytes(basics.client);
    line.literal(b" - ");
    match basics.user {
        Some(user) if !user.is_empty() => push_word(line, user),
        _ => line.byte(b'-'),
    }
    line.literal(b" [");
    line.bytes(seconds.of(basics.unix_us).combined.as_bytes());
    line.literal(b"] \"");
    push_request_line(line, basics);
    line.literal(b"\" ");
    line.number(u64::from(basics.status));
    line.byte(b' ');
    line.number(basics.body_bytes_out);
    for value in [basics.referer, basics.user_agent] {
        line.literal(b" \"");
        match value {
            Some(value) => push_text(line, basics, value),
            None => line.byte(b'-'),
        }
        line.byte(b'"');
    }
    line.byte(b'\n');
}

/// The request line, or the input in place of one. A TCP connection has none.
pub(super) fn push_request_line(line: &mut Line<'_>, basics: &Basics<'_>) {
    match basics.request {
        LoggedRequest::Refused([]) => line.byte(b'-'),
        LoggedRequest::Refused(raw) => push_text(line, basics, raw),
        LoggedRequest::Read {
            method,
            target,
            version,
        } => {
            push_text(line, basics, method);
            line.byte(b' ');
            push_text(line, basics, target);
            line.byte(b' ');
            line.bytes(version.as_str().as_bytes());
        }
    }
}

#[inline]
fn push_text(line: &mut Line<'_>, basics: &Basics<'_>, text: &[u8]) {
    if basics.is_plain {
        line.bytes(text)
    } else {
        push_quoted(line, text)
    }
}
