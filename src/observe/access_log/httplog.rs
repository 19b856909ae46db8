//! The format `httplog`: HAProxy's HTTP log format (configuration manual, section 8.2.3), so that
//! `halog` and other readers of that format can read our logs.
//!
//! Times are in milliseconds, -1 for a phase that was not reached. Cookies and header fields are
//! not captured, so those fields are `-` or absent, as in HAProxy.

use std::time::Duration;

use super::clock::Seconds;
use super::escape::push_hashed;
use super::line::Line;
use super::record::{Figures, LoggedRequest, Phase, Reason, Record};
use super::termination::termination;

pub(super) fn write(line: &mut Line<'_>, record: &Record<'_>, seconds: &mut Seconds) {
    let figures = record.figures;
    line.bytes(record.basics.client);
    line.byte(b':');
    line.number(u64::from(figures.client_port));
    line.literal(b" [");
    // The start of the exchange.
    let started_us = record
        .basics
        .unix_us
        .saturating_sub(figures.times.total.as_micros() as u64);
    push_date(line, seconds, started_us);
    line.literal(b"] ");
    line.bytes(&record.listener.word);
    line.byte(b' ');
    let upstream = record.upstream.unwrap_or(record.listener);
    line.bytes(&upstream.word);
    line.byte(b'/');
    match record.endpoint {
        Some(endpoint) => line.bytes(&endpoint.word),
        None => line.literal(b"<NOSRV>"),
    }
    push_times(line, figures);
    line.byte(b' ');
    match figures.status {
        0 => line.literal(b"-1"),
        status => line.number(u64::from(status)),
    }
    line.byte(b' ');
    line.number(figures.bytes_out);
    line.literal(b" - - ");
    line.literal(&termination(figures.end, figures.phase));
    push_counts(line, record);
    line.literal(b" \"");
    push_request_line(line, record);
    line.literal(b"\"\n");
}

/// `21/Nov/2026:09:05:01.123`.
fn push_date(line: &mut Line<'_>, seconds: &mut Seconds, unix_us: u64) {
    let second = seconds.of(unix_us);
    let zone_at = second.combined.len().saturating_sub(" +0000".len());
    line.bytes(&second.combined.as_bytes()[..zone_at]);
    let millis = unix_us / 1_000 % 1_000;
    let digits = [millis / 100, millis / 10 % 10, millis % 10];
    line.byte(b'.');
    line.literal(&digits.map(|digit| b'0' + digit as u8));
}

/// `TR/Tw/Tc/Tr/Ta`.
fn push_times(line: &mut Line<'_>, figures: &Figures) {
    let times = &figures.times;
    let phase = figures.phase;
    // An exchange that reached an endpoint has passed the queue.
    let is_queued = figures.attempts > 0 || phase >= Phase::Queue;
    let head = (phase > Phase::Head).then_some(times.head);
    let queue = is_queued.then(|| times.queue.unwrap_or_default());
    let connect = (phase >= Phase::Response).then(|| times.connect.unwrap_or_default());
    let response = times.first_byte.filter(|_| phase == Phase::Data);
    for (before, time) in [
        (b' ', head),
        (b'/', queue),
        (b'/', connect),
        (b'/', response),
    ] {
        line.byte(before);
        push_millis(line, time);
    }
    line.byte(b'/');
    push_millis(line, Some(times.total));
}

pub(super) fn push_millis(line: &mut Line<'_>, time: Option<Duration>) {
    match time {
        Some(time) => line.number(time.as_millis() as u64),
        None => line.literal(b"-1"),
    }
}

/// `actconn/feconn/beconn/srv_conn/retries srv_queue/backend_queue`. The queue belongs to the
/// upstream; endpoints have none.
fn push_counts(line: &mut Line<'_>, record: &Record<'_>) {
    let figures = record.figures;
    let open = record.open;
    for (before, count) in [
        (b' ', open.connections),
        (b'/', open.listener_connections),
        (b'/', open.upstream_exchanges),
        (b'/', open.endpoint_exchanges),
    ] {
        line.byte(before);
        line.number(u64::from(count));
    }
    line.byte(b'/');
    if figures.reason == Some(Reason::Retry) {
        // HAProxy marks a retry at another server so.
        line.byte(b'+');
    }
    line.number(u64::from(figures.attempts.saturating_sub(1)));
    line.literal(b" 0/");
    // 0 means no wait; the first in the queue is 1.
    let place = match figures.times.queue {
        Some(_) => u64::from(figures.queued_behind) + 1,
        None => 0,
    };
    line.number(place);
}

fn push_request_line(line: &mut Line<'_>, record: &Record<'_>) {
    let LoggedRequest::Read {
        method,
        target,
        version,
    } = record.basics.request
    else {
        // A TCP connection has no bad request.
        let is_none = record.figures.status == 0 && record.basics.request.is_empty();
        return if is_none {
            line.byte(b'-')
        } else {
            line.literal(b"<BADREQ>")
        };
    };
    push_hashed(line, method);
    line.byte(b' ');
    push_hashed(line, target);
    line.byte(b' ');
    line.bytes(version.as_str().as_bytes());
}
