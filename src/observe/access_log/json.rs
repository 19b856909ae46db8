//! The format `json`: one object a line. What an exchange did not come to is
//! left out.

use std::time::Duration;

use evenkeel_proto::FieldKind;
use evenkeel_proto::identity::hex;

use super::clock::Clock;
use super::escape::push_json;
use super::line::Line;
use super::record::Record;

pub(super) fn write(line: &mut Line<'_>, record: &Record<'_>, clock: &Clock, unix_us: u64) {
    line.literal(b"{\"time\":\"");
    clock.push_rfc3339(line, unix_us);
    line.literal(b"\",\"client\":\"");
    line.bytes(record.client);
    line.byte(b'"');
    number(line, b",\"client_port\":", u64::from(record.client_port));
    line.bytes(&record.listener.json);
    let names = [record.route, record.upstream, record.endpoint];
    for name in names.into_iter().flatten() {
        line.bytes(&name.json);
    }
    if let Some(reason) = record.reason {
        word(line, b",\"reason\":\"", reason.word());
    }
    match record.head {
        Some(head) => {
            text(line, b",\"method\":\"", head.method_span.of(record.buf));
            text(line, b",\"host\":\"", head.host.of(record.buf));
            text(line, b",\"target\":\"", head.target.of(record.buf));
            word(line, b",\"version\":\"", head.version.as_str());
        }
        None => text(line, b",\"raw\":\"", record.raw_line()),
    }
    if let Some(value) = record.field(FieldKind::Referer) {
        text(line, b",\"referer\":\"", value);
    }
    if let Some(value) = record.field(FieldKind::UserAgent) {
        text(line, b",\"user_agent\":\"", value);
    }
    number(line, b",\"status\":", u64::from(record.status));
    number(line, b",\"bytes_in\":", record.bytes_in);
    number(line, b",\"bytes_out\":", record.bytes_out);
    number(line, b",\"attempts\":", u64::from(record.attempts));
    let times = &record.times;
    time(line, b",\"head_us\":", Some(times.head));
    time(line, b",\"queue_us\":", times.queue);
    time(line, b",\"connect_us\":", times.connect);
    time(line, b",\"first_byte_us\":", times.first_byte);
    time(line, b",\"transfer_us\":", times.transfer);
    time(line, b",\"total_us\":", Some(times.total));
    if let Some(id) = record.request_id {
        text(line, b",\"request_id\":\"", id);
    }
    if let Some(id) = record.trace_id {
        text(line, b",\"trace_id\":\"", &hex::<32>(id));
    }
    word(line, b",\"end\":\"", record.end.word());
    line.literal(b"}\n");
}

#[inline]
fn number<const LEN: usize>(line: &mut Line<'_>, key: &[u8; LEN], number: u64) {
    line.literal(key);
    line.number(number);
}

#[inline]
fn time<const LEN: usize>(line: &mut Line<'_>, key: &[u8; LEN], time: Option<Duration>) {
    if let Some(time) = time {
        number(line, key, time.as_micros() as u64);
    }
}

#[inline]
fn text<const LEN: usize>(line: &mut Line<'_>, key: &[u8; LEN], value: &[u8]) {
    line.literal(key);
    push_json(line, value);
    line.byte(b'"');
}

/// A word of ours, which needs no escape.
#[inline]
fn word<const LEN: usize>(line: &mut Line<'_>, key: &[u8; LEN], word: &str) {
    line.literal(key);
    line.bytes(word.as_bytes());
    line.byte(b'"');
}
