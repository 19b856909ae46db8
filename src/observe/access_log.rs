//! The access log: one line for each exchange, written by its worker into a
//! buffer of its own and handed to the writer thread in large pieces.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_proto::identity::hex;
use evenkeel_proto::{FieldKind, RequestHead};

use super::calendar::Moment;
use super::counters::Counter;
use super::end::End;
use super::writer::{LogSender, line_count};
use crate::config::AccessLogFormat;

/// A buffer this full is handed over.
const HAND_OVER_LEN: usize = 32 * 1024;
/// Longest piece of a refused head that a line shows, in bytes.
const RAW_LINE_LEN: usize = 256;

/// What a line tells of an exchange.
#[derive(Debug)]
pub struct Record<'a> {
    /// Address of the client.
    pub client: &'a [u8],
    /// Name of the listener.
    pub listener: &'a str,
    /// Name of the route, if one matched.
    pub route: Option<&'a str>,
    /// Name of the upstream, if the route goes to one.
    pub upstream: Option<&'a str>,
    /// Name of the last endpoint tried.
    pub endpoint: Option<&'a str>,
    /// The bytes that the head's spans are in.
    pub buf: &'a [u8],
    /// The request's head; `None` if it was refused.
    pub head: Option<&'a RequestHead>,
    /// Status sent; 0 if none was.
    pub status: u16,
    /// Bytes of the request, head and body.
    pub bytes_in: u64,
    /// Bytes of the response, head and body.
    pub bytes_out: u64,
    /// Bytes of the response's body.
    pub body_bytes_out: u64,
    /// Attempts made.
    pub attempts: u32,
    /// How it ended.
    pub end: End,
    /// How long each phase took.
    pub times: Times,
    /// Its request id, where there is one to log.
    pub request_id: Option<&'a [u8]>,
    /// Id of its trace, where it is part of one.
    pub trace_id: Option<u128>,
}

/// How long the phases of an exchange took; `None` where one was not reached.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// From the head's first byte to its last.
    pub head: Duration,
    /// In the upstream's queue, where it had to wait.
    pub queue: Option<Duration>,
    /// Opening a connection, where none was idle.
    pub connect: Option<Duration>,
    /// From the request sent, by the last attempt, to the response's head
    /// received.
    pub first_byte: Option<Duration>,
    /// From the head's first byte to the exchange's end.
    pub total: Duration,
}

/// One worker's side of the access logs.
#[derive(Debug)]
pub struct AccessLog {
    sender: LogSender,
    pending: RefCell<Vec<Vec<u8>>>,
    clock: Clock,
}

impl AccessLog {
    /// A log for each path that the writer opened.
    pub fn new(sender: LogSender, log_count: usize) -> Self {
        AccessLog {
            sender,
            pending: RefCell::new(vec![Vec::new(); log_count]),
            clock: Clock::new(),
        }
    }

    /// Writes the line of an exchange that ended at `now`.
    pub fn write(
        &self,
        log: usize,
        format: AccessLogFormat,
        record: &Record<'_>,
        now: Instant,
        dropped: &Counter,
    ) {
        let mut pending = self.pending.borrow_mut();
        let lines = &mut pending[log];
        let unix_us = self.clock.unix_us(now);
        match format {
            AccessLogFormat::Combined => self.combined(lines, record, unix_us),
            AccessLogFormat::Json => self.json(lines, record, unix_us),
        }
        if lines.len() >= HAND_OVER_LEN {
            self.hand_over(log, lines, dropped);
        }
    }

    /// Follows a clock that was set, and time that passed in suspension.
    pub fn synchronise_clock(&self) {
        self.clock.base.set(base());
    }

    /// Hands over what is there, so that a quiet worker's lines appear.
    pub fn flush(&self, dropped: &Counter) {
        for (log, lines) in self.pending.borrow_mut().iter_mut().enumerate() {
            if !lines.is_empty() {
                self.hand_over(log, lines, dropped);
            }
        }
    }

    /// A moment in microseconds since 1970, without a clock call.
    pub fn unix_us(&self, moment: Instant) -> u64 {
        self.clock.unix_us(moment)
    }

    /// `Date` of now, for answers made here.
    pub fn http_date(&self, now: Instant) -> String {
        Moment::from_unix(self.clock.unix_us(now) / 1_000_000).http_date()
    }

    fn hand_over(&self, log: usize, lines: &mut Vec<u8>, dropped: &Counter) {
        let full = std::mem::replace(lines, Vec::with_capacity(HAND_OVER_LEN + 4 * 1024));
        if let Err(mut unsent) = self.sender.send(log, full) {
            dropped.add(line_count(&unsent));
            unsent.clear();
            *lines = unsent;
        }
    }

