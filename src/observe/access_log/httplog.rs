//! The format `httplog`: HAProxy's HTTP log format (configuration manual,
//! section 8.2.3), so that `halog` and every other reader of it reads ours.
//!
//! Times are in milliseconds, -1 for a phase that was not reached. No cookies
//! or header fields are captured, so that those fields are `-` or left out, as
//! HAProxy does.

use std::time::Duration;

use super::clock::Clock;
use super::escape::{push_hashed, push_number};
use super::record::{Phase, Reason, Record};
use super::termination::termination;

pub(super) fn write(out: &mut Vec<u8>, record: &Record<'_>, clock: &Clock, unix_us: u64) {
    out.extend_from_slice(record.client);
    out.push(b':');
    push_number(out, u64::from(record.client_port));
    out.extend_from_slice(b" [");
    // When it began.
    let started_us = unix_us.saturating_sub(record.times.total.as_micros() as u64);
    push_date(out, clock, started_us);
    out.extend_from_slice(b"] ");
    out.extend_from_slice(&record.listener.word);
    out.push(b' ');
    let upstream = record.upstream.unwrap_or(record.listener);
    out.extend_from_slice(&upstream.word);
    out.push(b'/');
    match record.endpoint {
        Some(endpoint) => out.extend_from_slice(&endpoint.word),
        None => out.extend_from_slice(b"<NOSRV>"),
    }
    push_times(out, record);
    out.push(b' ');
    match record.status {
        0 => out.extend_from_slice(b"-1"),
        status => push_number(out, u64::from(status)),
    }
    out.push(b' ');
    push_number(out, record.bytes_out);
    out.extend_from_slice(b" - - ");
    out.extend_from_slice(&termination(record.end, record.phase));
    push_counts(out, record);
    out.extend_from_slice(b" \"");
    push_request_line(out, record);
    out.extend_from_slice(b"\"\n");
}

/// `21/Nov/2026:09:05:01.123`.
fn push_date(out: &mut Vec<u8>, clock: &Clock, unix_us: u64) {
    clock.with_second(unix_us, |second| {
        let zone_at = second.combined.len().saturating_sub(" +0000".len());
        out.extend_from_slice(&second.combined.as_bytes()[..zone_at]);
    });
    let millis = unix_us / 1_000 % 1_000;
    let digits = [millis / 100, millis / 10 % 10, millis % 10];
    out.push(b'.');
    out.extend(digits.map(|digit| b'0' + digit as u8));
}

/// `TR/Tw/Tc/Tr/Ta`.
fn push_times(out: &mut Vec<u8>, record: &Record<'_>) {
    let times = &record.times;
    let phase = record.phase;
    // Where it came to an endpoint, it was through with the queue.
    let is_queued = record.attempts > 0 || phase >= Phase::Queue;
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
        out.push(before);
        push_millis(out, time);
    }
    out.push(b'/');
    push_millis(out, Some(times.total));
}

pub(super) fn push_millis(out: &mut Vec<u8>, time: Option<Duration>) {
    match time {
        Some(time) => push_number(out, time.as_millis() as u64),
        None => out.extend_from_slice(b"-1"),
    }
}

/// `actconn/feconn/beconn/srv_conn/retries srv_queue/backend_queue`. The queue
/// is the upstream's; an endpoint has none of its own.
fn push_counts(out: &mut Vec<u8>, record: &Record<'_>) {
    let live = record.live;
    for (before, count) in [
        (b' ', live.connections()),
        (b'/', live.listener_connections()),
        (b'/', live.upstream_exchanges()),
        (b'/', live.endpoint_exchanges()),
    ] {
        out.push(before);
        push_number(out, count);
    }
    out.push(b'/');
    if record.reason == Some(Reason::Retry) {
        // As HAProxy tells a retry elsewhere from one in the same place.
        out.push(b'+');
    }
    push_number(out, u64::from(record.attempts.saturating_sub(1)));
    out.extend_from_slice(b" 0/");
    push_number(out, u64::from(record.queued_behind));
}

fn push_request_line(out: &mut Vec<u8>, record: &Record<'_>) {
    let Some(head) = record.head else {
        return out.extend_from_slice(b"<BADREQ>");
    };
    push_hashed(out, head.method_span.of(record.buf));
    out.push(b' ');
    push_hashed(out, head.target.of(record.buf));
    out.push(b' ');
    out.extend_from_slice(head.version.as_str().as_bytes());
}
