//! The format `json`: one object for each line. Missing values are left out.

use std::time::Duration;

use super::clock::Seconds;
use super::escape::push_json;
use super::line::Line;
use super::record::{LoggedRequest, Record};

pub(super) fn write(line: &mut Line<'_>, record: &Record<'_>, seconds: &mut Seconds) {
    let figures = record.figures;
    let is_plain = record.is_plain;
    line.literal(b"{\"time\":\"");
    seconds.push_rfc3339(line, record.basics.unix_us);
    line.literal(b"\",\"client\":\"");
    line.bytes(record.basics.client);
    number(line, b"\",\"client_port\":", u64::from(figures.client_port));
    line.bytes(&record.listener.json);
    if record.place.stream > 0 {
        number(line, b",\"connection\":", record.place.connection.into());
        number(line, b",\"stream\":", record.place.stream.into());
    }
    let names = [record.route, record.upstream, record.endpoint];
    for name in names.into_iter().flatten() {
        line.bytes(&name.json);
    }
    if let Some(reason) = figures.reason {
        word(line, b",\"reason\":\"", reason.word());
    }
    if let Some(source) = figures.source {
        word(line, b",\"source\":\"", source.word());
    }
    if let Some(cache) = figures.cache {
        word(line, b",\"cache\":\"", cache.word());
    }
    if let Some(reason) = figures.unanswered {
        word(line, b",\"cache_reason\":\"", reason.word());
    }
    if let Some(age) = figures.cache_age_s() {
        number(line, b",\"cache_age_s\":", age.into());
    }
    if let Some(status) = figures.grpc.number() {
        number(line, b",\"grpc_status\":", status.into());
    }
    if figures.paced_ms > 0 {
        number(line, b",\"paced_ms\":", figures.paced_ms.into());
    }
    match record.basics.request {
        LoggedRequest::Read {
            method,
            target,
            version,
        } => {
            text(line, b",\"method\":\"", method, is_plain);
            text(line, b",\"host\":\"", record.host, is_plain);
            text(line, b",\"target\":\"", target, is_plain);
            word(line, b",\"version\":\"", version.as_str());
        }
        // A TCP connection, or a client that sent nothing.
        LoggedRequest::Refused([]) => {}
        LoggedRequest::Refused(raw) => text(line, b",\"raw\":\"", raw, is_plain),
    }
    if let Some(value) = record.basics.referer {
        text(line, b",\"referer\":\"", value, is_plain);
    }
    if let Some(value) = record.basics.user_agent {
        text(line, b",\"user_agent\":\"", value, is_plain);
    }
    if let Some(user) = record.basics.user {
        text(line, b",\"user\":\"", user, is_plain);
    }
    number(line, b",\"status\":", u64::from(figures.status));
    number(line, b",\"bytes_in\":", figures.bytes_in);
    number(line, b",\"bytes_out\":", figures.bytes_out);
    number(line, b",\"attempts\":", u64::from(figures.attempts));
    let times = &figures.times;
    time(line, b",\"head_us\":", Some(times.head));
    time(line, b",\"queue_us\":", times.queue);
    time(line, b",\"connect_us\":", times.connect);
    time(line, b",\"first_byte_us\":", times.first_byte);
    time(line, b",\"transfer_us\":", figures.transfer());
    time(line, b",\"total_us\":", Some(times.total));
    if let Some(id) = record.request_id {
        text(line, b",\"request_id\":\"", id, is_plain);
    }
    if let Some(id) = record.trace_id {
        text(line, b",\"trace_id\":\"", id, is_plain);
    }
    word(line, b",\"end\":\"", figures.end.word());
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

#[inline(always)]
fn text<const LEN: usize>(line: &mut Line<'_>, key: &[u8; LEN], value: &[u8], is_plain: bool) {
    line.literal(key);
    if is_plain {
        line.bytes(value)
    } else {
        push_json(line, value)
    }
    line.byte(b'"');
}

/// A word of ours, which needs no escape.
#[inline]
fn word<const LEN: usize>(line: &mut Line<'_>, key: &[u8; LEN], word: &str) {
    line.literal(key);
    line.bytes(word.as_bytes());
    line.byte(b'"');
}