    fn combined(&self, out: &mut Vec<u8>, record: &Record<'_>, unix_us: u64) {
        out.extend_from_slice(record.client);
        out.extend_from_slice(b" - - [");
        self.clock.with_second(unix_us, |second| {
            out.extend_from_slice(second.combined.as_bytes());
        });
        out.extend_from_slice(b"] \"");
        push_request_line(out, record, push_quoted);
        out.extend_from_slice(b"\" ");
        push_number(out, u64::from(record.status));
        out.push(b' ');
        push_number(out, record.body_bytes_out);
        for kind in [FieldKind::Referer, FieldKind::UserAgent] {
            out.extend_from_slice(b" \"");
            match field(record, kind) {
                Some(value) => push_quoted(out, value),
                None => out.push(b'-'),
            }
            out.push(b'"');
        }
        out.push(b'\n');
    }

    fn json(&self, out: &mut Vec<u8>, record: &Record<'_>, unix_us: u64) {
        out.extend_from_slice(b"{\"time\":\"");
        self.clock.with_second(unix_us, |second| {
            out.extend_from_slice(second.rfc3339.as_bytes());
        });
        push_fraction(out, unix_us % 1_000_000);
        out.extend_from_slice(b"Z\",\"client\":\"");
        out.extend_from_slice(record.client);
        out.push(b'"');
        let names = [
            ("listener", Some(record.listener)),
            ("route", record.route),
            ("upstream", record.upstream),
            ("endpoint", record.endpoint),
        ];
        for (name, value) in names {
            if let Some(value) = value {
                push_json_text(out, name, value.as_bytes());
            }
        }
        match record.head {
            Some(head) => {
                push_json_text(out, "method", head.method_span.of(record.buf));
                push_json_text(out, "host", head.host.of(record.buf));
                push_json_text(out, "target", head.target.of(record.buf));
                push_json_text(out, "version", head.version.as_str().as_bytes());
            }
            None => push_json_text(out, "raw", raw_line(record.buf)),
        }
        for (name, kind) in [
            ("referer", FieldKind::Referer),
            ("user_agent", FieldKind::UserAgent),
        ] {
            if let Some(value) = field(record, kind) {
                push_json_text(out, name, value);
            }
        }
        let times = &record.times;
        let numbers = [
            ("status", Some(u64::from(record.status))),
            ("bytes_in", Some(record.bytes_in)),
            ("bytes_out", Some(record.bytes_out)),
            ("attempts", Some(u64::from(record.attempts))),
            ("head_us", Some(times.head.as_micros() as u64)),
            ("queue_us", times.queue.map(|time| time.as_micros() as u64)),
            (
                "connect_us",
                times.connect.map(|time| time.as_micros() as u64),
            ),
            (
                "first_byte_us",
                times.first_byte.map(|time| time.as_micros() as u64),
            ),
            ("total_us", Some(times.total.as_micros() as u64)),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                push_json_name(out, name);
                push_number(out, value);
            }
        }
        if let Some(id) = record.request_id {
            push_json_text(out, "request_id", id);
        }
        if let Some(id) = record.trace_id {
            push_json_text(out, "trace_id", &hex::<32>(id));
        }
        push_json_text(out, "end", record.end.word().as_bytes());
        out.extend_from_slice(b"}\n");
    }
}

/// The first line of what was sent instead of a head, or a part of it.
fn raw_line(buf: &[u8]) -> &[u8] {
    let line = buf.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    &line[..line.len().min(RAW_LINE_LEN)]
}

fn push_request_line(out: &mut Vec<u8>, record: &Record<'_>, push: fn(&mut Vec<u8>, &[u8])) {
    let Some(head) = record.head else {
        return push(out, raw_line(record.buf));
    };
    push(out, head.method_span.of(record.buf));
    out.push(b' ');
    push(out, head.target.of(record.buf));
    out.push(b' ');
    out.extend_from_slice(head.version.as_str().as_bytes());
}

fn field<'a>(record: &Record<'a>, kind: FieldKind) -> Option<&'a [u8]> {
    record.head?.value_of(kind, record.buf)
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn push_fraction(out: &mut Vec<u8>, micros: u64) {
    let mut digits = *b".000000";
    let mut rest = micros;
    for digit in digits[1..].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&digits);
}

fn push_json_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn push_json_text(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    push_json_name(out, name);
    out.push(b'"');
    push_escaped(out, value, |out, byte| {
        if byte == b'"' || byte == b'\\' {
            out.extend_from_slice(&[b'\\', byte]);
        } else {
            // Bytes above 0x7f need not be UTF-8: they are shown as Latin-1.
            out.extend_from_slice(b"\\u00");
            push_hex(out, byte);
        }
    });
    out.push(b'"');
}

