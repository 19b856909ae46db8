//! Lines by a template of the configuration. What an exchange did not come to
//! is `-`; text from outside is escaped as in the combined format.

use std::time::Duration;

use evenkeel_proto::{FieldKind, RequestHead};

use super::clock::Clock;
use super::combined::push_request_line;
use super::escape::{push_number, push_quoted};
use super::names::Name;
use super::record::Record;
use super::termination::termination;
use crate::config::access_log::{LogField, Part, Template};

pub(super) fn write(
    out: &mut Vec<u8>,
    template: &Template,
    record: &Record<'_>,
    clock: &Clock,
    unix_us: u64,
) {
    for part in &template.parts {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Field(field) => push_field(out, *field, record, clock, unix_us),
            Part::Header(name) => push_header(out, name, record),
        }
    }
    out.push(b'\n');
}

fn push_field(
    out: &mut Vec<u8>,
    field: LogField,
    record: &Record<'_>,
    clock: &Clock,
    unix_us: u64,
) {
    let buf = record.buf;
    let of_head = |out: &mut Vec<u8>, part: fn(&RequestHead) -> evenkeel_proto::Span| {
        push_text(out, record.head.map(|head| part(head).of(buf)));
    };
    let times = &record.times;
    match field {
        LogField::Time => clock.push_rfc3339(out, unix_us),
        LogField::UnixMs => push_number(out, unix_us / 1_000),
        LogField::ClientIp => out.extend_from_slice(record.client),
        LogField::ClientPort => push_number(out, u64::from(record.client_port)),
        LogField::Listener => push_name(out, Some(record.listener)),
        LogField::Route => push_name(out, record.route),
        LogField::Upstream => push_name(out, record.upstream),
        LogField::Endpoint => push_name(out, record.endpoint),
        LogField::Method => of_head(out, |head| head.method_span),
        LogField::Host => of_head(out, |head| head.host),
        LogField::Target => of_head(out, |head| head.target),
        LogField::Path => of_head(out, |head| head.path),
        LogField::Query => of_head(out, |head| head.query),
        LogField::Version => push_word(out, record.head.map(|head| head.version.as_str())),
        LogField::Request => push_request_line(out, record),
        LogField::Referer => push_text(out, record.field(FieldKind::Referer)),
        LogField::UserAgent => push_text(out, record.field(FieldKind::UserAgent)),
        LogField::Status => push_number(out, u64::from(record.status)),
        LogField::BytesIn => push_number(out, record.bytes_in),
        LogField::BytesOut => push_number(out, record.bytes_out),
        LogField::BodyBytesOut => push_number(out, record.body_bytes_out),
        LogField::Attempts => push_number(out, u64::from(record.attempts)),
        LogField::Reason => push_word(out, record.reason.map(|it| it.word())),
        LogField::End => push_word(out, Some(record.end.word())),
        LogField::Termination => {
            out.extend_from_slice(&termination(record.end, record.phase));
        }
        LogField::HeadMs => push_millis(out, Some(times.head)),
        LogField::HeadUs => push_micros(out, Some(times.head)),
        LogField::QueueMs => push_millis(out, times.queue),
        LogField::QueueUs => push_micros(out, times.queue),
        LogField::ConnectMs => push_millis(out, times.connect),
        LogField::ConnectUs => push_micros(out, times.connect),
        LogField::FirstByteMs => push_millis(out, times.first_byte),
        LogField::FirstByteUs => push_micros(out, times.first_byte),
        LogField::TransferMs => push_millis(out, times.transfer),
        LogField::TransferUs => push_micros(out, times.transfer),
        LogField::TotalMs => push_millis(out, Some(times.total)),
        LogField::TotalUs => push_micros(out, Some(times.total)),
    }
}

fn push_header(out: &mut Vec<u8>, name: &str, record: &Record<'_>) {
    let mut fields = record.head.iter().flat_map(|head| &head.fields);
    let is_named = |found: &[u8]| found.eq_ignore_ascii_case(name.as_bytes());
    let found = fields.find(|field| is_named(field.name.of(record.buf)));
    push_text(out, found.map(|field| field.value.of(record.buf)));
}

fn push_text(out: &mut Vec<u8>, text: Option<&[u8]>) {
    match text {
        Some(text) if !text.is_empty() => push_quoted(out, text),
        _ => out.push(b'-'),
    }
}

fn push_name(out: &mut Vec<u8>, name: Option<&Name>) {
    out.extend_from_slice(name.map_or(b"-", |name| &name.word));
}

/// A word of ours, which needs no escape.
fn push_word(out: &mut Vec<u8>, word: Option<&str>) {
    out.extend_from_slice(word.unwrap_or("-").as_bytes());
}

fn push_millis(out: &mut Vec<u8>, time: Option<Duration>) {
    push_count(out, time.map(|it| it.as_millis()));
}

fn push_micros(out: &mut Vec<u8>, time: Option<Duration>) {
    push_count(out, time.map(|it| it.as_micros()));
}

fn push_count(out: &mut Vec<u8>, count: Option<u128>) {
    match count {
        Some(count) => push_number(out, count as u64),
        None => out.push(b'-'),
    }
}
