//! Lines by a template of the configuration. What an exchange did not come to
//! is `-`; text from outside is escaped as in the combined format.

use std::time::Duration;

use evenkeel_proto::identity::hex;
use evenkeel_proto::{FieldKind, RequestHead};

use super::clock::Clock;
use super::combined::push_request_line;
use super::escape::push_quoted;
use super::line::Line;
use super::names::Name;
use super::record::Record;
use super::termination::termination;
use crate::config::access_log::{LogField, Part, Template};

pub(super) fn write(
    line: &mut Line<'_>,
    template: &Template,
    record: &Record<'_>,
    clock: &Clock,
    unix_us: u64,
) {
    for part in &template.parts {
        match part {
            Part::Text(text) => line.bytes(text.as_bytes()),
            Part::Field(field) => push_field(line, *field, record, clock, unix_us),
            Part::Header(name) => push_header(line, name, record),
        }
    }
    line.byte(b'\n');
}

fn push_field(
    line: &mut Line<'_>,
    field: LogField,
    record: &Record<'_>,
    clock: &Clock,
    unix_us: u64,
) {
    let buf = record.buf;
    let of_head = |line: &mut Line<'_>, part: fn(&RequestHead) -> evenkeel_proto::Span| {
        push_text(line, record.head.map(|head| part(head).of(buf)));
    };
    let times = &record.times;
    match field {
        LogField::Time => clock.push_rfc3339(line, unix_us),
        LogField::UnixMs => line.number(unix_us / 1_000),
        LogField::ClientIp => line.bytes(record.client),
        LogField::ClientPort => line.number(u64::from(record.client_port)),
        LogField::Listener => push_name(line, Some(record.listener)),
        LogField::Route => push_name(line, record.route),
        LogField::Upstream => push_name(line, record.upstream),
        LogField::Endpoint => push_name(line, record.endpoint),
        LogField::Method => of_head(line, |head| head.method_span),
        LogField::Host => of_head(line, |head| head.host),
        LogField::Target => of_head(line, |head| head.target),
        LogField::Path => of_head(line, |head| head.path),
        LogField::Query => of_head(line, |head| head.query),
        LogField::Version => push_word(line, record.head.map(|head| head.version.as_str())),
        LogField::Request => push_request_line(line, record),
        LogField::Referer => push_text(line, record.field(FieldKind::Referer)),
        LogField::UserAgent => push_text(line, record.field(FieldKind::UserAgent)),
        LogField::Status => line.number(u64::from(record.status)),
        LogField::BytesIn => line.number(record.bytes_in),
        LogField::BytesOut => line.number(record.bytes_out),
        LogField::BodyBytesOut => line.number(record.body_bytes_out),
        LogField::Attempts => line.number(u64::from(record.attempts)),
        LogField::Reason => push_word(line, record.reason.map(|it| it.word())),
        LogField::RequestId => push_text(line, record.request_id),
        LogField::TraceId => {
            let id = record.trace_id.map(hex::<32>);
            push_text(line, id.as_ref().map(|it| &it[..]));
        }
        LogField::End => push_word(line, Some(record.end.word())),
        LogField::Termination => {
            line.bytes(&termination(record.end, record.phase));
        }
        LogField::HeadMs => push_millis(line, Some(times.head)),
        LogField::HeadUs => push_micros(line, Some(times.head)),
        LogField::QueueMs => push_millis(line, times.queue),
        LogField::QueueUs => push_micros(line, times.queue),
        LogField::ConnectMs => push_millis(line, times.connect),
        LogField::ConnectUs => push_micros(line, times.connect),
        LogField::FirstByteMs => push_millis(line, times.first_byte),
        LogField::FirstByteUs => push_micros(line, times.first_byte),
        LogField::TransferMs => push_millis(line, times.transfer),
        LogField::TransferUs => push_micros(line, times.transfer),
        LogField::TotalMs => push_millis(line, Some(times.total)),
        LogField::TotalUs => push_micros(line, Some(times.total)),
    }
}

fn push_header(line: &mut Line<'_>, name: &str, record: &Record<'_>) {
    let mut fields = record.head.iter().flat_map(|head| &head.fields);
    let is_named = |found: &[u8]| found.eq_ignore_ascii_case(name.as_bytes());
    let found = fields.find(|field| is_named(field.name.of(record.buf)));
    push_text(line, found.map(|field| field.value.of(record.buf)));
}

fn push_text(line: &mut Line<'_>, text: Option<&[u8]>) {
    match text {
        Some(text) if !text.is_empty() => push_quoted(line, text),
        _ => line.byte(b'-'),
    }
}

fn push_name(line: &mut Line<'_>, name: Option<&Name>) {
    line.bytes(name.map_or(b"-", |name| &name.word));
}

/// A word of ours, which needs no escape.
fn push_word(line: &mut Line<'_>, word: Option<&str>) {
    line.bytes(word.unwrap_or("-").as_bytes());
}

fn push_millis(line: &mut Line<'_>, time: Option<Duration>) {
    push_count(line, time.map(|it| it.as_millis()));
}

fn push_micros(line: &mut Line<'_>, time: Option<Duration>) {
    push_count(line, time.map(|it| it.as_micros()));
}

fn push_count(line: &mut Line<'_>, count: Option<u128>) {
    match count {
        Some(count) => line.number(count as u64),
        None => line.byte(b'-'),
    }
}