/// As nginx does it: `"`, `\` and everything that is not printable ASCII
/// become `\xHH`, so that no request can forge a line.
fn push_quoted(out: &mut Vec<u8>, value: &[u8]) {
    push_escaped(out, value, |out, byte| {
        out.extend_from_slice(b"\\x");
        push_hex(out, byte);
    });
}

fn push_escaped(out: &mut Vec<u8>, value: &[u8], escape: impl Fn(&mut Vec<u8>, u8)) {
    let is_plain = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    // Without an early end the compiler looks at many bytes at a time.
    let odd = value.iter().fold(false, |odd, &byte| odd | !is_plain(byte));
    if !odd {
        return out.extend_from_slice(value);
    }
    for &byte in value {
        if is_plain(byte) {
            out.push(byte);
        } else {
            escape(out, byte);
        }
    }
}

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

/// A client's address as text, in place: made once for a connection.
#[derive(Debug, Clone, Copy)]
pub struct AddressText {
    bytes: [u8; AddressText::CAPACITY],
    len: u8,
}

impl AddressText {
    /// The longest text: `0000:0000:0000:0000:0000:0000:0000:0000`.
    const CAPACITY: usize = 39;

    /// The address; `unix` for a client on a Unix socket. An IPv4 client of an
    /// IPv6 socket is written as IPv4.
    pub fn new(client: Option<IpAddr>) -> Self {
        use std::io::Write;
        let mut bytes = [0; Self::CAPACITY];
        let mut rest = &mut bytes[..];
        let written = match client.map(|address| address.to_canonical()) {
            Some(address) => write!(rest, "{address}"),
            None => write!(rest, "unix"),
        };
        debug_assert!(written.is_ok(), "an address fits");
        let len = (Self::CAPACITY - rest.len()) as u8;
        AddressText { bytes, len }
    }

    /// The text, which is ASCII.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The time of day without a clock call: moments that were taken anyway,
/// relative to one whose time of day is known.
#[derive(Debug)]
struct Clock {
    base: Cell<(Instant, u64)>,
    second: RefCell<Second>,
}

/// The current second as text.
#[derive(Debug, Default)]
struct Second {
    unix_s: u64,
    combined: String,
    rfc3339: String,
}

impl Clock {
    fn new() -> Self {
        Clock {
            base: Cell::new(base()),
            second: RefCell::default(),
        }
    }

    fn unix_us(&self, now: Instant) -> u64 {
        let (base, unix_us) = self.base.get();
        unix_us + now.saturating_duration_since(base).as_micros() as u64
    }

    fn with_second(&self, unix_us: u64, write: impl FnOnce(&Second)) {
        let unix_s = unix_us / 1_000_000;
        let mut second = self.second.borrow_mut();
        if second.unix_s != unix_s {
            let moment = Moment::from_unix(unix_s);
            *second = Second {
                unix_s,
                combined: moment.combined(),
                rfc3339: moment.rfc3339(),
            };
        }
        write(&second);
    }
}

fn base() -> (Instant, u64) {
    let unix = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    (Instant::now(), unix.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_addresses() {
        for (address, text) in [
            ("0.0.0.0", "0.0.0.0"),
            ("10.200.3.45", "10.200.3.45"),
            ("255.255.255.255", "255.255.255.255"),
            ("100.10.1.101", "100.10.1.101"),
            ("::1", "::1"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::a", "2001:db8::a"),
            (
                "2001:db81:2222:3333:4444:5555:6666:7777",
                "2001:db81:2222:3333:4444:5555:6666:7777",
            ),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(AddressText::new(Some(address)).as_bytes(), text.as_bytes());
        }
        assert_eq!(AddressText::new(None).as_bytes(), b"unix");
    }

    #[test]
    fn no_byte_can_forge_a_line() {
        for byte in 0..=255u8 {
            let mut quoted = Vec::new();
            push_quoted(&mut quoted, &[b'a', byte, b'b']);
            assert!(quoted.iter().all(|&byte| (0x20..0x7f).contains(&byte)));
            assert!(!quoted.contains(&b'"'));
            let mut json = Vec::new();
            push_json_text(&mut json, "x", &[b'a', byte, b'b']);
            let object = format!("{{\"y\":0{}}}", String::from_utf8(json).expect("ASCII"));
            let parsed: serde_json::Value = serde_json::from_str(&object).expect("JSON");
            let expected: String = ['a', char::from(byte), 'b'].iter().collect();
            assert_eq!(parsed["x"], expected.as_str());
        }
    }
}
