//! Lines by a template of the configuration. A missing value is `-`. Text from outside is escaped
//! as in the combined format.

use std::time::Duration;

use super::clock::Seconds;
use super::combined::push_request_line;
use super::escape::push_quoted;
use super::line::Line;
use super::names::Name;
use super::record::{LoggedRequest, Record};
use super::termination::termination;
use super::texts::Extras;
use crate::config::access_log::{LogField, Part, Template};

pub(super) fn write(
    line: &mut Line<'_>,
    template: &Template,
    record: &Record<'_>,
    seconds: &mut Seconds,
) {
    let mut extras = record.extras;
    for part in &template.parts {
        match part {
            Part::Text(text) => line.bytes(text.as_bytes()),
            Part::Field(field) => push_field(line, *field, record, &mut extras, seconds),
            Part::Header(_) => push_text(line, extras.next()),
        }
    }
    line.byte(b'\n');
}

fn push_field(
    line: &mut Line<'_>,
    field: LogField,
    record: &Record<'_>,
    extras: &mut Extras<'_>,
    seconds: &mut Seconds,
) {
    let figures = record.figures;
    let times = &figures.times;
    let basics = &record.basics;
    let (method, host, target, version) = match basics.request {
        LoggedRequest::Refused(_) => (None, None, None, None),
        LoggedRequest::Read {
            method,
            target,
            version,
        } => (Some(method), Some(record.host), Some(target), Some(version)),
    };
    match field {
        LogField::Time => seconds.push_rfc3339(line, basics.unix_us),
        LogField::UnixMs => line.number(basics.unix_us / 1_000),
        LogField::ClientIp => line.bytes(basics.client),
        LogField::ClientPort => line.number(u64::from(figures.client_port)),
        LogField::Connection => push_place(line, record.place.connection),
        LogField::Stream => push_place(line, record.place.stream),
        LogField::Listener => push_name(line, Some(record.listener)),
        LogField::Route => push_name(line, record.route),
        LogField::Upstream => push_name(line, record.upstream),
        LogField::Endpoint => push_name(line, record.endpoint),
        LogField::Method => push_text(line, method),
        LogField::Host => push_text(line, host),
        LogField::Target => push_text(line, target),
        LogField::Path | LogField::Query => push_text(line, extras.next()),
        LogField::Version => push_word(line, version.map(|version| version.as_str())),
        LogField::Request => push_request_line(line, basics),
        LogField::Referer => push_text(line, basics.referer),
        LogField::UserAgent => push_text(line, basics.user_agent),
        LogField::User => push_text(line, basics.user),
        LogField::Status => line.number(u64::from(figures.status)),
        LogField::BytesIn => line.number(figures.bytes_in),
        LogField::BytesOut => line.number(figures.bytes_out),
        LogField::BodyBytesOut => line.number(figures.body_bytes_out),
        LogField::Attempts => line.number(u64::from(figures.attempts)),
        LogField::Reason => push_word(line, figures.reason.map(|it| it.word())),
        LogField::Source => push_word(line, figures.source.map(|it| it.word())),
        LogField::Cache => push_word(line, figures.cache.map(|it| it.word())),
        LogField::CacheReason => push_word(line, figures.unanswered.map(|it| it.word())),
        LogField::CacheAgeS => push_count(line, figures.cache_age_s().map(Into::into)),
        LogField::GrpcStatus => push_count(line, figures.grpc.number().map(Into::into)),
        LogField::PacedMs => line.number(u64::from(figures.paced_ms)),
        LogField::RequestId => push_text(line, record.request_id),
        LogField::TraceId => push_text(line, record.trace_id),
        LogField::End => push_word(line, Some(figures.end.word())),
        LogField::Termination => {
            line.literal(&termination(figures.end, figures.phase));
        }
        LogField::HeadMs => push_millis(line, Some(times.head)),
        LogField::HeadUs => push_micros(line, Some(times.head)),
        LogField::QueueMs => push_millis(line, times.queue),
        LogField::QueueUs => push_micros(line, times.queue),
        LogField::ConnectMs => push_millis(line, times.connect),
        LogField::ConnectUs => push_micros(line, times.connect),
        LogField::FirstByteMs => push_millis(line, times.first_byte),
        LogField::FirstByteUs => push_micros(line, times.first_byte),
        LogField::TransferMs => push_millis(line, figures.transfer()),
        LogField::TransferUs => push_micros(line, figures.transfer()),
        LogField::TotalMs => push_millis(line, Some(times.total)),
        LogField::TotalUs => push_micros(line, Some(times.total)),
    }
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

/// A number, where 0 means a missing value.
fn push_place(line: &mut Line<'_>, number: u32) {
    push_count(line, (number > 0).then_some(number.into()));
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
