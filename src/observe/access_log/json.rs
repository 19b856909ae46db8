//! The format `json`: one object a line. What an exchange did not come to is
//! left out.

use std::time::Duration;

use evenkeel_proto::FieldKind;

use super::clock::Clock;
use super::escape::{push_json, push_number};
use super::record::Record;

pub(super) fn write(out: &mut Vec<u8>, record: &Record<'_>, clock: &Clock, unix_us: u64) {
    out.extend_from_slice(b"{\"time\":\"");
    clock.push_rfc3339(out, unix_us);
    out.extend_from_slice(b"\",\"client\":\"");
    out.extend_from_slice(record.client);
    out.push(b'"');
    number(out, b",\"client_port\":", u64::from(record.client_port));
    out.extend_from_slice(&record.listener.json);
    let names = [record.route, record.upstream, record.endpoint];
    for name in names.into_iter().flatten() {
        out.extend_from_slice(&name.json);
    }
    if let Some(reason) = record.reason {
        word(out, b",\"reason\":\"", reason.word());
    }
    match record.head {
        Some(head) => {
            text(out, b",\"method\":\"", head.method_span.of(record.buf));
            text(out, b",\"host\":\"", head.host.of(record.buf));
            text(out, b",\"target\":\"", head.target.of(record.buf));
            word(out, b",\"version\":\"", head.version.as_str());
        }
        None => text(out, b",\"raw\":\"", record.raw_line()),
    }
    if let Some(value) = record.field(FieldKind::Referer) {
        text(out, b",\"referer\":\"", value);
    }
    if let Some(value) = record.field(FieldKind::UserAgent) {
        text(out, b",\"user_agent\":\"", value);
    }
    number(out, b",\"status\":", u64::from(record.status));
    number(out, b",\"bytes_in\":", record.bytes_in);
    number(out, b",\"bytes_out\":", record.bytes_out);
    number(out, b",\"attempts\":", u64::from(record.attempts));
    let times = &record.times;
    time(out, b",\"head_us\":", Some(times.head));
    time(out, b",\"queue_us\":", times.queue);
    time(out, b",\"connect_us\":", times.connect);
    time(out, b",\"first_byte_us\":", times.first_byte);
    time(out, b",\"transfer_us\":", times.transfer);
    time(out, b",\"total_us\":", Some(times.total));
    word(out, b",\"end\":\"", record.end.word());
    out.extend_from_slice(b"}\n");
}

fn number(out: &mut Vec<u8>, key: &[u8], number: u64) {
    out.extend_from_slice(key);
    push_number(out, number);
}

fn time(out: &mut Vec<u8>, key: &[u8], time: Option<Duration>) {
    if let Some(time) = time {
        number(out, key, time.as_micros() as u64);
    }
}

fn text(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(key);
    push_json(out, value);
    out.push(b'"');
}

/// A word of ours, which needs no escape.
fn word(out: &mut Vec<u8>, key: &[u8], word: &str) {
    out.extend_from_slice(key);
    out.extend_from_slice(word.as_bytes());
    out.push(b'"');
}
